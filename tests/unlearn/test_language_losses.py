"""Losses of language methods against values worked out by hand, their gradients at the start, and their signs."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxunlearn.sequences import sequence_nll
from jaxunlearn.types import Batch
from jaxunlearn.unlearn import arithmetic, bounded, language, preference, steering

LN2 = np.log(2)
ONE = np.ones(1, np.float32)
# Three tokens: a prompt and two scored ones, over a vocabulary of two. Predictions: p(y1) = 3/4, p(y2) = 1/4.
TOKENS = np.array([[0, 1, 0]])
LABELS = np.array([[-100, 1, 0]])
P = np.array([[[1 / 4, 3 / 4], [1 / 4, 3 / 4], [1 / 2, 1 / 2]]])
LOGITS = np.log(P).astype(np.float32)
UNIFORM = np.zeros((1, 3, 2), np.float32)
BATCH = Batch(TOKENS, LABELS, ONE)
S = np.log(4 / 3) + np.log(4)


def of(*values):
    return np.array([values], np.float32)


def close(a, b, **tolerance):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), **({"rtol": 1e-5, "atol": 1e-6} | tolerance))


def agree(compute, *expected):
    """All at once: to compile is what costs here."""
    for value, wanted in zip(jax.jit(compute)(), expected, strict=True):
        close(value, wanted)


def test_negative_log_likelihood_of_three_tokens():
    agree(
        lambda: (
            sequence_nll(LOGITS, LABELS),
            language.nll(LOGITS, BATCH),
            language.nll(LOGITS, BATCH, "sequence_sum"),
            jax.grad(lambda z: language.nll(z, BATCH))(LOGITS),
        ),
        [S],
        S / 2,
        S,
        [[[1 / 8, -1 / 8], [-3 / 8, 3 / 8], [0, 0]]],  # (p - onehot) / 2 where a prediction is scored
    )


def npo(now, before, beta=0.1, weight=None):
    now, before = np.asarray(now, np.float32), np.asarray(before, np.float32)
    return preference.npo_loss(now, before, np.ones_like(before) if weight is None else weight, beta)


def test_npo_by_hand_and_at_the_start():
    def slope(*now):
        before = np.array([S, S], np.float32)
        return jax.grad(lambda s: preference.npo_loss(s, before, np.ones(2, np.float32), 0.1))(
            np.array(now, np.float32)
        )

    agree(
        lambda: (npo([S], [S]), npo([S + 1], [S], 1.0), slope(S, S), slope(S + 100, S)[0]),
        2 * LN2 / 0.1,
        2 * np.log1p(np.exp(-1)),  # -2 log sigmoid(1)
        [-0.5, -0.5],  # -1 a sequence, which is that of ascent on S, of two their mean
        -1 / (1 + np.exp(10)),  # fades as S rises
    )


def test_npo_falls_as_a_sequence_becomes_less_likely_and_padding_counts_nothing():
    values, padded, alone = jax.jit(
        lambda: (
            [npo([s], [3.0]) for s in np.linspace(0, 60, 20)],
            npo([4.0, 99.0], [3.0, 1.0], weight=np.array([1.0, 0.0], np.float32)),
            npo([4.0], [3.0]),
        )
    )()
    assert np.all(np.diff(values) < 0) and values[-1] > 0
    close(padded, alone)


def test_npo_as_muse_has_it_sees_no_label_and_pushes_all_logits_alike():
    def label_free(z):
        return preference.label_free_npo_loss(z, LOGITS, ONE, 0.1)

    start, gradient, moved = jax.jit(
        lambda: (
            label_free(LOGITS),
            jax.grad(label_free)(LOGITS),
            jax.nn.softmax(LOGITS - jax.grad(label_free)(LOGITS)),
        )
    )()
    close(start, 2 * LN2 / 0.1)
    close(gradient, np.full((1, 3, 2), 1 / 6))
    close(moved, P)  # a softmax does not see it: moving along it changes no probability


def test_dpo_by_hand():
    now, before = of(2.0, 5.0), of(3.0, 4.0)  # the refusal gained 1 nat, the answer lost 1
    agree(
        lambda: (
            preference.dpo_loss(now, before, ONE, 1.0),
            preference.dpo_loss(now, before, ONE, 0.1),
            preference.dpo_loss(now, before, ONE, 0.1, factor=1.0),
            preference.dpo_loss(before, before, ONE, 0.1),
            jax.grad(lambda s: preference.dpo_loss(s, before, ONE, 0.1))(before),
        ),
        2 * np.log1p(np.exp(-2)),
        20 * np.log1p(np.exp(-0.2)),
        np.log1p(np.exp(-0.2)),
        20 * LN2,
        [[1.0, -1.0]],  # lowers S of the refusal, raises that of the answer
    )


def test_divergence_to_the_model_before_by_hand():
    kl = np.log(1 / 2 / (1 / 4)) / 2 + np.log(1 / 2 / (3 / 4)) / 2  # of (1/2, 1/2) from (1/4, 3/4)
    second = BATCH._replace(y=np.array([[-100, -100, 0]]))
    other = np.array(LOGITS)
    other[0, 0] = 5.0, -5.0  # where nothing is scored
    agree(
        lambda: (
            language.token_kl(UNIFORM, LOGITS),
            language.retain_kl(UNIFORM, LOGITS, BATCH),
            language.retain_kl(UNIFORM, other, second),
            language.retain_kl(UNIFORM, LOGITS, second, compat="open-unlearning"),
            language.retain_kl(UNIFORM, LOGITS, second, compat="tofu"),
            language.retain_kl(UNIFORM, LOGITS, BATCH, compat="muse"),
        ),
        [[kl, kl, 0]],
        kl,
        kl,
        2 * kl / 3,  # over all positions
        2 * kl / 3,
        -np.log(P).sum(),  # of exp(0) (0 - z)
    )


def test_the_divergence_has_no_gradient_at_the_start_but_muses_has():
    def value_and_gradient(compat):
        return jax.value_and_grad(lambda z: language.retain_kl(LOGITS, z, BATCH, compat=compat))(LOGITS)

    names = ("none", "open-unlearning", "tofu", "muse")
    *proper, (_, of_muse) = jax.jit(lambda: [value_and_gradient(compat) for compat in names])()
    for value, gradient in proper:
        assert abs(value) < 1e-7 and np.abs(gradient).max() < 1e-7
    close(of_muse, -P)


def test_steered_positions_and_the_loss_of_states():
    labels = np.array([[-100, -100, 3, 4, -100]])
    states = np.zeros((1, 5, 2), np.float32)
    states[0, :, 0] = 9.0, 1.0, 2.0, 4.0, 9.0
    batch = Batch(labels, labels, ONE)

    def loss(**options):
        return steering.state_loss(states, np.zeros_like(states), batch, **options)

    agree(
        lambda: (
            *(steering.steered(labels, positions) for positions in ("answer", "prediction", "all")),
            loss(),
            loss(distance="squared_norm"),
            loss(positions="prediction"),
            loss(positions="all"),
            loss(reduction="sequence_sum"),
        ),
        [[0, 0, 1, 1, 0]],
        [[0, 1, 1, 0, 0]],
        np.ones((1, 5)),
        (4 + 16) / 2 / 2,
        (4 + 16) / 2,
        (1 + 4) / 2 / 2,
        (81 + 1 + 4 + 16 + 81) / 5 / 2,
        (4 + 16) / 2,
    )


def test_the_direction_is_a_positive_unit_vector_and_each_run_has_its_own():
    a, b = jax.jit(jax.vmap(lambda key: steering.direction(key, 50)))(jax.random.split(jax.random.key(0), 2))
    close(np.linalg.norm(a), 1.0)
    assert np.all(a >= 0) and not np.allclose(a, b)


def test_task_arithmetic_by_hand():
    target, reinforced = {"a": np.array([1.1, 2.2], np.float32)}, {"a": np.array([1.6, 2.2], np.float32)}
    moved, same, half = jax.jit(
        lambda: (
            arithmetic.negated(target, reinforced, 2.0)["a"],
            arithmetic.negated(target, target, 0.7)["a"],
            arithmetic.negated({"a": target["a"].astype(jnp.bfloat16)}, reinforced, 2.0)["a"],
        )
    )()
    close(moved, [0.1, 2.2])
    assert np.array_equal(same, target["a"]) and moved[1] == target["a"][1]
    assert half.dtype == jnp.bfloat16


def test_what_whp_guesses_by_hand():
    guess = arithmetic.unlearned_log_probabilities
    target, reinforced = np.array([2.0, 1.0, 0.0], np.float32), np.array([4.0, 0.5, 0.0], np.float32)
    p, q = np.log([0.5, 0.3, 0.2]).astype(np.float32), np.log([0.8, 0.15, 0.05]).astype(np.float32)
    agree(
        lambda: (
            guess(target, reinforced, 3.0),
            jnp.exp(guess(p, q, 1.0, "probabilities")),
            jnp.exp(guess(p, q, 2.0, "probabilities")),
            guess(p, q, 0.0, "probabilities"),
        ),
        [-4.0, 1.0, 0.0],
        [0.2, 0.45, 0.35],
        [0.0, 0.6, 0.5],  # .5 - 2 x .3 < 0
        p,
    )


def test_further_losses_by_hand():
    nll = of(np.log(4 / 3), np.log(4))
    simnpo, weights, lowered = bounded.simnpo_loss, bounded.token_weights, bounded.lowered
    agree(
        lambda: (
            simnpo(of(S)[0], of(2.0)[0], ONE, 4.5, 0.0),
            simnpo(of(S)[0], of(2.0)[0], ONE, 1.0, 1.0),
            weights(nll, 1.0, 0.0),
            weights(nll, 2.0, 1.0),
            weights(nll, 0.0, 0.0),
            jax.grad(lambda nll: weights(nll, 1.0, 1.0).sum())(nll),
            lowered(UNIFORM, LABELS, 10.0),
            bounded.cross_entropy(lowered(LOGITS, LABELS, jnp.inf), LOGITS)[0, :2],
            jax.grad(lambda z: bounded.cross_entropy(lowered(z, LABELS, jnp.inf), z)[0, :2].sum())(LOGITS)[0, :2],
            jax.grad(lambda z: bounded.cross_entropy(LOGITS, z).sum())(LOGITS),
        ),
        2 / 4.5 * np.log1p(np.exp(-4.5 * S / 2)),
        2 * np.log1p(np.exp(1 - S / 2)),
        [[3 / 4, 1 / 4]],
        [[9 / 64, 3 / 64]],
        [[1.0, 1.0]],
        [[0.0, 0.0]],
        [[[0, -10], [-10, 0], [0, 0]]],
        [np.log(4), np.log(4 / 3)],  # of two tokens only the other is left: -log of its probability
        P[0, :2] - [[1, 0], [0, 1]],
        np.zeros((1, 3, 2)),
    )


def test_a_batch_of_nothing_but_padding_is_no_division_by_zero():
    padding = BATCH._replace(weight=0 * ONE)
    agree(
        lambda: (
            language.nll(LOGITS, padding),
            language.retain_kl(UNIFORM, LOGITS, padding, compat="tofu"),
            language.sequence_mean(of(3.0)[0], padding.weight),
        ),
        0.0,
        0.0,
        0.0,
    )
