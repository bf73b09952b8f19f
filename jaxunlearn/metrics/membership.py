"""What a membership attack says about a forget set, beside a control. On the host, no JAX.

RUB ("RUB: Evaluating Residual Knowledge in Unlearned Models", appendix C.1) reports the share of the forget set that is
called members; lower means better forgotten. That share alone is gamed by an attack that says "member" whatever it sees (and
of a model that was trained longer than the shadow models it may well say so), so examples that no training saw are judged
beside it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxunlearn._validate import not_empty
from jaxunlearn.metrics import roc

FPR = 0.01


class Figure(NamedTuple):
    """A share, and of how many.

    Attributes:
        value: In [0, 1].
        count: Examples it was counted over.
    """

    value: float
    count: int


def evaluate(
    scores: Callable[[np.ndarray, np.ndarray], np.ndarray],
    forget_logits: np.ndarray,
    forget_labels: np.ndarray,
    other_logits: np.ndarray,
    other_labels: np.ndarray,
) -> dict[str, Figure]:
    """What the attack says about a model's forget set, beside what it says about examples that no training saw.

    Args:
        scores: ``(logits [n, C], labels [n]) -> [n]``: the attack, as ``attack.shadow.ShadowAttack.scores``; > 0 is called
            a member. One that was fitted to the forgotten classes alone refuses a control of others.
        forget_logits: [n_f, C] of the model on the forget set, moved by an attack on it or not.
        forget_labels: [n_f] true classes.
        other_logits: [n_o, C] of the same model on test examples of the same classes, moved the same way.
        other_labels: [n_o] true classes.

    Returns:
        "recall" (RUB's MIA): share of the forget set called members. "control": the same of the others; a recall no
        higher says nothing about membership. "balanced_accuracy": mean of the recall and of the others' share called
        non-members. "auc": Pr[score of a forgotten example > other's]. "tpr_at_fpr_1%": share of the forget set above all
        but 1% of the others; with fewer than 100 of them, above all.

    Raises:
        InputError: One of the two sets is empty; as for ``scores``.
    """
    not_empty("forget_labels", forget_labels)
    not_empty("other_labels", other_labels)
    inside, outside = scores(forget_logits, forget_labels), scores(other_logits, other_labels)
    recall, control = float((inside > 0).mean()), float((outside > 0).mean())
    true_positives, count = roc.tpr_at_fpr(inside, outside, fpr=FPR)
    both = inside.size + outside.size
    return {
        "recall": Figure(recall, count),
        "control": Figure(control, outside.size),
        "balanced_accuracy": Figure((recall + 1 - control) / 2, both),
        "auc": Figure(roc.auc(inside, outside), both),
        "tpr_at_fpr_1%": Figure(true_positives / count, count),
    }
