import numpy as np
import pytest
from scipy.stats import norm

from jaxunlearn._validate import InputError
from jaxunlearn.attack.likelihood import batchwise_llr, fit_batchwise, fit_joint, joint_log_likelihoods
from jaxunlearn.audit import design
from jaxunlearn.audit import least_favourable as lf
from jaxunlearn.audit.null import log_p_values
from jaxunlearn.metrics.roc import auc


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def simulate(rng, runs=50, m=30, size=2, shift=1.0):
    signs = lf.draw_signs(rng, runs, m)
    offsets = np.random.default_rng(99).normal(size=(m, size)) * 5
    return signs, offsets + rng.normal(size=(runs, m, size)) + shift * (signs > 0)[:, :, None]


def naive_llr(calibration, signs, scores, variance):
    llr = np.zeros(scores.shape[:2])
    for j in range(scores.shape[1]):
        for b in range(scores.shape[2]):
            inside, outside = calibration[signs[:, j] > 0, j, b], calibration[signs[:, j] < 0, j, b]
            sd_in, sd_out = inside.std(), outside.std()
            if variance == "pooled":
                deviations = np.concatenate([inside - inside.mean(), outside - outside.mean()])
                sd_in = sd_out = np.sqrt((deviations**2).mean())
            llr[:, j] += norm.logpdf(scores[:, j, b], inside.mean(), sd_in)
            llr[:, j] -= norm.logpdf(scores[:, j, b], outside.mean(), sd_out)
    return llr


@pytest.mark.parametrize("variance", ["pooled", "per_example"])
def test_batchwise_against_a_loop(rng, variance):
    signs, calibration = simulate(rng)
    scores = simulate(rng, runs=4)[1]
    got = batchwise_llr(fit_batchwise(calibration, signs, variance=variance), scores)
    np.testing.assert_allclose(got, naive_llr(calibration, signs, scores, variance), rtol=1e-9, atol=1e-9)


def test_higher_ratio_means_in(rng):
    signs, calibration = simulate(rng)
    test_signs, scores = simulate(rng, runs=40)
    llr = batchwise_llr(fit_batchwise(calibration, signs), scores)
    assert auc(llr[test_signs > 0], llr[test_signs < 0]) > 0.8
    shuffled = lf.draw_signs(rng, *signs.shape)
    llr = batchwise_llr(fit_batchwise(calibration, shuffled), scores)
    assert abs(auc(llr[test_signs > 0], llr[test_signs < 0]) - 0.5) < 0.12


def test_pooled_variance_is_the_better_estimator(rng):
    signs, calibration = simulate(rng, runs=20, m=400, size=1)
    test_signs, scores = simulate(rng, runs=20, m=400, size=1)

    def evidence(variance):
        llr = batchwise_llr(fit_batchwise(calibration, signs, variance=variance), scores)
        return -log_p_values(llr, test_signs).mean()

    assert evidence("pooled") > evidence("per_example") + 5


@pytest.mark.parametrize("variance", ["pooled", "per_example"])
@pytest.mark.parametrize("value", [0.0, 0.1, 3.3e7])
def test_identical_scores_give_exactly_zero(rng, variance, value):
    signs = lf.draw_signs(rng, 12, 10)
    scores = np.full((12, 10, 3), value, np.float32) + np.arange(3, dtype=np.float32)
    llr = batchwise_llr(fit_batchwise(scores, signs, variance=variance), scores)
    assert (llr == 0).all()
    table = np.broadcast_to(scores[0], (6, 5, 10, 3))
    likelihoods = joint_log_likelihoods(fit_joint(table, variance=variance), scores)
    assert (likelihoods == likelihoods[:, :1]).all()


def test_broken_calibration_scores_are_left_out(rng):
    signs, calibration = simulate(rng, runs=20, m=8)
    broken = calibration.copy()
    broken[3, 2, 1], broken[5, 0, 0] = np.nan, np.inf
    fit = fit_batchwise(broken, signs)
    keep = np.arange(20) != 3
    side = signs[:, 2] > 0
    assert fit.mean_in[2, 1] == pytest.approx(calibration[keep & side, 2, 1].mean())
    untouched = fit_batchwise(calibration, signs)
    assert fit.mean_out[4, 0] == untouched.mean_out[4, 0]
    assert np.isfinite(batchwise_llr(fit, calibration)).all()


def test_an_example_without_one_side_is_named(rng):
    signs, calibration = simulate(rng, runs=20, m=8)
    calibration[signs[:, 5] > 0, 5, 1] = np.nan
    with pytest.raises(InputError, match="IN calibration score .* batch 5, example 1"):
        fit_batchwise(calibration, signs)
    with pytest.raises(InputError, match="OUT calibration score .* batch 0, example 0"):
        fit_batchwise(calibration, np.ones_like(signs))
    table = rng.normal(size=(6, 5, 4, 2))
    table[3, :, 1, 0] = np.nan
    with pytest.raises(InputError, match="sign vector 3, batch 1, example 0"):
        fit_joint(table)


def test_broken_evaluation_scores_add_nothing(rng):
    signs, calibration = simulate(rng)
    scores = simulate(rng, runs=3)[1]
    broken = scores.copy()
    broken[1, 4, 0], broken[2, 7] = np.nan, [np.inf, 1e200]
    fit = fit_batchwise(calibration, signs)
    llr, clean = batchwise_llr(fit, broken), batchwise_llr(fit, scores)
    only_second = batchwise_llr(fit_batchwise(calibration[..., 1:], signs), scores[..., 1:])
    assert llr[1, 4] == pytest.approx(only_second[1, 4]) and np.isfinite(llr).all()
    untouched = np.ones_like(llr, bool)
    untouched[1, 4] = untouched[2, 7] = False
    np.testing.assert_array_equal(llr[untouched], clean[untouched])


@pytest.mark.parametrize("variance", ["pooled", "per_example"])
def test_joint_against_a_loop(rng, variance):
    calibration, scores = rng.normal(size=(6, 8, 4, 2)), rng.normal(size=(3, 4, 2))
    got = joint_log_likelihoods(fit_joint(calibration, variance=variance), scores)
    deviations = calibration - calibration.mean(axis=1, keepdims=True)
    for v in range(6):
        sd = np.sqrt((deviations**2).mean(axis=(0, 1))) if variance == "pooled" else calibration[v].std(axis=0)
        expected = norm.logpdf(scores, calibration[v].mean(axis=0), sd).sum(axis=(1, 2))
        shared = 0.5 * 8 * np.log(2 * np.pi)
        np.testing.assert_allclose(got[:, v] - shared, expected, rtol=1e-9)


def test_joint_finds_the_sign_vector(rng):
    vectors = design.sign_vectors(4)
    calibration = rng.normal(size=(6, 30, 4, 3)) + 3 * (vectors > 0)[:, None, :, None]
    truth = rng.integers(0, 6, size=20)
    scores = rng.normal(size=(20, 4, 3)) + 3 * (vectors[truth] > 0)[:, :, None]
    table = joint_log_likelihoods(fit_joint(calibration), scores)
    assert (table.argmax(axis=1) == truth).mean() > 0.9
    broken = scores.copy()
    broken[0] = np.nan
    assert (joint_log_likelihoods(fit_joint(calibration), broken)[0] == 0).all()


def test_refusals(rng):
    signs, calibration = simulate(rng, runs=6, m=4)
    with pytest.raises(InputError, match="pooled"):
        fit_batchwise(calibration, signs, variance="poled")
    with pytest.raises(InputError, match="shape"):
        fit_batchwise(calibration[:, :, 0], signs)
    with pytest.raises(InputError, match="signs of shape"):
        fit_batchwise(calibration, signs[:-1])
    with pytest.raises(InputError, match="floor"):
        fit_batchwise(calibration, signs, floor=0.0)
    with pytest.raises(InputError, match="as in the fit"):
        batchwise_llr(fit_batchwise(calibration, signs), calibration[:, :3])
