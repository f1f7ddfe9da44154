from __future__ import annotations

import math
from dataclasses import replace

import pytest

from isonorm.lab.claims import MEASURES, judge, measure
from isonorm.lab.measuring.words import Measured
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
    assert judge(claim, found).answer == "undecided"  # a mean does
    verdict = judge(claim, found, "median")
    assert str(verdict) == (
        "holds: Better. (mostly good: 12%, the median against bad: 21%, the median)"
    )
    assert judge(Claim("The same.", "good", "good"), found, "median").answer == "undecided"


@pytest.mark.parametrize("spread", ["mean", "median"])
@pytest.mark.parametrize(
    ("lower", "higher", "answer"),
    [
        ("7 of 10", "bad", "undecided"),
        ("bad", "7 of 10", "undecided"),
        ("4 of 10", "bad", "undecided"),
        ("7 of 10", "7 of 10", "undecided"),
        ("lowest", "7 of 10", "holds"),  # of every pair of seeds
        ("7 of 10", "lowest", "fails"),
        ("good", "0 of 10", "holds"),
        ("0 of 10", "good", "fails"),
    ],
)
def test_where_some_seeds_diverge_and_others_do_not_nothing_is_certain(
    found, make_result, spread, lower, higher, answer
):
    lost = make_result([9.0, math.nan], [0.9, 0.9])
    found["lowest"] = [make_result([1.0, 0.1], [0.5, error]) for error in (0.01, 0.02)]
    for learned in (7, 4, 0):
        found[f"{learned} of 10"] = found["good"][:1] * learned + [lost] * (10 - learned)
    assert judge(Claim("Better.", lower, higher), found, spread).answer == answer


def test_what_is_true_of_every_pair_of_seeds_is_decided_however_wide_the_error(make_result):
    """Numbers over decades, whose quartiles say more of the largest than of the median."""
    losses = {"low": (1, 2, 3), "high": (10, 1e3, 1e6), "touching": (3, 1e3, 1e6), "one": (1,)}
    found = {name: [make_result([v], [0.5]) for v in values] for name, values in losses.items()}

    def answer(lower, higher, margin=0.0):
        claim = Claim("Lower.", lower, higher, "train_loss", margin)
        return judge(claim, found, "median").answer

    assert answer("low", "high") == answer("one", "high") == answer(9.9, "high") == "holds"
    assert answer("high", "low") == answer("high", "one") == answer("high", 9.9) == "fails"
    assert answer("low", "touching") == answer("touching", "low") == "undecided"
    assert answer(10, "high") == "undecided"
    assert answer("high", "low", margin=9.1) == "undecided"  # of 10 and 1 it is true now


def test_only_losses_and_errors_of_a_training_that_diverged_are_infinite(make_result):
    lost = make_result([9.0, math.nan], [0.9, 0.9])
    memory = replace(lost, epochs=tuple(replace(e, peak_bytes=3e6) for e in lost.epochs))
    numbers = {name: measure(name, memory) for name in MEASURES}
    kept = {"seconds_per_step": 0.03, "seconds_per_epoch": 0.15, "peak_bytes": 3e6}
    assert {name: numbers.pop(name) for name in kept} == pytest.approx(kept)
    without = {name for name, number in numbers.items() if math.isnan(number)}
    assert without == {"rise_of_test_loss", "condition_number", "test_seconds"}
    assert all(number == math.inf for name, number in numbers.items() if name not in without)


@pytest.mark.parametrize(
    ("losses", "factor"),
    [
        ([2.0, 0.5, 1.0], 2.0),
        ([2.0, 1.0], 1.0),
        ([2.0, 0.0, 1.0], math.inf),  # float32 has no loss for a few images that are certain
        ([2.0, 0.0], 1.0),
    ],
)
def test_the_rise_of_the_test_loss_is_a_factor(losses, factor, make_result):
    curve = make_result(losses, [0.5] * len(losses))
    tested = (replace(e, test_loss=loss) for e, loss in zip(curve.epochs, losses, strict=True))
    assert measure("rise_of_test_loss", replace(curve, epochs=tuple(tested))) == factor


@pytest.mark.parametrize("spread", ["mean", "median"])
def test_a_training_that_diverged_is_neither_slow_nor_large_nor_overfitting(
    found, make_result, spread
):
    slow = make_result([1.0] * 9, [0.5] * 9)
    found["slow"] = [replace(slow, epochs=slow.epochs[2:])] * 2  # 0.6 s an epoch, the median
    found["partly lost"] = [*found["good"], *found["lost"]]
    verdict = judge(Claim("Faster.", "slow", "lost", "seconds_per_epoch"), found, spread)
    assert verdict.answer == "fails" and "lost: 0.15" in verdict.evidence
    for side in ("lost", "partly lost"):
        for claim in (Claim("More.", "slow", side, "rise_of_test_loss"),
                      Claim("Less.", side, "slow", "rise_of_test_loss")):  # fmt: skip
            verdict = judge(claim, found, spread)
            assert verdict.answer == "undecided" and "nan" not in verdict.evidence


def test_the_evidence_is_in_the_papers_units(found):
    verdict = judge(Claim("Better.", "good", "bad"), found)
    assert str(verdict) == "holds: Better. (good: 11 ± 1.4% against bad: 21 ± 1.4%)"


def test_the_evidence_of_times_has_their_unit(found):
    claim = Claim("Less.", "good", 0.5, "seconds_per_step")
    assert judge(claim, found).evidence == "good: 0.03 ± 0 s against 0.5 s"
    assert judge(claim, found, "median").evidence == "good: 0.03 s, the median against 0.5 s"
    timed = {"a layer": [Measured({"milliseconds": 1.5}, error=0.0)]}
    claim = Claim("Less.", "a layer", 2.0, "milliseconds")
    assert judge(claim, timed).evidence == "a layer: 1.5 ms against 2 ms"


def test_a_spread_of_hundreds_is_a_number_not_a_power(make_result):
    found = {
        name: [make_result([value], [0.5]) for value in values]
        for name, values in {"low": (700.0, 850.0), "high": (1e7, 2e7)}.items()
    }
    verdict = judge(Claim("Lower.", "low", "high", "train_loss"), found)
    assert verdict.evidence == "low: 775 ± 106 against high: 1.5e+07 ± 7.1e+06"


def test_the_evidence_says_where_there_is_one_seed(found):
    verdict = judge(Claim("Better.", "alone", "lost"), found, "median")
    assert str(verdict) == "holds: Better. (alone: 15% against lost: inf%, one seed)"
    assert judge(Claim("Better.", "alone", 0.3), found).evidence.endswith("30%, one seed")
    assert "one seed" not in judge(Claim("Better.", "alone", "bad"), found).evidence


def test_measures_follow_their_definitions(make_result):
    losses = [4.0] * 5 + [2.0] * 15
    result = make_result(losses, [0.8, 0.6] + [0.1] * 18)
    assert measure("train_loss", result) == 2.0
    assert measure("average_train_loss", result) == 2.5
    assert measure("early_test_error", result) == pytest.approx(0.7)  # a tenth: two epochs
    assert measure("seconds_per_epoch", result) == pytest.approx(1.05)  # the median of 0.1 … 2.0
