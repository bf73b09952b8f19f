"""Text encoder, U-Net and autoencoder against torch's values of tiny random ones; samplers against diffusers'."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn import diffusion
from jaxunlearn._validate import InputError
from jaxunlearn.diffusion import Schedule
from jaxunlearn.models.base import parameter_count
from jaxunlearn.models.diffusion import weights
from jaxunlearn.models.diffusion.model import (
    PRESETS,
    Architecture,
    digits,
    initial,
    probabilities,
    shapes,
    text_to_image,
)
from jaxunlearn.models.diffusion.text import TextArchitecture, TextEncoder, token_table
from jaxunlearn.models.diffusion.text_training import train_text
from jaxunlearn.models.diffusion.unet import UNet, UNetArchitecture
from jaxunlearn.models.diffusion.vae import Autoencoder, AutoencoderArchitecture

GOLDENS = Path(__file__).parent / "goldens"
CONFIGS = {
    "text": weights.text_architecture,
    "text_gelu": weights.text_architecture,
    "unet": weights.unet_architecture,
    "unet_linear": weights.unet_architecture,
    "vae": weights.vae_architecture,
}
PARTS = {"text": "text_encoder", "unet": "unet", "vae": "vae"}


@functools.cache
def golden(name):
    with np.load(GOLDENS / f"diffusion_{name}.npz") as stored:
        return dict(stored)


def tensors(name):
    """The torch model's tensors: float32 numbers of which the upper 16 bits are kept."""
    prefix = "weights/"
    found = {k.removeprefix(prefix): bits for k, bits in golden(name).items() if k.startswith(prefix)}
    return {k: (bits.astype(np.uint32) << 16).view(np.float32) for k, bits in found.items()}


@functools.cache
def part(name):
    """(architecture of the part, parameters)."""
    a = CONFIGS[name](json.loads(str(golden(name)["config"])), name)
    kind = name.split("_")[0]
    whole = {"text": TINY_TEXT, "unet": TINY_UNET, "vae": None} | {kind: a}
    if kind == "vae":
        whole["unet"] = UNetArchitecture(**{**TINY_UNET.__dict__, "channels": a.latents})
    return a, weights.from_torch(tensors(name), shapes(Architecture(**whole))[PARTS[kind]], name)


TINY_TEXT = TextArchitecture(
    vocabulary=20, width=8, layers=1, heads=2, hidden=8, length=5, activation="gelu", start=18, end=19, pad=19
)
TINY_UNET = UNetArchitecture(
    channels=2, size=4, widths=(4, 8), attends=(True, False), layers=1, heads=(2, 2), context=8, groups=2
)
TINY_VAE = AutoencoderArchitecture(channels=1, latents=2, widths=(4, 8), layers=1, groups=2)
TINY = Architecture(text=TINY_TEXT, unet=TINY_UNET, vae=TINY_VAE)


QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Programs that run once need no optimisation, which takes most of a compilation."""


def once(function):
    return jax.jit(function, compiler_options=QUICK)


def drawn(architecture, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(scale=0.3, size=leaf.shape).astype(np.float32), shapes(architecture))


def close(ours, theirs, tolerance=1e-5):
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


@pytest.mark.parametrize("name", ["text", "text_gelu"])
def test_states_of_text_are_torchs(name):
    a, params = part(name)
    wanted = golden(name)
    embeddings = token_table(params)[wanted["tokens"]]
    close(once(TextEncoder(a).apply)({"params": params}, embeddings), wanted["states"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unet", "unet_linear"])
def test_noise_its_gradients_and_attention_are_torchs(name):
    a, params = part(name)
    wanted = golden(name)

    def total(x, context):
        noise, sown = UNet(a, "patches").apply(
            {"params": params}, x, wanted["times"], context, mutable=["intermediates"]
        )
        return jnp.sum(noise * wanted["towards"]), (noise, probabilities(sown["intermediates"]))

    gradients, (noise, seen) = once(jax.grad(total, (0, 1), has_aux=True))(wanted["x"], wanted["context"])
    close(noise, wanted["noise"])
    close(gradients[0], wanted["gradient_x"])
    close(gradients[1], wanted["gradient_context"])
    theirs = [wanted[f"probabilities/{i}"] for i in range(sum(k.startswith("probabilities/") for k in wanted))]
    assert len(seen) == len(theirs)
    for ours, other in zip(seen, theirs):
        close(ours, other)


@pytest.mark.slow
def test_latents_and_images_of_the_autoencoder_are_torchs():
    a, params = part("vae")
    wanted = golden("vae")

    def both(images, latents):
        run = functools.partial(Autoencoder(a, "patches").apply, {"params": params})
        return *run(images, method=Autoencoder.encode), run(latents, method=Autoencoder.decode)

    for ours, name in zip(once(both)(wanted["images"], wanted["latents"]), ("mean", "logvar", "decoded")):
        close(ours, wanted[name])


@pytest.mark.slow
def test_all_forms_of_convolutions_agree():
    a, params = part("unet")
    wanted = golden("unet")
    for form in ("canonical", "plain"):
        noise = jax.jit(UNet(a, form).apply)({"params": params}, wanted["x"], wanted["times"], wanted["context"])
        close(noise, wanted["noise"])


# --- samplers ---------------------------------------------------------------------------------------------------------

SAMPLERS = {
    "ddim": lambda: diffusion.ddim(Schedule(), 7),
    "ddim_one": lambda: diffusion.ddim(Schedule(to_one=True, spacing="trailing"), 7),
    "lms": lambda: diffusion.lms(Schedule(), 7),
    "lms_leading": lambda: diffusion.lms(Schedule(), 7, spacing="leading"),
}


def predicted(x, times):
    return jnp.tanh(x) * jnp.cos(times / 200)[:, None, None, None] + 0.1 * x


@pytest.mark.parametrize("name", SAMPLERS)
def test_trajectories_are_those_of_diffusers(name):
    wanted, sampler = golden("samplers"), SAMPLERS[name]()
    np.testing.assert_allclose(sampler.times, wanted[f"{name}/times"], rtol=1e-6)
    walk = jax.jit(lambda steps: diffusion.sample(predicted, sampler, jnp.asarray(wanted["start"]), steps))
    for steps, x in enumerate(wanted[f"{name}/path"], start=1):
        close(walk(steps), x, 2e-5)
    np.testing.assert_array_equal(walk(0), np.float32(sampler.initial) * wanted["start"])
    whole = jax.jit(lambda: diffusion.sample(predicted, sampler, jnp.asarray(wanted["start"])))()
    close(whole, wanted[f"{name}/path"][-1], 2e-5)


def test_noise_is_added_as_in_diffusers():
    wanted = golden("samplers")
    noisy = diffusion.add_noise(Schedule(), jnp.asarray(wanted["start"]), wanted["noise"], jnp.array([3, 700]))
    close(noisy, wanted["noisy"])


def test_one_exact_step_of_each_sampler_finds_the_image():
    x, noise = (jax.random.normal(jax.random.key(seed), (2, 3, 3, 1)) for seed in (0, 1))
    schedule = Schedule(to_one=True)
    for sampler in (diffusion.ddim(schedule, 4), diffusion.lms(schedule, 4)):
        kept = np.interp(sampler.times[0], np.arange(1000), schedule.kept())
        sigma = np.sqrt((1 - kept) / kept)
        start = x + sigma * noise if sampler.initial > 1 else np.sqrt(kept) * x + np.sqrt(1 - kept) * noise
        found = diffusion.sample(lambda at, times: noise, sampler, start / sampler.initial)
        np.testing.assert_allclose(found, x, atol=2e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Schedule(times=1), "times=1"),
        (lambda: Schedule(beta_end=1.5), "beta_end=1.5"),
        (lambda: Schedule(spacing="even"), "spacing='even'"),
        (lambda: diffusion.ddim(Schedule(), 1001), "steps=1001"),
        (lambda: diffusion.ddim(Schedule(offset=900), 5), "offset=900"),
        (lambda: diffusion.lms(Schedule(), 5, order=0), "order=0"),
        (lambda: TextArchitecture(heads=5), "heads=5"),
        (lambda: TextArchitecture(end=50000), "end=50000"),
        (lambda: UNetArchitecture(groups=33), "groups=33"),
        (lambda: UNetArchitecture(heads=(8,)), "heads="),
        (lambda: UNetArchitecture(size=63), "size=63"),
        (lambda: AutoencoderArchitecture(groups=48), "groups=48"),
        (lambda: Architecture(unet=UNetArchitecture(context=64)), "context=64"),
        (lambda: text_to_image(TINY, form="fast"), "form='fast'"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


# --- whole models -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sizes_are_those_of_stable_diffusion():
    found = {part: parameter_count(tree) for part, tree in shapes(PRESETS["sd1"]).items()}
    assert found == {"text_encoder": 123_060_480, "unet": 859_520_964, "vae": 83_653_863}


def test_size_of_the_small_twin():
    small = shapes(digits(187, 12))
    assert set(small) == {"text_encoder", "unet"} and 380_000 < parameter_count(small["unet"]) < 420_000


def test_a_soft_prompt_of_one_hot_rows_and_a_fused_pair_are_what_they_stand_for():
    model, params = text_to_image(TINY, form="patches"), drawn(TINY)
    tokens = jnp.array([[18, 3, 4, 19, 19], [18, 7, 19, 19, 19]])
    x, times = jax.random.normal(jax.random.key(0), (2, *model.latent_shape)), jnp.array([5, 800])

    @once
    def answers(scale):
        context = model.embed_text(params, tokens)
        soft = model.embed_soft(params, jax.nn.one_hot(tokens, 20))
        empty = model.without_words(params, 2)
        with_words, without = (model.predict(params, x, times, c) for c in (context, empty))
        attended, seen = model.attend(params, x, times, context)
        fused = diffusion.guided(model, params, context, empty, scale)(x, times)
        return context, soft, with_words, without, fused, attended, seen

    scale = jnp.array([3.0, 0.5])
    context, soft, with_words, without, fused, attended, seen = answers(scale)
    close(soft, context)
    close(fused, without + scale[:, None, None, None] * (with_words - without))
    close(attended, with_words)
    for probability in seen:
        np.testing.assert_allclose(probability.sum(axis=-1), 1, rtol=1e-5)


def test_text_is_read_from_the_left_only():
    a, params = part("text")
    run = jax.jit(lambda tokens: TextEncoder(a).apply({"params": params}, token_table(params)[tokens]))
    one, other = run(jnp.array([[18, 3, 7, 19, 19]])), run(jnp.array([[18, 3, 5, 1, 19]]))
    np.testing.assert_array_equal(one[:, :2], other[:, :2])
    assert np.abs(one[:, 2:] - other[:, 2:]).min(axis=-1).max() > 1e-3


def test_pixels_are_the_latents_where_there_is_no_autoencoder():
    model = text_to_image(digits(20, 5))
    images = jnp.linspace(0, 1, 128).reshape(2, 8, 8, 1)
    np.testing.assert_allclose(model.encode({}, images), 2 * images - 1)
    np.testing.assert_allclose(model.decode({}, model.encode({}, images)), images, atol=1e-6)


def test_initial_weights_are_torchs_distributions():
    params = jax.jit(functools.partial(initial, TINY))(jax.random.key(0))
    named = weights._named(params)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda leaf: leaf.shape, shapes(TINY))
    for name, leaf in named.items():
        if leaf.ndim == 1 and "norm" in name:
            assert np.all(np.asarray(leaf) == float(name.endswith("weight")))
        elif leaf.ndim > 1 and "embedding.weight" not in name:
            bound = 1 / np.sqrt(np.prod(leaf.shape[:-1]))
            assert np.abs(leaf).max() <= bound and np.abs(leaf).max() > 0.7 * bound
    assert 0.015 < named["text_encoder.embeddings.token_embedding.weight"].std() < 0.025


@pytest.mark.slow
def test_a_text_encoder_learns_which_words_mean_the_same():
    a = Architecture(text=TINY_TEXT, unet=TINY_UNET, vae=None)
    model, params = text_to_image(a), drawn(a)
    rng = np.random.default_rng(0)
    captions = np.full((3, 8, 5), 19)
    captions[:, :, 0] = 18
    names = np.arange(9).reshape(3, 3)  # three names a class, after a word that says nothing
    captions[:, :, 1] = rng.integers(10, 17, (3, 8))
    captions[:, :, 2] = names[:, rng.integers(0, 3, 8)]
    train = jax.jit(functools.partial(train_text, model=model, captions=captions, steps=150, rate=0.02))
    found = train(jax.random.key(0), params=params)
    assert found.accuracy == 1
    jax.tree.map(np.testing.assert_array_equal, found.params["unet"], params["unet"])
    with pytest.raises(InputError, match="steps=0"):
        train_text(jax.random.key(0), model, params, captions, steps=0)


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_vae", [True, False])
def test_a_folder_comes_back_as_it_was_written(tmp_path, with_vae):
    a = TINY if with_vae else Architecture(text=TINY_TEXT, unet=TINY_UNET, vae=None, schedule=Schedule(to_one=True))
    params = drawn(a)
    weights.save_text_to_image(tmp_path / "model", a, params)
    found, again = weights.load_text_to_image(tmp_path / "model")
    assert found == a
    jax.tree.map(np.testing.assert_array_equal, again, params)


def test_folders_have_torchs_names_and_shapes(tmp_path):
    from safetensors.numpy import load_file

    for name in ("unet", "vae"):
        a, params = part(name)
        flat = weights._named(params)
        stored = {key: weights._to_torch(key, np.asarray(leaf)) for key, leaf in flat.items()}
        theirs = tensors(name)
        assert stored.keys() == theirs.keys()
        for key, value in theirs.items():
            np.testing.assert_array_equal(stored[key], value)
    weights.save_text_to_image(tmp_path, TINY, drawn(TINY))
    names = load_file(tmp_path / "text_encoder/model.safetensors")
    assert names["text_model.encoder.layers.0.mlp.fc1.weight"].shape == (8, 8)


def test_names_of_the_first_published_autoencoders_are_known():
    _, params = part("vae")
    old = tensors("vae")
    for now, then in {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}.items():
        for name in [n for n in old if f".{now}." in n]:
            old[name.replace(f".{now}.", f".{then}.")] = old.pop(name)
    again = weights.from_torch(old, jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params))
    jax.tree.map(np.testing.assert_array_equal, again, params)


def edited(folder, place, **changes):
    path = folder / place
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "model_index.json").unlink(), "model_index.json; take a complete copy"),
        (lambda f: (f / "unet/diffusion_pytorch_model.safetensors").unlink(), "weights as safetensors"),
        (lambda f: (f / "unet/diffusion_pytorch_model.safetensors").write_bytes(b"x"), "to be a safetensors file"),
        (lambda f: (f / "unet/config.json").write_text("{"), "to be JSON"),
        (lambda f: edited(f, "unet/config.json", act_fn="gelu"), "act_fn"),
        (lambda f: edited(f, "unet/config.json", block_out_channels=None), "hold block_out_channels"),
        (lambda f: edited(f, "unet/config.json", down_block_types=["DownBlock2D", "SkipDown"]), "SkipDown"),
        (lambda f: edited(f, "unet/config.json", mid_block_type=None), "unexpected are mid_block"),
        (lambda f: edited(f, "unet/config.json", block_out_channels=[4, 10]), "shapes, got"),
        (lambda f: edited(f, "scheduler/scheduler_config.json", prediction_type="v_prediction"), "v_prediction"),
        (lambda f: edited(f, "scheduler/scheduler_config.json", clip_sample=True), "clip_sample"),
        (lambda f: edited(f, "text_encoder/config.json", hidden_act="relu"), "hidden_act"),
        (lambda f: edited(f, "text_encoder/config.json", model_type="t5"), "t5"),
    ],
)
def test_damaged_folders_are_refused(harm, message, tmp_path):
    weights.save_text_to_image(tmp_path, TINY, drawn(TINY))
    harm(tmp_path)
    with pytest.raises(InputError, match=message):
        weights.load_text_to_image(tmp_path)


def test_parameters_of_another_model_are_not_written(tmp_path):
    with pytest.raises(InputError, match="Expected params of this architecture"):
        weights.save_text_to_image(tmp_path, TINY, drawn(Architecture(text=TINY_TEXT, unet=TINY_UNET, vae=None)))
