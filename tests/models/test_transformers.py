"""GPT-2 and Llama against torch's values of tiny random models, and against themselves where a path is shorter or spread."""

import dataclasses
import functools
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn import sequences
from jaxunlearn._validate import InputError
from jaxunlearn.models import language_weights
from jaxunlearn.models.base import parameter_count
from jaxunlearn.models.transformer import (
    WRITTEN_OUT,
    Architecture,
    RopeScaling,
    as_model,
    frequencies,
    language_model,
)

GOLDENS = Path(__file__).parent / "goldens"
NAMES = ("gpt2", "llama", "untied")
EACH = pytest.mark.parametrize("name", ["gpt2", "llama", pytest.param("untied", marks=pytest.mark.slow)])
TINY = Architecture(family="llama", vocabulary=16, width=8, layers=3, heads=4, kv_heads=2, hidden=12)


@functools.cache
def golden(name):
    with np.load(GOLDENS / f"transformers_{name}.npz") as stored:
        return dict(stored)


def part(name, prefix):
    return {key.removeprefix(prefix): value for key, value in golden(name).items() if key.startswith(prefix)}


def weights(name):
    """The torch model's tensors: float32 numbers of which the upper 16 bits are kept."""
    return {key: (bits.astype(np.uint32) << 16).view(np.float32) for key, bits in part(name, "weights/").items()}


def write_folder(folder, tensors, config):
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Name -> (architecture, parameters) as they come from a Hugging Face folder."""
    root = tmp_path_factory.mktemp("models")
    return {
        name: language_weights.load_language_model(
            write_folder(root / name, weights(name), json.loads(str(golden(name)["config"])))
        )
        for name in NAMES
    }


def drawn(architecture, seed=0):
    """Parameters none of which is at its initial value; drawing them on the host costs no compilation."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(language_model(architecture).init, jax.random.key(0))
    return jax.tree.map(lambda leaf: rng.normal(scale=0.3, size=leaf.shape).astype(np.float32), shapes)


def close(ours, theirs, tolerance=2e-5, floor=0.0):
    """To a share of the largest entry, or to ``floor``."""
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=max(tolerance * np.abs(theirs).max(), floor))


@functools.cache
def program(architecture):
    """``(params, tokens, labels) -> loss, logits, all states, gradients``, compiled once for all tests of a model."""
    model = language_model(architecture)

    def answers(params, tokens, labels):
        states = model.hidden(params, tokens, 0, architecture.layers)
        logits = model.head(params, states[-1])
        values = sequences.token_nll(logits, labels)
        return sequences.reduce(values, labels, jnp.ones(len(tokens))), (logits, states)

    return jax.jit(jax.value_and_grad(answers, has_aux=True))


@pytest.mark.slow
@EACH
def test_states_logits_and_gradients_are_torchs(name, loaded):
    architecture, params = loaded[name]
    wanted = golden(name)
    (loss, (logits, states)), gradients = program(architecture)(params, wanted["tokens"], wanted["labels"])
    close(logits, wanted["logits"])
    assert states.shape == wanted["states"].shape
    for ours, state in zip(states, wanted["states"]):
        close(ours, state)
    np.testing.assert_allclose(loss, wanted["loss"], rtol=1e-5)

    expected = part(name, "gradients/")
    file = language_weights._File(frozenset(expected), expected.__getitem__, name)
    _, theirs = language_weights._load(architecture, file)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(theirs))
    # The softmax does not see a bias of keys: its gradient is rounding alone.
    jax.tree.map(functools.partial(close, tolerance=1e-4, floor=1e-7 * largest), gradients, theirs)


@EACH
def test_what_stands_after_a_sequence_changes_nothing_in_it(name, loaded):
    architecture, params = loaded[name]
    wanted = golden(name)
    real = np.arange(wanted["tokens"].shape[1])[None] < wanted["lengths"][:, None]
    (_, (ours, _)), _ = program(architecture)(params, np.where(real, wanted["tokens"], 0), wanted["labels"])
    close(np.where(real[..., None], ours, 0.0), wanted["right_logits"])


def test_long_sequences_reach_scaled_frequencies(loaded):
    """512 tokens, of a model that was trained on 64 before its frequencies were scaled."""
    architecture, params = loaded["llama"]
    logits = jax.jit(language_model(architecture).logits)(params, golden("llama")["long"])
    close(logits[:, -8:], golden("llama")["long_logits"], 1e-4)
    assert architecture.rope_scaling == RopeScaling(context=64)
    quotient = frequencies(dataclasses.replace(architecture, rope_scaling=None)) / frequencies(architecture)
    assert quotient[0] == 1 and quotient[-1] == pytest.approx(32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_greedy_continuations_are_torchs(name, loaded):
    """Of prompts padded on the left, whatever stands there; each ends by itself."""
    architecture, params = loaded[name]
    wanted = golden(name)
    expected, stop = wanted["greedy"].copy(), () if name == "gpt2" else (int(wanted["greedy"][1, 2]),)
    for row in expected:
        ends = np.flatnonzero(np.isin(row, stop))
        row[ends[0] if len(ends) else len(row) :] = stop[0] if stop else 0
    padding = np.arange(wanted["tokens"].shape[1])[None] < wanted["tokens"].shape[1] - wanted["lengths"][:, None]
    generate = jax.jit(
        functools.partial(language_model(architecture).generate, new_tokens=expected.shape[1], stop=stop)
    )
    for filler in (0, 1):
        ours = generate(params, np.where(padding, filler, wanted["tokens"]), wanted["lengths"])
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.slow
def test_continuations_under_vmap_are_those_of_each_model():
    model = language_model(TINY)
    params = jax.tree.map(lambda *leaves: np.stack(leaves), drawn(TINY), drawn(TINY, 1))
    prompts, lengths = np.random.default_rng(0).integers(0, 16, (3, 4)), np.array([4, 1, 2])

    def continued(params):
        return model.generate(params, prompts, lengths, new_tokens=5, stop=(3, 7))

    together = jax.jit(jax.vmap(continued))(params)
    alone = jax.jit(lambda p: jax.lax.map(continued, p))(params)
    np.testing.assert_array_equal(together, alone)
    assert len(np.unique(np.asarray(together))) > 3


@pytest.mark.slow
def test_states_of_a_range_and_of_fewer_blocks(loaded):
    """They are those of the whole; what comes after the last block asked for is not computed: NaN in it does no harm."""
    architecture, params = loaded["gpt2"]
    model, tokens = language_model(architecture), golden("gpt2")["tokens"]

    @jax.jit
    def ranges(params):
        broken = jax.tree.map(lambda leaf, block: jnp.where(block > 1, jnp.nan, leaf), params, model.block_of(params))
        some = {
            (first, last): model.hidden(params, tokens, first, last) for last in range(3) for first in range(last + 1)
        }
        return some, model.hidden(broken, tokens, 1, 1)

    some, unbroken = ranges(params)
    for (first, last), states in some.items():
        assert states.shape == (last - first + 1, *tokens.shape, architecture.width)
        close(states, some[0, 2][first : last + 1], 1e-6)
    close(unbroken, some[0, 2][1:2], 1e-6)
    with pytest.raises(InputError, match="layers=2"):
        model.hidden(params, tokens, 0, 3)


@EACH
@pytest.mark.slow
def test_blocks_of_parameters(name, loaded):
    """State l depends on all parameters of blocks up to l, and on no other."""
    architecture, params = loaded[name]
    model, tokens = language_model(architecture), golden(name)["tokens"]
    blocks = model.block_of(params)
    assert jax.tree.structure(blocks) == jax.tree.structure(params)

    def lengths(params):
        states = model.hidden(params, tokens, 0, 2)
        logits = model.head(params, states[-1])
        return jnp.stack([jnp.sum(jnp.sin(value)) for value in (*states, logits)])

    jacobian = jax.jit(jax.jacrev(lengths))(params)
    if name == "gpt2":
        del jacobian["blocks"]["key"]["bias"], blocks["blocks"]["key"]["bias"]  # which the softmax does not see
    for leaf, block in zip(jax.tree.leaves(jacobian), jax.tree.leaves(blocks), strict=True):
        for state, gradient in enumerate(leaf):
            moved = np.abs(gradient).reshape(*np.shape(block), -1).max(axis=-1) > 1e-5
            np.testing.assert_array_equal(moved, np.asarray(block) <= state)


@pytest.mark.slow
def test_many_layers_in_a_loop_equal_few_written_out():
    """The same blocks on both sides of the limit up to which the loop is unrolled, kept and computed again."""
    deep = dataclasses.replace(TINY, layers=WRITTEN_OUT + 1)
    model, again = language_model(deep), language_model(deep, remat=True)
    params, tokens = drawn(deep), np.arange(12).reshape(2, 6)

    def loss(model, params):
        h = model.hidden(params, tokens, WRITTEN_OUT, deep.layers)
        return jnp.mean(model.head(params, h) ** 2), h

    @jax.jit
    def all_three(params):
        short = language_model(dataclasses.replace(TINY, layers=WRITTEN_OUT))
        unrolled = short.hidden(
            params | {"blocks": jax.tree.map(lambda leaf: leaf[:-1], params["blocks"])}, tokens, 0, 12
        )
        grads = [jax.grad(functools.partial(loss, m), has_aux=True)(params) for m in (model, again)]
        return grads, unrolled

    ((kept, states), (computed, _)), unrolled = all_three(params)
    close(states[0], unrolled[-1])
    jax.tree.map(functools.partial(close, tolerance=1e-5), computed, kept)


@pytest.mark.slow
def test_forward_mode_is_the_gradient_along_a_direction():
    """<gradient of each example's loss, direction> of a whole batch by one forward pass, which association rests on."""
    small = dataclasses.replace(TINY, layers=1)
    model, tokens = language_model(small), np.random.default_rng(0).integers(0, 16, (3, 6))

    def losses(params, tokens):
        return sequences.sequence_nll(model.logits(params, tokens), tokens)

    @jax.jit
    def both(params, direction):
        along = jax.jvp(lambda p: losses(p, tokens), (params,), (direction,))[1]
        each = jax.vmap(jax.grad(lambda p, row: losses(p, row[None])[0]), (None, 0))(params, tokens)
        products = jax.tree.map(lambda g, d: jnp.sum(g * d[None], axis=tuple(range(1, g.ndim))), each, direction)
        return along, sum(jax.tree.leaves(products))

    close(*both(drawn(small), drawn(small, 1)), 1e-5)


@pytest.mark.slow
def test_bfloat16_is_near_float32_and_leaves_parameters_alone(loaded):
    architecture, params = loaded["llama"]
    tokens = golden("llama")["tokens"]
    model = language_model(architecture, dtype="bfloat16")
    logits, wanted = jax.jit(model.logits)(params, tokens), golden("llama")["logits"]
    gradients = jax.eval_shape(jax.grad(lambda p: model.logits(p, tokens).sum()), params)
    assert logits.dtype == jnp.float32 and all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(gradients))
    assert jax.eval_shape(lambda p: model.hidden(p, tokens, 0, 1), params).dtype == jnp.float32
    difference = np.abs(logits - wanted).max() / np.abs(wanted).max()
    assert 1e-4 < difference < 0.05


def test_initial_weights():
    """Counts of the published models; deviations of a fresh one."""
    small = dataclasses.replace(TINY, vocabulary=100, width=64, hidden=80)
    gpt2 = Architecture(family="gpt2", vocabulary=50257, width=768, layers=12, heads=12)
    llama = Architecture(
        family="llama", vocabulary=128256, width=3072, layers=28, heads=24, kv_heads=8, hidden=8192, context=131072
    )
    counts = [parameter_count(jax.eval_shape(language_model(a).init, jax.random.key(0))) for a in (gpt2, llama)]
    assert counts == [124_439_808, 3_212_749_824]
    init = jax.jit(language_model(small).init)
    params = init(jax.random.key(0))
    for name, deviation in {"up": 0.02, "query": 0.02, "down": 0.02 / math.sqrt(6)}.items():
        assert np.std(params["blocks"][name]["weight"]) == pytest.approx(deviation, rel=0.02)
    assert np.std(params["embedding"]) == pytest.approx(0.02, rel=0.02)
    assert (params["norm"]["weight"] == 1).all()
    other = init(jax.random.key(1))
    assert (other["embedding"] != params["embedding"]).mean() > 0.99


def test_as_an_ordinary_model_it_reads_the_true_answer():
    small = dataclasses.replace(TINY, layers=1)
    language = language_model(small)
    model, x = as_model(language), np.random.default_rng(0).integers(0, 16, (2, 4, 6))

    @jax.jit
    def both(params):
        return (model.apply(params, x), model.apply(params, x[:, 1])), [
            language.logits(params, x[:, n]) for n in (0, 1)
        ]

    ours, theirs = both(drawn(small))
    np.testing.assert_array_equal(ours, theirs)
    assert np.abs(ours[0] - ours[1]).max() > 0


@pytest.mark.slow
def test_parameters_spread_over_devices_train_alike():
    """A run's parameters over two devices, as the engine spreads them, or on one: the same update and the same words."""
    from jaxunlearn.engine import plan as planning
    from jaxunlearn.engine.plan import Plan
    from jaxunlearn.engine.population import Engine, Runs, members
    from jaxunlearn.engine.train import Examples, Sizes
    from jaxunlearn.unlearn import base

    language = language_model(TINY)
    sizes, tokens = Sizes(retain=6, pool=2, forget=1), np.random.default_rng(0).integers(0, 16, (8, 1, 6))

    def loss(params, batch):
        labels = batch.y[:, 0]
        return sequences.reduce(
            sequences.token_nll(language.logits(params, batch.x[:, 0]), labels), labels, batch.weight
        )

    phase = base.SGD(peak=0.5).phase(loss, source="train", size=7, epochs=1, batch_size=4)
    runs = Runs(members(np.array([[1, -1], [-1, 1]]), sizes), jax.random.split(jax.random.key(2), 2))
    init = drawn(TINY)
    params = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (2, *leaf.shape)), init)
    found = {}
    for shards in (1, 2):
        mesh = planning.make_mesh(jax.devices()[:2], parameter_shards=shards)
        engine = Engine(mesh, Plan(width=1, runs_per_chunk=2), Examples(tokens, tokens), sizes, jax.random.key(5))
        trained = engine.phase_runner(phase, 0)(runs, params)
        if shards == 2:
            spread = [leaf.sharding.spec for leaf in jax.tree.leaves(trained)]
            assert all(planning.PARAMETERS in spec for spec in spread)
        found[shards] = jax.tree.map(np.asarray, trained)
    jax.tree.map(close, found[2], found[1])
    assert np.abs(found[1]["embedding"][0] - np.asarray(init["embedding"])).max() > 1e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "gpt"}, "Did you mean 'gpt2'"),
        ({"layers": 0}, "layers=0"),
        ({"heads": 3}, "heads=3 to divide width=8"),
        ({"kv_heads": 3}, "kv_heads=3 to divide heads=4"),
        ({"family": "gpt2"}, "GPT-2 has neither"),
        ({"heads": 8, "kv_heads": 8}, "to be even"),
        ({"norm_epsilon": 0.0}, "norm_epsilon=0.0 > 0"),
    ],
)
def test_architectures_that_cannot_be(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(TINY, **change)


def test_other_refusals():
    with pytest.raises(InputError, match="high_frequency=1.0 above low_frequency=1.0"):
        RopeScaling(high_frequency=1.0)
    with pytest.raises(InputError, match="Did you mean 'bfloat16'"):
        language_model(TINY, dtype="bfloat")
    short = language_model(Architecture(family="gpt2", vocabulary=5, width=4, layers=1, heads=2, context=6))
    params = jax.eval_shape(short.init, jax.random.key(0))
    with pytest.raises(InputError, match="context=6 tokens, got 7"):
        short.logits(params, jnp.zeros((1, 7), jnp.int32))
    with pytest.raises(InputError, match="new_tokens=4 to stay within context=6"):
        short.generate(params, jnp.zeros((1, 4), jnp.int32), jnp.array([4]), new_tokens=4)
