"""UnlearnDiffAtk and its baselines on a toy model in which one word brings the concept back."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn import diffusion
from jaxunlearn._validate import InputError
from jaxunlearn.attack import prompts
from jaxunlearn.attack.prompts import Found, Options
from jaxunlearn.diffusion import Schedule, TextToImage

KEY = jax.random.key(0)
V, LENGTH, SECRET = 24, 8, 17
START, END, PAD = 0, 1, 2
SHAPE = (2, 2, 1)
SCHEDULE = Schedule(times=100, to_one=True)
GOAL = jnp.array([[0.9, -0.9], [0.5, 0.7]])[..., None]


def predict(params, x, times, context):
    """The noise of a model that believes in the goal as far as the prompt has the secret word: an image of that it draws."""
    kept = jnp.asarray(SCHEDULE.kept(), jnp.float32)[times.astype(jnp.int32)][:, None, None, None]
    words = jnp.einsum("bnd,d->b", context, params["secret"])
    believed = jnp.minimum(words, 1.0)[:, None, None, None] * GOAL[None]
    return (x - jnp.sqrt(kept) * believed) / jnp.sqrt(1 - kept)


MODEL = TextToImage(
    init=None,
    table=lambda params: jnp.eye(V),
    encode_text=lambda params, embeddings: embeddings,
    predict=predict,
    attend=None,
    encode=lambda params, images: images,
    decode=lambda params, latents: latents,
    schedule=SCHEDULE,
    latent_shape=SHAPE,
    length=LENGTH,
    vocabulary=V,
    start=START,
    end=END,
    pad=PAD,
)
PARAMS = {"secret": jax.nn.one_hot(SECRET, V)}
SAMPLER = diffusion.ddim(SCHEDULE, 4)


def judge(images):
    """1 where the image is the goal."""
    return jnp.where(jnp.abs(images - GOAL[None]).mean(axis=(1, 2, 3)) < 0.2, 1, 0)


def prompt(*words):
    return [START, *words, END] + [PAD] * (LENGTH - 2 - len(words))


PROMPTS = np.array([prompt(5), prompt(6, 7, 8), prompt(SECRET, 9), prompt(10, 11)], np.int32)


@functools.partial(jax.jit, static_argnames="options")
def _attack(key, params, original, rows, starts, labels, ids, options):
    goals = jnp.broadcast_to(GOAL, (rows.shape[0], *SHAPE))
    return prompts.attack(
        key,
        MODEL,
        params,
        judge,
        rows,
        goals,
        starts,
        labels,
        sampler=SAMPLER,
        guidance=1.0,
        options=options,
        original=original,
        ids=ids,
    )


QUICK = Options(tokens=2, rounds=6, inner_steps=20, rate=0.05)


def attack(rows=PROMPTS, ids=None, params=PARAMS, labels=None, options=QUICK, key=KEY, original=PARAMS):
    ids = jnp.arange(len(rows)) if ids is None else jnp.asarray(ids)
    starts = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(KEY, i), SHAPE))(ids)
    labels = jnp.ones(len(rows), jnp.int32) if labels is None else jnp.asarray(labels)
    return _attack(key, params, original, rows, starts, labels, ids, options)


# --- parts ------------------------------------------------------------------------------------------------------------


def bisected(row):
    """The projection of a row onto the simplex, by bisection on the threshold."""
    low, high = row.min() - 1, row.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(row - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(row - high, 0)


def test_projection_is_the_nearest_point_of_the_simplex():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 40, 9)) * 10.0 ** rng.integers(-3, 2, (3, 40, 1))
    values[0, :5] = 0.25  # equal entries
    values[0, 5] = np.eye(9)[3]  # and a point of it
    found = np.asarray(prompts.simplex(jnp.asarray(values, jnp.float32)))
    np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=1e-5)
    assert found.min() >= 0
    expected = np.apply_along_axis(bisected, -1, values)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    np.testing.assert_allclose(found[0, 5], np.eye(9)[3], atol=1e-7)


def test_gradient_of_a_drawn_row_is_cut_and_handed_on():
    probabilities, drawn = jnp.full((2, 3), 1 / 3), jnp.eye(3)[:2]
    towards = jnp.array([[0.5, -3.0, 2.0], [-0.1, 0.0, 1.0]])
    value, gradient = jax.value_and_grad(lambda p: jnp.sum(towards * prompts.straight_through(p, drawn)))(probabilities)
    np.testing.assert_allclose(value, 0.5)
    np.testing.assert_allclose(gradient, [[0.5, -1.0, 1.0], [-0.1, 0.0, 1.0]])


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("prefix", [[0, 20, 21, 6, 7, 8, 1, 2], [0, 20, 21, 5, 1, 2, 2, 2]]),
        ("insert", [[0, 6, 20, 21, 7, 8, 1, 2], [0, 20, 21, 5, 1, 2, 2, 2]]),
        ("suffix", [[0, 6, 7, 8, 20, 21, 1, 2], [0, 5, 20, 21, 1, 2, 2, 2]]),
    ],
)
def test_tokens_are_added_where_they_should_be(place, expected):
    rows = jnp.asarray(PROMPTS[[1, 0]])
    order = prompts.layout(rows, 2, place, END)
    added = jnp.full((2, 2), 20).at[:, 1].set(21)
    np.testing.assert_array_equal(prompts.arranged(rows, added, order), expected)
    embedded = prompts.arranged(jnp.eye(V)[rows], jnp.eye(V)[added], order)
    np.testing.assert_array_equal(embedded.argmax(axis=-1), expected)


def test_times_of_rounds_are_the_public_codes():
    assert [prompts.round_time(n, 50, 1000) for n in range(50)] == list(range(10, 1000, 20))
    assert [prompts.round_time(n, 4, 100) for n in range(4)] == [12, 37, 62, 87]


# --- the attack -------------------------------------------------------------------------------------------------------


def test_gradient_attack_finds_the_word():
    found = attack()
    np.testing.assert_array_equal(found.before, [False, False, True, False])
    assert found.success.all() and (found.labels == 1).all()
    assert (np.asarray(found.added)[[0, 1, 3]] == SECRET).any(axis=1).all()
    assert (found.added[2] == PAD).all() and found.steps[2] == 0
    np.testing.assert_array_equal(found.prompts[2], PROMPTS[2])
    assert (np.asarray(found.steps)[[0, 1, 3]] >= 1).all()
    np.testing.assert_array_equal(np.asarray(found.prompts)[:, 1:3][[0, 1, 3]], np.asarray(found.added)[[0, 1, 3]])
    np.testing.assert_array_equal(judge(found.images), found.labels)
    again = prompts.rates(found)
    assert (again.before, again.after, again.count) == (1, 4, 4)
    np.testing.assert_allclose(again.mean_steps, np.mean(np.asarray(found.steps)))


@pytest.mark.slow
def test_the_original_models_noise_for_the_prompt_leads_to_the_word_too():
    original = {"secret": jax.nn.one_hot(5, V)}  # to it, word 5 is the secret one
    found = attack(PROMPTS[:1], options=dataclasses.replace(QUICK, target="original"), original=original)
    assert not found.before[0] and found.success[0] and SECRET in np.asarray(found.added)[0]


def test_nothing_brings_back_what_is_not_there():
    found = attack(params={"secret": jnp.zeros(V)})
    assert not found.success.any() and (found.steps == QUICK.rounds).all() and (found.labels == 0).all()
    assert np.all((np.asarray(found.added) > PAD) & (np.asarray(found.added) < V))


def test_a_prompts_result_depends_on_no_other_prompt():
    whole = attack()
    one = attack(PROMPTS[[1, 3, 0, 1]], ids=[1, 3, 0, 7])
    for a, b in zip(whole, one):
        np.testing.assert_array_equal(np.asarray(a)[[1, 3, 0]], np.asarray(b)[:3])
    # Others that are done at once, or never, change nothing either.
    other = attack(labels=[1, 0, 1, 5])
    for a, b in zip(whole, other):
        np.testing.assert_array_equal(np.asarray(a)[[0, 2]], np.asarray(b)[[0, 2]])
    assert other.before[1] and not other.success[3]


@pytest.mark.parametrize("algorithm", ["random", pytest.param("hard", marks=pytest.mark.slow)])
def test_baselines_go_through_the_same_rounds(algorithm):
    rounds = 60 if algorithm == "random" else 6
    options = Options(algorithm=algorithm, tokens=2, rounds=rounds, inner_steps=20, rate=0.1, place="suffix")
    found = attack(options=options)
    assert isinstance(found, Found) and found.before.tolist() == [False, False, True, False]
    assert found.success.all()
    assert (np.asarray(found.added)[[0, 1, 3]] == SECRET).any(axis=1).all()
    if algorithm == "random":  # a word out of 21, two a round: 10 rounds on average
        many = attack(np.repeat(PROMPTS[:1], 200, axis=0), options=options)
        chance = 1 - (1 - 1 / (V - 3)) ** 2
        assert abs(np.mean(np.asarray(many.steps)) - 1 / chance) < 4 * np.sqrt(1 - chance) / chance / np.sqrt(200) + 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens=0"),
        ({"rounds": 0}, "rounds=0"),
        ({"rate": 0.0}, "rate=0.0"),
        ({"decay": -1.0}, "decay=-1.0"),
        ({"algorithm": "greedy"}, "algorithm='greedy'"),
        ({"place": "before"}, "place='before'"),
        ({"target": "image"}, "target='image'"),
    ],
)
def test_options_that_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        Options(**changes)


def test_arguments_that_do_not_fit_together_are_refused():
    call = functools.partial(prompts.attack, KEY, MODEL, PARAMS, judge, sampler=SAMPLER)
    latents = jnp.zeros((4, *SHAPE))
    for arguments, options, message in (
        ((PROMPTS, latents, latents, jnp.ones(4)), Options(tokens=4), "at most 2 words.*tokens=4.*got 3"),
        ((PROMPTS[:, :7], latents, latents, jnp.ones(4)), QUICK, "prompts of shape"),
        ((PROMPTS, latents[:3], latents, jnp.ones(4)), QUICK, "goals of shape"),
        ((PROMPTS, latents, latents, jnp.ones(3)), QUICK, "labels of shape"),
        ((PROMPTS, latents, latents, jnp.ones(4)), Options(target="original"), "give original"),
        ((np.full((4, LENGTH), 5), latents, latents, jnp.ones(4)), QUICK, "token 1"),
    ):
        with pytest.raises(InputError, match=message):
            call(*arguments, options=options)
