"""What a rank sends to the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor

COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all"),
    *("broadcast", "broadcast_object_list", "reduce", "reduce_scatter", "gather", "scatter"),
    *("send", "recv", "isend", "irecv", "barrier"),
)


@contextmanager
def collectives() -> Iterator[list[int]]:
    """The bytes of each call to a collective of ``torch.distributed`` inside the block."""
    sent: list[int] = []

    def recorded(function: Callable) -> Callable:
        def call(*args, **kwargs):
            given = [*args, *kwargs.values()]
            sent.append(sum(t.numel() * t.element_size() for t in given if isinstance(t, Tensor)))
            return function(*args, **kwargs)

        return call

    with ExitStack() as stack:
        for name in COLLECTIVES:
            stack.enter_context(patch.object(dist, name, recorded(getattr(dist, name))))
        yield sent
