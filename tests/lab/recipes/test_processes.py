"""What a run may run on: several nodes, sharded parameters, the compiler."""

from __future__ import annotations

import csv
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import TCPStore
from torch.distributed.run import main as torchrun
from typer.testing import CliRunner, Result

from isonorm.lab.cli import app
from tests.processes import COPIES, LIMIT, Copy, python, together

pytestmark = pytest.mark.usefixtures("nothing_is_drawn")


@pytest.fixture(scope="module")
def files(tmp_path_factory, official) -> Path:
    folder = tmp_path_factory.mktemp("data")
    official.mnist(folder, train=60, test=20)
    official.faces(folder, "pie")
    return folder


def words(files: Path, out: Path, recipe: str, *more: str) -> list[str]:
    return ["run", recipe, "--data", str(files), "--scale", "quick", "--device", "cpu",
            "--keep-weights", "--out", str(out), *more]  # fmt: skip


def isonorm_command(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def losses(out: Path) -> list[float]:
    (folder,) = out.iterdir()
    with (folder / "curves.csv").open() as file:
        return [float(row["train_loss"]) for row in csv.DictReader(file)]


def weights(out: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {path.name: load_file(path) for path in sorted(out.glob("*/*.safetensors"))}


def launch_node(rank: int, port: int, command: list[str]) -> None:
    """Launch a node's share of a run, as docs/lab.md says."""
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(rank)]
    words += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    torchrun([*words, "-m", "isonorm.lab.cli", *command])


def launch_first_node(told: Connection, command: list[str]) -> None:
    """Launch the first node with the store that the system gave a port to: its launcher finds the
    store in its own process. The port is told when it is already in use.
    """
    limit = timedelta(seconds=LIMIT)
    store = TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=limit, wait_for_workers=False, multi_tenant=True
    )
    told.send(store.port)
    launch_node(0, store.port, command)


def test_two_nodes_by_torchrun_train_to_the_weights_of_one_process(files, tmp_path):
    """A launcher for each node, here on one machine, as docs/lab.md says; with gloo, in float64."""
    options = ["--precision", "float64", "--only", "LN"]  # which sees one example at a time
    one, two = tmp_path / "one", tmp_path / "two"
    alone = isonorm_command(*words(files, one, "dbn2018-fig4", *options))
    assert alone.exit_code == 0, alone.output
    command = words(files, two, "dbn2018-fig4", *options, "--nodes", "2")
    here, there = COPIES.Pipe()
    with here, Copy(launch_first_node, there, command) as first:
        there.close()
        first.until(lambda: here.poll(0))
        with Copy(launch_node, 1, here.recv(), command) as second:
            ended = together(first, second)
    assert [node.code for node in ended] == [0, 0], ended
    assert "LN" in ended[0].output and "LN" not in ended[1].output, "one of them speaks"
    expected, found = weights(one), weights(two)
    assert len(expected) == 2  # learning rates
    for name, tensors in expected.items():
        for key, value in tensors.items():
            torch.testing.assert_close(found[name][key], value, rtol=1e-5, atol=1e-9)
    assert losses(two) == pytest.approx(losses(one), rel=1e-6)


def test_compiled_it_trains_along_the_same_curve(files, tmp_path):
    options = ["--only", "DBN-ZCA, 2 layers"]
    curves = {}
    for compile in ("no", "yes"):
        ran = isonorm_command(
            *words(files, tmp_path / compile, "dbn2018-fig2", *options, "--compile", compile)
        )
        assert ran.exit_code == 0, ran.output
        curves[compile] = losses(tmp_path / compile)
    assert len(curves["no"]) == 2
    assert curves["yes"] == pytest.approx(curves["no"], rel=1e-4)
    expected, found = weights(tmp_path / "no"), weights(tmp_path / "yes")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--compile", "graphs"], "compile graphs records CUDA graphs, and the device is cpu"),
        (["--strategy", "fsdp"], "strategy fsdp shards a model over GPUs; on a CPU choose ddp"),
        (["--strategy", "fsdp", "--devices", "2"], "on a CPU choose ddp"),
    ],
)
def test_what_a_cpu_cannot_do_is_one_sentence(options, sentence, files, tmp_path):
    command = words(files, tmp_path / "runs", "dbn2018-fig2")
    command.remove("--keep-weights")
    answered = isonorm_command(*command, *options)
    assert answered.exit_code == 2 and answered.stderr.count("\n") == 1
    assert sentence in answered.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("options", [("--strategy", "fsdp"), ("--compile", "graphs")])
def test_on_a_gpu_the_curve_is_that_of_the_plain_run(options, files, tmp_path):
    found = {}
    for name, more in {"plain": (), "other": options}.items():
        command = words(files, tmp_path / name, "dbn2018-fig2", "--only", "DBN-ZCA, *", *more)
        command[command.index("cpu")] = "cuda"
        command.remove("--keep-weights")
        ran = python("-m", "isonorm.lab.cli", *command)
        assert ran.code == 0, ran
        found[name] = losses(tmp_path / name)
    assert found["other"] == pytest.approx(found["plain"], rel=1e-3)
