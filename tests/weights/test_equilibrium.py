"""The kernel in equilibrium against the paper's equations, its two constraints, and autograd."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from isonorm.weights.equilibrium import (
    Equilibrium,
    balance_signs_,
    equilibrium,
    input_sums,
    normalize_kernel,
    per_output,
)

FORMS = pytest.mark.parametrize("single_pass", [False, True], ids=["exact", "single-pass"])


def as_the_paper_writes(w, v, r, single_pass):
    """Section 4.1, number by number: w (d, c, k), v (c,) the sums themselves, r."""
    D, C, K = w.shape
    s, b = [], []
    for d in range(D):
        w_dc = [sum(w[d, c, k] for k in range(K)) for c in range(C)]
        b_d = -sum(v[c] * w_dc[c] for c in range(C)) / (K * sum(v))
        total = 0.0
        for c in range(C):
            if single_pass:
                positive = [w[d, c, k] for k in range(K) if w[d, c, k] > 0]
                total += v[c] * (sum(positive) + b_d * len(positive))
            else:
                total += v[c] * sum(max(w[d, c, k] + b_d, 0.0) for k in range(K))
        s.append(r / total)
        b.append(b_d)
    return Equilibrium(torch.stack(s), torch.stack(b))


@FORMS
def test_the_papers_equations(single_pass):
    w, v, r = torch.randn(3, 4, 5, dtype=torch.float64), 9 * torch.rand(4).double(), 70
    expected = as_the_paper_writes(w, v, r, single_pass)
    torch.testing.assert_close(equilibrium(w, v / r, single_pass=single_pass), expected)


@FORMS
def test_groups_are_kernels_of_their_own(single_pass):
    w, v = torch.randn(6, 2, 3, 3).double(), torch.rand(4).double()
    found = normalize_kernel(w, v, groups=2, single_pass=single_pass)
    parts = [
        normalize_kernel(w[:3], v[:2], single_pass=single_pass),
        normalize_kernel(w[3:], v[2:], single_pass=single_pass),
    ]
    torch.testing.assert_close(found, torch.cat(parts))


shapes = st.tuples(
    st.integers(1, 3),  # groups
    st.integers(1, 3),  # outputs of a group
    st.integers(1, 4),  # inputs of a group
    st.lists(st.integers(1, 3), min_size=1, max_size=3),  # the kernel, odd sizes 1, 3, 5
    st.integers(1, 4),  # instances
    st.integers(1, 3),  # dilation
    st.integers(0, 2**31 - 1),
)


@given(shapes)
def test_cyclic_convolutions_have_mean_zero_and_contributions_plus_and_minus_r(drawn):
    """The paper's two constraints, by convolving with the positive and the negative part alone."""
    groups, outputs, inputs, halves, instances, dilation, seed = drawn
    kernel = [2 * half - 1 for half in halves]
    if inputs * math.prod(kernel) == 1:
        return  # a single weight has nothing to balance
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(groups * outputs, inputs, *kernel, generator=generator, dtype=torch.float64)
    sizes = [dilation * (k - 1) + 1 + i for i, k in enumerate(kernel)]
    x = torch.rand(instances, groups * inputs, *sizes, generator=generator, dtype=torch.float64)
    r = instances * math.prod(sizes)
    v, _ = per_output(input_sums(x, 1), r)
    balanced = normalize_kernel(w, v, groups=groups)

    pad = [side for k in reversed(kernel) for side in [dilation * (k // 2)] * 2]
    padded = F.pad(x, pad, mode="circular")
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]
    others = [0, *range(2, x.dim())]
    for part, total in ((balanced.clamp(min=0), r), (balanced.clamp(max=0), -r), (balanced, 0)):
        y = convolve(padded, part, dilation=dilation, groups=groups)
        assert y.shape[2:] == x.shape[2:]
        expected = torch.full((groups * outputs,), float(total), dtype=torch.float64)
        torch.testing.assert_close(y.sum(others), expected, rtol=1e-10, atol=1e-9 * r)


@given(st.integers(0, 2**31 - 1))
def test_the_forms_agree_where_no_weight_changes_sign(seed):
    """Weights of one magnitude, as many of each sign on every channel: b is zero; and a little
    noise, too little to turn one of them.
    """
    generator = torch.Generator().manual_seed(seed)
    signs = torch.ones(5, 3, 8, dtype=torch.float64)
    signs[..., 4:] = -1
    noise = torch.rand(signs.shape, generator=generator, dtype=torch.float64) - 0.5
    w, v = signs + 0.5 * noise, torch.rand(3, generator=generator).double() + 0.1
    s, b = equilibrium(w, v)
    assert ((w + b[:, None, None]).sign() == signs).all() and b.abs().min() > 0
    torch.testing.assert_close(equilibrium(w, v, single_pass=True), Equilibrium(s, b))


def test_the_forms_differ_where_weights_change_sign():
    w, v = torch.randn(4, 3, 9).double() + 0.5, torch.rand(3).double()
    exact, single = (equilibrium(w, v, single_pass=form) for form in (False, True))
    torch.testing.assert_close(exact.b, single.b)
    assert (single.s > 1.01 * exact.s).all()  # it counts negative elements among the positive ones


@FORMS
def test_scale_and_shift_of_the_kernel_do_not_matter_but_those_of_the_input_do(single_pass):
    w, v = torch.randn(4, 3, 9).double(), torch.rand(3).double()
    kernel = normalize_kernel(w, v, single_pass=single_pass)
    torch.testing.assert_close(normalize_kernel(7 * w, v, single_pass=single_pass), kernel)
    torch.testing.assert_close(normalize_kernel(w, 5 * v, single_pass=single_pass), kernel / 5)
    if not single_pass:
        torch.testing.assert_close(normalize_kernel(w + 2, v), kernel)


# Derivatives


@FORMS
@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_through_s_b_and_v(single_pass, groups):
    w = torch.randn(2, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    x = torch.rand(2, 2 * groups, 2, 3, dtype=torch.float64, requires_grad=True)
    gamma = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def convolve(w, x, gamma):
        v, _ = per_output(input_sums(x, 1), 2 * 1 * 2)
        kernel = normalize_kernel(w, v, gamma, groups=groups, single_pass=single_pass)
        return F.conv2d(x, kernel, groups=groups)

    assert gradcheck(convolve, (w, x, gamma), check_forward_ad=True)
    assert gradgradcheck(convolve, (w, x, gamma), fast_mode=True)


# Where the paper's assumptions fail (Section 5.2)

HALF = torch.tensor([[1.0, 2.0, -1.0, -3.0]])
CASES = {
    "no-input": (HALF, [0.0] * 4),
    "channels-that-cancel": (HALF, [1.0, -1.0, 2.0, -2.0]),
    "negative-channels": (HALF, [-1.0, -1.0, 0.2, 0.0]),
    "dead-channels": (HALF, [0.0, 0.0, 1.0, 0.5]),
    "tiny-input": (HALF, [1e-42, 0.0, 1e-38, 0.0]),
    "positive-weights": (HALF.abs(), [1.0, 2.0, 3.0, 4.0]),
    "negative-weights": (-HALF.abs(), [1.0, 2.0, 3.0, 4.0]),
    "equal-weights": (torch.full((1, 4), 0.1), [1.0, 2.0, 3.0, 0.7]),
    "zero-weights": (torch.zeros(1, 4), [1.0, 2.0, 3.0, 4.0]),
    "positive-weights-on-dead-channels": (HALF, [0.0, 0.0, 1.0, 1.0]),
    "a-sum-that-almost-cancels": (HALF, [1.0, -0.999, 0.0, 1e-4]),
}


@FORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_output_and_gradients_stay_finite(case, dtype, single_pass):
    w, v = CASES[case]
    w = w.to(dtype).unsqueeze(-1).requires_grad_()
    v = torch.tensor(v, dtype=dtype, requires_grad=True)
    kernel = normalize_kernel(w, v, single_pass=single_pass)
    grads = torch.autograd.grad(kernel, (w, v), torch.randn_like(kernel))
    assert all(t.isfinite().all() for t in (kernel, *grads))
    contributed = (kernel.abs().sum(-1) @ v.abs()).item()
    assert contributed < 1 / 1e-3  # what is divided by is never less than that part of its terms


@FORMS
def test_negative_input_is_balanced_all_the_same(single_pass):
    w, v = torch.randn(4, 3, 9).double(), torch.rand(3).double()
    torch.testing.assert_close(
        equilibrium(w, -v, single_pass=single_pass), equilibrium(w, v, single_pass=single_pass)
    )


def test_positive_input_never_meets_a_fallback_in_the_exact_form():
    """By the first constraint half of all contributions are positive, however skewed the kernel."""
    w, v = torch.rand(50, 3, 9).double() ** 8, torch.rand(3).double() ** 8
    kernel = normalize_kernel(w, v)
    ones = torch.ones(50, dtype=torch.float64)
    torch.testing.assert_close(kernel.clamp(min=0).sum(-1) @ v, ones)
    torch.testing.assert_close(kernel.clamp(max=0).sum(-1) @ v, -ones)


@FORMS
def test_a_single_weight_balances_to_zero(single_pass):
    v = torch.rand(1)
    kernel = normalize_kernel(torch.randn(5, 1, 1), v, single_pass=single_pass)
    torch.testing.assert_close(kernel * v, torch.zeros(5, 1, 1), rtol=0, atol=1e-6)


@FORMS
def test_not_a_number_stays_one(single_pass):
    kernel = normalize_kernel(
        torch.randn(4, 2, 3), torch.tensor([1.0, math.nan]), single_pass=single_pass
    )
    assert kernel.isnan().all()


def test_a_v_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"6 input channels.*got v of shape \(3,\)"):
        equilibrium(torch.randn(4, 3, 3), torch.rand(3), groups=2)


# Balanced initialization


def test_signs_are_resampled_only_where_they_are_all_the_same():
    w = torch.randn(64, 1, 2)
    w[0], w[1] = w[0].abs(), -w[1].abs()
    before = w.clone()
    balance_signs_(w)
    assert ((w > 0).any(2) & (w < 0).any(2)).all()
    torch.testing.assert_close(w.abs(), before.abs(), rtol=0, atol=0)
    mixed = (before > 0).any(2) & (before < 0).any(2)
    assert 10 < mixed.sum() < 54 and torch.equal(w[mixed], before[mixed])
    first = (w[~mixed][:, 0] > 0).float().mean()
    assert 0.2 < first < 0.8  # either weight may have become the negative one


def test_what_cannot_be_balanced_stays():
    single, zeros = torch.ones(3, 1, 1), torch.zeros(3, 2, 2)
    one = torch.tensor([[[0.0, 5.0, 0.0]]])
    for w in (single, zeros, one):
        assert torch.equal(balance_signs_(w.clone()), w)


def test_kernels_in_channels_last_are_balanced_in_place():
    w = torch.rand(8, 4, 3, 3).to(memory_format=torch.channels_last)
    assert balance_signs_(w) is w and (w.flatten(1) < 0).any(1).all()
