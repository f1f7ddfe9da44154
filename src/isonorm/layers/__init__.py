"""Layers: ``nn.Module`` state and checks around one call into ``functional``."""

from .local import LocalContextNorm as LocalContextNorm
from .local import RegionNorm as RegionNorm
from .named import DBN as DBN
from .named import BatchGroupNorm as BatchGroupNorm
from .named import BatchNorm as BatchNorm
from .named import GroupNorm as GroupNorm
from .named import GroupWhitening as GroupWhitening
from .named import InstanceNorm as InstanceNorm
from .named import InstanceWhitening as InstanceWhitening
from .named import IterNorm as IterNorm
from .named import LayerNorm as LayerNorm
from .named import MeanOnlyBatchNorm as MeanOnlyBatchNorm
from .named import PositionalNorm as PositionalNorm
from .normalize import Normalize as Normalize
