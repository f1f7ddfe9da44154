"""Norms that stay as they are while the rest of the model trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from ..weights.state import EquilibriumState
from .tree import check_module


class Frozen:
    """A module's ``train`` while it is frozen: it notes what is wanted, and stays in eval."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.wanted = module.training
        self.learned = [name for name, p in _own_parameters(module) if p.requires_grad]

    def __call__(self, mode: bool = True) -> nn.Module:
        self.wanted = mode
        for child in self.module.children():
            child.train(mode)
        return self.module


def freeze(model: nn.Module) -> nn.Module:
    """Freezes every norm that keeps running statistics, isonorm's and torch's, in place.

    A frozen norm normalizes by its running statistics, also after ``model.train()``; its
    parameters have no gradient. It is what detection code calls FrozenBatchNorm. Norms without
    running statistics go on as before. Of layers that normalize their kernels γ and β are frozen
    with the statistics, while the kernels learn on.

    >>> model = freeze(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))).train()
    >>> model[1].training, model[1].weight.requires_grad
    (False, False)
    >>> unfreeze(model)[1].training
    True
    """
    check_module(model)
    for module in model.modules():
        if keeps_statistics(module) and not is_frozen(module):
            freeze_one(module)
    return model


def keeps_statistics(module: nn.Module) -> bool:
    """Whether a module averages statistics over batches; told by what it has: isonorm's layers and
    torch's, or others made in their image.
    """
    return (
        callable(getattr(module, "reset_running_stats", None))
        and isinstance(getattr(module, "num_batches_tracked", None), Tensor)
        and hasattr(module, "momentum")
    )


def unfreeze(model: nn.Module) -> nn.Module:
    """Undoes ``freeze``: norms follow ``model.train()`` again, and their parameters learn as they
    did before.
    """
    check_module(model)
    for module in model.modules():
        if is_frozen(module):
            frozen: Frozen = module.__dict__.pop("train")
            for name, parameter in _own_parameters(module):
                if name in frozen.learned:
                    parameter.requires_grad_(True)
            module.train(frozen.wanted)
    return model


def freeze_one(module: nn.Module, like: nn.Module | None = None) -> None:
    """Freezes a module. ``unfreeze`` then restores it, or makes it as ``like`` was before."""
    frozen = Frozen(module)
    if like is not None:
        before: Frozen = like.__dict__["train"]
        frozen.wanted, frozen.learned = before.wanted, before.learned
    module.train(False)
    frozen(frozen.wanted)  # the module's children, if any, stay as they are
    module.__dict__["train"] = frozen
    for _, parameter in _own_parameters(module):
        parameter.requires_grad_(False)


def is_frozen(module: nn.Module) -> bool:
    return isinstance(module.__dict__.get("train"), Frozen)


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Every module is afterwards in the mode it was in, and ``unfreeze`` will do what it would have
    done.
    """
    modes = [(module, module.training) for module in model.modules()]
    frozen: list[Frozen] = [m.__dict__["train"] for m in model.modules() if is_frozen(m)]
    wanted = [(change, change.wanted) for change in frozen]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for change, mode in wanted:
            change.wanted = mode


def _own_parameters(module: nn.Module):
    own = list(module.named_parameters(recurse=False))
    if isinstance(module, EquilibriumState):
        return [(name, parameter) for name, parameter in own if name in ("gamma", "beta")]
    return own
