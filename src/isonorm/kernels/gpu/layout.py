"""How the kernels cut a tensor: groups of features, tiles of samples, programs that share them."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import torch
import triton

from ...area import Block
from ..choice import INTERPRETING
from ..plan import Plan
from . import stream
from .launch import Launcher
from .overlap import overlaps

#: Channels that a program takes, at most, unless they are one group.
CHANNELS = 64
#: Tiles that a program with partial sums has at least, so that those stay small beside what they
#: sum; about as many as a program without them should have; and one without matrices, which is
#: sooner ready to begin.
TILES_TO_REDUCE, TILES_TO_MAP, TILES_TO_SCALE = 4, 12, 6
#: Tiles up to which a program that leaves no sums takes its share of all: with more, programs that
#: are done early would wait too long for others.
MOST_AT_ONCE = 8
#: Samples of a run (an image's positions, say) up to which tiles loaded ahead are compiled for
#: their number, so that threads need not keep an address for every channel; and how many such sizes
#: there may be: sequences have many.
LONGEST_KNOWN, MOST_KNOWN = 256, 16
#: CUDA's limit for the second dimension of a grid.
MOST_PROGRAMS = 2**16 - 1
#: What 32 bits number, less what all programs' next tiles have, up to 128 samples each: those that
#: are loaded ahead may lie past the end, and must not wrap around to the front.
FARTHEST = 2**31 - 128 * MOST_PROGRAMS


#: Products of float32 as two bfloat16: see ``stream``.
TWO_BFLOAT16 = "bf16x3 in float32" if INTERPRETING else "bf16x3"


class Tuning(NamedTuple):
    """What a streaming kernel's speed depends on, and its result does not."""

    tile: int  # samples at a time
    warps: int
    stages: int  # tiles in flight
    programs: int  # for each multiprocessor
    tiles: int  # of a program: at least, where it leaves sums, or else about
    #: Of many programs that leave no sums those that start first have more tiles than others: how
    #: many there are for each multiprocessor, and what part of all tiles they have.
    front: tuple[int, float] = (0, 0.0)


class Sharing(NamedTuple):
    """How programs share a problem's tiles: see ``tile.share``."""

    programs: int
    front: int  # of these
    front_tiles: int
    many: bool  # whether there are more programs than run at once


def share_out(
    tiles: int, tuning: Tuning, multiprocessors: int, problems: int, reduces: bool
) -> Sharing:
    """At most as many programs as run at once, since one too many would wait for all others; or,
    where they leave no sums and would have long shares, many more with short ones.
    """
    problems = max(problems, 1)
    programs = tuning.programs * multiprocessors // problems
    many = not reduces and tiles > MOST_AT_ONCE * programs
    front = front_tiles = 0
    if many:
        each, part = tuning.front
        front = min(each * multiprocessors // problems, programs)  # so that others find tiles, too
        front_tiles = int(part * tiles) // max(front, 1) * front
        # somebody has to take what the front leaves, however little
        programs = max(programs, front + triton.cdiv(tiles - front_tiles, tuning.tiles))
    elif reduces:
        programs = min(programs, tiles // tuning.tiles)
    return Sharing(max(1, min(programs, tiles, MOST_PROGRAMS)), front, front_tiles, many)


class Walk(NamedTuple):
    """A block of an (N, C, S) tensor as the kernels walk it: examples that are problems of their
    own, features of each, and their samples in two loops, with a stride for each of the four.
    """

    examples: int
    features: int
    n: int
    s: int
    example_stride: int
    feature_stride: int
    n_stride: int
    s_stride: int

    @property
    def extent(self) -> int:
        """Elements between the first and the last, at most."""
        sizes, strides = self[:4], self[4:]
        return sum(size * stride for size, stride in zip(sizes, strides, strict=True))


def walk(shape: tuple[int, ...], stride: tuple[int, ...], block: Block, plan: Plan) -> Walk:
    """Over the batch samples are examples × positions; within an example, positions; and where the
    features are groups of channels, a group's channels × positions, the closer ones innermost.
    """
    n, _, s = shape
    sn, sc, ss = stride
    channels = block.num_channels()
    if plan.area.features == "groups" and "d" in plan.area.roles:
        (outer, so), (inner, si) = sorted([(block.size, sc), (s, ss)], key=lambda axis: -axis[1])
        return Walk(n, block.groups, outer, inner, sn, block.size * sc, so, si)
    if plan.area.spans_batch:
        return Walk(1, channels, n, s, 0, sc, sn, ss)
    return Walk(n, channels, 1, s, sn, sc, 0, ss)


class Layout(NamedTuple):
    """A walk as the kernels need it: programs take a group of features of one example each, and
    share its tiles of samples.
    """

    examples: int
    groups: int  # of features that programs take, in each example
    size: int  # features of such a group
    span: int  # how many groups of the area it holds, side by side
    d: int  # the power of two ≥ size that kernels use
    channels: int  # features of an example
    n: int  # samples are n runs
    s: int  # of s
    merged: bool  # whether the runs follow each other at the same stride
    operand: int  # bytes of what is multiplied
    vector: int  # bytes that a thread can load at once
    rows: int  # threads that share a channel's samples, unless each has some that are NEAR
    precision: str  # of products
    multiprocessors: int
    numbers: tuple[int, ...]  # of the streaming kernels' signatures; tiles go before the last two
    constants: dict[str, object]

    @property
    def problems(self) -> int:
        return self.examples * self.groups

    @property
    def diagonal(self) -> bool:
        """Whether features are treated one by one: numbers for each instead of matrices."""
        return bool(self.constants["DIAG"])

    @property
    def row(self) -> int:
        """Numbers in one part of the sums: (G, D) first ones, then (G, D[, D]) second ones."""
        return self.problems * self.d * (2 if self.diagonal else self.d + 1)

    @property
    def one_sided(self) -> bool:
        """Whether moments leave second sums of which only the symmetric part counts."""
        return self.precision in ("tf32", TWO_BFLOAT16)

    @property
    def crowded(self) -> bool:
        """Whether one matrix, in the two halves of three-term TF32, fills the shared memory."""
        return not self.diagonal and self.d > CHANNELS and self.precision == "tf32x3"

    @property
    def overlap(self) -> bool:
        """Whether kernels may begin before their predecessors end."""
        return bool(self.constants["OVERLAP"])

    @property
    def by_eights(self) -> bool:
        """Whether a thread's numbers, which it loads one by one, are eight channels of a sample."""
        return bool(self.constants["AHEAD"]) and self.vector == 2 and not self.diagonal

    def launcher(
        self, name: str, flags: dict[str, object], tuning: Tuning | None = None
    ) -> Launcher:
        """A kernel for this layout; its grid is problems × programs that share one's tiles."""
        tuning = tuning or self.tuning(name)
        samples = self.n * self.s
        tiles = triton.cdiv(samples, tuning.tile)
        # Products over samples read their operands the other way round, which TF32 cannot do.
        reads_across = name in REDUCING and self.precision == "tf32"
        options: dict[str, object] = {
            "BM": tuning.tile,
            "EIGHTS": min(self.d // 8, tuning.warps) if self.by_eights else 0,
            "FULL": samples % tuning.tile == 0,
            "ROWS": tuning.tile // 8 if self.constants["NEAR"] else min(self.rows, tuning.tile),
            "PRECISION": TWO_BFLOAT16 if reads_across else self.precision,
            "num_warps": tuning.warps,
            "num_stages": tuning.stages,
        }
        reduces = name in REDUCING
        work = share_out(tiles, tuning, self.multiprocessors, self.problems, reduces)
        return Launcher(
            getattr(stream, name),
            (self.problems, work.programs),
            (*self.numbers[:-2], tiles, *self.numbers[-2:])
            + (() if reduces else (work.front, work.front_tiles)),
            flags | self.constants | options,
            early=self.overlap and not reduces,
            # Around what still runs a few programs would be dealt out unevenly.
            most=0 if work.many else tuning.programs,
        )

    def tuning(self, name: str) -> Tuning:
        """How a kernel runs best on this layout, by what was measured on an H200 for groups of 64:
        see ``benchmarks.kernels``.
        """
        vector = self.vector
        # one product of float32 operands, not several
        single = self.precision == "tf32" and not self.diagonal
        wide = self.operand == 4 and not self.constants["RAW"]
        each = TILES_TO_SCALE if self.diagonal else TILES_TO_MAP
        if self.constants["AHEAD"]:
            one_by_one, in_pieces = AHEAD[name]
            tuning = one_by_one if vector == 2 else in_pieces
        elif name == "moments_kernel":
            programs = 4 if vector in (4, 8) else 3
            wanted = programs * self.multiprocessors // max(self.problems, 1)
            short = self.n * self.s < 128 * TILES_TO_REDUCE * wanted  # too few tiles for so many
            tile = 64 if self.operand == 4 or vector < 16 or short else 128
            tile = tile if vector >= 4 else 32
            tuning = Tuning(tile, 4, 3, programs, TILES_TO_REDUCE)
        elif name == "backward_sums_kernel":
            several = wide and not single
            tile, programs = (32, 3) if several else (64, 2)
            tuning = Tuning(tile, 4, 3, programs, TILES_TO_REDUCE)
        elif name == "apply_kernel":
            tuning = Tuning(64, 4, 3 if vector >= 16 else 2, 4, each)
            if self.constants["RAW"]:
                tuning = tuning._replace(tiles=4, front=(4, 0.7))
        elif self.constants["RAW"]:
            tuning = Tuning(64, 4, 2, 4, 4, front=(4, 0.85))
        elif single:
            tuning = Tuning(128, 8, 3, 4, each)
        elif wide:
            tuning = Tuning(32, 4, 3, 4, each)
        else:
            tuning = Tuning(64, 4, 2, 4, each)
        if self.d > CHANNELS:  # registers for one program, or two of the smaller ones
            tile = 32 if self.crowded else min(tuning.tile, 64)
            tuning = tuning._replace(tile=tile, warps=8, programs=2, front=(0, 0.0))
        return tuning._replace(tile=min(tuning.tile, padded(self.n * self.s)))


#: Kernels that leave partial sums, one for each program: few programs are better.
REDUCING = ("moments_kernel", "backward_sums_kernel")

#: Tunings of kernels that load a tile ahead, as measured: of numbers one by one, and of 4 or 8
#: bytes at once.
AHEAD = {
    "moments_kernel": (Tuning(64, 4, 1, 2, TILES_TO_REDUCE), Tuning(128, 4, 1, 3, TILES_TO_REDUCE)),
    "apply_kernel": (Tuning(64, 4, 1, 2, 2), Tuning(128, 8, 1, 4, 2, front=(2, 0.5))),
    "backward_sums_kernel": (
        Tuning(64, 4, 1, 2, TILES_TO_REDUCE),
        Tuning(128, 8, 1, 2, TILES_TO_REDUCE),
    ),
    "backward_apply_kernel": (Tuning(64, 4, 1, 2, 4), Tuning(128, 8, 1, 4, 3, front=(2, 0.5))),
}


def layout(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    block: Block,
    plan: Plan,
    precision: str,
) -> Layout:
    """How kernels walk a block of a tensor with this shape and stride."""
    examples, features, n, s, se, sc, sn, ss = way = walk(shape, stride, block, plan)
    matrix, span = "d" in plan.area.roles, 1
    if matrix and plan.area.features == "groups":
        size, d = features, padded(features)
    elif matrix:
        span = _together(block.size, block.groups)
        size = block.size * span
        d = padded(size)
    else:
        size = d = min(CHANNELS, triton.next_power_of_2(features))
    merged = s == 1 or n == 1 or sn == s * ss
    if s == 1:
        ss = sn
    promote = matrix and plan.operation.method != "newton" and dtype != torch.float32
    align = gcd(sc, 16)
    width = 1 if merged or ss != 1 else gcd(s, 16)
    vector = dtype.itemsize * min(align, 16 if merged else width) if ss < sc else 16
    # Copies of less than 16 bytes are slow to arrive in shared memory, and those of 2 cannot.
    ahead = vector < 16 and dtype.itemsize == 2 and d <= CHANNELS
    # Narrow copies arrive where tensor cores read slowly. Promoted, float16 is two bfloat16.
    raw = (
        matrix
        and (vector >= 16 or ahead or promote)
        and (dtype == torch.bfloat16 or (dtype == torch.float16 and not promote))
    )
    one_by_one = ahead and vector == dtype.itemsize
    run = width
    known = ahead and not merged and _is_known(s, sc)
    if known:
        run, align = s, sc
    groups = triton.cdiv(features, size)
    # Triton sees by itself what is divisible by 16.
    grain = gcd(ss, features, size, 16) if sc == 1 and ss % 16 else 1
    constants: dict[str, object] = {
        "D": d,
        "SPAN": span,
        "MERGED": merged,
        "WHOLE": size == d and features % size == 0,
        "I64": way.extent >= FARTHEST,
        "EXAMPLES": examples > 1,
        "DIAG": not matrix,
        "RAW": raw,
        "KNOWN": known,
        "RUN": run,
        "ALIGN": align,
        "WIDTH": width,
        "GRAIN": grain,
        "NEAR": ss < sc and not one_by_one,
        "AHEAD": ahead,
        "OVERLAP": overlaps(device),
        "PROMOTE": promote,
    }
    return Layout(
        examples,
        groups,
        size,
        span,
        d,
        features,
        n,
        s,
        merged,
        4 if promote else dtype.itemsize,
        vector,
        32 if one_by_one else 16,
        product_precision(dtype, promote, precision),
        multiprocessors(device),
        (n, s // run, sn, sc // align, ss // grain, se, features // grain, size // grain, groups),
        constants,
    )


_known: set[tuple[int, int]] = set()


def _is_known(s: int, sc: int) -> bool:
    """Whether kernels are compiled for runs of s samples, of channels at a stride of sc."""
    if (s, sc) not in _known and 0 < s <= LONGEST_KNOWN and len(_known) < MOST_KNOWN:
        _known.add((s, sc))
    return (s, sc) in _known


def _together(size: int, groups: int) -> int:
    """How many groups of this size a program takes: rows of memory that are narrower than CHANNELS
    waste bandwidth.
    """
    return max(k for k in range(1, max(CHANNELS // size, 1) + 1) if groups % k == 0)


def product_precision(dtype: torch.dtype, promoted: bool, precision: str) -> str:
    """16-bit operands multiply exactly; float32 follows ``choice.float32_precision``, whose "high"
    means TF32 or sums of two bfloat16.
    """
    if promoted:
        return TWO_BFLOAT16
    if dtype != torch.float32:
        return "ieee"
    return "tf32x3" if precision == "highest" else "tf32"


def padded(d: int) -> int:
    """The size of a group's matrices in a kernel: a power of two that tensor cores take."""
    return max(16, triton.next_power_of_2(d))


def multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":  # Triton's interpreter
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
