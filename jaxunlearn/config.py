"""Typed configurations. The fields of ``Methods`` are the only registry of methods."""

import dataclasses
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro

from jaxunlearn import _validate
from jaxunlearn._options import UNSAID, PathOption
from jaxunlearn._paths import AnyPath, absolute, as_path
from jaxunlearn._validate import InputError
from jaxunlearn.attack.likelihood import Variance
from jaxunlearn.audit.preregistration import WARMUP_RUNS
from jaxunlearn.records import as_json
from jaxunlearn.types import TaskInfo, Unlearner
from jaxunlearn.unlearn.arithmetic import WHP, TaskVector
from jaxunlearn.unlearn.ascent import IDA, Ascent
from jaxunlearn.unlearn.base import SGD, AdamW
from jaxunlearn.unlearn.bounded import CEU, UNDIAL, SimNPO, WeightedAscent
from jaxunlearn.unlearn.clipping import Clipping
from jaxunlearn.unlearn.finetune import Finetune, Retrain
from jaxunlearn.unlearn.hessian import Hessian
from jaxunlearn.unlearn.influence import Influence
from jaxunlearn.unlearn.preference import DPO, GA, NPO
from jaxunlearn.unlearn.relabel import RandomLabel, SalUn
from jaxunlearn.unlearn.rewind import Rewind
from jaxunlearn.unlearn.sparsity import L1Sparse
from jaxunlearn.unlearn.steering import RAU, RMU
from jaxunlearn.unlearn.substitution import Substitution


@dataclasses.dataclass(frozen=True, kw_only=True)
class Methods:
    """Hyperparameters of the built-in methods; on the command line ``--method.NAME.OPTION``."""

    retrain: Retrain = Retrain()
    """Retraining on the retain set: the exact reference."""
    finetune: Finetune = Finetune()
    """Fine-tuning on the retain set."""
    ascent: Ascent = Ascent()
    """Gradient ascent on the forget set, then fine-tuning."""
    ida: IDA = IDA()
    """Interleaved descent-ascent, then fine-tuning."""
    clipping: Clipping = Clipping()
    """Model clipping with its certificate."""
    clipping_uncertified: Clipping = Clipping(epsilon=None, clip=5.0, sigma=1e-4)
    """Model clipping with too little noise to prove anything."""
    rewind: Rewind = Rewind()
    """Rewind-to-delete."""
    hessian: Hessian = Hessian()
    """A Newton-style step by LiSSA, then noise."""
    rl: RandomLabel = RandomLabel()
    """Random labels for the forget set."""
    salun: SalUn = SalUn()
    """Saliency unlearning: random labels, on the weights that matter to the forget set."""
    l1_sparse: L1Sparse = L1Sparse()
    """Fine-tuning on the retain set with an l1 penalty."""
    influence: Influence = Influence()
    """Influence unlearning, IU: a step along an inverse Fisher product."""


def _field_name(method: str) -> str:
    return method.replace("-", "_")


def _gdr(method: Any) -> Any:
    return dataclasses.replace(method, retain="gdr")


def _klr(method: Any) -> Any:
    return dataclasses.replace(method, retain="klr")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageMethods:
    """Hyperparameters of the built-in methods for language models; on the command line ``--method.NAME.OPTION``."""

    retrain: Retrain = Retrain()
    """Retraining on the retain set: the exact reference."""
    ga: GA = GA()
    """Gradient ascent on the known answers."""
    ga_gdr: GA = _gdr(GA())
    """The same, with descent on the retain set."""
    ga_klr: GA = _klr(GA())
    """The same, held near the target model on the retain set by a KL divergence."""
    npo: NPO = NPO()
    """Negative preference optimisation."""
    npo_gdr: NPO = _gdr(NPO())
    npo_klr: NPO = _klr(NPO())
    dpo: DPO = DPO()
    """Preference for a refusal over the answer."""
    dpo_gdr: DPO = _gdr(DPO())
    dpo_klr: DPO = _klr(DPO())
    task_vector: TaskVector = TaskVector()
    """What fine-tuning on the known answers adds to the weights, taken off."""
    rmu: RMU = RMU()
    """Hidden states of known answers steered to a random direction."""
    rl: Substitution = Substitution(substitute="random")
    """Random answers in place of the known ones."""
    rl_gdr: Substitution = _gdr(Substitution(substitute="random"))
    rm: Substitution = Substitution(substitute="mapped")
    """The known answers mixed up among the known questions."""
    rm_gdr: Substitution = _gdr(Substitution(substitute="mapped"))
    idk: Substitution = Substitution(substitute="refusal")
    """Sentences that decline in place of the known answers."""
    idk_gdr: Substitution = _gdr(Substitution(substitute="refusal"))
    whp: WHP = WHP()
    """Who's Harry Potter: labels from which a model that knows the answers even better is taken off."""
    whp_gdr: WHP = _gdr(WHP())
    rau: RAU = RAU()
    """Hidden states of known answers anchored to the base model's, at several depths."""
    sim_npo: SimNPO = SimNPO()
    """NPO without a reference, by mean log-likelihoods."""
    wga: WeightedAscent = WeightedAscent()
    """Gradient ascent weighted by confidence."""
    undial: UNDIAL = UNDIAL()
    """Self-distillation from logits lowered at the answer."""
    ce_u: CEU = CEU()
    """Cross-entropy to the distribution without the answer."""


PRIVUN_METHODS = (
    "retrain",
    "ga",
    "ga-gdr",
    "ga-klr",
    "npo",
    "npo-gdr",
    "npo-klr",
    "dpo",
    "dpo-gdr",
    "dpo-klr",
    "task-vector",
    "rmu",
    "rl",
    "rl-gdr",
    "rm",
    "rm-gdr",
    "whp",
    "whp-gdr",
    "idk",
    "idk-gdr",
    "rau",
)
"""Retraining, PrivUn's nineteen, and its own."""
LANGUAGE_METHOD_NAMES: tuple[str, ...] = tuple(f.name.replace("_", "-") for f in dataclasses.fields(LanguageMethods))
METHOD_NAMES: tuple[str, ...] = tuple(f.name.replace("_", "-") for f in dataclasses.fields(Methods))
AUDITED = ("retrain", "finetune", "ascent", "ida", "clipping", "clipping-uncertified", "rewind", "hessian")
"""What an audit takes unless it is told: the methods of the audit paper."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How the audited models are trained."""

    epochs: int = 60
    """Epochs over D(S), >= 1."""
    batch_size: int | None = 64
    """Examples a step in training and unlearning, >= 1; None takes all at once (full-batch descent)."""
    descent: SGD | AdamW = SGD()

    def __post_init__(self):
        _validate.at_least(1, epochs=self.epochs)
        if self.batch_size is not None:
            _validate.at_least(1, batch_size=self.batch_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
    """What is drawn from Shakespeare, and the size of its character model."""

    source: Literal["plays", "tiny"] = "plays"
    """plays: all plays by role (shakespeare_speeches.jsonl.gz). tiny: tinyshakespeare.txt by speaker."""
    roles: int = 300
    """Roles that are drawn, >= 2."""
    forget_share: float = 0.1
    """Share of the training characters whose roles are in the pool, in (0, 1)."""
    length: int = 80
    """Characters of a window, >= 1."""
    stride: int = 80
    """Characters from one window's start to the next, >= 1."""
    embedding: int = 8
    """Size of a character's embedding, >= 1."""
    hidden: int = 256
    """Units of each LSTM layer, >= 1."""
    layers: int = 2
    """LSTM layers, >= 1."""

    def __post_init__(self):
        _validate.at_least(2, roles=self.roles)
        _validate.open_unit(forget_share=self.forget_share)
        sizes = ("length", "stride", "embedding", "hidden", "layers")
        _validate.at_least(1, **{name: getattr(self, name) for name in sizes})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """Sizes of a small Llama and of the byte-pair encoding that is learnt for it."""

    vocabulary: int = 768
    """Tokens, >= 257."""
    width: int = 128
    """Of the residual stream; heads divide it."""
    layers: int = 4
    """Blocks."""
    heads: int = 4
    """Query heads."""
    kv_heads: int = 2
    """Key and value heads, which divide the query heads."""
    hidden: int = 336
    """Units of the feed-forward parts."""

    def __post_init__(self):
        _validate.at_least(257, vocabulary=self.vocabulary)
        sizes = ("width", "layers", "heads", "kv_heads", "hidden")
        _validate.at_least(1, **{name: getattr(self, name) for name in sizes})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """Audit unlearning algorithms: a guaranteed lower bound on epsilon from many train-and-unlearn runs."""

    dataset: tyro.conf.Suppress[Literal["digits", "mnist", "cifar10", "cifar100", "shakespeare", "people"]]
    """Data set; digits is embedded, the others are read from the folder named by JAXUNLEARN_DATA."""
    methods: tuple[str, ...] = AUDITED
    """Methods to audit: built-in names (beside the default's: rl, salun, l1-sparse, influence), or your own as
    package.module:name (a function of TaskInfo to an Unlearner)."""
    out: Annotated[PathOption | None, UNSAID] = None
    """Run directory, local or in an object store (gs://, s3://, ...); the same command resumes it. Default: runs/DATASET."""
    population: Annotated[PathOption | None, UNSAID] = None
    """Where the trained models go; give several audits with equal training the same one. Default: OUT/population."""
    keep: Literal["none", "final", "all"] = "final"
    """Models that stay on disk at the end. none: neither; not with --population. final: the trained ones. all: the
    unlearned ones as well, in OUT/METHOD/models."""
    model: Literal["linear", "mlp", "cnn", "gn-cnn", "tinynet", "resnet18-gn", "resnet50-gn", "lstm", "decoder"] = "mlp"
    """Architecture; lstm is Shakespeare's, decoder the people's."""
    calibration_runs: int = 50
    """Runs that fit the attack (with the joint and pairwise predictors: per sign vector), >= 2."""
    evaluation_runs: int = 10
    """Runs that are evaluated, L >= 1."""
    claim_epsilon: Annotated[float | None, UNSAID] = None
    """Test the claim "(epsilon, delta)-certified" and stop at the first run that falsifies it; makes the audit sequential."""
    claim_delta: Annotated[float | None, UNSAID] = None
    """delta of that claim, in [0, 1). Default: delta."""
    sequential: bool = False
    """Attack every run after the warm-up with what the runs before it taught: a bound at every run count at once. At most
    calibration_runs + evaluation_runs runs in all; a larger number goes on where the audit ended."""
    warmup_runs: Annotated[int | None, UNSAID] = None
    """Sequential audits: first runs, which only teach the attack. Default: 4."""
    split: Literal["uniform", "adversarial"] = "uniform"
    """uniform: random candidates. adversarial: candidates and retain set from disjoint classes (at most one shared)."""
    pool_size: int = 400
    """Candidate examples, m * B; of Shakespeare the chunks of text that the forget roles' speeches are cut into, m."""
    candidate_batch_size: int = 1
    """B, examples per candidate batch; must divide pool_size. m = pool_size / B."""
    predictor: Literal["batchwise", "joint", "pairwise"] = "batchwise"
    """batchwise: a likelihood ratio per batch. joint: a hypothesis per sign vector, small m. pairwise: joint, m = 2."""
    variance: Annotated[Variance | None, UNSAID] = None
    """Gaussian fits: pooled variance; one per example and side (the paper's); shrunken: between the two; batch, full:
    pooled, with correlations between the scores of a batch or of the run. Default: full; pooled in sequential audits and
    with the joint and pairwise predictors."""
    attack: Literal["gaussian", "multivariate", "stacked", "auto"] = "gaussian"
    """gaussian: the first of signals alone. multivariate: one Gaussian over all. stacked: a classifier over their ratios.
    auto: what cross-validation on calibration runs prefers, the variance included."""
    signals: tuple[Literal["logit", "loss", "margin", "augmented"], ...] = ("logit",)
    """Scores of an example; augmented: the logits of shifted (and, for CIFAR, mirrored) copies."""
    r: Annotated[int | None, UNSAID] = None
    """Guess budget of the paper's bounds and of overlap, even, <= m; not used by sequential audits. Default: about m / 4
    (m <= 15: m / 2; joint and pairwise: m)."""
    zeta: float = 0.05
    """Error level: each epsilon holds with confidence 1 - zeta. In (0, 1)."""
    delta: float = 1e-5
    """delta of the audited (epsilon, delta) claim, in [0, 1); the paper's bounds beside are at delta = 0."""
    trajectory: Annotated[tuple[int, ...], UNSAID] = ()
    """Steps of unlearning, over all its phases, after which epsilon is bounded as well, as if it had stopped there; the
    points share the level zeta, so that all hold at once."""
    fresh_init: bool = False
    """New initial weights and order in every run, hidden from the attack: audits Definition 3.2 as well as 3.3."""
    seed: int = 0
    """Seed of everything random: split, initial weights, order, sign vectors, noise. The same seed gives the same evaluation
    runs: to try another attack, r or zeta after a look, take another."""
    training: Training = Training()
    text: Text = Text()
    decoder: Decoder = Decoder(vocabulary=320, width=48, layers=2, heads=2, kv_heads=1, hidden=128)
    people_retained: int = 40
    """Of people: invented people of the retain set, with four facts each; as many are held out. >= 1."""
    method: Methods = Methods()
    language_method: LanguageMethods = LanguageMethods()
    plan: str = "auto"
    """How many runs a device computes at once, and the form of the layers. auto: measured where the job is long enough for
    that to repay. measure: measured. show: measured, printed, and nothing else done. WIDTH or WIDTH:FORM, such as 4:patches:
    fixed."""
    precision: Literal["float32", "tensorfloat32", "bfloat16"] = "float32"
    """float32: as it says, on every device. tensorfloat32: fewer bits in products, faster on accelerators. bfloat16: forward
    and backward pass in bfloat16, weights and losses in float32."""
    parameter_shards: int = 1
    """Devices over which the parameters of one run are spread, for models too large for one; >= 1."""
    runs_per_chunk: Annotated[int | None, UNSAID] = None
    """Runs between two checkpoints; at most these are lost to a kill. Default: 8 per device or more, or as the run directory
    was begun."""
    distributed: bool = False
    """Work as one of several processes, which JAX's cluster detection finds: Slurm, Open MPI, Kubernetes, TPU pods."""
    coordinator: Annotated[str | None, UNSAID] = None
    """HOST:PORT of process 0, where nothing is detected; with num_processes and process_id."""
    num_processes: Annotated[int | None, UNSAID] = None
    """Processes that share the run directory, with process_id; without a coordinator they share nothing else."""
    process_id: Annotated[int | None, UNSAID] = None
    """Which of them this one is, from 0; process 0 merges."""
    quiet: bool = False
    """No progress bar."""

    def __post_init__(self):
        _validate.not_empty("methods", self.methods)
        _validate.require(
            len(set(self.methods)) == len(self.methods),
            f"Expected methods without repetition, got {' '.join(self.methods)}.",
        )
        _validate.at_least(2, calibration_runs=self.calibration_runs)
        _validate.at_least(1, evaluation_runs=self.evaluation_runs)
        _validate.require(
            len(set(self.trajectory)) == len(self.trajectory) and all(step >= 0 for step in self.trajectory),
            f"Expected trajectory steps >= 0, each once, got {' '.join(map(str, self.trajectory))}.",
        )
        _validate.open_unit(zeta=self.zeta)
        _validate.half_open_unit(delta=self.delta)
        _validate.at_least(0, seed=self.seed)
        _validate.require(self.seed < 1 << 32, f"Expected seed={self.seed} < 2 ** 32.")
        _validate.require(
            self.population is None or absolute(self.population) != absolute(self.directory),
            f"Expected population={self.population} to be another folder than the run directory.",
        )
        _validate.require(
            self.keep != "none" or self.population is None,
            f"Expected keep='final' or 'all' with population={self.population}, whose models other audits may want; leave "
            "out one of them.",
        )
        if self.r is not None:
            _validate.guess_budget(self.r, self.m)
        _validate.require(
            (self.dataset == "shakespeare") == (self.model == "lstm"),
            f"Expected model='lstm' with dataset='shakespeare' and only there, got {self.model!r} with {self.dataset!r}.",
        )
        _validate.require(
            (self.dataset == "people") == (self.model == "decoder"),
            f"Expected model='decoder' with dataset='people' and only there, got {self.model!r} with {self.dataset!r}.",
        )
        _validate.at_least(1, people_retained=self.people_retained)
        _validate.require(
            self.dataset != "people" or self.split == "uniform",
            f"Expected split='uniform' of dataset='people', got {self.split!r}.",
        )
        _validate.require(
            self.dataset != "shakespeare" or self.candidate_batch_size == 1 and self.split == "uniform",
            f"Expected candidate_batch_size=1 and split='uniform' of dataset='shakespeare', whose candidates are chunks of "
            f"text, got {self.candidate_batch_size} and {self.split!r}.",
        )
        _validate.require(
            self.dataset not in ("shakespeare", "people") or self.signals == ("logit",),
            f"Expected no other signals with dataset={self.dataset!r} than its log-likelihood, got {' '.join(self.signals)}; "
            "leave out signals.",
        )
        self._check_attack()
        self._check_sequential()
        _validate.at_least(1, parameter_shards=self.parameter_shards)
        _validate.require(
            (self.num_processes is None) == (self.process_id is None),
            f"Expected num_processes and process_id together, got {self.num_processes} and {self.process_id}.",
        )
        _validate.require(
            self.coordinator is None or self.num_processes is not None,
            f"Expected num_processes and process_id beside coordinator={self.coordinator!r}.",
        )
        if self.fixed_plan[0] is not None:
            _validate.at_least(1, plan=self.fixed_plan[0])
        if self.predictor == "pairwise":
            _validate.require(
                self.m == 2,
                f"Expected m=2 for predictor='pairwise', got m={self.m}; set candidate_batch_size={self.pool_size // 2}.",
            )
        if self.predictor == "joint":
            _validate.require(
                self.m <= 12,
                f"Expected m={self.m} <= 12 for predictor='joint', since every sign vector has calibration runs of its own; "
                f"use a larger candidate_batch_size (now {self.candidate_batch_size}).",
            )

    def _check_sequential(self) -> None:
        if self.claim_delta is not None:
            _validate.half_open_unit(claim_delta=self.claim_delta)
            _validate.require(self.claim_epsilon is not None, "Expected claim_epsilon beside claim_delta; set it too.")
        if self.claim_epsilon is not None:
            _validate.non_negative(claim_epsilon=self.claim_epsilon)
        if not self.is_sequential:
            _validate.require(
                self.warmup_runs is None,
                f"Expected no warmup_runs={self.warmup_runs} without sequential or claim_epsilon; set calibration_runs.",
            )
            return
        _validate.require(
            self.predictor == "batchwise",
            f"Expected predictor='batchwise' for a sequential audit, got {self.predictor!r}, which must calibrate every "
            "sign vector before the first evaluation; leave out sequential and claim_epsilon, or predictor.",
        )
        _validate.require(
            not self.trajectory,
            f"Expected no trajectory={' '.join(map(str, self.trajectory))} in a sequential audit, which bounds the end; "
            "leave out trajectory, or sequential and claim_epsilon.",
        )
        _validate.require(
            self.attack == "gaussian" and self.fit_variance in ("pooled", "per_example"),
            f"Expected attack='gaussian' and variance='pooled' or 'per_example' in a sequential audit, got {self.attack!r} "
            f"and {self.variance!r}: the others are not fitted run by run.",
        )
        _validate.at_least(2 + self.m % 2, warmup_runs=self.warmup)  # fewer leave a batch on one side
        _validate.require(
            self.warmup < self.most_runs,
            f"Expected warmup_runs={self.warmup} < calibration_runs + evaluation_runs = {self.most_runs}, the most runs in "
            "all; use more evaluation_runs.",
        )

    @property
    def fixed_plan(self) -> tuple[int | None, str]:
        """Width and form where ``plan`` fixes them; None and "" where they are chosen."""
        if self.plan in ("auto", "measure", "show"):
            return None, ""
        width, _, form = self.plan.partition(":")
        _validate.require(
            width.isdecimal(),
            f"Expected plan to be auto, measure, show, WIDTH or WIDTH:FORM, got plan={self.plan!r}.",
        )
        return int(width), form

    @property
    def fit_variance(self) -> str:
        """The Gaussian fits' variance, as chosen or by default."""
        if self.variance is not None:
            return self.variance
        return "full" if self.predictor == "batchwise" and not self.is_sequential else "pooled"

    @property
    def is_sequential(self) -> bool:
        """Whether runs are attacked as they come, and the audit may stop."""
        return self.sequential or self.claim_epsilon is not None

    @property
    def warmup(self) -> int:
        """Warm-up runs of a sequential audit."""
        return WARMUP_RUNS if self.warmup_runs is None else self.warmup_runs

    @property
    def most_runs(self) -> int:
        """The most runs of a sequential audit, warm-up included."""
        return self.calibration_runs + self.evaluation_runs

    @property
    def audited_delta(self) -> float:
        """The hypothesis's delta."""
        return self.delta if self.claim_delta is None else self.claim_delta

    def _check_attack(self) -> None:
        _validate.not_empty("signals", self.signals)
        _validate.require(
            len(set(self.signals)) == len(self.signals) and self.signals[0] != "augmented",
            f"Expected signals without repetition and not augmented first, got {' '.join(self.signals)}.",
        )
        if self.attack != "gaussian":
            _validate.require(
                self.predictor == "batchwise",
                f"Expected predictor='batchwise' for attack={self.attack!r}, got {self.predictor!r}; use attack='gaussian'.",
            )
        if self.attack in ("multivariate", "stacked"):
            _validate.require(
                len(self.signals) > 1,
                f"Expected at least two signals for attack={self.attack!r}, got {' '.join(self.signals)}.",
            )
        _validate.require(
            self.attack != "auto" or self.variance is None,
            f"Expected no variance={self.variance!r} with attack='auto', which chooses it.",
        )
        _validate.require(
            self.attack != "multivariate" or self.fit_variance in ("pooled", "batch", "full"),
            f"Expected variance='pooled', 'batch' or 'full' for attack='multivariate', got {self.variance!r}.",
        )
        _validate.require(
            self.predictor == "batchwise" or self.variance != "batch",
            f"Expected another variance than 'batch' for predictor={self.predictor!r}; use 'full'.",
        )

    @property
    def m(self) -> int:
        """Number of candidate batches."""
        _validate.at_least(1, candidate_batch_size=self.candidate_batch_size)
        fits = max(2, self.pool_size // self.candidate_batch_size) * self.candidate_batch_size
        _validate.require(
            self.pool_size % self.candidate_batch_size == 0,
            f"Expected candidate_batch_size={self.candidate_batch_size} to divide pool_size={self.pool_size}; "
            f"use pool_size={fits}.",
        )
        _validate.at_least(2 * self.candidate_batch_size, pool_size=self.pool_size)
        return self.pool_size // self.candidate_batch_size

    @property
    def directory(self) -> AnyPath:
        """The run directory."""
        return self.out if self.out is not None else as_path("runs") / self.dataset

    @property
    def population_directory(self) -> AnyPath:
        """Where the trained models go."""
        return self.population if self.population is not None else self.directory / "population"


TRAINING_FIELDS = (
    "dataset",
    "calibration_runs",
    "evaluation_runs",
    "model",
    "split",
    "pool_size",
    "candidate_batch_size",
    "fresh_init",
    "seed",
    "training",
    "precision",
)
"""Fields of Audit that the trained population depends on (with whether calibration is designed)."""
AUDIT_FIELDS = ("predictor", "r", "zeta", "delta", "trajectory")
"""Further fields that all results of a run directory depend on; a method's own hyperparameters come on top."""


def training_identity(config: Audit) -> dict[str, Any]:
    """What the trained population depends on."""
    identity = {name: as_json(getattr(config, name)) for name in TRAINING_FIELDS}
    if config.dataset == "shakespeare":
        identity["text"] = as_json(config.text)
    if config.dataset == "people":
        identity |= {"decoder": as_json(config.decoder), "people_retained": config.people_retained}
    return _of_sequential(config, {**identity, "designed_calibration": config.predictor != "batchwise"})


def audit_identity(config: Audit) -> dict[str, Any]:
    """What all results of a run directory depend on."""
    identity = training_identity(config) | {name: as_json(getattr(config, name)) for name in AUDIT_FIELDS}
    return _of_sequential(config, identity | attack_terms(config))


def _of_sequential(config: Audit, identity: dict[str, Any]) -> dict[str, Any]:
    """A sequential audit depends neither on how many runs there may be nor on the claim, but on the warm-up."""
    if not config.is_sequential:
        return identity
    free = ("calibration_runs", "evaluation_runs", "r")
    delta = {"delta": config.audited_delta} if "delta" in identity else {}
    return {k: v for k, v in identity.items() if k not in free} | delta | {"warmup_runs": config.warmup}


def attack_terms(config: Audit) -> dict[str, Any]:
    """The attack: bounding the same evaluation runs with another one is a second look at them."""
    return {"variance": config.fit_variance, "attack": config.attack, "signals": list(config.signals)}


def resolve(config: Audit, name: str) -> tuple[Callable[[TaskInfo], Unlearner], dict[str, Any]]:
    """Finds a method of an audit by name; of people, those for language models come first. See ``resolve_method``."""
    if config.dataset == "people" and name in LANGUAGE_METHOD_NAMES:
        return resolve_method(name, config.language_method)
    if config.dataset == "people" and name not in METHOD_NAMES and ":" not in name:
        _validate.one_of("method", name, (*LANGUAGE_METHOD_NAMES, *METHOD_NAMES))
    return resolve_method(name, config.method)


def resolve_method(
    name: str, methods: Methods | LanguageMethods
) -> tuple[Callable[[TaskInfo], Unlearner], dict[str, Any]]:
    """Finds a method by name.

    Args:
        name: A built-in name, or ``package.module:attribute`` (the current folder is on the path).
        methods: Hyperparameters of the built-in ones.

    Returns:
        The factory, and what its results depend on: the hyperparameters, or the hash of the module's source.

    Raises:
        InputError: Unknown name (with a suggestion), module or attribute.
    """
    if ":" in name:
        return _import_method(name)
    _validate.one_of("method", name, [field.name.replace("_", "-") for field in dataclasses.fields(methods)])
    config = getattr(methods, _field_name(name))
    return config.build, as_json(config)


def _import_method(name: str) -> tuple[Callable[[TaskInfo], Unlearner], dict[str, Any]]:
    module_name, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # an installed script does not look in the current folder
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(
            f"Cannot import method={name!r} ({error}); is {module_name} installed or in this folder?"
        ) from error
    except Exception as error:  # a module can fail in any way while it is imported
        text = " ".join(str(error).split())
        raise InputError(f"Cannot import method={name!r} ({type(error).__name__}: {text}); mend the module.") from error
    if not hasattr(module, attribute):
        callables = [n for n, v in vars(module).items() if callable(v) and v.__module__ == module_name]
        _validate.one_of(f"function of {module_name}", attribute, callables)
    factory = getattr(module, attribute)
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError) as error:
        raise InputError(f"Expected method={name!r} in a module with Python source, got {module_name}.") from error
    return factory, {"source": name, "sha256": hashlib.sha256(source.encode()).hexdigest()}


def method_directory_name(name: str) -> str:
    """The folder of a method inside the run directory."""
    return name.replace(":", ".").replace("/", ".")
