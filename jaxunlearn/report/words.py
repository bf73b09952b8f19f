"""The sentences of the report: what may be said of a record, and nothing more."""

import math
from collections.abc import Sequence

from jaxunlearn.records import BoundRecord
from jaxunlearn.report.load import finite
from jaxunlearn.report.table import at_most, certified, confidence, labels, lower, number, outcome, tested

BOUNDS = {
    "evidence": "p-value of the true sign vector under the attack, combined over runs; every batch counts, nothing is "
    "tuned",
    "order_1": "the smallest p-value of the runs: one run that names the true sign vector is enough",
    "order_2": "the second smallest p-value of the runs",
    "order_3": "the third smallest p-value of the runs",
    "lattice": "the same, calibrated exactly on the few sign vectors that are possible",
    "overlap": "correct guesses on the r most confident batches, summed over runs",
    "count": "number of runs whose p-value falls below a level fixed beforehand",
    "e_process": "the evidence of all runs so far against ε, as a bet that a certified method can win only by luck; it "
    "holds at every number of runs",
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
    value = f"ε ≥ {lower(epsilon)}"
    if len(leaky) == 1:
        return f"1 of {total} methods leaves a provable trace of the data it unlearned: {worst}, with {value}."
    which = f"All {total}" if len(leaky) == total else f"{len(leaky)} of {total}"
    return f"{which} methods leave provable traces of the data they unlearned; {worst} leaves the largest, {value}."


def lead(records: Sequence[BoundRecord]) -> str:
    """What stands below the finding: the confidence, and who showed nothing."""
    level = " or ".join(sorted({confidence(r.zeta) for r in records}))
    each = "" if len(records) == 1 else ", for each method by itself"
    text = f"A larger ε means that unlearning hides less. Every lower bound holds with {level} confidence{each}."
    silent = [n for r, n in zip(records, labels(records)) if r.epsilon <= 0]
    if silent:
        text += f" No trace is proved for {join(silent)}; this does not prove that the data is gone."
    return text


def verdict(record: BoundRecord) -> str:
    """What the headline says of one method."""
    level, delta = confidence(record.zeta), f" and δ = {record.delta:g}" if record.delta else ""
    if record.epsilon <= 0:
        return (
            "The attack found nothing that this design can prove: ε ≥ 0. That is no proof of unlearning; a stronger "
            "attack, "
            "more runs or more batches might find a trace."
        )
    beyond = f", beyond what δ = {record.delta:g} allows" if record.delta else ""
    return (
        f"With {level} confidence, no ε below {lower(record.epsilon)}{delta} is true of this method as it was run: "
        "whatever the "
        "reference without the data, for some choice of unlearned batches some outcome is at least "
        f"{factor(record.epsilon)} times "
        f"as likely, or as unlikely, as under the reference{beyond}."
    )


def remarks(record: BoundRecord) -> list[tuple[str, str]]:
    """What a reader should know beside the verdict: the ceiling, failed runs, the certificate.

    Returns:
        (kind, sentences) pairs; the kind is "warn", "proof" or "note".
    """
    out = []
    claim = tested(record)
    if claim:
        text = outcome(record)
        scope = f" The claim is certified unlearning in the sense of Definition {record.definition}."
        out.append(("warn" if claim["falsified"] else "note", text[0].upper() + text[1:] + scope))
    ceiling = finite(record.ceiling)
    if ceiling and record.epsilon >= 0.97 * ceiling:
        text = f"The bound is at its ceiling of {number(ceiling)}: only more runs or more batches could show more."
        out.append(("note", text))
    if record.failed_runs:
        several, listed = len(record.failed_runs) > 1, join([str(i) for i in record.failed_runs])
        verb = "count" if several else "counts"
        text = f"Evaluation run{'s' * several} {listed} failed and {verb} as p = 1, neither dropped nor replaced."
        out.append(("warn", text))
    proven = certified(record)
    if proven is not None:
        text = _certificate(record, proven)
        out.append(("proof" if record.epsilon <= proven else "warn", text))
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
    if record.epsilon <= proven:
        return f"{text} The audit’s lower bound does not contradict it."
    if delta is not None and delta > record.delta:
        weaker = f"That is a weaker claim than the δ = {record.delta:g} audited here"
        return f"{text} {weaker}, so the two numbers cannot contradict each other."
    if record.definition == "3.3":
        return (
            f"{text} The lower bound is larger. It speaks of runs with known initial weights and order (Definition "
            "3.3), so it "
            "contradicts the proven guarantee only if that guarantee is conditional on them."
        )
    level = confidence(record.zeta)
    return f"{text} The lower bound is larger: with {level} confidence the two contradict; check the implementation."


def guide(records: Sequence[BoundRecord]) -> list[tuple[str, str]]:
    """How to read the report: (heading, paragraph) pairs."""
    level = " or ".join(sorted({confidence(r.zeta) for r in records}))
    error = " or ".join(f"{100 * z:g}%" for z in sorted({r.zeta for r in records}))
    texts = [
        (
            f"ε ≥ x, with confidence {level}",
            "Unlearning is (ε, δ)-certified if there is one reference, made without the data, from which the unlearned "
            "model cannot be told apart better than by a factor e^ε in probability, up to δ. Here data were put in at "
            "random, trained on and unlearned; an attack then guessed from the model what had been in. Were the true ε "
            f"below x, guesses this good would come about with a probability of at most ζ = {error}.",
        ),
        (
            "The ceiling",
            "A finite number of batches and runs can prove only so much, even with a perfect attack. The ceiling is "
            "the most that the bound could have shown here. A bound at its ceiling says that the test, not the method, "
            "set the limit.",
        ),
        (
            "ε ≥ 0 does not prove unlearning",
            "It says that this attack, with these runs, proved nothing; a better attack or more runs might. Lower "
            "bounds can rule a method out. Only a proof, marked green where there is one, can vouch for it.",
        ),
        (
            "Definitions 3.3 and 3.2",
            "When all runs share initial weights and shuffling order, known to the auditor, the audit is of Definition "
            "3.3 of the audit paper. When both are drawn afresh in every run and hidden from the attack, it is of "
            "Definition 3.2 as well. A bound for 3.3 contradicts a published guarantee only if that guarantee is "
            "conditional on the initial weights and the order.",
        ),
        (
            "One headline, several bounds",
            "The headline is the largest of the preregistered bounds; they share ζ, so the choice among them is paid "
            "for. Reference bounds are the audit paper’s own, from the same runs. Exploratory bounds were chosen after "
            "looking and guarantee nothing.",
        ),
    ]
    if any(record.sequential for record in records):
        texts.append(
            (
                "Stopping at any time",
                "In a sequential audit every run after the warm-up is first attacked with what the runs before it taught, "
                "and then teaches the attack. Its bound holds after every run at once, so that one may stop when a claim "
                "is falsified, go on, or test another claim; a claim that stands is not thereby proven.",
            )
        )
    if len(records) > 1:
        texts.append(
            (
                "Each method by itself",
                f"The confidence of {level} is for one method at a time, not for all {len(records)} at once: whoever "
                f"wants to claim all of them together divides ζ by {len(records)}.",
            )
        )
    return texts
