"""Per-layer gradient normalization (Yu et al., "Block-Normalized Gradient Method: An Empirical
Study for Training Deep Neural Network", 2017).

Each layer's gradient keeps its direction and loses its size, g ← g/‖g‖, so that none vanishes or
explodes on its way down; what the size should be instead is left to the optimizer's learning rate.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from .norms import divisors
from .wrapper import GradientTransform


class Normalized(GradientTransform):
    @staticmethod
    def name() -> str:
        return "normalize_gradients"

    def prepare(self, grads: list[Tensor]) -> list[Tensor]:
        """What each gradient is to be divided by."""
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for grad in grads:
            alike.setdefault((grad.device, grad.dtype), []).append(grad)
        found = {kind: iter(divisors(same)) for kind, same in alike.items()}
        return [next(found[grad.device, grad.dtype]) for grad in grads]

    def transform(self, grad: Tensor, prepared: Tensor) -> Tensor:
        # Divided in float32 or better: norms leave the range of float16.
        return (grad.to(prepared.dtype) / prepared).to(grad.dtype)


def normalize_gradients(
    optimizer: Optimizer, *, min_ndim: int = 0, in_place: bool = False
) -> GradientTransform:
    """Gradients of Euclidean norm 1, layer by layer, around any optimizer.

    >>> import torch
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = normalize_gradients(torch.optim.SGD(model.parameters(), lr=0.1))
    >>> before = model.weight.detach().clone()
    >>> (1e6 * model(torch.randn(4, 3)).square().mean()).backward()
    >>> optimizer.step()
    >>> round((model.weight.detach() - before).norm().item(), 4)
    0.1

    Args:
        optimizer: any ``torch.optim.Optimizer``; the result stands for it everywhere.
        min_ndim: gradients with fewer dimensions stay as they are; 0: none does.
        in_place: change ``p.grad`` itself.

    A gradient of zeros stays zero; one with NaN becomes all NaN.
    """
    return Normalized(optimizer, min_ndim=min_ndim, in_place=in_place)
