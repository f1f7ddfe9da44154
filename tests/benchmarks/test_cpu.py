"""The benchmarks measure what they say: plain versions, meters, checks, records."""

from __future__ import annotations

import doctest
import json
import random

import pytest
import torch
from torch import nn

import isonorm
from benchmarks import cases, check, cpu, measure, plain, report, resnet50, targets, warmstart
from benchmarks.cases import (
    BATCHED,
    CANDIDATES,
    EXACT,
    FALLBACK,
    IN_TORCH,
    ITERNORM,
    LOOPED,
    SHAPES,
    Candidate,
    Case,
    Gradients,
    all_cases,
    candidates,
    implementation,
    make_inputs,
    training_step,
)
from isonorm.kernels import native
from isonorm.kernels import plain as plain_steps
from tests.kernels.paths import needs_native_code


@pytest.mark.parametrize("module", [cases, cpu, measure, targets])
def test_examples_in_docstrings(module):
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


# --- the plain algorithm --------------------------------------------------------------------------


@pytest.mark.parametrize("over_groups", [plain.looped, plain.batched])
@pytest.mark.parametrize(
    "case",
    [
        Case((4, 6, 5, 5), 3),
        Case((4, 7, 5, 5), 3),  # a shorter last group
        Case((4, 7, 5, 5), 7),
        Case((9, 8), 4),  # no positions
        Case((5, 8), 8),  # more features than samples
        Case((3, 4, 6), 2),
    ],
    ids=str,
)
def test_plain_versions_are_iternorm(case, over_groups):
    layer = plain.PlainIterNorm(case.channels, case.group_size, over_groups)
    fast = isonorm.IterNorm(case.channels, group_size=case.group_size)
    inputs = make_inputs(case)
    expected = training_step(layer, inputs, torch.float64)()
    found = training_step(fast, inputs, torch.float64)()
    for name, ours, theirs in zip(Gradients._fields, found, expected, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_whiten_is_the_recurrence_on_the_eigenvalues():
    X = torch.randn(5, 40, dtype=torch.float64)
    X_C = X - X.mean(1, keepdim=True)
    eigenvalues, D = torch.linalg.eigh(X_C @ X_C.T / 40 + 1e-3 * torch.eye(5, dtype=X.dtype))
    p = torch.ones_like(eigenvalues)
    for _ in range(4):
        p = 0.5 * (3 * p - p**3 * eigenvalues / eigenvalues.sum())
    expected = D @ torch.diag(p / eigenvalues.sum().sqrt()) @ D.T @ X_C
    torch.testing.assert_close(plain.whiten(X, 4, 1e-3), expected, rtol=1e-11, atol=1e-12)


def test_zca_whitens():
    y = plain.zca(torch.randn(2, 4, 60, dtype=torch.float64), 0, 0.0)
    torch.testing.assert_close(y @ y.mT / 60, torch.eye(4, dtype=y.dtype).expand(2, 4, 4))


def test_the_output_lies_as_the_input_does():
    layer = plain.PlainIterNorm(6, 3, plain.batched)
    assert layer(torch.randn(2, 6, 4, 4)).is_contiguous()


# --- cases ----------------------------------------------------------------------------------------


def test_no_case_is_measured_twice():
    found = all_cases(SHAPES, (16, 64, None))
    assert len(found) == len(set(found)) == 10
    assert [c.group_size for c in found if c.channels == 64] == [16, 64]


def test_every_layer_of_a_case_gets_the_same_step():
    case = Case((4, 6, 3, 3), 3)
    inputs = make_inputs(case)
    for candidate in CANDIDATES:
        layer = candidate.layer(case)
        result = training_step(layer, inputs)()
        assert [t.shape for t in result] == [case.shape, case.shape, (6,), (6,)]
        assert torch.equal(layer.weight, inputs.weight) and torch.equal(layer.bias, inputs.bias)
        torch.testing.assert_close(
            result.dbias, inputs.cotangent.sum((0, 2, 3)), rtol=1e-4, atol=1e-5
        )


@needs_native_code
def test_what_runs_without_a_compiler_competes_where_it_is_something_else(monkeypatch):
    ran = []
    monkeypatch.setattr(plain_steps, "apply", lambda *_: ran.append("torch"))
    monkeypatch.setattr(native, "apply", lambda *_: ran.append("native"))
    case = Case((4, 12, 3, 3), 6)
    assert candidates(case) == [*CANDIDATES, FALLBACK]
    x = make_inputs(case).x
    for candidate in (CANDIDATES[0], FALLBACK):
        candidate.layer(case)(x)
    assert ran == ["native", "torch"]
    large = Case((4, 130, 2, 2), 130)
    assert implementation(large).backend == "torch" and candidates(large) == [*CANDIDATES]


# --- the meters -----------------------------------------------------------------------------------


def test_turns_are_counted_and_shuffled():
    called = []
    steps = {name: lambda name=name: called.append(name) for name in "abc"}
    times = measure.take_turns(steps, rounds=8, least_seconds=0.0)
    assert {name: len(t) for name, t in times.items()} == {"a": 8, "b": 8, "c": 8}
    turns = called[-24:]
    rounds = [tuple(turns[i : i + 3]) for i in range(0, 24, 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds) and len(set(rounds)) > 1


def test_ratios_are_taken_round_by_round():
    drift = [random.Random(i).uniform(1, 10) for i in range(9)]
    found = measure.ratio([2 * d for d in drift], drift)
    assert found.median == found.lower == found.upper == pytest.approx(2.0)


# --- checks and targets ---------------------------------------------------------------------------


class Spoiled(plain.PlainIterNorm):
    def forward(self, x):
        return super().forward(x) * 1.001


@pytest.mark.parametrize("candidate", [*CANDIDATES, FALLBACK, EXACT], ids=lambda c: c.name)
def test_every_candidate_passes_its_check(candidate):
    case = Case((8, 7, 5, 5), 3)
    errors = check.Checker(case, make_inputs(case)).errors(candidate)
    assert errors.keys() == set(Gradients._fields)


def test_a_wrong_layer_is_named():
    case = Case((8, 6, 5, 5), 3)
    wrong = Candidate(
        "the spoiled one",
        lambda case: Spoiled(case.channels, case.group_size, plain.looped),
        CANDIDATES[1].reference,
    )
    with pytest.raises(check.Disagreement, match=r"the spoiled one at 8x6x5x5 group 3 .*\by \d"):
        check.Checker(case, make_inputs(case)).errors(wrong)


def test_not_a_number_is_wrong():
    assert not check.relative_error(torch.tensor([1.0, float("nan")]), torch.ones(2)) <= 1.0


@pytest.mark.parametrize(
    ("case", "looped", "batched"),
    [
        (Case((32, 64, 56, 56), 64), 2.0, 1.5),
        (Case((32, 256, 14, 14), 16), 2.0, 1.5),
        (Case((32, 256, 14, 14), 256), 1.0, 1.0),
        (Case((256, 512), 16), 1.0, 1.0),
    ],
    ids=str,
)
def test_targets(case, looped, batched):
    times = {ITERNORM: [1.0], LOOPED: [looped], BATCHED: [batched * 0.99]}
    assert [(v.required, v.passed) for v in targets.judge(case, times)] == [
        (looped, True),
        (batched, False),
    ]


# --- the networks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", resnet50.NORMS)
def test_resnet50_has_53_norms_of_the_kind_that_is_compared(norm):
    kind, fused = resnet50.NORMS[norm]
    with torch.device("meta"):
        model = resnet50.network(norm, group_size=32)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d | isonorm.Normalize)]
    assert len(norms) == 53 and {type(m) for m in norms} == {kind}
    assert {getattr(m, "group_size", 32) for m in norms} == {32}
    # every bottleneck has a fourth norm at most: the shortcut's, before the addition
    assert sum(getattr(m, "act", None) == "relu" for m in norms) == (49 if fused else 0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032


# --- the run --------------------------------------------------------------------------------------


def test_a_run_prints_a_table_and_writes_a_record(tmp_path, capsys):
    out = tmp_path / "new" / "cpu.json"
    arguments = [
        "--quick",
        "--shapes",
        "4x12x3x3",
        "--groups",
        "6",
        "full",
        "--out",
        str(out),
    ]
    assert cpu.main([*arguments, "--rounds", "2"]) == 0
    printed = capsys.readouterr().out
    assert "4x12x3x3 group 12 (full)" in printed and ITERNORM in printed and "Targets" in printed

    record = json.loads(out.read_text())
    assert record["command"].startswith("python -m benchmarks.cpu --quick")
    assert (
        record["rounds"] == 2
        and record["processes"] == 1
        and record["threads"]
        and record["hardware"]["cpu"]
    )
    assert [case["group_size"] for case in record["cases"]] == [6, 12]
    runs = {case["implementation"]["backend"] for case in record["cases"]}
    others = record["cases"][0]["layers"].keys() - {c.name for c in CANDIDATES}
    assert (runs, others) in (({"native"}, {IN_TORCH}), ({"torch"}, set()))
    layer = record["cases"][0]["layers"][ITERNORM]
    assert layer["time"]["n"] == 2 and layer["peak_bytes"] > 0
    assert layer["time_ratios"].keys() == layer["peak_ratios"].keys()
    assert len(record["targets"]) == 4 and isinstance(record["passed"], bool)
    assert [p.name for p in out.parent.iterdir()] == ["cpu.json"]


@pytest.mark.slow
def test_processes_share_the_rounds(tmp_path, capfd):
    out = tmp_path / "cpu.json"
    arguments = ["--shapes", "4x6", "--groups", "3", "--rounds", "3", "--processes", "2"]
    assert cpu.main([*arguments, "--threads", "1", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["rounds"] == 3 and record["processes"] == 2
    (case,) = record["cases"]
    assert {layer["time"]["n"] for layer in case["layers"].values()} == {3}
    told = capfd.readouterr().err
    assert "process 2 of 2" in told and told.count("measuring 4x6 group 3") == 2


def test_nothing_is_timed_where_a_result_is_wrong(tmp_path, capsys, monkeypatch):
    class Wrong(nn.BatchNorm2d):
        """Right in shape alone."""

        def __init__(self, num_features, **options):
            super().__init__(num_features)

    monkeypatch.setattr(isonorm, "IterNorm", Wrong)
    out = tmp_path / "cpu.json"
    assert cpu.main(["--quick", "--shapes", "4x6x3x3", "--groups", "3", "--out", str(out)]) == 1
    captured = capsys.readouterr()
    assert ITERNORM in captured.err and captured.out == "" and not out.exists()


@pytest.mark.parametrize(("arguments", "status"), [([], 0), (["--check"], 1)])
def test_a_missed_target_is_an_error_where_asked(tmp_path, capsys, monkeypatch, arguments, status):
    missed = targets.Verdict("case", LOOPED, 2.0, 1.0, False)
    monkeypatch.setattr(cpu, "judge", lambda case, times: [missed])
    monkeypatch.setattr(cpu, "peak_bytes", lambda step: 1)
    out = tmp_path / "cpu.json"
    options = ["--rounds", "1", "--shapes", "4x4", "--groups", "2", "--out", str(out)]
    assert cpu.main([*options, *arguments]) == status
    assert json.loads(out.read_text())["passed"] is False
    assert "MISSED" in capsys.readouterr().out


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path):
    out = tmp_path / "cpu.json"
    out.write_text("old")
    with pytest.raises(ValueError, match="JSON"):
        report.write({"time": float("nan")}, out)
    assert out.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["cpu.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "32"], "1 dimensions"),
        (["--shapes", "4x-2"], "positive integer"),
        (["--groups", "all"], "positive integer"),
    ],
)
def test_wrong_arguments_are_explained(arguments, message, capsys):
    with pytest.raises(SystemExit):
        cpu.parse(arguments)
    assert message in capsys.readouterr().err


def test_the_warm_starts_record(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(warmstart, "GROUP_SIZES", (4,))
    monkeypatch.setattr(warmstart, "TARGETS", {"IterNorm": isonorm.IterNorm})
    out = tmp_path / "warmstart.json"
    warmstart.main(["--seeds", "1", "--epochs", "1", "--out", str(out)])
    record = json.loads(out.read_text())
    (row,) = record["converted"].values()
    assert row["output_error"]["mean"] < 1e-4 and record["n"] == 1
    assert row["converted"] == record["batchnorm"]
    assert all(f"{row[stage]['mean']:.2%}" in capsys.readouterr().out for stage in ("converted",))
