import numpy as np
import pytest
from scipy.stats import multivariate_normal

from jaxunlearn._validate import InputError
from jaxunlearn.attack import combine, likelihood
from jaxunlearn.audit import least_favourable as lf
from jaxunlearn.audit.null import log_p_values


@pytest.fixture
def rng():
    return np.random.default_rng(2)


def simulate(rng, runs, m, signals=3, size=1, shift=0.7, noise=1.0):
    signs = lf.draw_signs(rng, runs, m)
    return signs, noise * rng.normal(size=(signals, runs, m, size)) + shift * (signs > 0)[None, :, :, None]


def evidence(attack, calibration, signs, scores, test_signs):
    return -log_p_values(attack(calibration, signs, scores), test_signs).mean()


def test_gaussian_is_the_attack_on_the_first_signal(rng):
    signs, calibration = simulate(rng, 30, 10, size=2)
    scores = simulate(rng, 4, 10, size=2)[1]
    fit = likelihood.fit_batchwise(calibration[0], signs, variance="shrunken")
    got = combine.make_attack("gaussian", "shrunken")(calibration, signs, scores)
    np.testing.assert_array_equal(got, likelihood.batchwise_llr(fit, scores[0]))


def test_multivariate_against_scipy(rng):
    signs, calibration = simulate(rng, 30, 4, size=2)
    calibration[1] += 2 * calibration[0]
    scores = simulate(rng, 3, 4, size=2)[1]
    parts = np.moveaxis(calibration, 0, -1).reshape(30, 8, 3)
    fit = likelihood.fit_batchwise(parts, np.repeat(signs, 2, axis=1), variance="batch")
    z = fit.correlations.residuals
    expected = np.zeros((3, 4))
    for j in range(4):
        for b in range(2):
            matrix = (1 - fit.correlations.weight) * z[2 * j + b].T @ z[2 * j + b]
            np.fill_diagonal(matrix, 1)
            sd = np.sqrt(fit.var_in[2 * j + b])
            side = signs[:, j] > 0
            densities = [
                multivariate_normal(calibration[:, keep, j, b].mean(axis=1), matrix * np.outer(sd, sd))
                for keep in (side, ~side)
            ]
            x = scores[:, :, j, b].T
            expected[:, j] += densities[0].logpdf(x) - densities[1].logpdf(x)
    got = combine.make_attack("multivariate", "pooled")(calibration, signs, scores)
    np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["multivariate", "stacked"])
def test_independent_signals_add_up(rng, kind):
    signs, calibration = simulate(rng, 40, 200)
    test_signs, scores = simulate(rng, 10, 200)
    one = evidence(combine.make_attack("gaussian", "pooled"), calibration, signs, scores, test_signs)
    both = evidence(combine.make_attack(kind, "pooled"), calibration, signs, scores, test_signs)
    assert both > 1.7 * one, (one, both)


def test_stacking_gives_useless_signals_little_weight(rng):
    signs, calibration = simulate(rng, 40, 200, signals=2)
    test_signs, scores = simulate(rng, 10, 200, signals=2)
    calibration[1], scores[1] = rng.normal(size=calibration[1].shape), rng.normal(size=scores[1].shape)
    one = evidence(combine.make_attack("gaussian", "pooled"), calibration, signs, scores, test_signs)
    both = evidence(combine.make_attack("stacked", "pooled"), calibration, signs, scores, test_signs)
    assert both > 0.95 * one


@pytest.mark.parametrize("variance", ["pooled", "batch", "full"])
@pytest.mark.parametrize("kind", ["gaussian", "multivariate", "stacked"])
def test_equal_scores_say_exactly_nothing(rng, kind, variance):
    signs = lf.draw_signs(rng, 20, 10)
    same = np.full((2, 20, 10, 2), 0.1)
    assert (combine.make_attack(kind, variance)(same, signs, same[:, :3]) == 0).all()


@pytest.mark.parametrize("kind", ["gaussian", "multivariate", "stacked"])
def test_broken_scores_give_finite_ratios(rng, kind):
    signs, calibration = simulate(rng, 30, 10)
    scores = simulate(rng, 3, 10)[1]
    calibration[1, 4], scores[0, 1], scores[2, 2, 3] = np.nan, np.inf, np.nan
    assert np.isfinite(combine.make_attack(kind, "pooled")(calibration, signs, scores)).all()


def test_cross_fitting_never_uses_the_run_itself(rng):
    signs, calibration = simulate(rng, 12, 6)

    def attack(fitted, fitted_signs, scores):
        for run in range(scores.shape[1]):
            assert not (fitted == scores[:, run : run + 1]).all(axis=(0, 2, 3)).any()
        assert fitted.shape[1] + scores.shape[1] == 12 and fitted_signs.shape[0] == fitted.shape[1]
        return scores[0, :, :, 0]

    for folds in (2, 5, 12, 100):
        np.testing.assert_array_equal(
            combine.cross_fit(attack, calibration, signs, folds=folds), calibration[0, ..., 0]
        )


def test_cross_fitting_is_leaving_one_out_where_there_are_as_many_folds(rng):
    signs, calibration = simulate(rng, 14, 6)
    attack = combine.make_attack("gaussian", "pooled")
    got = combine.cross_fit(attack, calibration, signs, folds=14)
    for run in (0, 5, 13):
        others = np.arange(14) != run
        alone = attack(calibration[:, others], signs[others], calibration[:, run : run + 1])
        np.testing.assert_array_equal(got[run], alone[0])


def test_what_cannot_be_combined_is_refused(rng):
    with pytest.raises(InputError, match="stacked"):
        combine.make_attack("staked", "pooled")
    with pytest.raises(InputError, match="multivariate"):
        combine.make_attack("multivariate", "per_example")
    signs = -np.ones((20, 4), np.int8)
    signs[:10, 0], signs[:10, 1], signs[10:, 2], signs[3, 3] = 1, 1, 1, 1
    with pytest.raises(InputError, match="cross-fitting"):
        combine.check_folds(signs)
    signs[4, 3] = 1
    combine.check_folds(signs)
    with pytest.raises(InputError, match="cross-fitting"):
        combine.check_folds(signs, depth=2)
    signs[5:8, 3] = 1
    combine.check_folds(signs, depth=2)
