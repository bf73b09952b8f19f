"""The e-process run by run: claims, ceilings, hand values."""

import math

import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.audit import _tails, bounds, design
from jaxunlearn.audit import least_favourable as lf
from jaxunlearn.audit.sequential import EProcess, ceiling

ZETA = 0.05


def followed(log_p, **levels):
    process = EProcess(**{"m": 40, "zeta": ZETA, **levels})
    for value in log_p:
        process.update(value)
    return process


def test_the_evidence_of_one_run_by_hand():
    """The mixture over kappa of kappa q^(kappa - 1) is (1 / q - 1 + log q) / log(q)^2, q = e^epsilon p."""
    q = math.exp(2.0 - 6.0)
    assert followed([-6.0]).log_e_value(2.0) == pytest.approx(math.log((1 / q - 1 + math.log(q)) / math.log(q) ** 2))


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_run_by_run_is_the_whole_path(delta):
    log_p = lf.draw_log_p_values(np.random.default_rng(3), 40, m=40, epsilon=3.0, delta=delta)
    process = followed(log_p, delta=delta)
    whole = bounds.e_process(log_p, m=40, zeta=ZETA, delta=delta)
    assert tuple(process.path) == whole.path and process.bound() == whole
    assert (np.diff(process.path) >= 0).all() and process.epsilon > 0


def test_a_claim_falls_when_its_evidence_first_reaches_the_level_and_not_before():
    log_p = -np.random.default_rng(4).uniform(0, 14, 30)
    process = EProcess(m=40, zeta=ZETA)
    claims, reached = np.linspace(0.05, 20, 60), np.zeros(60, bool)
    for value in log_p:
        bound = process.update(value)
        reached |= [process.log_e_value(claim) >= math.log(1 / ZETA) for claim in claims]
        np.testing.assert_array_equal(bound > claims, reached)
    assert 5 < reached.sum() < 60


def test_no_evidence_falsifies_no_claim():
    process = followed(np.zeros(50))
    assert process.epsilon == 0.0 and process.log_e_value(0.0) < 0


@pytest.mark.parametrize("m", [6, 20, 400])
def test_ceilings_are_those_of_perfect_guesses_and_grow(m):
    values = [ceiling(n, m=m, zeta=ZETA) for n in range(1, 40)]
    assert (np.diff(values) >= 0).all() and values[-1] > 0
    perfect = np.full(39, -design.log_support(m))
    assert bounds.e_process(perfect, m=m, zeta=ZETA).epsilon == pytest.approx(values[-1], abs=1e-8)
    if m > 6:  # epsilon is large enough for T(p) = e^epsilon p
        total = 39 * (design.log_support(m) - values[-1])
        assert _tails.log_beta_mixture(total, 39) == pytest.approx(math.log(1 / ZETA), abs=1e-4)


def test_refusals():
    with pytest.raises(InputError, match="runs=0"):
        ceiling(0, m=6, zeta=ZETA)
    with pytest.raises(InputError, match="log_p_values"):
        followed([0.1])
    with pytest.raises(InputError, match="zeta"):
        EProcess(m=6, zeta=0.0)
