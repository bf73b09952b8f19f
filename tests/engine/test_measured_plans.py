"""Plans picked from measurements, halving when memory runs out, parameters spread over devices."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine import population
from jaxunlearn.engine.plan import Measured, Plan
from jaxunlearn.engine.population import Engine, Runs, members
from jaxunlearn.engine.train import Examples, Sizes
from jaxunlearn.models.linear import mlp
from jaxunlearn.models.lstm import lstm
from jaxunlearn.unlearn import base

FORMS = ("canonical", "patches")
FIRST = Plan(width=1, runs_per_chunk=64, form="canonical")
INFINITE = float("inf")


def pick(seconds, *, steps=10**9, compile_seconds=1.0, **options):
    """Picks among plans that take ``seconds[width, form]`` (absent: 1); says which were measured."""
    asked = []

    def measure(plan):
        asked.append((plan.width, plan.form))
        cost = seconds.get(asked[-1], 1.0)
        return Measured(plan=plan, seconds=cost, bytes=1000, compile_seconds=compile_seconds)

    plans = planning.candidates(planning.make_mesh(jax.devices()[:1]), FIRST, FORMS)
    plan, rows, why = planning.pick(plans, measure, steps=steps, limit=1e6, **options)
    assert [(row.plan.width, row.plan.form) for row in rows] == asked
    return (plan.width, plan.form), asked, why


def test_candidates_grow_from_the_guess_and_wide_ones_take_the_form_for_many():
    mesh = planning.make_mesh(jax.devices()[:2])
    plans = planning.candidates(mesh, FIRST, FORMS)
    assert [(p.width, p.form) for p in plans] == [
        *((1, "canonical"), (1, "patches"), (4, "patches"), (8, "patches"), (32, "patches"))
    ]
    wide = Plan(width=32, runs_per_chunk=64)
    assert [p.width for p in planning.candidates(planning.make_mesh(jax.devices()[:1]), wide)] == [32, 64, 8, 4, 1]


def test_the_fastest_is_picked_and_the_reason_names_the_others():
    plan, asked, why = pick({(1, "canonical"): 2e-3, (4, "patches"): 1e-3, (8, "patches"): 5e-4, (32, "patches"): 8e-4})
    assert plan == (8, "patches")
    assert (64, "patches") not in asked  # 32 was slower than 8
    assert "500 µs a run-step" in why and "width 1, canonical takes 2 ms" in why and "width 32, patches" in why


def test_a_gain_within_the_noise_changes_nothing():
    assert pick({(1, "canonical"): 1.0, (4, "patches"): 0.95})[0] == (1, "canonical")
    assert pick({(1, "canonical"): 1.0, (4, "patches"): 0.85})[0] == (4, "patches")


def test_a_short_job_measures_the_guess_alone_unless_told_to():
    job = {"steps": 1000, "compile_seconds": 2.0}
    plan, asked, why = pick({(1, "canonical"): 1e-3, (4, "patches"): 1e-6}, **job)
    assert (plan, asked) == ((1, "canonical"), [(1, "canonical")]) and "about 1 s of work would not repay" in why
    assert pick({(1, "canonical"): 1e-3, (4, "patches"): 1e-6}, always=True, **job)[0] == (4, "patches")


def test_plans_that_do_not_fit_are_never_picked():
    plan, asked, why = pick({(4, "patches"): INFINITE, (8, "patches"): 1e-9})
    assert plan == (1, "canonical") and (8, "patches") not in asked and "width 4, patches does not fit" in why
    everything = {(w, f): INFINITE for w in (1, 4, 8, 32, 64) for f in FORMS}
    with pytest.raises(InputError, match="smaller batch_size or model.*parameter_shards"):
        pick(everything)


# --- a real phase ----------------------------------------------------------------------------------------------------

R, N = 8, 40
SIZES = Sizes(retain=28, pool=12, forget=6)
MODEL = mlp((6,), 4, widths=(8,))
LOSS = base.cross_entropy(MODEL)


def made(*, devices=4, width=1, shards=1, memory=None, model=MODEL, x=None, y=None):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 6)).astype(np.float32) if x is None else x
    y = rng.integers(0, 4, N).astype(np.int32) if y is None else y
    mesh = planning.make_mesh(jax.devices()[:devices], parameter_shards=shards)
    plan = Plan(width=width, runs_per_chunk=R)
    engine = Engine(mesh, plan, Examples(jnp.asarray(x), jnp.asarray(y)), SIZES, jax.random.key(5), memory=memory)
    phase = base.SGD(momentum=0.5).phase(base.cross_entropy(model), source="train", size=34, epochs=3, batch_size=8)
    signs = np.stack([rng.permutation(np.repeat([1, -1], 6)) for _ in range(R)])
    runs = Runs(members(signs, SIZES), jax.random.split(jax.random.key(2), R))
    init = jax.jit(model.init)(jax.random.key(1))
    params = jax.tree.map(lambda a: jnp.broadcast_to(a, (R, *a.shape)), init)
    return engine.phase_runner(phase, 0), runs, params


def host(tree):
    return jax.tree.map(lambda a: np.asarray(a)[:R], tree)


def close(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


def test_measuring_compiles_once_and_leaves_results_alone():
    runner, runs, params = made()
    before = host(runner(runs, params))
    runner, runs, params = made()
    seconds, handed_on = runner.measure(runs, params)
    assert 0 < seconds < 1 and runner.compile_seconds > 0 and runner.bytes > 0
    assert jax.tree.structure(handed_on) == jax.tree.structure(params)
    program = runner._compiled
    after = host(runner(runs, params))
    assert runner._compiled is program
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after)):
        np.testing.assert_array_equal(a, b)


def test_out_of_memory_halves_the_width_and_does_the_chunk_again(monkeypatch):
    reference = host(made(devices=1, width=1)[0](*made()[1:]))
    runner, runs, params = made(devices=1, width=8)
    build, shares, stops = population.PhaseRunner._build, [], []

    def failing(self):
        build(self)
        if self.width > 2:
            whole = self._steps

            class Lowered:
                def lower(self, *arguments):
                    return self

                def compile(self):
                    return self

                def memory_analysis(self):
                    return whole.lower(*self.arguments).compile().memory_analysis()

                def __call__(self, *arguments):
                    if int(arguments[3]) > 0:  # in the middle of the phase, with its state given away
                        jax.tree.map(lambda a: a.delete(), arguments[5])
                        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")
                    return whole(*arguments)

            monkeypatch.setattr(population, "bytes_of", lambda compiled: 0)
            self._steps = Lowered()

    monkeypatch.setattr(population.PhaseRunner, "_build", failing)
    runner._build()
    stop = {5: lambda params: stops.append(host(params))}
    with pytest.warns(UserWarning, match="width=4") as said:
        out = host(runner(runs, params, shares.append, stop))
    assert runner.width == 2 and len(said) == 2 and sum(shares) == pytest.approx(1.0) and min(shares) < 0
    close(out, reference)


@pytest.mark.slow
def test_a_program_larger_than_the_memory_is_not_started():
    large = {"devices": 1, "model": mlp((6,), 4, widths=(64, 64))}
    wide, runs, params = made(width=8, **large)
    wide.measure(runs, params)
    narrow, *_ = made(width=1, **large)
    narrow.measure(runs, params)
    assert narrow.bytes < wide.bytes
    runner, *_ = made(width=8, memory=(narrow.bytes + wide.bytes) / 2, **large)
    assert runner.measure(runs, params)[0] == INFINITE
    with pytest.warns(UserWarning, match="Out of memory"):
        close(host(runner(runs, params)), host(wide(runs, params)))
    with pytest.warns(UserWarning, match="width=1"):  # what is free is an estimate: one run at a time is tried
        close(host(made(width=2, memory=10, **large)[0](runs, params)), host(wide(runs, params)))


def test_one_run_that_does_not_fit_is_refused_with_the_fix(monkeypatch):
    def full(self, *arguments):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory.")

    runner, runs, params = made(devices=1)
    monkeypatch.setattr(population.PhaseRunner, "_begin", full)
    with pytest.raises(InputError, match="One run at a time takes .* batch_size.* parameter_shards"):
        runner(runs, params)
    assert runner.measure(runs, params)[0] == INFINITE


def test_scoring_that_does_not_fit_takes_fewer_runs_at_once(monkeypatch):
    engine = made(devices=1, width=8)[0].engine
    widths, build = [], Engine._map_runs

    def failing(self, fn, *, width, **options):
        program = build(self, fn, width=width, **options)

        def run(*arguments):
            widths.append(width)
            if width > 2:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory.")
            return program(*arguments)

        return run

    monkeypatch.setattr(Engine, "_map_runs", failing)
    double = engine.map(lambda examples, shared, a: 2 * a)
    for _ in range(2):
        np.testing.assert_array_equal(double(np.arange(8.0)), 2 * np.arange(8.0))
    assert widths == [8, 4, 2, 2]


@pytest.mark.parametrize("model", ["mlp", pytest.param("lstm", marks=pytest.mark.slow)])
def test_parameters_spread_over_devices_change_rounding_alone_and_take_less_of_each(model):
    options = {}
    if model == "lstm":
        ids = np.random.default_rng(1).integers(0, 12, (N, 6)).astype(np.int32)
        options = {"x": ids[:, :-1], "y": ids[:, 1:], "model": lstm(vocabulary=12, embedding=4, hidden=8)}
    found = {}
    for shards in (1, 2, 4):
        runner, runs, params = made(devices=4, shards=shards, **options)
        out = runner(runs, params)
        largest = max(jax.tree.leaves(out), key=lambda a: a.size)
        held = max(shard.data.nbytes for shard in largest.addressable_shards)
        found[shards] = host(out), held, runner._compiled.as_text()
    for shards in (2, 4):
        close(found[shards][0], found[1][0])
        # 4 / shards groups of devices take 8 * shards / 4 runs each, in shards parts.
        assert found[shards][1] == found[1][1]
        assert re.search("all-reduce|all-gather|all-to-all", found[shards][2])
    assert not re.search("all-reduce|all-gather|all-to-all", found[1][2])  # runs do not talk to each other
