"""What a stage says while it works."""

import sys
import time
from collections.abc import Callable

from tqdm import tqdm

SAY_EVERY = 20.0
"""Seconds between two lines of progress where there is no terminal."""


class Bar:
    """Progress of one stage over its runs: a bar on a terminal, a few lines elsewhere."""

    def __init__(self, label: str, runs: int, steps: int, quiet: bool):
        layout = "{desc:<22} {percentage:3.0f}% |{bar:24}| {n:.0f}/{total:.0f} runs, {rate_fmt}, {remaining} left"
        self._line = not quiet and not sys.stderr.isatty()
        self._bar = tqdm(
            total=runs,
            desc=label,
            disable=quiet or self._line,
            file=sys.stderr,
            bar_format=layout,
            unit=" runs",
            smoothing=0.1,
            dynamic_ncols=True,
        )
        self._label, self._runs, self._found, self._began = label, runs, 0, time.perf_counter()
        self._done, self._said = 0.0, self._began
        if self._line:
            print(f"{label:<22} {runs:,} runs of {steps:,} steps", file=sys.stderr)

    def chunk(self, runs: int, parts: float = 1) -> Callable[[float], None]:
        """A callback for one chunk of ``runs`` runs whose work comes in ``parts`` phases."""

        def move(share: float) -> None:
            self._bar.update(share * runs / parts)
            self._done += share * runs / parts
            now = time.perf_counter()
            if self._line and now - self._said > SAY_EVERY:
                left = (self._runs - self._found - self._done) * (now - self._began) / self._done
                done = self._found + self._done
                print(f"{self._label:<22} {done:.1f} of {self._runs:,} runs, {left:.0f} s left", file=sys.stderr)
                self._said = now

        return move

    def skip(self, runs: int) -> None:
        """Counts runs that were found finished; they do not enter the rate."""
        self._found += runs
        if not self._bar.disable:
            self._bar.initial += runs
            self._bar.n += runs
            self._bar.refresh()

    def close(self, runs: int | None = None) -> None:
        """Ends the bar's line; ``runs`` says how many there were, if fewer than planned."""
        self._runs = self._runs if runs is None else runs
        self._bar.close()
        if self._line:
            seconds = time.perf_counter() - self._began
            found = f", {self._found} found finished" if self._found else ""
            rate = (self._runs - self._found) / max(seconds, 1e-9)
            print(f"{self._label:<22} {self._runs} runs in {seconds:.1f} s ({rate:.1f} runs/s{found})", file=sys.stderr)
