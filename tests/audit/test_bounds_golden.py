"""Published and independently derived numbers."""

import time

import numpy as np
import pytest

from jaxunlearn.audit import bounds, design

ZETA = 0.05


def spread(m, r, runs, mean):
    """Overlaps with the given mean: equal values, or a mix of the two nearest possible ones (m = r: even ones)."""
    step = 2 if m == r and mean != r else 1
    low = int(mean // step) * step
    many = round(runs * (mean - low) / step)
    return np.array([low + step] * many + [low] * (runs - many))


@pytest.mark.parametrize(
    ("m", "r", "runs", "value", "mean", "median"),
    [
        (2, 2, 100_000, 2, 10.4157, 0.0),
        (6, 6, 10, 6, 3.99631, 1.44001),
        (6, 6, 100, 6, 6.43740, 1.83345),
        (6, 6, 100, 4.2, 0.400080, 0.0),
        (6, 6, 500, 4.2, 0.425952, 0.0),
        (100, 100, 10, 100, 67.83571, 65.27942),
        (100, 60, 10, 60, 40.83486, 39.42940),
        (400, 100, 10, 80, 18.92777, 19.55457),
        (400, 100, 10, 60, 1.70895, 1.84929),
        (4500, 3000, 10, 3000, 2078.5928, 2077.1873),
        (4500, 3000, 10, 2400, 577.7975, 580.1107),
        (4500, 3000, 10, 2000, 169.5610, 171.6345),
        (4500, 3000, 10, 1700, 26.4407, 27.8239),
        (4500, 3000, 10, 1600, 6.3706, 7.1724),
    ],
)
def test_paper_bounds_before_halving(m, r, runs, value, mean, median):
    overlaps = spread(m, r, runs, value)
    for bound, expected in ((bounds.paper_mean, mean), (bounds.paper_median, median)):
        result = bound(overlaps, m=m, r=r, zeta=ZETA)
        assert result.epsilon_ldp == pytest.approx(expected, rel=2e-6, abs=1e-4)
        assert result.epsilon == result.epsilon_ldp / 2


CEILINGS = [
    (2, 2, 10, 0.526, 0.658, 0.0),
    (6, 6, 10, 1.998, 2.696, 1.511),
    (6, 6, 100, 3.219, 3.472, 1.953),
    (100, 60, 10, 20.42, 40.83, 65.21),
    (400, 100, 10, 34.4, 68.9, 272.5),
    (4500, 3000, 10, 1039.3, 2078.6, 3113.2),
]


@pytest.mark.parametrize(("m", "r", "runs", "paper", "overlap", "evidence"), CEILINGS)
def test_perfect_guesses_reach_the_ceiling_and_nothing_else_does(m, r, runs, paper, overlap, evidence):
    perfect, least_p = np.full(runs, r), np.full(runs, -design.log_support(m))
    results = [
        (bounds.paper_mean(perfect, m=m, r=r, zeta=ZETA), paper),
        (bounds.overlap(perfect, m=m, r=r, zeta=ZETA), overlap),
        (bounds.evidence(least_p, m=m, zeta=ZETA), evidence),
    ]
    for bound, expected in results:
        assert bound.ceiling == pytest.approx(expected, rel=3e-3, abs=1e-3)
        assert bound.epsilon == pytest.approx(bound.ceiling, abs=1e-9)
    chance = np.full(runs, r // 2)
    assert bounds.overlap(chance, m=m, r=r, zeta=ZETA).epsilon == 0.0
    assert bounds.overlap(chance, m=m, r=r, zeta=ZETA).ceiling == pytest.approx(overlap, rel=3e-3)


def test_sharp_bound_against_the_paper_at_a_perfect_guess():
    for m, r, value in ((100, 60, 40.835), (6, 6, 2.696), (100, 100, 66.484)):
        assert bounds.overlap([r] * 10, m=m, r=r, zeta=ZETA).epsilon == pytest.approx(value, abs=1e-3)


def test_lattice_ceilings():
    for m, runs, value in ((2, 10, 0.658), (6, 10, 2.696), (6, 100, 3.472)):
        bound = bounds.lattice([1] * runs, support=design.support(m), zeta=ZETA)
        assert bound.epsilon == bound.ceiling == pytest.approx(value, abs=1e-3)


def test_clopper_pearson_numbers():
    n = 100_000
    assert bounds.clopper_pearson(n, n, 0, n, zeta=ZETA, halve=False).epsilon == pytest.approx(10.2076, abs=1e-4)
    assert bounds.clopper_pearson(n, n, 0, n, zeta=ZETA, delta=0.01, halve=False).epsilon == pytest.approx(
        10.1975, abs=1e-4
    )
    halved = bounds.clopper_pearson(n, n, 0, n, zeta=ZETA)
    assert halved.epsilon == pytest.approx(10.2076 / 2, abs=1e-4)
    assert halved.epsilon_ldp == pytest.approx(10.2076, abs=1e-4)
    assert bounds.clopper_pearson(5, 5, 0, 5, zeta=ZETA).epsilon == 0.0


def test_clopper_pearson_halved_inverts_the_composed_inequality():
    delta = 0.02
    bound = bounds.clopper_pearson(900_000, 1_000_000, 50_000, 1_000_000, zeta=ZETA, delta=delta)
    fnr, fpr = 0.1 + 5.9e-4, 0.05 + 4.3e-4  # the limits, roughly
    x = np.exp(bound.epsilon)
    assert 1 - fnr == pytest.approx(x**2 * fpr + (1 + x) * delta, rel=1e-3)
    assert bound.epsilon < bounds.clopper_pearson(900_000, 1_000_000, 50_000, 1_000_000, zeta=ZETA).epsilon


def test_evidence_is_the_gamma_quantile_formula_at_large_epsilon():
    log_p = -np.linspace(50, 90, 10)
    bound = bounds.evidence(log_p, m=400, zeta=ZETA)
    assert bound.epsilon == pytest.approx(-log_p.mean() - 1.5705, abs=1e-3)


def test_largest_setting_is_fast():
    design.log_overlap_counts.cache_clear()
    design.log_overlap_tail.cache_clear()
    start = time.perf_counter()
    overlaps = np.array([1700, 1690, 1710, 1705, 1680, 1702, 1699, 1688, 1720, 1701])
    for bound in (bounds.paper_mean, bounds.paper_median, bounds.overlap, bounds.overlap_median):
        bound(overlaps, m=4500, r=3000, zeta=ZETA)
    bounds.evidence(-np.linspace(20, 40, 10), m=4500, zeta=ZETA)
    first = time.perf_counter() - start
    start = time.perf_counter()
    bounds.overlap(overlaps + 1, m=4500, r=3000, zeta=ZETA)
    bounds.paper_mean(overlaps + 1, m=4500, r=3000, zeta=ZETA)
    cached = time.perf_counter() - start
    assert first < 3.0  # 0.2 s alone; a crowded machine gets slack
    assert cached < 0.5  # 0.03 s alone
