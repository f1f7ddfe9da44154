"""Newton's root in native code: the same steps, the same memo, fewer calls."""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor

from ... import roots
from ...roots.recurrence import UNWATCHED_STEPS
from . import library


class Newton(roots.Newton):
    """As ``roots.Newton`` for the explicit path, for steps that need no watching."""

    def forward(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        return library.newton(sigma, self.num_iters)

    def backward(self, dw: Tensor, sigma: Tensor, w: Tensor, memo: Tensor) -> Tensor:
        return library.newton_backward(dw, sigma, w, memo, self.num_iters)


@lru_cache
def in_native_code(root: roots.Root) -> roots.Root:
    """A root's counterpart in native code, where there is one."""
    if type(root) is roots.Newton and root.num_iters in UNWATCHED_STEPS:
        return Newton(root.num_iters)
    return root
