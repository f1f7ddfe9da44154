"""What a folded network costs: ResNet-50's inference, beside the same network without norms.

    python -m benchmarks.folding                   # batch 4, 224 × 224, float32, on the CPU

Three networks take turns: with IterNorm in eval, folded, and with its norms deleted (a bias in
every convolution they stood behind). A time counts only after the folded network has given the
unfolded one's outputs.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import isonorm
from isonorm.lab.models import create_model

from .measure import ratio, spread, take_turns
from .report import origin, write

UNFOLDED, FOLDED, WITHOUT = "unfolded", "folded", "without norms"

#: Largest relative error of the folded outputs, in the norm, that float32's rounding explains.
TOLERANCE = 1e-4


def networks(norm: str, example: Tensor) -> dict[str, nn.Module]:
    """The three networks, the first with statistics from two batches like the example."""
    torch.manual_seed(0)
    model = create_model("resnet50", norm=norm)
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn_like(example))
    model.eval()
    return {UNFOLDED: model, FOLDED: isonorm.fold(model), WITHOUT: without_norms(model)}


def without_norms(model: nn.Module) -> nn.Module:
    """A copy in eval with its norms deleted and a bias in every convolution."""
    plain = copy.deepcopy(model).eval()
    for name, module in list(plain.named_modules()):
        if isinstance(module, isonorm.Normalize):
            plain.set_submodule(name, nn.Identity())
        elif isinstance(module, nn.Conv2d) and module.bias is None:
            module.bias = nn.Parameter(module.weight.new_zeros(module.out_channels))
    return plain


def relative_error(model: nn.Module, reference: nn.Module, x: Tensor) -> float:
    expected = reference(x)
    return float((model(x) - expected).norm() / expected.norm())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=224, help="height and width of an image")
    parser.add_argument("--norm", default="iternorm")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("records/folding.json"))
    args = parser.parse_args()
    x = torch.randn(args.batch, 3, args.size, args.size)
    models = networks(args.norm, x)
    print(str(models[FOLDED].fold_report).splitlines()[0])
    with torch.inference_mode():
        error = relative_error(models[FOLDED], models[UNFOLDED], x)
        if not error < TOLERANCE:
            sys.exit(f"the folded outputs are off by {error:.1e}; its time does not count.")
        print(f"folded outputs agree to {error:.1e}")
        steps = {name: lambda model=model: model(x) for name, model in models.items()}
        times = take_turns(steps, args.rounds)
    ratios = {name: ratio(times[name], times[WITHOUT]) for name in models}
    for name, seconds in times.items():
        time = spread(seconds)
        print(
            f"{name:14} {time.median * 1e3:7.1f} ms ({time.lower * 1e3:.1f}–{time.upper * 1e3:.1f})"
            f"  {ratios[name].median:.3f} × without norms"
        )
    record = origin("benchmarks.folding", sys.argv[1:]) | {
        "network": f"resnet50, {args.norm}",
        "shape": list(x.shape),
        "rounds": args.rounds,
        "norms_merged": len(models[FOLDED].fold_report.which("merged")),
        "relative_error": error,
        "seconds": {name: spread(seconds)._asdict() for name, seconds in times.items()},
        "ratio_to_without_norms": {name: r._asdict() for name, r in ratios.items()},
    }
    write(record, args.out)


if __name__ == "__main__":
    main()
