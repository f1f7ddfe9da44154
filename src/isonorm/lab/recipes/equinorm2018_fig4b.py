"""EquiNorm Figure 4b: a pre-activation ResNet-152 on CIFAR-100 with manifold mixup."""

from .equinorm2018_fig4a import on

RECIPE = on("cifar100", "fig4b", "CIFAR-100")
