"""DBN Figure 3: conditioning and speed of MLPs on Yale-B."""

from __future__ import annotations

from collections.abc import Mapping

from ..plan import Plan
from ..recipe import Claim, Configuration, Quick, Recipe, Search
from .common import BN, DBN_ALL, LN, OPEN, PLAIN, SEARCHED

NORMS = {"plain": PLAIN, "LN": LN, "BN": BN, "DBN": DBN_ALL}
PLAN = Plan(epochs=3000, batch_size=None, lr=1.0, mean="pixel", condition_every=100)
RATES = (0.1, 0.2, 0.5, 1, 2)
NATURAL = {"lr": RATES, "eps": (0.001, 0.01, 0.1, 1), "interval": (20, 50, 100, 200, 500)}
NATURAL_CHOICES = (
    "NNN (Desjardins et al. 2015) renew their coordinates from the batch at hand, and those of the "
    "input, too. ZCA: with steps of plain SGD a rotation of the coordinates changes nothing.",
)


def mlps(norms: Mapping[str, str], plan: Plan, hidden: tuple[int, ...]) -> list[Configuration]:
    """With these norms, and of Natural Neural Networks, over the grids of the paper."""
    options = {"hidden": hidden}
    search = Search({"lr": RATES})
    normalized = [
        Configuration(name, "mlp", plan, norm=norm, options=options, search=search)
        for name, norm in norms.items()
    ]
    natural = Configuration("NNN", "mlp_natural", plan, options=options, search=Search(NATURAL))
    return [*normalized, natural]


RECIPE = Recipe(
    paper="dbn2018",
    figure="fig3",
    title="Conditioning of a 5-layer MLP on Yale-B, full batch",
    data="yaleb",
    seeds=5,
    spread="median",
    revised="2026-11-16T15:00+00:00",  # conditioning in training mode; before, in eval
    configurations=tuple(mlps(NORMS, PLAN, hidden=(128, 64, 48, 48))),
    claims=(
        *(
            Claim(f"{name} converges faster than 'plain'.", name, "plain", "average_train_loss")
            for name in ("NNN", "LN", "BN", "DBN")
        ),
        *(
            Claim(
                f"{name} achieves better conditioning than 'plain'.",
                name,
                "plain",
                "condition_number",
            )
            for name in ("NNN", "LN", "BN", "DBN")
        ),
        *(
            Claim(
                f"DBN achieves the best conditioning: better than {name}.",
                "DBN",
                name,
                "condition_number",
            )
            for name in ("NNN", "LN", "BN")
        ),
        *(
            Claim(
                f"DBN speeds up convergence significantly: against {name}.",
                "DBN",
                name,
                "average_train_loss",
            )
            for name in ("NNN", "LN", "BN")
        ),
    ),
    choices=(
        "The paper does not say how many updates; its published script has 3000.",
        "A quarter of the images, every person in proportion, is for testing; the paper does not "
        "say how it divides them, and reports training alone. Its published script trains on 2,033 "
        "of 2,414.",
        "DBN whitens each layer as a whole, as the published script does (128 to a group).",
        "Layers are initialized as torch does, where the paper names LeCun's rule.",
        "The condition number is the largest eigenvalue over the smallest of the classifier's "
        "Fisher information on the training images, normalized as in training, as in the published "
        "code; every 100 updates, its median over them. Medians over seeds: it spans decades.",
        SEARCHED,
        OPEN,
        *NATURAL_CHOICES,
    ),
    quick=Quick(width=0.25, epochs=2, train_images=38, test_images=38),
)
