"""``EquiConv*d`` and ``EquiLinear`` as layers: what r counts, statistics, eval, state, refusals."""

from __future__ import annotations

import copy
import io
import pickle
from math import prod

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.utils.checkpoint import checkpoint

import isonorm
from isonorm import EquiConv1d, EquiConv2d, EquiConv3d, EquiLinear
from isonorm.weights.equilibrium import normalize_kernel

LAYERS = {
    "conv1d": (lambda **o: EquiConv1d(4, 6, 3, padding=1, **o), (5, 4, 7)),
    "conv2d": (
        lambda **o: EquiConv2d(4, 6, (3, 2), stride=(1, 2), padding=(1, 0), groups=2, **o),
        (5, 4, 6, 7),
    ),
    "conv3d": (lambda **o: EquiConv3d(4, 6, 2, dilation=2, **o), (3, 4, 4, 3, 5)),
    "linear": (lambda **o: EquiLinear(4, 6, **o), (5, 3, 4)),
}


class Case:
    def __init__(self, name: str) -> None:
        self.build, self.shape = LAYERS[name]

    def make(self, **options):
        """The layer, with an affine that is neither ones nor zeros."""
        layer = self.build(**options)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name != "weight":
                    parameter += 0.3 * torch.randn_like(parameter)
        return layer

    def draw(self, dtype=torch.float32):
        return torch.rand(self.shape, dtype=dtype)


@pytest.fixture(params=LAYERS)
def case(request):
    return Case(request.param)


@pytest.fixture
def trained(case):
    layer = case.make()
    for _ in range(2):
        layer(case.draw())
    return layer


# What r counts


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"kernel_size": 3, "padding": 1}, (4, 3, 8, 9)),
        ({"kernel_size": 3}, (4, 3, 8, 9)),
        ({"kernel_size": 3, "stride": 2, "padding": 1}, (4, 3, 8, 9)),
        ({"kernel_size": (3, 5), "stride": (2, 3), "padding": (0, 2)}, (4, 3, 8, 9)),
        ({"kernel_size": 3, "dilation": 2, "stride": 2, "padding": 2}, (4, 3, 8, 9)),
        ({"kernel_size": (3, 5), "padding": "same"}, (2, 3, 8, 9)),
        ({"kernel_size": 3, "padding": "valid"}, (2, 3, 8, 9)),
        ({"kernel_size": 3, "padding": (2, 1), "padding_mode": "circular"}, (2, 3, 8, 9)),
        ({"kernel_size": 3, "padding": 1, "padding_mode": "reflect"}, (2, 3, 8, 9)),
        ({"kernel_size": 3, "padding": (0, 2), "padding_mode": "replicate"}, (2, 3, 8, 9)),
    ],
    ids=str,
)
def test_r_is_batch_size_times_output_positions_times_stride_squared(options, shape):
    layer = EquiConv2d(3, 5, **options, momentum=1.0)
    x = torch.rand(shape)
    y = layer(x)
    r = y.shape[0] * prod(y.shape[2:]) * prod(layer.stride)
    torch.testing.assert_close(layer.running_v, x.sum((0, 2, 3)) / r)
    plain = nn.Conv2d(3, 5, **options, bias=False)
    kernel = normalize_kernel(layer.weight.detach(), layer.running_v, single_pass=True)
    plain.load_state_dict({"weight": kernel})
    torch.testing.assert_close(y, plain(x))


def test_r_of_a_linear_layer_is_the_number_of_rows():
    layer = EquiLinear(4, 3, momentum=1.0)
    x = torch.rand(5, 7, 4)
    layer(x)
    torch.testing.assert_close(layer.running_v, x.mean((0, 1)))


@pytest.mark.parametrize(("fraction", "counted"), [(0.25, 2), (0.5, 4), (0.01, 1), (1.0, 8)])
def test_the_first_part_of_the_batch_is_measured_and_counted(case, fraction, counted):
    layer = case.make(statistics_fraction=fraction, momentum=1.0)
    whole = copy.deepcopy(layer)
    whole.statistics_fraction = 1.0
    x = torch.rand(8, *case.shape[1:])
    y = layer(x)
    torch.testing.assert_close(y[:counted], whole(x[:counted]))
    torch.testing.assert_close(layer.running_v, whole.running_v)


def test_gradients_of_the_measured_part_alone_flow_through_v():
    layer = EquiLinear(4, 3, statistics_fraction=0.5, dtype=torch.float64)
    x = torch.rand(4, 4, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    cotangent = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, cotangent)
    through_kernel = cotangent @ normalize_kernel(
        layer.weight, x[:2].mean(0).detach(), layer.gamma, single_pass=True
    )
    torch.testing.assert_close(dx[2:], through_kernel[2:].detach())
    assert (dx[:2] - through_kernel[:2]).abs().min() > 1e-6


@pytest.mark.parametrize("single_pass", [False, True], ids=["exact", "single-pass"])
def test_gradcheck(case, single_pass):
    layer = case.make(single_pass=single_pass, track_running_stats=False, dtype=torch.float64)
    x = case.draw(torch.float64)[:2].requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def call(x, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, given, (x,))

    assert names == ["weight", "gamma", "beta"]
    assert gradcheck(call, (x, *layer.parameters()), fast_mode=True)


def test_the_affine_acts_after_the_convolution(case):
    layer = case.make()
    bare = copy.deepcopy(layer)
    nn.init.ones_(bare.gamma)
    nn.init.zeros_(bare.beta)
    x = case.draw()
    channel = -1 if isinstance(layer, EquiLinear) else 1
    y = bare(x).movedim(channel, -1)
    expected = (y * layer.gamma + layer.beta).movedim(-1, channel)
    torch.testing.assert_close(layer(x), expected)


def test_one_instance_without_a_batch():
    layer = EquiConv2d(3, 4, 3, momentum=1.0)
    x = torch.rand(3, 6, 6)
    torch.testing.assert_close(layer(x), layer(x.unsqueeze(0)).squeeze(0))
    row = torch.rand(5)
    linear = EquiLinear(5, 2)
    torch.testing.assert_close(linear(row), linear(row.unsqueeze(0)).squeeze(0))


# Running statistics and eval


def test_eval_is_training_where_the_running_mean_has_arrived(case):
    layer, x = case.make(momentum=1.0), case.draw()
    y = layer(x)
    torch.testing.assert_close(layer.eval()(x), y)


def test_training_at_batch_128_agrees_with_eval_in_the_limit():
    """v_c of a batch of m values is its mean up to σ/√m; so are s, b and the output."""
    layer = EquiConv2d(3, 8, 3, padding=1, momentum=None)
    with torch.no_grad():
        for _ in range(50):
            layer(torch.rand(128, 3, 6, 6))
        x = torch.rand(128, 3, 6, 6)
        y = layer(x)
        expected = layer.eval()(x)
    torch.testing.assert_close(layer.running_v, torch.full((3,), 0.5), rtol=0, atol=0.003)
    assert (y - expected).norm() / expected.norm() < 3 * 0.29 / (128 * 36) ** 0.5 / 0.5 * 3**0.5


def test_the_running_average(case):
    batches = [case.draw() for _ in range(3)]
    each, kept, all_of_them = (case.make(momentum=m) for m in (1.0, 0.3, None))
    v = []
    for x in batches:
        each(x), kept(x), all_of_them(x)
        v.append(each.running_v.clone())
    expected = torch.ones(4)
    for value in v:
        expected = 0.7 * expected + 0.3 * value
    torch.testing.assert_close(kept.running_v, expected)
    torch.testing.assert_close(all_of_them.running_v, torch.stack(v).mean(0))
    assert kept.num_batches_tracked == 3
    kept.reset_running_stats()
    assert kept.num_batches_tracked == 0 and torch.equal(kept.running_v, torch.ones(4))


def test_eval_depends_on_neither_batch_nor_image_size():
    layer = EquiConv2d(3, 4, 3, padding=1, padding_mode="circular")
    layer(torch.rand(6, 3, 8, 8))
    layer.eval()
    x = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(layer(x)[:1], layer(x[:1]))
    torch.testing.assert_close(layer(x.repeat(1, 1, 2, 3))[..., :8, :8], layer(x))


def test_without_statistics_eval_normalizes_by_the_batch(case):
    layer, x = case.make(track_running_stats=False), case.draw()
    torch.testing.assert_close(layer.eval()(x), layer.train()(x))
    assert layer.running_v is None
    with pytest.raises(RuntimeError, match="no fixed map in eval"):
        layer.fuse()


def test_an_empty_batch_changes_nothing(trained, case):
    before = copy.deepcopy(trained.state_dict())
    y = trained(case.draw()[:0])
    assert y.shape[0] == 0
    torch.testing.assert_close(trained.state_dict(), before, rtol=0, atol=0)


def test_checkpointing_updates_statistics_once(case):
    layer, x = case.make(), case.draw().requires_grad_()
    other = copy.deepcopy(layer)
    checkpoint(lambda x: layer(x).tanh(), x, use_reentrant=False).square().sum().backward()
    other(x)
    torch.testing.assert_close(layer.running_v, other.running_v)
    assert layer.num_batches_tracked == 1


def test_a_failed_call_changes_nothing():
    layer = EquiConv2d(3, 4, 5)
    with pytest.raises(RuntimeError, match="size"):
        layer(torch.rand(2, 3, 4, 4))
    assert layer.num_batches_tracked == 0 and torch.equal(layer.running_v, torch.ones(3))


# The plain layer of eval


def test_fuse_gives_the_plain_layer_of_eval(trained, case):
    trained.eval()
    plain, x = trained.fuse(), case.draw()
    y, expected = plain(x), trained(x)
    assert (y - expected).norm() < 1e-5 * expected.norm()
    assert type(plain) is type(trained)._plain and not plain.training
    assert isinstance(plain.weight, nn.Parameter) and not plain.weight.is_meta
    assert not {p.data_ptr() for p in plain.parameters()} & {
        p.data_ptr() for p in trained.parameters()
    }


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
def test_fuse_keeps_every_argument_of_the_convolution(mode):
    layer = EquiConv2d(4, 6, (3, 2), (2, 1), (1, 2), dilation=(1, 2), groups=2, padding_mode=mode)
    layer(torch.rand(3, 4, 9, 9))
    x = torch.rand(2, 4, 7, 8)
    torch.testing.assert_close(layer.eval().fuse()(x), layer(x))


def test_fuse_without_affine():
    x = torch.rand(5, 4)
    for bias in (False, True):
        layer = EquiLinear(4, 3, bias=bias, affine=False).eval()
        plain = layer.fuse()
        assert (plain.bias is not None) == bias
        torch.testing.assert_close(plain(x), layer(x))


def test_fuse_leaves_frozen_what_was_frozen(case):
    layer = case.make()
    layer.weight.requires_grad_(False)
    plain = layer.fuse()
    assert not plain.weight.requires_grad and plain.bias.requires_grad
    layer.weight.requires_grad_(True)
    layer.beta.requires_grad_(False)
    plain = layer.fuse()
    assert plain.weight.requires_grad and not plain.bias.requires_grad


def test_the_map_of_eval_is_differentiable(trained):
    kernel, bias = trained.inference_map()
    grads = torch.autograd.grad(
        (kernel, bias), (trained.weight, trained.gamma, trained.beta),
        (torch.randn_like(kernel), torch.randn_like(bias)),
    )  # fmt: skip
    assert all(grad.abs().max() > 0 for grad in grads)


# State


@pytest.mark.parametrize(
    "duplicate",
    [
        pytest.param(copy.deepcopy, id="deepcopy"),
        pytest.param(lambda layer: pickle.loads(pickle.dumps(layer)), id="pickle"),
    ],
)
def test_copies_are_equal_and_independent(trained, case, duplicate):
    other, x = duplicate(trained), case.draw()
    assert repr(other) == repr(trained)
    torch.testing.assert_close(other(x), trained(x))
    other(x)
    assert other.num_batches_tracked == trained.num_batches_tracked + 1


def test_state_dict_round_trip(trained, case):
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    fresh, x = case.build(), case.draw()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    names = ["weight", "gamma", "beta", "running_v", "num_batches_tracked"]
    assert list(fresh.state_dict()) == names
    assert torch.equal(fresh.eval()(x), trained.eval()(x))


def test_made_on_meta_and_reset(case):
    layer = case.build(device="meta")
    assert all(t.is_meta for t in (*layer.parameters(), *layer.buffers()))
    layer.to_empty(device="cpu").reset_parameters()
    rows = layer.weight.flatten(1)
    assert ((rows > 0).any(1) & (rows < 0).any(1)).all()
    assert torch.equal(layer.gamma, torch.ones(6)) and torch.equal(layer.beta, torch.zeros(6))
    assert torch.equal(layer.running_v, torch.ones(4)) and layer.num_batches_tracked == 0


def test_every_output_starts_with_both_signs():
    rows = EquiLinear(2, 400).weight
    assert ((rows > 0).any(1) & (rows < 0).any(1)).all()


# Modes


def test_statistics_stay_float32_in_a_half_layer(case):
    layer, x = case.make().bfloat16(), case.draw().bfloat16()
    wide = copy.deepcopy(layer).float()
    y, expected = layer(x), wide(x.float())
    assert y.dtype == torch.bfloat16 == layer.weight.dtype
    assert layer.running_v.dtype == torch.float32
    torch.testing.assert_close(layer.running_v, wide.running_v)
    assert (y.float() - expected).norm() < 0.02 * expected.norm()


def test_autocast(case):
    layer, x = case.make(), case.draw()
    other = copy.deepcopy(layer)
    expected = other(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16 and torch.equal(layer.running_v, other.running_v)
    assert (y.float() - expected).norm() < 0.02 * expected.norm()


def test_channels_last():
    layer = EquiConv2d(4, 6, 3, padding=1)
    x = torch.rand(2, 4, 6, 5)
    y = copy.deepcopy(layer).to(memory_format=torch.channels_last)(
        x.to(memory_format=torch.channels_last)
    )
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, layer(x))


def test_transforms(case):
    layer = case.make(track_running_stats=False, dtype=torch.float64)
    x = torch.stack([case.draw(torch.float64) for _ in range(2)])
    expected = torch.stack([layer(part) for part in x])
    torch.testing.assert_close(torch.func.vmap(layer)(x), expected)
    direction = torch.randn_like(x[0])
    _, found = torch.func.jvp(layer, (x[0],), (direction,))
    h = 1e-6
    expected = (layer(x[0] + h * direction) - layer(x[0] - h * direction)) / (2 * h)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("make", [EquiLinear, lambda *_: isonorm.BatchNorm(4)], ids=["equi", "bn"])
def test_a_refused_transform_changes_nothing(make):
    """Statistics of several batches cannot be averaged into those of one layer."""
    layer = make(4, 3)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(layer)(torch.rand(2, 5, 4))
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_an_ensemble_has_statistics_of_its_own(case):
    layers, x = [case.make() for _ in range(3)], case.draw()
    parameters, buffers = torch.func.stack_module_state(layers)

    def call(p, b):
        return torch.func.functional_call(layers[0], (p, b), (x,))

    y = torch.func.vmap(call)(parameters, buffers)
    torch.testing.assert_close(y, torch.stack([layer(x) for layer in layers]))
    for name, stacked in buffers.items():
        torch.testing.assert_close(
            stacked, torch.stack([layer.get_buffer(name) for layer in layers])
        )


# Refusals


def test_a_bias_beside_the_affine_is_refused(case):
    with pytest.raises(ValueError, match="bias=True beside affine=True"):
        case.build(bias=True)
    assert case.build(bias=True, affine=False).bias.shape == (6,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"statistics_fraction": 0}, "statistics_fraction must be above 0"),
        ({"statistics_fraction": 1.5}, "got 1.5"),
        ({"momentum": 2}, "momentum must be None or between 0 and 1"),
        ({"process_group": "nobody"}, "process_group must be"),
    ],
)
def test_wrong_options_are_explained(case, options, message):
    with pytest.raises(ValueError, match=message):
        case.build(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": (3, 3, 3)},
        {"kernel_size": 2.0},
        {"kernel_size": 0},
        {"stride": 0},
        {"padding": -1},
        {"dilation": (1,)},
    ],
    ids=str,
)
def test_wrong_sizes_are_explained(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"EquiConv2d takes {name} as an integer of at least"):
        EquiConv2d(3, 4, **({"kernel_size": 3} | options))


def test_a_kernel_must_be_real(case):
    with pytest.raises(TypeError, match=r"floating-point type; got torch\.complex64"):
        case.build(dtype=torch.complex64)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_no_outputs():
    assert EquiLinear(4, 0)(torch.rand(2, 4)).shape == (2, 0)


def test_unknown_options_are_refused(case):
    with pytest.raises(TypeError, match="eps"):
        case.build(eps=1e-5)


def test_wrong_shapes_are_explained():
    with pytest.raises(ValueError, match=r"\(N, 3, H, W\).*got shape \(2, 4, 5, 5\)"):
        EquiConv2d(3, 4, 3)(torch.rand(2, 4, 5, 5))
    with pytest.raises(ValueError, match=r"EquiConv1d expected input \(N, 3, L\)"):
        EquiConv1d(3, 4, 3)(torch.rand(3))
    with pytest.raises(ValueError, match=r"\(N, \*, 3\).*got shape \(2, 4\)"):
        EquiLinear(3, 4)(torch.rand(2, 4))


def test_a_layer_with_single_weights_says_what_it_will_do():
    with pytest.warns(UserWarning, match="a single weight for each output"):
        layer = EquiConv2d(3, 3, 1, groups=3)
    with torch.no_grad():
        layer.beta.copy_(torch.tensor([1.0, 2.0, 3.0]))
    y = layer(torch.rand(2, 3, 4, 4))
    torch.testing.assert_close(y, layer.beta.view(3, 1, 1).expand_as(y), rtol=0, atol=1e-5)


def test_it_is_no_torch_convolution():
    """Or else tools would merge a BatchNorm's scale into a kernel that does not know scales."""
    assert not isinstance(EquiConv2d(3, 4, 3), nn.Conv2d)
    assert not isinstance(EquiLinear(3, 4), nn.Linear)


def test_repr_repeats_the_arguments():
    layer = isonorm.EquiConv2d(
        3, 4, 3, padding=1, statistics_fraction=0.25, single_pass=False, process_group="world"
    )
    shown = repr(layer)
    for part in ("3, 4", "padding=(1, 1)", "statistics_fraction=0.25", "single_pass=False"):
        assert part in shown
    assert "process_group='world'" in shown and "bias" not in shown
