import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from jaxunlearn._validate import InputError
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


def test_loss_and_margin_at_hand_values():
    logits, labels = jnp.log(jnp.array([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1]])), jnp.array([0, 0])
    np.testing.assert_allclose(signals.loss_score(logits + 3, labels), np.log([0.2, 0.7]), rtol=1e-5)
    np.testing.assert_allclose(signals.margin(logits + 3, labels), np.log([0.4, 3.5]), rtol=1e-5)
    # With two classes the margin is the logit score.
    two = logits[:, :2]
    np.testing.assert_allclose(signals.margin(two, labels), signals.logit_score(two, labels), rtol=1e-5)


def test_augmented_copies_at_hand_values():
    x = jnp.arange(6.0).reshape(1, 2, 3, 1)  # [[0, 1, 2], [3, 4, 5]]
    copies = {name: copy[0, :, :, 0].tolist() for name, copy in signals.augment(x, flip=True).items()}
    assert copies == {
        "up": [[3, 4, 5], [3, 4, 5]],
        "down": [[0, 1, 2], [0, 1, 2]],
        "left": [[1, 2, 2], [4, 5, 5]],
        "right": [[0, 0, 1], [3, 3, 4]],
        "mirrored": [[2, 1, 0], [5, 4, 3]],
    }
    assert list(signals.augment(x, flip=False)) == ["up", "down", "left", "right"]
    with pytest.raises(InputError, match="images"):
        signals.augment(x[:, :, 0], flip=False)


def test_scores_by_name_are_those_of_the_functions():
    model = mlp((3, 2, 1), 5, widths=(4,))
    params = jax.jit(model.init)(jax.random.key(0))
    x, labels = jax.random.normal(jax.random.key(1), (6, 3, 2, 1)), jnp.arange(6) % 5
    logits = model.apply(params, x)
    scores = signals.signal_scores(("logit", "loss", "margin", "augmented"), logits, labels)
    scores |= signals.augmented_scores(model.apply, params, x, labels, flip=False)
    assert list(scores) == ["logit", "loss", "margin"] + [f"augmented_{n}" for n in ("up", "down", "left", "right")]
    for name, function in (("logit", signals.logit_score), ("loss", signals.loss_score), ("margin", signals.margin)):
        np.testing.assert_array_equal(scores[name], function(logits, labels))
    moved = signals.augment(x, flip=False)["left"]
    np.testing.assert_array_equal(scores["augmented_left"], signals.logit_score(model.apply(params, moved), labels))
