"""Every parametrization on every kind of layer: torch's form, round trips, gradients."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from isonorm import weights

LAYERS = {
    "linear": lambda: nn.Linear(7, 4),
    "conv1d": lambda: nn.Conv1d(6, 4, 3, groups=2),
    "conv2d": lambda: nn.Conv2d(4, 6, (2, 3), groups=2, stride=2),
    "conv3d": lambda: nn.Conv3d(2, 3, (1, 2, 3)),
    "transposed1d": lambda: nn.ConvTranspose1d(3, 5, 4),
    "transposed2d": lambda: nn.ConvTranspose2d(4, 6, 2, groups=2),  # its groups lie in dimension 0
    "transposed3d": lambda: nn.ConvTranspose3d(2, 2, 2, bias=False),
    "tall": lambda: nn.Linear(3, 6),  # more outputs than fan-in
    "bilinear": lambda: nn.Bilinear(3, 4, 5),
}
METHODS = {
    "weight_norm": weights.weight_norm,
    "centered": weights.centered_weight_norm,
    "centered_without_gain": lambda layer: weights.centered_weight_norm(layer, gain=False),
    "standardization": weights.weight_standardization,
    "orthogonal": weights.orthogonal,
    "oni": lambda layer: weights.orthogonal(layer, method="newton", num_iters=4),
    "propagation": weights.normalization_propagation,
}
ON_TORCHS = ("weight_norm", "propagation")  # whose weight normalization knows of no groups
every_method = pytest.mark.parametrize("method", METHODS)
every_case = pytest.mark.parametrize(
    "method, layer",
    [
        (method, layer)
        for method in METHODS
        for layer in LAYERS
        if not (method in ON_TORCHS and layer == "transposed2d")
    ],
)


def made(method: str, layer: str) -> nn.Module:
    return METHODS[method](LAYERS[layer]().double())


def outputs_of(module: nn.Module) -> list[Tensor]:
    """The weights of each output, found by what reaches it rather than by the code under test."""
    if isinstance(module, nn.Bilinear | nn.Linear):
        return [row.flatten() for row in module.weight]
    groups, weight = module.groups, module.weight
    if not isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        return [row.flatten() for row in weight]
    parts = weight.chunk(groups, 0)
    return [part[:, o].flatten() for part in parts for o in range(weight.shape[1])]


def inputs_for(module: nn.Module) -> tuple[Tensor, ...]:
    if isinstance(module, nn.Bilinear):
        return torch.randn(5, 3).double(), torch.randn(5, 4).double()
    if isinstance(module, nn.Linear):
        return (torch.randn(5, module.in_features).double(),)
    return (torch.randn(2, module.in_channels, *(6,) * (module.weight.ndim - 2)).double(),)


@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "bilinear"])
def test_the_layout_finds_the_weights_of_an_output(layer):
    """Centered weights do not see a mean that all inputs share: for each output, bias apart."""
    module = weights.centered_weight_norm(LAYERS[layer]().double())
    for row in outputs_of(module):
        assert row.sum().abs() < 1e-12
    if layer.startswith("conv") or layer == "linear":
        (x,) = inputs_for(module)
        torch.testing.assert_close(module(x), module(x + 3.0))


@every_case
def test_lengths(method, layer):
    module = made(method, layer)
    rows = torch.stack([row.norm() for row in outputs_of(module)])
    if method == "centered_without_gain":
        torch.testing.assert_close(rows, torch.ones_like(rows))
    elif method in ("weight_norm", "centered", "propagation"):
        gain = module.parametrizations.weight.original0.flatten()
        torch.testing.assert_close(rows, gain)
    elif method in ("orthogonal", "oni"):
        assert (rows <= 1 + 1e-12).all()


@every_case
def test_right_inverse_is_a_projection(method, layer):
    """Assigning the weight it has changes nothing; so does taking the parametrization off."""
    module = made(method, layer)
    weight = module.weight.detach().clone()
    module.weight = weight
    # With a variance of 1 the eps of standardization weighs less than it did.
    tol = {"rtol": 2e-3, "atol": 1e-6} if method == "standardization" else {}
    torch.testing.assert_close(module.weight.detach(), weight, **tol)
    x = inputs_for(module)
    y = module(*x)
    parametrize.remove_parametrizations(module, "weight")
    torch.testing.assert_close(module(*x), y)


def test_weight_norm_starts_from_the_weight_it_was_given():
    for layer in ("linear", "conv2d", "transposed1d"):
        module = LAYERS[layer]()
        before = module.weight.detach().clone()
        torch.testing.assert_close(weights.weight_norm(module).weight.detach(), before)


@every_case
def test_gradients(method, layer):
    module = made(method, layer)
    names = [name for name, _ in module.named_parameters() if "original" in name]
    originals = [
        (p.detach() + 0.1 * torch.randn_like(p)).requires_grad_()
        for name, p in module.named_parameters()
        if name in names
    ]
    parametrization = module.parametrizations.weight[0]
    assert torch.autograd.gradcheck(parametrization, originals, atol=1e-5)


@pytest.mark.parametrize("method", ["centered", "standardization", "orthogonal"])
def test_second_derivatives(method):
    parametrization = METHODS[method](nn.Linear(3, 2).double()).parametrizations.weight[0]
    v = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    gain = torch.rand(2, dtype=torch.float64, requires_grad=True)
    originals = (gain, v) if method == "centered" else (v,)
    assert torch.autograd.gradgradcheck(parametrization, originals, atol=1e-4)


@every_method
def test_state_dict_and_deepcopy(method):
    module = made(method, "conv2d")
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn_like(p))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    fresh = made(method, "conv2d")
    fresh.load_state_dict(torch.load(file))
    (x,) = inputs_for(module)
    torch.testing.assert_close(fresh(x), module(x), rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(module)(x), module(x), rtol=0, atol=0)


@every_method
def test_training_moves_every_original(method):
    module = made(method, "linear")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    before = [p.detach().clone() for p in module.parameters()]
    y = module(*inputs_for(module))
    (y * torch.randn_like(y)).sum().backward()
    optimizer.step()
    assert all(not torch.equal(p, b) for p, b in zip(module.parameters(), before, strict=True))


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_autocast(method, dtype):
    module = METHODS[method](nn.Linear(7, 4).to(dtype))
    assert module.weight.dtype == dtype and module.weight.isfinite().all()
    if dtype == torch.float32:
        weight = module.weight.detach()
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(module.weight.detach(), weight)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ON_TORCHS])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_rows_without_direction_are_finite(method, value):
    """All weights equal, or all zero: nothing to center or to make orthogonal."""
    module = METHODS[method](nn.Linear(7, 4).double())
    original = list(module.parametrizations.weight.parameters())[-1]
    with torch.no_grad():
        original.fill_(value)
    y = module(*inputs_for(module))
    (y * torch.randn_like(y)).sum().backward()
    assert y.isfinite().all()
    assert all(p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("method", ["centered", "standardization", "orthogonal"])
def test_compiled(method):
    module = METHODS[method](nn.Linear(7, 4))
    x = torch.randn(5, 7)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: weights.weight_norm(nn.ReLU()), "ReLU has no parameter called 'weight'"),
        (lambda: weights.weight_norm(nn.Linear(2, 2), "bias"), r"dimensions; got shape \(2,\)"),
        (lambda: weights.weight_norm(nn.Linear(2, 2), dim=2), "dim must be None or a dimension of"),
        (lambda: weights.weight_norm(nn.LazyLinear(2)), "has no shape yet: run the model once"),
        (lambda: weights.weight_norm(nn.ConvTranspose1d(4, 4, 2, groups=2)), "with groups=2 would"),
        (lambda: weights.centered_weight_norm(nn.Linear(1, 5)), "needs two or more of them"),
        (lambda: weights.weight_standardization(nn.Conv1d(4, 4, 1, groups=4)), "two or more"),
        (lambda: weights.centered_weight_norm(nn.Linear(3, 5), eps=-1), "eps must be a number"),
        (lambda: weights.weight_standardization(nn.Linear(3, 5), eps=None), "eps must be a number"),
        (lambda: weights.orthogonal(nn.Linear(3, 3), centered=True), "leaves room for 2"),
        (lambda: weights.orthogonal(nn.Linear(3, 3), method="svd"), "method must be one of"),
        (lambda: weights.orthogonal(nn.Linear(3, 3), num_iters=0), "num_iters for 'polar' must be"),
        (lambda: weights.orthogonal(nn.Linear(3, 3), scale=0), "scale must be a positive number"),
        (lambda: weights.normalization_propagation(nn.Linear(3, 3), gain=-1), "gain must be"),
        (lambda: weights.initialize_from_data(nn.Linear(3, 3), None), "no linear layer or conv"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("first", [weights.weight_norm, weights.weight_standardization])
@pytest.mark.parametrize(
    "second",
    [weights.weight_norm, weights.centered_weight_norm, weights.normalization_propagation],
)
def test_a_gain_goes_below_every_other_parametrization(first, second):
    """torch puts it on top without a word, and the layer has no weight any more."""
    layer = first(nn.Linear(8, 4))
    weight = layer.weight.detach().clone()
    with pytest.raises(ValueError, match="must come before any other parametrization"):
        second(layer)
    assert torch.equal(layer.weight, weight)
    assert weights.orthogonal(layer).weight.shape == (4, 8)  # one part goes on top of anything


def test_a_refusal_leaves_the_layer_as_it_was():
    layer = nn.Linear(1, 5)
    with pytest.raises(ValueError):
        weights.centered_weight_norm(layer)
    assert type(layer) is nn.Linear and not parametrize.is_parametrized(layer)
