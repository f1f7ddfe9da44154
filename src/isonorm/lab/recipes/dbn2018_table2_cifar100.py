"""DBN Table 2, its right half: wide residual networks on CIFAR-100."""

from .dbn2018_table2 import on

RECIPE = on("cifar100", "table2-cifar100", "CIFAR-100")
