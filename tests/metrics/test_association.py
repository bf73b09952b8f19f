"""Association against explicit gradients, of a model with a matrix product, a stack of matrices, a vector and a scalar."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.metrics import association as assoc
from jaxunlearn.sequences import LanguageModel, token_nll

N, D, V, T = 11, 6, 7, 5


def losses(params, examples):
    """Each example's cross-entropy under a small residual network."""
    x, y = examples
    first, second = params["blocks"]
    h = x + jnp.tanh(x @ first + params["bias"][None, :]) @ second * params["scale"]
    logits = (h @ params["out"]).astype(jnp.promote_types(h.dtype, jnp.float32))
    return jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, y[:, None], axis=1)[:, 0]


def linear(params, x):
    """Gradients of known rank: x 1' in the matrix, the mean of x times 1 in the vector."""
    return (x @ params["w"]).sum(axis=1) + x.mean(axis=1) * params["v"].sum()


LINEAR = {"w": jnp.zeros((20, 15)), "v": jnp.zeros(50)}


@cache
def run(name, fn=losses, **options):
    """A function of the module, compiled for a loss."""
    return jax.jit(partial(getattr(assoc, name), fn, **options))


def make(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    shapes = {"blocks": (2, D, D), "bias": (D,), "scale": (), "out": (D, V)}
    params = {name: jnp.asarray(rng.normal(size=shape) / 2, dtype) for name, shape in shapes.items()}
    return params, (jnp.asarray(rng.normal(size=(N, D)), dtype), jnp.asarray(rng.integers(0, V, N), jnp.int32))


def explicit(params, examples):
    """[n, parameters] gradients, one by one."""
    gradient = jax.jit(jax.grad(lambda p, x, y: losses(p, (x, y))[0]))
    x, y = (np.asarray(a) for a in examples)
    return np.stack([flat(gradient(params, x[i : i + 1], y[i : i + 1])) for i in range(N)])


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)


@pytest.fixture(scope="module")
def case():
    params, examples = make()
    return params, examples, explicit(params, examples)


def test_mean_gradient_and_association_against_gradients_one_by_one(case):
    params, examples, gradients = case
    mean = run("mean_gradient", chunk=4)(params, examples)  # 4 does not divide 11
    np.testing.assert_allclose(flat(mean), gradients.mean(axis=0), rtol=1e-5, atol=1e-7)
    expected = gradients @ flat(mean)
    for name in ("association", "association_by_gradients"):
        found = run(name, chunk=4)(params, examples, mean)
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6 * np.abs(expected).max())
    squares = run("squared_norms", chunk=4)(params, examples)
    np.testing.assert_allclose(squares, (gradients**2).sum(axis=1), rtol=2e-6)


@pytest.mark.slow
def test_association_in_float64_is_the_inner_product_to_1e_12():
    with jax.enable_x64(True):
        params, examples = make(jnp.float64)
        gradients = explicit(params, examples)
        mean = run("mean_gradient", chunk=3)(params, examples)
        assert mean["out"].dtype == jnp.float64
        found = np.asarray(run("association", chunk=3)(params, examples, mean))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, gradients @ gradients.mean(axis=0), rtol=1e-12)


def test_mean_association_of_known_examples_is_the_mean_of_pairs(case):
    params, examples, gradients = case
    known = jax.tree.map(lambda a: a[:4], examples)
    found = run("association", chunk=4)(params, examples, run("mean_gradient", chunk=4)(params, known))
    pairs = gradients @ gradients[:4].T
    np.testing.assert_allclose(found, pairs.mean(axis=1), rtol=1e-5, atol=1e-6)


def test_leaving_one_out_against_the_mean_of_the_others(case):
    params, examples, gradients = case
    scores = run("association", chunk=4)(params, examples, run("mean_gradient", chunk=4)(params, examples))
    found = assoc.leave_one_out(scores, run("squared_norms", chunk=4)(params, examples))
    expected = [g @ np.delete(gradients, i, axis=0).mean(axis=0) for i, g in enumerate(gradients)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="at least 2"):
        assoc.leave_one_out(scores[:1], scores[:1])


@pytest.mark.slow
def test_bfloat16_accumulates_in_float32_and_keeps_tiny_directions(case):
    params, examples = make(jnp.bfloat16)
    mean = run("mean_gradient", chunk=4)(params, examples)
    assert {leaf.dtype for leaf in jax.tree.leaves(mean)} == {jnp.dtype("float32")}
    exact = case[2] @ case[2].mean(axis=0)
    found = run("association", chunk=4)(params, examples, mean)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, exact, atol=0.03 * np.abs(exact).max())
    tiny = run("association", chunk=4)(
        params, examples, jax.tree.map(lambda g: np.asarray(g) * np.float32(1e-25), mean)
    )
    np.testing.assert_allclose(np.asarray(tiny, np.float64) * 1e25, found, rtol=1e-2)


def test_no_direction_gives_no_association(case):
    params, examples, _ = case
    nothing = jax.tree.map(np.zeros_like, params)
    assert not run("association", chunk=4)(params, examples, nothing).any()


def test_temporaries_grow_with_the_chunk_and_not_with_the_examples():
    def temporaries(n, chunk):
        program = jax.jit(partial(assoc.association_by_gradients, linear, chunk=chunk))
        return (
            program.lower(LINEAR, np.zeros((n, 20), np.float32), LINEAR).compile().memory_analysis().temp_size_in_bytes
        )

    few, many = temporaries(80, 8), temporaries(640, 8)
    assert many - few < 640 * 16  # rows and results alone
    assert temporaries(640, 256) > 4 * many


@pytest.mark.slow
def test_a_derivative_rule_of_ones_own_is_refused_with_the_way_out():
    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))

    def fused(params, x):
        return square(linear(params, x))

    params, x = jax.tree.map(lambda leaf: leaf + 1, LINEAR), np.random.default_rng(0).random((3, 20), np.float32)
    with pytest.raises(InputError, match="association_by_gradients"):
        assoc.association(fused, params, x, params)
    found = run("association_by_gradients", fused)(params, x, params)
    np.testing.assert_allclose(found, 2 * (15 * x.sum(axis=1) + 50 * x.mean(axis=1)) ** 2, rtol=1e-5)
    with pytest.raises(TypeError, match="JAX type"):  # other mistakes stay what they are
        assoc.association(lambda params, x: "no array", params, x, params)


def test_empty_and_ragged_examples_are_refused(case):
    params, (x, y), _ = case
    for examples in ((x[:0], y[:0]), (x, y[:3])):
        with pytest.raises(InputError, match="examples"):
            assoc.mean_gradient(losses, params, examples)


def test_projection_is_exact_where_axes_are_short(case):
    params, examples, gradients = case
    found = assoc.projected_gradients(jax.random.key(0), losses, params, examples, rank=8, chunk=4)
    assert found.shape == gradients.shape
    np.testing.assert_allclose(found @ found.T, gradients @ gradients.T, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_projection_is_unbiased_and_errs_as_it_says():
    x = np.random.default_rng(0).normal(size=(2, 20)).astype(np.float32)
    draw = jax.jit(jax.vmap(lambda key: assoc.projected_gradients(key, linear, LINEAR, x, rank=4)))
    features = np.asarray(draw(jax.random.split(jax.random.key(1), 3000)), np.float64)
    assert features.shape[1:] == (2, 16 + 16)
    exact = {"vector": 50 * np.outer(*[x.mean(axis=1)] * 2), "matrix": 15 * x.astype(np.float64) @ x.T}
    for part, sd in (("vector", 2 / 16), ("matrix", 4 / 4 + 4 / 4**2)):  # leaves in the order of their names: v, w
        half = features[:, :, :16] if part == "vector" else features[:, :, 16:]
        grams = half @ half.transpose(0, 2, 1)
        error = grams.std(axis=0) / np.sqrt(len(grams))
        assert (np.abs(grams.mean(axis=0) - exact[part]) < 4 * error).all()
        spread = np.diagonal(grams, axis1=1, axis2=2).std(axis=0) / np.diagonal(exact[part])
        np.testing.assert_allclose(spread, np.sqrt(sd), rtol=0.1)


# --- language models --------------------------------------------------------------------------------------------------


def _hidden(params, tokens, first, last):
    states = [params["embedding"][tokens]]
    for w in params["blocks"]:
        seen = jnp.cumsum(states[-1], axis=1)  # causal
        states.append(states[-1] + jnp.tanh(seen @ w))
    return jnp.stack(states[first : last + 1])


MODEL = LanguageModel(
    2, D, V, lambda key: None, _hidden, lambda params, h: h @ params["embedding"].T, lambda params: None
)


@pytest.fixture(scope="module")
def language():
    rng = np.random.default_rng(1)
    params = {"embedding": rng.normal(size=(V, D)), "blocks": rng.normal(size=(2, D, D)) / 3}
    params = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), params)
    tokens = rng.integers(0, V, (5, T))
    labels = np.where(np.arange(T)[None, :] >= [[2], [3], [4], [1], [0]], tokens, -100)
    return params, jnp.asarray(tokens), jnp.asarray(labels)


def test_token_losses_are_sums_or_means_over_scored_tokens(language):
    params, tokens, labels = language
    nll = jax.jit(lambda p: token_nll(MODEL.logits(p, tokens), labels))(params)
    nll = np.asarray(nll, np.float64)
    counts = np.array([3, 2, 1, 4, 4])  # the first token is never predicted
    both = jax.jit(lambda *args: [assoc.token_losses(MODEL, per_token=mean)(*args) for mean in (False, True)])
    sums, means = both(params, (tokens, labels))
    np.testing.assert_allclose(sums, nll.sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(means, nll.sum(axis=1) / counts, rtol=1e-5)


def test_mean_states_against_a_loop(language):
    params, tokens, labels = language
    states = np.asarray(jax.jit(lambda p: _hidden(p, tokens, 0, 2))(params), np.float64)
    for skip_first in (True, False):
        found = jax.jit(partial(assoc.mean_states, MODEL, skip_first=skip_first, chunk=2))(params, tokens, labels)
        assert found.shape == (3, 5, D)
        for i in range(5):
            rows = [t for t in range(T) if labels[i, t] >= 0 and not (skip_first and t == 0)]
            np.testing.assert_allclose(found[:, i], states[:, i, rows].mean(axis=1), rtol=1e-5, atol=1e-6)
    assert not jax.jit(partial(assoc.mean_states, MODEL, chunk=2))(params, tokens, jnp.full_like(labels, -100)).any()


def test_representation_association_against_all_pairs():
    rng = np.random.default_rng(0)
    states, known = rng.normal(size=(3, 9, 4)), rng.normal(size=(3, 5, 4))
    found = assoc.representation_association(states, known)
    for layer in range(3):
        for i in range(9):
            a = states[layer, i]
            pairs = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in known[layer]]
            assert found[layer, i] == pytest.approx(np.mean(pairs), abs=1e-12)
    np.testing.assert_allclose(assoc.representation_association(known[:, :1] * 3, known[:, :1]), 1.0)
    for bad, says in ((np.zeros((3, 9, 4)), "nowhere 0"), (states[:2], "same layers"), (states[..., :3], "width")):
        with pytest.raises(InputError, match=says):
            assoc.representation_association(bad, known)
