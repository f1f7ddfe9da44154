"""Checkpoints with other content, in ``load_checkpoint`` and in the lab's training loop."""

from __future__ import annotations

import copy
import io
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch import Tensor, nn

import isonorm
from isonorm.lab import checkpoints
from isonorm.lab.data import DataSet
from isonorm.lab.models import MLP
from isonorm.lab.plan import Plan
from isonorm.lab.train import seeded, train
from tests.fuzz.edits import (
    BYTE_EDITS,
    JSON_EDITS,
    ODD,
    TENSORS_EDITS,
    Refused,
    answer,
    edit_json,
    edit_tensors,
    edited,
)
from tests.lab import forgery

C, D = 6, 3


def network(kind: int = 0) -> nn.Module:
    norm = [
        lambda: isonorm.IterNorm(C, group_size=4),
        lambda: isonorm.DBN(C, group_size=D, running="whitening"),
        lambda: isonorm.IterNorm(C, group_size=D),
        lambda: isonorm.IterNorm(C, group_size=D, running="whitening"),
        lambda: isonorm.BatchNorm(C),
    ][kind]()
    return nn.Sequential(nn.Linear(4, C), norm, nn.BatchNorm1d(C))


@cache
def trained(kind: int) -> Mapping[str, Tensor]:
    """Return the state of a network that has seen data."""
    torch.manual_seed(kind)
    model = network(kind)
    for _ in range(5):
        model(torch.randn(20, 4) * 3 + 1)
    return model.state_dict()


def foreign(name: str) -> tuple[dict[str, Any], int]:
    """Return a state in another project's format, and the kind of network that it fits."""
    torch.manual_seed(1)
    m = torch.randn(C // D, D, D)
    matrices = m @ m.mT + torch.eye(D)
    mean = torch.randn(C // D, D, 1)
    affine = {"weight": torch.randn(1, C, 1, 1), "bias": torch.randn(1, C, 1, 1)}
    norm, kind = {
        "BatchNorm": (nn.BatchNorm1d(C).state_dict(), 0),
        "IterNorm-pytorch": ({"running_mean": mean, "running_wm": matrices, **affine}, 3),
        "its DBN": ({"running_mean": mean[0], "running_projection": matrices[0], **affine}, 1),
        "Switchable": ({"running_mean": mean, "running_cov": matrices, **affine,
                        "sw_mean_weight": torch.ones(2), "sw_var_weight": torch.zeros(2)}, 2),
    }[name]  # fmt: skip
    others = {key: value for key, value in trained(0).items() if not key.startswith("1.")}
    return {**others, **{f"1.{key}": value for key, value in norm.items()}}, kind


FORMATS = ("own 0", "own 1", "own 2", "own 3", "own 4",
           "BatchNorm", "IterNorm-pytorch", "its DBN", "Switchable")  # fmt: skip


def state_of(name: str) -> tuple[dict[str, Any], int]:
    if name.startswith("own"):
        kind = int(name[-1])
        return copy.deepcopy(trained(kind)), kind  # type: ignore[return-value]
    return foreign(name)


def check_loading(model: nn.Module, source: Any, strict: bool) -> Any:
    """Load, and check that all was loaded and makes sense, or nothing was."""
    before = copy.deepcopy(model.state_dict())
    report = answer(lambda: isonorm.load_checkpoint(model, source, strict=strict))
    after = model.state_dict()
    assert after.keys() == before.keys()
    for key, value in after.items():
        assert value.dtype == before[key].dtype and value.shape == before[key].shape
        if isinstance(report, Refused):
            assert torch.equal(value, before[key]), key
        elif "running" in key:
            assert value.isfinite().all(), key
        if key.endswith("running_cov"):
            wide = value.double()
            trace = wide.diagonal(dim1=1, dim2=2).sum(-1).clamp(min=1e-30)
            assert (torch.linalg.eigvalsh(wide)[:, 0] >= -0.01 * trace).all()
        elif key.endswith("running_var"):
            assert (value >= 0).all()
    if not isinstance(report, Refused):
        str(report)
        model.eval()(torch.randn(3, 4))
    return report


@given(name=st.sampled_from(FORMATS), edits=TENSORS_EDITS, strict=st.booleans(),
       around=st.sampled_from(["", "state_dict", "module"]))  # fmt: skip
def test_states(name, edits, strict, around):
    """Attacks load_checkpoint by a state dict's tensors: it loads all or refuses in a sentence."""
    state, kind = state_of(name)
    edit_tensors(state, edits)
    if around == "state_dict":
        state = {"epoch": 3, "state_dict": state}
    elif around:
        state = {f"{around}.{key}": value for key, value in state.items()}
    check_loading(network(kind), state, strict)


@given(name=st.sampled_from(FORMATS[:5]), strict=st.booleans(), versions=ODD,
       edits=st.one_of(st.none(), JSON_EDITS))  # fmt: skip
def test_versions(name, strict, versions, edits):
    """Attacks load_checkpoint by what a state dict says of its layers' versions."""
    state, kind = state_of(name)
    told = state._metadata  # type: ignore[attr-defined]
    state._metadata = versions if edits is None else edit_json(dict(told), edits)  # type: ignore[attr-defined]
    check_loading(network(kind), state, strict)


@cache
def file_of(kind: int, suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        model = network(kind)
        model.load_state_dict(trained(kind))
        isonorm.save_checkpoint(model, Path(folder) / f"model.{suffix}")
        return (Path(folder) / f"model.{suffix}").read_bytes()


@given(kind=st.integers(0, 4), suffix=st.sampled_from(["pt", "safetensors"]), edits=BYTE_EDITS,
       early=st.booleans(), strict=st.booleans())  # fmt: skip
def test_checkpoint_files(kind, suffix, edits, early, strict):
    """Attacks load_checkpoint by a file's bytes: it loads all or refuses in a sentence."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model.{suffix}"
        path.write_bytes(edited(file_of(kind, suffix), edits, early))
        check_loading(network(kind), path, strict)


@given(name=st.sampled_from(FORMATS), edits=TENSORS_EDITS, strict=st.booleans(),
       around=st.sampled_from(["", "state_dict"]), value=ODD)  # fmt: skip
def test_torch_files(name, edits, strict, around, value):
    """Attacks load_checkpoint by what torch.save writes: tensors, and values of other kinds."""
    state, kind = state_of(name)
    edit_tensors(state, edits)
    file = io.BytesIO()
    torch.save({"other": value, around: state} if around else state, file)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        path.write_bytes(file.getvalue())
        check_loading(network(kind), path, strict)


# --- the lab's ------------------------------------------------------------------------------------

PLANS = {
    "sgd": Plan(epochs=2, batch_size=8, lr=0.1, momentum=0.9, mixup_alpha=1.0),
    "adam": Plan(epochs=2, batch_size=8, lr=0.1, optimizer="adam"),
}


@cache
def few() -> DataSet:
    images = torch.arange(16 * 16).remainder(251).byte().view(16, 1, 4, 4)
    labels = torch.arange(16) % 3
    return DataSet("few", images, labels, images, labels, 3)


def small() -> nn.Module:
    return seeded(0, lambda: MLP(16, 3, hidden=(4,), norm="iternorm"))


@cache
def training(optimizer: str) -> bytes:
    """Return the checkpoint of a training after its first epoch."""
    with tempfile.TemporaryDirectory() as folder:
        path, kept = Path(folder) / "checkpoint", []
        train(small(), few(), PLANS[optimizer], seed=0, checkpoint=path,
              on_epoch=lambda epoch: kept.append(path.read_bytes()))  # fmt: skip
        return kept[0]


def check_resuming(path: Path, optimizer: str) -> Any:
    """Go on with a training, and check that it ends, or that nothing has changed."""
    model = small()
    before = copy.deepcopy(model.state_dict())
    result = answer(lambda: train(model, few(), PLANS[optimizer], seed=0, checkpoint=path))
    if isinstance(result, Refused):
        assert str(path) in result.sentence and "remove it to begin that" in result.sentence
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    else:
        assert [epoch.number for epoch in result.epochs] in ([1], [1, 2])
    return result


@given(optimizer=st.sampled_from([*PLANS]), edits=BYTE_EDITS, early=st.booleans())
def test_training_files(optimizer, edits, early):
    """Attacks a training's checkpoint by its bytes: any other than the written ones are refused."""
    whole = training(optimizer)
    content = edited(whole, edits, early)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        path.write_bytes(content)
        found = answer(lambda: checkpoints.Checkpoint(path))
        assert isinstance(found, Refused) == (content != whole)


@given(optimizer=st.sampled_from([*PLANS]), edits=st.one_of(st.none(), JSON_EDITS),
       tensors=st.one_of(st.just([]), TENSORS_EDITS))  # fmt: skip
def test_forged_trainings(optimizer, edits, tensors):
    """Attacks a training by a checkpoint of other content whose digest is right."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        path.write_bytes(training(optimizer))
        rest, held = forgery.parts_of(path)
        if edits is not None:
            rest = edit_json(rest, edits)
        edit_tensors(held, tensors, plain=True)
        forgery.write(path, rest, held)
        check_resuming(path, optimizer)
