"""The settings of ``jaxunlearn audit``, and what results depend on."""

import dataclasses
from typing import Annotated, Any, Literal

import tyro

from jaxunlearn import _validate
from jaxunlearn._options import UNSAID, PathOption
from jaxunlearn._paths import AnyPath, absolute, as_path
from jaxunlearn.attack.likelihood import Variance
from jaxunlearn.audit.preregistration import WARMUP_RUNS
from jaxunlearn.config.language_methods import LanguageMethods
from jaxunlearn.config.methods import AUDITED, Methods
from jaxunlearn.config.training import Decoder, Text, Training
from jaxunlearn.records import as_json


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
