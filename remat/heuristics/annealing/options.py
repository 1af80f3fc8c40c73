"""Options of annealing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from remat.errors import ProblemError
from remat.runtime.options import Options, Positive, Range


@dataclass(frozen=True)
class AnnealingOptions(Options):
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
    """

    moves: Positive | None = None
    heat: Annotated[float, Range(above=0)] = 1e-2
    cold: Annotated[float, Range(above=0)] = 0.2
    soft: float = 1e-2
    hard: Annotated[float, Range(above=0)] = 2e-4
    again: Annotated[float, Range(0, 1)] = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hard <= self.soft:
            raise ProblemError(f"soft must be at least hard, {self.hard}, not {self.soft}", "option", "soft")
