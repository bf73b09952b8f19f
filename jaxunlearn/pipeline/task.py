"""What an audit works on: examples, model, runs with their signs and keys, and the engine for them."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxunlearn import config as configuration
from jaxunlearn._validate import require
from jaxunlearn.attack import combine, signals
from jaxunlearn.data import digits, images, signs, splits
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine, Runs, members, pad
from jaxunlearn.engine.train import Examples, Sizes
from jaxunlearn.metrics.accuracy import accuracy
from jaxunlearn.models import convolutional, linear
from jaxunlearn.records import CALIBRATION, EVALUATION
from jaxunlearn.types import Model, Params, Phase, TaskInfo, Unlearner
from jaxunlearn.unlearn import base

LOADERS = {"digits": digits.load, "mnist": images.mnist, "cifar10": images.cifar10, "cifar100": images.cifar100}

SOURCES = ("train", "retain", "forget")

MIRRORED = ("cifar10", "cifar100")
"""Data sets whose mirror images are as natural as the images."""

# Numbers folded into the root key, one per purpose; a new purpose takes a new number.
_SPLIT, _INITIAL, _ORDER, _SIGNS, TRAINING, UNLEARNING = range(6)


def make_model(name: str, input_shape: tuple[int, ...], classes: int, *, width: int) -> Model:
    """Builds the architecture; ``width`` > 1 models under vmap want the patches form of convolutions."""
    form = "canonical" if width == 1 else "patches"
    makers: dict[str, Callable[[], Model]] = {
        "linear": lambda: linear.linear(input_shape, classes),
        "mlp": lambda: linear.mlp(input_shape, classes),
        "cnn": lambda: convolutional.digits_cnn(input_shape, classes, form=form),
        "tinynet": lambda: convolutional.tinynet(input_shape, classes, form=form),
    }
    return makers[name]()


@dataclasses.dataclass(frozen=True)
class RunTable:
    """All runs of an audit, evaluation runs first.

    Attributes:
        signs: [R, m] int8; evaluation rows are independent and uniform, calibration rows may be designed.
        roles: [R] int8.
        indices: [R] int64, numbered within the role.
    """

    signs: np.ndarray
    roles: np.ndarray
    indices: np.ndarray

    def __len__(self) -> int:
        return self.roles.shape[0]


def run_keys(key: PRNGKeyArray, roles: np.ndarray, indices: np.ndarray) -> PRNGKeyArray:
    """[R] keys that depend on the run's role and number only: a rerun gets the same key, and no two runs share one."""

    def fold(role, index):
        return jax.random.fold_in(jax.random.fold_in(key, role), index)

    return jax.vmap(fold)(jnp.asarray(roles, jnp.uint32), jnp.asarray(indices, jnp.uint32))


def make_runs(key: PRNGKeyArray, *, m: int, evaluation: int, calibration: int, designed: bool) -> RunTable:
    """Draws the sign vectors.

    Args:
        key: Key of the signs.
        m: Candidate batches.
        evaluation: L, evaluation runs.
        calibration: Calibration runs; with ``designed`` per sign vector.
        designed: Calibrate every sign vector equally often (joint and pairwise predictors).
    """
    designed_rows = signs.designed_signs(m, calibration) if designed else None
    count = calibration if designed_rows is None else designed_rows.shape[0]
    roles = np.repeat(np.array([EVALUATION, CALIBRATION], np.int8), [evaluation, count])
    indices = np.concatenate([np.arange(evaluation), np.arange(count)])
    table = np.array(jax.vmap(lambda k: signs.balanced_signs(k, m))(run_keys(key, roles, indices)))
    if designed_rows is not None:
        table[evaluation:] = designed_rows
    return RunTable(table, roles, indices)


def check_calibration(table: RunTable) -> None:
    """Refuses calibration runs from which some example's score with or without its batch could not be learned.

    Raises:
        InputError: A candidate batch is in all calibration runs or in none; found out before anything is trained.
    """
    signs = table.signs[table.roles == CALIBRATION]
    plus = (signs > 0).sum(axis=0)
    one_sided = (plus == 0) | (plus == signs.shape[0])
    require(
        not one_sided.any(),
        f"Expected every candidate batch to be in some of the calibration_runs={signs.shape[0]} and not in others, but "
        f"{int(one_sided.sum())} of {signs.shape[1]} are in all or in none; use more calibration runs.",
    )


def _candidate_scores(config, model: Model, params: Params, examples: Examples, logits, sizes: Sizes) -> dict:
    """[m, B] scores of the candidates: the first of the configuration's signals as "scores", the others as "signal_NAME"."""
    x, logits, labels = (a[sizes.retain :] for a in (examples.x, logits, examples.y))
    flip = config.dataset in MIRRORED
    named = signals.signal_scores(config.signals, model.apply, params, x, logits, labels, flip=flip)
    first = config.signals[0]
    return {
        "scores" if name == first else f"signal_{name}": score.reshape(config.m, config.candidate_batch_size)
        for name, score in named.items()
    }


def make_unlearner(task: "Task", name: str, factory: Callable[[TaskInfo], Unlearner]) -> Unlearner:
    """Builds a method for a task and refuses what the engine could not run.

    Raises:
        InputError: ``factory`` does not return an Unlearner, or one of its phases makes no sense.
    """
    require(callable(factory), f"Expected method={name!r} to be a function of TaskInfo, got {factory!r}.")
    made = factory(task.info)
    require(
        isinstance(made, Unlearner) and all(isinstance(phase, Phase) for phase in made.phases),
        f"Expected method={name!r} to return an Unlearner with a tuple of Phases, got a {type(made).__name__}.",
    )
    for number, phase in enumerate(made.phases):
        for source in (phase.source, phase.companion or phase.source):
            require(
                source in SOURCES,
                f"Expected phase {number} of method={name!r} to cover {', '.join(SOURCES)}, got {source!r}.",
            )
        require(
            phase.epochs >= 0 and phase.batch_size >= 1,
            f"Expected phase {number} of method={name!r} to have epochs >= 0 and batch_size >= 1, got {phase.epochs!r} "
            f"and {phase.batch_size!r}.",
        )
    proof = made.certificate
    require(
        proof is None
        or isinstance(proof, dict)
        and {"epsilon", "delta", "source"} <= proof.keys()
        and bool(np.isfinite([proof["epsilon"], proof["delta"]]).all()),
        f"Expected the certificate of method={name!r} to be None or a dict with finite epsilon and delta, and source, "
        f"got {proof!r}.",
    )
    return made


@dataclasses.dataclass(frozen=True)
class Task:
    """Everything that the stages of an audit share."""

    config: configuration.Audit
    split: splits.Split
    info: TaskInfo
    runs: RunTable
    engine: Engine
    root: PRNGKeyArray
    parameter_shapes: Params
    score: Callable

    @property
    def chunks(self) -> list[slice]:
        """The runs of each chunk."""
        size = self.engine.plan.runs_per_chunk
        return [slice(i, min(i + size, len(self.runs))) for i in range(0, len(self.runs), size)]

    def _padded(self, rows: slice) -> np.ndarray:
        return pad(np.arange(len(self.runs))[rows], self.engine.plan.runs_per_chunk)

    def chunk(self, rows: slice, *, stage: int, salt: int = 0) -> Runs:
        """The runs of a chunk, padded to the plan's size by repeating the last one."""
        numbers = self._padded(rows)
        roles, indices = self.runs.roles[numbers], self.runs.indices[numbers]

        def keys(purpose):
            return run_keys(jax.random.fold_in(jax.random.fold_in(self.root, purpose), salt), roles, indices)

        member = members(self.runs.signs[numbers], self.engine.sizes)
        return Runs(member, keys(stage), keys(_ORDER) if self.config.fresh_init else None)

    def initial(self, rows: slice) -> Params:
        """[chunk, ...] initial weights: x_0 for all, or one for each run with ``fresh_init``."""
        key = jax.random.fold_in(self.root, _INITIAL)
        numbers = self._padded(rows)
        if self.config.fresh_init:
            keys = run_keys(key, self.runs.roles[numbers], self.runs.indices[numbers])
            return jax.jit(jax.vmap(self.info.model.init))(keys)
        initial = jax.jit(self.info.model.init)(key)
        return jax.tree.map(lambda a: jnp.broadcast_to(a, (numbers.size, *a.shape)), initial)


def build(config: configuration.Audit, devices=None) -> Task:
    """Loads the data, draws the split and the runs, and compiles nothing yet.

    Args:
        config: The audit.
        devices: JAX devices to use; None means all of this process.
    """
    data = LOADERS[config.dataset]()
    root = jax.random.key(config.seed)
    m, batch_size = config.m, config.candidate_batch_size
    split = splits.make_split(jax.random.fold_in(root, _SPLIT), data.y, m=m, batch_size=batch_size, kind=config.split)
    runs = make_runs(
        jax.random.fold_in(root, _SIGNS),
        m=m,
        evaluation=config.evaluation_runs,
        calibration=config.calibration_runs,
        designed=config.predictor != "batchwise",
    )
    check_calibration(runs)
    if config.attack in ("stacked", "auto"):
        depth = 2 if config.attack == "auto" and len(config.signals) > 1 else 1
        combine.check_folds(runs.signs[runs.roles == CALIBRATION], depth=depth)
    mesh = planning.make_mesh(devices)
    plan = planning.choose(mesh, len(runs), width=config.width, runs_per_chunk=config.runs_per_chunk)
    rows = np.concatenate([split.retain, split.pool])
    sizes = Sizes(retain=split.retain.size, pool=split.pool.size, forget=(m // 2) * batch_size)
    engine = Engine(
        mesh,
        plan,
        Examples(jnp.asarray(data.x[rows]), jnp.asarray(data.y[rows])),
        sizes,
        jax.random.fold_in(root, _ORDER),
    )
    model = make_model(config.model, data.x.shape[1:], data.classes, width=plan.width)
    loss = base.cross_entropy(model)
    training = config.training

    def train_phase(source):
        return training.descent.phase(
            loss, source=source, size=sizes.of(source), epochs=training.epochs, batch_size=training.batch_size
        )

    info = TaskInfo(model, loss, sizes.retain, sizes.forget, training.batch_size, train_phase)

    def score(examples, test, params, member):
        logits = signals.batched_logits(model.apply, params, examples.x)
        is_pool = jnp.arange(member.shape[0]) >= sizes.retain
        return {
            **_candidate_scores(config, model, params, examples, logits, sizes),
            "accuracy_retain": accuracy(logits, examples.y, (~is_pool).astype(jnp.float32)),
            "accuracy_forget": accuracy(logits, examples.y, (is_pool & member).astype(jnp.float32)),
            "accuracy_unseen": accuracy(logits, examples.y, (is_pool & ~member).astype(jnp.float32)),
            "accuracy_test": accuracy(signals.batched_logits(model.apply, params, test[0]), test[1]),
        }

    return Task(
        config=config,
        split=split,
        info=info,
        runs=runs,
        engine=engine,
        root=root,
        parameter_shapes=jax.eval_shape(model.init, root),
        score=engine.map(score, (data.x_test, data.y_test)),
    )
