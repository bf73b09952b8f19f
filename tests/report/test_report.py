import json
import re
import subprocess
import sys
import time
from html.parser import HTMLParser

import numpy as np
import pytest
from made_runs import STRENGTHS, make_record, write_joint, write_method, write_minimal, write_six

from jaxunlearn._validate import InputError
from jaxunlearn.records import write_json
from jaxunlearn.report import write_report
from jaxunlearn.report.canvas import VARIABLES, Drawing, Missing
from jaxunlearn.report.figures import density, log_count, method_figures, roc, standardised_scores
from jaxunlearn.report.load import load_directory
from jaxunlearn.report.overview import overview
from jaxunlearn.report.page import write_page

VOID = {"meta", "br", "link", "img", "hr", "input"}
PANELS = ["scores", "roc", "budget", "evidence"]


class Page(HTMLParser):
    """Collects what the tests ask about, and checks that every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.tags, self.ids, self.links, self.headings, self.attributes = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append(tag)
        self.attributes.append((tag, attributes))
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes[k] for k in ("href", "src", "xlink:href") if k in attributes]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("all")
    directories = [write_six(root / "six"), write_joint(root / "joint"), write_minimal(root / "minimal")]
    table, path = write_report(directories, out=root / "page.html")
    return root, table, path.read_text()


def test_page_is_well_formed_and_self_contained(report):
    _, _, html = report
    page = Page(html)
    assert html.startswith("<!DOCTYPE html>")
    assert len(page.ids) == len(set(page.ids))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "http" not in html and "@import" not in html
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert all(name in page.ids for name in re.findall(r"url\(#([^)]+)\)", html))
    labelled = [a["aria-labelledby"] for _, a in page.attributes if "aria-labelledby" in a]
    assert labelled and set(labelled) <= set(page.ids)


def test_page_is_accessible(report):
    page = Page(report[2])
    assert page.headings[0] == 1 and page.headings.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(page.headings, page.headings[1:]))
    assert all(a.get("scope") in ("col", "row") for tag, a in page.attributes if tag == "th")
    figures = [a for tag, a in page.attributes if tag == "svg"]
    assert all(a.get("role") == "img" and len(a.get("aria-label", "")) > 20 for a in figures)
    assert ("html", {"lang": "en"}) in page.attributes


def test_page_escapes_what_users_wrote(report):
    _, _, html = report
    assert "<b>" not in html and "rewind &lt;b&gt;&amp;" in html
    assert "&lt;at all&gt;" in html


def test_figures_follow_the_theme(report):
    svgs = "".join(re.findall(r"<svg.*?</svg>", report[2], re.DOTALL))
    assert not any(colour in svgs for colour in VARIABLES)
    assert set(re.findall(r"#[0-9a-f]{6}\b", svgs)) <= {"#000000"}
    assert "prefers-color-scheme: dark" in report[2] and "DejaVu" not in svgs


def test_page_says_what_must_be_said(report):
    _, _, html = report
    text = " ".join(
        re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", html, flags=re.DOTALL)).split()
    )
    for part in (
        "7 of 8 methods leave provable traces",
        "does not prove unlearning",
        "Each method by itself",
        "Definition 3.2",
        "conditional on",
        "preregistered",
        "reference",
        "exploratory",
        "Evaluation runs 3 and 7 failed",
        "Koloskova et al., 2025",
        "audit.evaluation_runs",
        "0.10.2",
        "There is no scores.npz.",
        "There is no manifest.json.",
        "Only the headline was recorded.",
        "No accuracies were recorded.",
        "The joint predictor scores whole sign vectors",
        "No scores were handed in",
        "All 10 evaluation runs have p = 1",
    ):
        assert part in text, part
    assert "falsif" not in text


def test_pngs_are_written(report):
    root = report[0]
    for path in [root / name / "overview.png" for name in ("six", "joint", "minimal")]:
        assert path.read_bytes().startswith(b"\x89PNG")
    for i, name in enumerate(STRENGTHS):
        drawn = sorted(p.stem for p in (root / "six" / f"method-{i}" / "figures").glob("*.png"))
        assert drawn == (["scores"] if name == "retrain" else sorted(PANELS))
    assert sorted(p.stem for p in (root / "joint" / "joint" / "figures").glob("*.png")) == ["evidence", "scores"]
    assert not (root / "minimal" / "outsider" / "figures").exists()


def test_table_covers_all_directories(report):
    assert "joint, six batches" in report[1] and "outsider" in report[1] and "≤ 10" in report[1]


def test_default_place_and_determinism(joint):
    _, path = write_report([str(joint)])
    assert path == joint / "report.html"
    first = path.read_bytes()
    assert write_page([joint], joint / "again.html").read_bytes() == first


def test_minimal_directory_alone(minimal):
    table, path = write_report([minimal])
    Page(path.read_text())
    assert "outsider" in table


def test_order_is_the_manifests_else_by_falling_epsilon(six, tmp_path):
    epsilons = [m.record.epsilon for m in load_directory(six).methods]
    assert epsilons == sorted(epsilons, reverse=True)
    write_six(tmp_path)
    write_json(tmp_path / "manifest.json", {"methods": ["retrain", "npo"]})
    assert [m.record.method for m in load_directory(tmp_path).methods][:2] == ["retrain", "npo"]


@pytest.mark.parametrize("file", ["scores.npz", "evaluation.npz"])
def test_a_broken_optional_file_is_left_out_and_said(joint, file):
    (joint / "joint" / file).write_bytes(b"PK broken")
    _, path = write_report([joint])
    assert f"{file} was left out" in path.read_text()


def test_a_broken_manifest_is_left_out_and_said(joint):
    (joint / "manifest.json").write_text("{")
    assert "manifest.json was left out" in write_report([joint])[1].read_text()


def break_json(path):
    path.write_text("{")


def drop_field(path):
    data = json.loads(path.read_text())
    del data["epsilon"]
    path.write_text(json.dumps(data))


def other_schema(path):
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))


def text_epsilon(path):
    path.write_text(json.dumps({**json.loads(path.read_text()), "epsilon": "high"}))


def number_definition(path):
    path.write_text(json.dumps({**json.loads(path.read_text()), "definition": 3.3}))


def a_list(path):
    path.write_text("[]")


@pytest.mark.parametrize("damage", [break_json, drop_field, other_schema, text_epsilon, number_definition, a_list])
def test_a_broken_bound_is_one_line_with_path_and_fix(minimal, damage):
    path = minimal / "outsider" / "bound.json"
    damage(path)
    with pytest.raises(InputError) as error:
        write_report([minimal])
    assert str(path) in str(error.value) and "again" in str(error.value) and "\n" not in str(error.value)


def test_missing_directories_are_refused(tmp_path):
    with pytest.raises(InputError, match="nowhere, found none; give the --out"):
        write_report([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="bound.json under .*; finish"):
        write_report([tmp_path])
    with pytest.raises(InputError, match="directories"):
        write_report([])


def method_of(tmp_path, strength=0.5, **changes):
    batch = changes.pop("batch", 1)
    record = make_record("x", strength, **changes)
    write_method(tmp_path / "x", record, strength, batch=batch)
    return load_directory(tmp_path).methods[0]


def test_standardised_scores_recover_the_distance(tmp_path):
    inside, outside = standardised_scores(method_of(tmp_path, 0.8, batch=2).scores)
    assert inside.size == outside.size
    assert inside.mean() - outside.mean() == pytest.approx(0.8, abs=0.05)


def test_constant_scores_have_no_density(tmp_path):
    method = method_of(tmp_path)
    method.scores.scores[:] = 3.0
    assert standardised_scores(method.scores) is None
    assert isinstance(method_figures(method)[0], Missing)


def test_failed_runs_are_left_out_of_the_densities(tmp_path):
    inside, outside = standardised_scores(method_of(tmp_path, failed_runs=[0, 1]).scores)
    assert inside.size + outside.size == 58 * 400
    assert np.isfinite(inside).all()


def test_density_integrates_to_one():
    values = np.random.default_rng(0).normal(size=5000)
    grid = np.linspace(-6, 6, 241)
    height = density(values, grid)
    assert np.trapezoid(height, grid) == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(height, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), atol=0.03)


def test_roc_by_hand():
    false, true, area = roc(np.array([3.0, 2.0, 2.0, 1.0]), np.array([1, 1, -1, -1]))
    np.testing.assert_allclose(false, [0, 0, 0.5, 1])
    np.testing.assert_allclose(true, [0, 0.5, 1, 1])
    assert area == pytest.approx(0.875)
    assert roc(np.zeros(6), np.array([1, -1] * 3))[2] == pytest.approx(0.5)
    assert roc(np.full(2, np.nan), np.array([1, -1]))[2] == pytest.approx(0.5)


def test_roc_agrees_with_counting_pairs():
    rng = np.random.default_rng(1)
    llr, signs = rng.integers(0, 5, 200).astype(float), rng.choice([-1, 1], 200)
    inside, outside = llr[signs == 1], llr[signs == -1]
    pairs = (inside[:, None] > outside).mean() + 0.5 * (inside[:, None] == outside).mean()
    assert roc(llr, signs)[2] == pytest.approx(pairs)


def test_log_count():
    assert log_count(6) == pytest.approx(np.log(20))
    assert log_count(5) == pytest.approx(np.log(10))


def test_single_run_and_pairwise_predictor(tmp_path):
    method = method_of(tmp_path, m=2, predictor="pairwise", log_p_values=[-0.69], by_r={"r": [2], "overlap": [0.3]})
    assert [p.name for p in method_figures(method)] == PANELS
    assert isinstance(method_figures(method)[3], Drawing)


@pytest.mark.parametrize("field", ["by_r", "log_p_values", "accuracy", "seconds", "bounds", "notes"])
def test_every_optional_field_may_be_empty(tmp_path, field):
    empty = [] if field in ("log_p_values", "bounds", "notes") else {}
    method_of(tmp_path, **{field: empty})
    Page(write_report([tmp_path])[1].read_text())


def test_unknown_bounds_statuses_and_fields_are_shown(tmp_path):
    path = tmp_path / "x" / "bound.json"
    method_of(tmp_path)
    data = json.loads(path.read_text())
    data["bounds"][0] |= {"name": "new<bound>", "status": "odd & new"}
    data["definition"], data["accuracy"]["top<5>"] = "4.1", {"mean": 0.5}
    write_json(path, {**data, "field_of_the_future": 1})
    html = write_report([tmp_path])[1].read_text()
    assert "new&lt;bound&gt;" in html and "odd &amp; new" in html and "top&lt;5&gt;" in html


def test_overview_with_one_silent_method_and_dollar_signs():
    drawing = overview([make_record("$x_0$ & <y>", 0.0)])
    svg = drawing.svg("o")
    assert "$x_0$ &amp; &lt;y&gt;" in svg
    Page(svg)


def test_the_users_matplotlib_settings_do_not_leak_in_or_out():
    import matplotlib

    expected = overview([make_record("a", 0.5)]).svg("o")
    with matplotlib.rc_context({"font.size": 31.0, "axes.grid": True}):
        assert overview([make_record("a", 0.5)]).svg("o") == expected
        assert matplotlib.rcParams["font.size"] == 31.0


def test_import_loads_neither_matplotlib_nor_jax():
    code = "import sys, jaxunlearn.report; assert not {'matplotlib', 'jax', 'flax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_six_methods_are_quick(six, tmp_path):
    start = time.process_time()
    write_report([six], out=tmp_path / "page.html")
    assert time.process_time() - start < 12  # about 4 s on one quiet core; room for a busy machine
