"""VGG networks for 32 × 32 images."""

from __future__ import annotations

from typing import Unpack

from .chain import ChainOptions, Conv, ConvChain

#: Channels of the convolutions between two poolings; Simonyan & Zisserman's configurations A and E.
CONFIGURATIONS = {
    "A": ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    "E": ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4),
}


class VGG(ConvChain):
    """The VGG networks of the papers' CIFAR-10 experiments, each pooling at the end of a stage.

    ``"E"`` is IterNorm's (Section 5.1, supplement Table 2): 16 convolutions, average pooling where
    a fifth max-pooling would be, and one fully connected layer. The paper is silent about the
    initialization; He et al.'s is chosen, and ``conv=nn.Conv2d`` is what its published code has.

    ``"A"`` is DBN's (Section 4.2.1, Figure 5; Table B.1): 8 convolutions. The paper names the
    architecture only; its published code has one hidden layer of 512 neurons in front of the
    classifier, without dropout, and so has this (there normalized by BN, whatever the convolutions
    have; here like them). Figure 5c replaces
    ReLU by ELU (``activation="elu"``), 5d puts the norm behind the activation
    (``norm_after_act=True``: here directly behind it, so that pooling follows).

    >>> model = VGG("A", norm="dbn", activation="elu")
    >>> [name for name, _ in model.named_children()][:5]
    ['conv1', 'norm1', 'act1', 'pool1', 'conv2']
    """

    def __init__(self, configuration: str = "E", **options: Unpack[ChainOptions]) -> None:
        if configuration not in CONFIGURATIONS:
            raise ValueError(
                f"configuration must be one of {', '.join(CONFIGURATIONS)}; got {configuration!r}."
            )
        pools_last = configuration == "A"  # E has average pooling there
        stages = CONFIGURATIONS[configuration]
        layout = [
            Conv(channels, pool=end and (pools_last or stage < len(stages)))
            for stage, sizes in enumerate(stages, start=1)
            for channels, end in zip(sizes, [False] * (len(sizes) - 1) + [True], strict=True)
        ]
        hidden = (512,) if configuration == "A" else ()
        super().__init__(layout, hidden, **options)
