from __future__ import annotations

import pytest

import isonorm
from isonorm.lab.norms import ALIASES, canonical, norm_factory, parse_list, valid_names


def test_every_alias_is_another_word_for_a_valid_name():
    assert set(ALIASES.values()) <= set(valid_names())
    assert not set(ALIASES) & set(valid_names())
    assert [canonical(alias.upper()) for alias in ALIASES] == list(ALIASES.values())


def test_options_reach_the_layer():
    layer = norm_factory("dbn:group_size=32:method=cholesky:affine=False")(100)
    assert isinstance(layer, isonorm.DBN)
    assert (layer.group_size, layer.method, layer.affine) == (32, "cholesky", False)


def test_plain_and_none_make_no_layer_and_factories_stay_themselves():
    assert norm_factory("plain") is norm_factory("none") is norm_factory(None) is None
    assert norm_factory(isonorm.IterNorm) is isonorm.IterNorm


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            "plain,whiteness",
            r"called 'whiteness': choose from plain, iternorm, dbn, .*\(short: none,",
        ),
        (
            "IterNrom:num_iters=3",
            r"'IterNrom': did you mean 'iternorm'\? 'isonorm norms' lists all",
        ),
        (" , ", r"no normalization in ' , '"),
        ("bn,batchnorm", r"batchnorm is named twice"),
        ("dbn:group_size", r"name:option=value.*got 'dbn:group_size'"),
        ("plain:eps=1", r"takes no options"),
        ("dbn:gropu_size=2", r"dbn has no option 'gropu_size': did you mean 'group_size'\?"),
        ("dbn:qqq=2", r"dbn has no option 'qqq': there are group_size, method, num_iters, "),
    ],
)
def test_wrong_lists_are_answered_in_one_sentence(given, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        parse_list(given)
    assert "\n" not in str(caught.value)
