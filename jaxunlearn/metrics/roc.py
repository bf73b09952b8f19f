"""ROC metrics of membership scores, on the host.

Scores: higher = more likely still in the model; a score *above* the threshold says "in". Counts are returned where an
    interval
is to be put on them (``audit.bounds.clopper_pearson``). NaN scores are refused: they have no place in an order.
"""

import numpy as np

from jaxunlearn._validate import not_empty, require


def _check(**scores: np.ndarray) -> list[np.ndarray]:
    arrays = []
    for name, values in scores.items():
        array = np.asarray(values, np.float64).ravel()
        not_empty(name, array)
        require(
            not np.isnan(array).any(), f"Expected {name} without NaN, got {int(np.isnan(array).sum())} of {array.size}."
        )
        arrays.append(array)
    return arrays


def tpr_at_fpr(in_scores: np.ndarray, out_scores: np.ndarray, *, fpr: float) -> tuple[int, int]:
    """True positives at the loosest threshold whose false positive rate is at most ``fpr``.

    Args:
        in_scores: [n] scores of members.
        out_scores: [n'] scores of non-members.
        fpr: Largest false positive rate, in [0, 1].

    Returns:
        (true positives, members). Scores that tie with the threshold count as "out".

    Raises:
        InputError: An array is empty or holds NaN, or fpr lies outside [0, 1].

    >>> tpr_at_fpr([3.0, 2.0, 0.0], [1.0, 0.5], fpr=0.0)
    (2, 3)
    """
    require(0 <= fpr <= 1, f"Expected fpr={fpr!r} inside [0, 1].")
    in_scores, out_scores = _check(in_scores=in_scores, out_scores=out_scores)
    allowed = int(np.floor(fpr * out_scores.size + 1e-9))
    if allowed >= out_scores.size:
        return in_scores.size, in_scores.size
    threshold = np.sort(out_scores)[::-1][allowed]
    return int((in_scores > threshold).sum()), in_scores.size


def roc_curve(in_scores: np.ndarray, out_scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ROC curve, one point per distinct threshold from (0, 0) to (1, 1).

    Args:
        in_scores: [n] scores of members.
        out_scores: [n'] scores of non-members.

    Returns:
        (fpr [k], tpr [k]), both nondecreasing in [0, 1]. Ties between the groups become a sloped segment, so the area
        under the polygon counts them half.

    Raises:
        InputError: An array is empty or holds NaN.
    """
    in_scores, out_scores = _check(in_scores=in_scores, out_scores=out_scores)
    thresholds = np.unique(np.concatenate([in_scores, out_scores]))[::-1]
    tpr = 1 - np.searchsorted(np.sort(in_scores), thresholds, side="left") / in_scores.size
    fpr = 1 - np.searchsorted(np.sort(out_scores), thresholds, side="left") / out_scores.size
    return np.concatenate([[0.0], fpr]), np.concatenate([[0.0], tpr])


def auc(in_scores: np.ndarray, out_scores: np.ndarray) -> float:
    """Pr[member's score > non-member's], ties counted half; 0.5 is chance, and far below 0.5 distinguishes as well.

    Args:
        in_scores: [n] scores of members.
        out_scores: [n'] scores of non-members.

    Returns:
        The area under the ROC curve, in [0, 1].

    Raises:
        InputError: An array is empty or holds NaN.

    >>> auc([1.0, 2.0], [1.0, 0.0])
    0.875
    """
    in_scores, out_scores = _check(in_scores=in_scores, out_scores=out_scores)
    ordered = np.sort(out_scores)
    below = np.searchsorted(ordered, in_scores, side="left").sum()
    not_above = np.searchsorted(ordered, in_scores, side="right").sum()
    return float((below + not_above) / 2 / (in_scores.size * out_scores.size))
