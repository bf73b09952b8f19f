"""Each method by numbers worked out by hand, and in the limits where it must become another."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.certificates import noisy_steps
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine, Runs, members
from jaxunlearn.engine.train import Examples, Sizes, total_steps
from jaxunlearn.models.linear import linear
from jaxunlearn.types import Batch, ForgetRetain, TaskInfo
from jaxunlearn.unlearn import ascent, base, clipping
from jaxunlearn.unlearn.ascent import IDA, Ascent
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.clipping import Clipping
from jaxunlearn.unlearn.finetune import Finetune, Retrain

SIZES = Sizes(retain=13, pool=8, forget=4)
MODEL = linear((4,), 3)
LOSS = base.cross_entropy(MODEL)
R, BATCH = 3, 5
KEY = jax.random.key(0)


def train_phase(source):
    return SGD().phase(LOSS, source=source, size=SIZES.of(source), epochs=2, batch_size=BATCH)


INFO = TaskInfo(MODEL, LOSS, SIZES.retain, SIZES.forget, BATCH, train_phase)
rng = np.random.default_rng(0)
X = rng.normal(size=(21, 4)).astype(np.float32)
Y = rng.integers(0, 3, 21).astype(np.int32)
SIGNS = np.array([[1, -1, 1, -1], [-1, -1, 1, 1], [1, 1, -1, -1]])
TRAINED = {"Dense_0": {"kernel": rng.normal(size=(R, 4, 3)), "bias": rng.normal(size=(R, 3))}}
TRAINED = jax.tree.map(lambda a: a.astype(np.float32), TRAINED)


def run(*phases, params=TRAINED, signs=SIGNS, seed=2):
    plan = planning.Plan(width=1, runs_per_chunk=R)
    mesh = planning.make_mesh(jax.devices()[:1])
    engine = Engine(mesh, plan, Examples(jnp.asarray(X), jnp.asarray(Y)), SIZES, jax.random.key(5))
    runs = Runs(members(signs, SIZES), jax.random.split(jax.random.key(seed), R))
    for number, phase in enumerate(phases):
        params = engine.phase_runner(phase, number)(runs, params, None)
    return jax.tree.map(np.asarray, params)


def assert_close(a, b, **tolerance):
    jax.tree.map(functools.partial(np.testing.assert_allclose, **tolerance), a, b)


def norms(params):
    return np.sqrt(sum(np.sum(np.square(leaf.reshape(R, -1)), axis=1) for leaf in jax.tree.leaves(params)))


# One input, two classes: at kernel 0 and bias 0 both probabilities are 1/2, and the gradient of an example (x, y) is
# (p - onehot(y)) x for the kernel and p - onehot(y) for the bias.
TOY = linear((1,), 2)
TOY_LOSS = base.cross_entropy(TOY)
TOY_INFO = TaskInfo(TOY, TOY_LOSS, 1, 1, 1, None)
ZERO = {"Dense_0": {"kernel": jnp.zeros((1, 2)), "bias": jnp.zeros(2)}}


def example(x, y):
    return Batch(jnp.array([[x]]), jnp.array([y]), jnp.ones(1))


PAIR = ForgetRetain(retain=example(1.0, 0), forget=example(2.0, 1))


def weights(kernel, bias):
    return {"Dense_0": {"kernel": np.array([kernel]), "bias": np.array(bias)}}


def test_interleaved_step_by_hand():
    phase = ascent.interleaved_phase(TOY_INFO, epochs=1, learning_rate=0.1, forget_weight=0.75, retain_steps=2)
    # retain gradient: kernel (-.5, .5), bias (-.5, .5); forget gradient: kernel (1, -1), bias (.5, -.5).
    with_ascent = weights([0.1 * (0.5 + 0.75), -0.1 * (0.5 + 0.75)], [0.1 * (0.5 + 0.375), -0.1 * (0.5 + 0.375)])
    plain = weights([0.05, -0.05], [0.05, -0.05])
    for step in range(7):
        expected = with_ascent if step % 3 == 0 else plain
        assert_close(phase.update(KEY, ZERO, PAIR, jnp.int32(step)), expected, rtol=1e-6)


def test_ascent_step_by_hand():
    phase = Ascent(learning_rate=0.1).build(TOY_INFO._replace(retain_size=1)).phases[0]
    moved = phase.update(KEY, phase.init(KEY, ZERO), PAIR._replace(retain=None), jnp.int32(0))
    assert_close(phase.finalize(KEY, moved), weights([0.1, -0.1], [0.05, -0.05]), rtol=1e-6)


def test_clipping_step_by_hand():
    phase = clipping.noisy_phase(
        TOY_INFO,
        steps=1,
        learning_rate=0.1,
        weight_decay=0.5,
        clip_initial=2.5,
        clip=1.0,
        sigma=0.0,
        sigma_initial=0.0,
    )
    params = jax.tree.map(jnp.asarray, weights([3.0, 0.0], [0.0, 4.0]))
    start = phase.init(KEY, params)
    assert_close(start, weights([1.5, 0.0], [0.0, 2.0]), rtol=1e-6)  # norm 5 on the ball of radius 2.5
    p = 1 / (1 + math.exp(0.5))  # of class 0: logits 1.5 and 2.0 at x = 1
    moved = np.array([1.5, 0, 0, 2.0]) * (1 - 0.1 * 0.5) - 0.1 * np.array([p - 1, 1 - p, p - 1, 1 - p])
    moved /= np.linalg.norm(moved)
    stepped = phase.update(KEY, start, PAIR._replace(forget=None), jnp.int32(0))
    assert_close(stepped, weights(moved[:2], moved[2:]), rtol=1e-5, atol=1e-7)


def test_descent_with_momentum_and_decay_by_hand():
    phase = SGD(peak=0.1, weight_decay=0.5, momentum=0.9).phase(
        lambda params, batch: 2.0 * params, source="retain", size=1, epochs=3, batch_size=1
    )
    state = phase.init(KEY, jnp.float32(1.0))
    velocity, value = 0.0, 1.0
    for step in range(3):
        state = phase.update(KEY, state, PAIR, jnp.int32(step))
        velocity = 0.9 * velocity + 2.0 + 0.5 * value
        value -= 0.1 * velocity
    assert float(phase.finalize(KEY, state)) == pytest.approx(value, rel=1e-6)


def test_loss_counts_only_the_real_examples():
    logits = np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [5.0, 5.0, 9.0]])
    model = MODEL._replace(apply=lambda params, x: jnp.asarray(logits, jnp.float32))
    labels = np.array([1, 0, 2])
    each = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(3), labels]
    for weight in ([1, 1, 1], [1, 1, 0], [0, 0, 1]):
        batch = Batch(jnp.zeros((3, 1)), jnp.asarray(labels), jnp.asarray(weight, jnp.float32))
        expected = np.sum(each * weight) / np.sum(weight)
        assert float(base.cross_entropy(model)(None, batch)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 9, 10, 11, 20, 137])
def test_one_cycle_is_finite_positive_and_reaches_its_peak(steps):
    rates = np.array([float(base.one_cycle(0.3, steps)(step)) for step in range(steps)])
    assert np.isfinite(rates).all() and (rates > 0).all() and rates.max() <= 0.3 * (1 + 1e-6)
    assert rates.max() > 0.3 * 0.8
    if steps >= 20:
        assert rates[0] < 0.05 and rates[-1] < 0.02 and 0.2 < np.argmax(rates) / steps < 0.4


def test_a_vanishing_forget_weight_leaves_plain_descent():
    plain = base.from_loss(
        lambda params, batch: LOSS(params, batch.retain), optax.sgd(0.05), source="retain", epochs=2, batch_size=BATCH
    )
    task = functools.partial(ascent.interleaved_phase, INFO, epochs=2, learning_rate=0.05, retain_steps=1)
    expected = run(plain)
    assert_close(run(task(forget_weight=1e-9)), expected, rtol=1e-5, atol=1e-6)
    other = run(task(forget_weight=0.75))
    assert np.abs(other["Dense_0"]["kernel"] - expected["Dense_0"]["kernel"]).max() > 1e-3


def test_clipping_without_noise_and_with_wide_balls_is_plain_descent():
    noisy = clipping.noisy_phase(
        INFO, steps=5, learning_rate=0.05, weight_decay=0.1, clip_initial=1e6, clip=1e6, sigma=0.0, sigma_initial=0.0
    )
    optimizer = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.05))
    plain = base.from_loss(
        lambda params, batch: LOSS(params, batch.retain), optimizer, source="retain", epochs=2, batch_size=BATCH
    )
    assert_close(run(noisy), run(plain._replace(max_steps=5)), rtol=1e-5, atol=1e-6)


def test_every_step_ends_inside_the_ball_but_for_its_noise():
    options = {"learning_rate": 0.5, "weight_decay": 0.0, "clip_initial": 30.0, "clip": 0.3, "sigma_initial": 0.0}
    still = run(clipping.noisy_phase(INFO, steps=4, sigma=0.0, **options))
    assert norms(TRAINED).min() > 1 and np.all(norms(still) <= 0.3 * (1 + 1e-6)) and np.all(norms(still) > 0.29)
    noisy = run(clipping.noisy_phase(INFO, steps=4, sigma=5.0, **options))
    assert np.all(norms(noisy) > 5)  # the noise comes after the projection: 15 coordinates of deviation 5


def test_noise_is_fresh_per_run_step_and_array():
    options = {"learning_rate": 1e-9, "weight_decay": 0.0, "clip_initial": 1.0, "clip": 1e-9, "sigma_initial": 0.0}
    few, more = (run(clipping.noisy_phase(INFO, steps=steps, sigma=1.0, **options)) for steps in (3, 4))
    values = np.concatenate([leaf.ravel() for out in (few, more) for leaf in jax.tree.leaves(out)])
    assert np.unique(values).size == values.size == 2 * R * 15
    assert abs(values.mean()) < 0.5 and 0.7 < values.std() < 1.3


@pytest.mark.parametrize("epsilon", [0.5, 10.0])
@pytest.mark.parametrize("sigma_initial", [0.0, 2.0])
def test_certificate_rests_on_the_theorems_number_of_steps(epsilon, sigma_initial):
    sizes = {"clip_initial": 1.0, "clip": 0.5, "sigma": 1.0, "sigma_initial": sigma_initial}
    unlearner = Clipping(epsilon=epsilon, certified_delta=1e-4, epochs=1, **sizes).build(INFO)
    steps = noisy_steps(epsilon, 1e-4, **sizes)
    assert total_steps(unlearner.phases[0], SIZES) == steps
    assert (unlearner.certificate["epsilon"], unlearner.certificate["delta"]) == (epsilon, 1e-4)
    assert unlearner.phases[0].source == unlearner.phases[1].source == "retain"
    assert all(phase.companion is None for phase in unlearner.phases)


def test_a_certificate_that_needs_no_step_still_gets_its_first_noise():
    config = Clipping(epsilon=10.0, clip_initial=0.5, clip=0.5, sigma=1.0, sigma_initial=3.0, epochs=1)
    phase = config.build(INFO).phases[0]
    assert total_steps(phase, SIZES) == 0  # noise before the first step proves it all
    projected = jax.vmap(lambda params: clipping.project(params, 0.5))(TRAINED)
    noise = np.concatenate([(a - b).ravel() for a, b in zip(jax.tree.leaves(run(phase)), jax.tree.leaves(projected))])
    assert np.unique(noise).size == noise.size and 2 < noise.std() < 4


def test_uncertified_clipping_takes_its_epochs_and_proves_nothing():
    unlearner = Clipping(epsilon=None, noisy_epochs=4).build(INFO)
    assert unlearner.certificate is None and total_steps(unlearner.phases[0], SIZES) == 4 * 3


def test_heuristics_claim_nothing_and_retraining_all():
    for config in (Finetune(), Ascent(), IDA()):
        unlearner = config.build(INFO)
        assert unlearner.certificate is None and not unlearner.from_scratch
    exact = Retrain().build(INFO)
    assert exact.from_scratch and (exact.certificate["epsilon"], exact.certificate["delta"]) == (0.0, 0.0)


def test_retraining_does_not_depend_on_what_a_run_was_trained_on_nor_on_its_key():
    initial = jax.tree.map(lambda a: np.repeat(a[:1], R, axis=0), TRAINED)
    phases = Retrain().build(INFO).phases
    first = run(*phases, params=initial)
    jax.tree.map(lambda a: np.testing.assert_array_equal(a, np.repeat(a[:1], R, axis=0)), first)
    jax.tree.map(np.testing.assert_array_equal, first, run(*phases, params=initial, signs=-SIGNS, seed=9))


def test_ascent_raises_the_forget_loss_and_fine_tuning_lowers_the_retain_loss():
    member = members(SIGNS, SIZES)
    forget = member & (np.arange(21) >= SIZES.retain)

    def losses(params, masks):
        def loss(params, mask):
            return LOSS(params, Batch(jnp.asarray(X), jnp.asarray(Y), mask))

        return np.asarray(jax.vmap(loss)(params, jnp.asarray(masks, jnp.float32)))

    climbed = run(Ascent(ascent_epochs=2, learning_rate=0.1, epochs=3).build(INFO).phases[0])
    assert np.all(losses(climbed, forget) > losses(TRAINED, forget))
    retain = np.tile(np.arange(21) < SIZES.retain, (R, 1))
    tuned = run(*Finetune(epochs=20).build(INFO).phases)
    assert np.all(losses(tuned, retain) < losses(TRAINED, retain))


def test_epochs_count_all_phases():
    def epochs(unlearner):
        return [phase.epochs for phase in unlearner.phases]

    assert epochs(Ascent(ascent_epochs=3, epochs=10).build(INFO)) == [3, 7]
    assert epochs(IDA(interleaved_epochs=4, epochs=10).build(INFO)) == [4, 6]
    assert epochs(IDA(interleaved_epochs=4, epochs=4).build(INFO)) == [4, 0]
    interleaved = IDA(interleaved_epochs=4, epochs=4).build(INFO)
    assert_close(run(*interleaved.phases), run(interleaved.phases[0]), rtol=0)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (Finetune, {"epochs": 0}, "epochs=0"),
        (Ascent, {"ascent_epochs": 0}, "ascent_epochs=0"),
        (Ascent, {"learning_rate": 0.0}, "learning_rate=0.0"),
        (Ascent, {"ascent_epochs": 20}, "epochs=20"),
        (IDA, {"retain_steps": 0}, "retain_steps=0"),
        (IDA, {"forget_weight": -1.0}, "forget_weight=-1.0"),
        (IDA, {"interleaved_epochs": 21}, "epochs=20"),
        (Clipping, {"epsilon": 0.0}, "epsilon=0.0"),
        (Clipping, {"certified_delta": 1.0}, "certified_delta=1.0"),
        (Clipping, {"sigma": 0.0}, "sigma=0.0"),
        (Clipping, {"clip": math.inf}, "clip=inf"),
        (Clipping, {"sigma_initial": -1.0}, "sigma_initial=-1.0"),
        (Clipping, {"epochs": 0}, "epochs=0"),
        (SGD, {"peak": math.nan}, "peak=nan"),
        (SGD, {"momentum": 1.0}, "momentum=1.0"),
        (SGD, {"weight_decay": -1e-3}, "weight_decay=-0.001"),
    ],
)
def test_options_out_of_range_are_named(config, changes, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(config(), **changes)
