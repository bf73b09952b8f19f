"""What an adversary asks of a language model to get personal data out of it (PrivUn, section 3.1).

P1 asks directly; P2 shows other people's answers first; P3 fine-tunes on some people's answers first and then asks directly.
Demonstrations and fine-tuning samples never name the person who is asked about, or whose answer is scored.
"""

from collections.abc import Sequence

import numpy as np

from jaxunlearn import _validate
from jaxunlearn._validate import require


def demonstrations(
    generator: np.random.Generator, groups: Sequence[str], askers: Sequence[int], pool: np.ndarray, *, shots: int
) -> np.ndarray:
    """Whose answers are shown before each question of P2.

    Args:
        generator: Randomness.
        groups: [n] the person of each question-answer pair.
        askers: Numbers of the pairs that are asked, into ``groups``.
        pool: [p] numbers of the pairs that may be shown.
        shots: k, how many are shown before each question, >= 1.

    Returns:
        [len(askers), shots] numbers out of the pool, without repetition, none of the person who is asked about.

    Raises:
        InputError: The pool holds fewer than ``shots`` pairs of other people.
    """
    _validate.at_least(1, shots=shots)
    names = np.asarray(groups)
    chosen = np.zeros((len(askers), shots), int)
    for row, asked in enumerate(askers):
        others = pool[names[pool] != names[asked]]
        require(
            len(others) >= shots,
            f"Expected at least shots={shots} pairs of other people than {names[asked]} to show, found {len(others)}; use "
            "fewer shots or a larger pool.",
        )
        chosen[row] = generator.choice(others, shots, replace=False)
    return chosen


def in_context(prompt: str, shown: Sequence[tuple[str, str]], separator: str = "\n") -> str:
    r"""A prompt of P2: question and answer of each demonstration, then the question.

    >>> in_context("Q: c, A:", [("Q: a, A:", " 1"), ("Q: b, A:", " 2")])
    'Q: a, A: 1\nQ: b, A: 2\nQ: c, A:'
    """
    return separator.join([question + answer for question, answer in shown] + [prompt])


def relearning_samples(
    generator: np.random.Generator, groups: Sequence[str], pool: np.ndarray, *, samples: int, draws: int
) -> np.ndarray:
    """What P3 fine-tunes on: whole people out of the pool, until there are enough pairs.

    Args:
        generator: Randomness.
        groups: [n] the person of each pair.
        pool: [p] numbers of the pairs to draw from.
        samples: Pairs of each draw, |D|, >= 1.
        draws: Independent draws, >= 1.

    Returns:
        [draws, n] bool, ``samples`` of them in each row; the last person of a draw may be there in part.

    Raises:
        InputError: The pool holds fewer than ``samples`` pairs.
    """
    _validate.at_least(1, samples=samples, draws=draws)
    require(samples <= len(pool), f"Expected samples={samples} <= {len(pool)}, the pairs there are; use fewer samples.")
    names = np.asarray(groups)
    drawn = np.zeros((draws, len(names)), bool)
    for row in drawn:
        people = generator.permutation(np.unique(names[pool]))
        ordered = np.concatenate([pool[names[pool] == person] for person in people])
        row[ordered[:samples]] = True
    return drawn


def scored_after(groups: Sequence[str], drawn: np.ndarray) -> np.ndarray:
    """[draws, n] which pairs count after fine-tuning on ``drawn``: those of people who are in no sample of the draw.

    Args:
        groups: [n] the person of each pair.
        drawn: [draws, n] bool, the samples.
    """
    names = np.asarray(groups)
    return np.stack([~np.isin(names, names[row]) for row in drawn])
