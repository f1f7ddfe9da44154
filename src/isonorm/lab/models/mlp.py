"""Multilayer perceptrons."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from .parts import LinearFactory, Network, Norm, check_size, resolve, scaled


class MLP(Network):
    """The MLP of the DBN and IterNorm papers: linear → norm → ReLU, then a linear classifier.

    By default the 4-layer MLP for MNIST of IterNorm's Figure 3 (and its supplement's Figure 1) and
    DBN's Figure 2b, with 100 neurons in each hidden layer. The papers count linear layers: 2a's
    2-layer one is ``hidden=(100,)``. ``width`` multiplies the hidden sizes. ``norm`` is a name such
    as ``"iternorm"`` or ``"dbn:group_size=32"``, a factory called with the number of neurons, or
    None; ``linear`` makes the hidden layers, for normalized weights. Linear layers have their bias
    and torch's initialization, U(±1/√n), with every norm, so that equal seeds mean equal initial
    weights.

    >>> MLP(64, 10, hidden=(100,), norm="iternorm")
    MLP(
      (flatten): Flatten(start_dim=1, end_dim=-1)
      (linear1): Linear(in_features=64, out_features=100, bias=True)
      (norm1): IterNorm(100, group_size=64, num_iters=5, affine=True, eps=1e-05, momentum=0.1)
      (act1): ReLU()
      (fc): Linear(in_features=100, out_features=10, bias=True)
    )
    """

    def __init__(
        self,
        in_features: int = 784,
        num_classes: int = 10,
        *,
        hidden: Sequence[int] = (100, 100, 100),
        width: float = 1.0,
        norm: Norm = "batchnorm",
        linear: LinearFactory = nn.Linear,
    ) -> None:
        check_size("in_features", in_features)
        check_size("num_classes", num_classes)
        make_norm = resolve(norm)
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for number, neurons in enumerate(hidden, start=1):
            check_size("a hidden layer", neurons)
            neurons = scaled(neurons, width)
            layers[f"linear{number}"] = linear(in_features, neurons)
            if make_norm is not None:
                layers[f"norm{number}"] = make_norm(neurons)
            layers[f"act{number}"] = nn.ReLU()
            in_features = neurons
        layers["fc"] = nn.Linear(in_features, num_classes)
        super().__init__(layers)
