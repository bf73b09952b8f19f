"""From a labelled data set to retain set, candidate batches and test set."""

import dataclasses

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxunlearn import _validate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """A labelled data set on the host.

    Attributes:
        name: For headings and manifests.
        x: [n, ...] float32 inputs, already scaled as the models expect them.
        y: [n] int32 labels in 0..classes-1.
        x_test: [k, ...] float32 held-out inputs.
        y_test: [k] int32.
        classes: Number of classes.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int

    def __post_init__(self):
        _validate.require(
            self.x.shape[0] == self.y.shape[0] and self.x_test.shape[0] == self.y_test.shape[0],
            f"Expected as many labels as examples in {self.name}: {self.x.shape[0]} and {self.y.shape[0]}, "
            f"test {self.x_test.shape[0]} and {self.y_test.shape[0]}.",
        )
        _validate.require(
            self.y.size == 0 or (self.y.min() >= 0 and self.y.max() < self.classes),
            f"Expected labels of {self.name} in 0..{self.classes - 1}, got {self.y.min()}..{self.y.max()}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """Row numbers into a Dataset's training part.

    Attributes:
        retain: [n_r] int32, D_r.
        candidates: [m, B] int32, the m candidate batches; row j is D_{f,j}.
    """

    retain: np.ndarray
    candidates: np.ndarray

    @property
    def pool(self) -> np.ndarray:
        """[m * B] int32: all candidates, batch by batch."""
        return self.candidates.reshape(-1)


def host_generator(key: PRNGKeyArray) -> np.random.Generator:
    """NumPy's generator seeded by the whole of a typed key: a permutation of a data set is no work for a device."""
    return np.random.Generator(
        np.random.Philox(key=int.from_bytes(np.asarray(jax.random.key_data(key)).tobytes(), "little"))
    )


def make_split(key: PRNGKeyArray, labels: np.ndarray, *, m: int, batch_size: int, kind: str = "uniform") -> Split:
    """Draws the candidate pool and cuts it into m batches of B examples.

    Args:
        key: Typed PRNG key.
        labels: [n] integer labels of the training part.
        m: Candidate batches, >= 2.
        batch_size: B, examples per candidate batch, >= 1.
        kind: "uniform" (a random pool) or "adversarial" (pool and retain set from disjoint label classes, at most one class
            shared; audit paper, appendix D.1).

    Returns:
        The split; retain set and pool are each shuffled.

    Raises:
        InputError: The pool does not fit, or leaves no retain set.
    """
    _validate.at_least(2, m=m)
    _validate.at_least(1, batch_size=batch_size)
    _validate.one_of("split", kind, ("uniform", "adversarial"))
    n, size = labels.shape[0], m * batch_size
    _validate.require(
        size < n,
        f"Expected m * batch_size = {m} * {batch_size} = {size} candidates to leave a retain set out of {n} training "
        f"examples; use at most m={max(2, (n - 1) // batch_size)}.",
    )
    rng = host_generator(key)
    order = rng.permutation(n)
    if kind == "adversarial":
        # Whole classes fill the pool one after the other; only the class that straddles the end is shared.
        class_order = rng.permutation(int(labels.max()) + 1)
        rank_of_class = np.argsort(class_order)
        order = order[np.argsort(rank_of_class[labels[order]], kind="stable")]
    pool, retain = rng.permutation(order[:size]), rng.permutation(order[size:])
    return Split(retain=retain.astype(np.int32), candidates=pool.astype(np.int32).reshape(m, batch_size))
