"""The time of a step on a GPU without its host's."""

from __future__ import annotations

import pytest
import torch

from isonorm.lab.replay import replay_seconds, waits_for_device

pytestmark = pytest.mark.gpu


def test_the_replays_do_what_the_step_does():
    done = torch.zeros((), device="cuda")
    assert replay_seconds(lambda: done.add_(1), rounds=4, least=0) > 0
    warm_up, first_look = 3, 2  # what is captured does not run
    assert done.item() == warm_up + first_look + 4


def test_what_waits_for_the_device_is_found():
    matrix = torch.eye(8, device="cuda")
    assert waits_for_device(lambda: torch.linalg.eigh(matrix))
    assert waits_for_device(lambda: matrix.sum().item())
    assert not waits_for_device(lambda: matrix @ matrix)
    assert torch.cuda.get_sync_debug_mode() == 0, "left as it was"


def test_what_is_wrong_with_a_step_is_told():
    with pytest.raises(RuntimeError, match="square matrices"):
        waits_for_device(lambda: torch.linalg.eigh(torch.ones(7, 8, device="cuda")))
    assert torch.cuda.get_sync_debug_mode() == 0, "left as it was"
