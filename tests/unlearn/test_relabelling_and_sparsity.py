"""Random labels, SalUn's mask and the l1 penalty against hand values, naive loops and limits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxunlearn._validate import InputError
from jaxunlearn.models.linear import mlp
from jaxunlearn.types import Batch, ForgetRetain, TaskInfo
from jaxunlearn.unlearn import base, relabel
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.relabel import RandomLabel, Salient, SalUn
from jaxunlearn.unlearn.sparsity import L1Sparse

KEY = jax.random.key(0)
RETAIN, FORGET, CLASSES = 10, 4, 3
MODEL = mlp((4,), CLASSES, widths=(5,))
LOSS = base.cross_entropy(MODEL)
GRADIENT = jax.jit(jax.grad(LOSS))
INFO = TaskInfo(MODEL, LOSS, RETAIN, FORGET, 4, None)
PARAMS = jax.tree.map(lambda p: p + 0.1, jax.jit(MODEL.init)(KEY))
rng = np.random.default_rng(3)
X = jnp.asarray(rng.normal(size=(RETAIN + FORGET, 4)), jnp.float32)
Y = jnp.asarray(rng.integers(0, CLASSES, RETAIN + FORGET), jnp.int32)


def rows(which):
    which = np.asarray(which)
    return Batch(X[which], Y[which], jnp.ones(len(which)), jnp.asarray(which >= RETAIN))


FORGOTTEN = rows(range(RETAIN, RETAIN + FORGET))
MIXED = rows([0, 11, 3, 13])


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def assert_close(a, b):
    np.testing.assert_allclose(flat(a), flat(b), rtol=1e-5, atol=1e-6)


def run(phase, start, batches):
    update = jax.jit(phase.update)
    state = phase.init(KEY, start)
    for step, batch in enumerate(batches):
        state = update(jax.random.fold_in(KEY, step), state, batch, jnp.int32(step))
    return phase.finalize(KEY, state)


def test_labels_are_uniform_over_all_classes_and_only_the_forgotten_ones_change():
    classes, n = 7, 6000
    is_forget = jnp.arange(n) % 3 > 0
    batch = Batch(jnp.zeros((n, 1)), jnp.full(n, 2), jnp.ones(n), is_forget)
    labels = np.asarray(relabel.relabelled(KEY, batch, classes).y)
    assert np.all(labels[::3] == 2)
    counts = np.bincount(labels[np.asarray(is_forget)], minlength=classes)
    assert counts.size == classes and stats.chisquare(counts).pvalue > 0.01  # the true label as often as any other
    others = np.asarray(relabel.relabelled(KEY, batch, classes, keep_true=False).y)
    counts = np.bincount(others[np.asarray(is_forget)], minlength=classes)
    assert counts[2] == 0 and counts.size == classes and stats.chisquare(np.delete(counts, 2)).pvalue > 0.01
    again = np.asarray(relabel.relabelled(jax.random.key(1), batch, classes).y)
    assert 0.1 < np.mean(again[is_forget] == labels[is_forget]) < 0.19  # new ones: equal as often as by chance, 1 / 7


def test_every_position_of_a_sequence_gets_a_label_of_its_own():
    batch = Batch(jnp.zeros((2, 500)), jnp.zeros((2, 500), jnp.int32), jnp.ones(2), jnp.array([False, True]))
    labels = np.asarray(relabel.relabelled(KEY, batch, 4).y)
    assert np.all(labels[0] == 0) and np.all(np.bincount(labels[1], minlength=4) > 90)


@pytest.mark.parametrize(
    ("schedule", "source", "companion"),
    [("sequential", "forget-then-retain", None), ("shuffled", "train", None), ("joint", "retain", "forget")],
)
def test_one_step_with_random_labels_by_hand(schedule, source, companion):
    descent = SGD(schedule="constant", peak=0.2, weight_decay=0.01, momentum=0.9)
    (phase,) = RandomLabel(schedule=schedule, alpha=0.7, descent=descent, epochs=3).build(INFO).phases
    assert (phase.source, phase.companion, phase.epochs, phase.batch_size) == (source, companion, 3, 4)
    key = jax.random.fold_in(KEY, 0)
    if companion is None:
        pair = ForgetRetain(MIXED, None)
        labels = jax.random.randint(key, (4,), 0, CLASSES, jnp.int32)
        gradient = GRADIENT(PARAMS, MIXED._replace(y=jnp.where(MIXED.is_forget, labels, MIXED.y)))
    else:
        pair = ForgetRetain(rows([0, 1, 2]), FORGOTTEN)
        labels = relabel.relabelled(key, FORGOTTEN, CLASSES, keep_true=False)
        assert np.all(labels.y != FORGOTTEN.y)
        gradient = jax.tree.map(lambda f, r: f + 0.7 * r, GRADIENT(PARAMS, labels), GRADIENT(PARAMS, pair.retain))
    expected = jax.tree.map(lambda p, g: p - 0.2 * (g + 0.01 * p), PARAMS, gradient)
    assert_close(run(phase, PARAMS, [pair]), expected)


def test_labels_are_new_at_every_step_and_run():
    (phase,) = RandomLabel(descent=SGD(schedule="constant", peak=1.0, weight_decay=0.0)).build(INFO).phases
    start = phase.init(KEY, PARAMS)
    batch = FORGOTTEN._replace(x=jnp.tile(FORGOTTEN.x, (8, 1)), y=jnp.tile(FORGOTTEN.y, 8), weight=jnp.ones(32))
    batch = batch._replace(is_forget=jnp.ones(32, bool))
    update = jax.jit(phase.update)
    keys = [jax.random.fold_in(jax.random.fold_in(KEY, r), step) for r in range(3) for step in range(3)]
    moved = [flat(update(key, start, ForgetRetain(batch, None), jnp.int32(0)).train.params) for key in keys]
    assert len(np.unique(np.stack(moved), axis=0)) == 9


@pytest.mark.parametrize("count", [1, 5, 6, 7, 12])
def test_exactly_so_many_entries_are_kept_and_the_first_of_equal_ones(count):
    tree = {"a": jnp.array([[3.0, 1.0], [2.0, 2.0]]), "b": jnp.array([2.0, 5.0, 2.0, 0.0]), "c": jnp.zeros((2, 2))}
    marked = relabel.largest(tree, count)
    values = flat(tree)
    order = np.argsort(-values, kind="stable")[:count]  # the public code's rule, where the sort is a stable one
    expected = np.isin(np.arange(values.size), order)
    np.testing.assert_array_equal(flat(marked), expected)
    assert jax.tree.map(jnp.shape, marked) == jax.tree.map(jnp.shape, tree)


def test_kept_entries_of_all_sizes_are_those_of_a_stable_sort():
    draws = np.random.default_rng(0)
    values = np.abs(draws.normal(size=3000) * 10.0 ** draws.integers(-37, 37, 3000)).astype(np.float32)
    values[::3] = draws.choice([0.0, 1e-30, 2.5], 1000)  # and many equal ones
    mark = jax.jit(relabel.largest, static_argnums=1)
    for count in (1, 700, 1500, 2990):
        kept = np.argsort(-values, kind="stable")[:count]
        np.testing.assert_array_equal(np.flatnonzero(mark(jnp.asarray(values), count)), np.sort(kept))


@functools.cache
def salient(density=0.4):
    return run(SalUn(density=density).build(INFO).phases[0], PARAMS, [ForgetRetain(None, FORGOTTEN)] * 2)


def test_the_mask_is_that_of_the_largest_forget_gradients():
    total = np.abs(flat(GRADIENT(PARAMS, FORGOTTEN))) * 2
    count = int(0.4 * total.size)
    start = salient()
    assert flat(start.mask).sum() == count
    assert total[flat(start.mask) == 1].min() >= total[flat(start.mask) == 0].max()
    phase = SalUn().build(INFO).phases[0]
    assert (phase.source, phase.epochs, phase.augment) == ("forget", 1, True)
    assert_close(start.params, PARAMS)


@pytest.mark.parametrize("mode", ["hard", "gradient"])
def test_masked_entries_never_move_unless_only_their_gradient_is_masked(mode):
    descent = SGD(schedule="constant", peak=0.1, weight_decay=0.05, momentum=0.9)
    phase = SalUn(mask_mode=mode, descent=descent).build(INFO).phases[1]
    free = flat(salient().mask) == 1
    after = flat(run(phase, salient(), [ForgetRetain(MIXED, None)] * 4))
    before = flat(PARAMS)
    assert np.all(after[free] != before[free])
    if mode == "hard":
        np.testing.assert_array_equal(after[~free], before[~free])
    else:
        expected, velocity = before[~free], 0.0
        for _ in range(4):
            velocity = 0.9 * velocity + 0.05 * expected
            expected = expected - 0.1 * velocity
        np.testing.assert_allclose(after[~free], expected, rtol=1e-5)


def test_a_mask_of_everything_is_plain_random_labels():
    batches = [ForgetRetain(MIXED, None)] * 3
    everything = Salient(PARAMS, jax.tree.map(lambda p: jnp.ones(p.shape, bool), PARAMS))
    masked, plain = (
        run(method.build(INFO).phases[-1], start, batches)
        for method, start in ((SalUn(density=1.0), everything), (RandomLabel(), PARAMS))
    )
    assert_close(masked, plain)
    assert flat(salient(1.0).mask).all()


def test_the_l1_penalty_fades_by_epochs_and_its_steps_are_sub_gradients():
    method = L1Sparse(epochs=4, no_l1_epochs=1, alpha=0.3, descent=SGD(schedule="constant", peak=0.1, weight_decay=0.0))
    np.testing.assert_allclose([method.strength(e) for e in range(4)], [0.3, 0.2, 0.1, 0.0], atol=1e-7)
    (phase,) = method.build(INFO).phases
    assert (phase.source, phase.epochs, phase.companion) == ("retain", 4, None)
    start = jax.tree.map(lambda p: p.at[0].set(0.0), PARAMS)  # the sub-gradient of 0 is 0
    state, expected = phase.init(KEY, start), start
    update = jax.jit(phase.update)
    batch = rows(range(4))
    for step in range(12):  # three steps an epoch
        state = update(KEY, state, ForgetRetain(batch, None), jnp.int32(step))
        a = (0.3, 0.2, 0.1, 0.0)[step // 3]
        gradient = GRADIENT(expected, batch)
        expected = jax.tree.map(lambda p, g, a=a: p - 0.1 * (g + a * jnp.sign(p)), expected, gradient)
        if step in (0, 11):
            assert_close(phase.finalize(KEY, state), expected)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (RandomLabel, {"schedule": "random"}, "schedule='random'"),
        (RandomLabel, {"alpha": 0.0}, "alpha=0.0"),
        (RandomLabel, {"epochs": 0}, "epochs=0"),
        (SalUn, {"density": 0.0}, "density=0.0"),
        (SalUn, {"density": 1.5}, "density=1.5 <= 1"),
        (SalUn, {"mask_mode": "soft"}, "mask_mode='soft'"),
        (SalUn, {"epochs": 0}, "epochs=0"),
        (L1Sparse, {"epochs": 0}, "epochs=0"),
        (L1Sparse, {"alpha": -1.0}, "alpha=-1.0"),
        (L1Sparse, {"no_l1_epochs": 10}, "no_l1_epochs=10 < epochs=10"),
    ],
)
def test_relabelling_and_sparsity_refuse(config, changes, message):
    with pytest.raises(InputError, match=message):
        config(**changes)


def test_a_density_that_keeps_nothing_is_refused():
    phase = SalUn(density=1e-3).build(INFO).phases[0]
    with pytest.raises(InputError, match="density=0.001 to keep one of 43 parameters"):
        phase.finalize(KEY, phase.init(KEY, PARAMS))
