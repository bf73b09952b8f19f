"""The nine rules of docs/theory.md: what breaking each does to the error rate, and what the code does about it.

Each trap is a mechanism whose epsilon is known, audited in the wrong way; its test measures how often the bound exceeds
that epsilon at a nominal .05 and holds the number that the page prints to it. The refusals stand beside; those of
``audit.validity`` itself are tested in test_validity_rules.py.
"""

import dataclasses
import math

import numpy as np
import pytest
from rejections import critical, exceeding, published
from scipy import stats

from jaxunlearn._validate import InputError
from jaxunlearn.attack.likelihood import batchwise_llr, fit_batchwise
from jaxunlearn.audit import _tails, bounds, design, null, validity
from jaxunlearn.audit import least_favourable as lf
from jaxunlearn.audit.headline import Preregistration, evaluate, headline
from jaxunlearn.cli import main
from jaxunlearn.pipeline import outside

ZETA, L = 0.05, 10
N = 20_000


def noise(draws, deviations=4.0):
    return deviations * math.sqrt(ZETA * (1 - ZETA) / draws)


def assert_breaks(request, rate, least=2 * ZETA):
    """The rate is far above the level, and it is the one on the page."""
    assert rate > least
    assert rate == pytest.approx(published(request.node.originalname or request.node.name), abs=0.015)


def evidence_exceeds(log_p, epsilon, *, m=4500, delta=0.0):
    """[N] bool for log p of shape [N, runs]."""
    runs = log_p.shape[1]
    kept = runs - _tails.trimmed(runs, ZETA, delta)
    total = np.sort(-log_p, axis=1)[:, :kept].sum(axis=1)
    return exceeding(log_p, total, lambda row: bounds.evidence(row, m=m, zeta=ZETA, delta=delta).epsilon > epsilon)


def plan(m=40, runs=L, **changes):
    return Preregistration.default("batchwise", m=m, batch_size=1, L=runs, **changes)


class World:
    """Scores of one model with m = 12, and the rank and overlaps of each of the 924 sign vectors under them.

    With f independent of S (epsilon = 0) an audit of L runs is L uniform rows of the tables.
    """

    M = 12

    def __init__(self, seed):
        self.llr = np.random.default_rng(seed).normal(size=self.M)
        self.vectors = design.sign_vectors(self.M)
        self.support = len(self.vectors)
        self.rank = np.array([null.rank(self.llr, s)[0] for s in self.vectors])
        self.log_p = np.log(self.rank / self.support)

    def overlap(self, r):
        return design.overlaps(np.tile(design.guess(self.llr, r), (self.support, 1)), self.vectors)

    def draw(self, seed, runs=L):
        return np.random.default_rng(seed).integers(self.support, size=(N, runs))


@pytest.fixture(scope="module")
def world():
    return World(0)


def overlap_exceeds(values, *, m, r, zeta=ZETA, epsilon=0.0, delta=0.0):
    def exceeds(row):
        return bounds.overlap(row, m=m, r=r, zeta=zeta, delta=delta).epsilon > epsilon

    return exceeding(values, values.sum(axis=1), exceeds)


# Rule 1: evaluation sign vectors are independent and uniform.


def test_one_model_unlearned_for_every_run(request):
    """One S, one trained model, a deterministic unlearner: 22 copies of one pairwise guess."""
    ranks = np.repeat(lf.draw_ranks(np.random.default_rng(1), (N, 1), support=2, epsilon=1.1), 22, axis=1)

    def exceeds(row):
        return bounds.lattice(row, support=2, zeta=ZETA).epsilon > 1.1

    assert_breaks(request, exceeding(ranks, (ranks == 1).sum(axis=1), exceeds).mean(), least=0.8)
    for m, runs, words in ((2, 22, "22 of 22 runs have the same one"), (6, L, "10 of 10 runs have the same one")):
        signs = np.repeat(lf.draw_signs(np.random.default_rng(0), 1, m), runs, axis=0)
        with pytest.raises(InputError, match=words):
            evaluate(plan(m, runs), signs=signs, llr=np.zeros((runs, m)))


def test_one_model_unlearned_for_every_run_at_large_m(request):
    log_p = np.repeat(lf.draw_log_p_values(np.random.default_rng(2), (N, 1), m=4500, epsilon=3.0), L, axis=1)
    assert_breaks(request, evidence_exceeds(log_p, 3.0).mean(), least=0.15)
    signs = np.repeat(lf.draw_signs(np.random.default_rng(0), 1, 40), L, axis=0)
    with pytest.raises(InputError, match="runs 0 and 1 have the same sign vector"):
        evaluate(plan(), signs=signs, llr=np.zeros((L, 40)))


def test_a_cyclic_design_makes_one_run_of_many(request):
    """Every batch is in 20 of 41 runs. The attack never sees a sign: it rotates one fixed guess as the design does."""
    rng, m = np.random.default_rng(3), 41
    first = lf.draw_signs(rng, 300, m)
    guess = rng.normal(size=m)
    log_p = null.log_p_values(np.tile(guess, (300, 1)), first)
    turned = null.log_p_values(np.stack([np.roll(guess, k) for k in range(m)]), rotations := rotate(first[0]))
    assert (turned == log_p[0]).all()
    assert_breaks(request, evidence_exceeds(np.repeat(log_p[:, None], m, axis=1), 0.0, m=m).mean(), least=0.15)
    with pytest.raises(InputError, match="every batch is in"):
        validity.check_evaluation_signs(rotations)


def rotate(vector):
    return np.stack([np.roll(vector, k) for k in range(vector.size)])


def test_vectors_dealt_like_cards(request):
    """All 20 vectors of m = 6 once each; the attack for a run may know the earlier ones and guesses among the rest."""
    rng = np.random.default_rng(4)
    left = 20 - np.arange(20)
    ranks = rng.integers(1, left + 1, size=(N, 20))
    assert_breaks(request, evidence_exceeds(np.log(ranks / 20), 0.0, m=6).mean(), least=0.5)
    dealt = design.sign_vectors(6)[rng.permutation(20)]
    with pytest.raises(InputError):
        validity.check_evaluation_signs(dealt)


def test_the_opposite_of_another_run(request):
    """Antithetic pairs: each run's signs are known from the others, so a model that leaks nothing is read off."""
    found = []
    for seed in range(20):
        half = lf.draw_signs(np.random.default_rng(seed), L // 2, 40)
        signs = np.concatenate([half, -half])
        guess = -(signs.sum(axis=0) - signs)  # what a column sum of zero leaves for the run in question
        log_p = null.log_p_values(guess.astype(float), signs)
        found.append(bounds.evidence(log_p, m=40, zeta=ZETA).epsilon > 0)
        with pytest.raises(InputError, match="opposite"):
            evaluate(plan(), signs=signs, llr=np.zeros((L, 40)))
    assert_breaks(request, np.mean(found), least=0.9)


def null_attack(seed, *, runs=20, m=60, copies=False):
    """Log p of runs whose scores are independent of the signs, with the attack fitted on the very runs (or copies)."""
    rng = np.random.default_rng(seed)
    signs, trained = lf.draw_signs(rng, runs, m), rng.normal(size=(runs, m, 1))
    fit, test = (trained + 0.3 * copies * rng.normal(size=trained.shape) for _ in range(2))
    return null.log_p_values(batchwise_llr(fit_batchwise(fit, signs), test), signs)


def test_calibration_runs_that_are_evaluated(request):
    """With few calibration runs the fit remembers them."""
    found = [bounds.evidence(null_attack(seed), m=60, zeta=ZETA).epsilon > 0 for seed in range(8)]
    assert_breaks(request, np.mean(found), least=0.9)
    with pytest.raises(InputError, match="serve as both"):
        validity.check_separate(calibration_ids=["a", "b"], evaluation_ids=["b", "c"])
    with pytest.raises(InputError, match="occurs twice"):
        validity.check_separate(calibration_ids=["a"], evaluation_ids=["b", "b"])


def test_one_trained_model_on_both_sides(request):
    """Unlearned twice with fresh noise: scores that say nothing of S, and yet the attack knows S."""
    found = [bounds.evidence(null_attack(seed, copies=True), m=60, zeta=ZETA).epsilon > 0 for seed in range(8)]
    assert_breaks(request, np.mean(found), least=0.9)
    signs = lf.draw_signs(np.random.default_rng(0), L, 200)
    with pytest.raises(InputError, match="sign vector of calibration run"):
        validity.check_separate(
            calibration_ids=range(L), evaluation_ids=range(L, 2 * L), calibration_signs=signs, evaluation_signs=signs
        )


# Rule 2: what is headline is fixed before the first evaluation run.


def test_the_best_guess_budget(request):
    rng, m, budgets = np.random.default_rng(6), 100, (4, 8, 12, 20, 30, 40, 50, 60, 80, 100)
    signs = rng.permuted(np.tile(np.repeat([True, False], m // 2), (N * L, 1)), axis=1)
    best, shared = np.zeros(N, bool), np.zeros(N, bool)
    for r in budgets:  # scores independent of S: any fixed order of the batches is as good as another
        values = (signs[:, : r // 2].sum(axis=1) + (~signs[:, m - r // 2 :]).sum(axis=1)).reshape(N, L)
        alone = overlap_exceeds(values, m=m, r=r)
        assert alone.mean() <= ZETA + noise(N)
        best |= alone
        shared |= overlap_exceeds(values, m=m, r=r, zeta=ZETA / len(budgets))
    assert_breaks(request, best.mean())
    assert shared.mean() <= ZETA + noise(N)
    other = dataclasses.replace(plan(), r=16, r_grid=(16,))
    with pytest.raises(InputError, match="cannot change once evaluation has begun"):
        validity.check_unchanged(plan(), other)


def test_the_best_of_several_bounds(request, world):
    rows = world.draw(7)
    log_p, ranks = world.log_p[rows], world.rank[rows]
    score = np.floor(np.log(world.support / ranks) / 1e-3).sum(axis=1)

    def all_at(zeta):
        def lattice(row):
            return bounds.lattice(row, support=world.support, zeta=zeta).epsilon > 0

        def evidence(row):
            return bounds.evidence(row, m=world.M, zeta=zeta).epsilon > 0

        def count(row):
            return bounds.count(row, alpha=0.1, zeta=zeta).epsilon > 0

        return np.array(
            [
                exceeding(ranks, score, lattice),
                exceeding(log_p, -log_p.sum(axis=1), evidence),
                exceeding(log_p, (log_p <= math.log(0.1) + 1e-9).sum(axis=1), count),
                *(overlap_exceeds(world.overlap(r)[rows], m=world.M, r=r, zeta=zeta) for r in (2, 4, 8)),
            ]
        )

    whole, shared = all_at(ZETA), all_at(ZETA / 6)
    assert (whole.mean(axis=1) <= ZETA + noise(N)).all()
    assert_breaks(request, whole.any(axis=0).mean(), least=0.08)
    assert shared.any(axis=0).mean() <= ZETA + noise(N)
    signs = lf.draw_signs(np.random.default_rng(0), L, 40)
    found = evaluate(plan(), signs=signs, llr=3.0 * signs, extra=[("overlap", 30)], curves=False)
    assert found.headline.zeta == ZETA / len(plan().candidates)
    promoted = [dataclasses.replace(e, epsilon=99.0) for e in found.bounds if e.status != "preregistered"]
    assert {e.status for e in promoted} == {"reference", "exploratory"}
    assert headline([*found.bounds, *promoted]) == found.headline


# Rule 3: stopping and going on.


def test_looking_after_every_run(request):
    """The formula for a fixed number of runs, looked at after each of 20."""
    log_p = lf.draw_log_p_values(np.random.default_rng(8), (N, 20), m=4500, epsilon=3.0)
    seen = [evidence_exceeds(log_p[:, :n], 3.0) for n in range(1, 21)]
    assert all(look.mean() <= ZETA + noise(N) for look in seen)
    assert_breaks(request, np.any(seen, axis=0).mean())
    for runs, words in ((L - 1, "failed runs too"), (L + 1, "adding runs after looking needs the e-process")):
        with pytest.raises(InputError, match=words):
            evaluate(plan(), signs=lf.draw_signs(np.random.default_rng(0), runs, 40), llr=np.zeros((runs, 40)))


def e_process_exceeds(log_p, epsilon, delta=0.0):
    """[paths, n] bool: whether the mixture for the true epsilon stands at 1 / zeta or above after each run."""
    totals = -np.cumsum(_tails.log_cap(log_p, epsilon, delta), axis=1)
    grid = np.linspace(0.0, 400.0, 400_001)
    limits = [
        critical(lambda a, n=n: _tails.log_beta_mixture(float(a), n) >= -math.log(ZETA), grid)
        for n in range(1, log_p.shape[1] + 1)
    ]
    return totals >= np.array(limits)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (3.0, 0.0), (3.0, 1e-3), (2.0, 0.05)])
def test_stopping_the_e_process_whenever_one_likes(epsilon, delta):
    paths, runs = 10_000, 200
    rng = np.random.default_rng(9)
    log_p = lf.draw_log_p_values(rng, (paths, runs), m=400, epsilon=epsilon, delta=delta)
    over = e_process_exceeds(log_p, epsilon, delta)
    rate = over.any(axis=1).mean()  # stop at the first rejection; as much as any other rule can have
    assert 0 < rate <= ZETA + noise(paths)
    assert delta < 0.05 or rate < 0.002  # one run adds at most log(1 / delta)
    # Stop when it looks best: the run with the largest sum of evidence beyond what is expected.
    drift = np.cumsum(-log_p - (epsilon + 1.2), axis=1)
    at_best = over[np.arange(paths), drift.argmax(axis=1)]
    assert at_best.mean() <= rate
    for row in (*np.flatnonzero(over.any(axis=1))[:3], *np.flatnonzero(~over.any(axis=1))[:3]):
        found = bounds.e_process(log_p[row, :40], m=400, zeta=ZETA, delta=delta)
        assert (np.array(found.path) > epsilon + 1e-8).any() == over[row, :40].any()


def test_an_attack_may_be_mended_between_the_runs_of_the_e_process():
    """The mechanism and the attack are chosen by the past: full leak while behind, no leak while ahead."""
    paths, runs, epsilon = 10_000, 100, 2.0
    rng = np.random.default_rng(10)
    strong = lf.draw_log_p_values(rng, (paths, runs), m=400, epsilon=epsilon)
    weak = np.log(rng.random((paths, runs)))
    log_p, total = np.empty((paths, runs)), np.zeros(paths)
    for n in range(runs):
        log_p[:, n] = np.where(total > 1.2 * n, weak[:, n], strong[:, n])
        total -= _tails.log_cap(log_p[:, n], epsilon, 0.0)
    assert e_process_exceeds(log_p, epsilon).any(axis=1).mean() <= ZETA + noise(paths)


# Rule 4: failed runs.


def failing(rng, size, *, epsilon, support, kept):
    """A mechanism that names a sign vector or fails openly; returns (failed, rank 1 or 2 of the true vector).

    The reference names each vector with probability kept / support. Given S the true one is e^epsilon times as likely and
    every other e^-epsilon times; failing makes up for it.
    """
    right, wrong = kept / support * math.exp(epsilon), kept / support * (support - 1) * math.exp(-epsilon)
    fails = 1 - right - wrong
    assert abs(math.log(fails / (1 - kept))) <= epsilon  # so it is exactly epsilon-certified
    u = rng.random(size)
    return u >= right + wrong, np.where(u < right, 1, 2)


def test_failed_runs_drawn_again(request):
    """Failure depends on the model alone. Until success with new keys: the odds are those given success, e^(2 epsilon)."""
    epsilon, support, rng = 2.0, 20, np.random.default_rng(11)
    failed, ranks = failing(rng, (N, 40 * L), epsilon=epsilon, support=support, kept=0.9)
    order = np.argsort(failed, axis=1, kind="stable")[:, :L]  # the first ten that succeed
    ranks_again = np.take_along_axis(ranks, order, axis=1)
    assert not np.take_along_axis(failed, order, axis=1).any()
    as_it_is = np.where(failed, support, ranks)[:, :L]

    def rate(rows):
        def exceeds(row):
            return bounds.count(np.log(row / support), alpha=1 / support, zeta=ZETA).epsilon > epsilon

        return exceeding(rows, (rows == 1).sum(axis=1), exceeds).mean()

    assert_breaks(request, rate(ranks_again))
    assert rate(as_it_is) <= ZETA + noise(N)


def test_failed_runs_left_out(request):
    """Runs that fail when the attack's guess is bad."""
    log_p = np.log(np.random.default_rng(12).random((N, 2 * L)))
    bad = log_p > math.log(0.5)
    rows = log_p[(~bad).sum(axis=1) >= L]
    kept = np.take_along_axis(rows, np.argsort(rows > math.log(0.5), axis=1, kind="stable")[:, :L], axis=1)
    assert_breaks(request, evidence_exceeds(kept, 0.0).mean())
    assert evidence_exceeds(np.where(bad, 0.0, log_p), 0.0).mean() <= ZETA
    with pytest.raises(InputError, match="hand in failed runs too"):
        validity.check_run_count(L - 1, L)


# Rule 5: broken and equal scores.


def naive_log_p(llr, signs, true):
    """The p-value by comparing floating-point sums: what not to do."""
    table = (design.sign_vectors(llr.size) * llr).sum(axis=1)
    return math.log(max(int((table >= true(llr, signs)).sum()), 1) / table.size)


def test_the_true_sum_in_another_order(request):
    """All log-likelihood ratios are .3, so all sums are equal and p = 1; twice the positive part less the whole is not."""
    signs, llr = lf.draw_signs(np.random.default_rng(13), L, 12), np.full(12, 0.3)
    naive = [naive_log_p(llr, s, lambda x, s: 2 * x[s > 0].sum() - x.sum()) for s in signs]
    assert_breaks(request, float(bounds.evidence(naive, m=12, zeta=ZETA).epsilon > 0), least=0.9)
    for m in (12, 40, 400):
        assert null.log_p_value(np.full(m, 0.3), lf.draw_signs(np.random.default_rng(0), 1, m)[0]) == 0.0


def test_not_a_number_beats_nobody(request):
    """An infinite ratio makes the sums NaN, which no comparison counts: rank 0."""
    signs, llr = lf.draw_signs(np.random.default_rng(14), L, 12), np.random.default_rng(0).normal(size=12)
    llr[:2] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        naive = [naive_log_p(llr, s, lambda x, s: (x * s * (1 - 1e-9)).sum()) for s in signs]
    assert_breaks(request, float(bounds.evidence(naive, m=12, zeta=ZETA).epsilon > 0), least=0.9)
    calm = np.where(np.isfinite(llr), llr, 0.0)
    assert [null.log_p_value(llr, s) for s in signs] == [null.log_p_value(calm, s) for s in signs]
    assert design.finite_llr(np.array([np.nan, np.inf, -np.inf, 2.0])).tolist() == [0.0, 0.0, 0.0, 2.0]


def test_ties_in_favour(request):
    """A model that does not depend on S gives equal ratios; counting only strictly larger ones puts the truth first."""
    strictly = [math.log(1 / 924)] * L
    assert_breaks(request, float(bounds.evidence(strictly, m=12, zeta=ZETA).epsilon > 0), least=0.9)
    signs = lf.draw_signs(np.random.default_rng(15), L, 12)
    found = evaluate(plan(12), signs=signs, llr=np.zeros((L, 12)), curves=False)
    assert found.log_p_values == [0.0] * L and found.headline.epsilon == 0.0


# Rule 6: one p-value, one statistic.


def test_the_smaller_of_two_p_values(request, world):
    rows = world.draw(16)
    pair = [w.log_p[rows] for w in (world, World(1))]
    assert all(evidence_exceeds(log_p, 0.0, m=12).mean() <= ZETA + noise(N) for log_p in pair)
    assert_breaks(request, evidence_exceeds(np.minimum(*pair), 0.0, m=12).mean())
    with pytest.raises(InputError, match="never take the smaller"):
        validity.check_one_statistic({"a": pair[0][0], "b": pair[1][0]})
    with pytest.raises(InputError, match="shape"):
        evaluate(plan(12), signs=world.vectors[:L], llr=np.zeros((2, L, 12)))


# Rule 7: which definition.


def padded_runs(seed, *, fresh, m=40):
    """Scores S_j times a pad drawn with the initial weights: without the pad they are independent of S."""
    rng = np.random.default_rng(seed)
    signs = lf.draw_signs(rng, 30, m)
    pads = rng.choice([-1, 1], size=(30 if fresh else 1, m))
    scores = (signs * pads + 0.1 * rng.normal(size=(30, m)))[..., None]
    fit = fit_batchwise(scores[:20], signs[:20])
    return bounds.evidence(null.log_p_values(batchwise_llr(fit, scores[20:]), signs[20:]), m=m, zeta=ZETA).epsilon


def test_shared_initial_weights_say_nothing_on_definition_3_2(request):
    """Over the draw of the weights epsilon is 0 (Definition 3.2); given the weights there is none (3.3)."""
    shared = np.mean([padded_runs(seed, fresh=False) > 0 for seed in range(20)])
    assert_breaks(request, shared, least=0.9)
    assert np.mean([padded_runs(seed, fresh=True) > 0 for seed in range(40)]) <= ZETA + noise(40, 2.5)


def test_the_definition_is_recorded(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "signs.npy", lf.draw_signs(rng, L, 40))
    np.save(tmp_path / "llr.npy", rng.normal(size=(L, 40)))
    for definition in ("3.3", "3.2"):
        chosen = outside.Bound(signs=tmp_path / "signs.npy", llr=tmp_path / "llr.npy", definition=definition)
        record = outside.run(chosen)
        assert record.definition == definition and f"Definition {definition} is as you stated it" in record.notes[0]


# Rule 8: delta is part of the hypothesis; halving.


def test_ignoring_delta(request):
    log_p = lf.draw_log_p_values(np.random.default_rng(17), (N, 20), m=100, epsilon=1.0, delta=0.05)
    assert_breaks(request, evidence_exceeds(log_p, 1.0, m=100).mean(), least=0.5)
    assert evidence_exceeds(log_p, 1.0, m=100, delta=0.05).mean() <= ZETA
    with pytest.raises(InputError, match="Expected delta=1e-05 as preregistered, got 0.0"):
        validity.check_unchanged(plan(delta=1e-5), plan())


def pairwise_rates(epsilon, delta=0.0):
    """P(A) and Q(A) of two laws on opposite sides of a reference, as far apart as (epsilon, delta) lets them be."""
    low = (1 - delta) * math.exp(-epsilon) / (1 + math.exp(epsilon))
    return math.exp(2 * epsilon) * low + (1 + math.exp(epsilon)) * delta, low


def clopper_pearson_exceeds(high, low, value, n=10_000, draws=400):
    rng = np.random.default_rng(19)
    counts = zip(rng.binomial(n, high, draws), rng.binomial(n, low, draws))
    return np.mean([value(int(k), n, int(j), n) for k, j in counts])


def test_pairwise_without_halving(request):
    rate = clopper_pearson_exceeds(
        *pairwise_rates(1.0), lambda *c: bounds.clopper_pearson(*c, zeta=ZETA, halve=False).epsilon > 1.0
    )
    assert_breaks(request, rate, least=0.9)
    rate = clopper_pearson_exceeds(*pairwise_rates(1.0), lambda *c: bounds.clopper_pearson(*c, zeta=ZETA).epsilon > 1.0)
    assert rate <= ZETA + noise(400)
    # Definition H.1: one of the two is the reference itself, so nothing is halved.
    steep = 1 / (1 + math.exp(1.0))
    rate = clopper_pearson_exceeds(
        math.e * steep, steep, lambda *c: bounds.clopper_pearson(*c, zeta=ZETA, halve=False).epsilon > 1.0
    )
    assert rate <= ZETA + noise(400)


def test_half_of_the_pairwise_bound_at_positive_delta(request):
    rates = pairwise_rates(1.0, 0.05)
    half = clopper_pearson_exceeds(
        *rates, lambda *c: bounds.clopper_pearson(*c, zeta=ZETA, delta=0.05, halve=False).epsilon / 2 > 1.0
    )
    assert_breaks(request, half, least=0.9)
    whole = clopper_pearson_exceeds(*rates, lambda *c: bounds.clopper_pearson(*c, zeta=ZETA, delta=0.05).epsilon > 1.0)
    assert whole <= ZETA + noise(400)


# Rule 9: noise keys, blind scoring, what outsiders hand in.


def test_a_noise_key_that_is_the_sign_vector(request):
    """The published value is the noise alone, and fresh noise has epsilon 0; a seed of S can be tried for every S."""
    vectors, rng = design.sign_vectors(6), np.random.default_rng(20)
    tried = np.stack([np.random.default_rng(i).normal(size=6) for i in range(20)])

    def ranks(noise_of):
        index = rng.integers(20, size=L)
        published_values = np.stack([noise_of(i) for i in index])
        table = -((published_values[:, None] - tried) ** 2).sum(axis=-1)
        return [null.rank_of(row, i) for row, i in zip(table, index)]

    def rate(noise_of):
        found = [bounds.lattice(ranks(noise_of), support=20, zeta=ZETA).epsilon > 0 for _ in range(100)]
        return float(np.mean(found))

    assert len(vectors) == 20
    assert_breaks(request, rate(lambda i: np.random.default_rng(i).normal(size=6)), least=0.9)
    assert rate(lambda i: rng.normal(size=6)) <= ZETA + noise(100, 3.0)


def test_one_noise_key_for_all_runs(request):
    """With probability 1 - e^-epsilon the noise lets the sign through, else it is a coin: epsilon in each run by itself."""
    epsilon, runs, rng = 1.1, 20, np.random.default_rng(21)
    for shared in (True, False):
        open_door = rng.random((N, 1 if shared else runs)) < -math.expm1(-epsilon)
        right = open_door | (rng.random((N, runs)) < 0.5)
        ranks = np.where(right, 1, 2)

        def exceeds(row):
            return bounds.lattice(row, support=2, zeta=ZETA).epsilon > epsilon

        rate = exceeding(ranks, right.sum(axis=1), exceeds).mean()
        if shared:
            assert_breaks(request, rate, least=0.5)
        else:
            assert rate <= ZETA + noise(N)


def test_scoring_that_sees_the_signs(request):
    """Scores of a model that knows nothing; those of the forget set are averaged over augmentations."""
    rates = []
    for averaged in (True, False):
        found = []
        for seed in range(20):
            rng = np.random.default_rng(seed)
            signs, scores = lf.draw_signs(rng, 30, 60), rng.normal(size=(30, 60))
            scores = np.where(averaged & (signs > 0), 0.5 * scores, scores)[..., None]
            fit = fit_batchwise(scores[:20], signs[:20], variance="per_example")
            log_p = null.log_p_values(batchwise_llr(fit, scores[20:]), signs[20:])
            found.append(bounds.evidence(log_p, m=60, zeta=ZETA).epsilon > 0)
        rates.append(float(np.mean(found)))
    assert_breaks(request, rates[0], least=0.9)
    assert rates[1] <= ZETA + noise(20, 2.5)


def test_outsiders_hand_in_scores_and_nothing_later(capsys):
    fields = {field.name for field in dataclasses.fields(outside.Bound)}
    assert not fields & {"p", "p_values", "log_p_values", "overlaps", "ranks"}
    for option in ("--log-p-values", "--overlaps", "--ranks"):
        with pytest.raises(SystemExit) as stop:
            main(["bound", "--signs", "s.npy", option, "p.npy"])
        assert stop.value.code == 2
    capsys.readouterr()


# A delta that is there: every bound keeps its level when a run reveals S with probability delta.

EPSILON = 2.0


@pytest.mark.parametrize("delta", [1e-3, 0.01, 0.05])
def test_open_failure_with_probability_delta_breaks_no_bound(delta):
    rng = np.random.default_rng([22, int(1e4 * delta)])
    runs, m, r, slack = 20, 20, 10, noise(N)
    log_p = lf.draw_log_p_values(rng, (N, runs), m=4500, epsilon=EPSILON, delta=delta)
    assert evidence_exceeds(log_p, EPSILON, delta=delta).mean() <= ZETA + slack

    def count(row):
        return bounds.count(row, alpha=0.01, zeta=ZETA, delta=delta).epsilon > EPSILON

    assert exceeding(log_p, (log_p <= math.log(0.01)).sum(axis=1), count).mean() <= ZETA + slack
    assert e_process_exceeds(log_p, EPSILON, delta).any(axis=1).mean() <= ZETA + slack

    values = lf.draw_overlaps(rng, (N, runs), m=m, r=r, epsilon=EPSILON, delta=delta)
    assert overlap_exceeds(values, m=m, r=r, epsilon=EPSILON, delta=delta).mean() <= ZETA + slack
    options = {"m": m, "r": r, "zeta": ZETA, "delta": delta}
    middle = np.sort(values, axis=1)[:, runs // 2]
    over = exceeding(values, middle, lambda row: bounds.overlap_median(row, **options).epsilon > EPSILON)
    assert over.mean() <= ZETA + slack
    over = exceeding(
        values, (values >= 9).sum(axis=1), lambda row: bounds.overlap_count(row, v=9, **options).epsilon > EPSILON
    )
    assert over.mean() <= ZETA + slack

    ranks = lf.draw_ranks(rng, (N, runs), support=20, epsilon=EPSILON, delta=delta)
    score = np.floor(np.log(20 / ranks) / 1e-3).sum(axis=1)
    over = exceeding(
        ranks, score, lambda row: bounds.lattice(row, support=20, zeta=ZETA, delta=delta).epsilon > EPSILON
    )
    assert over.mean() <= ZETA + slack

    steep = 1 / (1 + math.exp(EPSILON))
    hit, alarm = delta + (1 - delta) * math.exp(EPSILON) * steep, (1 - delta) * math.exp(-EPSILON) * steep
    for halve in (True, False):
        low = alarm if halve else (1 - delta) * steep
        rate = clopper_pearson_exceeds(
            hit,
            low,
            lambda *c, h=halve: bounds.clopper_pearson(*c, zeta=ZETA, delta=delta, halve=h).epsilon > EPSILON,
        )
        assert rate <= ZETA + noise(400)


OPERATING_POINTS = [(100, 0.5), (100, 1.0), (400, 0.5), (400, 1.0), (4500, 0.25), (4500, 0.5)]


@pytest.mark.parametrize(("m", "shift"), OPERATING_POINTS)
def test_a_small_delta_costs_below_one_percent(m, shift):
    rng = np.random.default_rng(23)
    signs = lf.draw_signs(rng, L, m)
    llr = shift * (rng.normal(size=(L, m)) + shift * (signs > 0) - shift / 2)
    log_p = null.log_p_values(llr, signs)
    r = 2 * round(m / 8)
    values = design.overlaps(design.guess(llr, r), signs)
    made = {
        "evidence": lambda d: bounds.evidence(log_p, m=m, zeta=ZETA, delta=d),
        "overlap": lambda d: bounds.overlap(values, m=m, r=r, zeta=ZETA, delta=d),
        "overlap_median": lambda d: bounds.overlap_median(values, m=m, r=r, zeta=ZETA, delta=d),
        "count": lambda d: bounds.count(log_p, alpha=0.01, zeta=ZETA, delta=d),
    }
    for name, bound in made.items():
        without, small = bound(0.0).epsilon, bound(1e-5).epsilon
        assert 0 < without, name
        assert 0.99 * without <= small <= without + 1e-9, name


def test_a_perfect_attack_on_six_batches_keeps_its_bound_at_delta_a_thousandth():
    lattice = bounds.lattice([1] * 100, support=20, zeta=ZETA, delta=1e-3).epsilon
    overlap = bounds.overlap([6] * 100, m=6, r=6, zeta=ZETA, delta=1e-3).epsilon
    assert lattice == pytest.approx(3.47, abs=0.005) and overlap == pytest.approx(lattice, abs=1e-9)
    assert lattice > 0.998 * bounds.lattice([1] * 100, support=20, zeta=ZETA).epsilon


def test_the_trimmed_evidence_bound_leaves_out_what_delta_may_reveal():
    assert [_tails.trimmed(L, ZETA, d) for d in (0.0, 1e-5, 1e-3, 0.01, 0.05)] == [0, 0, 0, 1, 3]
    for delta, runs in ((0.01, 10), (0.05, 20), (1e-3, 100)):
        j = _tails.trimmed(runs, ZETA, delta)
        assert stats.binom.sf(j, runs, delta) <= ZETA / 5 < stats.binom.sf(j - 1, runs, delta)
