"""The inputs and checks of torch's own module tests, over the layers that equal torch's.

``torch.testing._internal.common_modules`` is private to torch: where it cannot be imported, these
tests are skipped. Where the layers here differ from torch's on purpose:

- InstanceNorm keeps no running statistics: torch's layer that does is left out in eval.
- An input always has a batch axis: torch's InstanceNorm also takes one example by itself.
- LayerNorm's cases over the last axis alone are PositionalNorm here, channels second. Those over
  several axes have parameters for each position; these layers have them for each channel.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import isonorm

NAMES = [
    *(f"BatchNorm{n}d" for n in (1, 2, 3)),
    *(f"InstanceNorm{n}d" for n in (1, 2, 3)),
    "GroupNorm",
    "LayerNorm",
]
BATCH_NORMS = {
    "batchnorm": isonorm.BatchNorm,
    "iternorm-1": lambda c, **options: isonorm.IterNorm(c, group_size=1, **options),
    "dbn-1": lambda c, **options: isonorm.DBN(c, group_size=1, **options),
}
WHITENINGS = {
    "iternorm": lambda c, **options: isonorm.IterNorm(c, group_size=2, **options),
    "dbn": lambda c, **options: isonorm.DBN(c, group_size=2, eps=0.1, **options),
}
WIDE = torch.float64


class Sample(NamedTuple):
    """One of torch's module inputs: torch's layer, one here, and an input for both."""

    description: str
    theirs: nn.Module
    build: Callable[..., nn.Module]  # with device and dtype
    x: Tensor
    to_ours: Callable[[Tensor], Tensor]  # moves the channels second; its own inverse
    has_reference: bool

    def ours(self, dtype: torch.dtype = WIDE) -> nn.Module:
        """Return the layer here with the parameters of torch's."""
        layer = self.build(dtype=dtype)
        if self.theirs._parameters.get("bias") is None:
            layer.bias = None
        with torch.no_grad():
            for name, value in self.theirs.named_parameters():
                getattr(layer, name).copy_(value)
        return layer

    def input(self, dtype: torch.dtype = WIDE) -> Tensor:
        return self.to_ours(self.x.detach().to(dtype))


@pytest.fixture(scope="module")
def common_modules() -> ModuleType:
    """torch's private module; its import must not freeze the flags of torch.backends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends, "disable_global_flags", lambda: None)
        return pytest.importorskip("torch.testing._internal.common_modules", exc_type=ImportError)


def _last_to_second(x: Tensor) -> Tensor:
    return x.movedim(-1, 1) if x.dim() > 2 else x


def _options(theirs: nn.Module) -> dict[str, Any]:
    """Return the keywords of ours that torch's layer was made with."""
    options: dict[str, Any] = {"affine": theirs._parameters["weight"] is not None}
    options["eps"] = theirs.eps
    if isinstance(theirs, nn.modules.batchnorm._BatchNorm):
        options["momentum"] = theirs.momentum
        options["track_running_stats"] = theirs.track_running_stats
    return options


def _equal_layers(theirs: nn.Module) -> dict[str, tuple[Callable[..., nn.Module], int]]:
    """Return the layers here that torch's layer equals, and their number of channels."""
    if isinstance(theirs, nn.modules.batchnorm._BatchNorm):
        return {name: (build, theirs.num_features) for name, build in BATCH_NORMS.items()}
    if isinstance(theirs, nn.modules.instancenorm._InstanceNorm):
        if theirs.track_running_stats and not theirs.training:
            return {}
        return {"instancenorm": (isonorm.InstanceNorm, theirs.num_features)}
    if isinstance(theirs, nn.GroupNorm):
        groups = theirs.num_groups

        def group_norm(channels: int, **options: Any) -> nn.Module:
            return isonorm.GroupNorm(channels, num_groups=groups, **options)

        layers = {"groupnorm": (group_norm, theirs.num_channels)}
        if groups == 1:
            layers["layernorm"] = (isonorm.LayerNorm, theirs.num_channels)
        return layers
    assert isinstance(theirs, nn.LayerNorm)
    axes = theirs.normalized_shape
    return {"positionalnorm": (isonorm.PositionalNorm, axes[0])} if len(axes) == 1 else {}


def _samples(common: ModuleType, name: str, training: bool) -> list[Sample]:
    """Return torch's inputs for a class, as far as a layer here takes them."""
    torch_class = getattr(nn, name)
    info = next(info for info in common.module_db if info.module_cls is torch_class)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=WIDE, requires_grad=True, training=training
    )
    samples = []
    for given in inputs:
        arguments = given.constructor_input
        theirs = torch_class(*arguments.args, **{**arguments.kwargs, "dtype": WIDE})
        theirs.train(training)
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.copy_(torch.randn_like(parameter))
        (x,) = given.forward_input.args
        if name.startswith("InstanceNorm") and x.dim() == int(name[-2]) + 1:
            continue  # one example
        layers = {key: (*value, True) for key, value in _equal_layers(theirs).items()}
        if isinstance(theirs, nn.modules.batchnorm._BatchNorm):
            for key, build in WHITENINGS.items():
                layers[key] = (build, theirs.num_features, False)
        for key, (build, channels, has_reference) in layers.items():
            samples.append(
                _sample(f"{key} {given.desc}", theirs, build, channels, x, has_reference)
            )
    return samples


def _sample(
    description: str, theirs: nn.Module, build: Callable[..., nn.Module], channels: int, x: Tensor,
    has_reference: bool,
) -> Sample:  # fmt: skip
    options = _options(theirs)
    if "dbn" in description and not has_reference:
        del options["eps"]  # its own keeps eigenvalues apart

    def make(**factory: Any) -> nn.Module:
        return build(channels, **options, **factory).train(theirs.training)

    last = isinstance(theirs, nn.LayerNorm)
    to_ours = _last_to_second if last else (lambda t: t)
    return Sample(description, theirs, make, x, to_ours, has_reference)


@pytest.fixture(params=NAMES)
def samples(request, common_modules) -> list[Sample]:
    """torch's inputs for one of its classes, in training and in eval."""
    found = [
        s for training in (True, False) for s in _samples(common_modules, request.param, training)
    ]
    assert found
    return found


def _gradients(layer: nn.Module, x: Tensor, cotangent: Tensor) -> tuple[Tensor, list[Tensor]]:
    x = x.detach().requires_grad_()
    y = layer(x)
    return y, list(torch.autograd.grad(y, [x, *layer.parameters()], cotangent))


def _assert_same(sample: Sample, ours: nn.Module, x: Tensor, name: str = "") -> None:
    """Compare outputs and gradients with torch's layer, at the same input."""
    message = f"{sample.description} {name}".strip()
    theirs, cotangent = copy.deepcopy(sample.theirs), torch.randn_like(sample.x)
    expected, grads = _gradients(theirs, sample.x, cotangent)
    y, own = _gradients(ours, x, sample.to_ours(cotangent))
    moved = [sample.to_ours(expected), sample.to_ours(grads[0]), *grads[1:]]
    for a, b in zip([y, *own], moved, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8, msg=lambda m: f"{message}: {m}")


def test_forward_and_gradients_are_torchs(samples):
    for sample in samples:
        if sample.has_reference:
            _assert_same(sample, sample.ours(), sample.input())


def test_gradcheck(samples):
    """Also of the gradients, with respect to input and parameters, in training and in eval."""
    for sample in samples:
        if sample.x.shape[0] > 100:  # torch's large batches
            continue
        layer = sample.ours()
        layer.track_running_stats = False  # each evaluation would move them
        names = [name for name, _ in layer.named_parameters()]

        def call(x, *values, layer=layer, names=names):
            return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

        inputs = [sample.input(), *(p.detach().clone() for p in layer.parameters())]
        inputs = [t.requires_grad_() for t in inputs]
        assert torch.autograd.gradcheck(call, inputs, fast_mode=True), sample.description
        assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True), sample.description


def test_inputs_that_are_not_contiguous(samples):
    for sample in samples:
        room = torch.zeros(*sample.input().shape, 2, dtype=WIDE)
        spread = room[..., 0].copy_(sample.input())
        flipped = sample.input().transpose(0, -1).contiguous().transpose(0, -1)
        for x in (spread, flipped):
            expected = sample.ours()(sample.input())
            torch.testing.assert_close(sample.ours()(x), expected)
            if sample.has_reference:
                _assert_same(sample, sample.ours(), x, "not contiguous")


def test_memory_formats(samples):
    """Channels last in, channels last out, as torch's layers do."""
    for sample in samples:
        x, formats = sample.input(), {4: torch.channels_last, 5: torch.channels_last_3d}
        if x.dim() not in formats or not x.numel():
            continue
        memory_format = formats[x.dim()]
        given = x.contiguous(memory_format=memory_format)
        y = sample.ours().to(memory_format=memory_format)(given)
        assert y.is_contiguous(memory_format=memory_format), sample.description
        torch.testing.assert_close(y, sample.ours()(x))


def test_copies(samples):
    """A pickle, a file and a deep copy compute the same, and go on in the same way."""
    for sample in samples:
        layer, x = sample.ours(), sample.input()
        layer(x)
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        copies = [pickle.loads(pickle.dumps(layer)), loaded, copy.deepcopy(layer)]
        expected, state = layer(x), layer.state_dict()
        for other in copies:
            torch.testing.assert_close(other(x), expected, rtol=0, atol=0)
            assert all(torch.equal(other.state_dict()[name], v) for name, v in state.items())
            assert repr(other) == repr(layer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_factory_arguments(samples, dtype):
    """dtype and device reach every parameter; nothing is made on another device first."""
    for sample in samples:
        layer = sample.build(device="cpu", dtype=dtype)
        assert all(p.dtype == dtype for p in layer.parameters()), sample.description
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert all(b.dtype == wide for b in layer.buffers() if b.is_floating_point())
        on_meta = sample.build(device="meta", dtype=dtype)
        assert all(t.is_meta for t in (*on_meta.parameters(), *on_meta.buffers()))
        with torch.device("meta"):
            under = sample.build(dtype=dtype)
        assert all(t.is_meta for t in (*under.parameters(), *under.buffers()))


def test_to_empty_and_skip_init(samples):
    """Memory without numbers, then a state: the layer is what it was."""
    for sample in samples:
        layer, x = sample.ours(), sample.input()
        layer(x)
        state, expected = layer.state_dict(), copy.deepcopy(layer)(x)
        empty = sample.build(device="meta", dtype=WIDE).to_empty(device="cpu")
        if layer.bias is None:
            empty.bias = None
        empty.load_state_dict(state)
        torch.testing.assert_close(empty(x), expected, rtol=0, atol=0)
    skipped = nn.utils.skip_init(type(layer), layer.num_features, **_required(layer))
    assert not any(t.is_meta for t in (*skipped.parameters(), *skipped.buffers()))
    skipped.reset_parameters()
    fresh = type(layer)(layer.num_features, **_required(layer))
    for name, value in fresh.state_dict().items():
        assert torch.equal(skipped.state_dict()[name], value), name


def _required(layer: nn.Module) -> dict[str, Any]:
    """Return the sizes without which a layer cannot be made for these channels."""
    sizes = {name: getattr(layer, name, None) for name in ("num_groups", "group_size")}
    return {name: size for name, size in sizes.items() if size is not None}


def test_casts(samples):
    """Layers made in one dtype and cast to another compute like those that were made in it."""
    for sample in samples:
        narrow = sample.ours(torch.float32)
        wide, x = sample.ours(torch.float32).double(), sample.input()
        assert wide(x).dtype == WIDE and narrow(x.float()).dtype == torch.float32
        assert all(
            t.dtype == WIDE for t in (*wide.parameters(), *wide.buffers()) if t.is_floating_point()
        )
        torch.testing.assert_close(narrow(x.float()).double(), wide(x), rtol=1e-3, atol=1e-4)
        back = sample.ours().half().double()
        torch.testing.assert_close(back(x), sample.ours()(x), rtol=1e-2, atol=1e-2)


def test_train_and_eval(samples):
    """The mode reaches the layer, and where torch's differ between modes, so do these."""
    for sample in samples:
        layer, x = sample.ours().train(), sample.input() + 3
        layer(x)
        trained, kept = layer(x), layer.running_mean is not None
        assert layer.eval() is layer and not layer.training
        if x.numel():
            assert torch.allclose(layer(x), trained) != kept, sample.description


def test_repr(samples):
    """The class, the number of channels and every setting that torch's repr tells."""
    for sample in samples:
        layer = sample.ours()
        text = repr(layer)
        assert text.startswith(f"{type(layer).__name__}({layer.num_features}, "), text
        assert f"eps={layer.eps}" in text and f"affine={layer.affine}" in text
        if layer.area.spans_batch:
            assert f"momentum={layer.momentum}" in text
            assert ("track_running_stats=False" in text) != layer.track_running_stats
