"""The sentences of a robustness page: what may be said of the records, and nothing more."""

import math
from collections.abc import Sequence

from jaxunlearn.report.measured import REFERENCE, conditions, find, interval, labels, lookup, mean, metrics, share
from jaxunlearn.report.robustness.load import ORIGINAL
from jaxunlearn.report.robustness.table import UA, reference_note, under
from jaxunlearn.report.table import clean
from jaxunlearn.report.words import join
from jaxunlearn.robustness import CLEAN, RobustnessRecord

FEWEST = 3
"""Seeds from which intervals are compared in words."""


def unlearned(records: Sequence[RobustnessRecord]) -> list[RobustnessRecord]:
    """The methods in question: neither the original models nor retraining."""
    return [record for record in records if record.method not in (ORIGINAL, REFERENCE)]


def strongest(records: Sequence[RobustnessRecord]) -> str:
    """The strongest attack under which some method was looked at; "clean" without one."""
    used = [c for c in conditions(records) if any(lookup(record, UA, c) for record in records)]
    return max(used, key=radius, default=CLEAN)


def radius(condition: str) -> float:
    """How strong a condition's attack is, in 255ths; the inverse of ``jaxunlearn.robustness.strength``.

    >>> radius("clean"), radius("2.5/255"), radius("unbounded")
    (0.0, 2.5, inf)
    """
    if condition == "unbounded":
        return math.inf
    number = condition.removesuffix("/255")
    return float(number) if number != condition else 0.0


def _reference(records: Sequence[RobustnessRecord], condition: str) -> float | None:
    record = find(records, REFERENCE)
    return None if record is None else mean(record, UA, condition)


def finding(records: Sequence[RobustnessRecord]) -> str:
    """The result in one sentence."""
    candidates = unlearned(records)
    condition = strongest(candidates or records)
    start = under(condition)[0].upper() + under(condition)[1:]
    reference = _reference(records, condition)
    beside = "" if reference is None else f"after retraining, which never saw them, {share(reference)}"
    found = [(value, record) for record in candidates if (value := mean(record, UA, condition)) is not None]
    if not found:
        return f"{start}: {beside}." if beside else "No unlearned model was looked at."
    value, worst = max(found, key=lambda pair: pair[0])
    before = mean(worst, UA, CLEAN)
    again = " again" if condition != CLEAN and before is not None and before < value else ""
    text = f"{start}, {share(value)} of the forgotten images are recognised{again} after {clean(worst.method)}"
    return f"{text}; {beside}." if beside else f"{text}."


def beyond(records: Sequence[RobustnessRecord], condition: str) -> tuple[list[str], int] | None:
    """The methods whose interval over seeds lies wholly above retraining's.

    Returns:
        (their names, how many methods have an interval), or None without intervals to compare, or with fewer than three
        seeds: two that happen to agree have an interval of no width.
    """
    reference = find(records, REFERENCE)
    if reference is None or min(record.seeds for record in [reference, *unlearned(records)]) < FEWEST:
        return None
    mark = interval(reference, UA, condition)
    found = [(record, bounds) for record in unlearned(records) if (bounds := interval(record, UA, condition))]
    if not mark or not found:
        return None
    return [clean(record.method) for record, bounds in found if bounds[0] > mark[1]], len(found)


def lead(records: Sequence[RobustnessRecord]) -> str:
    """What stands below the finding: before the attack, how many methods, how many seeds and images."""
    condition, parts = strongest(unlearned(records) or records), []
    if condition != CLEAN:
        before = [(n, v) for n, r in zip(labels(records), records) if (v := mean(r, UA, CLEAN)) is not None]
        parts.append(f"Recognised without an attack: {join([f'{name} {share(value)}' for name, value in before])}.")
    compared = beyond(records, condition)
    if compared is not None:
        names, total = compared
        who = f" ({join(names)})" if len(names) < total else ""
        verb = "recognises" if len(names) == 1 else "recognise"
        more = f"more of them than retraining does {under(condition)}"
        parts.append(
            f"{len(names)} of {total} methods{who} {verb} {more}; the 95% intervals over seeds lie apart."
            if names
            else f"No method recognises {more}, as far as the 95% intervals over seeds can tell."
        )
    if find(records, REFERENCE) is None:
        parts.append(reference_note(records))
    return " ".join(parts)


def verdict(record: RobustnessRecord, records: Sequence[RobustnessRecord]) -> str:
    """What the attack does to one method, beside retraining under the same condition."""
    parts = []
    for condition in record.conditions:
        value = mean(record, UA, condition)
        if value is None:
            continue
        reference = None if record.method in (REFERENCE, ORIGINAL) else _reference(records, condition)
        beside = "" if reference is None else f" ({REFERENCE} {share(reference)})"
        parts.append(f"{share(value)} {under(condition)}{beside}")
    if not parts:
        return "It was not asked to classify the images that were to be forgotten."
    text = f"Of the images that were to be forgotten it recognises {join(parts)}."
    if record.method == ORIGINAL:
        return f"The models before unlearning. {text}"
    if record.method == REFERENCE:
        return f"Trained anew without those images: the reference. {text}"
    return text


def guide(records: Sequence[RobustnessRecord]) -> list[tuple[str, str]]:
    """How to read the page: (heading, paragraph) pairs; only what the records hold."""
    names = {metric.name for metric in metrics(records)}
    texts = [
        (
            "Always beside retraining",
            "An attack can push any model towards any answer, so a share above 0 alone proves nothing. Retraining never saw "
            "the images: what the attack gets from it is made up. What a method shows beyond it, under the same attack, was "
            "left behind. Where single examples are forgotten, rather than whole classes, retraining recognises most of "
            "them too; then only the difference counts.",
        ),
        (
            "The attack",
            "It knows the unlearned model, and what the original model answered on each image. It changes the image, no "
            "channel of a pixel by more than the stated strength, until the unlearned model answers as the original did. It "
            "does not look at the label. “Clean” is no attack; an unbounded one begins at noise and may end anywhere.",
        ),
        (
            "UA, lower is better",
            "The share of the images that were to be forgotten which are given their true class. Some papers call 100% less "
            "this share by the same name.",
        ),
    ]
    if "mia" in names:
        controls = [
            ("mia_control", "the share of unseen images that are called members as well"),
            ("mia_balanced", "accuracy on both, equally weighted (chance 50%)"),
            ("mia_auc", "the chance that a forgotten image scores above an unseen one (chance 50%)"),
            ("mia_tpr", "the forgotten images found while at most 1% of the unseen are accused"),
        ]
        held = [words for name, words in controls if name in names]
        texts.append(
            (
                "MIA, lower is better, and its controls",
                "The share of the forgotten images that an attack trained on shadow models calls members of the training "
                "set. An attack that calls everything a member would reach 100%"
                + (f"; hence beside it {join(held)}." if held else ", and no control was recorded here."),
            )
        )
    if "ua_control" in names:
        texts.append(
            (
                "Unseen images of the same kind",
                "The same attack on test images that no model was trained on. Where they are recognised as often as the "
                "forgotten ones, the attack brings back what the images have in common, the class, and not these images.",
            )
        )
    if "ua_second" in names:
        texts.append(
            (
                "A second attack",
                "Another search (APGD) under the same limit and with the same aim. If it finds more, the first one was not "
                "strong enough, and its share is not what can be brought back at most. No attack proves that there is none "
                "that is stronger.",
            )
        )
    if any(name.startswith("ta_") for name in names):
        texts.append(
            (
                "TA in two ways",
                "Accuracy on the test set without the forgotten classes, and on all of it. The second falls as classes are "
                "forgotten, as it should; papers print one or the other.",
            )
        )
    if any(record.seeds > 1 for record in records):
        texts.append(
            (
                "± and [from, to]",
                "± is the standard deviation over all repeats: how much single models differ. The brackets are a 95% "
                "interval for the mean over seeds of unlearning (Student’s t; repeats of a seed averaged first), cut at "
                "0 and 100. With few seeds it is wide. It covers how models differ, not the choice of the images.",
            )
        )
    return texts
