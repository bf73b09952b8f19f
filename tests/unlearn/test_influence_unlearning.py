"""Influence unlearning against dense algebra, the public code's loop, and its own limits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.models.linear import mlp
from jaxunlearn.types import Batch, ForgetRetain, TaskInfo
from jaxunlearn.unlearn import base, influence
from jaxunlearn.unlearn.influence import Direction, Influence, PerExample

KEY = jax.random.key(0)
RETAIN, FORGET = 30, 6
MODEL = mlp((4,), 3, widths=(5,))
LOSS = base.cross_entropy(MODEL)
INFO = TaskInfo(MODEL, LOSS, RETAIN, FORGET, 8, None)
PARAMS = jax.tree.map(lambda p: 2 * p + 0.1, jax.jit(MODEL.init)(KEY))
rng = np.random.default_rng(5)
X = jnp.asarray(2 * rng.normal(size=(RETAIN + FORGET, 4)), jnp.float32)
Y = jnp.asarray(rng.integers(0, 3, RETAIN + FORGET), jnp.int32)


def rows(which, weight=None):
    which = np.asarray(which)
    weight = jnp.ones(len(which)) if weight is None else jnp.asarray(weight, jnp.float32)
    return Batch(X[which], Y[which], weight, jnp.asarray(which >= RETAIN))


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


@functools.cache
def gradients():
    """[n, P], one by one."""
    one = jax.jit(jax.grad(lambda p, x, y: LOSS(p, Batch(x[None], y[None], jnp.ones(1)))))
    return np.stack([flat(one(PARAMS, x, y)) for x, y in zip(X, Y)])


@functools.cache
def contrast():
    """v by hand."""
    g = gradients()
    return FORGET / (FORGET + RETAIN) * (g[RETAIN:].mean(0) - g[:RETAIN].mean(0))


V = jax.tree.map(lambda p, k: jax.random.normal(k, p.shape), PARAMS, jax.tree.unflatten(
    jax.tree.structure(PARAMS), list(jax.random.split(KEY, len(jax.tree.leaves(PARAMS))))))  # fmt: skip


def examples(count=25, chunk=8):
    return PerExample(LOSS, PARAMS, rows(range(count)), chunk)


def run(phase, start, batches):
    update = jax.jit(phase.update)
    state = phase.init(KEY, start)
    for step, batch in enumerate(batches):
        state = update(KEY, state, ForgetRetain(batch, None), jnp.int32(step))
    return phase.finalize(KEY, state)


def test_the_first_phase_contrasts_mean_gradients_short_batches_included():
    phase = Influence().build(INFO).phases[0]
    assert (phase.source, phase.epochs, phase.batch_size, phase.augment) == ("forget-then-retain", 1, 8, False)
    forgotten = rows([*range(RETAIN, RETAIN + FORGET), 0, 0], [1] * 6 + [0, 0])
    batches = [forgotten, *(rows(range(i, i + 8)) for i in (0, 8, 16)), rows([*range(24, 30), 0, 0], [1] * 6 + [0, 0])]
    found = run(phase, PARAMS, batches)
    np.testing.assert_allclose(flat(found.direction), contrast(), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(flat(found.params), flat(PARAMS))


@pytest.mark.parametrize(("count", "chunk"), [(25, 8), (24, 100)])
def test_products_with_the_fisher_matrix_are_the_dense_ones(count, chunk):
    g = gradients()[:count]
    found = jax.jit(lambda v: (examples(count, chunk).fisher(v), examples(count, chunk).products(v)))(V)
    np.testing.assert_allclose(found[1], g @ flat(V), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(flat(found[0]), flat(V) + g.T @ (g @ flat(V)) / count, rtol=1e-4, atol=1e-5)


def test_conjugate_gradients_give_the_dense_inverse():
    g = gradients()[:25]
    fisher = np.eye(g.shape[1]) + g.T @ g / 25
    assert np.linalg.cond(fisher) > 10
    product = jax.jit(lambda v: influence.inverse_fisher_product(examples(), v))
    found = flat(product(V))
    expected = np.linalg.solve(fisher, flat(V))
    assert np.linalg.norm(found - expected) < 3e-4 * np.linalg.norm(expected)
    assert not flat(product(jax.tree.map(jnp.zeros_like, V))).any()


def naive_recursion(v, g, samples):
    """The public code's loop, vector by vector."""
    k, o = v.copy(), None
    for i, gradient in enumerate(g):
        if o is None:
            o = gradient.copy()
        else:
            t = o @ gradient
            k = k - (k @ gradient) / (samples + t) * o
            o = o - t / (samples + t) * o
        if i > samples:
            break
    return k


def test_the_reference_is_the_public_codes_loop_and_no_inverse():
    g, v = gradients()[:12], flat(V)
    found = flat(jax.jit(lambda v: influence.reference_product(examples(12), v, 10))(V))
    expected = naive_recursion(v, g, 10)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    true = np.linalg.solve(np.eye(v.size) + g.T @ g / 12, v)
    moved = found - v
    along = (moved @ g[0]) / (g[0] @ g[0]) * g[0]
    assert np.linalg.norm(moved - along) < 1e-4 * np.linalg.norm(moved)  # only ever along the first gradient
    assert np.linalg.norm(found - true) > 0.1 * np.linalg.norm(true - v)


@pytest.mark.parametrize(
    ("solver", "samples", "size"), [("fisher", 20, 20), ("fisher", 1000, 30), ("reference", 10, 12)]
)
def test_one_step_moves_along_the_product_by_alpha(solver, samples, size):
    made = Influence(alpha=3.0, samples=samples, solver=solver).build(INFO)
    assert made.certificate is None and bool(made.notes) == (solver == "reference")
    phase = made.phases[1]
    assert (phase.source, phase.batch_size, phase.max_steps, phase.augment) == ("retain", size, 1, False)
    found = flat(run(phase, Direction(PARAMS, V), [rows(range(size))])) - flat(PARAMS)
    g, v = gradients()[:size], flat(V)
    fisher = np.eye(v.size) + g.T @ g / size
    k = np.linalg.solve(fisher, v) if solver == "fisher" else naive_recursion(v, g, samples)
    assert np.linalg.norm(found - 3 * k) < 1e-3 * np.linalg.norm(k)


@functools.cache
def searched(max_loss, alpha=64.0):
    phases = Influence(alpha=alpha, samples=20, max_loss=max_loss).build(INFO).phases
    assert len(phases) == 3 and phases[2].batch_size == 20 and not phases[2].augment
    return run(phases[2], Direction(PARAMS, V), [rows(range(20))])


def loss_at(steps):
    moved = jax.tree.map(lambda p, k: p + steps * k, PARAMS, V)
    return float(LOSS(moved, rows(range(20))))


def test_alpha_is_halved_until_the_loss_is_small_enough():
    start = loss_at(0)
    bound = start + 0.5
    steps = (flat(searched(bound)) - flat(PARAMS)) / flat(V)
    alpha = float(np.median(steps))
    halvings = np.log2(64 / alpha)
    assert halvings == pytest.approx(round(halvings), abs=1e-3) and 1 <= halvings <= 19
    assert loss_at(alpha) <= bound < loss_at(2 * alpha)
    np.testing.assert_array_equal(flat(searched(1e6)), flat(jax.tree.map(lambda p, k: p + 64.0 * k, PARAMS, V)))
    never = (flat(searched(start / 2)) - flat(PARAMS)) / flat(V)
    assert float(np.abs(never).max()) < 0.01  # the model itself is worse than that: it hardly moves


def test_the_search_ends_below_a_loss_that_is_not_a_number():
    phase = Influence(alpha=1e38, samples=20, max_loss=3.0).build(INFO).phases[2]
    big = jax.tree.map(lambda v: 1e4 * v, V)
    found = jax.jit(phase.update)(KEY, Direction(PARAMS, big), ForgetRetain(rows(range(20)), None), jnp.int32(0))
    np.testing.assert_array_equal(flat(found.direction), 0.5**20 * flat(big))


def test_notes_say_what_the_direction_is_and_that_alpha_differs():
    notes = Influence(solver="reference", max_loss=0.4, samples=1000).build(INFO).notes
    assert "not an inverse Fisher product" in notes[0] and "20, halved until the loss of 30 retain" in notes[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 0.0}, "alpha=0.0"),
        ({"samples": 0}, "samples=0"),
        ({"solver": "newton"}, "solver='newton'"),
        ({"max_loss": 0.0}, "max_loss=0.0"),
    ],
)
def test_influence_refuses(changes, message):
    with pytest.raises(InputError, match=message):
        Influence(**changes)
