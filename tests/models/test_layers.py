"""Forms of convolution against XLA's own, pooling and normalisation against flax."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn.models import layers
from jaxunlearn.models.base import parameter_count
from jaxunlearn.models.convolutional import digits_cnn, tinynet
from jaxunlearn.models.linear import mlp

KEYS = jax.random.split(jax.random.key(0), 4)


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("channels", [3, 8])  # up to 4, canonical means patches too
@pytest.mark.parametrize("form", ["winograd", "canonical", "patches"])
def test_convolution_forms_agree_in_values_and_gradients(size, channels, form):
    x = jax.random.normal(KEYS[0], (4, 6, 7, channels))
    kernel = jax.random.normal(KEYS[1], (size, size, channels, 5))
    target = jax.random.normal(KEYS[2], (4, 6, 7, 5))

    def loss(x, kernel, form):
        y = layers.convolve(x, kernel, form=form)
        return jnp.sum(y * target), y

    both = jax.jit(jax.grad(loss, (0, 1), has_aux=True), static_argnums=2)
    (ours, y), (xla, expected) = (both(x, kernel, f) for f in (form, "plain"))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    for a, b in zip(ours, xla):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


def test_gradients_of_patches_contract_one_axis():
    # XLA's CPU compiler takes its fast product for sure only then.
    x, kernel = jnp.ones((4, 6, 7, 3)), jnp.ones((3, 3, 3, 5))
    gradient = jax.jit(jax.grad(lambda k: jnp.sum(layers.convolve(x, k, form="patches") ** 2)))
    contracted = re.findall(r"contracting_dims = \[([^]]*)\]", gradient.lower(kernel).as_text())
    assert len(contracted) >= 2 and all("," not in axes for axes in contracted)


def test_max_pool_equals_flax_in_value_and_gradient_and_takes_forward_mode():
    x = jax.random.normal(KEYS[0], (3, 6, 4, 2))
    weight = jax.random.normal(KEYS[1], (3, 3, 2, 2))

    def flax_pool(x):
        return nn.max_pool(x, (2, 2), (2, 2))

    np.testing.assert_array_equal(layers.max_pool(x), flax_pool(x))
    ours, theirs = (jax.grad(lambda x, f=f: jnp.sum(f(x) * weight))(x) for f in (layers.max_pool, flax_pool))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    tangent = jax.jvp(layers.max_pool, (x,), (x,))[1]
    np.testing.assert_allclose(tangent, layers.max_pool(x), rtol=1e-6)
    tied = jax.grad(lambda x: jnp.sum(layers.max_pool(x)))(jnp.ones((1, 2, 2, 1)))
    np.testing.assert_allclose(tied, 0.25)


def test_group_norm_equals_flax():
    x = 3 + 2 * jax.random.normal(KEYS[0], (3, 5, 4, 16))
    module = nn.GroupNorm(num_groups=8, epsilon=1e-6)
    variables = {"params": {"scale": jax.random.normal(KEYS[1], (16,)), "bias": jax.random.normal(KEYS[2], (16,))}}
    ours = layers.group_norm(x, variables["params"]["scale"], variables["params"]["bias"], groups=8)
    np.testing.assert_allclose(ours, module.apply(variables, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "count"),
    [(tinynet((32, 32, 3), 100), 273_828), (mlp((8, 8, 1), 10), 26_122), (digits_cnn((8, 8, 1), 10), 6_090)],
)
def test_parameter_counts(model, count):
    assert parameter_count(jax.eval_shape(model.init, jax.random.key(0))) == count


@pytest.mark.slow
def test_tinynet_forms_agree():
    x = jax.random.normal(KEYS[0], (2, 8, 8, 3))
    models = [tinynet((8, 8, 3), 10, form=form) for form in layers.CONV_FORMS]
    params = jax.jit(models[0].init)(KEYS[1])
    outputs = [jax.jit(model.apply)(params, x) for model in models]
    for other in outputs[1:]:
        np.testing.assert_allclose(outputs[0], other, rtol=1e-3, atol=1e-4)
