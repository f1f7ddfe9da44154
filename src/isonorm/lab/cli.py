"""The ``isonorm`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

try:
    import typer
    from rich.table import Table
    from typer.core import TyperGroup

    from .. import __version__, list_norms
    from ..registry import REGISTRY
    from .analyze import analyze
    from .compare import compare
    from .comparison import WEIGHT_NORMS
    from .data import listing, load
    from .options import NoVerify
    from .output import complain, console_for_results, fail, say, show, standard_streams
    from .publish import record, report
    from .reproduce import check, recipes, run
except ModuleNotFoundError as missing:
    package = (missing.name or "").partition(".")[0]
    needed = "lightning_fabric matplotlib numpy rich safetensors scipy sklearn typer"
    if package not in needed.split():
        raise
    sys.exit(f"The isonorm command needs {package}: pip install 'isonorm[lab]' brings it.")
except KeyboardInterrupt:  # these imports take seconds
    print("isonorm: stopped before anything was begun.", file=sys.stderr)
    sys.exit(130)  # what a shell expects of a program that Ctrl-C ended

#: What typer raises for words of the command line that it cannot use.
_WrongWords: type[Exception] = typer.BadParameter.__mro__[2]  # type: ignore[assignment]


class _Commands(TyperGroup):
    """The commands, with output that cannot fail, and one sentence for whatever goes wrong."""

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        with standard_streams() as output:
            code = self._status(words, **extra)
            output.flush()
        sys.exit(output.status(code))

    def _status(self, words: list[str], **extra: Any) -> int:
        """Run a command and return the status it ends with."""
        try:
            ended = super().main(words, "isonorm", standalone_mode=False, **extra)
        except _WrongWords as error:
            context = getattr(error, "ctx", None)
            path = context.command_path if context else "isonorm"
            message = " ".join(error.format_message().split())  # type: ignore[attr-defined]
            sentence = message[:1].lower() + message[1:].rstrip(".")
            complain(f"{sentence}. '{path} --help' tells what there is.")
            return 2
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            complain(f"cannot go on: {place}{error.strerror or error}.")
            return 1
        return ended if isinstance(ended, int) else 0


app = typer.Typer(
    cls=_Commands,
    help="Compare normalizations of deep networks.",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        say(console_for_results(), f"isonorm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Compare normalizations of deep networks."""


for command in (compare, analyze, recipes, run, check, record, report):
    app.command()(command)


@app.command()
def norms(
    pattern: Annotated[str, typer.Argument(help="Shell pattern, such as '*whiten*'.")] = "*",
) -> None:
    """List the normalizations that have names, with their papers."""
    names = list_norms(pattern)
    if not names:
        fail(f"no name matches {pattern!r}: there are {', '.join(list_norms())}.", code=2)
    caption = f"'isonorm compare' also takes normalized weights: {', '.join(WEIGHT_NORMS)}."
    table = Table(caption=caption, caption_justify="left")
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("paper")
    for name in names:
        table.add_row(name, REGISTRY[name].paper)
    show(console_for_results(), table)


@app.command()
def data(
    name: Annotated[str, typer.Argument(help="A data set to read and check; all if none.")] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where the files are; otherwise $ISONORM_DATA, otherwise data."
        ),
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch missing files.")] = False,
    no_verify: NoVerify = False,
) -> None:
    """List the data sets and their files, or read one and say what it holds."""
    console = console_for_results()
    if not name:
        if download:
            fail("--download fetches one data set: name it.", code=2)
        if no_verify:
            fail("--no-verify reads one data set: name it.", code=2)
        show(console, listing.overview(folder))
        return
    try:
        found = load(name, folder, download=download, verify=not no_verify)
    except ValueError as error:
        fail(str(error), code=2)
    except OSError as error:
        fail(f"cannot read {error.filename or name}: {error.strerror or error}.", code=1)
    show(console, listing.inspection(found))


if __name__ == "__main__":
    app()
