"""What is to be forgotten by a single model: whole classes, or a random share of the examples; and who shadow models see.

"RUB: Evaluating Residual Knowledge in Unlearned Models", section 5.1 and appendix C. Audits draw candidate batches instead
(``data.splits``).
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.data.splits import host_generator

CLASSES = {
    "digits": (0,),
    "mnist": (0,),
    "cifar10": (0,),
    "cifar100": (1, 2, 24, 27, 41, 50, 52, 73, 78, 91),
    "tiny-imagenet": (3, 11, 17, 34, 49, 59, 97, 107, 109, 129, 133, 137, 154, 156, 173, 177, 179, 183, 194, 197),
}
"""RUB's forget classes, a tenth of all, by data set (section 5.1); class 0 of the digits is ours."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForgetSplit:
    """Row numbers into a data set's training part, ascending.

    Attributes:
        forget: [n_f] int32, D_f.
        retain: [n_r] int32, D_r, all other rows.
    """

    forget: np.ndarray
    retain: np.ndarray


def preset_classes(name: str, classes: int) -> tuple[int, ...]:
    """RUB's forget classes of a data set: those of them that it has, if it holds fewer classes than the official one.

    Args:
        name: One of ``CLASSES``.
        classes: How many classes the data set at hand has.

    Raises:
        InputError: No such data set, or it has none of them.
    """
    _validate.one_of("dataset", name, CLASSES)
    chosen = tuple(c for c in CLASSES[name] if c < classes)
    _validate.require(
        bool(chosen),
        f"Expected {name} to have class {CLASSES[name][0]}, but it has {classes} classes; name classes to forget.",
    )
    return chosen


def forget_split(
    key: PRNGKeyArray, labels: np.ndarray, *, classes: Sequence[int] | None = None, share: float | None = None
) -> ForgetSplit:
    """Sets apart the rows to be forgotten.

    Args:
        key: Typed PRNG key; draws the rows of a share, and is not used for classes.
        labels: [n] integer labels of the training part.
        classes: Class-wise forgetting: all rows with one of these labels.
        share: Instance-wise: round(share * n) rows drawn uniformly, in (0, 1). One of the two must be given.

    Raises:
        InputError: Both or neither are given; a class does not exist or is named twice; nothing would be forgotten, or
            nothing retained.
    """
    _validate.require(
        (classes is None) != (share is None), f"Expected either classes or share, got {classes=} and {share=}."
    )
    labels = np.asarray(labels)
    _validate.shape("labels", labels, (None,))
    if classes is not None:
        _validate.not_empty("classes", classes)
        present = np.unique(labels)
        unknown = sorted(set(classes) - set(present.tolist()))
        _validate.require(
            not unknown,
            f"Expected classes to forget among the {present.size} labels {present.min()}..{present.max()}, got {unknown}.",
        )
        _validate.require(
            len(set(classes)) == len(classes), f"Expected every class once, got classes={tuple(classes)}."
        )
        _validate.require(
            len(classes) < present.size, f"Expected some class to retain, but all {present.size} are to be forgotten."
        )
        is_forget = np.isin(labels, classes)
    else:
        is_forget = draw_members(key, labels.size, share or 0.0)
    return ForgetSplit(
        forget=np.flatnonzero(is_forget).astype(np.int32), retain=np.flatnonzero(~is_forget).astype(np.int32)
    )


def shadow_members(key: PRNGKeyArray, n: int, models: int = 10, share: float = 0.1) -> np.ndarray:
    """Which examples each shadow model is trained on (appendix C.1).

    The paper's tenth of the data for ten models is read as a tenth for each, drawn independently.

    Args:
        key: Typed PRNG key; model k's draw does not depend on how many there are.
        n: Examples.
        models: K, >= 1.
        share: In (0, 1).

    Returns:
        [K, n] bool, exactly round(share * n) of each row True: static sizes, so that all are trained as one program.

    Raises:
        InputError: A model would see no example, or all of them.
    """
    _validate.at_least(1, models=models)
    return np.stack([draw_members(jax.random.fold_in(key, k), n, share) for k in range(models)])


def draw_members(key: PRNGKeyArray, n: int, share: float) -> np.ndarray:
    """[n] bool, round(share * n) of them True, uniformly.

    Raises:
        InputError: ``share`` lies outside (0, 1), or so near an end that none or all are drawn.
    """
    _validate.open_unit(share=share)
    size = round(share * n)
    _validate.require(
        0 < size < n,
        f"Expected share={share!r} of {n} examples to leave some on either side, got {size}; use a share nearer to 0.5.",
    )
    chosen = np.zeros(n, bool)
    chosen[host_generator(key).permutation(n)[:size]] = True
    return chosen
