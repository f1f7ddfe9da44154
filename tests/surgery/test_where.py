"""The norms that ``where`` selects."""

from __future__ import annotations

import pytest
from torch import nn

import isonorm
from tests.surgery.blocks import Residual


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("all", ["bn1", "bn2", "shortcut.1"]),
        ("first", ["bn1"]),
        ("bn*", ["bn1", "bn2"]),
        ("*.1", ["shortcut.1"]),
        (lambda name, module: name != "bn1" and module.num_features == 8, ["bn2", "shortcut.1"]),
        (lambda name, module: False, []),
        (nn.BatchNorm2d, ["bn1", "bn2", "shortcut.1"]),
        (nn.GroupNorm, []),
        (["bn2", "*.1"], ["bn2", "shortcut.1"]),
        ((nn.GroupNorm, "bn1"), ["bn1"]),
    ],
)
def test_where_selects_by_name_type_and_function(where, names):
    model = Residual()
    report = isonorm.convert(model, "iternorm", where=where)
    assert [change.name for change in report.changed] == names
    assert len(report.changed) + len(report.left) == 3
    found = [n for n, m in model.named_modules() if isinstance(m, isonorm.IterNorm)]
    assert found == names


def test_first_passes_over_what_cannot_be_converted():
    model = nn.Sequential(nn.LayerNorm(3), nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    report = isonorm.convert(model, "iternorm", where="first")
    assert [change.name for change in report.changed] == ["1"]


@pytest.mark.parametrize(
    ("where", "error", "words"),
    [
        ("layer.*", ValueError, r"matches where='layer\.\*'"),
        ("bn3", ValueError, "near it are 'bn2', 'bn1'"),
        ("shortcut", ValueError, r"near it are 'shortcut\.1'"),
        (3, TypeError, "'all', 'first'"),
    ],
)
def test_a_where_that_selects_nothing_is_refused(where, error, words):
    with pytest.raises(error, match=words):
        isonorm.convert(Residual(), "iternorm", where=where)
