"""Which candidate batches are in which run, written down before any run; for audits in any framework, needs no JAX."""

import csv
import dataclasses
import datetime
import hashlib
import io
import secrets
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from jaxunlearn import records
from jaxunlearn._options import UNSAID, PathOption
from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import InputError, at_least, guess_budget, one_of, require
from jaxunlearn._version import __version__
from jaxunlearn.attack import likelihood
from jaxunlearn.audit import design, least_favourable, validity
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.engine import store
from jaxunlearn.pipeline import outlook
from jaxunlearn.records import CALIBRATION, EVALUATION, ROLE_NAMES

FILES = ("design.json", "signs.npy", "runs.csv", "candidates.csv")

# Numbers that come first in the spawn key of a generator, one per purpose; a new purpose takes a new number.
_SIGNS, _RUNS, _SHARED, _SIMULATION = range(4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
    """Write down which candidate batches are in which run, before any run; then train in any framework.

    Say how many candidates there are with one of --m, --pool-size or --examples.
    """

    m: Annotated[int | None, UNSAID] = None
    """Candidate batches, >= 2."""
    pool_size: Annotated[int | None, UNSAID] = None
    """Candidate examples, m * B; candidates.csv then says which batch each is in (examples are numbered from 0)."""
    examples: Annotated[PathOption | None, UNSAID] = None
    """Text file with one id a line of the candidate examples, as you call them, in place of --pool-size."""
    candidate_batch_size: int = 1
    """B, examples per candidate batch; must divide the number of candidate examples. m = that number / B."""
    calibration_runs: int = 50
    """Runs that fit the attack (with the joint and pairwise predictors: per sign vector), >= 2."""
    evaluation_runs: int = 10
    """Runs that are evaluated, L >= 1."""
    predictor: Literal["batchwise", "joint", "pairwise"] = "batchwise"
    """batchwise: a likelihood ratio per batch. joint: a hypothesis per sign vector, small m. pairwise: joint, m = 2."""
    variance: Annotated[likelihood.Variance | None, UNSAID] = None
    """Gaussian fits: pooled variance; one per example and side (the paper's); shrunken: between the two; batch, full:
    pooled, with correlations between the scores of a batch or of the run. Default: full; joint and pairwise: pooled."""
    r: Annotated[int | None, UNSAID] = None
    """Guess budget of the paper's bounds, even, <= m. Default: about m / 4 (joint and pairwise: m)."""
    zeta: float = 0.05
    """Error level: each epsilon holds with confidence 1 - zeta. In (0, 1)."""
    delta: float = 0.0
    """delta of the audited (epsilon, delta) claim, in [0, 1); ``jaxunlearn audit`` has 1e-5."""
    seed: Annotated[int | None, UNSAID] = None
    """Root of the sign vectors and of every run's seed, in 0..2**63 - 1. Default: drawn, and kept in design.json."""
    simulate: bool = False
    """Also simulate which epsilon to expect from attacks of three strengths (seconds to a minute)."""
    out: Annotated[PathOption | None, UNSAID] = None
    """Directory to write the design to. Default: nothing is written, only what it could show is printed."""

    def __post_init__(self):
        at_least(2, calibration_runs=self.calibration_runs)
        at_least(1, evaluation_runs=self.evaluation_runs, candidate_batch_size=self.candidate_batch_size)
        require(
            self.predictor == "batchwise" or self.variance != "batch",
            f"Expected another variance than 'batch' for predictor={self.predictor!r}; use 'full'.",
        )
        if self.seed is not None:
            require(0 <= self.seed < 1 << 63, f"Expected seed={self.seed} in 0..2**63 - 1.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDesign:
    """A design as it is used.

    Attributes:
        signs: [runs, m] int8 in {-1, +1}, calibration runs first; rows of evaluation runs are independent and uniform.
        roles: [runs] int8, CALIBRATION or EVALUATION.
        seeds: [runs] int64 >= 0, all different; functions of root seed, role and number within the role alone.
        plan: What is preregistered.
        settings: What was asked for; it decides everything above.
        created: When it was written, ISO 8601 (empty before).
        digest: sha256 of signs.npy (empty before).
    """

    signs: np.ndarray
    roles: np.ndarray
    seeds: np.ndarray
    plan: Preregistration
    settings: dict[str, Any]
    created: str = ""
    digest: str = ""


def _generator(root: int, *purpose: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(root, spawn_key=purpose))


SEEDS = 20
"""Seeds that are tried before too few calibration runs are blamed."""


def _seed(root: int, *purpose: int) -> int:
    """63 bits: they fit a signed integer of any reader."""
    return int(np.random.SeedSequence(root, spawn_key=purpose).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _draw_anywhere(settings: dict[str, Any]) -> RunDesign:
    """``draw`` with a seed of its own. One whose calibration runs cannot fit an attack is replaced: evaluation runs, whose
    signs are functions of the seed by themselves, stay uniform; nothing is ever replaced for their sake.
    """
    for tries_left in reversed(range(SEEDS)):
        settings["seed"] = secrets.randbits(48)  # exact in readers that keep numbers as floating point
        try:
            return draw(settings)
        except validity.OneSidedError:
            if not tries_left:
                raise
    raise AssertionError


def draw(settings: dict[str, Any]) -> RunDesign:
    """Draws the runs of a design.

    Args:
        settings: As ``RunDesign.settings``, with a root seed.

    Raises:
        InputError: A setting is out of range, or the calibration runs could not fit an attack.
    """
    m, root, predictor = settings["m"], settings["seed"], settings["predictor"]
    levels = {name: settings[name] for name in ("zeta", "delta", "r")}
    plan = Preregistration.default(
        predictor, m=m, batch_size=settings["candidate_batch_size"], L=settings["evaluation_runs"], **levels
    )
    calibration, evaluation = settings["calibration_runs"], settings["evaluation_runs"]
    designed = None if predictor == "batchwise" else np.tile(design.sign_vectors(m), (calibration, 1))
    counts = (calibration if designed is None else len(designed), evaluation)
    names = [(role, i) for role, count in zip((CALIBRATION, EVALUATION), counts) for i in range(count)]
    signs = np.concatenate([least_favourable.draw_signs(_generator(root, _SIGNS, *name), 1, m) for name in names])
    if designed is not None:
        signs[: counts[0]] = designed
    validity.check_both_sides(signs[: counts[0]])
    validity.check_evaluation_signs(signs[counts[0] :])
    seeds = np.array([_seed(root, _RUNS, *name) for name in names], np.int64)
    require(
        np.unique(seeds).size == seeds.size, f"Expected seeds that differ, but seed={root} repeats one; use another."
    )
    roles = np.array([role for role, _ in names], np.int8)
    return RunDesign(signs=signs, roles=roles, seeds=seeds, plan=plan, settings=settings)


def _read_ids(path: AnyPath) -> list[str]:
    require(path.is_file(), f"Expected a file at examples={path}, found none.")
    try:
        ids = [line.strip() for line in path.read_bytes().decode("utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Cannot read examples={path} ({error}); use a text file with one id a line.") from error
    seen: set[str] = set()
    for text in ids:
        require(text not in seen, f"Expected every id in examples={path} once, but {text!r} occurs again.")
        seen.add(text)
    return ids


def _candidates(chosen: Design) -> tuple[int, list[str] | None]:
    """M, and the ids of the candidate examples where they are known."""
    ways = {"--m": chosen.m, "--pool-size": chosen.pool_size, "--examples": chosen.examples}
    given = [name for name, value in ways.items() if value is not None]
    require(len(given) == 1, f"Expected one of --m, --pool-size and --examples, got {' and '.join(given) or 'none'}.")
    if chosen.m is not None:
        at_least(2, m=chosen.m)
        return chosen.m, None
    ids = [str(i) for i in range(chosen.pool_size or 0)] if chosen.examples is None else _read_ids(chosen.examples)
    B, size = chosen.candidate_batch_size, len(ids)
    require(
        size % B == 0 and size >= 2 * B,
        f"Expected candidate_batch_size={B} to divide the {size} candidate examples into at least 2 batches; use "
        f"{max(2, size // B) * B} examples or another size.",
    )
    return size // B, ids


def _settings(chosen: Design, m: int, ids: list[str] | None) -> dict[str, Any]:
    names = ("candidate_batch_size", "calibration_runs", "evaluation_runs", "predictor", "variance", "r", "zeta")
    text = None if ids is None else hashlib.sha256("\n".join(ids).encode()).hexdigest()
    settings = {name: getattr(chosen, name) for name in (*names, "delta", "seed")}
    settings["variance"] = chosen.variance or ("full" if chosen.predictor == "batchwise" else "pooled")
    if chosen.r is not None:
        guess_budget(chosen.r, m)
    return {"m": m, "candidates": text, **settings}


def _csv(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def column(batch: int) -> str:
    """The name of a batch's column in runs.csv, and in CSV files of scores."""
    return f"batch_{batch}"


def _write(directory: AnyPath, made: RunDesign, ids: list[str] | None) -> None:
    m, B = made.plan.m, made.plan.batch_size
    buffer = io.BytesIO()
    np.save(buffer, made.signs, allow_pickle=False)
    head = ["run", "role", "seed", *map(column, range(m))]
    roles = [ROLE_NAMES[role] for role in made.roles]
    rows = [[i, roles[i], made.seeds[i], *made.signs[i].tolist()] for i in range(len(roles))]
    files = {"signs.npy": buffer.getvalue(), "runs.csv": _csv([head, *rows])}
    if ids is not None:
        files["candidates.csv"] = _csv([["example", "batch"], *([text, i // B] for i, text in enumerate(ids))])
    facts = {
        "preregistration": made.plan.to_json(),
        "shared_seed": _seed(made.settings["seed"], _SHARED),
        "runs": {name: roles.count(name) for name in ROLE_NAMES},
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        "version": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    with store.disk_errors(directory):
        for name, data in files.items():
            records.write_bytes(directory / name, data)
    # Last: a design without it was interrupted, and nobody can have used it.
    store.open_manifest(directory, "design.json", made.settings, **facts)


def run(chosen: Design) -> str:
    """Writes a design, or finds the same one written already.

    Returns:
        What the design can show, and what to do next.

    Raises:
        InputError: A setting is out of range, or the directory holds another design; nothing was written then.
    """
    m, ids = _candidates(chosen)
    settings = _settings(chosen, m, ids)
    out = chosen.out
    exists = out is not None and (out / "design.json").exists()
    if out is not None and exists:
        if chosen.seed is None:  # the same command again, and its seed was drawn
            settings["seed"] = load(out).settings["seed"]
        store.open_manifest(out, "design.json", settings)
        made = load(out)
    else:
        made = draw(settings) if chosen.seed is not None else _draw_anywhere(settings)
    if out is not None and not exists:
        strangers = [name for name in FILES if (out / name).exists()]
        require(
            not strangers,
            f"{out} has {' and '.join(strangers)} and no design.json; use another --out directory, or delete them.",
        )
        _write(out, made, ids)
    text = [outlook.heading(made.plan, made.roles, out, found=exists), outlook.ceilings(made.plan, chosen.r)]
    if chosen.simulate:
        rng = _generator(made.settings["seed"], _SIMULATION)
        text.append(outlook.expected(rng, made.plan, made.roles, made.signs, variance=made.settings["variance"]))
    text.append(outlook.next_steps(made.plan, len(made.roles), out, candidates=ids is not None))
    return "\n\n".join(text)


def load(directory: AnyPath) -> RunDesign:
    """Reads a design, and checks that its sign vectors are the ones that it was written with.

    Raises:
        InputError: There is none, it is damaged, or signs.npy was changed.
    """
    path = directory / "design.json"
    require(
        path.is_file(), f"Expected a design in {directory}, found no design.json; write one with jaxunlearn design."
    )
    data = records.read_json(path)
    try:
        settings, schema, digest = dict(data["config"]), data["schema"], data["sha256"]["signs.npy"]
        plan = Preregistration.from_json(data["preregistration"])
        counts = [int(data["runs"][name]) for name in ROLE_NAMES]
        variance, root = settings["variance"], int(settings["seed"])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"Cannot read the design in {path} ({type(error).__name__}: {error}); restore it.") from error
    one_of("variance", variance, likelihood.VARIANCES)
    require(schema == records.SCHEMA, f"Expected schema={records.SCHEMA} in {path}, got {schema!r}; use its version.")
    file = directory / "signs.npy"
    require(file.is_file(), f"Expected the design's sign vectors at {file}, found none; restore the file.")
    content = file.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    require(
        found == digest,
        f"{file} is not the one that the design was written with (sha256 {found[:12]}…, not {str(digest)[:12]}…); "
        "restore it: runs made by other sign vectors are another audit.",
    )
    signs = np.load(io.BytesIO(content), allow_pickle=False)
    require(
        signs.shape == (sum(counts), plan.m) and counts[1] == plan.L,
        f"Expected {sum(counts)} runs of m={plan.m} batches in {file}, got {signs.shape}; restore design.json.",
    )
    roles = np.repeat(np.array([CALIBRATION, EVALUATION], np.int8), counts)
    names = [(role, i) for role, count in zip((CALIBRATION, EVALUATION), counts) for i in range(count)]
    seeds = np.array([_seed(root, _RUNS, *name) for name in names], np.int64)
    return RunDesign(
        signs=design.check_signs(signs),
        roles=roles,
        seeds=seeds,
        plan=plan,
        settings=settings,
        created=str(data.get("created", "")),
        digest=found,
    )
