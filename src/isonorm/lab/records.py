"""What a run leaves behind: a folder of files, each of them whole or absent."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import math
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

Told = TypeVar("Told")

#: Errors of code that meets other values in a file than were written there.
NOT_AS_WRITTEN = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
_DAMAGE = (OSError, EOFError, zlib.error, csv.Error, *NOT_AS_WRITTEN)
#: Seeds of a run, of which a list is made.
MOST_SEEDS = 10_000


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which takes the place of ``path`` when the block ends well.

    A failure in the block leaves at ``path`` what was there before, and nothing else. A killed
    process leaves at most a hidden temporary file beside it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary folder to fill, which takes the place of ``path`` when the block ends well.

    An earlier folder gives way only with ``replace``, and only at the end; otherwise this raises
    FileExistsError. After a failure everything is as before; a process killed at the very end may
    leave the earlier folder under a hidden name beside it.
    """
    if path.exists() and not replace:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    earlier = path.with_name(f".{path.name}.{os.getpid()}.earlier")
    try:
        temporary.mkdir()
        yield temporary
        for file in temporary.iterdir():
            _flush_to_disk(file)
        if path.exists():
            os.rename(path, earlier)
        try:
            os.rename(temporary, path)
        except BaseException:
            if earlier.exists():
                os.rename(earlier, path)
            raise
        shutil.rmtree(earlier, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """JSON that any reader accepts: a number that is not finite becomes null."""
    text = json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with whole_file(path) as temporary:
        # a folder's name that is not UTF-8 stays what it is: JSON has an escape for its bytes
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A header and its rows, with unix line ends; compressed for a name that ends in .gz, always to
    the same bytes.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    content = text.getvalue().encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


class Damaged(ValueError):
    """A file holds something else than was written there; the message is a sentence."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around the reading of a file that a run has left: damage is told in one sentence."""
    try:
        yield
    except _DAMAGE as error:
        raise Damaged(
            f"{path} is missing or damaged, and with it what was found: begin a new run."
        ) from error


def told(content: Mapping[str, Any], key: str, kind: type[Told]) -> Told:
    """What a file of a run says under a key, if it is of this kind; inside ``reading``."""
    value = content[key]
    if type(value) is not kind:  # True would be a number
        raise TypeError(f"{key} is {value!r}, not of type {kind.__name__}")
    return value


def told_count(content: Mapping[str, Any], key: str, most: int = 2**31) -> int:
    """A number of things, of which there is one at least; inside ``reading``."""
    if not 1 <= (number := told(content, key, int)) <= most:
        raise ValueError(f"{key} is {number}")
    return number


def told_list(content: Mapping[str, Any], key: str, kind: type[Told]) -> list[Told]:
    """A list of values of this kind, empty where there is none; inside ``reading``."""
    values = told({key: [], **content}, key, list)
    return [told({key: value}, key, kind) for value in values]


def check_name(name: str) -> str:
    """The name, if it can be part of a folder's name on every system."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(
            f"a run's name is letters, digits and, after the first, '.', '_' and '-'; got {name!r}."
        )
    return name


def create_run_folder(out: Path, name: str, started: datetime) -> Path:
    """A new folder ``out/<time>-<name>``, numbered if another run began in the same second."""
    stem = f"{started:%Y%m%d-%H%M%S}-{check_name(name)}"
    for attempt in count(1):
        folder = out / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("count never ends")


def _flush_to_disk(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
