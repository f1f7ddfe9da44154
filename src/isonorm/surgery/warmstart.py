"""Starting one normalization from the statistics and parameters of another.

Both layers are maps in eval, y = A(x − μ) + b, A = γ·W in blocks. The new layer takes over μ and Σ
(a diagonal Σ, where the old layer knew variances alone), derives its own W from them, and its
recovery makes up for the difference:

    γ′ᵢ = ± √( (A Σ̃ Aᵀ)ᵢᵢ / (W′ Σ̃ W′ᵀ)ᵢᵢ ),   Σ̃ = Σ + εI,   β′ = y(μ) − γ′W′(μ − μ′)

so that every channel keeps its mean, variance and sign. From BatchNorm, where A = γ/√(σ² + ε) and
W′ of a diagonal matrix is diagonal (all roots but pca), that is γ′ = A/W′ and the same function.
A coloring takes all of A: Γ = A·W′⁻¹. What is left over is measured, not assumed.

Index legend: K groups of c channels; matrices of a layer are (groups, g, g), the last one padded.
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..area import Area, Block, batch
from ..layers import Normalize
from ..recovery import Affine, Coloring, is_own
from ..statistics import join_matrices
from .maps import wide
from .report import is_same


class Start(NamedTuple):
    """Values for the new layer's parameters, and what the report says of it."""

    values: dict[str, Tensor]
    deviation: float | None
    note: str = ""


@torch.no_grad()
def warm_start(old: Normalize, new: Normalize) -> Start:
    """Writes the running statistics of ``new``, and tells which parameters continue ``old``."""
    if any(t.is_meta for t in (*old.parameters(), *old.buffers())):
        values = _same_recovery(old, new).values
        return Start(values, None, "on the meta device there are no values to carry over")
    if old.running_mean is None or new.running_mean is None:
        return _same_recovery(old, new)
    mean, cov = moments(old)
    take_statistics(new, mean, cov)
    if _both_average_w(old, new):
        assert old.running_whitening is not None and new.running_whitening is not None
        new.running_whitening.copy_(old.running_whitening)
    if old.num_batches_tracked is not None and new.num_batches_tracked is not None:
        new.num_batches_tracked.copy_(old.num_batches_tracked)
    new.refresh()
    return _continued(old, new, mean, cov)


def _both_average_w(old: Normalize, new: Normalize) -> bool:
    """Whether one layer's W can be the other's, whatever its root."""
    if old.running_whitening is None or new.running_whitening is None:
        return False
    alike = old.running_whitening.shape == new.running_whitening.shape
    return alike and old.area.features == new.area.features


def _same_recovery(old: Normalize, new: Normalize) -> Start:
    """Parameters as they are, between layers of which one has no statistics to speak of."""
    gain, bias = old.recovery.gain, old.recovery.bias
    values = {}
    if isinstance(new.recovery, type(old.recovery)) and gain is not None:
        name = _gain_name(new)
        if getattr(new, name).shape == gain.shape:
            values[name] = gain
    if bias is not None:
        values["bias"] = bias
    if _acts_alike(old, new):
        return Start(values, 0.0)
    if not new.area.spans_batch:
        note = "each example by its own statistics, which has no warm start"
    elif new.running_mean is None:
        as_before = ", as it did" if old.area.spans_batch and old.running_mean is None else ""
        note = f"without running statistics, eval normalizes by the batch{as_before}"
    else:
        note = f"{old.area!r} kept no statistics to start from: recalibrate, or train"
    return Start(values, None, note)


def _acts_alike(old: Normalize, new: Normalize) -> bool:
    def signature(layer: Normalize):
        area = layer.area if layer.operation.is_matrix else layer.area.featurewise()
        return area.roles, area.partition(layer.num_features), layer.operation

    both_without = old.running_mean is None and new.running_mean is None
    return both_without and signature(old) == signature(new)


# --- statistics -----------------------------------------------------------------------------------


def moments(layer: Normalize) -> tuple[Tensor, Tensor]:
    """μ (C,) and Σ (groups, g, g) of a layer's running statistics, in float64."""
    if layer.running == "covariance":
        assert layer.running_cov is not None
        cov = wide(layer.running_cov)
    else:  # WᵀW = (Σ + εI)⁻¹, exactly for full whitening, nearly for newton
        assert layer.running_whitening is not None
        w = wide(layer.running_whitening)
        cov = torch.linalg.pinv(w.mT @ w, hermitian=True) - layer.eps * torch.eye(w.shape[-1]).to(w)
    if layer.area.features != "channels":  # one variance for each group of channels
        cov = cov.repeat_interleave(layer.num_features // len(cov), dim=0)
    return _channel_mean(layer), cov


def _channel_mean(layer: Normalize) -> Tensor:
    assert layer.running_mean is not None
    mean = wide(layer.running_mean)
    return mean.repeat_interleave(layer.num_features // len(mean))


def take_statistics(layer: Normalize, mean: Tensor, cov: Tensor) -> None:
    """Writes μ (C,) and Σ (groups, g, g), of any grouping, to a layer's running statistics."""
    assert layer.running_mean is not None and layer.eval_transform is not None
    operation, size = layer.operation, layer.eval_transform.shape[-1]
    matrix = regroup(cov, layer.num_features, size)
    if layer.area.features != "channels":  # a group's variance: within its channels and between
        means, variances = (t.view(len(layer.running_mean), -1) for t in (mean, matrix))
        mean = means.mean(1)
        matrix = (variances.mean(1) + means.var(1, correction=0)).view(-1, 1, 1)
    if not operation.centers:
        matrix = matrix + mean.view(-1, 1, 1) ** 2
        mean = torch.zeros_like(mean)
    if not operation.scales:
        matrix = torch.ones_like(matrix)
    layer.running_mean.copy_(mean)
    if layer.running == "covariance":
        assert layer.running_cov is not None
        layer.running_cov.copy_(matrix)
        return
    assert layer.running_whitening is not None
    area = layer.area if operation.is_matrix else layer.area.featurewise()
    roots = [
        operation.transform(matrix[rows, :d, :d], layer.eps)
        for _, rows, d in area.places(1, layer.num_features, 1)
    ]
    layer.running_whitening.copy_(join_matrices(roots))


# --- recovery -------------------------------------------------------------------------------------


def _continued(old: Normalize, new: Normalize, mean: Tensor, cov: Tensor) -> Start:
    channels = old.num_features
    a = wide(old.inference_map()[0])
    kept = new.recovery if is_own(new.recovery) else Affine(None, None)
    w = wide(new.map_for_eval(kept)[0])
    color = new.recovery.color if isinstance(new.recovery, Coloring) else a
    common = _common_area(channels, a, w, cov, color)
    before, after = [], []
    for block in common.partition(channels):
        sigma = gather(cov, block)
        sigma = sigma + old.eps * torch.eye(block.size).to(sigma)
        before.append((gather(a, block), sigma))
        after.append(gather(w, block))

    gain: Tensor | None = None
    if isinstance(new.recovery, Coloring):
        whole = [_right_solve(A, W) for (A, _), W in zip(before, after, strict=True)]
        gain = regroup(join_matrices(whole), channels, color.shape[-1])
        colors = [gather(gain, block) for block in common.partition(channels)]
        after = [G @ W for G, W in zip(colors, after, strict=True)]
    elif new.recovery.gain is not None:
        gains = [_gain(A, W, S) for (A, S), W in zip(before, after, strict=True)]
        after = [g.unsqueeze(-1) * W for g, W in zip(gains, after, strict=True)]
        gain = torch.cat([g.reshape(-1) for g in gains])

    output = torch.zeros_like(mean)  # y(μ) before recovery's bias, old minus new
    for block, (A, _), B in zip(common.partition(channels), before, after, strict=True):
        for matrix, layer, sign in ((A, old, 1), (B, new, -1)):
            shift = (mean - _channel_mean(layer))[block.channels].view(block.groups, -1, 1)
            output[block.channels] += sign * (matrix @ shift).reshape(-1)
    if old.recovery.bias is not None:
        output = output + wide(old.recovery.bias)

    total = sum(((A @ S) * A).sum() for A, S in before)
    missed = sum((((B - A) @ S) * (B - A)).sum() for (A, S), B in zip(before, after, strict=True))
    values = {} if gain is None else {_gain_name(new): gain}
    if new.recovery.bias is not None:
        values["bias"] = output
    else:
        missed = missed + output.square().sum()
    deviation = float(missed / total) if total else float(missed)
    return Start(values, deviation, "" if is_same(deviation) else _why_different(new))


def _gain_name(layer: Normalize) -> str:
    return "color" if isinstance(layer.recovery, Coloring) else "weight"


def _gain(a: Tensor, w: Tensor, sigma: Tensor) -> Tensor:
    """γ′ (K, c) by which W lets every channel leave as A did."""
    as_before, as_made, between = (
        ((left @ sigma) * right).sum(-1) for left, right in ((a, a), (w, w), (a, w))
    )
    size = torch.where(as_before == 0, 0.0, (as_before / as_made).sqrt())
    return torch.where(between < 0, -size, size)


def _right_solve(a: Tensor, w: Tensor) -> Tensor:
    """Γ with Γ·W = A."""
    return torch.linalg.solve(w, a, left=False)


def _why_different(new: Normalize) -> str:
    if new.recovery.gain is None or new.recovery.bias is None:
        return "it has no affine parameters to continue the old ones"
    if new.operation.method == "pca":
        return "pca orders its axes by variance; each channel keeps its mean and size"
    return "other channels are mixed; each keeps its mean and size"


# --- blocks ---------------------------------------------------------------------------------------


def _common_area(channels: int, *matrices: Tensor) -> Area:
    """The finest grouping that every grouping of the matrices refines."""
    return batch(min(lcm(*(m.shape[-1] for m in matrices)), channels))


def gather(matrices: Tensor, block: Block) -> Tensor:
    """(K, c, c): a block's groups from finer ones, (groups, g, g), along their diagonals.

    >>> gather(torch.tensor([2.0, 3.0]).view(2, 1, 1), Block(0, 1, 2))
    tensor([[[2., 0.],
             [0., 3.]]])
    """
    g = matrices.shape[-1]
    finer = -(-block.size // g)
    first = block.start // g
    part = matrices[first : first + block.groups * finer].view(block.groups, finer, g, g)
    wide = part.new_zeros(block.groups, finer, g, finer, g)
    wide.diagonal(dim1=1, dim2=3).copy_(part.permute(0, 2, 3, 1))
    return wide.view(block.groups, finer * g, finer * g)[:, : block.size, : block.size]


def regroup(matrices: Tensor, channels: int, size: int) -> Tensor:
    """The diagonal blocks of ``size`` channels of a block-diagonal matrix given in other blocks.

    >>> regroup(torch.arange(4.0).view(1, 2, 2), 2, 1).view(-1)
    tensor([0., 3.])
    """
    g = matrices.shape[-1]
    if size == g:
        return matrices
    parts = []
    for block in batch(min(lcm(g, size), channels)).partition(channels):
        wide = gather(matrices, block)
        count, rest = -(-block.size // size), -block.size % size
        wide = pad(wide, (0, rest, 0, rest)).view(block.groups, count, size, count, size)
        parts.append(wide.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).reshape(-1, size, size))
        if rest:  # padding is the identity
            parts[-1][-1].diagonal()[size - rest :] = 1
    return torch.cat(parts)
