import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.metrics.forgetting import forgetting_scores
from jaxunlearn.sequences import scored, sequence_nll, token_nll


def test_sum_and_mean_over_scored_tokens_by_hand():
    target = np.log([[0.5, 0.9, 0.1], [0.8, 0.5, 0.25]])
    unlearned = np.log([[0.25, 0.1, 0.1], [0.8, 0.5, 0.5]])
    found = forgetting_scores(target, unlearned, np.array([[True, False, True], [False, True, True]]))
    np.testing.assert_allclose(found.total, [np.log(2), -np.log(2)])
    np.testing.assert_allclose(found.per_token, found.total / 2)
    assert found.tokens.tolist() == [2, 2]


@pytest.mark.slow
def test_is_the_rise_of_the_sequence_loss():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, (6, 7))
    labels[rng.random((6, 7)) < 0.4] = -100
    labels[:, 3] = 2
    before, after = (jnp.asarray(rng.normal(size=(6, 7, 5)), jnp.float32) for _ in range(2))
    found = forgetting_scores(-token_nll(before, labels), -token_nll(after, labels), scored(jnp.asarray(labels)))
    np.testing.assert_allclose(found.total, sequence_nll(after, labels) - sequence_nll(before, labels), atol=1e-5)
    assert (found.tokens == (labels[:, 1:] >= 0).sum(axis=1)).all()


def test_what_is_not_scored_is_not_read():
    mask = np.array([[True, False]])
    assert forgetting_scores([[-1.0, np.nan]], [[-2.0, 5.0]], mask).total == [1.0]
    assert forgetting_scores([[-1.0, 0.0]], [[-1.0, -9.0]], mask).total == [0.0]


@pytest.mark.parametrize(
    "target, unlearned, mask, says",
    [
        ([[-1.0]], [[-np.inf]], [[True]], "unlearned"),
        ([[0.1]], [[-1.0]], [[True]], "target"),
        ([[-1.0, -1.0]], [[-1.0]], [[True]], "target"),
        ([[-1.0], [-1.0]], [[-1.0], [-1.0]], [[True], [False]], r"\[1\]"),
        ([-1.0], [-1.0], [True], "scored"),
    ],
)
def test_refusals(target, unlearned, mask, says):
    with pytest.raises(InputError, match=says):
        forgetting_scores(target, unlearned, mask)
