"""Before a speed is worth printing: does the layer compute what it should, on the input it is timed
with?
"""

from __future__ import annotations

import torch

from .cases import Candidate, Case, Gradients, Inputs, training_step

# Relative, in the norm. Rounding leaves a tenth of this or less at these shapes; a wrong term, far
# more.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-9}


class Disagreement(Exception):
    """An operation whose result is not the reference's."""


class Checker:
    """Compares the layers of one case with their references, which run once each, in float64."""

    def __init__(self, case: Case, inputs: Inputs) -> None:
        self.case, self.inputs = case, inputs
        self._references: dict[object, Gradients] = {}

    def errors(self, candidate: Candidate) -> dict[str, float]:
        """The relative error of the output and of each gradient.

        Raises ``Disagreement`` where one is too large.
        """
        found = training_step(candidate.layer(self.case), self.inputs, candidate.checked_in)()
        errors = {
            name: relative_error(value, expected)
            for name, value, expected in zip(
                Gradients._fields, found, self._reference(candidate), strict=True
            )
        }
        limit = TOLERANCE[candidate.checked_in]
        wrong = [f"{name} {error:.1e}" for name, error in errors.items() if not error <= limit]
        if wrong:
            raise Disagreement(
                f"{candidate.name} at {self.case} disagrees with the plain algorithm in float64: "
                f"relative error of {', '.join(wrong)}; at most {limit:g} is allowed. "
                "Nothing was timed."
            )
        return errors

    def _reference(self, candidate: Candidate) -> Gradients:
        key = candidate.reference
        if key not in self._references:
            layer = candidate.reference(self.case)
            self._references[key] = training_step(layer, self.inputs, torch.float64)()
        return self._references[key]


def relative_error(value: torch.Tensor, expected: torch.Tensor) -> float:
    """‖value − expected‖/‖expected‖; NaN where either has one, which no limit admits."""
    return ((value.double() - expected).norm() / expected.norm()).item()
