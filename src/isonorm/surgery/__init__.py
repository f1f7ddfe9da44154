"""Surgery on models that exist: norms put in, taken out, recalibrated, and folded away."""

from .checkpoints import load_checkpoint as load_checkpoint
from .checkpoints import save_checkpoint as save_checkpoint
from .convert import convert as convert
from .convert import revert as revert
from .fold import fold as fold
from .freezing import freeze as freeze
from .freezing import unfreeze as unfreeze
from .insertion import insert as insert
from .recalibration import recalibrate as recalibrate
from .report import Conversion as Conversion
from .synchronization import convert_sync as convert_sync
