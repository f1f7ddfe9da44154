"""The same network trained with several normalizations, several times each."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from torch import nn

from . import environment, figures, records
from .data import DataSet, load
from .devices import make_fabric
from .models import MLP
from .norms import PLAIN
from .plan import Plan
from .progress import Progress, Run
from .streams import open_streams
from .summary import TARGET_ACCURACY, Summary, summarize
from .threads import torch_threads
from .train import Result, seeded, train


@dataclass(frozen=True)
class Config:
    """Everything that decides a comparison.

    By default the MLP of IterNorm's Figure 3, at a learning rate from that figure with which the
    plain network learns, too: larger ones show only that it cannot.
    """

    norms: tuple[str, ...] = (PLAIN, "batchnorm", "dbn", "iternorm")
    data: str = "digits"
    depth: int = 4
    width: int = 100
    epochs: int = 40
    batch_size: int = 256
    lr: float = 0.5
    seeds: int = 3
    device: str = "cpu"
    threads: int = 1

    @property
    def runs(self) -> list[Run]:
        """All norms with one seed, then with the next: a comparison cut short is still fair."""
        return [Run(norm, seed) for seed in range(self.seeds) for norm in self.norms]

    @property
    def plan(self) -> Plan:
        return Plan(epochs=self.epochs, batch_size=self.batch_size, lr=self.lr)

    @property
    def command(self) -> str:
        """The command line that repeats the comparison."""
        options = {**asdict(self), "norms": ",".join(self.norms)}
        words = ["isonorm", "compare"]
        for name, value in options.items():
            words += ["--" + name.replace("_", "-"), str(value)]
        return shlex.join(words)

    @property
    def description(self) -> str:
        """One line for captions."""
        return (
            f"{self.data}, {self.depth}-layer MLP of width {self.width}, SGD, "
            f"lr {self.lr:g}, batch size {self.batch_size}, {_count(self.epochs, 'epoch')}"
        )


@dataclass
class Comparison:
    """A comparison as far as it has come, and the folder that holds the same."""

    config: Config
    folder: Path
    started: datetime
    status: str = "running"  # then "finished" or "interrupted"; a killed process leaves "running"
    results: dict[Run, Result] = field(default_factory=dict)

    def by_norm(self) -> dict[str, Sequence[Result]]:
        """The results of every norm that has any, in the order of the configuration."""
        grouped: dict[str, list[Result]] = {norm: [] for norm in self.config.norms}
        for run, result in self.results.items():
            grouped[run.norm].append(result)
        return {norm: results for norm, results in grouped.items() if results}

    def summaries(self) -> list[Summary]:
        return summarize(self.by_norm())

    @property
    def description(self) -> str:
        """One line for captions, with the number of seeds there are results for."""
        counts = sorted({len(results) for results in self.by_norm().values()})
        fewer = f"{counts[0]} to " if len(counts) > 1 else ""
        return f"{self.config.description}, {fewer}{_count(counts[-1], 'seed')}"


def build(config: Config, data: DataSet, norm: str) -> nn.Module:
    """The network under comparison with one of its normalizations."""
    hidden = (config.width,) * (config.depth - 1)
    return MLP(data.num_features, data.num_classes, hidden=hidden, norm=norm)


def prepare(config: Config) -> DataSet:
    """The data, once it is known that everything can be trained: each network meets one batch."""
    data = load(config.data)
    training, _ = open_streams(data, config.plan, seed=0, fabric=make_fabric(config.device))
    batch, _ = next(iter(training))
    for norm in config.norms:
        try:
            build(config, data, norm).to(batch.device)(batch)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{norm} does not fit this network: {error}") from error
    return data


def compare(config: Config, data: DataSet, out: Path, name: str, progress: Progress) -> Comparison:
    """Train every run, its result on disk as soon as it is there; Ctrl-C keeps finished ones."""
    started = datetime.now().astimezone()
    folder = records.create_run_folder(out, name, started)
    comparison = Comparison(config, folder, started)
    fabric = make_fabric(config.device)
    try:
        with progress, torch_threads(config.threads):
            for run in config.runs:
                progress.start(run, config.epochs)
                result = train(
                    seeded(run.seed, lambda norm=run.norm: build(config, data, norm)),
                    data,
                    config.plan,
                    seed=run.seed,
                    fabric=fabric,
                    on_epoch=progress.epoch,
                )
                comparison.results[run] = result
                write(comparison)
                progress.finish(result)
        comparison.status = "finished"
    except KeyboardInterrupt:
        comparison.status = "interrupted"
    if comparison.results:
        write(comparison)
        figure = figures.curves(comparison.by_norm(), comparison.description)
        figures.save(figure, folder, "curves")
    else:
        folder.rmdir()
    return comparison


def write(comparison: Comparison) -> None:
    """``result.json`` and ``curves.csv`` for all runs that have finished."""
    config, results = comparison.config, comparison.results
    content = {
        "command": config.command,
        "status": comparison.status,
        "started": comparison.started.isoformat(timespec="seconds"),
        "config": asdict(config),
        "environment": environment.describe(config.device),
        "target_accuracy": TARGET_ACCURACY,
        "summary": [asdict(summary) for summary in comparison.summaries()],
        "runs": [
            {
                "norm": run.norm,
                "seed": run.seed,
                "train_loss": result.train_loss,
                "test_error": result.test_error,
                "epochs_to_target": result.epochs_to(TARGET_ACCURACY),
                "seconds_per_step": result.seconds_per_step,
                "diverged": result.diverged,
            }
            for run, result in results.items()
        ],
    }
    records.write_json(comparison.folder / "result.json", content)
    records.write_csv(
        comparison.folder / "curves.csv",
        ["norm", "seed", "epoch", "train_loss", "test_error", "seconds"],
        (
            (*run, epoch.number, epoch.train_loss, epoch.test_error, epoch.seconds)
            for run, result in results.items()
            for epoch in result.epochs
        ),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
