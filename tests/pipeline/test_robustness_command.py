"""The whole of ``jaxunlearn robustness`` on a tiny model: what it writes can be checked by others, and survives damage."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest

from jaxunlearn import cli
from jaxunlearn._paths import as_path
from jaxunlearn._validate import InputError
from jaxunlearn.attack.mapping import Options
from jaxunlearn.config import Methods, Training
from jaxunlearn.pipeline.robustness import run
from jaxunlearn.pipeline.robustness.config import Robustness, Shadows
from jaxunlearn.pipeline.robustness.presets import PRESETS
from jaxunlearn.pipeline.robustness.stages import Originals
from jaxunlearn.pipeline.robustness.study import build
from jaxunlearn.records import read_json, read_npz
from jaxunlearn.robustness import RobustnessRecord
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.finetune import Finetune
from jaxunlearn.unlearn.relabel import RandomLabel

SMALL = Robustness(
    dataset="digits",
    model="mlp",
    methods=("retrain", "rl"),
    seeds=3,
    epsilons=(8.0, 32.0),
    attack=Options(steps=3, relative_step=0.25, batch_size=64),
    shadows=Shadows(models=3, share=0.5, epochs=2, seeds=2),
    curves=(),
    training=Training(epochs=2, batch_size=128, descent=SGD(peak=0.3)),
    method=Methods(rl=RandomLabel(epochs=1), finetune=Finetune(epochs=1)),
    quiet=True,
)


def record_of(directory, method):
    return RobustnessRecord.from_json(read_json(directory / method / "robustness.json"))


def arrays_of(directory, method="rl"):
    return read_npz(directory / method / "attacked.npz", sealed=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = as_path(tmp_path_factory.mktemp("robustness") / "run")
    return run.run(dataclasses.replace(SMALL, out=directory))


@pytest.mark.slow
def test_saved_images_and_models_give_the_reported_numbers(finished):
    targets, arrays, record = read_npz(finished / "targets.npz"), arrays_of(finished), record_of(finished, "rl")
    study = build(dataclasses.replace(SMALL, out=finished))
    models = Originals(study).store  # any store of the study: it is read by hand here
    params = type(models)(finished / "rl" / "models").load(0)
    forget = int(targets["is_member"].sum())
    labels, apply = targets["labels"], jax.vmap(study.info.model.apply)
    for place, epsilon in enumerate(SMALL.epsilons):
        images = arrays["images"][:, place]
        change = np.abs(images.astype(np.float64) - targets["images"].astype(np.float64))
        assert change.max() <= np.float64(np.float32(epsilon / 255)) and images.min() >= 0 and images.max() <= 1
        assert change.max() > 0.9 * epsilon / 255
        logits = np.asarray(apply(params, images))
        np.testing.assert_allclose(logits, arrays["logits"][:, place + 1], atol=1e-4)
        hits = (logits[:, :forget].argmax(-1) == labels[:forget]).mean(axis=1)
        np.testing.assert_allclose(record.metric("ua").values[place + 1], hits)
    np.testing.assert_allclose(
        np.asarray(apply(params, np.stack([targets["images"]] * 3))), arrays["logits"][:, 0], atol=1e-4
    )
    assert set(labels[:forget]) == {0} == set(labels[forget:])


@pytest.mark.slow
def test_what_is_recorded(finished):
    record, original = record_of(finished, "rl"), record_of(finished, "original")
    assert record.conditions == ["clean", "8/255", "32/255"] and record.seeds == 3
    assert [len(v) for v in record.metric("mia").values] == [6, 6, 6] and record.metric("mia").per_seed == 2
    assert [len(v) for v in record.metric("ta_all").values] == [3, 0, 0]
    assert original.metric("ua").values[0][0] > 0.8 and original.metric("ua").values[1:] == [[], []]
    kept, every = record.metric("ta_retain_classes"), record.metric("ta_all")
    assert kept.count < every.count == 297
    assert record.throughput["images"] > 0
    assert record_of(finished, "retrain").metric("ua").mean(0) == 0
    assert {m.name for m in record.metrics} >= {"ua_second", "ua_control", "mia_control", "mia_auc", "mia_tpr"}


@pytest.mark.slow
def test_the_same_command_reads_and_a_lost_or_damaged_result_is_computed_again(finished, capfd):
    before = {path: path.read_bytes() for path in finished.glob("*/attacked.npz")}
    written = {path: path.stat().st_mtime_ns for path in before}
    config = dataclasses.replace(SMALL, out=finished)
    run.run(config)
    assert written == {path: path.stat().st_mtime_ns for path in before}
    path = finished / "rl" / "attacked.npz"
    path.write_bytes(before[path][:1000] + b"x" + before[path][1001:])
    (finished / "retrain" / "robustness.json").unlink()
    model = next(p for p in sorted((finished / "rl" / "models").glob("chunk-00000/**/*")) if p.is_file())
    model.write_bytes(model.read_bytes()[:-1])
    original = next(p for p in sorted((finished / "population").glob("chunk-00000/**/*")) if p.is_file())
    original.write_bytes(b"")
    run.run(config)
    said = capfd.readouterr().err
    assert "attacked.npz is damaged" in said and "its models are trained again" in said
    for path, content in before.items():
        assert path.read_bytes() == content


@pytest.mark.slow
def test_status_says_what_is_done_and_what_is_damaged(finished, capsys):
    assert cli.main(["status", str(finished), "--verify"]) == 0
    said = capsys.readouterr().out
    assert "3 runs a stage" in said and "shadow models" in said and "UA 32/255" in said
    path = finished / "retrain" / "attacked.npz"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(SystemExit):
        cli.main(["status", str(finished)])
    assert "attacked.npz is damaged" in capsys.readouterr().out
    path.write_bytes(content)


@pytest.mark.slow
def test_other_settings_are_refused_with_the_difference(finished):
    with pytest.raises(InputError, match="distance: kl -> mse"):
        run.run(dataclasses.replace(SMALL, out=finished, distance="mse"))
    other = dataclasses.replace(SMALL.method, rl=RandomLabel(epochs=2))
    with pytest.raises(InputError, match="epochs: 1 -> 2"):
        run.run(dataclasses.replace(SMALL, out=finished, method=other))


@pytest.mark.slow
def test_the_number_of_devices_does_not_matter(finished, tmp_path):
    other = run.run(dataclasses.replace(SMALL, out=as_path(tmp_path / "one")), devices=jax.devices()[:1])
    for method in SMALL.methods:
        ours, theirs = arrays_of(finished, method), arrays_of(other, method)
        np.testing.assert_allclose(ours["logits"][:, 0], theirs["logits"][:, 0], atol=1e-4)
        # A sign that rounding turns moves a pixel by two steps: accuracies agree, not every pixel.
        for name in ("ua", "mia", "ua_control"):
            means = [record_of(where, method).metric(name).mean(1) for where in (finished, other)]
            assert abs(means[0] - means[1]) < 0.05


@pytest.mark.slow
def test_images_of_all_classes_one_original_unbounded_and_no_shadows(tmp_path):
    config = dataclasses.replace(
        SMALL,
        out=as_path(tmp_path / "run"),
        forget="images",
        forget_share=0.05,
        shared_original=True,
        seeds=2,
        methods=("finetune",),
        epsilons=(math.inf,),
        saved_seeds=1,
        shadows=Shadows(models=0),
        curves=("finetune",),
    )
    directory = run.run(config)
    record = record_of(directory, "finetune")
    assert record.conditions == ["clean", "unbounded"] and "5%" in record.scenario
    assert {m.name for m in record.metrics} >= {"ua", "ua_control"} and not any("mia" in m.name for m in record.metrics)
    targets, arrays = read_npz(directory / "targets.npz"), arrays_of(directory, "finetune")
    assert targets["logits"].shape[0] == 1 and arrays["images"].shape[0] == 1
    assert targets["is_member"].sum() == 75 and len(set(targets["labels"])) == 10
    assert record.curves["steps"]["x"] == [1, 2, 5] and np.shape(record.curves["step_size"]["values"]) == (7, 2)
    assert record_of(directory, "original").seeds == 1
    assert json.loads((directory / "manifest.json").read_text())["config"]["epsilons"] == ["inf"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilons": (0.0,)}, "epsilons > 0, got 0.0"),
        ({"epsilons": (8.0, 8.0)}, "epsilons without repetition"),
        ({"methods": ()}, "methods to hold"),
        ({"seeds": 0}, "seeds=0"),
        ({"forget_share": 1.0}, "forget_share=1.0"),
        ({"forget_classes": (1, 1)}, "forget_classes without repetition"),
        ({"curves": ("influence",)}, "curves of methods that are attacked, got influence"),
    ],
)
def test_settings_that_make_no_sense(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(SMALL, **change)


def test_classes_and_methods_that_cannot_be_served_are_said_before_anything_is_written(tmp_path):
    config = dataclasses.replace(SMALL, out=as_path(tmp_path / "run"))
    with pytest.raises(InputError, match="classes to forget among the 10 labels 0..9, got \\[10\\]"):
        run.run(dataclasses.replace(config, forget_classes=(10,)))
    with pytest.raises(InputError, match="rewind"):
        run.run(dataclasses.replace(config, methods=("rewind",)))
    assert not (tmp_path / "run").exists()


def test_the_command_line_knows_the_presets(capsys):
    with pytest.raises(SystemExit):
        cli.main(["robustness", "--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in PRESETS)
    assert cli.main(["robustness", "digits", "--epsilons", "-1"]) == 2
    assert "epsilons > 0, got -1.0" in capsys.readouterr().err


@pytest.mark.slow
def test_models_that_diverge_are_left_out_and_said(tmp_path):
    wild = SGD(peak=1e30, schedule="constant")
    config = dataclasses.replace(
        SMALL,
        out=as_path(tmp_path / "run"),
        methods=("finetune",),
        seeds=2,
        method=Methods(finetune=Finetune(epochs=1, descent=wild)),
    )
    record = record_of(run.run(config), "finetune")
    assert record.seeds == 0 and record.metric("ua").values == [[], [], []] and record.metric("mia").mean(0) is None
    assert "seeds 0, 1 diverged" in record.notes[-1]
    assert cli.main(["report", str(config.directory)]) == 0
