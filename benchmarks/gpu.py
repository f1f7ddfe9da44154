"""Whitening beside BatchNorm on a GPU: time under CUDA-graph replay, and peak memory.

    python -m benchmarks.gpu                       # ResNet-50's activations at batch 256, bfloat16
    python -m benchmarks.gpu --dtype float32 --precision high --layouts nchw
    python -m benchmarks.gpu --dtype float32 --layouts nchw --shapes 256,56 --plain
    python -m benchmarks.gpu --batch 64 --widths --skip-compiled   # many channel counts

For each shape: forward and backward of ``IterNorm`` (and, with ``--dbn``, ``DBN``), of eager
``F.batch_norm`` and of the same under ``torch.compile``, in the same layout, in one run; with
``--plain`` of the paper's algorithm written plainly, too, over groups one by one and in batched
products. Beside them stands the time of 8 passes over the activation at the copy bandwidth measured
first. A result is compared with the float64 reference before its speed is printed.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isonorm
from isonorm.lab.replay import Step, replay_seconds

from . import plain
from .report import origin, write

RESNET50 = [
    (64, 112), (64, 56), (128, 56), (256, 56), (128, 28), (256, 28), (512, 28),
    (256, 14), (512, 14), (1024, 14), (512, 7), (2048, 7),
]  # fmt: skip

#: Channel counts of MobileNets and EfficientNets, many no multiple of a group, and the heights
#: at which ``--widths`` measures them.
WIDTHS = (
    16, 24, 40, 64, 72, 80, 96, 112, 120, 184, 200, 240, 256, 480, 512, 672, 728, 960, 1024,
)  # fmt: skip
HEIGHTS = (8, 16, 32)

#: Relative error allowed against float64. 16-bit results carry the rounding of their own output
#: (2⁻⁹ and 2⁻¹²) and that of the operands of each product; "high" products are TF32 (2⁻¹¹),
#: "highest" ones three-term TF32, whose error is that of float32 sums.
TOLERANCE = {"bfloat16": 1e-2, "float16": 2e-3, "float32-high": 4e-3, "float32-highest": 5e-5}
#: The paper's steps, written plainly, amplify rounding, and its sums have no order of their own.
PLAINLY = 10

#: Measurements of a step, of which the median counts.
ROUNDS = 15


def copy_bandwidth() -> float:
    """Bytes read and written each second by a large copy."""
    source = torch.randn(1 << 29, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return 2 * source.numel() * 2 / replay_seconds(lambda: torch.neg(source, out=target), ROUNDS)


def host_microseconds(steps: dict[str, Step], rounds: int = 9, calls: int = 20) -> dict[str, float]:
    """Return the time in which the host launches each step, with nothing in the queue: the median
    over rounds in which all take turns.
    """
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            seconds = 0.0
            for _ in range(calls):
                torch.cuda.synchronize()
                begin = perf_counter()
                step()
                seconds += perf_counter() - begin
            found[name].append(seconds / calls * 1e6)
    return {name: median(times) for name, times in found.items()}


def peak_bytes(step: Step) -> int:
    """Most bytes alive during an eager step, beyond what was there before."""
    step()
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def make_input(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A correlated activation with a mean, and a cotangent, in a layout."""
    fmt = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    c = shape[1]
    mix = torch.eye(c, device="cuda") + torch.randn(c, c, device="cuda") / c**0.5
    x = torch.randn(shape, device="cuda")
    x = F.conv2d(x, mix[:, :, None, None]) if len(shape) == 4 else x @ mix.T
    x = (x + torch.randn(c, device="cuda").view(1, c, 1, 1)).to(dtype)
    dy = torch.randn(shape, device="cuda").to(dtype)
    return x.contiguous(memory_format=fmt).requires_grad_(), dy.contiguous(memory_format=fmt)


def gradients_of(
    forward: Callable[[Tensor], Tensor], x: Tensor, parameters: list[Tensor], dy: Tensor
):
    y = forward(x)
    return y, *torch.autograd.grad(y, [x, *parameters], dy)


def whitening_error(
    layer: nn.Module, definition: isonorm.Normalize, x: Tensor, dy: Tensor
) -> float:
    """Largest relative error of y, dx, dγ and dβ against the float64 reference of a definition."""
    got = gradients_of(layer, x, [layer.weight, layer.bias], dy)  # type: ignore[list-item]
    exact = [t.detach().double().requires_grad_() for t in (x, layer.weight, layer.bias)]
    recovery = isonorm.recovery.Affine(exact[1], exact[2])

    def reference(x: Tensor) -> Tensor:
        return isonorm.functional.normalize(
            x,
            area=definition.area,
            operation=definition.operation,
            recovery=recovery,
            eps=definition.eps,
        )[0]

    with isonorm.backend("torch"):
        want = gradients_of(reference, exact[0], exact[1:], dy.double())
    return max(((g.double() - w).norm() / w.norm()).item() for g, w in zip(got, want, strict=True))


def candidates(channels: int, args) -> dict[str, tuple[nn.Module, isonorm.Normalize]]:
    """Layers by name, each with the one whose definition it has to meet."""
    options = {"group_size": args.group_size, "track_running_stats": False, "device": "cuda"}
    iternorm = isonorm.IterNorm(channels, **options)
    layers: dict[str, tuple[nn.Module, isonorm.Normalize]] = {"iternorm": (iternorm, iternorm)}
    if args.dbn:
        dbn = isonorm.DBN(channels, **options)
        layers["dbn"] = dbn, dbn
    if args.plain:
        size, steps = min(args.group_size, channels), iternorm.operation.num_iters
        assert steps is not None
        for over_groups in (plain.looped, plain.batched):
            layer = plain.PlainIterNorm(channels, size, over_groups, num_iters=steps)
            layers[f"plain_{over_groups.__name__}"] = layer.cuda(), iternorm
    for layer, _ in layers.values():
        nn.init.uniform_(layer.weight, 0.5, 1.5)  # type: ignore[arg-type]
        nn.init.normal_(layer.bias)  # type: ignore[arg-type]
    return layers


def measure(shape, layout: str, dtype: torch.dtype, tolerance: float, args) -> dict:
    x, dy = make_input(shape, layout, dtype)
    row: dict = {
        "shape": list(shape),
        "layout": layout,
        "megabytes": x.numel() * x.element_size() / 1e6,
    }
    weight, bias = (torch.ones(shape[1], device="cuda", requires_grad=True) for _ in range(2))

    def batch_norm(x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, weight, bias, training=True)

    compiled = torch.compile(batch_norm)
    steps = {"bn_eager": batch_norm, "bn_compiled": compiled}
    if args.skip_compiled:
        del steps["bn_compiled"]
    for name, function in steps.items():
        step = lambda f=function: gradients_of(f, x, [weight, bias], dy)  # noqa: E731
        row[name] = {"us": replay_seconds(step, ROUNDS) * 1e6, "peak": peak_bytes(step)}
    for name, (norm, definition) in candidates(shape[1], args).items():
        error = whitening_error(norm, definition, x, dy)
        allowed = tolerance * (PLAINLY if isinstance(norm, plain.PlainIterNorm) else 1)
        if not error <= allowed:
            sys.exit(f"{name} on {shape} {layout}: error {error:.2e} exceeds {allowed:.0e}")
        step = lambda f=norm: gradients_of(f, x, [f.weight, f.bias], dy)  # noqa: E731
        row[name] = {
            "us": replay_seconds(step, ROUNDS) * 1e6,
            "peak": peak_bytes(step),
            "error": error,
        }
    if args.widths:
        row["host_us"] = host_microseconds(layer_steps(shape[1], x, dy, args))
    row["floor_us"] = 8 * x.numel() * x.element_size() / args.bandwidth * 1e6
    return row


def layer_steps(channels: int, x: Tensor, dy: Tensor, args) -> dict[str, Step]:
    """Return eager steps of BatchNorm and of the layers that are measured, running statistics
    included.
    """
    group_size = {"group_size": args.group_size}
    layers = {
        "bn": nn.BatchNorm2d(channels, device="cuda"),
        "iternorm": isonorm.IterNorm(channels, device="cuda", **group_size),
    }
    if args.dbn:
        layers["dbn"] = isonorm.DBN(channels, device="cuda", **group_size)
    return {
        name: lambda f=layer: gradients_of(f, x, [f.weight, f.bias], dy)  # type: ignore[misc]
        for name, layer in layers.items()
    }


def geometric_mean(values: list[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def print_row(row: dict) -> None:
    n, c, h, _ = row["shape"]
    eager = row["bn_eager"]
    best = min(eager["us"], row.get("bn_compiled", eager)["us"])
    cells = [f"{n}x{c}x{h}x{h} {row['layout']:13}", f"floor {row['floor_us']:7.0f}"]
    cells += [f"{k[3:]} {row[k]['us']:7.0f}" for k in ("bn_eager", "bn_compiled") if k in row]
    for name in ("iternorm", "dbn"):
        if name in row:
            us, peak = row[name]["us"], row[name]["peak"] / eager["peak"]
            cells.append(
                f"{name} {us:7.0f} = {us / eager['us']:.2f} eager {us / best:.2f} best "
                f"{us / row['floor_us']:.2f} floor, memory {peak:.3f}, "
                f"error {row[name]['error']:.0e}"
            )
    for name in ("plain_looped", "plain_batched"):
        if name in row:
            us = row[name]["us"]
            cells.append(f"{name} {us:.0f} = {us / row['iternorm']['us']:.1f} iternorm")
    host = row.get("host_us", {})
    cells += [f"host {k} {us:.0f} = {us / host['bn']:.2f}" for k, us in host.items()]
    print(" | ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--precision", default="high", choices=["high", "highest"])
    parser.add_argument("--layouts", nargs="+", default=["channels_last", "nchw"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--dbn", action="store_true", help="measure DBN's default method, too")
    parser.add_argument(
        "--plain", action="store_true", help="measure the paper's algorithm in plain torch, too"
    )
    parser.add_argument("--skip-compiled", action="store_true")
    parser.add_argument(
        "--widths", action="store_true", help="many channel counts, and the host's time a step"
    )
    parser.add_argument(
        "--shapes", nargs="*", help="C,H pairs such as 256,56 (default: ResNet-50's)"
    )
    parser.add_argument("--out", type=Path, default=Path("records/gpu.json"))
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.gpu needs a CUDA device; for a CPU use benchmarks.cpu.")
    torch.set_float32_matmul_precision(args.precision)
    key = args.dtype if args.dtype != "float32" else f"float32-{args.precision}"
    args.bandwidth = copy_bandwidth()
    print(f"copy bandwidth {args.bandwidth / 1e12:.2f} TB/s, {args.dtype}, group {args.group_size}")
    shapes = [tuple(map(int, s.split(","))) for s in args.shapes] if args.shapes else RESNET50
    if args.widths and not args.shapes:
        shapes = [(channels, height) for channels in WIDTHS for height in HEIGHTS]
    rows: list[dict] = []
    arguments = {key: value for key, value in vars(args).items() if key != "out"}
    record = origin("benchmarks.gpu", sys.argv[1:], gpu="cuda")
    record |= {
        "how": f"us: median of {ROUNDS} rounds of replays of a step captured in a CUDA graph",
        "arguments": arguments,
        "rows": rows,
    }
    for layout in args.layouts:
        for c, h in shapes:
            shape = (args.batch, c, h, h)
            rows.append(measure(shape, layout, getattr(torch, args.dtype), TOLERANCE[key], args))
            print_row(rows[-1])
            write(record | {"complete": False}, args.out)  # nothing is lost if the rest is
            torch.compiler.reset()
            torch.cuda.empty_cache()
        mine = [r for r in rows if r["layout"] == layout]
        eager = geometric_mean([r["iternorm"]["us"] / r["bn_eager"]["us"] for r in mine])
        summary = f"{layout}: geometric mean {eager:.2f} x eager"
        if not args.skip_compiled:
            best = [min(r["bn_eager"]["us"], r["bn_compiled"]["us"]) for r in mine]
            ratios = [r["iternorm"]["us"] / b for r, b in zip(mine, best, strict=True)]
            summary += f", {geometric_mean(ratios):.2f} x the faster, worst {max(ratios):.2f}"
        if args.widths:
            hosts = [r["host_us"]["iternorm"] / r["host_us"]["bn"] for r in mine]
            summary += f"; host {geometric_mean(hosts):.2f} x BatchNorm's, worst {max(hosts):.2f}"
        print(summary, flush=True)
    write(record | {"complete": True}, args.out)


if __name__ == "__main__":
    main()
