"""The combinatorics of the audit: balanced sign vectors, guesses, and how often each overlap happens by chance.

Everything follows section 4 of "Auditing of Unlearning Algorithms" (Sarmasarkar et al., 2026, arXiv:2607.05898). S_m is
the set of sign vectors of length m with as many +1 as -1, and one more -1 if m is odd; it has C(m, floor(m/2)) members.
A guess names r of the m entries; its overlap V with the true vector counts the correct ones.
"""

import functools
import itertools
import math

import numpy as np
from scipy.special import gammaln

from jaxunlearn._validate import InputError, at_least, guess_budget, require

ENUMERATION_LIMIT = 100_000


def log_support(m: int) -> float:
    """Log |S_m| = log C(m, floor(m/2)), in nats."""
    at_least(2, m=m)
    c = m // 2
    return float(gammaln(m + 1) - gammaln(c + 1) - gammaln(m - c + 1)) if m > 60 else math.log(math.comb(m, c))


def support(m: int) -> int:
    """|S_m| as an exact integer."""
    at_least(2, m=m)
    return math.comb(m, m // 2)


def enumerable(m: int, limit: int = ENUMERATION_LIMIT) -> bool:
    """Whether S_m has at most ``limit`` members."""
    return log_support(m) <= math.log(limit) + 1e-9


@functools.lru_cache(maxsize=8)
def _enumerate(m: int) -> np.ndarray:
    require(
        enumerable(m),
        f"Expected m={m} with at most {ENUMERATION_LIMIT} balanced sign vectors; use m <= 19 to enumerate.",
    )
    vectors = np.full((support(m), m), -1, np.int8)
    chosen = np.fromiter(itertools.chain.from_iterable(itertools.combinations(range(m), m // 2)), np.int64)
    np.put_along_axis(vectors, chosen.reshape(-1, m // 2), 1, axis=1)
    vectors.setflags(write=False)
    return vectors


def sign_vectors(m: int) -> np.ndarray:
    """All of S_m in a fixed order (lexicographic in the positions of +1).

    Args:
        m: Candidate batches, at most 19.

    Returns:
        [C(m, floor(m/2)), m] int8 in {-1, +1}, read-only.

    Raises:
        InputError: S_m has more than 100,000 members.

    >>> sign_vectors(3).tolist()
    [[1, -1, -1], [-1, 1, -1], [-1, -1, 1]]
    """
    return _enumerate(int(m))


def sign_index(signs: np.ndarray) -> np.ndarray:
    """The row of ``sign_vectors(m)`` that each sign vector is.

    Args:
        signs: [..., m] balanced sign vectors.

    Returns:
        [...] int64 indices.

    Raises:
        InputError: A vector is not balanced, or S_m cannot be enumerated.
    """
    signs = np.asarray(signs)
    m = signs.shape[-1]
    check_signs(signs.reshape(-1, m))
    weights = 1 << np.arange(m, dtype=np.int64)
    codes = (sign_vectors(m) > 0) @ weights
    order = np.argsort(codes)
    return order[np.searchsorted(codes, (signs > 0) @ weights, sorter=order)]


def check_signs(signs: np.ndarray) -> np.ndarray:
    """Checks that every row is a balanced sign vector and returns them as int8.

    Args:
        signs: [L, m], entries +1 (the batch was trained on and unlearned) or -1 (never seen).

    Returns:
        [L, m] int8.

    Raises:
        InputError: Not two axes, no rows, fewer than two columns, an entry other than +1 or -1, or an unbalanced row;
            the message names the row.
    """
    signs = np.asarray(signs)
    require(
        signs.ndim == 2 and signs.shape[0] > 0 and signs.shape[1] >= 2,
        f"Expected signs of shape [runs, m] with runs >= 1 and m >= 2, got {signs.shape}.",
    )
    bad = ~np.isin(signs, (-1, 1)).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        fix = "; turn 0 and 1 into -1 and +1 with 2 * signs - 1" if np.isin(signs, (0, 1)).all() else ""
        found = sorted(set(signs[row].tolist()))[:5]
        raise InputError(f"Expected signs[{row}] to hold only +1 and -1, got {found}{fix}.")
    plus = (signs > 0).sum(axis=1)
    bad = plus != signs.shape[1] // 2
    if bad.any():
        row, m = int(np.argmax(bad)), signs.shape[1]
        raise InputError(
            f"Expected signs[{row}] to be balanced with {m // 2} entries +1 of m={m}, got {int(plus[row])}; draw it "
            "from S_m."
        )
    return signs.astype(np.int8)


def check_budget(r: int, m: int) -> None:
    """The budget r is even within 2..m; r = m is allowed for odd m too: the guess is then a full balanced vector."""
    at_least(2, m=m)
    if r != m:
        guess_budget(r, m)


def split_budget(r: int) -> tuple[int, int]:
    """How many +1 and how many -1 a guess with budget r holds."""
    return r // 2, r - r // 2


def finite_llr(llr: np.ndarray) -> np.ndarray:
    """Log-likelihood ratios as float64 with every non-finite entry set to 0: it then says nothing either way."""
    llr = np.asarray(llr, np.float64)
    return np.where(np.isfinite(llr), llr, 0.0)


def guess(llr: np.ndarray, r: int) -> np.ndarray:
    """The batchwise guess: +1 for the r/2 largest log-likelihood ratios, -1 for the r/2 smallest, 0 for the others.

    The order is that of a stable descending sort, so ties go by index: of equal values the earlier one is nearer +1.
    Non-finite values count as 0.

    Args:
        llr: [..., m] log-likelihood ratios in nats; higher = more likely that the batch was in.
        r: Guess budget, even, 2 <= r <= m.

    Returns:
        [..., m] int8 in {-1, 0, +1}.

    Raises:
        InputError: r is odd or out of range.

    >>> guess(np.array([0.5, -2.0, 3.0, 0.1]), 2).tolist()
    [0, -1, 1, 0]
    """
    llr = finite_llr(llr)
    m = llr.shape[-1]
    check_budget(r, m)
    plus, minus = split_budget(r)
    order = np.argsort(-llr, axis=-1, kind="stable")
    guesses = np.zeros(llr.shape, np.int8)
    np.put_along_axis(guesses, order[..., :plus], 1, axis=-1)
    np.put_along_axis(guesses, order[..., m - minus :], -1, axis=-1)
    return guesses


def overlaps(guesses: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """V = sum_j max(0, guess_j S_j), the number of correct nonzero guesses.

    Args:
        guesses: [L, m] in {-1, 0, +1}.
        signs: [L, m] in {-1, +1}.

    Returns:
        [L] int64.

    Raises:
        InputError: The shapes differ.
    """
    guesses, signs = np.asarray(guesses), np.asarray(signs)
    require(
        guesses.shape == signs.shape, f"Expected guesses of shape {signs.shape} = signs.shape, got {guesses.shape}."
    )
    return ((guesses * signs) > 0).sum(axis=-1)


@functools.lru_cache(maxsize=256)
def log_overlap_counts(m: int, r: int) -> np.ndarray:
    """Log N_u: how many of the sign vectors in S_m have overlap u with one fixed guess (Lemma 4.2), for u = 0..r.

    Choose which of the r/2 positive guesses are right (a of them), which of the r/2 negative ones (b = u - a), and put
    the remaining +1 among the m - r positions without a guess. The count does not depend on which guess it is.

    Args:
        m: Candidate batches.
        r: Guess budget.

    Returns:
        [r + 1] float64 in nats, read-only; -inf where no vector has that overlap.

    Raises:
        InputError: r is odd or out of range.
    """
    check_budget(r, m)
    plus, minus = split_budget(r)
    c, free = m // 2, m - r
    log_factorial = gammaln(np.arange(m + 2) + 1.0)

    def log_choose(n: int) -> np.ndarray:
        k = np.arange(n + 1)
        return log_factorial[n] - log_factorial[k] - log_factorial[n - k]

    right_plus, right_minus, rest = log_choose(plus), log_choose(minus), log_choose(free)
    counts = np.full(r + 1, -np.inf)
    for u in range(r + 1):
        a = np.arange(max(0, u - minus), min(plus, u) + 1)
        # Of the c entries +1 in S, a lie on positive guesses and minus - b on negative guesses.
        other = c - a - (minus - (u - a))
        keep = (other >= 0) & (other <= free)
        if keep.any():
            a, other = a[keep], other[keep]
            terms = right_plus[a] + right_minus[u - a] + rest[other]
            top = terms.max()
            counts[u] = top + np.log(np.exp(terms - top).sum())
    counts.setflags(write=False)
    return counts


@functools.lru_cache(maxsize=256)
def log_overlap_tail(m: int, r: int) -> np.ndarray:
    """Log a_v, a_v = Pr[V >= v] when S is independent of the guess, for v = 0..r.

    Returns:
        [r + 1] float64 in nats, nonincreasing, first entry 0 exactly, read-only.
    """
    tail = np.logaddexp.accumulate(log_overlap_counts(m, r)[::-1])[::-1]
    tail = np.minimum(tail - tail[0], 0.0)
    tail.setflags(write=False)
    return tail
