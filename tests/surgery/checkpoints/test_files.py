"""Checkpoints written and read, damaged, or not written at all."""

from __future__ import annotations

import copy
import json
import os
import sys

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import isonorm
from tests.surgery.checkpoints.states import Holder, network


def test_what_is_written_is_read_back(path):
    model, x = network(), torch.randn(20, 8)
    model(x)
    isonorm.save_checkpoint(model, path)
    other = network()
    report = isonorm.load_checkpoint(other, str(path))
    assert [row.format for row in report.norms] == ["isonorm", "isonorm"]
    torch.testing.assert_close(other.eval()(x), model.eval()(x))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_file_has_the_rights_of_any_new_file_and_the_umask_is_left_alone(path, monkeypatch):
    model = network()
    before = os.umask(0o027)
    try:
        plain = path.with_name("plain")
        plain.touch()
        monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask is every thread's"))
        isonorm.save_checkpoint(model, path)
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert path.stat().st_mode == plain.stat().st_mode == 0o100640


def test_versions_are_written_with_the_tensors(path):
    model = network()
    isonorm.save_checkpoint(model, path)
    if path.suffix == ".safetensors":
        size = int.from_bytes(path.read_bytes()[:8], "little")
        header = json.loads(path.read_bytes()[8 : 8 + size])
        versions = json.loads(header["__metadata__"]["isonorm.versions"])
    else:
        versions = torch.load(path, weights_only=True)._metadata
    assert versions["1"]["version"] == isonorm.IterNorm._version


@pytest.mark.parametrize(
    "versions",
    ["[1]", "null", "5", '{"1": null}', '{"1": {"version": "2"}}', '{"": {"root_in_eval": 3}}'],
)
def test_versions_that_are_no_table_are_refused_in_one_sentence(versions, tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    path, model = tmp_path / "model.safetensors", network()
    tensors = {name: value.clone() for name, value in network().state_dict().items()}
    save_file(tensors, path, metadata={"format": "pt", "isonorm.versions": versions})
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        ValueError, match=r"^the checkpoint's versions of layers are damaged: .*\.$"
    ):
        isonorm.load_checkpoint(model, path)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_root_with_an_unprintable_name_is_escaped():
    model = network()
    state = model.state_dict()
    state._metadata["1"]["root_in_eval"] = "\x1b]0;title\x07\ud7fc"
    with pytest.raises(ValueError, match=r"its root was '\\x1b\]0;title\\x07\\ud7fc' and is"):
        isonorm.load_checkpoint(model, state)


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


def test_files_that_hold_more_than_tensors_are_refused(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"state_dict": {}, "args": object}, path)
    with pytest.raises(ValueError, match="more than tensors"):
        isonorm.load_checkpoint(network(), path)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at '.*none\.pt'"):
        isonorm.load_checkpoint(network(), tmp_path / "none.pt")


def test_damaged_files_are_refused(path):
    isonorm.save_checkpoint(network(), path)
    whole = path.read_bytes()
    for damaged in (b"", b"garbage" * 10, whole[:-400], whole[:100]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{path.name}' is damaged or not a checkpoint"):
            isonorm.load_checkpoint(network(), path)


def test_files_of_something_else_are_refused(tmp_path):
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


def test_what_cannot_be_written_is_refused_and_leaves_no_file(path):
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


def test_an_extra_state_that_its_module_refuses_leaves_the_model_as_it_was(tmp_path):
    class Choosy(Stateful):
        def set_extra_state(self, state):
            if state["epoch"] > 3:
                raise OverflowError("epoch")
            self.state = state

    model = nn.Sequential(isonorm.IterNorm(2), Choosy(), nn.Linear(2, 2))
    before = copy.deepcopy(model.state_dict())
    other = nn.Sequential(isonorm.IterNorm(2), Choosy(), nn.Linear(2, 2))
    other[0](torch.randn(9, 2))
    with pytest.raises(OverflowError, match="epoch"):
        isonorm.load_checkpoint(model, other.state_dict() | {"1._extra_state": {"epoch": 4}})
    assert model[1].state == {"epoch": 3}
    for key, value in model.state_dict().items():
        assert not isinstance(value, torch.Tensor) or torch.equal(value, before[key])


def test_without_safetensors_the_extra_to_install_is_named(tmp_path, monkeypatch):
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'pip install "isonorm\[lab\]"'):
        isonorm.save_checkpoint(isonorm.IterNorm(3), tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


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
