"""The battery that every method passes: pure, one trace, vmapped = looped, the same on any number of devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn import config
from jaxunlearn.certificates import noisy_steps
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine, Runs, members
from jaxunlearn.engine.train import Examples, Sizes
from jaxunlearn.models.linear import linear
from jaxunlearn.types import Batch, ForgetRetain, TaskInfo
from jaxunlearn.unlearn import base, clipping
from jaxunlearn.unlearn.ascent import IDA, Ascent
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.clipping import Clipping
from jaxunlearn.unlearn.finetune import Finetune
from jaxunlearn.unlearn.hessian import Hessian
from jaxunlearn.unlearn.influence import Influence
from jaxunlearn.unlearn.relabel import RandomLabel, SalUn
from jaxunlearn.unlearn.rewind import Rewind
from jaxunlearn.unlearn.sparsity import L1Sparse

SIZES = Sizes(retain=20, pool=8, forget=4)
MODEL = linear((4,), 3)
INIT = jax.jit(MODEL.init)
LOSS = base.cross_entropy(MODEL)
SMALL = config.Methods(
    finetune=Finetune(epochs=2),
    ascent=Ascent(ascent_epochs=1, epochs=2),
    ida=IDA(interleaved_epochs=1, epochs=2),
    clipping=Clipping(sigma=0.05, epochs=1),
    clipping_uncertified=Clipping(epsilon=None, clip=5.0, sigma=1e-4, noisy_epochs=1, epochs=1),
    rewind=Rewind(epochs=1, sigma=0.01),
    hessian=Hessian(samples=2, depth=3, scale=10.0),
    rl=RandomLabel(epochs=2),
    salun=SalUn(epochs=1, schedule="joint"),
    l1_sparse=L1Sparse(epochs=2),
    influence=Influence(samples=6, alpha=2.0),
)
NOISY = {"clipping", "clipping-uncertified", "rewind", "hessian", "rl", "salun"}
R = 4
CHEAP = {"finetune", "rl"}  # to compile; the fast tests go through the battery with these
METHODS = [name if name in CHEAP else pytest.param(name, marks=pytest.mark.slow) for name in config.METHOD_NAMES]


def train_phase(source):
    return SGD().phase(LOSS, source=source, size=SIZES.of(source), epochs=2, batch_size=8)


INFO = TaskInfo(MODEL, LOSS, SIZES.retain, SIZES.forget, 8, train_phase, train_epochs=2, descent=SGD())
rng = np.random.default_rng(0)
X = rng.normal(size=(28, 4)).astype(np.float32)
Y = rng.integers(0, 3, 28).astype(np.int32)
SIGNS = np.stack([rng.permutation(np.repeat([1, -1], 4)) for _ in range(R)])


@functools.cache  # to compile is what costs here
def compiled(name, devices, width):
    """The engine, a runner per phase, and a list that grows with every trace of an update."""
    mesh = planning.make_mesh(jax.devices()[:devices])
    plan = planning.Plan(width=width, runs_per_chunk=R)
    engine = Engine(mesh, plan, Examples(jnp.asarray(X), jnp.asarray(Y)), SIZES, jax.random.key(5))
    traces = []
    phases = [counted(phase, traces) for phase in config.resolve_method(name, SMALL)[0](INFO).phases]
    return engine, [engine.phase_runner(phase, number + 1) for number, phase in enumerate(phases)], traces


def counted(phase, traces):
    def update(*arguments):
        traces.append(1)
        return phase.update(*arguments)

    return phase._replace(update=update)


def unlearn(name, *, devices=1, width=1, seed=3, labels=Y, signs=SIGNS):
    engine, runners, _ = compiled(name, devices, width)
    engine.examples = jax.device_put(Examples(jnp.asarray(X), jnp.asarray(labels)), engine.examples.x.sharding)
    first = INIT(jax.random.key(1))
    params = given = jax.tree.map(lambda a: jnp.broadcast_to(a, (R, *a.shape)), first)
    runs = Runs(members(signs, SIZES), jax.random.split(jax.random.key(seed), R))
    for run in runners:
        params = run(runs, params, None)
    for a, b in zip(jax.tree.leaves(given), jax.tree.leaves(first)):  # states are donated, these must not be
        np.testing.assert_array_equal(a, np.broadcast_to(b, a.shape))
    return jax.tree.map(np.asarray, params)


def assert_equal(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


@pytest.mark.parametrize("name", METHODS)
def test_battery(name):
    first = unlearn(name)
    assert all(np.isfinite(leaf).all() and leaf.dtype == np.float32 for leaf in jax.tree.leaves(first))
    assert jax.tree.map(np.shape, first) == jax.tree.map(lambda a: (R, *a.shape), INIT(jax.random.key(0)))
    assert_equal(first, unlearn(name), rtol=0)
    assert_equal(first, unlearn(name, width=4), rtol=3e-5, atol=3e-6)
    assert_equal(first, unlearn(name, devices=4), rtol=3e-5, atol=3e-6)
    other = unlearn(name, seed=4)
    same = all((a == b).all() for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(other)))
    assert same == (name not in NOISY)


@pytest.mark.parametrize("name", METHODS)
def test_one_trace_serves_all_chunks_and_epochs(name):
    unlearn(name)
    traces = compiled(name, 1, 1)[2]
    # JAX may trace a loop body a few times while it fixes types; a second chunk must not add any.
    assert 1 <= len(traces) <= 3 * len(compiled(name, 1, 1)[1])
    before = len(traces)
    unlearn(name, seed=7, signs=-SIGNS, labels=(Y + 1) % 3)
    assert len(traces) == before


@pytest.mark.parametrize("name", METHODS)
def test_batches_that_a_run_never_saw_change_nothing(name):
    absent = ~members(SIGNS, SIZES)[0]
    labels = np.where(absent, (Y + 1) % 3, Y).astype(np.int32)
    a, b = unlearn(name), unlearn(name, labels=labels)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        np.testing.assert_array_equal(x[0], y[0])
    touches_forget = any((x != y).any() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))
    assert touches_forget == (name in {"ascent", "ida", "hessian", "salun", "influence"})


def batch(rows):
    return Batch(jnp.asarray(X[rows]), jnp.asarray(Y[rows]), jnp.ones(len(rows)))


PAIR = ForgetRetain(batch([0, 1, 2]), batch([20, 21]))
PARAMS = INIT(jax.random.key(1))
GRADIENT = jax.jit(jax.grad(LOSS))


def test_one_interleaved_step_by_hand():
    phase = IDA(retain_steps=1, forget_weight=0.75, learning_rate=0.1).build(INFO).phases[0]
    retain, forget = GRADIENT(PARAMS, PAIR.retain), GRADIENT(PARAMS, PAIR.forget)
    key = jax.random.key(0)
    active, plain = (phase.update(key, PARAMS, PAIR, jnp.int32(step)) for step in (2, 3))
    assert_equal(
        active, jax.tree.map(lambda p, r, f: p - 0.1 * (r - 0.75 * f), PARAMS, retain, forget), rtol=1e-5, atol=1e-6
    )
    assert_equal(plain, jax.tree.map(lambda p, r: p - 0.1 * r, PARAMS, retain), rtol=1e-5, atol=1e-6)


def test_one_ascent_step_raises_the_forget_loss_by_hand():
    phase = Ascent(learning_rate=0.1).build(INFO).phases[0]
    key = jax.random.key(0)
    state = phase.update(key, phase.init(key, PARAMS), PAIR, jnp.int32(0))
    expected = jax.tree.map(lambda p, g: p + 0.1 * g, PARAMS, GRADIENT(PARAMS, PAIR.forget))
    assert_equal(phase.finalize(key, state), expected, rtol=1e-5, atol=1e-6)


def test_projection_and_noise_of_model_clipping():
    inside = clipping.project(PARAMS, 0.5)
    norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(inside)))
    assert norm == pytest.approx(0.5, rel=1e-5)
    assert_equal(clipping.project(PARAMS, 1e6), PARAMS, rtol=0)
    big = {"a": jnp.zeros(20_000), "b": jnp.zeros((100, 200))}
    noise = clipping.add_noise(jax.random.key(0), big, 0.3)
    assert float(jnp.std(noise["a"])) == pytest.approx(0.3, rel=0.03)
    assert abs(float(jnp.corrcoef(noise["a"], noise["b"].ravel())[0, 1])) < 0.03


def test_clipping_without_noise_and_with_wide_balls_is_plain_descent():
    phase = clipping.noisy_phase(
        INFO, steps=3, learning_rate=0.1, weight_decay=0.01, clip_initial=1e6, clip=1e6, sigma=0.0, sigma_initial=0.0
    )
    key = jax.random.key(0)
    state = phase.update(key, phase.init(key, PARAMS), PAIR, jnp.int32(0))
    gradient = GRADIENT(PARAMS, PAIR.retain)
    assert_equal(state, jax.tree.map(lambda p, g: p - 0.1 * (g + 0.01 * p), PARAMS, gradient), rtol=1e-5, atol=1e-6)


def test_the_certificate_goes_with_its_number_of_steps():
    certified = SMALL.clipping.build(INFO)
    steps = noisy_steps(10.0, 1e-5, clip_initial=30.0, clip=0.1, sigma=0.05)
    assert certified.phases[0].max_steps == steps
    assert certified.certificate["epsilon"] == 10.0 and certified.certificate["delta"] == 1e-5
    assert SMALL.clipping_uncertified.build(INFO).certificate is None
