"""The six steps of the explicit path in C, on a CPU, for groups of channels that are whitened.

Between what torch offers for a CPU, a pass over an activation is several: numbers are centered in
one, laid out for a product in the next, and multiplied in a third. Here a tile of them stays in
cache throughout. ``passes.c`` goes over activations, tile (``tile.h``) by tile, ``newton.c`` makes
a covariance's W; both multiply as ``multiply.h`` does. The first pass that needs them has the C
compiler ``build`` them, which takes about a second, and ``library`` calls them; without a compiler
``kernels.choose`` says so, and takes plain torch.
"""

from .library import why_not as why_not
from .newton import in_native_code as in_native_code
from .steps import analyze as analyze
from .steps import apply as apply
from .steps import backward_apply as backward_apply
from .steps import differentiate as differentiate
from .steps import moments as moments
from .steps import prepare as prepare
from .steps import root as root
from .steps import sums as sums
