"""Where a monitor's records go."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.table import Table

Record = dict[str, Any]


class Sink(Protocol):
    def write(self, records: Sequence[Record]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One JSON object a line, on disk as soon as it is written."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed with the monitor)

    def write(self, records: Sequence[Record]) -> None:
        self._file.writelines(json.dumps(record, allow_nan=False) + "\n" for record in records)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """Scalars ``layer/quantity``. A writer that was given stays open, one made here is closed."""

    def __init__(self, target: Any) -> None:
        self._own = not hasattr(target, "add_scalar")
        if self._own:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ModuleNotFoundError as missing:
                raise ModuleNotFoundError(
                    "tensorboard= needs tensorboard: pip install 'isonorm[lab]' brings it."
                ) from missing
            target = SummaryWriter(target)
        self._writer = target

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            for quantity, value in record.items():
                if quantity not in ("step", "layer") and value is not None:
                    tag = f"{record['layer']}/{quantity}"
                    self._writer.add_scalar(tag, value, record["step"])

    def close(self) -> None:
        if self._own:
            self._writer.close()
        else:
            self._writer.flush()


_HEADINGS = {
    "condition_number": "condition",
    "effective_rank": "eff. rank",
    "off_diagonal_energy": "off-diag.",
    "snd": "SND",
    "mean_drift": "drift μ",
    "scale_drift": "drift σ",
    "weight_norm": "‖W‖",
    "gradient_norm": "‖∇W‖",
    "effective_lr": "eff. lr",
}


def as_table(records: Sequence[Record]) -> Table:
    """Records of one step as a rich table; columns that no layer has are left out."""
    from rich.table import Table

    title = f"step {records[0]['step']}" if records else "nothing seen yet"
    table = Table(title=title, title_justify="left")
    table.add_column("layer", style="bold", no_wrap=True)
    shown = [key for key in _HEADINGS if any(key in record for record in records)]
    for key in shown:
        table.add_column(_HEADINGS[key], justify="right")
    for record in records:
        cells = ["–" if record.get(key) is None else f"{record[key]:.3g}" for key in shown]
        table.add_row(record["layer"], *cells)
    return table
