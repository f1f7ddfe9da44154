"""Surgery on models that exist: putting norms in, and folding them away."""

from .fold import fold as fold
