"""Pictures of the attack: image, perturbation, attacked image, and what the models say of them."""

import base64
import dataclasses
import io
import math
from collections.abc import Callable
from html import escape

import numpy as np

from jaxunlearn.report.measured import REFERENCE
from jaxunlearn.report.robustness.classified import Attacked, Targets
from jaxunlearn.report.robustness.tasks import under
from jaxunlearn.report.table import clean

FORGOTTEN, UNSEEN = 6, 2
PIXELS = 8 * 96 * 96
"""About as many pixels of a method are shown at most; larger images are shown less often."""


OUTCOMES = {
    True: {
        (False, False): "stays gone",
        (False, True): "brought back",
        (True, False): "gone under attack",
        (True, True): "never gone",
    },
    False: {
        (False, False): "not recognised",
        (False, True): "recognised under attack",
        (True, False): "not recognised under attack",
        (True, True): "recognised",
    },
}
"""Whether the model had seen the image -> (right before, right under attack) -> in words."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one model says of one image: the class, its probability, and whether it is the true one."""

    label: int
    probability: float
    right: bool


@dataclasses.dataclass(frozen=True)
class Case:
    """One image under one attack.

    Attributes:
        place: Its place in the targets.
        image: [h, w, c] in [0, 1].
        attacked: The same under attack.
        original: What the original model says of the image.
        before: What the unlearned model says of the image.
        after: What the unlearned model says of the attacked image.
    """

    place: int
    image: np.ndarray
    attacked: np.ndarray
    original: Answer
    before: Answer
    after: Answer


def answer(logits: np.ndarray, truth: int) -> Answer:
    """The largest of the logits [classes] and its softmax."""
    shifted = np.exp(logits.astype(np.float64) - logits.max())
    label = int(logits.argmax())
    return Answer(label, float(shifted[label] / shifted.sum()), label == truth)


def choose(targets: Targets, attacked: Attacked) -> list[int]:
    """Which of the saved images are shown, by a rule that looks at no outcome.

    The first six forgotten and the first two unseen ones in the order of the targets; fewer where images are large.

    Returns:
        Places in ``attacked.saved``.
    """
    height, width = targets.images.shape[1:3]
    most = max(2, min(FORGOTTEN + UNSEEN, PIXELS // (height * width)))
    order = np.argsort(attacked.saved, kind="stable")
    members = [int(i) for i in order if targets.is_member[attacked.saved[i]]]
    others = [int(i) for i in order if not targets.is_member[attacked.saved[i]]]
    unseen = others[: max(1, most * UNSEEN // (FORGOTTEN + UNSEEN))]
    return members[: most - len(unseen)] + unseen


def cases(targets: Targets, attacked: Attacked, condition: str) -> list[Case]:
    """The chosen images of the first seed under one attack."""
    attack = attacked.conditions.index(condition)
    found = []
    for i in choose(targets, attacked):
        place = int(attacked.saved[i])
        truth = int(targets.labels[place])
        found.append(
            Case(
                place=place,
                image=targets.images[place],
                attacked=attacked.images[0, attack - 1, i],
                original=answer(targets.logits[0, place], truth),
                before=answer(attacked.logits[0, 0, place], truth),
                after=answer(attacked.logits[0, attack, place], truth),
            )
        )
    return found


def amplification(found: list[Case]) -> float:
    """The factor that spreads the largest change over half of the range, rounded down; at least 1 where changes are small.

    The perturbation is drawn as 0.5 + factor * change, so that grey is no change.
    """
    largest = max(float(np.abs(case.attacked - case.image).max()) for case in found)
    if largest == 0:
        return 1.0
    factor = 0.5 / largest * (1 + 1e-6)
    return float(math.floor(factor)) if factor >= 1 else max(math.floor(10 * factor) / 10, 0.1)


def png(image: np.ndarray) -> str:
    """An image [h, w, c] in [0, 1] as a data address; one channel is grey, numbers of channels but 3 are averaged."""
    from matplotlib.image import imsave

    three = image if image.shape[-1] == 3 else np.repeat(image.mean(-1, keepdims=True), 3, -1)
    buffer = io.BytesIO()
    pixels = np.round(255 * np.clip(np.nan_to_num(three), 0, 1)).astype(np.uint8)
    imsave(buffer, pixels, format="png", metadata={"Software": None})  # pyrefly: ignore
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def gallery(method: str, targets: Targets, attacked: Attacked, condition: str) -> str:
    """The pictures of one method under one attack, HTML; "" when there are none."""
    if condition not in attacked.conditions[1:] or attacked.images.size == 0:
        return ""
    found = cases(targets, attacked, condition)
    factor = amplification(found)
    forgotten = sum(bool(targets.is_member[case.place]) for case in found)
    unseen = len(found) - forgotten
    rule = f"the first {forgotten} forgotten" + (f" and the first {unseen} unseen" if unseen else "")
    height, width, channels = targets.images.shape[1:]
    note = (
        f"Not picked by outcome: {rule} of the {attacked.saved.size} saved images, in the order of targets.npz, seed 0. "
        f"Middle: the change, {factor:g} times, grey is none. {height} × {width} pixels."
    )
    note += "" if channels in (1, 3) else f" The mean of {channels} channels is shown."
    return (
        f"<h4>Pictures {escape(under(condition))}</h4>\n"
        f'<p class="small">{escape(note)} <span class="right">✓ green</span>: the true class; '
        '<span class="wrong">✗ red</span>: another.</p>\n'
        f'<div class="cases">{"".join(_card(method, targets, case, factor) for case in found)}</div>'
    )


def _card(method: str, targets: Targets, case: Case, factor: float) -> str:
    truth = clean(targets.name(int(targets.labels[case.place])))
    member = bool(targets.is_member[case.place])
    outcome = OUTCOMES[member and method != REFERENCE][case.before.right, case.after.right]
    kind, css = ("forgotten" if member else "unseen"), (' class="back"' if outcome == "brought back" else "")
    what = f"{kind} image of class {truth}"
    change = 0.5 + factor * (case.attacked - case.image)
    pictures = (
        (case.image, what, "image"),
        (change, f"the attack’s change to the {what}, {factor:g} times", f"change ×{factor:g}"),
        (case.attacked, f"the {what} under attack", "attacked"),
    )
    cells = "".join(
        f'<div><img src="{png(image)}" alt="{escape(alt)}"><span>{escape(below)}</span></div>'
        for image, alt, below in pictures
    )
    name = clean(method)
    spoken = (("original", case.original), (name, case.before), (f"{name}, attacked", case.after))
    lines = "".join(f"<dt>{escape(who)}</dt><dd>{said(targets.name, value)}</dd>" for who, value in spoken)
    return (
        f'<figure class="case"><figcaption><strong{css}>{outcome}</strong>class {escape(truth)}, {kind}, row '
        f"{int(targets.rows[case.place])}</figcaption>\n"
        f'<div class="triple">{cells}</div><dl>{lines}</dl></figure>'
    )


def said(name: Callable[[int], str], value: Answer) -> str:
    """An answer as HTML, right ones green; ``name`` gives a class's name."""
    css, sign, spoken = ("right", "✓", "right") if value.right else ("wrong", "✗", "wrong")
    called = escape(clean(name(value.label)))
    percent = f"{100 * value.probability:.0f}%"
    return f'<span class="{css}" title="{spoken}">{sign} {called}</span> {percent}'
