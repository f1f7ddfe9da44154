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


OPTIONS = "dbn:group_size=4:method=cholesky:eps=1e-3:affine=False"


def test_options_behind_a_name_are_keywords():
    expected = isonorm.DBN(8, group_size=4, method="cholesky", eps=1e-3, affine=False)
    assert repr(isonorm.create_norm(OPTIONS, 8)) == repr(expected)
    both = isonorm.create_norm("DBN:group_size=4:affine=False", 8, method="cholesky", eps=1e-3)
    assert repr(both) == repr(expected)
    assert isonorm.create_norm("dbn:group_size=None", 8).group_size is None


@pytest.mark.parametrize("to", ["dbn", isonorm.DBN], ids=str)
def test_convert_takes_options(to):
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.BatchNorm1d(6))
    isonorm.convert(model, to, group_size=4, method="cholesky")
    assert [(norm.group_size, norm.method) for norm in model] == [(4, "cholesky")] * 2
    named = torch.nn.Sequential(torch.nn.BatchNorm1d(8))
    isonorm.convert(named, "dbn:group_size=4:method=cholesky")
    assert repr(named[0]) == repr(model[0])


@pytest.mark.parametrize(
    ("to", "options", "error", "words"),
    [
        ("dbn", {"gropu_size": 4}, TypeError, "'gropu_size': did you mean 'group_size'"),
        ("dbn:gropu_size=4", {}, TypeError, "'gropu_size': did you mean 'group_size'"),
        (isonorm.DBN, {"xyz": 4}, TypeError, "'xyz': there are group_size, method, num_iters,"),
        ("dbn:group_size", {}, ValueError, "written name:option=value.*got 'dbn:group_size'"),
        ("dbn:eps=1:eps=2", {}, ValueError, "each once"),
        ("dbn:eps=1", {"eps": 1}, TypeError, "eps is given twice"),
        ("dnb:eps=1", {}, ValueError, "'dnb'; did you mean 'dbn'"),
        ("equinorm", {"eps": 1}, TypeError, "leave eps out"),
        (lambda channels: isonorm.DBN(channels), {"eps": 1}, TypeError, "let it take eps itself"),
    ],
)
def test_wrong_options_are_answered_before_anything_changes(to, options, error, words):
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(8))
    before = model[0]
    with pytest.raises(error, match=words):
        isonorm.convert(model, to, **options)
    assert model[0] is before


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
