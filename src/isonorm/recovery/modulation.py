"""Ψ with γ and β that are computed in every pass, where ``affine`` learns them as they are.

    y = act(γ ⊙ x̂ + β),     γ and β (N, C), for each example, or (N, C, *), for each position

They come from a condition (a label, a style, a map) or from the input itself. A modulation is a
module around a norm that recovers nothing, whichever Φ and Π that has; what is done to the norms
of a model (conversion, synchronization, freezing) is done to the one inside.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.fx import Proxy

from ..activation import check_act, effective, finish
from ..scalars import positive
from ..statistics import no_autocast, working_dtype
from ..symbolic import one_call


class Modulation(nn.Module):
    """γ ⊙ norm(x) + β for the γ and β of a subclass, in the input's dtype and memory format."""

    norm: nn.Module
    #: The constructor's arguments that a repr repeats.
    _echoes: tuple[str, ...] = ()

    def __init__(self, norm: nn.Module, act: str | None = None) -> None:
        super().__init__()
        kind = type(self).__name__
        if not isinstance(getattr(norm, "num_features", None), int):
            raise TypeError(
                f"{kind} goes around a norm that knows its num_features; got {type(norm).__name__}."
            )
        if any(True for _ in norm.parameters()) or effective(getattr(norm, "act", None)):
            raise ValueError(
                f"{kind} recovers what the norm inside has normalized, so that one must not: make "
                f"the {type(norm).__name__} with affine=False (or recovery=None) and without act."
            )
        positive("the norm's num_features", norm.num_features)  # 0 where it is lazy
        check_act(act)
        self.norm, self.act = norm, act

    @property
    def num_features(self) -> int:
        return self.norm.num_features  # type: ignore[return-value]

    def _traced(self, x: Tensor, *given: Tensor) -> Tensor | None:
        """What a tracer of torch.fx sees, one call; None where there is none, or it is inside."""
        return one_call(self, x, *given) if isinstance(x, Proxy) else None

    def _check(self, x: Tensor, **given: Tensor) -> None:
        """What every modulation expects of its input, and of what γ and β come from."""
        # Not above: checks know the recoveries of this package.
        from ..checks import check_device, check_input, check_tensor

        check_input(x)
        if x.shape[1] != self.num_features:
            raise ValueError(
                f"{type(self).__name__} expected input (N, {self.num_features}, *); got shape "
                f"{tuple(x.shape)}."
            )
        for name, condition in given.items():
            check_tensor(name, condition)
            if condition.is_complex():
                raise TypeError(f"{name} must be real; got {condition.dtype}.")
            check_device(name, condition, x)

    def _recovered(self, x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        """What a subclass's ``forward`` returns. The norm comes last: where γ and β cannot be had,
        its statistics have not moved.
        """
        y = self.norm(x)
        dtype = working_dtype(y)  # so that the product is rounded once, as an affine recovery's is
        with no_autocast(y):
            gain, shift = (
                t.to(dtype).view(*t.shape, *(1,) * (y.dim() - t.dim())) for t in (gain, shift)
            )
            recovered = (y.to(dtype) * gain + shift).to(y.dtype)  # in the format of y
        return finish(recovered, self.act, None)

    def extra_repr(self) -> str:
        names = [*self._echoes, "act"] if self.act is not None else self._echoes
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
