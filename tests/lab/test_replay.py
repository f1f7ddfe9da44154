"""The time of a step on a GPU without its host's."""

from __future__ import annotations

import pytest
import torch

from isonorm.lab.replay import replay_seconds, waits_for_device

pytestmark = pytest.mark.gpu


def test_a_replayed_step_takes_what_the_device_needs():
    x = torch.randn(1 << 26, device="cuda")
    y = torch.empty_like(x)
    one, three = (
        replay_seconds(lambda n=n: [torch.neg(x, out=y) for _ in range(n)], rounds=5)
        for n in (1, 3)
    )
    assert 2.7 * one < three < 3.3 * one
    assert 5e11 < 2 * 4 * x.numel() / one < 2e13, "bytes that a GPU moves in a second"


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
