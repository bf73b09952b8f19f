"""What theory proves, for auditors: the functions live below the methods that are configured by them."""

from jaxunlearn.certificates import (
    clipping_epsilon,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_sigma,
    log_theta,
    newton_bound,
    noisy_steps,
    output_perturbation_sensitivity,
    rewind_sensitivity,
)

__all__ = [
    "clipping_epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_sigma",
    "log_theta",
    "newton_bound",
    "noisy_steps",
    "output_perturbation_sensitivity",
    "rewind_sensitivity",
]
