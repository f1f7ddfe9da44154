"""Training rates of whole networks with every BatchNorm converted, beside BatchNorm's own.

    python -m benchmarks.networks                           # eager, 64 images of 128 x 128
    python -m benchmarks.networks --batch 256 --size 224 --modes eager compiled
    python -m benchmarks.networks --networks resnet18,efficientnet_b0

The networks are timm's, in bfloat16 autocast and channels_last, on random images. A row is one
network in one mode: BatchNorm, ``isonorm.convert(model, "iternorm")`` and the same with
``fuse_act=True`` share a process and take turns, so that a drift of the machine slows all of them.
Rows are filed as they end. A later run adds its rows to a record of the same source tree, and
refuses one of another.

Beside the rate stands the time in which the host launches a step with nothing in the queue, and how
many seconds the first step took. Needs a CUDA device and timm.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from math import exp, isfinite, log
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn

import isonorm

from .report import origin, write

NETWORKS = (
    "resnet18", "resnet50", "resnext50_32x4d", "mobilenetv3_large_100", "efficientnet_b0",
    "densenet121", "xception41", "ghostnet_100", "inception_v3", "repvgg_a0", "vgg11_bn",
)  # fmt: skip

MODES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "eager": lambda model: model,
    "compiled": torch.compile,
}

#: What is done to a network with BatchNorm: nothing, or ``convert`` with these options.
NORMS: dict[str, dict | None] = {
    "batchnorm": None,
    "iternorm": {},
    "iternorm, fuse_act": {"fuse_act": True},
}


class Candidate(NamedTuple):
    """A network that is trained, step by step, and its host's seconds for the first of them."""

    step: Callable[[], Tensor]
    first: float


def source_digest() -> str:
    """Return a digest of the package's source, by which records of the same code are known."""
    root = Path(isonorm.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".c", ".h")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def make_network(name: str, norm: str) -> nn.Module:
    """Return one of timm's networks, always with the same initial weights, its norms converted."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name)
    options = NORMS[norm]
    if options is not None:
        isonorm.convert(model, "iternorm", **options)
        left = [
            n for n, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
        ]
        if left:
            sys.exit(f"{name}: {', '.join(left)} were not converted.")
    return model.to("cuda", memory_format=torch.channels_last)


def candidate(model: nn.Module, images: Tensor, labels: Tensor) -> Candidate:
    """Return a network's training step, which has been warmed up."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            out = model(images)
            # some of timm's networks return a second, auxiliary output in training
            out = out[0] if isinstance(out, tuple) else out
            loss = nn.functional.cross_entropy(out, labels)
        loss.backward()
        optimizer.step()
        return loss

    begin = perf_counter()
    step()
    torch.cuda.synchronize()
    first = perf_counter() - begin
    for _ in range(4):
        step()
    return Candidate(step, first)


def measure(candidates: dict[str, Candidate], images: int, args) -> dict[str, dict]:
    """Return each candidate's images a second and its host's milliseconds a step, in every turn."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found: dict[str, dict] = {
        name: {"images_per_second": [], "host_milliseconds": [], "first_step_seconds": made.first}
        for name, made in candidates.items()
    }
    for _ in range(args.repetitions):
        for name, (step, _) in candidates.items():
            torch.cuda.synchronize()
            begin = perf_counter()
            loss = step()
            found[name]["host_milliseconds"].append((perf_counter() - begin) * 1e3)
            torch.cuda.synchronize()
            start.record()
            for _ in range(args.steps):
                loss = step()
            stop.record()
            torch.cuda.synchronize()
            seconds = start.elapsed_time(stop) / 1e3
            found[name]["images_per_second"].append(args.steps * images / seconds)
            found[name]["loss"] = loss.item()
    return found


def ratio(row: dict, norm: str) -> float:
    """Return a norm's rate over BatchNorm's: the median over turns that followed each other."""
    pairs = (row["norms"][n]["images_per_second"] for n in (norm, "batchnorm"))
    return median(mine / other for mine, other in zip(*pairs, strict=True))


def geometric_mean(values: list[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def run(name: str, mode: str, images: Tensor, labels: Tensor, args) -> dict:
    """Return the row of one network in one mode."""
    made = {
        norm: candidate(MODES[mode](make_network(name, norm)), images, labels)
        for norm in args.norms
    }
    found = measure(made, len(images), args)
    for norm, numbers in found.items():
        if not isfinite(numbers["loss"]):
            sys.exit(f"{name} {mode} with {norm} diverged: its speed does not count.")
    row = {"network": name, "mode": mode, "batch": args.batch, "size": args.size, "norms": found}
    row["ratios"] = {norm: ratio(row, norm) for norm in args.norms if norm != "batchnorm"}
    return row


def print_row(row: dict) -> None:
    """Print a row: rates, ratios, and the host's share."""
    cells = [f"{row['network']:22} {row['mode']:9} {row['batch']} x {row['size']}²"]
    for norm, found in row["norms"].items():
        rate, host = median(found["images_per_second"]), median(found["host_milliseconds"])
        ratio = f" = {row['ratios'][norm]:.2f}" if norm in row["ratios"] else ""
        cells.append(
            f"{norm} {rate:.0f}/s{ratio} (step {row['batch'] / rate * 1e3:.1f} ms, host "
            f"{host:.1f}, first {found['first_step_seconds']:.1f} s)"
        )
    print(" | ".join(cells), flush=True)


def earlier_rows(path: Path, digest: str, anew: bool) -> list[dict]:
    """Return the rows of an existing record of the same source; exit where it is of another."""
    if anew or not path.exists():
        return []
    record = json.loads(path.read_text())
    if record["source"] != digest:
        sys.exit(
            f"{path} is of source {record['source']}, and this is {digest}: rows of both would not "
            "compare. Give another --out, or --anew to begin it again."
        )
    return record["rows"]


def key(row: dict) -> tuple:
    return row["network"], row["mode"], row["batch"], row["size"]


def summary(rows: list[dict]) -> list[str]:
    """Return a line for each setting and norm: geometric mean and worst of the ratios."""
    settings: dict[tuple, list[tuple[float, str]]] = {}
    for row in rows:
        for norm, value in row["ratios"].items():
            setting = (row["mode"], row["batch"], row["size"], norm)
            settings.setdefault(setting, []).append((value, row["network"]))
    lines = []
    for (mode, batch, size, norm), values in sorted(settings.items()):
        mean, (least, name) = geometric_mean([v for v, _ in values]), min(values)
        lines.append(
            f"{mode}, {batch} x {size}², {norm}: {mean:.2f} x BatchNorm's rate in the geometric "
            f"mean of {len(values)}, {least:.2f} at worst ({name})"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--networks", default=",".join(NETWORKS), help="names of timm's, with commas"
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=128, help="height and width of the images")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["eager"])
    parser.add_argument("--norms", nargs="+", choices=NORMS, default=list(NORMS))
    parser.add_argument("--steps", type=int, default=10, help="steps of a turn")
    parser.add_argument("--repetitions", type=int, default=5, help="turns of each norm")
    parser.add_argument("--out", type=Path, default=Path("records/networks.json"))
    parser.add_argument("--anew", action="store_true", help="replace the record, whatever it has")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.networks needs a CUDA device.")
    args.norms = [norm for norm in NORMS if norm in {"batchnorm", *args.norms}]
    digest = source_digest()
    rows = earlier_rows(args.out, digest, args.anew)
    images = torch.randn(args.batch, 3, args.size, args.size, device="cuda")
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (args.batch,), device="cuda")
    record = origin("benchmarks.networks", sys.argv[1:], gpu="cuda") | {"source": digest}
    wanted = {(mode, name) for mode in args.modes for name in NETWORKS}
    for mode in args.modes:
        for name in args.networks.split(","):
            row = run(name, mode, images, labels, args) | {"command": record["command"]}
            rows = [other for other in rows if key(other) != key(row)] + [row]
            print_row(row)
            found = {(r["mode"], r["network"]) for r in rows if key(r)[2:] == key(row)[2:]}
            content = {"rows": rows, "summary": summary(rows), "complete": wanted <= found}
            write(record | content, args.out)
            torch.compiler.reset()
            torch.cuda.empty_cache()
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
