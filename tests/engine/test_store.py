import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

from jaxunlearn import records
from jaxunlearn._validate import InputError
from jaxunlearn._version import __version__
from jaxunlearn.engine import checkpoints, store


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
    expected = {"schema": records.SCHEMA, "version": __version__, "config": {"seed": 0}, "created": "monday"}
    assert first == again == expected


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
RUNS = {"runs": [["calibration", 0], ["calibration", 1]]}


def save(path, chunk=0, **options):
    params_store = checkpoints.ParamsStore(path, **options)
    params_store.save(chunk, PARAMS, RUNS)
    params_store.flush()
    return params_store


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_chunks_come_back_as_they_were(tmp_path):
    params_store = save(tmp_path, 3, identity={"seed": 0})
    assert params_store.done(3) and not params_store.done(0) and params_store.chunks() == [3]
    for like in (LIKE, None):
        loaded = checkpoints.ParamsStore(tmp_path, identity={"seed": 0}).load(3, like)
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(loaded))
        jax.tree.map(np.testing.assert_array_equal, loaded, PARAMS)


def test_a_commit_says_what_the_chunk_is(tmp_path):
    save(tmp_path, 3, identity={"seed": 0})
    commit, folder = records.read_json(tmp_path / "chunk-00003.json"), tmp_path / "chunk-00003"
    assert commit["runs"] == RUNS["runs"]
    assert (commit["schema"], commit["version"]) == (records.SCHEMA, __version__)
    assert commit["files"] == {
        path.relative_to(folder).as_posix(): [path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()]
        for path in files_of(folder)
    }


def test_models_made_with_other_settings_are_never_taken_for_these(tmp_path):
    save(tmp_path, identity={"seed": 0})
    other = checkpoints.ParamsStore(tmp_path, identity={"seed": 1})
    for use in (other.done, other.damage, other.load):
        with pytest.raises(InputError, match="other settings"):
            use(0)


def test_a_chunk_without_its_commit_is_not_done_and_is_written_again(tmp_path):
    params_store = save(tmp_path)
    (tmp_path / "chunk-00000.json").unlink()  # as a kill between checkpoint and commit leaves it
    assert not params_store.done(0) and "has no commit file" in params_store.damage(0)
    save(tmp_path)
    assert params_store.done(0) and params_store.damage(0) is None and params_store.damage(1) is None


def test_every_damaged_file_is_found(tmp_path):
    params_store = save(tmp_path)
    for path in [*files_of(tmp_path / "chunk-00000"), tmp_path / "chunk-00000.json"]:
        whole = path.read_bytes()
        for size in (0, len(whole) // 2):
            path.write_bytes(whole[:size])
            assert not params_store.done(0) and path.name in params_store.damage(0), path
            with pytest.raises(records.Damaged):
                params_store.load(0, LIKE)
        for place in {0, len(whole) // 2, len(whole) - 1}:
            flipped = bytearray(whole)
            flipped[place] ^= 0x01
            path.write_bytes(flipped)
            with pytest.raises(records.Damaged, match="damaged|not as"):
                params_store.load(0, LIKE)
        path.unlink()
        assert not params_store.done(0)
        with pytest.raises(InputError):
            params_store.load(0, LIKE)
        path.write_bytes(whole)
    jax.tree.map(np.testing.assert_array_equal, params_store.load(0, LIKE), PARAMS)


def test_other_arrays_than_expected_are_damage(tmp_path):
    params_store = save(tmp_path)
    for like in (
        {"other": jax.ShapeDtypeStruct((2, 2), np.float32)},
        jax.tree.map(lambda a: jax.ShapeDtypeStruct((3, *a.shape[1:]), a.dtype), LIKE),
    ):
        with pytest.raises(records.Damaged, match="chunk-00000 cannot be read"):
            params_store.load(0, like)


def test_parameters_on_a_full_disk_are_not_committed(tmp_path, monkeypatch):
    params_store = checkpoints.ParamsStore(tmp_path)

    def full(*arguments, **options):
        raise ValueError("RESOURCE_EXHAUSTED: writing [tmp]: No space left on device")

    for surfaces in (params_store.flush, lambda: params_store.save(1, PARAMS, RUNS), lambda: params_store.done(0)):
        monkeypatch.setattr(params_store._checkpointer, "save", full)
        params_store.save(0, PARAMS, RUNS)
        with pytest.raises(InputError, match="is full"):
            surfaces()
        assert not params_store.done(0) and not params_store.done(1)
        monkeypatch.undo()
    params_store.save(0, PARAMS, RUNS)
    params_store.flush()
    assert params_store.done(0)


def test_writing_goes_on_in_the_background_one_chunk_at_a_time(tmp_path, monkeypatch):
    params_store, gate, order = checkpoints.ParamsStore(tmp_path), threading.Semaphore(0), []
    write = params_store._checkpointer.save

    def slow(path, params):
        assert gate.acquire(timeout=20)
        order.append(path.name)
        write(path, params)

    monkeypatch.setattr(params_store._checkpointer, "save", slow)
    params_store.save(0, PARAMS, RUNS)
    assert not (tmp_path / "chunk-00000.json").exists()  # it has returned already
    second = threading.Thread(target=params_store.save, args=(1, PARAMS, RUNS))
    second.start()
    second.join(0.2)
    assert second.is_alive()  # no third copy of a chunk in memory
    gate.release()
    second.join(20)
    assert not second.is_alive() and (tmp_path / "chunk-00000.json").exists() and not params_store._commit(1).exists()
    gate.release()
    assert params_store.done(1)  # waits for it
    assert order == ["chunk-00000", "chunk-00001"]


def test_the_next_chunk_is_read_meanwhile(tmp_path, monkeypatch):
    params_store = save(tmp_path)
    params_store.save(1, jax.tree.map(lambda a: a + 1, PARAMS), RUNS)
    params_store.flush()
    reads, read = [], params_store._read
    monkeypatch.setattr(params_store, "_read", lambda chunk, like: reads.append(chunk) or read(chunk, like))
    params_store.prefetch(1, LIKE)
    params_store.prefetch(1, LIKE)
    params_store._reader.submit(lambda: None).result()
    assert reads == [1]
    for chunk in (0, 1):
        np.testing.assert_array_equal(params_store.load(chunk)["layer"]["kernel"], PARAMS["layer"]["kernel"] + chunk)
    assert reads == [1, 0]
    params_store.prefetch(1, LIKE)
    params_store.save(1, PARAMS, RUNS)  # what was read of it is out of date
    jax.tree.map(np.testing.assert_array_equal, params_store.load(1), PARAMS)


def test_cleared_stores_hold_nothing(tmp_path):
    params_store = save(tmp_path)
    (tmp_path / "preregistrations.json").write_text("[]")
    params_store.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["preregistrations.json"] and not params_store.done(0)


def test_chunks_in_an_object_store(bucket):
    params_store = save(bucket / "models", identity=1)
    jax.tree.map(np.testing.assert_array_equal, checkpoints.ParamsStore(bucket / "models").load(0, LIKE), PARAMS)
    name = next(name for name in records.read_json(bucket / "models" / "chunk-00000.json")["files"] if "/d/" in name)
    shard = bucket / "models" / "chunk-00000" / name
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert params_store.done(0)  # as far as sizes tell
    with pytest.raises(records.Damaged, match="checksum"):
        params_store.load(0, LIKE)
    shard.unlink()
    assert not params_store.done(0)
    params_store.save(0, PARAMS, RUNS)
    params_store.flush()
    assert params_store.done(0) and params_store.chunks() == [0]
    params_store.clear()
    assert not list((bucket / "models").glob("*"))


def run_python(code, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


LOAD = """
import sys, pathlib, jax, numpy as np
from jaxunlearn.engine import checkpoints
assert jax.device_count() == 1
found = checkpoints.ParamsStore(pathlib.Path(sys.argv[1])).load(0)
assert found["layer"]["kernel"].tolist() == np.arange(12.0).reshape(2, 3, 2).tolist(), found
"""


def test_chunks_do_not_depend_on_the_devices(tmp_path):
    assert jax.device_count() == 4
    spread = jax.device_put(
        PARAMS, jax.sharding.NamedSharding(jax.make_mesh((2,), ("x",)), jax.sharding.PartitionSpec("x"))
    )
    params_store = checkpoints.ParamsStore(tmp_path)
    params_store.save(0, jax.tree.map(np.asarray, spread), RUNS)
    params_store.flush()
    other = run_python(LOAD, tmp_path, JAX_NUM_CPU_DEVICES="1")
    assert other.communicate(timeout=60)[0] == "" and other.returncode == 0


OWN_CHUNKS = """
import sys, pathlib, time, jax, numpy as np
from jaxunlearn.engine import checkpoints
process, port, folder = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
jax.distributed.initialize(coordinator_address=f"localhost:{port}", num_processes=2, process_id=process)
chunks = checkpoints.ParamsStore(folder, process=process)
if process == 1:
    (folder / "one-waits").touch()
    until = time.time() + 30
    while not (folder / "zero-is-done").exists():
        assert time.time() < until
        time.sleep(0.05)
for number in range(process, 4, 2):
    made = {"w": np.full((2, 3), number, np.float32)}
    chunks.save(number, made, {"runs": [["evaluation", number]]})
    like = {"w": jax.ShapeDtypeStruct((2, 3), np.float32)}
    for kind in (like, None):
        assert np.array_equal(chunks.load(number, kind)["w"], made["w"])
if process == 0:
    (folder / "zero-is-done").touch()
print("done", process)
"""


@pytest.mark.slow
def test_processes_of_one_program_write_chunks_of_their_own(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    both = [run_python(OWN_CHUNKS, process, port, tmp_path, JAX_NUM_CPU_DEVICES="1") for process in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert ["done 0" in said[0], "done 1" in said[1]] == [True, True], said
    chunks = checkpoints.ParamsStore(tmp_path)
    assert chunks.chunks() == [0, 1, 2, 3]
    for number in range(4):
        assert chunks.load(number)["w"].tolist() == [[number] * 3] * 2


def test_scores_chunks_are_whole_or_absent(tmp_path, capsys):
    path = tmp_path / "chunk.npz"
    assert store.read_chunk(path) is None and capsys.readouterr().err == ""
    records.write_npz(path, scores=np.arange(5.0))
    np.testing.assert_array_equal(store.read_chunk(path)["scores"], np.arange(5.0))
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert store.read_chunk(path) is None
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and str(path) in said and "unlearned and scored again" in said


def test_every_flipped_bit_of_an_npz_is_found(tmp_path):
    path = tmp_path / "x.npz"
    records.write_npz(path, a=np.arange(3.0))
    np.testing.assert_array_equal(np.load(path)["a"], np.arange(3.0))  # any reader takes it
    whole = path.read_bytes()
    for place in {*range(0, len(whole), 3), len(whole) - 1}:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(records.Damaged, match="x.npz"):
            records.read_npz(path, sealed=True)


def test_every_changed_value_of_a_json_record_is_found(tmp_path):
    path = tmp_path / "x.json"
    data = {"epsilon": 1.25e-7, "names": ["a", None, True], "nested": {"é": -3, "2": 0.1}}
    records.write_json(path, data)
    assert records.read_json(path) == data and json.loads(path.read_text()).keys() - data.keys() == {"checksum"}
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = records.read_json(path)
        except records.Damaged as error:
            assert "x.json is damaged" in str(error)
        else:  # white space, or the checksum's own name
            assert {key: found.get(key) for key in data} == data
    path.write_text("{}")  # of another program
    assert records.read_json(path) == {}


def test_a_manifest_that_has_gone_is_not_made_up(tmp_path):
    store.require_manifest(tmp_path / "manifest.json", tmp_path / "signs.npz")
    (tmp_path / "signs.npz").touch()
    with pytest.raises(InputError, match="manifest.json is missing beside signs.npz.*restore it from a copy"):
        store.require_manifest(tmp_path / "manifest.json", tmp_path / "signs.npz")
    store.open_manifest(tmp_path, "manifest.json", {"seed": 0})
    store.require_manifest(tmp_path / "manifest.json", tmp_path / "signs.npz")


def test_the_register_of_looks(tmp_path):
    path = tmp_path / "preregistrations.json"
    assert store.register(path, {"r": 1}) == [] and store.register(path, {"r": 1}) == []
    assert store.register(path, {"r": 2}) == [{"r": 1}]
    path.write_text(path.read_text().replace('"r": 1', '"r": 3'))
    with pytest.raises(records.Damaged, match="preregistrations.json is damaged.*--seed"):
        store.register(path, {"r": 2})
