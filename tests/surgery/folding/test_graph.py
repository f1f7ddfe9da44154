"""What ``graph.read`` says of a forward: neighbors, calls, and what it cannot follow."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isonorm
from isonorm.surgery import graph


class Block(nn.Module):
    """A residual block whose norm takes the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = isonorm.IterNorm(4, act="relu")

    def forward(self, x):
        return self.norm(self.conv(x), residual=x)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.conv(x) if x.mean() > 0 else x


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.block = Block()
        self.branching = Branching()
        self.head = nn.Linear(4, 2)

    def forward(self, x, scale=None, *, twice=False, **options):
        x = self.block(self.block(self.stem(x)))
        if scale is not None:
            x = x * scale
        x = self.branching(x)
        return self.head(torch.flatten(x.mean((2, 3), keepdim=True), 1))


def test_neighbors_and_calls():
    links = graph.read(Whole())
    assert links.order == ("stem", "block.conv", "block.norm", "branching", "head")
    assert links.calls("block.conv") == 2
    assert links.calls("branching.conv") == 0
    assert links.before("block.conv") == ("stem", "block.norm")
    assert links.before("block.norm") == ("block.conv",)
    assert links.after("stem") == ("block.conv", "<argument of block.norm>")
    assert set(links.after("block.norm")) == {
        "block.conv", "<argument of block.norm>", "branching",
    }  # fmt: skip
    assert links.before("head") == (graph.FLATTEN,)
    assert links.after("head") == ("<output>",)
    assert links.before("head", through=lambda name: name == graph.FLATTEN) == ("<mean>",)
    assert links.meanwhile("block.conv", through=lambda name: False) == ()
    assert links.meanwhile("stem", through=lambda name: False) == ("block.conv",)


def test_what_cannot_be_followed_is_one_call_and_says_why():
    links = graph.read(Whole())
    assert list(links.opaque) == ["branching"]
    assert "control flow" in links.opaque["branching"]
    why = links.unseen("branching.conv")
    assert why is not None and "'branching'" in why and "control flow" in why
    assert links.unseen("stem") is None and links.unseen("branching") is None


def test_the_models_own_forward_must_be_followed():
    with pytest.raises(graph.Untraceable, match=r"Branching\.forward .*control flow"):
        graph.read(Branching())
    model = Block()
    model.forward = lambda x: x
    with pytest.raises(graph.Untraceable, match="replaced on the object"):
        graph.read(model)


@pytest.mark.parametrize(
    "flatten",
    [
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(start_dim=1),
        lambda x: x.view(x.size(0), -1),
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: x.view((x.size()[0], -1)),
    ],
)
def test_a_flatten_is_known_however_it_is_written(flatten):
    class Flattening(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(flatten(self.norm(x)))

    links = graph.read(Flattening())
    assert links.after("norm") == (graph.FLATTEN,)  # reading the shape is no use of the values
    assert links.before("head") == (graph.FLATTEN,)


@pytest.mark.parametrize(
    "other", [lambda x: torch.flatten(x), lambda x: x.view(-1, 4), lambda x: x.flatten(1, 2)]
)
def test_another_reshape_is_not_taken_for_it(other):
    class Reshaping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x):
            return other(self.norm(x))

    assert graph.read(Reshaping()).after("norm") != (graph.FLATTEN,)


def test_hooks_of_a_container_stand_between_but_do_not_run():
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 1)), nn.BatchNorm2d(4))
    seen = []
    model[0].register_forward_hook(lambda module, args, out: seen.append(out))
    links = graph.read(model)
    assert links.before("1") == ("<hook of 0>",) and links.after("0.0") == ("<hook of 0>",)
    assert not seen


def test_reading_leaves_the_model_alone():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.register_buffer("count", torch.zeros(()))
            self.last = None

        def forward(self, x):
            self.count.add_(1)
            self.last = self.conv(x)
            return self.last

    model = Counting()
    assert graph.read(model).order == ("conv",)
    assert model.count == 0 and model.last is None


def test_a_module_inside_an_opaque_one_is_unseen_under_its_other_name_too():
    class Sharing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)
            self.inner = Branching()
            self.inner.conv = self.conv

        def forward(self, x):
            return self.inner(self.conv(x))

    assert "'inner'" in graph.read(Sharing()).unseen("conv")
