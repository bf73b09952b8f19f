"""``jaxunlearn bound --design``: sign vectors and terms from the design, scores in any order, failures by their number."""

import json
import shutil

import numpy as np
import pytest

from jaxunlearn import records
from jaxunlearn.cli import main

RUNS, K, M = 26, 20, 40
DESIGN = ["--calibration-runs", str(K), "--evaluation-runs", str(RUNS - K), "--seed", "3", "--out", "d"]


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["design", "--m", str(M), "--r", "12", "--zeta", "0.1", *DESIGN]) == 0
    capsys.readouterr()
    return tmp_path


@pytest.fixture
def scores(here):
    signs = np.load("d/signs.npy")
    made = np.random.default_rng(1).normal(size=signs.shape) + 1.5 * (signs > 0)
    np.save("scores.npy", made)
    return made


def bound(capsys, *words):
    capsys.readouterr()
    assert main(["bound", "--design", "d", *map(str, words), "--json"]) == 0, capsys.readouterr().err
    said = capsys.readouterr()
    assert said.err == ""
    return json.loads(said.out, parse_constant=pytest.fail)


def refused(capsys, *words):
    capsys.readouterr()
    assert main(["bound", *map(str, words)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1, said.err
    return said.err


def save_csv(path, names, rows):
    path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n")


def numbers(record):
    return {key: record[key] for key in ("epsilon", "bounds", "log_p_values", "by_r", "failed_runs")}


def test_it_is_the_bound_of_the_same_rows_said_by_hand(here, scores, capsys):
    designed = bound(capsys, "--scores", "scores.npy")
    words = ["--signs", "d/signs.npy", "--scores", "scores.npy", "--calibration", K, "--zeta", "0.1", "--r", 12]
    assert main(["bound", *map(str, words), "--json"]) == 0
    by_hand = json.loads(capsys.readouterr().out)
    assert numbers(designed) == numbers(by_hand) and designed["epsilon"] > 1
    assert (designed["zeta"], designed["evaluation_runs"], designed["calibration_runs"]) == (0.1, RUNS - K, K)
    note = " ".join(designed["notes"])
    assert "preregistered" in note and json.loads((here / "d" / "design.json").read_text())["created"] in note
    assert "preregistered" not in " ".join(by_hand["notes"]) and "came from outside" in " ".join(by_hand["notes"])


def test_records_figures_and_page_are_written_beside_the_design(here, scores, capsys):
    assert main(["bound", "--design", "d", "--scores", "scores.npy", "--name", "mine"]) == 0
    folder = here / "d" / "results" / "mine"
    assert (here / "d" / "results" / "report.html").exists() and list(folder.glob("figures/*.png"))
    saved = records.ScoreRecord.load(folder / "scores.npz")
    np.testing.assert_array_equal(saved.scores[..., 0], scores)
    assert records.read_json(folder / "bound.json")["title"] == "d"
    before = (folder / "bound.json").read_bytes()
    np.save("scores.npy", scores + 9.0 * np.load("d/signs.npy"))
    assert "sha256.scores" in refused(capsys, "--design", "d", "--scores", "scores.npy", "--name", "mine")
    assert (folder / "bound.json").read_bytes() == before
    assert main(["bound", "--design", "d", "--scores", "scores.npy", "--name", "another"]) == 0  # a second method
    assert "another" in capsys.readouterr().out
    other = bound(capsys, "--scores", "scores.npy", "--out", "elsewhere")
    assert other["epsilon"] > 10 and (here / "elsewhere" / "scores" / "bound.json").exists()
    assert main(["design", "--m", str(M), *DESIGN[:-2], "--out", "e"]) == 0
    np.save("scores.npy", np.zeros((RUNS, M)))
    error = refused(capsys, "--design", "e", "--scores", "scores.npy", "--out", "elsewhere")
    assert "another configuration" in error


def test_every_form_and_order_gives_one_answer(here, scores, capsys):
    rng = np.random.default_rng(2)
    order, columns = rng.permutation(RUNS), rng.permutation(M)
    np.savez("one.npz", scores=scores[..., None])
    np.savez("shuffled.npz", scores=scores[order], run=order)
    np.savez("other name.npz", phi=scores[order], run=order.astype(float))
    np.savetxt("plain.csv", scores, delimiter=",", fmt="%.17g")
    plain = [f"s{j}" for j in range(M)]
    save_csv(here / "run.csv", ["run", *plain], [[i, *scores[i].tolist()] for i in order])
    save_csv(here / "last.csv", [*plain, "run"], [[*scores[i].tolist(), float(i)] for i in order])
    named = ["seed", *(f"batch_{j}" for j in columns), "run", "role"]
    unordered = [f'"batch_{j}"' for j in columns]  # quoted, as R writes names
    save_csv(here / "no run.csv", unordered, scores[:, columns].tolist())
    save_csv(here / "named.csv", named, [[2**62 + 1, *scores[i, columns].tolist(), i, "x"] for i in order])
    (here / "spreadsheet.csv").write_bytes(b"\xef\xbb\xbf" + (here / "run.csv").read_bytes())
    first = numbers(bound(capsys, "--scores", "scores.npy"))
    for file in [
        "one.npz",
        "shuffled.npz",
        "other name.npz",
        "plain.csv",
        "run.csv",
        "last.csv",
        "named.csv",
        "no run.csv",
    ]:
        assert numbers(bound(capsys, "--scores", file, "--out", f"out {file}")) == first, file
    assert numbers(bound(capsys, "--scores", "spreadsheet.csv", "--out", "sheet")) == first


def test_missing_runs_are_named_and_declared(here, scores, capsys):
    kept = np.setdiff1d(np.arange(RUNS), [4, 21, 25])
    np.savez("some.npz", scores=scores[kept], run=kept)
    error = refused(capsys, "--design", "d", "--scores", "some.npz")
    assert "lacks 3 of the 26 runs: 4 21 25" in error and "--failed-runs" in error
    assert "runs: 25." in refused(capsys, "--design", "d", "--scores", "some.npz", "--failed-runs", 4, 21)
    record = bound(capsys, "--scores", "some.npz", "--failed-runs", 4, 21, 25)
    assert record["failed_runs"] == [1, 5] and record["calibration_runs"] == K
    assert record["log_p_values"][1] == record["log_p_values"][5] == 0 and record["evaluation_runs"] == RUNS - K
    assert "4, 21, 25" in record["notes"][0]
    cells = [[i, *scores[i].tolist()] for i in kept]  # the same as empty cells and NA, as spreadsheets and R write them
    cells += [[4, *[""] * M], [21, *["NA"] * M], [25, *["nan"] * M]]
    save_csv(here / "holes.csv", ["run", *map(str, range(M))], cells)
    assert "row 4 is not" in refused(capsys, "--design", "d", "--scores", "holes.csv")
    again = bound(capsys, "--scores", "holes.csv", "--failed-runs", 4, 21, 25, "--out", "x")
    assert numbers(again) == numbers(record)
    # A calibration run that failed is the same as one that never was; one declared with finite scores is left out too.
    np.save("signs.npy", np.delete(np.load("d/signs.npy"), 4, axis=0))
    np.save("less.npy", np.delete(scores, 4, axis=0))
    words = ["--signs", "signs.npy", "--scores", "less.npy", "--calibration", K - 1, "--zeta", 0.1, "--r", 12]
    assert main(["bound", *map(str, words), "--failed-runs", "1", "5", "--json"]) == 0
    assert numbers(json.loads(capsys.readouterr().out)) == numbers(record)
    assert numbers(bound(capsys, "--scores", "scores.npy", "--failed-runs", 4, 21, 25, "--out", "y")) == numbers(record)
    assert main(["report", "x"]) == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--zeta 0.05", ["zeta=0.1 as preregistered", "0.05"]),
        ("--delta 1e-5", ["delta=0.0"]),
        ("--r 10", ["r=12"]),
        ("--variance per_example", ["variance='full' as preregistered"]),
        ("--signs d/signs.npy", ["--scores alone", "--signs"]),
        ("--calibration 20", ["--calibration"]),
        ("--llr scores.npy", ["--llr"]),
        ("--failed-runs 26", ["0..25", "26"]),
        ("--failed-runs -1", ["-1"]),
        ("--design d/results", ["design.json", "jaxunlearn design"]),
    ],
)
def test_what_contradicts_the_design_is_refused(here, scores, capsys, words, expected):
    error = refused(capsys, "--design", "d", "--scores", "scores.npy", *words.split())
    assert all(word in error for word in expected), error
    assert not (here / "d" / "results").exists()
    bound(capsys, "--scores", "scores.npy", "--zeta", "0.1", "--r", "12", "--variance", "full")  # said again, unchanged


def test_a_design_or_signs_have_to_be_said(here, scores, capsys):
    assert "--design DIR" in refused(capsys) and "--signs" in refused(capsys, "--scores", "scores.npy")
    assert "got neither" in refused(capsys, "--design", "d")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda x: {"scores": x[:-1]}, ["26 runs", "(25, 40)", "run"]),
        (lambda x: {"scores": x[:, :-1]}, ["m=40", "(26, 39)"]),
        (lambda x: {"scores": np.stack([x, x], axis=2)}, ["1 examples a batch", "got 2"]),
        (lambda x: {"scores": x, "run": np.arange(1, RUNS + 1)}, ["0..25"]),
        (lambda x: {"scores": x, "run": np.arange(RUNS) + 0.5}, ["0..25"]),
        (lambda x: {"scores": x, "run": np.arange(RUNS - 1)}, ["0..25"]),
        (lambda x: {"scores": x, "run": np.array([*range(RUNS - 1), 7])}, ["run 7 occurs again"]),
        (lambda x: {"a": x, "b": x, "run": np.arange(RUNS)}, ["scores", "a, b"]),
        (lambda x: {"scores": x.astype(str), "run": np.arange(RUNS)}, ["numbers"]),
        (lambda x: {"scores": np.where(np.arange(RUNS)[:, None] == 3, np.inf, x)}, ["row 3", "--failed-runs"]),
    ],
)
def test_scores_that_do_not_fit_the_design(here, scores, capsys, change, expected):
    np.savez("bad.npz", **change(scores))
    error = refused(capsys, "--design", "d", "--scores", "bad.npz")
    assert all(word in error for word in expected), error


@pytest.mark.parametrize(
    ("text", "expected"), [("run,a\n0,x\n", "'x'"), ("run,a,b\n0,1\n", "bad.csv"), ("run,a\n", "none")]
)
def test_csv_files_that_cannot_be_read(here, capsys, text, expected):
    (here / "bad.csv").write_text(text)
    assert expected in refused(capsys, "--design", "d", "--scores", "bad.csv")


def test_changed_sign_vectors_are_refused(here, scores, capsys):
    signs = np.load("d/signs.npy")
    shutil.copytree("d", "e")
    np.save("e/signs.npy", signs[:, ::-1])
    assert "sha256" in refused(capsys, "--design", "e", "--scores", "scores.npy")
    (here / "e" / "signs.npy").unlink()
    assert "found none" in refused(capsys, "--design", "e", "--scores", "scores.npy")


def test_batches_of_several_examples(here, capsys):
    words = ["--pool-size", "60", "--candidate-batch-size", "3", *DESIGN[:-1], "b"]
    assert main(["design", *words]) == 0
    signs = np.load("b/signs.npy")
    made = np.random.default_rng(4).normal(size=(*signs.shape, 3)) + (signs > 0)[..., None]
    np.save("cube.npy", made)
    np.save("flat.npy", made.reshape(RUNS, 60))  # as columns of a CSV file, in the order of candidates.csv
    np.save("sums.npy", made.sum(axis=2))  # one score a batch
    cube, flat, sums = (
        bound(capsys, "--design", "b", "--scores", f"{name}.npy", "--out", name) for name in ("cube", "flat", "sums")
    )
    assert numbers(cube) == numbers(flat) and cube["batch_size"] == 3 and cube["m"] == 20
    assert sums["epsilon"] > 1 and cube["epsilon"] > 1


def test_the_joint_predictor(here, capsys):
    words = ["--m", "4", "--predictor", "joint", "--calibration-runs", "6", "--evaluation-runs", "8", "--seed", "1"]
    assert main(["design", *words, "--out", "j"]) == 0
    signs = np.load("j/signs.npy")
    scores = np.random.default_rng(5).normal(size=signs.shape) + 5.0 * (signs > 0)
    np.save("joint.npy", scores)
    record = bound(capsys, "--design", "j", "--scores", "joint.npy")
    assert (
        record["predictor"] == "joint"
        and record["epsilon"] == pytest.approx(record["ceiling"])
        and record["ceiling"] > 1
    )
    assert main(["design", *words, "--predictor", "batchwise", "--calibration-runs", "36", "--out", "k"]) == 0
