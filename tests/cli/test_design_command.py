"""``jaxunlearn design``: what it writes, what it refuses, and what it says a design can show."""

import csv
import hashlib
import json
import math

import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.audit import bounds, design, headline, validity
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.cli import main
from jaxunlearn.pipeline import design_runs, outlook
from jaxunlearn.pipeline.design_runs import Design
from jaxunlearn.records import CALIBRATION, EVALUATION, write_json

SMALL = ["--m", "40", "--calibration-runs", "16", "--evaluation-runs", "6", "--seed", "5"]


def refused(capsys, *words):
    capsys.readouterr()
    assert main(["design", *map(str, words)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1, said.err
    return said.err


def draw(**changes):
    chosen = Design(**{"m": 40, "calibration_runs": 16, "evaluation_runs": 6, "seed": 5, **changes})
    return design_runs.draw(design_runs._settings(chosen, chosen.m, None))


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_files_agree_with_each_other(tmp_path, capsys):
    assert main(["design", *SMALL, "--delta", "1e-5", "--out", str(tmp_path / "d")]) == 0
    said = capsys.readouterr().out
    assert "22 runs, 16 for calibration and 6 for evaluation" in said and f"bound --design {tmp_path / 'd'}" in said
    signs, data = np.load(tmp_path / "d" / "signs.npy"), json.loads((tmp_path / "d" / "design.json").read_text())
    assert signs.dtype == np.int8 and signs.shape == (22, 40) and (signs.sum(axis=1) == 0).all()
    rows = read(tmp_path / "d" / "runs.csv")
    assert [int(row["run"]) for row in rows] == list(range(22))
    assert [row["role"] for row in rows] == ["calibration"] * 16 + ["evaluation"] * 6
    assert [[int(row[f"batch_{j}"]) for j in range(40)] for row in rows] == signs.tolist()
    made = design_runs.load(tmp_path / "d")
    assert [int(row["seed"]) for row in rows] == made.seeds.tolist() and (made.signs == signs).all()
    assert (made.roles == np.repeat([CALIBRATION, EVALUATION], [16, 6])).all()
    expected = Preregistration.default("batchwise", m=40, batch_size=1, L=6, delta=1e-5)
    assert made.plan == expected == Preregistration.from_json(data["preregistration"])
    for name, digest in data["sha256"].items():
        assert hashlib.sha256((tmp_path / "d" / name).read_bytes()).hexdigest() == digest
    assert data["config"]["seed"] == 5 and data["version"] and data["created"].startswith("20")
    assert not (tmp_path / "d" / "candidates.csv").exists()


def test_candidates_are_numbered_or_called_by_their_ids(tmp_path):
    words = ["--calibration-runs", "12", "--evaluation-runs", "3", "--seed", "1", "--candidate-batch-size", "3"]
    assert main(["design", "--pool-size", "30", *words, "--out", str(tmp_path / "pool")]) == 0
    rows = read(tmp_path / "pool" / "candidates.csv")
    assert [(int(row["example"]), int(row["batch"])) for row in rows] == [(i, i // 3) for i in range(30)]
    ids = [f"img {i}, left.png" for i in range(30)]
    (tmp_path / "ids.txt").write_text("\n".join(ids) + "\n\n")
    assert main(["design", "--examples", str(tmp_path / "ids.txt"), *words, "--out", str(tmp_path / "ids")]) == 0
    assert [row["example"] for row in read(tmp_path / "ids" / "candidates.csv")] == ids
    assert np.load(tmp_path / "ids" / "signs.npy").shape == (15, 10)


def test_seeds_are_63_bits_all_different_and_functions_of_root_role_and_number():
    made = draw(calibration_runs=300, evaluation_runs=200)
    assert made.seeds.dtype == np.int64 and (made.seeds >= 0).all() and np.unique(made.seeds).size == 500
    assert 0.4 < np.mean(made.seeds > 2**62) < 0.6
    fewer = draw(calibration_runs=20, evaluation_runs=9)
    np.testing.assert_array_equal(fewer.seeds, np.r_[made.seeds[:20], made.seeds[300:309]])
    np.testing.assert_array_equal(fewer.signs, np.r_[made.signs[:20], made.signs[300:309]])
    wider = draw(calibration_runs=20, evaluation_runs=9, m=44)  # other sign vectors, the same seeds
    np.testing.assert_array_equal(wider.seeds, fewer.seeds)
    other = draw(calibration_runs=20, evaluation_runs=9, seed=6)
    assert not set(other.seeds) & set(made.seeds) and (other.signs != fewer.signs).any(axis=1).all()


def test_evaluation_rows_are_uniform():
    signs = draw(m=4, calibration_runs=20, evaluation_runs=6000).signs[20:]
    counts = np.bincount(design.sign_index(signs), minlength=6)
    assert (np.abs(counts - 1000) < 5 * math.sqrt(1000 * 5 / 6)).all()
    pairs = np.bincount(6 * design.sign_index(signs[:-1]) + design.sign_index(signs[1:]), minlength=36)  # runs in turn
    assert (np.abs(pairs - 5999 / 36) < 5 * math.sqrt(5999 / 36)).all()


def test_the_joint_predictor_has_designed_calibration_and_drawn_evaluation_runs():
    made = draw(m=4, predictor="joint", calibration_runs=3, evaluation_runs=9)
    assert (np.bincount(design.sign_index(made.signs[:18]), minlength=6) == 3).all()
    assert made.plan.predictor == "joint" and len(made.roles) == 27
    drawn = np.stack([draw(m=4, predictor="joint", evaluation_runs=9, seed=s).signs[-9:] for s in range(3)])
    assert (drawn[0] != drawn[1]).any() and (drawn[1] != drawn[2]).any()


def test_a_design_is_never_overwritten(tmp_path, capsys):
    out = tmp_path / "d"
    assert main(["design", *SMALL[:-2], "--out", str(out)]) == 0  # its seed is drawn
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    capsys.readouterr()
    assert main(["design", *SMALL[:-2], "--out", str(out)]) == 0
    assert "Found as it was" in capsys.readouterr().out
    assert "seed" in refused(capsys, *SMALL, "--out", out)
    assert "zeta: 0.05 -> 0.1" in refused(capsys, *SMALL[:-2], "--zeta", "0.1", "--out", out)
    assert "candidates" in refused(capsys, "--pool-size", "40", *SMALL[2:-2], "--out", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (out / "design.json").unlink()
    assert "no design.json" in refused(capsys, *SMALL, "--out", out)
    assert (out / "signs.npy").read_bytes() == before["signs.npy"]
    drawn = {json.loads(before["design.json"])["config"]["seed"]}
    for name in "ab":
        assert main(["design", *SMALL[:-2], "--out", str(tmp_path / name)]) == 0
        drawn.add(json.loads((tmp_path / name / "design.json").read_text())["config"]["seed"])
    assert len(drawn) == 3


def test_a_drawn_seed_is_replaced_for_the_calibration_runs_sake_alone(monkeypatch):
    from jaxunlearn.audit import validity
    from jaxunlearn.pipeline import design_runs

    chosen = design_runs.Design(m=40, calibration_runs=16, evaluation_runs=4)
    check, asked = validity.check_both_sides, []

    def unlucky(signs):
        asked.append(len(signs))
        if len(asked) < 4:
            raise validity.OneSidedError("unlucky")
        check(signs)

    monkeypatch.setattr(validity, "check_both_sides", unlucky)
    design_runs.run(chosen)
    assert asked == [16] * 4
    monkeypatch.setattr(validity, "check_evaluation_signs", lambda signs: (_ for _ in ()).throw(InputError("no luck")))
    with pytest.raises(InputError, match="no luck"):
        design_runs.run(chosen)
    monkeypatch.setattr(validity, "check_both_sides", lambda signs: check(np.ones((16, 2))))
    with pytest.raises(InputError, match="use more calibration runs"):
        design_runs.run(chosen)


def test_without_out_nothing_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["design", *SMALL]) == 0
    assert "Not written" in capsys.readouterr().out and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", ["--m", "--pool-size", "--examples", "none"]),
        ("--m 40 --pool-size 40", ["--m and --pool-size"]),
        ("--m 1", ["m=1"]),
        ("--pool-size 41 --candidate-batch-size 8", ["candidate_batch_size=8", "41", "use 40"]),
        ("--pool-size 8 --candidate-batch-size 8", ["at least 2 batches", "use 16"]),
        ("--m 40 --candidate-batch-size 0", ["candidate_batch_size=0"]),
        ("--examples absent.txt", ["examples=absent.txt"]),
        ("--examples twice.txt", ["'a'", "again"]),
        ("--m 40 --r 7", ["r=7", "use 6"]),
        ("--m 40 --zeta 1", ["zeta=1.0"]),
        ("--m 40 --delta -1", ["delta=-1.0"]),
        ("--m 40 --seed -1", ["seed=-1"]),
        ("--m 40 --seed 9223372036854775808", ["seed=9223372036854775808", "2**63"]),
        ("--m 40 --calibration-runs 1", ["calibration_runs=1"]),
        ("--m 40 --calibration-runs 2", ["calibration_runs=2", "more calibration runs"]),
        ("--m 40 --evaluation-runs 0", ["evaluation_runs=0"]),
        ("--m 40 --predictor joint", ["m=40"]),
        ("--m 40 --predictor pairwise", ["m=40", "m=2"]),
    ],
)
def test_impossible_designs_leave_nothing_behind(tmp_path, capsys, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice.txt").write_text("a\nb\na\n")
    error = refused(capsys, *words.split(), "--out", "d")
    assert all(word in error for word in expected), error
    assert not (tmp_path / "d").exists()


def test_ceilings_are_those_of_the_bounds():
    plan = Preregistration.default("batchwise", m=100, batch_size=1, L=10, delta=1e-3)
    entries = {entry.label: entry for entry in headline.ceilings(plan)}
    each = {"zeta": 0.05 / 5, "delta": 1e-3}
    perfect = np.full(10, -design.log_support(100))
    assert entries["evidence"].ceiling == bounds.evidence(perfect, m=100, **each).epsilon
    assert entries["overlap (r = 24)"].ceiling == bounds.overlap(np.full(10, 24), m=100, r=24, **each).epsilon
    assert entries["order_2"].ceiling == pytest.approx(bounds.order_statistic(perfect, k=2, **each).epsilon)
    assert all(entry.epsilon == pytest.approx(entry.ceiling) for entry in entries.values())
    paper = Preregistration.default("joint", m=6, batch_size=1, L=10, zeta=0.1)  # bounds.md: 2.696 at zeta = .05
    assert [entry.ceiling for entry in headline.ceilings(paper)] == pytest.approx([2.696, 2.696], abs=5e-4)


def test_the_table_grows_with_runs_and_batches(capsys):
    assert main(["design", *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if "L = 6" in line)
    assert "L = 3" in head and "L = 24" in head
    rows = [line.split() for line in lines if line.strip().startswith("m = ")]
    table = np.array([[float(value) for value in row[3:]] for row in rows])
    assert [row[2] for row in rows] == ["20", "40", "80"] and table.shape == (3, 4)
    # With three runs the third smallest p-value is all of them, which has the highest ceiling.
    assert (np.diff(table, axis=0) > 0).all() and (np.diff(table[:, 1:], axis=1) > 0).all()
    plan = Preregistration.default("batchwise", m=40, batch_size=1, L=6)
    assert table[1, 1] == pytest.approx(outlook.best_ceiling(plan), abs=0.006)


def test_simulated_attacks_are_ordered_and_a_useless_one_finds_nothing(capsys):
    assert main(["design", "--m", "100", "--seed", "1", "--simulate"]) == 0
    said = capsys.readouterr().out
    means = [float(line.split()[4].strip(",")) for line in said.splitlines() if line.strip().startswith("d = ")]
    assert len(means) == 3 and means[0] < means[1] < means[2]
    # With a known attack and one bound at the full zeta: 12.1 by evidence, 16 by the smallest p-value; here one of five.
    assert 8 < means[2] < 16
    made = draw(m=100, calibration_runs=50, evaluation_runs=10)
    rng = np.random.default_rng(0)
    none = [outlook.simulate(rng, made.plan, made.roles, made.signs, shift=0.0, variance="pooled") for _ in range(5)]
    assert max(none) < 0.5


def test_damaged_designs_are_named(tmp_path, capsys):
    out = tmp_path / "d"
    assert main(["design", *SMALL, "--out", str(out)]) == 0
    whole = (out / "design.json").read_text()
    for content in ("{", "[]", "{}", '{"schema": 1, "config": {}}', whole.replace('"full"', '"fool"')):
        (out / "design.json").write_text(content)
        with pytest.raises(InputError, match=r"design\.json|variance"):
            design_runs.load(out)
    changed = whole.replace('"calibration": 16', '"calibration": 17')
    (out / "design.json").write_text(changed)
    with pytest.raises(InputError, match="design.json is damaged.*restore it"):
        design_runs.load(out)
    write_json(out / "design.json", json.loads(changed))
    with pytest.raises(InputError, match="23 runs"):
        design_runs.load(out)


def test_one_sided_calibration_is_refused_by_the_shared_rule():
    signs = np.array([[1, -1, 1, -1], [1, 1, -1, -1]])
    with pytest.raises(InputError, match="2 of 4"):
        validity.check_both_sides(signs)
    validity.check_both_sides(np.concatenate([signs, -signs]))
