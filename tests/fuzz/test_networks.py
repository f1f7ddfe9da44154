"""Random networks through convert, training, fold and revert."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, note
from hypothesis import strategies as st
from torch import Tensor, nn

import isonorm
from tests.fuzz.networks import CHANNELS, Network, ReadingBranch, networks

pytestmark = pytest.mark.filterwarnings("ignore:.*single weight for each output")

TARGETS = ["iternorm", "dbn", "batchnorm", "groupnorm:2", "equinorm", "torch"]


def _images() -> Tensor:
    return torch.randn(6, CHANNELS, 4, 4, dtype=torch.float64)


def _target(name: str):
    if name == "torch":
        return nn.BatchNorm2d
    if name == "groupnorm:2":
        return lambda c: isonorm.GroupNorm(c, num_groups=2)
    return name


@torch.no_grad()
def _output(model: nn.Module, x: Tensor) -> Tensor:
    return model(x.clone())


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}


def _identical(model: nn.Module, state: dict[str, Tensor]) -> bool:
    now = model.state_dict()
    return now.keys() == state.keys() and all(torch.equal(now[key], state[key]) for key in state)


def _same(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    scale = expected.norm().clamp(min=1e-6)
    return bool((found - expected).norm() <= tolerance * scale)


def _rounding(*reports: isonorm.Conversion) -> float:
    """Return how far off an output may be: by as much as the reports say, and rounding."""
    deviations = [change.deviation or 0 for report in reports for change in report.changed]
    return 1e-6 + 30 * sum(deviation**0.5 for deviation in deviations)


def _or_refused(model: nn.Module, change: Callable[[], object]):
    """Return a change's result; None if it raises one sentence and leaves the model as it was."""
    state, modules = _state(model), [type(m) for m in model.modules()]
    try:
        return change()
    except (TypeError, ValueError) as error:
        assert "\n" not in str(error) and str(error).endswith("."), error
        assert _identical(model, state) and modules == [type(m) for m in model.modules()]
        return None


def _train(model: nn.Module, x: Tensor) -> None:
    model.train()
    y = model(x.clone())
    (y * torch.randn_like(y)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_leaf and parameter.grad is not None:  # a scripted copy has others
                parameter -= 1e-3 * parameter.grad / (1 + parameter.grad.norm())
    model.eval()


def _trains(network: Network, x: Tensor) -> bool:
    try:
        _train(copy.deepcopy(network), x)
    except RuntimeError:  # an in-place step of the network's own
        return False
    return True


@given(network=networks(), to=st.sampled_from(TARGETS), fuse_act=st.booleans())
def test_conversion(network: Network, to: str, fuse_act: bool) -> None:
    """Attacks ``convert`` and ``revert`` by what a network may do with a norm beside calling it.

    Oracle: the network's own output in float64, which is the same where the report says so.
    """
    note(f"{network} {network.steps}")
    x = _images()
    original, expected = copy.deepcopy(network), _output(network, x)
    trains = _trains(network, x)
    options = {} if to == "equinorm" else {"fuse_act": fuse_act}
    report = _or_refused(network, lambda: isonorm.convert(network, _target(to), **options))
    if report is None:
        return
    note(str(report))
    found = _output(network, x)
    blind = bool(report.unknown) and any(isinstance(m, ReadingBranch) for m in network.modules())
    if all(change.same for change in report.changed) and not blind:
        assert _same(found, expected, _rounding(report))
    if not report.changed:
        assert _identical(network, _state(original)) and torch.equal(found, expected)
    if trains:
        _train(copy.deepcopy(network), x)
    back = _or_refused(network, lambda: isonorm.revert(network))
    if back is not None:
        note(str(back))
        reverted = _output(network, x)
        if all(change.same for change in (*report.changed, *back.changed)) and not blind:
            assert _same(reverted, expected, _rounding(report, back))


@given(network=networks(), to=st.sampled_from([*TARGETS, ""]))
def test_folding(network: Network, to: str) -> None:
    """Attacks ``fold`` by networks that use a norm or a weight in other ways, too, converted and
    trained or not.

    Oracle: the unfolded network's output in float64; the network itself must not change.
    """
    note(f"{network} {network.steps}")
    x = _images()
    if to:
        _or_refused(network, lambda: isonorm.convert(network, _target(to)))
        note(f"{network}")
        if _trains(network, x):
            _train(network, x)
    state, expected = _state(network), _output(network, x)
    folded = _or_refused(network, lambda: isonorm.fold(network))
    assert _identical(network, state) and torch.equal(_output(network, x), expected)
    if folded is not None:
        note(str(folded.fold_report))
        assert _same(_output(folded, x), expected, 1e-7)
        assert _same(_output(isonorm.fold(folded), x), expected, 1e-7)
