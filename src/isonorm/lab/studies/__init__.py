"""Studies: what the analysis shows, at the papers' sizes, with what it must show as claims."""

from __future__ import annotations

from . import disturbance, pictures
from .study import Claim as Claim
from .study import Study as Study

_STUDIES = (
    Study(
        "iternorm2019-fig2",
        "One sample's disturbance by BatchNorm, at two batch sizes",
        disturbance.run_cloud, disturbance.claims_of_cloud, pictures.draw_cloud,
    ),
    Study(
        "iternorm2019-fig4",
        "Conditioning and disturbance against the dimension",
        disturbance.run_dimensions, disturbance.claims_of_dimensions, pictures.draw_dimensions,
    ),
    Study(
        "iternorm2019-fig5",
        "Disturbance against the batch size, and in batches of two",
        disturbance.run_batches, disturbance.claims_of_batches, pictures.draw_batches,
    ),
    Study(
        "iternorm2019-supplement-fig2",
        "Conditioning and disturbance for IterNorm's number of steps",
        disturbance.run_steps, disturbance.claims_of_steps, pictures.draw_steps,
    ),
)  # fmt: skip

#: Name → study.
STUDIES: dict[str, Study] = {study.name: study for study in _STUDIES}
