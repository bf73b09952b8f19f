"""Real processes in one run directory: spread evenly, killed, taken over; the results are the same."""

import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from small_audits import SMALL, audit, interrupt, read, results

from jaxunlearn import records

CHUNKED = ["--runs-per-chunk", "4", "--methods", "retrain", "finetune"]


def free_port():
    with socket.socket() as sock:
        sock.bind(("localhost", 0))
        return sock.getsockname()[1]


def start(out, index, *extra, patience=60, environment):
    command = [sys.executable, "-m", "jaxunlearn.cli", "audit", "digits", "--out", str(out), *SMALL, *CHUNKED, *extra]
    command += ["--num-processes", "2", "--process-id", str(index)]
    env = os.environ | environment | {"JAX_NUM_CPU_DEVICES": "2", "JAXUNLEARN_PATIENCE": str(patience)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def finish(processes, seconds=180):
    said = [process.communicate(timeout=seconds) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return said


def wait_for(condition, seconds=120):
    until = time.time() + seconds
    while not condition():
        assert time.time() < until
        time.sleep(0.01)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("programs"))}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    assert audit(out, *CHUNKED) == 0
    return out


def same(out, alone):
    """Equal to the bit here, where all take the same plan on the same kind of core."""
    for method in ("retrain", "finetune"):
        found, expected = (records.read_npz(d / method / "scores.npz") for d in (out, alone))
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
        assert abs(read(out, method)["epsilon"] - read(alone, method)["epsilon"]) < 1e-3
    return True


@pytest.mark.slow
@pytest.mark.parametrize("coordinated", [True, False])
def test_two_processes_of_two_devices_give_what_one_gives(alone, tmp_path, coordinated, environment):
    extra = ["--coordinator", f"localhost:{free_port()}"] if coordinated else []
    said = finish([start(tmp_path / "run", index, *extra, environment=environment) for index in range(2)])
    assert same(tmp_path / "run", alone) and "finetune" in said[0][0] and said[1][0] == ""
    manifest = records.read_json(tmp_path / "run" / "manifest.json")
    assert manifest["processes"] == 2 and manifest["population"]["trained_runs"] == 20
    # Whoever comes later, alone, finds everything done.
    before = results(tmp_path / "run", "finetune")
    assert audit(tmp_path / "run", *CHUNKED) == 0
    assert results(tmp_path / "run", "finetune") == before


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_one_of_two_is_killed_and_both_are_started_again(alone, tmp_path, victim, environment):
    out = tmp_path / "run"
    processes = [start(out, index, patience=3, environment=environment) for index in range(2)]
    wait_for(lambda: len(list((out / "population").glob("chunk-*.json"))) >= 2)
    processes[victim].send_signal(signal.SIGKILL)
    said = [process.communicate(timeout=180) for process in processes]
    survivor = processes[1 - victim]
    if victim == 1:  # the first one has taken over
        assert survivor.returncode == 0 and "taken over" in said[0][1], said
        assert same(out, alone)
    else:
        assert survivor.returncode == 2 and "Process 0 of 2 has not been heard of" in said[1][1], said
    finish([start(out, index, environment=environment) for index in range(2)])
    assert same(out, alone)
    assert not list(out.rglob("*tmp*"))


@pytest.mark.slow
def test_a_sequential_audit_in_two_processes(tmp_path, environment):
    claim = ["--claim-epsilon", "2"]
    assert audit(tmp_path / "alone", *CHUNKED, *claim) == 0
    finish([start(tmp_path / "two", index, *claim, environment=environment) for index in range(2)])
    for method in ("retrain", "finetune"):
        two, one = (read(tmp_path / name, method) for name in ("two", "alone"))
        assert two["sequential"]["path"] == pytest.approx(one["sequential"]["path"], abs=1e-3)
        assert two["evaluation_runs"] == one["evaluation_runs"]


@pytest.mark.slow
def test_a_sequential_audit_begun_alone_goes_on_in_two_processes(tmp_path, environment, monkeypatch):
    claim = ["--claim-epsilon", "2"]
    with monkeypatch.context() as patch:  # killed after the first chunk
        patch.setattr("jaxunlearn.pipeline.anytime.AnytimeTest.judge", interrupt)
        assert audit(tmp_path / "two", *CHUNKED, *claim) == 130
    assert (tmp_path / "two" / "population" / "chunk-00000.json").exists()
    finish([start(tmp_path / "two", index, *claim, environment=environment) for index in range(2)])
    assert audit(tmp_path / "alone", *CHUNKED, *claim) == 0
    assert read(tmp_path / "two", "finetune")["epsilon"] == pytest.approx(
        read(tmp_path / "alone", "finetune")["epsilon"]
    )


@pytest.mark.slow
def test_a_command_given_twice_is_refused_and_the_first_goes_on(alone, tmp_path, environment):
    out = tmp_path / "run"
    waiting = start(out, 1, patience=110, environment=environment)  # for process 0
    wait_for((out / "processes" / "1.json").exists)
    again = start(out, 1, environment=environment)
    assert "Another process works in" in again.communicate(timeout=120)[1] and again.returncode == 2
    single = subprocess.run(
        [sys.executable, "-m", "jaxunlearn.cli", "audit", "digits", "--out", str(out), *SMALL, *CHUNKED],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Another process works in" in single.stderr and single.returncode == 2
    finish([start(out, 0, environment=environment), waiting])
    assert same(out, alone)


@pytest.mark.slow
def test_other_methods_than_those_of_the_first_are_refused(tmp_path, environment):
    processes = [start(tmp_path / "run", 0, environment=environment)]
    processes.append(start(tmp_path / "run", 1, "--methods", "finetune", environment=environment))
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2] and "methods of process 0" in said[1], said


@pytest.mark.slow
def test_a_process_with_another_method_is_refused(tmp_path, environment):
    other = ["--method.finetune.epochs", "2"]
    processes = [start(tmp_path / "run", 0, environment=environment)]
    processes.append(start(tmp_path / "run", 1, *other, environment=environment))
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2] and "epochs: 1 -> 2" in said[1], said


@pytest.mark.slow
def test_a_failure_of_the_first_ends_the_other(tmp_path, environment):
    bad = ["--trajectory", "100000"]
    processes = [start(tmp_path / "run", index, *bad, environment=environment) for index in range(2)]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert "trajectory" in said[0] and "trajectory" in said[1]
