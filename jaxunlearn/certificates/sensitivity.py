"""How far apart two noiseless outputs of a certified method can be: what its Gaussian noise has to hide.

The noise that reaches a target is ``gaussian_sigma(epsilon, delta, sensitivity)``; what a given noise proves is
``gaussian_epsilon(sigma, delta, sensitivity)``:

>>> from jaxunlearn.certificates import gaussian_epsilon, gaussian_sigma
>>> far = newton_bound(
...     forget_size=50, size=1050, strong_convexity=0.1875, lipschitz=10.515625, hessian_lipschitz=0.005
... )
>>> sigma = gaussian_sigma(1.0, 0.01, far)
>>> f"distance {far:.4f}, sigma {sigma:.4f}, proven epsilon {gaussian_epsilon(sigma, 0.01, far):.4f}"
'distance 0.3804, sigma 0.7143, proven epsilon 1.0000'
"""

import math

from jaxunlearn._validate import InputError, at_least, non_negative, positive, require


def _check_sizes(forget_size: int, size: int) -> None:
    at_least(1, size=size)
    at_least(0, forget_size=forget_size)
    require(
        forget_size < size,
        f"Expected forget_size={forget_size!r} < size={size!r}, because size counts the forget set and some examples "
        "have to stay.",
    )


def _finite(value: float, name: str, fix: str) -> float:
    if not math.isfinite(value):
        raise InputError(f"Expected a finite {name}, but it overflows a double; {fix}.")
    return value


def rewind_sensitivity(
    *,
    learning_rate: float,
    epochs: int,
    rewound: int,
    smoothness: float,
    gradient_bound: float,
    size: int,
    forget_size: int,
) -> float:
    """Distance of rewind-to-delete from training on the retain set alone.

    Delta = 2 m G h(K) / (L n) with h(K) = ((1 + eta L n / (n - m))^(T - K) - 1) (1 + eta L)^K. For L -> 0 it tends to
    2 m G eta (T - K) / (n - m).

    It holds for full-batch gradient descent at a constant step size on a loss that is L-smooth, with gradients of every
    example's loss bounded by G along the way. L and G that were estimated on the run itself prove nothing, and make the
    noise depend on the forget set.

    Args:
        learning_rate: eta, > 0.
        epochs: T, full-batch steps of training, >= 1.
        rewound: K in 0..T: the checkpoint K steps before the end is loaded and K steps on the retain set are taken.
        smoothness: L, Lipschitz constant of the gradient, >= 0; at 0 the limit is returned.
        gradient_bound: G, bound on the norm of every example's gradient, >= 0.
        size: n, training examples with the forget set.
        forget_size: m, examples to forget, 0 <= m < n.

    Returns:
        Delta >= 0, an l2 distance of parameters.

    Raises:
        InputError: An argument is out of range, or Delta overflows (it grows exponentially in T).

    References:
        Mu & Klabjan (2025), "Rewind-to-Delete: Certified Machine Unlearning for Nonconvex Functions",
        arXiv:2409.09778, Theorem 3.1.
    """
    positive(learning_rate=learning_rate)
    at_least(1, epochs=epochs)
    at_least(0, rewound=rewound)
    require(rewound <= epochs, f"Expected rewound={rewound!r} <= epochs={epochs!r}.")
    non_negative(smoothness=smoothness, gradient_bound=gradient_bound)
    _check_sizes(forget_size, size)
    step = learning_rate * size / (size - forget_size)
    scale = 2 * forget_size * gradient_bound / size
    if smoothness * step < 1e-300:  # the quotient below would be 0 / 0
        return _finite(scale * step * (epochs - rewound), "sensitivity", "use a smaller learning_rate")
    try:
        apart = math.expm1((epochs - rewound) * math.log1p(smoothness * step)) / smoothness
        carried = math.exp(rewound * math.log1p(smoothness * learning_rate))
    except OverflowError:
        apart = carried = math.inf
    if scale == 0 or rewound == epochs:
        return 0.0
    return _finite(
        scale * apart * carried,
        f"sensitivity at learning_rate={learning_rate!r}, smoothness={smoothness!r}, epochs={epochs!r}",
        "it grows like (1 + learning_rate smoothness)^epochs, so lower one of them",
    )


def newton_bound(
    *, forget_size: int, size: int, strong_convexity: float, lipschitz: float, hessian_lipschitz: float
) -> float:
    """Distance of the perturbed Newton step from the minimiser on the retain set, 2 M m^2 L^2 / (mu^3 n^2).

    It assumes that every example's loss is mu-strongly convex, L-Lipschitz (the loss itself, not its gradient) and has
    an M-Lipschitz Hessian on a set that holds both minimisers, that training returns the exact minimiser, and that
    constants and n, m are fixed before the data are seen. With M = 0 (least squares) the step is exact and the bound 0.

    Args:
        forget_size: m, examples to forget, 0 <= m < n; the noise is for deletions of up to m, so that the model that
            forgets nothing gets the same noise.
        size: n, training examples with the forget set.
        strong_convexity: mu, > 0.
        lipschitz: L, >= 0.
        hessian_lipschitz: M, >= 0.

    Returns:
        The bound >= 0, an l2 distance of parameters.

    Raises:
        InputError: An argument is out of range, or the bound overflows.

    References:
        Sekhari et al. (2021), "Remember What You Want to Forget: Algorithms for Machine Unlearning",
        arXiv:2103.03279, Lemma 3 and Algorithm 1.
    """
    _check_sizes(forget_size, size)
    positive(strong_convexity=strong_convexity)
    non_negative(lipschitz=lipschitz, hessian_lipschitz=hessian_lipschitz)
    share = forget_size / size * (lipschitz / strong_convexity)
    return _finite(
        2 * (hessian_lipschitz / strong_convexity) * share * share,
        "Newton bound",
        "strong_convexity is too small for this lipschitz",
    )


def output_perturbation_sensitivity(clip_initial: float) -> float:
    """Distance of two points of the centred l2 ball of radius C0: 2 C0. Nothing is assumed of how they were trained.

    Args:
        clip_initial: C0, the radius onto which the trained model is projected before noise is added, > 0.

    Returns:
        2 C0.

    Raises:
        InputError: C0 is not finite or not > 0.

    References:
        "Auditing of Unlearning Algorithms" (Sarmasarkar et al., 2026, arXiv:2607.05898), appendix I.1.
    """
    positive(clip_initial=clip_initial)
    return 2 * clip_initial
