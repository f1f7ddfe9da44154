"""Every recipe at quick scale, on small files in the official formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from isonorm.lab import experiment
from isonorm.lab.claims import MEASURES
from isonorm.lab.cli import app
from isonorm.lab.cost import SIZES
from isonorm.lab.recipes import all_recipes
from tests.lab.pages.helpers import check_structure

RECIPES = all_recipes()
DRAWN = "dbn2018-fig6"  # drawing takes longer than the trainings: once is enough


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
    if name != DRAWN:
        monkeypatch.setattr(experiment.figures, "save", lambda *arguments: [])
    ran = isonorm_command("run", name, "--data", str(files), "--scale", "quick", "--device", "cpu",
                          "--out", str(tmp_path), "--no-verify")  # fmt: skip
    assert ran.exit_code == 0, ran.output
    (folder,) = tmp_path.iterdir()
    content = json.loads((folder / "result.json").read_text())
    recipe = RECIPES[name]
    assert content["status"] == "finished"
    assert [row["configuration"] for row in content["summary"]] == [
        configuration.name for configuration in recipe.configurations
    ]
    assert not any(run["diverged"] for run in content["runs"] if "lr=5" not in str(run))
    assert [claim["claim"] for claim in content["claims"]] == [c.text for c in recipe.claims]
    assert all(claim["answer"] != "not measured" for claim in content["claims"])
    drawn = ["curves.png", "curves.svg"] if name == DRAWN else []
    left = sorted(file.name for file in folder.iterdir())
    assert left == sorted(["curves.csv", "report.html", "result.json", *drawn])
    check_structure((folder / "report.html").read_text(encoding="utf-8"))


def test_full_size_networks_can_be_built_and_mixup_has_its_places():
    built = {}
    for recipe in RECIPES.values():
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


def test_claims_speak_of_what_is_measured():
    for recipe in RECIPES.values():
        assert recipe.claims and recipe.choices
        assert {claim.measure for claim in recipe.claims} <= set(MEASURES)
        assert {key for c in recipe.configurations for key in c.paper} <= set(MEASURES)
