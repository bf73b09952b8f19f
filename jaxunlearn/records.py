"""What a run leaves on disk: host-side records as npz and JSON, and the sign convention.

Sign convention, everywhere in this package: S[j] = +1 means that candidate batch j **was** in the training and the forget
set of the run (it was trained on and then unlearned); S[j] = -1 means that the run never saw it. Scores and log-likelihood
ratios: higher = more likely still in the model, so a high score argues for S[j] = +1.

Layout of a run directory::

    DIR/manifest.json            configuration, versions, device, preregistered bounds
    DIR/signs.npz                signs, roles and indices of all runs
    DIR/population/              trained models D(S), shared by all methods (orbax, each chunk with a commit file of sizes
                                 and checksums), rewound-K/ before its end, and preregistrations.json, all terms under
                                 which these runs were bounded
    DIR/<method>/method.json     the method's hyperparameters
    DIR/<method>/chunks/         scores of finished chunks, until all are done
    DIR/<method>/scores.npz      scores and accuracies of every run
    DIR/<method>/evaluation.npz  log-likelihood ratios, signs and p-values of the evaluation runs
    DIR/<method>/trajectory.npz  scores of the models on the way, where asked for
    DIR/<method>/bound.json      the bounds (BoundRecord)
    DIR/<method>/models/         the unlearned models, where they are kept
    DIR/<method>/figures/        the panels of the page
    DIR/overview.png, DIR/report.html  all methods in one picture; one self-contained page

``jaxunlearn bound --design D`` writes the same under D/results, without a population.

Every file here can be checked: npz files and JSON objects carry a checksum, checkpoints have theirs in the commit file. What
follows from other files (bounds and p-values from scores, scores from trained models, trained models from the configuration)
is computed again where it is damaged; manifest.json, method.json and preregistrations.json do not, and are refused.
docs/run-directories.md has the table.
"""

import dataclasses
import hashlib
import io
import json
import os
import uuid
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxunlearn._paths import AnyPath, is_local
from jaxunlearn._validate import InputError, require

SCHEMA = 1
_SEAL = "checksum"
_SEAL_SIZE = 64  # hexadecimal digits of sha256
CALIBRATION, EVALUATION = 0, 1
ROLE_NAMES = ("calibration", "evaluation")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundEntry:
    """One lower bound on epsilon.

    Attributes:
        name: Which bound: "evidence", "lattice", "overlap", "count", "paper_mean", "paper_median", "clopper_pearson",
            "e_process".
        epsilon: The lower bound in nats, finite and >= 0.
        ceiling: The largest value this bound can take at this design, in nats.
        zeta: The level at which it was computed (zeta / K for one of K preregistered bounds).
        status: "preregistered" (a candidate for the headline), "reference" (the paper's own, at the full zeta, shown
            beside) or "exploratory" (chosen after looking).
        r: The guess budget, where the bound has one.
        detail: Anything else worth keeping (mean overlap, the unhalved value, ...).
    """

    name: str
    epsilon: float
    ceiling: float
    zeta: float
    status: str
    r: int | None = None
    detail: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name with its guess budget, as printed."""
        return self.name if self.r is None else f"{self.name} (r = {self.r})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundRecord:
    """Everything that DIR/<method>/bound.json holds.

    Attributes:
        method: The audited unlearning algorithm.
        title: What was audited, for headings ("digits").
        epsilon: The headline: the largest preregistered bound, in nats.
        statistic: The label of the bound that gave it.
        delta: The hypothesis's delta.
        zeta: The error level of the headline as a whole.
        ceiling: The largest value the headline bound could have taken.
        paper_mean: The audit paper's mean bound, after halving, at the full zeta and the preregistered r; None for a
            sequential audit, since that bound needs a fixed number of runs and a fixed attack.
        paper_median: The same for the median.
        predictor: "batchwise", "joint" or "pairwise".
        definition: The paper's definition that was audited: "3.3" (initial weights and order known) or "3.2".
        m: Candidate batches.
        batch_size: Examples in a candidate batch.
        calibration_runs: Runs made to fit the attack and for nothing else (a sequential audit's warm-up); those that failed
            are counted here and left out of the fit.
        evaluation_runs: Runs evaluated, L (a sequential audit's until it stopped).
        bounds: All bounds, the headline candidates first.
        by_r: Exploratory curves over the guess budget: lists "r", "overlap", "paper_mean", "accuracy".
        log_p_values: One per evaluation run, natural log.
        accuracy: name -> {"mean", "sd"} over evaluation and calibration runs, in [0, 1]; names are "retain", "forget" (the
            run's own forget set), "unseen" (the candidates the run never saw) and "test".
        seconds: Wall time by stage ("train", "unlearn", "score", "bound").
        failed_runs: Indices of evaluation runs that failed and count as p = 1.
        certificate: What theory proves for the method as configured: {"epsilon", "delta", "source"} or None.
        notes: Sentences for the reader: warnings, what was not done.
        trajectory: Bounds after chosen steps of unlearning, each at zeta over their number, so that all hold at once: lists
            "step", "epsilon", "paper_mean", "ceiling" and mean accuracies; the last is the end; {} when none were asked for.
        sequential: Of a sequential audit, else None: "path" (the any-time bound after each evaluation run, in nats),
            "warmup" (runs), "most_runs" (warm-up and evaluation runs it could have had), and "claim", None or {"epsilon",
            "delta", "falsified", "evaluation_runs" (until falsified, or all), "log_e_value" (against it, then)}.
    """

    method: str
    title: str
    epsilon: float
    statistic: str
    delta: float
    zeta: float
    ceiling: float
    paper_mean: float | None
    paper_median: float | None
    predictor: str
    definition: str
    m: int
    batch_size: int
    calibration_runs: int
    evaluation_runs: int
    bounds: list[BoundEntry]
    by_r: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    log_p_values: list[float] = dataclasses.field(default_factory=list)
    accuracy: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    failed_runs: list[int] = dataclasses.field(default_factory=list)
    certificate: dict[str, Any] | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    trajectory: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    sequential: dict[str, Any] | None = None
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, ready for json.dumps."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "BoundRecord":
        """The inverse of ``to_json``.

        Raises:
            InputError: The file was written by another schema or lacks a field.
        """
        require(
            data.get("schema") == SCHEMA,
            f"Expected schema={SCHEMA} in bound.json, got {data.get('schema')!r}; run the audit again with this version.",
        )
        names = {f.name for f in dataclasses.fields(cls)}
        try:
            fields: dict[str, Any] = {k: v for k, v in data.items() if k in names}
            fields["bounds"] = [BoundEntry(**b) for b in data["bounds"]]
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise InputError(f"bound.json lacks a field ({error}); run the audit again.") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreRecord:
    """Scores of all runs of one method.

    Attributes:
        signs: [runs, m] int8 in {-1, +1}.
        roles: [runs] int8, CALIBRATION or EVALUATION.
        indices: [runs] int64, the run's number within its role; with the role it names the run's key.
        scores: [runs, m, B] floats, higher = more likely still in the model.
        accuracy: name -> [runs] float32 in [0, 1].
        failed: [runs] bool, runs whose scores are not finite.
        signals: Name -> [runs, m, B], other scores of the same examples; higher = more likely still in the model.
    """

    signs: np.ndarray
    roles: np.ndarray
    indices: np.ndarray
    scores: np.ndarray
    accuracy: dict[str, np.ndarray]
    failed: np.ndarray
    signals: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def stacked(self) -> np.ndarray:
        """[K, runs, m, B]: ``scores``, then ``signals``."""
        return np.stack([self.scores, *self.signals.values()])

    def accuracy_summary(self) -> dict[str, dict[str, float]]:
        """Mean and standard deviation over the runs that did not fail."""
        summary = {}
        for name, values in self.accuracy.items():
            good = values[~self.failed & np.isfinite(values)]
            if good.size:
                summary[name] = {"mean": float(good.mean()), "sd": float(good.std())}
        return summary

    def save(self, path: AnyPath) -> None:
        """Writes one npz atomically."""
        named = {f"accuracy_{k}": v for k, v in self.accuracy.items()}
        named |= {f"signal_{k}": v for k, v in self.signals.items()}
        arrays = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("accuracy", "signals")
        }
        write_npz(path, **arrays, **named)

    @classmethod
    def load(cls, path: AnyPath) -> "ScoreRecord":
        """Reads what ``save`` wrote.

        Raises:
            InputError: It is missing, damaged, or holds other arrays.
        """
        arrays = read_npz(path, sealed=True)
        accuracy, signals = (
            {k.removeprefix(prefix): arrays.pop(k) for k in list(arrays) if k.startswith(prefix)}
            for prefix in ("accuracy_", "signal_")
        )
        try:
            return cls(**arrays, accuracy=accuracy, signals=signals)
        except TypeError as error:
            raise Damaged(f"{path} holds other arrays than scores ({error}).") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvexRow:
    """The audit of one convex mechanism at one noise level.

    Attributes:
        epsilon: The certified epsilon that the noise was made for, in nats.
        sigma: Standard deviation of the noise.
        exact: The epsilon, at delta, of the two Gaussians at hand: what a perfect auditor of these two data sets would
            find. The certificate is for the worst data sets.
        accuracy: Share of evaluation draws whose law was recognised, in [0, 1].
        bounds: Lower bounds on epsilon by name, each at the full zeta: "pairwise" (appendix A.3, not halved), "joint" (the
            paper's m = r = 2, not halved, at delta = 0), "fair" (fair labels) and "tuned" (pairwise at the threshold that was
            best on calibration draws).
        counts: Evaluation counts: "unlearned" and "retained" draws, of them recognised "true_positives" and taken for
            unlearned "false_positives", and the last two at the tuned threshold.
        threshold: The tuned threshold on the log-likelihood ratio, in nats.
    """

    epsilon: float
    sigma: float
    exact: float
    accuracy: float
    bounds: dict[str, float]
    counts: dict[str, int]
    threshold: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvexRecord:
    """Everything that DIR/<problem>/convex.json holds: an audit of Definition H.1 on one convex problem.

    Attributes:
        problem: "cubic", "logistic" or "output-perturbation".
        delta: delta of the certificate and of the bounds.
        zeta: Error level of every bound.
        seed: Seed of data and noise.
        calibration_runs: Noisy models of either law that the Gaussians are fitted to.
        evaluation_draws: Draws in all; a fair coin chooses the law of each.
        draws: "mechanism" (the draws are noisy models) or "fitted" (from the fitted Gaussians, as the paper says).
        covariance: "pooled" or "separate".
        retained: The minimiser on the retain set, [d].
        unlearned: The unlearned weights before noise, [d].
        trained: The weights before unlearning, [d].
        sensitivity: What the certificate's noise hides, an l2 distance.
        ratio: rho, the distance of ``retained`` and ``unlearned`` over ``sensitivity``.
        constants: Constants of the certificate.
        settings: The problem's settings.
        ceilings: The largest values that the bounds can take, by name.
        rows: One for every certified epsilon.
        seconds: Wall time.
        notes: Sentences for the reader.
    """

    problem: str
    delta: float
    zeta: float
    seed: int
    calibration_runs: int
    evaluation_draws: int
    draws: str
    covariance: str
    retained: list[float]
    unlearned: list[float]
    trained: list[float]
    sensitivity: float
    ratio: float
    constants: dict[str, float]
    settings: dict[str, float]
    ceilings: dict[str, float]
    rows: list[ConvexRow]
    seconds: float = 0.0
    notes: list[str] = dataclasses.field(default_factory=list)
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, ready for json.dumps."""
        return dataclasses.asdict(self)


def as_json(value: Any) -> Any:
    """Dataclasses, tuples and paths as JSON-like values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [as_json(v) for v in value]
    return str(value) if isinstance(value, os.PathLike) else value


class Damaged(InputError):
    """A file that was written by this package, and is not as it was written."""


def write_bytes(path: AnyPath, data: bytes) -> None:
    """Writes a file so that a reader sees the old content or the new, never a part.

    Local files by a temporary file, fsync and a rename; an object store shows an object once it is complete.
    """
    if not is_local(path):
        path.write_bytes(data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")  # containers all have process 1
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def digest(data: Any) -> str:
    """sha256 of a JSON-like value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, allow_nan=False).encode()).hexdigest()


def write_json(path: AnyPath, data: Any) -> None:
    """Writes indented JSON atomically; NaN and infinity are refused, since no other reader takes them.

    An object gets its own checksum as a last entry, so that ``read_json`` knows a changed one.
    """
    if isinstance(data, Mapping):
        data = {name: value for name, value in data.items() if name != _SEAL}
        data[_SEAL] = digest(json.loads(json.dumps(data, allow_nan=False)))
    write_bytes(path, (json.dumps(data, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: AnyPath, fix: str = "restore it from a copy, or run again what wrote it") -> Any:
    """Reads JSON, without its checksum.

    Args:
        path: The file.
        fix: What to do if it is damaged.

    Raises:
        Damaged: It does not parse, or does not match its checksum.
        InputError: It is missing.
    """
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(f"Expected a file at {path}, found none; is this a run directory?") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"{path} is damaged: it is no JSON ({error}); {fix}.") from error
    seal = data.pop(_SEAL, None) if isinstance(data, dict) else None
    if seal is not None and seal != digest(data):
        raise Damaged(f"{path} is damaged: its content is not what its checksum says; {fix}.")
    return data


def write_npz(path: AnyPath, **arrays: np.ndarray) -> None:
    """Writes an uncompressed npz atomically, with the sha256 of all before it as the archive's comment."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = b"0" * _SEAL_SIZE
    content = buffer.getvalue()[:-_SEAL_SIZE]
    write_bytes(path, content + hashlib.sha256(content).hexdigest().encode())


def read_npz(path: AnyPath, *, sealed: bool = False) -> dict[str, np.ndarray]:
    """Reads all arrays of an npz; pickled objects are refused.

    Args:
        path: The file.
        sealed: Whether ``write_npz`` wrote it: then every byte of it is checked. Else the arrays are, by the archive's own
            CRC-32.

    Raises:
        Damaged: It cannot be read, or is sealed and differs from what was written.
        InputError: It is missing.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"Expected a file at {path}, found none.") from error
    except OSError as error:
        raise Damaged(f"Expected an npz archive in {path}, but it cannot be read ({error}).") from error
    if sealed and hashlib.sha256(content[:-_SEAL_SIZE]).hexdigest().encode() != content[-_SEAL_SIZE:]:
        raise Damaged(f"{path} is damaged: its content is not what its checksum says.")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # zipfile.BadZipFile, ValueError, EOFError: every way a truncated file shows itself
        raise Damaged(f"Expected an npz archive in {path}, but it cannot be read ({error}).") from error


def read_arrays(path: AnyPath, *names: str) -> dict[str, np.ndarray]:
    """Reads some arrays of a large npz, checked by the archive's own CRC-32; the rest stays on disk.

    Raises:
        Damaged: One of them is missing or cannot be read.
        InputError: The file is missing.
    """
    try:
        with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except FileNotFoundError as error:
        raise InputError(f"Expected a file at {path}, found none.") from error
    except Exception as error:  # as in read_npz; KeyError: there is no array of that name
        raise Damaged(f"Expected an npz archive with {', '.join(names)} in {path}, but ({error}).") from error
