"""Which path runs, and why."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import isonorm
from isonorm import area as areas
from isonorm import operation as operations
from isonorm.functional import normalize
from isonorm.kernels import INTERPRETING, choose
from isonorm.operation import Operation

WHITEN, AREA = operations.whiten(), areas.batch(2)
X = torch.randn(6, 4)


def chosen(operation: Operation = WHITEN) -> str:
    return choose(operation, AREA, X).backend


def test_plain_torch_runs_on_a_cpu_and_says_why():
    if INTERPRETING:
        pytest.skip("the interpreter stands in for a GPU")
    choice = choose(WHITEN, AREA, X)
    assert choice.backend == "torch"
    assert "cpu" in choice.reason


def test_a_backend_asked_for_by_name_runs():
    with isonorm.backend("reference"):
        assert choose(WHITEN, AREA, X) == ("reference", "asked for")
    with isonorm.backend("torch"):
        assert choose(WHITEN, AREA, X) == ("torch", "asked for")


def test_contexts_nest_and_restore():
    outside = chosen()
    with isonorm.backend("reference"):
        with isonorm.backend("torch"):
            assert chosen() == "torch"
            with pytest.raises(KeyError), isonorm.backend("reference"):
                raise KeyError
            assert chosen() == "torch"
        assert chosen() == "reference"
    assert chosen() == outside


def test_a_wrong_name_is_explained_and_changes_nothing():
    with isonorm.backend("reference"):
        with (
            pytest.raises(ValueError, match=r"must be one of auto, reference.*got 'cuda'"),
            isonorm.backend("cuda"),
        ):
            pass
        assert chosen() == "reference"


def test_triton_runs_or_gives_the_reason():
    """Float64 has no kernel, on any machine."""
    with (
        isonorm.backend("triton"),
        pytest.raises(RuntimeError, match="backend='triton' was asked for, but the"),
    ):
        normalize(X.double(), area=AREA, operation=WHITEN)


@pytest.mark.parametrize(
    "transform",
    [torch.func.vmap, torch.func.grad, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian],
    ids=lambda transform: transform.__name__,
)
def test_the_reference_runs_under_transforms(transform):
    seen = set()

    def function(x: Tensor) -> Tensor:
        choice = choose(WHITEN, AREA, x)
        seen.add((choice.backend, "torch.func" in choice.reason))
        return (x**2).sum()

    with isonorm.backend("torch"):
        transform(function)(torch.randn(3, 2))
    assert seen == {("reference", True)}
    assert chosen() == "torch"


def test_the_reference_runs_in_forward_mode():
    with forward_ad.dual_level():
        choice = choose(WHITEN, AREA, X)
    assert choice.backend == "reference"
    assert "forward-mode" in choice.reason


@pytest.mark.parametrize("operation", [operations.standardize(1), operations.center()], ids=repr)
def test_the_reference_runs_what_is_not_quadratic(operation):
    with isonorm.backend("torch"):
        choice = choose(operation, AREA, X)
    assert choice.backend == "reference"
    assert repr(operation) in choice.reason


def test_the_environment_names_the_backend():
    """One process, reloading the choice for each value of the variable."""
    program = """
import importlib, os
import isonorm, torch
from isonorm import area, operation

def choice():
    return isonorm.kernels.choose(operation.whiten(), area.batch(), torch.randn(4, 2)).backend

print(choice())
for name in ("torch", "cuda"):
    os.environ["ISONORM_BACKEND"] = name
    try:
        importlib.reload(isonorm.kernels)
        print(choice())
    except ValueError as error:
        print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"ISONORM_BACKEND": "reference"},
        capture_output=True,
        text=True,
        check=True,
    )
    asked, then, wrong = result.stdout.splitlines()
    assert (asked, then) == ("reference", "torch")
    assert wrong == "ISONORM_BACKEND must be one of auto, reference, torch, triton; got 'cuda'."
