"""What a training step of a whitening layer costs, beside BatchNorm and beside the paper's
algorithm written plainly.

python -m benchmarks.cpu
"""

from __future__ import annotations

import os

# torch's profiler, which meters memory here, reports every start and stop on stderr; it reads its
# level once, on import.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
