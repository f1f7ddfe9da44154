"""The command ``isonorm`` before a system's streams: files, terminals, closed pipes, full disks."""

from __future__ import annotations

import io
import os
import pty
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from isonorm.lab.cli import app

#: Where standard output may lead.
ENDS = ("file", "terminal", "closed pipe", "full disk")


class Said(NamedTuple):
    """The status of a command, and what could be read of it."""

    status: int
    output: str
    errors: str


def isonorm(words: list[str], *, end: str = "file", encoding: str = "utf-8") -> Said:
    """Run the command in this process, with standard output that leads to one of the ``ENDS``."""
    read: list[bytes] = []
    with _opened(end, read) as output, tempfile.TemporaryFile() as errors:
        streams = [
            io.TextIOWrapper(os.fdopen(os.dup(fd), "wb"), encoding=encoding, errors=kind)
            for fd, kind in ((output, "strict"), (errors.fileno(), "backslashreplace"))
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", streams[0])
            patch.setattr(sys, "stderr", streams[1])
            with pytest.raises(SystemExit) as ended:
                app(words)
        for stream in streams:
            stream.close()  # as Python does at its end, which must not fail either
        errors.seek(0)
        complaints = errors.read()
    code = ended.value.code
    assert isinstance(code, int)
    return Said(code, b"".join(read).decode(encoding), complaints.decode(encoding))


@contextmanager
def _opened(end: str, read: list[bytes]) -> Iterator[int]:
    """A descriptor to write to; what arrives at its other end is in ``read`` after the block."""
    if end == "full disk":
        with open("/dev/full", "wb") as file:
            yield file.fileno()
        return
    ours, theirs = pty.openpty() if end == "terminal" else os.pipe()
    if end == "closed pipe":
        os.close(ours)
        yield theirs
        os.close(theirs)
        return
    reader = threading.Thread(target=_read, args=(ours, read))
    reader.start()
    yield theirs
    os.close(theirs)
    reader.join()
    os.close(ours)


def _read(descriptor: int, read: list[bytes]) -> None:
    while True:
        try:
            part = os.read(descriptor, 2**16)
        except OSError:  # of a terminal that nobody holds any more
            return
        if not part:
            return
        read.append(part)
