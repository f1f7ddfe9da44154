"""Wrong calls of ``normalize`` are explained, and what is nearly wrong works."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.autograd import forward_ad

from isonorm import area as areas
from isonorm import functional
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
    "a coloring's bias of another length": (
        ValueError,
        r"bias must have shape \(6,\), one number per channel; got \(7,\)",
        {"operation": "whiten", "recovery": Coloring(torch.zeros(1, 6, 6), torch.zeros(7))},
    ),
    "a coloring of smaller groups": (
        ValueError,
        r"color must have shape \(1, 6, 6\).*got \(1, 3, 3\)",
        {"operation": "whiten", "recovery": Coloring(torch.zeros(1, 3, 3), None)},
    ),
    "a recovery by name": (
        TypeError,
        "recovery must be None, .* got 'affine'",
        {"recovery": "affine"},
    ),
    "a weight elsewhere": (
        ValueError,
        "the input is on cpu, but weight is on meta",
        {"recovery": Affine(torch.ones(6, device="meta"), None)},
    ),
    "a mean of integers": (
        TypeError,
        r"statistics\.mean must be floating-point.*int64",
        {"statistics": Statistics(8, torch.zeros(6, 1).long(), torch.ones(6, 1, 1))},
    ),
    "a covariance elsewhere": (
        ValueError,
        r"statistics\.cov is on meta",
        {"statistics": Statistics(8, torch.zeros(6, 1), torch.ones(6, 1, 1, device="meta"))},
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


def test_nothing_of_one_value_each_stays_nothing():
    """There is no value to be alone: no example, each of whose channels would have one."""
    y, _ = normalize(torch.randn(0, 6, 1), area="instance", operation="standardize")
    assert y.shape == (0, 6, 1)


def test_what_ranks_cannot_share_is_refused_before_they_talk(monkeypatch):
    monkeypatch.setattr(functional, "is_shared", lambda name: True)

    def shared(x, area="batch"):
        return normalize(x, area=area, operation="standardize", process_group="world")[0]

    with pytest.raises(ValueError, match="nothing to share across ranks"):
        shared(X, "layer")
    with pytest.raises(RuntimeError, match=r"no rule for torch\.func transforms"):
        torch.func.vmap(shared)(X.expand(2, *X.shape))
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward-mode"):
        shared(forward_ad.make_dual(X, X))
