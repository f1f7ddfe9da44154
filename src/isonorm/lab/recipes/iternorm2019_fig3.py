"""IterNorm Figure 3: an MLP on MNIST, with full batches and with batches of two."""

from __future__ import annotations

from dataclasses import replace

from ..plan import Plan
from ..recipe import Claim, Configuration, Quick, Recipe, Search
from .common import BN, DBN_ALL, HIDDEN, ITERNORM_ALL, OPEN, PLAIN

FULL = Plan(epochs=200, batch_size=None, lr=1.0, mean="channel")
PAIRS = replace(FULL, epochs=2, batch_size=2, lr=0.05)

NORMS = {"plain": PLAIN, "BN": BN, "DBN": DBN_ALL, "IterNorm": ITERNORM_ALL}
RATES = {"full batch": (0.2, 0.5, 1, 2, 5), "batch 2": (0.005, 0.01, 0.02, 0.05, 0.1)}

RECIPE = Recipe(
    paper="iternorm2019",
    figure="fig3",
    title="4-layer MLP on MNIST, full batch and batch size 2",
    data="mnist",
    configurations=tuple(
        Configuration(
            f"{name}, {batches}",
            "mlp",
            plan,
            norm=norm,
            options=HIDDEN,
            search=Search({"lr": RATES[batches]}),
        )
        for batches, plan in (("full batch", FULL), ("batch 2", PAIRS))
        for name, norm in NORMS.items()
    ),
    claims=(
        *(
            Claim(
                "With full batches all normalizations significantly improve the performance "
                "(Section 4.2).",
                f"{name}, full batch",
                "plain, full batch",
                "train_loss",
            )
            for name in ("BN", "DBN", "IterNorm")
        ),
        Claim(
            "Full whitening still underperforms the approximate whitening of IterNorm in training "
            "efficiency (Section 4.2).",
            "IterNorm, full batch",
            "DBN, full batch",
            "average_train_loss",
        ),
        Claim(
            "DBN has diminished test performance (Section 4.2).",
            "IterNorm, full batch",
            "DBN, full batch",
        ),
        Claim(
            "With batches of 2, BN can hardly learn and produces random results (Section 4.3).",
            0.8,
            "BN, batch 2",
            "train_error",
        ),
        Claim(
            "With batches of 2, the network without normalization learns well (Section 4.3).",
            "plain, batch 2",
            0.1,
            "train_error",
        ),
    ),
    choices=(
        "The paper does not say how many iterations: 200 full batches, 2 epochs of pairs.",
        "It does not say how MNIST is preprocessed: pixels in [0, 1] minus their mean, as in DBN's "
        "published code. Torch's initialization of linear layers.",
        "DBN and IterNorm whiten all 100 neurons together. DBN keeps γ and β, as IterNorm does.",
        "The learning rate is chosen by the training loss of the last epoch, with the first seed.",
        "The section is on optimization: random results are a training error of 80 % or more, "
        "learning well one below 10 %.",
        OPEN,
    ),
    quick=Quick(width=0.2, epochs=1, batch_size=2, train_images=24, test_images=16),
)
