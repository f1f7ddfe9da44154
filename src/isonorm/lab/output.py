"""How commands speak: results on standard output, failures in one sentence on standard error.

Neither stream can end a command. ``standard_streams`` puts in their places streams that write what
the encoding lacks in ASCII, and that fall silent when the reader is gone or the disk is full.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NoReturn, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_WITHOUT_TERMINAL = 120
#: Terminals at least so wide keep words whole in the columns that ask for it.
_WIDE_ENOUGH = 80
#: What a shell reports of a program that a closed pipe ended: 128 + SIGPIPE.
CLOSED_PIPE = 141

_ASCII_FORMS = {
    **{"±": "+-", "×": "x", "…": "...", "–": "-", "—": "-", "−": "-", "·": "*", "•": "*"},
    **{"→": "->", "←": "<-", "≥": ">=", "≤": "<=", "≠": "!=", "≈": "~", "∞": "inf", "√": "sqrt"},
    **{"‘": "'", "’": "'", "“": '"', "”": '"', "║": "|", "═": "="},
}
#: Colors and cursor movements, which rich writes on a terminal; everything else is text.
_MOVEMENTS = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|[\n\r\t])")


def visible(text: str) -> str:
    r"""Return the text with control characters, and bytes that are no text, as escapes.

    >>> print(visible("a\x1b]0;title\x07\n"), visible("\udcff"), visible("Σ ± 1"))
    a\x1b]0;title\x07\n \xff Σ ± 1
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char.isprintable() or unicodedata.category(char) == "Zs":
        return char
    if "\udc80" <= char <= "\udcff":  # a byte of the command line that is not of its encoding
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def encodable(text: str, encoding: str) -> str:
    """Return the text with ASCII forms of the characters that an encoding lacks.

    >>> encodable("Σ: 1 ± 2 × 3 …", "ascii"), encodable("Σ: 1 ± 2 × 3", "latin-1")
    ('Sigma: 1 +- 2 x 3 ...', 'Sigma: 1 ± 2 × 3')
    >>> encodable("┌─┐│é²☃", "ascii")
    '+-+|e2?'
    """
    if text.isascii() or _has(encoding, text):
        return text
    return "".join(char if _has(encoding, char) else _ascii_form(char) for char in text)


def _has(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


@cache
def _ascii_form(char: str) -> str:
    if char in _ASCII_FORMS:
        return _ASCII_FORMS[char]
    kind, _, words = unicodedata.name(char, "").partition(" ")
    if kind == "BOX":
        upright = any(word in words for word in ("VERTICAL", "UP", "DOWN"))
        flat = any(word in words for word in ("HORIZONTAL", "LEFT", "RIGHT"))
        return "+" if upright and flat else "|" if upright else "-"
    if kind == "GREEK" and "LETTER " in words:
        letter = words.partition("LETTER ")[2].partition(" ")[0]
        return letter.capitalize() if words.startswith("CAPITAL") else letter.lower()
    parts = unicodedata.normalize("NFKD", char)
    plain = "".join(part for part in parts if not unicodedata.combining(part))
    return plain if plain.isascii() else "?"


class Unfailing(io.TextIOBase):
    """A standard stream that never raises: what it cannot write is lost, and ``lost`` says why."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream  # None: closed before Python began
        self.lost: OSError | ValueError | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    def close(self) -> None:
        """Leave the stream open: Python closes it when it ends."""

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"text is written here, not {type(text).__name__}.")
        parts = _MOVEMENTS.split(text)  # movements are at the odd places
        parts[::2] = [encodable(visible(part), self.encoding) for part in parts[::2]]
        self._do("write", "".join(parts))
        return len(text)

    def flush(self) -> None:
        self._do("flush")

    def _do(self, action: str, *arguments: str) -> None:
        if self._stream is None or self.lost is not None:
            return
        try:
            getattr(self._stream, action)(*arguments)
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            self.lost = error
            self._silence(self._stream)

    def _silence(self, stream: TextIO) -> None:
        """Lead the stream into nothing, so that Python can flush it when it ends."""
        with suppress(OSError, ValueError):  # it is no file of the system's
            nothing = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nothing, stream.fileno())
            finally:
                os.close(nothing)
            stream.flush()


class Output(Unfailing):
    """Standard output: where it fails, but for a reader that is gone, standard error says so."""

    def _silence(self, stream: TextIO) -> None:
        super()._silence(stream)
        if not self.is_unread:
            reason = getattr(self.lost, "strerror", None) or str(self.lost)
            complain(f"cannot write to standard output ({reason}): what follows is not shown.")

    @property
    def is_unread(self) -> bool:
        """Whether the reader of a pipe has closed it."""
        return getattr(self.lost, "errno", None) == errno.EPIPE

    def status(self, code: int) -> int:
        """Return the status of a command that would otherwise end with this one."""
        if self.lost is None or code:
            return code
        return CLOSED_PIPE if self.is_unread else 1


@contextmanager
def standard_streams() -> Iterator[Output]:
    """Put streams that cannot fail in the places of standard output and error, for a block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = output, errors = Output(before[0]), Unfailing(before[1])
    try:
        yield output
    finally:
        output.flush()
        errors.flush()
        sys.stdout, sys.stderr = before


class _Results(Console):
    """A console to which all strings are text: no markup, no control characters."""

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]
        return super().render_str(shown(text), **options)


def shown(text: str) -> str:
    """Return the text as standard output can show it, before it is laid out."""
    return encodable(visible(text), getattr(sys.stdout, "encoding", None) or "utf-8")


def console_for_results() -> Console:
    """Return a console on standard output; without a terminal, one wide enough for a table."""
    console = _Results(file=sys.stdout, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    return console


def show(console: Console, table: Table) -> None:
    """Print a table without cutting words off: in narrow terminals they go over several lines."""
    for column in table.columns:
        column.overflow = "fold"
        column.no_wrap = column.no_wrap and console.width >= _WIDE_ENOUGH
    console.print(table)


def say(console: Console, sentence: str) -> None:
    """Print a line of text, however long."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def fail(sentence: str, *, code: int) -> NoReturn:
    """End the command: 2 for wrong arguments, 1 for anything else."""
    complain(sentence)
    raise typer.Exit(code)


def complain(sentence: str) -> None:
    """Write a sentence to standard error."""
    print(f"isonorm: {visible(sentence)}", file=sys.stderr, flush=True)
