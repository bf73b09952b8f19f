"""Correlations of many scores from few runs: shrunken, kept as residuals, never formed as a matrix.

Shrinkage of the sample correlations towards none, with the weight that minimises the expected squared error, estimated
from the residuals themselves: Schäfer and Strimmer (2005, Statistical Applications in Genetics and Molecular Biology 4(1),
target D) after Ledoit and Wolf (2004). Products with the inverse go through the runs' Gram matrix (Woodbury), so that work
and memory grow like runs times scores. NumPy, float64.
"""

import dataclasses

import numpy as np

LEAST_WEIGHT = 0.01
"""With fewer runs than scores the sample correlations alone have no inverse."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Correlations:
    """(1 - weight) Z'Z + weight I for each of G groups of scores, with a diagonal of exactly 1.

    Attributes:
        residuals: [G, n, Q] Z: residuals of n runs, scaled so that every column of a group has length 1 (or 0, if constant).
        weight: Share of the identity, in [LEAST_WEIGHT, 1].
    """

    residuals: np.ndarray
    weight: float

    def solve(self, x: np.ndarray) -> np.ndarray:
        """The inverse times ``x``: [G, Q, k] -> [G, Q, k]."""
        if self.weight == 1:
            return x
        z = np.sqrt(1 - self.weight) * self.residuals
        diagonal = 1 - (z**2).sum(axis=1)[:, :, None]
        n, width = z.shape[1:]
        if width <= n:
            dense = np.swapaxes(z, 1, 2) @ z
            dense[:, np.arange(width), np.arange(width)] = 1
            return np.linalg.solve(dense, x)
        scaled = x / diagonal
        gram = np.eye(n) + z @ (np.swapaxes(z, 1, 2) / diagonal)
        return scaled - np.swapaxes(z, 1, 2) @ np.linalg.solve(gram, z @ scaled) / diagonal


def shrunken_correlations(residuals: np.ndarray) -> Correlations:
    """Estimates the correlations of every group, with one weight for all groups.

    Args:
        residuals: [G, n, Q] deviations of n runs from their fitted means; 0 where a score is missing.

    Returns:
        The correlations; with a single score a group, or residuals that are all 0, the weight is 1.
    """
    residuals = residuals[:, (residuals != 0).any(axis=(0, 2))]  # a failed run, 0 everywhere, is no observation
    squares = (residuals**2).sum(axis=1, keepdims=True)
    z = np.divide(residuals, np.sqrt(squares), out=np.zeros_like(residuals), where=squares > 0)
    n = z.shape[1]
    # Sums over pairs of different scores: of squared correlations, and of squared products of two residuals of a run.
    lengths = (z**2).sum(axis=2)
    correlations = ((z @ np.swapaxes(z, 1, 2)) ** 2).sum() - ((z**2).sum(axis=1) ** 2).sum()
    products = (lengths**2).sum() - (z**4).sum()
    if n < 2 or residuals.shape[2] == 1 or correlations <= 1e-12 * residuals.shape[0]:
        return Correlations(residuals=z, weight=1.0)
    weight = (n * products - correlations) / ((n - 1) * correlations)
    return Correlations(residuals=z, weight=float(np.clip(weight, LEAST_WEIGHT, 1)))
