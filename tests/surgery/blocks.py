"""Networks that surgery finds hard: a wiring that is no chain, a norm with more inside."""

from __future__ import annotations

from torch import nn


class Residual(nn.Module):
    """A block of ResNet: one ReLU used twice, an addition, a norm in a shortcut."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential(nn.Conv2d(3, channels, 1), nn.BatchNorm2d(channels))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.shortcut(x))


class Branching(nn.Sequential):
    """It cannot be traced, and runs what ``layers`` holds beside its own."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(*modules)
        self.layers: list[nn.Module] = []

    def forward(self, x):
        if x.mean() > -1e9:
            x = super().forward(x)
        for layer in self.layers:
            x = layer(x)
        return x


class BatchNormAct2d(nn.BatchNorm2d):
    """As timm's: a norm, a drop and an activation in one module."""

    def __init__(self, channels: int, act: nn.Module, drop: nn.Module | None = None) -> None:
        super().__init__(channels)
        self.drop, self.act = drop or nn.Identity(), act

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))
