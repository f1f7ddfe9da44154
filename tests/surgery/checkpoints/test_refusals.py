"""What does not fit is refused, and then nothing is loaded."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from torch import nn

import isonorm
from tests.surgery.checkpoints.states import (
    C,
    D,
    in_model,
    itn_state,
    model_with,
    network,
    symmetric,
)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (lambda: itn_state() | {"running_mean": torch.zeros(2, D, 1)}, "shape.*12 channels"),
        (
            lambda: itn_state() | {"weight": torch.ones(1, 5, 1, 1)},
            "weight has 5 numbers.*12 channels",
        ),
        (lambda: {"running_wm": symmetric(3, D, D)}, "no running_mean"),
        (lambda: {"weight": torch.ones(C)}, "the checkpoint lacks 1.bias, 1.running_mean"),
        (lambda: itn_state() | {"extra": torch.ones(1)}, "has keys unknown to the model, 1.extra"),
    ],
)
def test_nothing_is_loaded_where_something_does_not_fit(state, words):
    model = model_with(isonorm.IterNorm(C, group_size=D, running="whitening"))
    model.append(nn.Linear(2, 2))
    before = copy.deepcopy(model.state_dict())
    source = in_model(state()) | {"2.weight": torch.ones(2, 2), "2.bias": torch.ones(2)}
    with pytest.raises(ValueError, match=words):
        isonorm.load_checkpoint(model, source)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_what_would_be_another_function_is_refused_unless_told_otherwise(x):
    model = model_with(isonorm.IterNorm(C, group_size=D))  # averages Σ, not W
    with pytest.raises(ValueError, match=r"differs in eval.*running.*strict=False"):
        isonorm.load_checkpoint(model, in_model(itn_state()))
    report = isonorm.load_checkpoint(model, in_model(itn_state()), strict=False)
    assert report.norms[0].deviation > 0 and model(x).isfinite().all()


def test_missing_and_unexpected_keys_are_listed():
    model = nn.Sequential(isonorm.IterNorm(4), nn.Linear(4, 2))
    state = {"1.weight": torch.ones(2, 4), "2.weight": torch.ones(1)}
    report = isonorm.load_checkpoint(model, state, strict=False)
    assert "1.bias" in report.missing and report.unexpected == ["2.weight"]
    assert "unexpected: 2.weight" in str(report) and torch.equal(model[1].weight, torch.ones(2, 4))


def test_states_of_newer_versions_are_refused():
    model = nn.Sequential(isonorm.IterNorm(4))
    state = model.state_dict()
    state._metadata["0"]["version"] = 7
    with pytest.raises(ValueError, match=r"version 7.*update isonorm"):
        isonorm.load_checkpoint(model, state)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("2.bias", "x", "'2.bias' in the checkpoint is not a tensor but 'x'"),
        ("1.running_mean", None, "'1.running_mean' in the checkpoint is not a tensor"),
        ("1.running_var", 3, "'1.running_var' in the checkpoint is not a tensor"),
        ("2.bias", torch.empty(8, device="meta"), "'2.bias' is on the meta device"),
        ("2.bias", torch.ones(5), r"'2.bias' has shape \(5,\)"),
    ],
)
def test_nothing_is_loaded_where_something_is_no_tensor_of_that_shape(key, value, words):
    model = network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=words):
        isonorm.load_checkpoint(model, network().state_dict() | {key: value})
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def quantized(*shape: int) -> torch.Tensor:
    with warnings.catch_warnings():  # torch is going to give them up
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(shape), 0.1, 0, torch.qint8)


def negative_definite(groups: int, d: int) -> torch.Tensor:
    return -torch.eye(d).repeat(groups, 1, 1)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("4.weight", lambda: torch.ones(8).to_sparse(), "'4.weight' is a tensor of torch.sparse"),
        ("4.weight", lambda: quantized(8), "'4.weight' is a quantized tensor"),
        ("4.weight", lambda: torch.ones(8, dtype=torch.complex64), "'4.weight' is of torch.comp"),
        ("4.weight", lambda: torch.ones(8).double() * 1e300, "'4.weight' is of torch.float64"),
        ("4.num_batches_tracked", lambda: torch.tensor(0.5), "num_batches_tracked' is of torch.fl"),
        ("4.running_var", lambda: torch.full((8,), math.nan), "'4'.*its running_var holds NaN"),
        ("4.running_var", lambda: -torch.ones(8), "'4'.*running_var holds -1, and no var"),
        ("4.running_mean", lambda: torch.full((8,), math.inf), "its running_mean holds NaN or inf"),
        ("1.running_mean", lambda: torch.full((8,), math.nan), "'1'.*its running_mean holds NaN"),
        ("1.running_cov", lambda: torch.full((3, 3, 3), math.inf), "running_cov holds NaN or inf"),
        ("1.running_cov", lambda: negative_definite(3, 3), "running_cov has the eigenvalue -1"),
        ("1.running_cov", lambda: torch.ones(3, 3, 3).triu(), "running_cov is not symmetric"),
        ("1.running_cov", lambda: torch.eye(3).repeat(3, 1, 1) + 0j, "running_cov' is of torch.co"),
        ("1.num_batches_tracked", lambda: torch.tensor(-1), "num_batches_tracked is -1"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("strict", [True, False])
def test_nothing_is_loaded_where_values_are_none_that_the_model_can_have(key, value, words, strict):
    model, other = network(), network()
    other(torch.randn(20, 8))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=words) as caught:
        isonorm.load_checkpoint(model, other.state_dict() | {key: value()}, strict=strict)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"running_var": torch.full((C,), math.nan)}, "running_var holds NaN or infinite"),
        ({"running_var": -torch.ones(C)}, "running_var holds -1, and no variance is negative"),
        ({"running_var": torch.ones(C, dtype=torch.int64)}, "running_var is of torch.int64"),
        ({"running_mean": torch.zeros(C, dtype=torch.int64)}, "running_mean is of torch.int64"),
        ({"running_var": torch.ones(1).expand(10**12)}, "running_var has shape"),
        ({"num_batches_tracked": torch.zeros(2)}, "num_batches_tracked has shape"),
        ({"running_projection": torch.ones(0, 0)}, "running_projection has shape \\(0, 0\\)"),
        ({"running_projection": torch.ones(())}, "running_projection has shape \\(\\)"),
        ({"running_wm": torch.ones(C)}, "running_wm has shape"),
        ({"running_wm": torch.full((3, D, D), math.nan)}, "running_wm holds NaN"),
        ({"running_cov": torch.eye(D).repeat(3, 1, 1), "running_mean": torch.zeros(3, D, 1),
          "sw_mean_weight": torch.tensor(0.5)}, "sw_mean_weight has shape"),
        ({"running_cov": negative_definite(3, D), "running_mean": torch.zeros(3, D, 1)},
         "running_cov has the eigenvalue -1"),
    ],
)  # fmt: skip
def test_statistics_of_other_formats_are_refused_for_the_right_reason(state, words):
    defaults = {"running_mean": torch.zeros(C), "weight": torch.ones(C), "bias": torch.zeros(C)}
    if "running_projection" in state:
        defaults["running_mean"] = torch.zeros(D, 1)
    elif not state.keys() & {"running_wm", "running_cov"}:
        defaults["running_var"] = torch.ones(C)
    elif "running_wm" in state:
        defaults["running_mean"] = torch.zeros(3, D, 1)
    model = model_with(isonorm.IterNorm(C, group_size=D, running="whitening"))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        ValueError, match=f"^cannot load '1' from the checkpoint: its {words}"
    ) as caught:
        isonorm.load_checkpoint(model, in_model(defaults | state))
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_statistics_of_data_load_whatever_they_were_rounded_to(dtype):
    model = nn.Sequential(isonorm.IterNorm(48), isonorm.DBN(48, group_size=7))
    direction, scales = torch.randn(1, 48), torch.logspace(-3, 1, 48)
    for _ in range(30):  # singular: one direction, of very different sizes
        model(torch.randn(64, 1) * direction * scales + 100)
    state = {key: value.to(dtype) for key, value in model.state_dict().items()}
    isonorm.load_checkpoint(
        nn.Sequential(isonorm.IterNorm(48), isonorm.DBN(48, group_size=7)), state
    )


@pytest.mark.parametrize("key", ["weight", "bias", "running_var", "num_batches_tracked"])
def test_complex_numbers_are_refused_in_every_format(key):
    """Imaginary parts of γ and β were left out, with a warning of torch at most."""
    model, state = nn.Sequential(isonorm.IterNorm(C)), nn.Sequential(nn.BatchNorm1d(C)).state_dict()
    before = copy.deepcopy(model.state_dict())
    state[f"0.{key}"] = state[f"0.{key}"] * (1 + 1j)
    with pytest.raises(ValueError, match=f"^'0.{key}' is of torch.complex64 in the checkpoint"):
        isonorm.load_checkpoint(model, state)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize("strict", [True, False])
def test_a_mean_without_its_covariance_is_refused(strict):
    state = network().state_dict()
    for key in ("1.running_cov", "3.running_cov"):
        del state[key]
    with pytest.raises(ValueError, match=r"'1'.*it has a running_mean without a running_cov"):
        isonorm.load_checkpoint(network(), state, strict=strict)


def test_nothing_is_loaded_into_a_lazy_model():
    with pytest.raises(ValueError, match="'weight' of the model is lazy: pass a batch through"):
        isonorm.load_checkpoint(nn.LazyLinear(3), nn.Linear(2, 3).state_dict())


def test_nothing_is_loaded_into_a_model_without_memory():
    with pytest.raises(ValueError, match=r"meta device, where values get lost.*to_empty"):
        isonorm.load_checkpoint(network().to("meta"), network().state_dict())


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (None, TypeError, "a path or a state dict; got NoneType"),
        ({7: torch.ones(3)}, ValueError, "the checkpoint lacks 0.weight"),
    ],
)
def test_what_is_no_checkpoint_is_refused(source, error, words):
    with pytest.raises(error, match=words):
        isonorm.load_checkpoint(network(), source)


def test_a_checkpoint_without_tensors_is_refused():
    with pytest.raises(ValueError, match="no tensors by name; its keys are epoch"):
        isonorm.load_checkpoint(nn.ReLU(), {"epoch": 3})


def test_a_model_without_norms_says_so():
    model = nn.Linear(3, 2)
    assert "no norms of isonorm" in str(isonorm.load_checkpoint(model, model.state_dict()))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: isonorm.IterNorm(C), "zca, eps=1e-05 and is newton with 5 steps, eps=1e-05"),
        (lambda: isonorm.DBN(C, method="pca"), "is pca"),
        (lambda: isonorm.DBN(C, eps=1.0), "is zca, eps=1"),
        (lambda: isonorm.DBN(C, method="polar"), None),
    ],
    ids=["newton", "pca", "eps", "the same by polynomials"],
)
def test_another_root_is_another_function(make, words, path):
    isonorm.save_checkpoint(nn.Sequential(isonorm.DBN(C)), path)
    model = nn.Sequential(make())
    if words is None:
        isonorm.load_checkpoint(model, path)
        return
    with pytest.raises(ValueError, match=words):
        isonorm.load_checkpoint(model, path)
    report = isonorm.load_checkpoint(model, path, strict=False)
    assert words in str(report)
