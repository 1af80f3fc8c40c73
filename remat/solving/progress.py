"""Progress of a running solve."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from remat.problem import Objective
from remat.schedule.certificate import overhead_percent

if TYPE_CHECKING:
    from remat.schedule import Schedule


@dataclass(frozen=True)
class Progress:
    """State of a solve at one moment.

    Attributes
    ----------
    phase : str
        ``start``, ``build``, ``preliminary`` or ``solve``.
    elapsed : float
        Seconds since the deadline's clock began.
    base_cost : int
        Cost of computing each op once, or that value of the objective.
    objective, bound : int or None
        Certified cost (or peak in bytes, by the objective) of the best schedule so far, and bound for the scope.
    improved : float
        Seconds at which the best schedule was found.
    schedule : Schedule or None
        Best schedule so far, validated.
    aim : Objective
        Objective of the problem.
    cost, peak : int or None
        Certified cost and peak of the best schedule so far.
    source : str
        Method that found it.
    limit : float
        Seconds allowed; infinite without a time limit.
    """

    phase: str
    elapsed: float
    base_cost: int
    objective: int | None = None
    bound: int | None = None
    improved: float = 0.0
    schedule: Schedule | None = field(default=None, repr=False, compare=False)
    aim: Objective = Objective.DEFAULT
    cost: int | None = None
    peak: int | None = None
    source: str = ""
    limit: float = math.inf

    @property
    def overhead(self) -> float | None:
        """Overhead of the best schedule so far in %; None without one, or if every op is free."""
        cost = self.cost if self.aim.is_memory else self.objective
        return None if cost is None else overhead_percent(cost, self.base_cost)

    @property
    def gap(self) -> float | None:
        """(objective − bound) / objective; None while either is unknown."""
        return relative_gap(self.objective, self.bound)

    def facts(self) -> list[str]:
        """Return the known facts as text, the most important first."""
        if self.objective is None:
            return ["no schedule yet"]
        value = f"{self.aim.word} {self.aim.text(self.objective)}"
        overhead = None if self.overhead is None else f"overhead {_digits(self.overhead)} %"
        gap = None if self.gap is None else f"gap {_digits(100 * self.gap)} %"
        found = f"by {self.source}" if self.source else None
        if self.aim.is_memory:
            facts = [value, gap, found, f"bound {self.bound or 0:,} bytes", overhead]
        else:
            bound = None if self.bound is None else overhead_percent(self.bound, self.base_cost)
            peak = None if self.peak is None else f"peak {self.peak:,} bytes"
            facts = [overhead or value, gap, found, None if bound is None else f"bound {_digits(bound)} %", peak]
        return [fact for fact in facts if fact is not None]


def _digits(percent: float) -> str:
    """Return a percentage with five significant digits, so that small steps show.

    Examples
    --------
    >>> _digits(12.3456789), _digits(0.00123456789), _digits(0.0)
    ('12.346', '0.0012346', '0')
    """
    return np.format_float_positional(float(f"{percent:.5g}"), trim="-")


def relative_gap(objective: int | None, bound: int | None) -> float | None:
    """Return (objective − bound) / objective; 0 for an objective of 0, None if either is unknown.

    Examples
    --------
    >>> relative_gap(10, 8), relative_gap(0, 0), relative_gap(None, 8)
    (0.2, 0.0, None)
    """
    if objective is None or bound is None:
        return None
    return (objective - bound) / objective if objective else 0.0


#: Called at every new phase, schedule and bound, possibly from another thread.
OnProgress = Callable[[Progress], object]


def describe(moment: Progress, elapsed: float | None = None) -> str:
    """Describe `moment` in one line, at `elapsed` seconds if given.

    Examples
    --------
    >>> describe(Progress("solve", 2.0, base_cost=100, objective=105, bound=102))
    '2.0 s  solve  overhead 5 %  gap 2.8571 %  bound 2 %'
    >>> describe(Progress("build", 0.5, base_cost=100, limit=60))
    '0.5/60 s  build  no schedule yet'
    >>> describe(Progress("greedy", 0.5, 100, objective=1_250, bound=1_000, aim=Objective.LEAST_PEAK))
    '0.5 s  greedy  peak 1,250 bytes  gap 20 %  bound 1,000 bytes'
    """
    return "  ".join(parts(moment, elapsed))


def parts(moment: Progress, elapsed: float | None = None) -> list[str]:
    """Return the parts of :func:`describe`: time and phase, then the facts, the most important first."""
    seconds = moment.elapsed if elapsed is None else elapsed
    return [clock_text(seconds, moment.limit), moment.phase, *moment.facts()]


def clock_text(seconds: float, limit: float = math.inf) -> str:
    """Return elapsed seconds with their limit.

    Examples
    --------
    >>> clock_text(2, 60), clock_text(2)
    ('2.0/60 s', '2.0 s')
    """
    return f"{seconds:.1f}" + (f"/{limit:.4g}" if math.isfinite(limit) else "") + " s"
