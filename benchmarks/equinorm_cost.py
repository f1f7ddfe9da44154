"""A training step of EquiConv2d beside convolution + BatchNorm, checked before it is timed."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isonorm

from .check import relative_error
from .measure import ratio, spread, take_turns

BATCHNORM, SINGLE, EXACT, CONV = "conv + BatchNorm", "EquiConv2d", "EquiConv2d, exact", "conv alone"
LAYERS: dict[str, Callable[[int], nn.Module]] = {
    BATCHNORM: lambda c: nn.Sequential(
        nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
    ),
    SINGLE: lambda c: isonorm.EquiConv2d(c, c, 3, padding=1),
    EXACT: lambda c: isonorm.EquiConv2d(c, c, 3, padding=1, single_pass=False),
    CONV: lambda c: nn.Conv2d(c, c, 3, padding=1),
}
SHAPES = ((64, 56), (128, 28), (256, 14))
MOST = 1.15  # × conv + BatchNorm
#: Relative error allowed against float64, by device: on a GPU torch's convolutions of float32 are
#: TF32 unless told otherwise, with operands rounded to 11 bits.
TOLERANCE = {"cpu": 1e-4, "cuda": 2e-3}


def plainly(layer: isonorm.EquiConv2d, x: Tensor) -> Tensor:
    """Section 4.1 as it is written: the affine is applied to the output."""
    w, v = layer.weight, x.sum((0, 2, 3))
    r = x.shape[0] * x.shape[2] * x.shape[3]
    b = -(w.sum((2, 3)) @ v) / (9 * v.sum())
    if layer.single_pass:
        n = (w > 0).sum((2, 3))
        contribution = (w.clamp(min=0).sum((2, 3)) + b[:, None] * n) @ v
    else:
        contribution = (w + b.view(-1, 1, 1, 1)).clamp(min=0).sum((2, 3)) @ v
    balanced = (r / contribution).view(-1, 1, 1, 1) * (w + b.view(-1, 1, 1, 1))
    y = F.conv2d(x, balanced, padding=1)
    return y * layer.gamma.view(-1, 1, 1) + layer.beta.view(-1, 1, 1)


def step_of(layer: nn.Module, x: Tensor, cotangent: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    wanted = (x, *layer.parameters())

    def step() -> tuple[Tensor, ...]:
        y = layer(x)
        grads = torch.autograd.grad(y, wanted, cotangent)
        if x.is_cuda:
            torch.cuda.synchronize()
        return y.detach(), *grads

    return step


def errors_of(layer: isonorm.EquiConv2d, x: Tensor, cotangent: Tensor) -> list[float]:
    """Relative errors of y, dx, dweight, dgamma and dbeta against the equations in float64."""
    found = step_of(layer, x, cotangent)()
    exact = isonorm.EquiConv2d(
        layer.in_channels, layer.out_channels, 3, padding=1, single_pass=layer.single_pass
    ).to(x.device, torch.float64)
    exact.load_state_dict(layer.state_dict())
    wide = x.detach().double().requires_grad_()
    y = plainly(exact, wide)
    expected = (y, *torch.autograd.grad(y, (wide, *exact.parameters()), cotangent.double()))
    return [relative_error(a, b) for a, b in zip(found, expected, strict=True)]


def cost(options: argparse.Namespace) -> dict:
    results = []
    for channels, size in options.shapes:
        torch.manual_seed(0)
        shape = (options.batch, channels, size, size)
        x = torch.randn(shape, device=options.device).relu_().requires_grad_()
        cotangent = torch.randn(shape, device=options.device)
        layers = {name: make(channels).to(options.device) for name, make in LAYERS.items()}
        errors = {name: errors_of(layers[name], x, cotangent) for name in (SINGLE, EXACT)}
        allowed = TOLERANCE[options.device]
        if not all(error <= allowed for found in errors.values() for error in found):
            raise SystemExit(
                f"error: at {shape} a result disagrees with the paper's equations in float64: "
                f"{errors}; at most {allowed:g} is allowed. Nothing was timed."
            )
        steps = {name: step_of(layer, x, cotangent) for name, layer in layers.items()}
        times = take_turns(steps, options.rounds)
        ratios = {name: ratio(each, times[BATCHNORM]) for name, each in times.items()}
        met = ratios[SINGLE].median <= MOST
        results.append(
            {
                "shape": list(shape),
                "time": {name: spread(each)._asdict() for name, each in times.items()},
                "time / conv + BatchNorm": {name: r._asdict() for name, r in ratios.items()},
                "errors": errors,
                "passed": met,
            }
        )
        print(
            "x".join(map(str, shape)),
            *(f"{name} {r.median:.3f} ({r.lower:.3f}–{r.upper:.3f})" for name, r in ratios.items()),
            f"{'met' if met else 'MISSED'}: at most {MOST} wanted",
            sep="  ",
            flush=True,
        )
    return {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "rounds": options.rounds,
        "most": MOST,
        "how": {
            "time": "seconds of forward and backward; layers take turns, each round in a new order",
            "time / conv + BatchNorm": "round by round; median and quartiles",
            "errors": "relative, of y, dx, dweight, dgamma, dbeta, against float64",
        },
        "results": results,
        "passed": all(result["passed"] for result in results),
    }
