"""Pictures of models that make images: what they fill in (RUB's Figures 6 and 7), or draw, unattacked and attacked."""

import dataclasses
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import require
from jaxunlearn.records import read_npz
from jaxunlearn.report.load import take
from jaxunlearn.report.robustness.pictures import answer, png, said
from jaxunlearn.report.robustness.tasks import under
from jaxunlearn.report.table import clean

SHOWN = {"forgotten": 4, "unseen": 2, "retained": 2}
"""Pictures of each kind, the first ones in the order of targets.npz."""
PROMPTS = 6
_GREY = 0.5


def _fits(condition: bool, names: str, arrays: Mapping[str, np.ndarray]) -> None:
    shapes = ", ".join(f"{name} {arrays[name].shape}" for name in names.split())
    require(condition, f"its arrays do not match: {shapes}.")


def _strip(pictures: Sequence[tuple[np.ndarray, str, str]]) -> str:
    """Images in a row: each with its description and what stands below it."""
    cells = "".join(
        f'<div><img src="{png(image)}" alt="{escape(alt)}"><span>{escape(below)}</span></div>'
        for image, alt, below in pictures
    )
    return f'<div class="strip">{cells}</div>'


def _gallery(heading: str, note: str, cards: Sequence[str]) -> str:
    if not cards:
        return ""
    return (
        f'<h4>{escape(heading)}</h4>\n<p class="small">{escape(note)} <span class="right">✓ green</span>: the true class; '
        f'<span class="wrong">✗ red</span>: another.</p>\n<div class="cases broad">{"".join(cards)}</div>'
    )


def _card(title: str, strip: str, lines: Sequence[tuple[str, str]]) -> str:
    """``lines`` are (who, HTML) pairs."""
    listed = "".join(f"<dt>{escape(who)}</dt><dd>{what}</dd>" for who, what in lines)
    return f'<figure class="case"><figcaption>{title}</figcaption>\n{strip}<dl>{listed}</dl></figure>'


# --- image-to-image -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masked:
    """What is attacked: targets.npz of an image-to-image task.

    Attributes:
        images: [n, h, w, c] in [0, 1].
        labels: [n] true classes.
        groups: [n] "forgotten", "unseen" or "retained".
        rows: [n] row numbers in their source.
        mask: [g, g] bool, hidden patches.
        outputs: [seeds, n, h, w, c] with what the original models fill in.
        judged: [seeds, n, classes] logits of the judge on ``outputs``.
        class_names: Names of the classes, possibly none.
    """

    images: np.ndarray
    labels: np.ndarray
    groups: np.ndarray
    rows: np.ndarray
    mask: np.ndarray
    outputs: np.ndarray
    judged: np.ndarray
    class_names: list[str]

    def name(self, label: int) -> str:
        """The name of a class, or its number."""
        return self.class_names[label] if 0 <= label < len(self.class_names) else str(label)

    @property
    def hidden(self) -> np.ndarray:
        """[h, w] bool: the pixels of hidden patches."""
        size = self.images.shape[1] // len(self.mask)
        return np.kron(self.mask, np.ones((size, size), bool))

    def shown(self, image: np.ndarray) -> np.ndarray:
        """An image with its hidden patches grey."""
        return np.where(self.hidden[..., None], _GREY, image)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filled:
    """What a method's models fill in: attacked.npz of an image-to-image task.

    Attributes:
        conditions: "clean" first; E attacks.
        inputs: [first seeds, E, n, h, w, c] attacked images; their hidden part is not seen.
        outputs: [first seeds, E + 1, n, h, w, c].
        judged: [seeds, E + 1, n, classes] logits of the judge on what was filled in.
        iterations: [seeds, E, n] steps that the attack took, or None.
    """

    conditions: list[str]
    inputs: np.ndarray
    outputs: np.ndarray
    judged: np.ndarray
    iterations: np.ndarray | None


def load_masked(path: AnyPath) -> Masked:
    """Reads targets.npz of an image-to-image task.

    Raises:
        InputError: It is damaged, or its arrays do not match.
    """
    arrays = read_npz(path, sealed=True)
    names = "images labels groups rows mask outputs judged"
    images, labels, groups, rows, mask, outputs, judged = take(arrays, *names.split())
    n = len(images)
    _fits(
        images.ndim == 4
        and all(a.shape == (n,) for a in (labels, groups, rows))
        and outputs.shape[1:] == images.shape
        and judged.shape[:2] == outputs.shape[:2]
        and mask.ndim == 2
        and images.shape[1] % len(mask) == 0,
        names,
        arrays,
    )
    return Masked(
        images=images,
        labels=labels,
        groups=groups,
        rows=rows,
        mask=mask.astype(bool),
        outputs=outputs,
        judged=judged,
        class_names=[str(name) for name in arrays.get("class_names", ())],
    )


def load_filled(path: AnyPath, targets: Masked) -> Filled:
    """Reads attacked.npz of an image-to-image task; it may hold no pictures.

    Raises:
        InputError: It is damaged, or does not fit the targets.
    """
    arrays = read_npz(path, sealed=True)
    conditions, inputs, outputs, judged = take(arrays, "conditions", "inputs", "outputs", "judged")
    names, shape = [str(c) for c in conditions], targets.images.shape
    _fits(
        judged.shape[1:3] == (len(names), len(targets.images))
        and (outputs.size == 0 or outputs.shape[1:] == (len(names), *shape))
        and (inputs.size == 0 or inputs.shape[1:] == (len(names) - 1, *shape)),
        "inputs outputs judged",
        arrays,
    )
    iterations = arrays.get("iterations")
    return Filled(
        conditions=names,
        inputs=inputs,
        outputs=outputs,
        judged=judged,
        iterations=iterations if iterations is not None and iterations.size else None,
    )


def filled_gallery(method: str, targets: Masked, attacked: Filled, condition: str) -> str:
    """The grid of image, masked image and fillings of one method under one attack, HTML; "" when there are none."""
    if condition not in attacked.conditions[1:] or not attacked.outputs.size or not attacked.inputs.size:
        return ""
    place = attacked.conditions.index(condition)
    chosen = [int(i) for kind, count in SHOWN.items() for i in np.flatnonzero(targets.groups == kind)[:count]]
    height, width, _ = targets.images.shape[1:]
    note = (
        "Not picked by outcome: the first "
        + ", ".join(f"{count} {kind}" for kind, count in SHOWN.items())
        + f" images in the order of targets.npz, seed 0. Grey is hidden. {height} × {width} pixels. Below: what the judge "
        "takes each result for."
    )
    cards = [_filled_card(method, targets, attacked, place, i) for i in chosen]
    return _gallery(f"Pictures {under(condition)}", note, cards)


def _filled_card(method: str, targets: Masked, attacked: Filled, place: int, i: int) -> str:
    name, truth = clean(method), int(targets.labels[i])
    called = clean(targets.name(truth))
    what = f"{targets.groups[i]} image of class {called}"
    before, after = attacked.outputs[0, 0, i], attacked.outputs[0, place, i]
    pictures = [
        (targets.images[i], what, "image, I0"),
        (targets.shown(targets.images[i]), f"{what}, partly hidden", "seen, Im"),
        (targets.outputs[0, i], f"what the original model fills into the {what}", "original, I1"),
        (before, f"what {name} fills into the {what}", f"{name}, I2"),
        (targets.shown(attacked.inputs[0, place - 1, i]), f"the attacked {what}, partly hidden", "attacked"),
        (after, f"what {name} fills in under attack", f"{name}, I3"),
    ]
    original = targets.outputs[0, i]
    spoken = [
        ("original", targets.judged[0, i], None),
        (name, attacked.judged[0, 0, i], before),
        (f"{name}, attacked", attacked.judged[0, place, i], after),
    ]
    lines = []
    for who, logits, made in spoken:
        distance = "" if made is None else f" · L1 {np.abs(made - original)[targets.hidden].mean():.2f}"
        lines.append((who, said(targets.name, answer(logits, truth)) + distance))
    return _card(
        f"class {escape(called)}, {escape(str(targets.groups[i]))}, row {int(targets.rows[i])}", _strip(pictures), lines
    )


# --- text-to-image ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompted:
    """What is attacked: targets.npz of a text-to-image task.

    Attributes:
        texts: [n] prompts, the attacked ones first.
        labels: [n] what the judge should call their images.
        attacked: How many are attacked.
        images: [seeds, n, h, w, c] that the original models draw, in [0, 1].
        logits: [seeds, n, classes] of the judge on them.
    """

    texts: list[str]
    labels: np.ndarray
    attacked: int
    images: np.ndarray
    logits: np.ndarray

    def name(self, label: int) -> str:
        """A class's number; -1 is an image that is not finite."""
        return str(label) if label >= 0 else "nothing"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
    """What a method's models draw: attacked.npz of a text-to-image task.

    Attributes:
        conditions: "clean" first; E attacks.
        drawn: [seeds, n, h, w, c] without an attack.
        logits: [seeds, n, classes] of the judge on them.
        texts: [seeds, E, attacked] prompts with what the attack added.
        success: [seeds, E, attacked] bool.
        steps: [seeds, E, attacked] rounds.
        images: [seeds, E, attacked, h, w, c].
        said: [seeds, E, attacked] what the judge calls them.
    """

    conditions: list[str]
    drawn: np.ndarray
    logits: np.ndarray
    texts: np.ndarray
    success: np.ndarray
    steps: np.ndarray
    images: np.ndarray
    said: np.ndarray
    iterations: None = None


def load_prompted(path: AnyPath) -> Prompted:
    """Reads targets.npz of a text-to-image task.

    Raises:
        InputError: It is damaged, or its arrays do not match.
    """
    arrays = read_npz(path, sealed=True)
    names = "texts labels attacked images logits"
    texts, labels, attacked, images, logits = take(arrays, *names.split())
    n = len(texts)
    _fits(
        labels.shape == attacked.shape == (n,)
        and images.ndim == 5
        and images.shape[1] == n
        and logits.shape[:2] == images.shape[:2],
        names,
        arrays,
    )
    return Prompted(
        texts=[str(text) for text in texts], labels=labels, attacked=int(attacked.sum()), images=images, logits=logits
    )


def load_drawn(path: AnyPath, targets: Prompted) -> Drawn:
    """Reads attacked.npz of a text-to-image task.

    Raises:
        InputError: It is damaged, or does not fit the targets.
    """
    arrays = read_npz(path, sealed=True)
    names = "drawn drawn_logits texts success steps images said"
    drawn, logits, texts, success, steps, images, called = take(arrays, *names.split())
    conditions = [str(c) for c in take(arrays, "conditions")[0]]
    shape = (len(drawn), len(conditions) - 1, targets.attacked)
    _fits(
        drawn.shape[1:] == targets.images.shape[1:]
        and all(a.shape == shape for a in (texts, success, steps, called))
        and images.shape[:3] == shape
        and logits.shape[:2] == drawn.shape[:2],
        names,
        arrays,
    )
    return Drawn(
        conditions=conditions,
        drawn=drawn,
        logits=logits,
        texts=texts,
        success=success,
        steps=steps,
        images=images,
        said=called,
    )


def drawn_gallery(method: str, targets: Prompted, attacked: Drawn, condition: str) -> str:
    """What one method draws for some prompts, without an attack and under each, HTML; "" when there is nothing."""
    if condition not in attacked.conditions[1:] or not attacked.images.size:
        return ""
    count = min(PROMPTS, targets.attacked)
    height, width, _ = targets.images.shape[2:]
    note = (
        f"Not picked by outcome: the first {count} of the {targets.attacked} attacked prompts in the order of targets.npz, "
        f"seed 0, all from the same noise. Of a failed attack the last try is shown. {height} × {width} pixels."
    )
    return _gallery("What is drawn", note, [_drawn_card(method, targets, attacked, i) for i in range(count)])


def _drawn_card(method: str, targets: Prompted, attacked: Drawn, i: int) -> str:
    name, truth, prompt = clean(method), int(targets.labels[i]), clean(targets.texts[i])
    pictures = [
        (targets.images[0, i], f"what the original model draws for “{prompt}”", "original"),
        (attacked.drawn[0, i], f"what {name} draws for it", name),
    ]
    lines = [
        ("original", said(targets.name, answer(targets.logits[0, i], truth))),
        (name, said(targets.name, answer(attacked.logits[0, i], truth))),
    ]
    for number, condition in enumerate(attacked.conditions[1:]):
        words, rounds = clean(str(attacked.texts[0, number, i])), int(attacked.steps[0, number, i])
        pictures.append((attacked.images[0, number, i], f"what {name} draws for “{words}”", clean(condition)))
        right = bool(attacked.success[0, number, i])
        css, sign = ("right", "✓") if right else ("wrong", "✗")
        after = f"after {rounds} round{'s' * (rounds != 1)}" if rounds else "as it is"
        called = escape(targets.name(int(attacked.said[0, number, i])))
        lines.append((clean(condition), f'<span class="{css}">{sign} {called}</span> {after}: “{escape(words)}”'))
    return _card(f"“{escape(prompt)}”", _strip(pictures), lines)
