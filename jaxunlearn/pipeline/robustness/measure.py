"""From logits to named metrics."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxunlearn.attack import shadow
from jaxunlearn.metrics import membership
from jaxunlearn.pipeline.robustness.config import Robustness
from jaxunlearn.pipeline.robustness.study import Study
from jaxunlearn.pipeline.seeds import Arrays
from jaxunlearn.records import as_json
from jaxunlearn.robustness import Metric


def shadow_attacks(study: Study, shadows: Arrays | None) -> list[shadow.ShadowAttack]:
    """The membership attack models, one set for each seed of the attack."""
    if shadows is None:
        return []
    config = study.config.shadows
    labels = study.images.y
    classes = np.unique(study.images.probe_labels).tolist()
    return [
        shadow.fit(seed, shadows["logits"], shadows["member"], labels, classes=classes, kind=config.kind)
        for seed in range(config.seeds)
    ]


def _rows(values: np.ndarray, conditions: int) -> list[list[float]]:
    """[S, E] -> [conditions][S]; conditions without values stay empty."""
    rows = [[float(v) for v in column] for column in np.asarray(values, np.float64).T]
    return rows + [[] for _ in range(conditions - len(rows))]


def utility(study: Study, logits_test: np.ndarray, retain_accuracy: np.ndarray) -> list[Metric]:
    """Accuracies on clean images that should have been kept.

    Args:
        study: The study.
        logits_test: [S, k, C].
        retain_accuracy: [S].
    """
    images, conditions = study.images, len(study.config.conditions)
    hits = logits_test.argmax(-1) == images.y_test
    metrics = []
    if study.config.forget == "classes":
        kept = ~np.isin(images.y_test, images.forget_classes)
        metrics.append(
            Metric(
                name="ta_retain_classes",
                label="TA (retain classes)",
                meaning="Accuracy on test images of the classes that stay.",
                better="higher",
                count=int(kept.sum()),
                values=_rows(hits[:, kept].mean(axis=1)[:, None], conditions),
                headline=True,
            )
        )
    metrics.append(
        Metric(
            name="ta_all",
            label="TA (all classes)",
            meaning="Accuracy on all test images, those of forgotten classes included.",
            better="higher",
            count=hits.shape[1],
            values=_rows(hits.mean(axis=1)[:, None], conditions),
            headline=True,
        )
    )
    metrics.append(
        Metric(
            name="retain_accuracy",
            label="retain accuracy",
            meaning="Accuracy on the training images that stay.",
            better="higher",
            count=images.retain,
            values=_rows(np.asarray(retain_accuracy)[:, None], conditions),
        )
    )
    return metrics


def recovery(
    study: Study, logits: np.ndarray, attacks: Sequence[shadow.ShadowAttack], second: np.ndarray | None = None
) -> list[Metric]:
    """What is known of the forget set, and of the controls.

    Args:
        study: The study.
        logits: [S, E, n, C] on the probes, by condition; of the originals E = 1.
        attacks: Membership attacks.
        second: [S, E, n, C] under the second attack, the clean condition included, or None.
    """
    labels, forget = study.images.probe_labels, len(study.images.forgotten)
    conditions = len(study.config.conditions)
    kind = "of the forgotten classes" if study.config.forget == "classes" else "like them"

    def accuracy(name: str, label: str, meaning: str, better: str, part: slice, of: np.ndarray, **more: Any) -> Metric:
        hits = of[:, :, part].argmax(-1) == labels[part]
        return Metric(
            name=name,
            label=label,
            meaning=meaning,
            better=better,
            count=hits.shape[-1],
            values=_rows(hits.mean(axis=-1), conditions),
            **more,
        )

    forgotten, unseen = slice(forget), slice(forget, None)
    metrics = [
        accuracy("ua", "UA", "Accuracy on the forget set.", "lower", forgotten, logits, headline=True),
        *_membership(logits, labels, forget, conditions, attacks),
        accuracy(
            "ua_control",
            "UA (control)",
            f"Accuracy on test images {kind}, attacked in the same way; no model has seen them.",
            "",
            unseen,
            logits,
        ),
    ]
    if second is not None:
        metrics.append(
            accuracy(
                "ua_second",
                f"UA ({study.config.second_attack})",
                "Accuracy on the forget set under the second attack: if it is far higher, the first is weak.",
                "lower",
                forgotten,
                second,
            )
        )
    return metrics


_MEMBERSHIP = {
    "recall": ("mia", "MIA", "Share of the forget set that shadow-model membership inference calls members.", "lower"),
    "control": (
        "mia_control",
        "MIA (control)",
        "Share of unseen images, attacked in the same way, that it calls members: an attack that calls everything a member "
        "has a recall of 100% and no merit.",
        "",
    ),
    "auc": ("mia_auc", "MIA AUC", "Area under the curve, forget set against unseen images; forgetting leaves 50%.", ""),
    "tpr_at_fpr_1%": (
        "mia_tpr",
        "MIA TPR at 1% FPR",
        "Share of the forget set that scores above all but 1% of the unseen images; of fewer than 100, above all of them.",
        "lower",
    ),
    "balanced_accuracy": (
        "mia_balanced",
        "MIA balanced accuracy",
        "Mean of recall and specificity; forgetting leaves 50%.",
        "",
    ),
}


def _membership(
    logits: np.ndarray,
    labels: np.ndarray,
    forget: int,
    conditions: int,
    attacks: Sequence[shadow.ShadowAttack],
) -> list[Metric]:
    if not attacks:
        return []
    found: dict[str, list[list[float]]] = {name: [[] for _ in range(conditions)] for name in _MEMBERSHIP}
    counts = dict.fromkeys(_MEMBERSHIP, 0)
    for model in logits:
        for condition, values in enumerate(model):
            for attack in attacks:
                result = membership.evaluate(
                    attack.scores, values[:forget], labels[:forget], values[forget:], labels[forget:]
                )
                for name in _MEMBERSHIP:
                    found[name][condition].append(result[name].value)
                    counts[name] = result[name].count
    return [
        Metric(
            name=name,
            label=label,
            meaning=meaning,
            better=better,
            count=counts[key],
            values=found[key],
            per_seed=len(attacks),
            headline=key == "recall",
        )
        for key, (name, label, meaning, better) in _MEMBERSHIP.items()
    ]


def describe_attack(config: Robustness) -> dict[str, Any]:
    """The attack's settings, as the record keeps them."""
    found = as_json(config.attack)
    steps = {condition: config.step_size(e / 255) * 255 for condition, e in zip(config.conditions[1:], config.epsilons)}
    return found | {"distance": config.distance, "step_in_255ths": steps, "second": config.second}
