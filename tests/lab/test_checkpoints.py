"""A checkpoint is what was written, and of this training; or it is refused and nothing changes."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from isonorm.lab import checkpoints
from isonorm.lab.models import MLP
from isonorm.lab.plan import Plan
from isonorm.lab.train import seeded, train
from tests.lab import forgery

PLAN = Plan(epochs=3, batch_size=50, lr=0.1, momentum=0.9, mixup_alpha=1.0)


def network() -> nn.Module:
    return MLP(64, 10, hidden=(4,), norm="iternorm")


@pytest.fixture(scope="module")
def few(data):
    """Data for two steps an epoch."""
    few = {f"{part}_{kind}": getattr(data, f"{part}_{kind}")[:120]
           for part in ("train", "test") for kind in ("images", "labels")}  # fmt: skip
    return replace(data, **few)


@pytest.fixture(scope="module")
def written(few, tmp_path_factory) -> bytes:
    """The checkpoint of two of the three epochs."""
    path = tmp_path_factory.mktemp("checkpoint") / "checkpoint.safetensors"
    short = replace(PLAN, epochs=2)
    train(seeded(0, network), few, short, seed=0, checkpoint=path)
    return path.read_bytes()


@pytest.fixture
def path(written, tmp_path) -> Path:
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(written)
    return path


def refused(path: Path, few) -> str:
    model = seeded(0, network)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError) as caught:
        train(model, few, PLAN, seed=0, checkpoint=path)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    sentence = str(caught.value)
    assert sentence.startswith(f"{path} cannot be resumed from (") and "\n" not in sentence
    assert sentence.endswith("remove it to begin that training again.")
    return sentence


def test_what_is_forged_without_a_change_is_resumed(path, few):
    forgery.edit(path, lambda rest, tensors: None)
    result = train(seeded(0, network), few, PLAN, seed=0, checkpoint=path)
    assert [epoch.number for epoch in result.epochs] == [1, 2, 3]


def test_a_flipped_bit_is_refused_wherever_it_is(path, few):
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    last = [size + 8, len(whole) - 1]  # of the tensors
    places = [*range(0, 8), *range(8, size + 8, size // 40), *range(*last, len(whole) // 40), *last]
    for number, place in enumerate(places):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << number % 8
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match=r"cannot be resumed from .*remove it to begin"):
            checkpoints.Checkpoint(path)
    assert "the digest differs" in refused(path, few)  # in a weight


def test_a_checkpoint_of_an_earlier_version_is_refused(path, few):
    rest, tensors = forgery.parts_of(path)
    path.write_bytes(safetensors.torch.save(tensors, {"isonorm": json.dumps(rest)}))
    assert "it has no digest, as those of earlier versions" in refused(path, few)


def _wide(rest, tensors):
    tensors["model/network.fc.weight"] = tensors["model/network.fc.weight"].double()


DAMAGE = {
    "no notes": lambda rest, tensors: rest.pop("notes"),
    "notes are a list": lambda rest, tensors: rest.update(notes=[1]),
    "no curve": lambda rest, tensors: rest["notes"].pop("curve"),
    "a curve of words": lambda rest, tensors: rest["notes"].update(curve="ab"),
    "an epoch lacks its loss": lambda rest, tensors: rest["notes"]["curve"][0].pop("train_loss"),
    "an epoch has more": lambda rest, tensors: rest["notes"]["curve"][0].update(other=1.0),
    "a loss is text": lambda rest, tensors: rest["notes"]["curve"][1].update(train_loss="low"),
    "an epoch twice": lambda rest, tensors: rest["notes"]["curve"][1].update(number=1),
    "too many epochs": lambda rest, tensors: rest["notes"]["curve"].extend(
        [{**rest["notes"]["curve"][0], "number": number} for number in (3, 4)]
    ),
    "no order": lambda rest, tensors: rest["notes"].update(batches=None),
    "a position of text": lambda rest, tensors: rest["notes"]["batches"].update(position="0"),
    "an epoch below 0": lambda rest, tensors: rest["notes"]["batches"].update(epoch=-1),
    "no generator": lambda rest, tensors: rest["notes"]["batches"].pop("generator"),
    "a generator of 3": lambda rest, tensors: rest["notes"]["batches"].update(generator=3),
    "a short generator": lambda rest, tensors: tensors.update(
        {"notes/batches/generator": tensors["notes/batches/generator"][:-1]}
    ),
    "a generator of zeros": lambda rest, tensors: tensors["notes/batches/generator"].zero_(),
    "no mixup": lambda rest, tensors: rest["notes"].update(mixup=None),
    "no model": lambda rest, tensors: rest.update(model=None),
    "a tensor is not there": lambda rest, tensors: tensors.pop("model/network.fc.weight"),
    "a tensor's name is a list": lambda rest, tensors: rest["model"].update(
        {"network.fc.weight": {"__tensor__": [1]}}
    ),
    "a weight is missing": lambda rest, tensors: rest["model"].pop("network.fc.weight"),
    "a weight of another shape": lambda rest, tensors: tensors.update(
        {"model/network.fc.bias": torch.ones(3)}
    ),
    "a weight of another dtype": _wide,
    "a weight is a number": lambda rest, tensors: rest["model"].update({"network.fc.bias": 1.0}),
    "the optimizer is a list": lambda rest, tensors: rest.update(optimizer=[]),
    "no groups": lambda rest, tensors: rest["optimizer"].pop("param_groups"),
    "groups of None": lambda rest, tensors: rest["optimizer"].update(param_groups=[None]),
    "no state of a weight": lambda rest, tensors: rest["optimizer"]["state"].pop(
        "network.fc.weight"
    ),
    "an empty state": lambda rest, tensors: rest["optimizer"]["state"].update(
        {"network.fc.weight": {}}
    ),
    "a momentum of text": lambda rest, tensors: rest["optimizer"]["param_groups"][0].update(
        momentum="0.9"
    ),
    "another weight decay": lambda rest, tensors: rest["optimizer"]["param_groups"][0].update(
        weight_decay=3.0
    ),
    "parameters in another order": lambda rest, tensors: rest["optimizer"]["param_groups"][0][
        "params"
    ].reverse(),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_other_content_is_refused_in_one_sentence(damage, path, few):
    forgery.edit(path, damage)
    refused(path, few)


def test_a_refusal_leaves_the_optimizer_as_it_was(path):
    model = network()
    optimizer = replace(PLAN, weight_decay=1e-2).make_optimizer(model)
    with pytest.raises(ValueError, match="cannot be resumed from"):
        checkpoints.Checkpoint(path).load_into(model, optimizer)
    assert not optimizer.state and optimizer.param_groups[0]["weight_decay"] == 1e-2
