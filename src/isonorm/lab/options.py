"""Options that ``isonorm run`` and ``isonorm compare`` share."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from . import run_files
from .devices import PRECISIONS
from .experiment import Experiment
from .machine import COMPILE_MODES

Device = Annotated[
    str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, …; auto prefers cuda.")
]
Precision = Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(PRECISIONS)}.")]
Compile = Annotated[
    str,
    typer.Option(
        metavar="WORD",
        help=f"{', '.join(COMPILE_MODES)}: torch.compile, or with CUDA graphs, too.",
    ),
]
Threads = Annotated[
    int,
    typer.Option(min=1, help="Threads for torch on a CPU. Small networks are fastest with one."),
]
Jobs = Annotated[
    int,
    typer.Option(
        min=1,
        help="Trainings at once on the device, each in a process of its own, with the same "
        "results. Goes with --resume, too.",
    ),
]
KeepWeights = Annotated[
    bool, typer.Option("--keep-weights", help="Keep each training's final weights.")
]
NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="Take data whose checksum is not the published one.")
]
Out = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Where the run's own folder, TIME-NAME, is made.")
]
Resume = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="Go on with the run in this folder, as it was begun."),
]
#: The folder of the data, which the two commands call ``--data`` and ``--folder``.
PLACE = typer.Option(
    metavar="FOLDER",
    envvar="ISONORM_DATA",
    help="Where the data's files are. Goes with --resume, too, where they have moved.",
)


def refuse_other_words(context: typer.Context, *but: str) -> None:
    """A run goes on as it was begun: what else is on the command line would be ignored."""
    others = set(context.params) - {"resume", "recipe", *but}
    refuse(context, others, "--resume goes on with a run as it was begun")


def refuse(context: typer.Context, names: set[str], reason: str) -> None:
    """What is on the command line and would be ignored is an error."""
    for name in context.params:
        if name in names and is_given(context, name):
            raise ValueError(f"{reason}: leave out --{name.replace('_', '-')}.")


def is_given(context: typer.Context, name: str) -> bool:
    """Whether a word of the command line, not a default, says this."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def absolute(folder: str) -> str:
    """A folder as a run keeps it, which may be resumed from another one."""
    return os.path.abspath(folder)


def resumed(context: typer.Context, folder: Path, place: str) -> Experiment:
    """The run in a folder, to go on with as it was begun, but for what changes no result: how many
    trainings run at once, ``--jobs``, and where the data's files are, the option named ``place``.
    """
    if (folder / run_files.COMPRESSED_CURVES).exists():
        raise ValueError(f"{folder} is a record, and finished: begin a new run.")
    experiment = run_files.read(folder)
    if is_given(context, "jobs"):
        experiment.machine = replace(experiment.machine, jobs=context.params["jobs"])
    if is_given(context, place):
        experiment.data = absolute(context.params[place])
    return experiment
