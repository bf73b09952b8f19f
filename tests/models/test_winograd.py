"""Winograd's convolution, convolutions in blocks, and layers on maps stored batch last."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxunlearn.models import batch_last, blocks, layers, winograd
from jaxunlearn.models.convolutional import digits_cnn, tinynet

pytestmark = pytest.mark.slow

KEYS = jax.random.split(jax.random.key(0), 4)


def close_to(ours, expected, error=1e-4):
    """Within ``error`` of the largest entry, leaf by leaf."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=error * float(jnp.max(jnp.abs(b))))


def test_the_transforms_are_an_exact_identity():
    def exact(matrix, scale=1):
        return np.array([[Fraction(round(float(v) * scale), scale) for v in row] for row in matrix], dtype=object)

    inputs, kernel = np.array([3, -1, 4, 1, -5, 9]), np.array([2, -6, 5])
    points = (exact(winograd.KERNEL, 24) @ kernel) * (exact(winograd.INPUTS) @ inputs)
    assert list(exact(winograd.OUTPUTS) @ points) == [inputs[i : i + 3] @ kernel for i in range(4)]


@pytest.mark.parametrize("batch", [1, 5])  # less than a block of two images; two blocks and an image left over
def test_winograd_equals_plain_in_values_and_gradients(batch, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_PIXELS", 2 * 8 * 12)
    x = jax.random.normal(KEYS[0], (batch, 8, 12, 6))
    kernel, bias = jax.random.normal(KEYS[1], (3, 3, 6, 5)), jax.random.normal(KEYS[2], (5,))
    target = jax.random.normal(KEYS[3], (batch, 8, 12, 5))

    def of(form):
        def loss(x, kernel, bias):
            y = layers.convolve(x, kernel, bias, form=form)
            return jnp.sum(y * target), y

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(x, kernel, bias)

    close_to(of("winograd"), of("plain"))


def test_few_channels_in_blocks_equal_plain(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_PIXELS", 2 * 6 * 5)
    x = jax.random.normal(KEYS[0], (5, 6, 5, 3))
    kernel, bias = jax.random.normal(KEYS[1], (3, 3, 3, 4)), jax.random.normal(KEYS[2], (4,))

    def of(form):
        def loss(*arguments):
            return jnp.sum(jnp.sin(layers.convolve(*arguments, form=form)))

        return jax.jit(jax.grad(loss, (0, 1, 2)))(x, kernel, bias)

    close_to(of("winograd"), of("plain"))


def test_winograd_under_vmap_over_models_has_no_convolution(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_PIXELS", 16)
    x = jax.random.normal(KEYS[0], (3, 2, 4, 8, 6))
    kernel = jax.random.normal(KEYS[1], (3, 3, 3, 6, 4))

    def gradients(form):
        def loss(x, kernel):
            return jnp.sum(jnp.square(layers.convolve(x, kernel, form=form)))

        return jax.grad(loss, (0, 1))

    batched = jax.jit(jax.vmap(gradients("winograd")))
    assert "conv_general_dilated" not in str(jax.make_jaxpr(batched)(x, kernel))
    ours = batched(x, kernel)
    for run in range(3):
        close_to([part[run] for part in ours], jax.jit(gradients("plain"))(x[run], kernel[run]))


@pytest.mark.parametrize("shape", [(4, 4), (6, 4), (2, 2)])
@pytest.mark.parametrize("kernel_size", [(3, 3), (1, 5)])
def test_batch_last_convolution_equals_plain(shape, kernel_size):
    x = jax.random.normal(KEYS[0], (5, *shape, 3))
    kernel = jax.random.normal(KEYS[1], (*kernel_size, 3, 4))
    target = jax.random.normal(KEYS[2], (5, *shape, 4))

    def of(convolve):
        def loss(x, kernel):
            y = convolve(x, kernel)
            return jnp.sum(y * target), y

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(x, kernel)

    def last(x, kernel):
        return batch_last.convolve(x.transpose(1, 2, 3, 0), kernel).transpose(3, 0, 1, 2)

    close_to(of(last), of(lambda x, kernel: layers.convolve(x, kernel, form="plain")))


def test_batch_last_pool_equals_the_other_and_shares_ties():
    x = jnp.round(2 * jax.random.normal(KEYS[0], (3, 6, 4, 2)))  # many ties
    weight = jax.random.normal(KEYS[1], (3, 3, 2, 2))

    def of(pool):
        def loss(x):
            y = pool(x)
            return jnp.sum(weight * y), y

        return jax.grad(loss, has_aux=True)(x)

    def last(x):
        return batch_last.max_pool(x.transpose(1, 2, 3, 0)).transpose(3, 0, 1, 2)

    close_to(of(last), of(layers.max_pool), 1e-6)
    tied = jax.grad(lambda x: jnp.sum(batch_last.max_pool(x)))(jnp.ones((2, 2, 1, 1)))
    np.testing.assert_allclose(tied, 0.25)


def test_normalisation_with_relu_equals_one_after_the_other():
    x = 3 + 2 * jax.random.normal(KEYS[0], (3, 5, 4, 16))
    scale, bias = jax.random.normal(KEYS[1], (16,)), jax.random.normal(KEYS[2], (16,))
    weight = jax.random.normal(KEYS[3], x.shape)

    def apart(x, scale, bias):
        return jax.nn.relu(layers.group_norm(x, scale, bias, groups=4))

    def of(layer):
        def loss(*arguments):
            y = layer(*arguments)
            return jnp.sum(weight * y), y

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(x, scale, bias)

    close_to(of(lambda *a: layers.group_norm_relu(*a, 4)), of(apart))


@pytest.mark.parametrize(
    ("make", "shape"), [(digits_cnn, (8, 8, 1)), pytest.param(tinynet, (8, 8, 3), marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_models_have_the_same_parameters_and_gradients_in_every_form(make, shape):
    x = jax.random.normal(KEYS[0], (6, *shape))
    x = x.at[0].set(0.0).at[1, 2:].set(0.0)  # windows of equal pixels: ties that the forms must share alike
    y = jax.random.randint(KEYS[1], (6,), 0, 10)
    params = jax.jit(make(shape, 10).init)(KEYS[2])
    params = jax.tree.map(lambda p: p + 0.05 * jax.random.normal(KEYS[3], p.shape), params)  # biases off zero

    def of(form):
        model = make(shape, 10, form=form)
        assert jax.tree.map(jnp.shape, jax.eval_shape(model.init, KEYS[2])) == jax.tree.map(jnp.shape, params)

        def loss(params):
            logits = model.apply(params, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits

        return jax.jit(jax.grad(loss, has_aux=True))(params)

    expected = of("plain")
    for form in ("winograd", "canonical"):
        close_to(of(form), expected, 1e-3)


@pytest.mark.slow
def test_tinynet_needs_less_than_300_mb_of_temporaries():
    model = tinynet((32, 32, 3), 100, form="winograd")
    params = jax.eval_shape(model.init, KEYS[0])
    x, y = jax.ShapeDtypeStruct((128, 32, 32, 3), jnp.float32), jax.ShapeDtypeStruct((128,), jnp.int32)

    def loss(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), y).mean()

    compiled = jax.jit(jax.grad(loss)).lower(params, x, y).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 300e6
