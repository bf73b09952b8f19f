import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import accuracy_score

from jaxunlearn.metrics.accuracy import accuracy, correct

LOGITS = jnp.array([[0.0, 1.0, 2.0], [3.0, 1.0, 2.0], [0.0, 5.0, 5.0], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize(("labels", "expected"), [([2, 0, 1, 0], 1.0), ([2, 0, 2, 0], 0.75), ([0, 1, 0, 1], 0.0)])
def test_share_of_right_labels_with_ties_to_the_smaller(labels, expected):
    assert accuracy(LOGITS, jnp.array(labels)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weight", "expected"), [([1, 1, 0, 0], 0.5), ([0, 1, 1, 1], 2 / 3), ([0, 0, 0, 1], 1.0), ([0, 0, 0, 0], 0.0)]
)
def test_only_the_weighted_examples_count(weight, expected):
    labels = jnp.array([0, 0, 0, 0])
    assert accuracy(LOGITS, labels, jnp.array(weight, jnp.float32)) == pytest.approx(expected)


def test_against_scikit_learn_and_under_vmap():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(3, 500, 7)).astype(np.float32), rng.integers(0, 7, 500)
    weight = (rng.random((3, 500)) < 0.5).astype(np.float32)
    ours = jax.vmap(lambda z, w: accuracy(z, jnp.asarray(labels), w))(logits, weight)
    expected = [accuracy_score(labels, z.argmax(1), sample_weight=w) for z, w in zip(logits, weight)]
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_of_a_sequence_the_share_of_right_positions():
    logits = jax.nn.one_hot(jnp.array([[0, 1, 2, 2], [3, 3, 3, 3]]), 4)
    labels = jnp.array([[0, 1, 2, 3], [3, 3, 0, 0]])
    np.testing.assert_allclose(correct(logits, labels), [0.75, 0.5])
    assert accuracy(logits, labels, jnp.array([1.0, 0.0])) == pytest.approx(0.75)
