import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from jaxunlearn.attack import signals
from jaxunlearn.models.linear import mlp


def oracle(logits, labels):
    """log p_y - log(1 - p_y) in float64, from the probabilities' logarithms."""
    logits = np.asarray(logits, np.float64)
    log_p = logits - logsumexp(logits, axis=1, keepdims=True)
    rows = np.arange(labels.size)
    others = np.where(np.arange(logits.shape[1])[None] == labels[:, None], -np.inf, log_p)
    return log_p[rows, labels] - logsumexp(others, axis=1)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_against_double_precision(classes, scale):
    rng = np.random.default_rng(classes)
    logits = (scale * rng.normal(size=(200, classes))).astype(np.float32)
    labels = rng.integers(0, classes, 200)
    ours = jax.jit(signals.logit_score)(logits, labels)
    assert ours.dtype == jnp.float32 and ours.shape == (200,)
    np.testing.assert_allclose(ours, oracle(logits, labels), rtol=1e-5, atol=1e-5 * max(scale, 1))


@pytest.mark.parametrize("gap", [-500.0, -50.0, -16.0, 16.0, 50.0, 500.0])
def test_no_saturation_at_large_gaps(gap):
    logits = np.array([[gap, 0.0, 0.0], [gap + 1, 0.0, 0.0]], np.float32)
    scores = np.asarray(signals.logit_score(logits, np.zeros(2, int)))
    np.testing.assert_allclose(scores, [gap - np.log(2), gap + 1 - np.log(2)], rtol=1e-6)
    assert scores[1] > scores[0]


def test_is_the_logit_of_the_labels_probability():
    probability = jax.nn.softmax(jnp.array([0.3, -1.0, 2.0]))
    expected = jnp.log(probability / (1 - probability))
    logits = jnp.tile(jnp.log(probability), (3, 1))
    np.testing.assert_allclose(signals.logit_score(logits, jnp.arange(3)), expected, rtol=1e-5)
    # A constant added to all logits of an example changes nothing.
    np.testing.assert_allclose(signals.logit_score(logits + 7, jnp.arange(3)), expected, rtol=1e-5)


def test_rises_with_the_own_logit_and_falls_with_the_others():
    gradient = jax.jacobian(lambda z: signals.logit_score(z[None], jnp.array([1]))[0])(jnp.array([0.1, 0.2, 0.3]))
    assert gradient[1] == pytest.approx(1) and gradient[0] < 0 and gradient[2] < 0


@pytest.mark.parametrize(("n", "batch_size"), [(4, 4), (5, 4), (8, 4)])
def test_batched_logits_equal_those_of_one_batch(n, batch_size):
    model = mlp((3, 2), 5, widths=(4,))
    params = jax.jit(model.init)(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (n, 3, 2))
    ours = jax.jit(lambda p, x: signals.batched(lambda rows: model.apply(p, rows), x, batch_size=batch_size))(params, x)
    assert ours.shape == (n, 5)
    np.testing.assert_allclose(ours, jax.jit(model.apply)(params, x), rtol=1e-5, atol=1e-6)


def test_the_score_of_a_sequence_is_its_mean_log_likelihood():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(5, 7, 4)).astype(np.float32), rng.integers(0, 4, (5, 7))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = [np.mean([np.log(p[i, t, labels[i, t]]) for t in range(7)]) for i in range(5)]
    np.testing.assert_allclose(signals.sequence_score(jnp.asarray(logits), jnp.asarray(labels)), expected, rtol=1e-5)
