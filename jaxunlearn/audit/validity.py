"""The conditions under which the bounds hold, as checks that refuse.

A bound's error level is a statement about the whole procedure, not about a formula: it holds if evaluation sign vectors
are independent and uniform given everything the attack was fitted on, if what is computed was fixed beforehand, and if
no run is dropped. Breaking any of these costs far more than rounding: at a nominal .05, looking at the fixed-L evidence
bound after each of 20 runs has a type-I error of .19, one model unlearned for all runs .2 to .8, a balanced design up
to 1. docs/theory.md lists all rules, with the tests that measure them.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import gammaln

from jaxunlearn._validate import InputError, require
from jaxunlearn.audit import design

LEAST_CHANCE = 1e-6


def check_evaluation_signs(signs: np.ndarray) -> np.ndarray:
    """Refuses evaluation sign vectors that were designed rather than drawn.

    Four patterns are looked for: a vector too often (one trained model used for several runs), a vector and its opposite,
    columns that are balanced over the runs, and vectors dealt without replacement. A pattern is refused only if
    independent uniform draws show it with probability below 1e-6, so that small m, where repeats are normal, passes. No
    check can prove independence; it has to come from the code that draws.

    Args:
        signs: [L, m] sign vectors of the evaluation runs.

    Returns:
        [L, m] int8, as ``design.check_signs``.

    Raises:
        InputError: A row is not a balanced sign vector, or a pattern was found; the message names the runs.
    """
    signs = design.check_signs(signs)
    runs, m = signs.shape
    log_size = design.log_support(m)
    log_pairs = math.log(max(runs * (runs - 1) / 2, 1e-300))
    if log_pairs - log_size < math.log(LEAST_CHANCE):
        seen: dict[bytes, int] = {}
        for row, vector in enumerate(signs):
            for other, what in ((vector, "the same sign vector"), (-vector, "opposite sign vectors")):
                if other.tobytes() in seen:
                    raise InputError(
                        f"Expected independent evaluation sign vectors, but runs {seen[other.tobytes()]} and {row} "
                        f"have {what}; draw every evaluation run's vector independently."
                    )
            seen[vector.tobytes()] = row
    if runs >= 2:
        _refuse_repeated(signs, log_size)
        _refuse_balanced((signs > 0).sum(axis=0), runs, m)
        if log_size < math.log(1e6):
            _refuse_dealt(signs, runs, m)
    return signs


def _refuse_repeated(signs: np.ndarray, log_size: float) -> None:
    """Refuses one sign vector in more runs than chance puts it there, where a few repeats are normal (small m)."""
    runs, most = signs.shape[0], int(np.unique(signs, axis=0, return_counts=True)[1].max())
    # Some vector fills at least these places: a union over the vectors and over the places.
    log_chance = log_size + _log_choose(runs, most) - most * log_size
    require(
        log_chance >= math.log(LEAST_CHANCE),
        f"Expected independent evaluation sign vectors, but {most} of {runs} runs have the same one, which has a chance "
        f"below 1e{math.ceil(log_chance / math.log(10))}; draw every evaluation run's vector independently.",
    )


def _refuse_balanced(columns: np.ndarray, runs: int, m: int) -> None:
    """Refuses column sums that differ by at most 1, unless that is likely by chance."""
    if columns.max() - columns.min() > 1:
        return
    total = runs * (m // 2)
    low, high = divmod(total, m)
    # Counts of 0/1 matrices with given row and column sums, as a share of those with given row sums: the columns are
    # nearly independent binomials conditioned on their total (the classical approximation).
    log_chance = _log_choose(m, high) + (m - high) * _log_choose(runs, low) + high * _log_choose(runs, low + 1)
    log_chance -= _log_choose(runs * m, total)
    require(
        log_chance >= math.log(LEAST_CHANCE),
        f"Expected independent evaluation sign vectors, but every batch is in {low} or {low + 1} of {runs} runs, "
        f"which has a chance of about 1e{log_chance / math.log(10):.0f}; use balanced designs for calibration only.",
    )


def _refuse_dealt(signs: np.ndarray, runs: int, m: int) -> None:
    """Refuses sign vectors that each occur equally often (up to one), unless that is likely by chance."""
    size = design.support(m)
    occurrences = np.unique(signs, axis=0, return_counts=True)[1]
    low, high = divmod(runs, size)
    if occurrences.max() > low + (high > 0) or (low > 0 and (occurrences.size < size or occurrences.min() < low)):
        return
    log_chance = _log_choose(size, high) + gammaln(runs + 1) - runs * math.log(size)
    log_chance -= (size - high) * gammaln(low + 1) + high * gammaln(low + 2)
    require(
        log_chance >= math.log(LEAST_CHANCE),
        f"Expected independent evaluation sign vectors, but {runs} runs spread evenly over the {size} vectors, which "
        f"has a chance of about 1e{log_chance / math.log(10):.0f}; draw with replacement.",
    )


def _log_choose(n: int, k: int) -> float:
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def check_separate(
    *,
    calibration_ids: Sequence[Any],
    evaluation_ids: Sequence[Any],
    calibration_signs: np.ndarray | None = None,
    evaluation_signs: np.ndarray | None = None,
) -> None:
    """Refuses evaluation runs that the calibration runs tell something about.

    Two things are looked for: a run that serves as both, by its id (a key's name, not a position); and a sign vector, or its
    opposite, that stands on both sides although independent draws show that with probability below 1e-6. The second is
    also how one trained model, unlearned twice with fresh noise, shows: its sign vector is not uniform any more for an
    attack that was fitted on the other copy. Equal scores prove nothing, since retraining gives the same ones in all runs.

    Args:
        calibration_ids: One hashable id a calibration run.
        evaluation_ids: One hashable id an evaluation run.
        calibration_signs: [runs, m] signs, designed or drawn, or None.
        evaluation_signs: [L, m] signs, or None.

    Raises:
        InputError: An id occurs twice or on both sides, or a sign vector stands on both sides.
    """
    for name, ids in (("calibration", calibration_ids), ("evaluation", evaluation_ids)):
        require(
            len(set(ids)) == len(ids),
            f"Expected every {name} run once, but an id occurs twice; a rerun replaces a run.",
        )
    shared = set(calibration_ids) & set(evaluation_ids)
    if shared:
        raise InputError(
            f"Expected calibration and evaluation runs to be different, but {len(shared)} serve as both, for example "
            f"{next(iter(shared))!r}; evaluate new runs."
        )
    if calibration_signs is None or evaluation_signs is None:
        return
    fits, tests = (np.asarray(a, np.int8) for a in (calibration_signs, evaluation_signs))
    log_chance = math.log(2 * max(len(fits) * len(tests), 1)) - design.log_support(tests.shape[-1])
    if log_chance >= math.log(LEAST_CHANCE):
        return
    seen = {
        vector.tobytes(): (row, what)
        for row, fit in enumerate(fits)
        for vector, what in ((fit, ""), (-fit, "opposite "))
    }
    for row, vector in enumerate(tests):
        if vector.tobytes() in seen:
            match, what = seen[vector.tobytes()]
            raise InputError(
                f"Expected evaluation sign vectors that calibration knows nothing about, but evaluation run {row} has the "
                f"{what}sign vector of calibration run {match}; evaluate new runs, each with a sign vector of its own."
            )


class OneSidedError(InputError):
    """Some batch is in all calibration runs or in none."""


def check_both_sides(signs: np.ndarray) -> None:
    """Refuses calibration runs from which some example's score with or without its batch could not be learned.

    Args:
        signs: [runs, m] signs of the calibration runs; they are known before anything is trained.

    Raises:
        OneSidedError: A candidate batch is in all calibration runs or in none.
    """
    plus = (np.asarray(signs) > 0).sum(axis=0)
    one_sided = (plus == 0) | (plus == len(signs))
    if one_sided.any():
        raise OneSidedError(
            f"Expected every candidate batch to be in some of the calibration_runs={len(signs)} and not in others, but "
            f"{int(one_sided.sum())} of {one_sided.size} are in all or in none; use more calibration runs."
        )


def check_unchanged(registered: Any, requested: Any) -> None:
    """Refuses to evaluate under another preregistration than the one that was stored before the first evaluation run.

    What an any-time valid bound leaves open (``Preregistration.may_change``) is not compared.

    Args:
        registered: The stored ``preregistration.Preregistration``.
        requested: The one that the present command asks for.

    Raises:
        InputError: A field differs; the message names it.
    """
    for field in dataclasses.fields(registered):
        if field.name in registered.may_change and requested.sequential:
            continue
        before, now = getattr(registered, field.name), getattr(requested, field.name)
        require(
            before == now,
            f"Expected {field.name}={before!r} as preregistered, got {now!r}; it cannot change once evaluation has "
            "begun: start a new run directory, with new evaluation runs.",
        )


def check_run_count(runs: int, registered: int) -> None:
    """Refuses fewer or more evaluation runs than were preregistered: failed runs count as p = 1 and are never left out.

    Raises:
        InputError: The numbers differ.
    """
    require(
        runs == registered,
        f"Expected {registered} evaluation runs as preregistered, got {runs}; "
        + (
            "hand in failed runs too (they count as p = 1), or use the e-process to stop early."
            if runs < registered
            else "adding runs after looking needs the e-process."
        ),
    )


def check_one_statistic(statistics: Mapping[str, np.ndarray]) -> np.ndarray:
    """Refuses several p-values for one run: the smallest of them is not a p-value.

    Args:
        statistics: Name -> [L] log p-values; exactly one entry.

    Returns:
        The log p-values of that entry.

    Raises:
        InputError: There is not exactly one statistic.
    """
    require(
        len(statistics) == 1,
        f"Expected one preregistered statistic, got {len(statistics)} ({', '.join(sorted(statistics))}); combine "
        "attacks into one statistic before the p-value, never take the smaller of two p-values.",
    )
    return next(iter(statistics.values()))


def fail_safe(values: np.ndarray, failed: np.ndarray | None) -> np.ndarray:
    """Sets the rows of failed runs to 0: no evidence, hence p = 1, the last rank, and the guess of a fixed rule.

    Args:
        values: [L, ...] log-likelihood ratios or log-likelihoods.
        failed: [L] bool, or None.

    Returns:
        float64 array of the same shape; ``values`` itself is left alone.

    Raises:
        InputError: ``failed`` does not have one entry a run.
    """
    values = np.array(values, np.float64)
    if failed is not None:
        failed = np.asarray(failed, bool)
        require(failed.shape == values.shape[:1], f"Expected failed of shape {values.shape[:1]}, got {failed.shape}.")
        values[failed] = 0.0
    return values
