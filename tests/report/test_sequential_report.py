"""What the table and the page say of sequential audits."""

import numpy as np
import pytest
from made_runs import L, make_record, write_method

from jaxunlearn.audit.bounds import e_process
from jaxunlearn.records import BoundEntry, BoundRecord
from jaxunlearn.report import write_report
from jaxunlearn.report.canvas import Drawing, Missing
from jaxunlearn.report.figures import method_figures
from jaxunlearn.report.load import load_directory
from jaxunlearn.report.table import WIDTH, outcome, render, render_markdown
from jaxunlearn.report.words import remarks


def sequential(method="finetune", log_p=(-9.0,) * L, claim=5.0, falsified=True, after=3, delta=0.0, **changes):
    bound = e_process(np.array(log_p), m=400, zeta=0.05)
    told = {
        "epsilon": claim,
        "delta": delta,
        "falsified": falsified,
        "evaluation_runs": after if falsified else len(log_p),
        "log_e_value": 3.2,
    }
    entry = BoundEntry(name="e_process", epsilon=bound.epsilon, ceiling=272.0, zeta=0.05, status="preregistered")
    fields = {
        "epsilon": bound.epsilon,
        "statistic": "e_process",
        "ceiling": 272.0,
        "paper_mean": None,
        "paper_median": None,
        "calibration_runs": 4,
        "evaluation_runs": len(log_p),
        "bounds": [entry],
        "by_r": {},
        "log_p_values": list(log_p),
        "sequential": {
            "path": list(bound.path),
            "warmup": 4,
            "most_runs": 60,
            "claim": None if claim is None else told,
        },
    }
    return make_record(method, 0.5, **{**fields, **changes})


def page_of(tmp_path, *made):
    for number, record in enumerate(made):
        write_method(tmp_path / f"m{number}", record, 0.5)
    table, path = write_report([tmp_path])
    return table, " ".join(path.read_text().split())


def test_a_falsified_claim_is_said_in_table_and_page(tmp_path):
    table, page = page_of(tmp_path, sequential(after=10))
    said = "claim ε ≤ 5 falsified after 14 runs (4 warm-up + 10), any-time valid at 95%."
    assert outcome(sequential(after=10)) == said and said in " ".join(table.split())
    row = next(line for line in table.splitlines() if line.startswith("finetune"))
    assert "falsified ε ≤ 5 after 14 runs" in row and "e_process" in row
    assert "paper" not in table and "at most 60 runs with 4 to warm up" in " ".join(table.split())
    for part in (
        "The bound run by run",
        "Stopping at any time",
        "4 warm-up and 10 evaluation runs",
        "holds at every number",
    ):
        assert part in page, part
    assert "in the sense of Definition 3.3" in page
    assert (tmp_path / "m0" / "figures" / "path.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "m0" / "figures" / "budget.png").exists()


def test_a_claim_that_stands_is_not_called_proven():
    silent = sequential("retrain", log_p=(0.0,) * L, falsified=False, delta=1e-5)
    text = outcome(silent)
    assert text.startswith("claim ε ≤ 5 at δ = 1e-05 not falsified by 14 runs (4 warm-up + 10)")
    assert "no evidence against it; this many runs could have shown ε ≥ 272" in text
    assert ("note", text[0].upper() + text[1:]) == (remarks(silent)[0][0], remarks(silent)[0][1][: len(text)])
    assert "ε ≤ 5 stands after 14 runs" in render([silent])


def test_without_a_claim_there_is_no_claim_column():
    record = sequential(claim=None)
    assert outcome(record) == "" and "claim" not in render([record]).splitlines()[0]


def test_a_fixed_audit_beside_keeps_the_table_whole():
    records = [sequential("a method with a very long name that goes on", after=2), make_record("fixed", 0.4)]
    text = render(records)
    assert max(map(len, text.splitlines())) <= WIDTH
    lines = [line for line in render_markdown(records).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert "L = 10 evaluation runs" in " ".join(text.split())


@pytest.mark.parametrize("claim", [None, 5.0, 400.0])
def test_the_path_is_drawn_with_its_claim(tmp_path, claim):
    write_method(tmp_path / "x", sequential(claim=claim, falsified=claim == 5.0), 0.5)
    panels = method_figures(load_directory(tmp_path).methods[0])
    assert [p.name for p in panels] == ["scores", "roc", "path", "evidence"]
    drawing = panels[2]
    assert isinstance(drawing, Drawing) and "after 14 runs" in drawing.label
    (axes,) = drawing.figure.axes
    bottom, top = axes.get_ylim()
    assert bottom == 0 and (claim is None or top > claim)
    assert ("Claim ε ≤ 5 falsified after 7 runs" in drawing.caption) == (claim == 5.0)


def test_a_path_that_was_not_recorded_is_said(tmp_path):
    write_method(tmp_path / "x", sequential(sequential={"warmup": 4, "most_runs": 60}), 0.5)
    panel = method_figures(load_directory(tmp_path).methods[0])[2]
    assert isinstance(panel, Missing) and panel.name == "path"


def test_records_survive_json_and_older_ones_are_read():
    record = sequential()
    assert BoundRecord.from_json(record.to_json()) == record
    old = make_record("fixed", 0.4).to_json()
    del old["sequential"]
    assert BoundRecord.from_json(old).sequential is None
