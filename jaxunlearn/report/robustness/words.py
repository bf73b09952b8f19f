"""The sentences of a robustness page: what may be said of the records, and nothing more."""

from collections.abc import Sequence

from jaxunlearn.report.measured import REFERENCE, find, interval, labels, mean, metrics
from jaxunlearn.report.robustness.table import reference_note
from jaxunlearn.report.robustness.tasks import ORIGINAL, strongest, task_of, under
from jaxunlearn.report.table import clean
from jaxunlearn.report.words import join
from jaxunlearn.robustness import CLEAN, RobustnessRecord

FEWEST = 3
"""Seeds from which intervals are compared in words."""


def unlearned(records: Sequence[RobustnessRecord]) -> list[RobustnessRecord]:
    """The methods in question: neither the original models nor retraining."""
    return [record for record in records if record.method not in (ORIGINAL, REFERENCE)]


def _reference(records: Sequence[RobustnessRecord], condition: str) -> float | None:
    record = find(records, REFERENCE)
    return None if record is None else mean(record, task_of(records).metric, condition)


def finding(records: Sequence[RobustnessRecord]) -> str:
    """The result in one sentence."""
    task, candidates = task_of(records), unlearned(records)
    condition = strongest(candidates or records)
    start = under(condition)[0].upper() + under(condition)[1:]
    reference = _reference(records, condition)
    beside = "" if reference is None else f"after retraining, which never saw them, {task.said(reference)}"
    found = [(value, record) for record in candidates if (value := mean(record, task.metric, condition)) is not None]
    if not found:
        return f"{start}: {beside}." if beside else "No unlearned model was looked at."
    value, worst = task.worst(found)
    before = mean(worst, task.metric, CLEAN)
    again = task.again if condition != CLEAN and before is not None and task.leaks_more(value, before) else ""
    text = f"{start}, {task.finding.format(value=task.said(value), again=again, method=clean(worst.method))}"
    return f"{text}; {beside}." if beside else f"{text}."


def beyond(records: Sequence[RobustnessRecord], condition: str) -> tuple[list[str], int] | None:
    """The methods of which more comes back than of retraining, with intervals over seeds that lie apart.

    Returns:
        (their names, how many methods have an interval), or None without intervals to compare, or with fewer than three
        seeds: two that happen to agree have an interval of no width.
    """
    task, reference = task_of(records), find(records, REFERENCE)
    if reference is None or min(record.seeds for record in [reference, *unlearned(records)]) < FEWEST:
        return None
    mark = interval(reference, task.metric, condition)
    found = [(r, bounds) for r in unlearned(records) if (bounds := interval(r, task.metric, condition))]
    if not mark or not found:
        return None
    near, far = (0, 1) if task.shares else (1, 0)  # the ends that face each other
    return [clean(r.method) for r, bounds in found if task.leaks_more(bounds[near], mark[far])], len(found)


def lead(records: Sequence[RobustnessRecord]) -> str:
    """What stands below the finding: before the attack, how many methods, how many seeds and images."""
    task, condition, parts = task_of(records), strongest(unlearned(records) or records), []
    if condition != CLEAN:
        before = [(n, v) for n, r in zip(labels(records), records) if (v := mean(r, task.metric, CLEAN)) is not None]
        parts.append(f"{task.before}: {join([f'{name} {task.said(value)}' for name, value in before])}.")
    compared = beyond(records, condition)
    if compared is not None:
        names, total = compared
        who = f" ({join(names)})" if len(names) < total else ""
        does, do = (f"{words} {under(condition)}" for words in task.more)
        parts.append(
            f"{len(names)} of {total} methods{who} {does if len(names) == 1 else do}; the 95% intervals over seeds lie apart."
            if names
            else f"No method {does}, as far as the 95% intervals over seeds can tell."
        )
    if find(records, REFERENCE) is None:
        parts.append(reference_note(records))
    return " ".join(parts)


def verdict(record: RobustnessRecord, records: Sequence[RobustnessRecord]) -> str:
    """What the attack does to one method, beside retraining under the same condition."""
    task, parts = task_of(records), []
    for condition in record.conditions:
        value = mean(record, task.metric, condition)
        if value is None:
            continue
        reference = None if record.method in (REFERENCE, ORIGINAL) else _reference(records, condition)
        beside = "" if reference is None else f" ({REFERENCE} {task.said(reference)})"
        parts.append(f"{task.said(value)} {under(condition)}{beside}")
    if not parts:
        return task.nothing
    text = task.verdict.format(values=join(parts))
    if record.method == ORIGINAL:
        return f"The models before unlearning. {text}"
    if record.method == REFERENCE:
        return f"Trained anew without what was to be forgotten: the reference. {text}"
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
        *task_of(records).guide,
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
