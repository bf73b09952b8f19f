"""``jaxunlearn bound --sequential``: the any-time bound from anybody's scores, without JAX."""

import json
import subprocess
import sys

import numpy as np
import pytest

from jaxunlearn.attack.likelihood import batchwise_llr, fit_batchwise
from jaxunlearn.audit.least_favourable import draw_signs
from jaxunlearn.cli import main

RUNS, M = 30, 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Scores of 30 runs, and the ratios that the runs before each give for the last 20."""
    path = tmp_path_factory.mktemp("outside")
    rng = np.random.default_rng(0)
    signs = draw_signs(rng, RUNS, M)
    signs[1:4:2] = -signs[:4:2]  # the warm-up may be designed
    scores = rng.normal(size=(RUNS, M)) + 1.5 * (signs > 0) + rng.normal(size=M)
    x = scores[..., None]
    llr = [batchwise_llr(fit_batchwise(x[:run], signs[:run]), x[run : run + 1])[0] for run in range(10, RUNS)]
    np.save(path / "signs.npy", signs)
    np.save(path / "scores.npy", scores)
    np.save(path / "late.npy", signs[10:])
    np.save(path / "llr.npy", llr)
    np.save(path / "silent.npy", np.ones((RUNS, M)))
    return path


def bound(folder, *extra, signs="signs.npy"):
    words = [str(folder / word) if str(word).endswith(".npy") else str(word) for word in extra]
    return main(["bound", "--signs", str(folder / signs), "--sequential", *words])


def found(capsys, *arguments, **options):
    assert bound(*arguments, "--json", **options) == 0
    return json.loads(capsys.readouterr().out)


def test_scores_and_ratios_from_the_past_give_one_answer(folder, capsys):
    ours = found(capsys, folder, "--scores", "scores.npy", "--warmup", 10)
    theirs = found(capsys, folder, "--llr", "llr.npy", signs="late.npy")
    assert ours["sequential"]["path"] == pytest.approx(theirs["sequential"]["path"], abs=1e-3)
    assert ours["calibration_runs"] == 10 and theirs["calibration_runs"] == 0
    assert ours["evaluation_runs"] == theirs["evaluation_runs"] == 20
    assert ours["epsilon"] == ours["sequential"]["path"][-1] > 5 and ours["statistic"] == "e_process"
    assert "from the runs before it alone" in theirs["notes"][0] and "order of time" in ours["notes"][0]
    assert found(capsys, folder, "--scores", "scores.npy")["calibration_runs"] == 4


def test_a_claim_and_the_page(folder, tmp_path, capsys):
    words = ["--scores", "scores.npy", "--claim-epsilon", 4, "--delta", 1e-3, "--out", tmp_path]
    assert bound(folder, *words) == 0
    said = capsys.readouterr().out
    claim = json.loads((tmp_path / "scores" / "bound.json").read_text())["sequential"]["claim"]
    runs = claim["evaluation_runs"]
    assert claim["falsified"] and runs < 26
    assert (
        f"scores: claim ε ≤ 4 at δ = 0.001 falsified after {4 + runs} runs (4 warm-up + {runs}), any-time valid" in said
    )
    assert (tmp_path / "scores" / "figures" / "path.png").exists()
    assert "The bound run by run" in (tmp_path / "report.html").read_text()
    assert bound(folder, *words) == 0
    assert bound(folder, *words, "--zeta", 0.1) == 2
    assert "zeta" in capsys.readouterr().err


def test_scores_that_say_nothing_falsify_nothing(folder, capsys):
    assert bound(folder, "--scores", "silent.npy", "--claim-epsilon", 0) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "claim ε ≤ 0 not falsified by 30 runs (4 warm-up + 26), any-time valid at 95%: no evidence against it" in said
    )


def test_failed_runs_count_as_no_evidence(folder, tmp_path, capsys):
    scores = np.load(folder / "scores.npy")
    scores[12] = np.nan
    np.save(tmp_path / "holed.npy", scores)
    np.save(tmp_path / "signs.npy", np.load(folder / "signs.npy"))
    assert bound(tmp_path, "--scores", "holed.npy") == 2
    assert "--failed-runs" in capsys.readouterr().err
    record = found(capsys, tmp_path, "--scores", "holed.npy", "--failed-runs", 8)
    assert record["log_p_values"][8] == 0.0 and record["failed_runs"] == [8] and record["evaluation_runs"] == 26


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--scores", "scores.npy", "--calibration", 10], ["--warmup"]),
        (["--scores", "scores.npy", "--warmup", 30], ["warmup=30"]),
        (["--scores", "scores.npy", "--warmup", -1], ["warmup=-1"]),
        (["--llr", "llr.npy", "--warmup", 2], ["warmup=2", "leave"]),
        (["--scores", "scores.npy", "--claim-epsilon", 60], ["claim_epsilon=60", "most"]),
        (["--scores", "scores.npy", "--claim-epsilon", -1], ["claim_epsilon"]),
        (["--scores", "scores.npy", "--failed-runs", 26], ["0..25"]),
        (["--scores", "late.npy"], ["rows"]),
    ],
)
def test_refusals_are_one_line_with_the_fix(folder, capsys, extra, words):
    assert bound(folder, *extra) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and all(word in error for word in words), error


def test_claims_need_the_sequential_form(folder, capsys):
    words = ["--scores", str(folder / "scores.npy"), "--calibration", "10", "--claim-epsilon", "3"]
    assert main(["bound", "--signs", str(folder / "signs.npy"), *words]) == 2
    assert "Expected --sequential" in capsys.readouterr().err


def test_designed_evaluation_signs_are_refused(folder, tmp_path, capsys):
    np.save(tmp_path / "scores.npy", np.load(folder / "scores.npy"))
    signs = np.load(folder / "signs.npy")
    np.save(tmp_path / "signs.npy", signs)
    assert bound(tmp_path, "--scores", "scores.npy", "--warmup", 2) == 2  # rows 2 and 3 are opposite
    assert "opposite sign vectors" in capsys.readouterr().err
    signs[20] = signs[3]
    np.save(tmp_path / "signs.npy", signs)
    assert bound(tmp_path, "--scores", "scores.npy", "--warmup", 10) == 2
    assert "calibration run 3" in capsys.readouterr().err


def test_no_jax_is_needed(folder):
    words = ["bound", "--signs", f"{folder}/late.npy", "--llr", f"{folder}/llr.npy", "--sequential", "--json"]
    code = f"import sys; from jaxunlearn.cli import main; assert main({words!r}) == 0; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
