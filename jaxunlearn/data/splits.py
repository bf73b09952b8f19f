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
        x: [n, ...] float32 inputs, scaled as the models of audits expect them.
        y: [n] int32 labels in 0..classes-1.
        x_test: [k, ...] float32 held-out inputs.
        y_test: [k] int32.
        classes: Number of classes.
        class_names: What the labels mean, or None where the files do not say.
        mean: Of images in [0, 1], one number per channel, over the training images; None of inputs that are standardised
            already, or no images.
        std: Likewise, > 0.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    class_names: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

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
        _validate.require(
            self.class_names is None or len(self.class_names) == self.classes,
            f"Expected as many class names as classes={self.classes} in {self.name}, got {len(self.class_names or ())}.",
        )

    def standardised(self) -> "Dataset":
        """The data set with (x - mean) / std in place of x.

        Raises:
            InputError: It says no mean and std.
        """
        _validate.require(
            self.mean is not None and self.std is not None,
            f"Expected {self.name} to say mean and std; its inputs are standardised already, or no images.",
        )
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        x, x_test = ((part - mean) / std for part in (self.x, self.x_test))
        return dataclasses.replace(self, x=x, x_test=x_test, mean=None, std=None)


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
