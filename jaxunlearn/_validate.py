"""Range and shape checks whose message names the argument, its value and the fix."""

import math
from collections.abc import Iterable, Sized
from difflib import get_close_matches
from typing import Any


class InputError(ValueError):
    """A request that cannot be served as given; its one-line message names the argument, the value and the fix."""


def require(condition: bool, message: str) -> None:
    """Raises InputError(message) unless ``condition`` holds."""
    if not condition:
        raise InputError(message)


def positive(**values: float) -> None:
    """Each value must be finite and > 0."""
    for name, value in values.items():
        require(math.isfinite(value) and value > 0, f"Expected {name}={value!r} > 0.")


def non_negative(**values: float) -> None:
    """Each value must be finite and >= 0."""
    for name, value in values.items():
        require(math.isfinite(value) and value >= 0, f"Expected {name}={value!r} >= 0.")


def open_unit(**values: float) -> None:
    """Each value must lie in the open interval (0, 1)."""
    for name, value in values.items():
        require(0 < value < 1, f"Expected {name}={value!r} inside (0, 1).")


def half_open_unit(**values: float) -> None:
    """Each value must lie in [0, 1)."""
    for name, value in values.items():
        require(0 <= value < 1, f"Expected {name}={value!r} inside [0, 1).")


def at_least(minimum: int, **values: int) -> None:
    """Each value must be an integer >= ``minimum``."""
    for name, value in values.items():
        require(int(value) == value and value >= minimum, f"Expected {name}={value!r} to be an integer >= {minimum}.")


def guess_budget(r: int, m: int) -> None:
    """The guess budget r is even and 2 <= r <= m (audit paper, section 4)."""
    require(
        int(r) == r and r % 2 == 0,
        f"Expected r={r!r} to be even, because half of the guesses are +1 and half are -1; use {2 * (int(r) // 2) or 2}.",
    )
    require(2 <= r <= m, f"Expected 2 <= r={r!r} <= m={m!r}; choose a smaller r or more candidate batches.")


def shape(name: str, array: Any, expected: tuple[int | None, ...], meaning: str = "") -> None:
    """``array.shape`` must match ``expected``; None matches any length."""
    actual = tuple(array.shape)
    matches = len(actual) == len(expected) and all(e is None or a == e for a, e in zip(actual, expected))
    wanted = "(" + ", ".join("*" if e is None else str(e) for e in expected) + ")"
    require(matches, f"Expected {name} of shape {wanted}{f' = {meaning}' if meaning else ''}, got {actual}.")


def one_of(name: str, value: str, choices: Iterable[str]) -> None:
    """``value`` must be one of ``choices``; the error suggests the nearest one."""
    choices = list(choices)
    if value not in choices:
        close = get_close_matches(value, choices, n=1, cutoff=0.4)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"Unknown {name}={value!r}.{hint} Choose from: {', '.join(choices)}.")


def not_empty(name: str, values: Sized) -> None:
    """``values`` must hold something."""
    require(len(values) > 0, f"Expected {name} to hold at least one entry, got none.")
