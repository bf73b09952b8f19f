"""Methods of text-to-image models on a tiny one: hand values, what moves and what stays, and what each is for."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_diffusion as tiny

from jaxunlearn import diffusion
from jaxunlearn._validate import InputError
from jaxunlearn.types import Batch, ForgetRetain
from jaxunlearn.unlearn import concept, erasing, relearning, text_to_image
from jaxunlearn.unlearn.concept import ConceptDescent, Denoising, in_subset, split_of
from jaxunlearn.unlearn.erasing import ESD, SPM, AdvUnlearn
from jaxunlearn.unlearn.parts import Split
from jaxunlearn.unlearn.relearning import EraseDiff, ForgetMeNot, SalUnDiffusion, ScissorHands

KEY = jax.random.key(0)
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Programs that run once need no optimisation, which takes most of a compilation."""
once = functools.partial(jax.jit, compiler_options=QUICK)
MODEL, PROMPTS, PARAMS = tiny.MODEL, tiny.PROMPTS, tiny.PARAMS
BOTH = diffusion.Diffusion(MODEL, PROMPTS)
X = jax.random.uniform(jax.random.key(5), (tiny.RETAIN + tiny.FORGET, *tiny.SHAPE))
Y = jnp.array([1, 2] * 3 + [0] * 4)


def rows(which, weight=None):
    which = np.asarray(which)
    weight = jnp.ones(len(which)) if weight is None else jnp.asarray(weight)
    return Batch(X[which], Y[which], weight, jnp.asarray(which >= tiny.RETAIN))


PAIR = ForgetRetain(rows([0, 1]), rows([6, 7]))
COMMON = {"steps": 6, "batch_size": 2, "rate": 0.01, "weight_decay": 0.1}
METHODS = {
    "esd-x": ESD(**COMMON, sampling_steps=4),
    "esd-u": ESD(**COMMON, sampling_steps=4, subset="noxattn", sampled_by="teacher", base="concept", eta=2.0),
    "salun": SalUnDiffusion(**COMMON),
    "erasediff": EraseDiff(**COMMON, subset="noxattn"),
    "erasediff-adaptive": EraseDiff(**COMMON, adaptive=0.5, inner="moments"),
    "fmn": ForgetMeNot(**COMMON | {"clip_norm": 1.0}, subset="xattn"),
    "scissorhands": ScissorHands(**COMMON, share=0.1, subset="selfattn", snip_batches=2),
    "scissorhands-anchor": ScissorHands(**COMMON, share=0.1, away="anchor", fresh="relu"),
    "spm": SPM(**COMMON | {"steps": 8}, sampling_steps=4, warmup=2),
    "advunlearn": AdvUnlearn(**COMMON, sampling_steps=4, warmup=1, attack_steps=2),
}
FAST = ("esd-x",)
EACH = pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)


@functools.cache
def runner(name):
    """``(key) -> params`` after two steps of every phase, and how often it was traced."""
    traces = []

    def run(key):
        traces.append(1)
        params = PARAMS
        for number, phase in enumerate(METHODS[name].build(tiny.TASK).phases):
            k = jax.random.fold_in(key, number)
            state = phase.init(k, params)
            batch = PAIR if phase.companion else PAIR._replace(retain=None)
            for step in range(2):
                state = phase.update(jax.random.fold_in(k, step), state, batch, jnp.int32(step))
            params = phase.finalize(k, state)
        return params

    return once(run), traces


def expected_subset(name, path):
    method = METHODS[name]
    if name == "spm":
        return ".attentions." in path and path.endswith("weight")
    return in_subset(path, method.subset)


@EACH
def test_what_should_move_does_and_the_rest_stays_to_the_last_bit(name):
    run, traces = runner(name)
    found, again = tiny.flat(run(KEY)), tiny.flat(run(KEY))
    assert len(traces) == 1
    before = tiny.flat(PARAMS)
    assert found.keys() == before.keys()
    for path, leaf in found.items():
        np.testing.assert_array_equal(leaf, again[path])
        assert np.isfinite(leaf).all() and leaf.dtype == np.float32
        if not expected_subset(name, path):
            np.testing.assert_array_equal(leaf, before[path])
        elif name != "salun":
            assert (leaf != before[path]).any(), path
    moved = [path for path in found if (found[path] != before[path]).any()]
    assert moved


@pytest.mark.slow
@EACH
def test_side_by_side_is_one_after_the_other(name):
    run, _ = runner(name)
    keys = jax.random.split(KEY, 2)
    together = jax.vmap(run)(keys)
    for i, key in enumerate(keys):
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=2e-4, atol=2e-5), together, run(key))


def test_phases_ask_for_what_they_need():
    for name, method in METHODS.items():
        phases = method.build(tiny.TASK).phases
        last = phases[-1]
        assert last.source == "forget" and last.max_steps == method.steps
        assert last.epochs * -(-tiny.FORGET // last.batch_size) >= method.steps
        wants = name.startswith(("salun", "erasediff", "scissorhands"))
        assert (last.companion == "retain") == wants
        assert len(phases) == (2 if name.startswith(("salun", "scissorhands")) else 1)
    with pytest.raises(InputError, match="text-to-image model"):
        ESD().build(tiny.TASK._replace(diffusion=None))


# --- hand values ------------------------------------------------------------------------------------------------------


def test_settings_of_the_public_code_and_of_digits_have_all_seven_methods():
    for name in ("objects", "nudity", "digits"):
        found = text_to_image.settings(name)
        assert set(found) == {"esd-x", "esd-u", "salun", "erasediff", "fmn", "scissorhands", "spm", "advunlearn"}
        for method in found.values():
            assert len(method.build(tiny.TASK).phases) >= 1
    objects = text_to_image.settings("objects")
    assert (objects["esd-x"].subset, objects["esd-u"].subset, objects["esd-x"].steps) == ("xattn", "noxattn", 1000)
    assert (objects["spm"].steps, objects["spm"].anchor_weight, objects["advunlearn"].retain_weight) == (
        3000,
        1000,
        0.3,
    )
    with pytest.raises(InputError, match="settings='digit'.*'digits'"):
        text_to_image.settings("digit")


def test_subsets_are_those_of_the_papers():
    paths = {
        "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_out.0.weight": {"full", "xattn"},
        "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.weight": {"full", "noxattn", "selfattn"},
        "unet.conv_out.weight": {"full"},
        "unet.conv_norm_out.bias": {"full"},
        "unet.time_embedding.linear_1.weight": {"full"},
        "unet.conv_in.weight": {"full", "noxattn"},
        "unet.up_blocks.1.resnets.0.time_emb_proj.weight": {"full", "noxattn"},
        "text_encoder.encoder.layers.3.mlp.fc1.weight": {"text"},
        "text_encoder.final_layer_norm.bias": {"text"},
        "text_encoder.embeddings.token_embedding.weight": set(),
        "vae.decoder.conv_in.weight": set(),
    }
    for path, expected in paths.items():
        assert {s for s in ("full", "xattn", "noxattn", "selfattn", "text") if in_subset(path, s)} == expected, path
    with pytest.raises(InputError, match="parameters of nothing"):
        split_of(MODEL, lambda path, leaf: False, "nothing")


def test_negative_guidance_by_hand():
    concept_, empty = jnp.array([3.0]), jnp.array([1.0])
    assert erasing.negative_guidance(concept_, empty, eta=1.0)[0] == -1
    assert erasing.negative_guidance(concept_, empty, eta=2.0, base="concept")[0] == -1  # the same target
    assert erasing.negative_guidance(concept_, empty, eta=2.0)[0] == -3


def test_teachers_target_is_from_two_predictions_and_has_no_gradient():
    z, times = jax.random.normal(KEY, (2, *tiny.SHAPE)), jnp.array([3, 70])
    tokens = jnp.asarray(PROMPTS.concept)

    @once
    def answers(params):
        e = [
            MODEL.predict(params, z, times, MODEL.embed_text(params, t))
            for t in (tokens, jnp.stack([MODEL.nothing] * 2))
        ]
        gradient = jax.grad(lambda p: jnp.sum(erasing.teachers_target(MODEL, p, z, times, tokens, eta=1.5)))(params)
        return erasing.teachers_target(MODEL, params, z, times, tokens, eta=1.5), e, gradient

    found, e, gradient = answers(PARAMS)
    np.testing.assert_allclose(found, e[1] - 1.5 * (e[0] - e[1]), rtol=1e-4, atol=1e-5)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(gradient))


def test_losses_on_images_by_hand_and_without_padding():
    batch = rows([6, 7, 8], weight=[1.0, 1.0, 0.0])

    @once
    def answers(params):
        at = concept.noised(jax.random.split(KEY)[0], MODEL, params, batch.x)
        context = MODEL.embed_text(params, PROMPTS.of_classes(jax.random.split(KEY)[1], batch.y))
        predicted = MODEL.predict(params, at.x, at.times, context)
        empty = MODEL.predict(params, at.x, at.times, MODEL.without_words(params, 3))
        guided = relearning.guided_loss(MODEL, params, at, context, batch, 7.5)
        return at, predicted, empty, guided, concept.denoising(KEY, BOTH, params, batch)

    at, predicted, empty, guided, loss = answers(PARAMS)
    expected = np.mean(np.square(np.asarray(predicted - at.noise)).reshape(3, -1)[:2])
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    kept = MODEL.schedule.kept()[np.asarray(at.times)][:, None, None, None]
    np.testing.assert_allclose(
        at.x, np.sqrt(kept) * (2 * batch.x - 1) + np.sqrt(1 - kept) * at.noise, rtol=1e-4, atol=1e-6
    )

    error = np.asarray(8.5 * predicted - 7.5 * empty - at.noise)
    np.testing.assert_allclose(guided, np.mean(np.square(error).reshape(3, -1)[:2]), rtol=1e-4)


def test_only_the_concepts_side_of_the_anchor_loss_has_a_gradient():
    same = diffusion.Diffusion(MODEL, PROMPTS._replace(anchor=PROMPTS.concept[:1], concept=PROMPTS.concept[:1]))
    value, gradient = once(jax.value_and_grad(lambda p: concept.towards_anchor(KEY, same, p, PAIR.forget)))(PARAMS)
    assert value == 0 and all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(gradient))
    assert once(lambda p: concept.towards_anchor(KEY, BOTH, p, PAIR.forget))(PARAMS) > 0


def test_attention_norm_by_hand():
    words = jnp.array([[False, True], [True, True]])
    layers = (jnp.full((2, 1, 2, 2), 0.5), jnp.full((2, 2, 1, 2), 1.0))
    # 3 marked words: 2 pixels of .25 each in the first layer, 2 heads of 1 each in the second.
    np.testing.assert_allclose(relearning.attention_norm(layers, words), np.sqrt(3 * 0.5 + 3 * 2), rtol=1e-6)


def test_adaptive_weight_is_eta_minus_the_cosine():
    a, b = {"u": jnp.array([3.0, 0.0]), "v": jnp.array([4.0])}, {"u": jnp.array([0.0, 0.0]), "v": jnp.array([2.0])}
    np.testing.assert_allclose(relearning.adaptive_weight(a, b, 1.0), 0.2, rtol=1e-6)
    assert relearning.adaptive_weight(a, b, 0.5) == 0


@pytest.mark.slow
def test_half_of_the_weights_is_salient_and_only_those_move():
    first, second = METHODS["salun"].build(tiny.TASK).phases
    state = jax.jit(first.update)(KEY, first.init(KEY, PARAMS), PAIR, jnp.int32(0))
    marked = first.finalize(KEY, state)
    mask = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(marked.mask)])
    assert mask.sum() == mask.size // 2
    after = second.finalize(KEY, jax.jit(second.update)(KEY, second.init(KEY, marked), PAIR, jnp.int32(0)))
    found, before = tiny.flat(after), tiny.flat(PARAMS)
    for path, keep in marked.mask.items():
        keep = np.asarray(keep)
        np.testing.assert_array_equal(found[path][~keep], before[path][~keep])
        assert (found[path][keep] != before[path][keep]).all()


@pytest.mark.slow
def test_inner_steps_of_erasediff_change_nothing_but_the_moments():
    plain, quirk = (EraseDiff(**COMMON, inner=inner).build(tiny.TASK).phases[0] for inner in ("none", "moments"))
    before = [phase.init(KEY, PARAMS) for phase in (plain, quirk)]
    after = [jax.jit(p.update)(KEY, s, PAIR, jnp.int32(0)) for p, s in zip((plain, quirk), before)]
    moments = [jax.tree.leaves(state.optimizer) for state in after]
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(*moments))
    # Adam's first step goes by the sign alone; with other moments it does not, although the gradient is the same.
    steps = [np.concatenate([np.ravel(s.part[k] - b.part[k]) for k in s.part]) for s, b in zip(after, before)]
    assert np.abs(steps[0]).max() < 0.02 and np.abs(steps[1] - steps[0]).max() > 1e-4


def test_scissorhands_starts_the_most_sensitive_weights_anew():
    method = ScissorHands(**COMMON, share=0.2)
    split = method.split(tiny.TASK)
    part = split.part(KEY, PARAMS)
    sensitivity = {
        p: jnp.abs(jax.random.normal(jax.random.key(n), leaf.shape)) for n, (p, leaf) in enumerate(part.items())
    }
    count = 8
    found = tiny.flat(relearning.trimmed(KEY, PARAMS, sensitivity, split, count, method))
    before = tiny.flat(PARAMS)
    all_of = np.concatenate([np.ravel(s) for s in sensitivity.values()])
    least = np.sort(all_of)[-count]
    for path, values in sensitivity.items():
        chosen = np.asarray(values) >= least
        np.testing.assert_array_equal(found[path][~chosen], before[path][~chosen])
        assert (found[path][chosen] != before[path][chosen]).all()
        if path.endswith("bias"):
            assert (found[path][chosen] == 0).all()
        else:
            assert (np.abs(found[path][chosen]) <= 1 / np.sqrt(np.prod(found[path].shape[:-1]))).all()
    only = dataclasses.replace(method, reinitialised=("attn1",))
    elsewhere = tiny.flat(relearning.trimmed(KEY, PARAMS, sensitivity, split, count, only))
    assert {path for path in elsewhere if (elsewhere[path] != before[path]).any()} <= {
        p for p in before if "attn1" in p
    }


def test_random_contexts_are_of_nearly_the_concepts_length_and_rarely_near_it():
    context = MODEL.embed_text(PARAMS, jnp.asarray(PROMPTS.concept))[0]
    found = erasing.anchors(KEY, context, 4000)
    lengths = np.linalg.norm(np.asarray(found).reshape(4000, -1), axis=1) / np.linalg.norm(context)
    assert 0.8 <= lengths.min() < 0.82 and 1.18 < lengths.max() <= 1.2001
    cosine = np.asarray(found).reshape(4000, -1) @ np.ravel(context) / lengths / np.linalg.norm(context) ** 2
    # Of a symmetric law kept with probability min(1, 1 - c), the mean of c is below 0.
    assert cosine.mean() < -0.01


def test_prefix_goes_between_start_and_words():
    embeddings = jnp.arange(5.0)[None, :, None] * jnp.ones((1, 1, 2))
    found = erasing.with_prefix(embeddings, jnp.full((1, 2, 2), 9.0))
    np.testing.assert_array_equal(found[0, :, 0], [0, 9, 9, 1, 2])


# --- what methods are for ---------------------------------------------------------------------------------------------


def descend(method, steps, start=PARAMS, task=tiny.TASK):
    """The parameters after a phase's ``steps`` steps, in one program."""
    phase = method.build(task).phases[-1]
    batch = PAIR if phase.companion else PAIR._replace(retain=None)

    @jax.jit
    def run(params):
        def step(state, number):
            return phase.update(jax.random.fold_in(KEY, number), state, batch, number), None

        return phase.finalize(KEY, jax.lax.scan(step, phase.init(KEY, params), jnp.arange(steps))[0])

    return run(start)


def distance(params, tokens=PROMPTS.concept):
    """How far a model's noise is from negative guidance by the first one."""
    z, times = jax.random.normal(KEY, (2, *tiny.SHAPE)), jnp.array([10, 60])
    target = erasing.teachers_target(MODEL, PARAMS, z, times, jnp.asarray(tokens), eta=1.0)
    return float(
        jnp.mean(jnp.square(MODEL.predict(params, z, times, MODEL.embed_text(params, jnp.asarray(tokens))) - target))
    )


@pytest.mark.slow
def test_esd_leads_to_its_target():
    params = descend(ESD(steps=150, batch_size=2, rate=0.02, sampling_steps=4), 150)
    assert distance(params) < 0.3 * distance(PARAMS)


@pytest.mark.slow
def test_forget_me_not_looks_away_from_the_words():
    params = descend(ForgetMeNot(steps=60, batch_size=2, rate=0.05, subset="xattn"), 60)
    context = MODEL.embed_text(PARAMS, jnp.asarray(PROMPTS.concept))
    x, times, words = jnp.zeros((2, *tiny.SHAPE)), jnp.array([10, 60]), jnp.asarray(PROMPTS.mask)
    now, then = (relearning.attention_norm(MODEL.attend(p, x, times, context)[1], words) for p in (params, PARAMS))
    assert now < 0.6 * then


@pytest.mark.slow
def test_a_gated_adapter_is_the_merged_one_for_the_concept_and_nothing_for_what_is_unlike_it():
    options = {"steps": 40, "batch_size": 2, "rate": 0.05, "sampling_steps": 4, "warmup": 2, "anchor_weight": 1.0}
    merged, beside = (descend(SPM(**options, gated=g), 40) for g in (False, True))
    x, times = jax.random.normal(KEY, (2, *tiny.SHAPE)), jnp.array([10, 60])
    context = jnp.stack([beside["spm"]["concept"], -beside["spm"]["concept"]])
    found = erasing.gated(MODEL).predict(beside, x, times, context)
    np.testing.assert_allclose(found[0], MODEL.predict(merged, x, times, context)[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], MODEL.predict(PARAMS, x, times, context)[1], rtol=1e-4, atol=1e-5)
    assert np.abs(found[0] - MODEL.predict(PARAMS, x, times, context)[0]).max() > 1e-2
    noise, _ = erasing.gated(MODEL).attend(beside, x, times, context)
    np.testing.assert_allclose(noise, found, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_training_lowers_the_loss_and_hands_on_an_average():
    phase = Denoising(steps=200, batch_size=6, rate=0.02, average=0.05).phase(BOTH, "retain", tiny.RETAIN)
    assert (phase.source, phase.max_steps, phase.epochs) == ("retain", 200, 200)
    everything = ForgetRetain(rows(range(6)), None)

    @jax.jit
    def run(params):
        def step(state, number):
            return phase.update(jax.random.fold_in(KEY, number), state, everything, number), None

        state = jax.lax.scan(step, phase.init(KEY, params), jnp.arange(200))[0]
        return phase.finalize(KEY, state), state.part

    averaged, last = run(PARAMS)

    def loss(params):
        keys = jax.random.split(jax.random.key(9), 40)
        return float(jnp.mean(jax.lax.map(lambda k: concept.denoising(k, BOTH, params, everything.retain), keys)))

    assert loss(averaged) < 0.8 * loss(PARAMS)
    path = "unet.conv_out.weight"
    assert tiny.flat(averaged)[path] != tiny.flat(PARAMS)[path]
    assert tiny.flat(averaged)[path] != last[path]
    np.testing.assert_array_equal(
        averaged["text_encoder"]["final_layer_norm"]["weight"], PARAMS["text_encoder"]["final_layer_norm"]["weight"]
    )


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (ConceptDescent, {"steps": 0}, "steps=0"),
        (ConceptDescent, {"rate": 0.0}, "rate=0.0"),
        (ConceptDescent, {"subset": "attn2"}, "subset='attn2'"),
        (ConceptDescent, {"weight_decay": -1.0}, "weight_decay=-1.0"),
        (ESD, {"eta": 0.0}, "eta=0.0"),
        (ESD, {"sampled_by": "nobody"}, "sampled_by='nobody'"),
        (SPM, {"warmup": 3000}, "warmup=3000 < steps=3000"),
        (AdvUnlearn, {"attack_steps": 0}, "attack_steps=0"),
        (SalUnDiffusion, {"density": 1.5}, "density=1.5 <= 1"),
        (EraseDiff, {"inner": "all"}, "inner='all'"),
        (ScissorHands, {"share": 1.0}, "share=1.0"),
        (ScissorHands, {"away": "up"}, "away='up'"),
        (Denoising, {"average": 2.0}, "average=2.0 <= 1"),
    ],
)
def test_settings_that_are_refused(method, changes, message):
    with pytest.raises(InputError, match=message):
        method(**changes)


def test_a_split_knows_its_paths():
    split = split_of(MODEL, lambda path, leaf: in_subset(path, "xattn"), "xattn")
    assert isinstance(split, Split) and all(".attn2." in path for path in split.chosen)
    params = split.join(split.rest(PARAMS), split.part(KEY, PARAMS))
    jax.tree.map(np.testing.assert_array_equal, params, PARAMS)
