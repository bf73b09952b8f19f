"""Pages of image-to-image and text-to-image runs, on made directories."""

import re

import numpy as np
import pytest
from test_report import Page

from jaxunlearn._validate import InputError
from jaxunlearn.records import read_npz, write_json, write_npz
from jaxunlearn.report import write_report
from jaxunlearn.report.robustness.load import load_robustness
from jaxunlearn.robustness import Metric, RobustnessRecord

SIDE, CLASSES, SEEDS = 8, 10, 2
FILLED = ["clean", "8/255", "unbounded"]
DRAWN = ["clean", "random prefix", "gradient"]


def images(rng, *lead):
    return rng.uniform(size=(*lead, SIDE, SIDE, 1)).astype(np.float32)


def logits(labels, *lead):
    """Sure of the labels."""
    return np.broadcast_to(10.0 * np.eye(CLASSES, dtype=np.float32)[labels], (*lead, len(labels), CLASSES))


def record(method, task, conditions, name, label, values, **more):
    metric = Metric(
        name=name,
        label=label,
        meaning=f"What {label} is.",
        better="lower",
        count=4,
        headline=True,
        values=values,
        **more,
    )
    return RobustnessRecord(
        method=method,
        title=f"made {task}",
        task=task,
        scenario="digit 0",
        conditions=conditions,
        seeds=SEEDS,
        metrics=[metric],
    ).to_json()


def write_filled(folder):
    rng = np.random.default_rng(0)
    groups = np.repeat(["forgotten", "unseen", "retained"], [5, 3, 3])
    labels, n = np.arange(len(groups)) % CLASSES, len(groups)
    mask = np.zeros((4, 4), bool)
    mask[1:3, 1:3] = True
    write_json(folder / "manifest.json", {"title": "made digits", "asked": ["retrain", "i2i"]})
    write_npz(
        folder / "targets.npz",
        images=images(rng, n),
        labels=labels,
        rows=np.arange(n),
        groups=groups,
        mask=mask,
        outputs=images(rng, SEEDS, n),
        judged=logits(labels, SEEDS),
    )
    for method, values in (("original", [0.0]), ("retrain", [0.24, 0.23, 0.2]), ("i2i", [0.31, 0.26, 0.08])):
        rows = [[v, v + 0.01] for v in values] + [[]] * (len(FILLED) - len(values))
        write_json(
            folder / method / "robustness.json",
            record(method, "image-to-image", FILLED, "l1", "L1", rows, percent=False, digits=3),
        )
        if method != "original":
            write_npz(
                folder / method / "attacked.npz",
                conditions=np.array(FILLED),
                inputs=images(rng, 1, 2, n),
                outputs=images(rng, 1, 3, n),
                judged=logits((labels + 1) % CLASSES, SEEDS, 3),
                iterations=np.full((SEEDS, 2, n), 7),
            )
    return folder


def write_drawn(folder):
    rng = np.random.default_rng(1)
    texts = ["a <zero>", "the digit 0", "one 1"]
    labels, n, attacked = np.array([0, 0, 1]), 3, 2
    write_json(folder / "manifest.json", {"title": "made captions", "asked": ["retrain", "esd-x"]})
    write_npz(
        folder / "targets.npz",
        texts=np.array(texts),
        labels=labels,
        attacked=np.arange(n) < attacked,
        images=images(rng, SEEDS, n),
        logits=logits(labels, SEEDS),
    )
    success = np.array([[[False, True], [True, True]]] * SEEDS)
    for method, values in (("original", [1.0]), ("retrain", [0.0, 0.1, 0.0]), ("esd-x", [0.0, 0.5, 1.0])):
        rows = [[v, v] for v in values] + [[]] * (len(DRAWN) - len(values))
        write_json(folder / method / "robustness.json", record(method, "text-to-image", DRAWN, "asr", "ASR", rows))
        if method != "original":
            write_npz(
                folder / method / "attacked.npz",
                conditions=np.array(DRAWN),
                drawn=images(rng, SEEDS, n),
                drawn_logits=logits((labels + 1) % CLASSES, SEEDS),
                texts=np.array([[["apple & pear a <zero>"] * attacked] * 2] * SEEDS),
                success=success,
                steps=np.where(success, 3, 30),
                images=images(rng, SEEDS, 2, attacked),
                said=np.where(success, 0, -1),
            )
    return folder


WRITERS = {"filled": write_filled, "drawn": write_drawn}


@pytest.fixture(scope="module", params=list(WRITERS))
def run(request, tmp_path_factory):
    path = WRITERS[request.param](tmp_path_factory.mktemp(request.param) / "run")
    table, page = write_report([str(path)])
    return request.param, path, table, page.read_text()


def visible(html):
    html = re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_pages_are_whole_and_describe_every_picture(run):
    kind, _, _, html = run
    page = Page(html)
    assert len(page.ids) == len(set(page.ids)) and "left out" not in html
    pictures = [a for tag, a in page.attributes if tag == "img"]
    # eight cards of six pictures, or two of four, for each of two methods
    assert len(pictures) == {"filled": 2 * 8 * 6, "drawn": 2 * 2 * 4}[kind]
    assert all(len(a["alt"]) > 10 for a in pictures)


def test_pages_speak_of_their_task(run):
    kind, path, table, html = run
    said = visible(html)
    if kind == "filled":
        assert "Under an unbounded attack, what is filled into forgotten images is 0.085 away from the original" in said
        assert "class 4, forgotten" not in said and "class 3, forgotten, row 3" in said  # the first four of five
        assert "0.255 ± 0.007" not in table and "0.265 ± 0.007" in table
        assert "attack, mean steps" in said and "7.0 under an unbounded attack" in said
        assert "✗ 1" in said  # the judge takes class 0 for 1
        assert "–%" not in said  # of the original models there is no distance
        targets, attacked = (read_npz(path / name, sealed=True) for name in ("targets.npz", "i2i/attacked.npz"))
        hidden = np.kron(targets["mask"], np.ones((SIDE // len(targets["mask"]),) * 2)).astype(bool)
        made = attacked["outputs"][0, 0, 0] - targets["outputs"][0, 0]
        assert f"L1 {np.abs(made[hidden]).mean():.2f}" in said  # as in the table, of hidden pixels
    else:
        assert "Under the gradient attack, 100% of the prompts draw what was to be forgotten again after esd-x" in said
        assert "“apple &amp; pear a &lt;zero&gt;”" in said and "✗ nothing after 30 rounds" in said
        assert "✓ 0 after 3 rounds" in said


def test_the_seen_part_is_shown_with_grey_in_place_of_what_is_hidden(tmp_path):
    targets = load_robustness(write_filled(tmp_path / "run")).targets
    shown = targets.shown(np.zeros((SIDE, SIDE, 1)))
    assert shown[2:6, 2:6].min() == shown.max() == 0.5 and np.count_nonzero(shown) == 16


@pytest.mark.parametrize("kind", list(WRITERS))
def test_what_does_not_fit_is_left_out_and_said(kind, tmp_path):
    path = WRITERS[kind](tmp_path / "run")
    write_npz(path / "retrain" / "attacked.npz", conditions=np.array(FILLED))
    found = load_robustness(path)
    method = next(m for m in found.methods if m.record.method == "retrain")
    assert method.attacked is None and "attacked.npz was left out: it lacks" in method.absent[0]
    (path / "targets.npz").unlink()
    found = load_robustness(path)
    assert found.targets is None and found.absent == ["There is no targets.npz."]
    assert write_report([str(path)])[1].exists()


def test_records_of_several_tasks_in_one_directory_are_refused(tmp_path):
    path = write_filled(tmp_path / "run")
    other = record("esd-x", "text-to-image", DRAWN, "asr", "ASR", [[0.0], [], []])
    write_json(path / "esd-x" / "robustness.json", other)
    with pytest.raises(InputError, match="one task of .*, got image-to-image, text-to-image; use a directory of one"):
        load_robustness(path)
