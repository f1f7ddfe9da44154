"""Studies: what the analysis shows, at the papers' sizes, with what it must show as claims."""

from __future__ import annotations

from . import criteria, curvature, disturbance, fisher, illustrations, networks, samples
from . import disturbance_figures as figures
from .study import Claim as Claim
from .study import Study as Study

_STUDIES = (
    Study(
        "iternorm2019-fig1",
        "What BatchNorm, DBN and IterNorm do to two correlated dimensions",
        illustrations.run_plane, illustrations.claims_of_plane, illustrations.draw_plane,
    ),
    Study(
        "iternorm2019-section3.1",
        "How fast IterNorm's steps bring each eigendirection to 1",
        illustrations.run_convergence, illustrations.claims_of_convergence,
        illustrations.draw_convergence,
    ),
    Study(
        "iternorm2019-fig2",
        "One sample's disturbance by BatchNorm, at two batch sizes",
        samples.run_cloud, samples.claims_of_cloud, figures.draw_cloud,
    ),
    Study(
        "iternorm2019-fig4",
        "Conditioning and disturbance against the dimension",
        disturbance.run_dimensions, disturbance.claims_of_dimensions, figures.draw_dimensions,
    ),
    Study(
        "iternorm2019-fig5",
        "Disturbance against the batch size, and in batches of two",
        disturbance.run_batches, disturbance.claims_of_batches, figures.draw_batches,
    ),
    Study(
        "iternorm2019-supplement-fig2",
        "Conditioning and disturbance for IterNorm's number of steps",
        disturbance.run_steps, disturbance.claims_of_steps, figures.draw_steps,
    ),
    Study(
        "snd-batchnorm",
        "BatchNorm's disturbance, estimated and from its formula",
        samples.run_direct, samples.claims_of_direct, figures.draw_direct,
    ),
    Study(
        "dbn2018-fig1",
        "Axes that swap between batches, with PCA and with ZCA whitening",
        illustrations.run_swaps, illustrations.claims_of_swaps, illustrations.draw_swaps,
    ),
    Study(
        "dbn2018-fig3",
        "Condition number of the last layer's Fisher information while an MLP learns",
        fisher.run_last_layer, fisher.claims_of_last_layer, fisher.draw_last_layer,
    ),
    Study(
        "dbn2018-section3.5",
        "Dynamical isometry: singular values of Jacobians at initialization",
        networks.run_isometry, networks.claims_of_isometry, networks.draw_isometry,
    ),
    Study(
        "equinorm2018-fig1",
        "What positive and negative weights contribute, raw and equilibrated",
        illustrations.run_balance, illustrations.claims_of_balance, illustrations.draw_balance,
    ),
    Study(
        "survey2020-criteria",
        "Layer-wise Fisher factors for three initializations, before and during training",
        criteria.run_layers, criteria.claims_of_layers, criteria.draw_layers,
    ),
    Study(
        "survey2020-scales",
        "What scaling all weights does to inputs and gradients",
        networks.run_scales, networks.claims_of_scales, networks.draw_scales,
    ),
    Study(
        "survey2020-hessian",
        "The Hessian's spectrum in training mode, beside the dense matrix",
        curvature.run, curvature.claims, curvature.draw,
    ),
)  # fmt: skip

#: Name → study.
STUDIES: dict[str, Study] = {study.name: study for study in _STUDIES}
