"""The six steps of the explicit path as Triton kernels.

``layout`` cuts the tensor; ``stream`` reads and writes it, one ``tile`` after the other, and does
to each what ``mapping`` says; ``parts`` adds up what programs leave; ``root`` works on d × d
matrices, through their ``iterates``, and ``scale`` on single channels, both moving running
``averages``. ``passes`` settles what one shape needs, ``steps`` launches it, or ``fast_path``, with
less work on the host; ``launch`` is how, and ``overlap`` when. This package is imported only when
its backend is chosen.
"""

from .steps import analyze as analyze
from .steps import apply as apply
from .steps import backward_apply as backward_apply
from .steps import differentiate as differentiate
from .steps import moments as moments
from .steps import prepare as prepare
from .steps import root as root
from .steps import sums as sums
