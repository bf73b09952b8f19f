"""The unlearning mapping attack: exact boxes, exact independence, exact early exit, and what it should find."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxunlearn._validate import InputError
from jaxunlearn.attack import descent, mapping
from jaxunlearn.attack.mapping import Constraint, Options
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine
from jaxunlearn.engine.train import Examples, Sizes
from jaxunlearn.models.convolutional import digits_cnn
from jaxunlearn.models.linear import mlp

KEY = jax.random.key(0)
SHAPE, CLASSES = (3, 4), 5
MODEL = mlp(SHAPE, CLASSES, widths=(8,))


def problem(n=11, seed=0):
    """(unlearned parameters, logits of another model, inputs)."""
    keys = jax.random.split(jax.random.key(seed), 3)
    params, original = (jax.tree.map(lambda a: 3 * a, MODEL.init(key)) for key in keys[:2])
    x = jax.random.uniform(keys[2], (n, *SHAPE))
    return params, MODEL.apply(original, x), x


@functools.partial(jax.jit, static_argnames=("epsilon", "distance", "options"))
def _attack(key, params, target, x, ids, radius, epsilon, distance, options):
    constraint = Constraint(radius if epsilon == "traced" else epsilon)
    apply = functools.partial(MODEL.apply, params)
    return mapping.attack(key, target, apply, x, distance=distance, constraint=constraint, options=options, ids=ids)


def attack(params, target, x, *, key=KEY, ids=None, epsilon="traced", radius=0.1, distance="kl", **options):
    """The attack on ``MODEL``; with a traced radius, so that one compiled program serves all radii."""
    step = {} if "relative_step" in options else {"step_size": 0.02}
    options = Options(**({"steps": 12, "batch_size": 4, "start": "zero"} | step | options))
    return _attack(key, params, target, x, ids, radius, epsilon, distance, options)


def assert_same(a, b):
    for ours, other in zip(a, b, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(other))


def bits(a):
    return np.asarray(a).view(np.uint32)


# --- the box ----------------------------------------------------------------------------------------------------------


AWKWARD = (8 / 255, 16 / 255, 0.1, 1 / 3, 1e-3, 1e-7, 0.5, 0.9999999)


def pixels(seed, shape):
    """Pixels everywhere in the range, at its ends, next to them, subnormal, and on grids that images have."""
    rng = np.random.default_rng(seed)
    found = rng.random(shape)
    grids = [np.round(found * 255) / 255, np.round(found * 16) / 16]
    special = np.array([0, 1, 1e-40, 1e-45, 1.2e-38, np.nextafter(np.float32(1), 0), 2**-24, 0.5, 8 / 255, 0.1])
    kind = rng.integers(0, 4, shape)
    return np.select([kind == 0, kind == 1, kind == 2], [found, *grids], rng.choice(special, shape)).astype(np.float32)


def assert_inside(found, x, epsilon):
    """In exact arithmetic: differences of float32 numbers of these sizes are exact in float64, or round to the right side."""
    found, x, radius = (np.asarray(a, np.float64) for a in (found, x, np.float32(epsilon)))
    assert (np.abs(found - x) <= radius).all() and (found >= 0).all() and (found <= 1).all()


@pytest.mark.parametrize("epsilon", AWKWARD)
def test_box_is_exact_and_nearly_all_of_what_is_allowed(epsilon):
    bounds = jax.jit(lambda x, epsilon: Constraint(epsilon).bounds(x))
    for seed in range(20):
        x = pixels(seed, (50, 40))
        for bound, direction in zip(bounds(x, epsilon), (-1, 1)):
            assert_inside(bound, x, epsilon)
            allowed = np.clip(x.astype(np.float64) + direction * np.float64(np.float32(epsilon)), 0, 1)
            np.testing.assert_allclose(bound, allowed, rtol=2**-22, atol=2**-23 * epsilon)


@pytest.mark.parametrize("algorithm", ["pgd", *(pytest.param(a, marks=pytest.mark.slow) for a in ("momentum", "apgd"))])
def test_attacked_inputs_stay_in_the_box_to_the_last_bit(algorithm):
    iterate = "best" if algorithm == "apgd" else "last"
    for seed in range(4):
        params, target, _ = problem(24, seed)
        x = pixels(seed, (24, *SHAPE))
        for epsilon in AWKWARD:
            found = attack(
                params,
                target,
                x,
                radius=epsilon,
                steps=5,
                relative_step=0.7,
                algorithm=algorithm,
                iterate=iterate,
                start="random",
                key=jax.random.key(seed),
            )
            assert_inside(found.inputs, x, epsilon)
            assert (np.asarray(found.inputs) != x).any()


def test_radius_zero_is_the_clean_input_and_output_to_the_last_bit():
    params, target, _ = problem(12)
    x = pixels(0, (12, *SHAPE))
    found = attack(params, target, x, radius=0.0)
    np.testing.assert_array_equal(bits(found.inputs), bits(x))
    clean = np.concatenate([jax.jit(MODEL.apply)(params, x[i : i + 4]) for i in (0, 4, 8)])
    np.testing.assert_array_equal(found.outputs, clean)
    np.testing.assert_allclose(found.distance, mapping.kl(jnp.asarray(clean), target), rtol=1e-6)
    assert (np.asarray(found.iterations) == 1).all()  # it stands still at once


def test_without_a_radius_the_input_counts_for_nothing_but_its_shape():
    params, target, x = problem()
    free = attack(params, target, x, epsilon=None, step_size=0.05, steps=40, start="random")
    other = attack(params, target, 1 - x, epsilon=None, step_size=0.05, steps=40, start="random")
    assert_same(free, other)
    assert 0 <= float(free.inputs.min()) and float(free.inputs.max()) <= 1
    clean = mapping.kl(MODEL.apply(params, x), target)
    assert float(free.distance.mean()) < 0.1 * float(clean.mean())


def test_starts_are_uniform_within_the_radius_and_fresh_for_key_id_and_restart():
    options = Options(restarts=3)
    x = jnp.full((200, 30), 0.5)
    starts = np.asarray(mapping._starts(KEY, jnp.arange(200), x, Constraint(0.25), options)) - 0.5
    assert np.abs(starts).max() <= 0.25
    assert np.abs(starts).mean() == pytest.approx(0.125, abs=0.002) and abs(starts.mean()) < 0.003
    rows = starts.reshape(600, 30)
    assert len(np.unique(rows, axis=0)) == 600 and np.abs(np.corrcoef(rows.reshape(3, -1)) - np.eye(3)).max() < 0.05
    other = np.asarray(mapping._starts(jax.random.key(1), jnp.arange(200), x, Constraint(0.25), options)) - 0.5
    assert np.abs(np.corrcoef(starts.ravel(), other.ravel())[0, 1]) < 0.05
    free = np.asarray(mapping._starts(KEY, jnp.arange(200), x, Constraint(None, -1.0, 2.0), options))
    assert -1 <= free.min() < -0.99 and 1.99 < free.max() <= 2 and free.mean() == pytest.approx(0.5, abs=0.02)
    at_zero = mapping._starts(KEY, jnp.arange(200), x, Constraint(0.25), Options(start="zero"))
    np.testing.assert_array_equal(at_zero[0], x)


# --- sign steps against a Python loop, and early exit -----------------------------------------------------------------


@pytest.mark.parametrize("start", ["random", pytest.param("zero", marks=pytest.mark.slow)])
def test_agrees_with_a_python_loop(start):
    params, target, x = problem()
    constraint = Constraint(0.1)
    at = np.asarray(x)
    if start == "random":
        at = np.asarray(mapping._starts(KEY, jnp.arange(len(x)), x, constraint, Options()))[0]
    lowest, highest = (np.asarray(bound) for bound in constraint.bounds(x))
    slope = jax.jit(jax.grad(lambda z: jnp.sum(mapping.kl(MODEL.apply(params, z), target))))
    for _ in range(12):
        moved = at - np.float32(0.02) * np.sign(np.asarray(slope(at)))
        at = np.minimum(np.maximum(moved, lowest), highest)
    found = attack(params, target, x, start=start)
    np.testing.assert_array_equal(found.inputs, at)
    np.testing.assert_allclose(found.outputs, MODEL.apply(params, at), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.distance, mapping.kl(MODEL.apply(params, at), target), rtol=1e-4, atol=1e-6)


WIDTH = 4
PLACES = 2**WIDTH


def as_bits(places):
    return ((np.asarray(places)[:, None] >> np.arange(WIDTH)) & 1).astype(np.float32)


def counter():
    """Steps of size 1 in the unit cube walk through any graph of its corners. Here: up to the last of 16, then back to one
    that each example has for itself, so that tails and cycles of every length occur. Returns (starts, returns) [256]."""
    return (a.ravel() for a in np.meshgrid(np.arange(PLACES), np.arange(PLACES)))


VALUES = jnp.asarray([7, 3, 8, 8, 5, 9, 5, 2, 6, 2, 4, 9, 4, 9, 3, 7], jnp.float32)  # equal ones among them


def counting(z, returns):
    """A distance whose sign steps follow the counter and whose values are VALUES."""
    place = jnp.sum(jnp.round(z).astype(jnp.int32) << jnp.arange(WIDTH)[None], axis=1)
    after = jnp.where(place == PLACES - 1, returns, place + 1)
    slope = z - ((after[:, None] >> jnp.arange(WIDTH)[None]) & 1)
    value = jnp.sum((z - lax.stop_gradient(z)) * lax.stop_gradient(slope), axis=1)
    return value + VALUES[place]


@pytest.mark.parametrize("early", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("iterate", ["last", "best"])
@pytest.mark.parametrize("steps", [100, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (1, 2, 13, 31, 64))])
def test_early_exit_changes_nothing_whatever_the_cycle(steps, iterate, early):
    starts, returns = counter()
    x = as_bits(starts)
    expected, path = [], starts.copy()
    for _ in range(steps + 1):
        expected.append(path)
        path = np.where(path == PLACES - 1, returns, path + 1)
    expected = np.stack(expected)  # [steps + 1, 256] places
    values = np.asarray(VALUES)[expected]
    best = expected[np.argmin(values, axis=0), np.arange(len(x))]  # the first of equals
    options = Options(steps=steps, step_size=1, start="zero", iterate=iterate, early_exit=early, batch_size=48)
    found = jax.jit(
        lambda x, returns: mapping.attack(
            KEY, returns, lambda z: z, x, distance=counting, constraint=Constraint(None), options=options
        )
    )(x, returns)
    np.testing.assert_array_equal(bits(found.inputs), bits(as_bits(expected[-1] if iterate == "last" else best)))
    iterations, asked = np.asarray(found.iterations), steps + (iterate == "best")
    assert (iterations <= asked).all() if early else (iterations == asked).all()
    if steps == 100 and early:
        # Brent's search ends within a few times tail and cycle, and the last iterate is up to a cycle further.
        tail_and_cycle = PLACES - np.minimum(starts, returns)
        assert (iterations <= 4 * tail_and_cycle + 2).all() and iterations.mean() < 50


@pytest.mark.parametrize("iterate", ["last", pytest.param("best", marks=pytest.mark.slow)])
def test_early_exit_changes_no_bit_of_a_real_attack(iterate):
    params, target, x = problem(40)
    both = [attack(params, target, x, iterate=iterate, early_exit=early, steps=150) for early in (False, True)]
    assert_same(both[0][:3], both[1][:3])
    assert float(both[1].iterations.mean()) < 0.8 * float(both[0].iterations.mean())


# --- nothing depends on the batch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterate", ["last", pytest.param("best", marks=pytest.mark.slow)])
def test_result_depends_on_no_companion_nor_place(iterate):
    params, target, x = problem(23)
    ids = jnp.asarray(np.random.default_rng(1).choice(1000, 23, replace=False))
    options = {"iterate": iterate, "steps": 30, "start": "random"}
    whole = attack(params, target, x, ids=ids, **options)
    for rows in (np.random.default_rng(0).permutation(23), np.array([4, 20, 9, 1, 0, 13, 22])):
        part = attack(params, target[rows], x[rows], ids=ids[rows], **options)
        assert_same(jax.tree.map(lambda a, rows=rows: a[rows], whole), part)
    numbered = attack(params, target, x, ids=jnp.arange(23), **options)
    assert (np.asarray(numbered.inputs) != np.asarray(whole.inputs)).any()


@pytest.mark.slow
def test_convolutions_give_an_example_the_same_result_at_every_place():
    model = digits_cnn((8, 8, 1), 10, form="winograd")
    params = model.init(KEY)
    x = jax.random.uniform(jax.random.key(1), (30, 8, 8, 1))
    target = 3 * jax.random.normal(jax.random.key(2), (30, 10))

    def run(target, x, ids):
        options = Options(steps=25, relative_step=0.125, batch_size=8)
        apply = functools.partial(model.apply, params)
        return mapping.attack(KEY, target, apply, x, constraint=Constraint(0.1), options=options, ids=ids)

    rows = np.random.default_rng(0).permutation(30)
    whole = jax.jit(run)(target, x, jnp.arange(30))
    moved = jax.jit(run)(target[rows], x[rows], jnp.asarray(rows))
    np.testing.assert_array_equal(np.asarray(whole.inputs)[rows], np.asarray(moved.inputs))
    np.testing.assert_array_equal(np.asarray(whole.iterations)[rows], np.asarray(moved.iterations))
    # One processor's last bits of the model's own outputs were seen to depend on the place; the attack promises no better.
    for ours, other in ((whole.outputs, moved.outputs), (whole.distance, moved.distance)):
        np.testing.assert_allclose(np.asarray(ours)[rows], np.asarray(other), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 3, 11, 64])
def test_every_batch_size_serves_all_examples(batch_size):
    params, target, x = problem(11)
    expected = attack(params, target, x, batch_size=4)
    found = attack(params, target, x, batch_size=batch_size)
    np.testing.assert_allclose(found.inputs, expected.inputs, atol=1e-6)
    np.testing.assert_allclose(found.distance, expected.distance, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_population_of_models_mapped_equals_one_by_one():
    n = 6
    _, target, x = problem(n)
    population = jax.vmap(MODEL.init)(jax.random.split(jax.random.key(9), 5))
    keys = jax.random.split(jax.random.key(3), 5)
    options = Options(steps=40, step_size=0.02, batch_size=4)

    def one(key, params, x, target):
        apply = functools.partial(MODEL.apply, params)
        return mapping.attack(key, target, apply, x, constraint=Constraint(0.1), options=options)

    looped = [jax.jit(one)(keys[i], jax.tree.map(lambda a, i=i: a[i], population), x, target) for i in range(5)]
    looped = jax.tree.map(lambda *a: np.stack(a), *looped)
    assert len(np.unique(looped.iterations)) > 1  # they do not end together
    mapped = jax.jit(jax.vmap(one, (0, 0, None, None)))(keys, population, x, target)
    np.testing.assert_allclose(mapped.inputs, looped.inputs, atol=1e-6)
    np.testing.assert_allclose(mapped.distance, looped.distance, rtol=1e-4, atol=1e-6)
    mesh = planning.make_mesh(jax.local_devices()[:2])
    plan = planning.choose(mesh, 5, width=1, runs_per_chunk=6)
    engine = Engine(mesh, plan, Examples(x, jnp.zeros(n, jnp.int32)), Sizes(4, 2, 1), KEY)
    for width in (1, 3):
        run = engine.map(lambda e, target, key, params: one(key, params, e.x, target), target, width=width)
        found = jax.tree.map(lambda a: np.asarray(a)[:5], run(keys, population))
        if width == 1:
            assert_same(found, looped)
        np.testing.assert_allclose(found.inputs, looped.inputs, atol=1e-6)
        np.testing.assert_array_equal(found.iterations, looped.iterations)


def test_weights_cost_nothing():
    """Every product of the compiled attack has a row for each of its 7 examples: none is a gradient of weights."""
    params, target, x = problem(7)

    def products(fn):
        lines = jax.jit(fn).lower(params).compile().as_text().splitlines()
        shapes = [re.search(r"= f32\[([\d,]+)\]\S* dot\(", line) for line in lines]
        return [tuple(map(int, shape[1].split(","))) for shape in shapes if shape]

    def loss(params):
        return jnp.sum(mapping.kl(MODEL.apply(params, x), target))

    def run(params):
        apply, options = functools.partial(MODEL.apply, params), Options(start="zero")
        return mapping.attack(KEY, target, apply, x, constraint=Constraint(0.1), options=options)

    assert any(7 not in shape for shape in products(jax.grad(loss)))  # what such a gradient looks like
    found = products(run)
    assert len(found) >= 4 and all(7 in shape for shape in found)


# --- what it finds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["pgd", "momentum", "apgd"])
def test_linear_model_is_driven_to_the_best_corner(algorithm):
    weights = np.array([[1.0, -2.0, 0.5, 3.0, -1.0, 2.5]], np.float32).T
    x = np.random.default_rng(0).uniform(0.3, 0.7, (5, 6)).astype(np.float32)
    target = np.full((5, 1), -100.0, np.float32)  # out of reach: the distance falls with the output
    iterate = "best" if algorithm == "apgd" else "last"
    options = Options(steps=40, step_size=0.02, start="zero", algorithm=algorithm, iterate=iterate)
    found = mapping.attack(
        KEY, target, lambda z: z @ weights, x, distance="mse", constraint=Constraint(0.2), options=options
    )
    np.testing.assert_allclose(found.inputs, x - 0.2 * np.sign(weights.T), atol=1e-6)
    np.testing.assert_allclose(found.outputs, found.inputs @ weights, rtol=1e-6)
    np.testing.assert_allclose(found.distance, (found.outputs[:, 0] + 100) ** 2, rtol=1e-6)


@pytest.mark.slow
def test_attack_brings_the_distance_down_and_more_of_it_does_not_hurt():
    params, target, x = problem(40)
    clean = np.asarray(attack(params, target, x, radius=0.0).distance)
    found = [np.asarray(attack(params, target, x, iterate="best", steps=steps).distance) for steps in (3, 12, 60)]
    assert found[0].mean() < 0.9 * clean.mean()
    for less, more in zip(found, found[1:]):
        assert (more <= less + 1e-5).all() and more.mean() < less.mean()
    last = np.asarray(attack(params, target, x, steps=60).distance)
    assert (found[-1] <= last + 1e-5).all() and found[-1].mean() < last.mean()


@pytest.mark.slow
@pytest.mark.parametrize("iterate", ["last", "best"])
def test_restarts_are_never_worse_and_their_gradients_are_counted(iterate):
    params, target, x = problem(40)
    options = {"iterate": iterate, "steps": 6, "early_exit": False}
    found = [attack(params, target, x, start="random", restarts=restarts, **options) for restarts in (1, 2, 5)]
    for fewer, more in zip(found, found[1:]):
        assert (np.asarray(more.distance) <= np.asarray(fewer.distance) + 1e-6).all()
        assert float(more.distance.mean()) < float(fewer.distance.mean())
    evaluations = 6 + (iterate == "best")
    assert [int(f.iterations[0]) for f in found] == [evaluations, 2 * evaluations, 5 * evaluations]
    # The first of several starts is the start of one: where it wins, nothing differs.
    same = np.asarray(found[0].distance) == np.asarray(found[2].distance)
    assert same.any()
    np.testing.assert_array_equal(np.asarray(found[0].inputs)[same], np.asarray(found[2].inputs)[same])


@pytest.mark.slow
def test_auto_pgd_beats_long_steps():
    """Steps of half the radius leap over the optimum of a curved distance; Auto-PGD halves its own."""
    target = jnp.asarray(np.random.default_rng(0).uniform(0.35, 0.65, (16, 6)), jnp.float32)
    x = jnp.full((16, 6), 0.5)
    left = {}
    for algorithm in ("pgd", "apgd"):
        options = Options(algorithm=algorithm, iterate="best", relative_step=0.5, steps=100)
        left[algorithm] = mapping.attack(
            KEY, target, lambda z: z, x, distance="mse", constraint=Constraint(0.2), options=options
        ).distance
    assert float(left["apgd"].mean()) < 0.01 * float(left["pgd"].mean())


def test_auto_pgd_checks_where_its_paper_says():
    # p = 0, .22, .22 + .19, .41 + .16, ...: each interval .03 shorter than the one before, down to .06.
    found = descent.checkpoints(100)
    assert np.flatnonzero(found).tolist() == [22, 41, 57, 70, 80, 87, 93, 99]
    assert found[[22, 41, 57, 70, 80, 87, 93, 99]].tolist() == [22, 19, 16, 13, 10, 7, 6, 6]
    assert descent.checkpoints(1).tolist() == [0, 1]


def test_momentum_adds_up_scaled_gradients():
    """Two steps by hand: the second goes on although the gradient turned, since the first was as large."""
    slopes = jnp.asarray([[4.0, -2.0], [-0.5, 3.0]])  # scaled by the mean: [4/3, -2/3] and [-2/7, 12/7]

    def distance(z, target):
        first = z[:, :1] == 0.5
        return jnp.sum((z - lax.stop_gradient(z)) * jnp.where(first, slopes[:1], slopes[1:]), axis=1)

    options = Options(algorithm="momentum", steps=2, step_size=0.125, start="zero")
    found = mapping.attack(
        KEY,
        jnp.zeros((1, 2)),
        lambda z: z,
        jnp.full((1, 2), 0.5),
        distance=distance,
        constraint=Constraint(None),
        options=options,
    )
    np.testing.assert_array_equal(found.inputs, [[0.25, 0.5]])  # down twice; up, then down: 12/7 - 2/3 > 0


# --- distances --------------------------------------------------------------------------------------------------------


def test_distances_by_hand():
    p, q = np.array([[0.5, 0.5]]), np.array([[0.8, 0.2]])
    logits, target = jnp.log(q) + 3, jnp.log(p) - 1  # a constant changes no probability
    forward = (p * np.log(p / q)).sum()
    np.testing.assert_allclose(mapping.kl(logits, target), [forward], rtol=1e-5)
    np.testing.assert_allclose(mapping.reverse_kl(logits, target), [(q * np.log(q / p)).sum()], rtol=1e-5)
    cooler = np.array([[2.0, 1.0]]) / 3  # q at temperature 2: (.8, .2) ** .5, normalised
    at_two = (p * np.log(p / cooler)).sum()
    np.testing.assert_allclose(mapping.kl(logits, target, temperature=2.0), [at_two], rtol=1e-5)
    np.testing.assert_allclose(mapping.cross_entropy(logits, jnp.array([[1.0, 2.0]])), [-np.log(0.2)], rtol=1e-5)
    images = jnp.array([[[1.0, 2.0], [3.0, 4.0]]])
    np.testing.assert_allclose(mapping.mse(images, images - jnp.array([[[1.0, 2.0], [0.0, 1.0]]])), [1.5])


@pytest.mark.parametrize("name", ["kl", "reverse-kl", "mse"])
def test_distances_are_zero_at_equality_positive_elsewhere_and_each_examples_own(name):
    distance = mapping.distance_of(name)
    a, b = 5 * jax.random.normal(KEY, (2, 30, 4))
    np.testing.assert_allclose(distance(a, a), np.zeros(30), atol=1e-6)
    assert (np.asarray(distance(a, b)) > 0.01).all()
    np.testing.assert_allclose(distance(a, b)[7], distance(a[7:8], b[7:8])[0], rtol=1e-5)


def test_kl_takes_certain_targets():
    target, logits = jnp.array([[0.0, -jnp.inf]]), jnp.array([[1.0, 2.0]])
    value, slope = jax.value_and_grad(lambda z: mapping.kl(z, target)[0])(logits)
    assert float(value) == pytest.approx(np.log(1 + np.e), rel=1e-5) and np.isfinite(slope).all()


@pytest.mark.slow
@pytest.mark.parametrize("distance", ["reverse-kl", "mse", "cross-entropy"])
def test_every_named_distance_is_brought_down(distance):
    params, target, x = problem(12)
    clean = mapping.distance_of(distance)(MODEL.apply(params, x), target)
    found = attack(params, target, x, distance=distance, iterate="best")
    assert (np.asarray(found.distance) <= np.asarray(clean) + 1e-5).mean() > 0.9
    assert float(found.distance.mean()) < float(clean.mean())


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": "gpd"}, "algorithm='gpd'. Did you mean 'pgd'"),
        ({"start": "clean"}, "start='clean'"),
        ({"iterate": "first"}, "iterate='first'"),
        ({"steps": 0}, "steps=0"),
        ({"restarts": 0}, "restarts=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"step_size": 0.0}, "step_size=0.0 > 0"),
        ({"relative_step": -1.0}, "relative_step=-1.0 > 0"),
        ({"start": "zero", "restarts": 2}, "restarts=2 to be 1 with start='zero'"),
        ({"algorithm": "apgd"}, "iterate='last' to be 'best'"),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(InputError, match=words.replace(".", r"\.")):
        Options(**options)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"constraint": Constraint(-0.1)}, "epsilon=-0.1 >= 0"),
        ({"constraint": Constraint(float("nan"))}, "epsilon=nan"),
        ({"constraint": Constraint(0.1, 1.0, 0.0)}, "low=1.0 < high=0.0"),
        ({"constraint": Constraint(None), "options": Options(relative_step=0.1)}, "relative_step=0.1"),
        ({"distance": "kll"}, "distance='kll'. Did you mean 'kl'"),
        ({"target": jnp.zeros((10, CLASSES))}, "target of shape"),
        ({"ids": jnp.arange(3)}, "ids of shape"),
        ({"x": jnp.zeros((0, *SHAPE))}, "at least one example"),
        ({"x": jnp.zeros((11, *SHAPE), jnp.int32)}, "floating point, got int32"),
    ],
)
def test_arguments_are_checked(change, words):
    params, target, x = problem(11)
    arguments = {"key": KEY, "target": target, "apply": lambda z: MODEL.apply(params, z), "x": x} | change
    with pytest.raises(InputError, match=words.replace(".", r"\.")):
        mapping.attack(**({"constraint": Constraint(0.1)} | arguments))


def test_range_of_inputs_is_checked_on_the_host():
    Constraint(0.1).check(np.array([[0.0, 1.0]]))
    Constraint(0.1, -3.0, 3.0).check(np.array([[-2.5]]))
    with pytest.raises(
        InputError, match=r"Expected all of x in \[low, high\] = \[0.0, 1.0\], got values from -0.5 to 0.3"
    ):
        Constraint(0.1).check(np.array([[-0.5, 0.3]]))
