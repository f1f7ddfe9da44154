"""Wrong arguments and inputs: one sentence that says what was given, and no buffer changes."""

from __future__ import annotations

from functools import partial

import numpy
import pytest
import torch
from torch import nn

import isonorm
from isonorm import DBN, BatchNorm, GroupNorm, IterNorm, LayerNorm, Normalize, area, operation

NAN = float("nan")


def wrong(build, given, error=ValueError, id=None):
    """A constructor call that must fail, and what its message must repeat."""
    return pytest.param(build, given, error, id=id or given.replace(" ", ""))


@pytest.mark.parametrize(
    "build, given, error",
    [
        wrong(partial(IterNorm, 0), "got 0", id="num_features=0"),
        wrong(partial(IterNorm, "12"), "got '12'", id="num_features='12'"),
        wrong(partial(IterNorm, True), "got True", id="num_features=True"),
        *(
            wrong(partial(IterNorm, 12, group_size=v), f"got {v!r}", id=f"group_size={v!r}")
            for v in (0, -1, 2.5, "5", True)
        ),
        wrong(partial(GroupNorm, 12, num_groups=5), "num_groups=5"),
        wrong(partial(GroupNorm, 12, num_groups=24), "num_groups=24"),
        wrong(partial(GroupNorm, 12, num_groups=0), "got 0", id="num_groups=0"),
        wrong(partial(GroupNorm, 12, num_groups=None), "got None", id="num_groups=None"),
        *(
            wrong(partial(IterNorm, 12, num_iters=v), f"got {v!r}", id=f"num_iters={v!r}")
            for v in (-1, 2.5, 1000, True)
        ),
        wrong(partial(DBN, 12, method="polar", num_iters=0), "got 0", id="polar-num_iters=0"),
        wrong(partial(DBN, 12, num_iters=5), "'zca'", id="zca-num_iters=5"),
        wrong(partial(DBN, 12, method="newton"), "method='newton'"),
        wrong(partial(DBN, 12, method="svd"), "got 'svd'", id="method='svd'"),
        *(
            wrong(partial(IterNorm, 12, eps=v), f"got {v!r}", id=f"eps={v!r}")
            for v in (-1e-5, NAN, float("inf"), "small", None, True)
        ),
        *(
            wrong(partial(IterNorm, 12, momentum=v), f"got {v!r}", id=f"momentum={v!r}")
            for v in (-0.1, 1.5, NAN, "0.1", True)
        ),
        wrong(partial(IterNorm, 12, act="gelu"), "got 'gelu'", id="act='gelu'"),
        wrong(partial(IterNorm, 12, act=torch.relu), "got <", id="act=function"),
        wrong(partial(IterNorm, 12, running="both"), "got 'both'", id="running='both'"),
        wrong(partial(IterNorm, 12, process_group=5), "got 5", id="process_group=5"),
        wrong(partial(IterNorm, 12, dtype=torch.int64), "torch.int64", TypeError),
        wrong(partial(IterNorm, 12, dtype=torch.float8_e4m3fn), "torch.float8", TypeError),
        wrong(partial(IterNorm, 12, dtype="float32"), "got float32", TypeError),
        *(
            wrong(partial(IterNorm, 12, **{name: v}), f"{name} must", TypeError, f"{name}={v!r}")
            for name in ("affine", "track_running_stats", "check_finite")
            for v in ("no", None, 2)
        ),
        wrong(partial(isonorm.list_norms, 3), "got 3", TypeError, "list_norms"),
        wrong(partial(operation.standardize, p=True), "p=True"),
        *(
            wrong(partial(Normalize, 12, area="layer", **{name: v}), "no statistics", id=name)
            for name, v in (("momentum", 0.5), ("running", "whitening"), ("check_finite", True))
        ),
        wrong(partial(Normalize, 12, area="pixel"), "got 'pixel'", id="area='pixel'"),
        wrong(partial(Normalize, 12, area="group"), "area='group'"),
        wrong(partial(Normalize, 12, area="batch_group"), "area='batch_group'"),
        wrong(partial(Normalize, 12, area=3), "got 3", id="area=3"),
        wrong(
            partial(Normalize, 12, operation="whitten"), "got 'whitten'", id="operation='whitten'"
        ),
        wrong(partial(Normalize, 12, operation=3), "got 3", id="operation=3"),
        wrong(partial(Normalize, 12, recovery="spade"), "got 'spade'", id="recovery='spade'"),
        wrong(partial(Normalize, 12, area="layer", operation="whiten"), "layer()"),
        wrong(
            partial(Normalize, 12, area=area.batch_group(3), operation="whiten"),
            "batch_group(num_groups=3)",
        ),
        wrong(partial(operation.standardize, p=3), "p=3"),
    ],
)
def test_a_wrong_argument_is_named_in_one_sentence(build, given, error):
    with pytest.raises(error) as caught:
        build()
    message = str(caught.value)
    assert given in message
    assert "\n" not in message and message.endswith((".", "?"))


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(partial(Normalize, 12, group_size=5), id="normalize-group_size"),
        pytest.param(partial(IterNorm, 12, num_group=5), id="iternorm-typo"),
        pytest.param(partial(IterNorm, 12, method="zca"), id="iternorm-method"),
        pytest.param(partial(DBN, 12, operation="center"), id="dbn-operation"),
        pytest.param(partial(BatchNorm, 12, operation="center"), id="batchnorm-operation"),
        pytest.param(partial(GroupNorm, 12, num_groups=3, operation="center"), id="groupnorm-op"),
        pytest.param(partial(LayerNorm, 12, momentum=0.1), id="layernorm-momentum"),
        pytest.param(partial(BatchNorm, 12, recovery="coloring"), id="batchnorm-recovery"),
        pytest.param(partial(isonorm.create_norm, "iternorm", 12, T=5), id="create_norm"),
        pytest.param(partial(IterNorm, 12, 5), id="positional"),
    ],
)
def test_unknown_arguments_are_refused(build):
    with pytest.raises(TypeError):
        build()


INPUTS = {
    "channels": ((torch.ones(4, 11, 5),), ValueError, "(4, 11, 5)"),
    "channels-last": ((torch.ones(4, 5, 12),), ValueError, "(4, 5, 12)"),
    "vector": ((torch.ones(12),), ValueError, "(12,)"),
    "scalar": ((torch.ones(()),), ValueError, "()"),
    "integers": ((torch.ones(4, 12, 5, dtype=torch.int64),), TypeError, "torch.int64"),
    "booleans": ((torch.ones(4, 12, 5, dtype=torch.bool),), TypeError, "torch.bool"),
    "floats of 8 bits": (
        (torch.ones(4, 12, 5).to(torch.float8_e4m3fn),),
        TypeError,
        "torch.float8_e4m3fn",
    ),
    "list": (([[1.0] * 12],), TypeError, "got list"),
    "nothing": ((None,), TypeError, "got NoneType"),
    "residual of integers": (
        (torch.randn(4, 12, 5), torch.ones(4, 12, 5, dtype=torch.int64)),
        TypeError,
        "torch.int64",
    ),
    "residual that is a number": ((torch.randn(4, 12, 5), 1.0), TypeError, "got float"),
    "complex": ((torch.ones(4, 12, 5, dtype=torch.complex64),), TypeError, "torch.complex64"),
    "residual": ((torch.randn(4, 12, 5), torch.ones(4, 12, 1)), ValueError, "(4, 12, 1)"),
}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("inputs, error, given", INPUTS.values(), ids=INPUTS)
def test_a_wrong_input_is_named_and_changes_no_buffer(case, draw, training, inputs, error, given):
    layer = case.make()
    layer(draw(4, 12, 5))
    layer.train(training)
    before = {name: b.clone() for name, b in layer.named_buffers()}
    with pytest.raises(error) as caught:
        layer(*inputs)
    message = str(caught.value)
    assert given in message
    assert "\n" not in message and message.endswith(".")
    for name, b in layer.named_buffers():
        assert torch.equal(b, before[name]), name


def test_one_value_per_channel_is_refused_where_it_is_centered(batch_case):
    layer = batch_case.make()
    values = 1 if layer.area.name == "batch" else 4
    before = {name: b.clone() for name, b in layer.named_buffers()}
    if not layer.operation.centers or values > 1:
        assert layer(torch.randn(1, 12)).isfinite().all()
        return
    with pytest.raises(
        ValueError, match=r"more than one value.*\(1, 12, 1\): .*drop_last=True.*\.$"
    ):
        layer(torch.randn(1, 12))
    for name, b in layer.named_buffers():
        assert torch.equal(b, before[name]), name
    assert layer.eval()(torch.randn(1, 12)).shape == (1, 12)


def test_parameters_that_do_not_fit_the_channels_are_refused(draw):
    """A longer γ would otherwise lose its end without a word."""
    for name in ("weight", "bias"):
        for size in (11, 13, 1):
            with pytest.raises((ValueError, RuntimeError)):
                isonorm.functional.iter_norm(draw(4, 12, 5), **{name: torch.ones(size)})


def test_statistics_that_do_not_fit_the_area_are_refused(draw):
    x = draw(6, 12, 5)
    _, statistics = isonorm.functional.iter_norm(x, group_size=4)
    with pytest.raises(ValueError, match=r"statistics do not fit area batch\(group_size=6\)"):
        isonorm.functional.normalize(
            x, area=area.batch(6), operation="whiten", statistics=statistics
        )


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("running", "whitening", RuntimeError, "make a new layer"),
        ("running", "foo", RuntimeError, "running='foo'"),
        ("momentum", NAN, ValueError, "momentum must be None or between 0 and 1; got nan"),
        ("momentum", "a", ValueError, "got 'a'"),
        ("eps", NAN, ValueError, "got nan"),
        ("act", "gelu", ValueError, "act must be None or one of .*got 'gelu'"),
        ("act", ["relu"], ValueError, r"got \['relu'\]"),
        ("weight", nn.Parameter(torch.ones(12, 1)), ValueError, r"got \(12, 1\)"),
        ("bias", nn.Parameter(torch.ones(11)), ValueError, r"bias must have shape \(12,\)"),
        ("running_mean", torch.zeros(11), RuntimeError, r"running_mean must .* \(12,\).*\(11,\)"),
        ("running_cov", torch.eye(3).repeat(3, 1, 1), RuntimeError, r"running_cov must .*clone"),
        ("running_cov", torch.eye(5).expand(3, 5, 5), RuntimeError, "one that repeats its numbers"),
        ("running_mean", torch.zeros(12, device="meta"), ValueError, "move them together"),
    ],
)
def test_a_wrong_option_set_later_changes_no_buffer(draw, name, value, error, message):
    layer = IterNorm(12, group_size=5)
    layer(draw(4, 12, 5))
    setattr(layer, name, value)
    before = {name: b.clone() for name, b in layer.named_buffers() if not b.is_meta}
    with pytest.raises(error, match=message):
        layer(draw(4, 12, 5))
    for name, b in before.items():
        assert torch.equal(layer.get_buffer(name), b), name


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("act", "gelu", "got 'gelu'"),
        ("weight", nn.Parameter(torch.ones(12, 1)), r"got \(12, 1\)"),
        ("bias", nn.Parameter(torch.ones(11)), r"got \(11,\)"),
        ("eps", -5, "eps must be a number ≥ 0; got -5"),
        ("eps", "x", "got 'x'"),
    ],
)
def test_eval_refuses_what_training_does(draw, name, value, message):
    layer = IterNorm(12, group_size=5).eval()
    setattr(layer, name, value)
    with pytest.raises(ValueError, match=message):
        layer(draw(4, 12, 5))


@pytest.mark.parametrize("name", ["group_size", "num_iters"])
def test_what_a_layer_is_made_with_is_not_set_later(name):
    layer = IterNorm(12)
    with pytest.raises(AttributeError, match=f"IterNorm.{name} cannot be set to 3: .*new one"):
        setattr(layer, name, 3)
    assert layer.group_size == 64 and layer.num_iters == 5


def test_one_value_in_eval_is_told_what_helps_in_eval():
    layer = IterNorm(12, track_running_stats=False).eval()
    with pytest.raises(ValueError, match=r"keeps running statistics\.$"):
        layer(torch.randn(1, 12))


def test_arrays_are_no_switches():
    for several in (torch.tensor([True, False]), numpy.array([True, False])):
        with pytest.raises(TypeError, match="affine must be True or False"):
            IterNorm(12, affine=several)
        with pytest.raises(TypeError, match="track_running_stats must be True or False"):
            Normalize(12, area="layer", track_running_stats=several)
        with pytest.raises(ValueError, match="p = 1, 2 or"):
            operation.standardize(p=several)


def test_backends_are_checked_by_name():
    with pytest.raises(ValueError, match=r"got 'cuda'\.$"), isonorm.backend("cuda"):
        pass
