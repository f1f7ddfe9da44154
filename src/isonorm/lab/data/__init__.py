"""Data: sets read from their official files, and batches of them, augmented on the device."""

from .augment import FlipAndCrop as FlipAndCrop
from .batches import Batches as Batches
from .dataset import DataSet as DataSet
from .files import DataError as DataError
from .imagenet import ImageNet as ImageNet
from .mixup import Mixing as Mixing
from .mixup import Mixup as Mixup
from .sampler import Sampler as Sampler
from .scikit_digits import digits as digits
from .sources import SOURCES as SOURCES
from .sources import load as load
from .standardize import Standardize as Standardize
from .standardize import standardize_like as standardize_like
