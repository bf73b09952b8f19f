"""Sequential audits end to end: they stop, go on, resume to the same bits, and refuse what they cannot be held to."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from small_audits import CONFIG, M, audit, interrupt, read, results

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn._validate import InputError
from jaxunlearn.attack.likelihood import batchwise_llr, fit_batchwise
from jaxunlearn.audit import null
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.pipeline import anytime, task
from jaxunlearn.pipeline import audit as pipeline
from jaxunlearn.pipeline.population import Population, load_models
from jaxunlearn.pipeline.unlearning import MethodRuns
from jaxunlearn.records import CALIBRATION, EVALUATION, ScoreRecord

WARMUP, MOST = 4, 20
LEAKY = ["--training.epochs", "5", "--training.batch-size", "128"]


def sequential(out, *extra):
    return audit(out, *LEAKY, *extra)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, compilation_cache):
    """Stopped by the claim for one method, at the last run for the other; not to be written to."""
    out = tmp_path_factory.mktemp("stopped")
    assert sequential(out, "--methods", "finetune", "retrain", "--claim-epsilon", 3) == 0
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory, compilation_cache):
    """The same audit without a claim, to the end."""
    out = tmp_path_factory.mktemp("whole")
    assert sequential(out, "--methods", "finetune", "--sequential") == 0
    return out


def test_a_false_claim_falls_and_the_audit_stops(stopped, whole, capsys):
    record = read(stopped, "finetune")
    claim, path = record["sequential"]["claim"], record["sequential"]["path"]
    assert claim["falsified"] and len(path) == claim["evaluation_runs"] == record["evaluation_runs"] < MOST - WARMUP
    assert path[-1] == record["epsilon"] > 3 and all(value <= 3 for value in path[:-1])
    assert record["statistic"] == "e_process" and record["bounds"][0]["status"] == "preregistered"
    assert record["paper_mean"] is None and record["calibration_runs"] == WARMUP
    assert path == read(whole, "finetune")["sequential"]["path"][: len(path)]  # the claim changes no run
    # Of the five chunks of four runs the first ones only were unlearned; retraining, which went to the end, used all.
    assert len(list((stopped / "finetune" / "chunks").iterdir())) == -(-(WARMUP + len(path)) // 4) < 5
    assert len(list((stopped / "population").glob("chunk-*.json"))) == 5
    before = {p: p.stat().st_mtime_ns for p in (stopped / "finetune").glob("*.npz")}
    assert sequential(stopped, "--methods", "finetune", "retrain", "--claim-epsilon", 3) == 0
    said = capsys.readouterr().out
    assert f"claim ε ≤ 3 at δ = 1e-05 falsified after {WARMUP + len(path)} runs (4 warm-up + {len(path)})" in said
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_retraining_is_never_falsified_and_the_ceiling_is_said(stopped):
    record = read(stopped, "retrain")
    assert record["epsilon"] == 0 and set(record["log_p_values"]) == {0.0} and len(record["log_p_values"]) == 16
    assert not record["sequential"]["claim"]["falsified"] and record["ceiling"] > 20
    page = (stopped / "report.html").read_text()
    assert "not falsified by 20 runs (4 warm-up + 16)" in page and "no evidence against it" in page


def test_the_smallest_claim_is_not_falsified_by_retraining(tmp_path):
    assert sequential(tmp_path, "--methods", "retrain", "--claim-epsilon", 0) == 0
    assert not read(tmp_path, "retrain")["sequential"]["claim"]["falsified"]


def test_every_run_was_attacked_with_the_runs_before_it(whole):
    scores = ScoreRecord.load(whole / "finetune" / "scores.npz")
    assert scores.roles.tolist() == [CALIBRATION] * WARMUP + [EVALUATION] * 16
    log_p = read(whole, "finetune")["log_p_values"]
    for run in range(WARMUP, MOST):
        fit = fit_batchwise(scores.scores[:run], scores.signs[:run])
        llr = batchwise_llr(fit, scores.scores[run : run + 1])[0]
        assert log_p[run - WARMUP] == pytest.approx(null.log_p_value(llr, scores.signs[run]), abs=1e-4)


def test_warm_up_signs_are_spread_and_evaluation_signs_those_of_every_number_of_runs():
    config = dataclasses.replace(CONFIG, sequential=True)
    made = task.build(config).runs
    assert (made.signs[:WARMUP].sum(axis=0) == 0).all() and len(made) >= MOST
    longer = task.build(dataclasses.replace(config, evaluation_runs=11)).runs
    np.testing.assert_array_equal(longer.signs[: len(made)], made.signs)
    fixed = task.build(CONFIG).runs
    np.testing.assert_array_equal(fixed.signs[:4], made.signs[WARMUP : WARMUP + 4])


def test_going_on_ends_in_the_bits_of_asking_at_once(whole, tmp_path):
    steps = [["--claim-epsilon", 1], ["--claim-epsilon", 5], ["--evaluation-runs", 1, "--sequential"], ["--sequential"]]
    runs = []
    for extra in steps:
        assert sequential(tmp_path, "--methods", "finetune", *extra) == 0
        runs.append(read(tmp_path, "finetune")["evaluation_runs"])
    assert runs[0] < runs[1] < runs[2] == 13 < runs[3] == 16
    assert results(tmp_path, "finetune") == results(whole, "finetune")
    assert not any("exploratory" in note for note in read(tmp_path, "finetune")["notes"])


@pytest.mark.parametrize("moment", ["training", "unlearning", "the test"])
def test_an_interrupt_at_any_stage_changes_nothing(whole, tmp_path, monkeypatch, moment):
    owner, name = {
        "training": (Population, "save"),
        "unlearning": (MethodRuns, "compute"),
        "the test": (anytime.AnytimeTest, "judge"),
    }[moment]
    original, calls = getattr(owner, name), []

    def third_time(*arguments, **options):
        calls.append(1)
        return interrupt() if len(calls) == 3 else original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, third_time)
        assert sequential(tmp_path, "--methods", "finetune", "--sequential") == 130
    assert sequential(tmp_path, "--methods", "finetune", "--sequential") == 0
    assert results(tmp_path, "finetune") == results(whole, "finetune")


def test_the_chunk_size_does_not_change_when_the_audit_stops(stopped, tmp_path):
    extra = ["--claim-epsilon", 3, "--methods", "finetune", "--runs-per-chunk", 8]
    assert sequential(tmp_path, *extra) == 0
    assert results(tmp_path, "finetune") == results(stopped, "finetune")


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        (["--warmup-runs", 6], "warmup_runs: 4 -> 6"),
        (["--claim-delta", 0.01], "delta: 1e-05 -> 0.01"),
        (["--zeta", 0.1], "zeta"),
        (["--variance", "per_example"], "variance"),
        (["--seed", 1], "seed"),
    ],
)
def test_what_has_to_be_fixed_is_held_to(stopped, capsys, extra, word):
    before = (stopped / "finetune" / "bound.json").read_bytes()
    assert sequential(stopped, "--methods", "finetune", "--claim-epsilon", 3, *extra) == 2
    error = capsys.readouterr().err
    assert word in error and error.count("\n") == 1
    assert (stopped / "finetune" / "bound.json").read_bytes() == before


def test_a_fixed_audit_and_a_sequential_one_do_not_share_a_directory(finished, stopped, capsys):
    assert audit(finished, "--methods", "finetune", "--sequential") == 2
    assert "warmup_runs: (absent) -> 4" in capsys.readouterr().err
    assert sequential(stopped, "--methods", "finetune") == 2
    assert "warmup_runs: 4 -> (absent)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"claim_epsilon": -1.0}, "claim_epsilon"),
        ({"claim_epsilon": float("nan")}, "claim_epsilon"),
        ({"claim_delta": 0.1}, "set it too"),
        ({"claim_epsilon": 1.0, "claim_delta": 1.0}, "claim_delta"),
        ({"warmup_runs": 4}, "without sequential"),
        ({"sequential": True, "warmup_runs": 1}, "warmup_runs=1"),
        ({"sequential": True, "warmup_runs": 20}, "more evaluation_runs|use more"),
        ({"sequential": True, "pool_size": 6, "predictor": "joint"}, "predictor='batchwise'.*leave out"),
    ],
)
def test_impossible_settings_are_refused_with_the_fix(changes, words):
    with pytest.raises(InputError, match=words):
        dataclasses.replace(CONFIG, **changes)


def test_an_unreachable_claim_is_refused_before_anything_is_written(tmp_path, capsys):
    assert sequential(tmp_path / "out", "--claim-epsilon", 25) == 2
    error = capsys.readouterr().err
    assert "claim_epsilon=25" in error and f"m={M}" in error and error.count("\n") == 1
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_failed_runs_count_as_no_evidence(tmp_path, monkeypatch, whole):
    original = MethodRuns.compute

    def broken(*arguments):
        part = original(*arguments)
        if arguments[1] == 2:  # runs 8..11
            part["scores"] = np.where(np.arange(4)[:, None, None] == 1, np.nan, part["scores"])
            part["failed"] = np.arange(4) == 1
        return part

    monkeypatch.setattr(MethodRuns, "compute", broken)
    assert sequential(tmp_path, "--methods", "finetune", "--sequential") == 0
    record, sound = read(tmp_path, "finetune"), read(whole, "finetune")
    assert record["failed_runs"] == [5] and record["log_p_values"][5] == 0.0
    assert record["log_p_values"][:5] == sound["log_p_values"][:5] and record["evaluation_runs"] == 16


def test_preregistrations_of_fixed_audits_are_as_before_and_sequential_ones_named(stopped):
    fixed = pipeline.preregister(CONFIG, 1)
    assert {"warmup", "claim_epsilon"}.isdisjoint(fixed.to_json())
    assert Preregistration.from_json(fixed.to_json()) == fixed and not fixed.sequential
    stored = json.loads((stopped / "manifest.json").read_text())
    plan = Preregistration.from_json(stored["preregistration"])
    assert plan.sequential and plan.warmup == WARMUP and plan.claim_epsilon == 3 and plan.bounds == ("e_process",)
    assert stored["config"].keys() == configuration.audit_identity(dataclasses.replace(CONFIG, sequential=True)).keys()
    plan_of = dataclasses.replace(CONFIG, sequential=True)
    assert records.read_json(stopped / "population" / "preregistrations.json")["entries"] == [
        {k: v for k, v in plan.to_json().items() if k not in ("L", "claim_epsilon")}
        | configuration.attack_terms(plan_of)
        | {"trajectory": []}
    ]
    with pytest.raises(InputError, match="warmup beside"):
        dataclasses.replace(fixed, claim_epsilon=1.0)
    with pytest.raises(InputError, match="e_process"):
        dataclasses.replace(plan, bounds=("evidence",))


@pytest.mark.slow
def test_models_are_kept_or_deleted_and_damage_is_mended(stopped, tmp_path, capsys):
    out = shutil.copytree(stopped, tmp_path / "copy")
    assert sequential(out, "--methods", "finetune", "--claim-epsilon", 3, "--keep", "all") == 0
    params, roles, indices = load_models(out, "finetune")
    runs = len(roles)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(params)} == {runs} and (roles[:WARMUP] == 0).all()
    np.testing.assert_array_equal(indices, records.read_npz(out / "signs.npz")["indices"][:runs])
    for name in ("bound.json", "scores.npz", "evaluation.npz", "chunks/chunk-00000.npz"):
        path = out / "finetune" / name
        path.write_bytes(path.read_bytes()[:-70])
    capsys.readouterr()
    assert sequential(out, "--methods", "finetune", "--claim-epsilon", 3, "--keep", "none") == 0
    said = capsys.readouterr().err
    assert "computed again from the chunks of scores" in said and "chunk-00000.npz is damaged" in said
    assert results(out, "finetune") == results(stopped, "finetune")
    assert not list((out / "population").glob("chunk-*")) and (out / "population" / "preregistrations.json").exists()
