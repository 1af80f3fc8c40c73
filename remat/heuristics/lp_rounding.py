"""Two-phase rounding of a linear relaxation (Checkmate's approximation), with a search over its two parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from remat.backends.highs import Highs
from remat.errors import ProblemError
from remat.formulations.base import Values
from remat.formulations.checkmate import Checkmate
from remat.formulations.stages import Stages, StagesOptions
from remat.heuristics.base import Best, Heuristic, HeuristicRun
from remat.heuristics.drops import Drops
from remat.heuristics.greedy import Greedy
from remat.heuristics.retention import schedule_for
from remat.problem import Problem
from remat.runtime.arrays import Bool
from remat.runtime.checked_options import Options, Range
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.resources import available_memory
from remat.runtime.solve_options import StopReason
from remat.schedule import Schedule

#: Share below 1.
Share = Annotated[float, Range(0, below=1)]


@dataclass(frozen=True)
class LpRoundingOptions(Options):
    """Options of :class:`LpRounding`."""

    formulation: Literal["stages", "checkmate"] = "stages"
    """Formulation whose relaxation is rounded; ``stages`` has the tighter and smaller one."""
    ahead: bool = True
    """As in :class:`remat.formulations.stages.StagesOptions`: without it the relaxation is even smaller, but bounds
    fewer schedules."""
    limited: bool = True
    """Omit variables of the relaxation of `stages` that only schedules costlier than the start use; without a start,
    costlier than that of `greedy`. The relaxation is many times smaller, and bounds cheaper schedules equally well."""
    allowances: tuple[Share, ...] = (0.0, 0.1, 0.05, 0.02, 0.15, 0.2, 0.01, 0.3)
    """ε: the relaxation is solved for the budget (1 − ε) B, for each ε in turn. The paper takes 0.1."""
    thresholds: tuple[Share, ...] = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.1, 0.9, 0.01, 0.99)
    """Retain where S* is above the threshold. The paper takes 0.5."""
    samples: Annotated[int, Range(0)] = 20
    """Randomised roundings of each relaxation."""
    mend: bool = True
    """Bring roundings that miss the budget within it as `drops` does, and take back unnecessary recomputations of all.
    The paper does neither."""
    algorithm: Literal["simplex", "ipm", "pdlp"] = "simplex"
    """Algorithm of HiGHS."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("allowances", "thresholds"):
            if not getattr(self, name):
                raise ProblemError(f"{name} must have at least one number", "option", name)


@dataclass(frozen=True)
class Rounded:
    """One evaluated rounding."""

    allowance: float
    threshold: float | None
    """None: randomised."""
    improved: bool
    cost: int
    peak: int
    fits: bool


class LpRounding(Heuristic):
    """Two-phase rounding (Jain et al., MLSys 2020, section 5, Algorithm 2).

    1. Solve the linear relaxation of a formulation with stages for the budget (1 − ε) B.
    2. Round its S*: the values retained into each stage.
    3. Compute what that S needs, and no more (:func:`remat.heuristics.retention.recomputation_for`).

    Rounding ignores the budget; ε leaves room. The paper takes ε = 0.1 and rounds at 0.5. Here every allowance is
    combined with every threshold and with randomised ones. A randomised rounding draws one threshold per op for all
    stages: S[k,i] = 1 with probability S*[k,i], and long retention intervals are not cut into pieces. Each distinct
    rounding is simulated once, and the cheapest schedule within the budget is the answer.

    Attributes
    ----------
    bound : int or None
        No schedule in `scope` costs less: the relaxation at ε = 0, rounded up, and capped at the cost known to be
        feasible; None if it was not solved.
    scope : Scope or None
    tried : list of Rounded

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(8), 7)
    >>> heuristic = LpRounding()
    >>> schedule = heuristic.run(problem, HeuristicRun())
    >>> problem.simulate(schedule).cost, heuristic.bound
    (20, 20)
    """

    name = "lp-rounding"
    options_type = LpRoundingOptions

    def __init__(self, options: LpRoundingOptions | None = None) -> None:
        super().__init__(options)
        self.tried: list[Rounded] = []

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        if run.options.isolate:
            raise ProblemError(
                f"heuristic {self.name!r} solves its relaxation in this process; it cannot be isolated", "not-isolated"
            )
        self.bound, self.scope, self.tried = None, None, []
        search = _Search(self, problem, run)
        limit = _known_cost(problem, run) if self.options.limited and self.options.formulation == "stages" else None
        for allowance in sorted(self.options.allowances, key=lambda e: e > 0):  # 0 first: it may prove the optimum
            share = self._relaxed(problem, allowance, limit, run)
            search.best.bound = self.bound
            if share is not None:
                for threshold, S in self._rounded(share, np.random.default_rng([run.seed, len(self.tried)])):
                    search.evaluate(S, allowance, threshold)
                    if search.finished:
                        break
            if search.finished:
                break
        return search.best.schedule

    # -- phase one ---------------------------------------------------------------------------------------------------

    def _relaxed(self, problem: Problem, allowance: float, limit: int | None, run: HeuristicRun) -> Values | None:
        """Return S* for the budget less the allowance; None if infeasible, or not solved in time."""
        budget = problem.budget_bytes
        if budget is not None and allowance:
            problem = replace(problem, budget=int((1 - allowance) * budget))
        try:
            stated = self._stated(problem, limit, run.deadline)
            size = stated.estimate()
            if why := size.lacks_memory(available_memory(run.options.memory_bytes), Highs.nonzero_bytes):
                raise ProblemError(f"the relaxation of {stated.name} is not built: it has {size} and {why}")
            if size.lacks_time(run.deadline.remaining):
                return None
            found = Highs().relax(stated.build(), run.options, self.options.algorithm)
        except OverdueError:
            return None
        except ProblemError:  # the budget is below the memory that is always held
            if not allowance:
                raise
            return None
        if not allowance and found.bound is not None:
            self.scope = stated.scope()
            bound = max(problem.graph.base_cost, math.ceil(found.bound))
            self.bound = bound if limit is None else min(bound, limit)
        # the last iterate of an interior-point method can be rounded as well as an optimum
        ended = found.stop in (StopReason.FINISHED, StopReason.OTHER)
        return stated.retention(found.values) if ended and found.values is not None else None

    def _stated(self, problem: Problem, limit: int | None, deadline: Deadline) -> Checkmate | Stages:
        if self.options.formulation == "checkmate":
            stated: Checkmate | Stages = Checkmate(problem)
        else:
            stated = Stages(problem, StagesOptions(ahead=self.options.ahead))
        stated.deadline = deadline
        stated.leave_out_above(limit)
        return stated

    # -- phase two ---------------------------------------------------------------------------------------------------

    def _rounded(self, share: Values, random: np.random.Generator) -> Iterator[tuple[float | None, Bool]]:
        """Yield thresholds (None: random) and the retention decisions they give."""
        for threshold in self.options.thresholds:
            yield threshold, share > threshold
        for _ in range(self.options.samples):
            yield None, share > random.random(share.shape[1])


def _known_cost(problem: Problem, run: HeuristicRun) -> int | None:
    """Return the cost of the start, or of the schedule of `greedy`; None if that is over the budget."""
    schedule = run.start or Greedy().run(problem, HeuristicRun(run.options))
    if schedule is None:
        return None
    certificate = problem.validate(schedule)
    return certificate.cost if certificate.accepted else None


class _Search:
    """Best schedule of all roundings."""

    def __init__(self, heuristic: LpRounding, problem: Problem, run: HeuristicRun) -> None:
        self.heuristic, self.problem, self.run = heuristic, problem, run
        self.best = Best(problem, run)
        self.drops = Drops()
        self._seen: set[bytes] = set()

    @property
    def finished(self) -> bool:
        """True when the optimum is proved, the receiver stops the search, or time is up."""
        return self.best.enough or self.run.deadline.expired

    def evaluate(self, S: Bool, allowance: float, threshold: float | None) -> None:
        """Evaluate the schedule of `S`, and that of drops from it, unless `S` was evaluated before."""
        key = np.packbits(S).tobytes()
        if key in self._seen:
            return
        self._seen.add(key)
        name = self.heuristic.name
        schedule = schedule_for(self.problem, S, name, self.run.deadline)
        self._take(schedule, allowance, threshold, False)
        if self.heuristic.options.mend and not self.finished:
            improved = self.drops.improved(self.problem, schedule, self.run.deadline)
            if improved is not None:
                self._take(replace(improved, source=f"{name}, improved"), allowance, threshold, True)

    def _take(self, schedule: Schedule, allowance: float, threshold: float | None, improved: bool) -> None:
        found = self.best.offer(schedule)
        self.heuristic.tried.append(Rounded(allowance, threshold, improved, found.cost, found.peak, found.accepted))
