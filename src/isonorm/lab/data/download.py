"""Files from the network: whole and verified under their own name, or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from .files import DataError, md5_of

_CHUNK = 1 << 18
_SECONDS_WITHOUT_AN_ANSWER = 30
_RANGE_NOT_SATISFIABLE = 416


@dataclass(frozen=True)
class Remote:
    """A published file and its md5."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


class Meter(Protocol):
    """Told how much of a file is there, and how much it will be where the server says so."""

    def __call__(self, completed: int, total: int | None) -> None: ...


def fetch(remote: Remote, folder: Path) -> Path:
    """The file in the folder, downloaded unless it is there.

    What arrives is kept in a hidden file beside it, where an interrupted download goes on. It gets
    its name when it is complete and its md5 is right.
    """
    target = folder / remote.name
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{remote.name}.part"
        with _progress(remote.name) as meter:
            _receive(remote.url, part, meter)
    except (OSError, HTTPException) as error:  # URLError and time-outs are OSErrors
        raise DataError(
            f"{remote.url} could not be downloaded to {target} ({_reason(error)}): try again, "
            f"which goes on where it stopped, or bring the file there by other means."
        ) from error
    if (found := md5_of(part)) != remote.md5:
        part.unlink()
        raise DataError(
            f"what {remote.url} sent is not the published file: its md5 is {found}, expected "
            f"{remote.md5}. It was deleted; try again, or bring {target} there by other means."
        )
    os.replace(part, target)
    return target


def _receive(url: str, part: Path, meter: Meter) -> None:
    """Append to ``part`` what is still to come, or begin anew where the server cannot continue."""
    there = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={there}-"} if there else {})
    try:
        answer = urlopen(request, timeout=_SECONDS_WITHOUT_AN_ANSWER)
    except HTTPError as error:
        if there and error.code == _RANGE_NOT_SATISFIABLE:  # it was complete already
            return
        raise
    with answer:
        continues = answer.status == 206
        announced = answer.headers.get("Content-Length") or ""
        known = announced.isascii() and announced.isdigit() and len(announced) < 20
        total = int(announced) + (there if continues else 0) if known else None
        with part.open("ab" if continues else "wb") as file:
            _copy(answer, file, total, meter)
    arrived = part.stat().st_size
    if total is not None and arrived < total:
        raise OSError(f"the connection ended after {arrived} of {total} bytes")


def _copy(source: IO[bytes], file: IO[bytes], total: int | None, meter: Meter) -> None:
    while True:
        meter(file.tell(), total)
        chunk = source.read(_CHUNK)
        if not chunk:
            return
        file.write(chunk)


@contextmanager
def _progress(name: str) -> Iterator[Meter]:
    """A bar on a terminal; elsewhere silence, for a log has no use for it."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task(name, total=None)
        yield lambda completed, total: bars.update(task, completed=completed, total=total)


def _reason(error: Exception) -> str:
    """Without the brackets of URLError, which wraps the error that says something."""
    inner = getattr(error, "reason", None)
    return str(inner if isinstance(inner, Exception) else error) or type(error).__name__
