"""The Triton kernels on a GPU, and when they are chosen."""

from __future__ import annotations

import pytest
import torch

import isonorm
from isonorm import area, operation
from isonorm.kernels import choose
from isonorm.kernels.choice import INTERPRETING, float32_precision, has_room_for_activation
from isonorm.kernels.plan import _cached_plan
from isonorm.lab.replay import waits_for_device
from tests.kernels.checks import (
    DEVICE,
    OPERATIONS,
    SHAPES,
    TOLERANCE,
    WITHIN_EXAMPLES,
    check,
    check_large_groups,
    make_inputs,
)
from tests.kernels.edge_checks import (
    check_edges,
    check_formats,
    check_gradients_of_full_whitening,
    check_large_means,
    check_long_walks,
    check_narrow_tiles,
    check_parameters_alone,
    check_range_of_float16,
    check_roots_for_bfloat16,
    check_sizes_that_are_known,
    check_tracers,
    check_vanishing_gradients,
)
from tests.kernels.fast_path_checks import (
    LAYERS,
    check_compiled,
    check_eval,
    check_fast_path,
    check_negated,
    check_odd_parameters,
    check_operators,
    check_residuals,
    check_saved_tensors,
    check_transforms,
    check_what_changes,
    check_what_is_replaced,
)
from tests.kernels.fused_checks import (
    COLORED,
    FUSED,
    check_colored,
    check_fused,
    check_fused_operators,
    check_twice_differentiated,
)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("op", OPERATIONS, ids=repr)
@pytest.mark.parametrize(("shape", "group_size"), SHAPES)
def test_kernels_agree_with_float64(shape, group_size, op, dtype, layout) -> None:
    check(shape, area.batch(group_size), op, dtype, layout)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_kernels_agree_with_float64_far_from_zero(dtype) -> None:
    check_large_means(dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_kernels_of_large_groups_agree_with_float64(dtype, layout) -> None:
    check_large_groups(dtype, layout)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("where", "op"), WITHIN_EXAMPLES)
def test_kernels_of_other_areas_agree_with_float64(where, op, dtype, layout) -> None:
    check((3, 12, 9, 11), where, op, dtype, layout)
    check_fused((3, 12, 9, 11), where, op, dtype, layout, "relu", True)


@pytest.mark.gpu
@pytest.mark.parametrize(("where", "op", "act"), COLORED)
def test_kernels_with_a_coloring(where, op, act) -> None:
    check_colored(where, op, act)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("act", "with_residual"), FUSED)
@pytest.mark.parametrize("op", [OPERATIONS[0], OPERATIONS[2], OPERATIONS[4]], ids=repr)
@pytest.mark.parametrize(("shape", "group_size"), SHAPES)
def test_fused_kernels_agree_with_the_composition(
    shape, group_size, op, act, with_residual, dtype, layout
) -> None:
    check_fused(shape, area.batch(group_size), op, dtype, layout, act, with_residual)


@pytest.mark.gpu
@pytest.mark.parametrize(("act", "with_residual"), FUSED)
def test_fused_kernels_twice_differentiated(act, with_residual) -> None:
    check_twice_differentiated(act, with_residual)


@pytest.mark.gpu
def test_fused_operators() -> None:
    check_fused_operators()


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_the_fast_path_is_the_general_path(number, dtype, layout) -> None:
    check_fast_path(number, dtype, layout)
    check_eval(number, dtype, layout)


@pytest.mark.gpu
def test_the_fast_path_sees_what_changes() -> None:
    check_what_changes()
    check_what_is_replaced()
    check_odd_parameters()
    check_residuals()


@pytest.mark.gpu
def test_the_fast_path_with_hooks_on_saved_tensors() -> None:
    check_saved_tensors()


@pytest.mark.gpu
def test_numbers_kept_as_their_negatives() -> None:
    check_negated()


@pytest.mark.gpu
def test_the_fast_path_under_transforms() -> None:
    check_transforms()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning")  # the compiler's advice
def test_the_fast_path_compiled() -> None:
    check_operators()
    check_compiled("inductor")


@pytest.mark.gpu
def test_kernels_at_the_edges() -> None:
    check_edges()
    check_formats()
    check_parameters_alone()
    check_tracers()


@pytest.mark.gpu
def test_gradients_of_full_whitening() -> None:
    check_gradients_of_full_whitening()


@pytest.mark.gpu
def test_the_range_of_float16() -> None:
    check_range_of_float16()


@pytest.mark.gpu
def test_gradients_at_the_end_of_float32() -> None:
    check_vanishing_gradients()


@pytest.mark.gpu
def test_tiles_that_are_loaded_ahead() -> None:
    check_narrow_tiles()
    check_sizes_that_are_known()


@pytest.mark.gpu
def test_long_walks() -> None:
    check_long_walks()


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("kind", [isonorm.IterNorm, isonorm.DBN, isonorm.BatchNorm])
@pytest.mark.parametrize("shape", [(64, 256, 7, 7), (64, 128, 14, 14), (64, 64, 56, 56)], ids=str)
def test_kernels_that_overlap_leave_the_bits_of_those_that_wait(
    shape, kind, layout, monkeypatch
) -> None:
    """Many steps without a pause, each of other numbers, so that what was read too soon shows."""
    torch.manual_seed(0)
    batches = [make_inputs(shape, torch.bfloat16, layout) for _ in range(3)]

    def results() -> list[torch.Tensor]:
        _cached_plan.cache_clear()
        norm = kind(shape[1], act="relu", device="cuda")
        for x, dy, residual, *_ in batches * 20:
            inputs = [x.detach().requires_grad_(), residual.detach().requires_grad_()]
            y = norm(inputs[0], residual=inputs[1])
            found = [y, *torch.autograd.grad(y, [*inputs, norm.weight, norm.bias], dy)]
        return [*found, *norm.state_dict().values()]

    overlapping = results()
    monkeypatch.setattr("isonorm.kernels.gpu.layout.overlaps", lambda device: False)
    waiting = results()
    monkeypatch.undo()
    _cached_plan.cache_clear()
    for early, late in zip(overlapping, waiting, strict=True):
        assert torch.equal(early, late)


@pytest.mark.gpu
def test_roots_for_bfloat16() -> None:
    check_roots_for_bfloat16()


@pytest.mark.gpu
def test_the_same_input_gives_the_same_bits() -> None:
    x = torch.randn(64, 128, 14, 14, device=DEVICE, dtype=torch.bfloat16)
    first, second = (isonorm.functional.iter_norm(x)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.gpu
def test_nothing_waits_for_the_device() -> None:
    norm = isonorm.IterNorm(64, device=DEVICE)
    x = torch.randn(8, 64, 14, 14, device=DEVICE, requires_grad=True)
    cotangent = torch.randn_like(x)
    torch.autograd.grad(norm(x), x, cotangent)  # compiles
    assert not waits_for_device(lambda: torch.autograd.grad(norm(x), x, cotangent))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning")  # the compiler's advice
def test_compiled_training_equals_eager() -> None:
    x = torch.randn(16, 64, 8, 8, device=DEVICE)
    cotangent = torch.randn_like(x)
    results = []
    for wrap in (lambda m: m, lambda m: torch.compile(m, fullgraph=True)):
        norm = isonorm.IterNorm(64, device=DEVICE)
        leaf = x.clone().requires_grad_()
        y = wrap(norm)(leaf)
        results.append(
            (y, *torch.autograd.grad(y, [leaf, norm.weight], cotangent), norm.running_cov)
        )
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)


@pytest.mark.gpu
def test_offsets_beyond_two_to_the_31() -> None:
    """One image more than 2³¹ elements hold; its last rows must not wrap around to the first."""
    x = torch.randn(2**31 // (64 * 64 * 64) + 64, 64, 64, 64, device=DEVICE, dtype=torch.bfloat16)
    y, statistics = isonorm.functional.iter_norm(x)
    tail = x[-32:].double()
    given = isonorm.Statistics(statistics.count, statistics.mean.double(), statistics.cov.double())
    want, _ = isonorm.functional.normalize(
        tail, area=area.batch(64), operation=operation.whiten("newton", 5), statistics=given
    )
    assert (y[-32:].double() - want).norm() / want.norm() < TOLERANCE[torch.bfloat16]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_operators_run_on_a_gpu_that_is_not_the_current_one() -> None:
    layer = isonorm.IterNorm(8, group_size=4, device="cuda:1")
    x, dy = torch.randn(2, 6, 8, 5, 3, device="cuda:1")
    found = []
    for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        y = run(leaf)
        found.append((y, *torch.autograd.grad(y, [leaf, layer.weight, layer.bias], dy)))
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager)


@pytest.mark.parametrize(
    "op, where, dtype, backend",
    [
        (operation.whiten(), area.batch(128), torch.float32, "triton"),
        (operation.whiten(), area.batch(128), torch.bfloat16, "triton"),
        (operation.whiten("polar"), area.batch(128), torch.bfloat16, "torch"),
        # their recovery follows the kernels, which then work in float32
        (operation.whiten(), area.group(128), torch.float16, "torch"),
    ],
)
def test_large_groups_run_where_their_matrices_fit(op, where, dtype, backend, monkeypatch) -> None:
    monkeypatch.setattr("isonorm.kernels.choice.INTERPRETING", True)
    choice = choose(torch.randn(2, 128, 4, 4, dtype=dtype), area=where, operation=op)
    assert choice.backend == backend
    assert backend == "triton" or "64" in choice.reason


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="since torch 2.9")
@pytest.mark.parametrize("setting", [torch.backends, torch.backends.cuda.matmul])
@pytest.mark.parametrize("word, precision", [("tf32", "high"), ("ieee", "highest")])
def test_the_precision_of_products_may_be_set_by_torchs_newer_interface(setting, word, precision):
    """Asked by the older one, torch would raise."""
    before = setting.fp32_precision
    setting.fp32_precision = word
    try:
        assert float32_precision() == precision
    finally:
        setting.fp32_precision = before


@pytest.mark.parametrize("word", ["highest", "high", "medium"])
def test_the_precision_of_products_is_torchs(word) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(word)
    try:
        assert float32_precision() == ("highest" if word == "highest" else "high")
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "kilobytes, size, dtype, backend, activates",
    [
        (227, 128, torch.bfloat16, "triton", True),  # Hopper
        (227, 128, torch.float32, "triton", False),
        (227, 64, torch.float32, "triton", True),
        (163, 128, torch.float32, "torch", False),  # A100
        (163, 128, torch.float16, "triton", True),
        (163, 64, torch.float32, "triton", True),
        (99, 128, torch.float16, "torch", False),  # RTX, L4, L40
        (99, 128, torch.bfloat16, "triton", False),
        (99, 64, torch.float32, "triton", False),
        (99, 64, torch.float16, "triton", True),
        (64, 64, torch.float32, "torch", False),  # Turing
        (64, 64, torch.float16, "triton", True),
    ],
)
def test_groups_run_where_the_gpu_has_the_shared_memory(
    kilobytes, size, dtype, backend, activates, monkeypatch
) -> None:
    monkeypatch.setattr("isonorm.kernels.choice.INTERPRETING", True)
    monkeypatch.setattr("isonorm.kernels.choice._shared_memory", lambda device: kilobytes << 10)
    x = torch.randn(2, 128, 4, 4, dtype=dtype)
    choice = choose(x, area=area.batch(size), operation=operation.whiten())
    assert has_room_for_activation(operation.whiten(), area.batch(size), x) is activates
    assert choice.backend == backend
    assert backend == "triton" or f"this GPU has {kilobytes}" in choice.reason


@pytest.mark.parametrize("dtype, method, backend", [
    (torch.bfloat16, "newton", "triton"),
    (torch.float32, "newton", "torch"),
    (torch.bfloat16, "polar", "torch"),
])  # fmt: skip
def test_amds_gpus_run_what_needs_no_accurate_products(dtype, method, backend, monkeypatch) -> None:
    monkeypatch.setattr("isonorm.kernels.choice.INTERPRETING", True)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    choice = choose(
        torch.randn(2, 16, 4, dtype=dtype), area=area.batch(16), operation=operation.whiten(method)
    )
    assert choice.backend == backend
    assert backend == "triton" or "AMD" in choice.reason


def test_the_choice_gives_a_reason() -> None:
    x = torch.randn(4, 6)
    choice = choose(x, area=area.batch(), operation=operation.whiten())
    if INTERPRETING:
        assert choice.backend == "triton"
    else:
        assert choice.backend in ("native", "torch")
        with isonorm.backend("triton"), pytest.raises(RuntimeError, match="GPU"):
            isonorm.functional.iter_norm(x)
