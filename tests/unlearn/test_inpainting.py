"""I2I and SalUn for masked autoencoders, and their training: the battery, steps by hand, and what must not move."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny_autoencoder import CENTRE, LOSS, MODEL, SIZES, TASK, TRAINING, N, X, Y, init

from jaxunlearn import patches
from jaxunlearn._validate import InputError
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine, Runs, members
from jaxunlearn.engine.train import Examples
from jaxunlearn.types import Batch, ForgetRetain
from jaxunlearn.unlearn import inpainting
from jaxunlearn.unlearn.base import Descent
from jaxunlearn.unlearn.finetune import Retrain
from jaxunlearn.unlearn.inpainting import I2I, SalUnInpainting, VisionAdamW
from jaxunlearn.unlearn.relabel import Salient

KEY, R = jax.random.key(0), 4
PARAMS = jax.jit(init)(jax.random.key(1))
SMALL = {"steps": 5, "batch_size": 6, "hidden": 0.5}
METHODS = {"retrain": Retrain(), "i2i": I2I(**SMALL), "salun": SalUnInpainting(**SMALL)}
SIGNS = np.stack([np.random.default_rng(seed).permutation([1, -1]) for seed in range(R)])


@dataclasses.dataclass(frozen=True)
class Plain(Descent):
    """Steps of the gradient itself, which tests compare."""

    def optimizer(self, steps, *, skip=0):
        return optax.sgd(1.0)


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def batch(rows, weight=None):
    rows = np.asarray(rows)
    weight = jnp.ones(len(rows)) if weight is None else jnp.asarray(weight, jnp.float32)
    return Batch(jnp.asarray(X[rows]), jnp.asarray(Y[rows]), weight, jnp.asarray(rows >= SIZES.retain))


MIXED = batch([0, 15, 18, 1])


def one_step(phase, start, mixed=MIXED, key=KEY):
    state = jax.jit(phase.update)(key, phase.init(key, start), ForgetRetain(mixed, None), jnp.int32(0))
    return phase.finalize(key, state)


@functools.cache  # to compile is what costs here
def compiled(name, devices, width):
    mesh = planning.make_mesh(jax.devices()[:devices])
    plan = planning.Plan(width=width, runs_per_chunk=R)
    engine = Engine(mesh, plan, Examples(jnp.asarray(X), jnp.asarray(Y)), SIZES, jax.random.key(5))
    traces = []

    def counted(phase):
        def update(*arguments):
            traces.append(1)
            return phase.update(*arguments)

        return phase._replace(update=update)

    phases = [counted(phase) for phase in METHODS[name].build(TASK).phases]
    return [engine.phase_runner(phase, number + 1) for number, phase in enumerate(phases)], traces


def unlearn(name, *, devices=1, width=1, seed=3, signs=SIGNS):
    params = jax.tree.map(lambda a: np.broadcast_to(a, (R, *a.shape)), PARAMS)
    runs = Runs(members(signs, SIZES), jax.random.split(jax.random.key(seed), R))
    for run in compiled(name, devices, width)[0]:
        params = run(runs, params)
    return jax.tree.map(np.asarray, params)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_battery(name):
    first = unlearn(name)
    assert all(np.isfinite(leaf).all() and leaf.dtype == np.float32 for leaf in jax.tree.leaves(first))
    assert jax.tree.map(np.shape, first) == jax.tree.map(lambda a: (R, *a.shape), PARAMS)
    np.testing.assert_array_equal(flat(unlearn(name)), flat(first))
    traces = compiled(name, 1, 1)[1]
    before = len(traces)
    assert np.abs(flat(unlearn(name, seed=4)) - flat(first)).max() > 0  # masks and noise are new
    other = unlearn(name, signs=-SIGNS)
    assert len(traces) == before  # one trace serves all
    assert (np.abs(flat(other) - flat(first)).max() > 0) == (name != "retrain")
    for options in ({"width": 4}, {"devices": 4}):
        np.testing.assert_allclose(flat(unlearn(name, **options)), flat(first), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("noise", ["normal", "uniform", "constant"])
def test_noise_by_hand(noise):
    x = np.zeros((3, 2, 2, 1), np.float32)
    x[0], x[1], x[2] = 0.2, 0.6, 99.0  # the last is padding
    given = Batch(jnp.asarray(x), jnp.zeros(3, jnp.int32), jnp.array([1.0, 1.0, 0.0]))
    drawn = np.asarray(inpainting.noise_like(KEY, given, noise))
    deviation = np.std(x[:2], ddof=1)
    expected = {
        "constant": np.full(x.shape, 0.4, np.float32),
        "uniform": jax.random.uniform(KEY, x.shape),
        "normal": np.clip(0.4 + deviation * np.asarray(jax.random.normal(KEY, x.shape)), 0, 1),
    }[noise]
    np.testing.assert_allclose(drawn, expected, rtol=1e-5, atol=1e-6)


def test_one_step_of_i2i_by_hand():
    """Three passes of each image under one order, as the paper has them; the teacher's two become one here."""
    method = I2I(**SMALL, retain_alpha=0.7, forget_alpha=0.3, descent=Plain())
    order_key, noise_key = jax.random.split(KEY)
    order = patches.random_orders(order_key, len(MIXED.y), N)
    noise = inpainting.noise_like(noise_key, MIXED, "normal")

    def naive(encoder):
        total = 0.0
        for i, forgotten in enumerate(np.asarray(MIXED.is_forget)):
            own, aim = MIXED.x[i : i + 1], order[i : i + 1]
            latents = MODEL.encode({"encoder": encoder}, own, aim, 2)
            guide, misguide = (MODEL.encode(PARAMS, x, aim, 2) for x in (own, noise[i : i + 1]))
            sign = -1.0 if forgotten else 1.0
            total += 0.7 * (1 + sign) * jnp.mean((latents - guide) ** 2)
            total += 0.3 * (1 - sign) * jnp.mean((latents - misguide) ** 2)
        return total / len(MIXED.y)

    found = one_step(method.build(TASK).phases[0], PARAMS)
    gradient = jax.jit(jax.grad(naive))(PARAMS["encoder"])
    expected = jax.tree.map(jnp.subtract, PARAMS["encoder"], gradient)
    assert np.abs(flat(gradient)).max() > 1e-3
    np.testing.assert_allclose(flat(found["encoder"]), flat(expected), rtol=1e-5, atol=1e-6)


def test_i2i_leaves_the_decoder_and_a_teacher_that_is_agreed_with():
    phase = I2I(**SMALL).build(TASK).phases[0]
    found = one_step(phase, PARAMS)
    np.testing.assert_array_equal(flat(found["decoder"]), flat(PARAMS["decoder"]))  # decay does not reach it either
    kept = I2I(**SMALL, descent=Plain()).build(TASK).phases[0]
    retained = one_step(kept, PARAMS, batch([0, 1, 2, 3]))
    np.testing.assert_array_equal(flat(retained), flat(PARAMS))  # no forget example: nothing to do


def test_padding_counts_in_no_step():
    for method in (I2I(**SMALL, descent=Plain()), SalUnInpainting(**SMALL, descent=Plain())):
        phase = method.build(TASK).phases[-1]
        rows = [0, 15, 3, 18, 20, 1]
        weight = [1, 1, 1, 1, 0, 0]
        update, start = jax.jit(phase.update), phase.init(KEY, PARAMS)
        given = [ForgetRetain(batch(r, weight), None) for r in (rows, [*rows[:4], 7, 17])]
        a, b = (phase.finalize(KEY, update(KEY, start, each, jnp.int32(0))) for each in given)
        np.testing.assert_allclose(flat(a), flat(b), rtol=1e-6, atol=1e-7)


def test_one_step_of_salun_by_hand():
    order_key, noise_key = jax.random.split(KEY)
    order = patches.random_orders(order_key, len(MIXED.y), N)
    noise = patches.patchify(inpainting.noise_like(noise_key, MIXED, "uniform"), 2)
    places = np.asarray(order)

    def naive(params):
        sums, counts = {True: 0.0, False: 0.0}, {True: 0, False: 0}
        for i, forgotten in enumerate(np.asarray(MIXED.is_forget).tolist()):
            x, own = MIXED.x[i : i + 1], order[i : i + 1]
            aim = noise[i] if forgotten else MODEL.predict(PARAMS, x, own, 2)[0]
            hidden = places[i, 2:]
            sums[forgotten] += jnp.mean((MODEL.predict(params, x, own, 2)[0] - aim)[hidden] ** 2)
            counts[forgotten] += 1
        return sums[False] / counts[False] + sums[True] / counts[True]

    method = SalUnInpainting(**SMALL, noise="uniform", descent=Plain())
    found = one_step(method.build(TASK).phases[1], PARAMS)
    expected = jax.tree.map(jnp.subtract, PARAMS, jax.jit(jax.grad(naive))(PARAMS))
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_what_is_not_salient_never_moves():
    density = 0.3
    unlearner = SalUnInpainting(**SMALL, density=density).build(TASK)
    saliency, descent = unlearner.phases
    assert saliency.source == "forget" and "no rule for images" in unlearner.notes[0]
    state, update = saliency.init(KEY, PARAMS), jax.jit(saliency.update)
    for step in range(2):
        forget = ForgetRetain(None, batch([14 + step, 16, 17]))
        state = update(jax.random.fold_in(KEY, step), state, forget, jnp.int32(step))
    salient = jax.jit(saliency.finalize)(KEY, state)
    assert isinstance(salient, Salient)
    marked = flat(salient.mask).astype(bool)
    assert marked.sum() == int(density * marked.size)
    state = descent.init(KEY, salient)
    update = jax.jit(descent.update)
    for step in range(5):
        state = update(jax.random.fold_in(KEY, step), state, ForgetRetain(MIXED, None), jnp.int32(step))
    moved = flat(descent.finalize(KEY, state)) != flat(PARAMS)
    assert not moved[~marked].any() and moved[marked].mean() > 0.9


def test_the_mask_is_of_the_reconstruction_error_under_random_masks():
    phase = SalUnInpainting(**SMALL).build(TASK).phases[0]
    forget = batch([14, 15, 17])
    start = phase.init(KEY, PARAMS)
    _, total = jax.jit(phase.update)(KEY, start, ForgetRetain(None, forget), jnp.int32(0))
    order = patches.random_orders(KEY, 3, N)
    expected = jax.jit(jax.grad(lambda p: MODEL.losses(p, forget.x, order, 2).mean()))(PARAMS)
    np.testing.assert_allclose(flat(total), flat(expected), rtol=1e-5, atol=1e-7)


def test_training_fits_images_with_masks_that_change():
    phase = TRAINING.phase(MODEL, "train", SIZES.of("train"))
    assert (phase.source, phase.batch_size, phase.epochs, phase.max_steps) == ("train", 8, 2, 6)
    steep = dataclasses.replace(TRAINING, steps=200, descent=VisionAdamW(peak=0.03, warmup=0.1))
    phase = steep.phase(MODEL, "train", SIZES.of("train"))
    everything = ForgetRetain(batch(range(len(X))), None)

    @jax.jit
    def train(params):
        def step(i, state):
            return phase.update(jax.random.fold_in(KEY, i), state, everything, i)

        return jax.lax.fori_loop(0, 200, step, phase.init(KEY, params)).params

    before, after = (float(jax.jit(LOSS)(p, everything.retain)) for p in (PARAMS, train(PARAMS)))
    assert after < 0.6 * before and after < 1.1 * X.var()  # noise has no more to be learnt than its mean
    a, b = (one_step(TRAINING.phase(MODEL, "train", 8), PARAMS, MIXED, jax.random.key(k)) for k in (0, 1))
    assert np.abs(flat(a) - flat(b)).max() > 0


def test_a_square_in_the_middle_is_hidden_of_every_image():
    training = dataclasses.replace(TRAINING, descent=Plain(), hidden=0.25, place="centre")
    found = one_step(training.phase(MODEL, "train", 8), PARAMS)
    middle = patches.centre(MODEL.grid)
    loss = inpainting.masked_loss(MODEL, middle)
    expected = jax.tree.map(jnp.subtract, PARAMS, jax.jit(jax.grad(loss))(PARAMS, MIXED))
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-5, atol=1e-6)
    masks = I2I(hidden=0.25, place="centre").masks(MODEL)
    assert masks.visible == middle.visible
    np.testing.assert_array_equal(masks.orders(KEY, 3), middle.of(3))


def test_matrices_decay_and_biases_do_not():
    optimizer = VisionAdamW(peak=0.1, schedule="constant").optimizer(10)
    params = {"kernel": jnp.ones((2, 2)), "token": jnp.ones((1, 1, 2)), "bias": jnp.ones(2)}
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = jax.jit(optimizer.update)(zero, optimizer.init(params), params)
    assert not np.asarray(updates["bias"]).any()
    for name in ("kernel", "token"):
        np.testing.assert_allclose(updates[name], -0.1 * 0.05, rtol=1e-6)


def test_vision_adamw_is_adam_with_its_second_moment_and_clipping():
    optimizer = VisionAdamW(peak=0.1, schedule="constant", weight_decay=0.0, second_beta=0.5).optimizer(10)
    gradients, update = [30.0, -6.0], jax.jit(optimizer.update)  # clipped to 3 and to -3
    params, state, first, second = jnp.zeros((1, 1)), optimizer.init(jnp.zeros((1, 1))), 0.0, 0.0
    for number, gradient in enumerate(gradients, 1):
        updates, state = update(jnp.full((1, 1), gradient), state, params)
        clipped = np.clip(gradient, -3, 3)
        first, second = 0.9 * first + 0.1 * clipped, 0.5 * second + 0.5 * clipped**2
        expected = -0.1 * (first / (1 - 0.9**number)) / np.sqrt(second / (1 - 0.5**number))
        assert float(updates[0, 0]) == pytest.approx(expected, rel=1e-4)


def test_the_loss_of_a_fixed_mask_is_of_what_it_hides():
    loss, filled = jax.jit(lambda params: (LOSS(params, MIXED), TASK.model.apply(params, MIXED.x)))(PARAMS)
    differences = np.square(np.asarray(filled) - np.asarray(MIXED.x))  # nothing where pixels are copied
    assert float(loss) == pytest.approx(differences.mean() * N / (N - CENTRE.visible), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: I2I(hidden=0.1).build(TASK), "hidden=0.1 of 4 patches"),
        (lambda: I2I().build(TASK._replace(autoencoder=None)), "Expected an image-to-image task"),
        (lambda: I2I(retain_alpha=0.0, forget_alpha=0.0), "got 0 for both"),
        (lambda: I2I(noise="gaussian"), "Unknown noise='gaussian'"),
        (lambda: SalUnInpainting(density=1.5), "density=1.5 <= 1"),
        (lambda: SalUnInpainting(steps=0), "steps=0"),
        (lambda: VisionAdamW(second_beta=1.0), "second_beta=1.0"),
        (lambda: inpainting.Pretraining(hidden=1.0), "hidden=1.0"),
        (lambda: SalUnInpainting(place="middle"), "Unknown place='middle'"),
        (lambda: I2I(hidden=0.05, place="centre").build(TASK), "hidden=0.05 to be a square of 2 x 2"),
    ],
)
def test_settings_that_do_not_fit_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
