"""What theory proves, for auditors: the functions live below the methods that are configured by them."""

from jaxunlearn.certificates import clipping_epsilon, log_theta, noisy_steps

__all__ = ["clipping_epsilon", "log_theta", "noisy_steps"]
