"""The sentences of the report: what may be said of a record, and nothing more."""

import math
from collections.abc import Sequence

from jaxunlearn.records import BoundRecord
from jaxunlearn.report.load import finite
from jaxunlearn.report.table import at_most, certified, confidence, labels, lower, number

BOUNDS = {
    "evidence": "p-value of the true sign vector under the attack, combined over runs; every batch counts, nothing is tuned",
    "lattice": "the same, calibrated exactly on the few sign vectors that are possible",
    "overlap": "correct guesses on the r most confident batches, summed over runs",
    "count": "number of runs whose p-value falls below a level fixed beforehand",
    "paper_mean": "the audit paper’s bound from the mean number of correct guesses, after halving",
    "paper_median": "the audit paper’s bound from the median number of correct guesses, after halving",
    "clopper_pearson": "Clopper–Pearson interval on telling two forget sets apart",
}
STATUS = {
    "preregistered": "candidate for the headline, fixed before the first evaluation run; each at its share of ζ",
    "reference": "the audit paper’s own, shown beside, at the full ζ",
    "exploratory": "chosen after looking at the evaluation runs; no guarantee",
}


def join(names: Sequence[str]) -> str:
    """Names as an enumeration.

    >>> join(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else ""


def factor(epsilon: float) -> str:
    """E to the epsilon in words, rounded down.

    >>> factor(0.7), factor(3.0), factor(30.0)
    ('2.0', '20', '10^13')
    """
    value = math.exp(min(epsilon, 20))
    if value < 10:
        return f"{math.floor(value * 10) / 10:.1f}"
    if value < 1e5:
        unit = 10 ** (math.floor(math.log10(value)) - 1)
        return f"{math.floor(value / unit) * unit:,}"
    return f"10^{math.floor(epsilon / math.log(10))}"


def finding(records: Sequence[BoundRecord]) -> str:
    """The result in one sentence."""
    names, total = labels(records), len(records)
    leaky = sorted(((r.epsilon, n) for r, n in zip(records, names) if r.epsilon > 0), key=lambda pair: -pair[0])
    if not leaky:
        return (
            f"The audit proves no trace of the unlearned data in {names[0]}."
            if total == 1
            else f"The audit proves no trace of the unlearned data in any of the {total} methods."
        )
    epsilon, worst = leaky[0]
    if total == 1:
        return f"{worst} leaves a provable trace of the data it unlearned: ε ≥ {lower(epsilon)}."
    which = f"All {total} methods leave" if len(leaky) == total else f"{len(leaky)} of {total} methods leave"
    if len(leaky) == 1:
        return f"1 of {total} methods leaves a provable trace of the data it unlearned: {worst}, with ε ≥ {lower(epsilon)}."
    return f"{which} provable traces of the data they unlearned; the largest is left by {worst}, with ε ≥ {lower(epsilon)}."


def lead(records: Sequence[BoundRecord]) -> str:
    """What stands below the finding: the confidence, and who showed nothing."""
    level = " or ".join(sorted({confidence(r.zeta) for r in records}))
    each = "" if len(records) == 1 else ", for each method by itself"
    text = f"A larger ε means that unlearning hides less. Every lower bound holds with {level} confidence{each}."
    silent = [n for r, n in zip(records, labels(records)) if r.epsilon <= 0]
    if silent:
        verb = "is" if len(silent) == 1 else "are"
        text += f" No trace {verb if len(silent) == 1 else 'is'} proved for {join(silent)}; this does not prove that the data is gone."
    return text


def verdict(record: BoundRecord) -> str:
    """What the headline says of one method."""
    level, delta = confidence(record.zeta), f" and δ = {record.delta:g}" if record.delta else ""
    if record.epsilon <= 0:
        return (
            "The attack found nothing that this design can prove: ε ≥ 0. That is no proof of unlearning; a stronger attack, "
            "more runs or more batches might find a trace."
        )
    beyond = f", beyond what δ = {record.delta:g} allows" if record.delta else ""
    return (
        f"With {level} confidence, no ε below {lower(record.epsilon)}{delta} is true of this method as it was run: whatever the "
        f"reference without the data, for some choice of unlearned batches some outcome is at least {factor(record.epsilon)} times "
        f"as likely, or as unlikely, as under the reference{beyond}."
    )


def remarks(record: BoundRecord) -> list[str]:
    """What a reader should know beside the verdict: the ceiling, failed runs, the certificate."""
    out = []
    ceiling = finite(record.ceiling)
    if ceiling and record.epsilon >= 0.97 * ceiling:
        out.append(
            f"The bound is at its ceiling of {number(ceiling)}: the attack is nearly perfect, and only more runs or batches "
            "could show more."
        )
    if record.failed_runs:
        listed = join([str(i) for i in record.failed_runs])
        out.append(
            f"Evaluation run{'s' if len(record.failed_runs) > 1 else ''} {listed} failed, also when run again with the same key, "
            "and count as p = 1: they are neither dropped nor replaced."
        )
    proven = certified(record)
    if proven is not None:
        out.append(_certificate(record, proven))
    return out


def _certificate(record: BoundRecord, proven: float) -> str:
    certificate = record.certificate or {}
    delta = finite(certificate.get("delta"))
    source = f" ({certificate['source']})" if certificate.get("source") else ""
    text = (
        f"Theory proves ε ≤ {at_most(proven)}"
        + (f" at δ = {delta:g}" if delta is not None else "")
        + f" for it{source}."
    )
    if delta is not None and delta > record.delta:
        return f"{text} That is a weaker claim than the δ = {record.delta:g} audited here, so the two numbers cannot contradict."
    if record.epsilon <= proven:
        return f"{text} The audit’s lower bound does not contradict it."
    if str(record.definition) == "3.3":
        return (
            f"{text} The lower bound is larger. It speaks of runs with known initial weights and order (Definition 3.3), so it "
            "contradicts the proven guarantee only if that guarantee is conditional on them."
        )
    return f"{text} The lower bound is larger: with {confidence(record.zeta)} confidence the two contradict; check the implementation."
