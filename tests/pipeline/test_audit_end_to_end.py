"""The command line end to end on a few small runs: results, reuse, resume, refusals."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxunlearn import records
from jaxunlearn.cli import main

SMALL = ["--calibration-runs", "8", "--evaluation-runs", "4", "--pool-size", "60", "--model", "linear", "--quiet"]
SMALL += ["--training.epochs", "2", "--method.finetune.epochs", "2", "--runs-per-chunk", "4"]


def audit(out, *extra):
    return main(["audit", "digits", "--out", str(out), *SMALL, *extra])


def read(out, method):
    return json.loads((out / method / "bound.json").read_text())


def test_results_records_and_reuse_of_the_population(tmp_path, capsys):
    out = tmp_path / "a run"
    assert audit(out, "--methods", "retrain", "finetune") == 0
    printed = capsys.readouterr().out
    assert "retrain" in printed and "finetune" in printed and "nan" not in printed.lower()
    for method in ("retrain", "finetune"):
        record = read(out, method)
        assert {"epsilon", "statistic", "delta", "zeta", "ceiling", "paper_mean"} <= record.keys()
        assert 0 <= record["epsilon"] <= record["ceiling"]
    assert read(out, "retrain")["epsilon"] == 0 and set(read(out, "retrain")["log_p_values"]) == {0.0}
    assert (out / "report.html").exists()
    assert audit(out, "--methods", "ascent") == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["population"]["trained_runs"] == 0 and manifest["population"]["reused_runs"] == 12


@pytest.mark.parametrize(
    ("predictor", "batch", "vectors"), [pytest.param("joint", "10", 20, marks=pytest.mark.slow), ("pairwise", "30", 2)]
)
def test_predictors_for_few_batches(tmp_path, predictor, batch, vectors):
    extra = ["--predictor", predictor, "--candidate-batch-size", batch, "--calibration-runs", "2", "--fresh-init"]
    assert audit(tmp_path, "--methods", "finetune", *extra) == 0
    record = read(tmp_path, "finetune")
    assert record["calibration_runs"] == 2 * vectors and record["definition"] == "3.2"


def test_another_configuration_is_refused_with_the_difference(tmp_path, capsys):
    assert audit(tmp_path, "--methods", "finetune") == 0
    before = (tmp_path / "finetune" / "bound.json").read_bytes()
    assert audit(tmp_path, "--methods", "finetune", "--evaluation-runs", "5") == 2
    error = capsys.readouterr().err
    assert "evaluation_runs: 4 -> 5" in error and error.count("\n") == 1
    assert (tmp_path / "finetune" / "bound.json").read_bytes() == before


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--r", "7"], ["r=7", "even"]),
        (["--r", "62"], ["r=62", "m=60"]),
        (["--candidate-batch-size", "7"], ["candidate_batch_size=7", "pool_size=56"]),
        (["--zeta", "1"], ["zeta=1.0"]),
        (["--delta", "1"], ["delta=1.0"]),
        (["--pool-size", "2000"], ["2000", "retain"]),
        (["--methods", "finetun"], ["finetun", "Did you mean 'finetune'"]),
        (["--methods", "no_module:f"], ["no_module", "installed"]),
    ],
)
def test_bad_input_is_one_line_and_status_two(tmp_path, capsys, extra, words):
    try:
        status = audit(tmp_path, *extra)
    except SystemExit as stop:
        status = stop.code
    error = capsys.readouterr().err
    assert status == 2 and all(word in error for word in words), error
    assert "Traceback" not in error


def test_missing_data_says_what_to_get_and_where_to_put_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("JAXUNLEARN_DATA", str(tmp_path))
    monkeypatch.setattr("jaxunlearn.data.images._from_tfds", lambda name: None)
    assert main(["audit", "cifar100", "--out", str(tmp_path / "x")]) == 2
    error = capsys.readouterr().err
    assert "cifar-100-python.tar.gz" in error and str(tmp_path) in error


NAN_METHOD = """
import jax, jax.numpy as jnp
from jaxunlearn.types import Phase, Unlearner

def broken(task):
    def finalize(key, params):
        bad = jax.random.uniform(key) < 0.3
        return jax.tree.map(lambda p: jnp.where(bad, jnp.nan, p), params)
    return Unlearner((Phase("retain", 1, 64, lambda k, p: p, lambda k, p, b, s: p, finalize),))
"""


def test_failed_runs_count_as_no_evidence_and_are_never_dropped(tmp_path, monkeypatch):
    (tmp_path / "nan_method.py").write_text(NAN_METHOD)
    monkeypatch.chdir(tmp_path)
    assert (
        audit(tmp_path / "out", "--methods", "nan_method:broken", "--evaluation-runs", "12", "--calibration-runs", "40")
        == 0
    )
    record = read(tmp_path / "out", "nan_method.broken")
    assert record["failed_runs"] and len(record["log_p_values"]) == 12
    assert all(record["log_p_values"][run] == 0 for run in record["failed_runs"])


def test_the_example_of_an_own_method_runs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    assert audit(tmp_path, "--methods", "my_unlearner:my_unlearner") == 0
    assert read(tmp_path, "my_unlearner.my_unlearner")["epsilon"] >= 0


@pytest.mark.slow
def test_kill_and_resume_end_in_the_same_bits(tmp_path, cached_environment):
    def start(out):
        command = [sys.executable, "-m", "jaxunlearn.cli", "audit", "digits", "--out", str(out), *SMALL]
        return subprocess.Popen(
            [*command, "--methods", "finetune"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )

    assert start(tmp_path / "whole").wait() == 0
    cut = tmp_path / "cut"
    for pattern in ("population/chunk-00000.json", "finetune/chunks/chunk-00000.npz"):
        process = start(cut)
        until = time.time() + 60
        while not (cut / pattern).exists() and process.poll() is None and time.time() < until:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(cut).wait() == 0
    a, b = (np.load(out / "finetune" / "scores.npz") for out in (tmp_path / "whole", cut))
    for name in a.files:
        np.testing.assert_array_equal(a[name], b[name])
    first, second = read(tmp_path / "whole", "finetune"), read(cut, "finetune")
    assert first.keys() == second.keys()
    for name in first.keys() - {"seconds", "checksum"}:
        assert first[name] == second[name], name


def test_a_second_look_at_the_same_evaluation_runs_is_marked(tmp_path):
    shared = ["--population", str(tmp_path / "population"), "--methods", "finetune"]
    assert audit(tmp_path / "first", *shared) == 0
    assert audit(tmp_path / "second", *shared, "--r", "20") == 0
    assert not any("preregistration" in note for note in read(tmp_path / "first", "finetune")["notes"])
    assert any("exploratory" in note and "r:" in note for note in read(tmp_path / "second", "finetune")["notes"])


def test_defaults_of_another_version_do_not_replace_what_was_preregistered(tmp_path, capsys):
    assert audit(tmp_path, "--methods", "finetune") == 0
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["preregistration"]["r_grid"] = [20, 30, 40]
    records.write_json(tmp_path / "manifest.json", manifest)
    assert audit(tmp_path, "--methods", "ascent") == 2
    assert "r_grid=(20, 30, 40) as preregistered" in capsys.readouterr().err
    assert not (tmp_path / "ascent").exists()


def test_the_readme_shows_the_example_as_it_is():
    root = Path(__file__).parents[2]
    example = (root / "examples" / "my_unlearner.py").read_text()
    assert example[example.index("import optax") :] in (root / "README.md").read_text()
