"""Where IterNorm's time on a GPU goes: each of its kernels by itself, in CUDA graphs.

    python -m benchmarks.kernels                       # ResNet-50's activations at batch 256
    python -m benchmarks.kernels --tune --shapes 512,14 --layouts nchw

Beside each kernel that streams the activation stands the time its bytes take at the copy bandwidth
measured first: a floor where the activation is larger than the cache, in which a kernel that is
launched again and again finds a smaller one. Kernels that overlap (see ``kernels.gpu.overlap``) do
so with themselves here, and seem shorter than they are in a step. With ``--tune`` the streaming
kernels are run with other tiles, warps, stages and programs, too; a variant whose results are not
those of the usual one counts as failed. ``--share 0/4`` runs every fourth variant once, untimed:
several processes then compile for the one that times.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

import isonorm
from isonorm.area import flat
from isonorm.kernels.plan import Plan, make_plan
from isonorm.lab.replay import Step, replay_seconds

from .gpu import RESNET50, copy_bandwidth, make_input
from .report import origin, write

KERNELS = {
    "moments": "moments_kernel",
    "apply": "apply_kernel",
    "sums": "backward_sums_kernel",
    "backward_apply": "backward_apply_kernel",
}
TILE, WARPS, STAGES = (32, 64, 128, 256), (4, 8), (1, 2, 3, 4)
#: Programs for each multiprocessor, tiles for each program, and a front: see ``Tuning``.
REDUCING = [(programs, 4) for programs in (1, 2, 3, 4, 8)]
MAPPING = [(programs, tiles) for programs in (2, 4) for tiles in (2, 4, 6, 12)]
MAPPING += [(4, tiles, front) for tiles in (2, 3, 4) for front in ((2, 0.5), (4, 0.7), (4, 0.85))]
SHARING = {"moments": REDUCING, "apply": MAPPING, "sums": REDUCING, "backward_apply": MAPPING}


def microseconds(step: Step, launches: int = 20, rounds: int = 5) -> float:
    """Median time of a step, launched many times in one CUDA graph."""
    together = lambda: [step() for _ in range(launches)]  # noqa: E731
    return replay_seconds(together, rounds, least=0) * 1e6 / launches


class Kernels:
    """One layer's kernels with the tensors they work on, ready to be launched one by one."""

    def __init__(self, shape: tuple[int, ...], layout: str, dtype: torch.dtype, args) -> None:
        from isonorm.kernels import gpu
        from isonorm.kernels.explicit import Saved, unpack

        x, self.dy = (flat(t.detach()) for t in make_input(shape, layout, dtype))
        operation = isonorm.operation.whiten("newton", 5)
        self.plan: Plan = make_plan(
            isonorm.area.batch(args.group_size), operation, 1e-5, "", "triton", args.act
        )
        channels = shape[1]
        recovery = isonorm.recovery.Affine(
            torch.rand(channels, device="cuda") + 0.5, torch.randn(channels, device="cuda")
        )
        (block, *_) = self.plan.problem_shapes(*x.shape)[0]
        self.work = gpu.prepare(x, block, self.plan, recovery)
        self.run = self.work.run
        self.y, self.dx = torch.empty_like(x), torch.empty_like(x)
        # for relu backward reads the output; random numbers tell as much
        self.kept = torch.randn_like(x) if args.act == "relu" else None
        self.back = gpu.prepare(x, block, self.plan, recovery, self.kept)
        #: Passes over the activation that a kernel makes.
        sums = 2 if self.kept is None else 3
        self.passes = {"moments": 1, "apply": 2, "sums": sums, "backward_apply": 3}
        statistics, (w, memo) = gpu.analyze(self.work, self.plan)
        saved = Saved(None, statistics.mean, statistics.cov, w, memo, statistics.rest)
        self.problem = next(unpack(saved, self.plan, *x.shape))
        self.grads = gpu.differentiate(
            self.back, self.dy, self.problem, recovery, self.plan, self.run.m
        )
        lay = self.run.lay
        most = max(programs for programs, *_ in REDUCING) * lay.multiprocessors
        parts = 1 + most // lay.problems  # that programs of any tuning may leave
        self.total = torch.empty(parts, lay.row, device="cuda")

    def steps(self) -> dict[str, Step]:
        """All launches of a forward and a backward pass, as they follow each other."""
        run, p, g = self.run, self.problem, self.grads
        steps: dict[str, Step] = {"moments": self.launch("moments")}
        if run.sum_moments is not None:
            steps["sum of moments"] = lambda: run.sum_moments(self.total)  # type: ignore[misc]
        mean, w, memo = p.mean.clone(), p.w.clone(), p.memo.clone()
        solving = run.to_solve(self.total, mean, p.rest, p.cov, w, memo)
        steps["root"] = lambda: run.root(*solving)  # type: ignore[misc]
        steps["apply"] = self.launch("apply")
        steps["sums"] = self.launch("sums")
        back = self.back.run
        if back.sum_sums is not None:
            steps["sum of sums"] = lambda: back.sum_sums(self.total)  # type: ignore[misc]
        weight, _ = self.work.parameters()
        outputs = [torch.empty_like(weight), torch.empty_like(weight)]
        outputs += [torch.empty_like(t) for t in (g.a, g.slope, g.shift)]
        given = back.to_differentiate(self.total, p.rest, p.cov, p.w, p.memo, weight, outputs)
        steps["gradients"] = lambda: back.gradients(*given)  # type: ignore[misc]
        steps["backward_apply"] = self.launch("backward_apply")
        if back.backward_rest is not None:
            tensors = self.tensors("backward_apply")
            steps["rest of it"] = lambda: back.backward_rest(*tensors)  # type: ignore[misc]
        return steps

    def launch(self, name: str, tuning=None) -> Step:
        launcher, tensors = self.launcher(name, tuning), self.tensors(name)
        return lambda: launcher(*tensors)

    def launcher(self, name: str, tuning=None):
        backward = name in ("sums", "backward_apply")
        usual = getattr(self.back.run if backward else self.run, name)
        if tuning is None:
            return usual
        return self.run.lay.launcher(KERNELS[name], usual.constants, tuning)

    def tensors(self, name: str) -> tuple[Tensor, ...]:
        x, p, g = self.work.x, self.problem, self.grads
        affine = self.work.parameters()
        if name == "moments":
            return x, self.total, torch.empty_like(p.mean)
        if name == "apply":
            return x, self.y, p.w, p.mean, p.rest, *affine, x
        if name == "sums":
            kept = x if self.kept is None else self.kept
            return x, self.dy, p.mean, p.rest, self.total, p.w, *affine, kept, x
        return x, self.dy, self.dx, g.a, g.slope, p.mean, p.rest, g.shift, p.w, *affine

    def outcome(self, name: str, tuning=None) -> Tensor:
        """What a kernel computes, to be compared between tunings."""
        for output in (self.total, self.y, self.dx):
            output.fill_(float("nan"))
        self.launch(name, tuning)()
        if name == "apply":
            return self.y.float()
        if name == "backward_apply":
            return self.dx.float()
        total = self.total[: self.launcher(name, tuning).grid[1]].sum(0) / self.run.m
        if name == "sums":
            return total
        d, problems = self.run.lay.d, self.run.lay.problems  # about a pivot, which tilings choose
        first = total[: problems * d].view(-1, d)
        return total[problems * d :].view(-1, d, d) - first[:, :, None] * first[:, None, :]


def time_variants(kernels: Kernels, name: str, share: tuple[int, int] | None) -> Iterator[dict]:
    from isonorm.kernels.gpu.layout import Tuning

    usual = kernels.run.lay.tuning(KERNELS[name])
    want = kernels.outcome(name)
    for number, (*shape, sharing) in enumerate(product(TILE, WARPS, STAGES, SHARING[name])):
        tuning = Tuning(*shape, *sharing)
        found: dict = {"kernel": name, "tuning": tuple(tuning), "usual": tuning == usual}
        # what differs in sharing alone is compiled once
        kernel, again = divmod(number, len(SHARING[name]))
        mine = share is None or kernel % share[1] == share[0]
        compiles = share is not None and not again
        try:
            if compiles and mine:
                kernels.launch(name, tuning)()
            if share is not None:
                continue
            error = ((kernels.outcome(name, tuning) - want).norm() / want.norm()).item()
            if not error < 2e-2:
                raise ValueError(f"its error is {error:.1e}")
            found["us"] = microseconds(kernels.launch(name, tuning), launches=8, rounds=3)
        except Exception as error:  # what the device cannot run, or runs wrongly, is a result, too
            found["failed"] = f"{type(error).__name__}: {str(error)[:80]}"
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--precision", default="high", choices=["high", "highest"])
    parser.add_argument("--layouts", nargs="+", default=["channels_last", "nchw"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--act", default="", choices=["", "relu", "silu"])
    parser.add_argument("--shapes", nargs="*", help="C,H pairs such as 256,56")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--share", help="i/n: compile a share of the variants, and time nothing")
    parser.add_argument("--out", type=Path, default=Path("records/kernels.json"))
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.kernels needs a CUDA device.")
    torch.set_float32_matmul_precision(args.precision)
    share = tuple(map(int, args.share.split("/"))) if args.share else None
    bandwidth = copy_bandwidth()
    shapes = [tuple(map(int, s.split(","))) for s in args.shapes] if args.shapes else RESNET50
    rows = []
    for layout, (c, h) in product(args.layouts, shapes):
        shape = (args.batch, c, h, h)
        kernels = Kernels(shape, layout, getattr(torch, args.dtype), args)
        size = kernels.work.x.numel() * kernels.work.x.element_size()
        row: dict = {"shape": list(shape), "layout": layout}
        if share is None:
            row["us"] = {name: microseconds(step) for name, step in kernels.steps().items()}
            row["floor_us"] = {k: v * size / bandwidth * 1e6 for k, v in kernels.passes.items()}
            cells = [f"{k} {v:.1f}" for k, v in row["us"].items()]
            floor = sum(row["floor_us"].values())
            total = sum(row["us"].values())
            print(f"{shape} {layout}: {', '.join(cells)}; all {total:.0f}, floor {floor:.0f}")
        if args.tune:
            row["variants"] = [v for k in KERNELS for v in time_variants(kernels, k, share)]
            for name in KERNELS:
                timed = [v for v in row["variants"] if v["kernel"] == name and "us" in v]
                for v in sorted(timed, key=lambda v: v["us"])[:3]:
                    print(f"    {name} {v['us']:.1f} with {v['tuning']}", flush=True)
        rows.append(row)
        del kernels
        torch.cuda.empty_cache()
    if share is None:
        arguments = {key: value for key, value in vars(args).items() if key != "out"}
        arguments["bandwidth"] = bandwidth
        record = origin("benchmarks.kernels", sys.argv[1:], gpu="cuda")
        write(record | {"arguments": arguments, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
