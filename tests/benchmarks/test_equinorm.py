"""The benchmarks of EquiNorm and of MNIST: curves judged, records written."""

from __future__ import annotations

import doctest
import json

import pytest
import torch
from torch import nn

from benchmarks import equinorm, equinorm_cost, mnist
from benchmarks.mnist_training import BLOCKS, LARGE_BATCH, SECTION_6_1, Curve, network


def write_idx(path, values):
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    path.write_bytes(bytes([0, 0, 8, values.dim()]) + sizes + values.numpy().tobytes())


@pytest.fixture
def data(tmp_path):
    """Random images in MNIST's files, where torchvision would put them."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, n in (("train", 256), ("t10k", 50)):
        write_idx(raw / f"{part}-images-idx3-ubyte", torch.randint(256, (n, 28, 28)).byte())
        write_idx(raw / f"{part}-labels-idx1-ubyte", torch.randint(10, (n,)).byte())
    return tmp_path


def test_examples_in_docstrings():
    found = doctest.testmod(equinorm)
    assert found.attempted and not found.failed


@pytest.mark.parametrize("spoil", ["short", "magic", "missing"])
def test_files_that_are_not_mnists_are_named(data, tmp_path, capsys, spoil):
    path = data / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    content = path.read_bytes()
    if spoil == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if spoil == "short" else b"\x1f\x8b" + content)
    out = tmp_path / "record.json"
    assert mnist.main(["normalizations", "--data", str(data), "--out", str(out)]) == 1
    assert path.name in capsys.readouterr().err and not out.exists()


def test_a_curve_says_when_it_arrived():
    curve = Curve([1.0, 0.8, 0.3, 0.1, 0.05, 0.03], [0.5, 0.2, 0.1])
    assert curve.epoch_losses == pytest.approx([0.9, 0.2, 0.04])
    assert curve.epochs_to(0.2) == 2 and curve.epochs_to(0.01) is None
    assert curve.steps_to(0.2, window=2) == 4 and curve.steps_to(0.01, window=2) is None


def test_schedules_are_those_of_the_papers():
    rates = {}
    for name, training in LARGE_BATCH.items():
        optimizer, schedule = training.start(iter([nn.Parameter(torch.ones(2, 2))]), 100)
        peak, rates[name] = training.options["lr"], []
        for _ in range(100):
            rates[name].append(optimizer.param_groups[0]["lr"] / peak)
            optimizer.step()
            schedule.step()
    assert rates["LARS"][5:7] == pytest.approx([1, (94 / 95) ** 2])
    assert rates["LAMB"][10:12] == pytest.approx([1, 89 / 90])
    assert rates["LANS"][43:70] == pytest.approx([1.0] * 27) and rates["LANS"][71] < 1
    assert SECTION_6_1.start(iter([nn.Parameter(torch.ones(2))]), 10)[1] is None


def test_the_networks_differ_in_their_normalization_alone():
    sizes = {
        name: sum(p.numel() for p in network(block).parameters()) for name, block in BLOCKS.items()
    }
    assert len(set(sizes.values())) == 1


def test_mnist_writes_a_record(data, tmp_path, capsys):
    out = tmp_path / "new" / "record.json"
    arguments = ["normalizations", "--data", str(data), "--seeds", "2", "--epochs", "1"]
    assert mnist.main([*arguments, "--out", str(out)]) == 0
    assert "EquiConv" in capsys.readouterr().out
    record = json.loads(out.read_text())
    assert str(data) not in out.read_text() and "--data DIR" in record["command"]
    assert record["results"].keys() == BLOCKS.keys() and record["seeds"] == 2
    found = record["results"]["EquiConv"]
    assert len(found["final_test_error"]["seeds"]) == 2 and found["training"]["optimizer"] == "SGD"
    assert found["epochs_to_target"] == {"seeds": [None, None], "spread": None}


def test_balance_is_exact_where_the_paper_says_so(tmp_path, capsys):
    out = tmp_path / "balance.json"
    assert equinorm.main(["balance", "--sizes", "6", "--out", str(out)]) == 0
    results = json.loads(out.read_text())["results"]
    for result in results:
        exact = result["case"] in ("cyclic", "cyclic, dilation 2")
        assert (result["largest_mean"] < 1e-12) == exact
        assert (abs(result["positive"]["median"] - 1) < 1e-12) == exact
    damped = next(r for r in results if r["case"] == "zeros" and r["input"] == "rough")
    assert damped["positive"]["median"] == pytest.approx((1 - 2 / 18) ** 2, abs=0.01)


def test_cost_checks_then_times(tmp_path, capsys):
    out = tmp_path / "cost.json"
    arguments = ["cost", "--shapes", "4x5", "--batch", "2", "--rounds", "1", "--out", str(out)]
    assert equinorm.main(arguments) == 0
    (result,) = json.loads(out.read_text())["results"]
    assert result["shape"] == [2, 4, 5, 5] and len(result["errors"]["EquiConv2d"]) == 5
    assert max(result["errors"]["EquiConv2d, exact"]) < 1e-5


def test_nothing_is_timed_where_a_result_is_wrong(tmp_path, monkeypatch):
    plainly = equinorm_cost.plainly
    monkeypatch.setattr(equinorm_cost, "plainly", lambda layer, x: 1.001 * plainly(layer, x))
    out = tmp_path / "cost.json"
    with pytest.raises(SystemExit, match="Nothing was timed"):
        equinorm.main(["cost", "--shapes", "4x5", "--batch", "2", "--out", str(out)])
    assert not out.exists()
