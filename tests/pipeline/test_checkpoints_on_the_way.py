"""Rewound checkpoints of the population, and bounds at chosen steps of unlearning."""

import dataclasses

import numpy as np
import pytest
from small_audits import CONFIG, audit, read, results

from jaxunlearn import records
from jaxunlearn.audit.headline import evaluate
from jaxunlearn.pipeline import audit as pipeline
from jaxunlearn.pipeline import bounding
from jaxunlearn.pipeline import task as tasks
from jaxunlearn.pipeline.population import PopulationTrainer

CONSTANT = ["--training.descent.schedule", "constant"]
STEPS = (0, 2, 5)


def population_of(task, rewinds=()):
    with PopulationTrainer(task, rewinds) as trainer:
        trainer.all()
    return trainer.population


def trained(config, rewind):
    task = tasks.build(config)
    population = population_of(task, {rewind})
    return [population.load(number, rows, rewind) for number, rows in enumerate(task.chunks)]


def test_a_rewound_checkpoint_is_what_a_shorter_training_gives(tmp_path):
    descent = dataclasses.replace(CONFIG.training.descent, schedule="constant")
    long, short = (
        dataclasses.replace(
            CONFIG,
            out=tmp_path / str(epochs),
            training=dataclasses.replace(CONFIG.training, epochs=epochs, descent=descent),
        )
        for epochs in (3, 2)
    )
    for a, b in zip(trained(long, 1), trained(short, 0), strict=True):
        for x, y in zip(a.values(), b.values()):
            for name in x:
                np.testing.assert_array_equal(x[name], y[name])


@pytest.mark.slow
def test_a_method_that_rewinds_trains_no_model_twice_and_gives_the_same_when_it_comes_later(tmp_path):
    extra = ["--method.rewind.epochs", 1, *CONSTANT]
    assert audit(tmp_path / "a", "--methods", "finetune", "rewind", *extra) == 0
    assert records.read_json(tmp_path / "a" / "manifest.json")["population"]["trained_runs"] == 20
    assert audit(tmp_path / "b", "--methods", "finetune", *extra) == 0
    assert audit(tmp_path / "b", "--methods", "rewind", *extra) == 0
    assert results(tmp_path / "a", "rewind") == results(tmp_path / "b", "rewind")
    assert results(tmp_path / "a", "finetune") == results(tmp_path / "b", "finetune")


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    out = tmp_path_factory.mktemp("watched")
    assert audit(out / "run", "--methods", "finetune", "--trajectory", *STEPS) == 0
    return out / "run"


def test_the_trajectory_begins_with_the_trained_model_and_ends_with_the_unlearned_one(watched, finished):
    record = read(watched, "finetune")
    path = record["trajectory"]
    total = 6  # 1,460 retained digits in batches of 256
    assert path["step"] == [*STEPS, total]
    stored = records.read_npz(watched / "finetune" / "trajectory.npz")
    final = records.read_npz(watched / "finetune" / "scores.npz")
    assert stored["scores"].shape == (3, *final["scores"].shape)
    # Looking on the way changes nothing at the end, and no two points have the same scores.
    np.testing.assert_array_equal(final["scores"], records.read_npz(finished / "finetune" / "scores.npz")["scores"])
    assert not np.array_equal(stored["scores"][1], stored["scores"][2])
    assert record["epsilon"] == read(finished, "finetune")["epsilon"]
    before = tasks.build(CONFIG)
    population = population_of(tasks.build(dataclasses.replace(CONFIG, out=finished)))
    rows = before.chunks[0]
    member = before.chunk(rows, stage=tasks.UNLEARNING).member
    scores = np.asarray(before.score(population.load(0, rows), member)["scores"])[: rows.stop]
    np.testing.assert_array_equal(stored["scores"][0][: rows.stop], scores)


def test_points_of_the_trajectory_share_the_level(watched):
    plan = pipeline.preregister(CONFIG, 1)
    scores = records.ScoreRecord.load(watched / "finetune" / "scores.npz")
    path = bounding.trajectory(
        plan, {0: scores, 1: scores, 2: scores}, scores, end=9, kind="gaussian", variance="pooled"
    )
    test = scores.roles == records.EVALUATION
    each = dataclasses.replace(plan, zeta=plan.zeta / 4)
    expected = evaluate(
        each, signs=scores.signs[test], failed=scores.failed[test], **bounding.attack(scores, plan, variance="pooled")
    ).headline.epsilon
    assert path["epsilon"] == [expected] * 4 and path["step"] == [0, 1, 2, 9]


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        (["--trajectory", 6], "below the 6 steps of finetune, got [6]"),
        (["--trajectory", 2, 2], "each once, got 2 2"),
        (["--trajectory", -1], "steps >= 0"),
    ],
)
def test_steps_that_are_not_there_are_refused(tmp_path, capsys, extra, text):
    assert audit(tmp_path / "x", "--methods", "finetune", *extra) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_steps_without_a_model_are_refused(tmp_path, capsys):
    extra = ["--method.hessian.samples", 1, "--method.hessian.depth", 2]
    assert audit(tmp_path / "x", "--methods", "hessian", *extra, "--trajectory", 0) == 2
    assert "hands on more than parameters" in capsys.readouterr().err


def test_another_trajectory_is_another_look_at_the_same_runs(watched, tmp_path):
    population = ["--population", watched / "population", "--methods", "finetune"]
    assert audit(tmp_path / "again", *population, "--trajectory", *STEPS) == 0
    assert audit(tmp_path / "other", *population, "--trajectory", 3) == 0
    again, other = (read(tmp_path / name, "finetune")["notes"] for name in ("again", "other"))
    assert not any("trajectory" in note for note in again) and any("trajectory" in note for note in other)
