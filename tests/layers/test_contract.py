"""What every layer promises about shapes, dtypes and memory formats; ``test_derivatives``,
``test_compile`` and ``test_state`` hold the rest of the battery.
"""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

import isonorm
from isonorm import area

HALVES = pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
MODES = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def prepared(case, draw, training=False, **options):
    layer = case.make(**options)
    for _ in range(2):
        layer(draw(6, 12, 4, 3, dtype=options.get("dtype", torch.float32)))
    return layer.train(training)


def gradients(layer, x, cotangent):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(layer(x), [x, *layer.parameters()], cotangent)


def test_parameters_and_statistics_have_a_value_per_channel(case):
    layer = case.build(12)
    for name in ("weight", "bias"):
        parameter = getattr(layer, name)
        assert parameter is None or parameter.shape == (12,)
    if layer.area.name == "batch":
        size = layer.area.group_size if layer.operation.is_matrix else 1
        size = 12 if size is None else size
        matrix = layer.running_whitening if layer.running == "whitening" else layer.running_cov
        assert layer.running_mean.shape == (12,)
        assert matrix.shape == (-(-12 // size), size, size)
        assert layer.num_batches_tracked.dtype == torch.int64


def test_eval_is_train_where_nothing_is_kept(case, draw):
    layer, x = case.untracked(), draw(4, 12, 5)
    assert layer.running_mean is None and not dict(layer.named_buffers())
    assert torch.equal(layer(x), layer.eval()(x))


def test_torch_does_not_take_it_for_a_batch_norm(case):
    """``convert_sync_batchnorm`` rewrites whatever subclasses torch's own."""
    layer = case.build(12)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(layer))
    assert not isinstance(layer, nn.modules.batchnorm._NormBase)
    assert model[0] is layer


# Shapes


@MODES
def test_rank_does_not_matter(case, draw, training):
    layer = prepared(case, draw, training, dtype=torch.float64)
    x = draw(4, 12, 2, 3, 2, dtype=torch.float64)
    expected = copy.deepcopy(layer)(x)
    assert expected.shape == x.shape
    for shape in ((4, 12, 6, 2), (4, 12, 12)):
        torch.testing.assert_close(copy.deepcopy(layer)(x.view(shape)).view_as(x), expected)


@MODES
def test_features_without_positions(case, draw, training):
    layer = prepared(case, draw, training, dtype=torch.float64)
    x = draw(9, 12, dtype=torch.float64)
    if layer.area.name == "instance" and not layer.uses_running_statistics:
        with pytest.raises(ValueError, match="more than one value"):
            layer(x)
        return
    expected = copy.deepcopy(layer)(x.unsqueeze(-1))
    assert layer(x).shape == (9, 12)
    torch.testing.assert_close(layer(x), expected.squeeze(-1))


@pytest.mark.parametrize("channels", [1, 2, 7, 13])
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda c, **o: isonorm.IterNorm(c, **o), id="iternorm"),
        pytest.param(lambda c, **o: isonorm.IterNorm(c, group_size=None, **o), id="iternorm-all"),
        pytest.param(lambda c, **o: isonorm.DBN(c, group_size=3, **o), id="dbn"),
        pytest.param(isonorm.BatchNorm, id="batchnorm"),
        pytest.param(isonorm.LayerNorm, id="layernorm"),
        pytest.param(isonorm.InstanceNorm, id="instancenorm"),
        pytest.param(lambda c, **o: isonorm.GroupNorm(c, num_groups=c, **o), id="groupnorm"),
        pytest.param(
            lambda c, **o: isonorm.InstanceWhitening(c, group_size=3, **o), id="instancewhitening"
        ),
        pytest.param(
            partial(isonorm.Normalize, area=area.batch(3), recovery="coloring"), id="coloring"
        ),
    ],
)
def test_any_number_of_channels(build, channels, draw):
    layer = build(channels, dtype=torch.float64)
    x, cotangent = (draw(5, channels, 4, 5, dtype=torch.float64) for _ in range(2))
    other = copy.deepcopy(layer)
    found = gradients(layer, x, cotangent)
    with isonorm.backend("reference"):
        expected = gradients(other, x, cotangent)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    layer.eval()
    other.eval()
    torch.testing.assert_close(layer(x), other(x))


@MODES
def test_an_empty_batch(case, draw, training):
    layer = prepared(case, draw, training)
    before = {name: b.clone() for name, b in layer.named_buffers()}
    x = torch.zeros(0, 12, 4, 3, requires_grad=True)
    y = layer(x)
    assert y.shape == x.shape
    y.backward(torch.zeros_like(y))
    assert x.grad is not None and x.grad.shape == x.shape
    for name, b in layer.named_buffers():
        assert torch.equal(b, before[name]), name


# Memory formats


@MODES
@pytest.mark.parametrize(
    "shape, memory_format",
    [((4, 12, 5, 7), torch.channels_last), ((3, 12, 2, 3, 5), torch.channels_last_3d)],
    ids=["2d", "3d"],
)
def test_channels_last_in_and_out(case, draw, training, shape, memory_format):
    layer = prepared(case, draw, training, dtype=torch.float64)
    x, cotangent = (draw(*shape, dtype=torch.float64) for _ in range(2))
    expected, grads = copy.deepcopy(layer)(x), gradients(copy.deepcopy(layer), x, cotangent)
    last = x.to(memory_format=memory_format)
    y = copy.deepcopy(layer)(last)
    assert y.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(y, expected)
    found = gradients(layer, last, cotangent.to(memory_format=memory_format))
    for a, b in zip(found, grads, strict=True):
        torch.testing.assert_close(a, b)


@MODES
@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda x: x[::2], id="examples"),
        pytest.param(lambda x: x[:, :, 1:, ::2], id="positions"),
        pytest.param(lambda x: x.transpose(2, 3), id="transposed"),
        pytest.param(lambda x: x[:1].expand(4, -1, -1, -1), id="expanded"),
        pytest.param(lambda x: x.flatten(2).mT.contiguous().mT, id="sequence"),
    ],
)
def test_any_strides(case, draw, training, view):
    layer = prepared(case, draw, training, dtype=torch.float64)
    x = view(draw(6, 12, 5, 4, dtype=torch.float64))
    cotangent = torch.randn_like(x.contiguous())
    expected = gradients(copy.deepcopy(layer), x.contiguous(), cotangent)
    torch.testing.assert_close(copy.deepcopy(layer)(x), copy.deepcopy(layer)(x.contiguous()))
    for a, b in zip(gradients(layer, x, cotangent), expected, strict=True):
        torch.testing.assert_close(a, b)


# Dtypes


@HALVES
@MODES
def test_autocast(case, draw, half, training):
    """The output has the input's dtype; what lies between is float32, as without autocast."""
    layer = prepared(case, draw, training)
    exact = copy.deepcopy(layer)
    x, cotangent = draw(6, 12, 4, 3).to(half), torch.randn(6, 12, 4, 3).to(half)
    leaf = x.clone().requires_grad_()
    with torch.autocast("cpu", half):
        y = layer(leaf)
        assert copy.deepcopy(layer)(x.float()).dtype == torch.float32
    grads = torch.autograd.grad(y, [leaf, *layer.parameters()], cotangent)
    expected = exact(x.float())
    assert y.dtype == half
    once = torch.finfo(half).eps / 2  # rounded once, at the end
    torch.testing.assert_close(y.float(), expected, rtol=once, atol=1e-6)
    exact_grads = gradients(exact, x.float(), cotangent.float())
    for a, b, like in zip(grads, exact_grads, [leaf, *layer.parameters()], strict=True):
        assert a.dtype == like.dtype
        torch.testing.assert_close(a, b.to(a.dtype))
    if training:
        for name, b in layer.named_buffers():
            assert not b.is_floating_point() or b.dtype == torch.float32, name


@HALVES
def test_the_map_of_eval_is_made_in_float32_under_autocast(batch_case, draw, half):
    layer = prepared(batch_case, draw, training=True)
    other = copy.deepcopy(layer).eval()
    with torch.autocast("cpu", half):
        layer.eval()
        found = layer.inference_map()
    assert torch.equal(layer.eval_transform, other.eval_transform)
    for a, b in zip(found, other.inference_map(), strict=True):
        assert torch.equal(a, b)


@HALVES
def test_half_precision_layers_keep_float32_statistics(case, draw, half):
    layer = nn.Sequential(prepared(case, draw)).to(half)[0]
    kept = {name: b.clone() for name, b in layer.named_buffers()}
    x = draw(6, 12, 4, 3).to(half)
    exact = copy.deepcopy(layer).float()
    torch.testing.assert_close(layer(x), exact(x.float()).to(half))
    layer.train()(x)
    exact.train()(x.float())
    assert all(p.dtype == half for p in layer.parameters())
    for (name, b), e in zip(layer.named_buffers(), exact.buffers(), strict=True):
        assert not b.is_floating_point() or b.dtype == kept[name].dtype == torch.float32, name
        torch.testing.assert_close(b, e)


def test_half_precision_by_constructor(case, draw):
    layer = case.make(dtype=torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 for p in layer.parameters())
    assert all(b.dtype in (torch.float32, torch.int64) for b in layer.buffers())
    assert layer(draw(6, 12, 4).bfloat16()).dtype == torch.bfloat16


def test_double_precision(case, draw):
    layer = prepared(case, draw).double()
    x = draw(6, 12, 4, 3, dtype=torch.float64)
    assert layer.train()(x).dtype == torch.float64
    assert layer.eval()(x).dtype == torch.float64
    for tensor in (*layer.parameters(), *layer.buffers()):
        assert tensor.dtype in (torch.float64, torch.int64)
    again = layer.float()
    assert all(t.dtype in (torch.float32, torch.int64) for t in again.buffers())
    assert again(x.float()).dtype == torch.float32


# Activation and residual


@MODES
@pytest.mark.parametrize("act", [None, "identity", "relu", "silu"])
def test_activation_and_residual(case, draw, training, act):
    function = {
        None: nn.Identity(),
        "identity": nn.Identity(),
        "relu": nn.ReLU(),
        "silu": nn.SiLU(),
    }
    plain = prepared(case, draw, training)
    layer = case.build(12, act=act).train(training)
    layer.load_state_dict(plain.state_dict())
    x, residual = draw(4, 12, 5), torch.randn(4, 12, 5)
    y = copy.deepcopy(plain)(x)
    assert torch.equal(copy.deepcopy(layer)(x), function[act](y))
    assert torch.equal(layer(x, residual), function[act](y + residual))
    assert torch.equal(plain(x, residual), y + residual)


@MODES
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda x: x.to(memory_format=torch.channels_last)[:, :, 1:], id="cropped"),
        pytest.param(lambda x: x.transpose(0, 1).contiguous().transpose(0, 1), id="transposed"),
        pytest.param(lambda x: x.repeat(1, 2, 1, 1)[:, ::2], id="sliced"),
    ],
)
def test_memory_format_of_unusual_inputs(case, draw, training, make):
    """The input's own strides, or those it would have without gaps."""
    x = make(draw(6, 12, 5, 4))
    assert prepared(case, draw, training)(x).stride() == torch.empty_like(x).stride()


@MODES
def test_no_positions(case, draw, training):
    layer = prepared(case, draw, training)
    x = torch.empty(4, 12, 0, 3, requires_grad=True)
    y = layer(x)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
