"""P-values: enumeration, dynamic programming and the transform against each other, and the fixed rules."""

import math

import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.audit import _dft, design, null
from jaxunlearn.audit import least_favourable as lf


def simulate(rng, runs, m, shift):
    signs = lf.draw_signs(rng, runs, m)
    return signs, shift * (rng.normal(size=(runs, m)) + shift * (signs > 0) - shift / 2)


def brute(levels, w):
    inside = design.sign_vectors(levels.size) > 0
    return math.log(((inside @ levels) >= w).mean())


def level_sets(rng, m):
    """Shapes that a transform may stumble over."""
    kinds = (
        lambda: rng.integers(0, 3, m),
        lambda: rng.integers(0, 60, m),
        lambda: (rng.random(m) < 0.15) * rng.integers(1, 64, m),
        lambda: rng.integers(0, 2, m) * 64,
        lambda: np.rint(rng.standard_cauchy(m)).clip(-32, 32),
        lambda: rng.integers(0, 2, m) * 30 + rng.integers(0, 4, m),
        lambda: np.arange(m) == 0,
    )
    return null._shift(np.asarray(kinds[rng.integers(len(kinds))]()).astype(np.int64))


def some_signs(rng, levels):
    m = levels.size
    noise = rng.choice([1e-9, 0.5, 3.0, 30.0, 1e6])
    best = np.argsort(-(levels + noise * rng.normal(size=m)), kind="stable")[: m // 2]
    signs = -np.ones(m, np.int8)
    signs[best] = 1
    return signs


def test_all_algorithms_agree_with_enumeration_up_to_twelve():
    rng = np.random.default_rng(0)
    for _ in range(400):
        levels = level_sets(rng, int(rng.integers(2, 13)))
        if not levels.any():
            continue
        w = int(levels[some_signs(rng, levels) > 0].sum())
        exact = brute(levels, w)
        assert null._dynamic(levels, w) == pytest.approx(exact, abs=1e-8)
        transformed = _dft.log_tail(levels, w)
        assert exact - 1e-12 <= transformed <= exact + 2e-3  # slack only ever raises p
        if exact < -0.01:
            assert transformed <= exact + 1e-5


def test_transform_agrees_with_dynamic_programming():
    rng = np.random.default_rng(1)
    for _ in range(60):
        levels = level_sets(rng, 100)
        if not levels.any():
            continue
        w = int(levels[some_signs(rng, levels) > 0].sum())
        exact, transformed = null._dynamic(levels, w), _dft.log_tail(levels, w)
        assert transformed >= exact - 2e-9
        assert exact < -0.01 and transformed <= exact + 1e-5 or transformed <= exact + 2e-3


@pytest.mark.parametrize(("m", "shift"), [(30, 1.0), (100, 0.25), (100, 1.0), (101, 2.0), (250, 0.05)])
def test_methods_agree_on_attack_like_scores(m, shift):
    signs, llr = simulate(np.random.default_rng(m), 5, m, shift)
    dynamic = null.log_p_values(llr, signs, method="dynamic")
    np.testing.assert_allclose(null.log_p_values(llr, signs, method="dft"), dynamic, atol=1e-6)
    np.testing.assert_allclose(null.log_p_values(llr, signs), dynamic, atol=1e-6)


def test_large_m_is_quick_and_within_the_tilting_bound():
    import time

    signs, llr = simulate(np.random.default_rng(5), 2, 4500, 0.5)
    start = time.perf_counter()
    exact = null.log_p_values(llr, signs)
    assert time.perf_counter() - start < 5.0  # 0.1 s alone
    bound = np.array([null.log_p_value_bound(a, s) for a, s in zip(llr, signs)])
    assert (np.abs(bound - exact) < 12).all() and (exact < -100).all()
    # the true vector the very best: p = 1 / |S_m|
    perfect = null.log_p_value(signs[0] * (1 + np.linspace(0, 1, 4500)), signs[0], levels=8)
    assert -design.log_support(4500) <= perfect <= -design.log_support(4500) + 1e-3


def test_tilting_bound_is_an_upper_bound():
    rng = np.random.default_rng(2)
    for _ in range(150):
        m = int(rng.integers(2, 13))
        signs, llr = simulate(rng, 1, m, float(rng.choice([0.01, 1.0, 4.0])))
        assert null.log_p_value_bound(llr[0], signs[0]) >= null.log_p_value(llr[0], signs[0]) - 1e-12
    assert null.log_p_value_bound(np.zeros(40), lf.draw_signs(rng, 1, 40)[0]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("m", [6, 7, 40, pytest.param(150, marks=pytest.mark.slow)])
def test_p_values_are_super_uniform_under_independence(m):
    rng = np.random.default_rng(m)
    signs, _ = simulate(rng, 600, m, 1.0)
    p = np.exp(null.log_p_values(rng.standard_t(2, size=signs.shape), signs, levels=8))
    for level in (0.02, 0.1, 0.3, 0.7):
        assert (p <= level).mean() <= level + 3.5 * math.sqrt(level * (1 - level) / p.size)
    assert abs(p.mean() - 0.5) < 0.06


def test_nothing_known_gives_p_one_exactly():
    signs = lf.draw_signs(np.random.default_rng(0), 1, 200)[0]
    for m in (2, 6, 50, 200):
        s = np.where(np.arange(m) < m // 2, 1, -1)
        for llr in (np.zeros(m), np.full(m, 3.7), np.full(m, np.nan), np.full(m, np.inf)):
            assert null.log_p_value(llr, s) == 0.0
    assert null.log_p_value_bound(np.zeros(200), signs) <= 0.0


def test_non_finite_entries_say_nothing():
    rng = np.random.default_rng(4)
    for m in (8, 60, 150):
        signs, llr = simulate(rng, 1, m, 1.0)
        broken, cleaned = llr[0].copy(), llr[0].copy()
        broken[:3], cleaned[:3] = (np.nan, np.inf, -np.inf), 0.0
        assert null.log_p_value(broken, signs[0]) == null.log_p_value(cleaned, signs[0])


def test_one_absurd_value_does_not_drown_the_others():
    signs, llr = simulate(np.random.default_rng(6), 1, 400, 1.0)
    usual = null.log_p_value(llr[0], signs[0])
    broken = llr[0].copy()
    broken[0] = 1e9 * -signs[0, 0]  # and it is wrong, too
    assert usual < -30 and null.log_p_value(broken, signs[0]) < usual + 6
    assert np.isfinite(null.log_p_value(broken * 1e250, signs[0]))


def test_a_common_offset_and_scale_do_not_matter():
    signs, llr = simulate(np.random.default_rng(7), 1, 120, 1.0)
    base = null.log_p_value(llr[0], signs[0])
    assert null.log_p_value(llr[0] * 1024.0, signs[0]) == pytest.approx(base, abs=1e-9)
    assert null.log_p_value(llr[0] + 5.0, signs[0]) == pytest.approx(base, abs=0.3)  # up to a rounding flip


def test_levels_ignore_the_signs_and_stay_in_range():
    llr = np.random.default_rng(8).standard_cauchy(300)
    levels = null.round_levels(llr, 16)
    assert np.abs(levels).max() <= 16 and len(set(levels.tolist())) > 12
    assert (np.diff(levels[np.argsort(llr)]) >= 0).all()


def test_rank_counts_ties_against_the_true_vector():
    signs = np.array([1, 1, -1, -1])
    assert null.rank(np.array([2.0, 1.0, -1.0, -2.0]), signs) == (1, 6)
    assert null.rank(np.array([1.0, 1.0, 1.0, 1.0]), signs) == (6, 6)
    assert null.rank(np.array([1.0, 0.0, 0.0, 0.0]), signs) == (3, 6)
    # 0.1 + 0.2 against 0.3: the sum must not depend on the order of addition
    assert null.rank(np.array([0.1, 0.2, 0.3, 0.0]), np.array([1, 1, -1, -1]))[0] == 4


def test_rank_of_a_table():
    table = np.array([-5.0, np.nan, -1.0, -1.0, -np.inf])
    assert [null.rank_of(table, i) for i in range(5)] == [3, 5, 2, 2, 5]
    with pytest.raises(InputError, match="index=5"):
        null.rank_of(table, 5)


def test_joint_likelihood_of_independent_batches_is_the_batchwise_rank():
    signs, llr = simulate(np.random.default_rng(9), 20, 7, 1.0)
    for row, s in zip(llr, signs):
        table = design.sign_vectors(7) @ row / 2
        assert null.rank_of(table, int(design.sign_index(s))) == null.rank(row, s)[0]


def test_refusals():
    signs = np.array([1, 1, -1, -1])
    with pytest.raises(InputError, match="balanced"):
        null.log_p_value(np.zeros(4), np.array([1, 1, 1, -1]))
    with pytest.raises(InputError, match="shape"):
        null.log_p_value(np.zeros(5), signs)
    with pytest.raises(InputError, match="method"):
        null.log_p_value(np.arange(4.0), signs, method="guess")
    with pytest.raises(InputError, match="enumerate"):
        null.rank(np.zeros(30), np.tile([1, -1], 15))
