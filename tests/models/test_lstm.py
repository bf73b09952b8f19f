"""The LSTM against a naive loop in float64, its two forms against each other, alone and inside loops."""

import functools
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxunlearn._validate import InputError
from jaxunlearn.models import recurrent
from jaxunlearn.models.base import parameter_count
from jaxunlearn.models.lstm import lstm

pytestmark = pytest.mark.slow

KEYS = jax.random.split(jax.random.key(0), 4)
SMALL = {"vocabulary": 7, "embedding": 3, "hidden": 5, "layers": 2}
MODELS = {form: lstm(**SMALL, form=form) for form in recurrent.LSTM_FORMS}
X = jax.random.randint(KEYS[1], (4, 11), 0, 7)
Y = jax.random.randint(KEYS[2], (4, 11), 0, 7)
PARAMS = jax.tree.map(
    lambda a: 2.0 * a, jax.jit(MODELS["plain"].init)(KEYS[0])
)  # away from the linear part of the gates


def loss(model, params, x=X, y=Y):
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), y))


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def naive(params, x):
    """[b, t, v] logits, one example, step and gate at a time, in float64."""
    params = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    output = []
    for ids in np.asarray(x):
        sequence = [params["embedding"][i] for i in ids]
        for layer in sorted(name for name in params if name.startswith("_LSTM")):
            p = params[layer]
            size = p["hidden_kernel"].shape[0]
            h, c, states = np.zeros(size), np.zeros(size), []
            for value in sequence:
                a = value @ p["input_kernel"] + p["input_bias"] + h @ p["hidden_kernel"] + p["hidden_bias"]
                i, f, g, o = (a[n * size : (n + 1) * size] for n in range(4))
                c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(c)
                states.append(h)
            sequence = states
        output.append([h @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"] for h in sequence])
    return np.array(output)


def naive_loss(params):
    logits = naive(params, X)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -np.mean(np.take_along_axis(log_p, np.asarray(Y)[..., None], axis=-1))


def assert_close(ours, theirs, tolerance=1e-5):
    """Leaf by leaf, relative to the largest entry of a leaf."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.abs(b).max() > 0
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


def test_parameter_count_of_the_paper():
    shapes = jax.eval_shape(lstm().init, jax.random.key(0))
    assert parameter_count(shapes) == 825_220
    assert parameter_count(shapes["_LSTM_0"]) == 4 * 256 * (8 + 256 + 2)
    assert parameter_count(shapes["_LSTM_1"]) == 4 * 256 * (256 + 256 + 2)


def test_initial_weights_are_pytorchs():
    params = jax.jit(lstm(vocabulary=50, embedding=40, hidden=100, layers=1).init)(KEYS[0])
    table = np.asarray(params.pop("embedding"))
    assert abs(table.std() - 1) < 0.05 and abs(table.mean()) < 0.1
    for leaf in map(np.asarray, jax.tree.leaves(params)):
        assert np.abs(leaf).max() <= 0.1 and abs(leaf.std() - 0.1 / np.sqrt(3)) < 0.015
        assert abs(leaf.mean()) < 5 * 0.1 / np.sqrt(3 * leaf.size)
    assert np.any(params["_LSTM_0"]["input_bias"] != params["_LSTM_0"]["hidden_bias"])


@pytest.mark.parametrize("form", recurrent.LSTM_FORMS)
def test_logits_equal_a_naive_loop(form):
    logits = jax.jit(MODELS[form].apply)(PARAMS, X)
    assert logits.shape == (4, 11, 7) and logits.dtype == jnp.float32
    assert_close(logits, naive(PARAMS, X))


@pytest.mark.parametrize("form", recurrent.LSTM_FORMS)
def test_one_cell_by_hand(form):
    # One unit, only the candidate gate open: c_t = sigmoid(0) c_{t-1} + sigmoid(0) tanh(x), h = sigmoid(0) tanh(c).
    x = jnp.array([1.0, 0.0]).reshape(2, 1, 1)
    kernel = jnp.array([[0.0, 0.0, 1.0, 0.0]])
    h = recurrent.lstm_layer(x, kernel, jnp.zeros((1, 4)), jnp.zeros(4), form=form)
    cells = np.tanh(1.0) * np.array([0.5, 0.25])
    np.testing.assert_allclose(h[:, 0, 0], 0.5 * np.tanh(cells), rtol=1e-5)


def test_a_step_sees_what_came_before_and_nothing_later():
    apply = jax.jit(MODELS["hoisted"].apply)
    base, changed = apply(PARAMS, X), apply(PARAMS, X.at[:, 6].set((X[:, 6] + 1) % 7))
    np.testing.assert_array_equal(base[:, :6], changed[:, :6])
    assert np.all(np.abs(base[:, 6:] - changed[:, 6:]).max(axis=-1) > 0)
    np.testing.assert_allclose(apply(PARAMS, X[1:2, :3]), base[1:2, :3], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 11])
def test_gradients_of_both_forms_agree(steps):
    both = [jax.jit(jax.grad(functools.partial(loss, m)))(PARAMS, X[:, :steps], Y[:, :steps]) for m in MODELS.values()]
    for layer in ("_LSTM_0", "_LSTM_1") if steps == 1 else ():  # without a past the recurrent weights do nothing
        for gradient in both:
            np.testing.assert_array_equal(gradient[layer].pop("hidden_kernel"), 0)
    assert_close(*both)


LAYER = [np.random.default_rng(n).normal(size=size) / 2 for n, size in enumerate([(6, 4, 3), (3, 20), (5, 20), (20,)])]
LAYER = [a.astype(np.float32) for a in LAYER]  # inputs [t, b, i] and the weights of one layer


def layer_loss(form, x, *weights):
    return jnp.mean(jnp.square(recurrent.lstm_layer(x, *weights, form=form) - 1.0))


@pytest.mark.parametrize("mapped", ["vmap", "map", "shard_map"])
def test_descent_of_several_runs_inside_a_loop(mapped):
    runs = [np.stack([a, 2 * a, -a, 3 * a]) for a in LAYER]
    mesh = jax.make_mesh((2,), ("runs",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])

    def descend(form):
        gradient = jax.grad(functools.partial(layer_loss, form), (0, 1, 2, 3))

        def one(arguments):
            return lax.fori_loop(0, 3, lambda _, a: [v - g for v, g in zip(a, gradient(*a))], arguments)

        over_runs = jax.vmap(one) if mapped == "vmap" else functools.partial(lax.map, one)
        if mapped == "shard_map":  # as the engine spreads runs over devices
            over_runs = jax.shard_map(over_runs, mesh=mesh, in_specs=(P("runs"),), out_specs=P("runs"))
        return jax.jit(over_runs)(runs)

    assert_close(descend("hoisted"), descend("plain"))


def test_forward_mode_of_the_plain_form_against_a_finite_difference():
    rng = np.random.default_rng(0)
    tangent = jax.tree.map(lambda a: rng.normal(size=a.shape).astype(np.float32), PARAMS)
    slope = jax.jit(lambda p, t: jax.jvp(functools.partial(loss, MODELS["plain"]), (p,), (t,))[1])(PARAMS, tangent)

    def at(step):
        return naive_loss(
            jax.tree.map(lambda a, t: np.asarray(a, np.float64) + step * t.astype(np.float64), PARAMS, tangent)
        )

    np.testing.assert_allclose(slope, (at(1e-5) - at(-1e-5)) / 2e-5, rtol=1e-4)
    gradient = jax.jit(jax.grad(functools.partial(loss, MODELS["hoisted"])))(PARAMS)
    inner = sum(np.vdot(g, t) for g, t in zip(jax.tree.leaves(gradient), jax.tree.leaves(tangent)))
    np.testing.assert_allclose(slope, inner, rtol=1e-4)


def test_forward_mode_of_the_hoisted_form_is_refused():
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(functools.partial(loss, MODELS["hoisted"]), (PARAMS,), (PARAMS,))


@pytest.mark.parametrize("mode", ["forward over reverse", "reverse over reverse"])
def test_hessian_vector_products_of_both_forms_agree(mode):
    tangent = [a[::-1].copy() for a in LAYER]

    def product(form):
        gradient = jax.grad(lambda a: layer_loss(form, *a))
        if mode == "forward over reverse":
            return jax.jit(lambda a: jax.jvp(gradient, (a,), (tangent,))[1])(LAYER)
        return jax.jit(jax.grad(lambda a: optax.tree.vdot(gradient(a), tangent)))(LAYER)

    assert_close(product("hoisted"), product("plain"))


@pytest.mark.parametrize("name", ["vocabulary", "embedding", "hidden", "layers"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(InputError, match=f"{name}=0"):
        lstm(**{name: 0})


def descent(form, hidden=256):
    model = lstm(hidden=hidden, form=form)

    def step(params, x, y):
        gradient = jax.grad(functools.partial(loss, model))(params, x, y)
        return jax.tree.map(lambda a, g: a - 0.1 * g, params, gradient)

    return model, step


def test_the_hoisted_form_keeps_one_array_of_gates_and_never_copies_it():
    # 82 MB against 242 MB when written; every array of gates has 21 MB.
    ids = jnp.zeros((64, 80), jnp.int32)

    def compiled(form):
        model, step = descent(form)
        shapes = jax.eval_shape(model.init, KEYS[0])
        return jax.jit(step).lower(shapes, ids, ids).compile()

    hoisted, plain = compiled("hoisted"), compiled("plain")
    sizes = [c.memory_analysis().temp_size_in_bytes for c in (hoisted, plain)]
    assert sizes[0] < 0.4 * sizes[1] and sizes[0] < 100e6
    # A loop that reads from and writes to the same old array makes XLA copy all of it at every step: three times slower.
    assert "f32[80,64,1024]" in hoisted.as_text()
    assert not re.search(r"f32\[80,64,1024\]\S* copy\(", hoisted.as_text())


@pytest.mark.slow
def test_an_lstm_step_in_a_loop_takes_no_longer_than_alone():
    model, step = descent("hoisted")
    params = jax.jit(model.init)(KEYS[0])
    x, y = (jax.random.randint(k, (64, 80), 0, 100) for k in KEYS[1:3])

    def best_of(fn, repeats=5):
        jax.block_until_ready(fn())
        seconds = []
        for _ in range(repeats):
            began = time.perf_counter()
            jax.block_until_ready(fn())
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    alone = jax.jit(step)
    looped = jax.jit(lambda p: lax.map(lambda q: lax.fori_loop(0, 3, lambda _, r: step(r, x, y), q), p))
    runs = jax.tree.map(lambda a: jnp.stack([a, a]), params)
    assert best_of(lambda: looped(runs)) / 6 < 1.3 * best_of(lambda: alone(params, x, y))
