"""The table of PrivUn's Table 1: what language models say of whom they were to forget, however they are asked, by method."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxunlearn.privacy import DIRECT, IN_CONTEXT, PrivacyRecord
from jaxunlearn.report.load import finite
from jaxunlearn.report.measured import (
    REFERENCE,
    Column,
    conditions,
    find,
    labels,
    lookup,
    markdown_columns,
    mean,
    metrics,
    render_columns,
    share,
    subject,
    titled,
)
from jaxunlearn.report.privacy.load import AROUND, TARGET
from jaxunlearn.report.table import clean
from jaxunlearn.report.words import join

KNOWN, UNKNOWN, RETAINED, CONTROL = "known", "unknown", "retained", "control"
TEXT, QA, CHOICES = "text_nll", "rouge", "choices"
BELOW = "†"
"""Marks rows whose P3 is below retraining's."""
WARNING = "Warning: "
LEARNT = 0.5
"""A target model that says less than this share of the private data had little to forget."""
WORN = 0.2
"""Fine-tuning that costs the target models more than this share of what they say is too strong an attack."""


def is_tuned(condition: str) -> bool:
    """Whether a condition is P3."""
    return condition.startswith("P3")


def last_tuned(records: Sequence[PrivacyRecord]) -> str | None:
    """P3 after most epochs of fine-tuning; None if nobody fine-tuned."""
    return next((c for c in reversed(conditions(records)) if is_tuned(c)), None)


def unlearned(records: Sequence[PrivacyRecord]) -> list[PrivacyRecord]:
    """The methods in question: neither the models before unlearning nor retraining."""
    return [record for record in records if record.method not in AROUND]


def columns(records: Sequence[PrivacyRecord]) -> list[Column]:
    """P1, P2 and the last P3 on the known and the unknown set, P1 of those who stay, utility; only what is there."""
    by_name = {metric.name: metric for metric in metrics(records)}
    asked = [(DIRECT, (KNOWN, UNKNOWN, RETAINED)), (IN_CONTEXT, (KNOWN, UNKNOWN))]
    asked.append((last_tuned(records) or "", (KNOWN, UNKNOWN)))
    found = [Column(clean(c), "", name, c) for c, names in asked for name in names]
    found += [Column("utility", "", name, DIRECT) for name in (QA, CHOICES, TEXT)]
    return [
        Column(c.group, titled(by_name[c.metric]), c.metric, c.condition)
        for c in found
        if c.metric in by_name and any(lookup(record, c.metric, c.condition) for record in records)
    ]


def below(record: PrivacyRecord, records: Sequence[PrivacyRecord]) -> list[str]:
    """Which of the sets a method's P3 gives away less of than retraining's, by more than one fact."""
    reference, condition = find(records, REFERENCE), last_tuned(records)
    if reference is None or condition is None or record.method in AROUND:
        return []
    found = []
    for name in (KNOWN, UNKNOWN):
        mine, its = lookup(record, name, condition), mean(reference, name, condition)
        if mine is not None and its is not None and (mine[0].mean(mine[1]) or 0.0) < its - 1 / mine[0].n(mine[1]):
            found.append(name)
    return found


def names(records: Sequence[PrivacyRecord]) -> list[str]:
    """The rows' names, those marked whose P3 is below retraining's."""
    return [f"{name} {BELOW}" if below(r, records) else name for name, r in zip(labels(records), records)]


def asked(condition: str, attack: Mapping[str, Any] | None = None) -> str:
    """A condition in words, with the attack's settings where they are known.

    >>> asked("P1"), asked("P2", {"shots": 4}), asked("P3, 10 epochs"), asked("4 bits")
    ('asked directly', 'asked after 4 other answers', 'fine-tuned for 10 epochs', 'rounded to 4 bits')
    """
    attack = attack or {}
    if condition == DIRECT:
        return "asked directly"
    if condition == IN_CONTEXT:
        shots = finite(attack.get("shots"))
        return "asked after other answers" if shots is None else f"asked after {shots:g} other answers"
    if not is_tuned(condition):
        return f"rounded to {clean(condition)}"
    recovery = attack.get("recovery")
    samples = finite(recovery.get("samples")) if isinstance(recovery, Mapping) else None
    on = "" if samples is None else f" on {samples:g} answers"
    return f"fine-tuned{on} for {clean(condition).partition(', ')[2] or 'a while'}"


def attack_of(records: Sequence[PrivacyRecord]) -> dict[str, Any]:
    """The settings of the attacks; all methods share them."""
    return next((record.attack for record in records if isinstance(record.attack, dict) and record.attack), {})


def points(value: float) -> str:
    """A difference of shares in percentage points.

    >>> points(0.8321), points(-0.004)
    ('+83.2', '−0.4')
    """
    return f"{100 * value:+.1f}".replace("-", "−")


def beyond(record: PrivacyRecord, records: Sequence[PrivacyRecord], name: str = UNKNOWN) -> float | None:
    """The last P3 minus retraining's; None without either."""
    reference, condition = find(records, REFERENCE), last_tuned(records)
    if reference is None or condition is None:
        return None
    mine, its = mean(record, name, condition), mean(reference, name, condition)
    return None if mine is None or its is None else mine - its


def chance_note(records: Sequence[PrivacyRecord]) -> str:
    """How much is said at most of people whom no model has seen; "" where nobody asked."""
    found = [
        (value, f"{clean(record.method)}, {clean(condition)}")
        for record in records
        for condition in record.conditions
        if (value := mean(record, CONTROL, condition)) is not None
    ]
    if not found:
        return ""
    value, where = max(found, key=lambda each: each[0])
    at_most = f"at most {share(value)} is said ({where})" if value else "nothing is said right"
    return f"Chance: of people whom no model has seen, {at_most}."


def remarks(record: PrivacyRecord) -> list[str]:
    """What a reader should be warned of: means outside their bands, target models that learnt little or that P3 wears out."""
    found = [clean(sentence) for sentence in record.surprises()]  # pyrefly: ignore
    if record.method != TARGET:
        return found
    said, tuned = mean(record, UNKNOWN, DIRECT), last_tuned([record])
    after = mean(record, UNKNOWN, tuned) if tuned else None
    if said is not None and said < LEARNT:
        found.append(
            f"the {TARGET} models say only {share(said)} of the unknown private data themselves, so there is little to "
            "forget or to bring back; train them longer."
        )
    elif said is not None and after is not None and after < said - WORN:
        found.append(
            f"fine-tuning wears out what the {TARGET} models know, {share(after)} rather than {share(said)}, so that P3 "
            "understates what is left; lower its learning rate."
        )
    return found


def reference_note(records: Sequence[PrivacyRecord]) -> list[str]:
    """Which row the others are to be held against, or that there is none; and what is below it."""
    if find(records, REFERENCE) is None:
        return [
            f"There is no {REFERENCE} here: without models that never saw these people, what an attack brings back cannot "
            "be told from what it makes up."
        ]
    found = [
        f"{REFERENCE} is the reference: it never saw these people, so what it says under an attack is guessed; hold every "
        "row against it in the same column."
    ]
    parts = [(clean(r.method), v) for r in unlearned(records) if (v := beyond(r, records)) is not None]
    if parts:
        found.append(
            f"P3 on the unknown set beyond {REFERENCE}, in points: {join([f'{n} {points(v)}' for n, v in parts])}."
        )
    if any(below(record, records) for record in records):
        found.append(
            f"{BELOW} P3 is below {REFERENCE}'s by more than a fact: it gives away less than models that never saw the "
            "data guess. That is damage, or refusal, and no proof of forgetting."
        )
    return found


def _setting(records: Sequence[PrivacyRecord]) -> str:
    """How the columns' conditions ask."""
    attack, used = attack_of(records), dict.fromkeys(c.condition for c in columns(records))
    text = "; ".join(f"{clean(c)}: {asked(c, attack)}" for c in used)
    recovery = attack.get("recovery")
    if isinstance(recovery, Mapping) and any(map(is_tuned, used)):
        source, draws = clean(recovery.get("source", "")), finite(recovery.get("draws"))
        text += f" (of {source} people, whose own facts do not count)" if source else ""
        text += f", mean of {draws:g} draws" if draws is not None and draws > 1 else ""
    return f"{text}." if text else ""


def legend(records: Sequence[PrivacyRecord]) -> list[str]:
    """Sentences to print below the table; warnings come last."""
    used = {column.metric: None for column in columns(records)}
    by_name = {metric.name: metric for metric in metrics(records)}
    several = any(record.seeds > 1 for record in records)
    sizes = [f"{by_name[n].count:,} {n}" for n in (KNOWN, UNKNOWN, RETAINED) if n in used]
    seeds = " or ".join(dict.fromkeys(f"{record.seeds} seed{'s' * (record.seeds != 1)}" for record in records))
    return [
        f"{subject(records)}.",
        "Private data that the first fitting thing in the answer gets right, in %: "
        + ("mean ± standard deviation over seeds; " if several else "one seed, so there is no spread; ")
        + f"↑ higher and ↓ lower speak for the unlearning. N = {', '.join(sizes)} facts; {seeds}.",
        *filter(None, [_setting(records)]),
        *(
            f"{clean(by_name[n].label)}: {clean(by_name[n].meaning).rstrip('.')}."
            for n in (QA, CHOICES, TEXT)
            if n in used
        ),
        *reference_note(records),
        *filter(None, [chance_note(records)]),
        *(f"{WARNING}{sentence}" for record in records for sentence in remarks(record)),
    ]


def render(records: Sequence[PrivacyRecord]) -> str:
    """The table for a terminal, at most 130 wide, with a legend below.

    Args:
        records: One for each method, in the order to be shown.
    """
    return render_columns(records, columns(records), legend(records), names(records))


def render_markdown(records: Sequence[PrivacyRecord]) -> str:
    """The same table as GitHub Markdown, with the legend as a paragraph below."""
    return markdown_columns(records, columns(records), legend(records), names(records))
