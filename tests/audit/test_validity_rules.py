"""What audit.validity refuses and what it lets pass; test_rules_and_traps.py shows what each rule is for."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.audit import design, null, validity
from jaxunlearn.audit import least_favourable as lf
from jaxunlearn.audit.headline import Preregistration, evaluate

M, L = 40, 10


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def balanced_design(rng, runs, m):
    """Pairs of a vector and its opposite: every batch is in exactly half of the runs."""
    half = lf.draw_signs(rng, runs // 2, m)
    return np.concatenate([half, -half])


def test_independent_draws_pass():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        m, runs = int(rng.integers(2, 12)), int(rng.integers(1, 60))
        validity.check_evaluation_signs(lf.draw_signs(rng, runs, m))
    validity.check_evaluation_signs(lf.draw_signs(np.random.default_rng(0), 500, 400))


def test_one_model_used_for_two_runs(rng):
    signs = lf.draw_signs(rng, L, M)
    signs[7] = signs[2]
    with pytest.raises(InputError, match="runs 2 and 7 have the same sign vector"):
        validity.check_evaluation_signs(signs)


def test_one_vector_too_often_where_repeats_are_normal():
    vectors = design.sign_vectors(6)

    def signs(times, runs=10):
        return np.concatenate([np.repeat(vectors[:1], times, axis=0), vectors[1 : runs - times + 1]])

    validity.check_evaluation_signs(signs(7))  # C(10, 7) / 20^6 = 1.9e-6
    with pytest.raises(InputError, match="8 of 10 runs have the same one, which has a chance below 1e-7"):
        validity.check_evaluation_signs(signs(8))
    validity.check_evaluation_signs(np.tile([[1, -1]], (20, 1)))  # 2^-19 = 1.9e-6
    with pytest.raises(InputError, match="21 of 21 runs"):
        validity.check_evaluation_signs(np.tile([[1, -1]], (21, 1)))


def test_antithetic_vectors(rng):
    with pytest.raises(InputError, match="opposite"):
        validity.check_evaluation_signs(balanced_design(rng, L, M))


def test_column_balanced_vectors(rng):
    # rotate one vector so that columns are balanced without any repeated or opposite rows
    base = np.where(np.arange(M) % 4 < 2, 1, -1)
    rows = [np.roll(base, k) for k in range(4)]
    shuffled = np.stack([np.concatenate([row[:20], np.roll(row[20:], 1)]) for row in rows])
    signs = np.concatenate([shuffled[:, rng.permutation(M)] for _ in range(3)])
    assert len({row.tobytes() for row in signs} | {(-row).tobytes() for row in signs}) < 2 * len(signs)  # has opposites
    with pytest.raises(InputError):
        validity.check_evaluation_signs(signs)
    odd = lf.draw_signs(rng, 1, 41)[0]
    cyclic = np.stack([np.roll(odd, k) for k in range(41)])  # every column has the same sum, all rows differ
    with pytest.raises(InputError, match="every batch is in"):
        validity.check_evaluation_signs(cyclic)


def test_vectors_dealt_without_replacement(rng):
    dealt = design.sign_vectors(6)[rng.permutation(20)]
    with pytest.raises(InputError):
        validity.check_evaluation_signs(dealt)
    with pytest.raises(InputError):
        validity.check_evaluation_signs(np.repeat(dealt, 3, axis=0))
    some = design.sign_vectors(8)[rng.permutation(70)[:55]]
    with pytest.raises(InputError, match="with replacement"):
        validity.check_evaluation_signs(some)
    validity.check_evaluation_signs(design.sign_vectors(6)[rng.permutation(20)[:6]])  # likely enough by chance


def test_small_m_is_not_refused_for_patterns_that_chance_brings():
    validity.check_evaluation_signs(np.array([[1, -1], [1, -1], [-1, 1], [-1, 1]]))
    validity.check_evaluation_signs(np.array([[1, 1, -1, -1], [-1, -1, 1, 1]]))
    validity.check_evaluation_signs(np.array([[1, -1] * 50]))


def separate(**changes):
    rng = np.random.default_rng(1)
    arguments = {
        "calibration_ids": [("calibration", i) for i in range(6)],
        "evaluation_ids": [("evaluation", i) for i in range(4)],
        "calibration_signs": lf.draw_signs(rng, 6, M),
        "evaluation_signs": lf.draw_signs(rng, 4, M),
    }
    return {**arguments, **changes}


def test_calibration_runs_are_not_evaluated():
    validity.check_separate(**separate())
    with pytest.raises(InputError, match="serve as both"):
        validity.check_separate(**separate(evaluation_ids=[("calibration", 3)] + [("evaluation", i) for i in range(3)]))
    with pytest.raises(InputError, match="occurs twice"):
        validity.check_separate(**separate(evaluation_ids=[("evaluation", 0)] * 4))
    base = separate()
    for turned, words in (
        (1, "the sign vector of calibration run 5"),
        (-1, "the opposite sign vector of calibration run 5"),
    ):
        signs = base["evaluation_signs"].copy()
        signs[2] = turned * base["calibration_signs"][5]
        with pytest.raises(InputError, match=f"evaluation run 2 has {words}"):
            validity.check_separate(**separate(evaluation_signs=signs))
    few = design.sign_vectors(4)  # calibrating every vector leaves none for evaluation, and is no reuse
    ids = {"calibration_ids": range(6), "evaluation_ids": ["a", "b"]}
    validity.check_separate(**ids, calibration_signs=few, evaluation_signs=few[:2])


def test_the_plan_cannot_change_after_the_fact():
    plan = Preregistration.default("batchwise", m=M, batch_size=1, L=L, delta=1e-5)
    validity.check_unchanged(plan, Preregistration.from_json(plan.to_json()))
    for change in ({"L": 8}, {"zeta": 0.1}, {"delta": 0.0}, {"r": 12}, {"bounds": ("evidence",)}, {"alpha": 0.1}):
        with pytest.raises(InputError, match=f"Expected {next(iter(change))}="):
            validity.check_unchanged(plan, dataclasses.replace(plan, **change))


def test_runs_are_neither_dropped_nor_added(rng):
    plan = Preregistration.default("batchwise", m=M, batch_size=1, L=L)
    for runs, words in ((L - 1, "failed runs too"), (L + 1, "e-process")):
        with pytest.raises(InputError, match=words):
            evaluate(plan, signs=lf.draw_signs(rng, runs, M), llr=rng.normal(size=(runs, M)))


def test_failed_runs_become_p_one():
    values = np.arange(12.0).reshape(3, 4)
    safe = validity.fail_safe(values, np.array([False, True, False]))
    assert (safe[1] == 0).all() and (safe[[0, 2]] == values[[0, 2]]).all() and values[1, 1] == 5
    signs = np.array([1, -1, 1, -1])
    assert null.log_p_value(safe[1], signs) == 0.0 and null.rank_of(safe[1], 2) == 4


def test_one_statistic():
    log_p = np.log([0.2, 0.4])
    assert validity.check_one_statistic({"evidence": log_p}) is log_p
    with pytest.raises(InputError, match="never take the smaller"):
        validity.check_one_statistic({"logit": log_p, "loss": log_p})


def test_messages_are_one_line():
    for call in (
        lambda: validity.check_run_count(3, 4),
        lambda: validity.check_evaluation_signs(np.tile([[1, -1] * 20], (2, 1))),
        lambda: validity.check_one_statistic({}),
    ):
        with pytest.raises(InputError) as error:
            call()
        assert "\n" not in str(error.value)


def test_the_auditor_never_loads_jax():
    code = (
        "import sys, jaxunlearn.audit.headline, jaxunlearn.audit.validity, jaxunlearn.audit.certificates, "
        "jaxunlearn.audit.least_favourable, jaxunlearn.metrics.roc, jaxunlearn.attack.likelihood\n"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
