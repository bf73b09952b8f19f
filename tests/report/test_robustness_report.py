import base64
import io
import json
import re

import numpy as np
import pytest
from made_robustness import CONDITIONS, make_record, write_run
from made_runs import write_minimal
from test_report import Page

from jaxunlearn._validate import InputError
from jaxunlearn.cli import main
from jaxunlearn.records import write_json, write_npz
from jaxunlearn.report import write_report
from jaxunlearn.report.canvas import Drawing, Missing
from jaxunlearn.report.robustness import pictures
from jaxunlearn.report.robustness.figures import curves, overview
from jaxunlearn.report.robustness.load import load_robustness

METHODS = ("original", "SalUn", "retrain", "RL")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A directory with its page, read only."""
    path = write_run(tmp_path_factory.mktemp("robustness"), seeds=3, methods=METHODS, notes=["Odd <b>&."])
    table, page = write_report([str(path)])
    return path, table, page.read_text()


@pytest.fixture
def small(tmp_path):
    """A directory to damage."""
    return write_run(tmp_path / "small", seeds=2, methods=("FT",), curves={})


def visible(html):
    html = re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", html).replace("\u00a0", " ").split())


def test_the_page_is_well_formed_and_self_contained(run):
    html = run[2]
    page = Page(html)
    assert len(page.ids) == len(set(page.ids))
    assert not {"script", "link", "iframe"} & set(page.tags) and "http" not in html and "@import" not in html
    assert all(link.startswith("data:image/png;base64,") or link[1:] in page.ids for link in page.links)
    assert all(name in page.ids for name in re.findall(r"url\(#([^)]+)\)", html))
    labelled = [a["aria-labelledby"] for _, a in page.attributes if "aria-labelledby" in a]
    assert labelled and set(labelled) <= set(page.ids)


def test_the_page_is_accessible(run):
    page = Page(run[2])
    assert page.headings[0] == 1 and page.headings.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(page.headings, page.headings[1:]))
    assert all(a.get("scope") in ("col", "colgroup", "row") for tag, a in page.attributes if tag == "th")
    assert all(len(a.get("aria-label", "")) > 20 for tag, a in page.attributes if tag == "svg")
    assert all(len(a["alt"]) > 10 for tag, a in page.attributes if tag == "img")
    assert "Odd &lt;b&gt;&amp;." in run[2] and "<b>" not in run[2]


def test_the_page_says_what_must_be_said(run):
    text = visible(run[2])
    for part in (
        "Under an attack of 16/255",
        "after retraining, which never saw them,",
        "digits, to be forgotten: class 0, 142 images.",
        "RL: UA 16/255 is",
        "N = 142; 3 seeds × 3 repeats",
        "Lower is better",
        "A control, neither better nor worse",
        "95% interval for the mean over seeds",
        "the share of unseen images that are called members as well",
        "Unseen images of the same kind",
        "Against the steps of the attack",
        "Not picked by outcome: the first 6 forgotten and the first 2 unseen of the 11 saved images",
        "change ×7",
        "2,346 images a second",
        "20.0 under an attack of 8/255",
        "epochs 10",
        "step_size 1/255",
        "attack.steps 100",
        "SalUn/attacked.npz",
        "2025-11-30",
    ):
        assert part in text, part
    assert "There is no" not in text and "left out" not in text
    assert "A second attack" not in text  # nobody made one


def test_the_original_comes_first_then_the_order_asked_for(run):
    assert [r.method for r in load_robustness(run[0]).records] == list(METHODS)
    assert [line.split()[0] for line in run[1].splitlines()[3:7]] == list(METHODS)


def test_figures_are_written_beside_the_records(run):
    path = run[0]
    assert (path / "overview.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.stem for p in (path / "SalUn" / "figures").glob("*")) == ["step_size", "steps"]
    assert not (path / "retrain" / "figures").exists()  # it is beside SalUn's


def test_the_page_is_deterministic(small):
    first = write_report([small])[1].read_bytes()
    assert write_report([small], out=small / "again.html")[1].read_bytes() == first


def test_the_command_shows_it(run, tmp_path, capsys):
    assert main(["report", str(run[0]), "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{run[1]}\n\nPage with figures: {tmp_path / 'page.html'}\n"


def test_two_kinds_of_directories_are_refused(small, tmp_path):
    audit = write_minimal(tmp_path / "audit")
    with pytest.raises(InputError, match="one kind, but .*small holds robustness.json; .*audit holds bound.json"):
        write_report([small, audit])
    (small / "outsider").mkdir()
    (small / "outsider" / "bound.json").write_text("{}")
    with pytest.raises(InputError, match="one kind"):
        write_report([small])


def test_several_runs_share_a_page(small, tmp_path):
    other = write_run(tmp_path / "other", seeds=1, methods=("retrain",), title="rings", curves={})
    table, page = write_report([small, other])
    Page(page.read_text())
    assert page == small / "report-together.html" and not (small / "report.html").exists()
    assert (
        "Results: digits" in page.read_text() and "Results: rings" in page.read_text() and table.count("method ") == 2
    )


@pytest.mark.parametrize("name", ["targets.npz", "manifest.json", "FT/attacked.npz"])
@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_optional_files_are_left_out_and_it_is_said(small, name, damage):
    damage(small / name)
    html = write_report([small])[1].read_text()
    file = name.split("/")[-1]
    assert f"There is no {file}." in html or f"{file} was left out" in html
    assert ("<img" in html) == (name == "manifest.json")


def arrays_of(path):
    with np.load(path) as file:
        return dict(file)


@pytest.mark.parametrize(
    "change",
    [
        {"images": lambda a: a[..., :4, :]},
        {"logits": lambda a: a[:, :2]},
        {"saved": lambda a: a + 100},
        {"conditions": lambda a: a[:1]},
        {"saved": None},
        {"iterations": lambda a: a[:1]},
    ],
)
def test_arrays_that_do_not_fit_are_left_out_and_it_is_said(small, change):
    ((name, act),) = change.items()
    arrays = arrays_of(small / "FT" / "attacked.npz")
    if act is None:
        del arrays[name]
    else:
        arrays[name] = act(arrays[name])
    write_npz(small / "FT" / "attacked.npz", **arrays)
    run = load_robustness(small)
    assert run.methods[0].attacked is None and "attacked.npz was left out" in run.methods[0].absent[0]


@pytest.mark.parametrize("images", [(0, 2, 11, 8, 8, 1), (0, 0, 0, 8, 8, 1)])
def test_no_pictures_were_kept(small, images):
    arrays = arrays_of(small / "FT" / "attacked.npz")
    arrays |= {"images": np.zeros(images, np.float32), "iterations": np.zeros((2, 0, 0), np.int32)}
    write_npz(small / "FT" / "attacked.npz", **arrays)
    html = write_report([small])[1].read_text()
    assert "No attacked images were kept" in html and "left out" not in html and "mean steps" not in html


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: "{",
        lambda data: "[]",
        lambda data: json.dumps({**data, "schema": 99}),
        lambda data: json.dumps({k: v for k, v in data.items() if k != "metrics"}),
        lambda data: json.dumps({**data, "conditions": ["clean"]}),
    ],
)
def test_a_broken_record_is_one_line_with_its_path(small, damage):
    path = small / "FT" / "robustness.json"
    path.write_text(damage(make_record("FT", seeds=2).to_json()))
    with pytest.raises(InputError) as error:
        write_report([small])
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_one_seed_instance_wise_unbounded(tmp_path):
    """No spread, no band, no intervals; an attack without a limit; single examples rather than a class."""
    path = write_run(
        tmp_path,
        seeds=1,
        conditions=["clean", "unbounded"],
        methods=("retrain", "SalUn"),
        scenario="142 examples of all classes",
        side=32,
        channels=3,
    )
    table, page = write_report([path])
    text = visible(page.read_text())
    Page(page.read_text())
    assert "Under an unbounded attack" in text and "to be forgotten: 142 examples of all classes" in text
    assert "band ±" not in text and "One seed; the strongest" in text
    assert "over repeats" in " ".join(table.split()) and "change ×0.5" in text


def test_only_clean_and_no_unlearned_model(tmp_path):
    path = write_run(tmp_path, seeds=2, conditions=["clean"], methods=("original", "retrain"), curves={})
    text = visible(write_report([path])[1].read_text())
    assert "Without an attack: after retraining, which never saw them, 0%." in text
    assert "UA ↓: Share of the forgotten images" in text  # it shares the table of what is known without an attack


def test_a_record_without_metrics(small):
    write_json(small / "FT" / "robustness.json", make_record("FT", seeds=2, metrics=[], curves={}).to_json())
    table, page = write_report([small])
    Page(page.read_text())
    assert table == "No metrics." and overview(load_robustness(small).records) is None


def test_pictures_are_chosen_by_place_alone(run):
    loaded = load_robustness(run[0])
    targets, attacked = loaded.targets, loaded.methods[1].attacked
    saved = attacked.saved[pictures.choose(targets, attacked)]
    assert saved.tolist() == [0, 1, 2, 3, 4, 5, 12, 13]
    found = pictures.cases(targets, attacked, "8/255")
    assert [case.place for case in found] == saved.tolist()
    for case, i in zip(found, range(6)):
        np.testing.assert_array_equal(case.attacked, attacked.images[0, 0, i])
        assert case.before.label == attacked.logits[0, 0, i].argmax() and case.before.right == (case.before.label == 0)
        assert case.after.label == attacked.logits[0, 1, i].argmax()
        assert case.original.label == targets.logits[0, i].argmax()


def test_an_answer_by_hand():
    found = pictures.answer(np.log(np.array([1.0, 3.0], np.float32)), 0)
    assert found.label == 1 and not found.right and found.probability == pytest.approx(0.75)
    assert pictures.answer(np.array([1000.0, -1000.0]), 0).probability == 1.0


@pytest.mark.parametrize(("change", "factor"), [(16 / 255, 7), (8 / 255, 15), (1.0, 0.5), (0.3, 1), (0.0, 1)])
def test_the_amplified_change_stays_inside_the_range(change, factor):
    blank = np.zeros((2, 2, 1), np.float32)
    answer = pictures.Answer(0, 1.0, True)
    case = pictures.Case(0, blank, blank + np.float32(change), answer, answer, answer)
    assert pictures.amplification([case]) == factor and 0.5 + factor * change <= 1 + 1e-6


def test_png_holds_the_pixels():
    from matplotlib.image import imread

    image = np.array([[[0.0], [1.0]], [[0.5], [2.0]]], np.float32)
    prefix, data = pictures.png(image).split(",")
    read = imread(io.BytesIO(base64.b64decode(data)))
    assert prefix == "data:image/png;base64"
    np.testing.assert_allclose(read[..., 0], [[0, 1], [0.5, 1]], atol=1 / 255)
    np.testing.assert_array_equal(read[..., 0], read[..., 2])


def test_large_images_are_shown_less_often(run):
    targets = load_robustness(run[0]).targets
    attacked = load_robustness(run[0]).methods[1].attacked
    large = pictures.Targets(**{**vars(targets), "images": np.zeros((16, 224, 224, 1), np.float32)})
    assert attacked.saved[pictures.choose(large, attacked)].tolist() == [0, 12]


def test_broken_curves_are_not_drawn():
    base = make_record("SalUn")
    good = {"x": [1, 2], "values": [[0.1], [0.2]], "label": "x"}
    for bad in (
        {},
        [],
        {**good, "x": [1]},
        {**good, "x": [1, "2"]},
        {**good, "values": [[0.1], []]},
        {**good, "values": [[0.1], 0.2]},
        {"x": [1], "values": [[0.1]]},
    ):
        record = make_record("SalUn", curves={"steps": bad})
        assert isinstance(curves([record], record)[0], Missing), bad
    assert [type(p) for p in curves([base, make_record("retrain")], base)] == [Drawing, Drawing]


def test_retraining_has_curves_of_its_own_where_no_other_has():
    retrain = make_record("retrain")
    assert len(curves([retrain], retrain)) == 2 and curves([retrain, make_record("SalUn")], retrain) == []


def test_curves_give_mean_and_band():
    record = make_record(
        "SalUn", curves={"steps": {"x": [10, 1], "values": [[0.5, 0.7], [0.1, 0.1]], "label": "steps"}}
    )
    figure = curves([record], record)[0].figure
    (line,) = figure.axes[0].lines
    np.testing.assert_allclose(line.get_xydata(), [[1, 10], [10, 60]])
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(60 + 100 * np.std([0.5, 0.7], ddof=1))


def test_the_overview_has_every_seed_and_retraining_beside():
    records = [make_record("retrain", seeds=4), make_record("FT", seeds=4)]
    drawing = overview(records)
    assert "FT 16/255: " in drawing.label
    seeds = [line for line in drawing.figure.axes[0].lines if len(line.get_xdata()) == 4]
    assert len(seeds) == 2 * len(CONDITIONS)
    marks = [line.get_xdata()[0] for line in drawing.figure.axes[0].lines if line.get_marker() == "|"]
    expected = [100 * np.mean(v) for v in records[0].metric("ua").values]
    np.testing.assert_allclose(marks, expected)
