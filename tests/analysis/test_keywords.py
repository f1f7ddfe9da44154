"""Layers that are called by keyword are seen as others are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isonorm
from isonorm import analysis


class Model(nn.Module):
    """A norm with a residual, and a classifier."""

    def __init__(self, by_keyword: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.by_keyword = by_keyword
        self.first, self.norm, self.last = nn.Linear(8, 8), isonorm.IterNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        if self.by_keyword:
            # the residual first: what counts is the order of the layer's own parameters
            y = self.norm(residual=torch.zeros_like(x), input=self.first(input=x))
            return self.last(input=y)
        return self.last(self.norm(self.first(x), torch.zeros_like(x)))


QUESTIONS = {
    "inputs": lambda model, x: analysis.layer_conditioning(model, x, of="input"),
    "outputs": lambda model, x: analysis.layer_conditioning(model, x),
    "drift": lambda model, x: analysis.layer_drift(
        model, x, lambda: model.first.weight.data.mul_(2), of="input"
    ),
    "fisher_condition": lambda model, x: analysis.fisher_condition(model, x),
    "fisher_factors": lambda model, x: analysis.fisher_factors(model, x),
    "scales": lambda model, x: analysis.scale_invariance(model, x),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_the_same(question):
    x = torch.randn(64, 8)
    found = QUESTIONS[question](Model(True), x)
    assert found and found == QUESTIONS[question](Model(False), x)


def test_a_monitor_sees_the_same():
    x, histories = torch.randn(64, 8), []
    for by_keyword in (True, False):
        model = Model(by_keyword)
        with analysis.Monitor(model, every=1, of="input", disturbance=True) as monitor:
            model(x)
            monitor.step()
        histories.append(monitor.history)
    assert histories[0] == histories[1]
    assert [record["layer"] for record in monitor.latest] == ["first", "norm", "last"]
    assert monitor.latest[1]["snd"] > 0


class Nested(nn.Module):
    """A layer that takes and gives dictionaries."""

    def forward(self, batch):
        return {"y": batch["x"]}


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Nested()

    def forward(self, x):
        return self.inner({"x": x})["y"]


def test_a_layer_without_tensors_is_named():
    model, x = Around(), torch.randn(4, 3)
    with pytest.raises(TypeError, match="layer 'inner' must be called with a tensor; got dict"):
        analysis.layer_conditioning(model, x, layers=["inner"], of="input")
    with pytest.raises(TypeError, match=r"the output of layer 'inner' must .* tensor; got dict"):
        analysis.layer_conditioning(model, x, layers=["inner"])
    with pytest.raises(TypeError, match=r"the model's output must .* a tensor; got dict"):
        analysis.jacobian_singular_values(lambda x: {"y": x}, x)
