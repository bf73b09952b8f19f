"""Audits of certified unlearning on convex losses: section 8 and appendices H and I of the audit paper.

Both laws are known up to noise: the model that unlearned, N(w_bar, sigma^2 I), and the model that never saw the forget set
and unlearned nothing, N(w_r, sigma^2 I). Definition H.1 compares these two, one of which is the reference; so nothing is
halved. The auditor fits Gaussians to some noisy models of either kind and then tells fresh ones apart. Needs no JAX.
"""

import dataclasses
import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from jaxunlearn import _validate, records
from jaxunlearn._options import UNSAID, PathOption
from jaxunlearn.audit import bounds
from jaxunlearn.certificates import gaussian_epsilon, gaussian_sigma
from jaxunlearn.engine import store
from jaxunlearn.pipeline.convex_problems import Cubic, Logistic, Mechanism, OutputPerturbation, OutsideBox, Problem
from jaxunlearn.records import ConvexRecord, ConvexRow

CANDIDATES = 40
Name = Literal["all", "cubic", "logistic", "output-perturbation"]
NAMES: tuple[str, ...] = ("cubic", "logistic", "output-perturbation")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convex:
    """Audit certified unlearning on convex losses, where the certificate, the truth and the bounds can be compared."""

    problem: tyro.conf.Positional[Name] = "all"
    """cubic or logistic (perturbed Newton), output-perturbation, or all."""
    epsilons: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 400.0, 800.0)
    """Certified epsilons in nats, each > 0; the noise is made for each."""
    delta: float = 0.01
    """delta of the certificate and of the bounds, in (0, 1)."""
    zeta: float = 0.05
    """Error level of each bound, in (0, 1)."""
    calibration_runs: int = 50
    """Noisy models of either law to which the Gaussians are fitted."""
    evaluation_draws: int = 200_000
    """Models to tell apart, in all; a fair coin chooses the law of each."""
    draws: Literal["mechanism", "fitted"] = "mechanism"
    """What is told apart: noisy models, or draws from the fitted Gaussians as the paper says (bounds the fit only)."""
    covariance: Literal["pooled", "separate"] = "pooled"
    """Of the fitted Gaussians: one for both laws, or one each as in the paper."""
    seed: int = 0
    """Seed of data and noise, >= 0."""
    cubic: Cubic = Cubic()
    logistic: Logistic = Logistic()
    output_perturbation: OutputPerturbation = OutputPerturbation()
    sweep: bool = False
    """Print how much of Lemma 3's bound the data of appendix H.4 use over its grid, and audit nothing."""
    json: bool = False
    """Print JSON in place of tables."""
    out: Annotated[PathOption | None, UNSAID] = None
    """Directory for records and figures, a folder for each problem. Default: nothing is written."""

    def __post_init__(self):
        _validate.require(
            not self.sweep or self.out is None,
            f"Expected no out={self.out} with sweep, which writes nothing; leave one of them out.",
        )
        _validate.not_empty("epsilons", self.epsilons)
        for epsilon in self.epsilons:
            _validate.positive(epsilons=epsilon)
        _validate.require(
            len(set(self.epsilons)) == len(self.epsilons),
            f"Expected different epsilons, got {list(self.epsilons)}: a repeated one has the same draws.",
        )
        _validate.open_unit(delta=self.delta, zeta=self.zeta)
        _validate.at_least(2, evaluation_draws=self.evaluation_draws)
        _validate.at_least(0, seed=self.seed)
        most = max(1, self.logistic.dimension, self.output_perturbation.dimension)
        _validate.require(
            self.calibration_runs >= most + 2,
            f"Expected calibration_runs={self.calibration_runs!r} >= {most + 2}, or a covariance in {most} dimensions is "
            "singular.",
        )

    def problems(self) -> dict[str, Problem]:
        """The chosen problems by name."""
        chosen = NAMES if self.problem == "all" else (self.problem,)
        return {name: getattr(self, name.replace("-", "_")) for name in chosen}

    def sweepable(self) -> dict[str, Cubic | Logistic]:
        """The chosen problems that Lemma 3 bounds."""
        chosen = {name: problem for name, problem in self.problems().items() if isinstance(problem, Cubic | Logistic)}
        _validate.require(
            bool(chosen),
            f"Expected a problem with Newton's step for sweep, got {self.problem!r}; use cubic or logistic.",
        )
        return chosen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """Gaussians fitted to noisy models, retained (row 0) and unlearned (row 1).

    Attributes:
        mean: [2, d].
        covariance: [2, d, d], ddof = 0.
    """

    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def of(cls, models: np.ndarray, covariance: str) -> "Fit":
        """Fits [2, runs, d] noisy models."""
        mean = models.mean(axis=1)
        centred = models - mean[:, None]
        each = np.swapaxes(centred, 1, 2) @ centred / models.shape[1]
        return cls(
            mean=mean, covariance=np.broadcast_to(each.mean(axis=0), each.shape) if covariance == "pooled" else each
        )

    def llr(self, models: np.ndarray) -> np.ndarray:
        """[n] log-likelihood ratios of [n, d] models in nats; higher = more likely unlearned, not retained."""

        def log_density(mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
            factor = np.linalg.cholesky(covariance)
            white = np.linalg.solve(factor, (models - mean).T)
            return -0.5 * (white**2).sum(axis=0) - np.log(np.diagonal(factor)).sum()

        return log_density(self.mean[1], self.covariance[1]) - log_density(self.mean[0], self.covariance[0])

    def draw(self, rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
        """[n, d] draws of the Gaussians that ``labels`` (0 or 1) name."""
        factor = np.linalg.cholesky(self.covariance)
        noise = rng.normal(size=(labels.size, self.mean.shape[1]))
        return self.mean[labels] + np.einsum("nij,nj->ni", factor[labels], noise)


def _tuned_threshold(fit: Fit, rng: np.random.Generator, runs: int, **levels: float) -> float:
    """The threshold at which the pairwise bound would be largest, were the fitted Gaussians the truth."""
    scores = fit.llr(fit.draw(rng, np.repeat([0, 1], runs))).reshape(2, runs)
    tail = np.geomspace(min(0.1, 10 / runs), 0.5, CANDIDATES)
    candidates = np.append(np.quantile(scores, np.concatenate([tail, 1 - tail]), axis=1).ravel(), 0.0)

    def value(threshold: float) -> float:
        false, true = (int(n) for n in (scores > threshold).sum(axis=1))
        return bounds.clopper_pearson(true, runs, false, runs, halve=False, **levels).epsilon

    return float(max(candidates, key=value))


def _row(mechanism: Mechanism, epsilon: float, chosen: Convex, name: str) -> tuple[ConvexRow, dict[str, np.ndarray]]:
    """Calibrates, then tells fresh draws apart; the streams of the two never meet."""
    bits = int(np.float64(epsilon).view(np.uint64))  # the draws at one epsilon do not depend on the others
    streams = np.random.SeedSequence([chosen.seed, NAMES.index(name), bits]).spawn(4)
    calibrate, tune, toss, evaluate = (np.random.default_rng(stream) for stream in streams)
    sigma = gaussian_sigma(epsilon, chosen.delta, mechanism.sensitivity)
    centres = np.stack([mechanism.retained, mechanism.unlearned])
    dimension = centres.shape[1]
    noise = calibrate.normal(size=(2, chosen.calibration_runs, dimension))
    fit = Fit.of(centres[:, None] + sigma * noise, chosen.covariance)
    levels = {"zeta": chosen.zeta, "delta": chosen.delta}
    threshold = _tuned_threshold(fit, tune, max(1, chosen.evaluation_draws // 2), **levels)

    labels = toss.integers(0, 2, chosen.evaluation_draws)
    if chosen.draws == "mechanism":
        models = centres[labels] + sigma * evaluate.normal(size=(labels.size, dimension))
    else:
        models = fit.draw(evaluate, labels)
    scores = fit.llr(models)
    unlearned = labels == 1
    positives, negatives = int(unlearned.sum()), int((~unlearned).sum())
    counts = {"unlearned": positives, "retained": negatives}
    pairs = {}
    for prefix, cut in (("", 0.0), ("tuned_", threshold)):
        said = scores > cut
        true, false = int((said & unlearned).sum()), int((said & ~unlearned).sum())
        counts |= {f"{prefix}true_positives": true, f"{prefix}false_positives": false}
        pairs[prefix] = (true, false)
    correct = pairs[""][0] + negatives - pairs[""][1]

    def pairwise(true: int, false: int) -> float:
        if min(positives, negatives) == 0:  # every coin fell the same way: nothing can be compared
            return 0.0
        return bounds.clopper_pearson(true, positives, false, negatives, halve=False, **levels).epsilon

    overlaps = np.repeat([2, 0], [correct, labels.size - correct])
    joint = bounds.paper_mean(overlaps, m=2, r=2, zeta=chosen.zeta).epsilon_ldp
    row = ConvexRow(
        epsilon=epsilon,
        sigma=sigma,
        exact=gaussian_epsilon(sigma, chosen.delta, mechanism.distance),
        accuracy=correct / labels.size,
        bounds={
            "pairwise": pairwise(*pairs[""]),
            "joint": float(joint or 0.0),
            "fair": bounds.fair_labels(correct, labels.size, **levels).epsilon,
            "tuned": pairwise(*pairs["tuned_"]),
        },
        counts=counts,
        threshold=threshold,
    )
    return row, {"mean": fit.mean, "covariance": fit.covariance}


def _ceilings(chosen: Convex) -> dict[str, float]:
    draws, levels = chosen.evaluation_draws, {"zeta": chosen.zeta, "delta": chosen.delta}
    half = draws // 2
    pairwise = bounds.clopper_pearson(half, half, 0, draws - half, halve=False, **levels).ceiling
    joint = bounds.paper_mean(np.full(draws, 2), m=2, r=2, zeta=chosen.zeta).epsilon_ldp
    fair = bounds.fair_labels(draws, draws, **levels).ceiling
    return {"pairwise": pairwise, "joint": float(joint or 0.0), "fair": fair, "tuned": pairwise}


_NOTES = {
    "mechanism": "Evaluation draws are fresh noisy models: each bound holds with confidence 1 - zeta.",
    "fitted": "Evaluation draws come from the fitted Gaussians, as the paper says: the numbers bound the epsilon of the fit, "
    "not that of the mechanism.",
}
_JOINT = "joint is at delta = 0 and so bounds the certified epsilon only up to delta; the other bounds are at delta."


def audit(mechanism: Mechanism, chosen: Convex, name: str) -> tuple[ConvexRecord, dict[str, np.ndarray]]:
    """Audits one mechanism at every certified epsilon.

    Args:
        mechanism: What was built.
        chosen: The settings.
        name: One of NAMES.

    Returns:
        The record, and the arrays of convex.npz: mean [epsilons, 2, d] and covariance [epsilons, 2, d, d] of the fits,
        retained first.
    """
    began = time.perf_counter()
    rows, fits = zip(*(_row(mechanism, epsilon, chosen, name) for epsilon in chosen.epsilons))
    record = ConvexRecord(
        problem=name,
        delta=chosen.delta,
        zeta=chosen.zeta,
        seed=chosen.seed,
        calibration_runs=chosen.calibration_runs,
        evaluation_draws=chosen.evaluation_draws,
        draws=chosen.draws,
        covariance=chosen.covariance,
        retained=mechanism.retained.tolist(),
        unlearned=mechanism.unlearned.tolist(),
        trained=mechanism.trained.tolist(),
        sensitivity=mechanism.sensitivity,
        ratio=mechanism.ratio,
        constants=mechanism.constants,
        settings=dataclasses.asdict(getattr(chosen, name.replace("-", "_"))),
        ceilings=_ceilings(chosen),
        rows=list(rows),
        seconds=time.perf_counter() - began,
        notes=[_NOTES[chosen.draws], _JOINT],
    )
    return record, {key: np.stack([fit[key] for fit in fits]) for key in fits[0]}


def build(problem: Problem, name: str, seed: int) -> Mechanism:
    """Builds a problem on the data that belong to the seed."""
    return problem.build(np.random.default_rng([seed, NAMES.index(name)]))


def run(chosen: Convex) -> list[ConvexRecord]:
    """Audits the chosen problems and, with ``out``, writes convex.json, convex.npz and figure.png for each.

    Raises:
        InputError: A setting is out of range, or the directory holds an audit with other settings.
    """
    mechanisms = {name: build(problem, name, chosen.seed) for name, problem in chosen.problems().items()}
    if chosen.out is not None:
        settings = records.as_json(chosen)
        identity = {k: v for k, v in settings.items() if k not in ("out", "json", "sweep", "problem")}
        store.open_manifest(chosen.out, "manifest.json", identity)
    found = []
    for name, mechanism in mechanisms.items():
        record, arrays = audit(mechanism, chosen, name)
        found.append(record)
        if chosen.out is not None:
            from jaxunlearn.report.convex import figure

            folder = chosen.out / name
            with store.disk_errors(folder):
                records.write_npz(folder / "convex.npz", **arrays)
                figure(record).write_png(folder / "figure.png")
                records.write_json(folder / "convex.json", record.to_json())
    return found


GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "cubic": {
        "third": (0.001, 0.002, 0.005),
        "box": (2.5, 3.0, 3.5),
        "radius": (4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0),
        "quadratic": (0.10, 0.12, 0.15, 0.18, 0.20),
    },
    "logistic": {
        "regularisation": (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0),
        "forget_norm": (1.0, 2.0, 5.0, 10.0),
    },
}
"""The grid of appendix H.4.1, and ours for appendix H.4.2, which prints only where its own was best."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ratio:
    """One point of a sweep.

    Attributes:
        settings: What was varied.
        ratio: rho, the distance over Lemma 3's bound; None where the minimiser leaves the box.
        distance: |w_r - w_bar|, or None.
        sensitivity: Lemma 3's bound, or None.
    """

    settings: dict[str, float]
    ratio: float | None
    distance: float | None = None
    sensitivity: float | None = None


def rho_sweep(
    problem: Cubic | Logistic, grid: Mapping[str, Iterable[float]] | None = None, *, seed: int = 0
) -> list[Ratio]:
    """How much of Lemma 3's bound perturbed Newton uses over a grid (appendix H.3 and H.4).

    Args:
        problem: Everything that the grid does not vary.
        grid: Field -> values; default: GRIDS of the problem's kind.
        seed: Seed of the data, the same at every point.

    Returns:
        All points, the largest ratio first, those outside the box last.
    """
    name = "cubic" if isinstance(problem, Cubic) else "logistic"
    varied = GRIDS[name] if grid is None else grid
    found = []
    for values in itertools.product(*varied.values()):
        settings: dict[str, Any] = dict(zip(varied, values))
        try:
            built = build(dataclasses.replace(problem, **settings), name, seed)
        except OutsideBox:
            found.append(Ratio(settings=settings, ratio=None))
            continue
        found.append(
            Ratio(settings=settings, ratio=built.ratio, distance=built.distance, sensitivity=built.sensitivity)
        )
    return sorted(found, key=lambda point: -1.0 if point.ratio is None else point.ratio, reverse=True)
