"""A population of runs against the same runs one by one, by an independent loop."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxunlearn.data import schedule
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine, Runs, members
from jaxunlearn.engine.train import Examples, Sizes, total_steps
from jaxunlearn.models.linear import mlp
from jaxunlearn.types import Phase
from jaxunlearn.unlearn import base

RETAIN, M, B, R, EPOCHS, BATCH = 21, 6, 2, 8, 3, 8
SIZES = Sizes(retain=RETAIN, pool=M * B, forget=M // 2 * B)
MODEL = mlp((5,), 3, widths=(7,))
INIT = jax.jit(MODEL.init)
LOSS = base.cross_entropy(MODEL)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RETAIN + M * B, 5)).astype(np.float32)
    y = rng.integers(0, 3, RETAIN + M * B).astype(np.int32)
    signs = np.stack([rng.permutation([1, 1, 1, -1, -1, -1]) for _ in range(R)])
    return x, y, signs


def make_engine(problem, devices=1, width=1):
    x, y, _ = problem
    plan = planning.Plan(width=width, runs_per_chunk=R)
    mesh = planning.make_mesh(jax.devices()[:devices])
    return Engine(mesh, plan, Examples(jnp.asarray(x), jnp.asarray(y)), SIZES, jax.random.key(5))


def initial():
    params = INIT(jax.random.key(1))
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (R, *a.shape)), params)


def train(problem, phase, **engine):
    runs = Runs(members(problem[2], SIZES), jax.random.split(jax.random.key(2), R))
    return jax.tree.map(np.asarray, make_engine(problem, **engine).phase_runner(phase, 0)(runs, initial(), None))


def descent(source):
    sgd = base.SGD(momentum=0.5)
    return sgd.phase(LOSS, source=source, size=SIZES.of(source), epochs=EPOCHS, batch_size=BATCH)


def by_hand(problem, run, source):
    """Plain Python over a data set that truly lacks the absent rows: no mask, no padding, no weights."""
    x, y, signs = problem
    have = members(signs, SIZES)[run]
    keep = {"train": have, "retain": np.arange(have.size) < RETAIN, "forget": have & (np.arange(have.size) >= RETAIN)}[
        source
    ]
    orders = np.asarray(schedule.orders(jax.random.fold_in(jax.random.key(5), 0), EPOCHS, x.shape[0]))
    steps = EPOCHS * -(-int(keep.sum()) // BATCH)
    optimizer = base.sgd(base.one_cycle(0.1, steps), weight_decay=5e-4, momentum=0.5)
    params = INIT(jax.random.key(1))
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, x, y):
        def loss(p):
            return optax.softmax_cross_entropy_with_integer_labels(MODEL.apply(p, x), y).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for order in orders:
        rows = [i for i in order if keep[i]]
        for start in range(0, len(rows), BATCH):
            chosen = np.array(rows[start : start + BATCH])
            params, state = step(params, state, x[chosen], y[chosen])
    return params


@pytest.mark.parametrize("source", ["train", "retain"])
def test_a_population_equals_plain_runs_on_data_without_the_absent_rows(problem, source):
    population = train(problem, descent(source))
    for run in range(3):
        expected = by_hand(problem, run, source)
        for ours, theirs in zip(jax.tree.leaves(population), jax.tree.leaves(expected)):
            np.testing.assert_allclose(ours[run], theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("devices", "width"), [(2, 1), (4, 1), (1, 4), (2, 2), (4, 2)])
def test_devices_and_width_change_nothing_but_rounding(problem, devices, width):
    reference = train(problem, descent("train"))
    other = train(problem, descent("train"), devices=devices, width=width)
    for a, b in zip(jax.tree.leaves(reference), jax.tree.leaves(other)):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_stretches_of_any_length_give_the_same_bits(problem, monkeypatch):
    reference = train(problem, descent("train"))
    monkeypatch.setattr("jaxunlearn.engine.population.STRETCH_SECONDS", 1e9)
    other = train(problem, descent("train"))
    for a, b in zip(jax.tree.leaves(reference), jax.tree.leaves(other)):
        np.testing.assert_array_equal(a, b)


def recorder(steps):
    """A phase whose state is the noise of every step."""

    def update(key, state, batch, step):
        return state.at[step].set(jax.random.normal(key))

    return Phase("retain", EPOCHS, BATCH, lambda key, params: jnp.zeros(steps), update, lambda key, state: state)


def test_noise_is_new_at_every_step_and_run_and_does_not_depend_on_the_signs(problem):
    steps = total_steps(recorder(1), SIZES)
    noise = train(problem, recorder(steps))
    assert noise.shape == (R, steps) and np.unique(noise).size == R * steps
    flipped = train((problem[0], problem[1], -problem[2]), recorder(steps))
    np.testing.assert_array_equal(noise, flipped)


def test_max_steps_stops_inside_an_epoch(problem):
    phase = recorder(9)._replace(max_steps=4)
    noise = train(problem, phase)
    assert (noise[:, :4] != 0).all() and (noise[:, 4:] == 0).all()


def test_only_the_runs_own_forget_set_is_ascended(problem):
    x, y, signs = problem
    phase = base.from_loss(lambda p, b: -LOSS(p, b.forget), base.sgd(0.1), source="forget", epochs=2, batch_size=4)
    reference = train(problem, phase)
    absent = np.flatnonzero(~members(signs, SIZES)[0])
    changed = y.copy()
    changed[absent] = (changed[absent] + 1) % 3
    other = train((x, changed, signs), phase)
    for a, b in zip(jax.tree.leaves(reference), jax.tree.leaves(other)):
        np.testing.assert_array_equal(a[0], b[0])
    assert any((a[1:] != b[1:]).any() for a, b in zip(jax.tree.leaves(reference), jax.tree.leaves(other)))


@pytest.mark.parametrize("runs", [1, 7, 16, 60, 1100])
def test_chunks_cover_all_runs_evenly(runs):
    plan = planning.choose(planning.make_mesh(jax.devices()[:2]), runs)
    chunks = -(-runs // plan.runs_per_chunk)
    assert chunks * plan.runs_per_chunk - runs < max(4, plan.runs_per_chunk)


@pytest.mark.parametrize("width", [1, 2])
def test_a_run_alone_is_not_put_under_vmap(problem, width):
    batched = []

    @jax.custom_batching.custom_vmap
    def double(a):
        return 2 * a

    @double.def_vmap
    def _double_batched(size, in_batched, a):
        batched.append(size)
        return 2 * a, in_batched[0]

    doubled = make_engine(problem, devices=2, width=width).map(lambda examples, shared, a: double(a))(np.arange(R))
    np.testing.assert_array_equal(doubled, 2 * np.arange(R))
    assert batched == ([] if width == 1 else [width])
