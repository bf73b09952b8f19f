"""Options that are paths: local ones, ones of an object store, and ones that nobody can read."""

import io
import pathlib

import numpy as np
import pytest

from jaxunlearn import _paths, records
from jaxunlearn._validate import InputError
from jaxunlearn.cli import main
from jaxunlearn.config import Audit
from jaxunlearn.pipeline import design_runs

SMALL = ["--m", "40", "--calibration-runs", "16", "--evaluation-runs", "6", "--seed", "3"]

pytestmark = pytest.mark.slow


def test_local_paths_stay_what_they_were(tmp_path):
    assert _paths.as_path("a/b.npz") == pathlib.Path("a/b.npz") and _paths.as_path(tmp_path) == tmp_path
    assert _paths.is_local(tmp_path) and _paths.absolute(_paths.as_path("a")) == pathlib.Path("a").absolute()
    (tmp_path / "x").write_bytes(b"123")
    assert _paths.size(tmp_path / "x") == 3
    _paths.remove_tree(tmp_path)
    _paths.remove_tree(tmp_path)
    assert not tmp_path.exists()


def test_paths_of_object_stores_keep_their_slashes(bucket):
    path = _paths.as_path("s3://bucket/a") / "b.json"
    assert str(path) == "s3://bucket/a/b.json" and _paths.absolute(path) == path and not _paths.is_local(path)
    records.write_bytes(path, b"1234")
    assert _paths.size(path) == 4 and [str(p) for p in _paths.as_path("s3://bucket").glob("*/b.json")] == [str(path)]
    assert records.as_json({"out": 1}) == {"out": 1} and records.as_json((path,)) == ["s3://bucket/a/b.json"]
    _paths.remove_tree(path.parent)
    _paths.remove_tree(path.parent)
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        _paths.size(path)


@pytest.mark.parametrize("words", [["report"], ["design", *SMALL, "--out"], ["audit", "digits", "--out"]])
def test_schemes_that_nobody_reads_are_one_line(capsys, words):
    assert main([*words, "nowhere://bucket/x"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "nowhere://bucket/x" in said and "gs://, s3://" in said, said


def test_a_package_that_is_not_installed_is_named(capsys, monkeypatch):
    import fsspec

    def absent(scheme):
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec, "get_filesystem_class", absent)
    monkeypatch.setattr(_paths.importlib.util, "find_spec", lambda name: None)
    assert main(["report", "gs://bucket/x"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "gcsfs" in said and "jaxunlearn[cloud]" in said, said


def test_a_design_and_its_bounds_in_an_object_store(bucket, capsys):
    out = bucket / "designs" / "d"
    assert main(["design", *SMALL, "--out", str(out)]) == 0
    made = design_runs.load(out)
    assert main(["design", *SMALL, "--out", str(out)]) == 0  # the same again
    rng = np.random.default_rng(0)
    buffer = io.BytesIO()
    np.save(buffer, 1.5 * made.signs + rng.normal(size=made.signs.shape))
    records.write_bytes(out / "scores.npy", buffer.getvalue())
    text = "\n".join(",".join(map(str, row)) for row in np.load(io.BytesIO(buffer.getvalue())))
    records.write_bytes(out / "scores.csv", text.encode())
    found = []
    for name in ("scores.npy", "scores.csv"):
        words = ["bound", "--design", out, "--scores", out / name, "--name", name.replace(".", "-")]
        assert main(list(map(str, words))) == 0
        found.append(records.read_json(out / "results" / name.replace(".", "-") / "bound.json")["epsilon"])
    assert found[0] == found[1] > 1
    assert f"{out}/results/report.html" in capsys.readouterr().out and (out / "results" / "overview.png").exists()
    assert main(["report", str(out / "nothing here")]) == 2
    assert "Expected a run directory at s3://bucket/designs/d/nothing here" in capsys.readouterr().err


def test_a_population_is_never_its_own_run_directory(bucket):
    with pytest.raises(InputError, match="another folder"):
        Audit(dataset="digits", out=bucket / "x", population=bucket / "x")
