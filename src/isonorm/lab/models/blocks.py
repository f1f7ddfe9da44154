"""Residual blocks, in both orders: the ReLU behind the sum, or norm and ReLU in front."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import pad

from .parts import Parts


class ZeroPadShortcut(nn.Module):
    """The identity, subsampled, with channels of zeros behind its own: He et al.'s option A."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.missing, self.stride = out_channels - in_channels, stride

    def forward(self, x: Tensor) -> Tensor:
        kept = x[:, :, :: self.stride, :: self.stride]
        return pad(kept, (0, 0, 0, 0, 0, self.missing))

    def extra_repr(self) -> str:
        return f"channels=+{self.missing}, stride={self.stride}"


#: Makes the shortcut of a block that changes the shape.
Shortcut = Callable[[Parts, int, int, int], nn.Module]


def projection(parts: Parts, in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """A 1 × 1 convolution with its norm: He et al.'s option B."""
    conv = parts.convolution(in_channels, out_channels, 1, stride)
    return nn.Sequential(OrderedDict(conv=conv, norm=parts.normalization(out_channels)))


def zero_pad(parts: Parts, in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """No parameters at all."""
    return ZeroPadShortcut(in_channels, out_channels, stride)


class Block(nn.Module):
    """A part of a stage: from some channels to ``out_channels``."""

    out_channels: int


class _PostActBlock(Block):
    """x + f(x), then ReLU."""

    def __init__(
        self, parts: Parts, in_channels: int, out_channels: int, stride: int, shortcut: Shortcut
    ) -> None:
        super().__init__()
        self.out_channels, self.fuse_act = out_channels, parts.fuse_act
        if stride == 1 and in_channels == out_channels:
            self.shortcut = nn.Identity()
        else:
            self.shortcut = shortcut(parts, in_channels, out_channels, stride)

    def _join(self, norm: nn.Module, act: nn.Module, y: Tensor, identity: Tensor) -> Tensor:
        return norm(y, residual=identity) if self.fuse_act else act(norm(y) + identity)


class BasicBlock(_PostActBlock):
    """Two 3 × 3 convolutions (He et al., CVPR 2016, Figure 5 left)."""

    def __init__(
        self,
        parts: Parts,
        in_channels: int,
        planes: int,
        stride: int,
        *,
        shortcut: Shortcut = projection,
    ) -> None:
        super().__init__(parts, in_channels, planes, stride, shortcut)
        self.conv1 = parts.convolution(in_channels, planes, stride=stride)
        self.norm1 = parts.normalization(planes, act=True)
        self.act1 = parts.act()
        self.conv2 = parts.convolution(planes, planes)
        self.norm2 = parts.normalization(planes, act=True)
        self.act2 = parts.act()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.norm1(self.conv1(x)))
        return self._join(self.norm2, self.act2, self.conv2(y), self.shortcut(x))


class Bottleneck(_PostActBlock):
    """1 × 1, 3 × 3, 1 × 1 (He et al., CVPR 2016, Figure 5 right), the stride at the 3 × 3, where
    the papers' code and torchvision have it.
    """

    def __init__(self, parts: Parts, in_channels: int, planes: int, stride: int) -> None:
        super().__init__(parts, in_channels, 4 * planes, stride, projection)
        self.conv1 = parts.convolution(in_channels, planes, 1)
        self.norm1 = parts.normalization(planes, act=True)
        self.act1 = parts.act()
        self.conv2 = parts.convolution(planes, planes, stride=stride)
        self.norm2 = parts.normalization(planes, act=True)
        self.act2 = parts.act()
        self.conv3 = parts.convolution(planes, self.out_channels, 1)
        self.norm3 = parts.normalization(self.out_channels, act=True)
        self.act3 = parts.act()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.norm1(self.conv1(x)))
        y = self.act2(self.norm2(self.conv2(y)))
        return self._join(self.norm3, self.act3, self.conv3(y), self.shortcut(x))


class _PreActBlock(Block):
    """x + f(x), where f begins with norm and ReLU; where the shape changes, the shortcut is a 1 × 1
    convolution of what that ReLU gives.
    """

    def __init__(self, parts: Parts, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.norm1 = parts.normalization(in_channels, act=True)
        self.act1 = parts.act()
        self.shortcut = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut = parts.convolution(in_channels, out_channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.norm1(x))
        identity = x if self.shortcut is None else self.shortcut(y)
        return self.residual(y) + identity

    def residual(self, y: Tensor) -> Tensor:
        raise NotImplementedError


class PreActBlock(_PreActBlock):
    """Two 3 × 3 convolutions (He et al., ECCV 2016), as Wide ResNets have them: with dropout
    between.
    """

    def __init__(
        self, parts: Parts, in_channels: int, planes: int, stride: int, *, dropout: float = 0.0
    ) -> None:
        super().__init__(parts, in_channels, planes, stride)
        self.conv1 = parts.convolution(in_channels, planes, stride=stride)
        self.norm2 = parts.normalization(planes, act=True)
        self.act2 = parts.act()
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.conv2 = parts.convolution(planes, planes)

    def residual(self, y: Tensor) -> Tensor:
        y = self.act2(self.norm2(self.conv1(y)))
        return self.conv2(self.dropout(y))


class PreActBottleneck(_PreActBlock):
    """1 × 1, 3 × 3, 1 × 1 (He et al., ECCV 2016), the stride at the 3 × 3."""

    def __init__(self, parts: Parts, in_channels: int, planes: int, stride: int) -> None:
        super().__init__(parts, in_channels, 4 * planes, stride)
        self.conv1 = parts.convolution(in_channels, planes, 1)
        self.norm2 = parts.normalization(planes, act=True)
        self.act2 = parts.act()
        self.conv2 = parts.convolution(planes, planes, stride=stride)
        self.norm3 = parts.normalization(planes, act=True)
        self.act3 = parts.act()
        self.conv3 = parts.convolution(planes, self.out_channels, 1)

    def residual(self, y: Tensor) -> Tensor:
        y = self.act2(self.norm2(self.conv1(y)))
        y = self.act3(self.norm3(self.conv2(y)))
        return self.conv3(y)
