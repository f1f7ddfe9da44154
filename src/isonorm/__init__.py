"""isonorm: batch whitening for PyTorch, and normalizations as area × operation × recovery."""

from . import analysis as analysis
from . import area as area
from . import functional as functional
from . import linalg as linalg
from . import operation as operation
from . import optim as optim
from . import recovery as recovery
from . import weights as weights
from .kernels import backend as backend
from .layers import DBN as DBN
from .layers import BatchGroupNorm as BatchGroupNorm
from .layers import BatchNorm as BatchNorm
from .layers import GroupNorm as GroupNorm
from .layers import GroupWhitening as GroupWhitening
from .layers import InstanceNorm as InstanceNorm
from .layers import InstanceWhitening as InstanceWhitening
from .layers import IterNorm as IterNorm
from .layers import LayerNorm as LayerNorm
from .layers import LocalContextNorm as LocalContextNorm
from .layers import MeanOnlyBatchNorm as MeanOnlyBatchNorm
from .layers import Normalize as Normalize
from .layers import PositionalNorm as PositionalNorm
from .layers import RegionNorm as RegionNorm
from .registry import create_norm as create_norm
from .registry import list_norms as list_norms
from .registry import register_norm as register_norm
from .roots import register_root as register_root
from .statistics import Statistics as Statistics
from .surgery import Conversion as Conversion
from .surgery import convert as convert
from .surgery import convert_sync as convert_sync
from .surgery import fold as fold
from .surgery import freeze as freeze
from .surgery import insert as insert
from .surgery import load_checkpoint as load_checkpoint
from .surgery import recalibrate as recalibrate
from .surgery import revert as revert
from .surgery import save_checkpoint as save_checkpoint
from .surgery import unfreeze as unfreeze
from .weights import EquiConv1d as EquiConv1d
from .weights import EquiConv2d as EquiConv2d
from .weights import EquiConv3d as EquiConv3d
from .weights import EquiLinear as EquiLinear
from .whitener import Whitener as Whitener

__version__ = "0.1.0"
