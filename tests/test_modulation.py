"""Recoveries that are computed: each beside its formula written with torch's own layers."""

from __future__ import annotations

import copy
import io
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isonorm
from isonorm.recovery import SPADE, AdaIN, Attentive, Conditional, Dynamic, Modulation

C = 6
X = (4, C, 5, 3)


def labels() -> Tensor:
    return torch.tensor([2, 0, 2, 1])


def condition(kind: type) -> tuple[Tensor, ...]:
    """What a kind is given besides its input."""
    if kind is Conditional:
        return (labels(),)
    if kind is Dynamic:
        return (torch.randn(4, 7),)
    if kind is AdaIN:
        return (3 + 2 * torch.randn(4, C, 8, 9),)
    if kind is SPADE:
        return (torch.rand(4, 2, 10, 9),)
    return ()


MAKE = {
    Conditional: partial(Conditional, num_classes=3),
    Dynamic: partial(Dynamic, num_inputs=7),
    AdaIN: AdaIN,
    SPADE: partial(SPADE, num_labels=2, hidden=5),
    Attentive: partial(Attentive, num_mixtures=4),
}
NORMS = {
    "batch": lambda: isonorm.BatchNorm(C, affine=False),
    "instance": lambda: isonorm.InstanceNorm(C, affine=False),
    "whitened": lambda: isonorm.IterNorm(C, group_size=3, affine=False),
    "torch's": lambda: nn.BatchNorm2d(C, affine=False),
}


def made(kind: type, norm: nn.Module, **options) -> Modulation:
    """With parameters that are neither ones nor zeros."""
    layer = MAKE[kind](norm, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return layer


def spread(t: Tensor) -> Tensor:
    return t[:, :, None, None]


def formula(layer: Modulation, x: Tensor, given: tuple[Tensor, ...]) -> Tensor:
    """γ ⊙ x̂ + β as the papers have them."""
    normalized = copy.deepcopy(layer.norm)(x)
    if isinstance(layer, Conditional):
        gain, shift = layer.weight[given[0]], layer.bias[given[0]]
    elif isinstance(layer, Dynamic):
        both = given[0] @ layer.linear.weight.mT
        gain, shift = 1 + both[:, :C], both[:, C:]
    elif isinstance(layer, AdaIN):
        style = given[0].flatten(2)
        gain, shift = (style.var(2, correction=0) + layer.eps).sqrt(), style.mean(2)
    elif isinstance(layer, SPADE):
        rows = torch.arange(x.shape[2]) * given[0].shape[2] // x.shape[2]
        columns = torch.arange(x.shape[3]) * given[0].shape[3] // x.shape[3]
        features = layer.shared(given[0][:, :, rows][:, :, :, columns]).relu()
        return (1 + layer.gain(features)) * normalized + layer.shift(features)
    else:
        scores = x.mean((2, 3)) @ layer.attention.weight.mT + layer.attention.bias
        shares = (scores / 6 + 0.5).clamp(0, 1)
        mixture = zip(shares.T, layer.weight, layer.bias, strict=True)
        return sum(s[:, None, None, None] * (spread(g[None]) * normalized + spread(b[None]))
                   for s, g, b in mixture)  # fmt: skip
    return spread(gain) * normalized + spread(shift)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kind", MAKE, ids=lambda kind: kind.__name__)
def test_each_is_its_papers_formula(kind, training, norm):
    layer = made(kind, NORMS[norm]()).double()
    layer(torch.randn(X).double() + 1, *(t.double() if t.is_floating_point() else t
                                         for t in condition(kind)))  # fmt: skip
    layer.train(training)
    x = torch.randn(X, dtype=torch.float64, requires_grad=True)
    given = tuple(
        t.double().requires_grad_() if t.is_floating_point() else t for t in condition(kind)
    )
    wanted = [x, *layer.parameters(), *(t for t in given if t.is_floating_point())]
    want = formula(layer, x, given)
    cotangent = torch.randn_like(want)
    expected = torch.autograd.grad(want, wanted, cotangent)
    found = layer(x, *given)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(torch.autograd.grad(found, wanted, cotangent), expected)


def test_a_style_is_what_comes_out():
    style = 3 + 2 * torch.randn(4, C, 40)
    y = AdaIN(isonorm.InstanceNorm(C, affine=False))(torch.randn(4, C, 5, 7), style)
    torch.testing.assert_close(y.mean((2, 3)), style.mean(2), rtol=1e-4, atol=1e-4)
    found, want = y.std((2, 3), correction=0), style.std(2, correction=0)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [Conditional, Dynamic], ids=lambda kind: kind.__name__)
def test_what_has_learned_nothing_changes_nothing(kind):
    x = torch.randn(X)
    layer = MAKE[kind](isonorm.BatchNorm(C, affine=False))
    torch.testing.assert_close(layer(x, *condition(kind)), isonorm.BatchNorm(C)(x))


def test_only_the_classes_that_were_there_learn():
    layer = made(Conditional, isonorm.InstanceNorm(C, affine=False))
    y = layer(torch.randn(X), torch.tensor([2, 0, 2, 0]))
    (y * torch.randn_like(y)).sum().backward()
    assert layer.weight.grad is not None
    assert [bool(row.any()) for row in layer.weight.grad] == [True, False, True]


@pytest.mark.parametrize("kind", MAKE, ids=lambda kind: kind.__name__)
def test_formats_dtypes_and_activations(kind):
    layer, given = (
        made(kind, isonorm.IterNorm(C, group_size=3, affine=False)).eval(),
        condition(kind),
    )
    x = torch.randn(X).to(memory_format=torch.channels_last)
    y = layer(x, *given)
    assert y.is_contiguous(memory_format=torch.channels_last)
    layer.act = "relu"
    torch.testing.assert_close(layer(x, *given), y.relu())
    layer.act = None
    half = layer.bfloat16()(
        x.bfloat16(), *(t.bfloat16() if t.is_floating_point() else t for t in given)
    )
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), y, rtol=0.1, atol=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.float()(x, *given).dtype == torch.float32


@pytest.mark.parametrize("kind", [Attentive, Conditional, Dynamic], ids=lambda kind: kind.__name__)
def test_features_without_positions(kind):
    layer, x = made(kind, isonorm.BatchNorm(C, affine=False)), torch.randn(4, C)
    given = condition(kind)
    found = copy.deepcopy(layer)(x, *given)
    torch.testing.assert_close(found, layer(x[:, :, None, None], *given).flatten(1))


@pytest.mark.parametrize("kind", MAKE, ids=lambda kind: kind.__name__)
def test_compiled_exported_and_copied(kind):
    layer, given = made(kind, isonorm.IterNorm(C, group_size=3, affine=False)), condition(kind)
    x = torch.randn(X)
    compiled = torch.compile(copy.deepcopy(layer), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, *given), layer(x, *given))
    layer.eval()
    program = torch.export.export(layer, (x, *given))
    torch.testing.assert_close(program.module()(x, *given), layer(x, *given))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = MAKE[kind](isonorm.IterNorm(C, group_size=3, affine=False)).eval()
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x, *given), layer(x, *given))


def test_the_norm_inside_is_converted_like_any_other():
    layer = made(SPADE, nn.BatchNorm2d(C, affine=False))
    x, given = torch.randn(X), condition(SPADE)
    layer(x, *given)
    before = layer.eval()(x, *given)
    report = isonorm.convert(layer, "iternorm")
    assert isinstance(layer.norm, isonorm.IterNorm) and "norm" in str(report)
    assert not [*layer.norm.parameters()] and not layer.norm.affine
    made(SPADE, isonorm.IterNorm(C, affine=False)).load_state_dict(layer.state_dict())
    assert layer(x, *given).shape == before.shape
    isonorm.freeze(layer)
    assert not layer.train().norm.training


WRONG = {
    "a norm that recovers": (
        lambda: AdaIN(isonorm.InstanceNorm(C)),
        ValueError,
        "AdaIN recovers .* affine=False",
    ),
    "a norm that activates": (
        lambda: AdaIN(isonorm.InstanceNorm(C, affine=False, act="relu")),
        ValueError,
        "without act",
    ),
    "no classes": (
        lambda: Conditional(NORMS["batch"](), 0), ValueError, "num_classes must be a positive"
    ),
    "an eps below zero": (lambda: AdaIN(NORMS["batch"](), eps=-1), ValueError, "eps must be"),
    "a list for labels": (
        lambda: MAKE[Conditional](NORMS["batch"]())(torch.randn(X), [0, 1, 2, 0]),
        TypeError,
        "labels must be a torch.Tensor; got list",
    ),
    "other channels": (
        lambda: Attentive(NORMS["batch"]())(torch.randn(4, 5, 3, 3)), ValueError, r"\(N, 6, \*\)"
    ),
    "a style of nothing": (
        lambda: AdaIN(NORMS["batch"]())(torch.randn(X), torch.randn(4, 6, 0)),
        ValueError,
        "with positions",
    ),
    "a lazy norm": (
        lambda: AdaIN(nn.LazyBatchNorm2d(affine=False)), ValueError, "num_features must be"
    ),
    "no norm": (lambda: AdaIN(nn.Identity()), TypeError, "num_features; got Identity"),
    "another act": (
        lambda: AdaIN(NORMS["batch"](), act="tanh"), ValueError, "act must be None or one of"
    ),
    "an even kernel": (
        lambda: SPADE(NORMS["batch"](), 3, kernel_size=4), ValueError, "kernel_size must be odd"
    ),
    "four dimensions": (lambda: SPADE(NORMS["batch"](), 3, dims=4), ValueError, "dims must be 1"),
    "labels of another length": (
        lambda: MAKE[Conditional](NORMS["batch"]())(torch.randn(X), torch.zeros(3).long()),
        ValueError,
        r"labels must be integers of shape \(4,\).*got torch.int64 of shape \(3,\)",
    ),
    "labels that are no integers": (
        lambda: MAKE[Conditional](NORMS["batch"]())(torch.randn(X), torch.zeros(4)),
        ValueError,
        "got torch.float32",
    ),
    "a context of another width": (
        lambda: MAKE[Dynamic](NORMS["batch"]())(torch.randn(X), torch.randn(4, 6)),
        ValueError,
        r"context must have shape \(4, 7\).*got \(4, 6\)",
    ),
    "a style of other channels": (
        lambda: AdaIN(NORMS["batch"]())(torch.randn(X), torch.randn(4, 5, 3, 3)),
        ValueError,
        r"style must have shape \(4, 6, '\*'\).*of shape \(4, 5, 3, 3\)",
    ),
    "a map without a dimension": (
        lambda: MAKE[SPADE](NORMS["batch"]())(torch.randn(X), torch.randn(4, 2, 9)),
        ValueError,
        r"labels must be a map.*got \(4, 2, 9\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "error", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_meant_is_told_in_one_sentence(build, error, message):
    with pytest.raises(error, match=message) as caught:
        build()
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("kind", "given", "error"),
    [
        (Conditional, torch.tensor([0, 1, 2, 3]), IndexError),
        (AdaIN, torch.randn(4, C, 3, device="meta"), ValueError),
        (SPADE, torch.randn(4, 2, 3, 3, device="meta"), ValueError),
        (Dynamic, torch.randn(4, 7, device="meta"), ValueError),
    ],
    ids=lambda given: getattr(given, "__name__", None),
)
def test_a_wrong_condition_moves_no_statistics(kind, given, error):
    layer = MAKE[kind](isonorm.BatchNorm(C, affine=False))
    with pytest.raises(error):
        layer(torch.randn(X), given)
    assert layer.norm.num_batches_tracked == 0


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int32], ids=str)
def test_labels_are_integers_of_any_size(dtype):
    layer, x = made(Conditional, NORMS["instance"]()), torch.randn(X)
    classes = torch.tensor([1, 0, 1, 1])
    assert torch.equal(layer(x, classes.to(dtype)), layer(x, classes))


def test_a_context_is_taken_in_the_layers_precision():
    layer, x = made(Dynamic, NORMS["instance"]()), torch.randn(X)
    one_hot = torch.eye(7)[:4]
    for given in (one_hot.bfloat16(), one_hot.double(), one_hot.long(), one_hot.bool()):
        torch.testing.assert_close(layer(x, given), layer(x, one_hot))


def test_attention_is_accurate_under_autocast():
    layer, x = made(Attentive, NORMS["instance"]()), torch.randn(X) + 50
    want = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(x), want)


@pytest.mark.parametrize("kind", [Dynamic, SPADE, Conditional], ids=lambda kind: kind.__name__)
def test_exported_for_any_batch(kind):
    layer, given = made(kind, NORMS["whitened"]()).eval(), condition(kind)
    x, n = torch.randn(X), torch.export.Dim("n")
    shapes = [{0: n}, {0: n}]
    program = torch.export.export(layer, (x, *given), dynamic_shapes=shapes).module()
    more, others = torch.cat([x, x]), [torch.cat([t, t]) for t in given]
    torch.testing.assert_close(program(more, *others), layer(more, *others))


def test_a_network_with_a_norm_per_class_learns_what_one_norm_for_all_cannot():
    """Two classes whose outputs have other signs, from the same inputs."""
    x, classes = torch.randn(64, C), torch.arange(64) % 2
    target = F.one_hot(classes, 2).float() @ torch.tensor([[1.0], [-1.0]]) * x[:, :1]
    losses = {}
    for name, layer in (
        ("class", Conditional(isonorm.BatchNorm(C, affine=False), 2)),
        ("all", isonorm.BatchNorm(C)),
    ):
        head = nn.Linear(C, 1)
        optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=0.05)
        for _ in range(200):
            given = (x, classes) if name == "class" else (x,)
            loss = F.mse_loss(head(layer(*given)), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[name] = loss.item()
    assert losses["class"] < 0.05 * losses["all"]


class Block(nn.Module):
    """A modulation between convolutions, called with its condition."""

    def __init__(self, norm: Modulation) -> None:
        super().__init__()
        self.before, self.norm, self.after = nn.Conv2d(3, C, 3), norm, nn.Conv2d(C, 2, 1)

    def forward(self, x: Tensor, *given: Tensor) -> Tensor:
        return self.after(self.norm(self.before(x), *given).relu())


@pytest.mark.parametrize("kind", MAKE, ids=lambda kind: kind.__name__)
def test_folding_keeps_what_is_computed(kind):
    block, given = Block(made(kind, NORMS["whitened"]())), condition(kind)
    block(torch.randn(4, 3, 9, 8), *given)
    block.eval()
    x = torch.randn(4, 3, 9, 8)
    torch.testing.assert_close(isonorm.fold(block)(x, *given), block(x, *given))


class Mapped(Block):
    """With a name for what it is given, which torch.fx wants."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return super().forward(x, labels)


def test_tracers_of_fx_see_one_call():
    block, given = Mapped(made(SPADE, NORMS["whitened"]())).eval(), condition(SPADE)
    graph, x = torch.fx.symbolic_trace(block), torch.randn(4, 3, 9, 8)
    assert "norm" in [node.target for node in graph.graph.nodes]
    torch.testing.assert_close(graph(x, *given), block(x, *given))
