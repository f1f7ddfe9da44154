"""Memory that outlives a call: found again, never shared by two at once, and not hoarded."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import isonorm
from isonorm.kernels import scratch, tiles
from isonorm.kernels.scratch import MOST_BYTES, Scratch

LIKE = torch.zeros(1)


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch):
    monkeypatch.setattr(scratch, "_kept", scratch._Kept())
    monkeypatch.setattr(scratch, "LEAST_BYTES", 1)


def place(shape=(3, 5), dtype=torch.float32):
    return Scratch(LIKE, dtype).room("tile", shape).data_ptr()


def kept() -> list[int]:
    return [piece.numel() for piece in scratch._kept.pieces]


@pytest.fixture(autouse=True)
def _plain_torch():
    """Native code needs no memory of the size of tiles."""
    with isonorm.backend("torch"):
        yield


def test_a_room_has_the_shape_and_dtype_asked_for_and_is_found_again():
    own = Scratch(LIKE, torch.float64)
    room = own.room("tile", (2, 3, 4))
    assert room.shape == (2, 3, 4) and room.dtype == torch.float64 and room.is_contiguous()
    assert own.room("tile", (2, 3, 4)) is room
    assert own.room("tile", (6,)).data_ptr() == room.data_ptr()
    assert own.room("other", (6,)).data_ptr() != room.data_ptr()
    before = room.data_ptr()
    del own
    assert place((4, 6), torch.float64) == before == place((90,), torch.float16)


def test_two_at_once_never_share():
    first, second = Scratch(LIKE, torch.float32), Scratch(LIKE, torch.float32)
    rooms = [own.room("tile", (100,)) for own in (first, second, first)]
    assert rooms[0].data_ptr() == rooms[2].data_ptr() != rooms[1].data_ptr()
    grown = first.room("tile", (200,))
    assert grown.data_ptr() != rooms[1].data_ptr()


def test_a_piece_is_given_back_once_even_if_there_is_no_memory_for_a_larger_one():
    own = Scratch(LIKE, torch.float32)
    own.room("tile", (10,))
    with pytest.raises(RuntimeError, match="alloc"):
        own.room("tile", (1 << 58,))
    other = Scratch(LIKE, torch.float32)
    assert other.room("tile", (10,)).data_ptr() != own.room("tile", (10,)).data_ptr()
    del own, other
    assert kept() == [40, 40]


def test_the_smallest_piece_that_is_large_enough_is_taken():
    own = Scratch(LIKE, torch.float32)
    for purpose, size in (("a", 10), ("b", 1000), ("c", 100)):
        own.room(purpose, (size,))
    del own
    own = Scratch(LIKE, torch.float32)
    own.room("tile", (50,))
    assert sorted(kept()) == [40, 4000]


def test_little_is_kept():
    for size in (MOST_BYTES + 1, MOST_BYTES // 2, MOST_BYTES // 4, MOST_BYTES // 2 + 1):
        own = Scratch(LIKE, torch.int8)
        own.room("tile", (MOST_BYTES // 2,))
        own.room("other", (size,))
        del own
        assert 0 < sum(kept()) <= MOST_BYTES


def test_small_rooms_are_left_to_malloc(monkeypatch):
    monkeypatch.setattr(scratch, "LEAST_BYTES", 400)
    own = Scratch(LIKE, torch.float32)
    own.room("small", (99,))
    own.room("large", (100,))
    del own
    assert kept() == [400]


def test_threads_have_their_own():
    mine = place()
    found = []
    thread = threading.Thread(target=lambda: found.append(place()))
    own = Scratch(LIKE, torch.float32)
    room = own.room("tile", (3, 5))
    thread.start()
    thread.join()
    assert room.data_ptr() == mine and found[0] != mine


def test_what_was_made_in_inference_mode_serves_outside_it():
    layer, x = isonorm.IterNorm(8, group_size=4), torch.randn(6, 8, 12, 12)
    with torch.inference_mode():
        layer(x)
    assert kept()
    cotangent, found = torch.randn_like(x), []
    for backend in ("torch", "reference"):
        leaf = x.clone().requires_grad_()
        with isonorm.backend(backend):
            found += torch.autograd.grad(layer(leaf), leaf, cotangent)
    torch.testing.assert_close(*found)


def test_the_default_device_is_not_that_of_an_input_on_the_cpu():
    layer, x = isonorm.IterNorm(8, group_size=4), torch.randn(6, 8, 12, 12)
    expected = layer(x)
    scratch._kept.pieces = []
    with torch.device("meta"):
        torch.testing.assert_close(layer(x), expected)
    assert kept()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("budget", [1 << 20, 600], ids=["whole", "in chunks"])
@pytest.mark.parametrize("width", [12, 4])  # in rows, and gathered
def test_a_trace_of_a_layer_in_training_has_memory_of_its_own(width, budget, monkeypatch):
    monkeypatch.setitem(tiles.CHUNK_NUMEL, "cpu", budget)
    layer, x = isonorm.IterNorm(8, group_size=4), torch.randn(6, 8, width, width)
    layer(x)
    before = kept()
    traced = torch.jit.trace(layer, x, check_trace=False)
    assert kept() == before
    other = torch.randn_like(x)
    torch.testing.assert_close(traced(other), layer(other))


def test_what_a_dispatch_mode_keeps_is_not_used_again():
    class Keeping(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.bmm.out:
                products.append((result, result.clone()))
            return result

    products: list[tuple[torch.Tensor, torch.Tensor]] = []
    layer, x = isonorm.IterNorm(32, group_size=16), torch.randn(6, 32, 12, 12)
    layer(x)
    with Keeping():
        layer(x)
    layer(2 * x)
    assert products
    for kept_one, as_it_was in products:
        torch.testing.assert_close(kept_one, as_it_was)


def test_layers_with_a_remainder_use_two_at_once():
    """Groups of 4 and a remainder of 2 have tiles of their own at the same time."""
    torch.manual_seed(0)
    layer, x = isonorm.IterNorm(10, group_size=4), torch.randn(3, 10, 12, 12)
    for _ in range(2):  # the second time with memory that holds something
        with isonorm.backend("reference"):
            expected = layer(x)
        torch.testing.assert_close(layer(x), expected)
