"""``import isonorm`` needs torch alone."""

from __future__ import annotations

from pathlib import Path

import isonorm
from tests.processes import python

OPTIONAL = (
    "triton", "matplotlib", "typer", "rich", "lightning", "lightning_fabric", "sklearn",
    "hessian_eigenthings", "tensorboard", "safetensors",
)  # fmt: skip

PROGRAM = f"""
import sys
import torch
before = set(sys.modules)
import isonorm
isonorm.IterNorm(4)(torch.randn(3, 4))
import isonorm.lab.models  # the networks, too
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(new & set({OPTIONAL!r})))
"""


def test_no_optional_dependency_is_imported():
    ended = python("-c", PROGRAM)
    assert ended.code == 0 and not ended.output.strip(), ended


def test_the_contracts_names_are_public():
    modules = {"analysis", "area", "functional", "operation", "recovery"}
    functions = {"backend", "create_norm", "fold", "list_norms"}
    functions |= {"convert", "revert", "insert", "convert_sync", "freeze", "unfreeze"}
    functions |= {"recalibrate", "load_checkpoint", "save_checkpoint"}
    classes = {"IterNorm", "DBN", "Normalize", "Statistics"}
    in_equilibrium = {"EquiConv1d", "EquiConv2d", "EquiConv3d", "EquiLinear"}
    assert modules | functions | classes | in_equilibrium <= set(vars(isonorm))


def test_the_citation_is_of_this_version():
    citation = Path(__file__).parents[1] / "CITATION.cff"
    assert f"\nversion: {isonorm.__version__}\n" in citation.read_text(encoding="utf-8")
