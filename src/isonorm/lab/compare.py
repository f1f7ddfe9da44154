"""``isonorm compare``: the same network trained with several normalizations."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options, records, run_files
from .comparison import SCHEDULES, WEIGHT_NORMS, Comparison
from .data import SOURCES
from .data.sources import source_of
from .devices import resolve_device
from .experiment import Experiment
from .machine import Machine
from .models import list_models
from .norms import ALIASES
from .output import fail
from .perform import perform
from .plan import OPTIMIZERS

_DEFAULT, _PLAIN = Comparison(), Machine()


def compare(
    context: typer.Context,
    norms: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Normalizations, separated by commas: plain (none at all), names that 'isonorm "
            "norms' lists, with options as in dbn:group_size=32, or normalizations of weights: "
            + ", ".join(WEIGHT_NORMS)
            + ". Short names: "
            + ", ".join(f"{short} = {name}" for short, name in ALIASES.items())
            + ".",
        ),
    ] = ",".join(_DEFAULT.norms),
    data: Annotated[
        str, typer.Option(metavar="NAME", help=f"Data set: {', '.join(SOURCES)}.")
    ] = _DEFAULT.data,
    folder: Annotated[str, options.PLACE] = "data",
    model: Annotated[
        str,
        typer.Option(metavar="NAME", help=f"Network: {', '.join(list_models())}."),
    ] = _DEFAULT.model,
    depth: Annotated[
        int | None,
        typer.Option(
            min=1, help="Layers, where the network's name leaves them open; of the MLP, 4."
        ),
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(
            min=0, help="Neurons in each hidden layer of the MLP, 100; else a factor of channels."
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=1, help="Passes over the training set.")
    ] = _DEFAULT.epochs,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Images in a batch. An incomplete last batch is left out.")
    ] = _DEFAULT.batch_size,
    lr: Annotated[
        float, typer.Option(min=0, help="Learning rate, the same for every normalization.")
    ] = _DEFAULT.lr,
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of {', '.join(OPTIMIZERS)}.")
    ] = _DEFAULT.optimizer,
    momentum: Annotated[float, typer.Option(min=0, help="Of sgd and lars.")] = _DEFAULT.momentum,
    weight_decay: Annotated[
        float, typer.Option(min=0, help="Of all parameters.")
    ] = _DEFAULT.weight_decay,
    schedule: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Of the learning rate: {', '.join(SCHEDULES)}. steps: a tenth after half of the "
            "epochs, and again after three quarters.",
        ),
    ] = _DEFAULT.schedule,
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            max=records.MOST_SEEDS,
            help="Runs of each normalization: other initial weights and batches.",
        ),
    ] = 3,
    threshold: Annotated[
        float,
        typer.Option(metavar="ACCURACY", help="Test accuracy; the epochs to it are told."),
    ] = _DEFAULT.threshold,
    spread: Annotated[
        str,
        typer.Option(
            metavar="mean|median",
            help="Over seeds: mean ± standard deviation, or median and quartiles.",
        ),
    ] = _DEFAULT.spread,
    device: options.Device = "auto",
    precision: options.Precision = _PLAIN.precision,
    compile: options.Compile = _PLAIN.compile,
    threads: options.Threads = _PLAIN.threads,
    jobs: options.Jobs = _PLAIN.jobs,
    keep_weights: options.KeepWeights = False,
    no_verify: options.NoVerify = False,
    out: options.Out = Path("runs"),
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the run.")] = "compare",
    resume: options.Resume = None,
) -> None:
    """Train the same network with several normalizations and compare them.

    Ends with a table, and leaves result.json, curves.csv, a figure (PNG and SVG) and report.html,
    the page to open, in a folder of the run's own. The defaults take about a minute on two CPU
    cores. Every result is on disk as soon as it is there. Ctrl-C stops; --resume goes on, to the
    same weights and curves as if nothing had happened.

    Peak memory is the most that torch holds at once in training: on CUDA of all tensors, the data
    set among them; on a CPU of one step that is measured apart, with the network's own tensors.
    """
    try:
        if resume is not None:
            options.refuse_other_words(context, "jobs", "folder")
            if not run_files.read_content(resume).get("comparison"):
                raise ValueError(
                    f"{resume} is not a comparison: isonorm run --resume {resume} goes on with it."
                )
            experiment = options.resumed(context, resume, place="folder")
        else:
            source_of(data)
            settings: dict[str, Any] = {
                key: context.params[key] for key in Comparison.__dataclass_fields__
            }
            comparison = Comparison(**{**settings, "norms": tuple(norms.split(","))})
            experiment = Experiment(
                recipe=comparison.recipe(),
                scale="full",
                seeds=seeds,
                data=options.absolute(folder),
                machine=Machine(
                    device=resolve_device(device),
                    precision=precision,
                    compile=compile,
                    threads=threads,
                    jobs=jobs,
                ),
                folder=out,  # until it has its own
                started=datetime.now().astimezone(),
                keep_weights=keep_weights,
                verify=not no_verify,
                comparison=comparison,
            )
    except ValueError as error:
        fail(str(error), code=2)
    perform(experiment, name=name if resume is None else None)
