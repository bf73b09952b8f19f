"""The whole of ``jaxunlearn robustness digits-inpainting`` on a tiny model: what it writes can be checked by others."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from jaxunlearn import cli
from jaxunlearn._paths import as_path
from jaxunlearn._validate import InputError
from jaxunlearn.attack.mapping import Options
from jaxunlearn.config import AutoencoderMethods, Training
from jaxunlearn.metrics.images import frechet_distance
from jaxunlearn.models.mae import ARCHITECTURES
from jaxunlearn.pipeline.inpainting import run
from jaxunlearn.pipeline.inpainting.config import Inpainting, original_identity
from jaxunlearn.pipeline.inpainting.load import load_models
from jaxunlearn.pipeline.inpainting.measure import pictures
from jaxunlearn.pipeline.inpainting.presets import PRESETS, expected
from jaxunlearn.pipeline.inpainting.study import build
from jaxunlearn.pipeline.judge import JudgeOptions
from jaxunlearn.records import read_json, read_npz
from jaxunlearn.robustness import RobustnessRecord
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.inpainting import I2I, Pretraining, SalUnInpainting, VisionAdamW

pytestmark = pytest.mark.usefixtures("quickly_compiled")

TINY = dataclasses.replace(
    ARCHITECTURES["digits"],
    width=8,
    depth=1,
    heads=2,
    mlp=8,
    decoder_width=8,
    decoder_depth=1,
    decoder_heads=2,
    decoder_mlp=8,
)
SMALL = Inpainting(
    dataset="digits",
    model=TINY,
    methods=("retrain", "i2i"),
    seeds=2,
    epsilons=(8.0, math.inf),
    attack=Options(steps=3, relative_step=0.5, batch_size=16),
    unbounded_step=0.1,
    attacked=12,
    judge=JudgeOptions(model="mlp", features=16, training=Training(epochs=10, batch_size=64, descent=SGD(peak=0.1))),
    training=Pretraining(steps=6, batch_size=64),
    method=AutoencoderMethods(
        i2i=I2I(steps=3, batch_size=32, descent=VisionAdamW(peak=1e-2)),
        salun=SalUnInpainting(steps=2, batch_size=32),
    ),
    quiet=True,
)


def record_of(directory, method):
    return RobustnessRecord.from_json(read_json(directory / method / "robustness.json"))


def arrays_of(directory, method="i2i"):
    return read_npz(directory / method / "attacked.npz", sealed=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, quickly_compiled):
    directory = as_path(tmp_path_factory.mktemp("inpainting") / "run")
    return run.run(dataclasses.replace(SMALL, out=directory), devices=jax.devices()[:2])


@pytest.fixture(scope="module")
def targets(finished):
    return read_npz(finished / "targets.npz", sealed=True)


def hidden_pixels(targets):
    """[n, n] bool: which pixels the mask hides."""
    return np.kron(targets["mask"], np.ones((TINY.patch, TINY.patch))).astype(bool)


@pytest.mark.slow
def test_probes_are_what_they_are_said_to_be(targets):
    groups, labels = targets["groups"], targets["labels"]
    assert [list(groups).count(g) for g in ("forgotten", "unseen", "retained")] == [12, 12, 12]
    assert (labels[groups != "retained"] < 5).all() and (labels[groups == "retained"] >= 5).all()
    np.testing.assert_array_equal(targets["is_member"], groups == "forgotten")
    study = build(SMALL)
    data = study.images.data
    for group, x, y in (
        ("forgotten", data.x, data.y),
        ("unseen", data.x_test, data.y_test),
        ("retained", data.x, data.y),
    ):
        rows = targets["rows"][groups == group]
        np.testing.assert_array_equal(x[rows], targets["images"][groups == group])
        np.testing.assert_array_equal(y[rows], labels[groups == group])
    assert (study.images.data.y[study.images.rows[: study.images.retain]] >= 5).all()
    assert len(set(study.images.ids.tolist())) == 36  # every probe starts elsewhere
    assert targets["mask"].sum() == 4 and targets["mask"][1:3, 1:3].all()


@pytest.mark.slow
@pytest.mark.parametrize("method", SMALL.methods)
def test_attacked_inputs_stay_in_the_ball_and_hidden_pixels_are_never_touched(finished, targets, method):
    arrays, hidden, x = arrays_of(finished, method), hidden_pixels(targets), targets["images"]
    inputs = arrays["inputs"]
    assert inputs.shape == (2, 2, 36, 8, 8, 1) and list(arrays["conditions"]) == ["clean", "8/255", "unbounded"]
    np.testing.assert_array_equal(inputs[:, :, :, hidden], np.broadcast_to(x[:, hidden], (2, 2, *x[:, hidden].shape)))
    assert inputs.min() >= 0 and inputs.max() <= 1
    change = np.abs(inputs.astype(np.float64) - x.astype(np.float64))
    assert change[:, 0].max() <= np.float64(np.float32(8 / 255)) and change[:, 0].max() > 0.9 * 8 / 255
    assert change[:, 1][:, :, ~hidden].mean() > 0.2  # the input itself is the variable: it began at noise


@pytest.mark.slow
@pytest.mark.parametrize("method", [None, "i2i"])
def test_saved_inputs_and_models_give_the_saved_outputs(finished, targets, method):
    model, mask, params = load_models(finished, method)
    hidden, x = hidden_pixels(targets), targets["images"]
    order, visible = mask.of(len(x)), mask.visible
    made = jax.jit(jax.vmap(lambda p, x: model.reconstruct(p, x, order, visible)))
    if method is None:
        conditions = [(np.stack([x] * 2), targets["outputs"])]
    else:
        arrays = arrays_of(finished, method)
        inputs = [np.stack([x] * 2), *np.moveaxis(arrays["inputs"], 1, 0)]
        conditions = list(zip(inputs, np.moveaxis(arrays["outputs"], 1, 0)))
    for inputs, outputs in conditions:
        filled = np.clip(np.asarray(made(params, inputs)), 0, 1)
        np.testing.assert_allclose(outputs[:, :, hidden], filled[:, :, hidden], atol=2e-5)
        np.testing.assert_array_equal(
            outputs[:, :, ~hidden], np.broadcast_to(x[:, ~hidden], outputs[:, :, ~hidden].shape)
        )


@pytest.mark.slow
def test_metrics_follow_from_the_saved_pictures(finished, targets):
    arrays, record, hidden = arrays_of(finished), record_of(finished, "i2i"), hidden_pixels(targets)
    study = build(dataclasses.replace(SMALL, out=finished))
    study.judge.prepare()
    real, made = study.judge(targets["images"]), study.judge(arrays["outputs"])
    np.testing.assert_allclose(made["logits"], arrays["judged"], atol=1e-4)
    for ending, group in (("", "forgotten"), ("_control", "unseen"), ("_retain", "retained")):
        part = targets["groups"] == group
        for place in range(3):
            difference = np.abs(arrays["outputs"][:, place] - targets["outputs"])[:, part][:, :, hidden]
            l1 = difference.astype(np.float64).reshape(2, -1).mean(axis=1)
            np.testing.assert_allclose(record.metric("l1" + ending).values[place], l1, rtol=1e-5)
            hits = arrays["judged"][:, place, part].argmax(-1) == targets["labels"][part]
            np.testing.assert_allclose(record.metric("judged" + ending).values[place], hits.mean(axis=1))
            if ending != "_control":
                fid = [frechet_distance(m[place, part], real["features"][part]) for m in made["features"]]
                np.testing.assert_allclose(record.metric("fid" + ending).values[place], fid, rtol=1e-3, atol=1e-5)
                p = np.exp(arrays["judged"][:, place, part].astype(np.float64))
                p /= p.sum(-1, keepdims=True)
                score = np.exp((p * np.log(p / p.mean(1, keepdims=True))).sum(-1).mean(-1))
                np.testing.assert_allclose(record.metric("is" + ending).values[place], score, rtol=1e-6)


@pytest.mark.slow
def test_an_attack_lowers_what_it_attacks_and_the_original_is_its_own_aim(finished, targets):
    arrays, record, original = arrays_of(finished), record_of(finished, "i2i"), record_of(finished, "original")
    errors = np.square(arrays["filled"] - targets["filled"][:, None]).mean(axis=(-2, -1))
    assert (errors[:, 1].mean() < errors[:, 0].mean()) and record.throughput["images"] > 0
    assert original.metric("l1").values == [[], [], []] and len(original.metric("judged").values[0]) == 2
    assert original.task == record.task == "image-to-image" and record.scenario == "classes 0, 1, 2, 3, 4"
    assert "test images" in record.notes[0] and read_json(finished / "manifest.json")["judge"] > 0.5
    headline = [m.name for m in record.metrics if m.headline]
    assert headline == ["l1", "judged", "judged_retain"] and record.metric("l1").percent is False


@pytest.mark.slow
def test_the_same_command_reads_and_a_lost_or_damaged_result_is_computed_again(finished, capfd):
    paths = [*finished.glob("*/attacked.npz"), finished / "targets.npz"]
    before = {path: path.read_bytes() for path in paths}
    written = {path: path.stat().st_mtime_ns for path in paths}
    config = dataclasses.replace(SMALL, out=finished)
    run.run(config, devices=jax.devices()[:2])
    assert written == {path: path.stat().st_mtime_ns for path in paths}
    path = finished / "i2i" / "attacked.npz"
    path.write_bytes(before[path][:1000] + b"x" + before[path][1001:])
    for part in ("judge", "population"):
        (finished / part / "chunk-00000.json").unlink()
    model = next(p for p in sorted((finished / "retrain" / "models").glob("chunk-00000/**/*")) if p.is_file())
    model.write_bytes(model.read_bytes()[:-1])
    run.run(config, devices=jax.devices()[:2])
    said = capfd.readouterr().err
    assert "attacked.npz is damaged" in said and "its models are made again" in said
    for path, content in before.items():
        assert path.read_bytes() == content


@pytest.mark.slow
def test_status_says_what_is_done_and_what_is_damaged(finished, capsys):
    assert cli.main(["status", str(finished), "--verify"]) == 0
    said = capsys.readouterr().out
    assert "2 runs a stage" in said and "judge" in said and "L1 unbounded: 0." in said and "of test images" in said
    path = finished / "i2i" / "attacked.npz"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(SystemExit):
        cli.main(["status", str(finished)])
    assert "attacked.npz is damaged" in capsys.readouterr().out
    path.write_bytes(content)


@pytest.mark.slow
def test_other_settings_and_other_commands_are_refused(finished, capsys):
    for change, difference in (
        ({"unbounded_step": 0.2}, "unbounded_step: 0.1 -> 0.2"),
        ({"epsilons": (8.0,)}, "radii"),
        ({"judge": dataclasses.replace(SMALL.judge, splits=2)}, "splits: 1 -> 2"),
        ({"method": dataclasses.replace(SMALL.method, i2i=I2I(steps=4))}, "steps: 3 -> 4"),
    ):
        with pytest.raises(InputError, match=difference):
            run.run(dataclasses.replace(SMALL, out=finished, **change))
    assert cli.main(["robustness", "digits", "--out", str(finished), "--quiet"]) == 2
    assert "run of another command than robustness" in capsys.readouterr().err


@pytest.mark.slow
def test_the_number_of_devices_does_not_matter(finished, tmp_path):
    other = run.run(dataclasses.replace(SMALL, out=as_path(tmp_path / "one")), devices=jax.devices()[:1])
    for method in SMALL.methods:
        ours, theirs = arrays_of(finished, method), arrays_of(other, method)
        np.testing.assert_allclose(ours["filled"][:, 0], theirs["filled"][:, 0], atol=1e-4)
        for name in ("l1", "l1_retain"):  # a sign that rounding turns moves a pixel by two steps
            means = [record_of(where, method).metric(name).mean(1) for where in (finished, other)]
            assert abs(means[0] - means[1]) < 0.01


@pytest.mark.slow
def test_a_killed_command_goes_on_and_a_model_that_diverges_is_left_out(tmp_path, monkeypatch, capsys):
    wild = SGD(peak=1e30, schedule="constant")
    config = dataclasses.replace(
        SMALL,
        out=as_path(tmp_path / "run"),
        seeds=1,
        attacked=3,
        epsilons=(),
        saved_seeds=0,
        methods=("salun",),
        method=AutoencoderMethods(salun=SalUnInpainting(steps=2, batch_size=32, descent=wild)),
    )
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(run, "look", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run.run(config, devices=jax.devices()[:1])
    kept = {path: path.stat().st_mtime_ns for path in config.directory.glob("*/chunk-00000.json")}
    record = record_of(run.run(config, devices=jax.devices()[:1]), "salun")
    assert len(kept) == 2 and kept == {path: path.stat().st_mtime_ns for path in kept}
    assert record.seeds == 0 and record.failed == [0] and record.metric("l1").values == [[]]
    assert "seeds 0 diverged" in record.surprises()[0] and record.conditions == ["clean"]
    assert any("SalUn has no rule" in note for note in record.notes)
    assert arrays_of(config.directory, "salun")["inputs"].shape == (0, 0, 9, 8, 8, 1)


def test_a_picture_has_the_visible_part_of_the_image_and_the_hidden_part_as_filled():
    study = build(dataclasses.replace(SMALL, attacked=2))
    masked, x = study.masked, study.images.probes
    visible, hidden = masked.visible(x), masked.hidden(x)
    np.testing.assert_array_equal(masked.image(visible, hidden), x)
    hole = hidden_pixels({"mask": masked.mask.hidden.reshape(4, 4)})
    made = pictures(study, np.full((2, 1, *hidden.shape), 3.0, np.float32))
    assert made.shape == (2, 1, 6, 8, 8, 1)
    np.testing.assert_array_equal(made[:, :, :, hole], 1.0)  # clipped
    np.testing.assert_array_equal(made[1, 0][:, ~hole], x[:, ~hole])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilons": (0.0,)}, "epsilons > 0, got 0.0"),
        ({"epsilons": (8.0, 8.0)}, "epsilons without repetition"),
        ({"methods": ()}, "methods to hold"),
        ({"forget_classes": ()}, "forget_classes to hold"),
        ({"seeds": 0}, "seeds=0"),
        ({"unbounded_step": 1.5}, "unbounded_step=1.5 <= 1"),
        ({"attacked": 1}, "attacked=1"),
        ({"model": dataclasses.replace(TINY, normalised=True)}, "model.normalised False"),
    ],
)
def test_settings_that_make_no_sense(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(SMALL, **change)


def test_what_cannot_be_served_is_said_before_anything_is_written(tmp_path):
    config = dataclasses.replace(SMALL, out=as_path(tmp_path / "run"))
    for change, message in (
        ({"forget_classes": (10,)}, "classes to forget among the 10 labels"),
        ({"hidden_side": 16}, "sixteenths=16"),
        ({"model": dataclasses.replace(TINY, channels=3)}, "model.channels=3 of the images of digits, 8 and 1"),
        ({"methods": ("salum",)}, "salun"),
        ({"methods": ("ascent",)}, "retrain, i2i, salun"),
    ):
        with pytest.raises(InputError, match=message):
            run.run(dataclasses.replace(config, **change))
    assert not (tmp_path / "run").exists()


def test_expectations_hold_for_the_preset_alone():
    preset = PRESETS["digits-inpainting"][1]
    bands = expected(preset, "i2i")
    assert bands and {band.method for band in bands} == {"i2i"}
    assert expected(dataclasses.replace(preset, seeds=5, seed=7, methods=("i2i",)), "i2i") == bands
    assert expected(dataclasses.replace(preset, attacked=20), "i2i") == []
    assert expected(PRESETS["digits-inpainting-quick"][1], "i2i") == []


def test_the_command_line_knows_the_presets_of_all_tasks(capsys):
    with pytest.raises(SystemExit):
        cli.main(["robustness", "--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in (*PRESETS, "cifar10"))
    assert cli.main(["robustness", "digits-inpainting", "--epsilons", "-1"]) == 2
    assert "epsilons > 0, got -1.0" in capsys.readouterr().err


def test_originals_depend_on_training_alone():
    same = original_identity(dataclasses.replace(SMALL, hidden_side=4, attacked=3, epsilons=()), {})
    assert same == original_identity(SMALL, {}) != original_identity(dataclasses.replace(SMALL, seed=1), {})
