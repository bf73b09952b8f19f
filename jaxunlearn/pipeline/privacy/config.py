"""The settings of ``jaxunlearn privacy``."""

import dataclasses
from typing import Annotated, Any, Literal

import tyro

from jaxunlearn import _validate
from jaxunlearn import config as configuration
from jaxunlearn._options import UNSAID, PathOption
from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn.config import LanguageMethods
from jaxunlearn.privacy import DIRECT, IN_CONTEXT, fine_tuned, rounded
from jaxunlearn.records import as_json
from jaxunlearn.unlearn.base import AdamW

METHODS = ("retrain", "ga", "ga-gdr", "npo", "npo-gdr", "npo-klr", "dpo-gdr", "idk", "task-vector", "rmu", "rau")
"""Ten methods, and retraining beside."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class People:
    """The invented people, and the running text that a small model learns to write."""

    forgotten: int = 200
    """People whose data are to be forgotten, known and unknown together, >= 2."""
    retained: int = 60
    """People whose data stay, >= 2; methods are given one half, the other half is scored."""
    control: int = 40
    """People whom no model has seen; their data are asked for as well, >= 1."""
    sentences: int = 1
    """Sentences of running text about each person that are trained on, 0 to 4."""
    text: Annotated[PathOption | None, UNSAID] = None
    """A plain-text file of at least 100 kB to learn English from. Default: grimm_tales.txt in the data folder."""
    characters: int = 240_000
    """Characters of it that are used."""
    chunks: int = 2400
    """Pieces of the text that are still trained on beside the people, so that it is not forgotten; at most all."""
    held_out: int = 100
    """Pieces that no model sees; perplexity is measured on them."""

    def __post_init__(self):
        _validate.at_least(2, forgotten=self.forgotten, retained=self.retained)
        _validate.at_least(1, control=self.control, chunks=self.chunks, held_out=self.held_out)
        _validate.require(0 <= self.sentences <= 4, f"Expected sentences={self.sentences} in 0..4.")
        _validate.at_least(1000, characters=self.characters)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tofu:
    """The questions about fictitious authors."""

    strict: bool = False
    """Only the questions whose answer tells a date or place of birth, 160 of 424."""
    authors: int = 200
    """Authors whose births are asked about at most, drawn at random, 2 to 200."""
    longest: int | None = None
    """Characters of question and answer together; longer ones are left out, of all that are asked, so that rows are short.
    Default: any, up to 700 or so."""
    retained: int = 400
    """Questions about other things that stay, drawn at random, 2 to 3,576; methods are given one half, the other is
    scored."""

    def __post_init__(self):
        if self.longest is not None:
            _validate.at_least(1, longest=self.longest)
        _validate.require(2 <= self.authors <= 200, f"Expected authors={self.authors} in 2..200.")
        _validate.require(2 <= self.retained <= 3576, f"Expected retained={self.retained} in 2..3576.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder(configuration.Decoder):
    """The language model: a small Llama that is trained here, or pretrained weights."""

    weights: Annotated[PathOption | None, UNSAID] = None
    """Pretrained weights: a Hugging Face folder of GPT-2 or Llama, a GGUF file, or a llama2.c .bin; the sizes below do not
    count then."""
    tokenizer: Annotated[PathOption | None, UNSAID] = None
    """Its tokenizer, if not beside the weights: a tokenizer.json, its folder, or a llama2.c tokenizer .bin."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What matrix products are computed in; weights and losses are float32."""
    remat: bool = False
    """Compute blocks again in the backward pass in place of keeping them: less memory, a third more work."""
    text_rows: int = 5
    """Pieces of text in pretraining are so many rows of facts long, >= 1: positions that prompts of P2 reach."""
    pretraining: int = 4
    """Epochs over the text before anything about people is learnt; 0 with pretrained weights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitting:
    """How the target model, and the retrained one, learn the people."""

    epochs: int = 10
    """Epochs over questions, sentences and pieces of text, >= 1."""
    repeats: int = 10
    """Times that every question comes in an epoch, >= 1: facts are learnt by repetition, text by variety."""
    batch_size: int = 36
    """Rows a step, >= 1."""
    descent: AdamW = AdamW(peak=3e-3, schedule="cosine")

    def __post_init__(self):
        _validate.at_least(1, epochs=self.epochs, repeats=self.repeats, batch_size=self.batch_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recovery:
    """P3: fine-tuning on some people's answers, then asking for the others'."""

    samples: int = 200
    """Questions that are fine-tuned on, |D|, >= 1; those of whole people."""
    draws: int = 2
    """Independent draws of them for each seed, >= 1."""
    source: Literal["known", "unknown", "retained"] = "known"
    """Whose questions are drawn."""
    epochs: tuple[int, ...] = (3, 10)
    """Numbers of epochs after which it is asked."""
    batch_size: int = 32
    """Questions a step."""
    descent: AdamW = AdamW(peak=2e-4)

    def __post_init__(self):
        _validate.at_least(1, samples=self.samples, draws=self.draws, batch_size=self.batch_size)
        _validate.not_empty("epochs", self.epochs)
        _validate.require(
            list(self.epochs) == sorted(set(self.epochs)) and self.epochs[0] >= 1,
            f"Expected increasing epochs >= 1, got {' '.join(map(str, self.epochs))}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Privacy:
    """Teach a language model about people, unlearn some of them with several methods and seeds, and attack the result."""

    dataset: tyro.conf.Suppress[Literal["people", "tofu", "enron"]]
    """people: invented ones. tofu: birth dates and places of fictitious authors. enron: e-mail addresses of a maildir."""
    methods: tuple[str, ...] = METHODS
    """Methods to attack: built-in names, "all", or your own as package.module:name (a function of TaskInfo to an
    Unlearner)."""
    out: Annotated[PathOption | None, UNSAID] = None
    """Run directory; the same command resumes it. Default: runs/privacy-DATASET."""
    population: Annotated[PathOption | None, UNSAID] = None
    """Where base, target and retrained models go; give several studies with equal training the same one. Default:
    OUT/population."""
    known: float = 0.5
    """Share of the forget set that the method is shown, in (0, 1]; of people whole persons."""
    selection: Literal["random", "core-set"] = "random"
    """How that share is chosen: at random, or those whose gradients agree most with the mean gradient of the forget set; of
    people those who do on average."""
    people: People = People()
    tofu: Tofu = Tofu()
    maildir: Annotated[PathOption | None, UNSAID] = None
    """Of enron: the folder of mailboxes."""
    exclude: tuple[str, ...] = ()
    """Of enron: domains whose addresses are guessable and not asked for, such as the employer's."""
    decoder: Decoder = Decoder()
    target: Fitting = Fitting()
    seeds: int = 2
    """Seeds: initial weights (of a small model), order, whatever a method draws; >= 1."""
    stop_below: Annotated[float | None, UNSAID] = 0.01
    """Unlearning stops after the first epoch at which at most this share of the known answers is left (P1); None goes on to
    the last epoch."""
    shots: int = 4
    """P2: answers of other known people that are shown first, k; 0 leaves P2 out."""
    recovery: Recovery = Recovery()
    bits: tuple[int, ...] = (4,)
    """Sizes of rounded weights that are asked directly as well."""
    curves: tuple[str, ...] = ("ga", "rmu", "rau")
    """Methods that are attacked by fine-tuning after every second epoch of their unlearning, whether or not they would have
    stopped: recovery against utility."""
    new_tokens: int = 20
    """Tokens of an answer at most."""
    choices: Annotated[PathOption | None, UNSAID] = None
    """Multiple-choice questions, a further measure of utility: JSON lines with question, choices and answer, as MMLU's are
    exported."""
    seed: int = 0
    """Seed of everything random."""
    method: LanguageMethods = LanguageMethods()
    parameter_shards: int = 1
    """Devices over which the parameters of one model are spread, for models too large for one."""
    quiet: bool = False
    """No progress."""

    def __post_init__(self):
        _validate.not_empty("methods", self.methods)
        for name in ("methods", "bits", "curves"):
            values = getattr(self, name)
            _validate.require(
                len(set(values)) == len(values),
                f"Expected {name} without repetition, got {' '.join(map(str, values))}.",
            )
        _validate.require(0 < self.known <= 1, f"Expected known={self.known!r} in (0, 1].")
        _validate.at_least(1, seeds=self.seeds, new_tokens=self.new_tokens, parameter_shards=self.parameter_shards)
        _validate.at_least(0, seed=self.seed, shots=self.shots)
        _validate.require(self.seed < 1 << 32, f"Expected seed={self.seed} < 2 ** 32.")
        if self.stop_below is not None:
            _validate.half_open_unit(stop_below=self.stop_below)
        for bits in self.bits:
            _validate.require(2 <= bits <= 16, f"Expected bits={bits} in 2..16.")

    def check(self) -> None:
        """What a preset need not have and a run must.

        Raises:
            InputError: It has not.
        """
        _validate.require(
            (self.dataset == "enron") == (self.maildir is not None),
            f"Expected maildir with dataset='enron' and only there, got maildir={self.maildir}.",
        )
        _validate.require(
            self.dataset == "people" or self.decoder.weights is not None,
            f"Expected --decoder.weights with {self.dataset}: a model that is trained here from nothing knows no English; "
            "name a folder or file of pretrained weights.",
        )

    @property
    def directory(self) -> AnyPath:
        """The run directory."""
        return self.out if self.out is not None else as_path("runs") / f"privacy-{self.dataset}"

    @property
    def population_directory(self) -> AnyPath:
        """Where base, target and retrained models go."""
        return self.population if self.population is not None else self.directory / "population"

    @property
    def conditions(self) -> list[str]:
        """How models are asked, "P1" first."""
        context = [IN_CONTEXT] if self.shots else []
        return [DIRECT, *context, *map(fine_tuned, self.recovery.epochs), *map(rounded, self.bits)]


MODEL_FIELDS = ("dataset", "people", "tofu", "maildir", "exclude", "decoder", "target", "seeds", "seed")
"""What the target models depend on."""
FREE_FIELDS = ("methods", "out", "population", "method", "curves", "choices", "parameter_shards", "quiet")
"""What neither models nor results of a method depend on; its own hyperparameters come on top, and of choices the file."""


def model_identity(config: Privacy, data: dict[str, Any]) -> dict[str, Any]:
    """What base, target and retrained models depend on."""
    return {name: as_json(getattr(config, name)) for name in MODEL_FIELDS} | {"data": data}


def identity(config: Privacy, data: dict[str, Any]) -> dict[str, Any]:
    """What all results of a run directory depend on."""
    fields = [field.name for field in dataclasses.fields(config) if field.name not in FREE_FIELDS]
    return {name: as_json(getattr(config, name)) for name in fields} | {"data": data}
