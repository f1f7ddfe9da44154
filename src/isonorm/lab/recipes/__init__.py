"""Every figure and table of the papers that can be run, one file each, named like the papers."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules

from ..measuring.words import Measurement
from ..recipe import Recipe


def all_recipes() -> dict[str, Recipe | Measurement]:
    """By name, as ``isonorm run`` takes it: each module here holds one in ``RECIPE``."""
    modules = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
    recipes = [module.RECIPE for module in modules if hasattr(module, "RECIPE")]
    return {recipe.name: recipe for recipe in recipes}


def find_recipe(name: str) -> Recipe:
    """One of trainings."""
    recipe = find_any(name)
    if isinstance(recipe, Measurement):
        raise ValueError(f"{name} measures layers and trains nothing.")
    return recipe


def find_any(name: str) -> Recipe | Measurement:
    recipes = all_recipes()
    if name not in recipes:
        near = get_close_matches(name, recipes, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(recipes)}."
        asked = f"there is no recipe called {name!r}" if name else "name a recipe"
        raise ValueError(f"{asked}: {hint}")
    return recipes[name]


def command_for(recipe: Recipe | Measurement) -> str:
    """The command that runs it, with ``DIR`` for the folder of its data where it needs any."""
    return f"isonorm run {recipe.name}" + " --data DIR" * (not recipe.data.startswith("noise"))
