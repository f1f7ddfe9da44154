"""What every operator of the package needs: its registration, and the surroundings it runs in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch
from torch import Tensor

from ..statistics import no_autocast

_NOTHING = nullcontext()


def surroundings(x: Tensor) -> AbstractContextManager:
    """No autocast, and the input's GPU as the current one; at no cost where all is so already."""
    if x.is_meta:
        return _NOTHING
    elsewhere = x.is_cuda and x.get_device() != torch.cuda.current_device()
    autocast = torch.is_autocast_enabled(x.device.type)
    if not elsewhere:
        return no_autocast(x) if autocast else _NOTHING
    stack = ExitStack()
    stack.enter_context(torch.cuda.device(x.device))
    stack.enter_context(no_autocast(x))
    return stack


def register(name: str, run: Callable, fake: Callable) -> Callable:
    """An operator that runs a function; ``torch.library.custom_op`` would look at every output
    again, which takes as long as a small layer.
    """
    schema = torch.library.infer_schema(run, mutates_args=())
    torch.library.define(name, schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(name, "CompositeExplicitAutograd", run)
    torch.library.register_fake(name, fake)
    namespace, _, own = name.partition("::")
    return getattr(getattr(torch.ops, namespace), own)
