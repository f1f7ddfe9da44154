"""Weight normalization (Salimans & Kingma, 2016): w = g·v/‖v‖ for the weights of each output."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrizations

from .layout import check_first, layout_of


def weight_norm(module: nn.Module, name: str = "weight", dim: int | None = None) -> nn.Module:
    """Weight normalization on torch's parametrization, along the layer's outputs.

    >>> layer = weight_norm(nn.Linear(3, 2))
    >>> layer.parametrizations.weight.original0.shape  # g; original1 is v
    torch.Size([2, 1])

    ``torch.nn.utils.parametrizations.weight_norm`` itself, except that ``dim=None`` means the
    dimension of the outputs, also in a transposed convolution, and never the whole tensor.
    :func:`initialize_from_data` sets g and the bias from a batch, as the paper does (Section 3);
    :class:`isonorm.MeanOnlyBatchNorm` may follow the layer (Section 4).
    """
    layout = layout_of(module, name, dim)
    check_first(module, name, "weight_norm")
    if layout.dim != 0 and layout.groups > 1:
        raise ValueError(
            f"weight_norm of a {type(module).__name__} with groups={layout.groups} would share one "
            "length among outputs of different groups: give dim=0 for a length for each input, or "
            "use centered_weight_norm."
        )
    return parametrizations.weight_norm(module, name, layout.dim)
