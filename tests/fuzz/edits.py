"""Edits of files as hypothesis draws them, and the one way in which a reader may refuse a file."""

from __future__ import annotations

import copy
import math
import resource
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import hypothesis.strategies as st
import torch
from torch import Tensor

from isonorm.lab.data.files import DataError, FilesMissing

Found = TypeVar("Found")

#: Bounds of one reading of a small file: of memory in use beyond what was, and of the CPU's time.
MOST_BYTES, MOST_SECONDS = 400 << 20, 20.0


class Refused(NamedTuple):
    """The sentence of a refusal."""

    sentence: str


def _failed_here(error: BaseException | None) -> bool:
    """Return whether an assertion of isonorm's own failed; torch's unpickler has some, too."""
    if not isinstance(error, AssertionError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return "isonorm" in Path(frames[-1].filename).parts


def answer(read: Callable[[], Found]) -> Found | Refused:
    """Return what a reader finds, or its refusal in one sentence; anything else is a finding."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what is in use now
    before, start = _peak(), time.process_time()
    try:
        found = read()
    except ValueError as error:
        sentence = str(error)
        assert type(error) in (ValueError, DataError, FilesMissing), f"{type(error)}: {error}"
        assert sentence.isprintable() and sentence.endswith("."), sentence
        assert len(sentence) < 2000 and not _failed_here(error.__context__), sentence
        found = Refused(sentence)
    grown = _peak() - before
    assert grown < MOST_BYTES, f"{grown:,} bytes of memory"
    seconds = time.process_time() - start
    assert seconds < MOST_SECONDS, f"{seconds:.1f} s"
    return found


def _peak() -> int:
    """Return the most memory that this process has had in use, in bytes."""
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# --- bytes ----------------------------------------------------------------------------------------

PLACE = st.floats(0, 1, exclude_max=True, width=32)
BYTES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\n", b'"', b"{"]
    ),
)
BYTE_EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), PLACE, st.integers(0, 7)),
        st.tuples(st.just("write"), PLACE, BYTES),
        st.tuples(st.just("insert"), PLACE, BYTES),
        st.tuples(st.just("delete"), PLACE, st.integers(1, 20)),
        st.tuples(st.just("cut"), PLACE),
        st.tuples(st.just("repeat"), PLACE, PLACE),
    ),
    min_size=1,
    max_size=4,
)


def edited(content: bytes, edits: list[tuple], early: bool = False) -> bytes:
    """Return the bytes with the edits; ``early`` ones are in the first 300 bytes, the header's."""
    for kind, place, *rest in edits:
        i = int(place * min(len(content), 300 if early else len(content)))
        if kind == "flip" and content:
            byte = content[i] ^ 1 << rest[0]
            content = content[:i] + bytes([byte]) + content[i + 1 :]
        elif kind == "write":
            content = content[:i] + rest[0] + content[i + len(rest[0]) :]
        elif kind == "insert":
            content = content[:i] + rest[0] + content[i:]
        elif kind == "delete":
            content = content[:i] + content[i + rest[0] :]
        elif kind == "cut":
            content = content[:i]
        elif kind == "repeat":
            j = int(rest[0] * len(content))
            content = content[: max(i, j)] + content[min(i, j) :]
    return content


# --- values of JSON -------------------------------------------------------------------------------

DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
ODD = st.one_of(
    st.sampled_from(
        [None, True, False, 0, 1, -1, 2, 2**31, 2**63, -(2**63), 10**30, 0.5, 1e308, -0.0,
         math.nan, math.inf, -math.inf, "", "0", "nan", "ü\n\x1b[31m", "x" * 3000, [], {},
         [1], {"": None}, DEEP]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
)  # fmt: skip
STEPS = st.lists(st.integers(0, 60), min_size=1, max_size=6)
JSON_EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), STEPS, ODD),
        st.tuples(st.just("take"), STEPS),
        st.tuples(st.just("add"), STEPS, st.sampled_from(["", "1", "name", "__tensor__"]), ODD),
        st.tuples(st.just("swap"), STEPS, STEPS),
    ),
    min_size=1,
    max_size=3,
)


def edit_json(tree: Any, edits: list[tuple]) -> Any:
    """Change a tree of dictionaries and lists in place; each place is found by its steps."""
    holder = {"": tree}
    for kind, steps, *rest in edits:
        parent, key = _place(holder, steps)
        if kind == "set":
            parent[key] = copy.deepcopy(rest[0])  # a later edit may reach into it
        elif kind == "swap":
            other, its_key = _place(holder, rest[0])
            parent[key] = copy.deepcopy(other[its_key])
        elif kind == "take" and parent is not holder:
            del parent[key]
        elif kind == "add" and isinstance(parent[key], dict):
            parent[key][rest[0]] = copy.deepcopy(rest[1])
        elif kind == "add" and isinstance(parent[key], list):
            parent[key].append(copy.deepcopy(rest[1]))
    return holder[""]


def _place(holder: dict, steps: list[int]) -> tuple[Any, Any]:
    parent, key = holder, ""
    for step in steps:
        inner = parent[key]
        if not isinstance(inner, (dict, list)) or not inner:
            break
        keys = list(inner) if isinstance(inner, dict) else range(len(inner))
        parent, key = inner, keys[step % len(keys)]
    return parent, key


# --- tensors --------------------------------------------------------------------------------------

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64,
    torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip
TENSOR_EDITS: dict[str, Callable[[Tensor, int], Any]] = {
    "dtype": lambda t, n: (t.real if t.is_complex() else t).to(DTYPES[n % len(DTYPES)]),
    "nan": lambda t, n: _with(t, n, math.nan),
    "infinite": lambda t, n: _with(t, n, math.inf),
    "large": lambda t, n: _with(t, n, 3e38),
    "small": lambda t, n: _with(t, n, 1e-45),
    "negative": lambda t, n: _with(t, n, -1.0 - n),
    "zero": lambda t, n: torch.zeros_like(t),
    "scaled": lambda t, n: (t.to(torch.complex128) * 10.0 ** (n % 30 - 15)).real.to(t.dtype),
    "one more": lambda t, n: torch.cat([t.reshape(-1), t.reshape(-1)[:1]]),
    "cut": lambda t, n: t[: len(t) // 2] if t.dim() else t,
    "nothing": lambda t, n: t.new_empty((0,) * (n % 4)) if n % 4 else t.new_empty(0),
    "scalar": lambda t, n: t.reshape(-1)[:1].reshape(()) if t.numel() else t,
    "unsqueezed": lambda t, n: t.unsqueeze(n % (t.dim() + 1)),
    "transposed": lambda t, n: t.mT if t.dim() > 1 else t,
    "expanded": lambda t, n: t.new_ones(()).expand((1000,) * (1 + n % 3)),
    "sparse": lambda t, n: t.to_sparse() if t.dtype.is_floating_point else t,
    "meta": lambda t, n: t.to("meta"),
    "a list": lambda t, n: [1.0],
    "none": lambda t, n: None,
    "text": lambda t, n: "x\n" * n,
    "gone": lambda t, n: ...,
}  # fmt: skip
TENSORS_EDITS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([*TENSOR_EDITS]), st.integers(0, 40)),
    min_size=1,
    max_size=3,
)


def edit_tensors(tensors: dict[str, Any], edits: list[tuple], *, plain: bool = False) -> None:
    """Change tensors of a state in place, ``plain`` ones by what safetensors can hold alone."""
    for which, kind, number in edits:
        name = sorted(tensors)[which % len(tensors)]
        before = tensors[name]
        if not isinstance(before, Tensor) or before.is_meta or before.layout != torch.strided:
            continue
        if before.numel() > 10**6:  # expanded before: a copy would take gigabytes
            continue
        value = TENSOR_EDITS[kind](before.detach().clone(), number)
        if value is ... and len(tensors) > 1:
            del tensors[name]
        elif not plain and value is not ...:
            tensors[name] = value
        elif isinstance(value, Tensor) and _fits_a_file(value):
            tensors[name] = value.contiguous()


def _fits_a_file(value: Tensor) -> bool:
    return value.layout == torch.strided and not value.is_meta and value.numel() < 10_000


def _with(tensor: Tensor, place: int, value: float) -> Tensor:
    if not tensor.is_floating_point() or tensor.itemsize == 1 or not tensor.numel():
        return tensor
    flat = tensor.reshape(-1).clone()
    flat[place % flat.numel()] = value
    return flat.view(tensor.shape)
