"""Naive re-implementations, limits and monotonicity."""

import itertools
import math
import time

import numpy as np
import pytest
from scipy import stats

from jaxunlearn._validate import InputError
from jaxunlearn.audit import _tails, bounds, design
from jaxunlearn.audit import least_favourable as lf

ZETA = 0.05


def cap(alpha, epsilon, delta):
    return min(1.0, math.exp(epsilon) * alpha + delta, 1 - math.exp(-epsilon) * (1 - alpha - delta))


def smallest_accepted(tail, zeta, high=30.0):
    """Bisection on a plain tail function."""
    low = 0.0
    if tail(0.0) > zeta:
        return 0.0
    for _ in range(80):
        mid = (low + high) / 2
        low, high = (mid, high) if tail(mid) <= zeta else (low, mid)
    return low


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 12.0])
def test_cap_matches_its_definition_and_its_inverse(epsilon, delta):
    for alpha in np.concatenate([np.logspace(-12, -0.01, 40), [1.0]]):
        expected = cap(alpha, epsilon, delta)
        assert math.exp(float(_tails.log_cap(math.log(alpha), epsilon, delta))) == pytest.approx(expected, rel=1e-9)
        if delta < expected < 1 - 1e-9 and alpha + delta < 1:
            back = _tails.invert_cap(math.log(expected), math.log1p(-expected), math.log(alpha), delta)
            assert back == pytest.approx(epsilon, abs=1e-5)


def test_cap_does_not_cancel_for_tiny_events():
    assert float(_tails.log_cap(-200.0, 0.0, 0.0)) == pytest.approx(-200.0)
    assert float(_tails.log_cap(-200.0, 150.0, 0.0)) == pytest.approx(-50.0)


@pytest.mark.parametrize(("m", "r"), [(2, 2), (5, 4), (5, 5), (6, 2), (6, 4), (7, 6), (8, 8), (9, 9), (11, 4)])
def test_overlap_counts_by_enumeration(m, r):
    vectors = design.sign_vectors(m)
    guess = design.guess(np.random.default_rng(m).normal(size=m), r)
    overlap = ((vectors * guess) > 0).sum(axis=1)
    counts = np.bincount(overlap, minlength=r + 1)
    np.testing.assert_allclose(np.exp(design.log_overlap_counts(m, r)), counts, rtol=1e-10)
    tail = counts[::-1].cumsum()[::-1] / counts.sum()
    np.testing.assert_allclose(np.exp(design.log_overlap_tail(m, r)), tail, rtol=1e-10)


@pytest.mark.parametrize("delta", [0.0, 0.003, 0.05])
@pytest.mark.parametrize(("m", "r", "runs"), [(6, 4, 3), (10, 6, 4), (20, 10, 5)])
def test_overlap_bound_by_plain_convolution(m, r, runs, delta):
    a = np.append(np.exp(design.log_overlap_tail(m, r)), 0.0)

    def tail(total):
        def at(epsilon):
            t = np.array([1.0] + [cap(x, epsilon, delta) for x in a[1:-1]] + [0.0])
            pmf, law = t[:-1] - t[1:], np.ones(1)
            for _ in range(runs):
                law = np.convolve(law, pmf)
            return law[total:].sum()

        return at

    for total in (r * runs // 2, r * runs * 3 // 4, r * runs - 1, r * runs):
        overlaps = np.full(runs, total // runs)
        overlaps[: total % runs] += 1
        expected = smallest_accepted(tail(total), ZETA)
        assert bounds.overlap(overlaps, m=m, r=r, zeta=ZETA, delta=delta).epsilon == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("m", "r", "value"), [(6, 6, 5.0), (20, 10, 8.0), (100, 60, 40.0)])
def test_paper_mean_by_brute_force_over_lambda(m, r, value):
    runs, counts, u = 10, np.exp(design.log_overlap_counts(m, r)), np.arange(r + 1)
    support = design.support(m)
    rates = np.linspace(0, 10, 200_001)

    def tail(epsilon):
        pi = counts * math.exp(epsilon) / (math.exp(epsilon) + support - 1)
        coarse = rates[::200]
        exponents = np.log(np.exp(np.outer(coarse, u)) @ pi) - coarse * value
        best = coarse[np.argmin(exponents)]
        fine = rates[np.abs(rates - best) < 0.05]
        return math.exp(runs * (np.log(np.exp(np.outer(fine, u)) @ pi) - fine * value).min())

    overlaps = np.full(runs, int(value))
    expected = smallest_accepted(tail, ZETA, high=60.0)
    assert bounds.paper_mean(overlaps, m=m, r=r, zeta=ZETA).epsilon_ldp == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_lattice_by_exhaustion(delta):
    support, runs = 6, 4
    score = np.floor(np.log(support / np.arange(1, support + 1)) / 1e-3)
    outcomes = np.array(list(itertools.product(range(support), repeat=runs)))
    totals = score[outcomes].sum(axis=1)
    for ranks in ([1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 2, 3], [1, 1, 1, 6], [2, 2, 2, 2], [6, 6, 6, 6]):
        observed = score[np.array(ranks) - 1].sum()

        def tail(epsilon, observed=observed):
            t = [0.0] + [cap(k / support, epsilon, delta) for k in range(1, support)] + [1.0]
            return np.diff(t)[outcomes].prod(axis=1)[totals >= observed].sum()

        expected = smallest_accepted(tail, ZETA)
        got = bounds.lattice(ranks, support=support, zeta=ZETA, delta=delta).epsilon
        assert got == pytest.approx(expected, abs=1e-6)


def test_lattice_of_two_is_the_binomial_limit():
    for k in range(11):
        ranks = [1] * k + [2] * (10 - k)
        t = stats.beta.ppf(ZETA, k, 11 - k) if k else 0.0
        expected = max(0.0, math.log(t / (1 - t))) if k else 0.0
        got = bounds.lattice(ranks, support=2, zeta=ZETA).epsilon
        # T(1/2) >= t needs e^eps / 2 >= t and 1 - e^-eps / 2 >= t
        exact = max(0.0, math.log(2 * t), -math.log(2 * (1 - t))) if k else 0.0
        assert got == pytest.approx(exact, abs=1e-9)
        assert got <= max(expected, exact) + 1e-12


def test_gamma_mixture_tail_by_simulation():
    rng = np.random.default_rng(0)
    for epsilon, n, x in ((0.5, 4, 7.0), (3.0, 10, 38.0), (0.0, 3, 5.0)):
        alpha = lf.null_levels(rng, (400_000, n), epsilon=epsilon, delta=0.0)
        rate = (-np.log(alpha).sum(axis=1) >= x).mean()
        assert _tails.gamma_mixture_tail(n, x, epsilon) == pytest.approx(rate, abs=4 * math.sqrt(0.25 / 400_000))


def test_lattice_pmf_is_a_distribution():
    for m, r in ((6, 6), (100, 60), (4500, 300)):
        for epsilon, delta in ((0.0, 0.0), (1.0, 0.01), (60.0, 1e-5), (2000.0, 0.0)):
            mass = np.exp(_tails.lattice_pmf(design.log_overlap_tail(m, r)[::-1], epsilon, delta))
            assert mass.sum() == pytest.approx(1.0, abs=1e-9)
            assert (mass >= 0).all()


def test_count_is_the_binomial_bound():
    log_p = np.log([0.001, 0.004, 0.009, 0.02, 0.5])
    bound = bounds.count(log_p, alpha=0.01, zeta=ZETA, delta=0.001)
    t = stats.beta.ppf(ZETA, 3, 3)
    assert bound.detail["count"] == 3
    assert bound.epsilon == pytest.approx(math.log((t - 0.001) / 0.01), abs=1e-6)
    assert bounds.count(np.log([0.01] * 5), alpha=0.01, zeta=ZETA).detail["count"] == 5  # equality counts
    assert bounds.overlap_count([5, 6, 6], m=6, r=6, v=6, zeta=ZETA).detail["count"] == 2


def test_e_process_mixture_by_quadrature():
    kappa = (np.arange(200_000) + 0.5) / 200_000
    for total, runs in ((0.0, 1), (0.7, 3), (4.0, 3), (30.0, 5), (9.0, 40)):
        exact = math.log(np.mean(kappa**runs * np.exp(total * (1 - kappa))))
        assert _tails.log_beta_mixture(total, runs) == pytest.approx(exact, abs=1e-5)


def test_e_process_path():
    log_p = np.array([-30.0, -25.0, -0.1, -28.0])
    bound = bounds.e_process(log_p, m=100, zeta=ZETA)
    path = np.array(bound.path)
    assert (np.diff(path) >= 0).all() and bound.epsilon == path[-1] <= bound.ceiling
    assert path[0] == bounds.e_process(log_p[:1], m=100, zeta=ZETA).epsilon > 20
    assert bounds.e_process([0.0, 0.0], m=100, zeta=ZETA).epsilon == 0.0


def test_e_process_at_its_extremes():
    floor = -design.log_support(100)
    for runs in (1, 2, 5000):
        assert bounds.e_process(np.zeros(runs), m=100, zeta=ZETA).epsilon == 0.0  # p = 1 always
    one = bounds.e_process([floor], m=100, zeta=ZETA)
    # One run: the mean of kappa e^{A(1 - kappa)} is (e^A - 1 - A) / A^2, and A = -log p - epsilon.
    a = -floor - one.epsilon
    assert (math.exp(a) - 1 - a) / a**2 == pytest.approx(1 / ZETA, rel=1e-7)
    assert one.epsilon == one.ceiling and one.path == (one.epsilon,)
    for broken in (-np.inf, np.nan, 0.1, floor - 1.0):
        with pytest.raises(InputError, match="log_p_values"):
            bounds.e_process([-1.0, broken], m=100, zeta=ZETA)
    huge = -design.log_support(100_000)
    assert -huge - 10 < bounds.e_process([huge], m=100_000, zeta=ZETA).epsilon < -huge
    assert bounds.e_process([-1e-300], m=100, zeta=ZETA).epsilon == 0.0


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3, 0.01, 0.05, 0.5, 0.999])
def test_e_process_with_delta(delta):
    """Perfect runs: q = delta + ... never falls below delta, so one run may show nothing and many show most."""
    bound = bounds.e_process(np.full(60, -design.log_support(100)), m=100, zeta=ZETA, delta=delta)
    path = np.array(bound.path)
    assert np.isfinite(path).all() and (np.diff(path) >= 0).all() and 0 <= bound.epsilon <= bound.ceiling
    assert (path[-1] > 60) == (delta <= 0.05) and (path[0] > 0) == (delta <= 1e-3)
    for n in (1, 7):
        few = bounds.e_process(np.full(n, -1.0), m=100, zeta=ZETA, delta=delta)
        assert few.ceiling == pytest.approx(path[n - 1], abs=1e-7)  # ceilings grow with the runs
    if bound.epsilon > 0:
        for near, rejected in ((-1e-6, True), (1e-6, False)):
            q = np.minimum(1.0, np.exp(bound.epsilon + near - design.log_support(100)) + delta)
            log_e = _tails.log_beta_mixture(-60 * math.log(q), 60)
            assert (log_e >= -math.log(ZETA)) == rejected


def test_e_process_over_thousands_of_runs():
    """With equal p-values the bound settles at -log p - 1: the mean of an exponential variable is what chance gives."""
    start = time.perf_counter()
    bound = bounds.e_process(np.full(2000, -5.0), m=100, zeta=ZETA)
    assert time.perf_counter() - start < 20  # 0.9 s alone
    assert 3.9 < bound.epsilon < 4.0 and (np.diff(bound.path) >= 0).all()
    rng = np.random.default_rng(0)
    assert bounds.e_process(np.log(rng.random(3000)), m=400, zeta=ZETA).epsilon < 0.2


ALL = {
    "paper_mean": lambda v, zeta=ZETA: bounds.paper_mean(v, m=20, r=10, zeta=zeta).epsilon,
    "paper_median": lambda v, zeta=ZETA: bounds.paper_median(v, m=20, r=10, zeta=zeta).epsilon,
    "overlap": lambda v, zeta=ZETA: bounds.overlap(v, m=20, r=10, zeta=zeta).epsilon,
    "overlap_median": lambda v, zeta=ZETA: bounds.overlap_median(v, m=20, r=10, zeta=zeta).epsilon,
    "overlap_count": lambda v, zeta=ZETA: bounds.overlap_count(v, m=20, r=10, v=8, zeta=zeta).epsilon,
    "evidence": lambda v, zeta=ZETA: bounds.evidence(-np.array(v), m=20, zeta=zeta).epsilon,
    "count": lambda v, zeta=ZETA: bounds.count(-np.array(v), alpha=1e-3, zeta=zeta).epsilon,
    "e_process": lambda v, zeta=ZETA: bounds.e_process(-np.array(v), m=20, zeta=zeta).epsilon,
    "lattice": lambda v, zeta=ZETA: bounds.lattice(21 - 2 * np.array(v), support=21, zeta=zeta).epsilon,
}


@pytest.mark.parametrize("name", ALL)
def test_more_evidence_never_lowers_a_bound_and_a_stricter_level_never_raises_it(name):
    rng = np.random.default_rng(3)
    for _ in range(6):
        values = rng.integers(4, 11, size=8)
        more = np.minimum(values + rng.integers(0, 2, size=8), 10)
        base = ALL[name](values)
        assert math.isfinite(base) and base >= 0
        assert ALL[name](more) >= base - 1e-8
        assert ALL[name](values, zeta=0.01) <= base + 1e-8
        assert ALL[name](values[::-1].copy()) == pytest.approx(base, abs=1e-7) or name == "e_process"
    assert ALL[name](np.full(8, 0)) == 0.0


def test_bounds_fall_with_delta():
    v, log_p = [9, 10, 10, 8, 10, 9], -np.linspace(5, 11, 6)
    for f in (
        lambda d: bounds.overlap(v, m=20, r=10, zeta=ZETA, delta=d).epsilon,
        lambda d: bounds.overlap_count(v, m=20, r=10, v=9, zeta=ZETA, delta=d).epsilon,
        lambda d: bounds.evidence(log_p, m=20, zeta=ZETA, delta=d).epsilon,
        lambda d: bounds.lattice([1, 1, 1, 2, 1, 1], support=20, zeta=ZETA, delta=d).epsilon,
        lambda d: bounds.e_process(log_p, m=20, zeta=ZETA, delta=d).epsilon,
        lambda d: bounds.clopper_pearson(50, 50, 1, 50, zeta=ZETA, delta=d).epsilon,
        lambda d: bounds.clopper_pearson(50, 50, 1, 50, zeta=ZETA, delta=d, halve=False).epsilon,
    ):
        values = [f(d) for d in (0.0, 1e-6, 1e-3, 0.01, 0.1, 0.6, 0.99)]
        assert all(a >= b - 1e-8 for a, b in itertools.pairwise(values))
        assert values[0] == pytest.approx(values[1], abs=0.05) and values[-1] == 0.0


def test_trimming_is_the_full_sum_at_small_delta():
    log_p = -np.linspace(20, 40, 10)
    whole = bounds.evidence(log_p, m=100, zeta=ZETA)
    assert bounds.evidence(log_p, m=100, zeta=ZETA, delta=1e-9).epsilon == pytest.approx(whole.epsilon, abs=1e-4)
    assert bounds.evidence(log_p, m=100, zeta=ZETA, delta=0.05).detail["left_out"] == 2 + (
        stats.binom.sf(2, 10, 0.05) > ZETA / 5
    )


def test_evidence_with_many_runs_and_two_batches():
    rng = np.random.default_rng(0)
    right = rng.random(100_000) < 0.9
    lattice = bounds.lattice(np.where(right, 1, 2), support=2, zeta=ZETA)
    assert 1.58 < lattice.epsilon < -math.log(2 * 0.1) + 0.02


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bounds.overlap([3], m=6, r=3, zeta=ZETA), "r=3"),
        (lambda: bounds.overlap([3], m=6, r=8, zeta=ZETA), "r=8"),
        (lambda: bounds.overlap([], m=6, r=4, zeta=ZETA), "at least one"),
        (lambda: bounds.overlap([2.5], m=6, r=4, zeta=ZETA), "integers"),
        (lambda: bounds.overlap([5], m=6, r=4, zeta=ZETA), "within 0..4"),
        (lambda: bounds.overlap([2], m=6, r=4, zeta=0.0), "zeta=0.0"),
        (lambda: bounds.overlap([2], m=6, r=4, zeta=ZETA, delta=1.0), "delta=1.0"),
        (lambda: bounds.paper_mean([np.nan], m=6, r=4, zeta=ZETA), "integers"),
        (lambda: bounds.paper_median([2], m=6, r=4, zeta=1.5), "zeta=1.5"),
        (lambda: bounds.evidence([0.1], m=6, zeta=ZETA), "<= 0"),
        (lambda: bounds.evidence([-np.inf], m=6, zeta=ZETA), "finite"),
        (lambda: bounds.evidence([-4.0], m=6, zeta=ZETA), "log |S_m|"),
        (lambda: bounds.lattice([0], support=20, zeta=ZETA), "1..20"),
        (lambda: bounds.lattice([21], support=20, zeta=ZETA), "1..20"),
        (lambda: bounds.count([-1.0], alpha=0.0, zeta=ZETA), "alpha=0.0"),
        (lambda: bounds.clopper_pearson(6, 5, 0, 5, zeta=ZETA), "true_positives=6"),
        (lambda: bounds.clopper_pearson(0, 0, 0, 5, zeta=ZETA), "positives=0"),
    ],
)
def test_refusals_name_the_argument(call, words):
    with pytest.raises(InputError) as error:
        call()
    assert words in str(error.value) and "\n" not in str(error.value)
