"""The implementations of a training pass, and the choice between them."""

from .choice import Choice as Choice
from .choice import backend as backend
from .choice import choose as choose
