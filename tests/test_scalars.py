"""Numbers of other libraries, numpy's above all, wherever a number is asked for."""

from __future__ import annotations

import io
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import isonorm
from isonorm import optim, weights
from isonorm.scalars import plain


@pytest.mark.parametrize(
    "value, expected",
    [
        (np.int64(4), 4), (np.uint8(4), 4), (np.float64(0.5), 0.5), (np.float32(0.5), 0.5),
        (Fraction(1, 2), 0.5), (4, 4), (0.5, 0.5), (None, None), (True, True), ("4", "4"),
    ],
)  # fmt: skip
def test_a_number_becomes_pythons_own(value, expected):
    found = plain(value)
    assert found == expected and type(found) is type(expected)


def test_what_is_no_number_stays_itself():
    for value in (torch.ones(()), np.bool_(True), 1j):
        assert plain(value) is value


def test_a_layer_takes_them_and_keeps_none():
    four, half = np.int64(4), np.float32(0.5)
    for found, expected in (
        (
            isonorm.IterNorm(np.int64(8), group_size=four, num_iters=np.int64(3), eps=half,
                             momentum=half),
            isonorm.IterNorm(8, group_size=4, num_iters=3, eps=0.5, momentum=0.5),
        ),
        (
            isonorm.DBN(np.int32(8), group_size=four, method="polar", num_iters=np.int64(3)),
            isonorm.DBN(8, group_size=4, method="polar", num_iters=3),
        ),
        (
            isonorm.GroupWhitening(np.int64(8), num_groups=four),
            isonorm.GroupWhitening(8, num_groups=4),
        ),
        (isonorm.GroupNorm(np.int64(8), num_groups=four), isonorm.GroupNorm(8, num_groups=4)),
        (
            isonorm.EquiConv2d(8, 4, np.int64(3), momentum=half, statistics_fraction=half),
            isonorm.EquiConv2d(8, 4, 3, momentum=0.5, statistics_fraction=0.5),
        ),
        (
            weights.orthogonal(nn.Linear(8, 4), dim=np.int64(0), scale=np.float32(2)),
            weights.orthogonal(nn.Linear(8, 4), dim=0, scale=2.0),
        ),
        (
            weights.centered_weight_norm(nn.Linear(8, 4), eps=half),
            weights.centered_weight_norm(nn.Linear(8, 4), eps=0.5),
        ),
    ):  # fmt: skip
        assert repr(found) == repr(expected)
        for module, twin in zip(found.modules(), expected.modules(), strict=True):
            for name, value in vars(twin).items():
                if type(value) in (int, float, tuple):
                    assert type(vars(module)[name]) is type(value), name
                    assert vars(module)[name] == value, name


@pytest.mark.parametrize("group_size", [np.int64(0), np.float32(4.0), np.int64(-1)])
def test_what_is_no_size_is_refused_all_the_same(group_size):
    with pytest.raises(ValueError, match="group_size must be a positive integer"):
        isonorm.IterNorm(8, group_size=group_size)
    with pytest.raises(ValueError, match="num_features must be a positive integer"):
        isonorm.IterNorm(group_size)


@pytest.mark.parametrize(
    "make, options",
    [
        (optim.LARS, {"momentum": np.float32(0.5), "trust_coefficient": np.float64(0.25)}),
        (optim.LAMB, {"betas": (np.float32(0.5), np.float64(0.75)), "eps": np.float32(0.5)}),
        (optim.LANS, {"norm_bounds": [np.int64(0), np.float32(4.0)]}),
    ],
)
def test_an_optimizer_takes_them_and_its_checkpoint_knows_nothing_of_them(make, options):
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    common = {"weight_decay": np.float32(0.5), "min_ndim": np.int64(2)}
    optimizer = make(first.parameters(), lr=np.float32(0.5), **options, **common)
    optimizer.add_param_group({"params": second.parameters(), "lr": np.float64(0.25)})
    for group in optimizer.param_groups:
        for name in (*options, *common, "lr"):
            value = group[name]
            for number in value if isinstance(value, tuple | list) else [value]:
                assert type(number) in (int, float), name
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]

    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file, weights_only=True))


def test_numbers_of_a_loaded_state_become_pythons_own():
    optimizer = optim.LARS([torch.zeros(2, 2)], lr=0.5)
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = np.float32(0.25)
    optimizer.load_state_dict(state)
    assert type(optimizer.param_groups[0]["lr"]) is float


def test_wrappers_and_schedules_take_them():
    optimizer = optim.centralize(torch.optim.SGD([torch.zeros(2, 2)]), min_ndim=np.int64(3))
    assert type(optimizer.min_ndim) is int
    schedule = optim.warmup_polynomial(
        optimizer, np.int64(10), warmup_steps=np.int64(2), hold_steps=np.int64(1),
        power=np.float32(2.0),
    )  # fmt: skip
    kept = schedule.state_dict()["lr_lambdas"][0]
    assert {type(value) for value in kept.values()} == {int, float}


def test_wrong_ones_are_refused_all_the_same():
    with pytest.raises(ValueError, match=r"lr must be a finite number, at least 0; got -1\.0"):
        optim.LARS([torch.zeros(2, 2)], lr=np.float32(-1))
    with pytest.raises(ValueError, match="centralize needs min_ndim of 2 or more"):
        optim.centralize(torch.optim.SGD([torch.zeros(2, 2)]), min_ndim=np.int64(1))


def test_functions_take_numpys_eps():
    x = torch.randn(8, 4)
    found, _ = isonorm.functional.iter_norm(x, eps=np.float32(1e-3))  # type: ignore[arg-type]
    expected, _ = isonorm.functional.iter_norm(x, eps=float(np.float32(1e-3)))
    assert torch.equal(found, expected)
