"""The layers with names: their defaults, what they are compositions of, and what they print."""

from __future__ import annotations

import inspect
from functools import partial
from math import inf

import pytest
import torch
from torch import nn

import isonorm
from isonorm import Normalize, area, functional, operation


def center_without_gain(num_features: int, **options) -> Normalize:
    norm = Normalize(num_features, operation="center", **options)
    norm.weight = None
    return norm


COMPOSITIONS = [
    pytest.param(
        partial(isonorm.IterNorm, group_size=5, num_iters=7),
        partial(Normalize, area=area.batch(5), operation=operation.whiten("newton", 7)),
        id="iternorm",
    ),
    pytest.param(
        partial(isonorm.DBN, group_size=5, method="cholesky"),
        partial(Normalize, area=area.batch(5), operation=operation.whiten("cholesky")),
        id="dbn",
    ),
    pytest.param(isonorm.BatchNorm, Normalize, id="batchnorm"),
    pytest.param(isonorm.MeanOnlyBatchNorm, center_without_gain, id="meanonlybatchnorm"),
    pytest.param(isonorm.LayerNorm, partial(Normalize, area="layer"), id="layernorm"),
    pytest.param(isonorm.InstanceNorm, partial(Normalize, area="instance"), id="instancenorm"),
    pytest.param(
        partial(isonorm.GroupNorm, num_groups=3), partial(Normalize, area=area.group(3)),
        id="groupnorm",
    ),
    pytest.param(
        partial(isonorm.BatchGroupNorm, num_groups=3),
        partial(Normalize, area=area.batch_group(3)),
        id="batchgroupnorm",
    ),
    pytest.param(isonorm.PositionalNorm, partial(Normalize, area="position"), id="positionalnorm"),
    pytest.param(
        partial(isonorm.GroupWhitening, num_groups=3, num_iters=4),
        partial(Normalize, area=area.group(3), operation=operation.whiten("newton", 4)),
        id="groupwhitening",
    ),
    pytest.param(
        partial(isonorm.InstanceWhitening, group_size=5, method="zca"),
        partial(Normalize, area=area.instance(5), operation=operation.whiten("zca")),
        id="instancewhitening",
    ),
]  # fmt: skip


@pytest.mark.parametrize("build, compose", COMPOSITIONS)
def test_each_is_a_composition(build, compose, draw):
    named, composed = build(12, eps=1e-3, act="relu"), compose(12, eps=1e-3, act="relu")
    for _ in range(2):
        x = draw(6, 12, 4, 3)
        assert torch.equal(named(x), composed(x))
    named.eval()
    composed.eval()
    assert torch.equal(named(x), composed(x))
    for (name, a), (other, b) in zip(
        named.state_dict().items(), composed.state_dict().items(), strict=True
    ):
        assert name == other
        torch.testing.assert_close(a, b)


def test_every_registered_layer_is_covered():
    names = {param.id for param in COMPOSITIONS}
    assert names == set(isonorm.list_norms())


def test_defaults_are_the_contracts():
    norm, dbn = isonorm.IterNorm(130), isonorm.DBN(20)
    assert (norm.group_size, norm.num_iters, norm.eps, norm.momentum) == (64, 5, 1e-5, 0.1)
    assert (norm.affine, norm.act, norm.track_running_stats) == (True, None, True)
    assert (norm.running, norm.check_finite) == ("covariance", False)
    assert norm.running_cov.shape == (3, 64, 64)
    assert (dbn.group_size, dbn.method) == (16, "zca")
    assert dbn.running_cov.shape == (2, 16, 16)
    composed = Normalize(4)
    assert composed.area == area.batch() and composed.operation == operation.standardize()
    assert torch.equal(composed.weight, torch.ones(4))
    assert torch.equal(composed.bias, torch.zeros(4))


def test_options_are_keywords_only(case):
    constructor = getattr(case.build, "func", case.build)
    if constructor is isonorm.create_norm:
        constructor = type(case.build(12))
    kinds = [p.kind for p in inspect.signature(constructor).parameters.values()]
    assert kinds[0] == inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert set(kinds[1:]) <= {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}


def test_no_recovery_has_no_parameters():
    for layer in (isonorm.IterNorm(12, affine=False), Normalize(12, recovery=None)):
        assert layer.weight is None and layer.bias is None
        assert not list(layer.parameters())


def test_rules_that_exempt_vectors_from_weight_decay_find_the_affine(case):
    for name, parameter in case.build(12).named_parameters():
        assert parameter.ndim == 1 or name == "color"


def test_group_size_none_and_too_large_mean_all_channels():
    for size in (None, 12, 64):
        assert isonorm.IterNorm(12, group_size=size).running_cov.shape == (1, 12, 12)


def test_no_iterations_divide_by_the_root_of_the_trace(draw):
    x = draw(6, 12, 5, dtype=torch.float64)
    y = isonorm.IterNorm(12, num_iters=0, eps=0, dtype=torch.float64)(x)
    centered = x - x.mean((0, 2), keepdim=True)
    trace = centered.square().mean((0, 2)).sum()
    torch.testing.assert_close(y, centered / trace.sqrt())


def test_polar_is_zca(draw):
    x = draw(20, 12, 5, dtype=torch.float64)
    zca, polar = (isonorm.DBN(12, method=m, dtype=torch.float64) for m in ("zca", "polar"))
    for _ in range(2):
        torch.testing.assert_close(zca(x), polar(x), rtol=1e-9, atol=1e-9)
        zca.eval()
        polar.eval()


def test_layers_are_their_functions(draw):
    x, weight, bias = draw(6, 12, 4, 3), torch.randn(12), torch.randn(12)
    options = {"group_size": 5, "eps": 1e-3}
    for layer, function in (
        (isonorm.IterNorm(12, num_iters=3, **options), partial(functional.iter_norm, num_iters=3)),
        (isonorm.DBN(12, method="pca", **options), partial(functional.dbn, method="pca")),
    ):
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        y, statistics = function(x, weight=weight, bias=bias, **options)
        assert torch.equal(layer(x), y)
        torch.testing.assert_close(
            layer.running_mean, 0.1 * statistics.mean.flatten()[:12], rtol=1e-5, atol=1e-6
        )


# What a layer prints


def rebuild(layer):
    names = {**vars(area), **vars(operation), **vars(isonorm), "inf": inf}
    return eval(repr(layer), names)


def test_repr_echoes_the_constructor(case):
    layer = case.build(12, eps=1e-3, act="relu")
    other = rebuild(layer)
    assert type(other) is type(layer) and repr(other) == repr(layer)
    assert (other.area, other.operation) == (layer.area, layer.operation)
    assert (other.eps, other.act) == (layer.eps, layer.act)
    assert set(other.state_dict()) == set(layer.state_dict())


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": None},
        {"track_running_stats": False},
        {"running": "whitening"},
        {"check_finite": True},
        {"affine": False},
        {"process_group": "world"},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("cls", [isonorm.IterNorm, isonorm.DBN], ids=lambda cls: cls.__name__)
def test_repr_echoes_options(cls, options):
    (name, value), layer = next(iter(options.items())), cls(12, **options)
    assert f"{name}={value!r}" in repr(layer)
    assert getattr(rebuild(layer), name) == value


def test_repr_by_example():
    assert repr(isonorm.IterNorm(64)) == (
        "IterNorm(64, group_size=64, num_iters=5, affine=True, eps=1e-05, momentum=0.1)"
    )
    assert repr(isonorm.DBN(64, method="polar", num_iters=6)) == (
        "DBN(64, group_size=16, method='polar', num_iters=6, affine=True, eps=1e-05, momentum=0.1)"
    )


def test_signatures_spell_out_every_keyword(case):
    """For help, editors, and torch's own ``skip_init``, which looks for ``device``."""
    layer = case.build(12)
    if type(layer) is isonorm.Normalize:
        return
    names = set(inspect.signature(type(layer)).parameters)
    assert {"num_features", "affine", "eps", "act", "device", "dtype"} <= names
    assert ("momentum" in names) == layer.area.spans_batch
    options = {name: getattr(layer, name) for name in layer._echoes}
    bare = nn.utils.skip_init(type(layer), 12, **options)
    assert repr(bare) == repr(layer)


class Mixin:
    def __init_subclass__(cls, tag: str = "", **options) -> None:
        super().__init_subclass__(**options)
        cls.tag = tag


def test_a_class_of_ones_own_has_its_parents_keywords():
    class Own(isonorm.IterNorm):
        def __init__(self, width: int = 64, *, extra: int = 1, **options) -> None:
            super().__init__(width, **options)

    class Fixed(isonorm.IterNorm):
        def __init__(self, num_features: int) -> None:
            super().__init__(num_features, group_size=4)

    class Mixed(Mixin, isonorm.IterNorm, tag="mine"):
        pass

    class More(Mixed):
        def __init__(self, n: int, **options) -> None:
            super().__init__(n, **options)

    names = list(inspect.signature(Own).parameters)
    assert names[:4] == ["width", "extra", "group_size", "num_iters"] and "device" in names
    assert list(inspect.signature(Fixed).parameters) == ["num_features"]
    assert inspect.signature(Mixed) == inspect.signature(isonorm.IterNorm) and Mixed.tag == "mine"
    assert list(inspect.signature(More).parameters)[:2] == ["n", "group_size"]
    assert (
        Own(8, group_size=4).group_size == Fixed(8).group_size == More(8, group_size=4).group_size
    )


def test_classes_that_hand_on_everything_may_be_made():
    class All(isonorm.IterNorm):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)

    class Other(isonorm.IterNorm):
        def __init__(self, *args, group_size: int = 2, **options) -> None:
            super().__init__(*args, group_size=group_size, **options)

    assert All(8, group_size=4).group_size == 4 and Other(8).group_size == 2
    assert "device" in inspect.signature(Other).parameters


def test_a_layers_own_signature_is_that_of_a_call():
    assert list(inspect.signature(isonorm.IterNorm(4)).parameters) == ["args", "kwargs"]
