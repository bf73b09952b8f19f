"""CKA against naive Gram matrices, against the definition of HSIC_1 over tuples, and where it must be near 0."""

import itertools

import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.metrics.similarity import (
    cka_by_layer,
    cka_of_moments,
    gather,
    linear_cka,
    minibatch_cka,
    scored_states,
    standardised,
)


def naive(x, y, estimator):
    """Through n x n matrices, with the centring matrix (biased) or Song et al.'s formula with explicit ones."""
    n, ones = len(x), np.ones(len(x))

    def hsic(a, b):
        k, l_ = a @ a.T, b @ b.T
        if estimator == "biased":
            h = np.eye(n) - np.ones((n, n)) / n
            return np.trace(k @ h @ l_ @ h)
        k, l_ = k * (1 - np.eye(n)), l_ * (1 - np.eye(n))
        total = np.trace(k @ l_) + (ones @ k @ ones) * (ones @ l_ @ ones) / (n - 1) / (n - 2)
        return (total - 2 / (n - 2) * ones @ k @ l_ @ ones) / n / (n - 3)

    return hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y))


def made(n, d, e, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x + offset, x[:, : min(d, e)] @ rng.normal(size=(min(d, e), e)) + rng.normal(size=(n, e)) - offset


@pytest.mark.parametrize("estimator", ["debiased", "biased"])
@pytest.mark.parametrize("n, d, e", [(30, 5, 7), (12, 40, 20), (16, 8, 40), (4, 3, 2)])
def test_three_ways_against_the_naive_one(n, d, e, estimator):
    x, y = made(n, d, e, offset=3.0)
    expected = naive(x, y, estimator)
    moments = None
    for rows in np.array_split(np.arange(n), 3):  # uneven batches
        moments = gather(moments, x[rows], y[rows])
    assert moments.n == n
    assert cka_of_moments(moments, estimator=estimator) == pytest.approx(expected, abs=1e-11)
    assert linear_cka(x, y, estimator=estimator) == pytest.approx(expected, abs=1e-11)
    if estimator == "debiased":
        assert minibatch_cka([(x, y)]) == pytest.approx(expected, abs=1e-11)


def test_debiased_hsic_is_the_mean_over_all_tuples_of_different_examples():
    x, y = made(6, 3, 2)
    k, l_ = x @ x.T, y @ y.T

    def u_statistic(k, l_):
        terms = [k[i, j] * (l_[i, j] + l_[q, r] - 2 * l_[i, q]) for i, j, q, r in itertools.permutations(range(6), 4)]
        return np.mean(terms)

    expected = u_statistic(k, l_) / np.sqrt(u_statistic(k, k) * u_statistic(l_, l_))
    assert linear_cka(x, y) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n, biased", [(50, 0.984), (100, 0.968)])
def test_independent_normal_representations_of_width_3072(n, biased):
    x, y = (np.random.default_rng(seed).normal(size=(n, 3072)) for seed in (0, 1))
    assert linear_cka(x, y, estimator="biased") == pytest.approx(biased, abs=1e-3)
    assert abs(linear_cka(x, y)) < 0.02


def test_wide_and_narrow_agree_on_independence():
    x, y = (np.random.default_rng(seed).normal(size=(2000, 20)) for seed in (0, 1))
    assert abs(linear_cka(x, y)) < 5e-3


def test_does_not_see_rotation_scale_and_shift():
    x, _ = made(40, 6, 6)
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(6, 6)))[0]
    for estimator in ("debiased", "biased"):
        assert linear_cka(x, 7 * x @ rotation + 11, estimator=estimator) == pytest.approx(1, abs=1e-12)


def test_a_far_offset_costs_no_precision_in_one_pass():
    x, y = made(300, 5, 5)
    shift = np.array([1e6, 0, 0, 0, 0])
    moments = None
    for i in range(0, 300, 50):
        moments = gather(moments, x[i : i + 50] + shift, y[i : i + 50] - shift)
    assert cka_of_moments(moments) == pytest.approx(naive(x, y, "debiased"), abs=1e-9)


def test_minibatches_are_summed_before_the_division():
    x, y = made(1024, 64, 64, seed=5)
    batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 1024, 16)]
    whole = linear_cka(x, y)
    assert minibatch_cka(batches) == pytest.approx(whole, abs=0.03)
    means_of_biased = np.mean([linear_cka(a, b, estimator="biased") for a, b in batches])
    assert means_of_biased > whole + 0.15


def test_standardising_takes_the_say_from_a_shared_outlier():
    x, y = (np.random.default_rng(seed).normal(size=(200, 10)) for seed in (0, 1))
    x[:, 3] = y[:, 4] = 1000 + 50 * np.random.default_rng(2).normal(size=200)
    assert linear_cka(x, y) > 0.95
    assert linear_cka(x, y, standardise=True) < 0.2
    scaled = standardised(np.column_stack([x[:, 3], np.full(200, 0.1)]))
    np.testing.assert_allclose([scaled[:, 0].mean(), scaled[:, 0].std()], [0, 1], atol=1e-12)
    assert not scaled[:, 1].any()


def test_layers_one_by_one():
    x, y = np.stack([made(20, 4, 4, seed)[0] for seed in range(3)]), np.stack([made(20, 4, 4, s)[1] for s in range(3)])
    expected = [linear_cka(a, b) for a, b in zip(x, y)]
    np.testing.assert_allclose(cka_by_layer(x, y), expected)
    with pytest.raises(InputError, match="as many layers"):
        cka_by_layer(x, y[:2])


def test_scored_states_are_the_tokens_with_labels_but_for_the_first():
    states = np.arange(2 * 2 * 3 * 2).reshape(2, 2, 3, 2)
    labels = np.array([[5, -100, 7], [-100, 2, -1]])
    chosen = scored_states(states, labels)
    assert chosen.tolist() == [[states[i, 0, 2].tolist(), states[i, 1, 1].tolist()] for i in range(2)]
    assert scored_states(states, labels, skip_first=False).shape == (2, 3, 2)
    with pytest.raises(InputError, match="labels"):
        scored_states(states, labels.T)


def test_refusals():
    x, y = made(10, 3, 3)
    for call, says in (
        (lambda: linear_cka(x, y[:9]), "same n"),
        (lambda: linear_cka(x[:3], y[:3]), "at least 4"),
        (lambda: linear_cka(x[:1], y[:1], estimator="biased"), "at least 2"),
        (lambda: linear_cka(np.full_like(x, 0.1), y), "vary"),
        (lambda: linear_cka(np.full((2, 3), 0.1), y[:2], estimator="biased"), "vary"),
        (lambda: linear_cka(x * np.nan, y), "finite"),
        (lambda: linear_cka(x, y, estimator="unbiased"), "Did you mean"),
        (lambda: minibatch_cka([]), "got none"),
        (lambda: minibatch_cka([(x, y), (x[:3], y[:3])]), "at least 4"),
    ):
        with pytest.raises(InputError, match=says):
            call()
