"""Seeing what a normalization does: disturbance, conditioning, curvature, invariance.

Everything here takes any layer, of this package or of torch, and leaves it as it was. Curvature
needs hessian-eigenthings, and ``isonorm.analysis.plots``, which is imported apart, matplotlib: both
come with ``isonorm[lab]``.
"""

from .axes import AxisSwaps as AxisSwaps
from .axes import axis_swaps as axis_swaps
from .axes import newton_convergence as newton_convergence
from .conditioning import Conditioning as Conditioning
from .conditioning import condition as condition
from .conditioning import condition_number as condition_number
from .conditioning import covariance as covariance
from .conditioning import effective_rank as effective_rank
from .conditioning import layer_conditioning as layer_conditioning
from .conditioning import off_diagonal_energy as off_diagonal_energy
from .conditioning import spectrum as spectrum
from .covariate_drift import Drift as Drift
from .covariate_drift import drift as drift
from .covariate_drift import layer_drift as layer_drift
from .curvature import CurvatureSpectrum as CurvatureSpectrum
from .curvature import curvature_operator as curvature_operator
from .curvature import curvature_trace as curvature_trace
from .curvature import extreme_eigenvalues as extreme_eigenvalues
from .curvature import hessian_spectrum as hessian_spectrum
from .curvature import spectral_density as spectral_density
from .disturbance import Disturbance as Disturbance
from .disturbance import snd as snd
from .disturbance import snd_with_error as snd_with_error
from .fisher import FisherFactors as FisherFactors
from .fisher import fisher_condition as fisher_condition
from .fisher import fisher_factors as fisher_factors
from .fisher import fisher_spectrum as fisher_spectrum
from .fisher import softmax_fisher as softmax_fisher
from .invariance import ScaleFactors as ScaleFactors
from .invariance import effective_learning_rate as effective_learning_rate
from .invariance import scale_invariance as scale_invariance
from .isometry import jacobian_singular_values as jacobian_singular_values
from .monitor import Monitor as Monitor
