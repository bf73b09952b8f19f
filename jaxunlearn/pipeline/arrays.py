"""Arrays from files that somebody else wrote: npy, npz, CSV; every way in which they can be wrong is one line."""

import csv
import io
from collections.abc import Collection

import numpy as np

from jaxunlearn import records
from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import InputError, require
from jaxunlearn.pipeline import design_runs


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_array(path: AnyPath, name: str) -> np.ndarray:
    """Reads npy, npz (the array called ``name``, or the only one) or CSV (numbers, optionally one header line).

    Raises:
        InputError: Absent, unreadable, or no such array; the message names the file.
    """
    require(path.is_file(), f"Expected a file at {name}={path}, found none.")
    try:
        array = _read_csv(path) if path.suffix not in (".npy", ".npz") else _read_numpy(path, name)
    except InputError:
        raise
    except Exception as error:  # every way a file can be something else than it says
        text = " ".join(str(error).split())
        raise InputError(f"Cannot read {name} from {path} ({text}); use npy, npz or CSV with one row a run.") from error
    require(array.dtype.kind in "biuf", f"Expected numbers in {name}={path}, got an array of {array.dtype}.")
    return array


def _read_numpy(path: AnyPath, name: str) -> np.ndarray:
    if path.suffix == ".npy":
        return np.lib.format.read_array(io.BytesIO(path.read_bytes()), allow_pickle=False)
    arrays = records.read_npz(path)
    if name in arrays:
        return arrays[name]
    require(
        len(arrays) == 1, f"Expected an array called {name} in {path}, found {', '.join(arrays) if arrays else 'none'}."
    )
    return next(iter(arrays.values()))


def _csv_rows(path: AnyPath) -> list[list[str]]:
    text = path.read_bytes().decode("utf-8-sig")  # spreadsheets put a byte-order mark first
    return [row for row in csv.reader(io.StringIO(text, newline="")) if row]


def _read_csv(path: AnyPath) -> np.ndarray:
    rows = _csv_rows(path)
    if rows and not any(map(_is_number, rows[0])):  # a row that holds a number is no header, even where it is broken
        rows = rows[1:]
    return np.array(rows, np.float64)


def as_scores(array: np.ndarray, name: str, m: int) -> np.ndarray:
    """[runs, m] or [runs, m, B] as [runs, m, B]."""
    given = array.shape
    array = array[..., None] if array.ndim == 2 else array
    require(
        array.ndim == 3 and array.shape[1] == m and 0 not in array.shape,
        f"Expected {name} of shape [runs, m] or [runs, m, B] with m={m} as in signs, got {given}.",
    )
    return array.astype(np.float64)


def require_finite(array: np.ndarray, name: str, fix: str, allowed: tuple[int, ...] = ()) -> None:
    """Refuses rows [runs, ...] that are not finite, but for the ``allowed`` ones; ``fix`` says what to do."""
    finite = np.asarray(np.isfinite(array).reshape(array.shape[0], -1).all(axis=1))
    finite |= np.isin(np.arange(finite.size), allowed)
    if not finite.all():
        row = int(np.argmin(finite))
        raise InputError(f"Expected finite {name}, but row {row} is not; {fix}.")


def rows_of_runs(path: AnyPath, runs: int, failed: Collection[int]) -> np.ndarray:
    """Scores [runs, ...] in the order of the design; a failed run that the file lacks is a row of NaN."""
    require(path.is_file(), f"Expected a file at scores={path}, found none.")
    numbers, scores = _numbered_csv(path) if path.suffix not in (".npy", ".npz") else _numbered_numpy(path)
    if numbers is None:
        require(
            scores.ndim >= 1 and scores.shape[0] == runs,
            f"Expected a row of scores for each of the {runs} runs of the design, got shape {scores.shape}; if runs failed, "
            "or for another order, add their numbers as a column (CSV) or an array (npz) called run.",
        )
        return scores.astype(np.float64)
    require(
        numbers.shape == scores.shape[:1] and bool(np.isin(numbers, np.arange(runs)).all()),
        f"Expected run numbers 0..{runs - 1} in {path}, one for each row of scores, as in runs.csv.",
    )
    numbers = numbers.astype(np.int64)
    values, counts = np.unique(numbers, return_counts=True)
    require(
        bool((counts == 1).all()),
        f"Expected every run once in {path}, but run {values[np.argmax(counts)]} occurs again.",
    )
    absent = sorted({*range(runs)} - {*values.tolist()} - {*failed})
    if absent:
        listed = " ".join(map(str, absent[:20])) + (" …" if len(absent) > 20 else "")
        raise InputError(
            f"{path} lacks {len(absent)} of the {runs} runs: {listed}. Run them with their seeds and batches; one that "
            f"fails twice is declared, never left out: --failed-runs {absent[0]} (an evaluation run counts as p = 1)."
        )
    ordered = np.full((runs, *scores.shape[1:]), np.nan)
    ordered[numbers] = scores
    return ordered


def _numbered_numpy(path: AnyPath) -> tuple[np.ndarray | None, np.ndarray]:
    arrays = records.read_npz(path) if path.suffix == ".npz" else {}
    if "run" not in arrays:
        return None, read_array(path, "scores")
    numbers = arrays.pop("run")
    scores = arrays.get("scores", next(iter(arrays.values())) if len(arrays) == 1 else None)
    if scores is None:
        raise InputError(f"Expected an array called scores in {path}, found {', '.join(arrays) or 'none'}.")
    require(scores.dtype.kind in "biuf", f"Expected numbers in scores={path}, got an array of {scores.dtype}.")
    return numbers, scores


def _numbered_csv(path: AnyPath) -> tuple[np.ndarray | None, np.ndarray]:
    """Run numbers and scores of a CSV file; columns called as in runs.csv are put in its order."""
    try:
        rows = _csv_rows(path)
    except (OSError, UnicodeDecodeError, csv.Error):
        return None, read_array(path, "scores")  # which says what is wrong
    head = [name.strip() for name in rows[0]] if rows else []
    if not {"run", design_runs.column(0)} & {*head}:
        return None, read_array(path, "scores")
    kept = [i for i, name in enumerate(head) if name not in ("run", "role", "seed")]
    place = {design_runs.column(j): j for j in range(len(kept))}
    if {head[i] for i in kept} == place.keys():
        kept.sort(key=lambda i: place[head[i]])
    try:
        cells = [[row[i] for i in kept] for row in rows[1:]]
        scores = np.array(
            [["nan" if cell.strip() in ("", "NA") else cell for cell in row] for row in cells], np.float64
        )
        numbers = np.array([row[head.index("run")] for row in rows[1:]], np.float64) if "run" in head else None
    except (IndexError, ValueError) as error:
        raise InputError(f"Cannot read scores from {path} ({error}); use one number a cell, one row a run.") from error
    require(scores.size > 0, f"Expected rows of scores in {path}, found none.")
    return numbers, scores
