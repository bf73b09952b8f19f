"""Run directories that somebody damaged by hand are found out, named in one line, and mended where that is safe."""

import json
import shutil

import jax
import numpy as np
import pytest
from small_audits import CALIBRATION_RUNS, L, audit, read, results

from jaxunlearn import records
from jaxunlearn.pipeline import audit as pipeline
from jaxunlearn.pipeline import population
from jaxunlearn.pipeline.population import load_models
from jaxunlearn.pipeline.unlearning import MethodRuns

RUNS = CALIBRATION_RUNS + L


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def gone(path):
    path.unlink()


def never(*arguments, **options):
    raise AssertionError("no model is needed")


@pytest.mark.parametrize(
    ("name", "damage", "text"),
    [
        pytest.param("bound.json", cut, "the bounds are computed again from the scores", marks=pytest.mark.slow),
        ("bound.json", flip, "the bounds are computed again from the scores"),
        pytest.param("evaluation.npz", flip, "computed again from the scores", marks=pytest.mark.slow),
        ("evaluation.npz", gone, "computed again from the scores"),
    ],
)
def test_what_follows_from_the_scores_needs_no_model(finished, copy, capsys, monkeypatch, name, damage, text):
    path, others = copy / "finetune" / name, ("bound.json", "scores.npz", "evaluation.npz", "method.json")
    before = {other: (copy / "finetune" / other).read_bytes() for other in others}
    damage(path)
    monkeypatch.setattr(MethodRuns, "compute", never)
    assert audit(copy, "--methods", "retrain", "finetune") == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(path) in said and text in said, said
    assert results(copy, "finetune") == results(finished, "finetune")
    assert all((copy / "finetune" / other).read_bytes() == before[other] for other in others if other != "bound.json")
    if name != "bound.json":
        assert (copy / "finetune" / "bound.json").read_bytes() == before["bound.json"]  # it was the first


@pytest.mark.parametrize("damage", [flip, pytest.param(gone, marks=pytest.mark.slow)])
def test_scores_come_from_the_trained_models(finished, copy, capsys, damage):
    path, bound = copy / "finetune" / "scores.npz", (copy / "finetune" / "bound.json").read_bytes()
    damage(path)
    assert audit(copy, "--methods", "finetune") == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(path) in said and "the trained models" in said, said
    assert results(copy, "finetune") == results(finished, "finetune")
    assert (copy / "finetune" / "bound.json").read_bytes() == bound and not (copy / "finetune" / "chunks").exists()


@pytest.mark.slow
def test_only_the_damaged_chunk_is_unlearned_again(tmp_path, capsys, monkeypatch):
    extra = ["--methods", "finetune", "--runs-per-chunk", 8]
    assert audit(tmp_path / "whole", *extra) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "finetune")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "remove_tree", lambda path: None)
        assert audit(tmp_path / "cut", *extra) == 0
    (tmp_path / "cut" / "finetune" / "scores.npz").unlink()
    (tmp_path / "cut" / "finetune" / "chunks" / "chunk-00000.npz").unlink()
    flip(tmp_path / "cut" / "finetune" / "chunks" / "chunk-00002.npz")
    done, unlearn = [], MethodRuns.compute

    def watched(*arguments):
        done.append(arguments[1])
        return unlearn(*arguments)

    monkeypatch.setattr(MethodRuns, "compute", watched)
    capsys.readouterr()
    assert audit(tmp_path / "cut", *extra) == 0
    said = capsys.readouterr().err
    for text in ("scores.npz is missing", "chunk-00000.npz is missing", "chunk-00002.npz is damaged"):
        assert text in said
    assert done == [0, 2] and said.count("\n") == 3
    assert results(tmp_path / "cut", "finetune") == results(tmp_path / "whole", "finetune")


@pytest.mark.slow
def test_scores_on_the_way_are_mended(tmp_path, capsys):
    extra = ["--methods", "finetune", "--trajectory", 0, 2, "--signals", "logit", "loss", "--attack", "multivariate"]
    assert audit(tmp_path / "whole", *extra) == 0
    for name, damage, text in (
        ("trajectory.npz", flip, "the trained models"),
        ("bound.json", cut, "from the scores"),
        ("scores.npz", cut, "the trained models"),
    ):
        out = shutil.copytree(tmp_path / "whole", tmp_path / name)
        damage(out / "finetune" / name)
        capsys.readouterr()
        assert audit(out, *extra) == 0
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and name in said and text in said, said
        assert results(out, "finetune") == results(tmp_path / "whole", "finetune")
        paths = [folder / "finetune" / "trajectory.npz" for folder in (out, tmp_path / "whole")]
        assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("damage", [pytest.param(cut, marks=pytest.mark.slow), flip, gone])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "manifest.json",
            "holds what was preregistered and cannot be computed again: restore it from a copy, or begin",
        ),
        ("finetune/method.json", "restore it from a copy, or delete the method's folder"),
        ("population/preregistrations.json", "lists all terms under which these runs were bounded"),
    ],
)
def test_what_cannot_be_computed_is_never_made_up(copy, capsys, name, text, damage):
    path = copy / name
    damage(path)
    left = path.read_bytes() if path.exists() else None
    assert audit(copy, "--methods", "finetune") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(path) in said and text in said, said
    assert (path.read_bytes() if path.exists() else None) == left


@pytest.mark.parametrize("damage", [cut, pytest.param(gone, marks=pytest.mark.slow)])
def test_a_populations_manifest_is_written_again_and_binds_as_before(finished, copy, tmp_path, capsys, damage):
    population = copy / "population"
    before = json.loads((population / "manifest.json").read_text())
    damage(population / "manifest.json")
    other = ["--population", population, "--methods", "finetune", "--seed", 1]
    assert audit(tmp_path / "other", *other) == 2
    said = capsys.readouterr().err
    assert "chunk-00000 holds models that were made with other settings" in said, said
    shutil.copytree(finished / "population", population, dirs_exist_ok=True)
    damage(population / "manifest.json")
    shutil.rmtree(copy / "finetune")
    assert audit(copy, "--methods", "finetune") == 0
    said = capsys.readouterr().err
    assert (damage is gone and said == "") or said.count("\n") == 1 and "written again" in said
    assert json.loads((population / "manifest.json").read_text())["config"] == before["config"]
    assert results(copy, "finetune") == results(finished, "finetune")


def test_bounds_that_come_out_otherwise_leave_the_first_ones(copy, capsys):
    path = copy / "finetune" / "bound.json"
    record = records.read_json(path)
    records.write_json(path, record | {"epsilon": 0.125})
    before = path.read_bytes()
    gone(copy / "finetune" / "evaluation.npz")
    assert audit(copy, "--methods", "finetune") == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 2 and "keeps the bounds that were computed first (epsilon 0.125)" in said, said
    assert path.read_bytes() == before


def test_no_models_are_kept_and_none_are_trained_again_for_nothing(finished, copy, capsys, monkeypatch):
    keep = ["--methods", "finetune", "retrain", "--keep", "none"]
    assert audit(copy, *keep) == 0
    left = sorted(path.name for path in (copy / "population").iterdir())
    assert left == [".lock", "manifest.json", "plan.json", "preregistrations.json"]
    assert audit(copy, *keep, "--population", copy / "elsewhere") == 2
    assert "keep='final'" in capsys.readouterr().err
    gone(copy / "finetune" / "evaluation.npz")  # comes from the scores
    monkeypatch.setattr("jaxunlearn.pipeline.population.PopulationTrainer._train", never)
    assert audit(copy, *keep) == 0
    assert results(copy, "finetune") == results(finished, "finetune")


@pytest.mark.slow
def test_models_that_were_not_kept_are_trained_where_they_are_needed(finished, copy):
    keep = ["--methods", "finetune", "--keep", "none"]
    assert audit(copy, *keep) == 0
    gone(copy / "finetune" / "scores.npz")
    assert audit(copy, *keep) == 0
    assert results(copy, "finetune") == results(finished, "finetune")
    assert not list((copy / "population").glob("chunk-*"))


def test_unlearned_models_are_kept_in_an_object_store_as_well(finished, bucket, capsys):
    out = bucket / "runs" / "digits"
    assert audit(out, "--methods", "finetune", "--keep", "all") == 0
    said = capsys.readouterr()
    assert said.err == "" and f"Page with figures: {out}/report.html" in said.out
    assert results(out, "finetune") == results(finished, "finetune")
    trained, unlearned = load_models(out), load_models(out, "finetune")
    table = records.read_npz(out / "signs.npz", sealed=True)
    for params, roles, indices in (trained, unlearned):
        assert {leaf.shape[0] for leaf in jax.tree.leaves(params)} == {RUNS}
        np.testing.assert_array_equal(roles, table["roles"])
        np.testing.assert_array_equal(indices, table["indices"])
    difference = jax.tree.map(lambda a, b: np.abs(a - b).max(), trained[0], unlearned[0])
    assert 0 < max(jax.tree.leaves(difference)) < 1
    shard = max(
        (p for p in (out / "finetune" / "models" / "chunk-00000" / "d").iterdir()), key=lambda p: p.stat().length
    )
    shard.unlink()
    with pytest.raises(records.Damaged, match="is missing"):
        load_models(out, "finetune")
    assert audit(out, "--methods", "finetune", "--keep", "all") == 0
    assert "runs are unlearned again" in capsys.readouterr().err
    again = load_models(out, "finetune")
    jax.tree.map(np.testing.assert_array_equal, again, unlearned)
    assert read(finished, "finetune")["epsilon"] == records.read_json(out / "finetune" / "bound.json")["epsilon"]


@pytest.mark.slow
def test_unlearned_models_score_as_the_audit_says(copy):
    from small_audits import CONFIG

    from jaxunlearn.pipeline import task as tasks

    assert audit(copy, "--methods", "finetune", "--keep", "all") == 0
    params, _, _ = load_models(copy, "finetune")
    task = tasks.build(CONFIG)
    rows = task.chunks[0]
    member = task.chunk(rows, stage=tasks.UNLEARNING).member
    padded = jax.tree.map(lambda a: np.concatenate([a, a])[: len(member)], params)
    scores = np.asarray(task.score(padded, member)["scores"])[: rows.stop]
    expected = records.read_npz(copy / "finetune" / "scores.npz")["scores"][: rows.stop]
    np.testing.assert_array_equal(scores, expected)


def test_models_read_back_from_disk_give_the_same_bits(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(population, "MOST_REMEMBERED", 0)
    loads, load = [], population.checkpoints.ParamsStore.prefetch

    def watched(self, chunk, like=None):
        loads.append(chunk)
        load(self, chunk, like)

    monkeypatch.setattr(population.checkpoints.ParamsStore, "prefetch", watched)
    assert audit(tmp_path / "x", "--methods", "finetune", "--runs-per-chunk", 8) == 0
    assert loads == [1, 2]
    assert results(tmp_path / "x", "finetune") == results(finished, "finetune")
