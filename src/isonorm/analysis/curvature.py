"""Curvature of the loss in training mode: spectra of the Hessian and of the Gauss–Newton matrix.

In training a normalization's statistics are functions of the batch, and so of the weights before
it; here they stay in the graph, which tools that call ``model.eval()`` first cannot see. The matrix
is never formed: hessian-eigenthings multiplies it by vectors, and finds its extreme eigenvalues and
its density by Lanczos' algorithm, its trace by Hutchinson's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._layers import tensor_of
from ._state import observed, seeded

if TYPE_CHECKING:
    from hessian_eigenthings import CurvatureOperator

Loss = Callable[[Tensor, Tensor], Tensor]
#: (name, parameter) → whether the curvature is taken with respect to it.
Parameters = Callable[[str, nn.Parameter], bool] | None

KINDS = ("hessian", "gauss-newton")


class Extremes(NamedTuple):
    """The ends of a spectrum, and whether Lanczos' algorithm has reached them."""

    largest: Tensor  # (k,), downwards
    smallest: Tensor  # (k,), upwards
    converged: bool


class Trace(NamedTuple):
    estimate: float
    error: float  # standard error over the random vectors


class Density(NamedTuple):
    """How many eigenvalues lie where: a density over ``grid`` that integrates to 1, each
    eigenvalue blurred by ``sigma``.
    """

    grid: Tensor
    density: Tensor
    sigma: float


class CurvatureSpectrum(NamedTuple):
    size: int  # parameters
    extremes: Extremes
    trace: Trace
    density: Density


@contextmanager
def curvature_operator(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Loss = F.cross_entropy,
    *,
    kind: str = "hessian",
    parameters: Parameters = None,
    train: bool = True,
    seed: int = 0,
) -> Iterator[CurvatureOperator]:
    """The curvature of the loss, averaged over (inputs, targets) batches, large and small ones
    alike, as hessian-eigenthings' operator, for the length of a ``with`` block.

    Args:
        batches: a sequence or loader, read anew for every product: it must give the same batches
            each time (no shuffling).
        loss: of what the model returns, and the targets.
        kind: "hessian", or "gauss-newton", which for cross-entropy is the Fisher information; of
            several outputs of the model it takes the first.
        parameters: a function of name and parameter that chooses; None: all that require
            gradients.
        train: in training mode, whatever mode the model is in; False: in eval.
        seed: of anything random in the model, such as dropout, alike in every product, without
            which there would be no one matrix.

    Running statistics and every other buffer are afterwards as before.
    """
    things = _hessian_eigenthings()
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}; got {kind!r}.")
    if isinstance(batches, Iterator):
        raise TypeError(
            "batches must be readable again and again, as a list or a loader is; got an iterator."
        )
    chosen = [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (parameters is None or parameters(name, parameter))
    ]
    if not chosen:
        raise ValueError(
            "curvature needs parameters: the model has none that requires a gradient and that "
            "parameters= chooses."
        )

    def forward(module: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        with seeded(seed):
            return module(_pair(batch)[0])

    def of_output(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return loss(output, batch[1])

    with observed(model, train=train), torch.enable_grad():
        if kind == "hessian":
            yield things.HessianOperator(
                model, batches, lambda m, b: of_output(forward(m, b), b), param_filter=parameters
            )
        else:
            yield things.GGNOperator(
                model, batches, lambda m, b: tensor_of(forward(m, b)), of_output,
                param_filter=parameters,
            )  # fmt: skip


def extreme_eigenvalues(
    operator: CurvatureOperator, *, count: int = 1, steps: int = 80, seed: int = 0
) -> Extremes:
    """The largest and smallest eigenvalues, from one run of Lanczos' algorithm."""
    if count < 1 or steps < 1:
        raise ValueError(f"count and steps must be at least 1; got {count} and {steps}.")
    steps = min(steps, operator.size)
    found = _hessian_eigenthings().lanczos(
        operator, k=steps, max_iter=steps, reorthogonalize=True, seed=seed, which="LA"
    )
    count = min(count, len(found.eigenvalues))
    largest, smallest = found.eigenvalues[:count], found.eigenvalues[-count:].flip(0)
    # A residual bounds the distance to an eigenvalue; the spectrum's size is the scale of both.
    scale = found.eigenvalues.abs().max()
    ends = torch.cat([found.residuals[:count], found.residuals[-count:]])
    return Extremes(largest, smallest, bool((ends <= 1e-3 * scale).all()))


def curvature_trace(operator: CurvatureOperator, *, samples: int = 100, seed: int = 0) -> Trace:
    """Hutchinson's estimate of the trace, from ``samples`` products."""
    if samples < 2:
        raise ValueError(f"samples must be at least 2, to know an error; got {samples}.")
    found = _hessian_eigenthings().hutchinson(operator, num_samples=samples, seed=seed)
    return Trace(found.estimate, found.stderr)


def spectral_density(
    operator: CurvatureOperator,
    *,
    runs: int = 5,
    steps: int = 80,
    sigma: float | None = None,
    points: int = 1000,
    seed: int = 0,
) -> Density:
    """The density of eigenvalues by stochastic Lanczos quadrature, ``runs``·``steps`` products."""
    found = _hessian_eigenthings().spectral_density(
        operator, num_runs=runs, lanczos_steps=min(steps, operator.size), sigma=sigma,
        num_grid_points=points, seed=seed,
    )  # fmt: skip
    return Density(found.grid, found.density, found.sigma)


def hessian_spectrum(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Loss = F.cross_entropy,
    *,
    kind: str = "hessian",
    parameters: Parameters = None,
    train: bool = True,
    count: int = 1,
    steps: int = 80,
    runs: int = 5,
    samples: int = 100,
    seed: int = 0,
) -> CurvatureSpectrum:
    """Extreme eigenvalues, trace and density of the curvature at the model's present weights.

    >>> import isonorm
    >>> model = nn.Sequential(nn.Linear(4, 5), isonorm.IterNorm(5), nn.Tanh(), nn.Linear(5, 3))
    >>> batches = [(torch.randn(32, 4), torch.randint(3, (32,)))]
    >>> found = hessian_spectrum(model, batches, samples=10, runs=1)
    >>> found.size, bool(found.extremes.largest > 0 > found.extremes.smallest)
    (53, True)

    Takes ``steps`` + ``samples`` + ``runs`` · ``steps`` products, each about two backward passes
    over all batches. Arguments as for :func:`curvature_operator`, :func:`extreme_eigenvalues`
    (``count``, ``steps``), :func:`spectral_density` (``runs``, ``steps``) and
    :func:`curvature_trace` (``samples``).
    """
    with curvature_operator(
        model, batches, loss, kind=kind, parameters=parameters, train=train, seed=seed
    ) as operator:
        return CurvatureSpectrum(
            operator.size,
            extreme_eigenvalues(operator, count=count, steps=steps, seed=seed),
            curvature_trace(operator, samples=samples, seed=seed),
            spectral_density(operator, runs=runs, steps=steps, seed=seed),
        )


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(
            f"each batch must be a pair (inputs, targets); got {type(batch).__name__}"
            + (f" of {len(batch)}." if isinstance(batch, tuple | list) else ".")
        )
    return batch[0], batch[1]


def _hessian_eigenthings() -> Any:
    try:
        import hessian_eigenthings
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "curvature needs hessian-eigenthings: pip install 'isonorm[lab]' brings it."
        ) from missing
    return hessian_eigenthings
