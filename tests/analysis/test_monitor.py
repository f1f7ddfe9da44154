"""A monitor sees what it should, costs nothing in between, and leaves nothing behind."""

from __future__ import annotations

import copy
import gc
import json
from io import BytesIO, StringIO

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn
from torch._dynamo.testing import CompileCounter

import isonorm
from isonorm.analysis import Monitor, condition, drift
from isonorm.weights import weight_norm


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), isonorm.IterNorm(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4)
    )


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def train(model: nn.Module, monitor: Monitor, steps: int, optimizer=None) -> list[torch.Tensor]:
    batches = []
    for _ in range(steps):
        x, labels = torch.randn(12, 3, 6, 6), torch.randint(4, (12,))
        loss = F.cross_entropy(model(x), labels)
        model.zero_grad()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        monitor.step()
        batches.append(x)
    return batches


def test_every_kth_step_is_seen_and_only_then_are_there_hooks():
    model, found = network(), []
    with Monitor(model, every=3) as monitor:
        for _ in range(7):
            found.append(hooks(model))
            train(model, monitor, 1)
        assert found == [3, 0, 0, 3, 0, 0, 3]
    assert hooks(model) == 0
    assert [r["step"] for r in monitor.history if r["layer"] == "1"] == [0, 3, 6]
    assert [r["layer"] for r in monitor.latest] == ["0", "1", "4"]


def test_numbers_are_those_of_the_analysis():
    torch.manual_seed(0)
    model = network()
    monitor = Monitor(model, every=1)
    first, second = train(model, monitor, 2)
    monitor.close()
    with torch.no_grad():
        outputs = [model[0](x) for x in (first, second)]
    expected = condition(outputs[1])._asdict()
    moved = drift(*outputs)
    record = next(r for r in monitor.latest if r["layer"] == "0")
    for key, value in expected.items():
        assert record[key] == pytest.approx(value)
    assert record["mean_drift"] == pytest.approx(moved.mean)
    assert record["covariance_drift"] == pytest.approx(moved.covariance)
    assert record["weight_norm"] == pytest.approx(model[0].weight.norm().item())
    assert record["gradient_norm"] == pytest.approx(model[0].weight.grad.norm().item())


def test_a_look_takes_no_more_than_it_may():
    monitor = Monitor(network(), max_samples=10, max_channels=5)
    for shape in ((4, 8, 6, 6), (40, 8, 6, 6), (3, 2), (100, 8), (2, 8, 100)):
        part = monitor._part_of(torch.randn(shape))
        assert part[:, 0].numel() <= 10 and part.shape[1] == min(5, shape[1])
        assert part[:, 0].numel() >= min(10, torch.Size(shape).numel() // shape[1]) // 2
    monitor.close()


def test_with_an_optimizer_and_disturbance():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, every=1, optimizer=optimizer, disturbance=True) as monitor:
        train(model, monitor, 1, optimizer)
    conv, norm, linear = monitor.latest
    assert conv["effective_lr"] == pytest.approx(0.1 / model[0].weight.square().sum().item())
    assert norm["snd"] > 0 and "snd" not in linear and "effective_lr" not in norm


def test_training_is_the_same_with_and_without():
    states = []
    for every in (None, 1):
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Monitor(model, every=every, disturbance=True) as monitor:
            train(model, monitor, 3, optimizer)
        states.append(model.state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_validation_does_not_count():
    model = network()
    with Monitor(model, every=1) as monitor:
        with torch.no_grad():
            model.eval()(torch.randn(5, 3, 6, 6))
        monitor.step()
        assert monitor.history == []
        train(model.train(), monitor, 1)
        assert monitor.latest[0]["step"] == 1


def test_off_is_off():
    model = network()
    with Monitor(model, every=None) as monitor:
        train(model, monitor, 2)
        assert hooks(model) == 0
    assert monitor.history == []


def test_records_as_lines(tmp_path):
    path = tmp_path / "run.jsonl"
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU())
    with Monitor(model, every=1, jsonl=path) as monitor:
        for _ in range(2):
            model(torch.randn(4, 3))  # 4 samples of 6 features: an infinite condition number
            monitor.step()
        lines = path.read_text().splitlines()  # there before it is closed
    records = [json.loads(line) for line in lines]
    assert records == monitor.history
    assert records[0]["condition_number"] is None and records[0]["effective_rank"] > 1


def test_scalars_in_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = network()
    with Monitor(model, every=2, tensorboard=tmp_path) as monitor:
        train(model, monitor, 4)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    scalars = events.Scalars("1/effective_rank")
    expected = [r["effective_rank"] for r in monitor.history if r["layer"] == "1"]
    assert [s.step for s in scalars] == [0, 2]
    assert [s.value for s in scalars] == pytest.approx(expected)


def test_a_given_writer_is_used_and_not_closed():
    class Writer:
        def __init__(self):
            self.tags, self.flushed, self.closed = [], False, False

        def add_scalar(self, tag, value, step):
            self.tags.append(tag)

        def flush(self):
            self.flushed = True

        def close(self):
            self.closed = True

    writer = Writer()
    with Monitor(network(), every=1, tensorboard=writer) as monitor:
        train(monitor.model, monitor, 1)
    assert "0/condition_number" in writer.tags and "0/step" not in writer.tags
    assert writer.flushed and not writer.closed


def test_the_table_shows_the_latest_look():
    model = network()
    with Monitor(model, every=1) as monitor:
        train(model, monitor, 1)
    console = Console(width=120, file=StringIO())
    console.print(monitor.table())
    text = console.file.getvalue()
    assert "step 0" in text and "condition" in text and "SND" not in text
    assert f"{monitor.latest[1]['effective_rank']:.3g}" in text


def test_an_error_in_the_block_removes_the_hooks():
    model = network()
    with pytest.raises(RuntimeError), Monitor(model, every=1) as monitor:
        train(model, monitor, 1)
        model(torch.randn(5, 7, 6, 6))
    assert hooks(model) == 0
    monitor.close()


def test_bad_arguments_get_a_sentence():
    with pytest.raises(ValueError, match="every must be at least 1"):
        Monitor(network(), every=0)
    with pytest.raises(ValueError, match="in whole numbers"):
        Monitor(network(), every=1.5)
    with pytest.raises(ValueError, match="max_channels must be at least 1"):
        Monitor(network(), max_channels=0)
    with pytest.raises(ValueError, match="'input' or 'output'"):
        Monitor(network(), of="gradient")


def test_copies_and_pickles_are_not_watched():
    model = network()
    with Monitor(model, every=1) as monitor:
        file = BytesIO()
        torch.save(model, file)
        file.seek(0)
        for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            other(torch.randn(12, 3, 6, 6))
        monitor.step()
        assert monitor.history == []
        train(model, monitor, 1)
        assert len(monitor.latest) == 3


def test_a_compiled_model_is_seen_at_every_look():
    torch.manual_seed(0)
    model = network()
    compiled = torch.compile(model, backend="eager")
    with Monitor(model, every=2) as monitor:
        train(compiled, monitor, 5)
    assert [r["step"] for r in monitor.history if r["layer"] == "1"] == [0, 2, 4]
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_what_may_stand_in_a_network_does_not_stop_the_training():
    """A weight that begins at zero, a normalized one, tokens, an empty batch, integers, NaN."""
    model = nn.Sequential(
        nn.Embedding(9, 4), weight_norm(nn.Linear(4, 6)), nn.LayerNorm(6), nn.Linear(6, 2)
    )
    nn.init.zeros_(model[3].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(
        model, every=1, layers="*", of="input", optimizer=optimizer, disturbance=True
    ) as monitor:
        for tokens in (torch.randint(9, (8, 5)), torch.zeros(0, 5, dtype=torch.long)):
            model(tokens).square().sum().backward()
            monitor.step()
        seen = {record["layer"]: record for record in monitor.history}
        assert seen["3"]["effective_lr"] is None and seen["1"]["effective_lr"] > 0
        assert seen["1"]["gradient_norm"] == 0
        model[1].bias.data.fill_(float("nan"))
        model(torch.randint(9, (8, 5)))
        monitor.step()
    norm = next(record for record in monitor.latest if record["layer"] == "2")
    lost = ("condition_number", "effective_rank", "off_diagonal_energy", "mean_drift")
    assert all(norm[key] is None for key in (*lost, "scale_drift", "covariance_drift"))


def test_tokens_are_samples_and_not_channels():
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    with Monitor(model, every=1) as monitor:
        y = model[0](tokens := torch.randn(10, 7, 4))
        model(tokens)
        monitor.step()
    expected = condition(y.flatten(0, 1))
    assert monitor.latest[0]["effective_rank"] == pytest.approx(expected.effective_rank)


def test_a_file_that_cannot_be_written_leaves_no_hooks_and_no_open_files(tmp_path):
    model = network()
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        Monitor(model, every=1, jsonl=tmp_path)
    with pytest.raises(OSError):
        Monitor(model, every=1, jsonl=tmp_path / "a.jsonl", tensorboard=tmp_path / "file" / "tb")
    assert hooks(model) == 0


def test_a_monitor_that_is_dropped_leaves_compiled_code_as_it_was():
    counter = CompileCounter()
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    monitor = Monitor(model, every=1)
    torch.compile(model, backend=counter)(torch.randn(2, 3))
    assert counter.frame_count == 0, "a look sees the modules themselves"
    del monitor, model
    gc.collect()
    torch.compile(torch.nn.Linear(3, 3), backend=counter)(torch.randn(2, 3))
    assert counter.frame_count == 1
