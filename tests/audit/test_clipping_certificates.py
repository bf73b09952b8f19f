import math

import numpy as np
import pytest
from scipy.stats import norm

from jaxunlearn._validate import InputError
from jaxunlearn.audit import certificates


def plain_steps(epsilon, delta, c0, c2, sigma, sigma0):
    """The recursion in plain doubles."""

    def theta(e, r):
        return norm.sf(e / r - r / 2) - math.exp(e) * norm.sf(e / r + r / 2)

    now, steps = (theta(epsilon, 2 * c0 / sigma0) if sigma0 else 1.0), 0
    while now > delta:
        now *= theta(math.log1p((math.exp(epsilon) - 1) / now), 2 * c2 / sigma)
        steps += 1
    return steps


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("sigma0", [0.0, 0.5])
def test_matches_the_plain_recursion(epsilon, ratio, sigma0):
    sizes = {"clip_initial": 1.0, "clip": ratio / 2, "sigma": 1.0, "sigma_initial": sigma0}
    expected = plain_steps(epsilon, 1e-5, 1.0, ratio / 2, 1.0, sigma0)
    assert certificates.noisy_steps(epsilon, 1e-5, **sizes) == expected


def test_published_settings():
    assert certificates.noisy_steps(10, 1e-5, clip_initial=30, clip=0.1, sigma=0.02) == 48004
    assert certificates.noisy_steps(1e5, 1e-5, clip_initial=30, clip=0.225, sigma=0.001) == 4013


@pytest.mark.parametrize(("epsilon", "ratio"), [(0.5, 1.0), (10.0, 6.0), (300.0, 20.0)])
def test_inverse(epsilon, ratio):
    sizes = {"clip_initial": 1.0, "clip": ratio / 2, "sigma": 1.0}
    steps = certificates.noisy_steps(epsilon, 1e-5, **sizes)
    proven = certificates.clipping_epsilon(steps, 1e-5, **sizes)
    assert proven <= epsilon * (1 + 1e-8)
    assert certificates.noisy_steps(proven, 1e-5, **sizes) <= steps
    assert certificates.noisy_steps(proven * (1 - 1e-6), 1e-5, **sizes) > steps
    more = certificates.clipping_epsilon(steps + 5, 1e-5, **sizes)
    assert more < proven


def test_monotone():
    sizes = {"clip_initial": 1.0, "clip": 1.0, "sigma": 1.0}
    by_epsilon = [certificates.noisy_steps(e, 1e-5, **sizes) for e in (0.1, 1.0, 10.0)]
    by_delta = [certificates.noisy_steps(1.0, d, **sizes) for d in (1e-9, 1e-5, 0.1)]
    assert by_epsilon == sorted(by_epsilon, reverse=True) and by_delta == sorted(by_delta, reverse=True)
    assert certificates.noisy_steps(1.0, 0.999999, **sizes) == 1


def test_theta_in_extreme_ranges():
    for epsilon in np.logspace(-6, 6, 25):
        for ratio in np.logspace(-3, 4, 15):
            value = certificates.log_theta(float(epsilon), float(ratio))
            assert value <= 0 and not math.isnan(value)
    assert certificates.log_theta(1.0, 1.0) == pytest.approx(math.log(norm.sf(0.5) - math.e * norm.sf(1.5)))


def test_initial_noise_can_be_enough():
    assert certificates.noisy_steps(1.0, 1e-5, clip_initial=1.0, clip=1.0, sigma=1.0, sigma_initial=100.0) == 0


def test_unreachable_is_refused():
    with pytest.raises(InputError, match="clip"):
        certificates.noisy_steps(10.0, 1e-5, clip_initial=30, clip=5.0, sigma=1e-4)
    with pytest.raises(InputError, match="steps=0"):
        certificates.clipping_epsilon(0, 1e-5, clip_initial=30, clip=1.0, sigma=1.0)
    for bad in ({"clip": 0.0}, {"sigma": -1.0}, {"sigma_initial": -1.0}):
        with pytest.raises(InputError, match=next(iter(bad))):
            certificates.noisy_steps(1.0, 1e-5, **{"clip_initial": 1.0, "clip": 1.0, "sigma": 1.0, **bad})
