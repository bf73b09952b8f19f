"""Kills, interrupts, damage and full disks: the same command goes on, and the results are the same to the bit."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from small_audits import SMALL, audit, interrupt, results

from jaxunlearn.pipeline import bounding

pytestmark = pytest.mark.slow


def start(out, *extra):
    command = [sys.executable, "-m", "jaxunlearn.cli", "audit", "digits", "--out", str(out), *SMALL, *extra]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for(process, condition, seconds=60.0):
    until = time.time() + seconds
    while not condition() and process.poll() is None and time.time() < until:
        time.sleep(0.002)


def test_an_interrupt_is_answered_at_once_with_one_line(tmp_path, cached_environment):
    long = ["--training.epochs", "3000", "--training.batch-size", "16", "--model", "mlp"]
    process = start(tmp_path, "--methods", "finetune", *long)
    wait_for(process, (tmp_path / "population" / "manifest.json").exists)
    time.sleep(3)  # in the middle of training
    assert process.poll() is None
    began = time.time()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and time.time() - began < 5
    assert said.count("\n") == 1 and "interrupted" in said and "same command" in said, said


@pytest.fixture
def halted(copy, monkeypatch):
    """All chunks of a method are on disk, its bounds are not."""
    shutil.rmtree(copy / "finetune")
    with monkeypatch.context() as patch:
        patch.setattr(bounding, "attack", interrupt)
        assert audit(copy, "--methods", "finetune") == 130
    return copy


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other arrays", "gone"])
def test_a_damaged_chunk_of_scores_is_computed_again(finished, halted, capsys, damage):
    path = halted / "finetune" / "chunks" / "chunk-00000.npz"
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "other arrays":
        np.savez(path, other=np.zeros(3))
    else:
        path.unlink()
    capsys.readouterr()
    assert audit(halted, "--methods", "finetune") == 0
    said = capsys.readouterr().err
    assert said.count("\n") == (damage != "gone") and (not said or f"{path} is damaged" in said), said
    assert results(halted, "finetune") == results(finished, "finetune")


@pytest.mark.parametrize("damage", ["a file gone", "all gone", "cut", "flipped"])
def test_a_damaged_checkpoint_is_trained_again(finished, copy, capsys, damage):
    shutil.rmtree(copy / "finetune")
    checkpoint = copy / "population" / "chunk-00000"
    if damage == "all gone":
        shutil.rmtree(checkpoint)
    else:
        shard = max(checkpoint.glob("**/d/*"), key=lambda path: path.stat().st_size)
        data = bytearray(shard.read_bytes())
        if damage == "a file gone":
            shard.unlink()
        elif damage == "cut":
            shard.write_bytes(data[:7])
        else:
            data[len(data) // 2] ^= 1
            shard.write_bytes(data)
    assert audit(copy, "--methods", "finetune") == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{checkpoint} is damaged" in said and "trained again" in said, said
    assert results(copy, "finetune") == results(finished, "finetune")
    assert json.loads((copy / "manifest.json").read_text())["population"]["trained_runs"] == (
        0 if damage == "flipped" else 20  # the sizes are right: found when it was needed
    )
    assert audit(copy, "--methods", "finetune") == 0 and capsys.readouterr().err == ""


def test_a_checkpoint_without_its_commit_is_trained_again(finished, copy, capsys):
    shutil.rmtree(copy / "finetune")
    (copy / "population" / "chunk-00000.json").unlink()
    shutil.rmtree(copy / "population" / "chunk-00000" / "d")
    assert audit(copy, "--methods", "finetune") == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "chunk-00000 has no commit file chunk-00000.json" in said, said
    assert results(copy, "finetune") == results(finished, "finetune")


def test_temporary_files_that_a_kill_left_are_swept_up(copy):
    for folder in (copy, copy / "finetune", copy / "population"):
        (folder / ".manifest.json.123.tmp").write_text("{")
    assert audit(copy, "--methods", "finetune") == 0
    assert not list(copy.rglob("*.tmp"))


def test_a_disk_that_fills_up_at_any_write_loses_nothing(finished, tmp_path, monkeypatch, capsys):
    out, fsync = tmp_path / "run", os.fsync
    for free in range(1, 30):
        writes = iter(range(free))

        def full(descriptor, writes=writes):
            if next(writes, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", full)
        status = audit(out, "--methods", "finetune")
        error = capsys.readouterr().err
        assert not list(out.rglob("*.tmp"))
        if status == 0:
            break
        assert status == 2 and error.count("\n") == 1 and "is full" in error
    monkeypatch.undo()
    assert free > 3 and audit(out, "--methods", "finetune") == 0
    assert results(out, "finetune") == results(finished, "finetune")


@pytest.mark.slow
def test_twenty_kills_and_two_interrupts_at_random_moments(finished, tmp_path, cached_environment):
    extra = ["--runs-per-chunk", "1", "--methods", "retrain", "finetune", "ascent", "ida"]  # 100 chunks
    whole, out, dice = tmp_path / "whole", tmp_path / "cut", random.Random(0)
    process = start(whole, *extra)
    assert process.communicate() and process.returncode == 0

    def written():
        return len([*out.glob("population/chunk-*.json"), *out.glob("*/chunks/*.npz")]) + 20 * len(
            [*out.glob("*/bound.json")]
        )

    killed = 0
    for turn, number in enumerate([signal.SIGKILL] * 20 + [signal.SIGINT] * 2):
        target = written() + dice.randint(0, 2)
        process = start(out, *extra)
        if turn < 4:  # while a checkpoint is being written
            wait_for(process, lambda: any((out / "population").glob("*checkpoint-tmp*")))
        else:
            wait_for(process, lambda target=target: written() > target)
            time.sleep(dice.uniform(0, 0.15))
        process.send_signal(number)
        _, said = process.communicate()
        assert process.returncode in (0, -number, 130) and (number == signal.SIGKILL or said.count("\n") <= 1), said
        killed += process.returncode != 0
    assert killed >= 18  # each gets a few chunks further
    process = start(out, *extra)
    assert process.communicate() and process.returncode == 0
    assert not list(out.rglob("*tmp*"))
    for method in ("retrain", "finetune", "ascent", "ida"):
        assert results(out, method) == results(whole, method)
    for method in ("retrain", "finetune"):
        assert results(out, method) == results(finished, method)


@pytest.mark.slow
def test_two_processes_in_one_directory(finished, tmp_path, cached_environment):
    processes = [start(tmp_path / "run", "--methods", "finetune") for _ in range(2)]
    said = [process.communicate()[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 2], said
    assert "Another process works in" in said[codes.index(2)] and said[codes.index(2)].count("\n") == 1
    assert results(tmp_path / "run", "finetune") == results(finished, "finetune")
