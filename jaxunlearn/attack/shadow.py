"""Membership inference with shadow models: does an unlearned model treat forgotten examples as ones it was trained on?

"RUB: Evaluating Residual Knowledge in Unlearned Models", appendix C.1: shadow models, each trained on its own part of the
data, give logits of examples with known membership; one attack model per true class learns to tell the two apart. What it
says about a forget set is for ``metrics.membership`` to judge.

(Public code of earlier work has another attack, which reports the share called *non*-member and whose entropy is computed
from wrong logarithms. Nothing here follows it.) NumPy and scikit-learn, no JAX.
"""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from jaxunlearn._validate import InputError, at_least, not_empty, one_of, require, shape

KINDS = ("logistic", "mlp")
HIDDEN = 32
"""Units of the MLP's one hidden layer."""


class _ClassAttack(NamedTuple):
    """The attack model of one class: standardised logits through dense layers with relu between them.

    Attributes:
        mean: [C] of the logits that it was fitted to.
        std: [C], 1 where they do not vary.
        layers: ([in, out], [out]) each; the last one gives the log-odds of membership.
        size: Members it was fitted to, and as many non-members.
    """

    mean: np.ndarray
    std: np.ndarray
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    size: int

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """[n] log-odds; computed here, since scikit-learn's probabilities end at 1, where all is tied."""
        out = (logits - self.mean) / self.std
        for i, (weights, bias) in enumerate(self.layers):
            out = (np.maximum(out, 0) if i else out) @ weights + bias
        return out[:, 0]


@dataclasses.dataclass(frozen=True)
class ShadowAttack:
    """Attack models by true class.

    Attributes:
        kind: One of ``KINDS``.
        models: By class.
    """

    kind: str
    models: Mapping[int, _ClassAttack]

    def scores(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Log-odds of membership, each by the attack model of the example's true class.

        Args:
            logits: [n, C] of the model under attack.
            labels: [n] true classes.

        Returns:
            [n] float64; higher = more likely a member, > 0 is called one.

        Raises:
            InputError: Shapes do not fit; a class has no attack model; a logit is not finite.
        """
        labels = np.asarray(labels)
        width = next(iter(self.models.values())).mean.size
        shape("labels", labels, (None,))
        shape("logits", logits, (labels.size, width), "[n, classes of the shadow models]")
        unknown = sorted(set(labels.tolist()) - set(self.models))
        require(not unknown, f"Expected labels among the attacked classes {sorted(self.models)}, got {unknown[:5]}.")
        logits = _finite("logits", logits)
        out = np.empty(labels.size)
        for c in np.unique(labels).tolist():
            rows = labels == c
            out[rows] = self.models[c].scores(logits[rows])
        return out


def _finite(name: str, logits: np.ndarray) -> np.ndarray:
    logits = np.asarray(logits, np.float64)
    odd = int((~np.isfinite(logits)).sum())
    require(
        odd == 0,
        f"Expected finite {name}, got {odd} of {logits.size} that are not: the model has diverged; lower its rate.",
    )
    return logits


def fit(
    seed: int,
    logits: np.ndarray,
    members: np.ndarray,
    labels: np.ndarray,
    *,
    classes: Sequence[int],
    kind: str = "logistic",
) -> ShadowAttack:
    """Fits one attack model per class to what the shadow models say about examples of that class.

    The features are the logits as they are, standardised: the paper names them and nothing else, and since every class has
    an attack model of its own, its own logit always stands in the same place. All members over all shadow models are used
    and as many non-members, or the other way round: a random draw of the more numerous side, so that log-odds of 0 are
    undecided. Ridge penalty of 1/2 on either kind's weights. A class's attack depends on the seed, the class and the
    class's examples, not on what other classes are attacked.

    Args:
        seed: Of the draw, and of the MLP's first weights; >= 0.
        logits: [K, n, C] of K shadow models on n examples.
        members: [K, n] bool, which examples each was trained on (``data.forget.shadow_members``).
        labels: [n] true classes.
        classes: Classes to attack; those of the forget set.
        kind: "logistic" (regression, linear in the logits) or "mlp" (one hidden layer). The paper says "simple".

    Raises:
        InputError: Shapes do not fit; a class has no members or no non-members; a logit is not finite.
    """
    one_of("kind", kind, KINDS)
    at_least(0, seed=seed)
    not_empty("classes", classes)
    members, labels = np.asarray(members), np.asarray(labels)
    shape("labels", labels, (None,))
    shape("logits", logits, (None, labels.size, None), "[shadow models, examples, classes]")
    shape("members", members, (logits.shape[0], labels.size), "[shadow models, examples]")
    require(members.dtype == bool, f"Expected members to be bool, got {members.dtype}.")
    models = {}
    for c in sorted({int(c) for c in classes}):
        of_class = labels == c
        own, is_member = logits[:, of_class].reshape(-1, logits.shape[-1]), members[:, of_class].ravel()
        models[c] = _fit_class(np.random.default_rng([seed, c]), _finite("shadow logits", own), is_member, c, kind)
    return ShadowAttack(kind, models)


def _fit_class(
    rng: np.random.Generator, logits: np.ndarray, is_member: np.ndarray, name: int, kind: str
) -> _ClassAttack:
    inside, outside = np.flatnonzero(is_member), np.flatnonzero(~is_member)
    size = min(inside.size, outside.size)
    if size == 0:
        raise InputError(
            f"Expected members and non-members of class {name} among the shadow models' examples, got {inside.size} and "
            f"{outside.size}; use more shadow models, or another share of the data."
        )
    rows = np.concatenate([rng.permutation(side)[:size] for side in (inside, outside)])
    mean, std = logits[rows].mean(axis=0), logits[rows].std(axis=0)
    std[std == 0] = 1.0
    features, target = (logits[rows] - mean) / std, is_member[rows]
    fitted = _logistic(features, target) if kind == "logistic" else _mlp(rng, features, target)
    return _ClassAttack(mean, std, fitted, size)


def _logistic(features: np.ndarray, target: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    from sklearn.linear_model import LogisticRegression

    with threadpool_limits(1):
        model = LogisticRegression(C=1.0, max_iter=1000).fit(features, target)
    return ((model.coef_.T, model.intercept_),)


def _mlp(rng: np.random.Generator, features: np.ndarray, target: np.ndarray):
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    model = MLPClassifier(
        (HIDDEN,), solver="lbfgs", alpha=1.0, max_iter=200, random_state=int(rng.integers(2**31))
    )  # alpha is divided by the number of examples: the penalty of the regression
    # Matrices as small as these take several threads up to 30 times as long as one.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 200 steps are the definition
        model.fit(features, target)
    return tuple(zip(model.coefs_, model.intercepts_))
