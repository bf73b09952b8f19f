"""Our bounds beside the auditing of jax_privacy: the same numbers where the mathematics is the same, and the time.

Command: ``python benchmarks/bounds.py [--json FILE] [--rounds 9] [--goldens tests/audit/peer_goldens.json]``

Three tables. (1) Pairwise: canary scores of two kinds of runs, one threshold, exact limits on both error rates. (2) One
run: m candidates with independent fair labels (peer) and with a balanced sign vector (ours); the two claim different
things, so only the binomial limit they share is compared. (3) Seconds a call, both sides in one process and timed turn
about, ``--rounds`` times; medians, the median of the rounds' ratios, and the first call apart. ``--goldens`` writes the
peer's numbers that ``tests/audit/test_peer_goldens.py`` holds ours to, and ends. The peer is needed here and nowhere
else: ``pip install jax-privacy==2.0.0``.
"""

import argparse
import importlib.metadata
import json
import math
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from jax_privacy import auditing as peer

from jaxunlearn.audit import bounds, design

ZETA = 0.05
SHIFT = 1.0  # distance of the two kinds of scores in standard deviations, where both are pictures of one normal law
NO_DELTA = 1e-15  # the peer's one-run bound refuses delta = 0; this moves it by less than 1e-9
SAME = 1e-6  # the peer solves for epsilon to 1e-6
SLICE = 0.02  # seconds that one measurement lasts at least


# --- the same question to both sides ----------------------------------------------------------------------------------


def marked(n: int, k: int) -> np.ndarray:
    """[n] scores, k of them 1 and above any threshold in (0, 1), the others 0."""
    return (np.arange(n) < k).astype(np.float64)


def canary_scores(n: int) -> tuple[np.ndarray, np.ndarray]:
    """[n] scores of runs of the first kind, [n] of the second."""
    rng = np.random.default_rng(0)
    return rng.normal(SHIFT, size=n), rng.normal(size=n)


def our_pairwise(scores: tuple[np.ndarray, np.ndarray], threshold: float, **options) -> bounds.Bound:
    """Counts at the threshold (a score equal to it counts as the first kind, as the peer has it), then the bound."""
    first, second = scores
    counts = int((first >= threshold).sum()), first.size, int((second >= threshold).sum()), second.size
    return bounds.clopper_pearson(*counts, zeta=ZETA, **options)


def peer_pairwise(scores: tuple[np.ndarray, np.ndarray], threshold: float, **options) -> float:
    """The same from the peer."""
    strategy = peer.Explicit(threshold)
    return float(peer.CanaryScoreAuditor(*scores).epsilon_clopper_pearson(ZETA, threshold_strategy=strategy, **options))


def one_run_auditor(m: int, r: int, right: int) -> peer.CanaryScoreAuditor:
    """The peer's auditor for ``right`` correct guesses of r, m candidates.

    It can only guess "in". Its theorem is about the number of correct guesses whichever way they went, so correct ones
    are given as "in" and wrong ones as "out", above the threshold; candidates without a guess lie below it.
    """
    return peer.CanaryScoreAuditor(np.ones(right), marked(m - right, r - right))


def peer_one_run(auditor: peer.CanaryScoreAuditor, *, zeta: float = ZETA, delta: float = NO_DELTA) -> float:
    """Steinke et al. (2023), arXiv:2305.08846, with the guesses of ``one_run_auditor``."""
    return float(auditor.epsilon_one_run(zeta, delta, threshold_strategy=peer.Explicit(0.5)))


def our_fair_labels(r: int, right: int, *, zeta: float = ZETA) -> bounds.Bound:
    """``right`` correct guesses of r fair labels as r runs with two candidates each: the same binomial limit."""
    return bounds.overlap_count(2 * marked(r, right), m=2, r=2, v=2, zeta=zeta)


def between_labels(epsilon: float) -> float:
    """The same limit t of the chance of a right guess, turned from our epsilon into the peer's.

    Ours compares either label's law with one reference, t = 1 - e^-epsilon / 2; the peer's the two laws with each
    other, t = e^epsilon / (1 + e^epsilon).
    """
    return math.log(2 * math.exp(epsilon) - 1)


def guessed(m: int, r: int, *, balanced: bool) -> int:
    """Correct guesses of r in one run, from the same noise, for a balanced or for an independently drawn sign vector."""
    rng = np.random.default_rng(m)
    noise = rng.normal(size=m)
    signs = rng.permutation(np.repeat([1, -1], [m // 2, m - m // 2])) if balanced else rng.choice([-1, 1], m)
    return int(design.overlaps(design.guess(noise + SHIFT / 2 * signs, r)[None], signs[None])[0])


# --- the tables -------------------------------------------------------------------------------------------------------


def compare(name: str, ours: float, theirs: float, *, same: bool) -> dict:
    """One row of values; where the mathematics is the same they have to agree."""
    difference = ours - theirs
    verdict = "same" if same else "differs by design"
    print(f"  {name:58} {ours:11.7f} {theirs:11.7f} {difference:10.1e}  {verdict}")
    if same and abs(difference) > SAME:
        raise SystemExit(f"Expected both sides to agree on {name} to {SAME}, got {ours} and {theirs}.")
    return {"table": "values", "case": name, "ours": ours, "peer": theirs, "same": same}


def pairwise_values(n: int) -> list[dict]:
    """Pairwise: where the two agree, and what each of the options that part them costs."""
    scores = canary_scores(n)
    threshold, low = 2.0, -1.0
    bonferroni, split = peer.Bonferroni(), peer.Split(seed=0)
    auditor = peer.CanaryScoreAuditor(*scores)
    print(f"\n1. Pairwise, {n} scores a side, zeta = {ZETA}: {'ours':>29} {'peer':>11} {'difference':>10}")
    rows = []
    for name, at, delta in (
        ("fixed threshold, both directions", threshold, 0.0),
        ("the same, delta = .01", threshold, 0.01),
        ("the same, a low threshold (the other direction wins)", low, 0.0),
    ):
        ours = our_pairwise(scores, at, halve=False, delta=delta).epsilon
        rows.append(compare(name, ours, peer_pairwise(scores, at, delta=delta, one_sided=False), same=True))
    fixed = our_pairwise(scores, threshold, halve=False).epsilon
    reverse = our_pairwise(scores, low, halve=False).epsilon
    rows += [
        compare("low threshold, peer's default: one direction", reverse, peer_pairwise(scores, low), same=False),
        compare(
            "peer's default: all thresholds, zeta shared",
            fixed,
            float(auditor.epsilon_clopper_pearson(ZETA, one_sided=False, threshold_strategy=bonferroni)),
            same=False,
        ),
        compare(
            "peer's threshold from half of the scores",
            fixed,
            float(auditor.epsilon_clopper_pearson(ZETA, one_sided=False, threshold_strategy=split)),
            same=False,
        ),
        compare(
            "ours between two forget sets (halve=True)",
            our_pairwise(scores, threshold).epsilon,
            peer_pairwise(scores, threshold, one_sided=False),
            same=False,
        ),
    ]
    print(
        "  Both give each error rate a one-sided Clopper-Pearson limit at zeta / 2 and solve TPR <= e^epsilon FPR + delta.\n"
        "  Ours takes one threshold, fixed beforehand (here 2, not chosen to be a good one), and both directions. The peer\n"
        "  takes one direction unless one_sided=False and searches thresholds unless one is given: zeta over the number of\n"
        "  corners of the observed ROC curve, or a threshold from a part of the scores. Ours is halved by default, because\n"
        "  the unlearned models of two forget sets are each within epsilon of the reference; the peer's is a bound between\n"
        "  the two laws."
    )
    return rows


def one_run_values(sizes: list[tuple[int, int]]) -> list[dict]:
    """One run: the binomial limit both share, then what each makes of one run with m candidates."""
    print(f"\n2. One run, zeta = {ZETA}: {'ours':>52} {'peer':>11} {'difference':>10}")
    rows = []
    for m, r in sizes:
        right = guessed(m, r, balanced=False)
        name = f"fair labels, {right} of {r} right, as log(2 e^epsilon - 1)"
        theirs = peer_one_run(one_run_auditor(m, r, right))
        rows.append(compare(name, between_labels(our_fair_labels(r, right).epsilon), theirs, same=True))
    for m, r in sizes:
        fair, balanced = guessed(m, r, balanced=False), guessed(m, r, balanced=True)
        ours = bounds.overlap([balanced], m=m, r=r, zeta=ZETA).epsilon
        name = f"m={m}, r={r}: {balanced} right (ours), {fair} right (peer)"
        rows.append(compare(name, ours, peer_one_run(one_run_auditor(m, r, fair)), same=False))
    print(
        "  Peer: m independent fair coins; epsilon of one candidate, between the laws of the model with and without it;\n"
        "  the number of right guesses is at most Binomial(r, e^epsilon / (1 + e^epsilon)).\n"
        "  Ours: one balanced sign vector; epsilon of the whole forget set, between the unlearned model and a reference\n"
        "  that does not know the vector; right guesses happen by chance with a hypergeometric law, whose tail the\n"
        "  hypothesis may multiply by e^epsilon, once for the run and not once for each guess.\n"
        "  Neither replaces the other: epsilon for one candidate allows m/2 times as much for a forget set of m/2. Ours is\n"
        "  large where a model leaks a little of every candidate; divided by m/2 it is a bound for one candidate as well,\n"
        "  and here a weaker one than the peer's."
    )
    return rows


def seconds(function: Callable[[], object], calls: int) -> float:
    """Seconds a call, over ``calls`` calls in a row."""
    began = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - began) / calls


def timing(name: str, ours: Callable[[], object], theirs: Callable[[], object] | None, rounds: int) -> dict:
    """One row of times, turn about; without a peer's counterpart, ours alone."""
    sides = {"ours": ours} | ({"peer": theirs} if theirs else {})
    first = {side: seconds(function, 1) for side, function in sides.items()}
    calls = {side: max(1, math.ceil(SLICE / max(seconds(f, 1), 1e-9))) for side, f in sides.items()}
    samples: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, function in sides.items():
            samples[side].append(seconds(function, calls[side]))
    row = {"table": "seconds", "case": name}
    row |= {f"seconds_{side}": statistics.median(v) for side, v in samples.items()}
    row |= {f"first_seconds_{side}": v for side, v in first.items()}
    texts = [f"{1e3 * row[f'seconds_{side}']:9.3f}" if side in sides else f"{'-':>9}" for side in ("ours", "peer")]
    if theirs:
        row["ratio"] = statistics.median(b / a for a, b in zip(samples["ours"], samples["peer"]))
        texts.append(f"{row['ratio']:7.2f}")
    else:
        texts.append(f"{'-':>7}")
    texts += [f"{1e3 * first[side]:9.3f}" if side in first else f"{'-':>9}" for side in ("ours", "peer")]
    print(f"  {name:58}", *texts, flush=True)
    return row


def cold(function: Callable[[], object]) -> Callable[[], object]:
    """The same call with the table of overlap counts not yet made."""

    def call() -> None:
        design.log_overlap_counts.cache_clear()
        design.log_overlap_tail.cache_clear()
        function()

    return call


def times(sides: list[int], sizes: list[tuple[int, int]], rounds: int) -> list[dict]:
    """All times; what is compared with what stands in the row's name."""
    print(f"\n3. Milliseconds a call, medians of {rounds} rounds; ratio = peer / ours, above 1: ours takes less time")
    print(f"  {'':58} {'ours':>9} {'peer':>9} {'ratio':>7} {'1st ours':>9} {'1st peer':>9}")
    rows = []
    for n in sides:
        scores = canary_scores(n)
        auditor = peer.CanaryScoreAuditor(*scores)

        def ours(scores=scores):
            return our_pairwise(scores, 2.0, halve=False)

        def built(auditor=auditor):
            return auditor.epsilon_clopper_pearson(ZETA, 0.0, False, threshold_strategy=peer.Explicit(2.0))

        def whole(scores=scores):
            return peer_pairwise(scores, 2.0, one_sided=False)

        rows.append(timing(f"pairwise, n={n} a side (same), peer's auditor ready", ours, built, rounds))
        rows.append(timing(f"pairwise, n={n} a side (same), peer's auditor built", ours, whole, rounds))
    for m, r in sizes:
        fair, balanced = guessed(m, r, balanced=False), guessed(m, r, balanced=True)
        auditor = one_run_auditor(m, r, fair)
        labels = 2 * marked(r, fair)

        def limit(labels=labels):
            return bounds.overlap_count(labels, m=2, r=2, v=2, zeta=ZETA)

        def group(m=m, r=r, balanced=balanced):
            return bounds.overlap([balanced], m=m, r=r, zeta=ZETA)

        def example(auditor=auditor):
            return peer_one_run(auditor)

        rows.append(timing(f"fair labels, r={r} (same)", limit, example, rounds))
        rows.append(timing(f"one run, m={m}, r={r}, L=1 (not the same claim), cached", group, example, rounds))
        rows.append(timing(f"one run, m={m}, r={r}, L=1 (not the same claim), cold", cold(group), example, rounds))
    values = np.full(10, 1800)

    def largest():
        return bounds.overlap(values, m=4500, r=3000, zeta=ZETA)

    rows.append(timing("m=4500, r=3000, L=10 (no counterpart), cached", largest, None, rounds))
    rows.append(timing("m=4500, r=3000, L=10 (no counterpart), cold", cold(largest), None, rounds))
    return rows


def goldens() -> dict:
    """The peer's numbers on settings where both do the same mathematics, the corners among them."""
    n = 100_000
    counts = [(n, n, 0, n), (60_000, n, 20_000, n), (99_000, n, 80_000, n), (300, n, 20, n), (50_000, n, 50_000, n)]
    counts += [(20, 20, 0, 20), (5, 5, 0, 5), (700, 1000, 3, 40), (0, 50, 50, 50), (90, 100, 200, 1000)]
    pairwise = []
    for tp, positives, fp, negatives in counts:
        auditor = peer.CanaryScoreAuditor(marked(positives, tp), marked(negatives, fp))
        for zeta, delta in ((0.05, 0.0), (0.05, 0.01), (0.001, 0.0)):
            epsilon = auditor.epsilon_clopper_pearson(zeta, delta, False, threshold_strategy=peer.Explicit(0.5))
            case = dict(
                zip(("true_positives", "positives", "false_positives", "negatives"), (tp, positives, fp, negatives))
            )
            pairwise.append(case | {"zeta": zeta, "delta": delta, "epsilon": float(epsilon)})
    one_run = []
    for r, right in (
        (1, 1),
        (10, 10),
        (10, 9),
        (100, 50),
        (100, 75),
        (400, 260),
        (1124, 900),
        (4500, 3000),
        (4500, 4500),
    ):
        auditor = one_run_auditor(r + 1, r, right)  # one candidate more: the peer wants somebody "out"
        for zeta in (0.05, 0.001):
            one_run.append({"r": r, "right": right, "zeta": zeta, "epsilon": peer_one_run(auditor, zeta=zeta)})
    return {"made_by": f"jax_privacy {version()}", "pairwise": pairwise, "one_run": one_run}


def version() -> str:
    """The peer's."""
    return importlib.metadata.version("jax-privacy")


def main() -> None:
    """Runs the benchmark and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sides", nargs="+", type=int, default=[1000, 100_000], help="pairwise: scores a side")
    parser.add_argument("--candidates", nargs="+", type=int, default=[400, 4500], help="one run: m; r = m/4 and m")
    parser.add_argument("--json", default=None, help="also write the rows to this file")
    parser.add_argument("--goldens", default=None, help="write the peer's numbers for the tests to this file, and end")
    options = parser.parse_args()
    if options.goldens:
        with open(options.goldens, "w") as file:
            json.dump(goldens(), file, indent=1)
            file.write("\n")
        return
    print(f"jax_privacy {version()}, {platform.processor() or platform.machine()}, {multiprocessing.cpu_count()} cores")
    sizes = [(m, r) for m in options.candidates for r in (m // 8 * 2, m)]  # the budget is even
    rows = pairwise_values(max(options.sides)) + one_run_values(sizes) + times(options.sides, sizes, options.rounds)
    if options.json:
        machine = {"machine": platform.platform(), "cores": multiprocessing.cpu_count(), "jax_privacy": version()}
        with open(options.json, "w") as file:
            json.dump([row | machine for row in rows], file, indent=2)


if __name__ == "__main__":
    sys.exit(main())
