"""Running statistics estimated anew, and nothing else touched."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import isonorm
from tests.surgery.blocks import Residual

KINDS = {
    "torch": nn.BatchNorm2d,
    "isonorm": lambda c: isonorm.IterNorm(c, group_size=8),
    "instance": lambda c: nn.InstanceNorm2d(c, affine=True, track_running_stats=True),
}


@pytest.fixture
def batches():
    return [torch.randn(5, 3, 8, 8) + i for i in range(4)]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_statistics_are_the_average_over_batches(kind, batches):
    model = nn.Sequential(nn.Conv2d(3, 10, 3), kind(10))
    model(torch.randn(4, 3, 8, 8) * 9)
    model.eval()
    assert isonorm.recalibrate(model, batches) == 4
    with torch.no_grad():
        z = [model[0](x).transpose(0, 1).flatten(1) for x in batches]
    mean = torch.stack([part.mean(1) for part in z]).mean(0)
    torch.testing.assert_close(model[1].running_mean, mean)
    if isinstance(model[1], nn.BatchNorm2d):
        variance = torch.stack([part.var(1) for part in z]).mean(0)
        torch.testing.assert_close(model[1].running_var, variance)
    elif isinstance(model[1], isonorm.IterNorm):
        cov = torch.stack([part.cov() for part in z]).mean(0)
        torch.testing.assert_close(model[1].running_cov[0], cov[:8, :8])
        torch.testing.assert_close(model[1].running_cov[1, :2, :2], cov[8:, 8:])
        assert torch.equal(model[1].eval_transform, copy.deepcopy(model[1]).eval().eval_transform)


def test_modes_momentum_and_parameters_are_as_before(batches):
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, momentum=0.3), nn.Dropout(0.9),
                          isonorm.IterNorm(6, momentum=0.2))  # fmt: skip
    model.train()
    model[1].eval()
    modes = [m.training for m in model.modules()]
    parameters = [p.clone() for p in model.parameters()]
    seen = []
    model[2].register_forward_hook(lambda module, args, y: seen.append(torch.equal(args[0], y)))
    isonorm.recalibrate(model, batches, 2)
    assert [m.training for m in model.modules()] == modes
    assert (model[1].momentum, model[3].momentum) == (0.3, 0.2)
    assert all(torch.equal(a, b) for a, b in zip(parameters, model.parameters(), strict=True))
    assert seen == [True, True]  # dropout was off
    assert model[1].num_batches_tracked == model[3].num_batches_tracked == 2


def test_a_loader_that_fails_leaves_everything(batches):
    model = Residual()
    isonorm.convert(model, "iternorm", where="bn1")
    model(batches[0])
    before = copy.deepcopy(model.state_dict())

    def failing():
        yield batches[1]
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        isonorm.recalibrate(model, failing())
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(m.training for m in model.modules())
    assert model.bn1.momentum == model.bn2.momentum == 0.1


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, image, factor=1.0):
        return self.norm(image) * factor


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: (x, torch.zeros(5)),
        lambda x: [x],
        lambda x: {"image": x, "factor": 2.0},
    ],
    ids=["tensor", "tuple", "list", "dict"],
)
def test_loaders_of_many_kinds(wrap, batches):
    model = ByName()
    assert isonorm.recalibrate(model, [wrap(x) for x in batches], 3) == 3
    expected = torch.stack([x.mean((0, 2, 3)) for x in batches[:3]]).mean(0)
    torch.testing.assert_close(model.norm.running_mean, expected)


def test_frozen_norms_keep_their_statistics(batches):
    model = nn.Sequential(isonorm.freeze(nn.BatchNorm2d(3)), nn.BatchNorm2d(3))
    isonorm.recalibrate(model, batches)
    assert not model[0].running_mean.any() and model[1].running_mean.any()


@pytest.mark.parametrize(
    ("model", "loader", "batches", "words"),
    [
        (nn.Sequential(nn.ReLU()), [], None, "no norm"),
        (nn.BatchNorm2d(3), [], None, "no batch"),
        (nn.BatchNorm2d(3), [()], None, "empty tuple"),
        (nn.BatchNorm2d(3), [], 0, "positive integer"),
    ],
)
def test_nothing_to_do(model, loader, batches, words):
    with pytest.raises(ValueError, match=words):
        isonorm.recalibrate(model, loader, batches)
