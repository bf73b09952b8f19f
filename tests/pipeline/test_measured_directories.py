"""The manifest and the results of directories of commands that measure models under conditions."""

import numpy as np
import pytest

from jaxunlearn import records
from jaxunlearn._paths import as_path
from jaxunlearn._validate import InputError
from jaxunlearn.pipeline import measured

NAMED = {"command": "privacy", "mark": "bits", "file": "privacy.json"}


def opened(directory, title="people", **config):
    return measured.open_run(directory, {"bits": 4} | config, title=title, **NAMED, runs_per_chunk=3)


def test_a_directory_says_what_it_was_begun_with(tmp_path):
    directory = as_path(tmp_path / "run")
    assert measured.chunks_begun(directory / "manifest.json") is None
    manifest = opened(directory)
    assert list(manifest)[3:] == ["title", "created", "versions", "runs_per_chunk"] and manifest["config"] == {
        "bits": 4
    }
    assert {"jax", "python", "jaxunlearn"} <= manifest["versions"].keys()
    assert opened(directory, "other")["title"] == "people"
    assert measured.chunks_begun(directory / "manifest.json") == 3
    assert measured.chunks_begun(directory / "manifest.json", "config") is None
    (directory / "manifest.json").write_text("[")
    assert measured.chunks_begun(directory / "manifest.json") is None


def test_other_settings_other_commands_and_lost_manifests_are_refused(tmp_path):
    directory = as_path(tmp_path / "run")
    opened(directory)
    with pytest.raises(InputError, match="another configuration.*bits"):
        opened(directory, bits=8)
    with pytest.raises(InputError, match="another command than robustness"):
        measured.open_run(directory, {"bits": 4}, title="", **NAMED | {"command": "robustness", "mark": "epsilons"})
    records.write_json(directory / "ga" / "privacy.json", {})
    (directory / "manifest.json").unlink()
    with pytest.raises(InputError, match="manifest.json is missing beside ga/privacy.json"):
        opened(directory)


def test_results_are_whole_or_named(tmp_path, capsys):
    record, arrays = as_path(tmp_path / "a.json"), as_path(tmp_path / "a.npz")
    assert measured.whole(record, arrays, dict) is None and not capsys.readouterr().err  # nothing was ever there
    records.write_json(record, {"a": 1})
    assert measured.whole(record, arrays, dict) is None and "a.npz" in capsys.readouterr().err
    records.write_npz(arrays, x=np.arange(3))
    assert measured.whole(record, arrays, dict)["x"].tolist() == [0, 1, 2] and not capsys.readouterr().err
    content = arrays.read_bytes()
    arrays.write_bytes(content[:40] + b"x" + content[41:])
    assert measured.whole(record, arrays, dict) is None
    assert "these results are computed again" in capsys.readouterr().err
