import dataclasses
import json
import re

import numpy as np
import pytest
from made_privacy import CONDITIONS, KINDS, make_record, make_records, write_run
from made_robustness import write_run as write_robustness
from test_report import Page

from jaxunlearn._validate import InputError
from jaxunlearn.cli import main
from jaxunlearn.pipeline import status
from jaxunlearn.records import read_arrays, write_json, write_npz
from jaxunlearn.report import write_report
from jaxunlearn.report.canvas import Drawing, Missing
from jaxunlearn.report.measured import WIDTH
from jaxunlearn.report.privacy import render, render_markdown, words
from jaxunlearn.report.privacy.figures import coefficients, layers, overview, panels, scatter, trace, tradeoff
from jaxunlearn.report.privacy.load import load_privacy
from jaxunlearn.report.privacy.shares import by_share, comparable
from jaxunlearn.report.privacy.table import below, beyond, columns, names, remarks
from jaxunlearn.robustness import Metric

METHODS = ("target", "retrain", "ga", "task-vector", "rau")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A directory with its page, read only."""
    path = write_run(tmp_path_factory.mktemp("privacy"), seeds=3, methods=METHODS, notes=["Odd <b>&."])
    table, page = write_report([str(path)])
    return path, table, page.read_text()


@pytest.fixture
def small(tmp_path):
    """A directory to damage."""
    return write_run(tmp_path / "small", methods=("target", "ga"))


def visible(html):
    html = re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", html).replace("\u00a0", " ").split())


def arrays_of(path):
    with np.load(path) as file:
        return dict(file)


def with_shares(record, name, values):
    """The record with other values of a metric, in the order of its conditions."""
    changed = [dataclasses.replace(m, values=values) if m.name == name else m for m in record.metrics]
    return dataclasses.replace(record, metrics=changed)


# --- the page


def test_the_page_is_well_formed_self_contained_and_accessible(run):
    html = run[2]
    page = Page(html)
    assert len(page.ids) == len(set(page.ids))
    assert not {"script", "link", "iframe", "img"} & set(page.tags) and "http" not in html and "@import" not in html
    assert all(link[1:] in page.ids for link in page.links)
    assert all(name in page.ids for name in re.findall(r"url\(#([^)]+)\)", html))
    assert {a["aria-labelledby"] for _, a in page.attributes if "aria-labelledby" in a} <= set(page.ids)
    assert page.headings[0] == 1 and page.headings.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(page.headings, page.headings[1:]))
    assert all(a.get("scope") in ("col", "colgroup", "row") for tag, a in page.attributes if tag == "th")
    assert all(len(a.get("aria-label", "")) > 20 for tag, a in page.attributes if tag == "svg")
    assert "Odd &lt;b&gt;&amp;." in html and "<b>" not in html


def test_the_page_says_what_must_be_said(run):
    text = visible(run[2])
    for part in (
        "people (50% known)",
        "After ga the models say",
        "once fine-tuned on 20 answers for 10 epochs; retrained models, which never saw it,",
        "to be forgotten: 20 of 26 invented people, 4 facts each",
        "Chance: of people whom no model has seen, at most",
        "the 95% intervals over seeds lie apart",
        "task-vector †",
        "no proof of forgetting",
        "P3 beyond retrain",
        "Strict and lenient",
        "By kind, after fine-tuning",
        "E-mail addresses by pattern",
        "Rounded weights",
        "Debiased CKA of states over private tokens",
        "n = 40 known, 40 unknown, 24 retained facts",
        "of the loss alone",
        "states, layer 4",
        "Pearson’s r in single kinds",
        "The loss alone: r 0.65 [0.50, 0.80], ρ 0.6",
        "Stopped after epochs 4 to 5, by seed: the first epoch at which at most 1.0%",
        "Seconds by stage",
        "recovery.samples 20",
        "descent.peak 0.0001",
        "ga/answers.npz",
        "2025-11-30",
    ):
        assert part in text, part
    assert "There is no" not in text and "left out" not in text and "Not finished" not in text


def test_figures_are_written_beside_the_records(run):
    path = run[0]
    assert all((path / name).read_bytes().startswith(b"\x89PNG") for name in ("overview.png", "tradeoff.png"))
    assert {p.stem for p in (path / "ga" / "figures").glob("*")} == {"trace", "gradient", "loss", "layers"}
    assert not (path / "target" / "figures").exists()


def test_base_target_retrain_come_first_then_the_order_asked_for(run):
    assert [r.method for r in load_privacy(run[0]).records] == list(METHODS)
    assert [line.split()[0] for line in run[1].splitlines()[3:8]] == list(METHODS)


@pytest.mark.slow
def test_the_command_shows_it_and_the_page_is_deterministic(tmp_path, capsys):
    path, again = write_run(tmp_path / "run", methods=("target", "retrain")), tmp_path / "again.html"
    table, page = write_report([path])
    assert main(["report", str(path), "--out", str(again)]) == 0
    assert capsys.readouterr().out == f"{table}\n\nPage with figures: {again}\n"
    assert again.read_bytes() == page.read_bytes()


def test_a_half_finished_directory_shows_what_is_there(tmp_path):
    path = write_run(tmp_path, methods=("target", "npo"), curve={}, correlations={}, trace={})
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("checksum", None)
    write_json(path / "manifest.json", manifest | {"asked": ["retrain", "npo", "rau"]})
    (path / "npo" / "privacy.json").unlink()
    table, page = write_report([path])
    assert table.endswith("Not finished yet: retrain, npo, rau.") and "There is no retrain here" in table
    assert "Private data that models say when they are asked: target 9" in visible(page.read_text())


def test_nothing_there_yet_is_one_line(tmp_path, small):
    write_json(tmp_path / "empty" / "manifest.json", {"asked": ["ga"]})
    for paths in ([tmp_path / "empty"], [small, tmp_path / "empty"]):
        with pytest.raises(InputError, match="privacy.json, robustness.json or bound.json under .*empty, found none"):
            write_report(paths)


def test_two_kinds_of_directories_are_refused(small, tmp_path):
    other = write_robustness(tmp_path / "other", seeds=1, methods=("FT",), curves={})
    with pytest.raises(InputError, match="one kind, but .*small holds privacy.json; .*other holds robustness.json"):
        write_report([small, other])


@pytest.mark.parametrize("name", ["predictors.npz", "manifest.json", "corpus.json", "ga/answers.npz"])
@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-99])])
def test_optional_files_are_left_out_and_it_is_said(small, name, damage):
    damage(small / name)
    loaded = load_privacy(small)
    file = name.split("/")[-1]
    said = " ".join([*loaded.absent, *(text for method in loaded.methods for text in method.absent)])
    assert f"There is no {file}." in said or f"{file} was left out" in said
    assert (loaded.methods[1].forgetting is None) == (file in ("predictors.npz", "answers.npz"))
    drawn = {p.name: type(p) for p in panels(loaded.methods[1], loaded.records, loaded.predictors)}
    assert drawn["gradient"] is (Missing if loaded.methods[1].forgetting is None else Drawing)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: "{",
        lambda data: "[]",
        lambda data: json.dumps({**data, "schema": 99}),
        lambda data: json.dumps({k: v for k, v in data.items() if k != "metrics"}),
        lambda data: json.dumps({**data, "conditions": ["P1"]}),
    ],
)
def test_a_broken_record_is_one_line_with_its_path(small, damage):
    path = small / "ga" / "privacy.json"
    path.write_text(damage(make_record("ga").to_json()))
    with pytest.raises(InputError) as error:
        write_report([small])
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [{"loss": None}, {"loss": lambda a: a[:, :3]}, {"score_gradient": lambda a: a[:1]}, {"unknown": lambda a: a[:5]}],
)
def test_predictors_that_do_not_fit_are_left_out(small, change):
    ((name, act),) = change.items()
    arrays = arrays_of(small / "predictors.npz")
    arrays = {k: v for k, v in arrays.items() if k != name} | ({name: act(arrays[name])} if act else {})
    write_npz(small / "predictors.npz", **arrays)
    loaded = load_privacy(small)
    assert loaded.predictors is None and "predictors.npz was left out" in loaded.absent[0]


@pytest.mark.slow
def test_empty_and_broken_analyses_are_not_drawn(small):
    broken = {
        "trace": {"epochs": [0, 1], "p1_known": [[0.1]], "chosen": "x"},
        "cka": {"layers": [0, 1], "known": [[0.1]], "unknown": "x"},
        "curve": {"epochs": [0, 1], "p3": [[0.1], ["x"]], "text_nll": [[1.0], [1.0]]},
        "correlations": {"gradient": [{"pooled": None}], "graph": [], "odd": "x"},
    }
    loaded = load_privacy(small)
    for changes in (broken, dict.fromkeys(broken, {})):
        ga = dataclasses.replace(loaded.methods[1], record=make_record("ga", **changes))
        drawn = {p.name: type(p) for p in panels(ga, [ga.record], loaded.predictors)}
        assert drawn.pop("trace", Missing) is Missing and drawn.pop("layers") is Missing
        assert drawn == {"gradient": Drawing, "loss": Drawing}  # without coefficients
    write_json(small / "ga" / "privacy.json", make_record("ga", **broken).to_json())
    (small / "predictors.npz").unlink()
    text = visible(write_report([small])[1].read_text())
    assert "Similarity to the target model: not drawn." in text and "What predicts forgetting" not in text


# --- what is drawn


def test_forgetting_scores_by_hand(small):
    loaded, ga = load_privacy(small), load_privacy(small).methods[1]
    places, loss = loaded.predictors.unknown, loaded.predictors.loss
    log_p = read_arrays(small / "ga" / "answers.npz", "log_p")["log_p"]
    assert ga.forgetting[1, 7] == -loss[1, 7] - np.float64(log_p[1, places[7]])
    assert loaded.predictors.kinds == [KINDS[i % 4] for i in range(40)]
    lines = scatter(ga, loaded.predictors, None).figure.axes[0].lines
    drawn = np.concatenate([line.get_xydata() for line in lines])
    expected = np.stack([loss[0], ga.forgetting[0]], axis=1)
    np.testing.assert_allclose(drawn[np.lexsort(drawn.T)], expected[np.lexsort(expected.T)])


def test_a_seed_that_failed_is_not_drawn(small):
    arrays = arrays_of(small / "ga" / "answers.npz")
    arrays["log_p"][0, 0] = arrays["log_p"][0, 41] = np.nan
    write_npz(small / "ga" / "answers.npz", **arrays)
    loaded = load_privacy(small)
    ga = loaded.methods[1]
    assert np.isnan(ga.forgetting[0]).all() and np.isfinite(ga.forgetting[1]).all()
    assert "seed 1" in scatter(ga, loaded.predictors, "gradient").caption


def test_coefficients_are_means_with_the_widest_interval():
    estimate = lambda v: {"value": v, "low": v - 0.1, "high": v + 0.2}  # noqa: E731
    rows = [{"pooled": {"pearson": estimate(v), "spearman": estimate(v / 2)}, "within": None} for v in (0.2, 0.6)]
    record = make_record("ga", correlations={"gradient": rows})
    found = coefficients(record, "gradient", "pooled")
    assert found["pearson"] == pytest.approx([0.4, 0.1, 0.8]) and found["spearman"] == pytest.approx([0.2, 0.0, 0.5])
    assert coefficients(record, "gradient", "within") is None and coefficients(record, "graph", "pooled") is None
    assert coefficients(make_record("ga"), "gradient", "birth date") is not None
    assert coefficients(make_record("ga"), "gradient", "nothing") is None


def test_the_overview_has_both_attacks_and_retraining_beside():
    records = [make_record("retrain", seeds=4), make_record("ga", seeds=4)]
    axes = overview(records).figure.axes[0]
    marks = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "|"]
    expected = [100 * np.mean(records[0].metric(name).values[3]) for name in ("known", "unknown")]
    np.testing.assert_allclose(marks, expected)
    assert sum(len(line.get_xdata()) == 4 for line in axes.lines) == 4  # seeds of two methods on two sets
    assert "ga unknown: " in overview(records).label
    assert overview([dataclasses.replace(records[0], metrics=[])]) is None


def test_the_tradeoff_has_curves_and_where_methods_stopped():
    records = make_records()
    drawing = tradeoff(records)
    lines = [line for line in drawing.figure.axes[0].lines if len(line.get_xdata()) == 6]
    rau = np.asarray(records[-1].curve["p3"]).mean(axis=1)
    np.testing.assert_allclose(lines[-1].get_ydata(), 100 * rau)
    names_of = [text.get_text() for text in drawing.figure.axes[0].texts]
    assert "base" not in names_of and set(names_of) == {r.method for r in records[1:]}
    assert tradeoff(records[:2]) is None
    wide = [*records[:2], with_shares(records[3], "text_nll", [[40.0, 42.0], [], [], [], []])]
    assert tradeoff(wide).figure.axes[0].get_xscale() == "log"


def test_the_trace_marks_where_it_stopped():
    axes = trace(make_record("ga", seeds=3)).figure.axes[0]
    assert [line.get_xdata() for line in axes.lines if line.get_marker() == "v"][0].tolist() == [4, 5]


def test_layers_show_retraining_beside():
    drawing = layers(make_record("ga"), make_record("retrain"))
    assert len(drawing.figure.axes[0].lines) == 4 and "n = 40 known" in drawing.caption


# --- the share that is known


@pytest.mark.slow
def test_runs_that_differ_in_the_share_alone_are_compared(tmp_path):
    shares = ((0.5, "random"), (0.1, "random"), (0.1, "core-set"))
    bare = {"curve": {}, "trace": {}, "cka": {}, "correlations": {}}
    paths = [
        write_run(tmp_path / f"{known}{how}", methods=("ga",), known=known, selection=how, **bare)
        for known, how in shares
    ]
    for path in paths:
        (path / "predictors.npz").unlink()
    runs = [load_privacy(path) for path in paths]
    assert comparable(runs) == [runs] and comparable([runs[0], runs[0]]) == []
    other = dataclasses.replace(runs[1], manifest={"config": runs[1].config | {"seeds": 9}})
    assert comparable([runs[0], other]) == []
    (drawing,) = by_share(runs)
    lines = {(line.get_color(), line.get_marker(), tuple(line.get_xdata())) for line in drawing.figure.axes[0].lines}
    assert {xs for _, marker, xs in lines if marker == "o"} == {(10.0, 50.0)}
    assert {xs for _, marker, xs in lines if marker == "D"} == {(10.0,)}
    page = write_report(paths)[1]
    html = page.read_text()
    Page(html)
    assert page == paths[0] / "report-together.html" and "Against the share of the forget set that is known" in html
    assert "people (10% known, core-set)" in html and (paths[0] / "figures" / "share-ga.png").exists()


# --- the table and the words


GOLDEN = """\
         ────────── P1 ──────────  ───── P3, 10 epochs ──────  ─ utility ─
method       known ↓    unknown ↓       known ↓     unknown ↓   text nll ↓
──────────────────────────────────────────────────────────────────────────
retrain  1.00 ± 1.41  1.00 ± 1.41  21.00 ± 1.41  21.00 ± 1.41  3.60 ± 0.14
ga       1.00 ± 1.41  1.00 ± 1.41  91.00 ± 1.41  91.00 ± 1.41  3.60 ± 0.14
tv †     1.00 ± 1.41  1.00 ± 1.41  11.00 ± 1.41  11.00 ± 1.41  3.60 ± 0.14"""


def test_the_table_by_hand():
    shares = lambda *rows: [[float(v), v + 0.02] for v in rows]  # noqa: E731

    def record(method, unknown):
        fields = {"meaning": "m", "better": "lower", "count": 50, "headline": True}
        made = [Metric(name=n, label=n, values=shares(*unknown), **fields) for n in ("known", "unknown")]
        text = Metric(name="text_nll", label="text nll", values=[[3.5, 3.7], [], []], percent=False, **fields)
        return make_record(method, conditions=["P1", "P3, 3 epochs", "P3, 10 epochs"], metrics=[*made, text])

    records = [record("retrain", (0.0, 0.1, 0.2)), record("ga", (0.0, 0.5, 0.9)), record("tv", (0.0, 0.1, 0.1))]
    assert render(records).splitlines()[:6] == GOLDEN.splitlines()
    assert names(records) == ["retrain", "ga", "tv †"]
    assert below(records[2], records) == ["known", "unknown"] and below(records[1], records) == []
    assert beyond(records[1], records) == pytest.approx(0.7)
    assert "in points: ga +70.0 and tv −10.0." in " ".join(render(records).split())


def test_a_fact_less_than_retraining_is_no_sign():
    retrain, ga = make_record("retrain"), make_record("ga")
    equal = [[0.0, 0.0]] * 3 + [[0.05, 0.05]] + [[0.0, 0.0]]
    retrain = with_shares(with_shares(retrain, "unknown", equal), "known", equal)
    less = [[0.0, 0.0]] * 3 + [[0.03, 0.03]] + [[0.0, 0.0]]  # N = 40: a fact is .025
    assert below(with_shares(with_shares(ga, "unknown", less), "known", less), [retrain]) == []


def test_the_table_has_the_paper_s_columns_and_fits():
    found = [(c.group, c.head) for c in columns(make_records())]
    pair = ["known ↓", "unknown ↓"]
    expected = {"P1": [*pair, "retained ↑"], "P2": pair, "P3, 10 epochs": pair, "utility": ["QA ↑", "text nll ↓"]}
    assert found == [(group, head) for group, heads in expected.items() for head in heads]
    assert max(map(len, render(make_records(seeds=3)).splitlines())) <= WIDTH
    assert render([]) == render_markdown([]) == "No metrics."
    rows = [line for line in render_markdown(make_records()).splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1 and "P3, 10 epochs: unknown ↓" in rows[0]


def test_multiple_choice_is_a_column_of_utility_where_it_was_asked():
    record = make_record("ga")
    assert [c.metric for c in columns([record]) if c.group == "utility"] == ["rouge", "text_nll"]
    values = [[0.25, 0.5], *([] for _ in record.conditions[1:])]
    chosen = {"label": "choices", "meaning": "share of questions", "better": "higher", "count": 8, "percent": True}
    asked = dataclasses.replace(record, metrics=[*record.metrics, Metric(name="choices", values=values, **chosen)])
    assert [c.metric for c in columns([asked]) if c.group == "utility"] == ["rouge", "choices", "text_nll"]
    shown = render([asked, make_record("rau")])
    assert "choices ↑" in shown and "37.5 ± 17.7" in shown and "choices: share of questions." in shown


def test_targets_that_know_little_or_wear_out_are_warned_of():
    target = make_record("target")
    assert remarks(target) == [] and remarks(make_record("ga")) == []
    assert "say only 30.0%" in remarks(with_shares(target, "unknown", [[0.3, 0.3]] * 5))[0]
    worn = [[0.9, 0.9]] * 3 + [[0.6, 0.6]] + [[0.9, 0.9]]
    (text,) = remarks(with_shares(target, "unknown", worn))
    assert "fine-tuning wears out" in text and "60.0% rather than 90.0%" in text
    (text,) = remarks(make_record("ga", failed=[1]))
    assert "seeds 1 diverged" in text


def test_chance_is_said_only_where_it_was_asked():
    records = [make_record("ga")]
    assert "Chance: of people whom no model has seen, at most" in render(records)
    nothing = [with_shares(records[0], "control", [[0.0, 0.0]] * 5)]
    assert "nothing is said right" in render(nothing)
    without = dataclasses.replace(records[0], metrics=[m for m in records[0].metrics if m.name != "control"])
    assert "Chance" not in render([without])


def test_the_finding_names_the_method_of_which_most_comes_back():
    ga, rau, retrain = (make_record(m, seeds=1) for m in ("ga", "rau", "retrain"))
    ga = with_shares(ga, "unknown", [[0.005], [0.0], [0.5], [0.84], [0.1]])
    retrain = with_shares(retrain, "unknown", [[0.0], [0.0], [0.0], [0.01], [0.0]])
    assert words.finding([retrain, rau, ga]) == (
        "After ga the models say 0.5% of the unknown private data when asked directly, and 84.0% once fine-tuned on 20 "
        "answers for 10 epochs; retrained models, which never saw it, 1.0%."
    )
    assert words.finding([retrain]) == "Private data that models say when they are asked: retrain 0%."
    assert words.finding([]) == "No unlearned model was asked yet."


def test_intervals_are_compared_from_three_seeds_on():
    assert words.separated([make_record("retrain"), make_record("ga")]) is None
    three = [make_record(m, seeds=3) for m in ("retrain", "ga", "task-vector")]
    assert words.separated(three) == (["ga"], 2) and words.separated(three[1:]) is None
    higher = with_shares(
        three[1], "unknown", [[]] * 3 + [[0.1, 0.2, 0.3], []]
    )  # .2 ± 4.3 * .1 / sqrt(3) reaches to -.05
    assert words.separated([three[0], higher]) == ([], 1)
    assert "Of no method does more come back" in words.lead([three[0], higher])


def test_differences_are_paired_by_seed():
    retrain, ga = make_record("retrain", seeds=3), make_record("ga", seeds=3)
    found = words.differences(ga, retrain, "unknown", CONDITIONS[3])
    expected = np.subtract(ga.metric("unknown").values[3], retrain.metric("unknown").values[3])
    np.testing.assert_allclose(found, expected)
    assert words.differences(dataclasses.replace(ga, failed=[0]), retrain, "unknown", CONDITIONS[3]) is None


def test_when_it_stopped_or_did_not():
    ga, config = make_record("ga", seeds=1), {"stop_below": 0.01}
    assert words.stopping(ga, config).startswith("Stopped after epoch 4: the first epoch at which at most 1.0%")
    assert words.stopping(ga, {"stop_below": None}) == "It went on to the last of 5 epochs."
    late = dataclasses.replace(ga, trace=ga.trace | {"chosen": [5], "p1_known": [[0.5]] * 6})
    assert "had not got there after all 5 epochs" in words.stopping(late, config)
    assert words.stopping(make_record("target"), config) == ""


# --- how far a run is


def test_status_of_a_run_on_its_way(small, capsys):
    (small / "rau").mkdir()
    write_json(small / "rau" / "method.json", {"config": {}})
    write_npz(small / "rau" / "chunks" / "chunk-00000.npz", rows=np.array([0, 1]), seconds=np.array([[3.0, 1.0]]))
    stages = {stage.name: stage for stage in status.run(status.Status(directory=small)).stages}
    assert list(stages) == ["base", "target", "ga", "rau"]
    assert (stages["target"].done, stages["target"].remaining) == (0, 2)  # its models are gone
    assert stages["ga"].done == 2 and re.fullmatch(r"P1: .*%; P3, 10 epochs: .*%", stages["ga"].outcome)
    assert (stages["rau"].done, stages["rau"].remaining, stages["rau"].seconds) == (1, 1, 4.0)
    path = small / "ga" / "answers.npz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SystemExit):
        main(["status", str(small)])
    said = capsys.readouterr().out
    assert "people, privacy: 2 runs a stage" in said and "answers.npz is damaged" in said


def test_only_the_arrays_that_are_asked_for_are_read(small):
    path = small / "ga" / "answers.npz"
    assert list(read_arrays(path, "log_p")) == ["log_p"]
    with pytest.raises(InputError, match="other"):
        read_arrays(path, "other")
    with pytest.raises(InputError, match="found none"):
        read_arrays(small / "nothing.npz", "log_p")
