"""Layers are checked before they are measured, and counted as one would by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isonorm
from isonorm.lab.machine import Machine
from isonorm.lab.measuring import meters
from isonorm.lab.measuring.meters import UnfoldConv2d, build, check, count, measure, milliseconds
from isonorm.lab.measuring.words import MEASURES, Formula, Layer, Measurement
from isonorm.lab.recipe import Claim

SHAPE = (4, 12, 6, 6)
M, D, H, W = SHAPE
SAMPLES = M * H * W


@pytest.mark.parametrize(("stride", "padding", "kernel"), [(1, 1, 3), (2, 0, 3), (3, 2, 5)])
def test_unfolding_is_the_same_convolution(stride, padding, kernel):
    conv = UnfoldConv2d(3, 5, kernel, stride=stride, padding=padding, bias=False).double()
    x = torch.randn(2, 3, 9, 11, dtype=torch.float64)
    expected = F.conv2d(x, conv.weight, stride=stride, padding=padding)
    torch.testing.assert_close(conv(x), expected)


#: Operations that go over the samples, and those of the root and of W with the mean's rest.
LAYERS = {
    "conv": (9 * SAMPLES * D * D, 0),
    "unfold": (9 * SAMPLES * D * D, 0),
    "batchnorm": (0, 0),
    "iternorm:group_size=None:num_iters=1": (2 * SAMPLES * D * D, D * D),
    "iternorm:group_size=None:num_iters=5": (2 * SAMPLES * D * D, 3 * 4 * D**3 + D * D),
    "iternorm:group_size=4:num_iters=3": (2 * SAMPLES * D * 4, 3 * 2 * D * 4**2 + D * 4),
    "folded:iternorm:group_size=None": (9 * SAMPLES * D * D, 0),
}


@pytest.mark.parametrize("name", LAYERS)
def test_operations_are_those_counted_by_hand(name):
    bench = build(Layer(name, name, SHAPE), seed=0)
    assert check(name, bench) < 1e-5
    counted = count(bench.layer, SHAPE)
    assert counted["operations"] == sum(LAYERS[name])
    assert counted["operations_per_convolution"] == sum(LAYERS[name]) / sum(LAYERS["conv"])
    assert counted["root_operations"] == LAYERS[name][1]
    if name in ("conv", "unfold"):
        assert counted["training_operations"] == 3 * counted["operations"]


def test_eigendecompositions_count():
    operations = count(build(Layer("DBN", "dbn:group_size=4", SHAPE), seed=0).layer, SHAPE)
    products = operations["root_operations"] - 4.5 * 4**3 * (D // 4) - D * 4
    assert products > 0 and products % (4**3 * (D // 4)) == 0
    assert operations["operations"] == 2 * SAMPLES * D * 4 + operations["root_operations"]


def test_the_formula_is_compared_at_the_size_that_is_measured():
    formula = Formula(passes=2, roots=5)
    layer = Layer("IterNorm", "iternorm:group_size=None", SHAPE, formula)
    made = build(layer, seed=0).layer
    counted = count(made, SHAPE, formula)
    expected = counted["operations"] / (2 * SAMPLES * D**2 + 5 * D**3)
    assert counted["operations_per_formula"] == pytest.approx(expected) and expected > 1
    assert math.isnan(count(made, SHAPE)["operations_per_formula"])
    assert str(Formula(1, 1, 16)) == "hwm·d·K + d·K²"
    assert Formula(1, 1, 16).at(SHAPE) == Formula(1, 1).at(SHAPE)  # no more than all channels


@pytest.mark.parametrize("wrong", [1 + 1e-3, math.nan])
def test_a_layer_that_computes_something_else_is_not_measured(wrong, monkeypatch):
    forward = isonorm.BatchNorm.forward
    monkeypatch.setattr(
        isonorm.BatchNorm,
        "forward",
        lambda self, x: forward(self, x) * (wrong if x.dtype == torch.float32 else 1),
    )
    monkeypatch.setattr(meters, "milliseconds", lambda *arguments: pytest.fail("was timed"))
    layer = Layer("BN, d = 12", "batchnorm", SHAPE)
    with pytest.raises(ValueError, match=r"BN, d = 12 does not compute .*: nothing was measured"):
        measure(layer, ("milliseconds",), seed=0, calls=3, on=Machine())


def test_a_wrong_gradient_is_seen_too():
    bench = build(Layer("conv", "conv", SHAPE), seed=0)
    bench.layer.weight.register_hook(lambda gradient: gradient * 1.001)
    with pytest.raises(ValueError, match=r"relative error 1\.0e-03, at most 0\.0002 is allowed"):
        check("conv", bench)


def test_time_is_the_median_of_the_calls(monkeypatch):
    clock = iter([0, 1, 10, 13, 20, 22, 30, 39, 40, 44])  # calls of 1, 3, 2, 9 and 4 seconds
    monkeypatch.setattr(meters, "perf_counter", lambda: next(clock))
    bench = build(Layer("conv", "conv", (1, 2, 3, 3)), seed=0)
    assert milliseconds(bench, calls=5) == 3000


def test_both_times_of_a_cpu_are_measured_once(monkeypatch):
    clock = iter([0, 1, 10, 13, 20, 22])
    monkeypatch.setattr(meters, "perf_counter", lambda: next(clock))
    asked = ("device_milliseconds", "milliseconds")
    measured = measure(Layer("conv", "conv", (1, 2, 3, 3)), asked, seed=0, calls=3, on=Machine())
    assert measured.values == dict.fromkeys(asked, 2000)


@pytest.mark.gpu
def test_a_layer_that_waits_for_the_gpu_has_no_time_of_its_own():
    layer = Layer("PCA", "dbn:method=pca:group_size=None", (8, 64, 16, 16))  # eigendecompositions
    asked, machine = ("device_milliseconds",), Machine(device="cuda")
    with pytest.raises(ValueError, match="PCA waits for the GPU in every pass"):
        measure(layer, asked, seed=0, calls=3, on=machine)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch's own, to make its pool
@pytest.mark.parametrize("compile", ["no", "yes", "graphs"])
def test_a_gpu_keeps_its_own_time(compile):
    machine = Machine(device="cuda", compile=compile)
    layer = Layer("IterNorm", "iternorm", (8, 64, 16, 16))
    asked = ("milliseconds", "operations")
    if compile != "graphs":
        asked += ("device_milliseconds",)
    measured = measure(layer, asked, seed=0, calls=10, on=machine)
    assert tuple(measured.values) == asked and measured.error < 5e-5
    times = (measured.values[key] for key in asked if key.endswith("milliseconds"))
    assert all(0 < time < 100 for time in times)
    assert torch.backends.cudnn.allow_tf32, "left as it was"


def test_seeds_make_inputs_and_nothing_else_changes():
    torch.manual_seed(7)
    state = torch.get_rng_state()
    layer = Layer("IterNorm", "iternorm", SHAPE)
    first, again, other = (build(layer, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.x, again.x) and not torch.equal(first.x, other.x)
    assert torch.equal(first.layer.weight, again.layer.weight)
    correlation = torch.corrcoef(first.x.transpose(0, 1).flatten(1))
    assert (correlation - torch.eye(D)).abs().max() > 0.2
    assert isinstance(build(Layer("", "folded:dbn", SHAPE), 0).layer, nn.Sequential)


def test_what_is_claimed_must_be_measured():
    layers = (Layer("BN", "batchnorm", SHAPE),)
    told = {"paper": "p", "figure": "f", "title": "t", "configurations": layers, "choices": ()}
    with pytest.raises(ValueError, match="p-f does not measure operations"):
        Measurement(
            **told, claims=(Claim("", "BN", 1.0, "operations"),), measures=("milliseconds",)
        )
    with pytest.raises(ValueError, match="p-f does not measure hours"):
        Measurement(**told, claims=(), measures=("hours",))
    assert Measurement(**told, claims=(), measures=tuple(MEASURES)).timed
