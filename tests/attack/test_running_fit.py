"""Running moments against the refit over all runs so far."""

import dataclasses

import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.attack.likelihood import batchwise_llr, fit_batchwise
from jaxunlearn.attack.running import RunningFit
from jaxunlearn.audit.least_favourable import draw_signs


@pytest.mark.parametrize("variance", ["pooled", "per_example"])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_equal_to_the_refit_after_every_run(variance, offset):
    rng = np.random.default_rng(0)
    runs, m, batch = 20, 6, 3
    signs = draw_signs(rng, runs, m)
    scores = offset + rng.normal(size=(runs, m, batch)) * rng.uniform(0.1, 5, (m, batch)) + (signs > 0)[..., None]
    scores[7, 2], scores[9] = np.nan, np.inf
    running = RunningFit(m, batch, variance=variance)
    compared = 0
    for run in range(runs):
        running.add(scores[run], signs[run])
        try:
            whole = fit_batchwise(scores[: run + 1], signs[: run + 1], variance=variance)
        except InputError:
            continue
        found, compared = running.fit(), compared + 1
        for field in dataclasses.fields(whole):
            a, b = getattr(found, field.name), getattr(whole, field.name)
            if field.name in ("variance", "correlations"):
                assert a == b
            else:
                np.testing.assert_allclose(a, b, rtol=1e-9 if offset == 0 else 1e-6, atol=1e-12)
        if offset == 0:  # variances at the floor turn rounding of 1e6 into anything
            np.testing.assert_allclose(batchwise_llr(found, scores), batchwise_llr(whole, scores), rtol=1e-6, atol=1e-9)
    assert compared > 10


def test_constant_scores_give_exactly_zero():
    rng = np.random.default_rng(1)
    signs, score = draw_signs(rng, 30, 8), rng.normal(size=(8, 2))
    running = RunningFit(8, 2)
    for row in signs:
        running.add(score, row)
    assert not batchwise_llr(running.fit(), score[None]).any()


@pytest.mark.parametrize("variance", ["pooled", "per_example"])
def test_an_example_seen_on_one_side_only_says_nothing(variance):
    running = RunningFit(4, 1, variance=variance)
    assert not batchwise_llr(running.fit(), np.ones((1, 4, 1))).any()
    running.add([[3.0], [4.0], [-3.0], [0.0]], [1, 1, -1, -1])
    running.add([[-3.0], [5.0], [3.0], [1.0]], [-1, 1, 1, -1])
    llr = batchwise_llr(running.fit(), np.full((1, 4, 1), 2.0))[0]
    assert llr[1] == llr[3] == 0 and llr[0] > 0 < llr[2]


def test_wrong_shapes_are_refused():
    running = RunningFit(4, 2)
    with pytest.raises(InputError, match=r"\(4, 2\)"):
        running.add(np.zeros((4, 1)), np.ones(4))
    with pytest.raises(InputError, match="signs"):
        running.add(np.zeros((4, 2)), np.ones(3))
    with pytest.raises(InputError, match="pooled"):
        RunningFit(4, 2, variance="poled")
