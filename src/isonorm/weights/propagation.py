"""Normalization propagation (Arpit et al., "Normalization Propagation: A Parametric Technique for
Removing Internal Covariate Shift in Deep Networks", ICML 2016).

If the inputs of a layer are uncorrelated with mean 0 and variance 1, then so in variance are the
outputs of weights of length 1; and the mean and variance that an activation makes of a standard
Gaussian are known numbers. No statistics of data are needed:

    y = (φ(γ·wᵀx/‖w‖ + β) − E φ(z))/√(Var φ(z)),     z ~ N(0, 1)

for which a ReLU has E = 1/√(2π) and Var = ½(1 − 1/π). The data must be normalized once, at the
network's input.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..scalars import plain
from .weight_norm import weight_norm


def normalization_propagation(
    module: nn.Module, name: str = "weight", dim: int | None = None, *, gain: float = 1 / 1.21
) -> nn.Module:
    """The layer's part: weights γ·w/‖w‖ for each output, γ = ``gain`` at first, and a bias of zero.

    >>> layer = normalization_propagation(nn.Linear(20, 10), gain=1.0)
    >>> torch.allclose(layer.weight.norm(dim=1), torch.ones(10))
    True

    It is :func:`weight_norm` with another start. The paper's 1/1.21 undoes the mean square slope of
    the standardized ReLU that follows, ½/(½(1 − 1/π)) ≈ 1.21², so that gradients keep their size on
    the way down. Follow the layer by :class:`StandardizedActivation`.
    """
    gain = plain(gain)
    if isinstance(gain, bool) or not isinstance(gain, int | float) or not 0 < gain < float("inf"):
        raise ValueError(f"gain must be a positive number; got {gain!r}.")
    module = weight_norm(module, name, dim)
    with torch.no_grad():
        module.parametrizations[name].original0.fill_(gain)  # type: ignore[index]
        bias = getattr(module, "bias", None)
        if isinstance(bias, Tensor):
            bias.zero_()
    return module


class StandardizedActivation(nn.Module):
    """An activation whose output has mean 0 and variance 1 where its input is a standard Gaussian.

    >>> relu = StandardizedActivation(nn.ReLU())
    >>> relu
    StandardizedActivation(
      mean=0.398942, std=0.583819
      (activation): ReLU()
    )

    The two numbers are integrals, found when the module is made, for any elementwise activation: a
    module or a function.
    """

    def __init__(self, activation: nn.Module | Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.mean, self.std = gaussian_moments(activation)

    def forward(self, input: Tensor) -> Tensor:
        return (self.activation(input) - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"mean={self.mean:.6g}, std={self.std:.6g}"


@torch.no_grad()
def gaussian_moments(activation: nn.Module | Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """Mean and standard deviation of φ(z), z ~ N(0, 1), by Simpson's rule on either side of zero,
    where activations have their kinks.

    >>> gaussian_moments(torch.erf)[0] < 1e-12
    True
    """
    reach, intervals = 12.0, 20_000  # beyond, the density is below 1e-31
    half = torch.linspace(0, reach, intervals + 1, dtype=torch.float64, device="cpu")
    weights = torch.ones_like(half)
    weights[1:-1:2], weights[2:-1:2] = 4.0, 2.0
    z = torch.cat([-half.flip(0), half])
    density = torch.cat([weights.flip(0), weights]) * torch.exp(-z.square() / 2)
    density /= density.sum()
    if isinstance(activation, nn.Module):
        activation = copy.deepcopy(activation).to("cpu", torch.float64)
    values, some = activation(z.clone()), activation(z[::2].clone())
    if (
        not isinstance(values, Tensor)
        or values.shape != z.shape
        or not torch.allclose(values[::2], some, equal_nan=True)
    ):
        raise ValueError(
            "activation must act on each element by itself, always in the same way, and keep the "
            "shape."
        )
    mean = (density * values).sum()
    std = (density * (values - mean).square()).sum().sqrt()
    if not (mean.isfinite() and 0 < std < float("inf")):
        raise ValueError(
            "activation must have a finite mean and a positive variance for Gaussian input; got "
            f"mean {mean.item():.6g} and standard deviation {std.item():.6g}."
        )
    return mean.item(), std.item()
