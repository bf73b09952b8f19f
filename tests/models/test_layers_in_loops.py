"""The forms of a convolution under vmap and inside a loop, and how long they take there."""

import functools
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from jaxunlearn.models import layers
from jaxunlearn.models.base import parameter_count
from jaxunlearn.models.convolutional import digits_cnn, tinynet
from jaxunlearn.models.linear import linear, mlp

pytestmark = pytest.mark.slow

KEYS = jax.random.split(jax.random.key(0), 4)
CHANNELS = 6  # more than FEW_CHANNELS, or canonical would mean patches


@functools.partial(jax.jit, static_argnums=0)
def gradients(form, x, kernel, target):
    def loss(x, kernel):
        return jnp.sum(jnp.square(layers.convolve(x, kernel, form=form) - target))

    return jax.grad(loss, (0, 1))(x, kernel)


@pytest.mark.parametrize("form", [pytest.param("winograd", marks=pytest.mark.slow), "canonical", "patches"])
@pytest.mark.parametrize("kernel_size", [(3, 3), (1, 5)])
def test_gradients_under_vmap_over_models(form, kernel_size):
    x = jax.random.normal(KEYS[0], (3, 2, 7, 5, CHANNELS))
    kernel = jax.random.normal(KEYS[1], (3, *kernel_size, CHANNELS, 4)) / 5
    target = jax.random.normal(KEYS[2], (3, 2, 7, 5, 4))
    batched = jax.jit(jax.vmap(lambda *a: gradients(form, *a)))(x, kernel, target)
    for run in range(3):
        expected = gradients("plain", x[run], kernel[run], target[run])
        for ours, theirs in zip(batched, expected):
            np.testing.assert_allclose(ours[run], theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("form", ["winograd", "canonical", "patches"])
def test_descent_inside_a_loop(form):
    x = jax.random.normal(KEYS[0], (4, 6, 7, CHANNELS))
    kernel = jax.random.normal(KEYS[1], (3, 3, CHANNELS, 4)) / 5
    target = jax.random.normal(KEYS[2], (4, 6, 7, 4))

    def descend(kernel, form):
        return kernel - 1e-4 * gradients(form, x, kernel, target)[1]

    looped = jax.jit(lambda k: lax.fori_loop(0, 5, lambda _, k: descend(k, form), k))(kernel)
    expected = kernel
    for _ in range(5):
        expected = descend(expected, "plain")
    np.testing.assert_allclose(looped, expected, rtol=1e-4, atol=1e-5)


def test_convolution_by_hand():
    x = jnp.arange(9.0).reshape(1, 3, 3, 1)
    kernel = jnp.zeros((3, 3, 1, 1)).at[0, 1].set(1.0)  # what is above; nothing is above the first row
    for form in layers.CONV_FORMS:
        assert layers.convolve(x, kernel, form=form)[0, :, :, 0].tolist() == [[0, 0, 0], [0, 1, 2], [3, 4, 5]]


def test_group_norm_against_the_definition_and_its_gradient_against_flax():
    x = 3 + 2 * jax.random.normal(KEYS[0], (2, 4, 3, 16))
    scale, bias = jax.random.normal(KEYS[1], (16,)), jax.random.normal(KEYS[2], (16,))
    grouped = np.asarray(x, np.float64).reshape(2, 12, 4, 4)
    mean, var = grouped.mean(axis=(1, 3), keepdims=True), grouped.var(axis=(1, 3), keepdims=True)
    naive = ((grouped - mean) / np.sqrt(var + 1e-6)).reshape(x.shape) * np.asarray(scale) + np.asarray(bias)
    np.testing.assert_allclose(layers.group_norm(x, scale, bias, groups=4), naive, rtol=1e-3, atol=1e-4)

    module = nn.GroupNorm(num_groups=4, epsilon=1e-6)
    weight = jax.random.normal(KEYS[3], x.shape)
    ours = jax.jit(jax.grad(lambda *a: jnp.sum(weight * layers.group_norm(*a, groups=4)), (0, 1, 2)))(x, scale, bias)
    theirs = jax.jit(
        jax.grad(lambda x, s, b: jnp.sum(weight * module.apply({"params": {"scale": s, "bias": b}}, x)), (0, 1, 2))
    )(x, scale, bias)
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_max_pool_gradient_under_vmap_and_inside_relu():
    x = jax.random.normal(KEYS[0], (3, 2, 4, 6, 5))
    weight = jax.random.normal(KEYS[1], (2, 2, 3, 5))

    def loss(pool):
        return jax.grad(lambda x: jnp.sum(weight * pool(jax.nn.relu(x))))

    ours = jax.jit(jax.vmap(loss(layers.max_pool)))(x)
    # Windows without a positive entry are ties at 0, where ReLU passes no gradient on either side.
    flax_loss = jax.jit(loss(lambda v: nn.max_pool(v, (2, 2), (2, 2))))
    theirs = np.stack([flax_loss(one) for one in x])
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_linear_and_mlp_are_what_they_say():
    assert parameter_count(jax.eval_shape(linear((8, 8, 1), 10).init, jax.random.key(0))) == 650
    model = mlp((2, 3), 4, widths=(5,))
    params = jax.tree.map(np.asarray, model.init(KEYS[0]))
    x = jax.random.normal(KEYS[1], (7, 2, 3))
    first, last = params["Dense_0"], params["Dense_1"]
    hidden = np.maximum(np.asarray(x).reshape(7, 6) @ first["kernel"] + first["bias"], 0)
    np.testing.assert_allclose(model.apply(params, x), hidden @ last["kernel"] + last["bias"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [linear((4, 4, 2), 3)]
    + [make((4, 4, 2), 3, form=form) for make in (digits_cnn, tinynet) for form in ("winograd", "canonical")],
)
def test_examples_of_a_batch_do_not_mix(model):
    init, apply = jax.jit(model.init), jax.jit(model.apply)
    params = init(KEYS[0])
    x = jax.random.normal(KEYS[1], (5, 4, 4, 2))
    whole = apply(params, x)
    assert whole.shape == (5, 3)
    np.testing.assert_allclose(whole[2:3], apply(params, x[2:3]), rtol=1e-3, atol=1e-4)
    again, other = init(KEYS[0]), init(KEYS[1])
    jax.tree.map(np.testing.assert_array_equal, params, again)
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(other)))


def best_of(fn, *arguments, repeats=7):
    jax.block_until_ready(fn(*arguments))
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(fn(*arguments))
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["winograd", "canonical"])
@pytest.mark.parametrize(("make", "shape", "batch"), [(digits_cnn, (8, 8, 1), 64), (tinynet, (16, 16, 3), 16)])
def test_a_step_in_a_loop_takes_no_longer_than_alone(make, shape, batch, form):
    # XLA's own gradient convolutions lose their fast path inside a loop body on CPU: 10 to 30 times slower.
    model = make(shape, 10, form=form)
    params = jax.jit(model.init)(KEYS[0])
    x = jax.random.normal(KEYS[1], (batch, *shape))
    y = jax.random.randint(KEYS[2], (batch,), 0, 10)

    def step(params):
        def loss(params):
            return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), y).mean()

        return jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(loss)(params))

    steps = 10
    looped = jax.jit(lambda p: lax.fori_loop(0, steps, lambda _, p: step(p), p))
    alone = best_of(jax.jit(step), params)
    assert best_of(looped, params) / steps < 3 * alone
