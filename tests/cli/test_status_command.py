"""``jaxunlearn status``: what is done, what is left, who works, what is damaged."""

import json
import shutil
import time

import pytest

from jaxunlearn import records
from jaxunlearn.cli import main

WORDS = ["--calibration-runs", "12", "--evaluation-runs", "4", "--pool-size", "20", "--model", "linear", "--quiet"]
WORDS += ["--training.epochs", "1", "--training.batch-size", "512", "--runs-per-chunk", "8", "--methods", "finetune"]
WORDS += ["--method.finetune.epochs", "1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("status") / "run"
    assert main(["audit", "digits", "--out", str(out), *WORDS]) == 0
    return out


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def status(capsys, *words, code=0):
    capsys.readouterr()
    if code:
        with pytest.raises(SystemExit) as stop:
            main(["status", *map(str, words)])
        assert stop.value.code == code
    else:
        assert main(["status", *map(str, words)]) == 0
    return capsys.readouterr().out


def stages(capsys, *words, **options):
    return {row["name"]: row for row in json.loads(status(capsys, *words, "--json", **options))["stages"]}


def counts(stage):
    return stage["done"], stage["failed"], stage["remaining"]


def test_a_finished_audit(finished, capsys):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    found = stages(capsys, finished)
    assert {name: counts(row) for name, row in found.items()} == {"train": (16, 0, 0), "finetune": (16, 0, 0)}
    assert all(row["runs_per_second"] > 0 for row in found.values())
    text = status(capsys, finished, "--verify")
    bound = records.read_json(finished / "finetune" / "bound.json")["epsilon"]
    assert "digits: 16 runs a stage" in text and f"ε ≥ {int(bound * 100) / 100:g}" in text and "damaged" not in text
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_an_audit_on_its_way(copy, capsys):
    shutil.rmtree(copy / "population" / "chunk-00001")
    (copy / "population" / "chunk-00001.json").unlink()
    for name in ("bound.json", "scores.npz"):
        (copy / "finetune" / name).unlink()
    found = stages(capsys, copy)
    assert counts(found["train"]) == (8, 0, 8) and counts(found["finetune"]) == (0, 0, 16)
    lines = status(capsys, copy).splitlines()
    assert lines[2].split()[:4] == ["train", "8", "0", "8"] and "ε" not in lines[3]


def test_damage_is_named_and_the_exit_code_says_so(copy, capsys):
    path = max((copy / "population" / "chunk-00000").rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert counts(stages(capsys, copy)["train"]) == (16, 0, 0)  # sizes alone do not tell
    text = status(capsys, copy, "--verify", code=1)
    assert "chunk-00000 is damaged" in text and path.name in text and "computes just that again" in text
    path.write_bytes(data[:-1])
    assert counts(stages(capsys, copy, code=1)["train"]) == (8, 0, 8)
    scores = copy / "finetune" / "scores.npz"
    scores.write_bytes(scores.read_bytes()[:-9])
    assert "scores.npz" in status(capsys, copy, code=1)


@pytest.mark.parametrize(
    "name",
    ["finetune/evaluation.npz", "finetune/method.json", "finetune/plan.json", "population/preregistrations.json"]
    + ["population/manifest.json", "population/plan.json"],
)
def test_every_file_is_looked_at(copy, capsys, name):
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    assert name.rpartition("/")[2] in status(capsys, copy, code=1)


def test_strangers_are_left_alone(copy, capsys):
    for folder in (copy, copy / "population", copy / "finetune", copy / "processes"):
        folder.mkdir(exist_ok=True)
        (folder / "chunk-abc.json").write_text("{}")
        (folder / "stray.txt").write_text("")
    assert "16 runs a stage" in status(capsys, copy, "--verify")


def test_processes_that_work_or_failed(copy, capsys):
    folder = copy / "processes"
    records.write_json(folder / "0.json", {"process": 0, "state": "working", "time": time.time() - 3, "beat": 1})
    failed = {"process": 1, "state": "failed", "time": time.time() - 300, "beat": 1, "error": "no data"}
    records.write_json(folder / "1.json", failed)
    text = status(capsys, copy)
    assert "process 0: working, heard of 3 s ago" in text and "process 1: failed, heard of 5 min ago, no data" in text


def test_deleted_models_are_said_to_be(copy, capsys):
    assert main(["audit", "digits", "--out", str(copy), *WORDS, "--keep", "none"]) == 0
    found = stages(capsys, copy)
    assert counts(found["train"]) == (0, 0, 0) and "deleted" in found["train"]["outcome"]
    assert counts(found["finetune"]) == (16, 0, 0)


def test_no_run_directory(tmp_path, capsys):
    assert main(["status", str(tmp_path)]) == 2
    assert "manifest.json" in capsys.readouterr().err
