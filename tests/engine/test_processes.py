"""Processes that share a run directory, as threads with a group each."""

import contextlib
import json
import threading
import time

import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.engine import processes
from jaxunlearn.engine.processes import Group, join


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(processes, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.01)
    monkeypatch.setenv(processes.PATIENCE_VARIABLE, "1")


def together(directory, *works):
    """Runs one function of its group per process; returns what they returned or raised."""
    out = [None] * len(works)

    def body(index):
        group = Group(index, len(works))
        try:
            with group.working(directory):
                out[index] = works[index](group)
        except Exception as error:
            out[index] = error

    threads = [threading.Thread(target=body, args=(i,)) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return out


def test_chunks_go_by_turns():
    groups = [Group(i, 3) for i in range(3)]
    assert [[n for n in range(7) if group.mine(n)] for group in groups] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [group.first for group in groups] == [True, False, False]


def test_alone_there_is_nothing_to_wait_for(tmp_path):
    group = Group()
    with group.working(tmp_path):
        group.announce("x")
        group.follow("x")
        group.await_end()
    assert list(tmp_path.iterdir()) == []


def test_the_others_follow_and_the_first_waits_for_chunks(tmp_path):
    seen = []

    def first(group):
        time.sleep(0.3)
        seen.append("announced")
        group.announce("opened")
        assert group.wait_for(1, (tmp_path / "chunk").exists)
        seen.append("merged")
        group.await_end()

    def other(group):
        group.follow("opened")
        seen.append("followed")
        time.sleep(0.3)
        (tmp_path / "chunk").touch()
        group.await_end()
        seen.append("left")

    assert together(tmp_path, first, other) == [None, None]
    assert seen == ["announced", "followed", "merged", "left"]
    assert {json.loads((tmp_path / "processes" / f"{i}.json").read_text())["state"] for i in range(2)} == {"done"}


def test_what_an_earlier_session_left_is_not_believed(tmp_path):
    (tmp_path / "processes").mkdir()
    for index, left in enumerate([{"state": "done", "opened": ["opened"]}, {"state": "failed", "error": "old"}]):
        (tmp_path / "processes" / f"{index}.json").write_text(json.dumps(left))
    seen = []

    def first(group):
        time.sleep(0.3)
        seen.append("announced")
        group.announce("opened")
        assert group.wait_for(1, lambda: "followed" in seen)
        group.await_end()

    def other(group):
        group.follow("opened")
        seen.append("followed")
        group.await_end()

    assert together(tmp_path, first, other) == [None, None]
    assert seen == ["announced", "followed"]


def test_a_failure_is_passed_on_at_once_with_its_words(tmp_path):
    def first(group):
        group.wait_for(1, lambda: False)

    def other(group):
        raise InputError("Expected seed=-1 >= 0.")

    began = time.time()
    told, own = together(tmp_path, first, other)
    assert str(own) == "Expected seed=-1 >= 0." and "Process 1 of 2 failed: Expected seed=-1 >= 0." in str(told)
    assert time.time() - began < 1


def test_chunks_of_a_silent_process_are_taken_over(tmp_path):
    group = Group(0, 2)
    with group.working(tmp_path):
        assert not group.mine(1) and not group.mine(3)
        assert not group.wait_for(1, lambda: False)
        assert group.mine(1) and group.mine(3)
        group.await_end()  # which does not wait for it again


def test_without_the_first_process_the_others_end(tmp_path):
    group = Group(1, 2)
    with pytest.raises(InputError, match="Process 0 of 2 .* 1 s.*same commands again"), group.working(tmp_path):
        group.follow("opened")


@pytest.mark.parametrize("arguments", [(2, 2), (-1, 2), (0, 0)])
def test_impossible_numbers_are_refused(arguments):
    with pytest.raises(InputError, match="process"):
        Group(*arguments)


def test_an_own_silence_is_not_taken_for_that_of_others(tmp_path, monkeypatch):
    group = Group(0, 2)
    with group.working(tmp_path):
        later = time.monotonic() + 1e6
        monkeypatch.setattr(processes.time, "monotonic", lambda: later)  # the disk hung
        assert group._alive(1)


def test_who_was_taken_over_by_mistake_ends(tmp_path):
    def first(group):
        assert not group.wait_for(1, lambda: False)
        time.sleep(0.3)

    def other(group):
        group._stop.set()  # no more beats
        time.sleep(1.5)
        group.check()

    told, own = together(tmp_path, first, other)
    assert told is None and "taken its chunks over" in str(own)


def test_the_first_process_dies_before_it_has_merged(tmp_path):
    def first(group):
        group.announce("opened")
        group._stop.set()
        time.sleep(0.2)
        raise SystemExit  # a kill says nothing

    def other(group):
        group.follow("opened")
        group.await_end()

    first_process = Group(0, 2)
    first_process._end = lambda *a, **k: None

    def run():
        with contextlib.suppress(SystemExit), first_process.working(tmp_path):
            first(first_process)

    thread = threading.Thread(target=run)
    thread.start()
    group = Group(1, 2)
    with pytest.raises(InputError, match="Process 0 of 2 has not been heard of"), group.working(tmp_path):
        other(group)
    thread.join()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_STEP_TASKS_PER_NODE": "1(x4)"}, [0, 1, 2, 3]),  # one task a machine
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_STEP_TASKS_PER_NODE": "4"}, None),  # one task a GPU, all visible
        ({"CUDA_VISIBLE_DEVICES": "2", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, [0]),  # one task a GPU, one visible
        ({"CUDA_VISIBLE_DEVICES": "0,1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_TASKS_PER_NODE": "1,2"}, None),
    ],
)
def test_devices_of_a_process_in_a_cluster(monkeypatch, environment, expected):
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert processes._local_devices() == expected


@pytest.mark.parametrize("text", ["long", "nan", "0", "-3", "inf"])
def test_patience_is_a_number(monkeypatch, text):
    monkeypatch.setenv(processes.PATIENCE_VARIABLE, text)
    with pytest.raises(InputError, match="JAXUNLEARN_PATIENCE"):
        Group()


def test_another_number_of_processes_is_refused(tmp_path):
    wrong = Group(1, 3)
    with Group(0, 2).working(tmp_path), pytest.raises(InputError, match="num_processes=2, this one with 3"):
        with wrong.working(tmp_path):
            wrong.follow("opened")


def test_a_coordinator_has_a_port():
    with pytest.raises(InputError, match="HOST:PORT, got 'nohost'"):
        join(coordinator="nohost", num_processes=2, process_id=0)


def test_joining_by_hand_or_alone():
    assert (join().index, join().count) == (0, 1)
    group = join(num_processes=4, process_id=3)
    assert (group.index, group.count) == (3, 4)
