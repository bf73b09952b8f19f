"""The bound of Definition H.1 from fair labels: closed forms, and exact type-I error at the extreme pair of laws."""

import math

import numpy as np
import pytest
from scipy import stats

from jaxunlearn._validate import InputError
from jaxunlearn.audit import bounds

ZETA = 0.05


def extreme(epsilon, delta):
    """Pr[correct] of the best guess between two (epsilon, delta)-indistinguishable laws as far apart as can be."""
    return (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.0), (0.3, 0.0), (3.0, 1e-3), (0.0, 0.05), (1.0, 0.05), (4.0, 0.05)]
)
@pytest.mark.parametrize("runs", [1, 20, 400])
def test_type_one_error_exactly(runs, epsilon, delta):
    """No simulation: the probability of every count, times whether the bound exceeds epsilon."""
    exceeds = [bounds.fair_labels(k, runs, zeta=ZETA, delta=delta).epsilon > epsilon + 1e-12 for k in range(runs + 1)]
    rate = stats.binom.pmf(np.arange(runs + 1), runs, extreme(epsilon, delta)) @ exceeds
    assert rate <= ZETA + 1e-9
    if runs == 400 and delta < 1e-2:
        assert rate > 0.02  # sharp up to the steps of the binomial


def test_type_one_error_with_real_laws_and_coins():
    """Randomised response with a revealing symbol: P = (delta, ...), Q = the mirror image."""
    rng, epsilon, delta, runs = np.random.default_rng(0), 0.7, 0.05, 60
    p = np.array([delta, (1 - delta) * math.exp(epsilon), 1 - delta, 0.0]) / np.array(
        [1, 1 + math.exp(epsilon), 1 + math.exp(epsilon), 1]
    )
    q = p[::-1]
    excess = np.maximum(p - math.exp(epsilon) * q, 0).sum()
    assert excess == pytest.approx(delta)
    exceeded = 0
    for _ in range(2000):
        labels = rng.random(runs) < 0.5
        symbols = np.where(labels, rng.choice(4, runs, p=p), rng.choice(4, runs, p=q))
        correct = int(((symbols < 2) == labels).sum())
        exceeded += bounds.fair_labels(correct, runs, zeta=ZETA, delta=delta).epsilon > epsilon
    assert exceeded / 2000 <= ZETA + 4 * math.sqrt(ZETA / 2000)


def test_ignoring_delta_is_not_an_option():
    k = np.arange(401)
    wrong = [bounds.fair_labels(int(i), 400, zeta=ZETA).epsilon > 0.5 for i in k]
    assert stats.binom.pmf(k, 400, extreme(0.5, 0.2)) @ wrong > 0.5


def test_closed_forms():
    t = stats.beta.ppf(ZETA, 70, 31)
    assert bounds.fair_labels(70, 100, zeta=ZETA).epsilon == pytest.approx(math.log(t / (1 - t)), rel=1e-12)
    assert bounds.fair_labels(70, 100, zeta=ZETA, delta=0.01).epsilon == pytest.approx(math.log((t - 0.01) / (1 - t)))
    perfect = bounds.fair_labels(200_000, 200_000, zeta=ZETA)
    t = ZETA ** (1 / 200_000)
    assert (
        perfect.epsilon
        == perfect.ceiling
        == pytest.approx(math.log(t) - math.log1p(-t))
        == pytest.approx(11.1089, abs=1e-4)
    )
    assert bounds.fair_labels(0, 10, zeta=ZETA).epsilon == 0
    assert bounds.fair_labels(1, 1, zeta=ZETA, delta=0.2).ceiling == 0
    # At delta = 0 the paper's mean bound for m = r = 2, before halving, asks the same question with Chernoff's bound.
    overlaps = np.repeat([2, 0], [700, 300])
    assert (
        0
        < bounds.paper_mean(overlaps, m=2, r=2, zeta=ZETA).epsilon_ldp
        < bounds.fair_labels(700, 1000, zeta=ZETA).epsilon
    )


def test_it_beats_two_limits_at_the_golden_size():
    pairwise = bounds.clopper_pearson(100_000, 100_000, 0, 100_000, zeta=ZETA, halve=False)
    assert pairwise.epsilon == pytest.approx(10.2076, abs=5e-5)
    at_delta = bounds.clopper_pearson(100_000, 100_000, 0, 100_000, zeta=ZETA, delta=0.01, halve=False)
    assert at_delta.epsilon == pytest.approx(10.1975, abs=5e-5)
    fair = bounds.fair_labels(200_000, 200_000, zeta=ZETA, delta=0.01)
    assert (
        at_delta.epsilon + 0.8
        < fair.epsilon
        == pytest.approx(math.log((ZETA ** (1 / 200_000) - 0.01) / -math.expm1(math.log(ZETA) / 200_000)))
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((5, 4), "correct=5"), ((-1, 4), "correct=-1"), ((0, 0), "runs=0"), ((1.5, 4), "correct=1.5")],
)
def test_refusals(arguments, named):
    with pytest.raises(InputError, match=named):
        bounds.fair_labels(*arguments, zeta=ZETA)
    with pytest.raises(InputError, match="delta=1.0"):
        bounds.fair_labels(1, 2, zeta=ZETA, delta=1.0)
