"""Π, the area: which numbers of an activation are normalized together.

Every area of the survey is one assignment of roles to the four axes of the same view of the input,

    x: (N, C, *)  →  (N, K, c, S),   C = K·c channels in K groups of c, S = the spatial positions

where each axis either separates problems (``b``), holds the features of a problem (``d``) or holds
its samples (``m``). The view copies nothing: it is strides over the tensor as it lies, NCHW or
channels_last.

Index legend, here and in every mathematical file: b problems, d features of each, m samples of
each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, NamedTuple

from torch import Tensor

from .scalars import positive

__all__ = ["Area", "batch", "batch_group", "group", "instance", "layer", "position"]

Features = Literal["channels", "groups", "one"]


def flat(x: Tensor) -> Tensor:
    """(N, C, *) as (N, C, S): a view of NCHW and of channels_last."""
    return x.flatten(2) if x.dim() > 2 else x.unsqueeze(-1)


def flat_shape(x: Tensor) -> tuple[int, int, int]:
    n, channels, *positions = x.shape
    return n, channels, prod(positions)


class Block(NamedTuple):
    """Channels of the input from ``start`` on, as ``groups`` groups of ``size``; the last group may
    be ``missing`` some, which only kernels that mask it by its count can do.
    """

    start: int
    groups: int
    size: int
    missing: int = 0

    # No property, and no count: the compiler of torch 2.8 takes neither from a tuple.
    def num_channels(self) -> int:
        """Return the number of channels of all groups together."""
        return self.groups * self.size - self.missing

    @property
    def channels(self) -> slice:
        return slice(self.start, self.start + self.num_channels())

    def view(self, x: Tensor) -> Tensor:
        """The (N, K, c, S) view of this block of an (N, C, S) tensor."""
        part = x if self.num_channels() == x.shape[1] else x[:, self.channels]
        return part.view(part.shape[0], self.groups, self.size, part.shape[2])

    def per_channel(self, vector: Tensor) -> Tensor:
        """A (C,) vector, cut to this block and shaped to broadcast over (N, K, c, S)."""
        return self.part(vector).view(1, self.groups, self.size, 1)

    def part(self, vector: Tensor) -> Tensor:
        """This block's part of a (C,) vector."""
        return vector if self.num_channels() == vector.shape[0] else vector[self.channels]


class Place(NamedTuple):
    """A block, the rows of its problems among all, and their number of features."""

    block: Block
    rows: slice
    d: int


@dataclass(frozen=True)
class Area:
    """One way of partitioning (N, C, *). Build it with the functions of this module.

    ``roles`` gives the axes N, K, c, S their meaning; ``features`` says what the d features of a
    problem are, and from that alone follows where the affine parameters act: inside the problem's
    matrix when features are channels, per channel after it otherwise.
    """

    name: str
    roles: str
    features: Features
    group_size: int | None = None
    num_groups: int | None = None

    @property
    def spans_batch(self) -> bool:
        """Whether samples of different examples meet, so that running statistics are needed in
        eval.
        """
        return self.roles[0] == "m"

    @property
    def whitens(self) -> bool:
        """Whether whitening is defined: for channels, and for the groups of one example. Groups
        over the batch the survey has for standardization alone.
        """
        return self.features == "channels" or (self.features == "groups" and not self.spans_batch)

    def num_features(self, num_channels: int) -> int:
        """The features of a problem that whitening decorrelates: a group's channels, or groups."""
        if self.features == "groups":
            return self.num_groups or 1
        return min(self.group_size or num_channels, num_channels)

    def axes(self, role: str) -> tuple[int, ...]:
        return tuple(axis for axis, r in enumerate(self.roles) if r == role)

    def featurewise(self) -> Area:
        """The same area for an operation that treats features one by one: each becomes its own
        problem.
        """
        return replace(self, roles=self.roles.replace("d", "b"))

    def partition(self, num_channels: int) -> tuple[Block, ...]:
        """The one or two blocks of equal groups that cover the channels.

        Where groups are given by size, the last one takes the rest.

        >>> batch(group_size=16).partition(40)
        (Block(start=0, groups=2, size=16, missing=0), Block(start=32, groups=1, size=8, missing=0))
        """
        if num_channels < 1:
            raise ValueError(
                f"a normalization needs at least one channel; got an input with {num_channels}."
            )
        if self.num_groups is not None:
            if num_channels % self.num_groups:
                raise ValueError(
                    f"num_groups={self.num_groups} does not divide num_features={num_channels}; "
                    f"choose a divisor of {num_channels}."
                )
            return (Block(0, self.num_groups, num_channels // self.num_groups),)
        size = min(self.group_size or num_channels, num_channels)
        full, rest = num_channels // size, num_channels % size  # divmod cannot be traced
        blocks = (Block(0, full, size),)
        return (*blocks, Block(full * size, 1, rest)) if rest else blocks

    def whole(self, num_channels: int) -> Block:
        """Return all channels as one block, whose last group may be missing some.

        >>> batch(group_size=16).whole(40)
        Block(start=0, groups=3, size=16, missing=8)
        """
        blocks = self.partition(num_channels)
        groups, size = sum(block.groups for block in blocks), blocks[0].size
        return Block(0, groups, size, groups * size - num_channels)

    def problem_shape(self, block: Block, batch: int, positions: int) -> tuple[int, int, int]:
        """(b, d, m) for one block of an input with ``batch`` examples and ``positions`` spatial
        positions.
        """
        size = {"b": 1, "d": 1, "m": 1}
        for role, n in zip(self.roles, (batch, block.groups, block.size, positions), strict=True):
            size[role] *= n
        return size["b"], size["d"], size["m"]

    def places(self, batch: int, channels: int, positions: int) -> list[Place]:
        """Where each block's problems lie among those of the whole input, (b, d[, d])."""
        found, start = [], 0
        for block in self.partition(channels):
            b, d, _ = self.problem_shape(block, batch, positions)
            found.append(Place(block, slice(start, start + b), d))
            start = start + b  # not +=, which changes a tracer's sizes, tensors, in place
        return found

    def statistic_shape(self, view_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a per-problem, per-feature number that broadcasts against an (N, K, c, S)
        view.
        """
        return tuple(1 if r == "m" else n for r, n in zip(self.roles, view_shape, strict=True))

    def gather(self, view: Tensor) -> Tensor:
        """Π: the (b, d, m) problems of an (N, K, c, S) view, laid out one after the other (a
        copy, in general).
        """
        order = (*self.axes("b"), *self.axes("d"), *self.axes("m"))
        n, k, c, s = view.shape
        return view.permute(order).reshape(self.problem_shape(Block(0, k, c), n, s))

    def scatter(self, problems: Tensor, view: Tensor) -> Tensor:
        """Π⁻¹: (b, d, m) problems back in the shape of the view they came from."""
        order = (*self.axes("b"), *self.axes("d"), *self.axes("m"))
        back = sorted(range(4), key=order.__getitem__)
        return problems.reshape([view.shape[axis] for axis in order]).permute(back)

    def __repr__(self) -> str:
        size = "" if self.group_size is None else f"group_size={self.group_size}"
        count = f"num_groups={self.num_groups}" if self.features == "groups" else ""
        return f"{self.name}({size}{count})"


def _group_size(value: int | None) -> int | None:
    """A number of channels, None for all of them."""
    return None if value is None else positive("group_size", value, ", or None for all channels")


def batch(group_size: int | None = None) -> Area:
    """All examples and positions of ``group_size`` channels together (None: all channels). BN,
    DBN, IterNorm.
    """
    size = _group_size(group_size)
    return Area("batch", "mbdm", "channels", group_size=size)


def instance(group_size: int | None = None) -> Area:
    """The positions of one example, in groups of ``group_size`` channels (None: all). Instance
    normalization.
    """
    size = _group_size(group_size)
    return Area("instance", "bbdm", "channels", group_size=size)


def layer() -> Area:
    """All channels and positions of one example. Layer normalization."""
    return Area("layer", "bdmm", "one", num_groups=1)


def group(num_groups: int) -> Area:
    """One example; its ``num_groups`` groups of channels are the features. Group normalization
    and whitening.
    """
    return Area("group", "bdmm", "groups", num_groups=positive("num_groups", num_groups))


def batch_group(num_groups: int) -> Area:
    """Groups of channels over the whole batch. Batch group normalization."""
    count = positive("num_groups", num_groups)
    return Area("batch_group", "mdmm", "groups", num_groups=count)


def position() -> Area:
    """All channels at one position of one example. Positional normalization."""
    return Area("position", "bdmb", "one", num_groups=1)


AREAS = {f.__name__: f for f in (batch, layer, instance, group, batch_group, position)}


def resolve(area: str | Area) -> Area:
    """An area from its name or from itself.

    >>> resolve("instance")
    instance()
    """
    if isinstance(area, Area):
        return area
    if not isinstance(area, str) or area not in AREAS:
        raise ValueError(f"area must be one of {', '.join(AREAS)} or an Area; got {area!r}.")
    if area in ("group", "batch_group"):
        raise ValueError(
            f"area={area!r} needs to know how many groups; pass isonorm.area.{area}(num_groups=…) "
            "instead of the name."
        )
    return AREAS[area]()  # pyright: ignore[reportCallIssue]: the two that need a number are gone
