"""Options of annealing."""

from __future__ import annotations

from dataclasses import dataclass

from remat.errors import ProblemError
from remat.heuristics.options import check_types


@dataclass(frozen=True)
class AnnealingOptions:
    """Options of :class:`Annealing`.

    Attributes
    ----------
    moves : int or None
        Moves of all rounds together. None: until the deadline, and 20,000 for each op where there is none.
    heat : float
        First temperature, as a share of the base cost, but no less than some mean costs of an op; of rounds that
        do not go on from the best schedule.
    cold : float
        Last temperature, as a share of the cost of cheap ops (the tenth percentile of costs above 0).
    soft, hard : float
        First and last width of the soft excess, as a share of the budget: which memory counts as near the peak.
    again : float
        Probability that an input which is not there at a recomputation is recomputed as well, and not held for longer.
    groups : float
        Share of the time that goes first to the graph with ops fused into groups; `moves` is then for each part.
    """

    moves: int | None = None
    heat: float = 1e-2
    cold: float = 0.2
    soft: float = 1e-2
    hard: float = 2e-4
    again: float = 0.2
    groups: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        if not (
            (self.moves is None or self.moves >= 1)
            and self.heat > 0
            and self.cold > 0
            and 0 < self.hard <= self.soft
            and 0 <= self.again <= 1
            and 0 <= self.groups < 1
        ):
            raise ProblemError(f"options of annealing are out of range: {self}")
