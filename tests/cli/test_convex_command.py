"""``jaxunlearn convex``: tables, JSON, sweeps and refusals, without JAX."""

import json
import subprocess
import sys

import pytest

from jaxunlearn.cli import main

SMALL = ["--evaluation-draws", "2000", "--calibration-runs", "20", "--epsilons", "1", "100"]


def test_the_table_names_every_problem_and_column(capsys):
    assert main(["convex", *SMALL]) == 0
    said = capsys.readouterr().out
    for word in ("cubic:", "logistic:", "output-perturbation:", "exact ε", "pairwise", "joint, δ = 0", "ceiling"):
        assert word in said
    lines = said.split("\n\n")[1].splitlines()
    assert len(lines) == 2 + 2 + 1 and len({len(line) for line in lines}) == 1
    assert lines[2].split()[0] == "1" and lines[3].split()[0] == "100"


def test_json_of_one_problem_and_of_its_sweep(capsys):
    assert main(["convex", "cubic", *SMALL, "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["problem"] == "cubic" and [row["epsilon"] for row in record["rows"]] == [1, 100]
    assert 0 < record["rows"][1]["bounds"]["tuned"] < record["rows"][1]["exact"] < 100
    assert main(["convex", "cubic", "--sweep", "--json"]) == 0
    swept = json.loads(capsys.readouterr().out)["cubic"]
    assert swept[0]["ratio"] == pytest.approx(0.2235, abs=1e-4) and swept[-1]["ratio"] is None
    assert main(["convex", "cubic", "--sweep"]) == 0
    said = capsys.readouterr().out
    assert "97 minimisers outside the box" in said and "0.2235" in said


def test_a_directory_is_written(tmp_path, capsys):
    assert main(["convex", "logistic", *SMALL, "--out", str(tmp_path / "run")]) == 0
    assert sorted(p.name for p in (tmp_path / "run" / "logistic").iterdir()) == [
        "convex.json",
        "convex.npz",
        "figure.png",
    ]
    assert main(["convex", "logistic", *SMALL, "--delta", "0.001", "--out", str(tmp_path / "run")]) == 2
    assert "delta: 0.01 -> 0.001" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        (["--delta", "0"], "delta=0.0"),
        (["--cubic.quadratic", "0.18"], "box=2.5"),
        (["--calibration-runs", "2"], "calibration_runs=2"),
        (["output-perturbation", "--sweep"], "cubic or logistic"),
    ],
)
def test_bad_input_is_one_line(capsys, extra, named):
    assert main(["convex", *extra]) == 2
    said = capsys.readouterr()
    assert named in said.err and said.err.count("\n") == 1 and said.out == ""


def test_it_does_without_jax():
    words = ["convex", "cubic", *SMALL]
    code = f"import sys; from jaxunlearn.cli import main; assert main({words!r}) == 0; "
    code += "assert not {'jax', 'flax', 'optax', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
