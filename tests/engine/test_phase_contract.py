"""What a phase is promised: which rows it sees, in which order, with which keys, and that nothing is done in vain."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine, Runs, members, pad
from jaxunlearn.engine.train import Examples, Sizes, total_steps
from jaxunlearn.types import Phase

RETAIN, M, B, R, EPOCHS, BATCH = 13, 4, 2, 4, 3, 5
SIZES = Sizes(retain=RETAIN, pool=M * B, forget=M // 2 * B)
N = RETAIN + M * B
SIGNS = np.array([[1, 1, -1, -1], [1, -1, 1, -1], [-1, -1, 1, 1], [-1, 1, -1, 1]], np.int8)
ORDER_KEY, OWN_KEY = jax.random.key(5), jax.random.key(9)


def make_engine(devices=1, width=1, x=None, augment=None):
    # Labels are the row numbers, so that a phase can write down which rows it was given.
    x = np.zeros((N, 1), np.float32) if x is None else x
    plan = planning.Plan(width=width, runs_per_chunk=R)
    examples = Examples(jnp.asarray(x), jnp.arange(N, dtype=jnp.int32))
    return Engine(planning.make_mesh(jax.devices()[:devices]), plan, examples, SIZES, ORDER_KEY, augment=augment)


def recorder(source, companion=None, max_steps=None, epochs=EPOCHS):
    """A phase that only writes down what it is given: rows, weights, companion's rows, steps and keys."""
    parts = ("forget", "retain") if source == "forget-then-retain" else (source,)
    per_epoch = sum(-(-SIZES.of(part) // BATCH) for part in parts)
    steps = max(1, epochs * per_epoch)
    blank = {
        "rows": jnp.full((steps, BATCH), -1),
        "weight": jnp.zeros((steps, BATCH)),
        "is_forget": jnp.zeros((steps, BATCH), bool),
        "other": jnp.full((steps, BATCH), -1),
        "other_is_forget": jnp.zeros((steps, BATCH), bool),
        "step": jnp.full(steps, -1),
        "calls": jnp.int32(0),
        "keys": jnp.zeros((steps, 2), jnp.uint32),
        "init": jnp.zeros(2, jnp.uint32),
        "final": jnp.zeros(2, jnp.uint32),
    }

    def init(key, params):
        return blank | {"init": jax.random.key_data(key)}

    def update(key, state, batch, step):
        own, other = (batch.forget, batch.retain) if source == "forget" else (batch.retain, batch.forget)
        assert (other is None) == (companion is None)  # a part that was not asked for is None
        at = state["calls"]
        written = {
            "rows": state["rows"].at[at].set(own.y),
            "weight": state["weight"].at[at].set(own.weight),
            "is_forget": state["is_forget"].at[at].set(own.is_forget),
            "step": state["step"].at[at].set(step),
            "keys": state["keys"].at[at].set(jax.random.key_data(key)),
            "calls": at + 1,
        }
        if other is not None:
            written["other"] = state["other"].at[at].set(jnp.where(other.weight > 0, other.y, -1))
            written["other_is_forget"] = state["other_is_forget"].at[at].set(other.is_forget)
        return state | written

    def finalize(key, state):
        return state | {"final": jax.random.key_data(key)}

    return Phase(source, epochs, BATCH, init, update, finalize, companion, max_steps)


@functools.cache  # to compile is what costs here, and many tests read the same history
def record(source, companion=None, *, flipped=False, number=0, own_order=False, key=2, devices=1, width=1, **phase):
    signs = -SIGNS if flipped else SIGNS
    order_keys = jax.random.split(OWN_KEY, R) if own_order else None
    runs = Runs(members(signs, SIZES), jax.random.split(jax.random.key(key), R), order_keys)
    run = make_engine(devices, width).phase_runner(recorder(source, companion, **phase), number)
    return jax.tree.map(np.asarray, run(runs, jnp.zeros((R, 1)), None))


def rows_of(source, run, order):
    have = {"train": np.arange(N) < RETAIN, "retain": np.arange(N) < RETAIN, "forget": np.zeros(N, bool)}[source].copy()
    if source != "retain":
        have[RETAIN:] = np.repeat(SIGNS[run] == 1, B)
    return [int(row) for row in order if have[row]]


def shared_order(epoch, number=0, key=ORDER_KEY):
    return np.asarray(jax.random.permutation(jax.random.fold_in(jax.random.fold_in(key, number), epoch), N))


def cut(rows):
    return [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]


def batches_of(source, run, order):
    parts = ("forget", "retain") if source == "forget-then-retain" else (source,)
    return [batch for part in parts for batch in cut(rows_of(part, run, order))]


def seen(table, weight):
    return [[int(r) for r, w in zip(rows, weights) if w] for rows, weights in zip(table, weight)]


@pytest.mark.parametrize(
    ("source", "companion"),
    [
        ("train", None),
        ("train", "forget"),
        ("retain", None),
        ("retain", "forget"),
        ("forget", None),
        ("forget", "retain"),
        ("forget-then-retain", None),
    ],
)
def test_rows_are_the_shared_order_without_the_absent_ones(source, companion):
    history = record(source, companion)
    for run in range(R):
        expected, others = [], []
        for epoch in range(EPOCHS):
            order = shared_order(epoch)
            batches = batches_of(source, run, order)
            expected += batches
            if companion is not None:
                cycle = itertools.cycle(batches_of(companion, run, order))  # starts afresh with the epoch
                others += [next(cycle) for _ in batches]
        assert seen(history["rows"][run], history["weight"][run]) == expected
        if companion is not None:
            assert [[r for r in rows if r >= 0] for rows in history["other"][run].tolist()] == others
        assert history["step"][run].tolist() == list(range(len(expected))) and history["calls"][run] == len(expected)
    for rows, marks in ((history["rows"], history["is_forget"]), (history["other"], history["other_is_forget"])):
        real = (history["weight"] > 0) if rows is history["rows"] else rows >= 0
        np.testing.assert_array_equal(marks[real], rows[real] >= RETAIN)


def test_the_forget_set_comes_first_and_no_batch_holds_both():
    history = record("forget-then-retain")
    # 4 forgotten rows make one short batch, 13 retained ones two whole and a short one.
    assert history["weight"][0].sum(axis=1).tolist() == [4, 5, 5, 3] * EPOCHS
    np.testing.assert_array_equal(history["is_forget"][:, ::4].sum(axis=-1), 4)
    assert not history["is_forget"].reshape(R, EPOCHS, 4, BATCH)[:, :, 1:].any()
    assert total_steps(recorder("forget-then-retain"), SIZES) == 4 * EPOCHS


def noise_of(keys, x):
    return x + jax.vmap(lambda key: jax.random.uniform(key, (1,)))(keys)


@functools.cache
def augmentations(source, *, augment=True, companion=None, number=0, own_order=False):
    """[R, EPOCHS, N] what was added to every row in every epoch, NaN where a run did not see it."""
    per_epoch = total_steps(recorder(source), SIZES) // EPOCHS

    def update(key, state, batch, step):
        for part in batch:
            if part is not None:
                rows = jnp.where(part.weight > 0, part.y, N)  # padding aims past the end
                state = state.at[step // per_epoch, rows].set(part.x[:, 0], mode="drop")
        return state

    phase = Phase(
        source,
        EPOCHS,
        BATCH,
        lambda key, p: jnp.full((EPOCHS, N), jnp.nan),
        update,
        lambda key, state: state,
        companion,
        augment=augment,
    )
    order_keys = jax.random.split(OWN_KEY, R) if own_order else None
    runs = Runs(members(SIGNS, SIZES), jax.random.split(jax.random.key(2), R), order_keys)
    run = make_engine(augment=noise_of).phase_runner(phase, number)  # the inputs are 0
    return np.asarray(run(runs, jnp.zeros((R, 1))))


def test_a_row_is_augmented_alike_whatever_else_a_run_sees_and_anew_in_every_epoch():
    added = augmentations("train")
    present = members(SIGNS, SIZES)
    np.testing.assert_array_equal(np.isfinite(added), np.broadcast_to(present[:, None], added.shape))
    for row in range(N):
        seen_by = added[present[:, row], :, row]
        assert len(seen_by) >= 2 and np.all(seen_by == seen_by[0])
    first = np.nanmax(added, axis=0)
    assert np.all((first > 0) & (first < 1)) and len(np.unique(first)) == first.size
    # The keys are those of the order's epoch and the row; the companion's rows have them too.
    key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(ORDER_KEY, 0), 2**32 - 1), 1)
    expected = jax.random.uniform(jax.random.fold_in(key, 7), (1,))
    assert first[1, 7] == expected[0]
    np.testing.assert_array_equal(added, augmentations("retain", companion="forget"))


def test_augmentation_differs_between_phases_and_orders_and_can_be_left_out():
    added, present = augmentations("train"), members(SIGNS, SIZES)[:, None]
    assert np.all((augmentations("train", number=1) != added) | ~present)
    own = augmentations("train", own_order=True)
    assert np.all(own[0, :, :RETAIN] != own[1, :, :RETAIN])
    plain = augmentations("forget-then-retain", augment=False)
    np.testing.assert_array_equal(plain, np.where(np.broadcast_to(present, plain.shape), 0, np.nan))


@pytest.mark.parametrize(("devices", "width"), [(1, 4), (2, 2), (4, 1)])
def test_devices_and_width_change_not_one_row_or_key(devices, width):
    reference = record("train", "forget")
    other = record("train", "forget", devices=devices, width=width)
    jax.tree.map(np.testing.assert_array_equal, reference, other)


@pytest.mark.parametrize("max_steps", [3, 6, 100])
def test_max_steps_cuts_the_same_sequence_short(max_steps):
    whole, short = record("train"), record("train", max_steps=max_steps)
    steps = min(max_steps, 12)
    assert np.all(short["calls"] == steps) and total_steps(recorder("train", max_steps=max_steps), SIZES) == steps
    for name in ("rows", "weight", "step", "keys"):
        np.testing.assert_array_equal(short[name][:, :steps], whole[name][:, :steps])
    assert np.all(short["step"][:, steps:] == -1)


def test_every_key_of_a_run_and_between_runs_and_phases_is_new():
    histories = [record("retain", number=number) for number in (0, 1)]
    keys = [h[name].reshape(-1, 2) for h in histories for name in ("keys", "init", "final")]
    keys = np.concatenate(keys)
    assert len(np.unique(keys, axis=0)) == len(keys) == 2 * R * (9 + 2)


def test_keys_depend_on_the_runs_key_alone():
    reference = record("retain")
    flipped, rekeyed = record("retain", flipped=True), record("retain", key=3)
    for name in ("keys", "init", "final"):
        np.testing.assert_array_equal(reference[name], flipped[name])
        assert np.all(np.any(reference[name] != rekeyed[name], axis=-1))


def test_phases_have_orders_of_their_own():
    first, second = (record("retain", number=number)["rows"] for number in (0, 1))
    assert np.any(first != second)
    assert seen(second[0], np.ones_like(second[0]))[0] == cut(rows_of("retain", 0, shared_order(0, number=1)))[0]


def test_runs_with_order_keys_of_their_own():
    keys = jax.random.split(OWN_KEY, R)
    history = record("train", own_order=True, number=2)
    for run in range(R):
        orders = [shared_order(epoch, number=2, key=keys[run]) for epoch in range(EPOCHS)]
        expected = [batch for order in orders for batch in cut(rows_of("train", run, order))]
        assert seen(history["rows"][run], history["weight"][run]) == expected


def test_rows_that_a_run_lacks_are_never_touched():
    x = np.ones((N, 1), np.float32)
    absent = ~members(SIGNS, SIZES)[0]
    x[absent] = np.nan  # even weight 0 would let these through

    def update(key, state, batch, step):
        return state + sum(jnp.sum(part.x * part.weight[:, None]) for part in batch if part is not None)

    totals = {}
    for source, companion in (("train", None), ("retain", "forget"), ("forget", "retain")):
        phase = Phase(source, 2, BATCH, lambda key, p: p[0], update, lambda key, state: state, companion)
        runs = Runs(members(np.repeat(SIGNS[:1], R, axis=0), SIZES), jax.random.split(jax.random.key(2), R))
        totals[source] = np.asarray(make_engine(x=x).phase_runner(phase, 0)(runs, jnp.zeros((R, 1)), None))
    np.testing.assert_allclose(totals["train"], 2 * (RETAIN + 4))
    assert np.isfinite(totals["retain"]).all() and np.isfinite(totals["forget"]).all()


@pytest.mark.parametrize("empty", [{"epochs": 0}, {"max_steps": 0}])
def test_a_phase_without_steps_still_starts_and_finishes(empty):
    history = record("retain", **empty)
    reference = record("retain")
    assert np.all(history["calls"] == 0)
    for name in ("init", "final"):
        np.testing.assert_array_equal(history[name], reference[name])


@pytest.mark.parametrize("epochs", [0, 3])
def test_progress_adds_up_to_one(epochs):
    shares = []
    runs = Runs(members(SIGNS, SIZES), jax.random.split(jax.random.key(2), R))
    make_engine().phase_runner(recorder("retain", epochs=epochs), 0)(runs, jnp.zeros((R, 1)), shares.append)
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_stretches_follow_the_clock_and_change_nothing(monkeypatch, seconds):
    monkeypatch.setattr("jaxunlearn.engine.population.STRETCH_SECONDS", seconds)
    shares = []
    runs = Runs(members(SIGNS, SIZES), jax.random.split(jax.random.key(2), R))
    phase = recorder("train", epochs=20)
    out = make_engine().phase_runner(phase, 0)(runs, jnp.zeros((R, 1)), shares.append)
    lengths = [round(80 * share) for share in shares]  # four steps an epoch; the first call also compiles
    assert lengths == ([4, 4] + [1] * 72 if seconds == 0 else [4, 4, 32, 40])
    np.testing.assert_array_equal(out["step"], np.tile(np.arange(80), (R, 1)))
    assert (
        seen(np.asarray(out["rows"][1]), np.asarray(out["weight"][1]))[-1]
        == cut(rows_of("train", 1, shared_order(19)))[-1]
    )


@pytest.mark.parametrize("own_order", [False, True])
def test_a_stop_shows_what_a_shorter_phase_would_have_given_and_changes_nothing(own_order):
    order_keys = jax.random.split(OWN_KEY, R) if own_order else None
    runs = Runs(members(SIGNS, SIZES), jax.random.split(jax.random.key(2), R), order_keys)
    seen_at = {}
    stops = {step: lambda params, step=step: seen_at.__setitem__(step, params) for step in (0, 2, 5, 12)}
    phase = recorder("train")
    out = make_engine().phase_runner(phase, 0)(runs, jnp.zeros((R, 1)), None, stops)
    plain = record("train", own_order=own_order)
    for name in plain:
        np.testing.assert_array_equal(out[name], plain[name])
        np.testing.assert_array_equal(seen_at[12][name], plain[name])
    for steps in (0, 2, 5):
        short = make_engine().phase_runner(phase._replace(max_steps=steps), 0)(runs, jnp.zeros((R, 1)))
        np.testing.assert_array_equal(seen_at[steps]["calls"], steps)
        np.testing.assert_array_equal(seen_at[steps]["rows"][:, :steps], short["rows"][:, :steps])
        np.testing.assert_array_equal(seen_at[steps]["rows"][:, :steps], plain["rows"][:, :steps])


def test_an_unknown_source_is_refused():
    with pytest.raises(InputError, match="train, retain, forget, forget-then-retain, got 'test'"):
        make_engine().phase_runner(recorder("retain")._replace(source="test"), 0)


def descent():
    def update(key, params, batch, step):
        return jax.tree.map(lambda p: 0.5 * p + batch.retain.weight.sum(), params)

    return Phase("retain", EPOCHS, BATCH, lambda key, params: params, update, lambda key, params: params)


@pytest.mark.parametrize("put", [np.asarray, jnp.asarray, "device"])
def test_the_callers_parameters_survive(put):
    # States are donated; where a phase starts from the parameters themselves, these must not be.
    engine = make_engine(devices=2)
    params = {"a": np.arange(R * 3, dtype=np.float32).reshape(R, 3), "b": np.ones((R, 64, 64), np.float32)}
    given = engine.spread(params) if put == "device" else jax.tree.map(put, params)
    kept = jax.tree.map(np.array, params)
    runs = Runs(members(SIGNS, SIZES), jax.random.split(jax.random.key(2), R))
    run = engine.phase_runner(descent(), 0)
    first, second = (jax.tree.map(np.asarray, run(runs, given, None)) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, given), kept)


@pytest.mark.parametrize("own_order", [False, True])
def test_later_chunks_and_stretches_compile_nothing(monkeypatch, caplog, own_order):
    monkeypatch.setattr("jaxunlearn.engine.population.STRETCH_SECONDS", 1e9)  # stretches of 1, 1 and 8 epochs
    engine = make_engine(devices=2)
    traces = []
    phase = recorder("retain", epochs=10)

    def update(*arguments):
        traces.append(1)
        return phase.update(*arguments)

    run = engine.phase_runner(phase._replace(update=update), 0)

    def chunk(seed):
        order_keys = jax.random.split(jax.random.key(100 + seed), R) if own_order else None
        signs = np.random.default_rng(seed).permuted(SIGNS, axis=1)
        runs = Runs(members(signs, SIZES), jax.random.split(jax.random.key(seed), R), order_keys)
        jax.block_until_ready(run(runs, jnp.full((R, 1), seed, jnp.float32), None))

    with jax.log_compiles():
        chunk(0)
        assert traces and any("Compiling" in message for message in caplog.messages)
        caplog.clear()
        traces.clear()
        chunk(1)
        compiled = [message for message in caplog.messages if "Compiling" in message]
    assert traces == [] and compiled == []


def test_map_gives_every_run_its_share_and_all_the_examples():
    x = np.arange(N, dtype=np.float32)[:, None]
    engine = make_engine(devices=2, width=2, x=x)

    def fn(examples, shared, params, member):
        return {"sum": jnp.sum(examples.x[:, 0] * member) + shared["plus"], "own": params}

    member = members(SIGNS, SIZES)
    out = engine.map(fn, {"plus": np.float32(1000)})(np.arange(R, dtype=np.float32), member)
    np.testing.assert_allclose(out["sum"], [x[row, 0].sum() + 1000 for row in member])
    np.testing.assert_array_equal(out["own"], np.arange(R))


def test_members_are_the_retain_set_and_the_batches_of_sign_plus():
    member = members(np.array([[1, -1, 1]]), Sizes(retain=2, pool=6, forget=4))
    assert member.astype(int).tolist() == [[1, 1, 1, 1, 0, 0, 1, 1]]


def test_padding_repeats_the_last_run():
    padded = pad({"a": jnp.arange(3), "b": jax.random.split(jax.random.key(0), 3)}, 5)
    assert padded["a"].tolist() == [0, 1, 2, 2, 2]
    assert padded["b"].shape == (5,) and padded["b"][4] == padded["b"][2]


@pytest.mark.parametrize(("source", "companion"), [("forget", "retain"), ("train", None), ("forget-then-retain", None)])
def test_steps_are_told_what_the_starting_point_says_of_their_rows(source, companion):
    """Once for each row of the source, whatever the parameters have become since."""
    x = np.random.default_rng(0).normal(size=(N, 1)).astype(np.float32)

    def init(key, params):
        return {"params": params, "worst": jnp.float32(0), "seen": jnp.int32(0)}

    def update(key, state, batch, step):
        own, other = (batch.forget, batch.retain) if source == "forget" else (batch.retain, batch.forget)
        assert other is None or other.reference is None
        wrong = jnp.abs(own.reference["said"] - own.x[:, 0] * 7)
        worst = jnp.maximum(state["worst"], jnp.max(jnp.where(own.weight > 0, wrong, 0)))
        return {"params": state["params"] + 1, "worst": worst, "seen": state["seen"] + 1}

    def reference(params, x, y):
        return {"said": x[:, 0] * params}

    phase = Phase(source, EPOCHS, BATCH, init, update, lambda key, state: state, companion, reference=reference)
    engine = make_engine(devices=2, x=x)
    runs = Runs(members(SIGNS, SIZES), jax.random.split(jax.random.key(2), R))
    found = engine.phase_runner(phase, 0)(runs, jnp.full(R, 7.0))
    assert np.max(found["worst"]) < 1e-6
    assert (np.asarray(found["params"]) == 7 + total_steps(phase, SIZES)).all()
