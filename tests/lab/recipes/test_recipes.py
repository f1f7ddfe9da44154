"""Every recipe at quick scale, on small files in the official formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from isonorm.lab import figures
from isonorm.lab.claims import MEASURES
from isonorm.lab.cli import app
from isonorm.lab.cost import SIZES
from isonorm.lab.measuring.words import Measurement
from isonorm.lab.norms import norm_factory
from isonorm.lab.recipe import Recipe
from isonorm.lab.recipes import all_recipes
from tests.lab.pages.helpers import check_structure

RECIPES = all_recipes()
TRAININGS = {name: recipe for name, recipe in RECIPES.items() if isinstance(recipe, Recipe)}
#: Drawing takes longer than the trainings: once is enough, of curves and of bars.
DRAWN = {"dbn2018-fig6": "curves", "dbn2018-cost": "bars"}


def isonorm_command(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(scope="module")
def files(tmp_path_factory, official) -> Path:
    folder = tmp_path_factory.mktemp("data")
    official.mnist(folder, train=60, test=20)
    official.cifar(folder, train=60, test=20)
    official.cifar(folder, classes=100, train=60, test=20)
    official.svhn(folder, extra=True, train=60, test=20)
    official.faces(folder, "yaleb")
    official.faces(folder, "pie")
    official.imagenet(folder, each=8)
    return folder


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_runs_at_quick_scale(name, files, tmp_path, monkeypatch):
    if name not in DRAWN:
        monkeypatch.setattr(figures, "save", lambda *arguments: [])
    data = ["--data", str(files), "--no-verify"] if name in TRAININGS else []
    ran = isonorm_command("run", name, *data, "--scale", "quick", "--device", "cpu",
                          "--out", str(tmp_path))  # fmt: skip
    assert ran.exit_code == 0, ran.output
    (folder,) = tmp_path.iterdir()
    content = json.loads((folder / "result.json").read_text())
    recipe = RECIPES[name]
    assert content["status"] == "finished"
    assert [row["configuration"] for row in content["summary"]] == [
        configuration.name for configuration in recipe.configurations
    ]
    assert not any(run.get("diverged") for run in content["runs"])
    assert [claim["claim"] for claim in content["claims"]] == [c.text for c in recipe.claims]
    assert all(claim["answer"] != "not measured" for claim in content["claims"])
    drawn = [f"{DRAWN[name]}.{kind}" for kind in ("png", "svg")] if name in DRAWN else []
    numbers = "measurements.csv" if isinstance(recipe, Measurement) else "curves.csv"
    left = sorted(file.name for file in folder.iterdir())
    assert left == sorted([numbers, "report.html", "result.json", *drawn])
    check_structure((folder / "report.html").read_text(encoding="utf-8"))


def test_full_size_networks_can_be_built_and_mixup_has_its_places():
    built = {}
    for recipe in TRAININGS.values():
        _, num_classes, shape = SIZES[recipe.data]
        for configuration in recipe.configurations:
            options = {k: v for k, v in configuration.options.items() if not k.endswith("norm")}
            kind = (configuration.model, configuration.conv, str(options), shape)
            if kind not in built:
                with torch.device("meta"):
                    built[kind] = configuration.build(shape, num_classes)
            for place in configuration.plan.mixup_places:
                built[kind].get_submodule(place)
    assert len(built) > 20


#: Channels whitened together, by recipe and method, as IterNorm's Section 5 and DBN's Section 4
#: have them, or their published code. ALL: all there are, of 1024.
ALL = 1024
TOGETHER = {
    "iternorm2019-fig3": {"dbn": {ALL}, "iternorm": {ALL}},
    "iternorm2019-fig6": {"dbn": {16}, "iternorm": {ALL}},
    "iternorm2019-fig7": {"iternorm": {ALL, 256, 64, 32, 1}},
    "iternorm2019-supp-fig1": {"dbn": {ALL}, "iternorm": {ALL}},
    "iternorm2019-supp-time": {"dbn": {16}, "iternorm": {ALL}},
    "iternorm2019-table1": {"dbn": {16}, "iternorm": {64}},
    "iternorm2019-table2": {"dbn": {16}, "iternorm": {64}},
    "iternorm2019-table3": {"iternorm": {64}},
    "dbn2018-fig2": {"dbn": {ALL}},
    "dbn2018-fig3": {"dbn": {ALL}},
    "dbn2018-fig4": {"dbn": {1, 8, 16, 32, 64, 128}},
    "dbn2018-fig6": {"dbn": {16, 14}},
    "dbn2018-tableB1": {"dbn": {8, 16, 64, 256, 512}},
    **{
        f"dbn2018-{name}": {"dbn": {16}}
        for name in (
            "fig5", "table1", "table2", "table2-cifar100", "table3", "tableB2", "tableB3", "tableB4"
        )
    },
}  # fmt: skip


def test_channels_are_whitened_together_as_in_the_papers_and_matrices_averaged():
    found: dict[str, dict[str, set[int]]] = {}
    for recipe in TRAININGS.values():
        for configuration in recipe.configurations:
            places = [v for k, v in configuration.options.items() if k.endswith("_norm")]
            for norm in (configuration.norm, *places):
                kind = norm.partition(":")[0]
                if kind in ("dbn", "iternorm"):
                    assert "running=whitening" in norm, f"{recipe.name}: {norm}"
                    with torch.device("meta"):
                        layer = norm_factory(norm)(ALL)
                    together = found.setdefault(recipe.name, {}).setdefault(kind, set())
                    together.add(layer.running_whitening.shape[-1])
    assert found == TOGETHER


@pytest.mark.parametrize("t", [0, 1, 3, 5, 7])
def test_figure_7a_whitens_all_channels(t):
    assert "group_size=None" in TRAININGS["iternorm2019-fig7"][f"T = {t}"].norm


def test_claims_speak_of_what_is_measured():
    assert all(recipe.claims and recipe.choices for recipe in RECIPES.values())
    for recipe in TRAININGS.values():
        assert {claim.measure for claim in recipe.claims} <= set(MEASURES)
        assert {key for c in recipe.configurations for key in c.paper} <= set(MEASURES)
