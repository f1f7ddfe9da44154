"""Which modules are normalizations: this package's and torch's."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from .running import RunningTransform

NORMS = (RunningTransform, _NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, NORMS)
