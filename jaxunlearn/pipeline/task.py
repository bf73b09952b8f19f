"""What an audit works on: examples, model, runs with their signs and keys, and the engine for them."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn import config as configuration
from jaxunlearn._validate import require
from jaxunlearn.attack import combine, signals
from jaxunlearn.audit import validity
from jaxunlearn.data import digits, images, pii, speech, splits, tokens
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine, Runs, members, pad
from jaxunlearn.engine.processes import Group
from jaxunlearn.engine.train import SOURCES, Examples, Sizes
from jaxunlearn.metrics.accuracy import correct, weighted_mean
from jaxunlearn.models import convolutional, linear, lstm, resnet, transformer
from jaxunlearn.models.base import in_bfloat16
from jaxunlearn.pipeline.runs import RunTable, make_runs, make_sequential_runs, run_keys
from jaxunlearn.records import CALIBRATION
from jaxunlearn.sequences import LanguageModel
from jaxunlearn.types import Model, Params, Phase, TaskInfo, Unlearner
from jaxunlearn.unlearn import base
from jaxunlearn.unlearn.language import answer_loss

CONVOLUTIONAL = ("cnn", "gn-cnn", "tinynet", "resnet18", "resnet18-gn", "resnet50", "resnet50-gn")


def forms_of(model: str, platform: str, precision: str = "float32") -> tuple[str, ...]:
    """Forms that a model's layers can take: the one for one run at a time first, the one for several at once last."""
    if model not in CONVOLUTIONAL:
        return ("",)
    if platform == "cpu" and precision != "bfloat16":  # whose few bits Winograd's transforms would lose
        return ("winograd", "canonical", "patches")
    return ("canonical", "patches")


LOADERS = {"digits": digits.load, "mnist": images.mnist, "cifar10": images.cifar10, "cifar100": images.cifar100}

MIRRORED = ("cifar10", "cifar100")
"""Data sets whose mirror images are as natural as the images."""

# Numbers folded into the root key, one per purpose; a new purpose takes a new number.
_SPLIT, _INITIAL, _ORDER, _SIGNS, TRAINING, UNLEARNING = range(6)


def make_model(
    name: str,
    shape: tuple[int, ...],
    outputs: int,
    *,
    form: str = "",
    forward_mode: bool = False,
    precision: str = "float32",
    text: configuration.Text | None = None,
    decoder: configuration.Decoder | None = None,
    width: int | None = None,
) -> Model:
    """Builds the architecture.

    Args:
        name: As in the configuration; also "resnet18" and "resnet50", which have BatchNorm, whose two modes an audit's
            methods do not tell apart.
        shape: Of one example.
        outputs: Classes, or size of the vocabulary.
        form: One of ``forms_of``; "" means what suits any device.
        forward_mode: Whether forward-mode differentiation must go through, which the fastest layers refuse.
        precision: "bfloat16" computes in that; anything else is the engine's business.
        text: Sizes of the LSTM.
        decoder: Sizes of the decoder.
        width: Channels of a residual network's first stage; None means 64.
    """
    layers: Any = "patches" if forward_mode else form or "canonical"
    text = text or configuration.Text()

    def residual(maker: Callable[..., Model], norm: str) -> Callable[[], Model]:
        return lambda: maker(shape, outputs, norm=norm, form=layers, width=width or 64)

    makers: dict[str, Callable[[], Model]] = {
        "linear": lambda: linear.linear(shape, outputs),
        "mlp": lambda: linear.mlp(shape, outputs),
        "cnn": lambda: convolutional.digits_cnn(shape, outputs, form=layers),
        "gn-cnn": lambda: convolutional.group_norm_cnn(shape, outputs, form=layers),
        "tinynet": lambda: convolutional.tinynet(shape, outputs, form=layers),
        "resnet18": residual(resnet.resnet18, "batch"),
        "resnet18-gn": residual(resnet.resnet18, "group"),
        "resnet50": residual(resnet.resnet50, "batch"),
        "resnet50-gn": residual(resnet.resnet50, "group"),
        "lstm": lambda: lstm.lstm(
            vocabulary=outputs,
            embedding=text.embedding,
            hidden=text.hidden,
            layers=text.layers,
            form="plain" if forward_mode else "hoisted",
        ),
        "decoder": lambda: transformer.as_model(
            transformer.language_model(decoder_architecture(decoder or configuration.Decoder(), outputs))
        ),
    }
    model = makers[name]()
    return in_bfloat16(model) if precision == "bfloat16" else model


def decoder_architecture(sizes: configuration.Decoder, vocabulary: int) -> transformer.Architecture:
    """A small Llama.

    Args:
        sizes: Its sizes.
        vocabulary: Tokens that its tokenizer has, which may be fewer than were asked for.
    """
    given = {field.name: getattr(sizes, field.name) for field in dataclasses.fields(configuration.Decoder)}
    return transformer.Architecture(family="llama", **given | {"vocabulary": vocabulary})


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The arrays of an audit: the retain set first, then the candidates batch by batch.

    Attributes:
        x: [n, ...] inputs.
        y: [n] labels, of sequences [n, T].
        x_test: [k, ...] held-out inputs.
        y_test: [k] or [k, T].
        retain: Examples in D_r.
        batch_size: B, examples in a candidate batch.
        outputs: Classes, or size of the vocabulary.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    retain: int
    batch_size: int
    outputs: int


def prepare(config: configuration.Audit, key: PRNGKeyArray) -> Prepared:
    """Loads the data and draws the split."""
    if config.dataset == "shakespeare":
        return _prepare_text(config, key)
    if config.dataset == "people":
        return _prepare_people(config, key)
    data = LOADERS[config.dataset]()
    split = splits.make_split(key, data.y, m=config.m, batch_size=config.candidate_batch_size, kind=config.split)
    rows = np.concatenate([split.retain, split.pool])
    return Prepared(
        x=data.x[rows],
        y=data.y[rows],
        x_test=data.x_test,
        y_test=data.y_test,
        retain=split.retain.size,
        batch_size=config.candidate_batch_size,
        outputs=data.classes,
    )


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= least)


def make_unlearner(info: TaskInfo, name: str, factory: Callable[[TaskInfo], Unlearner]) -> Unlearner:
    """Builds a method for a task, and refuses what the engine could not run.

    Raises:
        InputError: ``factory`` does not return an Unlearner, or one of its phases makes no sense.
    """
    require(callable(factory), f"Expected method={name!r} to be a function of TaskInfo, got {factory!r}.")
    made = factory(info)
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
        sizes = (phase.epochs, phase.batch_size, phase.max_steps)
        require(
            _whole(sizes[0], 0) and _whole(sizes[1], 1) and (sizes[2] is None or _whole(sizes[2], 0)),
            f"Expected phase {number} of method={name!r} to have epochs >= 0, batch_size >= 1, max_steps None or >= 0, all "
            f"whole, got {sizes}.",
        )
    most = 0 if made.from_scratch else info.train_epochs
    require(
        _whole(made.rewind, 0) and made.rewind <= most,
        f"Expected method={name!r} to rewind 0 to {most} epochs of training, got {made.rewind!r}.",
    )
    require(
        isinstance(made.notes, tuple) and all(isinstance(note, str) for note in made.notes),
        f"Expected the notes of method={name!r} to be a tuple of sentences, got {made.notes!r}.",
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
    group: Group
    data: Prepared
    info: TaskInfo
    runs: RunTable
    engine: Engine
    root: PRNGKeyArray
    parameter_shapes: Params
    score: Callable

    def info_in(self, form: str) -> TaskInfo:
        """What methods are told, with the model's layers in another form; "" is the first guess's."""
        if form in ("", self.engine.plan.form):
            return self.info
        return make_info(self.config, self.data, form, self.engine.sizes)

    @property
    def chunks(self) -> list[slice]:
        """The runs of each chunk."""
        size = self.engine.plan.runs_per_chunk
        return [slice(i, min(i + size, len(self.runs))) for i in range(0, len(self.runs), size)]

    def _padded(self, rows: slice) -> np.ndarray:
        """The numbers of a chunk's runs, the last one repeated: chunks of one size go through the same programs."""
        return pad(np.arange(len(self.runs))[rows], self.engine.plan.runs_per_chunk)

    def chunk(self, rows: slice, *, stage: int, salt: int = 0) -> Runs:
        """The runs of a chunk, padded to the plan's size."""
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


def _prepare_text(config: configuration.Audit, key: PRNGKeyArray) -> Prepared:
    text = config.text
    made = speech.make_speech(
        key,
        speech.load(text.source),
        m=config.m,
        roles=text.roles,
        length=text.length,
        stride=text.stride,
        forget_share=text.forget_share,
    )
    candidates = [part.reshape(-1, text.length) for part in (made.x_candidates, made.y_candidates)]
    return Prepared(
        x=np.concatenate([made.x, candidates[0]]),
        y=np.concatenate([made.y, candidates[1]]),
        x_test=made.x_test,
        y_test=made.y_test,
        retain=len(made.x),
        batch_size=made.x_candidates.shape[1],
        outputs=len(speech.VOCABULARY),
    )


def _prepare_people(config: configuration.Audit, key: PRNGKeyArray) -> Prepared:
    """Facts about invented people, all variants: those who stay first, then the candidates, person by person."""
    kinds = len(pii.KINDS)
    candidates = -(-config.pool_size // kinds)
    everyone = pii.people(key, config.people_retained + candidates)
    unseen = pii.people(jax.random.fold_in(key, 1), config.people_retained, avoid=everyone)
    retain = config.people_retained * kinds
    facts = everyone.facts[: retain + config.pool_size]
    tokenizer = tokens.train_bpe([fact.prompt + fact.answer for fact in everyone.facts], config.decoder.vocabulary)
    is_candidate = np.arange(len(facts)) >= retain
    others = pii.substitutes(jax.random.fold_in(key, 2), facts, is_candidate, outside=facts[:retain])
    rows = tokens.encode_facts(tokenizer, facts, None, others)
    test = tokens.encode_facts(tokenizer, unseen.facts)
    x_test, y_test = (np.repeat(part, rows.tokens.shape[1], axis=1) for part in (test.tokens, test.labels))
    return Prepared(
        x=rows.tokens,
        y=rows.labels,
        x_test=x_test,
        y_test=y_test,
        retain=retain,
        batch_size=config.candidate_batch_size,
        outputs=tokenizer.vocabulary,
    )


def build(
    config: configuration.Audit, devices=None, *, group: Group | None = None, runs_per_chunk: int | None = None
) -> Task:
    """Loads the data, draws the split and the runs, and compiles nothing yet.

    Args:
        config: The audit.
        devices: JAX devices to use; None means all of this process.
        group: This process among those that share the run directory; None means alone.
        runs_per_chunk: Chunks that the run directory was begun with; what the configuration says comes first.
    """
    group = group or Group()
    root = jax.random.key(config.seed)
    m = config.m
    data = prepare(config, jax.random.fold_in(root, _SPLIT))
    mesh = planning.make_mesh(devices, parameter_shards=config.parameter_shards)
    if config.runs_per_chunk is not None:
        runs_per_chunk = config.runs_per_chunk
    size = {"width": config.fixed_plan[0], "runs_per_chunk": runs_per_chunk}
    signs_key = jax.random.fold_in(root, _SIGNS)
    if config.is_sequential:
        plan = planning.choose_open(mesh, **size)
        whole_chunks = plan.runs_per_chunk * -(-config.most_runs // plan.runs_per_chunk)
        runs = make_sequential_runs(signs_key, m=m, warmup=config.warmup, runs=whole_chunks)
    else:
        runs = make_runs(
            signs_key,
            m=m,
            evaluation=config.evaluation_runs,
            calibration=config.calibration_runs,
            designed=config.predictor != "batchwise",
        )
        plan = planning.choose(mesh, len(runs), **size, processes=group.count)
    validity.check_both_sides(runs.signs[runs.roles == CALIBRATION])
    if config.attack in ("stacked", "auto"):
        depth = 2 if config.attack == "auto" and len(config.signals) > 1 else 1
        combine.check_folds(runs.signs[runs.roles == CALIBRATION], depth=depth)
    sizes = Sizes(retain=data.retain, pool=m * data.batch_size, forget=(m // 2) * data.batch_size)
    examples = Examples(jnp.asarray(data.x), jnp.asarray(data.y))
    forms = forms_of(config.model, mesh.devices.flat[0].platform, config.precision)
    form = config.fixed_plan[1] or (forms[0] if plan.width == 1 else forms[-1])
    require(
        forms != ("",) or not form, f"Expected a plan without a form for model={config.model!r}, got {config.plan!r}."
    )
    _validate.one_of("plan's form", form, forms)
    plan = dataclasses.replace(plan, form=form)
    precision = "tensorfloat32" if config.precision == "tensorfloat32" else "float32"
    memory = planning.device_memory(mesh)
    order_key = jax.random.fold_in(root, _ORDER)
    engine = Engine(mesh, plan, examples, sizes, order_key, precision=precision, memory=memory)
    info = make_info(config, data, form, sizes)
    model = info.model
    return Task(
        config=config,
        group=group,
        data=data,
        info=info,
        runs=runs,
        engine=engine,
        root=root,
        parameter_shapes=jax.eval_shape(model.init, root),
        score=engine.map(make_score(config, model, sizes, data), (data.x_test, data.y_test)),
    )


def make_info(config: configuration.Audit, data: Prepared, form: str, sizes: Sizes) -> TaskInfo:
    """What methods are told of the task, with the model's layers in the given form."""
    make = partial(
        make_model,
        config.model,
        data.x.shape[1:],
        data.outputs,
        precision=config.precision,
        text=config.text,
        decoder=config.decoder,
    )
    language = None
    if config.model == "decoder":
        dtype = "bfloat16" if config.precision == "bfloat16" else "float32"
        language = transformer.language_model(decoder_architecture(config.decoder, data.outputs), dtype=dtype)
        make = lambda **options: transformer.as_model(language)  # noqa: E731 - which computes in its own precision
    info = info_of(make, form, sizes, config.training, language)
    require(
        info.training_loss is None,
        f"Expected a model with one mode in an audit, got model={config.model!r} with BatchNorm; use '{config.model}-gn'.",
    )
    return info


def info_of(
    make: Callable[..., Model],
    form: str,
    sizes: Sizes,
    training: configuration.Training,
    language: LanguageModel | None = None,
) -> TaskInfo:
    """What methods are told of a task.

    Args:
        make: ``(form=..., forward_mode=...) -> Model``.
        form: Form of the model's layers.
        sizes: Counts of examples.
        training: How the models are trained.
        language: The decoder, of a language task, whose loss is that of true answers.
    """
    model = make(form=form)
    loss = base.cross_entropy(model) if language is None else answer_loss(language)
    training_loss = None if model.train is None else base.training_loss(model)
    batch_size = sizes.of("train") if training.batch_size is None else training.batch_size

    def train_phase(source):
        return training.descent.phase(
            training_loss or loss,
            source=source,
            size=sizes.of(source),
            epochs=training.epochs,
            batch_size=batch_size,
        )

    return TaskInfo(
        model,
        loss,
        sizes.retain,
        sizes.forget,
        batch_size,
        train_phase,
        train_epochs=training.epochs,
        descent=training.descent,
        curvature_loss=base.cross_entropy(make(forward_mode=True)) if language is None else loss,
        training_loss=training_loss,
        language=language,
    )


def make_score(config: configuration.Audit, model: Model, sizes: Sizes, data: Prepared) -> Callable:
    """``(examples, test, params, member) -> arrays`` of one run.

    The first of the configuration's signals is "scores" [m, B], the others are "signal_NAME"; "accuracy_..." are scalars.
    """
    sequences = data.y.ndim > 1

    def measure(params, x, y):
        logits = model.apply(params, x)
        if config.model == "decoder":
            answers = y[:, 0]
            named = {"logit": signals.answer_score(logits, answers)}
            return named, signals.answered(logits, answers)
        if sequences:
            named = {"logit": signals.sequence_score(logits, y)}
        else:
            named = signals.signal_scores(config.signals, logits, y)
        return named, correct(logits, y)

    def score(examples, test, params, member):
        def measured(x, y):
            # Logits of a sequence hold a row for every position: fewer sequences at a time.
            return signals.batched(lambda *rows: measure(params, *rows), x, y, batch_size=64 if sequences else 512)

        named, hits = measured(examples.x, examples.y)
        named = {name: values[sizes.retain :] for name, values in named.items()}
        if "augmented" in config.signals:
            x, y = (rows[sizes.retain :] for rows in examples)
            named |= signals.augmented_scores(model.apply, params, x, y, flip=config.dataset in MIRRORED)
        is_pool = jnp.arange(member.shape[0]) >= sizes.retain

        def share(rows):
            return weighted_mean(hits, rows.astype(jnp.float32))

        by_batch = {
            "scores" if name == config.signals[0] else f"signal_{name}": values.reshape(-1, data.batch_size)
            for name, values in named.items()
        }
        return by_batch | {
            "accuracy_retain": share(~is_pool),
            "accuracy_forget": share(is_pool & member),
            "accuracy_unseen": share(is_pool & ~member),
            "accuracy_test": jnp.mean(measured(*test)[1]),
        }

    return score
