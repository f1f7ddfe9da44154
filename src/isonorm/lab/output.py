"""How commands speak: results on standard output, what went wrong in one sentence on the other."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 120


def console_for_results() -> Console:
    """Standard output; without a terminal, wide enough for a table."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_WITHOUT_TERMINAL)


def say(console: Console, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def fail(sentence: str, *, code: int) -> NoReturn:
    """End the command: 2 for wrong arguments, 1 for anything else."""
    typer.echo(f"isonorm: {sentence}", err=True)
    raise typer.Exit(code)
