"""``jaxunlearn bound``: bounds from anybody's scores, without JAX."""

import json
import subprocess
import sys

import numpy as np
import pytest

from jaxunlearn.audit.least_favourable import draw_signs
from jaxunlearn.cli import main


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    signs = draw_signs(rng, 40, 60)
    scores = rng.normal(size=(40, 60)) + 1.5 * (signs > 0) + rng.normal(size=60)
    np.save(tmp_path / "signs.npy", signs)
    np.savez(tmp_path / "scores.npz", scores=scores)
    np.savetxt(tmp_path / "scores.csv", scores, delimiter=",", header=",".join(f"b{i}" for i in range(60)), comments="")
    return tmp_path, signs, scores


def bound(folder, scores, *extra):
    words = ["bound", "--signs", str(folder / "signs.npy"), "--scores", str(folder / scores)]
    return main([*words, *extra])


def test_npz_and_csv_give_one_answer_and_out_is_a_run_directory(files, capsys):
    folder, _, _ = files
    assert bound(folder, "scores.npz", "--calibration", "30", "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert bound(folder, "scores.csv", "--calibration", "30", "--json") == 0
    second = json.loads(capsys.readouterr().out)
    assert first["epsilon"] == pytest.approx(second["epsilon"]) and 1 < first["epsilon"] < first["ceiling"]
    assert bound(folder, "scores.npz", "--calibration", "30", "--out", str(folder / "out")) == 0
    assert main(["report", str(folder / "out")]) == 0
    assert "scores" in capsys.readouterr().out


def test_noise_common_to_a_run_is_taken_off_with_full_variance(files, capsys):
    folder, _, scores = files
    rng = np.random.default_rng(1)
    np.save(folder / "noisy.npy", scores + 3 * rng.normal(size=(40, 1)) * rng.choice([-1, 1], size=60))
    found = {}
    for variance in ("pooled", "full"):
        assert bound(folder, "noisy.npy", "--calibration", "30", "--variance", variance, "--json") == 0
        found[variance] = json.loads(capsys.readouterr().out)["epsilon"]
    assert found["full"] > found["pooled"] + 4


def test_shuffled_signs_give_zero(files, capsys):
    folder, signs, _ = files
    zeros = 0
    for seed in range(20):
        np.save(folder / "signs.npy", draw_signs(np.random.default_rng(100 + seed), *signs.shape))
        assert bound(folder, "scores.npz", "--calibration", "30", "--json") == 0
        zeros += json.loads(capsys.readouterr().out)["epsilon"] == 0
    assert zeros >= 18


def test_bad_scores_and_signs(files, capsys):
    folder, signs, scores = files

    def refused(*words):
        assert bound(folder, "bad.npy", "--calibration", "30") == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and all(word in error for word in words), error

    np.save(folder / "bad.npy", scores[:, :50])
    refused("scores", "m=60")
    holed = scores.copy()
    holed[35, 3] = np.nan
    np.save(folder / "bad.npy", holed)
    refused("finite scores", "--failed-runs")
    assert bound(folder, "bad.npy", "--calibration", "30", "--failed-runs", "5") == 0
    capsys.readouterr()
    repeated, signs_repeated = scores.copy(), signs.copy()
    repeated[35], signs_repeated[35] = repeated[2], signs_repeated[2]
    np.save(folder / "bad.npy", repeated)
    np.save(folder / "signs.npy", signs_repeated)
    refused("calibration run 2")
    unbalanced = signs.copy()
    unbalanced[3, np.flatnonzero(unbalanced[3] < 0)[0]] = 1
    np.save(folder / "signs.npy", unbalanced)
    refused("signs")


def test_unknown_command_is_suggested(capsys):
    assert main(["boud"]) == 2
    assert "Did you mean 'bound'" in capsys.readouterr().err


def test_bound_and_imports_do_without_jax(files):
    folder, _, _ = files
    words = [
        "bound",
        "--signs",
        f"{folder}/signs.npy",
        "--scores",
        f"{folder}/scores.npz",
        "--calibration",
        "30",
        "--json",
    ]
    code = f"import sys; from jaxunlearn.cli import main; assert main({words!r}) == 0; "
    code += "assert not {'jax', 'tensorflow', 'torch', 'transformers', 'datasets'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_data_set_is_named_once():
    with pytest.raises(SystemExit) as stop:
        main(["audit", "digits", "--dataset", "mnist"])
    assert stop.value.code == 2
