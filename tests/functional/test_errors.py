"""Wrong calls of ``normalize`` are explained, and what is nearly wrong works."""

from __future__ import annotations

import warnings

import pytest
import torch

from isonorm import area as areas
from isonorm.functional import dbn, normalize
from isonorm.recovery import Affine, Coloring
from isonorm.statistics import Statistics

X = torch.randn(4, 6, 3)
with warnings.catch_warnings(action="ignore"):  # torch's, that the interface may change
    NESTED = torch.nested.nested_tensor([torch.randn(6, 3), torch.randn(6, 4)])
WRONG = {
    "rank 1": (ValueError, r"at least 2 dimensions; got shape \(4,\)", {"x": torch.randn(4)}),
    "integers": (TypeError, r"got torch\.int64", {"x": torch.ones(4, 6, dtype=torch.int64)}),
    "a list": (TypeError, r"input must be a torch\.Tensor; got list", {"x": [[1.0, 2.0]]}),
    "a sparse tensor": (TypeError, "must be a dense tensor", {"x": torch.eye(6).to_sparse()}),
    "a nested tensor": (TypeError, "got a nested tensor", {"x": NESTED}),
    "numbers of 8 bits": (TypeError, "got torch.float8", {"x": X.to(torch.float8_e4m3fn)}),
    "a complex weight": (
        TypeError,
        "weight must be floating-point.*got torch.complex64",
        {"recovery": Affine(torch.ones(6, dtype=torch.complex64), None)},
    ),
    "a number for a bias": (
        TypeError,
        r"bias must be a torch\.Tensor; got float",
        {"recovery": Affine(None, 1.0)},
    ),
    "a bias elsewhere": (
        ValueError,
        "the input is on cpu, but bias is on meta: move them together",
        {"recovery": Affine(None, torch.ones(6, device="meta"))},
    ),
    "a coloring elsewhere": (
        ValueError,
        "color is on meta",
        {"operation": "whiten", "recovery": Coloring(torch.zeros(1, 6, 6, device="meta"), None)},
    ),
    "a residual of integers": (TypeError, r"residual .*int64", {"residual": X.long()}),
    "a residual elsewhere": (ValueError, "residual is on meta", {"residual": X.to("meta")}),
    "statistics that are a tuple": (
        TypeError,
        r"statistics must be an isonorm\.Statistics.*got tuple",
        {"statistics": (1, 2, 3)},
    ),
    "no such area": (ValueError, "area must be one of", {"area": "bach"}),
    "no such operation": (ValueError, "operation must be one of", {"operation": "whitening"}),
    "layer does not whiten": (
        ValueError,
        "whitening is defined for the areas batch, instance and group, not for",
        {"area": "layer", "operation": "whiten"},
    ),
    "batch_group does not whiten": (
        ValueError,
        "whitening is defined for the areas batch, instance and group, not for",
        {"area": areas.batch_group(2), "operation": "whiten"},
    ),
    "one value": (ValueError, "more than one value", {"x": torch.randn(1, 6)}),
    "one value an instance": (
        ValueError,
        "more than one value",
        {"x": torch.randn(4, 6, 1, 1), "area": "instance"},
    ),
    "residual of another shape": (
        ValueError,
        r"residual must have the input's shape",
        {"residual": torch.randn(4, 6)},
    ),
    "groups that do not divide": (
        ValueError,
        "num_groups=4 does not divide num_features=6",
        {"area": areas.group(4)},
    ),
    "statistics of another area": (
        ValueError,
        "statistics do not fit",
        {
            "operation": "whiten",
            "statistics": Statistics(8, torch.zeros(1, 2), torch.zeros(1, 2, 2)),
        },
    ),
    "statistics of more groups": (
        ValueError,
        "statistics do not fit",
        {
            "operation": "whiten",
            "statistics": Statistics(8, torch.zeros(2, 7), torch.zeros(2, 7, 7)),
        },
    ),
    "a coloring of other groups": (
        ValueError,
        r"color must have shape \(1, 6, 6\).*got \(2, 3, 3\)",
        {"operation": "whiten", "recovery": Coloring(torch.zeros(2, 3, 3), None)},
    ),
    "no channels": (ValueError, "at least one channel", {"x": torch.randn(4, 0, 3)}),
    "eps that is no number": (ValueError, "eps must be a number ≥ 0; got 'a'", {"eps": "a"}),
    "no process group": (
        ValueError,
        "process_group must be a torch",
        {"process_group": object()},
    ),
}


@pytest.mark.parametrize(("error", "message", "given"), WRONG.values(), ids=WRONG.keys())
def test_wrong_calls_are_explained(error, message, given):
    call = {"x": X, "area": "batch", "operation": "standardize"} | given
    with pytest.raises(error, match=message):
        normalize(call.pop("x"), **call)


def test_one_value_may_be_scaled():
    """Without centering one value is enough."""
    y, _ = normalize(torch.full((1, 3), 2.0), area="batch", operation="scale", eps=0.0)
    torch.testing.assert_close(y, torch.ones(1, 3))


def test_newton_is_not_dbn():
    with pytest.raises(ValueError, match=r"use isonorm\.IterNorm or functional\.iter_norm"):
        dbn(X, method="newton")
