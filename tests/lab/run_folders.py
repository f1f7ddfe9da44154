"""What tests ask of the folder of a run."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import torch
from safetensors.torch import load_file

CLOCKS = {"seconds", "test_seconds"}


def result_of(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def curves(folder: Path) -> list[dict[str, str]]:
    """Every epoch to the last digit, clocks aside."""
    with (folder / "curves.csv").open() as file:
        return [{key: row[key] for key in row if key not in CLOCKS} for row in csv.DictReader(file)]


def weights(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The final weights of each training, by file."""
    return {path.name: load_file(path) for path in sorted(folder.glob("*.safetensors"))}
