"""Surgery on models that exist: putting norms in, and folding them away."""

from .fold import fold as fold
"""Surgery on models that exist: other norms put in, taken out, frozen, synchronized, recalibrated."""
"""Surgery on models that exist: other norms put in and taken out, and what it takes to use them."""

from .checkpoints import load_checkpoint as load_checkpoint
from .checkpoints import save_checkpoint as save_checkpoint
from .convert import convert as convert
from .convert import revert as revert
from .freezing import freeze as freeze
from .freezing import unfreeze as unfreeze
from .insertion import insert as insert
from .recalibration import recalibrate as recalibrate
from .report import Conversion as Conversion
from .synchronization import convert_sync as convert_sync
