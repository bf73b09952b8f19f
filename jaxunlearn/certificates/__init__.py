"""What theory proves: functions from the parameters of a certified method to (epsilon, delta), and back.

``clipping``: model clipping. ``gaussian``: the Gaussian mechanism, exactly. ``sensitivity``: how far apart the outputs of
rewinding, perturbed Newton and output perturbation can be before noise; with ``gaussian_sigma`` that gives the noise that
reaches a target, with ``gaussian_epsilon`` what a given noise proves. NumPy and SciPy only.
"""

from jaxunlearn.certificates.clipping import clipping_epsilon, noisy_steps
from jaxunlearn.certificates.gaussian import gaussian_delta, gaussian_epsilon, gaussian_sigma, log_theta
from jaxunlearn.certificates.sensitivity import newton_bound, output_perturbation_sensitivity, rewind_sensitivity

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
