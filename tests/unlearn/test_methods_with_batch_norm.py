"""Methods on a model with BatchNorm: its statistics move in training mode, and nothing else ever touches them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine, Runs, members
from jaxunlearn.engine.train import Examples, Sizes
from jaxunlearn.types import Batch, ForgetRetain, Model, TaskInfo, Variables
from jaxunlearn.unlearn import base
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.finetune import Finetune
from jaxunlearn.unlearn.influence import Influence
from jaxunlearn.unlearn.relabel import RandomLabel, SalUn
from jaxunlearn.unlearn.sparsity import L1Sparse

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
SIZES = Sizes(retain=12, pool=8, forget=4)
N, R, KEPT = 20, 4, 0.9


def init(key):
    first, second = jax.random.split(key)
    params = {
        "in": jax.random.normal(first, (4, 6)),
        "scale": jnp.full(6, 1.5),
        "bias": jnp.full(6, 0.2),
        "out": jax.random.normal(second, (6, 3)),
    }
    return Variables(params, {"mean": jnp.zeros(6), "variance": jnp.ones(6)})


def logits(params, hidden, mean, variance):
    normal = (hidden - mean[None]) / jnp.sqrt(variance[None] + 1e-5)
    return jax.nn.relu(params["scale"][None] * normal + params["bias"][None]) @ params["out"]


def apply(variables, x):
    params, statistics = variables
    return logits(params, x @ params["in"], statistics["mean"], statistics["variance"])


def train(variables, x, weight):
    params, statistics = variables
    hidden, share = x @ params["in"], (weight / weight.sum())[:, None]
    mean = jnp.sum(share * hidden, axis=0)
    found = {"mean": mean, "variance": jnp.sum(share * (hidden - mean[None]) ** 2, axis=0)}
    moved = jax.tree.map(lambda old, new: KEPT * old + (1 - KEPT) * new, statistics, found)
    return logits(params, hidden, found["mean"], found["variance"]), Variables(params, moved)


MODEL = Model(init, apply, train)
LOSS = base.cross_entropy(MODEL)
INFO = TaskInfo(MODEL, LOSS, SIZES.retain, SIZES.forget, 4, None, training_loss=base.training_loss(MODEL))
DESCENT = SGD(schedule="constant", peak=0.05, weight_decay=0.1, momentum=0.9)
METHODS = {
    "finetune": Finetune(epochs=2, descent=DESCENT),
    "rl": RandomLabel(epochs=2, descent=DESCENT),
    "rl, shuffled": RandomLabel(epochs=2, descent=DESCENT, schedule="shuffled"),
    "rl, joint": RandomLabel(epochs=2, descent=DESCENT, schedule="joint"),
    "salun": SalUn(epochs=2, descent=DESCENT),
    "l1_sparse": L1Sparse(epochs=2, descent=DESCENT, alpha=0.1),
    "influence": Influence(samples=8, alpha=0.5),
    "reference": Influence(samples=8, alpha=0.5, solver="reference"),
    "search": Influence(samples=8, alpha=0.5, max_loss=100.0),
}
rng = np.random.default_rng(2)
X = (rng.normal(size=(N, 4)) + 1).astype(np.float32)
Y = rng.integers(0, 3, N).astype(np.int32)
START = init(jax.random.key(1))


def rows(which, weight=None):
    which = np.asarray(which)
    weight = jnp.ones(len(which)) if weight is None else jnp.asarray(weight, jnp.float32)
    return Batch(jnp.asarray(X[which]), jnp.asarray(Y[which]), weight, jnp.asarray(which >= SIZES.retain))


FORGET, RETAIN = rows([12, 13, 16, 17]), rows([0, 1, 2, 0], [1, 1, 1, 0])


def pair_of(phase):
    if phase.source == "forget":
        return ForgetRetain(None, FORGET)
    if phase.max_steps is not None:
        return ForgetRetain(rows(range(phase.batch_size)), None)
    return ForgetRetain(RETAIN, FORGET if phase.companion else None)


@functools.cache
def unlearned(name, steps=2):
    """By hand: every phase for so many steps."""
    params = START
    for phase in METHODS[name].build(INFO).phases:
        update, state = jax.jit(phase.update), phase.init(KEY, params)
        for step in range(steps if phase.max_steps is None else phase.max_steps):
            state = update(jax.random.fold_in(KEY, step), state, pair_of(phase), jnp.int32(step))
        params = phase.finalize(KEY, state)
    return params


def assert_same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", METHODS)
def test_statistics_move_by_their_own_rule_or_not_at_all(name):
    after = unlearned(name)
    assert isinstance(after, Variables)
    assert all(np.any(a != b) for a, b in zip(jax.tree.leaves(after.params), jax.tree.leaves(START.params)))
    if isinstance(METHODS[name], Influence):
        assert_same(after.statistics, START.statistics)
        return
    # After one step, the statistics are the old ones and the batch's, whatever decay, mask and penalty do.
    x = [FORGET, RETAIN] if name == "rl, joint" else [RETAIN]
    expected = START
    for batch in x:
        expected = train(expected, batch.x, batch.weight)[1]
    found = unlearned(name, steps=1).statistics
    for part in ("mean", "variance"):
        np.testing.assert_allclose(found[part], expected.statistics[part], rtol=1e-5, atol=1e-6)


def test_one_step_descends_the_loss_of_training_mode():
    def loss(part):
        return base.mean_cross_entropy(train(START._replace(params=part), RETAIN.x, RETAIN.weight)[0], RETAIN)

    gradient = jax.grad(loss)(START.params)
    found = unlearned("finetune", steps=1).params
    for name, value in START.params.items():
        np.testing.assert_allclose(found[name], value - 0.05 * (gradient[name] + 0.1 * value), rtol=1e-4, atol=1e-6)


def test_masks_and_gradients_are_those_of_evaluation_mode_and_of_what_is_trained():
    mask_phase, descent = METHODS["salun"].build(INFO).phases
    state = mask_phase.update(KEY, mask_phase.init(KEY, START), ForgetRetain(None, FORGET), jnp.int32(0))
    salient = mask_phase.finalize(KEY, state)
    gradient = jax.grad(lambda part: LOSS(START._replace(params=part), FORGET))(START.params)
    for name, total in state[1].items():
        np.testing.assert_allclose(total, gradient[name], rtol=1e-5, atol=1e-7)
    assert jax.tree.structure(salient.mask) == jax.tree.structure(START.params)
    assert sum(int(m.sum()) for m in jax.tree.leaves(salient.mask)) == (24 + 6 + 6 + 18) // 2
    assert_same(salient.params, START)
    for name, keep in salient.mask.items():
        moved = np.asarray(unlearned("salun").params[name] != START.params[name])
        np.testing.assert_array_equal(moved, keep)
    assert descent.source == "forget-then-retain"


def test_influence_is_the_product_of_evaluation_mode():
    def gradients(which):
        def one(x, y):
            batch = Batch(x[None], y[None], jnp.ones(1))
            return jax.grad(lambda part: LOSS(START._replace(params=part), batch))(START.params)

        leaves = jax.tree.leaves(jax.vmap(one)(jnp.asarray(X[which]), jnp.asarray(Y[which])))
        return np.concatenate([np.asarray(leaf, np.float64).reshape(len(which), -1) for leaf in leaves], axis=1)

    solve = METHODS["influence"].build(INFO).phases[1]
    g = gradients(np.arange(8))
    v = jax.tree.map(jnp.ones_like, START.params)
    state = solve.init(KEY, METHODS["influence"].build(INFO).phases[0].init(KEY, START)._replace(direction=v))
    found = jax.jit(solve.update)(KEY, state, pair_of(solve), jnp.int32(0)).direction
    found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)])
    expected = np.linalg.solve(np.eye(54) + g.T @ g / 8, np.ones(54))
    assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rl, joint", "salun", "l1_sparse", "influence"])
def test_populations_with_batch_norm_do_not_depend_on_devices_or_width(name):
    signs = np.stack([np.random.default_rng(r).permutation([1, -1, 1, -1]) for r in range(R)])
    runs = Runs(members(signs, SIZES), jax.random.split(KEY, R))

    def population(devices, width):
        plan = planning.Plan(width=width, runs_per_chunk=R)
        examples = Examples(jnp.asarray(X), jnp.asarray(Y))
        engine = Engine(planning.make_mesh(jax.devices()[:devices]), plan, examples, SIZES, jax.random.key(5))
        params = jax.tree.map(lambda a: jnp.broadcast_to(a, (R, *a.shape)), START)
        for number, phase in enumerate(METHODS[name].build(INFO).phases):
            params = engine.phase_runner(phase, number + 1)(runs, params)
        return jax.tree.map(np.asarray, params)

    reference = population(1, 1)
    for other in (population(1, 4), population(4, 1)):
        for a, b in zip(jax.tree.leaves(reference), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
