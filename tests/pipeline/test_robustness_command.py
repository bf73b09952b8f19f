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
from jaxunlearn.models.base import normalised
from jaxunlearn.models.pretrained import load_resnet, save_resnet
from jaxunlearn.models.resnet import resnet18
from jaxunlearn.pipeline import seeds
from jaxunlearn.pipeline.robustness import run, stages
from jaxunlearn.pipeline.robustness import study as studies
from jaxunlearn.pipeline.robustness.config import Robustness, Shadows, original_identity
from jaxunlearn.pipeline.robustness.load import load_models
from jaxunlearn.pipeline.robustness.presets import PRESETS, expected
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
    model, params = load_models(finished, "rl")
    forget = int(targets["is_member"].sum())
    labels, apply = targets["labels"], jax.vmap(model.apply)
    assert np.asarray(jax.vmap(model.apply, (0, None))(load_models(finished)[1], targets["images"])).shape == (
        3,
        178,
        10,
    )
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
    assert "attacked.npz is damaged" in said and "its models are made again" in said
    for path, content in before.items():
        assert path.read_bytes() == content


@pytest.mark.slow
def test_models_and_shadows_that_are_gone_from_a_finished_directory_are_made_again(finished):
    config = dataclasses.replace(SMALL, out=finished)
    before = [load_models(finished, name)[1] for name in (None, "rl")]
    shadows = (finished / "shadows.npz").read_bytes()
    (finished / "population" / "chunk-00000.json").unlink()
    (finished / "rl" / "models" / "chunk-00000.json").unlink()
    (finished / "shadows.npz").unlink()
    run.run(config)
    for old, name in zip(before, (None, "rl")):
        jax.tree.map(np.testing.assert_array_equal, old, load_models(finished, name)[1])
    made = read_npz(finished / "shadows.npz", sealed=True)
    (finished / "shadows.npz").write_bytes(shadows)
    np.testing.assert_array_equal(made["logits"], read_npz(finished / "shadows.npz", sealed=True)["logits"])


@pytest.mark.slow
def test_directories_of_another_command_and_lost_manifests_are_refused(finished, capsys):
    assert cli.main(["audit", "digits", "--out", str(finished), "--methods", "retrain", "--quiet"]) == 2
    assert "holds a run of jaxunlearn robustness" in capsys.readouterr().err
    path = finished / "manifest.json"
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(
        InputError, match="manifest.json is missing beside original/robustness.json.*delete the directory"
    ):
        run.run(dataclasses.replace(SMALL, out=finished))
    path.write_bytes(content)


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
        attack=Options(steps=3, step_size=0.1, batch_size=64),
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
        ({"forget": "images", "forget_classes": (1,)}, "no forget_classes=\\(1,\\) with forget='images'"),
        ({"epsilons": (8.0, math.inf)}, "no attack.relative_step=0.25 with an epsilon of inf"),
        ({"curves": ("influence",)}, "curves of methods that are attacked, got influence; add"),
        ({"width": 16}, "width=16 to be even, >= 2, and of a residual network .* got model='mlp'"),
        ({"width": 15, "model": "resnet18-gn"}, "width=15 to be even"),
    ],
)
def test_settings_that_make_no_sense(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(SMALL, **change)


def test_the_width_of_a_residual_network_reaches_the_model_and_tells_runs_apart():
    wide = dataclasses.replace(SMALL, model="resnet18-gn")
    narrow = dataclasses.replace(wide, width=8)
    shapes = {config.width: build(config).parameter_shapes["fc.weight"].shape for config in (wide, narrow)}
    assert shapes == {None: (512, 10), 8: (64, 10)}
    identities = [original_identity(config, {}) for config in (wide, narrow)]
    assert "width" not in identities[0] and identities[1]["width"] == 8


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
def test_models_that_diverge_are_left_out_and_said(tmp_path, capsys):
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
    assert record.failed == [0, 1] and "seeds 0, 1 diverged" in record.surprises()[0]
    assert cli.main(["report", str(config.directory)]) == 0
    assert "seeds 0, 1 diverged" in capsys.readouterr().out
    with pytest.raises(InputError, match="original models of seeds 0, 1 diverged.*peak=1e\\+30"):
        run.run(dataclasses.replace(config, out=as_path(tmp_path / "wild"), training=Training(epochs=1, descent=wild)))


@pytest.mark.slow
def test_another_machine_goes_on_in_the_same_chunks_and_blocks_may_overlap(tmp_path, monkeypatch):
    config = dataclasses.replace(
        SMALL, out=as_path(tmp_path / "run"), seeds=9, methods=("rl",), epsilons=(8.0,), shadows=Shadows(models=0)
    )
    run.run(config, devices=jax.devices()[:1])  # in chunks of 5 and 4
    before = arrays_of(config.directory)
    assert len(list((config.directory / "population").glob("chunk-*.json"))) == 2
    for name in ("attacked.npz", "robustness.json"):
        (config.directory / "rl" / name).unlink()
    (config.directory / "rl" / "models" / "chunk-00001.json").unlink()
    monkeypatch.setattr(stages, "BLOCK", 100)  # 178 images: two blocks of 89
    run.run(config, devices=jax.devices()[:2])
    after = arrays_of(config.directory)
    assert after["logits"].shape[0] == 9
    np.testing.assert_allclose(after["logits"][:, 0], before["logits"][:, 0], atol=1e-4)
    differ = np.abs(after["images"] - before["images"]) > 1e-6  # a sign that rounding turns
    assert differ.mean() < 0.01


@pytest.mark.slow
def test_a_pretrained_resnet_with_batch_norm(tmp_path):
    model = resnet18((8, 8, 1), 10)
    path = tmp_path / "original.safetensors"
    save_resnet(path, model.init(jax.random.key(3)), mean=(0.5,), std=(0.25,))
    config = dataclasses.replace(
        SMALL,
        out=as_path(tmp_path / "run"),
        model="resnet18",
        original=as_path(path),
        seeds=1,
        methods=("finetune",),
        epsilons=(8.0,),
        attack=Options(steps=1),
        second_attack="none",
        attacked=8,
        shadows=Shadows(models=0),
        method=Methods(finetune=Finetune(epochs=1, descent=SGD(peak=1e-3, schedule="constant"))),
    )
    directory = run.run(config)
    targets = read_npz(directory / "targets.npz")
    expected = normalised(model, (0.5,), (0.25,)).apply(load_resnet(path, model).variables, targets["images"])
    np.testing.assert_allclose(targets["logits"][0], expected, rtol=1e-3, atol=1e-3)
    assert len(targets["labels"]) == 16 and record_of(directory, "finetune").metric("ua").count == 8
    with pytest.raises(InputError, match="GroupNorm for ascent.*resnet18-gn"):
        run.run(dataclasses.replace(config, methods=("ascent",)))
    with pytest.raises(InputError, match="model='resnet18' or 'resnet50'.*'mlp'"):
        dataclasses.replace(config, model="mlp")


def test_randomness_is_used_once():
    study = build(SMALL)
    rows, numbers = slice(0, 3), study.numbers(slice(0, 3))
    purposes = [
        study.keys(purpose, numbers, salt)
        for purpose, salts in (
            (seeds.INITIAL, (0,)),
            (seeds.RETRAINING, (0,)),
            (seeds.TRAINING, (0,)),
            (seeds.UNLEARNING, (0, 7)),
            (seeds.ATTACK, (1, 2)),
            (studies.SHADOWS, (0, 1, 2)),
            (seeds.ORDER, (seeds.TRAINING, seeds.UNLEARNING)),
        )
        for salt in salts
    ]
    words = np.concatenate([np.asarray(jax.random.key_data(keys))[:3] for keys in purposes])
    assert len(np.unique(words, axis=0)) == len(words)
    first, again = (jax.tree.leaves(study.initial(rows, purpose)) for purpose in (seeds.INITIAL, seeds.RETRAINING))
    assert not np.allclose(first[1], again[1])
    ids = study.images.probe_ids
    assert len(set(ids.tolist())) == len(ids)


def test_what_is_expected_holds_for_the_preset_alone():
    config = PRESETS["digits"][1]
    few = dataclasses.replace(config, methods=("finetune",), seeds=5, seed=3, out=as_path("elsewhere"))
    assert expected(few, "finetune") and expected(config, "retrain")
    for change in ({"model": "mlp"}, {"forget_classes": (3,)}, {"training": Training()}, {"epsilons": (8.0,)}):
        assert expected(dataclasses.replace(config, **change), "finetune") == []
    assert expected(dataclasses.replace(config, method=Methods()), "finetune") == []
    assert expected(dataclasses.replace(config, method=Methods()), "retrain")


def test_the_papers_presets():
    for name, rates, alpha, penalty in (
        ("cifar10", (0.013, 0.013, 0.013), 20, 1e-3),
        ("cifar100", (0.013, 0.02, 0.022), 20, 7e-4),
        ("tiny-imagenet", (0.0023, 0.0025, 0.0015), 10, 1e-4),
    ):
        config = PRESETS[name][1]
        found = config.method
        assert (found.finetune.descent.peak, found.rl.descent.peak, found.salun.descent.peak) == rates
        assert (found.influence.alpha, found.l1_sparse.alpha, found.l1_sparse.descent.peak) == (alpha, penalty, 1e-3)
        assert {getattr(found, m).epochs for m in ("finetune", "rl", "salun", "l1_sparse")} == {10}
        assert (config.model, config.seeds, config.shadows.models, config.shadows.seeds) == ("resnet50", 10, 10, 5)
        assert config.epsilons == (8.0, 16.0) and config.attack.steps == 100 and config.step_size(8 / 255) == 1 / 255
        assert found.rl.schedule == ("sequential" if name == "cifar10" else "shuffled") == found.salun.schedule
