"""Shared by the tests of error rates: which of many simulated audits report more than the true epsilon."""

import math
import re
from pathlib import Path

import numpy as np

THEORY = Path(__file__).parents[2] / "docs" / "theory.md"


def critical(reaches, values):
    """The first of increasing values at which a monotone predicate holds (infinity if none)."""
    low, high = 0, len(values)
    while low < high:
        mid = (low + high) // 2
        low, high = (low, mid) if reaches(values[mid]) else (mid + 1, high)
    return values[low] if low < len(values) else math.inf


def exceeding(rows, statistic, exceeds):
    """[N] bool: the rows for which ``exceeds(row)`` holds, given that it is nondecreasing in ``statistic`` [N].

    The bound itself is asked for about log2 N rows only.
    """
    order = np.argsort(statistic, kind="stable")
    first = critical(lambda i: exceeds(rows[order[int(i)]]), np.arange(len(rows)))
    return np.zeros(len(rows), bool) if first == math.inf else statistic >= statistic[order[int(first)]]


def with_total(total, runs):
    """[runs] integers that differ by at most 1 and sum to total."""
    return np.full(runs, total // runs) + (np.arange(runs) < total % runs)


def published(name):
    """The error rate that the row of docs/theory.md with this test's name prints."""
    row = next(line for line in THEORY.read_text().splitlines() if line.startswith("|") and f"`{name}`" in line)
    return float(re.search(r"\*\*(\d?\.\d+)\*\*", row).group(1))
