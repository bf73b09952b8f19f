"""Rewind-to-delete and the Newton-style step against hand values, limits and dense algebra."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.certificates import gaussian_sigma, rewind_sensitivity
from jaxunlearn.models import layers
from jaxunlearn.models.linear import linear
from jaxunlearn.types import Batch, ForgetRetain, TaskInfo
from jaxunlearn.unlearn import base, hessian, rewind
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.hessian import Hessian
from jaxunlearn.unlearn.rewind import Rewind

KEY = jax.random.key(0)
RETAIN, FORGET, EPOCHS = 30, 6, 8
MODEL = linear((3,), 2)
rng = np.random.default_rng(1)
X = jnp.asarray(rng.normal(size=(RETAIN + FORGET, 3)), jnp.float32)
Y = jnp.asarray(rng.integers(0, 2, RETAIN + FORGET), jnp.int32)
DECAY = 0.1


def loss(params, batch):
    """Cross-entropy with decay, so that its Hessian has an inverse."""
    return base.cross_entropy(MODEL)(params, batch) + 0.5 * DECAY * sum(
        jnp.sum(jnp.square(p)) for p in jax.tree.leaves(params)
    )


PLAIN = SGD(schedule="constant", peak=0.1, weight_decay=0.0)


def info(batch_size=1000, descent=PLAIN):
    return TaskInfo(MODEL, loss, RETAIN, FORGET, batch_size, None, train_epochs=EPOCHS, descent=descent)


def rows(which):
    return Batch(X[which], Y[which], jnp.ones(len(X[which])))


PAIR = ForgetRetain(rows(slice(0, RETAIN)), rows(slice(RETAIN, None)))
PARAMS = jax.tree.map(lambda p: p + 0.3, MODEL.init(KEY))


def run(phase, start, steps, pair=PAIR):
    update = jax.jit(phase.update)
    state = phase.init(KEY, start)
    for step in range(steps):
        state = update(jax.random.fold_in(KEY, step), state, pair, jnp.int32(step))
    return phase.finalize(KEY, state)


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


@functools.cache
def dense_hessian():
    """[P, P], of the retain loss at PARAMS."""
    return np.asarray(
        jax.jit(jax.hessian(lambda v: loss(unflatten(v), PAIR.retain)))(jnp.asarray(flat(PARAMS), jnp.float32))
    )


@pytest.mark.parametrize("schedule", ["one_cycle", "constant", "cosine"])
def test_rewinding_goes_on_with_the_rates_that_training_had(schedule):
    descent, seen = SGD(schedule=schedule, peak=0.4, weight_decay=0.0), []
    whole, tail = descent.optimizer(20), descent.optimizer(20, skip=14)
    for optimizer, steps in ((whole, 20), (tail, 6)):
        state, rates = optimizer.init(jnp.float32(0)), []
        for _ in range(steps):
            update, state = optimizer.update(jnp.float32(1), state, jnp.float32(0))
            rates.append(-float(update))
        seen.append(rates)
    np.testing.assert_allclose(seen[1], seen[0][14:], rtol=1e-6)
    assert max(seen[0]) == pytest.approx(0.4, rel=1e-3)


def test_rewind_is_plain_descent_and_then_noise_of_the_size_asked_for():
    task = info()
    unlearner = Rewind(epochs=3, sigma=0.0).build(task)
    assert unlearner.rewind == 3 and unlearner.certificate is None
    expected = PARAMS
    for _ in range(3):
        expected = jax.tree.map(lambda p, g: p - 0.1 * g, expected, jax.grad(loss)(expected, PAIR.retain))
    np.testing.assert_allclose(flat(run(unlearner.phases[0], PARAMS, 3)), flat(expected), rtol=1e-5)
    phase = Rewind(epochs=1, sigma=0.5).build(task).phases[0]
    moved = np.concatenate(
        [flat(phase.finalize(jax.random.key(k), phase.init(KEY, PARAMS))) - flat(PARAMS) for k in range(400)]
    )
    assert moved.std() == pytest.approx(0.5, rel=0.03) and abs(moved.mean()) < 0.03


def test_the_certificate_goes_with_known_constants_and_full_batches():
    constants = {"epsilon": 5.0, "smoothness": 2.0, "gradient_bound": 3.0}
    certified = Rewind(epochs=2, **constants).build(info())
    assert certified.certificate["epsilon"] == 5.0 and certified.certificate["delta"] == 1e-3
    assert certified.notes == ()
    sensitivity = rewind_sensitivity(
        learning_rate=0.1, epochs=EPOCHS, rewound=2, smoothness=2.0, gradient_bound=3.0, size=36, forget_size=6
    )
    sigma = gaussian_sigma(5.0, 1e-3, sensitivity)
    phase = certified.phases[0]
    noise = [flat(phase.finalize(jax.random.key(k), phase.init(KEY, PARAMS))) - flat(PARAMS) for k in range(400)]
    assert np.std(noise) == pytest.approx(sigma, rel=0.04)
    for task in (info(batch_size=10), info(descent=SGD()), info(descent=SGD(schedule="constant", momentum=0.5))):
        other = Rewind(epochs=2, **constants).build(task)
        assert other.certificate is None and "nothing is proven" in other.notes[0]


def test_noise_from_estimated_constants_is_computed_per_run_and_marked():
    task = info()
    made = Rewind(epochs=4, epsilon=2.0).build(task)
    assert made.certificate is None and "depends on the run's forget set" in made.notes[0]
    phase = made.phases[0]
    state = phase.init(KEY, PARAMS)
    points, gradients = [], []
    for step in range(4):
        points.append(flat(state.params))
        gradients.append(flat(jax.grad(loss)(state.params, PAIR.retain)))
        state = phase.update(KEY, state, PAIR, jnp.int32(step))
    bound = max(np.linalg.norm(g) for g in gradients)
    smooth = max(
        np.linalg.norm(gradients[i + 1] - gradients[i]) / np.linalg.norm(points[i + 1] - points[i]) for i in range(3)
    )
    assert float(state.gradient_bound) == pytest.approx(bound, rel=1e-5)
    assert float(state.smoothness) == pytest.approx(smooth, rel=1e-3)
    sensitivity = rewind_sensitivity(
        learning_rate=0.1, epochs=EPOCHS, rewound=4, smoothness=smooth, gradient_bound=bound, size=36, forget_size=6
    )
    noise = [flat(phase.finalize(jax.random.key(k), state)) - flat(state.params) for k in range(400)]
    assert np.std(noise) == pytest.approx(gaussian_sigma(2.0, 1e-3, sensitivity), rel=0.04)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"epochs": EPOCHS + 1}, "rewind epochs=9 with at least 9 epochs of training, got 8"),
        ({"epochs": EPOCHS, "epsilon": 1.0}, "with at least 9 epochs"),
        ({"epochs": 1, "epsilon": 1.0}, "rewind epochs=1 >= 2"),
        ({"smoothness": 1.0}, "smoothness=1.0 and gradient_bound=None"),
        ({"epsilon": -1.0}, "epsilon=-1.0"),
    ],
)
def test_rewind_refuses(settings, text):
    with pytest.raises(InputError, match=text):
        Rewind(**settings).build(info())


def test_products_with_the_hessian_equal_those_with_the_matrix():
    matrix = dense_hessian()
    vector = jax.tree.map(lambda p: jnp.sin(p * 7), PARAMS)
    product = hessian.hessian_vector_product(loss, PARAMS, PAIR.retain, vector)
    np.testing.assert_allclose(flat(product), matrix @ flat(vector), rtol=2e-4, atol=1e-5)


def unflatten(vector):
    leaves, structure = jax.tree.flatten(PARAMS)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    return jax.tree.unflatten(structure, [v.reshape(p.shape) for v, p in zip(jnp.split(vector, ends), leaves)])


@pytest.mark.parametrize("kind", ["forget", "retain", "newton"])
def test_full_batch_recursion_converges_to_the_dense_newton_step(kind):
    method = Hessian(gradient=kind, samples=2, depth=300, scale=4.0, batch_size=100, weight_decay=0.05, sigma=0.0)
    first, second = method.build(info()).phases
    handed = run(first, PARAMS, 1)
    assert first.source == ("retain" if kind == "retain" else "forget")
    np.testing.assert_array_equal(flat(handed.params), flat(PARAMS))
    g_retain, g_forget = (flat(jax.grad(loss)(PARAMS, part)) for part in PAIR)
    g = {
        "forget": g_forget,
        "retain": g_retain,
        "newton": -FORGET / RETAIN * (g_forget + 0.05 * flat(PARAMS)),
    }[kind]
    np.testing.assert_allclose(flat(handed.gradient), g, rtol=1e-4, atol=1e-6)
    assert second.max_steps == 600
    matrix = dense_hessian()
    expected = flat(PARAMS) - np.linalg.solve(matrix + 0.05 * np.eye(len(matrix)), g)
    np.testing.assert_allclose(flat(run(second, handed, 600)), expected, rtol=2e-3, atol=2e-4)


def test_a_short_recursion_by_hand():
    method = Hessian(samples=1, depth=2, scale=3.0, batch_size=100, weight_decay=0.5, sigma=0.0)
    first, second = method.build(info()).phases
    g = flat(jax.grad(loss)(PARAMS, PAIR.forget))
    matrix = dense_hessian()
    h = g
    for _ in range(2):
        h = g + h - (matrix @ h + 0.5 * h) / 3.0
    np.testing.assert_allclose(
        flat(run(second, run(first, PARAMS, 1), 2)), flat(PARAMS) - h / 3.0, rtol=1e-4, atol=1e-5
    )


def test_at_the_optimum_of_all_data_retain_and_newton_steps_agree_and_remove_the_forget_set():
    """Near-quadratic: one step from the optimum over everything lands near the optimum over the retain set."""
    both = Batch(X, Y, jnp.ones(len(X)))

    def minimise(batch):
        step = jax.jit(lambda p: jax.tree.map(lambda a, g: a - 0.5 * g, p, jax.grad(loss)(p, batch)))
        params = PARAMS
        for _ in range(800):
            params = step(params)
        return params

    everything, kept = minimise(both), minimise(PAIR.retain)
    ends = {}
    for kind in ("forget", "retain", "newton"):
        method = Hessian(gradient=kind, samples=1, depth=300, scale=4.0, batch_size=100, weight_decay=0.0, sigma=0.0)
        first, second = method.build(info()).phases
        ends[kind] = flat(run(second, run(first, everything, 1), 300))
    away = np.linalg.norm(flat(everything) - flat(kept))
    np.testing.assert_allclose(ends["retain"], flat(kept), atol=0.1 * away)
    # The mean over all is n_r / n of the retain part plus n_f / n of the forget part: at its zero the two steps agree.
    np.testing.assert_allclose(ends["newton"], ends["retain"], atol=0.02 * away)
    # As equation (15) prints it, with the forget gradient itself, the step goes the other way.
    assert np.linalg.norm(ends["forget"] - flat(kept)) > 2 * away


def test_newton_removes_the_forget_set_where_training_decays_its_weights_too():
    """At the optimum of loss plus decay the step needs the decay's gradient as well."""
    decay, plain = 0.2, base.cross_entropy(MODEL)

    def minimise(which):
        batch = rows(which)

        def decayed(p):
            return plain(p, batch) + 0.5 * decay * sum(jnp.sum(jnp.square(a)) for a in jax.tree.leaves(p))

        step = jax.jit(lambda p: jax.tree.map(lambda a, g: a - 0.5 * g, p, jax.grad(decayed)(p)))
        params = PARAMS
        for _ in range(800):
            params = step(params)
        return params

    everything, kept = minimise(slice(None)), minimise(slice(0, RETAIN))
    method = Hessian(gradient="newton", samples=1, depth=300, scale=4.0, batch_size=100, weight_decay=decay, sigma=0.0)
    first, second = method.build(info()._replace(loss=plain)).phases
    end = flat(run(second, run(first, everything, 1), 300))
    away = np.linalg.norm(flat(everything) - flat(kept))
    assert np.linalg.norm(end - flat(kept)) < 0.1 * away


def test_the_noise_of_the_newton_step_has_the_size_asked_for():
    second = Hessian(sigma=0.25).build(info()).phases[1]
    state = second.init(KEY, run(Hessian().build(info()).phases[0], PARAMS, 1))
    noise = [flat(second.finalize(jax.random.key(k), state)) - flat(PARAMS) for k in range(400)]
    assert np.std(noise) == pytest.approx(0.25, rel=0.04)


def test_fast_convolutions_hand_over_to_a_form_that_takes_forward_mode():
    x, kernel = jax.random.normal(KEY, (2, 3, 3, 5)), jax.random.normal(KEY, (3, 3, 5, 2))

    def make(form):
        return lambda kernel, x: jnp.sum(jnp.square(layers.convolve(x, kernel, form=form)))

    with pytest.raises(TypeError, match="forward-mode"):
        hessian.hessian_vector_product(make("canonical"), kernel, x, kernel)
    # The loss is quadratic in the kernel: H v = 2 J'J v, and v' H v is twice the loss at v.
    product = hessian.hessian_vector_product(make("patches"), kernel, x, kernel)
    np.testing.assert_allclose(jnp.sum(product * kernel), 2 * make("plain")(kernel, x), rtol=1e-5)


def test_rewind_estimates_do_not_overflow_where_the_certificate_would_not():
    log = rewind._log_sensitivity(0.01, jnp.float32(500.0), jnp.float32(1.0), epochs=40, rewound=5, size=100, forget=20)
    exact = rewind_sensitivity(
        learning_rate=0.01, epochs=40, rewound=5, smoothness=500.0, gradient_bound=1.0, size=100, forget_size=20
    )
    assert float(log) == pytest.approx(np.log(exact), rel=1e-5)
