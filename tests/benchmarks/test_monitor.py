"""The monitor's benchmark measures and records, at a size a test can afford."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import monitor


def test_the_cost_is_what_looks_add_to_a_hundred_steps():
    assert monitor.cost(look=1.0, between=1.0) == pytest.approx(0)
    assert monitor.cost(look=3.0, between=1.0) == pytest.approx(0.02)
    assert monitor.cost(look=1.0, between=1.1) == pytest.approx(0.099)


def test_the_record_holds_what_it_takes_to_judge(tmp_path, capsys):
    path = tmp_path / "monitor.json"
    threads = torch.get_num_threads()
    try:
        monitor.main(
            [
                "--batch-size",
                "2",
                "--norm",
                "batchnorm",
                "--rounds",
                "1",
                "--threads",
                "1",
                "--out",
                str(path),
            ]
        )
    finally:
        torch.set_num_threads(threads)
    record = json.loads(path.read_text())
    steps = record["step_over_plain"]
    assert steps["plain"]["median"] == 1 and steps["look with disturbance"]["median"] > 0
    expected = monitor.cost(steps["look"]["median"], 1.0)
    assert record["cost"]["look"] == pytest.approx(expected)
    assert record["passed"] == (expected < record["limit"]) and record["versions"]["torch"]
    assert "every 100 steps costs" in capsys.readouterr().out
