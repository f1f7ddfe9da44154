"""The networks of the papers, alike in everything but their normalization."""

from .cnn import SmallCNN as SmallCNN
from .mlp import MLP as MLP
from .natural import NaturalMLP as NaturalMLP
from .parts import he_conv as he_conv
from .preact import PreActResNet as PreActResNet
from .preact import WideResNet as WideResNet
from .registry import MODELS as MODELS
from .registry import create_model as create_model
from .registry import list_models as list_models
from .resnet import CifarResNet as CifarResNet
from .resnet import ResNet as ResNet
from .splain import SPlain as SPlain
from .vgg import VGG as VGG
