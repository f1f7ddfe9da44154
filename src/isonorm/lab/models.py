"""The networks that are compared: alike in everything but their normalization."""

from __future__ import annotations

from torch import nn

from .norms import NormFactory, norm_factory


class MLP(nn.Sequential):
    """The MLP of the DBN and IterNorm papers: linear → norm → ReLU, then a linear classifier.

    ``depth`` counts linear layers, as the papers do: their 4-layer MLP has 3 hidden layers (of
    width 100 on MNIST). ``norm`` is a name such as ``"iternorm"`` or ``"dbn:group_size=32"``, a
    factory called with the width, or None. Linear layers have their bias and torch's initialization
    with every norm, so that equal seeds mean equal initial weights.

    >>> MLP(64, 10, depth=2, norm="iternorm")
    MLP(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=64, out_features=100, bias=True)
      (2): IterNorm(100, group_size=64, num_iters=5, affine=True, eps=1e-05, momentum=0.1)
      (3): ReLU()
      (4): Linear(in_features=100, out_features=10, bias=True)
    )
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        width: int = 100,
        depth: int = 4,
        norm: str | NormFactory | None = None,
    ) -> None:
        if depth < 1 or width < 1:
            raise ValueError(
                f"depth and width must be at least 1; got depth={depth} and width={width}."
            )
        make_norm = norm_factory(norm)
        layers: list[nn.Module] = [nn.Flatten()]
        for _ in range(depth - 1):
            layers.append(nn.Linear(in_features, width))
            if make_norm is not None:
                layers.append(make_norm(width))
            layers.append(nn.ReLU())
            in_features = width
        layers.append(nn.Linear(in_features, num_classes))
        super().__init__(*layers)
