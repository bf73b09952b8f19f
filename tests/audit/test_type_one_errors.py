"""How often a bound exceeds the true epsilon at the least favourable mechanism: at most zeta, near it where sharp."""

import functools
import itertools
import math

import numpy as np
import pytest
from rejections import critical, with_total
from scipy import stats

from jaxunlearn._validate import InputError
from jaxunlearn.audit import _tails, bounds, design, headline, null, preregistration
from jaxunlearn.audit import least_favourable as lf

ZETA = 0.05
DRAWS = 100_000
NOISE = 4 * math.sqrt(ZETA * (1 - ZETA) / DRAWS)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.0), (0.5, 0.0), (2.0, 1e-3), (4.0, 0.05), (1.0, 0.05), (8.0, 0.0)]
)
@pytest.mark.parametrize(("m", "r", "runs"), [(6, 4, 10), (20, 10, 5), (100, 60, 10)])
def test_overlap_bounds(m, r, runs, epsilon, delta):
    rng = np.random.default_rng([m, r, runs, int(10 * epsilon)])
    overlaps = lf.draw_overlaps(rng, (DRAWS, runs), m=m, r=r, epsilon=epsilon, delta=delta)
    kinds = {"sharp": lambda v: bounds.overlap(v, m=m, r=r, zeta=ZETA, delta=delta).epsilon > epsilon}
    if delta == 0:
        kinds["paper"] = lambda v: bounds.paper_mean(v, m=m, r=r, zeta=ZETA).epsilon > epsilon
    for reaches in kinds.values():
        least = critical(lambda t, f=reaches: f(with_total(t, runs)), range(r * runs + 1))
        assert (overlaps.sum(axis=1) >= least).mean() <= ZETA + NOISE
    middle = np.sort(overlaps, axis=1)[:, runs - -(-runs // 2)]  # the order statistic the bound uses
    least = critical(
        lambda v: bounds.overlap_median([v] * runs, m=m, r=r, zeta=ZETA, delta=delta).epsilon > epsilon, range(r + 1)
    )
    assert (middle >= least).mean() <= ZETA + NOISE


def test_overlap_bound_is_sharp_where_the_lattice_is_fine():
    rng = np.random.default_rng(0)
    overlaps = lf.draw_overlaps(rng, (DRAWS, 20), m=400, r=200, epsilon=1.0, delta=0.0).sum(axis=1)
    least = critical(
        lambda t: bounds.overlap(with_total(t, 20), m=400, r=200, zeta=ZETA).epsilon > 1.0, range(200 * 20 + 1)
    )
    assert ZETA - 0.008 <= (overlaps >= least).mean() <= ZETA + NOISE


@pytest.mark.parametrize("runs", [1, 4, 10, 40])
@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (5.0, 0.0), (3.0, 1e-3), (1.0, 0.02), (6.0, 0.05)]
)
def test_evidence(runs, epsilon, delta):
    rng = np.random.default_rng([runs, int(epsilon)])
    alpha = lf.null_levels(rng, (DRAWS, runs), epsilon=epsilon, delta=delta)
    with np.errstate(divide="ignore"):
        values = np.minimum(np.sort(-np.log(alpha), axis=1), design.log_support(4500))
    kept = runs - _tails.trimmed(runs, ZETA, delta)
    sums = values[:, :kept].sum(axis=1)
    if kept:
        grid = np.linspace(0, (epsilon + 12) * kept, 20_001)
        least = critical(
            lambda t: bounds.evidence(-np.full(runs, t / kept), m=4500, zeta=ZETA, delta=delta).epsilon > epsilon, grid
        )
        rate = (sums >= least).mean()
        assert rate <= ZETA + NOISE
        if delta == 0:
            assert rate >= ZETA - 0.004  # exact


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.7, 0.0), (1.5, 0.01), (0.4, 0.05)])
@pytest.mark.parametrize(("support", "runs"), [(2, 10), (6, 6)])
def test_lattice_exactly(support, runs, epsilon, delta):
    """No simulation: the probability of every multiset of ranks, times whether the bound exceeds epsilon."""
    t = np.exp(_tails.log_cap(np.log(np.arange(1, support + 1) / support), epsilon, delta))
    mass = np.diff(np.concatenate([[0.0], t]))
    rate = 0.0
    for ranks in itertools.combinations_with_replacement(range(1, support + 1), runs):
        if bounds.lattice(ranks, support=support, zeta=ZETA, delta=delta).epsilon > epsilon:
            counts = np.bincount(ranks, minlength=support + 1)[1:]
            rate += stats.multinomial.pmf(counts, runs, mass)
    assert rate <= ZETA + 1e-9


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 0.01), (4.0, 0.05)])
def test_counts_exactly(epsilon, delta):
    for runs, alpha in itertools.product((3, 10, 60), (0.01, 0.2)):
        chance = math.exp(float(_tails.log_cap(math.log(alpha), epsilon, delta)))
        log_p = lambda k: np.where(np.arange(runs) < k, math.log(alpha) - 1, -1e-3)  # noqa: E731, B023
        least = critical(
            lambda k: bounds.count(log_p(k), alpha=alpha, zeta=ZETA, delta=delta).epsilon > epsilon,  # noqa: B023
            range(runs + 1),
        )
        assert least == math.inf or stats.binom.sf(least - 1, runs, chance) <= ZETA + 1e-6


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.8, 0.0), (1.5, 0.02)])
def test_clopper_pearson_exactly(epsilon, delta):
    """Two laws, each epsilon from the reference on opposite sides, as far apart as (epsilon, delta) lets them be."""
    n = 40
    false_rate = (1 - delta) / (1 + math.exp(epsilon)) / math.exp(epsilon) if epsilon else 0.5
    true_rate = min(1.0, math.exp(2 * epsilon) * false_rate + (1 + math.exp(epsilon)) * delta)
    hits, alarms = stats.binom.pmf(np.arange(n + 1), n, true_rate), stats.binom.pmf(np.arange(n + 1), n, false_rate)

    @functools.cache
    def exceeds(k, j):
        return bounds.clopper_pearson(k, n, j, n, zeta=ZETA, delta=delta).epsilon > epsilon + 1e-9

    rate = sum(hits[k] * alarms[j] for k in range(n + 1) for j in range(n + 1) if exceeds(k, j))
    assert rate <= ZETA


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (2.0, 0.0), (2.0, 0.03)])
def test_e_process_at_every_run_at_once(epsilon, delta):
    rng = np.random.default_rng(11)
    paths, runs = 3000, 30
    log_p = lf.draw_log_p_values(rng, (paths, runs), m=400, epsilon=epsilon, delta=delta)
    totals = -np.cumsum(_tails.log_cap(log_p, epsilon, delta), axis=1)
    values = [[_tails.log_beta_mixture(float(a), n + 1) for n, a in enumerate(row)] for row in totals]
    crossed = np.max(values, axis=1) >= math.log(1 / ZETA)
    assert crossed.mean() <= ZETA + 4 * math.sqrt(ZETA / paths)
    for row in range(12):
        bound = bounds.e_process(log_p[row], m=400, zeta=ZETA, delta=delta)
        assert (bound.epsilon > epsilon + 1e-8) == crossed[row] or bound.epsilon == pytest.approx(epsilon, abs=1e-6)


def least_favourable_runs(rng, m, runs, epsilon, delta):
    """Real (S, f): f from the reference, S with the likelihood ratio that its rank is given."""
    support = design.support(m)
    llr = rng.normal(size=(runs, m))
    order = np.argsort(-(llr @ design.sign_vectors(m).T), axis=1)
    ranks = lf.draw_ranks(rng, runs, support=support, epsilon=epsilon, delta=delta)
    return llr, design.sign_vectors(m)[order[np.arange(runs), ranks - 1]]


def headline_rate(m, runs, epsilon, delta, names, repeats, seed):
    rng = np.random.default_rng(seed)
    plan = preregistration.Preregistration.default("batchwise", m=m, batch_size=1, L=runs, delta=delta)
    if names:
        plan = preregistration.Preregistration.from_json({**plan.to_json(), "bounds": names})
    exceeded = 0
    for _ in range(repeats):
        llr, signs = least_favourable_runs(rng, m, runs, epsilon, delta)
        exceeded += headline.evaluate(plan, signs=signs, llr=llr, curves=False).headline.epsilon > epsilon
    return exceeded / repeats


def test_headline():
    rate = headline_rate(6, 8, 1.2, 0.0, None, 150, 0)
    assert rate <= ZETA + 4 * math.sqrt(ZETA / 150)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.2, 0.0), (2.0, 0.01)])
def test_headline_of_all_kinds(epsilon, delta):
    rate = headline_rate(10, 10, epsilon, delta, ["evidence", "order_1", "order_3", "lattice", "overlap"], 500, 1)
    assert rate <= ZETA + 4 * math.sqrt(ZETA / 500)


@pytest.mark.parametrize("m", [2, 6, 40, pytest.param(150, marks=pytest.mark.slow)])
def test_scores_independent_of_the_signs_give_zero(m):
    rng = np.random.default_rng(m)
    plan = preregistration.Preregistration.default("batchwise", m=m, batch_size=1, L=10)
    found = [
        headline.evaluate(plan, signs=lf.draw_signs(rng, 10, m), llr=rng.normal(size=(10, m)), curves=False)
        for _ in range(100 if m < 100 else 25)
    ]
    zeros = np.mean([f.headline.epsilon == 0 for f in found])
    assert zeros >= 1 - ZETA - 3.5 * math.sqrt(ZETA / len(found))


@pytest.mark.slow
def test_evidence_with_true_p_values_at_m_twelve():
    rng = np.random.default_rng(5)
    exceeded = 0
    for _ in range(1000):
        llr, signs = least_favourable_runs(rng, 12, 10, 2.0, 0.0)
        exceeded += bounds.evidence(null.log_p_values(llr, signs), m=12, zeta=ZETA).epsilon > 2.0
    assert exceeded / 1000 <= ZETA + 4 * math.sqrt(ZETA / 1000)


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.02])
@pytest.mark.parametrize("k", [1, 2, 3, 10])
def test_order_statistics(k, delta):
    runs, epsilon = 10, 2.0
    log_p = lf.draw_log_p_values(
        np.random.default_rng([k, int(1000 * delta)]), (DRAWS, runs), m=400, epsilon=epsilon, delta=delta
    )
    smallest = np.sort(log_p, axis=1)[:, k - 1]
    # Rejection depends on the k-th smallest alone: find where, by the function itself, on a grid of its values.
    grid = np.linspace(-12.0, 0.0, 1201)
    above = [
        bounds.order_statistic(np.r_[np.full(k, value), np.zeros(runs - k)], k=k, zeta=ZETA, delta=delta).epsilon
        > epsilon
        for value in grid
    ]
    if not any(above):  # k runs in ten may give everything away without any epsilon: nothing is ever claimed
        assert delta > 0 and stats.binom.sf(k - 1, runs, delta) > ZETA
        return
    edge = grid[np.flatnonzero(above)[-1]]
    rate = (smallest <= edge).mean()
    assert rate <= ZETA + NOISE
    if delta == 0:
        assert rate > 0.9 * ZETA  # sharp but for the grid
    else:
        ignoring = bounds.order_statistic(np.r_[np.full(k, edge), np.zeros(runs - k)], k=k, zeta=ZETA).epsilon
        assert ignoring >= epsilon  # the same evidence says more when no delta is granted


def test_order_statistics_by_hand():
    log_p = np.log([0.5, 1e-6, 1e-4, 0.9, 0.02])
    for k, t in ((1, 1 - 0.95**0.2), (2, stats.beta.ppf(0.05, 2, 4)), (5, 0.05**0.2)):
        found = bounds.order_statistic(log_p, k=k, zeta=0.05)
        expected = max(
            0.0, math.log(t) - np.sort(log_p)[k - 1], math.log(1 - np.exp(np.sort(log_p)[k - 1])) - math.log(1 - t)
        )
        assert found.epsilon == pytest.approx(expected, abs=1e-6) and found.name == f"order_{k}"
    with pytest.raises(InputError, match="k=6 <= 5"):
        bounds.order_statistic(log_p, k=6, zeta=0.05)
    null = bounds.order_statistic(np.zeros(5), k=1, zeta=0.05, log_support=30.0)
    assert null.epsilon == 0 and null.ceiling == pytest.approx(30 + math.log(1 - 0.95**0.2))
