"""A comparison as an experiment: what it trains, and what it refuses before anything is trained."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from isonorm import EquiConv2d, EquiLinear
from isonorm.lab.comparison import SCHEDULES, WEIGHT_NORMS, Comparison, check_fit
from isonorm.lab.convolutions import CONVOLUTIONS, LINEARS, PARAMETRIZATIONS
from isonorm.lab.models import MLP
from isonorm.lab.train import seeded

SMALL = Comparison(norms=("plain", "iternorm"), depth=2, width=8, epochs=2, batch_size=400)


def built(comparison: Comparison, norm: str, shape: tuple[int, ...] = (1, 8, 8)) -> nn.Module:
    return seeded(0, lambda: comparison.recipe()[norm].build(shape, 10))


def test_every_norm_is_a_configuration_of_one_network_and_one_plan():
    comparison = Comparison(norms=("none", "bn", "dbn:group_size=4", "equinorm"), momentum=0.9)
    recipe = comparison.recipe()
    assert [(c.name, c.norm, c.conv) for c in recipe.configurations] == [
        ("plain", "plain", "plain"),
        ("batchnorm", "batchnorm", "plain"),
        ("dbn:group_size=4", "dbn:group_size=4", "plain"),
        ("equinorm", "plain", "equinorm"),
    ]
    assert {c.plan for c in recipe.configurations} == {comparison.plan}
    assert {str(c.options) for c in recipe.configurations} == {"{'hidden': (100, 100, 100)}"}
    assert comparison.plan.momentum == 0.9 and not recipe.claims


def test_a_comparison_survives_json():
    comparison = Comparison(norms=("plain", "equinorm-quarter"), width=64.0, threshold=0.9)
    content = json.loads(json.dumps(asdict(comparison)))
    assert Comparison(**content) == comparison
    assert repr(Comparison(**content).recipe()) == repr(comparison.recipe())


def test_depth_and_width_are_those_of_the_network():
    widths = [m.out_features for m in built(SMALL, "plain") if isinstance(m, nn.Linear)]
    assert widths == [8, 10]
    resnet = Comparison(norms=("bn",), model="cifar_resnet", depth=8, width=0.25)
    network = built(resnet, "batchnorm", (3, 32, 32))
    assert len(network.layer1) == 1 and network.conv1.out_channels == 4
    assert "cifar_resnet depth 8 width 0.25" in resnet.recipe().title


def test_every_convolution_has_its_linear_layer():
    assert list(CONVOLUTIONS) == list(LINEARS) == ["plain", *WEIGHT_NORMS]


@pytest.mark.parametrize("name", ["equinorm", "equinorm-quarter"])
def test_the_mlp_takes_linear_layers_in_equilibrium_with_the_initial_weights_of_others(name):
    comparison = replace(SMALL, norms=("plain", name), depth=3, width=20)
    plain, other = built(comparison, "plain"), built(comparison, name)
    assert isinstance(plain, MLP) and isinstance(other, MLP)
    kinds = [type(layer) for layer in other if not isinstance(layer, nn.ReLU)]
    assert kinds == [nn.Flatten, EquiLinear, EquiLinear, nn.Linear]
    assert other.linear1.statistics_fraction == (0.25 if name.endswith("quarter") else 1.0)
    for layer in ("linear1", "linear2", "fc"):
        ours, theirs = other.get_submodule(layer).weight, plain.get_submodule(layer).weight
        assert torch.equal(ours.abs(), theirs.abs())  # signs may have been balanced


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_the_mlp_takes_parametrized_weights(name):
    comparison = replace(SMALL, norms=("plain", name), depth=3, width=20)
    plain, other = built(comparison, "plain"), built(comparison, name)
    assert parametrize.is_parametrized(other.linear1) and type(other.fc) is nn.Linear
    assert torch.equal(other.fc.weight, plain.fc.weight)
    gram = other.linear1.weight @ other.linear1.weight.T
    if name == "weightnorm":
        torch.testing.assert_close(other.linear2.weight, plain.linear2.weight)
    if name == "centered-weightnorm":
        torch.testing.assert_close(other.linear1.weight.sum(1), torch.zeros(20), rtol=0, atol=1e-5)
    if name == "orthogonal":
        torch.testing.assert_close(gram, torch.eye(20), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", WEIGHT_NORMS)
def test_convolutions_and_the_hidden_layer_behind_them_take_normalized_weights(name):
    comparison = Comparison(norms=(name,), model="vgg_a", width=0.1)
    network = built(comparison, name, (3, 32, 32))
    convolutions = [m for n, m in network.named_children() if n.startswith("conv")]
    assert len(convolutions) == 8 and not any(type(m) is nn.Conv2d for m in convolutions)
    hidden = network.linear9
    if name in PARAMETRIZATIONS:
        assert all(map(parametrize.is_parametrized, [*convolutions, hidden]))
    else:
        assert all(isinstance(m, EquiConv2d) for m in convolutions)
        assert isinstance(hidden, EquiLinear)
    assert type(network.fc) is nn.Linear


@pytest.mark.parametrize("name", WEIGHT_NORMS)
def test_convolutions_begin_with_the_weights_of_plain_ones(name):
    comparison = Comparison(norms=("plain", name), model="small_cnn", width=0.2)
    plain, other = built(comparison, "plain"), built(comparison, name)
    assert torch.equal(other.fc.weight, plain.fc.weight)
    if name not in ("centered-weightnorm", "orthogonal"):
        torch.testing.assert_close(other.conv2.weight, plain.conv2.weight)


def test_schedules_end_with_the_training():
    for name in SCHEDULES:
        schedule = Comparison(schedule=name, epochs=12).plan.schedule
        factors = [schedule.at(epoch, 0).factor for epoch in (0, 5.9, 6.1, 9.1, 12)]
        expected = {
            "constant": [1, 1, 1, 1, 1],
            "steps": [1, 1, 0.1, 0.01, 0.01],
            "superconvergence": [1.0, 4.4, 4.3, 2.1, 0.01],
        }[name]
        assert factors == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"norms": ("groupnorm:num_groups=3",)},
            "groupnorm:num_groups=3 cannot be used here.*divi",
        ),
        ({"norms": ("instancenorm",)}, "instancenorm cannot be used here: .*more than one value"),
        (
            {"norms": ("dbn:grup_size=3",)},
            "dbn has no option 'grup_size': did you mean 'group_size'",
        ),
        ({"batch_size": 1}, "iternorm cannot be used here: .*more than one value"),
        ({"batch_size": 5000}, "between 1 and the 1347 images"),
        (
            {"model": "vgg_e", "depth": None, "width": 0.1},
            "vgg_e does not fit the 1 × 8 × 8 images of digits: .*too small",
        ),
        (
            {"model": "mlp_pie", "depth": None, "width": None},
            "mlp_pie does not fit the 1 × 8 × 8 images of digits: .*cannot be multiplied",
        ),
    ],
)
def test_what_cannot_be_trained_is_found_before_training(changes, sentence, data):
    with pytest.raises(ValueError, match=sentence) as caught:
        check_fit(replace(SMALL, **changes).recipe(), data)
    assert "\n" not in str(caught.value)


def test_a_network_for_other_classes_is_refused(data):
    faces = replace(data, train_images=torch.zeros(1347, 1, 32, 32))
    with pytest.raises(ValueError, match="mlp_pie tells 68 classes apart, and digits has 10"):
        check_fit(Comparison(norms=("plain",), model="mlp_pie").recipe(), faces)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"norms": ("plain", "equinrom")}, "called 'equinrom': did you mean 'equinorm'"),
        ({"norms": ("equinorm:momentum=1",)}, "equinorm is not a norm between layers and takes no"),
        ({"schedule": "cosine"}, "schedule must be one of constant, steps, superconvergence"),
        ({"spread": "mode"}, "spread must be one of mean, median; got 'mode'"),
        ({"threshold": 95}, "such as 0.95; got 95"),
        ({"momentum": 0.9, "optimizer": "adam"}, "adam has no momentum to set"),
        ({"momentum": 0.9, "schedule": "superconvergence"}, "moves the momentum itself"),
        ({"optimizer": "sdg"}, "no optimizer called 'sdg'"),
        ({"model": "nlp"}, "there is no network called 'nlp'; did you mean 'mlp'?"),
        ({"model": "small_cnn", "depth": 3}, "small_cnn comes in one depth: leave depth out."),
        ({"width": 2.5}, "width is the number of neurons in a hidden layer; got 2.5"),
    ],
)
def test_impossible_settings_are_answered_in_one_sentence(settings, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        Comparison(**settings).recipe()
    assert "\n" not in str(caught.value)


def test_one_name_is_not_taken_for_its_letters():
    with pytest.raises(ValueError, match=r"norms is a tuple of names, .*; got 'bn'\."):
        Comparison(norms="bn")  # type: ignore[arg-type]
