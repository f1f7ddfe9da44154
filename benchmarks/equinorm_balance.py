"""Section 5.2 of EquiNorm measured: what stride and padding do to the balance of contributions."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor

import isonorm

from .measure import spread

CASES = {
    "cyclic": {"padding": 1, "padding_mode": "circular"},
    "zeros": {"padding": 1},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "replicate": {"padding": 1, "padding_mode": "replicate"},
    "none": {},
    "cyclic, stride 2": {"padding": 1, "padding_mode": "circular", "stride": 2},
    "zeros, stride 2": {"padding": 1, "stride": 2},
    "cyclic, dilation 2": {"padding": 2, "padding_mode": "circular", "dilation": 2},
}
SIZES = (56, 14, 7)  # of ResNet's stages
CHANNELS, INSTANCES = 64, 32


def smooth(x: Tensor) -> Tensor:
    """Neighbors that resemble each other: means of 5 × 5, cyclic."""
    return F.avg_pool2d(F.pad(x, (2, 2, 2, 2), mode="circular"), 5, 1)


def inputs(size: int, generator: torch.Generator) -> dict[str, Tensor]:
    noise = torch.randn(INSTANCES, CHANNELS, size, size, generator=generator)
    blurred = smooth(noise)
    return {"rough": noise.relu(), "smooth": (blurred / blurred.std()).relu()}


@torch.no_grad()
def contributions(x: Tensor, options: dict, single_pass: bool) -> dict[str, list[float]]:
    """The mean over output elements of what positive and negative weights contribute, and of both:
    one number for each output channel.
    """
    layer = isonorm.EquiConv2d(
        CHANNELS, CHANNELS, 3, **options, affine=False, momentum=1.0, single_pass=single_pass
    ).double()
    layer(x.double())
    plain = layer.eval().fuse()
    kernel = plain.weight.clone()
    found = {}
    for name, part in (
        ("positive", kernel.clamp(min=0)), ("negative", kernel.clamp(max=0)), ("mean", kernel),
    ):  # fmt: skip
        plain.weight.copy_(part)
        found[name] = plain(x.double()).mean((0, 2, 3)).tolist()
    return found


def balance(options: argparse.Namespace) -> dict:
    results = []
    for size in options.sizes:
        for kind, x in inputs(size, torch.Generator().manual_seed(0)).items():
            for name, arguments in CASES.items():
                torch.manual_seed(1)
                found = contributions(x, arguments, options.single_pass)
                spreads = {key: spread(values)._asdict() for key, values in found.items()}
                worst = max(map(abs, found["mean"]))
                results.append(
                    {"size": size, "input": kind, "case": name, **spreads, "largest_mean": worst}
                )
                print(
                    f"{size:3} × {size:<3} {kind:7} {name:19} "
                    f"positive {spreads['positive']['median']:+.4f}  "
                    f"negative {spreads['negative']['median']:+.4f}  largest |mean| {worst:.2e}"
                )
    return {
        "how": {
            "positive": "mean contribution of positive weights to an output element; +1 in theory",
            "negative": "the same of negative weights; −1 in theory",
            "mean": "mean of the output; 0 in theory",
            "over": f"{CHANNELS} output channels of a 3 × 3 kernel; spread: median and quartiles",
            "input": f"{INSTANCES} × {CHANNELS} channels, relu of noise; smooth: its 5 × 5 means",
        },
        "single_pass": options.single_pass,
        "results": results,
    }
