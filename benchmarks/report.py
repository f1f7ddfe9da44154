"""What a run leaves: a table to read and a record to keep."""

from __future__ import annotations

import json
import os
import platform
import shlex
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

import isonorm

from .cases import BATCHED, BATCHNORM, LOOPED, NUM_ITERS, Case, implementation
from .measure import Spread, ratio, spread
from .targets import Verdict

#: Each heading in two lines: what, and in which unit.
COLUMNS = (
    ("", "layer"),
    ("time", "ms"),
    ("", "quartiles"),
    ("time", "/ looped"),
    ("time", "/ batched"),
    ("time", "/ BN"),
    ("peak", "MiB"),
    ("peak", "/ batched"),
    ("peak", "/ BN"),
)


class Measurement(NamedTuple):
    """One case: for each layer its times, its peak memory and the errors of its check."""

    case: Case
    times: dict[str, list[float]]
    peaks: dict[str, int]
    errors: dict[str, dict[str, float]]

    def time_ratio(self, layer: str, other: str) -> Spread:
        return ratio(self.times[layer], self.times[other])

    def peak_ratio(self, layer: str, other: str) -> float:
        return self.peaks[layer] / self.peaks[other]


# --- the table ------------------------------------------------------------------------------------


def rows(measured: Measurement) -> list[list[str]]:
    """One row of the table for each layer of a case; in every column less is better."""
    lines = []
    for layer, times in measured.times.items():
        time = spread(times)
        lines.append(
            [
                layer,
                f"{time.median * 1e3:.2f}",
                f"{time.lower * 1e3:.2f}–{time.upper * 1e3:.2f}",
                *(
                    f"{measured.time_ratio(layer, other).median:.2f}"
                    for other in (LOOPED, BATCHED, BATCHNORM)
                ),
                f"{measured.peaks[layer] / 2**20:.2f}",
                *(f"{measured.peak_ratio(layer, other):.2f}" for other in (BATCHED, BATCHNORM)),
            ]
        )
    return lines


def show(measurements: Sequence[Measurement]) -> None:
    """Prints the table: with rich on a terminal where it is installed, as plain text elsewhere."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(as_text(measurements))
        return
    console = Console()
    if not console.is_terminal:
        print(as_text(measurements))
        return
    for measured in measurements:
        table = Table(title=str(measured.case), title_justify="left", box=box.SIMPLE, padding=0)
        for i, heading in enumerate(COLUMNS):
            side = "right" if i else "left"
            table.add_column("\n".join(heading), justify=side, no_wrap=True, min_width=5)
        for row in rows(measured):
            table.add_row(*row)
        console.print(table, soft_wrap=True)  # rather a broken line than a shortened number


def as_text(measurements: Sequence[Measurement]) -> str:
    """The table for a file: columns as wide as their widest entry in any case."""
    headings = list(zip(*COLUMNS, strict=True))
    tables = [rows(measured) for measured in measurements]
    everything = [*headings, *(row for table in tables for row in table)]
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(w) for cell, w in others)])

    blocks = [
        "\n".join([str(measured.case), *map(line, headings), *map(line, table)])
        for measured, table in zip(measurements, tables, strict=True)
    ]
    return "\n\n".join(blocks)


# --- the record -----------------------------------------------------------------------------------


def record(
    measurements: Sequence[Measurement],
    verdicts: Sequence[Verdict],
    arguments: Sequence[str],
    rounds: int,
    processes: int,
) -> dict:
    """The run with all it takes to judge it, as JSON's types."""
    return origin("benchmarks.cpu", arguments) | {
        "dtype": "float32",
        "num_iters": NUM_ITERS,
        "rounds": rounds,
        "processes": processes,
        "how": {
            "time": "seconds of a training step; layers take turns, every round in a new order; "
            "the rounds of all processes together",
            "time_ratios": "this layer's time over the other's, round by round",
            "peak_bytes": "torch.profiler: most bytes alive in a step beyond those before it, in "
            "the first process",
            "errors": "relative, in the norm, against the plain algorithm in float64",
        },
        "cases": [_case(measured) for measured in measurements],
        "targets": [verdict._asdict() for verdict in verdicts],
        "passed": all(verdict.passed for verdict in verdicts),
    }


def command(module: str, arguments: Sequence[str]) -> str:
    """The command line that made a record, without the place of the record: a machine's own.

    >>> command("benchmarks.cpu", ["--quick", "--out", "somewhere.json"])
    'python -m benchmarks.cpu --quick'
    """
    words = list(arguments)
    while "--out" in words:
        at = words.index("--out")
        del words[at : at + 2]
    words = [word for word in words if not word.startswith("--out=")]
    return shlex.join(["python", "-m", module, *words])


def origin(module: str, arguments: Sequence[str], gpu: torch.device | str | None = None) -> dict:
    """Where a record comes from: its command, machine (with the GPU it used), versions and load."""
    used = {} if gpu is None else {"gpu": torch.cuda.get_device_name(gpu)}
    return {
        "command": command(module, arguments),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware() | used,
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def _case(measured: Measurement) -> dict:
    others = (LOOPED, BATCHED, BATCHNORM)
    return {
        "shape": list(measured.case.shape),
        "group_size": measured.case.group_size,
        "implementation": implementation(measured.case)._asdict(),
        "layers": {
            layer: {
                "time": spread(times)._asdict(),
                "time_ratios": {
                    other: measured.time_ratio(layer, other)._asdict() for other in others
                },
                "peak_bytes": measured.peaks[layer],
                "peak_ratios": {other: measured.peak_ratio(layer, other) for other in others},
                "errors": measured.errors[layer],
            }
            for layer, times in measured.times.items()
        },
    }


def hardware() -> dict:
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "system": platform.system(),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"


def versions() -> dict:
    own = isonorm.__version__
    return {"python": platform.python_version(), "torch": torch.__version__, "isonorm": own}


def write(content: dict, path: Path) -> None:
    """All of the record or nothing: an interrupted run leaves an older one as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        try:
            json.dump(content, file, indent=2, ensure_ascii=False, allow_nan=False)
            file.write("\n")
            file.close()
            os.chmod(file.name, 0o644)  # temporary files are private, records are not
            os.replace(file.name, path)
        except BaseException:
            file.close()
            os.unlink(file.name)
            raise
