"""What a study of privacy works on: data as rows of tokens, the decoder, keys, and engines for each kind of run."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from jaxunlearn._validate import require
from jaxunlearn.attack import extraction
from jaxunlearn.data import pii, tokens
from jaxunlearn.data.splits import host_generator
from jaxunlearn.data.tokens import Tokenizer
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine, Runs, pad
from jaxunlearn.engine.train import Examples, Sizes
from jaxunlearn.metrics import text
from jaxunlearn.models import language_weights, transformer
from jaxunlearn.pipeline.privacy import material as materials
from jaxunlearn.pipeline.privacy.config import Fitting, Privacy
from jaxunlearn.pipeline.privacy.material import Material
from jaxunlearn.pipeline.runs import run_keys
from jaxunlearn.pipeline.task import decoder_architecture
from jaxunlearn.sequences import VARIANTS, LanguageModel
from jaxunlearn.types import Batch, Params, TaskInfo
from jaxunlearn.unlearn.language import answer_loss

# Numbers folded into the root key, one per purpose; a new purpose takes a new number.
(
    DATA,
    INITIAL,
    ORDER,
    PRETRAINING,
    TARGET,
    RETRAINING,
    UNLEARNING,
    RECOVERY,
    KNOWN,
    SUBSTITUTES,
    SHOWN,
    DRAWS,
    GIVEN,
) = range(13)

ROW = 32
"""Tokens of a row at least: pieces of running text are cut to rows."""


@dataclasses.dataclass(frozen=True)
class Words:
    """All texts of a study as tokens; F facts in the order of ``Material.facts``.

    Attributes:
        tokenizer: Makes and reads ids.
        facts: Facts with their true answers, [F, 1, T].
        told: Sentences about those to be forgotten, [p, T]; no rows where there are none.
        retained: Sentences about those who stay.
        text: [c, T'] pieces of text for pretraining.
        pieces: [c', T] pieces that are trained on beside the facts.
        held_out: [h, T] pieces that no model sees.
        prompts: [F, P] direct questions, padded on the left, and their lengths [F].
    """

    tokenizer: Tokenizer
    facts: tokens.Rows
    told: tokens.Rows
    retained: tokens.Rows
    text: np.ndarray
    pieces: np.ndarray
    held_out: np.ndarray
    prompts: tuple[np.ndarray, np.ndarray]

    @property
    def length(self) -> int:
        """Tokens of a row, T."""
        return self.facts.tokens.shape[-1]


@dataclasses.dataclass(frozen=True)
class Study:
    """Everything that the stages share; a run is a seed.

    Attributes:
        config: The settings.
        material: Whose data.
        words: The same as tokens.
        language: The decoder.
        pretrained: Its weights, or None where they are trained here.
        mesh: Devices.
        plan: How many seeds go at once.
        root: Of all keys.
    """

    config: Privacy
    material: Material
    words: Words
    language: LanguageModel
    pretrained: Params | None
    mesh: Mesh
    plan: planning.Plan
    root: PRNGKeyArray

    # --- runs and keys

    @property
    def chunks(self) -> list[slice]:
        """Seeds that are worked on between two checkpoints."""
        size, seeds = self.plan.runs_per_chunk, self.config.seeds
        return [slice(i, min(i + size, seeds)) for i in range(0, seeds, size)]

    def numbers(self, rows: slice) -> np.ndarray:
        """The numbers of a chunk's seeds, the last one repeated: all chunks go through the same programs."""
        return pad(np.arange(rows.start, rows.stop), self.plan.runs_per_chunk)

    def keys(self, purpose: int, numbers: np.ndarray, salt: int = 0) -> PRNGKeyArray:
        """A key for each seed and purpose."""
        key = jax.random.fold_in(jax.random.fold_in(self.root, purpose), salt)
        return run_keys(key, np.zeros_like(numbers), numbers)

    def runs(self, rows: slice, purpose: int, member: np.ndarray, salt: int = 0) -> Runs:
        """A chunk's seeds, each in an order of its own, on the rows ``member`` [n]."""
        numbers = self.numbers(rows)
        keys = self.keys(purpose, numbers, salt)
        return Runs(np.tile(member, (len(numbers), 1)), keys, self.keys(ORDER, numbers, purpose))

    def initial(self, rows: slice) -> Params:
        """[chunk, ...] what the base models start from."""
        numbers = self.numbers(rows)
        if self.pretrained is None:
            return jax.jit(jax.vmap(self.language.init))(self.keys(INITIAL, numbers))
        return jax.tree.map(lambda a: np.broadcast_to(a, (len(numbers), *a.shape)), self.pretrained)

    @cached_property
    def parameter_shapes(self) -> Params:
        """Shapes and types of one model's parameters."""
        return jax.eval_shape(self.language.init, self.root)

    def like(self, count: int) -> Params:
        """Shapes of ``count`` models."""
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct((count, *s.shape), s.dtype), self.parameter_shapes)

    # --- which fact is what

    @property
    def forgotten(self) -> slice:
        """Places of the facts to be forgotten among all facts."""
        return slice(0, len(self.material.forgotten.facts))

    @property
    def retained(self) -> slice:
        """Places of the retained facts."""
        return slice(self.forgotten.stop, self.forgotten.stop + len(self.material.retained.facts))

    @property
    def control(self) -> slice:
        """Places of the facts that no model has seen."""
        return slice(self.retained.stop, len(self.material.facts))

    @cached_property
    def persons(self) -> list[str]:
        """[F] whom each fact is about."""
        return [fact.person for fact in self.material.facts]

    @property
    def by_person(self) -> bool:
        """Whether whole persons are known or not, and given to methods or not."""
        return self.config.dataset != "tofu"

    @cached_property
    def given(self) -> np.ndarray:
        """[nr] bool, which retained facts methods are given; utility is measured on the others (retain1 and retain2)."""
        by = "person" if self.by_person else "fact"
        return pii.known_split(jax.random.fold_in(self.root, GIVEN), self.material.retained, 0.5, by=by)

    def random_known(self) -> np.ndarray:
        """[nf] bool, which facts of the forget set the method is shown where that is drawn at random."""
        by = "person" if self.by_person else "fact"
        key = jax.random.fold_in(self.root, KNOWN)
        return pii.known_split(key, self.material.forgotten, self.config.known, by=by)

    # --- engines

    def engine(self, examples: Examples, sizes: Sizes, plan: planning.Plan | None = None) -> Engine:
        """An engine for some rows."""
        return Engine(
            self.mesh,
            self.plan if plan is None else plan,
            examples,
            sizes,
            jax.random.fold_in(self.root, ORDER),
            memory=planning.device_memory(self.mesh),
        )

    @cached_property
    def loss(self) -> Callable[[Params, Batch], jax.Array]:
        """Mean -log p of the scored tokens of a batch's true answers, in nats."""
        return answer_loss(self.language)

    def _info(self, sizes: Sizes, fitting: Fitting) -> TaskInfo:
        def train_phase(source):
            return fitting.descent.phase(
                self.loss,
                source=source,
                size=sizes.of(source),
                epochs=fitting.epochs,
                batch_size=fitting.batch_size,
            )

        return TaskInfo(
            transformer.as_model(self.language),
            self.loss,
            sizes.retain,
            sizes.forget,
            fitting.batch_size,
            train_phase,
            train_epochs=fitting.epochs,
            descent=fitting.descent,
            curvature_loss=self.loss,
            language=self.language,
        )

    def pretraining(self) -> tuple[Engine, TaskInfo]:
        """Pieces of text."""
        x = self.words.text[:, None]
        sizes = Sizes(retain=len(x), pool=0, forget=0)
        target = self.config.target
        fitting = dataclasses.replace(
            target,
            epochs=max(1, self.config.decoder.pretraining),
            batch_size=max(1, target.batch_size * self.words.length // x.shape[-1]),  # as many tokens a step
        )
        return self.engine(_examples(x, x), sizes), self._info(sizes, fitting)

    def training(self) -> tuple[Engine, TaskInfo]:
        """Facts, sentences and pieces of text: those who stay first, then those to be forgotten."""
        w, facts, repeats = self.words, self.words.facts, self.config.target.repeats

        def repeated(places: slice) -> tuple[np.ndarray, np.ndarray]:
            return np.tile(facts.tokens[places, 0], (repeats, 1)), np.tile(facts.labels[places, 0], (repeats, 1))

        parts = [
            repeated(self.retained),
            (w.retained.tokens, w.retained.labels),
            (w.pieces, w.pieces),
        ]
        retain = sum(len(x) for x, _ in parts)
        parts += [repeated(self.forgotten), (w.told.tokens, w.told.labels)]
        x, y = (np.concatenate(part)[:, None] for part in zip(*parts))
        sizes = Sizes(retain=retain, pool=len(x) - retain, forget=len(x) - retain)
        return self.engine(_examples(x, y), sizes), self._info(sizes, self.config.target)

    def unlearning(self, known: np.ndarray) -> tuple[Engine, TaskInfo, np.ndarray]:
        """What methods work on: facts of the forget set with all variants after those who stay.

        Args:
            known: [nf] bool, which facts of the forget set they are shown.

        Returns:
            The engine, what methods are told, and [n] bool, which rows they have.
        """
        w, material = self.words, self.material
        key = jax.random.fold_in(self.root, SUBSTITUTES)
        stays = material.retained.facts
        others = pii.substitutes(key, material.forgotten.facts, known, material.refusals, outside=stays)
        forget = tokens.encode_facts(w.tokenizer, material.forgotten.facts, None, others)
        given = self.given
        told = np.isin(
            [passage.person for passage in material.retained.passages], [stays[i].person for i in np.flatnonzero(given)]
        )
        parts = [
            (w.facts.tokens[self.retained, 0][given], w.facts.labels[self.retained, 0][given]),
            (w.retained.tokens[told], w.retained.labels[told]),
            (w.pieces, w.pieces),
        ]
        x, y = (np.concatenate(part)[:, None].repeat(len(VARIANTS), axis=1) for part in zip(*parts))
        length = max(forget.tokens.shape[-1], x.shape[-1])
        pair = (_widened(x, length, w.tokenizer.pad), _widened(y, length))
        pair = (
            np.concatenate([pair[0], _widened(forget.tokens, length, w.tokenizer.pad)]),
            np.concatenate([pair[1], _widened(forget.labels, length)]),
        )
        sizes = Sizes(retain=len(x), pool=len(known), forget=int(known.sum()))
        member = np.concatenate([np.ones(len(x), bool), known])
        return self.engine(_examples(*pair), sizes), self._info(sizes, self.config.target), member

    def recovering(self) -> tuple[Engine, np.ndarray]:
        """P3: all facts that models were trained on are the pool; and [F] whether a fact is in it."""
        trained = np.arange(len(self.material.facts)) < self.control.start
        rows = self.words.facts
        sizes = Sizes(retain=0, pool=int(trained.sum()), forget=self.config.recovery.samples)
        runs = self.plan.runs_per_chunk * self.config.recovery.draws
        plan = planning.choose(self.mesh, runs, width=self.plan.width, runs_per_chunk=runs)
        return self.engine(_examples(rows.tokens[trained], rows.labels[trained]), sizes, plan), trained

    def asking(self) -> Engine:
        """No rows: models are only looked at."""
        none = np.zeros((1, 1, 1))
        return self.engine(_examples(none, none), Sizes(retain=1, pool=0, forget=0))

    def shown(self, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P2: [F, P'] questions after answers of known people, padded on the left, and lengths [F]."""
        rng = host_generator(jax.random.fold_in(self.root, SHOWN))
        facts = self.material.facts
        pool = np.flatnonzero(known)
        chosen = extraction.demonstrations(rng, self.persons, range(len(facts)), pool, shots=self.config.shots)
        prompts = [
            extraction.in_context(fact.prompt, [(facts[i].prompt, facts[i].answer) for i in row])
            for fact, row in zip(facts, chosen)
        ]
        return tokens.encode_prompts(self.words.tokenizer, prompts)

    @cached_property
    def questions(self) -> tuple[text.Question, ...]:
        """Multiple-choice questions; none where they are not asked for."""
        path = self.config.choices
        return () if path is None else text.read_questions(str(path))

    @cached_property
    def choices(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and labels [q, T] of the questions, a row for each choice.

        Raises:
            InputError: A question is longer than what the model reads.
        """
        rows = tokens.encode_continuations(self.words.tokenizer, *text.choice_rows(self.questions))
        jax.eval_shape(self.language.logits, self.parameter_shapes, rows[0][:1])
        return rows

    @property
    def asked(self) -> dict[str, Any]:
        """What results depend on beside the settings, where models are asked more than the facts."""
        return {} if self.config.choices is None else {"choices": _digest(self.config.choices)}

    @cached_property
    def data(self) -> dict[str, Any]:
        """What results depend on beside the settings: the texts, and the files of weights and tokenizer."""
        named = {"weights": self.config.decoder.weights, "tokenizer": self.config.decoder.tokenizer}
        return self.material.identity | {name: _digest(path) for name, path in named.items() if path is not None}


def _digest(path: Any) -> str:
    """Of a file, or of all files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _examples(x: np.ndarray, y: np.ndarray) -> Examples:
    return Examples(jnp.asarray(x, jnp.int32), jnp.asarray(y, jnp.int32))


def _widened(rows: np.ndarray, length: int, fill: int = -100) -> np.ndarray:
    """Rows filled up on the right."""
    room = [(0, 0)] * (rows.ndim - 1) + [(0, length - rows.shape[-1])]
    return np.pad(rows, room, constant_values=fill)


def build(config: Privacy, devices: Sequence[Any] | None = None, *, runs_per_chunk: int | None = None) -> Study:
    """Loads data and decoder; nothing is compiled yet.

    Args:
        config: The settings.
        devices: JAX devices; None means all of this process.
        runs_per_chunk: Seeds between two checkpoints that a run directory was begun with.
    """
    root = jax.random.key(config.seed)
    material = materials.load(config, jax.random.fold_in(root, DATA))
    large = config.decoder.weights is not None  # one fills a device, and what a kill may cost counts
    runs = config.seeds if large else None
    mesh = planning.make_mesh(devices, parameter_shards=config.parameter_shards, runs=runs)
    if large and runs_per_chunk is None:
        runs_per_chunk = min(config.seeds, mesh.shape[planning.AXIS])
    plan = planning.choose(mesh, config.seeds, width=1 if large else None, runs_per_chunk=runs_per_chunk)
    make: Any = {"dtype": config.decoder.precision, "remat": config.decoder.remat}
    if config.decoder.weights is None:
        tokenizer = _learnt(config, material)
        architecture, pretrained = decoder_architecture(config.decoder, tokenizer.vocabulary), None
    else:
        tokenizer = tokens.load(str(config.decoder.tokenizer or config.decoder.weights))
        architecture, pretrained = language_weights.load_language_model(str(config.decoder.weights))
        require(
            tokenizer.vocabulary <= architecture.vocabulary,
            f"Expected a tokenizer of at most {architecture.vocabulary} ids for {config.decoder.weights}, got one of "
            f"{tokenizer.vocabulary}; name the model's own by decoder.tokenizer.",
        )
    words = _tokenised(config, material, tokenizer)
    language = transformer.language_model(architecture, **make)
    return Study(config, material, words, language, pretrained, mesh, plan, root)


def _learnt(config: Privacy, material: Material) -> Tokenizer:
    """A byte-pair encoding of everything that models see."""
    facts = [fact.prompt + fact.answer for fact in material.forgotten.facts + material.retained.facts]
    told = [passage.text for passage in material.forgotten.passages + material.retained.passages]
    return tokens.train_bpe([material.text, *facts, *told], config.decoder.vocabulary)


def _tokenised(config: Privacy, material: Material, tokenizer: Tokenizer) -> Words:
    def told(corpus: pii.Corpus, length: int | None) -> tokens.Rows:
        if not corpus.passages:
            return tokens.Rows(*(np.zeros((0, length or 1), kind) for kind in (np.int32, np.int32, bool)))
        return tokens.encode_passages(tokenizer, corpus.passages, length)

    found = [
        tokens.encode_facts(tokenizer, material.facts),
        told(material.forgotten, None),
        told(material.retained, None),
    ]
    length = max(ROW, *(rows.tokens.shape[-1] for rows in found))
    facts, forgotten, retained = (
        tokens.Rows(
            _widened(rows.tokens, length, tokenizer.pad), _widened(rows.labels, length), _widened(rows.pii, length, 0)
        )
        for rows in found
    )
    prompts = tokens.encode_prompts(tokenizer, [fact.prompt for fact in material.facts])
    # Demonstrations make prompts as long as so many rows: positions that the model should have met.
    no_text = np.zeros((0, length), np.int32)
    pieces = tokens.chunk_text(tokenizer, material.text, length) if material.text else no_text
    held_out = tokens.chunk_text(tokenizer, material.held_out, length)
    rng = host_generator(jax.random.key(config.seed))
    drawn = rng.permutation(len(pieces))[: config.people.chunks]
    return Words(
        tokenizer=tokenizer,
        facts=facts,
        told=forgotten,
        retained=retained,
        text=tokens.chunk_text(tokenizer, material.text, length * config.decoder.text_rows)
        if material.text
        else no_text,
        pieces=pieces[drawn],
        held_out=held_out[: config.people.held_out],
        prompts=prompts,
    )
