"""``jaxunlearn bound``: every form of input, every way to get it wrong, and the numbers against the bounds themselves."""

import json
import shutil

import numpy as np
import pytest

from jaxunlearn import records
from jaxunlearn.attack import likelihood
from jaxunlearn.audit import bounds, null
from jaxunlearn.audit.least_favourable import draw_signs
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.cli import main

RUNS, K, M = 30, 22, 40
ZETA, DELTA = 0.05, 0.0


@pytest.fixture(scope="module")
def made():
    rng = np.random.default_rng(1)
    signs = draw_signs(rng, RUNS, M)
    return signs, rng.normal(size=(RUNS, M)) + 1.5 * (signs > 0)


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    signs, scores = made
    np.save("signs.npy", signs)
    np.save("scores.npy", scores)
    return tmp_path


def bound(capsys, *words):
    capsys.readouterr()
    assert main(["bound", *map(str, words), "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return json.loads(said.out, parse_constant=pytest.fail)


def refused(capsys, *words):
    capsys.readouterr()
    assert main(["bound", *map(str, words)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1, said.err
    return said.err


def answer(record):
    return {k: v for k, v in record.items() if k not in ("seconds", "checksum")}


def save_csv(path, array, head="", **options):
    np.savetxt(path, array, delimiter=",", header=head, comments="", fmt="%.17g", **options)


def test_every_form_of_input_gives_one_answer(here, made, capsys):
    signs, scores = made
    np.savez("both.npz", signs=signs, scores=scores)
    np.savez("only.npz", anything=scores)
    head = ",".join(f"batch {j}" for j in range(M))
    save_csv("plain.csv", scores)
    save_csv("head.csv", scores, head)
    save_csv("spreadsheet.csv", scores, encoding="utf-8-sig")
    save_csv("signs with head.csv", signs, head)
    np.save("per example.npy", scores[..., None])
    np.save("single.npy", scores.astype(np.float64).astype(">f8"))
    first = bound(capsys, "--signs", "signs.npy", "--scores", "scores.npy", "--calibration", K)
    assert 1 < first["epsilon"] < first["ceiling"] and first["evaluation_runs"] == RUNS - K
    for signs_file, scores_file in [
        ("both.npz", "both.npz"),
        ("signs.npy", "only.npz"),
        ("signs.npy", "plain.csv"),
        ("signs with head.csv", "head.csv"),
        ("signs.npy", "spreadsheet.csv"),
        ("signs.npy", "per example.npy"),
        ("signs.npy", "single.npy"),
    ]:
        again = bound(capsys, "--signs", signs_file, "--scores", scores_file, "--calibration", K)
        assert answer(again) == answer(first), scores_file


def test_llr_and_in_and_out_scores(here, made, capsys):
    signs, scores = made
    rng = np.random.default_rng(2)
    inside, outside = rng.normal(size=(6, M)) + 1.5, rng.normal(size=(5, M))
    np.save("in.npy", inside)
    np.save("out.npy", outside)
    given = bound(
        *(capsys, "--signs", "signs.npy", "--scores", "scores.npy"),
        *("--in-scores", "in.npy", "--out-scores", "out.npy"),
    )
    assert given["evaluation_runs"] == RUNS and given["calibration_runs"] == 11
    side = np.repeat([[1], [-1]], [6, 5], axis=0) * np.ones(M)
    fit = likelihood.fit_batchwise(np.concatenate([inside, outside])[..., None], side, variance="full")
    np.save("llr.npy", likelihood.batchwise_llr(fit, scores[..., None]))
    direct = bound(capsys, "--signs", "signs.npy", "--llr", "llr.npy")
    assert direct["bounds"] == given["bounds"] and direct["log_p_values"] == given["log_p_values"]


def test_the_numbers_are_those_of_the_bounds(here, made, capsys):
    signs, scores = made
    record = bound(capsys, "--signs", "signs.npy", "--scores", "scores.npy", "--calibration", K, "--r", 10)
    fit = likelihood.fit_batchwise(scores[:K, :, None], signs[:K], variance="full")
    llr, truth = likelihood.batchwise_llr(fit, scores[K:, :, None]), signs[K:]
    log_p = null.log_p_values(llr, truth)
    np.testing.assert_allclose(record["log_p_values"], log_p)
    plan = Preregistration.default("batchwise", m=M, batch_size=1, L=RUNS - K, zeta=ZETA, delta=DELTA, r=10)
    entries = {(e["name"], e["r"]): e for e in record["bounds"]}
    each = {"zeta": ZETA / len(plan.candidates), "delta": DELTA}
    assert entries["evidence", None]["epsilon"] == pytest.approx(bounds.evidence(log_p, m=M, **each).epsilon)
    order = np.argsort(-llr, axis=1, kind="stable")
    for r in plan.r_grid:
        hits = np.take_along_axis(truth, order, 1)
        v = (hits[:, : r // 2] > 0).sum(1) + (hits[:, M - r // 2 :] < 0).sum(1)
        assert entries["overlap", r]["epsilon"] == pytest.approx(bounds.overlap(v, m=M, r=r, **each).epsilon)
        if r == 10:
            assert record["paper_mean"] == pytest.approx(bounds.paper_mean(v, m=M, r=r, zeta=ZETA).epsilon)
    candidates = [e["epsilon"] for e in record["bounds"] if e["status"] == "preregistered"]
    assert len(candidates) == len(plan.candidates) and record["epsilon"] == max(candidates)


def test_failed_runs_count_and_are_listed(here, made, capsys):
    signs, scores = made
    broken = scores.copy()
    broken[K + 2, 7] = np.nan
    broken[K + 5] = np.inf
    np.save("broken.npy", broken)
    words = ["--signs", "signs.npy", "--scores", "broken.npy", "--calibration", K]
    assert "row 2" in refused(capsys, *words) and "row 5" in refused(capsys, *words, "--failed-runs", 2)
    record = bound(capsys, *words, "--failed-runs", 2, 5)
    assert record["failed_runs"] == [2, 5] and record["evaluation_runs"] == RUNS - K
    assert record["log_p_values"][2] == 0 == record["log_p_values"][5]
    whole = bound(capsys, "--signs", "signs.npy", "--scores", "scores.npy", "--calibration", K)
    assert record["epsilon"] <= whole["epsilon"]  # the runs that failed may not be those that count
    broken[3, 3] = np.nan
    np.save("broken.npy", broken)
    assert "calibration scores" in refused(capsys, *words, "--failed-runs", 2, 5)
    for row in (-1, RUNS):
        assert f"got {row}" in refused(capsys, "--signs", "signs.npy", "--llr", "scores.npy", "--failed-runs", row)


def test_out_is_a_run_directory_that_cannot_be_changed_afterwards(here, made, capsys):
    signs, scores = made
    words = [
        "--signs",
        "signs.npy",
        "--scores",
        "scores.npy",
        "--calibration",
        K,
        "--out",
        "my run",
        "--name",
        "ünlearn 1",
    ]
    assert main(["bound", *map(str, words)]) == 0
    assert main(["report", "my run"]) == 0
    assert "ünlearn 1" in capsys.readouterr().out
    path = here / "my run" / "ünlearn 1" / "bound.json"
    before = answer(json.loads(path.read_text()))
    assert set(records.read_npz(path.with_name("evaluation.npz"))) >= {"signs", "log_p", "overlaps", "llr"}
    shutil.copy("scores.npy", "the same elsewhere.npy")
    bound(capsys, *[w if w != "scores.npy" else "the same elsewhere.npy" for w in words])
    assert answer(json.loads(path.read_text())) == before
    assert "r: None -> 10" in refused(capsys, *words, "--r", 10)
    more = draw_signs(np.random.default_rng(3), 5, M)  # evaluation runs added after looking
    np.save("signs.npy", np.concatenate([signs, more]))
    np.save("scores.npy", np.concatenate([scores, 9.0 * more]))
    assert "sha256.scores" in refused(capsys, *words)
    assert answer(json.loads(path.read_text())) == before


def test_refused_data_leave_no_directory(here, made, capsys):
    signs, scores = made
    np.save("signs.npy", np.concatenate([signs[: RUNS // 2], -signs[: RUNS // 2]]))
    words = ["--signs", "signs.npy", "--llr", "scores.npy", "--out", "x"]
    assert "opposite sign vectors" in refused(capsys, *words)
    assert not (here / "x").exists()
    np.save("signs.npy", signs)
    assert main(["bound", *words]) == 0


def test_the_table_and_json_go_to_standard_output_alone(here, capsys):
    words = ["bound", "--signs", "signs.npy", "--llr", "scores.npy"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "given by" in said.out and said.err == ""
    json.loads(json.dumps(bound(capsys, *words[1:], "--out", "x")))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("signs", lambda s: (s > 0).astype(int), ["signs[0]", "+1 and -1", "2 * signs - 1"]),
        ("signs", lambda s: s * 1.5, ["+1 and -1"]),
        ("signs", lambda s: np.where(np.arange(M) == 0, 1, s), ["balanced"]),
        ("signs", lambda s: s[0], ["[runs, m]"]),
        ("signs", lambda s: s[:0], ["signs"]),
        ("signs", lambda s: s[:, :1], ["signs"]),
        ("signs", lambda s: s[: RUNS - 1], ["as many rows", "29"]),
        ("signs", lambda s: np.concatenate([s[:K], np.tile(s[-1:], (RUNS - K, 1))]), ["same sign vector"]),
        ("scores", lambda x: x[:, :-1], ["scores", f"m={M}", "(30, 39)"]),
        ("scores", lambda x: x[:-1], ["as many rows", "29"]),
        ("scores", lambda x: x[0], ["scores"]),
        ("scores", lambda x: x[..., None, None], ["scores"]),
        ("scores", lambda x: x[..., None][..., :0], ["scores"]),
        ("scores", lambda x: x.astype(str), ["numbers", "scores"]),
        ("scores", lambda x: x.astype(complex), ["numbers", "complex"]),
        ("scores", lambda x: x.astype(object), ["scores.npy", "allow_pickle"]),
        ("scores", lambda x: np.where(np.arange(RUNS)[:, None] == K, np.nan, x), ["finite", "row 0", "--failed-runs"]),
        (
            "scores",
            lambda x: np.where(np.arange(RUNS)[:, None] == 1, np.inf, x),
            ["finite calibration scores", "row 1"],
        ),
    ],
)
def test_bad_arrays(here, made, capsys, name, change, words):
    array = change(dict(zip(("signs", "scores"), made))[name])
    np.save(f"{name}.npy", array, allow_pickle=array.dtype == object)
    error = refused(capsys, "--signs", "signs.npy", "--scores", "scores.npy", "--calibration", K)
    assert all(word in error for word in words), error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["scores"]),
        ("1,2\n3\n", ["bad.csv"]),
        ("0.5x,1\n2,3\n", ["0.5x"]),  # a damaged first row is no header
        ("a,b\n1,2\nc,d\n", ["bad.csv", "'c'"]),
        ("\x00\xff\xfe", ["bad.csv"]),
    ],
)
def test_bad_csv(here, capsys, text, words):
    (here / "bad.csv").write_bytes(text.encode("latin-1"))
    error = refused(capsys, "--signs", "signs.npy", "--scores", "bad.csv", "--calibration", K)
    assert all(word in error for word in words), error


def test_files_that_are_something_else(here, made, capsys):
    np.savez("two.npz", a=made[1], b=made[1])
    shutil.copy("two.npz", "zip.npy")
    (here / "short.npz").write_bytes((here / "two.npz").read_bytes()[:100])
    (here / "empty.npy").write_bytes(b"")
    for file, word in {
        "two.npz": "found a, b",
        "zip.npy": "zip.npy",
        "short.npz": "short.npz",
        "empty.npy": "empty.npy",
    }.items():
        assert word in refused(capsys, "--signs", "signs.npy", "--scores", file, "--calibration", K)
    for file in ("absent.npy", "."):
        assert f"scores={file}" in refused(capsys, "--signs", "signs.npy", "--scores", file, "--calibration", K)


def test_calibration_runs_evaluated_again(here, made, capsys):
    signs, scores = made
    np.save("signs.npy", np.concatenate([signs[:K], signs[K:], signs[3:4]]))
    np.save("scores.npy", np.concatenate([scores[:K], scores[K:], scores[3:4]]))
    error = refused(capsys, "--signs", "signs.npy", "--scores", "scores.npy", "--calibration", K)
    assert f"evaluation run {RUNS - K}" in error and "calibration run 3" in error


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        ("--r 3", "r=3"),
        ("--r 42", "r=42"),
        ("--zeta 0", "zeta=0.0"),
        ("--zeta 1", "zeta=1.0"),
        ("--zeta -1", "zeta=-1.0"),
        ("--delta 1", "delta=1.0"),
        ("--delta -0.1", "delta=-0.1"),
        ("--calibration 0", "calibration=0"),
        ("--calibration 30", "calibration=30"),
        ("--calibration 2", "calibration"),
        ("--llr scores.npy", "exactly one of"),
        ("--in-scores scores.npy", "exactly one of"),
        ("--name a/b", "name='a/b'"),
        ("--name ..", "name='..'"),
        ("--out signs.npy", "Cannot write to signs.npy"),
    ],
)
def test_bad_options(here, capsys, extra, word):
    words = {"--signs": "signs.npy", "--scores": "scores.npy", "--calibration": str(K)}
    option, value = extra.split()
    assert word in refused(capsys, *(w for pair in {**words, option: value}.items() for w in pair))


def test_in_and_out_scores_of_different_shapes(here, made, capsys):
    np.save("in.npy", np.zeros((3, M)))
    np.save("out.npy", np.zeros((3, M, 2)))
    words = ["--signs", "signs.npy", "--scores", "scores.npy", "--in-scores", "in.npy", "--out-scores", "out.npy"]
    assert "in_scores and out_scores" in refused(capsys, *words)
    assert "exactly one of" in refused(capsys, *words[:6])
    assert "exactly one of" in refused(capsys, *words[:4])
