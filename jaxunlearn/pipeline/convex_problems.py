"""Problems of the convex audits: what is learned and forgotten, and how far apart theory says the two models can be.

Placement of the points: appendices H.2 to H.4 and I.2 of the audit paper (``data.convex``).
"""

import dataclasses
from typing import Protocol

import numpy as np

from jaxunlearn import _validate
from jaxunlearn.certificates import newton_bound, output_perturbation_sensitivity
from jaxunlearn.data import convex as points
from jaxunlearn.unlearn import newton


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Two sets of weights to be told apart behind Gaussian noise, and what the noise was made to hide.

    Attributes:
        retained: [d] minimiser on the retain set, what unlearning nothing leaves.
        unlearned: [d] what unlearning the forget set leaves.
        trained: [d] weights before unlearning.
        sensitivity: The distance that theory allows between the first two.
        constants: What the sensitivity was computed from.
    """

    retained: np.ndarray
    unlearned: np.ndarray
    trained: np.ndarray
    sensitivity: float
    constants: dict[str, float]

    @property
    def distance(self) -> float:
        """The distance of the two sets of weights."""
        return float(np.linalg.norm(self.retained - self.unlearned))

    @property
    def ratio(self) -> float:
        """rho: how much of the sensitivity these data use (appendix H.3)."""
        return self.distance / self.sensitivity


class Problem(Protocol):
    """Settings of a problem, and how it is built."""

    def build(self, rng: np.random.Generator) -> Mechanism:
        """Draws the data, trains and unlearns."""
        ...


def _newton(
    loss: newton.Loss, constants: newton.Constants, retain: np.ndarray, forget: np.ndarray, dimension: int
) -> Mechanism:
    trained, unlearned, retained = newton.unlearn(loss, retain, forget, np.zeros(dimension))
    known = dataclasses.asdict(constants)
    sizes = {"forget_size": len(forget), "size": len(retain) + len(forget)}
    return Mechanism(
        retained=retained,
        unlearned=unlearned,
        trained=trained,
        sensitivity=newton_bound(**sizes, **known),
        constants=known,
    )


class OutsideBox(_validate.InputError):
    """The minimiser lies where the certificate's constants do not hold."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cubic:
    """Perturbed Newton on the cubic loss in one dimension (appendix H.2)."""

    quadratic: float = 0.2
    """lambda0, factor of w^2 / 2, > third * box."""
    third: float = 0.005
    """M, factor of w^3 / 6 and Lipschitz constant of the Hessian, > 0."""
    box: float = 2.5
    """B: the certificate is for |w| <= B, and the minimisers have to lie there."""
    radius: float = 10.0
    """R: forget points lie at -R, > 0."""
    retain_size: int = 1000
    """Retain points, >= 1."""
    forget_size: int = 50
    """Forget points, >= 1."""

    def build(self, rng: np.random.Generator) -> Mechanism:
        """Trains on the points of appendix H.4.1, which are not random."""
        _validate.positive(third=self.third)
        constants = newton.cubic_constants(self.quadratic, self.third, box=self.box, radius=self.radius)
        retain, forget = points.cubic_points(
            retain_size=self.retain_size, forget_size=self.forget_size, radius=self.radius
        )
        loss = newton.cubic(self.quadratic, self.third)
        pull = float(loss.gradient(np.array([-self.box]), np.concatenate([retain, forget])).mean())
        if pull > 0:  # the loss still falls at -B
            raise OutsideBox(
                f"Expected the minimiser inside box={self.box!r}, where the certificate holds, but it lies beyond; "
                "raise quadratic or box, or lower radius."
            )
        return _newton(loss, constants, retain, forget, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logistic:
    """Perturbed Newton on the logistic loss (appendix H.4.2)."""

    regularisation: float = 0.3
    """lambda, factor of |w|^2 / 2, > 0; the paper has none, .3 gives the largest ratio here."""
    forget_norm: float = 5.0
    """rho_f, norm of the forget points and of the largest example, >= 1."""
    eta: float = 0.8
    """Probability of the right label of a retain point, in (0, 1)."""
    dimension: int = 2
    """d, number of weights, >= 1."""
    retain_size: int = 1000
    """Retain points, >= 1."""
    forget_size: int = 50
    """Forget points, >= 1."""

    def build(self, rng: np.random.Generator) -> Mechanism:
        """Trains on the points of appendix H.4.2."""
        constants = newton.logistic_constants(self.regularisation, radius=self.forget_norm)
        retain, forget = points.boundary_points(
            rng,
            retain_size=self.retain_size,
            forget_size=self.forget_size,
            dimension=self.dimension,
            eta=self.eta,
            forget_norm=self.forget_norm,
        )
        return _newton(newton.logistic(self.regularisation), constants, retain, forget, self.dimension)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputPerturbation:
    """Projection and noise after linear regression (appendix I)."""

    clip_initial: float = 1.0
    """C0, radius of the ball onto which the trained weights are projected, > 0; the paper does not say which."""
    retain_size: int = 600
    """Retain points, >= 1."""
    forget_size: int = 400
    """Forget points, >= 1."""
    dimension: int = 2
    """d, number of weights, >= 1."""
    slope: float = 0.5
    """eta, slope of the labels, > 0."""
    half_range: float = 10.0
    """r: labels lie in [-r, r], > 0."""
    forget_norm: float = 10.0
    """rho_f: the forget set's slope is -rho_f times the retain set's, > 0."""
    label_noise: float = 0.05
    """Standard deviation of the noise on the labels, > 0."""

    def build(self, rng: np.random.Generator) -> Mechanism:
        """Trains on the points of appendix I.2 and projects."""
        sensitivity = output_perturbation_sensitivity(self.clip_initial)
        settings = {k: v for k, v in dataclasses.asdict(self).items() if k != "clip_initial"}
        retain, forget = points.regression_points(rng, **settings)
        trained = newton.least_squares(*(np.concatenate(pair) for pair in zip(retain, forget)))
        return Mechanism(
            retained=newton.project(newton.least_squares(*retain), self.clip_initial),
            unlearned=newton.project(trained, self.clip_initial),
            trained=trained,
            sensitivity=sensitivity,
            constants={"clip_initial": self.clip_initial},
        )
