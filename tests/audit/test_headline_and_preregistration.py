import dataclasses
import json
import math

import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.audit import bounds, design
from jaxunlearn.audit import least_favourable as lf
from jaxunlearn.audit.headline import Preregistration, evaluate, headline, status_of

RNG = np.random.default_rng(0)


def attack(m, shift=1.5, runs=10, seed=0):
    rng = np.random.default_rng(seed)
    signs = lf.draw_signs(rng, runs, m)
    return signs, shift * (rng.normal(size=(runs, m)) + shift * (signs > 0) - shift / 2)


def plan(predictor="batchwise", m=40, **changes):
    return Preregistration.default(predictor, m=m, batch_size=1, L=10, **changes)


def joint_table(llr):
    return llr @ design.sign_vectors(llr.shape[1]).T / 2


def test_default_plans():
    large = plan(m=400)
    assert large.bounds == ("evidence", "order_1", "order_2", "order_3", "overlap")
    assert large.r_grid == (100,) and large.r == 100
    assert len(large.candidates) == 5 and large.zeta_each == pytest.approx(0.01)
    small = plan(m=6)
    assert small.bounds == ("lattice", "overlap") and len(small.candidates) == 2
    assert plan("joint", m=6).candidates == (("lattice", None), ("overlap", 6))
    assert plan("joint", m=5).r == 5
    assert plan("pairwise", m=2).candidates == (("lattice", None),)
    chosen = plan(m=400, r=60)
    assert chosen.r == 60 and chosen.r_grid == (60,)
    single = Preregistration.default("batchwise", m=400, batch_size=1, L=1)
    assert single.bounds == ("evidence", "order_1", "overlap")
    for m in range(2, 60):
        made = plan(m=m)
        assert all(r % 2 == 0 and 2 <= r <= m for r in made.r_grid) and len(set(made.r_grid)) == len(made.r_grid)


def test_plans_survive_json():
    for made in (plan(m=400, delta=1e-5), plan("joint", m=6), plan("pairwise", m=2, zeta=0.01)):
        assert Preregistration.from_json(json.loads(json.dumps(made.to_json()))) == made
    with pytest.raises(InputError, match="another version"):
        Preregistration.from_json({**plan().to_json(), "colour": 1})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"predictor": "batchwize"}, "batchwise"),
        ({"r": 7}, "r=7"),
        ({"r_grid": (2, 2)}, "once"),
        ({"bounds": ("evidence", "saddle")}, "saddle"),
        ({"bounds": ()}, "at least one"),
        ({"bounds": ("lattice",)}, "at most 10000"),
        ({"zeta": 0.0}, "zeta"),
        ({"delta": 1.0}, "delta"),
        ({"L": 0}, "L=0"),
        ({"L": 2, "bounds": ("evidence", "order_3")}, "order_3 with at least 3"),
        ({"predictor": "pairwise", "r": 40, "r_grid": (40,)}, "m=2"),
        ({"predictor": "joint"}, "full vector"),
    ],
)
def test_impossible_plans_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        dataclasses.replace(plan(m=40), **change)


def test_evaluation_of_a_leaky_method():
    signs, llr = attack(400)
    made = plan(m=400, delta=1e-5)
    found = evaluate(made, signs=signs, llr=llr)
    status = [entry.status for entry in found.bounds]
    assert status == ["preregistered"] * 5 + ["reference"] * 2
    assert found.headline.name == "order_2" and found.headline.epsilon > 55
    by_name = {entry.name: entry.epsilon for entry in found.bounds[:5]}
    sorted_p = np.sort(found.log_p_values)
    assert by_name["order_1"] == bounds.order_statistic(sorted_p, k=1, zeta=0.01, delta=1e-5).epsilon
    assert by_name["evidence"] > 50
    assert all(entry.zeta == pytest.approx(0.01) for entry in found.bounds[:5])
    assert all(entry.zeta == 0.05 and entry.detail["delta"] == 0.0 for entry in found.bounds[5:])
    assert all(0 <= entry.epsilon <= entry.ceiling + 1e-9 < math.inf for entry in found.bounds)
    assert found.paper_mean == found.bounds[5].epsilon == found.bounds[5].detail["unhalved"] / 2
    assert set(found.by_r) == {"r", "overlap", "paper_mean", "accuracy"}
    assert len({len(v) for v in found.by_r.values()}) == 1 and found.by_r["r"][-1] == 400
    at = found.by_r["r"].index(made.r)
    assert found.by_r["paper_mean"][at] == pytest.approx(found.paper_mean)
    assert len(found.log_p_values) == 10 and found.ranks == [] and found.failed_runs == []
    json.dumps([dataclasses.asdict(entry) for entry in found.bounds] + [found.by_r, found.overlaps], allow_nan=False)


def test_joint_and_batchwise_agree_on_independent_batches():
    signs, llr = attack(6, shift=2.0)
    batch = evaluate(plan(m=6, r=6), signs=signs, llr=llr)
    joint = evaluate(plan("joint", m=6), signs=signs, log_likelihoods=joint_table(llr))
    assert batch.ranks == joint.ranks and batch.overlaps[6] == joint.overlaps[6]
    assert [e.epsilon for e in batch.bounds] == pytest.approx([e.epsilon for e in joint.bounds])
    assert joint.by_r["r"] == [6]


def test_pairwise():
    signs, llr = attack(2, shift=4.0)
    found = evaluate(plan("pairwise", m=2), signs=signs, log_likelihoods=joint_table(llr))
    names = [(entry.name, entry.status) for entry in found.bounds]
    assert names[0] == ("lattice", "preregistered") and ("clopper_pearson", "reference") in names
    assert found.headline.epsilon == pytest.approx(0.658, abs=1e-3)
    one_kind = np.tile([[1, -1]], (10, 1))
    found = evaluate(plan("pairwise", m=2), signs=one_kind, log_likelihoods=np.tile([[1.0, 0.0]], (10, 1)))
    assert "clopper_pearson" not in [entry.name for entry in found.bounds]


def test_failed_runs_count_as_no_evidence_and_are_not_dropped():
    signs, llr = attack(40)
    failed = np.arange(10) < 3
    broken = llr.copy()
    broken[:3] = np.nan
    whole, marked = evaluate(plan(), signs=signs, llr=llr), evaluate(plan(), signs=signs, llr=llr, failed=failed)
    silent = evaluate(plan(), signs=signs, llr=broken)
    assert marked.log_p_values[:3] == [0.0] * 3 and marked.failed_runs == [0, 1, 2]
    assert marked.log_p_values == silent.log_p_values
    assert len(marked.log_p_values) == 10 and marked.headline.epsilon < whole.headline.epsilon
    joint = evaluate(
        plan("joint", m=6),
        signs=signs[:, :6] * 0 + attack(6)[0],
        log_likelihoods=joint_table(attack(6)[1]),
        failed=failed,
    )
    assert joint.ranks[:3] == [20] * 3


def test_a_model_that_does_not_depend_on_the_signs_gives_zero():
    signs = attack(40)[0]
    found = evaluate(plan(), signs=signs, llr=np.zeros((10, 40)))
    assert found.log_p_values == [0.0] * 10 and found.headline.epsilon == 0.0
    table = np.zeros((10, 20))
    found = evaluate(plan("joint", m=6), signs=attack(6)[0], log_likelihoods=table)
    assert found.ranks == [20] * 10 and found.bounds[0].epsilon == 0.0


def test_extra_bounds_are_exploratory_and_never_the_headline():
    signs, llr = attack(400)
    made = plan(m=400)
    found = evaluate(made, signs=signs, llr=llr, extra=[("overlap", 250), ("overlap", 100)], curves=False)
    extra = [entry for entry in found.bounds if entry.status == "exploratory"]
    assert [(e.name, e.r, e.zeta) for e in extra] == [("overlap", 250, 0.05)]  # (overlap, 100) was preregistered
    assert status_of(made, "overlap", 250) == "exploratory" and status_of(made, "evidence") == "preregistered"
    promoted = dataclasses.replace(extra[0], epsilon=1e6)
    assert headline([*found.bounds, promoted]) == found.headline
    with pytest.raises(InputError, match="never the headline"):
        headline(extra)
    assert found.by_r == {}


def test_headline_is_the_largest_at_its_share_of_the_level():
    signs, llr = attack(40)
    found = evaluate(plan(), signs=signs, llr=llr, curves=False)
    alone = bounds.evidence(found.log_p_values, m=40, zeta=0.05 / 5)
    assert found.headline.epsilon == max(e.epsilon for e in found.bounds if e.status == "preregistered")
    assert found.bounds[0].epsilon == pytest.approx(alone.epsilon)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (lambda s, x: {"signs": s}, "llr alone"),
        (lambda s, x: {"signs": s, "log_likelihoods": x}, "llr alone"),
        (lambda s, x: {"signs": s, "llr": x[:, :-1]}, "shape"),
        (lambda s, x: {"signs": s[:, :20], "llr": x}, "balanced|m=40"),
        (lambda s, x: {"signs": s[:9], "llr": x[:9]}, "10 evaluation runs"),
        (lambda s, x: {"signs": s, "llr": x, "failed": np.zeros(9, bool)}, "failed"),
        (lambda s, x: {"signs": np.vstack([s[:9], s[:1]]), "llr": x}, "same sign vector"),
    ],
)
def test_refusals(arguments, words):
    signs, llr = attack(40)
    with pytest.raises(InputError, match=words):
        evaluate(plan(), **arguments(signs, llr))
