"""Reads what was attacked, and what attacks made of it, of a classification task."""

import dataclasses

import numpy as np

from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import require
from jaxunlearn.records import read_npz
from jaxunlearn.report.load import take


@dataclasses.dataclass(frozen=True, kw_only=True)
class Targets:
    """What is attacked: targets.npz.

    Attributes:
        images: [n, h, w, c] in [0, 1]; the forgotten ones first, then unseen ones of the same kind.
        labels: [n] true classes.
        rows: [n] row numbers in their source.
        is_member: [n], whether the example was trained on and forgotten.
        logits: [seeds, n, classes] of the original models.
        class_names: Names of the classes, possibly none.
    """

    images: np.ndarray
    labels: np.ndarray
    rows: np.ndarray
    is_member: np.ndarray
    logits: np.ndarray
    class_names: list[str]

    def name(self, label: int) -> str:
        """The name of a class, or its number."""
        return self.class_names[label] if 0 <= label < len(self.class_names) else str(label)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attacked:
    """What a method's models say, and attacked images: attacked.npz.

    Attributes:
        conditions: "clean" first; E attacks.
        logits: [seeds, E + 1, n, classes].
        images: [first seeds, E, saved images, h, w, c].
        saved: [saved images] places in the targets.
        iterations: [seeds, E, n] steps that the attack took, or None.
    """

    conditions: list[str]
    logits: np.ndarray
    images: np.ndarray
    saved: np.ndarray
    iterations: np.ndarray | None


def load_targets(path: AnyPath) -> Targets:
    """Reads targets.npz.

    Raises:
        InputError: It is damaged, or its arrays do not match.
    """
    images, labels, rows, is_member, logits, names = take(
        read_npz(path, sealed=True), "images", "labels", "rows", "is_member", "logits", "class_names"
    )
    fits = images.ndim == 4 and logits.ndim == 3 and logits.shape[1] == len(images) > 0
    require(
        fits and all(array.shape == images.shape[:1] for array in (labels, rows, is_member)),
        f"its images {images.shape}, labels {labels.shape}, rows {rows.shape}, is_member {is_member.shape} and logits "
        f"{logits.shape} do not match.",
    )
    return Targets(
        images=images, labels=labels, rows=rows, is_member=is_member, logits=logits, class_names=[str(n) for n in names]
    )


def load_attacked(path: AnyPath, targets: Targets) -> Attacked:
    """Reads attacked.npz; it may hold no pictures and no numbers of steps.

    Raises:
        InputError: It is missing, damaged, or does not fit the targets.
    """
    arrays = read_npz(path, sealed=True)
    conditions, logits, images, saved = take(arrays, "conditions", "logits", "images", "saved")
    names, count = [str(c) for c in conditions], len(targets.images)
    require(
        logits.ndim == 4 and logits.shape[1:] == (len(names), count, targets.logits.shape[2]),
        f"its logits {logits.shape} do not fit {len(names)} conditions and the {count} images of targets.npz.",
    )
    require(
        images.size == 0
        or (
            images.ndim == 6
            and len(images) <= len(logits)
            and images.shape[1:] == (len(names) - 1, len(saved), *targets.images.shape[1:])
            and bool(np.all((saved >= 0) & (saved < count)))
        ),
        f"its images {images.shape} and places {saved.shape} do not fit {len(names)} conditions and the {count} images of "
        "targets.npz.",
    )
    iterations = arrays.get("iterations")
    if iterations is not None and iterations.size:
        shape = (len(logits), len(names) - 1, count)
        require(iterations.shape == shape, f"its iterations {iterations.shape} should be {shape}.")
    return Attacked(conditions=names, logits=logits, images=images, saved=saved, iterations=iterations)
