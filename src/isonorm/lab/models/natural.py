"""Natural Neural Networks (Desjardins et al., NIPS 2015): activations whitened by coordinates of
the weights that are renewed from time to time.

DBN's Figures 3 and 4 compare with them. A layer keeps a mean c and a whitening matrix U, which the
loss does not see through and no gradient reaches:

    y = V·U·(x − c) + d,       V and d are trained

Every T steps c and U are estimated anew, U = (Σ + εI)^(-1/2), and V and d changed so that the layer
computes what it did before: V·U and d − V·U·c stay. In between the estimates grow old, which is
DBN's objection (its Section 2).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...statistics import no_autocast
from ...synchronization import all_reduce, is_shared
from .mlp import MLP
from .parts import Network, Norm

_ALL = "world"


class NaturalLinear(nn.Module):
    """A linear layer in whitened coordinates, renewed from the batch at hand every T steps.

    >>> layer = NaturalLinear(nn.Linear(3, 2), eps=1e-3, interval=50)
    >>> x = 5 + torch.randn(400, 3) @ torch.randn(3, 3)
    >>> before = layer.eval()(x)
    >>> after = layer.train()(x)  # the first training step: c and U are those of x from now on
    >>> torch.allclose(after, before, atol=1e-4)
    True

    Steps of an optimizer without memory, as DBN's are: momentum would remember old coordinates.
    """

    mean: Tensor  # c
    whitening: Tensor  # U
    steps: Tensor

    def __init__(self, linear: nn.Linear, eps: float = 0.1, interval: int = 100) -> None:
        super().__init__()
        if not eps > 0:
            raise ValueError(f"eps must be positive, for every Σ to be invertible; got {eps!r}.")
        if interval < 1:
            raise ValueError(f"interval must be at least 1 step; got {interval!r}.")
        self.eps, self.interval = eps, interval
        self.linear = linear  # V and d
        like = {"dtype": linear.weight.dtype, "device": linear.weight.device}
        self.register_buffer("mean", torch.zeros(linear.in_features, **like))
        self.register_buffer("whitening", torch.eye(linear.in_features, **like))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            if self.steps.item() % self.interval == 0:
                self.renew(x)
            self.steps += 1
        return self.linear((x - self.mean) @ self.whitening)  # U is symmetric

    @torch.no_grad()
    def renew(self, x: Tensor) -> None:
        """New coordinates, those that whiten x (m, d), and the same function in them."""
        with no_autocast(x):
            x = x.detach().double()
            count = _over_processes(x.new_tensor(len(x)))
            mean = _over_processes(x.sum(0)) / count
            sigma = _over_processes((x - mean).mT @ (x - mean)) / count
            if not sigma.isfinite().all():  # diverged: no coordinates will help
                return
            values, vectors = torch.linalg.eigh(sigma)
            scales = (values.clamp(min=0) + self.eps).sqrt()
            whitening, coloring = ((vectors * s) @ vectors.mT for s in (1 / scales, scales))

            v, d = self.linear.weight.double(), self.linear.bias.double()
            w = v @ self.whitening.double()
            b = d - w @ self.mean.double()
            self.mean.copy_(mean)
            self.whitening.copy_(whitening)
            self.linear.weight.copy_(w @ coloring)
            self.linear.bias.copy_(b + w @ mean)

    def extra_repr(self) -> str:
        return f"eps={self.eps}, interval={self.interval}"


def _over_processes(tensor: Tensor) -> Tensor:
    """The sum over all: they share the weights, and so must share what these are multiplied by."""
    return all_reduce([tensor], _ALL, "a natural layer")[0] if is_shared(_ALL) else tensor


class NaturalMLP(Network):
    """The MLP of the DBN paper with natural layers throughout: NNN in its Figures 3 and 4.

    Its initial weights are those of ``MLP`` with the same seed. ``eps`` is "the revised term ε",
    ``interval`` "the natural re-parameterization interval T".

    >>> NaturalMLP(64, 10, hidden=(32,), eps=0.01, interval=20).fc
    NaturalLinear(
      eps=0.01, interval=20
      (linear): Linear(in_features=32, out_features=10, bias=True)
    )
    """

    def __init__(
        self,
        in_features: int = 1024,
        num_classes: int = 38,
        *,
        hidden: Sequence[int] = (128, 64, 48, 48),
        width: float = 1.0,
        norm: Norm = "plain",
        eps: float = 0.1,
        interval: int = 100,
    ) -> None:
        plain = MLP(in_features, num_classes, hidden=hidden, width=width, norm=norm)
        super().__init__(
            OrderedDict(
                (name, NaturalLinear(layer, eps, interval) if type(layer) is nn.Linear else layer)
                for name, layer in plain.named_children()
            )
        )
