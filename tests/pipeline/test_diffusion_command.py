"""``jaxunlearn robustness digits-diffusion`` on a tiny model: what it writes can be checked by others, and is made once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn import cli
from jaxunlearn._paths import as_path
from jaxunlearn._validate import InputError
from jaxunlearn.attack.prompts import Options
from jaxunlearn.config import DiffusionMethods, Training, diffusion_methods, resolve_method
from jaxunlearn.data import captions
from jaxunlearn.diffusion import ddim, guided, sample
from jaxunlearn.pipeline.diffusion import measure, run
from jaxunlearn.pipeline.diffusion.config import Encoder, Hard, TextToImageRobustness, identity, original_identity
from jaxunlearn.pipeline.diffusion.encoder import readout, train_encoder
from jaxunlearn.pipeline.diffusion.presets import PRESETS, expected
from jaxunlearn.pipeline.diffusion.stages import NOTHING, verdicts
from jaxunlearn.pipeline.diffusion.study import build
from jaxunlearn.pipeline.seeds import RETRAINING
from jaxunlearn.records import read_json, read_npz
from jaxunlearn.robustness import RobustnessRecord
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.concept import Denoising
from jaxunlearn.unlearn.relearning import ForgetMeNot

pytestmark = pytest.mark.usefixtures("quickly_compiled")  # to compile is what costs here

SMALL = TextToImageRobustness(
    methods=("fmn",),
    seeds=1,
    encoder=Encoder(steps=2, batch_size=8),
    training=Denoising(steps=3, batch_size=8),
    judge=Training(epochs=1, batch_size=512, descent=SGD(peak=0.1)),
    sampling_steps=2,
    prompts=3,
    retained=2,
    attack=Options(rounds=2, inner_steps=1),
    hard=Hard(inner_steps=1),
    at_once=2,
    method=DiffusionMethods(fmn=ForgetMeNot(steps=1, batch_size=8, subset="xattn", rate=1e-3)),
    quiet=True,
)
CONDITIONS = ["clean", "random prefix", "hard prompt", "gradient"]


@pytest.fixture(scope="module")
def study(quickly_compiled):
    return build(SMALL, jax.devices()[:1])


@pytest.fixture(scope="module")
def finished(tmp_path_factory, quickly_compiled):
    directory = as_path(tmp_path_factory.mktemp("drawing") / "run")
    return run.run(dataclasses.replace(SMALL, out=directory))


def record_of(directory, method):
    return RobustnessRecord.from_json(read_json(directory / method / "robustness.json"))


def test_the_retain_set_has_no_image_of_the_concept_and_prompts_name_what_their_labels_say(study):
    digits, tables = study.digits, study.digits.tables
    assert set(digits.y[: digits.retain]) == set(range(1, 10)) and set(digits.y[digits.retain :]) == {0}
    assert digits.attacked == 3 and list(digits.labels) == [0] * 3 + [d for d in range(1, 10) for _ in range(2)]
    for row, label in zip(digits.prompts, digits.labels):
        assert any(np.array_equal(row, caption) for caption in tables.captions[label])
    assert len(np.unique(digits.prompts, axis=0)) == len(digits.prompts)
    again = build(dataclasses.replace(SMALL, seed=1), jax.devices()[:1]).digits
    assert not np.array_equal(again.prompts[:3], digits.prompts[:3])
    assert not np.array_equal(again.starts, digits.starts)


def test_retraining_covers_the_retain_set_from_new_weights(study):
    factory, _ = resolve_method("retrain", SMALL.method)
    made = factory(study.info)
    assert made.from_scratch and [phase.source for phase in made.phases] == ["retain"]
    assert study.info.retain_size == study.digits.retain


def test_what_is_said_of_images_that_are_not_finite():
    logits = jnp.array([[0.0, 2.0, 1.0], [jnp.nan, 0.0, 0.0], [3.0, 0.0, 0.0]])
    assert list(np.asarray(verdicts(logits))) == [1, NOTHING, 0]


def test_metrics_by_hand(study):
    n, digits = 3, study.digits
    logits = np.zeros((2, len(digits.labels), 10))
    logits[:, np.arange(len(digits.labels)), digits.labels] = 1
    logits[1, 0], logits[1, n], logits[1, n + 1] = np.eye(10)[5], np.eye(10)[0], np.eye(10)[0]
    arrays = {
        "logits": logits,
        "success": np.array([[[1, 1, 0]] * 2 + [[1, 1, 1]], [[0, 0, 0]] * 3], bool),
        "steps": np.array([[[0, 2, 2], [0, 0, 2], [0, 1, 2]], [[2, 2, 2]] * 3]),
    }
    real = np.random.default_rng(0).normal(size=(50, 10))
    found = {m.name: m for m in measure.metrics(study, arrays, real)}
    np.testing.assert_allclose(found["asr"].values, [[1, 2 / 3], [2 / 3, 0], [2 / 3, 0], [1, 0]])
    assert found["asr"].count == 3 and found["retained"].count == 18
    np.testing.assert_allclose(found["retained"].values[0], [1, 16 / 18])
    assert found["steps"].values[0] == [] and found["retained"].values[1:] == [[], [], []]
    np.testing.assert_allclose(found["steps"].values[1:], [[4 / 3, 2], [2 / 3, 2], [1, 2]])


def test_all_settings_that_results_depend_on_are_held_to():
    data = {"train": 1}
    free = {"out", "quiet", "methods", "method", "at_once"}
    held = set(identity(SMALL, data)) - {"data"}
    assert held == {field.name for field in dataclasses.fields(SMALL)} - free
    trained = set(original_identity(SMALL, data))
    assert {"training", "encoder", "concept", "seed"} <= trained and "attack" not in trained


def test_conditions_and_the_baselines_options():
    assert SMALL.conditions == CONDITIONS
    random, hard, gradient = SMALL.attacks.values()
    assert (random.algorithm, hard.algorithm, gradient.algorithm) == ("random", "hard", "gradient")
    assert (hard.inner_steps, hard.rate) == (1, 0.1) and random.rounds == hard.rounds == gradient.rounds == 2


@pytest.mark.parametrize(
    "change, said",
    [
        ({"concept": 10}, "concept=10"),
        ({"prompts": 61}, "prompts=61"),
        ({"methods": ("fmn", "fmn")}, "without repetition"),
        ({"attack": Options(algorithm="hard")}, "attack.algorithm"),
        ({"retained": 1}, "retained"),
    ],
)
def test_settings_that_are_refused(change, said):
    with pytest.raises(InputError, match=said):
        dataclasses.replace(SMALL, **change)


def test_bands_are_of_the_preset_alone():
    _, preset = PRESETS["digits-diffusion"]
    assert preset.method == diffusion_methods("digits")
    assert expected(dataclasses.replace(preset, seed=3, seeds=5), "esd-x") == expected(preset, "esd-x")
    assert expected(dataclasses.replace(preset, guidance=3.0), "esd-x") == []


@pytest.mark.slow
def test_the_text_encoder_learns_to_tell_captions_apart_and_junk_stays(study):
    diffusion = study.diffusion
    key = jax.random.key(3)
    made = train_encoder(key, diffusion, Encoder(steps=60, batch_size=64))
    table = made["embeddings"]["token_embedding"]["weight"]
    drawn = diffusion.model.init(jax.random.split(key, 3)[0])["text_encoder"]["embeddings"]["token_embedding"]["weight"]
    junk = captions.vocabulary().ids("river")
    np.testing.assert_allclose(table[junk], np.asarray(drawn)[junk], atol=1e-6)
    tokens = np.asarray(diffusion.prompts.captions).reshape(-1, captions.LENGTH)
    states = readout(diffusion.model, {"text_encoder": made}, jnp.eye(64), tokens)
    classes = np.repeat(np.arange(10), 60)
    centres = np.stack([np.asarray(states)[classes == c].mean(axis=0) for c in range(10)])
    nearest = np.argmin(((np.asarray(states)[:, None] - centres) ** 2).sum(-1), axis=1)
    assert np.mean(nearest == classes) > 0.9


@pytest.mark.slow
def test_what_is_written_can_be_drawn_again(finished):
    targets = read_npz(finished / "targets.npz", sealed=True)
    arrays = read_npz(finished / "fmn" / "attacked.npz", sealed=True)
    record, original = record_of(finished, "fmn"), record_of(finished, "original")
    assert list(arrays["conditions"]) == CONDITIONS == record.conditions and record.task == "text-to-image"
    assert arrays["prompts"].shape == (1, 3, 3, 12) and arrays["images"].shape == (1, 3, 3, 8, 8, 1)
    np.testing.assert_allclose([row[0] for row in record.metric("asr").values[1:]], arrays["success"][0].mean(axis=1))
    np.testing.assert_allclose([row[0] for row in record.metric("steps").values[1:]], arrays["steps"][0].mean(axis=1))
    assert len(original.metric("asr").values[0]) == 1 and original.metric("asr").values[1:] == [[], [], []]
    assert (arrays["steps"][~arrays["success"]] == 2).all() and (arrays["steps"][arrays["before"]] == 0).all()

    study = build(dataclasses.replace(SMALL, out=finished), jax.devices()[:1])
    work = run.Unlearning(study, "fmn", run.Method(*_method(study)), finished / "fmn", None, None)
    params, _ = work.unlearned(0, slice(0, 1), None)
    params = jax.tree.map(lambda a: jnp.asarray(a)[0], params)
    model, tokens = study.diffusion.model, arrays["prompts"][0, 2]
    context, empty = model.embed_text(params, tokens), model.without_words(params, 3)
    predict = guided(model, params, context, empty, SMALL.guidance)
    drawn = model.decode(params, sample(predict, ddim(model.schedule, 2), targets["starts"][:3]))
    np.testing.assert_allclose(drawn, arrays["images"][0, 2], atol=1e-4)
    said = np.asarray(verdicts(study.judge.apply(study.fixed["judge"], drawn)))
    np.testing.assert_array_equal(said, arrays["said"][0, 2])
    np.testing.assert_array_equal(said == 0, arrays["success"][0, 2])
    moved = [not np.array_equal(a, b[0]) for a, b in zip(*map(jax.tree.leaves, _text(study, params)))]
    assert not any(moved)


def _method(study):
    factory, settings = resolve_method("fmn", SMALL.method)
    return factory, settings, factory(study.info)


def _text(study, params):
    """The text encoder of an unlearned model, and that of fresh initial weights."""
    return params["text_encoder"], study.initial(slice(0, 1), RETRAINING)["text_encoder"]


@pytest.mark.slow
def test_the_same_command_reads_a_lost_result_is_made_again_and_other_settings_are_refused(finished, capsys):
    config = dataclasses.replace(SMALL, out=finished)
    path = finished / "fmn" / "attacked.npz"
    content, written = path.read_bytes(), path.stat().st_mtime_ns
    run.run(config)
    assert path.stat().st_mtime_ns == written
    with pytest.raises(InputError, match="guidance"):
        run.run(dataclasses.replace(config, guidance=3.0))
    assert cli.main(["status", str(finished)]) == 0
    assert "ASR clean" in capsys.readouterr().out
    path.write_bytes(content[:500] + b"x" + content[501:])
    with pytest.raises(SystemExit):
        cli.main(["status", str(finished)])
    assert "damaged" in capsys.readouterr().out
    run.run(config)
    assert path.read_bytes() == content
