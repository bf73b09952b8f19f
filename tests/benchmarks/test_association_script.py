"""The association benchmark runs, tiny and without PyTorch; its decoder in PyTorch is ours."""

import json
import types
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


def test_reports_a_row_for_each_length_and_says_what_it_does_not_run(tmp_path, monkeypatch, capsys):
    import association
    import peers

    no_spec = types.SimpleNamespace(util=types.SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(peers, "importlib", no_spec)
    words = ["--examples", "6", "--chunk", "4", "--gradient-chunk", "2", "--tokens", "4", "6", "--rounds", "1"]
    words += ["--threads", "0", "--slice", "0.001", "--peers", "jvp", "--json", str(tmp_path / "rows.json")]
    association.main(words)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["tokens"] for row in rows] == [4, 6]
    for row in rows:
        assert row["ours_forward"] > 0 and row["forwards"] > 0 and row["megabytes_jvp"] > 0 and "jvp" not in row
        assert row["note"].startswith("jvp not run: PyTorch is not installed")
    assert "ours, jvp" in capsys.readouterr().out


def test_association_in_torch_is_the_same():
    pytest.importorskip("torch")
    import argparse

    import association
    import association_peers

    job = association.make_job(5, 6)
    mine = association.Ours(job, argparse.Namespace(chunk=4, gradient_chunk=2))
    job = job._replace(direction=association_peers.to_host(mine.direction))
    for prepare in association_peers.PREPARE.values():
        step, unit, facts = prepare(job, 1)
        step(1)
        assert unit == 5
        np.testing.assert_allclose(facts["losses"], mine.values["forward"], rtol=1e-5)
        association.same("theirs", facts["values"], mine.values["jvp"])
    with pytest.raises(SystemExit, match="agree"):
        association.same("theirs", facts["values"] * 1.001, mine.values["jvp"])
