"""How a convolution, transposed or not, or a linear layer takes in the norm next to it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils import parametrize

from . import merge
from .maps import EvalMap, has_forward_of, is_lazy, own_forward, wide
from .report import Refused
from .tracing import has_hooks

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (*CONVOLUTIONS, *TRANSPOSED, nn.Linear)


def merge_after(layer: nn.Module, norm: EvalMap, name: str) -> None:
    """Makes a layer do what the norm behind it does, too. Raises ``Refused``, or does it all."""
    groups, channels = _check(layer, name), _channels(layer, out=True)
    _check_channels(norm, channels, groups, name)
    _write(
        layer,
        name,
        lambda kernel, bias: merge.after(kernel, bias, norm.A.to(kernel), norm.c.to(kernel)),
    )


def merge_before(layer: nn.Module, norm: EvalMap, name: str, *, flattened: bool) -> None:
    """Makes a layer do what the norm in front of it does, too. Raises ``Refused``, or does it all.

    ``flattened``: (N, C, *) becomes (N, C·S) in between, so each channel meets S columns.
    """
    groups, channels = _check(layer, name), _channels(layer, out=False)
    positions = max(channels // len(norm.c), 1) if flattened else 1
    _check_channels(norm, channels, groups, name, positions)
    if not _meets_every_tap(layer) and (norm.c.is_meta or bool(norm.c.any())):
        edge = "is transposed" if isinstance(layer, _ConvTransposeNd) else "pads with zeros"
        raise Refused(f"{name!r} {edge}, and a shift before that is not a bias after it")

    def merged(kernel: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        by_channel = kernel.reshape(len(kernel), -1, positions) if flattened else kernel
        return merge.before(by_channel, bias, norm.A.to(kernel), norm.c.to(kernel), groups)

    _write(layer, name, merged)


def _check(layer: nn.Module, name: str) -> int:
    """The number of a layer's groups, if its weight is all there is to know of it."""
    if not has_forward_of(layer, *LAYERS) or (
        isinstance(layer, CONVOLUTIONS)
        and type(layer)._conv_forward not in [kind._conv_forward for kind in CONVOLUTIONS]
    ):
        raise Refused(f"of {name!r}, {own_forward(layer)}")
    if has_hooks(layer):
        raise Refused(f"{name!r} has hooks, which see or change what it computes")
    if is_lazy(layer):
        raise Refused(f"{name!r} is lazy and has not seen an input yet")
    return getattr(layer, "groups", 1)


def _channels(layer: nn.Module, *, out: bool) -> int:
    if isinstance(layer, nn.Linear):
        return layer.out_features if out else layer.in_features
    assert isinstance(layer, _ConvNd)
    return layer.out_channels if out else layer.in_channels


def _check_channels(
    norm: EvalMap, channels: int, groups: int, name: str, positions: int = 1
) -> None:
    if channels != len(norm.c) * positions:
        raise Refused(f"{name!r} has {channels} channels there, not {len(norm.c) * positions}")
    size = norm.A.shape[-1]
    if not merge.fits(size, channels, groups):
        raise Refused(
            f"its groups of {size} channels span several of the {groups} groups of {name!r}, which "
            "would become denser"
        )


def _meets_every_tap(layer: nn.Module) -> bool:
    """Whether every tap of every output lies on an input, none on padding or between inputs."""
    if isinstance(layer, nn.Linear):
        return True
    assert isinstance(layer, _ConvNd)
    if isinstance(layer, _ConvTransposeNd):
        numbers = (*layer.kernel_size, *layer.stride)
        padding = (*layer.padding, *layer.output_padding)
        return set(numbers) == {1} and not any(padding)
    if layer.padding_mode != "zeros" or layer.padding == "valid":
        return True
    if layer.padding == "same":
        return set(layer.kernel_size) == {1}
    return not any(layer.padding)


def _write(
    layer: nn.Module, name: str, merged: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> None:
    """Replaces weight and bias, by new parameters: others may hold the old ones."""
    assert isinstance(layer, _ConvNd | nn.Linear)
    weight, bias = layer.weight.detach(), layer.bias
    transposed, groups = isinstance(layer, _ConvTransposeNd), getattr(layer, "groups", 1)
    kernel = merge.as_kernel(wide(weight), groups, transposed)
    start = kernel.new_zeros(len(kernel)) if bias is None else wide(bias)
    kernel, shift = merged(kernel, start)
    new = {"weight": merge.as_weight(kernel, weight.shape, groups, transposed), "bias": shift}
    new = {key: value.to(weight.device, weight.dtype) for key, value in new.items()}
    for key, value in new.items():
        if not value.is_meta and not value.isfinite().all():
            raise Refused(f"the merged {key} of {name!r} would not be finite in {weight.dtype}")
    trained = any(parameter.requires_grad for parameter in layer.parameters())
    if parametrize.is_parametrized(layer):
        layer.__class__ = parametrize.type_before_parametrizations(layer)
        del layer.parametrizations
    for key, value in new.items():
        layer.register_parameter(key, nn.Parameter(value, requires_grad=trained))
