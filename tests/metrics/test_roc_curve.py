import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from jaxunlearn._validate import InputError
from jaxunlearn.metrics.roc import auc, roc_curve, tpr_at_fpr


@pytest.mark.parametrize("grid", [2, 5, 10_000])
def test_auc_against_pairs_and_an_independent_implementation(grid):
    rng = np.random.default_rng(grid)
    inside, outside = rng.integers(0, grid, 60) + 1, rng.integers(0, grid, 40)
    pairs = np.sign(inside[:, None] - outside[None, :])
    assert auc(inside, outside) == pytest.approx(((pairs + 1) / 2).mean())
    labels = np.repeat([1, 0], [60, 40])
    assert auc(inside, outside) == pytest.approx(roc_auc_score(labels, np.concatenate([inside, outside])))
    fpr, tpr = roc_curve(inside, outside)
    assert np.trapezoid(tpr, fpr) == pytest.approx(auc(inside, outside))
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert (np.diff(fpr) >= 0).all() and (np.diff(tpr) >= 0).all()


def test_limits():
    assert auc([2.0, 3.0], [0.0, 1.0]) == 1.0 and auc([0.0], [1.0]) == 0.0 and auc([1.0, 1.0], [1.0]) == 0.5
    assert auc([np.inf], [-np.inf]) == 1.0


def test_true_positives_by_trying_every_threshold():
    rng = np.random.default_rng(0)
    for _ in range(50):
        inside, outside = rng.integers(0, 12, 25), rng.integers(0, 10, 20)
        for fpr in (0.0, 0.05, 0.1, 0.15, 0.5, 1.0):
            thresholds = np.concatenate([[-np.inf], np.unique(np.concatenate([inside, outside]))])
            allowed = [t for t in thresholds if (outside > t).mean() <= fpr + 1e-12]
            best = max((inside > t).sum() for t in allowed)
            assert tpr_at_fpr(inside, outside, fpr=fpr) == (best, 25)


def test_ties_count_as_out():
    assert tpr_at_fpr([1.0, 1.0], [1.0, 0.0], fpr=0.0) == (0, 2)
    assert tpr_at_fpr([1.0, 1.0], [1.0, 0.0], fpr=1.0) == (2, 2)
    assert tpr_at_fpr([1.0], np.arange(10) / 10, fpr=0.1 + 0.2 - 0.2) == (1, 1)


def test_refusals():
    for call in (
        lambda: auc([], [1.0]),
        lambda: auc([np.nan], [1.0]),
        lambda: roc_curve([1.0], []),
        lambda: tpr_at_fpr([1.0], [0.0], fpr=1.5),
    ):
        with pytest.raises(InputError):
            call()
