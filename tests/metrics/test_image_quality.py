"""Inception Score, FID and L1 against hand values, limits and a naive oracle."""

import numpy as np
import pytest
from scipy import linalg

from jaxunlearn._validate import InputError
from jaxunlearn.metrics import images

rng = np.random.default_rng(0)


def naive(a, b):
    """As the formula stands, with the general square root of a matrix."""
    mixed = linalg.sqrtm(np.cov(a, rowvar=False) @ np.cov(b, rowvar=False))
    difference = a.mean(0) - b.mean(0)
    return difference @ difference + np.trace(np.cov(a, rowvar=False) + np.cov(b, rowvar=False) - 2 * mixed.real)


def test_fid_is_the_formula_with_a_general_square_root():
    mixing = rng.normal(size=(5, 5))
    a, b = rng.normal(size=(60, 5)), rng.normal(size=(40, 5)) @ mixing + 0.3
    assert images.frechet_distance(a, b) == pytest.approx(naive(a, b), rel=1e-9)
    assert images.frechet_distance(b, a) == pytest.approx(naive(a, b), rel=1e-9)
    moments = [part for x in (a, b) for part in (x.mean(0), np.cov(x, rowvar=False))]
    assert images.frechet_distance_of_moments(*moments) == pytest.approx(naive(a, b), rel=1e-9)


def test_fid_in_one_dimension_by_hand():
    a, b = np.array([[0.0], [2.0]]), np.array([[1.0], [7.0]])  # means 1 and 4, variances 2 and 18
    assert images.frechet_distance(a, b) == pytest.approx(9 + (np.sqrt(18) - np.sqrt(2)) ** 2)


def test_fid_of_fewer_images_than_features():
    a, b = rng.normal(size=(6, 40)), rng.normal(size=(9, 40)) + 0.1
    moments = [part for x in (a, b) for part in (x.mean(0), np.cov(x, rowvar=False))]
    # A small ridge makes the general square root meaningful; without one it returns complex rubbish.
    ridge = 1e-10 * np.eye(40)
    root = linalg.sqrtm((moments[1] + ridge) @ (moments[3] + ridge))
    gap = moments[0] - moments[2]
    expected = gap @ gap + np.trace(moments[1] + moments[3] - 2 * root.real)
    assert images.frechet_distance(a, b) == pytest.approx(expected, rel=1e-4)
    # A rounded covariance's eigenvalues of 0 are some 1e-16, of which the root is taken.
    assert images.frechet_distance_of_moments(*moments) == pytest.approx(images.frechet_distance(a, b), rel=1e-7)


@pytest.mark.parametrize("shape", [(50, 4), (5, 30)])
def test_fid_of_a_set_and_itself_is_nothing_and_a_shift_its_square(shape):
    a = 10 * rng.normal(size=shape)
    assert images.frechet_distance(a, a) == pytest.approx(0, abs=1e-9)
    assert images.frechet_distance(a, a[::-1]) == pytest.approx(0, abs=1e-9)
    assert images.frechet_distance(a, a + 2.0) == pytest.approx(4 * shape[1], rel=1e-9)
    # Twice as wide: the covariance is 4 C, its root with C is 2 C, and C + 4 C - 4 C remains.
    wide = a.mean(0) + 2 * (a - a.mean(0))
    assert images.frechet_distance(a, wide) == pytest.approx(np.trace(np.cov(a, rowvar=False)), rel=1e-9)


def test_inception_score_of_sure_and_unsure_predictions():
    sure = np.eye(4)[np.tile(np.arange(4), 20)]
    assert images.inception_score(sure) == pytest.approx((4.0, 0.0))
    assert images.inception_score(np.full((20, 4), 0.25)) == pytest.approx((1.0, 0.0))
    assert images.inception_score(np.eye(4)[[2] * 20]).mean == pytest.approx(1.0)  # sure but without variety
    two = np.eye(4)[np.repeat([0, 1], 10)]  # parts see one class each, all together two
    assert images.inception_score(two, splits=2) == pytest.approx((1.0, 0.0))
    assert images.inception_score(two, splits=1).mean == pytest.approx(2.0)


def test_inception_score_by_hand():
    p = np.array([[0.9, 0.1], [0.5, 0.5], [1.0, 0.0]])
    mean = p.mean(0)
    divergences = [sum(q * np.log(q / m) for q, m in zip(row, mean) if q > 0) for row in p]
    assert images.inception_score(p, splits=1).mean == pytest.approx(np.exp(np.mean(divergences)))
    parts = images.inception_score(np.concatenate([p, np.full((3, 2), 0.5)]), splits=2)
    first = np.exp(np.mean(divergences))
    assert parts == pytest.approx(((first + 1) / 2, (first - 1) / 2))


def test_l1_by_hand():
    a, b = np.zeros((2, 2, 2, 1)), np.zeros((2, 2, 2, 1))
    b[0, 0, 0], b[1] = 1.0, -0.5
    assert images.l1(a, b).tolist() == [0.25, 0.5] and images.l1(a, a).tolist() == [0, 0]


def test_what_does_not_fit_is_refused():
    good = rng.normal(size=(5, 3))
    with pytest.raises(InputError, match="got 3 and 2; take both from one network"):
        images.frechet_distance(good, good[:, :2])
    with pytest.raises(InputError, match="features_b of at least two images, got 1"):
        images.frechet_distance(good, good[:1])
    with pytest.raises(InputError, match="features_a to be finite"):
        images.frechet_distance(good * np.nan, good)
    mean, covariance = good.mean(0), np.cov(good, rowvar=False)
    with pytest.raises(InputError, match="covariance_b to be symmetric"):
        images.frechet_distance_of_moments(mean, covariance, mean, np.triu(covariance, 1) + np.eye(3))
    with pytest.raises(InputError, match="covariance_a without negative eigenvalues"):
        images.frechet_distance_of_moments(mean, covariance - 5 * np.eye(3), mean, covariance)
    with pytest.raises(InputError, match=r"mean_b of shape \(3\), got \(2,\)"):
        images.frechet_distance_of_moments(mean, covariance, mean[:2], covariance)
    with pytest.raises(InputError, match="splits=10 <= 4"):
        images.inception_score(np.full((4, 2), 0.5))
    with pytest.raises(InputError, match="sum to 1; take the softmax"):
        images.inception_score(np.ones((20, 2)))
    with pytest.raises(InputError, match="images of one shape"):
        images.l1(np.zeros((2, 3)), np.zeros((3, 2)))
