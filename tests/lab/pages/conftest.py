"""Runs made in seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
from typer.testing import CliRunner, Result

from isonorm.lab.cli import app
from tests.lab.pages.helpers import change


@pytest.fixture(scope="session")
def isonorm_command() -> Callable[..., Result]:
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="session")
def quick_run(tmp_path_factory, official, isonorm_command) -> Path:
    """Two trainings of a moment, each with two points of a grid, with their figure."""
    data, out = tmp_path_factory.mktemp("secret-data"), tmp_path_factory.mktemp("out")
    official.mnist(data, train=60, test=20)
    ran = isonorm_command(
        *("run", "iternorm2019-fig3", "--data", data, "--scale", "quick", "--device", "cpu"),
        *("--only", "BN, *", "--only", "plain, batch 2", "--seeds", 2, "--out", out),
    )
    assert ran.exit_code == 0, ran.output
    (folder,) = out.iterdir()
    return folder


@pytest.fixture(scope="session")
def quick_comparison(tmp_path_factory, isonorm_command) -> Path:
    """What ``make demo`` runs, in a moment."""
    out = tmp_path_factory.mktemp("out")
    ran = isonorm_command(
        *("compare", "--width", 8, "--epochs", 2, "--seeds", 2, "--device", "cpu", "--out", out)
    )
    assert ran.exit_code == 0, ran.output
    (folder,) = out.iterdir()
    return folder


@pytest.fixture
def full_run(quick_run, tmp_path) -> Path:
    """The same as if its sizes had been the paper's."""
    folder = copytree(quick_run, tmp_path / "runs" / "finished")
    change(folder, scale="full")
    return folder
