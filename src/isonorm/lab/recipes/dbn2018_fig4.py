"""DBN Figure 4: group sizes of DBN, and DBN beside others, in an MLP on PIE."""

from __future__ import annotations

from ..plan import Plan
from ..recipe import Claim, Quick, Recipe
from .common import BN, LN, OPEN, PLAIN, SEARCHED
from .dbn2018_fig3 import NATURAL_CHOICES, mlps

GROUPS = (1, 8, 16, 32, 64, 128)
NORMS = {
    "plain": PLAIN,
    "LN": LN,
    "BN": BN,
    **{f"G{g}": f"dbn:group_size={g}:affine=False:running=whitening" for g in GROUPS},
}
PLAN = Plan(epochs=100, batch_size=256, lr=1.0, mean="pixel")

RECIPE = Recipe(
    paper="dbn2018",
    figure="fig4",
    title="Group size of DBN in a 6-layer MLP on PIE",
    data="pie",
    seeds=5,
    spread="median",
    configurations=tuple(mlps(NORMS, PLAN, hidden=(128,) * 5)),
    claims=(
        *(
            Claim(
                "The largest (G128) and smallest group sizes (G1) both have noticeably slower "
                f"convergence than intermediate ones: G16 against {worse}.",
                "G16",
                worse,
                "average_train_loss",
            )
            for worse in ("G1", "G128")
        ),
        *(
            Claim(
                f"DBN with groups of 16 converges significantly faster than {worse}.",
                "G16",
                worse,
                "average_train_loss",
            )
            for worse in ("plain", "NNN", "LN", "BN")
        ),
    ),
    choices=(
        "The paper does not say how many epochs; its published script has 100.",
        "A quarter of the images, every person in proportion, is for testing; the paper does not "
        "say how it divides them, and reports training alone.",
        "DBN has no γ and β: the paper says so of G1. BN and LN have them.",
        "Against epochs; the paper's (b) is against wall-clock time of its CPU implementation.",
        "Torch's initialization, where the paper names LeCun's. Medians over seeds.",
        SEARCHED,
        OPEN,
        *NATURAL_CHOICES,
    ),
    quick=Quick(width=0.125, epochs=1, batch_size=34, train_images=68, test_images=68),
)
