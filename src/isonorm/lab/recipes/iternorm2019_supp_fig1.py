"""IterNorm, supplement, Figure 1: the number of iterations on the MLP for MNIST."""

from __future__ import annotations

from ..recipe import Claim, Configuration, Quick, Recipe, Search
from .common import BN, DBN_ALL, HIDDEN
from .iternorm2019_fig3 import FULL, RATES

ITERATIONS = (1, 3, 5, 7, 9)
NORMS = {
    "BN": BN,
    "DBN": DBN_ALL,
    **{f"T = {t}": f"iternorm:group_size=None:num_iters={t}:running=whitening" for t in ITERATIONS},
}

RECIPE = Recipe(
    paper="iternorm2019",
    figure="supp-fig1",
    title="4-layer MLP on MNIST, full batch: IterNorm's iterations T",
    data="mnist",
    configurations=tuple(
        Configuration(
            name,
            "mlp",
            FULL,
            norm=norm,
            options=HIDDEN,
            search=Search({"lr": RATES["full batch"]}),
        )
        for name, norm in NORMS.items()
    ),
    claims=(
        *(
            Claim(
                "The smallest (T = 1) and the largest (T = 9) iteration number both have worse "
                f"training efficiency: T = 5 against T = {t}.",
                "T = 5",
                f"T = {t}",
                "average_train_loss",
            )
            for t in (1, 9)
        ),
        Claim("When T = 9, IterNorm has significantly worse test performance.", "T = 5", "T = 9"),
    ),
    choices=("As iternorm2019-fig3 with full batches.",),
    quick=Quick(width=0.2, epochs=1, batch_size=24, train_images=24, test_images=16),
)
