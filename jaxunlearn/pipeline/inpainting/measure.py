"""From pictures to named metrics."""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from jaxunlearn.metrics import images as metrics
from jaxunlearn.pipeline.inpainting.config import Inpainting
from jaxunlearn.pipeline.inpainting.study import FORGOTTEN, RETAINED, UNSEEN, Study
from jaxunlearn.pipeline.seeds import Arrays
from jaxunlearn.records import as_json
from jaxunlearn.robustness import Metric


class Looked(NamedTuple):
    """Pictures that models made, and what is measured of them.

    Attributes:
        outputs: [S, E, p, n, n, c] each probe's visible part with what was filled in, clipped to [0, 1].
        logits: [S, E, p, C] the judge's.
        features: [S, E, p, f] the judge's.
    """

    outputs: np.ndarray
    logits: np.ndarray
    features: np.ndarray


def pictures(study: Study, filled: np.ndarray) -> np.ndarray:
    """[..., p, n, n, c] the probes with their hidden part as filled in [..., p, H, q], clipped to [0, 1].

    The visible part is always the clean image's, under attack too: what is compared is what the model makes of the rest.
    """
    probes, masked = study.images.probes, study.masked
    visible = masked.visible(probes)
    flat = filled.reshape(-1, *filled.shape[-3:])
    made = [masked.image(visible, np.clip(one, 0.0, 1.0)) for one in flat]
    return np.stack(made).reshape(*filled.shape[:-2], *probes.shape[1:])


def look(study: Study, filled: np.ndarray) -> Looked:
    """Makes the pictures and shows them to the judge."""
    outputs = pictures(study, filled)
    found = study.judge(outputs)
    return Looked(outputs, found["logits"], found["features"])


_GROUPS = {
    FORGOTTEN: ("", "of forgotten images"),
    UNSEEN: ("_control", "of unseen test images of the forgotten classes (attacked in the same way)"),
    RETAINED: ("_retain", "of images of the retain set (attacked in the same way)"),
}


def measure(study: Study, looked: Looked, originals: np.ndarray | None, real: Arrays) -> list[Metric]:
    """The metrics of one method.

    Args:
        study: The study.
        looked: Of its models, by condition.
        originals: [S, p, n, n, c] pictures of the original models on the clean probes; None where these are the originals.
        real: The judge's features of the probes themselves.

    Returns:
        Those of the forget set first; ``l1`` without values where there are no ``originals``.
    """
    found: list[Metric] = []
    for group in (FORGOTTEN, RETAINED, UNSEEN):
        part = study.images.part(group)
        found += _differences(study, looked, originals, group, part)
        found.append(_judged(study, looked, group, part))
        if group != UNSEEN:
            found += _quality(study, looked, real, group, part)
    return found


def _metric(study: Study, name: str, group: str, values: np.ndarray, **more: Any) -> Metric:
    """A metric of values [S, E]; conditions without values stay empty."""
    ending, of = _GROUPS[group]
    rows = [[float(v) for v in column] for column in np.asarray(values, np.float64).T]
    rows += [[] for _ in range(len(study.config.conditions) - len(rows))]
    label, meaning = more.pop("label"), more.pop("meaning").format(of=of)
    shown = {"": "", "_control": " (unseen)", "_retain": " (retained)"}[ending]
    count = len(study.images.part(group))
    return Metric(name=name + ending, label=label + shown, meaning=meaning, count=count, values=rows, **more)


def _differences(
    study: Study, looked: Looked, originals: np.ndarray | None, group: str, part: np.ndarray
) -> list[Metric]:
    made = looked.outputs[:, :, part]
    values = np.zeros((len(made), 0))
    if originals is not None:
        # Only hidden pixels can differ: the mean over all pixels is scaled to a mean over those.
        share = 1 - study.masked.mask.visible / study.masked.mask.order.size
        aims = np.broadcast_to(originals[:, None, part], made.shape)
        each = metrics.l1(made.reshape(-1, *made.shape[3:]), aims.reshape(-1, *made.shape[3:])) / share
        values = each.reshape(made.shape[:3]).mean(axis=-1)
    meaning = (
        "Mean absolute difference, over hidden pixels {of}, between what the unlearned model fills in and what the original "
        "did without an attack; pixels are in [0, 1]."
    )
    better = {FORGOTTEN: "higher", RETAINED: "lower", UNSEEN: ""}[group]
    return [
        _metric(
            study,
            "l1",
            group,
            values,
            label="L1",
            meaning=meaning,
            better=better,
            percent=False,
            headline=group == FORGOTTEN,
        )
    ]


def _judged(study: Study, looked: Looked, group: str, part: np.ndarray) -> Metric:
    hits = looked.logits[:, :, part].argmax(-1) == study.images.labels[part]
    return _metric(
        study,
        "judged",
        group,
        hits.mean(axis=-1),
        label="judged right",
        meaning="Share {of} whose completed picture the judge gives their class.",
        better={FORGOTTEN: "lower", RETAINED: "higher", UNSEEN: ""}[group],
        headline=group != UNSEEN,
    )


def _quality(study: Study, looked: Looked, real: Arrays, group: str, part: np.ndarray) -> list[Metric]:
    """Fréchet distance and Inception Score in the judge's eyes."""
    distances = [
        [metrics.frechet_distance(one[part], real["features"][part]) for one in model] for model in looked.features
    ]
    splits = study.config.judge.splits
    scores = [
        [metrics.inception_score(softmax(one[part].astype(np.float64), axis=-1), splits).mean for one in model]
        for model in looked.logits
    ]
    shape = looked.logits.shape[:2]
    return [
        _metric(
            study,
            "fid",
            group,
            np.reshape(distances, shape),
            label="FID",
            meaning="Fréchet distance between completed pictures {of} and the images themselves, of the judge's features; it "
            "compares with others of as many images and this judge alone.",
            better={FORGOTTEN: "higher", RETAINED: "lower"}[group],
            percent=False,
        ),
        _metric(
            study,
            "is",
            group,
            np.reshape(scores, shape),
            label="IS",
            meaning="Inception Score {of} by the judge's probabilities: higher where it is surer and sees more classes.",
            better="",
            percent=False,
        ),
    ]


def describe_attack(config: Inpainting) -> dict[str, Any]:
    """The attack's settings, as the record keeps them."""
    steps = {condition: config.step_size(e / 255) * 255 for condition, e in zip(config.conditions[1:], config.epsilons)}
    return as_json(config.attack) | {"distance": "mse", "step_in_255ths": steps}
