"""Every network of the lab, made small: what conversion, folding and export are tried on.

from tests.lab.networks import NETWORKS, Network

@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_something(network: Network):
    model = network.build("iternorm")          # or any other norm, or further options
    model = network.with_torch_batchnorm()     # torch's BatchNorm1d and 2d instead
    logits = model(network.example())
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import isonorm
from isonorm.lab.models import create_model


class Network(NamedTuple):
    """A network of the registry at reduced size, and what to feed it."""

    label: str
    name: str
    options: Mapping[str, Any]
    input_shape: tuple[int, ...]

    def __str__(self) -> str:
        return self.label

    def build(self, norm: Any = "batchnorm", **options: Any) -> nn.Module:
        return create_model(self.name, norm=norm, **{**self.options, **options})

    def example(
        self, batch: int = 6, *, seed: int = 0, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Random input; equal for equal seeds, in float64 the same numbers as in float32."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, *self.input_shape, generator=generator).to(dtype)

    def with_torch_batchnorm(self, **options: Any) -> nn.Module:
        """The network with ``torch.nn.BatchNorm1d`` and ``2d`` wherever it has a norm."""
        model = self.build("batchnorm", **options)
        ranks: dict[str, int] = {}
        norms = {name: m for name, m in model.named_modules() if isinstance(m, isonorm.BatchNorm)}
        hooks = [
            norm.register_forward_pre_hook(
                lambda _, inputs, name=name: ranks.update({name: inputs[0].dim()})
            )
            for name, norm in norms.items()
        ]
        model.eval()(self.example(1))
        for hook in hooks:
            hook.remove()
        for name, norm in norms.items():
            kind = nn.BatchNorm1d if ranks[name] == 2 else nn.BatchNorm2d
            model.set_submodule(name, kind(norm.num_features))
        return model.train()


#: At most a few ten thousand parameters each, and every kind of block, shortcut and stem.
NETWORKS = [
    Network("mlp", "mlp", {"in_features": 64, "width": 0.16}, (1, 8, 8)),
    Network("mlp_yale_b", "mlp_yale_b", {"width": 0.1}, (1, 32, 32)),
    Network("small_cnn", "small_cnn", {"in_channels": 1, "width": 0.25}, (1, 8, 8)),
    Network("vgg_a", "vgg_a", {"width": 1 / 32}, (3, 32, 32)),
    Network("vgg_a_elu", "vgg_a", {"width": 1 / 32, "activation": "elu"}, (3, 32, 32)),
    Network("vgg_a_norm_after", "vgg_a", {"width": 1 / 32, "norm_after_act": True}, (3, 32, 32)),
    Network("vgg_e", "vgg_e", {"width": 1 / 32}, (3, 32, 32)),
    Network("splain20", "splain20", {"width": 1 / 6}, (3, 16, 16)),
    Network("cifar_resnet20", "cifar_resnet20", {"width": 0.5}, (3, 16, 16)),
    Network("preact_resnet18", "preact_resnet", {"depth": 18, "width": 1 / 16}, (3, 16, 16)),
    Network("preact_resnet50", "preact_resnet", {"depth": 50, "width": 1 / 16}, (3, 16, 16)),
    Network("wrn_10_2", "wrn", {"depth": 10, "widen": 2, "width": 0.25}, (3, 16, 16)),
    Network(
        "wrn_10_2_L1",
        "wrn",
        {"depth": 10, "widen": 2, "width": 0.25, "first_norm": "batchnorm", "dropout": 0.3},
        (3, 16, 16),
    ),
    Network("equinorm_wrn", "equinorm_wrn", {"width": 1 / 24}, (3, 16, 16)),
    Network("resnet18", "resnet18", {"width": 1 / 16, "num_classes": 10}, (3, 64, 64)),
    Network(
        "resnet18_DF",
        "resnet18",
        {"width": 1 / 16, "num_classes": 10, "feature_norm": "batchnorm"},
        (3, 64, 64),
    ),
    Network("resnet50", "resnet50", {"width": 1 / 16, "num_classes": 10}, (3, 64, 64)),
]

#: The deep ones in full depth, as narrow as the others: a second or two for a step.
DEEP_NETWORKS = [
    Network("splain44", "splain44", {"width": 1 / 6}, (3, 16, 16)),
    Network("cifar_resnet56", "cifar_resnet56", {"width": 0.25}, (3, 16, 16)),
    Network("cifar_resnet110", "cifar_resnet110", {"width": 0.25}, (3, 16, 16)),
    Network("preact_resnet152", "preact_resnet152", {"width": 1 / 32}, (3, 16, 16)),
    Network("wrn_40_10", "wrn_40_10", {"width": 1 / 20}, (3, 16, 16)),
    Network("resnet101", "resnet101", {"width": 1 / 32, "num_classes": 10}, (3, 64, 64)),
]
