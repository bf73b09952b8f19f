"""The sequential test with fitted attacks: its level at every stopping time, and that nothing but the past is used."""

import dataclasses
import math

import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.attack.likelihood import batchwise_llr, fit_batchwise
from jaxunlearn.attack.running import RunningFit
from jaxunlearn.audit import _tails, design, null
from jaxunlearn.audit import least_favourable as lf
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.pipeline.anytime import AnytimeTest, check_reachable

ZETA = 0.05


def plan(m, *, runs=20, warmup=4, claim=None, delta=0.0, batch_size=1):
    return Preregistration.default(
        "batchwise", m=m, batch_size=batch_size, L=runs, delta=delta, warmup=warmup, claim_epsilon=claim
    )


def least_favourable_signs(rng, llr, epsilon, delta):
    """The sign vector whose rank under this attack is drawn as small as (epsilon, delta) lets it be."""
    vectors = design.sign_vectors(llr.size)
    rank = int(lf.draw_ranks(rng, 1, support=len(vectors), epsilon=epsilon, delta=delta)[0])
    return vectors[np.argsort(-(vectors @ llr), kind="stable")[rank - 1]]


def path(seed, epsilon, delta, *, predictable=True, m=12, runs=14):
    """One audit at the least favourable law against attacks that are fitted on the runs it made itself.

    Returns: whether the bound ever exceeds the true epsilon, the largest e-value against it, and the log p-values.
    """
    rng = np.random.default_rng(seed)
    test, seen = AnytimeTest(plan(m, runs=runs, delta=delta)), RunningFit(m, 1)
    log_e = []
    for run in range(4 + runs):
        scores = rng.normal(size=(m, 1))
        signs = least_favourable_signs(rng, batchwise_llr(seen.fit(), scores[None])[0], epsilon, delta)
        seen.add(scores, signs)
        if run < 4:
            test.teach(scores, signs)
            continue
        if predictable:
            test.attack(scores, signs)
        else:  # the attack has seen the run that it attacks
            test.judge(batchwise_llr(seen.fit(), scores[None])[0], signs)
        log_e.append(test.process.log_e_value(epsilon))
    record, _ = test.record(method="x", title="x", definition="3.3")
    return record.epsilon > epsilon, max(log_e), record.log_p_values


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.5, 0.0), (1.0, 0.02)])
def test_the_level_holds_at_every_stopping_time_with_fitted_attacks(epsilon, delta):
    paths = 100
    exceeded, log_e, log_p = zip(*(path([seed, int(10 * epsilon)], epsilon, delta) for seed in range(paths)))
    corner = (1 - delta) / (
        1 + math.exp(epsilon)
    )  # the law attains the cap: half of all runs if epsilon = 0, more else
    cap = math.exp(float(_tails.log_cap(math.log(corner), epsilon, delta)))
    share = np.mean(np.exp(log_p) <= corner)
    assert abs(share - cap) <= 4 * math.sqrt(cap * (1 - cap) / np.size(log_p)) + 1 / design.support(12)
    noise = {zeta: 3.5 * math.sqrt(zeta * (1 - zeta) / paths) for zeta in (ZETA, 0.3)}
    assert np.mean(exceeded) <= ZETA + noise[ZETA]
    assert 0 < np.mean(np.array(log_e) >= math.log(1 / 0.3)) <= 0.3 + noise[0.3]  # the mixture leaves some unused


def test_an_attack_that_has_seen_the_run_would_break_the_level():
    assert np.mean([path([seed, 0], 0.0, 0.0, predictable=False)[0] for seed in range(40)]) > 0.5


def leaky(seed, runs=24, m=30, batch=2, shift=1.0):
    rng = np.random.default_rng(seed)
    signs = lf.draw_signs(rng, runs, m)
    signs[1:8:2] = -signs[:8:2]
    return signs, rng.normal(size=(1, m, batch)) + rng.normal(size=(runs, m, batch)) + shift * (signs > 0)[..., None]


def follow(signs, scores, made, failed=()):
    test = AnytimeTest(made)
    for run, (row, sign) in enumerate(zip(scores, signs)):
        if run < made.warmup:
            test.teach(row, sign)
        else:
            test.attack(row, sign, failed=run - made.warmup in failed)
    return test


def test_every_run_is_attacked_with_the_runs_before_it_and_no_other():
    signs, scores = leaky(0)
    found, _ = follow(signs, scores, plan(30, warmup=8, runs=16, batch_size=2)).record(
        method="x", title="x", definition="3.3"
    )
    for run in range(8, 24):
        llr = batchwise_llr(fit_batchwise(scores[:run], signs[:run]), scores[run : run + 1])[0]
        assert found.log_p_values[run - 8] == pytest.approx(null.log_p_value(llr, signs[run]), abs=1e-6)
    changed = scores.copy()
    changed[20:] += 100.0  # the future
    again = follow(signs, changed, plan(30, warmup=8, runs=16, batch_size=2))
    assert again.process.path[:12] == found.sequential["path"][:12] != again.process.path[-12:]


def test_failed_runs_count_as_no_evidence_and_teach_what_is_finite():
    signs, scores = leaky(1)
    broken = scores.copy()
    broken[10, 3:] = np.nan
    made = plan(30, warmup=8, runs=16, batch_size=2)
    record, arrays = follow(signs, broken, made, failed=(2,)).record(method="x", title="x", definition="3.3")
    assert record.log_p_values[2] == 0.0 and record.failed_runs == [2] and arrays["failed"].tolist().index(True) == 2
    sound, _ = follow(signs, broken, made).record(method="x", title="x", definition="3.3")
    assert record.evaluation_runs == 16 and sound.log_p_values[2] < 0 and not sound.failed_runs
    assert sound.log_p_values[3:] == record.log_p_values[3:]
    llr = batchwise_llr(fit_batchwise(broken[:11], signs[:11]), broken[11:12])[0]
    assert record.log_p_values[3] == pytest.approx(null.log_p_value(llr, signs[11]), abs=1e-6)


def test_what_becomes_of_a_claim():
    signs, scores = leaky(2)
    made = plan(30, warmup=8, runs=16, batch_size=2, claim=2.0)
    test = follow(signs, scores, made)
    path = np.array(test.process.path)
    first = int(np.argmax(path > 2.0)) + 1
    assert test.falsified and test.claim["evaluation_runs"] == first < 16
    assert test.claim["log_e_value"] >= math.log(1 / ZETA)
    silent = follow(signs, np.zeros_like(scores), dataclasses.replace(made, claim_epsilon=0.0))
    assert not silent.falsified and silent.claim["evaluation_runs"] == 16 and silent.process.epsilon == 0
    assert follow(signs, scores, plan(30, warmup=8, runs=16, batch_size=2)).claim is None


def test_a_claim_beyond_the_ceiling_is_refused_with_the_ceiling():
    check_reachable(plan(30, claim=10.0))
    with pytest.raises(InputError, match=r"claim_epsilon=18 < 17\.\d+, the most that 20 evaluation runs with m=30"):
        check_reachable(plan(30, claim=18.0))


def test_no_run_is_no_record_and_a_fixed_plan_no_test():
    with pytest.raises(InputError, match="at least one evaluation run"):
        AnytimeTest(plan(8)).record(method="x", title="x", definition="3.3")
    with pytest.raises(InputError, match="set warmup"):
        AnytimeTest(Preregistration.default("batchwise", m=8, batch_size=1, L=3))
