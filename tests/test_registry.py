"""Normalizations by name."""

from __future__ import annotations

import pytest
import torch

import isonorm
from isonorm.registry import REGISTRY

NAMES = {
    *("iternorm", "dbn", "batchnorm", "layernorm", "instancenorm", "groupnorm"),
    *("batchgroupnorm", "positionalnorm", "groupwhitening", "instancewhitening"),
}


def test_all_named_layers_are_listed():
    assert set(isonorm.list_norms()) >= NAMES
    assert len(isonorm.list_norms()) == len(set(isonorm.list_norms()))


@pytest.mark.parametrize(
    "pattern, expected",
    [
        ("*whiten*", ["groupwhitening", "instancewhitening"]),
        ("iter*", ["iternorm"]),
        ("DBN", ["dbn"]),
        ("nothing*", []),
    ],
)
def test_patterns(pattern, expected):
    assert isonorm.list_norms(pattern) == expected


@pytest.mark.parametrize("name", isonorm.list_norms())
def test_names_are_the_class_names_in_lower_case(name):
    entry = REGISTRY[name]
    assert entry.layer.__name__.lower() == name
    assert getattr(isonorm, entry.layer.__name__) is entry.layer
    assert any(year in entry.paper for year in map(str, range(2015, 2030)))


def test_names_are_found_in_any_case():
    assert type(isonorm.create_norm("IterNorm", 8)) is isonorm.IterNorm


@pytest.mark.parametrize("name", isonorm.list_norms())
def test_device_and_dtype_reach_every_layer(name):
    groups = (
        {"num_groups": 2} if "num_groups" in REGISTRY[name].layer.__init__.__annotations__ else {}
    )
    layer = isonorm.create_norm(name, 8, device="meta", dtype=torch.float64, **groups)
    assert all(p.is_meta and p.dtype == torch.float64 for p in layer.parameters())
    assert all(b.is_meta for b in layer.buffers())


@pytest.mark.parametrize(
    "name, hint",
    [
        ("iternrom", "did you mean 'iternorm'? isonorm.list_norms() lists all."),
        ("batchnrom", "did you mean 'batchnorm'?"),
        ("xyz", "iternorm, dbn, batchnorm"),
        (3, "iternorm"),
    ],
)
def test_unknown_names(name, hint):
    with pytest.raises(ValueError, match="no normalization called") as caught:
        isonorm.create_norm(name, 8)
    assert repr(name) in str(caught.value) and hint in str(caught.value)


@pytest.fixture
def registry():
    """The names as they are, and were after the test."""
    before = dict(REGISTRY)
    yield REGISTRY
    REGISTRY.clear()
    REGISTRY.update(before)


def test_a_layer_of_ones_own(registry):
    class Halving(torch.nn.Module):
        def __init__(self, num_features):
            super().__init__()
            self.num_features = num_features

        def forward(self, x):
            return x / 2

    assert isonorm.register_norm(Halving, paper="nobody's") is Halving
    isonorm.register_norm(Halving)  # again
    assert "halving" in isonorm.list_norms()
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4))
    isonorm.convert(model, "halving")
    assert isinstance(model[0], Halving) and model[0].num_features == 4


@pytest.mark.parametrize(
    ("layer", "error", "words"),
    [
        (torch.nn.ReLU(), TypeError, "takes a subclass"),
        (type("IterNorm", (torch.nn.Module,), {}), ValueError, "'iternorm' is already the name"),
    ],
)
def test_what_cannot_be_registered(layer, error, words, registry):
    with pytest.raises(error, match=words):
        isonorm.register_norm(layer)
    assert registry["iternorm"].layer is isonorm.IterNorm


@pytest.mark.parametrize(("short", "name"), [("bn", "BatchNorm"), ("LN", "LayerNorm")])
def test_short_names_of_the_literature_are_known(short, name):
    assert type(isonorm.create_norm(short, 8)).__name__ == name


def test_a_class_of_ones_own_goes_before_a_short_name():
    class BN(isonorm.IterNorm):
        pass

    isonorm.register_norm(BN)
    try:
        assert type(isonorm.create_norm("bn", 8)) is BN
    finally:
        REGISTRY.pop("bn")
