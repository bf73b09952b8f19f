"""Methods for language models on a decoder of a few hundred weights: single steps by hand, what moves, the battery."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tiny_decoder import BASE, DECODER, LAYERS, SIZES, TASK, TRAINED, VOCABULARY, N, rows

from jaxunlearn._validate import InputError
from jaxunlearn.data import schedule
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine import train
from jaxunlearn.engine.population import Engine, Runs, members
from jaxunlearn.engine.train import Examples
from jaxunlearn.models import transformer
from jaxunlearn.types import Batch, ForgetRetain, Start
from jaxunlearn.unlearn.arithmetic import WHP, Reinforced, TaskVector
from jaxunlearn.unlearn.base import SGD, AdamW
from jaxunlearn.unlearn.bounded import CEU, UNDIAL, SimNPO, WeightedAscent
from jaxunlearn.unlearn.language import nll, variant
from jaxunlearn.unlearn.parts import Trained
from jaxunlearn.unlearn.preference import DPO, GA, NPO
from jaxunlearn.unlearn.steering import RAU, RMU, state_norm
from jaxunlearn.unlearn.substitution import Substitution

pytestmark = pytest.mark.usefixtures("quickly_compiled")

RATE = 0.1
PLAIN = SGD(schedule="constant", peak=RATE, weight_decay=0.0)
SMALL = {"epochs": 2, "batch_size": 3, "descent": AdamW(peak=1e-2)}
METHODS = {
    **{
        f"ga{suffix}": GA(retain=retain, **SMALL) for suffix, retain in (("", "none"), ("-gdr", "gdr"), ("-klr", "klr"))
    },
    **{
        f"npo{suffix}": NPO(retain=retain, **SMALL)
        for suffix, retain in (("", "none"), ("-gdr", "gdr"), ("-klr", "klr"))
    },
    **{
        f"dpo{suffix}": DPO(retain=retain, **SMALL)
        for suffix, retain in (("", "none"), ("-gdr", "gdr"), ("-klr", "klr"))
    },
    "task-vector": TaskVector(**SMALL),
    "rmu": RMU(**SMALL),
    "rl": Substitution(substitute="random", **SMALL),
    "rl-gdr": Substitution(substitute="random", retain="gdr", **SMALL),
    "rm": Substitution(substitute="mapped", **SMALL),
    "rm-gdr": Substitution(substitute="mapped", retain="gdr", **SMALL),
    "whp": WHP(reinforce_epochs=1, **SMALL),
    "whp-gdr": WHP(reinforce_epochs=1, retain="gdr", labels="sample", **SMALL),
    "idk": Substitution(**SMALL),
    "idk-gdr": Substitution(retain="gdr", **SMALL),
    "rau": RAU(**SMALL),
    "simnpo": SimNPO(retain="gdr", **SMALL),
    "wga": WeightedAscent(**SMALL),
    "undial": UNDIAL(**SMALL),
    "ce-u": CEU(**SMALL),
    "ga-adapters": GA(trained=Trained(adapter_rank=2), **SMALL),
    "idk-gdr-tofu": Substitution(retain="gdr", compat="tofu", **SMALL),
    "npo-klr-muse": NPO(retain="klr", compat="muse", **SMALL),
}
NOISY = {"rmu", "whp-gdr", "ga-adapters"}
KEY, ORDER_KEY = jax.random.key(3), jax.random.key(5)
X, Y = rows(0)
R = 4
SIGNS = np.stack([np.random.default_rng(seed).permutation(np.repeat([1, -1], 4)) for seed in range(R)])
FORGET = Batch(X[-4:], Y[-4:], np.array([1, 1, 1, 0], np.float32))
RETAIN = Batch(X[:3], Y[:3], np.ones(3, np.float32))
PAIR = ForgetRetain(RETAIN, FORGET)


def start_of(unlearner):
    return Start(TRAINED, BASE) if unlearner.with_initial else TRAINED


def whole(config, start=None, key=KEY, member=None):
    """The parameters at the end, to be traced: a method's phases over one run's epochs."""
    unlearner = config.build(TASK)
    params = start_of(unlearner) if start is None else start
    member = members(SIGNS, SIZES)[0] if member is None else member
    examples = Examples(jnp.asarray(X), jnp.asarray(Y))
    for number, phase in enumerate(unlearner.phases):
        keys = jax.random.split(jax.random.fold_in(key, number), 3)
        state = train.start(phase, SIZES, keys[0], params, jnp.asarray(member), examples)

        def order_of(epoch, number=number):
            return schedule.order(jax.random.fold_in(ORDER_KEY, number), epoch, N)

        bounds = jnp.int32(0), jnp.int32(train.total_steps(phase, SIZES))
        state = train.advance(phase, SIZES, keys[1], state, jnp.asarray(member), examples, order_of, *bounds)
        params = phase.finalize(keys[2], state.state if phase.reference is not None else state)
    return params


def at_once(compute, *configs):
    """``compute`` of each, in one program: to compile is what costs here."""
    return jax.tree.map(np.asarray, jax.jit(lambda: [compute(config) for config in configs])())


def steps(config, count=1, pair=PAIR):
    """The parameters after so many equal steps, to be traced."""
    unlearner = config.build(TASK)
    phase, start = unlearner.phases[0], start_of(unlearner)
    if phase.reference is not None:
        said = phase.reference(start, pair.forget.x, pair.forget.y)
        pair = pair._replace(forget=pair.forget._replace(reference=said))
    if phase.companion is None:
        pair = pair._replace(retain=None)
    state = lax.fori_loop(0, count, lambda step, s: phase.update(KEY, s, pair, step), phase.init(KEY, start))
    return phase.finalize(KEY, state)


def moved(after, before=TRAINED):
    return jax.tree.map(lambda a, b: (np.asarray(a) - np.asarray(b)) / -RATE, after, before)


def assert_equal(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **({"rtol": 1e-4, "atol": 1e-5} | tolerance))


def loss_gradient(batch, name, reduction="token_mean"):
    row = variant(batch, name)
    return jax.grad(lambda params: nll(DECODER.logits(params, row.x), row, reduction))(TRAINED)


@pytest.mark.slow
def test_first_steps_by_hand():
    plain = {"descent": PLAIN, "batch_size": 4}
    configs = (
        GA(**plain),
        GA(retain="gdr", gamma=2.0, alpha=0.5, **plain),
        GA(retain="klr", **plain),
        NPO(**plain),
        NPO(beta=3.0, cached=False, **plain),
        DPO(**plain),
        Substitution(substitute="mapped", **plain),
        Substitution(substitute="random", retain="gdr", **plain),
        WeightedAscent(beta=0.0, **plain),
        GA(retain="klr", compat="muse", **plain),
    )
    ascent, with_gdr, with_klr, npo, sharp, dpo, mapped, random, weighted, muse = map(moved, at_once(steps, *configs))
    answer, retain, other, made_up = at_once(
        lambda which: loss_gradient(*which),
        *((FORGET, "answer"), (RETAIN, "answer"), (FORGET, "mapped"), (FORGET, "random")),
    )
    sums, refused = at_once(lambda name: loss_gradient(FORGET, name, "sequence_sum"), "answer", "refusal")
    assert_equal(ascent, jax.tree.map(np.negative, answer))
    assert_equal(with_gdr, jax.tree.map(lambda f, r: -2.0 * f + 0.5 * r, answer, retain))
    assert_equal(with_klr, ascent)  # KL(before || now) has no gradient at the start
    assert_equal(npo, jax.tree.map(np.negative, sums))  # ascent on S, whatever beta
    assert_equal(sharp, npo)
    assert_equal(dpo, jax.tree.map(lambda preferred, other: preferred - other, refused, sums))
    assert_equal(mapped, other)
    assert_equal(random, jax.tree.map(np.add, made_up, retain))
    assert_equal(weighted, ascent)
    assert max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(muse), jax.tree.leaves(ascent))) > 0.1


@pytest.mark.slow
def test_one_mean_over_both_sets_weighs_them_by_their_tokens():
    joint = moved(at_once(steps, Substitution(retain="gdr", compat="tofu", descent=PLAIN, batch_size=4))[0])
    refused, retain = at_once(lambda which: loss_gradient(*which), (FORGET, "refusal"), (RETAIN, "answer"))
    a, b = (Y[-4:-1, 1] >= 0).sum(), (Y[:3, 0] >= 0).sum()
    assert_equal(joint, jax.tree.map(lambda f, r: (a * f + b * r) / (a + b), refused, retain))


@pytest.mark.slow
def test_reference_computed_once_equals_a_frozen_copy():
    options = {"batch_size": 4, "descent": AdamW(peak=1e-2)}
    methods = ((NPO, "klr"), (DPO, "none"), (RAU, "none"))
    configs = [
        method(cached=cached, retain=retain, **options) for cached in (True, False) for method, retain in methods
    ]
    afters = at_once(lambda config: steps(config, 3), *configs)
    assert_equal(afters[:3], afters[3:])
    assert all(np.abs(moved(after)["embedding"]).max() > 0.01 for after in afters)


def changed(after):
    """Name of each array -> the blocks, or entries of its first axis, that changed in the least."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(jax.tree.map(np.not_equal, after, TRAINED))[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        found[name] = set((np.flatnonzero(leaf.reshape(leaf.shape[0], -1).any(axis=1)) + 1).tolist())
    return {name: where for name, where in found.items() if where}


@pytest.mark.slow
def test_what_is_not_trained_stays_to_the_last_bit():
    rough = {"descent": AdamW(peak=0.1, weight_decay=0.1), "batch_size": 4}
    all_blocks = {1, 2, 3, 4}
    expected = [
        (Trained(), {"embedding", "output", "blocks.up.weight", "blocks.up.bias", "blocks.down.weight"}, all_blocks),
        (Trained(blocks=(2, 4)), {"blocks.up.weight", "blocks.up.bias", "blocks.down.weight"}, {2, 4}),
        (Trained(blocks=(3,), matrices=("up.weight",)), {"blocks.up.weight"}, {3}),
        (Trained(blocks=(0, LAYERS + 1)), {"embedding", "output"}, None),
        (Trained(adapter_rank=2), {"blocks.up.weight", "blocks.down.weight"}, all_blocks),
        (Trained(adapter_rank=2, blocks=(1,), matrices=("down",)), {"blocks.down.weight"}, {1}),
    ]
    afters = at_once(lambda trained: steps(GA(trained=trained, **rough), 2), *(trained for trained, _, _ in expected))
    for after, (trained, names, where) in zip(afters, expected, strict=True):
        found = changed(after)
        assert found.keys() == names, trained
        for name in names:
            assert name in ("embedding", "output") or found[name] == where, trained


def test_adapters_start_at_nothing_and_follow_the_gradient_in_their_span():
    config = GA(descent=PLAIN, batch_size=4, trained=Trained(adapter_rank=2, adapter_alpha=3.0, matrices=("down",)))
    phase = config.build(TASK).phases[0]

    def compute(_):
        state = phase.init(KEY, TRAINED)
        after = phase.finalize(KEY, phase.update(KEY, state, PAIR, jnp.int32(0)))
        return phase.finalize(KEY, state), after, state.part["blocks.down.weight"].left

    start, after, left = at_once(compute, None)[0]
    assert_equal(start, TRAINED, rtol=0, atol=0)
    gradient = at_once(lambda name: loss_gradient(FORGET, name), "answer")[0]["blocks"]["down"]["weight"]
    span = left @ np.swapaxes(left, 1, 2)  # dW = alpha / r left dright, dright = -rate alpha / r left' G
    assert_equal(moved(after)["blocks"]["down"]["weight"], -((3.0 / 2) ** 2) * span @ gradient)


def test_steering_goes_only_as_deep_as_its_loss():
    def hidden(params, tokens, first, last):
        assert (first, last) == (2, 2)
        return DECODER.hidden(params, tokens, first, last)

    def head(params, h):
        raise AssertionError("no logits are wanted")

    task = TASK._replace(language=DECODER._replace(hidden=hidden, head=head))
    phase = RMU(loss_block=2, batch_size=4, descent=AdamW(peak=0.1)).build(task).phases[0]
    after = at_once(
        lambda _: phase.finalize(KEY, phase.update(KEY, phase.init(KEY, TRAINED), PAIR, jnp.int32(0))), None
    )[0]
    assert all(where == {1, 2} for where in changed(after).values())


@pytest.mark.slow
def test_steering_moves_forget_states_to_the_vector_and_holds_the_others():
    options = {"c": 2.0, "loss_block": 3, "descent": AdamW(peak=0.03), "batch_size": 4}
    configs = [RMU(alpha=alpha, **options) for alpha in (0.0, 10.0)] + [RMU(adaptive=True, **options)]

    def compute(config):
        phase = config.build(TASK).phases[0]
        after = steps(config, 40)
        u = phase.init(KEY, TRAINED).constant

        def states(params, batch):
            return DECODER.hidden(params, variant(batch, "answer").x, 3, 3)[0, 0, 2]

        norm = state_norm(DECODER, TRAINED, FORGET._replace(weight=np.array([1, 0, 0, 0], np.float32)), 3)
        return u, states(TRAINED, FORGET), states(after, FORGET), states(TRAINED, RETAIN), states(after, RETAIN), norm

    (u, before, free, kept, lost, norm), (*_, held, _), (_, _, adapted, *_) = at_once(compute, *configs)
    assert np.linalg.norm(free - 2 * u) < 0.3 * np.linalg.norm(before - 2 * u)
    assert np.linalg.norm(held - kept) < 0.5 * np.linalg.norm(lost - kept)
    length = np.linalg.norm(before)
    assert np.linalg.norm(adapted - 2 * length * u) < 0.7 * np.linalg.norm(before - 2 * length * u)
    assert norm > 0


@pytest.mark.slow
def test_anchors_are_the_model_before_fine_tuning():
    options = {"batch_size": 4, "descent": AdamW(peak=0.03), "retain": "none"}
    config = RAU(first_block=2, last_block=3, block_weights=(0.7, 0.3), positions="prediction", **options)
    row = variant(FORGET, "answer")
    assert config.build(TASK).with_initial

    def compute(count):
        after = steps(config, count)
        states = [DECODER.hidden(params, row.x, 2, 3)[:, :3, 1] for params in (BASE, after)]
        return jnp.sum(jnp.square(states[0] - states[1])), after

    (before, _), (later, after) = at_once(compute, 0, 30)
    assert later < 0.5 * before
    assert "output" not in changed(after)  # blocks after the last anchored one have no gradient
    assert not any(4 in where for name, where in changed(after).items() if name.startswith("blocks"))
    unchanged = at_once(lambda config: whole(config, Start(TRAINED, TRAINED)), RAU(epochs=1, **options))[0]
    assert_equal(unchanged, TRAINED, atol=1e-6)


def test_the_task_vector_turns_what_training_adds():
    row = variant(FORGET, "answer")

    def compute(strength):
        after = steps(TaskVector(strength=strength, descent=AdamW(peak=1e-2), batch_size=4), 3)
        return after, nll(DECODER.logits(after, row.x), row)

    (none, before), (one, later), (two, _) = at_once(compute, 0.0, 1.0, 2.0)
    assert_equal(none, TRAINED, rtol=0, atol=0)
    assert_equal(moved(two), jax.tree.map(lambda a: 2 * a, moved(one)), atol=1e-4)
    assert later > before


def test_labels_that_whp_guesses():
    start = Reinforced(TRAINED, BASE, jnp.int32(0))

    def labels(config, start=start):
        return config.build(TASK).phases[1].reference(start, X, Y)

    kept, guessed = at_once(labels, WHP(strength=0.0), WHP(strength=2.0, mixing="probabilities"))
    logits, other = at_once(lambda params: DECODER.logits(params, X[:, 0]), TRAINED, BASE)
    scored = Y[:, 0] >= 0
    np.testing.assert_array_equal(kept >= 0, scored)
    np.testing.assert_array_equal(kept[:, 1:][scored[:, 1:]], logits.argmax(-1)[:, :-1][scored[:, 1:]])
    p, q = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in (logits, other))
    wanted = (p - 2 * (q - p)).argmax(-1)[:, :-1]
    np.testing.assert_array_equal(guessed[:, 1:][scored[:, 1:]], wanted[scored[:, 1:]])

    reference = WHP(strength=0.0, labels="sample").build(TASK).phases[1].reference
    twice, y = X[np.array([0, 0, 1])], Y[np.array([0, 0, 1])]
    drawn = at_once(jax.vmap(lambda seed: reference(Reinforced(TRAINED, BASE, seed), twice, y)), jnp.arange(4000))[0]
    np.testing.assert_array_equal(drawn[:, 0], drawn[:, 1])  # a row's labels depend on its tokens and the run
    counts = np.bincount(drawn[:, 0, 2], minlength=VOCABULARY) / 4000
    np.testing.assert_allclose(counts, p[0, 1], atol=0.04)
    agreed = np.mean(drawn[:, 0, 2] == drawn[:, 2, 2])
    assert abs(agreed - (p[0, 1] * p[1, 1]).sum()) < 0.04  # independent between rows


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GA().build(TASK._replace(language=None)), "a language model"),
        (lambda: GA(trained=Trained(blocks=(6,))).build(TASK), "within 0..5"),
        (lambda: GA(trained=Trained(matrices=("mlp",))).build(TASK), "'mlp'"),
        (lambda: GA(trained=Trained(blocks=(0,), matrices=("up",))).build(TASK), "Nothing would be trained"),
        (lambda: GA(trained=Trained(matrices=("bias",), adapter_rank=1)).build(TASK), "is a matrix"),
        (lambda: Trained(blocks=(-1,)), "blocks"),
        (lambda: GA(epochs=0), "epochs"),
        (lambda: GA(retain="kl"), "Did you mean 'klr'"),
        (lambda: GA(alpha=0.0), "alpha"),
        (lambda: NPO(beta=0.0), "beta"),
        (lambda: RMU(loss_block=5).build(TASK), "loss_block=5 <= 4"),
        (lambda: RMU(loss_block=2, trained=Trained(blocks=(2, 3))).build(TASK), r"got \[3\]"),
        (lambda: RAU(first_block=3, last_block=2), "last_block"),
        (lambda: RAU(last_block=2).build(TASK), "first_block=3 <= last_block=2"),
        (lambda: RAU(block_weights=(1.0,)).build(TASK), "2 numbers"),
        (lambda: WHP(strength=-1.0), "strength"),
        (lambda: Substitution(retain="gdr", compat="tofu", alpha=2.0), "one mean over both sets"),
        (lambda: jax.eval_shape(lambda: steps(DPO(), pair=narrow(1))), "'refusal'.*got 1 variant;"),
        (lambda: jax.eval_shape(lambda: steps(Substitution(substitute="random"), pair=narrow(3))), "got 3 variants"),
        (
            lambda: jax.eval_shape(lambda: steps(GA(), pair=ForgetRetain(RETAIN, FORGET._replace(x=X[:4, 0])))),
            "0 variants",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(make, message):
    with pytest.raises(InputError, match=message):
        make()


def narrow(count):
    return ForgetRetain(*(part._replace(x=part.x[:, :count], y=part.y[:, :count]) for part in PAIR))


def test_departures_are_said():
    def notes(config):
        return " ".join(config.build(TASK).notes)

    assert "slip of sign" in notes(Substitution()) and "slip of sign" in notes(WHP())
    assert "MUSE" in notes(NPO(compat="muse")) and "raw logits" in notes(GA(retain="klr", compat="muse"))
    assert "padding" in notes(GA(retain="klr", compat="tofu")) and "factor" in notes(DPO(compat="tofu"))
    assert "blocks 1, 2, 3" in notes(RMU()) and "target's" in notes(RAU())
    assert not notes(GA(compat="muse"))


@functools.cache
def compiled(name, devices, width):
    """The unlearner, the engine, a runner per phase, and a list that grows with every trace of an update."""
    plan = planning.Plan(width=width, runs_per_chunk=R)
    examples = Examples(jnp.asarray(X), jnp.asarray(Y))
    engine = Engine(planning.make_mesh(jax.devices()[:devices]), plan, examples, SIZES, ORDER_KEY)
    unlearner, traces = METHODS[name].build(TASK), []

    def counted(phase):
        def update(*arguments):
            traces.append(1)
            return phase.update(*arguments)

        return phase._replace(update=update)

    phases = [counted(phase) for phase in unlearner.phases]
    return unlearner, engine, [engine.phase_runner(phase, number + 1) for number, phase in enumerate(phases)], traces


def unlearn(name, *, devices=1, width=1, seed=3, signs=SIGNS, x=X):
    unlearner, engine, runners, _ = compiled(name, devices, width)
    engine.examples = jax.device_put(Examples(jnp.asarray(x), jnp.asarray(Y)), engine.examples.x.sharding)
    params = jax.tree.map(lambda a: jnp.broadcast_to(a, (R, *a.shape)), start_of(unlearner))
    runs = Runs(members(signs, SIZES), jax.random.split(jax.random.key(seed), R))
    for run in runners:
        params = run(runs, params, None)
    return jax.tree.map(np.asarray, params)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_battery_of_language_methods(name):
    first = unlearn(name)
    assert all(np.isfinite(leaf).all() and leaf.dtype == np.float32 for leaf in jax.tree.leaves(first))
    assert jax.tree.map(np.shape, first) == jax.tree.map(lambda a: (R, *a.shape), TRAINED)
    assert all(
        np.any(leaf != np.asarray(TRAINED["blocks"]["down"]["weight"])) for leaf in first["blocks"]["down"]["weight"]
    )
    traces = compiled(name, 1, 1)[3]
    before = len(traces)
    assert before <= 3 * len(compiled(name, 1, 1)[2])
    assert_equal(first, unlearn(name), rtol=0, atol=0)
    assert_equal(first, unlearn(name, devices=2, width=2), rtol=3e-5, atol=3e-5)  # spread over devices, vmapped on each
    other = unlearn(name, seed=4)
    same = all((a == b).all() for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(other)))
    assert same == (name not in NOISY)
    absent = ~members(SIGNS, SIZES)[0]  # what a run never saw changes nothing
    x = np.where(absent[:, None, None], (X + 1) % VOCABULARY, X).astype(np.int32)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(unlearn(name, x=x))):
        np.testing.assert_array_equal(a[0], b[0])
    assert len(traces) == before


def test_adapters_of_a_single_block_go_to_its_matrices():
    sizes = {"vocabulary": 9, "width": 8, "layers": 1, "heads": 2, "hidden": 8}
    model = transformer.language_model(transformer.Architecture(family="llama", **sizes))
    chosen = Trained(adapter_rank=2).split(model).chosen
    assert set(chosen) == {
        f"blocks.{name}.weight" for name in ("query", "key", "value", "attention_out", "up", "down", "gate")
    }
