from __future__ import annotations

import pytest

from isonorm.lab.claims import judge, measure
from isonorm.lab.recipe import Claim


@pytest.fixture
def found(make_result):
    nan = float("nan")
    return {
        "good": [make_result([1.0, 0.1], [0.5, error]) for error in (0.10, 0.12)],
        "bad": [make_result([1.0, 0.2], [0.6, error]) for error in (0.20, 0.22)],
        "noisy": [make_result([1.0, 0.2], [0.6, error]) for error in (0.02, 0.22)],
        "lost": [make_result([9.0, nan], [0.9, 0.9])],
        "alone": [make_result([1.0, 0.2], [0.6, 0.15])],
    }


@pytest.mark.parametrize(
    ("lower", "higher", "answer"),
    [
        ("good", "bad", "holds"),
        ("bad", "good", "fails"),
        ("good", "noisy", "undecided"),  # they differ by less than the standard error
        ("good", "lost", "holds"),  # what diverged is worse than anything
        ("lost", "lost", "undecided"),
        ("alone", "bad", "holds"),  # one seed: the other side's spread alone
        ("good", 0.3, "holds"),
        (0.3, "good", "fails"),
        ("good", "absent", "not measured"),
    ],
)
def test_claims_are_judged_by_means_and_their_errors(found, lower, higher, answer):
    assert judge(Claim("of the paper", lower, higher), found).answer == answer


def test_a_margin_makes_room(found):
    assert judge(Claim("about the same", "bad", "good", margin=0.05), found).answer == "fails"
    assert judge(Claim("about the same", "bad", "good", margin=0.15), found).answer == "holds"


def test_medians_do_not_mind_a_seed_that_diverged(found, make_result):
    lost = make_result([9.0, float("nan")], [0.9, 0.9])
    found["mostly good"] = [*found["good"], *found["good"], lost]
    claim = Claim("Better.", "mostly good", "bad")
    assert judge(claim, found).answer == "fails"
    verdict = judge(claim, found, "median")
    assert str(verdict) == (
        "holds: Better. (mostly good 12%, the median against bad 21%, the median)"
    )
    assert judge(Claim("The same.", "good", "good"), found, "median").answer == "undecided"


def test_the_evidence_is_in_the_papers_units(found):
    verdict = judge(Claim("Better.", "good", "bad"), found)
    assert str(verdict) == "holds: Better. (good 11 ± 1.4% against bad 21 ± 1.4%)"


def test_the_evidence_says_where_there_is_one_seed(found):
    verdict = judge(Claim("Better.", "alone", "lost"), found, "median")
    assert str(verdict) == "holds: Better. (alone 15% against lost inf%, one seed)"
    assert judge(Claim("Better.", "alone", 0.3), found).evidence.endswith("30%, one seed")
    assert "one seed" not in judge(Claim("Better.", "alone", "bad"), found).evidence


def test_measures_follow_their_definitions(make_result):
    losses = [4.0] * 5 + [2.0] * 15
    result = make_result(losses, [0.8, 0.6] + [0.1] * 18)
    assert measure("train_loss", result) == 2.0
    assert measure("average_train_loss", result) == 2.5
    assert measure("early_test_error", result) == pytest.approx(0.7)  # a tenth: two epochs
    assert measure("seconds_per_epoch", result) == pytest.approx(1.05)  # the median of 0.1 … 2.0
