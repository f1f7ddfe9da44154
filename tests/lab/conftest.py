"""Data and results small enough to reason about by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from isonorm.lab.data import DataSet, digits
from isonorm.lab.train import Epoch, Result


@pytest.fixture(scope="session")
def data() -> DataSet:
    return digits()


@pytest.fixture(autouse=True)
def _plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the environment tells rich what a terminal is like."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def make_result() -> Callable[..., Result]:
    """A result from its curve; its epochs take 0.1, 0.2, 0.3, … seconds."""

    def make(losses: Sequence[float], errors: Sequence[float], steps_per_epoch: int = 5) -> Result:
        numbered = enumerate(zip(losses, errors, strict=True), start=1)
        epochs = [Epoch(number, loss, error, 0.1 * number) for number, (loss, error) in numbered]
        return Result(tuple(epochs), steps_per_epoch)

    return make


@pytest.fixture
def results(make_result) -> dict[str, list[Result]]:
    """Two seeds that learn, one of a pair that diverges, and one with an error of zero."""
    nan = float("nan")
    return {
        "plain": [
            make_result([2.3, nan], [0.9, 0.9]),
            make_result([2.3, 1.0, 0.5], [0.8, 0.4, 0.1]),
        ],
        "iternorm": [
            make_result([1.0, 0.1, 0.01], [0.2, 0.04, 0.02]),
            make_result([1.2, 0.2, 0.03], [0.3, 0.06, 0.04]),
        ],
        "dbn:group_size=32": [make_result([1.0, 0.1, 0.02], [0.1, 0.02, 0.0])],
    }
