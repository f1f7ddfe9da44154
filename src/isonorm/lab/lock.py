"""One process at a time works on a run: two would train the same, and write over each other."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from . import run_files

try:
    import fcntl
except ImportError:  # on Windows, where runs are not guarded
    fcntl = None

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LOCK = ".lock"


class InUse(RuntimeError):
    """Another process works on a run; the message is a sentence for the user."""


@contextmanager
def sole_use(folder: Path, known: int, fabric: Fabric | None = None) -> Iterator[None]:
    """The block runs if no other command works on the run in a folder, of which so many results are
    ``known``; otherwise this raises InUse. Of a run's own processes one asks, for all of them.

    The lock is the system's, which ends it with the process, however that ends.
    """
    refusal: Exception | None = None
    with ExitStack() as stack:
        if fabric is None or fabric.is_global_zero:
            try:
                stack.enter_context(_locked(folder))
                _refuse_news(folder, known)
            except (InUse, OSError, ValueError) as error:
                refusal = error
        if fabric is not None:
            refusal = fabric.broadcast(refusal)
        if refusal is not None:
            raise refusal
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    path = folder / LOCK
    with path.open("a") as file:
        if not (_lock(file) and _is_at(path, file)):
            raise InUse(
                f"another process works on {folder}: let it finish, or stop it before resuming."
            )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _lock(file: IO[str]) -> bool:
    """Whether the file is ours now. On a file system without locks, it is everybody's.

    A record lock, unlike flock's, does not live on in processes that were forked to load data.
    """
    assert fcntl is not None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


def _is_at(path: Path, file: IO[str]) -> bool:
    """Whether it is still there: who held it may have removed it before we had it."""
    try:
        return os.path.samefile(file.fileno(), path)
    except FileNotFoundError:
        return False


def _refuse_news(folder: Path, known: int) -> None:
    """What another process found between our reading of the run and our lock would be lost."""
    if not (folder / run_files.RESULT).exists():  # a new run
        return
    if len(run_files.read_content(folder).get("runs", ())) != known:
        raise InUse(f"{folder} has gone on in another process just now: resume it again.")
