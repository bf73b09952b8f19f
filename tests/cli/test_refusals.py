"""What a hostile or careless user types: status 2, one line, and nothing written that would refuse the mended command."""

import errno
import os

import pytest

from jaxunlearn import config as configuration
from jaxunlearn.cli import COMMANDS, main
from jaxunlearn.engine import store

SMALL = ["--calibration-runs", "12", "--evaluation-runs", "3", "--pool-size", "40", "--model", "linear", "--quiet"]


def one_line(capsys, words, *expected):
    capsys.readouterr()
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and said.err.startswith("jaxunlearn: "), said.err
    for word in expected:
        assert word in said.err, said.err
    return said.err


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("--r 7", ["r=7", "even", "use 6"]),
        ("--r 0", ["r=0"]),
        ("--r 42", ["r=42", "m=40"]),
        ("--candidate-batch-size 7", ["candidate_batch_size=7", "use pool_size=35"]),
        ("--candidate-batch-size 0", ["candidate_batch_size=0"]),
        ("--candidate-batch-size 40", ["pool_size=40", ">= 80"]),
        ("--zeta 0", ["zeta=0.0", "(0, 1)"]),
        ("--zeta 1", ["zeta=1.0"]),
        ("--zeta -1", ["zeta=-1.0"]),
        ("--zeta nan", ["zeta=nan"]),
        ("--delta 1", ["delta=1.0", "[0, 1)"]),
        ("--seed -1", ["seed=-1"]),
        ("--seed 99999999999999999999", ["seed=99999999999999999999", "2 ** 32"]),
        ("--evaluation-runs 0", ["evaluation_runs=0"]),
        ("--calibration-runs 1", ["calibration_runs=1"]),
        ("--calibration-runs 2", ["calibration_runs=2", "use more calibration runs"]),
        ("--pool-size 1500", ["1500", "retain set", "m=1499"]),
        ("--training.epochs 0", ["--training:", "epochs=0"]),
        ("--method.ida.epochs 3", ["--method.ida:", "epochs=3"]),
        ("--method.clipping.descent.peak 0", ["--method.clipping.descent:", "peak=0.0"]),
        ("--predictor joint", ["m=40 <= 12", "candidate_batch_size"]),
        ("--predictor pairwise", ["m=40", "candidate_batch_size=20"]),
        ("--predictor pairwise --candidate-batch-size 20 --r 4", ["r=4"]),
        ("--methods", ["methods"]),
        ("--methods retrain retrain", ["without repetition"]),
        ("--methods retrian", ["Did you mean 'retrain'"]),
        ("--methods clipping_uncertified", ["Did you mean 'clipping-uncertified'"]),
        ("--methods zebra", ["zebra", "Choose from: retrain"]),
        ("--plan 0", ["plan=0"]),
        ("--plan wide", ["plan='wide'", "WIDTH:FORM"]),
        ("--plan 1:patches", ["plan without a form", "1:patches"]),
        ("--parameter-shards 3", ["parameter_shards=3 to divide the 4 devices"]),
        ("--runs-per-chunk 0", ["runs_per_chunk=0"]),
    ],
)
def test_impossible_audits_leave_no_directory_behind(tmp_path, capsys, extra, expected):
    one_line(capsys, ["audit", "digits", "--out", str(tmp_path / "x"), *SMALL, *extra.split()], *expected)
    assert not (tmp_path / "x").exists()  # a manifest would refuse the mended command


def test_the_population_is_not_the_run_directory(tmp_path, capsys):
    here = str(tmp_path / "x")
    one_line(capsys, ["audit", "digits", *SMALL, "--out", here, "--population", here], "population")


@pytest.mark.parametrize("words", [["audti"], ["reprot", "x"], ["--verison"]])
def test_unknown_commands(capsys, words):
    one_line(capsys, words, words[0], f"Choose from: {', '.join(COMMANDS)}")


@pytest.mark.parametrize(
    "words",
    [
        ["audit"],
        ["audit", "digitz"],
        ["audit", "digits", "--epochs", "3"],
        ["audit", "digits", "--model", "lineer"],
        ["audit", "digits", "--r", "x"],
        ["bound", "--signs", "x", "--what"],
        ["design", "--m", "x"],
        ["report", "--what"],
    ],
)
def test_usage_errors_have_status_two(capsys, words):
    with pytest.raises(SystemExit) as stop:
        main(words)
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == "" and "Traceback" not in said.err and said.err


def test_missing_data_says_what_to_get(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("JAXUNLEARN_DATA", str(tmp_path))
    monkeypatch.setattr("jaxunlearn.data.images._from_tfds", lambda name: None)
    for name, file in (("cifar100", "cifar-100-python.tar.gz"), ("mnist", "train-images-idx3-ubyte.gz")):
        one_line(capsys, ["audit", name, "--out", str(tmp_path / "x")], file, str(tmp_path))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("extra", "difference"),
    [
        (["--r", "10"], "r: None -> 10"),
        (["--evaluation-runs", "4"], "evaluation_runs: 3 -> 4"),
        (["--seed", "1"], "seed: 0 -> 1"),
        (["--zeta", "0.5"], "zeta: 0.05 -> 0.5"),
        (["--delta", "0"], "delta: 1e-05 -> 0.0"),
        (["--variance", "per_example"], "variance: full -> per_example"),
        (["--training.epochs", "2"], "training.epochs: 60 -> 2"),
    ],
)
def test_nothing_that_results_depend_on_can_change_in_a_directory(tmp_path, capsys, extra, difference):
    begun = configuration.Audit(dataset="digits", calibration_runs=12, evaluation_runs=3, pool_size=40, model="linear")
    store.open_manifest(tmp_path, "manifest.json", configuration.audit_identity(begun))
    before = (tmp_path / "manifest.json").read_bytes()
    one_line(capsys, ["audit", "digits", "--out", str(tmp_path), *SMALL, *extra], f"({difference})", "--out")
    assert (tmp_path / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("content", ["[]", "{}", "{", '{"schema": 1}', '{"schema": 7, "config": {}}', "\x00\xff"])
def test_a_broken_manifest_is_named(tmp_path, capsys, content):
    (tmp_path / "manifest.json").write_bytes(content.encode("latin-1"))
    one_line(capsys, ["audit", "digits", "--out", str(tmp_path), *SMALL], "manifest.json")


def test_directories_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("precious")
    for out in ("file", "file/below", "n" * 300):
        one_line(capsys, ["audit", "digits", "--out", str(tmp_path / out), *SMALL], "Cannot write to", "--out")
    assert (tmp_path / "file").read_text() == "precious"

    def forbidden(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "replace", forbidden)
    one_line(capsys, ["audit", "digits", "--out", str(tmp_path / "x"), *SMALL], "Cannot write to", "Permission denied")


def test_a_directory_in_use_by_another_process(tmp_path, capsys):
    with store.exclusive(tmp_path):
        one_line(capsys, ["audit", "digits", "--out", str(tmp_path), *SMALL], "Another process", str(tmp_path))


WRONG = """
from jaxunlearn.types import Unlearner
number = 3
def nothing(task): return None
def phase(task): return task.train_phase("retain")
def no_tuple(task): return Unlearner(task.train_phase("retain"))
def source(task): return Unlearner((task.train_phase("retain")._replace(source="forgot"),))
def companion(task): return Unlearner((task.train_phase("retain")._replace(companion="forgot"),))
def epochs(task): return Unlearner((task.train_phase("retain")._replace(epochs=-1),))
def batch_size(task): return Unlearner((task.train_phase("retain")._replace(batch_size=0),))
def half(task): return Unlearner((task.train_phase("retain")._replace(epochs=1.5),))
def steps(task): return Unlearner((task.train_phase("retain")._replace(max_steps=-3),))
def far(task): return Unlearner((task.train_phase("retain"),), rewind=99)
def odd(task): return Unlearner((task.train_phase("retain"),), rewind=1.5)
def scratch(task): return Unlearner((task.train_phase("retain"),), from_scratch=True, rewind=1)
def noted(task): return Unlearner((task.train_phase("retain"),), notes="one sentence")
def proof(task): return Unlearner((task.train_phase("retain"),), certificate={"epsilon": float("inf")})
"""


def test_own_methods_that_cannot_work(tmp_path, capsys, monkeypatch):
    (tmp_path / "wrong_methods.py").write_text(WRONG)
    (tmp_path / "wrong_syntax.py").write_text("def f(:\n")
    (tmp_path / "wrong_name.py").write_text("f = undefined\n")
    monkeypatch.chdir(tmp_path)
    for method, expected in {
        "wrong_methods:surce": ["wrong_methods", "Did you mean 'source'"],
        "wrong_methods:number": ["function of TaskInfo", "3"],
        "wrong_methods:nothing": ["Unlearner", "NoneType"],
        "wrong_methods:phase": ["Unlearner", "Phase"],
        "wrong_methods:no_tuple": ["tuple of Phases"],
        "wrong_methods:source": ["phase 0", "train, retain, forget", "'forgot'"],
        "wrong_methods:companion": ["phase 0", "'forgot'"],
        "wrong_methods:epochs": ["epochs", "-1"],
        "wrong_methods:batch_size": ["batch_size >= 1"],
        "wrong_methods:half": ["whole", "1.5"],
        "wrong_methods:steps": ["max_steps", "-3"],
        "wrong_methods:far": ["rewind 0 to", "99"],
        "wrong_methods:odd": ["rewind 0 to", "1.5"],
        "wrong_methods:scratch": ["rewind 0 to 0", "got 1"],
        "wrong_methods:noted": ["tuple of sentences", "'one sentence'"],
        "wrong_methods:proof": ["certificate", "epsilon"],
        "wrong_syntax:f": ["SyntaxError", "line 1"],
        "wrong_name:f": ["NameError", "undefined"],
        "no_such_module:f": ["No module named 'no_such_module'", "folder"],
        "math:sqrt": ["math", "source"],
        ":f": ["':f'"],
        ".relative:f": ["'.relative:f'"],
        "wrong_methods:": ["wrong_methods"],
    }.items():
        one_line(capsys, ["audit", "digits", "--out", "x", *SMALL, "--methods", method], *expected)
        assert not (tmp_path / "x").exists()


def test_reports_of_nothing(tmp_path, capsys):
    one_line(capsys, ["report", str(tmp_path)], "bound.json", str(tmp_path))
    one_line(capsys, ["report", str(tmp_path / "none")], "none")
    one_line(capsys, ["report"], "directories")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "bound.json").write_text("{")
    one_line(capsys, ["report", str(tmp_path)], "bound.json")
