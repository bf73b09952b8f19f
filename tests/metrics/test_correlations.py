import numpy as np
import pytest
from scipy import stats

from jaxunlearn._validate import InputError
from jaxunlearn.metrics.correlation import correlate


def made(n=120, seed=0, within=0.0):
    """Groups whose means rise together in score and outcome; within a group, a correlation of ``within``."""
    rng = np.random.default_rng(seed)
    groups = np.array(["date", "mail", "place"])[rng.integers(0, 3, n)]
    means = 4.0 * np.unique(groups, return_inverse=True)[1]
    x = rng.normal(size=n)
    y = within * x + np.sqrt(1 - within**2) * rng.normal(size=n)
    return x + means, y + means, groups


def run(*args, resamples=100, seed=0, **options):
    return correlate(np.random.default_rng(seed), *args, resamples=resamples, **options)


@pytest.mark.parametrize("grid", [None, 1.0])  # with ties
def test_coefficients_against_scipy(grid):
    x, y, groups = made(within=0.5)
    if grid:
        x, y = np.round(x / grid), np.round(y / grid)
    z = y + np.random.default_rng(9).normal(size=len(x))
    found = run(x, y, groups=groups, baseline=z)
    assert found.pooled.pearson.value == pytest.approx(stats.pearsonr(x, y)[0])
    assert found.pooled.spearman.value == pytest.approx(stats.spearmanr(x, y)[0])
    assert found.pooled.count == 120 and sorted(found.by_group) == ["date", "mail", "place"]
    for name, part in found.by_group.items():
        rows = groups == name
        assert part.count == rows.sum()
        assert part.pearson.value == pytest.approx(stats.pearsonr(x[rows], y[rows])[0])
        assert part.spearman.value == pytest.approx(stats.spearmanr(x[rows], y[rows])[0])
    residuals = [v - np.polyval(np.polyfit(z, v, 1), z) for v in (x, y)]
    assert found.partial.pearson.value == pytest.approx(stats.pearsonr(*residuals)[0])
    rx, ry, rz = (stats.rankdata(v) for v in (x, y, z))
    residuals = [v - np.polyval(np.polyfit(rz, v, 1), rz) for v in (rx, ry)]
    assert found.partial.spearman.value == pytest.approx(stats.pearsonr(*residuals)[0])
    assert found.baseline.pearson.value == pytest.approx(stats.pearsonr(z, y)[0])
    assert found.gain.spearman.value == pytest.approx(found.pooled.spearman.value - found.baseline.spearman.value)


def test_what_lies_between_groups_alone_is_gone_within():
    x, y, groups = made(n=400)
    found = run(x, y, groups=groups)
    assert found.pooled.pearson.low > 0.8 and found.pooled.spearman.low > 0.7
    for estimate in (found.within.pearson, found.within.spearman):
        assert abs(estimate.value) < 0.12 and estimate.low < 0.05 and estimate.high < 0.25
    centred = [v - np.array([v[groups == g].mean() for g in groups]) for v in (x, y)]
    assert found.within.pearson.value == pytest.approx(stats.pearsonr(*centred)[0])


def test_one_group_within_is_the_same_as_pooled():
    x, y, _ = made(within=0.4)
    found = run(x, y, groups=["one"] * len(x))
    assert found.by_group["one"] == found.pooled
    for kind in ("pearson", "spearman"):
        within, pooled = (getattr(part, kind) for part in (found.within, found.pooled))
        assert (within.value, within.low, within.high) == pytest.approx((pooled.value, pooled.low, pooled.high))


def test_a_strong_baseline_leaves_nothing_partial_and_no_gain():
    rng = np.random.default_rng(0)
    z = rng.normal(size=400)
    x, y = z + rng.normal(size=400), -z + 0.1 * rng.normal(size=400)  # both follow z
    found = run(x, y, baseline=z)
    assert found.pooled.pearson.high < -0.5 and found.partial.pearson.low < 0 < found.partial.pearson.high
    assert found.gain.pearson.high < 0  # of magnitudes, whatever the signs
    assert run(y, x, baseline=rng.normal(size=400)).gain.pearson.low > 0


def test_intervals_are_percentiles_of_seeded_resamples():
    x, y, _ = made(n=30)
    rng, samples = np.random.default_rng(4), []
    for _ in range(200):
        rows = rng.integers(0, 30, 30)
        samples.append(stats.pearsonr(x[rows], y[rows])[0])
    found = run(x, y, resamples=200, seed=4, level=0.9).pooled.pearson
    np.testing.assert_allclose([found.low, found.high], np.quantile(samples, [0.05, 0.95]))
    assert found == run(x, y, resamples=200, seed=4, level=0.9).pooled.pearson
    assert found != run(x, y, resamples=200, seed=5, level=0.9).pooled.pearson


def test_rows_of_a_person_are_drawn_together():
    x, y, _ = made(n=40, within=0.5)
    plain, fourfold = run(x, y, resamples=400), run(np.repeat(x, 4), np.repeat(y, 4), resamples=400)
    people = np.repeat(np.arange(40), 4)
    together = run(np.repeat(x, 4), np.repeat(y, 4), clusters=people, resamples=400)

    def width(found):
        return found.pooled.spearman.high - found.pooled.spearman.low

    assert width(fourfold) < 0.65 * width(plain)  # copies feign certainty
    assert width(together) == pytest.approx(width(plain), rel=0.25)
    order = np.random.default_rng(0).permutation(160)
    shuffled = run(np.repeat(x, 4)[order], np.repeat(y, 4)[order], clusters=people[order], resamples=400)
    np.testing.assert_allclose(width(shuffled), width(together), rtol=1e-6)


def test_small_or_constant_groups_have_no_coefficient_of_their_own():
    x, y, groups = made()
    groups[:2], groups[2:8], y[2:8] = "few", "flat", 1.0
    assert sorted(run(x, y, groups=groups).by_group) == ["date", "mail", "place"]


def test_refusals():
    x, y, groups = made(n=10)
    for call, says in (
        (lambda: run(x[:2], y[:2]), "rows=2"),
        (lambda: run(x, y[:9]), "outcome"),
        (lambda: run(x, np.ones(10)), "outcome to vary"),
        (lambda: run(np.where(x > x.mean(), np.inf, x), y), "finite score"),
        (lambda: run(x, y, baseline=y[:3]), "baseline"),
        (lambda: run(x, y, groups=groups[:3]), "groups"),
        (lambda: run(x, y, clusters=[1]), "clusters"),
        (lambda: run(x, y, resamples=10), "resamples"),
        (lambda: run(x, y, level=1.0), "level"),
    ):
        with pytest.raises(InputError, match=says):
            call()
