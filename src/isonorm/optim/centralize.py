"""Gradient centralization (Yong et al., "Gradient Centralization: A New Optimization Technique for
Deep Neural Networks", ECCV 2020).

The gradient of each weight vector w_i, all the weights of one output, loses its mean,

    Φ_GC(∇_{w_i} L) = ∇_{w_i} L − μ_{∇_{w_i} L}

before momentum, moments and weight decay come in. The sum of the weights of an output is then left
to weight decay alone.
"""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from ..scalars import plain
from .wrapper import GradientTransform


class Centralized(GradientTransform):
    @staticmethod
    def name() -> str:
        return "centralize"

    def transform(self, grad: Tensor, prepared: None) -> Tensor:
        if grad[:1].numel() <= 1:  # centered, a vector of one element would be zero for ever
            return grad.clone()
        return grad - grad.mean(tuple(range(1, grad.ndim)), keepdim=True)


def centralize(
    optimizer: Optimizer, *, min_ndim: int = 2, in_place: bool = False
) -> GradientTransform:
    """Gradient centralization around any optimizer.

    >>> import torch
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = centralize(torch.optim.SGD(model.parameters(), lr=0.1))
    >>> before = model.weight.detach().sum(1)
    >>> model(torch.randn(4, 3)).square().mean().backward()
    >>> optimizer.step()
    >>> torch.allclose(model.weight.detach().sum(1), before)
    True

    Args:
        optimizer: any ``torch.optim.Optimizer``; the result stands for it everywhere.
        min_ndim: gradients with fewer dimensions stay as they are: 2 leaves out biases and gains, 3
            all but convolutions.
        in_place: change ``p.grad`` itself.

    The weight vectors are the slices along dimension 0, the outputs of linear layers and
    convolutions. A transposed convolution has its outputs in dimension 1; there, as in the authors'
    code, the weights of an input are centered. Vectors of a single element stay as they are:
    centered they would be zero, and never learn.
    """
    min_ndim = plain(min_ndim)
    if isinstance(min_ndim, int) and min_ndim < 2:
        raise ValueError(
            "centralize needs min_ndim of 2 or more: a vector or a number is not a set of weight "
            f"vectors; got min_ndim={min_ndim}."
        )
    return Centralized(optimizer, min_ndim=min_ndim, in_place=in_place)
