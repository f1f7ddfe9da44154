"""The Triton kernels at small sizes without a GPU, by Triton's interpreter."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.processes import python

ROOT = Path(__file__).parents[2]

IMPORTS = """
import torch
from tests.kernels.checks import (
    OPERATIONS, SHAPES, WITHIN_EXAMPLES, area, check, check_large_groups, check_synchronized
)
from tests.kernels.edge_checks import (
    check_edges, check_formats, check_gradients_of_full_whitening, check_large_means,
    check_loads_stay_inside, check_long_walks, check_narrow_tiles, check_parameters_alone,
    check_range_of_float16, check_roots_for_bfloat16, check_sizes_that_are_known, check_tracers,
    check_vanishing_gradients
)
from tests.kernels.fused_checks import (
    COLORED, FUSED, check_colored, check_fused, check_fused_operators, check_twice_differentiated
)
from tests.kernels.test_null_space import (
    BATCHES, check_far_from_zero, check_gradients, check_means
)
torch.manual_seed(0)

# Beside every operation on integers the interpreter computes whether it overflows, which without
# its debug mode nobody asks.
from dataclasses import replace
from triton.runtime import interpreter
builder = interpreter.interpreter_builder
assert not builder.options.debug
builder.options = replace(builder.options, sanitize_overflow=False)

# Before each function that a kernel calls it prepares the language of the function's module anew,
# which is nearly half of all time: once is enough.
prepared = set()
def call(self, *args, **options):
    if self.fn.__module__ not in prepared:
        prepared.add(self.fn.__module__)
        interpreter._patch_lang(self.fn)
    return self.rewrite()(*args, **options)
interpreter.InterpretedFunction.__call__ = call

# And for each array it makes it writes down anew which of Triton's types are which of numpy's.
numpys = {}
find = interpreter._get_np_dtype
def find_once(dtype):
    name = str(dtype.scalar)
    if name not in numpys:
        numpys[name] = find(dtype)
    return numpys[name]
interpreter._get_np_dtype = find_once
"""
#: Two processes for all, since starting one takes seconds, the compiler in it as many again.
INTERPRETED = {
    "areas, colorings and weights": """
for index, op in enumerate(OPERATIONS):
    small = SHAPES[1:2] + SHAPES[3:4] if op.is_matrix else SHAPES[:4]
    for number, shape in enumerate(small):
        # the interpreter multiplies the bit patterns of bfloat16 matrices, so those need a GPU
        half = torch.float16 if op.is_matrix else torch.bfloat16
        dtype = (torch.float32, half)[number % 2]
        layout = ("nchw", "channels_last")[(index + number) % 2]
        check(shape.values[0], area.batch(shape.values[1]), op, dtype, layout)
check_edges()
check_formats()
check_parameters_alone()
check_range_of_float16()
check_vanishing_gradients()
check_narrow_tiles()
check_long_walks()
check_sizes_that_are_known()
check_loads_stay_inside()
check_roots_for_bfloat16()
check_large_means(torch.float16)
check_large_groups(torch.float32, "nchw")
check_fused((2, 72, 4, 5), area.batch(72), OPERATIONS[2], torch.float32, "nchw", "silu", True)
check_gradients_of_full_whitening(draws=4)
for steps, shape in ((5, (12, 16)), (7, (2, 16)), (14, (2, 16)), (14, (20, 24))):
    check_gradients("triton", steps, shape, seeds=1)
for number, case in enumerate(BATCHES):
    layout = ("contiguous", "channels_last")[number % 2]
    for method in ("newton", "polar", "cholesky"):
        check_means("triton", method, *case.values, layout, (1e3, 1e5)[number % 2])
        check_far_from_zero("triton", method, *case.values)
for index, case in enumerate(WITHIN_EXAMPLES):
    dtype = (torch.float32, torch.float16)[index % 2]
    layout = ("nchw", "channels_last")[index // 2 % 2]
    check((2, 12, 4, 5), *case.values, dtype, layout)
    check_fused((2, 12, 4, 5), *case.values, dtype, layout, *FUSED[index % 5])
for case in COLORED:
    check_colored(*case)

from tests.weights import kernel_checks as weights
for number, (shape, groups) in enumerate(weights.SHAPES):
    dtype = (torch.float32, torch.float32, torch.float16)[number % 3]
    weights.check_kernels(shape, groups, number % 2 == 0, dtype, number // 2 % 2 == 0)
weights.check_fallbacks(False)
weights.check_fallbacks(True)
weights.check_layer()
weights.check_layer(groups=1, single_pass=False, affine=False, momentum=None)
weights.check_layer(statistics_fraction=0.5, momentum=0.3)
""",
    "fused, fast path and compiler": """
from tests.kernels.fast_path_checks import *
for index, (act, with_residual) in enumerate(FUSED):
    op = OPERATIONS[(0, 2, 4)[index % 3]]
    dtype = (torch.float32, torch.float16)[index % 2]
    layout = ("nchw", "channels_last")[index % 2]
    check_fused((5, 12, 4, 3), area.batch(5), op, dtype, layout, act, with_residual)
    check_twice_differentiated(act, with_residual)
check_fused_operators()
for number in range(len(LAYERS)):
    dtype = (torch.float32, torch.float16)[number % 2]
    check_fast_path(number, dtype, ("nchw", "channels_last")[number // 2 % 2])
    check_eval(number, dtype, ("nchw", "channels_last")[number // 2 % 2])
check_what_changes()
check_what_is_replaced()
check_saved_tensors()
check_odd_parameters()
check_residuals()

from hypothesis import settings
from tests.fuzz.test_operations import test_operations
settings(max_examples=15, deadline=None, derandomize=True)(test_operations)()
check_negated()
check_transforms()
check_operators()
check_tracers()
check_compiled("aot_eager")

from tests.weights import kernel_checks as weights
weights.check_operator()
weights.check_compiled(torch.float32, statistics_fraction=0.5)
""",
}

RANKS = """
from multiprocessing import get_context
fork = get_context("fork")  # by now everything is imported
ranks = [fork.Process(target=check_synchronized, args=(rank, {meeting!r})) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
assert [rank.exitcode for rank in ranks] == [0, 0]
"""


def interpret(script: str) -> None:
    """Run a script with the same kernels, in a process of its own: Triton decides at its import."""
    # With numpy 2.4 the interpreters before it fail (3.4, of torch 2.8, and 3.6 were tried).
    pytest.importorskip("triton", minversion="3.9")
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    more = {"TRITON_INTERPRET": "1", "PYTHONPATH": path}
    ended = python("-c", IMPORTS + script + "\nprint('all agree')", more=more)
    assert ended.output.strip().endswith("all agree"), ended.errors[-2000:]


@pytest.mark.parametrize("part", INTERPRETED)
def test_kernels_agree_with_float64_in_the_interpreter(part) -> None:
    interpret(INTERPRETED[part])


def test_synchronized_kernels_in_the_interpreter(tmp_path) -> None:
    interpret(RANKS.format(meeting=str(tmp_path / "meeting")))
