"""Figures of the analysis, in one style: data in, matplotlib's axes out.

Every function takes ``ax`` to draw on; without it, it opens a new figure of pyplot's. Needs
matplotlib, which ``isonorm[lab]`` brings, and is therefore imported apart:

    from isonorm.analysis import plots
"""

from .curves import convergence as convergence
from .curves import density as density
from .curves import history as history
from .curves import singular_values as singular_values
from .curves import spectrum as spectrum
from .curves import sweep as sweep
from .pictures import axis_swap as axis_swap
from .pictures import cloud as cloud
from .pictures import kernel_balance as kernel_balance
from .pictures import whitening as whitening
from .style import STYLE as STYLE
from .style import looks as looks
