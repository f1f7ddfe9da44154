"""Surgery on models that exist: putting norms in, and folding them away."""

from .fold import fold as fold
"""Surgery on models that exist: other norms put in, taken out, frozen, synchronized, recalibrated."""

from .convert import convert as convert
from .convert import revert as revert
from .freezing import freeze as freeze
from .freezing import unfreeze as unfreeze
from .recalibration import recalibrate as recalibrate
from .report import Conversion as Conversion
