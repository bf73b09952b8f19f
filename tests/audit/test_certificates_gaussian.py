"""The Gaussian mechanism against 60-digit values, an integral that knows nothing of Phi, and its own inverse."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from jaxunlearn._validate import InputError
from jaxunlearn.audit.certificates import gaussian_delta, gaussian_epsilon, gaussian_sigma, log_theta

# sigma at sensitivity 1, by bisection in 60 decimal digits (mpmath).
SIGMAS = {
    (0.0, 0.01): 39.893183581616519,
    (0.1, 0.01): 9.5418230888288551,
    (0.5, 0.5): 0.59091759925878091,
    (1.0, 1e-5): 3.7306316348159418,
    (1.0, 1e-100): 21.009409042300621,
    (10.0, 1e-5): 0.49988861970900851,
    (100.0, 1e-10): 0.10876042602012664,
    (800.0, 0.01): 0.026479228528497055,
    (1e5, 1e-5): 0.0022574827698998383,
}


@pytest.mark.parametrize(("claim", "exact"), SIGMAS.items())
def test_sigma_is_that_of_sixty_digits_rounded_up(claim, exact):
    epsilon, delta = claim
    sigma = gaussian_sigma(epsilon, delta, 1.0)
    assert exact <= sigma <= exact * (1 + 1e-10)
    if epsilon > 0:
        proven = gaussian_epsilon(exact, delta, 1.0)
        assert epsilon <= proven <= epsilon * (1 + 1e-10)


def test_tiny_delta_and_epsilon_lose_digits_on_the_safe_side():
    exact = 4122525.4027566016
    assert exact <= gaussian_sigma(1e-6, 1e-12, 1.0) <= exact * (1 + 1e-6)
    for epsilon in (0.0, 5e-324, 1e-30):  # then delta is the total variation, erf(1 / (sigma sqrt(8)))
        assert gaussian_sigma(epsilon, 1e-16, 1.0) == pytest.approx(1 / (math.sqrt(2 * math.pi) * 1e-16), rel=1e-12)
        assert 0 < gaussian_sigma(epsilon, 1e-300, 1.0) < math.inf
    with pytest.raises(InputError, match="rescale"):
        gaussian_sigma(0.0, 1e-300, 1e100)


@pytest.mark.parametrize(("epsilon", "ratio"), [*itertools.product((0.0, 0.3, 2.0, 9.0), (0.2, 1.0, 4.0))])
def test_delta_is_the_integral_of_what_exceeds(epsilon, ratio):
    """The integral of max(0, p - e^epsilon q) for p = N(ratio, 1), q = N(0, 1)."""
    start = epsilon / ratio + ratio / 2  # p exceeds e^epsilon q from here on
    exceeds = quad(
        lambda x: norm.pdf(x, ratio) - math.exp(epsilon) * norm.pdf(x), start, start + 40, epsabs=0, epsrel=1e-11
    )[0]
    assert gaussian_delta(1 / ratio, epsilon, 1.0) == pytest.approx(exceeds, rel=1e-9)
    assert gaussian_delta(1 / ratio, epsilon, 1.0) >= math.exp(log_theta(epsilon, ratio)) * (1 - 1e-15)


def test_no_event_of_real_draws_exceeds_what_is_proven():
    """Frequencies of half lines under both laws: p(E) <= e^epsilon q(E) + delta, and near equality for the best one."""
    rng = np.random.default_rng(0)
    draws, delta = 400_000, 0.05
    sigma = gaussian_sigma(1.5, delta, 2.0)
    p, q = 2.0 + sigma * rng.normal(size=draws), sigma * rng.normal(size=draws)
    cuts = np.linspace(-3 * sigma, 2 + 3 * sigma, 60)
    excess = [(p >= c).mean() - math.exp(1.5) * (q >= c).mean() for c in cuts]
    noise = 4 * math.sqrt((1 + math.exp(3.0)) / draws)
    assert delta - noise < max(excess) < delta + noise


def test_limits_and_scale():
    assert gaussian_sigma(1.0, 1e-5, 0.0) == 0 and gaussian_epsilon(1.0, 1e-5, 0.0) == 0
    assert gaussian_delta(1.0, 0.5, 0.0) == 0
    assert gaussian_delta(1.0, 0.0, 2.0) == pytest.approx(norm.cdf(1) - norm.cdf(-1))  # the total variation
    assert gaussian_epsilon(100.0, 0.01, 1.0) == 0  # total variation .00399
    for scale in (1e-100, 1e-5, 1e100):
        assert gaussian_sigma(1.0, 1e-5, scale) == pytest.approx(3.7306316348159418 * scale)
        assert gaussian_epsilon(3.7306316348159418 * scale, 1e-5, scale) == pytest.approx(1.0)


def test_more_noise_proves_more():
    by_epsilon = [gaussian_sigma(e, 1e-5, 1.0) for e in (0.0, 1e-3, 0.1, 1.0, 10.0, 1e3)]
    by_delta = [gaussian_sigma(1.0, d, 1.0) for d in (1e-12, 1e-5, 0.1, 0.9)]
    assert all(np.diff(by_epsilon) < 0) and all(np.diff(by_delta) < 0)
    assert all(np.diff([gaussian_epsilon(s, 1e-5, 1.0) for s in (0.01, 0.1, 1.0, 10.0)]) < 0)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: gaussian_sigma(-1.0, 1e-5, 1.0), "epsilon=-1.0"),
        (lambda: gaussian_sigma(math.nan, 1e-5, 1.0), "epsilon=nan"),
        (lambda: gaussian_sigma(1.0, 0.0, 1.0), "delta=0.0"),
        (lambda: gaussian_sigma(1.0, 1.0, 1.0), "delta=1.0"),
        (lambda: gaussian_sigma(1.0, 1e-5, -1.0), "sensitivity=-1.0"),
        (lambda: gaussian_sigma(1.0, 1e-5, 1e308), "sensitivity=1e"),
        (lambda: gaussian_epsilon(0.0, 1e-5, 1.0), "sigma=0.0"),
        (lambda: gaussian_epsilon(1.0, 2.0, 1.0), "delta=2.0"),
        (lambda: gaussian_epsilon(1e-12, 1e-5, 1.0), "add noise"),
        (lambda: gaussian_delta(math.inf, 1.0, 1.0), "sigma=inf"),
    ],
)
def test_refusals(call, named):
    with pytest.raises(InputError, match=named):
        call()
