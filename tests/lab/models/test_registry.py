from __future__ import annotations

from inspect import Parameter, signature
from typing import get_type_hints

import pytest
import torch

from isonorm.lab.models import MLP, MODELS, create_model, list_models
from isonorm.lab.models.chain import ChainOptions, ConvChain
from isonorm.lab.models.registry import options_of
from isonorm.lab.models.residual import ResidualNetwork, ResidualOptions


def test_patterns_choose_among_the_names():
    assert list_models() == list(MODELS)
    assert list_models("RESNET*") == ["resnet", "resnet18", "resnet34", "resnet50", "resnet101"]
    assert list_models("splain??") == ["splain20", "splain32", "splain44"]
    assert list_models("nothing*") == []


def test_names_do_not_mind_capitals():
    assert isinstance(create_model("MLP", in_features=4, hidden=(5,)), MLP)


@pytest.mark.parametrize("name", MODELS)
def test_every_entry_names_its_source_and_accepts_what_it_fixes(name):
    entry = MODELS[name]
    assert entry.source and set(entry.fixed) <= set(options_of(entry.network))
    assert len(entry.input_shape) == 3


@pytest.mark.parametrize(
    ("base", "options", "internal"),
    [
        (ConvChain, ChainOptions, set()),
        (ResidualNetwork, ResidualOptions, {"stem_planes", "large_images", "preact"}),
    ],
)
def test_the_options_passed_on_are_those_of_the_base(base, options, internal):
    keywords = {
        name
        for name, parameter in signature(base).parameters.items()
        if parameter.kind is Parameter.KEYWORD_ONLY
    }
    assert set(get_type_hints(options)) == keywords - internal


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("resnet51", {}, "there is no network called 'resnet51'; did you mean 'resnet50'?"),
        ("transformer", {}, "there is no network called 'transformer'; there are mlp, "),
        (7, {}, "there is no network called 7; there are mlp, "),
        ("vgg_a", {"widht": 0.5}, "vgg_a has no option 'widht'; did you mean 'width'?"),
        ("mlp", {"conv": None}, "mlp has no option 'conv'; there are in_features, num_classes, "),
        (
            "cifar_resnet20",
            {"depth": 8},
            "cifar_resnet20 has depth=20 by its name; leave depth out, or take cifar_resnet.",
        ),
        ("cifar_resnet", {"depth": 21}, "depth must be 6n + 2 with n ≥ 1 (8, 14, 20, …); got 21."),
        ("cifar_resnet", {"depth": 2}, "depth must be 6n + 2 with n ≥ 1 (8, 14, 20, …); got 2."),
        ("splain", {"depth": "20"}, "depth must be an integer of at least 1; got '20'."),
        ("wrn", {"depth": 20}, "depth must be 6n + 4 with n ≥ 1 (10, 16, 22, …); got 20."),
        ("wrn", {"widen": 0}, "widen must be an integer of at least 1; got 0."),
        ("wrn", {"dropout": 1}, "dropout is a probability, at least 0 and below 1; got 1."),
        ("resnet", {"depth": 19}, "depth must be one of 18, 34, 50, 101, 152; got 19."),
        ("preact_resnet", {"depth": 20}, "depth must be one of 18, 34, 50, 101, 152; got 20."),
        ("vgg", {"configuration": "F"}, "configuration must be one of A, E; got 'F'."),
        ("vgg_a", {"activation": "gelu"}, "activation must be one of relu, elu; got 'gelu'."),
        (
            "resnet18",
            {"width": -1},
            "width multiplies the numbers of channels and must be positive; got -1.",
        ),
        ("resnet18", {"num_classes": 0}, "num_classes must be an integer of at least 1; got 0."),
        ("vgg_e", {"in_channels": 0}, "in_channels must be an integer of at least 1; got 0."),
        ("resnet18", {"first_norm": "bm"}, "there is no normalization called 'bm'"),
    ],
)
def test_what_there_is_not_is_answered_in_one_sentence(name, options, sentence):
    with torch.device("meta"), pytest.raises(ValueError) as caught:
        create_model(name, **options)
    assert str(caught.value).startswith(sentence) and "\n" not in str(caught.value)
