"""A recipe as somebody writes one who reads docs/lab.md: what is wrong is told before it trains."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest
from typer.testing import CliRunner

from isonorm.lab import ledger, recipes
from isonorm.lab.cli import app
from isonorm.lab.cost import SIZES
from isonorm.lab.data import SOURCES, load
from isonorm.lab.pages import all_records, readme
from isonorm.lab.plan import Plan
from isonorm.lab.recipe import Claim, Configuration, Recipe
from tests.lab.pages.helpers import check_structure

PLAN = Plan(epochs=2, batch_size=128, lr=0.2)
OWN = Recipe(
    paper="nobody2030",
    figure="fig1",
    title="IterNorm beside BatchNorm in a small network",
    data="digits",
    configurations=(
        Configuration("BN", "small_cnn", PLAN, norm="batchnorm"),
        Configuration("IterNorm", "small_cnn", PLAN, norm="iternorm"),
    ),
    claims=(Claim("IterNorm generalizes better.", lower="IterNorm", higher="BN"),),
    choices=("The learning rate.",),
)


@pytest.fixture
def own(monkeypatch) -> Recipe:
    """Among the others, as if its file were beside theirs."""
    module = ModuleType("isonorm.lab.recipes.nobody2030_fig1")
    module.RECIPE = OWN  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    listed = [
        *recipes.iter_modules(recipes.__path__),
        type("Found", (), {"name": "nobody2030_fig1"}),
    ]
    monkeypatch.setattr(recipes, "iter_modules", lambda path: listed)
    return OWN


def test_it_is_listed_described_run_recorded_and_shown(own, tmp_path, nothing_is_drawn):
    def isonorm_command(*words: str) -> str:
        ran = CliRunner().invoke(app, list(words))
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    assert own.name in isonorm_command("recipes")
    assert "Cost with the paper's 1 seed(s): 2 trainings" in isonorm_command("recipes", own.name)
    runs, records = tmp_path / "runs", tmp_path / "records"
    isonorm_command("run", own.name, "--device", "cpu", "--out", str(runs))
    (folder,) = runs.iterdir()
    isonorm_command("record", str(folder), "--to", str(records))
    found = ledger.read(records)
    page = check_structure(all_records.document(found))
    assert [text for _, text in page.all("h2")][-1] == own.paper  # its title is not known
    assert f"fig1: {own.title}" in [text for _, text in page.all("h3")]
    assert f"| nobody2030, fig1 | [{own.title}](" in readme.table(found, tmp_path)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"claims": (Claim("Better.", "BN", 1, "test_acc"),)}, "speaks of test_acc, which no"),
        ({"configurations": (replace(OWN["BN"], paper={"accuracy": 90}),), "claims": ()},
         "speaks of accuracy, which no training measures: choose from train_loss, "),
        ({"claims": (Claim("Better.", "DBN", "BN"),)}, "claims something about 'DBN'"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_refused_when_it_is_written_down(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(OWN, **wrong)


def test_a_configuration_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(KeyError, match="nobody2030-fig1 has no configuration 'DBN': there are BN"):
        OWN["DBN"]


def test_every_data_set_of_the_lab_has_a_size_and_another_is_one_sentence(own, monkeypatch):
    assert set(SOURCES) <= set(SIZES)
    digits = load("digits")
    shape = tuple(digits.train_images.shape)
    assert SIZES["digits"] == (shape[0], digits.num_classes, shape[1:])
    monkeypatch.delitem(SIZES, "digits")
    for words in (["recipes"], ["recipes", own.name]):
        told = CliRunner().invoke(app, words)
        assert told.exit_code == 2 and told.stderr.count("\n") == 1
        assert "nobody2030-fig1 trains on 'digits', whose size is not known" in told.stderr
