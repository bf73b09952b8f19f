"""Attacks with several signals, and the choice among them, which must not see an evaluation run."""

import dataclasses
import shutil

import numpy as np
import pytest
from small_audits import CALIBRATION_RUNS, CONFIG, L, M, audit, read

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn._validate import InputError
from jaxunlearn.attack import combine
from jaxunlearn.audit import least_favourable as lf
from jaxunlearn.audit.headline import evaluate
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.pipeline import bounding, selection
from jaxunlearn.records import CALIBRATION, EVALUATION, ScoreRecord

pytestmark = pytest.mark.slow

RUNS, BATCHES, TESTED = 26, 40, 3
PLAN = Preregistration.default("batchwise", m=BATCHES, batch_size=1, L=TESTED)


def make_scores(seed, *, common=0.0, second=0.0):
    """Scores with common noise and a second signal of its own strength."""
    rng = np.random.default_rng(seed)
    signs = lf.draw_signs(rng, RUNS + TESTED, BATCHES)
    shape = (RUNS + TESTED, BATCHES, 1)
    loadings = rng.choice([-1.0, 1.0], size=(1, BATCHES, 1))
    noise = np.sqrt(1 - common) * rng.normal(size=shape) + np.sqrt(common) * loadings * rng.normal(
        size=(shape[0], 1, 1)
    )
    inside = (signs > 0)[:, :, None]
    return ScoreRecord(
        signs=signs,
        roles=np.repeat(np.array([CALIBRATION, EVALUATION], np.int8), (RUNS, TESTED)),
        indices=np.concatenate([np.arange(RUNS), np.arange(TESTED)]),
        scores=noise + inside,
        accuracy={},
        failed=np.zeros(RUNS + TESTED, bool),
        signals={"second": rng.normal(size=shape) + second * inside},
    )


def chosen(scores):
    outputs, choice = bounding.attack_with("auto", scores, PLAN, variance="pooled")
    return outputs, choice


def test_the_choice_finds_what_helps():
    assert chosen(make_scores(0, common=0.9))[1].name.endswith("full")
    assert not chosen(make_scores(1, second=2.0))[1].name.startswith("gaussian")


def test_the_choice_sees_no_evaluation_run():
    scores = make_scores(2, common=0.5)
    outputs, choice = chosen(scores)
    test = scores.roles == EVALUATION
    rng = np.random.default_rng(3)
    spoilt = dataclasses.replace(
        scores,
        scores=np.where(test[:, None, None], 100 * rng.normal(size=scores.scores.shape), scores.scores),
        signals={k: np.where(test[:, None, None], np.nan, v) for k, v in scores.signals.items()},
    )
    assert chosen(spoilt)[1] == choice
    hidden = dataclasses.replace(scores, signs=np.where(test[:, None], -scores.signs, scores.signs))
    unseen, same = chosen(hidden)
    assert same == choice
    np.testing.assert_array_equal(unseen["llr"], outputs["llr"])


@pytest.mark.parametrize(("kind", "variance"), [("gaussian", "full"), ("multivariate", "full"), ("stacked", "pooled")])
def test_an_evaluation_run_is_attacked_alone(kind, variance):
    scores = make_scores(4)
    whole = bounding.attack_with(kind, scores, PLAN, variance=variance)[0]["llr"]
    kept = np.append(np.arange(RUNS), RUNS + 2)
    one = dataclasses.replace(
        scores,
        **{name: getattr(scores, name)[kept] for name in ("signs", "roles", "indices", "scores", "failed")},
        signals={k: v[kept] for k, v in scores.signals.items()},
    )
    alone = bounding.attack_with(kind, one, PLAN, variance=variance)[0]["llr"]
    np.testing.assert_allclose(alone[0], whole[2], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "variance"), [("gaussian", "full"), ("multivariate", "full"), ("gaussian", "shrunken")]
)
def test_scores_without_the_signs_in_them_give_zero(kind, variance):
    scores, rng, zeros = make_scores(9, common=0.5, second=1.0), np.random.default_rng(10), 0
    for _ in range(40):
        signs = lf.draw_signs(rng, RUNS + TESTED, BATCHES)
        shuffled = dataclasses.replace(scores, signs=signs)
        outputs, _ = bounding.attack_with(kind, shuffled, PLAN, variance=variance)
        zeros += evaluate(PLAN, signs=signs[RUNS:], curves=False, **outputs).headline.epsilon == 0
    assert zeros >= 38


def test_of_equal_attacks_the_simplest_is_chosen():
    scores = make_scores(5)
    fit = scores.roles == CALIBRATION
    attack = combine.make_attack("gaussian", "pooled")
    choice = selection.choose({"b": attack, "a": attack}, scores.stacked()[:, fit], scores.signs[fit])
    assert choice.name == "b" and choice.evidence["a"] == choice.evidence["b"] > 0
    assert "b" in choice.note and f"{choice.evidence['a']:.2f}" in choice.note


def test_the_criterion_is_the_evidence_of_runs_left_out():
    scores = make_scores(6)
    fit = scores.roles == CALIBRATION
    attacks = {"given": lambda calibration, signs, tested: tested[0, :, :, 0]}
    choice = selection.choose(attacks, scores.stacked()[:, fit], scores.signs[fit])
    expected = -selection.null.log_p_values(scores.scores[fit, :, 0], scores.signs[fit]).mean()
    assert choice.evidence["given"] == pytest.approx(expected)


def test_candidates_combine_only_where_there_is_something_to_combine():
    assert all(name.startswith("gaussian") for name in selection.candidates(1))
    assert next(iter(selection.candidates(3))) == "gaussian, pooled" and len(selection.candidates(3)) == 8


def test_an_audit_with_signals_stores_them_and_the_choice(finished, tmp_path):
    population = shutil.copytree(finished / "population", tmp_path / "population")
    shared = ["--population", population, "--methods", "retrain", "finetune"]
    assert audit(tmp_path / "x", *shared, "--signals", "logit", "margin", "augmented", "--attack", "auto") == 0
    plain = ScoreRecord.load(finished / "finetune" / "scores.npz")
    assert plain.signals == {}
    scores = ScoreRecord.load(tmp_path / "x" / "finetune" / "scores.npz")
    np.testing.assert_array_equal(scores.scores, plain.scores)
    assert set(scores.signals) == {"margin"} | {f"augmented_{n}" for n in ("up", "down", "left", "right")}
    assert all(v.shape == (CALIBRATION_RUNS + L, M, 1) for v in scores.signals.values())
    evaluation = records.read_npz(tmp_path / "x" / "finetune" / "evaluation.npz")
    record = read(tmp_path / "x", "finetune")
    best = str(evaluation["attacks"][evaluation["attack_evidence"].argmax()])
    assert any(f"The attack ({best}) was chosen" in note for note in record["notes"])
    assert any("attack: gaussian -> auto" in note for note in record["notes"])  # the same runs, bounded before
    assert read(tmp_path / "x", "retrain")["epsilon"] == 0


def test_scores_with_signals_come_back_as_they_were(tmp_path):
    scores = make_scores(7)
    scores.save(tmp_path / "scores.npz")
    loaded = ScoreRecord.load(tmp_path / "scores.npz")
    np.testing.assert_array_equal(loaded.stacked(), scores.stacked())
    assert loaded.stacked().shape == (2, RUNS + TESTED, BATCHES, 1) and list(loaded.signals) == ["second"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"signals": ()}, "signals"),
        ({"signals": ("logit", "logit")}, "repetition"),
        ({"signals": ("augmented",)}, "not augmented first"),
        ({"attack": "stacked"}, "two signals"),
        ({"attack": "multivariate", "signals": ("logit", "loss"), "variance": "shrunken"}, "multivariate"),
        ({"attack": "auto", "predictor": "joint", "candidate_batch_size": 10}, "batchwise"),
        ({"variance": "batch", "predictor": "joint", "candidate_batch_size": 10}, "full"),
    ],
)
def test_attacks_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        dataclasses.replace(CONFIG, **settings)


def test_the_attack_is_part_of_what_results_depend_on():
    before = configuration.audit_identity(CONFIG)
    for change in ({"attack": "auto"}, {"signals": ("loss",)}, {"variance": "pooled"}):
        changed = dataclasses.replace(CONFIG, **change)
        assert configuration.audit_identity(changed) != before
        assert configuration.training_identity(changed) == configuration.training_identity(CONFIG)


def test_too_few_calibration_runs_for_cross_fitting_are_found_before_training(tmp_path, capsys):
    assert audit(tmp_path, "--methods", "finetune", "--attack", "auto", "--calibration-runs", 7) == 2
    assert "cross-fitting" in capsys.readouterr().err
    assert not (tmp_path / "population").exists()


def test_other_predictors_have_one_attack():
    with pytest.raises(InputError, match="batchwise"):
        bounding.attack_with(
            "auto",
            make_scores(8),
            dataclasses.replace(PLAN, m=6, predictor="joint", r=6, r_grid=(6,), bounds=("lattice",)),
            variance="pooled",
        )
