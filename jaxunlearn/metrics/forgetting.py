"""The forgetting score: how much less likely a piece of personal information has become. On the host, no JAX.

FS = log P_target(y | x) - log P_unlearned(y | x) over the tokens y of the information after a prefix x ("Unveiling Ripple
Effects and Shallow Forgetting in Privacy Unlearning", arXiv:2604.22076, section 3.2). It grows with the number of tokens, so
that a long address outranks a short one that fell as far; per token it does not.
"""

from typing import NamedTuple

import numpy as np

from jaxunlearn._validate import require, shape


class ForgettingScores(NamedTuple):
    """Forgetting scores of n sequences.

    Attributes:
        total: [n] FS in nats: > 0 where the unlearned model finds the sequence less likely, < 0 where more.
        per_token: [n] FS over the number of tokens, in nats a token.
        tokens: [n] how many tokens were scored, >= 1.
    """

    total: np.ndarray
    per_token: np.ndarray
    tokens: np.ndarray


def forgetting_scores(target: np.ndarray, unlearned: np.ndarray, scored: np.ndarray) -> ForgettingScores:
    """FS of every sequence, from the log-probabilities of its tokens.

    Args:
        target: [n, t] log p of each token given those before it under the model before unlearning, in nats, <= 0
            (minus ``sequences.token_nll``). What stands at tokens that are not scored is not read.
        unlearned: [n, t] the same under the unlearned model.
        scored: [n, t] whether a token belongs to the personal information (``sequences.scored``).

    Returns:
        The scores.

    Raises:
        InputError: Shapes differ, a sequence has no scored token, or a scored log-probability is > 0 or not finite.

    >>> forgetting_scores([[-1.0, -0.5]], [[-3.0, -1.5]], [[True, True]]).total
    array([3.])
    """
    scored = np.asarray(scored, bool)
    shape("scored", scored, (None, None), "sequences x tokens")
    tokens = scored.sum(axis=1)
    empty = np.flatnonzero(tokens == 0)
    require(
        not empty.size, f"Expected a scored token in every sequence, got none in {empty[:5].tolist()}; leave them out."
    )
    sums = []
    for name, values in (("target", target), ("unlearned", unlearned)):
        values = np.asarray(values, np.float64)
        shape(name, values, scored.shape, "sequences x tokens, as scored")
        values = np.where(scored, values, 0.0)
        wrong = np.flatnonzero(~(np.isfinite(values) & (values <= 0)).all(axis=1))
        require(
            not wrong.size,
            f"Expected {name} to hold log-probabilities, finite and <= 0; not so in {wrong[:5].tolist()}.",
        )
        sums.append(values.sum(axis=1))
    total = sums[0] - sums[1]
    return ForgettingScores(total, total / tokens, tokens)
