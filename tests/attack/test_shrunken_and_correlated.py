"""Variances between pooled and separate ones, and correlations between scores: limits, hand values, dense oracles."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from jaxunlearn._validate import InputError
from jaxunlearn.attack import likelihood
from jaxunlearn.attack.correlation import LEAST_WEIGHT, shrunken_correlations
from jaxunlearn.attack.likelihood import batchwise_llr, fit_batchwise, fit_joint, joint_log_likelihoods, prior_degrees
from jaxunlearn.audit import design
from jaxunlearn.audit import least_favourable as lf
from jaxunlearn.audit.null import log_p_values


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def simulate(rng, runs, m, size=1, shift=1.0, common=0.0):
    """Scores with noise that all examples of a run have in common, at a share of ``common`` of the variance."""
    signs = lf.draw_signs(rng, runs, m)
    loadings = np.random.default_rng(7).choice([-1.0, 1.0], size=(m, size))
    noise = np.sqrt(1 - common) * rng.normal(size=(runs, m, size))
    noise += np.sqrt(common) * rng.normal(size=(runs, 1, 1)) * loadings
    return signs, 3.0 + noise + shift * (signs > 0)[:, :, None]


def dense(correlations):
    """[G, Q, Q] the matrix that is never formed."""
    z = correlations.residuals
    matrix = (1 - correlations.weight) * np.swapaxes(z, 1, 2) @ z
    index = np.arange(z.shape[2])
    matrix[:, index, index] = 1
    return matrix


@pytest.mark.parametrize(("x", "value"), [(1.0, np.pi**2 / 6), (0.5, np.pi**2 / 2), (2.0, np.pi**2 / 6 - 1)])
def test_inverse_trigamma_at_known_values(x, value):
    assert likelihood.inverse_trigamma(value) == pytest.approx(x, rel=1e-10)


@pytest.mark.parametrize("true", [4.0, 20.0])
def test_prior_degrees_are_found(rng, true):
    counts = np.full((2, 20_000), 26)
    var = true / rng.chisquare(true, size=counts.shape)
    assert prior_degrees(var * rng.chisquare(25, size=counts.shape), counts) == pytest.approx(true, rel=0.1)


def test_prior_degrees_are_infinite_without_a_difference(rng):
    counts = np.full((2, 50), 26)
    assert np.isinf(prior_degrees(np.full((2, 50), 3.0), counts))
    assert np.isinf(prior_degrees(rng.random((2, 50)), np.ones((2, 50), int)))  # a single run shows no spread
    assert np.isinf(prior_degrees(np.zeros((2, 50)), counts))


def test_shrunken_lies_between_and_has_both_limits(rng, monkeypatch):
    signs, scores = simulate(rng, 40, 60)
    scores = np.where((signs > 0)[:, :, None], 3 * scores, scores)
    fits = {v: fit_batchwise(scores, signs, variance=v) for v in ("pooled", "per_example", "shrunken")}
    d0 = prior_degrees(
        np.stack([fits["per_example"].var_in * 20, fits["per_example"].var_out * 20]), np.full((2, 60, 1), 20)
    )
    for side in ("var_in", "var_out"):
        pooled, own, between = (getattr(fits[v], side) for v in ("pooled", "per_example", "shrunken"))
        assert (np.minimum(pooled, own) <= between).all() and (between <= np.maximum(pooled, own)).all()
        assert np.abs(between - own).max() > 0.01
        counts = (signs == (1 if side == "var_in" else -1)).sum(axis=0)[:, None]
        assert abs(np.median((between - own) / (pooled - own)) - d0 / (d0 + np.median(counts))) < 0.1
    for d0, limit in ((np.inf, "pooled"), (0.0, "per_example")):
        monkeypatch.setattr(likelihood, "prior_degrees", lambda *a, d0=d0: d0)
        fit = fit_batchwise(scores, signs, variance="shrunken")
        np.testing.assert_array_equal(fit.var_in, fits[limit].var_in)
        np.testing.assert_array_equal(fit.var_out, fits[limit].var_out)


def test_shrunken_joint_variances_have_the_pooled_limit(rng):
    table = rng.normal(size=(6, 8, 4, 2))
    table[:, :4] = -table[:, 4:]  # every sign vector has the same mean, and much the same spread
    table[1:] = table[:1]
    pooled, shrunken = (fit_joint(table, variance=v) for v in ("pooled", "shrunken"))
    np.testing.assert_array_equal(pooled.var, shrunken.var)


@pytest.mark.parametrize(("runs", "width"), [(6, 40), (40, 6)])
def test_products_with_the_inverse_against_a_dense_one(rng, runs, width):
    residuals = rng.normal(size=(3, runs, width)) + 2 * rng.normal(size=(3, runs, 1))
    correlations = shrunken_correlations(residuals)
    assert LEAST_WEIGHT <= correlations.weight < 0.9
    x = rng.normal(size=(3, width, 2))
    np.testing.assert_allclose(correlations.solve(x), np.linalg.inv(dense(correlations)) @ x, rtol=1e-8, atol=1e-10)


def test_the_weight_against_a_loop(rng):
    residuals = rng.normal(size=(1, 12, 5)) + rng.normal(size=(1, 12, 1))
    z = residuals[0] / np.sqrt((residuals[0] ** 2).mean(axis=0))
    above = below = 0.0
    for i in range(5):
        for k in range(5):
            if i != k:
                products = z[:, i] * z[:, k]
                above += products.var(ddof=1) / 12
                below += products.mean() ** 2
    assert shrunken_correlations(residuals).weight == pytest.approx(above / below, rel=1e-10)


def test_the_weight_at_its_limits(rng):
    independent = shrunken_correlations(rng.normal(size=(1, 10, 300)))
    assert independent.weight > 0.95
    same = shrunken_correlations(np.repeat(rng.normal(size=(1, 50, 1)), 20, axis=2))
    assert same.weight < 0.1 and np.isfinite(same.solve(np.ones((1, 20, 1)))).all()
    for nothing in (np.zeros((2, 5, 4)), rng.normal(size=(2, 5, 1))):
        assert shrunken_correlations(nothing).weight == 1


@pytest.mark.parametrize("runs", [12, 60])
def test_batch_covariance_against_scipy(rng, runs):
    signs, calibration = simulate(rng, runs, 5, size=20, common=0.6)
    scores = simulate(rng, 4, 5, size=20, common=0.6)[1]
    fit = fit_batchwise(calibration, signs, variance="batch")
    matrices, sd = dense(fit.correlations), np.sqrt(fit.var_in)
    expected = np.empty((4, 5))
    for j in range(5):
        covariance = matrices[j] * np.outer(sd[j], sd[j])
        into, out = (multivariate_normal(mean[j], covariance) for mean in (fit.mean_in, fit.mean_out))
        expected[:, j] = into.logpdf(scores[:, j]) - out.logpdf(scores[:, j])
    np.testing.assert_allclose(batchwise_llr(fit, scores), expected, rtol=1e-7, atol=1e-7)


def test_full_solves_the_mean_field_equations(rng, monkeypatch):
    """With all other signs at tanh(ratio / 2), the ratio of one batch is that of two Gaussians in all dimensions."""
    signs, calibration = simulate(rng, 20, 6, size=3, common=0.5, shift=0.5)
    scores = simulate(rng, 3, 6, size=3, common=0.5, shift=0.5)[1]
    monkeypatch.setattr(likelihood, "SWEEPS", 300)
    fit = fit_batchwise(calibration, signs, variance="full")
    llr = batchwise_llr(fit, scores)
    sd = np.sqrt(fit.var_in).ravel()
    covariance = dense(fit.correlations)[0] * np.outer(sd, sd)
    middle, half = (fit.mean_in + fit.mean_out) / 2, (fit.mean_in - fit.mean_out) / 2
    for run in range(3):
        for j in range(6):
            expected = np.tanh(llr[run] / 2)
            means = []
            for sign in (1, -1):
                expected[j] = sign
                means.append((middle + half * expected[:, None]).ravel())
            into, out = (multivariate_normal(mean, covariance).logpdf(scores[run].ravel()) for mean in means)
            assert llr[run, j] == pytest.approx(into - out, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("variance", ["batch", "full"])
def test_without_correlation_it_is_the_pooled_attack(rng, variance, monkeypatch):
    signs, calibration = simulate(rng, 30, 8, size=2)
    scores = simulate(rng, 5, 8, size=2)[1]
    pooled = batchwise_llr(fit_batchwise(calibration, signs), scores)
    monkeypatch.setattr(likelihood, "shrunken_correlations", lambda r: shrunken_correlations(0 * r))
    llr = batchwise_llr(fit_batchwise(calibration, signs, variance=variance), scores)
    np.testing.assert_allclose(llr, pooled, rtol=1e-9, atol=1e-9)


def test_full_takes_common_noise_off(rng):
    signs, calibration = simulate(rng, 40, 100, common=0.8)
    test_signs, scores = simulate(rng, 30, 100, common=0.8)
    evidence = {
        v: -log_p_values(batchwise_llr(fit_batchwise(calibration, signs, variance=v), scores), test_signs).mean()
        for v in ("pooled", "full")
    }
    assert evidence["full"] > evidence["pooled"] + 4, evidence


@pytest.mark.parametrize("runs", [5, 60])
def test_joint_full_against_scipy(rng, runs):
    vectors = design.sign_vectors(4)
    shared = rng.normal(size=(6, runs, 1, 1))
    calibration = rng.normal(size=(6, runs, 4, 3)) + 2 * shared + (vectors > 0)[:, None, :, None]
    scores = rng.normal(size=(3, 4, 3))
    fit = fit_joint(calibration, variance="full")
    deviations = (calibration - calibration.mean(axis=1, keepdims=True)).reshape(1, -1, 12)
    sd = np.sqrt((deviations[0] ** 2).mean(axis=0))
    covariance = dense(shrunken_correlations(deviations))[0] * np.outer(sd, sd)
    got = joint_log_likelihoods(fit, scores)
    expected = np.array(
        [[multivariate_normal(m.ravel(), covariance).logpdf(s.ravel()) for m in fit.mean] for s in scores]
    )
    np.testing.assert_allclose(got - got[:, :1], expected - expected[:, :1], rtol=1e-7, atol=1e-7)
    with pytest.raises(InputError, match="full"):
        fit_joint(calibration, variance="batch")


@pytest.mark.parametrize("variance", ["shrunken", "batch", "full"])
@pytest.mark.parametrize("value", [0.0, 0.1, 3.3e7])
def test_identical_scores_give_exactly_zero_with_correlations(rng, variance, value):
    signs = lf.draw_signs(rng, 12, 10)
    scores = np.full((12, 10, 3), value, np.float32) + np.arange(3, dtype=np.float32)
    assert (batchwise_llr(fit_batchwise(scores, signs, variance=variance), scores) == 0).all()
    if variance != "batch":
        table = np.broadcast_to(scores[0], (6, 5, 10, 3))
        likelihoods = joint_log_likelihoods(fit_joint(table, variance=variance), scores)
        assert (likelihoods == likelihoods[:, :1]).all()


@pytest.mark.parametrize("variance", ["batch", "full"])
def test_broken_scores_leave_correlated_ratios_finite(rng, variance):
    signs, calibration = simulate(rng, 20, 8, size=2, common=0.5)
    scores = simulate(rng, 3, 8, size=2, common=0.5)[1]
    calibration[3, 2, 1], calibration[5, 0, 0] = np.nan, np.inf
    scores[1, 4, 0], scores[2, 7] = np.nan, [np.inf, 1e200]
    llr = batchwise_llr(fit_batchwise(calibration, signs, variance=variance), scores)
    assert np.isfinite(llr).all() and llr.any()
    assert (
        batchwise_llr(fit_batchwise(calibration, signs, variance=variance), np.full_like(scores, np.nan)) == 0
    ).all()


def test_large_batches_are_cheap(rng):
    """4,500 scores in six batches: nothing of size 4,500 x 4,500 is made."""
    signs, calibration = simulate(rng, 20, 6, size=750)
    for variance in ("batch", "full"):
        llr = batchwise_llr(fit_batchwise(calibration, signs, variance=variance), calibration[:2])
        assert llr.shape == (2, 6) and np.isfinite(llr).all()


@pytest.mark.parametrize("variance", ["batch", "full"])
def test_a_failed_calibration_run_is_as_one_that_never_was(variance):
    rng = np.random.default_rng(5)
    signs = lf.draw_signs(rng, 20, 8)
    scores = rng.normal(size=(20, 8, 2)) + rng.normal(size=(20, 1, 1)) + (signs > 0)[..., None]
    scores[3] = np.nan
    test, kept = scores[10:], np.arange(20) != 3
    with_it = likelihood.fit_batchwise(scores, signs, variance=variance)
    without = likelihood.fit_batchwise(scores[kept], signs[kept], variance=variance)
    np.testing.assert_allclose(
        likelihood.batchwise_llr(with_it, test), likelihood.batchwise_llr(without, test), rtol=1e-9, atol=1e-12
    )
