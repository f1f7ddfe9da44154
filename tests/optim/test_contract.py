"""What every optimizer here promises, whatever its mathematics."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from torch import nn

from isonorm.optim import LAMB, LANS, LARS, centralize, normalize_gradients

from .conftest import make_params, set_grads


def centralized_sgd(params, lr=1e-3, **options):
    return centralize(torch.optim.SGD(params, lr=lr, momentum=0.9, **options))


def normalized_adam(params, lr=1e-3, **options):
    return normalize_gradients(torch.optim.Adam(params, lr=lr, **options))


LAYERWISE = [LARS, LAMB, LANS]
WRAPPED = [centralized_sgd, normalized_adam]
ALL = LAYERWISE + WRAPPED
every_optimizer = pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
every_layerwise = pytest.mark.parametrize("make", LAYERWISE, ids=lambda make: make.__name__)


def run(optimizer, params, steps=range(3)):
    for step in steps:
        set_grads(params, step)
        optimizer.step()
    return [p.detach().clone() for p in params]


@every_optimizer
def test_gradients_are_only_read(make, params):
    optimizer = make(params, lr=0.1)
    set_grads(params, 0)
    tensors = [p.grad for p in params]
    values = [p.grad.clone() for p in params]
    optimizer.step()
    assert all(p.grad is grad for p, grad in zip(params, tensors, strict=True))
    torch.testing.assert_close(tensors, values, rtol=0, atol=0)


@every_optimizer
def test_steps_change_parameters(make, params):
    before = [p.detach().clone() for p in params]
    after = run(make(params, lr=0.1), params, range(1))
    assert all(not torch.equal(a, b) for a, b in zip(after, before, strict=True) if a.numel())


@every_optimizer
def test_state_dict_continues_in_a_fresh_optimizer(make):
    params = make_params()
    optimizer = make(params, lr=0.1)
    run(optimizer, params)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    twin = [p.detach().clone().requires_grad_() for p in params]
    fresh = make(twin, lr=123.0)
    fresh.load_state_dict(torch.load(file))
    expected = run(optimizer, params, range(3, 6))
    torch.testing.assert_close(run(fresh, twin, range(3, 6)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("make", [LAMB, LANS], ids=lambda make: make.__name__)
def test_the_count_of_steps_is_loaded_to_its_parameters_device(make, params):
    optimizer = make(params, lr=0.1)
    run(optimizer, params)
    elsewhere = [torch.empty_like(p, device="meta", dtype=torch.bfloat16) for p in params]
    other = make(elsewhere, lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    step = other.state[elsewhere[0]]["step"]
    assert step.device.type == "meta" and step.dtype == torch.float32


@every_optimizer
def test_deepcopy_steps_alike(make):
    model = nn.Linear(3, 2).double()
    optimizer = make(model.parameters(), lr=0.1)
    run(optimizer, list(model.parameters()))
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    torch.testing.assert_close(
        run(twin_optimizer, list(twin.parameters())), run(optimizer, list(model.parameters()))
    )


@every_optimizer
def test_a_closure_is_evaluated_with_gradients_and_its_loss_returned(make):
    model, x = nn.Linear(3, 2).double(), torch.randn(5, 3, dtype=torch.float64)
    optimizer = make(model.parameters(), lr=0.1)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))

    def loss_of(network):
        loss = network(x).square().mean()
        loss.backward()
        return loss

    def closure():
        optimizer.zero_grad()
        return loss_of(model)

    for _ in range(3):
        twin_optimizer.zero_grad()
        expected = loss_of(twin)
        twin_optimizer.step()
        torch.testing.assert_close(optimizer.step(closure), expected)
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()))


@every_optimizer
def test_groups_have_options_of_their_own(make):
    params, still, alone = make_params(), make_params(), make_params()
    optimizer = make([{"params": params}, {"params": still, "lr": 0.0}], lr=0.1)
    before = [p.detach().clone() for p in still]
    for step in range(3):
        set_grads(params, step)
        set_grads(still, step)
        optimizer.step()
    torch.testing.assert_close([p.detach() for p in still], before, rtol=0, atol=0)
    torch.testing.assert_close([p.detach() for p in params], run(make(alone, lr=0.1), alone))


@every_optimizer
def test_a_group_may_come_later_or_be_empty(make, params):
    optimizer = make([{"params": []}, {"params": params[:1]}], lr=0.1)
    optimizer.add_param_group({"params": params[1:], "lr": 0.2})
    run(optimizer, params)
    assert [len(group["params"]) for group in optimizer.param_groups] == [0, 1, len(params) - 1]
    assert optimizer.param_groups[2]["lr"] == 0.2


@every_optimizer
def test_parameters_without_gradient_stay(make, params):
    optimizer = make(params, lr=0.1)
    optimizer.step()  # none has one
    set_grads(params, 0)
    params[0].grad = None
    before = params[0].detach().clone()
    optimizer.step()
    assert torch.equal(params[0].detach(), before)
    assert params[0] not in optimizer.state


@every_layerwise
def test_steps_are_counted_for_each_parameter(make):
    late, early = make_params()[:2]
    optimizer = make([late, early], lr=0.1)
    set_grads([early], 0)
    optimizer.step()
    set_grads([late], 0)
    early.grad = None
    optimizer.step()  # to this one it is the first
    (alone,) = make_params()[:1]
    expected = run(make([alone], lr=0.1), [alone], range(1))
    torch.testing.assert_close([late.detach()], expected)


@every_optimizer
def test_dtypes_may_be_mixed(make):
    kinds = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
    mixed = [p for dtype in kinds for p in make_params(dtype)]
    alone = [make_params(dtype) for dtype in kinds]
    optimizer = make(mixed, lr=0.1)
    separate = [make(params, lr=0.1) for params in alone]
    for step in range(3):
        for start in range(len(kinds)):
            set_grads(mixed[start * 6 : start * 6 + 6], step)
            set_grads(alone[start], step)
            separate[start].step()
        optimizer.step()
    torch.testing.assert_close(mixed, [p for params in alone for p in params])
    assert all(p.isfinite().all() for p in mixed)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "make, size", [(LARS, 1000.0), (LAMB, 1000.0), (LANS, 1000.0), (LARS, 1e-7), (LANS, 1e-7)]
)
def test_norms_and_ratios_need_not_fit_float16(make, size, device):
    # ‖g‖ is 200,000; or so small that LARS's ratio is 300,000. On a GPU a factor of 0 dimensions
    # is rounded to the dtype of the tensor it multiplies.
    p = torch.full((200, 200), 30.0, dtype=torch.float16, device=device, requires_grad=True)
    p.grad = torch.full_like(p, size)
    q = p.detach().double().requires_grad_()
    q.grad = p.grad.double()
    for tensor in (p, q):
        make([tensor], lr=100.0 if make is LARS else 0.1, weight_decay=0.0).step()
    assert (q < 29).all()
    torch.testing.assert_close(p.double(), q, rtol=2e-3, atol=0)


@pytest.mark.gpu
def test_a_large_gradient_in_float16_is_normalized_on_a_gpu():
    p = torch.zeros(200, 200, dtype=torch.float16, device="cuda")
    p.grad = torch.full_like(p, 1000.0)
    normalize_gradients(torch.optim.SGD([p], lr=1.0)).step()
    torch.testing.assert_close(p, torch.full_like(p, -1 / 200))


@every_layerwise
def test_the_state_of_another_optimizer_is_refused(make, params):
    optimizer = make(params, lr=0.1)
    run(optimizer, params)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=f"no state of {make.__name__}: .* have no .*min_ndim"):
        optimizer.load_state_dict(torch.optim.SGD(params, lr=0.2).state_dict())
    spoiled = copy.deepcopy(before)
    spoiled["param_groups"][0]["weight_decay"] = -1.0
    with pytest.raises(ValueError, match=r"weight_decay must be .* got -1\.0"):
        optimizer.load_state_dict(spoiled)
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


@every_layerwise
def test_one_dimensional_parameters_are_left_out_unless_asked(make):
    vector = torch.ones(4, dtype=torch.float64, requires_grad=True)
    decayed, plain = [
        make([vector.detach().clone().requires_grad_()], lr=0.1, weight_decay=decay)
        for decay in (10.0, 0.0)
    ]
    for optimizer in (decayed, plain):
        run(optimizer, optimizer.param_groups[0]["params"])
    torch.testing.assert_close(
        decayed.param_groups[0]["params"], plain.param_groups[0]["params"], rtol=0, atol=0
    )
    matrix = torch.ones(4, 1, dtype=torch.float64, requires_grad=True)
    asked, as_matrix = make([vector], lr=0.1, min_ndim=1), make([matrix], lr=0.1)
    run(asked, [vector])
    run(as_matrix, [matrix])
    torch.testing.assert_close(vector, matrix[:, 0])


@every_layerwise
@pytest.mark.parametrize("zero", ["weights", "gradients", "both"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_zeros_are_finite(make, zero, weight_decay):
    params = make_params()
    optimizer = make(params, lr=0.1, weight_decay=weight_decay)
    for step in range(3):
        set_grads(params, step)
        for p in params:
            if zero in ("weights", "both"):
                p.data.zero_()
            if zero in ("gradients", "both"):
                p.grad.zero_()
        optimizer.step()
        assert all(p.isfinite().all() for p in params)
    if zero == "both":
        assert all((p == 0).all() for p in params)


@every_layerwise
def test_nan_takes_its_layer_and_no_other(make):
    params = make_params()
    optimizer = make(params, lr=0.1)
    set_grads(params, 0)
    params[0].grad[1, 2] = float("nan")
    optimizer.step()
    assert params[0].isnan().all()
    assert all(p.isfinite().all() for p in params[1:])


@every_layerwise
def test_infinity_becomes_nan_in_its_layer(make):
    params = make_params()
    optimizer = make(params, lr=0.1)
    set_grads(params, 0)
    params[0].grad[1, 2] = float("inf")
    optimizer.step()
    assert params[0][1, 2].isnan()
    assert params[0].isnan().sum() == (1 if make is LARS else params[0].numel())
    assert all(p.isfinite().all() for p in params[1:])


@every_layerwise
def test_lr_may_be_a_tensor(make):
    params, twin = make_params(), make_params()
    expected = run(make(twin, lr=0.1), twin)
    lr = torch.tensor([0.1], dtype=torch.float64)
    torch.testing.assert_close(run(make(params, lr=lr), params), expected)


@every_layerwise
def test_maximize_ascends(make):
    params, twin = make_params(), make_params()
    up, down = make(params, lr=0.1, maximize=True), make(twin, lr=0.1)
    for step in range(3):
        set_grads(params, step)
        set_grads(twin, step, scale=-1)
        up.step()
        down.step()
    torch.testing.assert_close(params, twin)


@every_optimizer
def test_schedulers_take_it_for_an_optimizer(make, params):
    optimizer = make(params, lr=0.1)
    assert isinstance(optimizer, torch.optim.Optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for _ in range(2):
        set_grads(params, 0)
        optimizer.step()
        schedule.step()  # a warning here, of a step that was not seen, is an error
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


@every_optimizer
def test_hooks_are_called_once_a_step(make, params):
    optimizer, calls = make(params, lr=0.1), []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    handle = optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    run(optimizer, params, range(2))
    assert calls == ["before", "after"] * 2
    handle.remove()
    run(optimizer, params, range(1))
    assert calls[4:] == ["before"]


@every_optimizer
def test_a_grad_scaler_unscales_and_skips(make):
    params, twin = make_params(torch.float32), make_params(torch.float32)
    optimizer, plain = make(params, lr=0.1), make(twin, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert scaler.scale(torch.ones(())) == 8
    set_grads(params, 0, scale=8.0)
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close([p.detach() for p in params], run(plain, twin, range(1)))
    set_grads(params, 1)
    params[0].grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(params, twin, rtol=0, atol=0)


@pytest.mark.parametrize(
    "make",
    [*LAYERWISE, lambda p, lr: centralize(LARS(p, lr))],
    ids=["LARS", "LAMB", "LANS", "centralize"],
)
def test_a_compiled_step_is_the_same(make):
    params, twin = make_params(), make_params()
    optimizer, plain = make(params, lr=0.1), make(twin, lr=0.1)
    # A wrapper's graph breaks where gradients have been exchanged.
    step = torch.compile(optimizer.step, backend="aot_eager", fullgraph=make in LAYERWISE)
    for k in range(3):
        set_grads(params, k)
        step()
    torch.testing.assert_close([p.detach() for p in params], run(plain, twin))


@every_layerwise
@pytest.mark.parametrize("kind", ["sparse", "complex"])
def test_sparse_and_complex_gradients_are_refused_before_anything_changes(make, kind, params):
    odd = (
        nn.Embedding(4, 3, sparse=True).weight
        if kind == "sparse"
        else torch.randn(3, 3, dtype=torch.complex64, requires_grad=True)
    )
    optimizer = make([{"params": params}, {"params": [odd]}], lr=0.1)
    set_grads(params, 0)
    odd.grad = odd.detach().to_sparse() if kind == "sparse" else odd.detach().clone()
    before = [p.detach().clone() for p in params]
    with pytest.raises(RuntimeError, match=f"{make.__name__} needs (dense|real) gradients; got"):
        optimizer.step()
    torch.testing.assert_close([p.detach() for p in params], before, rtol=0, atol=0)
    assert not optimizer.state


@every_layerwise
@pytest.mark.parametrize(
    "options, message",
    [
        ({"lr": -1.0}, "lr must be a finite number, at least 0; got -1.0"),
        ({"lr": float("nan")}, "lr must be"),
        ({"lr": torch.ones(2)}, r"lr as a tensor must have one element; got shape \(2,\)"),
        ({"weight_decay": -0.1}, "weight_decay must be"),
        ({"weight_decay": "much"}, "weight_decay must be a finite number, .* got 'much'"),
        ({"min_ndim": 1.5}, "min_ndim must be an integer"),
    ],
)
def test_options_out_of_range_are_refused(make, options, message, params):
    with pytest.raises(ValueError, match=message):
        make(params, **({"lr": 0.1} | options))
    optimizer = make(params[:1], lr=0.1)
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": params[1:]} | options)
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    "make, options, message",
    [
        (LARS, {"momentum": 1.0}, "momentum must be a finite number, at least 0 and less than 1"),
        (LARS, {"trust_coefficient": -1}, "trust_coefficient must be"),
        (LARS, {"trust_coefficient": 0}, "trust_coefficient must be positive"),
        (LARS, {"nesterov": True, "momentum": 0.0}, "nesterov=True needs a momentum"),
        (LAMB, {"betas": 0.9}, "betas must be two numbers"),
        (LANS, {"betas": (0.9, 1.0)}, r"betas\[1\] must be"),
        (LAMB, {"eps": -1e-8}, "eps must be"),
        (LANS, {"norm_bounds": (2.0, 1.0)}, "norm_bounds must be two numbers"),
        (LAMB, {"norm_bounds": 10}, "norm_bounds must be two numbers"),
    ],
)
def test_each_methods_own_options_are_refused(make, options, message, params):
    with pytest.raises(ValueError, match=message):
        make(params, lr=0.1, **options)


@pytest.mark.gpu
@every_layerwise
def test_a_step_does_not_wait_for_the_device(make):
    params = [p.detach().cuda().requires_grad_() for p in make_params(torch.float32)]
    optimizer = make(params, lr=torch.tensor(0.1))
    mode = torch.cuda.get_sync_debug_mode()
    grads = [torch.randn_like(p) for p in params]
    for p, grad in zip(params, grads, strict=True):
        p.grad = grad
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.gpu
@every_layerwise
def test_a_step_can_be_captured(make):
    def copies():
        return [p.detach().cuda().requires_grad_() for p in make_params(torch.float32)]

    params, twin = copies(), copies()
    for p, q in zip(params, twin, strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.clone()
    optimizer, plain = make(params, lr=0.1), make(twin, lr=0.1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for _ in range(3):
        graph.replay()
    for _ in range(4):
        plain.step()
    torch.testing.assert_close(params, twin)
