"""Small networks to fold, and what became of their norms."""

from __future__ import annotations

from torch import nn

import isonorm


class Net(nn.Module):
    """Modules by name, and a forward written where it is used."""

    def __init__(self, forward, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.run = forward

    def forward(self, x):
        return self.run(self, x)


def conv(padding=1, **options):
    return nn.Conv2d(4, 4, 3, padding=padding, **options)


def norm(**options):
    return isonorm.IterNorm(4, group_size=2, **options)


def fate_of(folded, name):
    (fate,) = (fate for fate in folded.fold_report if fate.name == name)
    return fate
