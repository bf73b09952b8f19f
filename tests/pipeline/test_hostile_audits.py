"""Audits under a hostile user: nothing leaks, no key is used twice, no run is dropped, nothing changes after the fact."""

import dataclasses
import json
import os
import shutil
import sys
import zlib

import jax
import numpy as np
import pytest
from small_audits import CALIBRATION_RUNS, CONFIG, SMALL, L, M, audit, interrupt, read, results

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn.audit.headline import evaluate
from jaxunlearn.audit.least_favourable import draw_signs
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.cli import main
from jaxunlearn.pipeline import audit as pipeline
from jaxunlearn.pipeline import bounding, task
from jaxunlearn.pipeline.population import Population
from jaxunlearn.records import CALIBRATION, EVALUATION, ScoreRecord


def stamps(folder):
    return {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def test_everything_is_finite_and_retraining_is_exactly_zero(finished, capsys):
    assert main(["report", str(finished)]) == 0
    printed = capsys.readouterr().out
    assert all(method in printed for method in ("retrain", "finetune")) and "nan" not in printed.lower()
    page = (finished / "report.html").read_text()
    assert "retrain" in page and "NaN" not in page
    for method in ("retrain", "finetune"):
        record = read(finished, method)
        assert {"epsilon", "statistic", "delta", "zeta", "ceiling", "paper_mean"} <= record.keys()
        assert record["epsilon"] <= record["ceiling"] and record["evaluation_runs"] == L
        for name in ("scores", "evaluation"):
            for key, array in records.read_npz(finished / method / f"{name}.npz").items():
                assert np.isfinite(array).all(), (method, name, key)
        assert not (finished / method / "chunks").exists()
    exact = ScoreRecord.load(finished / "retrain" / "scores.npz")
    assert (exact.scores == exact.scores[:1]).all()  # shared initial weights and order: S changes not one bit
    assert read(finished, "retrain")["epsilon"] == 0 == read(finished, "retrain")["paper_mean"]
    assert not records.read_npz(finished / "retrain" / "evaluation.npz")["llr"].any()


def test_a_second_method_touches_nothing_that_is_finished(copy):
    before = {name: stamps(copy / name) for name in ("population", "retrain", "finetune")}
    assert audit(copy, "--methods", "ascent", "--method.ascent.epochs", 3) == 0
    figures = {p for p in stamps(copy) if "figures" in p.parts}
    for name, old in before.items():
        new = stamps(copy / name)
        assert {p: s for p, s in new.items() if p not in figures} == {p: s for p, s in old.items() if p not in figures}
    manifest = json.loads((copy / "manifest.json").read_text())
    assert manifest["population"]["trained_runs"] == 0
    assert sorted(manifest["methods"]) == ["ascent", "finetune", "retrain"]


def test_two_audits_share_one_population(finished, tmp_path):
    population = shutil.copytree(finished / "population", tmp_path / "models of all")
    before = stamps(population)
    for out, extra in (("a", []), ("b", ["--variance", "per_example"])):
        assert audit(tmp_path / out, "--population", population, "--methods", "finetune", *extra) == 0
        assert not (tmp_path / out / "population").exists()
    after, register = stamps(population), population / "preregistrations.json"
    assert {p: v for p, v in after.items() if p != register} == {p: v for p, v in before.items() if p != register}
    assert results(tmp_path / "a", "finetune") == results(finished, "finetune")
    assert any("variance: full -> per_example" in note for note in read(tmp_path / "b", "finetune")["notes"])


def test_a_population_of_another_training_is_refused(finished, tmp_path, capsys):
    extra = ["--population", finished / "population", "--seed", 1, "--methods", "finetune"]
    assert audit(tmp_path / "x", *extra) == 2
    error = capsys.readouterr().err
    assert "seed: 0 -> 1" in error and error.count("\n") == 1


def test_an_adversarial_split_works_and_shares_at_most_one_class(tmp_path):
    config = dataclasses.replace(CONFIG, split="adversarial", pool_size=300)
    data = task.build(config).data
    shared = set(data.y[: data.retain]) & set(data.y[data.retain :])
    assert len(shared) <= 1 and len(data.y) - data.retain == 300
    assert audit(tmp_path / "x", "--split", "adversarial", "--methods", "retrain") == 0
    assert read(tmp_path / "x", "retrain")["epsilon"] == 0


def test_scores_that_do_not_depend_on_the_signs_give_zero(finished):
    scores = ScoreRecord.load(finished / "finetune" / "scores.npz")
    plan = Preregistration.from_json(json.loads((finished / "manifest.json").read_text())["preregistration"])
    rng, zeros, draws = np.random.default_rng(0), 0, 200
    for _ in range(draws):
        signs = np.concatenate([draw_signs(rng, L, M), draw_signs(rng, CALIBRATION_RUNS, M)])
        shuffled = dataclasses.replace(scores, signs=signs)
        found = evaluate(plan, signs=signs[:L], curves=False, **bounding.attack(shuffled, plan, variance="pooled"))
        zeros += found.headline.epsilon == 0
    assert zeros >= 0.95 * draws


def test_the_attack_never_sees_evaluation_signs(finished):
    scores = ScoreRecord.load(finished / "finetune" / "scores.npz")
    plan = Preregistration.from_json(json.loads((finished / "manifest.json").read_text())["preregistration"])
    hidden = dataclasses.replace(
        scores, signs=np.where((scores.roles == EVALUATION)[:, None], -scores.signs, scores.signs)
    )
    seen, unseen = (bounding.attack(s, plan, variance="pooled")["llr"] for s in (scores, hidden))
    np.testing.assert_array_equal(seen, unseen)


def test_keys_are_never_shared_and_never_depend_on_the_signs():
    config = dataclasses.replace(CONFIG, fresh_init=True)
    made = task.build(config)
    mirrored = dataclasses.replace(made, runs=dataclasses.replace(made.runs, signs=-made.runs.signs))
    rows, stages = slice(0, len(made.runs)), [(task.TRAINING, 0)]
    stages += [(task.UNLEARNING, zlib.crc32(name.encode())) for name in configuration.METHOD_NAMES]
    seen: dict[bytes, tuple] = {}

    def note(keys, *where):
        for run, key in enumerate(np.asarray(jax.random.key_data(keys)).reshape(-1, 2)[: len(made.runs)]):
            assert seen.setdefault(key.tobytes(), (*where, run)) == (*where, run)

    wide = dataclasses.replace(made.engine.plan, runs_per_chunk=len(made.runs))
    made.engine.plan = wide
    for stage, salt in stages:
        chunk, other = (t.chunk(rows, stage=stage, salt=salt) for t in (made, mirrored))
        assert (chunk.member != other.member).any()
        for kind, keys, same in (("noise", chunk.keys, other.keys), ("order", chunk.order_keys, other.order_keys)):
            assert (jax.random.key_data(keys) == jax.random.key_data(same)).all()
            note(keys, stage, salt, kind)
    for purpose in (task._SIGNS, task._INITIAL):
        note(task.run_keys(jax.random.fold_in(made.root, purpose), made.runs.roles, made.runs.indices), purpose)
    assert len(seen) == (2 * len(stages) + 2) * len(made.runs)


def test_more_runs_of_one_role_leave_the_other_runs_as_they_are():
    few, many = (task.make_runs(jax.random.key(0), m=M, evaluation=n, calibration=16, designed=False) for n in (3, 9))
    np.testing.assert_array_equal(few.signs[:3], many.signs[:3])
    np.testing.assert_array_equal(few.signs[3:], many.signs[9:])
    assert set(few.roles[:3]) == {EVALUATION} and set(few.roles[3:]) == {CALIBRATION}


def test_running_from_another_folder_and_a_folder_that_moved(copy, tmp_path, monkeypatch):
    moved = copy.rename(tmp_path / "moved")
    before = results(moved, "finetune")
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "digits", "--out", "moved", *SMALL, "--methods", "finetune"]) == 0
    assert results(moved, "finetune") == before


OWN = """
import jax, jax.numpy as jnp
from jaxunlearn.types import Phase, Unlearner

SHARE = {share}

def own(task):
    def finalize(key, params):
        bad = jax.random.uniform(key) < SHARE
        return jax.tree.map(lambda p: jnp.where(bad, jnp.nan, p), params)
    return Unlearner((Phase("retain", 1, 512, lambda k, p: p, lambda k, p, b, s: p, finalize),))
"""


def own_module(folder, monkeypatch, name, text):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_failing_runs_are_done_again_with_the_same_key_and_then_count_as_no_evidence(copy, tmp_path, monkeypatch):
    own_module(tmp_path / "here", monkeypatch, "failing_method", OWN.format(share=0.3))
    asked = []
    load = Population.load
    monkeypatch.setattr(Population, "load", lambda self, n, *rest: asked.append(n) or load(self, n, *rest))
    assert audit(copy, "--methods", "failing_method:own") == 0

    made = task.build(CONFIG)
    salt = zlib.crc32(b"failing_method:own")
    keys = task.run_keys(
        jax.random.fold_in(jax.random.fold_in(made.root, task.UNLEARNING), salt), made.runs.roles, made.runs.indices
    )
    last = jax.vmap(lambda k: jax.random.fold_in(jax.random.fold_in(k, 1), 2))(keys)  # phase 1, finalize
    bad = np.asarray(jax.vmap(jax.random.uniform)(last) < 0.3)
    scores = ScoreRecord.load(copy / "failing_method.own" / "scores.npz")
    np.testing.assert_array_equal(scores.failed, bad)
    for number, rows in enumerate(made.chunks):
        assert asked.count(number) == 1 + bad[rows].any()  # once more, and only where something failed
    record = read(copy, "failing_method.own")
    assert bad[:L].any() and bad[L:].any() and not bad[:L].all()
    assert record["failed_runs"] == np.flatnonzero(bad[:L]).tolist() and len(record["log_p_values"]) == L
    assert all(record["log_p_values"][run] == 0 for run in record["failed_runs"])
    assert any("calibration" in note for note in record["notes"])

    good = ~bad | (scores.roles == EVALUATION)
    kept = ScoreRecord(
        **{k: getattr(scores, k)[good] for k in ("signs", "roles", "indices", "scores", "failed")}, accuracy={}
    )
    plan = pipeline.preregister(CONFIG, 1)
    np.testing.assert_allclose(
        bounding.attack(kept, plan, variance="full")["llr"],
        records.read_npz(copy / "failing_method.own" / "evaluation.npz")["llr"],
        rtol=1e-9,
    )


def test_a_run_that_fails_once_gives_what_an_undisturbed_one_gives(finished, copy, monkeypatch):
    shutil.rmtree(copy / "finetune")
    attempts: dict[int, int] = {}
    load = Population.load

    def faulty(self, number, *rest):
        attempts[number] = attempts.get(number, 0) + 1
        params = load(self, number, *rest)
        return jax.tree.map(lambda a: np.full_like(a, np.nan), params) if attempts[number] == 1 else params

    monkeypatch.setattr(Population, "load", faulty)
    assert audit(copy, "--methods", "finetune") == 0
    assert results(copy, "finetune") == results(finished, "finetune")


def test_a_method_that_always_fails_is_one_line(copy, tmp_path, monkeypatch, capsys):
    own_module(tmp_path / "here", monkeypatch, "hopeless_method", OWN.format(share=2.0))
    assert audit(copy, "--methods", "hopeless_method:own") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "calibration" in error


def test_an_own_method_may_be_mended_until_it_has_results_and_not_afterwards(copy, tmp_path, monkeypatch, capsys):
    def write(text):
        own_module(tmp_path / "here", monkeypatch, "edited_method", text)

    write(OWN.format(share=0.0).replace("lambda k, p, b, s: p,", "lambda k, p, b, s: oops,"))
    with pytest.raises(NameError, match="oops"):  # the author wants the traceback
        audit(copy, "--methods", "edited_method:own")
    write(OWN.format(share=0.0))
    assert audit(copy, "--methods", "edited_method:own") == 0
    before = results(copy, "edited_method.own")
    capsys.readouterr()
    write(OWN.format(share=1e-9))
    assert audit(copy, "--methods", "edited_method:own") == 2
    error = capsys.readouterr().err
    assert "sha256" in error and error.count("\n") == 1
    assert results(copy, "edited_method.own") == before


def test_another_chunk_size_does_not_mix_up_runs(finished, copy, tmp_path, monkeypatch):
    """20 runs in chunks of 12 + 8, then of 8 + 8 + 4: the second chunk has 8 runs both times, but not the same ones."""
    shutil.rmtree(copy / "finetune")
    shutil.rmtree(copy / "population")
    monkeypatch.setattr(bounding, "attack", interrupt)
    assert audit(copy, "--methods", "finetune", "--runs-per-chunk", 16) == 130
    monkeypatch.undo()
    assert [p.name for p in sorted((copy / "finetune" / "chunks").iterdir())] == ["chunk-00000.npz", "chunk-00001.npz"]
    shutil.rmtree(copy / "population")
    assert audit(copy, "--methods", "finetune", "--runs-per-chunk", 8) == 0
    assert results(copy, "finetune") == results(finished, "finetune")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_working_directory_is_no_hindrance(finished, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir(mode=0o500)
    monkeypatch.chdir(tmp_path / "here")
    assert audit(finished, "--methods", "finetune") == 0
