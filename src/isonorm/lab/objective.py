"""What a training step computes: a network and its loss, and how its batch is mixed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .data import Mixup
from .data.mixup import mixed, mixed_loss

CUDA_GRAPHS = "reduce-overhead"  # torch.compile's word for them

#: Graphs in one run, of all networks, places and sizes of a batch. Beyond torch's own limit of 8 a
#: network would run uncompiled, with a warning.
_MOST_GRAPHS = 256


class CompilerFailed(RuntimeError):
    """torch's compiler could not do what it was asked to; the message is for the user."""


@contextmanager
def compiling(mode: str | None, module: nn.Module) -> Iterator[None]:
    """Around a training whose ``module`` calls a compiled objective; nothing without a mode."""
    if mode is None:
        yield
        return
    from torch._dynamo import config
    from torch._dynamo.exc import TorchDynamoException

    # With CUDA graphs, a step's outputs lie where the next step's will: each call of the module is
    # a new step, and what the last one gave has been used by then.
    new_step = module.register_forward_pre_hook(
        lambda *_: torch.compiler.cudagraph_mark_step_begin() if mode == CUDA_GRAPHS else None
    )
    limits = {"recompile_limit": _MOST_GRAPHS, "accumulated_recompile_limit": 4 * _MOST_GRAPHS}
    try:
        with config.patch(limits):
            yield
    except TorchDynamoException as error:
        raise CompilerFailed(
            f"torch's compiler failed ({_reason(error)}): --compile no trains without it."
        ) from error
    finally:
        new_step.remove()


def _reason(error: Exception) -> str:
    """The line of a compiler's long message that says what happened: the last that names an error.

    >>> _reason(RuntimeError("backend failed:\\nTraceback …\\nValueError: too large\\n\\nSet …"))
    'ValueError: too large'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Failed): ", line)]
    return [type(error).__name__, *lines[:1], *telling][-1].rstrip(".")


class Objective(nn.Module):
    """A network with its loss, in one forward pass: precision and compilation cover both.

    >>> objective = Objective(nn.Linear(4, 3))
    >>> loss, logits = objective(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))

    What mixup draws for a batch comes from outside, so that there is nothing but tensors in a
    compiled graph, and one graph for each place that is mixed:

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    >>> objective = Objective(network, Mixup([network, network[1]], alpha=6))
    >>> images, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    >>> with objective.listening():
    ...     loss, logits = objective(images, labels, *objective.draw(images))
    """

    def __init__(self, network: nn.Module, mixup: Mixup | None = None) -> None:
        super().__init__()
        self.network, self.mixup = network, mixup
        places = mixup.places if mixup is not None else ()
        # By a word: the compiler would take numbers for sizes that vary.
        self._places = {str(number): place for number, place in enumerate(dict.fromkeys(places))}
        # Of the batch that is in the network: the place, λ and the partners.
        self._mixing: tuple[nn.Module, Tensor, Tensor] | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Every place of mixup has its hook within the block. They stay for a whole training: a
        compiled graph takes no notice of hooks that come and go.
        """
        hooks = [place.register_forward_pre_hook(self._mix) for place in self._places.values()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def compile_as(self, mode: str) -> None:
        """By torch.compile, with a graph for each size of a batch: kernels for any size would be
        slower, and batches come in two or three sizes.
        """
        self.compile(mode=mode, dynamic=False)

    def draw(self, images: Tensor) -> tuple[Any, ...]:
        """How the next batch is mixed, for ``forward``: nothing without mixup."""
        if self.mixup is None:
            return ()
        mixing = self.mixup.draw(images)
        at = next(name for name, place in self._places.items() if place is mixing.place)
        return mixing.weight, mixing.partners, at

    def forward(
        self,
        images: Tensor,
        labels: Tensor,
        weight: Tensor | None = None,
        partners: Tensor | None = None,
        at: str | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The mean loss and the logits."""
        if weight is None or partners is None or at is None:
            logits = self.network(images)
            return cross_entropy(logits, labels), logits
        weight = weight.float()  # in every precision, so that 1 − λ is the same number in all
        self._mixing = self._places[at], weight, partners
        try:
            logits = self.network(images)
        finally:
            self._mixing = None
        return mixed_loss(cross_entropy, logits, labels, weight, partners), logits

    def _mix(self, place: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._mixing is None or self._mixing[0] is not place:
            return None
        return mixed(inputs[0], *self._mixing[1:]), *inputs[1:]
