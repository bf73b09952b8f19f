import errno
import json
import os
import shutil

import jax
import numpy as np
import pytest

from jaxunlearn import records
from jaxunlearn._validate import InputError
from jaxunlearn.engine import store


def test_differences_name_the_path_and_both_values():
    old = {"seed": 0, "training": {"epochs": 3, "batch_size": 8}, "gone": 1, "same": [1, 2]}
    new = {"seed": 1, "training": {"epochs": 4, "batch_size": 8}, "fresh": None, "same": [1, 2]}
    assert store.differences(old, new) == [
        "fresh: (absent) -> None",
        "gone: 1 -> (absent)",
        "seed: 0 -> 1",
        "training.epochs: 3 -> 4",
    ]
    assert store.differences(old, old) == []


def test_manifest_is_written_once_and_facts_are_not_compared(tmp_path):
    first = store.open_manifest(tmp_path / "run", "manifest.json", {"seed": 0}, created="monday")
    again = store.open_manifest(tmp_path / "run", "manifest.json", {"seed": 0}, created="tuesday")
    assert first == again == {"schema": records.SCHEMA, "config": {"seed": 0}, "created": "monday"}


def test_another_configuration_is_refused_with_the_difference_and_left_alone(tmp_path):
    store.open_manifest(tmp_path, "manifest.json", {"seed": 0, "m": 4})
    before = (tmp_path / "manifest.json").read_bytes()
    with pytest.raises(InputError, match=r"\(seed: 0 -> 1\).*another --out directory"):
        store.open_manifest(tmp_path, "manifest.json", {"seed": 1, "m": 4})
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_another_schema_or_a_broken_manifest_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": 0, "config": {}}))
    with pytest.raises(InputError, match="Expected schema="):
        store.open_manifest(tmp_path, "manifest.json", {})
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="manifest.json"):
        store.open_manifest(tmp_path, "manifest.json", {})


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "disk of .* is full.*finished chunks are kept"),
        (errno.EDQUOT, "is full"),
        (errno.EACCES, "Cannot write to .*another --out directory"),
        (errno.EROFS, "Cannot write to"),
        (errno.ENOTDIR, "Cannot write to"),
    ],
)
def test_disk_errors_become_input_errors(tmp_path, code, message):
    with pytest.raises(InputError, match=message), store.disk_errors(tmp_path):
        raise OSError(code, os.strerror(code))


def test_other_errors_pass_through(tmp_path):
    with pytest.raises(OSError, match="no such device"), store.disk_errors(tmp_path):
        raise OSError(errno.ENODEV, "no such device")
    with pytest.raises(ValueError, match="bug"), store.disk_errors(tmp_path):
        raise ValueError("bug")


def test_manifest_on_a_full_disk(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="is full"):
        store.open_manifest(tmp_path / "run", "manifest.json", {"seed": 0})
    assert list((tmp_path / "run").iterdir()) == []  # no half file, no temporary one
    monkeypatch.undo()
    store.open_manifest(tmp_path / "run", "manifest.json", {"seed": 0})


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_forbidden_directory(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="Cannot write to"):
        store.open_manifest(tmp_path / "run", "manifest.json", {})


def test_a_file_in_the_directorys_place(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match="Cannot write to"):
        store.open_manifest(tmp_path / "run", "manifest.json", {})


PARAMS = {"layer": {"kernel": np.arange(12, dtype=np.float32).reshape(2, 3, 2), "bias": np.zeros((2, 2), np.float32)}}
LIKE = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), PARAMS)


def save(path, chunk=0):
    params_store = store.ParamsStore(path)
    params_store.save(chunk, PARAMS, {"runs": [["calibration", 0]]})
    return params_store


def test_chunks_come_back_as_they_were(tmp_path):
    params_store = save(tmp_path, 3)
    assert params_store.done(3) and not params_store.done(0)
    loaded = store.ParamsStore(tmp_path).load(3, LIKE)
    jax.tree.map(np.testing.assert_array_equal, loaded, PARAMS)
    assert records.read_json(tmp_path / "chunk-00003.json") == {"runs": [["calibration", 0]]}


def test_a_chunk_without_its_commit_is_not_done_and_is_written_again(tmp_path):
    params_store = save(tmp_path)
    (tmp_path / "chunk-00000.json").unlink()  # as a kill between checkpoint and commit leaves it
    assert not params_store.done(0)
    save(tmp_path)
    assert params_store.done(0)


@pytest.mark.parametrize("damage", ["gone", "cut", "other shapes"])
def test_a_damaged_chunk_says_what_to_delete(tmp_path, damage):
    params_store, like = save(tmp_path), LIKE
    folder = tmp_path / "chunk-00000"
    if damage == "gone":
        shutil.rmtree(folder)
    elif damage == "cut":
        for path in folder.rglob("*"):
            if path.is_file():
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        like = {"other": jax.ShapeDtypeStruct((2, 2), np.float32)}
    with pytest.raises(InputError, match="delete .*chunk-00000.json and give the same command again"):
        params_store.load(0, like)


def test_parameters_on_a_full_disk_are_not_committed(tmp_path, monkeypatch):
    params_store = store.ParamsStore(tmp_path)

    def full(*arguments, **options):
        raise ValueError("RESOURCE_EXHAUSTED: writing [tmp]: No space left on device")

    monkeypatch.setattr(params_store._checkpointer, "save", full)
    with pytest.raises(InputError, match="is full"):
        params_store.save(0, PARAMS, {"runs": []})
    assert not params_store.done(0)
    monkeypatch.undo()
    params_store.save(0, PARAMS, {"runs": []})
    assert params_store.done(0)


def test_scores_chunks_are_whole_or_absent(tmp_path):
    path = tmp_path / "chunk.npz"
    assert store.read_chunk(path) is None
    records.write_npz(path, scores=np.arange(5.0))
    np.testing.assert_array_equal(store.read_chunk(path)["scores"], np.arange(5.0))
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert store.read_chunk(path) is None
