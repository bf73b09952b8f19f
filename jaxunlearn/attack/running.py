"""The batchwise Gaussian fit of all runs so far, brought up to date run by run.

For audits in which every run is attacked with what the runs before it taught, and then teaches itself: a refit over all
past runs would cost O(runs^2) in all; running moments (Welford, 1962, doi:10.1080/00401706.1962.10490022) cost the same
at every run. NumPy in float64.
"""

import numpy as np

from jaxunlearn._validate import at_least, one_of, positive, require
from jaxunlearn.attack.likelihood import FLOOR, BatchwiseFit

RUNNING_VARIANCES = ("pooled", "per_example")
"""Those that follow from moments alone."""


class RunningFit:
    """What ``likelihood.fit_batchwise`` would return after every run, up to rounding.

    An example that has not been seen on both sides yet has one Gaussian for both: its likelihood ratio is exactly 0,
    where the fit of fixed runs refuses.

    Args:
        m: Candidate batches, >= 2.
        batch_size: Examples in a candidate batch, B >= 1.
        variance: "pooled" or "per_example", as in ``fit_batchwise``.
        floor: Smallest variance, > 0, in squared score units.
    """

    def __init__(self, m: int, batch_size: int, *, variance: str = "pooled", floor: float = FLOOR):
        at_least(2, m=m)
        at_least(1, batch_size=batch_size)
        one_of("variance", variance, RUNNING_VARIANCES)
        positive(floor=floor)
        self.variance, self.floor = variance, floor
        shape = (2, m, batch_size)  # axis 0: OUT, IN
        self._counts, self._means, self._squares = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)

    def add(self, scores: np.ndarray, signs: np.ndarray) -> None:
        """Takes up one run.

        Args:
            scores: [m, B]; higher = more likely still in the model; non-finite ones are left out.
            signs: [m] in {-1, +1}.

        Raises:
            InputError: A shape does not match.
        """
        scores, signs = np.asarray(scores, np.float64), np.asarray(signs)
        expected = self._means.shape[1:]
        require(scores.shape == expected, f"Expected scores of shape [m, B] = {expected}, got {scores.shape}.")
        require(signs.shape == expected[:1], f"Expected signs of shape {expected[:1]}, got {signs.shape}.")
        for side, sign in enumerate((-1, 1)):
            used = np.isfinite(scores) & (signs == sign)[:, None]
            self._counts[side] += used
            with np.errstate(over="ignore", invalid="ignore"):
                away = np.where(used, scores - self._means[side], 0.0)
                self._means[side] += away / np.maximum(self._counts[side], 1)
                self._squares[side] += away * np.where(used, scores - self._means[side], 0.0)

    def fit(self) -> BatchwiseFit:
        """The fit to the runs taken up so far."""
        known = (self._counts > 0).all(axis=0)
        counts = np.maximum(self._counts, 1)
        mean_out, mean_in = np.where(known, self._means, 0.0)
        if self.variance == "per_example":
            var_out, var_in = self._squares / counts
        else:
            var_in = self._squares.sum(axis=0) / counts.sum(axis=0)
            var_out = var_in
        var_out, var_in = (np.where(known, np.maximum(v, self.floor), 1.0) for v in (var_out, var_in))
        return BatchwiseFit(mean_in=mean_in, mean_out=mean_out, var_in=var_in, var_out=var_out, variance=self.variance)
