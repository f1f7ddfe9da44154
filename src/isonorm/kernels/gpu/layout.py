"""How the kernels cut a tensor: groups of channels, tiles of samples, programs that share them."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ...area import Block
from ..plan import Plan
from . import stream
from .launch import Launcher, Launchers

#: Samples in a tile, by bytes an operand of the products.
TILE = {2: 128, 4: 64}
#: Channels a program standardizes together.
CHANNELS = 64
STAGES = 3
#: Programs for each multiprocessor: few for kernels that write partial sums, more for the others.
REDUCING_PROGRAMS = 4
APPLYING_PROGRAMS = 16
#: Tiles a reducing program has at least, so that partial sums stay small beside what they sum.
TILES_TO_REDUCE = 4


class Layout(NamedTuple):
    """How a block of an (N, C, S) tensor is cut: groups of ``size`` channels, tiles of samples."""

    groups: int
    size: int
    d: int  # the power of two ≥ size that kernels use
    reducing: int  # programs a group for kernels that write partial sums
    applying: int  # and for the others
    numbers: tuple[int, ...]  # n, s, sn, sc, ss, channels, tiles, size, less ALIGN and WIDTH
    constants: dict[str, object]
    launchers: Launchers

    @property
    def channels(self) -> int:
        return self.numbers[5]

    def launcher(self, name: str, programs: int, *kinds: Hashable, **flags: object) -> Launcher:
        """The kernel of that name for this layout; ``kinds`` are dtypes that may vary besides."""
        return self.launchers.get(
            (name, *kinds, *flags.values()),
            lambda: Launcher(
                getattr(stream, name), (self.groups, programs), self.numbers, flags | self.constants
            ),
        )


def layout(x: Tensor, block: Block, plan: Plan) -> Layout:
    """The layout for a tensor, worked out once for each shape."""
    precision = torch.get_float32_matmul_precision()
    return _layout(tuple(x.shape), x.stride(), x.dtype, x.device, block, plan, precision)


@lru_cache(maxsize=4096)
def _layout(
    shape: tuple[int, int, int],
    stride: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    block: Block,
    plan: Plan,
    precision: str,
) -> Layout:
    n, width, s = shape
    sn, sc, ss = stride
    matrix = "d" in plan.area.roles
    channels = block.groups * block.size
    size = block.size if matrix else CHANNELS
    d = padded(size)
    merged = s == 1 or n == 1 or sn == s * ss
    if s == 1:
        ss = sn
    promote = matrix and plan.operation.method != "newton" and dtype != torch.float32
    tile = TILE[4 if promote else dtype.itemsize] // (2 if d > 64 else 1)
    if not merged and s % tile:
        tile = min(tile, 64)  # pieces of an image's row: the last is shorter, so keep them short
    tiles = triton.cdiv(n * s, tile) if merged else n * triton.cdiv(s, tile)
    align, width = gcd(sc, 16), 1 if merged else gcd(s, 16)
    constants: dict[str, object] = {
        "D": d,
        "BM": tile,
        "MERGED": merged,
        "WHOLE": size == d and channels % size == 0,
        "I64": n * sn >= 2**31 or width * sc >= 2**31,
        "DIAG": not matrix,
        "ALIGN": align,
        "WIDTH": width,
        "PROMOTE": promote,
        "PRECISION": product_precision(dtype, promote, precision),
        "num_warps": 4 if d <= 64 else 8,
        "num_stages": STAGES,
    }
    groups = triton.cdiv(channels, size)
    return Layout(
        groups,
        size,
        d,
        _programs(groups, tiles // TILES_TO_REDUCE, REDUCING_PROGRAMS, device),
        _programs(groups, tiles, APPLYING_PROGRAMS, device),
        (n, s // width, sn, sc // align, ss, channels, tiles, size),
        constants,
        Launchers(),
    )


def _programs(groups: int, most: int, wanted: int, device: torch.device) -> int:
    """Programs that share a group's tiles: enough to fill the device, at most ``most``."""
    return max(1, min(triton.cdiv(wanted * multiprocessors(device), groups), most))


def product_precision(dtype: torch.dtype, promoted: bool, precision: str) -> str:
    """16-bit operands multiply exactly; float32 follows ``torch.set_float32_matmul_precision``."""
    if promoted:
        return "tf32x3"
    if dtype != torch.float32:
        return "ieee"
    return "tf32x3" if precision == "highest" else "tf32"


@lru_cache(maxsize=256)
def padded(d: int) -> int:
    """The size of a group's matrices in a kernel: a power of two that tensor cores take."""
    return max(16, triton.next_power_of_2(d))


@lru_cache(maxsize=16)
def multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":  # Triton's interpreter
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
