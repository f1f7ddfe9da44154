"""Public formats, written down here from their projects' definitions, and files of both kinds."""

from __future__ import annotations

import copy
import json
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import isonorm

C, D = 12, 4  # channels, and channels a group


@pytest.fixture
def x():
    return torch.randn(6, C, 5, 5)


def affine() -> dict[str, torch.Tensor]:
    return {"weight": torch.randn(1, C, 1, 1), "bias": torch.randn(1, C, 1, 1)}


def symmetric(*shape: int) -> torch.Tensor:
    m = torch.randn(shape)
    return m @ m.mT / shape[-1] + 0.5 * torch.eye(shape[-1])


def whitened(x, w, mean, state):
    """W(x − μ)·γ + β, group by group, W (g, d, d) and μ (g, d, 1)."""
    grouped = x.transpose(0, 1).reshape(len(w), w.shape[-1], -1)
    y = (w @ (grouped - mean)).view(C, len(x), *x.shape[2:]).transpose(0, 1)
    return y * state["weight"].view(1, C, 1, 1) + state["bias"].view(1, C, 1, 1)


def model_with(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Identity(), norm).eval()


def in_model(state: dict) -> dict:
    return {f"1.{name}": value for name, value in state.items()}


# --- formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [isonorm.IterNorm, isonorm.DBN], ids=["iternorm", "dbn"])
def test_iternorm_pytorch(x, kind):
    state = {"running_mean": torch.randn(3, D, 1), "running_wm": symmetric(3, D, D)} | affine()
    model = model_with(kind(C, group_size=D, running="whitening"))
    report = isonorm.load_checkpoint(model, in_model(state))
    assert report.norms[0].format == "IterNorm-pytorch" and "same in eval" in str(report)
    expected = whitened(x, state["running_wm"], state["running_mean"], state)
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)


def test_dbn_of_iternorm_pytorch(x):
    """One projection, (d, d), for all groups."""
    state = {"running_mean": torch.randn(D, 1), "running_projection": symmetric(1, D, D)[0]}
    state |= affine()
    model = model_with(isonorm.DBN(C, group_size=D, running="whitening"))
    report = isonorm.load_checkpoint(model, in_model(state))
    assert "DBN" in report.norms[0].format and "all 3 groups" in report.norms[0].note
    w, mean = state["running_projection"].expand(3, D, D), state["running_mean"].expand(3, D, 1)
    torch.testing.assert_close(model(x), whitened(x, w, mean, state), rtol=1e-5, atol=1e-5)


def test_switchable_whitening(x):
    state = {"running_mean": torch.randn(3, D, 1), "running_cov": symmetric(3, D, D)}
    state |= {"weight": torch.randn(C), "bias": torch.randn(C)}
    state |= {"sw_mean_weight": torch.zeros(2), "sw_var_weight": torch.tensor([60.0, 0.0])}
    model = model_with(isonorm.IterNorm(C, group_size=D, num_iters=5))
    report = isonorm.load_checkpoint(model, in_model(state))
    note = report.norms[0].note
    assert "50% of the mean" in note and "100% of the covariance" in note
    sigma = state["running_cov"] + 1e-5 * torch.eye(D)
    tr = sigma.diagonal(dim1=1, dim2=2).sum(1).view(-1, 1, 1)
    p = torch.eye(D).expand(3, D, D)
    for _ in range(5):
        p = 1.5 * p - 0.5 * p @ p @ p @ sigma / tr
    expected = whitened(x, p / tr.sqrt(), state["running_mean"], state)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "norm",
    [
        partial(isonorm.IterNorm, group_size=5),
        partial(isonorm.IterNorm, group_size=5, running="whitening"),
        partial(isonorm.DBN, group_size=5),
        isonorm.BatchNorm,
    ],
    ids=["iternorm", "iternorm-w", "dbn", "batchnorm"],
)
def test_torchs_batchnorm(x, norm):
    bn = nn.BatchNorm2d(C)
    nn.init.normal_(bn.weight)
    for _ in range(3):
        bn(x * 3 + 1)
    bn.eval()
    model = model_with(norm(C))
    report = isonorm.load_checkpoint(model, nn.Sequential(nn.Identity(), bn).state_dict())
    assert report.norms[0].format == "torch's BatchNorm"
    torch.testing.assert_close(model(x), bn(x), rtol=1e-5, atol=1e-5)
    assert model[1].num_batches_tracked == 3


def test_isonorms_own(x):
    model = model_with(isonorm.IterNorm(C, group_size=5))
    model.train()(x)
    other = model_with(isonorm.IterNorm(C, group_size=5))
    report = isonorm.load_checkpoint(other, model.state_dict())
    assert report.norms[0].format == "isonorm"
    torch.testing.assert_close(other(x), model.eval()(x))


def test_a_norm_that_is_the_whole_model(x):
    model, bn = isonorm.IterNorm(C).eval(), nn.BatchNorm2d(C).eval()
    assert "(model)" in str(isonorm.load_checkpoint(model, bn.state_dict()))
    torch.testing.assert_close(model(x), bn(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wrapped", ["state_dict", "module", "_orig_mod"])
def test_what_training_scripts_put_around(x, wrapped):
    model = nn.Sequential(nn.Conv2d(C, 4, 1), isonorm.IterNorm(4))
    state = copy.deepcopy(model.state_dict())
    if wrapped == "state_dict":
        source = {"epoch": 3, "state_dict": state}
    else:
        source = {f"{wrapped}.{name}": value for name, value in state.items()}
    nn.init.zeros_(model[0].weight)
    isonorm.load_checkpoint(model, source)
    assert torch.equal(model[0].weight, state["0.weight"])


# --- what does not fit ----------------------------------------------------------------------------


def itn_state() -> dict:
    return {"running_mean": torch.zeros(3, D, 1), "running_wm": symmetric(3, D, D)} | affine()


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
        (lambda: itn_state() | {"extra": torch.ones(1)}, "has, and the model has not, 1.extra"),
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
        ("2.bias", "x", "'2.bias' is no tensor in the checkpoint, but 'x'"),
        ("1.running_mean", None, "'1.running_mean' is no tensor"),
        ("1.running_var", 3, "'1.running_var' is no tensor"),
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
def test_what_is_no_checkpoint(source, error, words):
    with pytest.raises(error, match=words):
        isonorm.load_checkpoint(network(), source)


def test_a_checkpoint_without_tensors():
    with pytest.raises(ValueError, match="no tensors by name; its keys are epoch"):
        isonorm.load_checkpoint(nn.ReLU(), {"epoch": 3})


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture(params=["model.pt", "model.safetensors"])
def path(request, tmp_path):
    if request.param.endswith("safetensors"):
        pytest.importorskip("safetensors")
    return tmp_path / request.param


def network() -> nn.Module:
    norm = isonorm.IterNorm(8, group_size=3)
    return nn.Sequential(nn.Linear(8, 8), norm, nn.Linear(8, 8), norm, nn.BatchNorm1d(8))


def test_out_and_in(path):
    model, x = network(), torch.randn(20, 8)
    model(x)
    isonorm.save_checkpoint(model, path)
    other = network()
    report = isonorm.load_checkpoint(other, str(path))
    assert [row.format for row in report.norms] == ["isonorm", "isonorm"]
    torch.testing.assert_close(other.eval()(x), model.eval()(x))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o044  # others may read it, as any file


def test_versions_travel(path):
    model = network()
    isonorm.save_checkpoint(model, path)
    if path.suffix == ".safetensors":
        size = int.from_bytes(path.read_bytes()[:8], "little")
        header = json.loads(path.read_bytes()[8 : 8 + size])
        versions = json.loads(header["__metadata__"]["isonorm.versions"])
    else:
        versions = torch.load(path, weights_only=True)._metadata
    assert versions["1"]["version"] == isonorm.IterNorm._version


def test_writing_that_fails_leaves_the_old_file(path, monkeypatch):
    model = network()
    isonorm.save_checkpoint(model, path)
    before = path.read_bytes()
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    if path.suffix == ".safetensors":
        import safetensors.torch

        monkeypatch.setattr(
            safetensors.torch, "save_file", lambda *_, **__: (_ for _ in ()).throw(OSError("disk"))
        )
    with pytest.raises(OSError, match="disk"):
        isonorm.save_checkpoint(model, path)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == [path.name]


def test_files_that_hold_more_than_tensors(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"state_dict": {}, "args": object}, path)
    with pytest.raises(ValueError, match="more than tensors"):
        isonorm.load_checkpoint(network(), path)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at '.*none\.pt'"):
        isonorm.load_checkpoint(network(), tmp_path / "none.pt")


def test_damaged_files(path):
    isonorm.save_checkpoint(network(), path)
    whole = path.read_bytes()
    for damaged in (b"", b"garbage" * 10, whole[:-400], whole[:100]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{path.name}' is damaged, or no checkpoint"):
            isonorm.load_checkpoint(network(), path)


def test_files_of_something_else(tmp_path):
    torch.save(torch.ones(3), tmp_path / "model.pt")
    with pytest.raises(ValueError, match="holds a Tensor, but"):
        isonorm.load_checkpoint(network(), tmp_path / "model.pt")
    with pytest.raises(ValueError, match="is a folder"):
        isonorm.load_checkpoint(network(), tmp_path)


class Stateful(nn.Module):
    def get_extra_state(self):
        return {"epoch": 3}

    def set_extra_state(self, state):
        self.state = state


def test_what_cannot_be_written(path):
    with pytest.raises(FileNotFoundError, match=r"no folder '.*none'"):
        isonorm.save_checkpoint(network(), path.parent / "none" / path.name)
    with pytest.raises(ValueError, match="is a folder"):
        isonorm.save_checkpoint(network(), path.parent)
    with pytest.raises(ValueError, match=r"'0\.weight' is on the meta device"):
        isonorm.save_checkpoint(network().to("meta"), path)
    model = nn.Sequential(Stateful())
    if path.suffix == ".safetensors":
        with pytest.raises(ValueError, match=r"tensors alone.*'0\._extra_state'.*\*\.pt"):
            isonorm.save_checkpoint(model, path)
    assert not list(path.parent.iterdir())


def test_extra_states_travel(tmp_path):
    model = nn.Sequential(Stateful(), nn.Linear(2, 2))
    isonorm.save_checkpoint(model, tmp_path / "model.pt")
    isonorm.load_checkpoint(model, tmp_path / "model.pt")
    assert model[0].state == {"epoch": 3}


def test_without_safetensors(tmp_path, monkeypatch):
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'pip install "isonorm\[lab\]"'):
        isonorm.save_checkpoint(isonorm.IterNorm(3), tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


class Holder(nn.Module):
    """A model whose only child is called as wrappers call theirs."""

    def __init__(self):
        super().__init__()
        self.module = nn.Sequential(nn.Conv2d(C, 4, 1), isonorm.IterNorm(4))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda: nn.DataParallel(Holder().module),
        lambda: torch.compile(Holder().module, backend="eager"),
        lambda: AveragedModel(Holder().module),
        Holder,
    ],
    ids=["DataParallel", "compiled", "averaged", "a child called module"],
)
def test_what_was_saved_from_a_model_loads_into_it(wrap, tmp_path):
    model = wrap()
    isonorm.save_checkpoint(model, tmp_path / "model.pt")
    saved = copy.deepcopy(model.state_dict())
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    isonorm.load_checkpoint(model, tmp_path / "model.pt")
    assert all(torch.equal(value, saved[key]) for key, value in model.state_dict().items())


def test_an_averaged_model_loads_into_the_plain_one(x):
    model = Holder().module
    isonorm.load_checkpoint(model, AveragedModel(other := Holder().module).state_dict())
    assert torch.equal(model[0].weight, other[0].weight)


def test_norms_of_torch_without_statistics_load():
    saved = nn.Sequential(nn.InstanceNorm2d(C, affine=True))
    nn.init.uniform_(saved[0].weight)
    model = nn.Sequential(isonorm.InstanceNorm(C))
    isonorm.load_checkpoint(model, saved.state_dict())
    assert torch.equal(model[0].weight, saved[0].weight)


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
