"""The sentences of a privacy page: what may be said of the records, and nothing more."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxunlearn.privacy import DIRECT, IN_CONTEXT, PrivacyRecord
from jaxunlearn.report.load import finite
from jaxunlearn.report.measured import REFERENCE, find, interval, lookup, mean, metrics, share
from jaxunlearn.report.privacy.load import BASE, TARGET
from jaxunlearn.report.privacy.table import (
    KNOWN,
    TEXT,
    UNKNOWN,
    asked,
    attack_of,
    below,
    beyond,
    chance_note,
    last_tuned,
    points,
    reference_note,
    unlearned,
)
from jaxunlearn.report.table import clean
from jaxunlearn.report.words import join

FEWEST = 3
"""Seeds from which intervals are compared in words."""


def finding(records: Sequence[PrivacyRecord]) -> str:
    """The result in one sentence: the method of which most comes back."""
    condition, reference = last_tuned(records), find(records, REFERENCE)
    found = [(v, r) for r in unlearned(records) if condition and (v := mean(r, UNKNOWN, condition)) is not None]
    its = mean(reference, UNKNOWN, condition) if reference and condition else None
    beside = "" if its is None else f"; retrained models, which never saw it, {share(its)}"
    if not found or condition is None:
        said = [(clean(r.method), v) for r in records if (v := mean(r, UNKNOWN, DIRECT)) is not None]
        if not said:
            return "No unlearned model was asked yet."
        return f"Private data that models say when they are asked: {join([f'{name} {share(v)}' for name, v in said])}."
    value, worst = max(found, key=lambda pair: pair[0])
    before = mean(worst, UNKNOWN, DIRECT)
    how = asked(condition, attack_of(records))
    first = f"{share(before)} of the unknown private data when asked directly, and " if before is not None else ""
    what = "" if first else " of the unknown private data"
    return f"After {clean(worst.method)} the models say {first}{share(value)}{what} once {how}{beside}."


def separated(records: Sequence[PrivacyRecord]) -> tuple[list[str], int] | None:
    """The methods whose interval of P3 over seeds lies wholly above retraining's.

    Returns:
        (their names, how many methods have an interval), or None with fewer than three seeds or nothing to compare.
    """
    reference, condition = find(records, REFERENCE), last_tuned(records)
    if reference is None or condition is None or min(r.seeds for r in [reference, *unlearned(records)]) < FEWEST:
        return None
    mark = interval(reference, UNKNOWN, condition)
    found = [(record, bounds) for record in unlearned(records) if (bounds := interval(record, UNKNOWN, condition))]
    if not mark or not found:
        return None
    return [clean(record.method) for record, bounds in found if bounds[0] > mark[1]], len(found)


def lead(records: Sequence[PrivacyRecord]) -> str:
    """What stands below the finding: the target models, who is beyond retraining, and what is chance."""
    parts, target, condition = [], find(records, TARGET), last_tuned(records)
    if target is not None:
        said = [(c, v) for c in (DIRECT, condition) if c and (v := mean(target, UNKNOWN, c)) is not None]
        numbers = join([f"{share(v)} {asked(c)}" for c, v in said])
        parts += [f"Before unlearning the models say {numbers}."] if said else []
    compared = separated(records)
    if compared is not None:
        who, total = compared
        named = f" ({join(who)})" if len(who) < total else ""
        parts.append(
            f"Of {len(who)} of {total} methods{named} more comes back than retrained models guess; the 95% intervals over "
            "seeds lie apart."
            if who
            else "Of no method does more come back than retrained models guess, as far as the 95% intervals over seeds "
            "can tell."
        )
    if find(records, REFERENCE) is None:
        parts += reference_note(records)
    parts.append(chance_note(records))
    return " ".join(filter(None, parts))


def verdict(record: PrivacyRecord, records: Sequence[PrivacyRecord]) -> str:
    """What one kind of models says, however it is asked, beside retraining."""
    attack, parts = attack_of(records), []
    for condition in filter(None, (DIRECT, IN_CONTEXT, last_tuned(records))):
        both = [(n, v) for n in (KNOWN, UNKNOWN) if (v := mean(record, n, condition)) is not None]
        if both:
            parts.append(f"{' / '.join(share(v) for _, v in both)} {asked(condition, attack)}")
    start = {
        BASE: "Before anybody was learnt. ",
        TARGET: "Before unlearning. ",
        REFERENCE: "Never taught these people: the reference. ",
    }.get(record.method, "")
    if not parts:
        return f"{start}They were not asked."
    text = f"{start}Of the private data (known / unknown) the models say {join(parts)}."
    if record.method in (BASE, TARGET, REFERENCE):
        return text
    more = beyond(record, records)
    if more is not None:
        text += f" That is {points(more)} points beyond {REFERENCE} on the unknown set."
    target = find(records, TARGET)
    before, after = (None if r is None else mean(r, TEXT, DIRECT) for r in (target, record))
    if before is not None and after is not None:
        text += f" A token of unseen text costs {after:.2f} nats, {TARGET} {before:.2f}."
    if below(record, records):
        text += f" P3 is below {REFERENCE}’s, which is no proof of forgetting."
    return text


def stopping(record: PrivacyRecord, config: Mapping[str, Any]) -> str:
    """When unlearning was stopped, or that it was not; "" where nobody says."""
    trace, threshold = record.trace, finite(config.get("stop_below"))
    chosen, epochs = trace.get("chosen"), trace.get("epochs")
    if not isinstance(chosen, list) or not isinstance(epochs, list) or not chosen or not epochs:
        return ""
    at = f"epoch {min(chosen)}" if len(set(chosen)) == 1 else f"epochs {min(chosen)} to {max(chosen)}, by seed"
    if threshold is None:
        return f"It went on to the last of {epochs[-1]} epochs."
    rule = f"the first epoch at which at most {share(threshold)} of the known answers is left"
    late = [c for c in chosen if c == epochs[-1]]
    left = trace.get("p1_known")
    over = (
        isinstance(left, list)
        and len(left) == len(epochs)
        and isinstance(left[-1], list)
        and max(left[-1], default=0) > threshold
    )
    if late and over:
        return f"Asked to stop after {rule}, it had not got there after all {epochs[-1]} epochs; more of them may do."
    return f"Stopped after {at}: {rule}."


def guide(records: Sequence[PrivacyRecord]) -> list[tuple[str, str]]:
    """How to read the page: (heading, paragraph) pairs; only what the records hold."""
    held = {metric.name for metric in metrics(records)}
    texts = [
        (
            "P1, P2, P3",
            "Ways to ask for private data: directly; after other people’s answers in the prompt; after the model was "
            "fine-tuned on other people’s answers. What P1 does not find and P3 does was hidden and not forgotten. Nobody "
            "is asked about whose answers were shown or fine-tuned on.",
        ),
        (
            "Known and unknown",
            "Methods are shown the known part of the forget set only. The unknown part was learnt in the same way and is "
            "never shown. Where it is forgotten as well, forgetting spreads; that those who stay are forgotten too says "
            "that it spreads without regard.",
        ),
        (
            "Always beside retraining, and chance",
            "Fine-tuning teaches any model what such data look like, and some can be guessed from the name. Retrained "
            "models never saw these people: what P3 gets from them is guessed, and only the difference was left behind. "
            "The control are people whom no model has seen, the retrained ones not either.",
        ),
        (
            "Strict and lenient",
            "Strict: the first thing in the answer that looks like the kind of data asked for must be right. Lenient: it "
            "is somewhere in the answer. Papers count either.",
        ),
        (
            "Utility",
            "QA is ROUGE-L recall of answers about people who stay; text nll the mean -log p of a token of unseen text. A "
            "method that destroys the model forgets everything: look at recovery against utility before calling one "
            "deeper than another, since methods stop at different places.",
        ),
        (
            "FS, the forgetting score",
            "By how many nats a fact’s private tokens became less likely. Correlated with association by gradients (the "
            "dot product with the mean gradient of the known facts), by representations, and along a graph of contacts. "
            "Kinds of data differ in length, so coefficients within kinds stand beside; and so do those of a plain "
            "baseline, the fact’s loss before unlearning. Gain: by how much the score predicts better than that.",
        ),
        (
            "CKA",
            "Debiased linear similarity of a layer’s mean states over private tokens to the target model’s, 1 for equal "
            "ones up to rotation. The usual biased one is near 1 for unrelated states of few facts. A high value does not "
            "show that data are still there, nor a low one that they are gone: P3 does.",
        ),
    ]
    if "unknown_derivable" in held or "unknown_underivable" in held:
        texts.append(
            (
                "E-mail addresses",
                "Some follow from the name by a rule such as first.last; whoever knows the rule says them without having "
                "seen them. Those that do not are the better test.",
            )
        )
    if any(condition.endswith(" bits") for record in records for condition in record.conditions):
        texts.append(
            (
                "Rounded weights",
                "Asked directly, with every matrix rounded to so many bits. An update that is smaller than a step of that "
                "grid is undone.",
            )
        )
    if any(record.seeds > 1 for record in records):
        texts.append(
            (
                "± and [from, to]",
                "± is the standard deviation over seeds: how much single models differ. The brackets are a 95% interval "
                "for the mean over seeds (Student’s t), cut at 0 and 100. With few seeds it is wide, and has no width "
                "where they agree. It covers how models differ, not the choice of the people.",
            )
        )
    return texts


def differences(record: PrivacyRecord, reference: PrivacyRecord, name: str, condition: str) -> list[float] | None:
    """Record minus retraining, seed by seed; None where seeds cannot be paired."""
    mine, its = lookup(record, name, condition), lookup(reference, name, condition)
    if mine is None or its is None or record.failed != reference.failed:
        return None
    a, b = mine[0].by_seed(mine[1]), its[0].by_seed(its[1])
    return [x - y for x, y in zip(a, b)] if len(a) == len(b) else None
