"""The schedules of the large-batch papers: a linear warm-up, a plateau, a polynomial decay."""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..scalars import plain
from .layerwise import check_number


@dataclass
class WarmupPolynomial:
    """The factor of step t = 0, 1, …: a value, not a closure, so that a scheduler's ``state_dict``
    holds it.
    """

    total_steps: int
    warmup_steps: int
    hold_steps: int
    power: float

    def __call__(self, t: int) -> float:
        if t < self.warmup_steps:
            return (t + 1) / self.warmup_steps
        start = self.warmup_steps + self.hold_steps
        if t < start:
            return 1.0
        left = max(self.total_steps - t, 0) / max(self.total_steps - start, 1)
        return left**self.power


def warmup_polynomial(
    optimizer: Optimizer,
    total_steps: int,
    *,
    warmup_steps: int = 0,
    hold_steps: int = 0,
    power: float = 1.0,
) -> LambdaLR:
    """A ``torch.optim.lr_scheduler``: lr grows linearly for ``warmup_steps``, stays for
    ``hold_steps``, then decays as (1 − s)^power, s running from 0 to 1 at ``total_steps``.

    Call ``step()`` once a batch. LARS decays with power 2, LAMB with power 1 after a warm-up, LANS
    with power 1 after a warm-up and a plateau.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=8.0)
    >>> schedule = warmup_polynomial(optimizer, 6, warmup_steps=2, power=2)
    >>> rates = []
    >>> for _ in range(6):
    ...     rates.append(optimizer.param_groups[0]["lr"])
    ...     optimizer.step()
    ...     schedule.step()
    >>> rates
    [4.0, 8.0, 8.0, 4.5, 2.0, 0.5]
    """
    total_steps, power = plain(total_steps), plain(power)
    warmup_steps, hold_steps = plain(warmup_steps), plain(hold_steps)
    for name, value in (("warmup_steps", warmup_steps), ("hold_steps", hold_steps)):
        if not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} must be a number of steps, 0 or more; got {value!r}.")
    if not isinstance(total_steps, int) or total_steps <= warmup_steps + hold_steps:
        raise ValueError(
            "total_steps must be an integer greater than warmup_steps + hold_steps = "
            f"{warmup_steps + hold_steps}; got {total_steps!r}."
        )
    check_number("power", power, low=0)
    return LambdaLR(optimizer, WarmupPolynomial(total_steps, warmup_steps, hold_steps, power))
