"""What is fixed before the first evaluation run: sizes, levels, and the bounds that may become the headline."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxunlearn._validate import InputError, at_least, non_negative, one_of, open_unit, require
from jaxunlearn.audit import design
from jaxunlearn.audit._bound import check_levels

PREDICTORS = ("batchwise", "joint", "pairwise")
ORDERS = ("order_1", "order_2", "order_3")
"""The bounds from the smallest p-values of the runs (``bounds.order_statistic``)."""
BOUNDS = ("evidence", *ORDERS, "lattice", "overlap", "count")
SEQUENTIAL_BOUND = "e_process"
WARMUP_RUNS = 4
"""Default warm-up of a sequential audit: two runs on each side of every batch, the least that show a variance. With 2, 4, 6,
8 and 12 warm-up runs simulated audits (m = 400, scores half a standard deviation apart) falsify epsilon <= 5 after 24, 22,
21, 21 and 18 runs in all (medians of 6); at twice that distance after 4, 6, 7, 9 and 13.
"""
LATTICE_LIMIT = 10_000


def even_budget(value: float, m: int) -> int:
    """The even number nearest to value within 2..m."""
    return int(min(max(2, 2 * round(value / 2)), 2 * (m // 2)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preregistration:
    """What is fixed before the first evaluation run.

    Attributes:
        predictor: "batchwise", "joint" or "pairwise".
        m: Candidate batches, >= 2 (pairwise: 2).
        batch_size: Examples in a candidate batch.
        L: Evaluation runs; of a sequential audit the most there may be.
        zeta: Error level of the headline as a whole, in (0, 1).
        delta: The hypothesis's delta, in [0, 1).
        r: Guess budget at which the paper's bounds are shown.
        r_grid: Guess budgets of the preregistered overlap bounds (joint and pairwise: m alone).
        bounds: Names of the preregistered bounds, a subset of evidence, order_1 to order_3, lattice, overlap, count; of a
            sequential audit e_process alone.
        alpha: Threshold of the count bound, in (0, 1).
        warmup: Sequential audits: runs that only teach the attack before the first evaluation run, >= 0 (0: the attack
            came from elsewhere). None: the number of runs is fixed.
        claim_epsilon: Sequential audits: the claim whose falsification ends the audit, >= 0, or None.
    """

    predictor: str
    m: int
    batch_size: int
    L: int
    zeta: float
    delta: float
    r: int
    r_grid: tuple[int, ...]
    bounds: tuple[str, ...]
    alpha: float = 0.01
    warmup: int | None = None
    claim_epsilon: float | None = None

    def __post_init__(self):
        one_of("predictor", self.predictor, PREDICTORS)
        at_least(2, m=self.m)
        at_least(1, batch_size=self.batch_size, L=self.L)
        check_levels(self.zeta, self.delta)
        open_unit(alpha=self.alpha)
        object.__setattr__(self, "r_grid", tuple(self.r_grid))
        object.__setattr__(self, "bounds", tuple(self.bounds))
        for r in (self.r, *self.r_grid):
            design.check_budget(r, self.m)
            full = self.predictor == "batchwise" or r == self.m
            require(
                full,
                f"Expected r={r!r} to be m={self.m} for predictor={self.predictor!r}, whose guess is a full vector.",
            )
        for name in self.bounds:
            one_of("bounds", name, (SEQUENTIAL_BOUND,) if self.sequential else BOUNDS)
        self._check_sequential()
        require(len(self.bounds) > 0, "Expected at least one preregistered bound.")
        require(
            len(set(self.bounds)) == len(self.bounds) and len(set(self.r_grid)) == len(self.r_grid),
            "Expected every preregistered bound and budget once.",
        )
        require(
            "overlap" not in self.bounds or len(self.r_grid) > 0, "Expected r_grid for the overlap bound, got none."
        )
        for k, name in enumerate(ORDERS, start=1):
            require(
                name not in self.bounds or self.L >= k,
                f"Expected {name} with at least {k} evaluation runs, got L={self.L}; leave it out of bounds.",
            )
        require(self.predictor != "pairwise" or self.m == 2, f"Expected m=2 for predictor='pairwise', got m={self.m}.")
        if self.predictor == "joint" or "lattice" in self.bounds:
            require(
                design.enumerable(self.m, LATTICE_LIMIT),
                f"Expected m={self.m} with at most {LATTICE_LIMIT} sign vectors (m <= 15) for the joint predictor and "
                "the lattice bound; use larger batches.",
            )

    def _check_sequential(self) -> None:
        if self.warmup is None:
            require(self.claim_epsilon is None, "Expected warmup beside claim_epsilon: claims are tested sequentially.")
            return
        at_least(0, warmup=self.warmup)
        if self.claim_epsilon is not None:
            non_negative(claim_epsilon=self.claim_epsilon)
        require(
            self.predictor == "batchwise",
            f"Expected predictor='batchwise' for a sequential audit, got {self.predictor!r}.",
        )

    @classmethod
    def default(
        cls,
        predictor: str,
        *,
        m: int,
        batch_size: int,
        L: int,
        zeta: float = 0.05,
        delta: float = 0.0,
        r: int | None = None,
        warmup: int | None = None,
        claim_epsilon: float | None = None,
    ) -> "Preregistration":
        """The bounds that cover most cases, without duplicates.

        Where S_m can be enumerated the lattice bound takes the place of evidence, which it dominates; beside it stands the
        overlap bound at r (not for m = 2, where the two are the same). Otherwise: evidence, the three smallest p-values,
        overlap at r.

        Args:
            predictor: "batchwise", "joint" or "pairwise".
            m: Candidate batches.
            batch_size: Examples in a candidate batch.
            L: Evaluation runs.
            zeta: Error level of the headline.
            delta: The hypothesis's delta.
            r: Guess budget of the paper's bounds; default m for joint and pairwise, m / 2 where S_m can be enumerated, else
                about m / 4.
            warmup: Makes it sequential, with the e-process as its only bound.
            claim_epsilon: The claim of a sequential audit.

        Raises:
            InputError: An argument is out of range.
        """
        one_of("predictor", predictor, PREDICTORS)
        at_least(2, m=m)
        small = design.enumerable(m, LATTICE_LIMIT)
        if predictor != "batchwise":
            grid = (m,)
        elif small:
            grid = (even_budget(m / 2, m) if r is None else r,)
        else:
            grid = (even_budget(m / 4, m) if r is None else r,)
        names = ("lattice", "overlap") if small else ("evidence", *ORDERS[:L], "overlap")
        if m == 2:
            names = ("lattice",)
        if warmup is not None:
            names = (SEQUENTIAL_BOUND,)
        return cls(
            predictor=predictor,
            m=m,
            batch_size=batch_size,
            L=L,
            zeta=zeta,
            delta=delta,
            r=grid[0] if r is None else r,
            r_grid=grid,
            bounds=names,
            warmup=warmup,
            claim_epsilon=claim_epsilon,
        )

    @property
    def sequential(self) -> bool:
        """Whether the audit may stop, or go on, after looking."""
        return self.warmup is not None

    @property
    def may_change(self) -> tuple[str, ...]:
        """Fields that need not be fixed: the e-process holds at every number of runs and against every claim at once."""
        return ("L", "claim_epsilon") if self.sequential else ()

    @property
    def candidates(self) -> tuple[tuple[str, int | None], ...]:
        """The K preregistered (name, guess budget) pairs; overlap counts once for every budget."""
        pairs: list[tuple[str, int | None]] = []
        for name in self.bounds:
            pairs += [(name, r) for r in self.r_grid] if name == "overlap" else [(name, None)]
        return tuple(pairs)

    @property
    def zeta_each(self) -> float:
        """The level of each preregistered bound, zeta / K."""
        return self.zeta / len(self.candidates)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, ready for json.dumps; what is None is left out."""
        fields = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Preregistration":
        """The inverse of ``to_json``.

        Raises:
            InputError: A field is missing or unknown.
        """
        try:
            return cls(**data)
        except TypeError as error:
            raise InputError(
                f"The preregistration cannot be read ({error}); it was written by another version."
            ) from error
