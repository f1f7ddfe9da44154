"""Training ResNet-50 with IterNorm in place of every BatchNorm: images a second, random data.

    python -m benchmarks.resnet50                  # batch 256, bfloat16 autocast, channels_last

Beside the rate stands how long the host takes to launch a step by itself, with nothing in the
queue: where that is near the time of the step, the host may limit the rate, and not the GPU.

BatchNorm and IterNorm run in one process: eager against eager, compiled against compiled, and
compiled with CUDA graphs ("reduce-overhead") against the same. "iternorm, fused" has its ReLUs and
residual additions inside the layers (``act="relu"``, ``residual=``), where a compiler puts them for
BatchNorm. Needs a CUDA device. BatchNorm is torch's own, the network the lab's: torchvision's in
all but the names of its layers.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn

import isonorm
from isonorm.lab.models import create_model

from .report import origin, write

#: How the networks are run; each is compared with its like.
MODES = {
    "eager": lambda model: model,
    "compiled": torch.compile,
    "compiled, CUDA graphs": lambda model: torch.compile(model, mode="reduce-overhead"),
}

#: What is compared: the layer, and whether activations and residuals are part of it.
NORMS = {
    "batchnorm": (nn.BatchNorm2d, False),
    "iternorm": (isonorm.IterNorm, False),
    "iternorm, fused": (isonorm.IterNorm, True),
}


def network(norm: str, group_size: int) -> nn.Module:
    """ResNet-50 with one of the norms that are compared, always with the same initial weights."""
    layer, fuse = NORMS[norm]
    if layer is isonorm.IterNorm:
        layer = partial(layer, group_size=group_size)
    torch.manual_seed(0)
    model = create_model("resnet50", norm=layer, fuse_act=fuse)
    return model.to(memory_format=torch.channels_last)


class Measured(NamedTuple):
    """Of one network: images a second, and the milliseconds in which the host launches a step, in
    every repetition, and the last loss, which must be finite to count.
    """

    rates: list[float]
    launches: list[float]
    loss: float


def measure(model: nn.Module, images: Tensor, labels: Tensor, args) -> Measured:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(5):
        loss = step()
    rates, launches = [], []
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(args.repetitions):
        start.record()
        for _ in range(args.steps):
            loss = step()
        stop.record()
        torch.cuda.synchronize()
        rates.append(args.steps * len(images) / start.elapsed_time(stop) * 1e3)
    for _ in range(args.repetitions):  # one at a time: many would fill the queue, and wait for it
        begin = perf_counter()
        loss = step()
        launches.append((perf_counter() - begin) * 1e3)
        torch.cuda.synchronize()
    return Measured(rates, launches, loss.item())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10, help="steps per repetition")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--out", type=Path, default=Path("records/resnet50.json"))
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.resnet50 needs a CUDA device.")
    images = torch.randn(args.batch, 3, 224, 224, device="cuda")
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (args.batch,), device="cuda")
    rates: dict[str, float] = {}
    host: dict[str, float] = {}
    ranges: dict[str, dict[str, tuple[float, float]]] = {"images_per_second": {}}
    ranges["host_milliseconds_a_step"] = {}
    arguments = {name: value for name, value in vars(args).items() if name != "out"}
    record = origin("benchmarks.resnet50", sys.argv[1:], gpu="cuda") | {"arguments": arguments}
    record |= {"images_per_second": rates, "host_milliseconds_a_step": host}
    record |= {"least_and_most": ranges}
    for mode in args.modes:
        for norm in NORMS:
            model = MODES[mode](network(norm, args.group_size).cuda())
            found = measure(model, images, labels, args)
            if not found.loss < float("inf"):
                sys.exit(f"{mode} {norm} diverged: loss {found.loss}; its speed does not count.")
            name, least, most = f"{mode} {norm}", min(found.rates), max(found.rates)
            rates[name], host[name] = median(found.rates), median(found.launches)
            ranges["images_per_second"][name] = least, most
            ranges["host_milliseconds_a_step"][name] = min(found.launches), max(found.launches)
            print(
                f"{mode:21} {norm:15} {rates[name]:7.0f} images/s ({least:.0f} to {most:.0f}), "
                f"step {args.batch / rates[name] * 1e3:.1f} ms, launched in {host[name]:.1f}; "
                f"loss {found.loss:.2f}",
                flush=True,
            )
            write(record | {"complete": False}, args.out)  # nothing is lost if the rest is
            del model
            torch.compiler.reset()
            torch.cuda.empty_cache()
        for norm in ("iternorm", "iternorm, fused"):
            ratio = rates[f"{mode} {norm}"] / rates[f"{mode} batchnorm"]
            print(f"{mode}: {norm} runs at {ratio:.3f} x BatchNorm's rate", flush=True)
    write(record | {"complete": True}, args.out)


if __name__ == "__main__":
    main()
