"""What once made many runs slow or large, as properties of the compiled programs (docs/speed.md lists the traps)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.plan import Plan
from jaxunlearn.engine.population import Engine, Runs, bytes_of, members
from jaxunlearn.engine.train import Examples, Sizes
from jaxunlearn.models import layers
from jaxunlearn.models.linear import mlp
from jaxunlearn.unlearn import base

R, N = 16, 24
SIZES = Sizes(retain=16, pool=8, forget=4)


def runner(model, source, *, width, x=None, phase=None):
    x = np.zeros((N, 4), np.float32) if x is None else x
    mesh = planning.make_mesh(jax.devices()[:1])
    examples = Examples(jnp.asarray(x), jnp.zeros(N, jnp.int32))
    engine = Engine(mesh, Plan(width=width, runs_per_chunk=R), examples, SIZES, jax.random.key(0))
    loss = base.cross_entropy(model)
    phase = phase or base.SGD().phase(loss, source=source, size=SIZES.of(source), epochs=1, batch_size=8)
    signs = np.stack([np.random.default_rng(i).permutation(np.repeat([1, -1], 4)) for i in range(R)])
    runs = Runs(members(signs, SIZES), jax.random.split(jax.random.key(1), R))
    params = jax.tree.map(lambda a: jnp.broadcast_to(a, (R, *a.shape)), model.init(jax.random.key(2)))
    return engine.phase_runner(phase, 0), runs, params


@pytest.mark.parametrize("width", [1, 4])
def test_a_chunk_holds_the_states_of_its_runs_once(width):
    model = mlp((4,), 2, widths=(256, 256))
    run, runs, params = runner(model, "train", width=width)
    jax.block_until_ready(run(runs, params))
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    # lax.map held them three times. A run at work needs its gradient and a few copies of its own.
    assert state < run.bytes < (1 + 5 * width / R) * state


@pytest.mark.parametrize(("source", "shared"), [("retain", True), ("train", False)])
def test_the_first_layer_is_one_product_where_the_batch_is_shared(source, shared):
    shapes = []

    def apply(params, x):
        @jax.custom_batching.custom_vmap
        def first(x, kernel):
            return x @ kernel

        @first.def_vmap
        def _first(size, batched, x, kernel):
            shapes.append((size, tuple(batched)))
            return jax.vmap(jnp.matmul, in_axes=tuple(0 if b else None for b in batched))(x, kernel), True

        return first(x, params["kernel"])

    model = base.Model(lambda key: {"kernel": jnp.ones((4, 3))}, apply)

    def update(key, state, batch, step):
        return {"kernel": state["kernel"] + model.apply(state, batch.retain.x).mean()}

    phase = base.Phase(source, 1, 8, lambda key, params: params, update, lambda key, state: state)
    run, runs, params = runner(model, source, width=4, phase=phase)
    run(runs, params)
    # Inputs that no run has for itself are no batched operand: one product with the kernels of all runs side by side.
    assert shapes and set(shapes) == {(4, (not shared, True))}


def test_patches_of_several_models_are_no_grouped_convolution():
    def loss(kernel, x):
        return jnp.sum(layers.convolve(x, kernel, form="patches") ** 2)

    kernels, x = jnp.ones((3, 3, 3, 5, 7)), jnp.ones((2, 6, 6, 5))
    text = str(jax.make_jaxpr(jax.vmap(jax.grad(loss, (0, 1)), (0, None)))(kernels, x))
    assert "conv_general" not in text and "dot_general" in text


def test_group_norm_needs_less_than_one_reduction_over_groups():
    x = jnp.zeros((16, 16, 16, 64))
    scale, bias = jnp.ones(64), jnp.zeros(64)
    flax = nn.GroupNorm(num_groups=8)

    def temporaries(norm):
        def loss(x, scale, bias):
            return jnp.sum(jax.nn.relu(norm(x, scale, bias)) ** 2)

        return bytes_of(jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, scale, bias).compile())

    plain = temporaries(lambda x, s, b: flax.apply({"params": {"scale": s, "bias": b}}, x))
    ours = temporaries(lambda x, s, b: layers.group_norm(x, s, b, groups=8))
    fused = temporaries(lambda x, s, b: layers.group_norm_relu(x, s, b, 8))
    assert ours < plain and fused <= ours
