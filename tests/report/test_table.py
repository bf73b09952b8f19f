import dataclasses

import pytest

from jaxunlearn.report.table import WIDTH, lower, render, render_markdown
from jaxunlearn.report.words import factor, finding, lead, remarks, verdict


def rows(text):
    lines = text.splitlines()
    rules = [i for i, line in enumerate(lines) if line.startswith("─")]
    return lines[0], lines[rules[0] + 1 : rules[1]], lines[rules[1] + 1 :]


def test_every_method_has_a_row_with_its_headline(records):
    head, body, legend = rows(render(records))
    assert len(body) == len(records)
    for record, line in zip(records, body):
        assert line.startswith(record.method)
        assert f"≥ {lower(record.epsilon)}" in line
    for name in ("method", "ε", "ceiling", "paper", "ratio", "retain", "forget", "unseen", "test", "proven"):
        assert name in head.split()
    certified = next(line for line in body if line.startswith("noisy finetune"))
    assert certified.endswith("≤ 10")
    text = " ".join(legend)
    for part in (
        "ζ = 0.05",
        "δ = 0",
        "L = 10",
        "m = 400",
        "Definition 3.3",
        "Definition 3.2",
        "95%",
        "npo: 2 evaluation runs",
    ):
        assert part in " ".join(text.split())


def test_columns_line_up(records):
    head, body, _ = rows(render(records))
    end = head.index("ceiling") + len("ceiling")
    for record, line in zip(records, body):
        assert line[:end].endswith(f"{record.ceiling:.1f}")


def test_fits_the_terminal_even_with_long_names_and_large_values(records):
    name = "a method with a very long name that goes on and on for ever"
    changes = {"statistic": "overlap (r = 3000)", "epsilon": 12345.678, "ceiling": 99999.9, "seconds": {"unlearn": 1e6}}
    long = dataclasses.replace(records[0], method=name, **changes)
    text = render([long, *records])
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "≥ 12345.6" in text


def test_lower_bounds_are_rounded_down():
    assert lower(3.9999) == "3.99"
    assert lower(2.70) == "2.70"
    assert lower(0.004) == "0"


def test_ratio_is_left_out_when_the_papers_bound_is_zero(records):
    text = render([dataclasses.replace(records[0], paper_mean=0.0)])
    assert "×" not in text and "ratio" not in text


def test_empty_columns_are_left_out(records):
    bare = dataclasses.replace(records[0], accuracy={}, seconds={}, certificate=None)
    head = rows(render([bare]))[0]
    assert not {"retain", "forget", "unseen", "test", "sec.", "proven"} & set(head.split())


def test_a_name_cannot_break_the_table(records):
    odd = dataclasses.replace(records[0], method="two\nlines\x1b[31m | and a bar")
    assert len(rows(render([odd]))[1]) == 1
    assert "\x1b" not in render([odd])
    table = render_markdown([odd]).splitlines()
    assert table[2].count("|") - table[2].count("\\|") == table[0].count("|")


def test_markdown_is_a_rectangular_table(records):
    table = [line for line in render_markdown(records).splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(records)
    assert len({line.count("|") for line in table}) == 1


def test_no_records():
    assert render([]) == render_markdown([]) == "No methods."


def test_finding_counts_the_methods_with_a_positive_bound(records):
    text = finding(records)
    assert text.startswith("5 of 6 methods leave provable traces") and "gradient ascent" in text
    assert "does not prove" in lead(records) and "retrain" in lead(records)
    assert finding([dataclasses.replace(r, epsilon=0.0) for r in records]).startswith("The audit proves no trace")
    assert finding(records[:1]).startswith("gradient ascent leaves a provable trace")


def test_zero_is_not_called_unlearning(records):
    retrain = next(r for r in records if r.method == "retrain")
    assert "no proof of unlearning" in verdict(retrain)


@pytest.mark.parametrize(
    ("epsilon", "definition", "delta", "expected"),
    [
        (3.9, "3.3", 0.0, "does not contradict it"),
        (12.0, "3.3", 0.0, "only if that guarantee is conditional"),
        (12.0, "3.2", 0.0, "the two contradict"),
        (12.0, "3.2", 0.01, "cannot contradict"),
    ],
)
def test_what_is_said_of_a_certificate(records, epsilon, definition, delta, expected):
    certificate = {"epsilon": 10.0, "delta": delta, "source": "a theorem"}
    record = dataclasses.replace(records[0], epsilon=epsilon, definition=definition, certificate=certificate)
    ((kind, text),) = remarks(record)
    assert (kind == "proof") == (epsilon < 10)
    assert expected in text and "falsif" not in text


def test_factor_is_rounded_down():
    assert factor(0.0) == "1.0"
    assert factor(2.0) == "7.3"
    assert factor(5000.0) == "10^2171"
