"""Every method on random tiny problems, with each answer checked by exhaustive search and a clock.

    python benchmarks/count_claims.py [--graphs N] [--first SEED] [--jobs N] [--seconds S] [--minutes M]
        [--every K] [--methods A,B]

Problems: N random graphs (plain, with all features, with accumulation buffers, of training). Each has a random budget
with the fixed order, a free order, and at most two computes per op; and least peak with the fixed order, a free order,
and without recomputation. Methods: all heuristics and methods, and all formulations with CP-SAT and HiGHS; with
MiniZinc and Pyomo on every K-th graph.

Faults are crashes, schedules that the validator refuses or that beat the optimum, and bounds above the optimum. So are
wrong claims of optimality or infeasibility, and answers more than a second after the deadline. Refusals of problems
that a formulation cannot state are counted by kind. The exit code is 1 if there is any fault.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import common

from remat import Problem, Result, SolveOptions, solve, validate
from remat.errors import BackendError, RematError
from remat.problem import Objective
from remat.problem.scope import AtMost, Limit, Restriction, Scope, own_scope
from remat.registry import formulations, heuristics, methods
from remat.runtime.solve_options import Status
from remat.solving.method import make_method
from remat.testing.exhaustive import least_peak, optimum
from remat.testing.graphs import random_budget, random_graph

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from generators import training_graph

KINDS = (
    lambda seed: random_graph(seed, plain=True),
    random_graph,
    lambda seed: random_graph(seed, buffers=True),
    lambda seed: training_graph(seed, 3, full=seed % 8 == 7),
)
QUICK = ("cp-sat", "highs")
SLOW = ("minizinc:cp-sat", "minizinc:highs", "minizinc:gecode", "pyomo:highs", "pyomo:cbc")
#: Allowed seconds after the deadline.
GRACE = 1.0


@dataclass
class Tally:
    """Counts of problems, answers, refusals and faults."""

    problems: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.problems += other.problems
        self.answers += other.answers
        self.refusals += other.refusals
        self.faults += other.faults


class Optima:
    """Optima of one problem by exhaustive search, cached by scope."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.best = lru_cache(maxsize=None)(self._best)

    def _best(self, scope: Scope) -> int | None:
        """Return the optimum in a scope; None without a schedule."""
        objective = self.problem.objective
        found = (least_peak if objective.is_memory else optimum)(self.problem, scope)
        return None if found is None else objective.value(found)

    def faults(self, result: Result) -> Iterator[str]:
        """Yield the faults of an answer."""
        own = self.best(own_scope(self.problem))
        if result.schedule is not None:
            certificate = validate(self.problem.graph, result.schedule, self.problem.rules)
            value = self.problem.value(certificate)
            if not certificate.accepted:
                yield f"schedule refused: {certificate.first}"
            if value != result.objective:
                yield f"objective {result.objective}, but the schedule has {value}"
            if own is None or value < own:
                yield f"a schedule with {value}, exhaustive search finds {own}"
        costs = [note.most for note in result.scope.notes if isinstance(note, AtMost) and note.limit is Limit.COST]
        notes = [note for note in result.scope.notes if not isinstance(note, AtMost) or note.limit is not Limit.COST]
        known = {Restriction.FILLED_ONCE, Restriction.OWN_LIMITS}
        if set(notes) - known or (costs and not self.problem.objective.includes_cost):
            return
        best = self.best(Scope(result.scope.order, result.scope.staged, result.scope.max_computes, tuple(notes)))
        if best is not None and costs and best > min(costs):
            best = None
        if result.status is Status.OPTIMAL and (best is None or result.objective is None or result.objective > best):
            yield f"optimal at {result.objective}, exhaustive search finds {best} ({result.scope})"
        if result.status is Status.INFEASIBLE and best is not None:
            yield f"infeasible, exhaustive search finds {best} ({result.scope})"
        if best is not None and result.bound > best:
            yield f"bound {result.bound} is above {best} ({result.scope})"


def problems(seed: int) -> Iterator[Problem]:
    """Yield the problems of one graph."""
    graph = KINDS[seed % len(KINDS)](seed)
    if len(graph.ops) > 7:
        return
    budget = random_budget(graph, seed)
    for order, limit in (("fixed", None), ("free", None), ("fixed", 2)):
        yield Problem(graph, budget, order, limit)
    for order, limit in (("fixed", None), ("free", None), ("free", 1)):
        yield Problem(graph, None, order, limit, objective=Objective.LEAST_PEAK)


def contestants(slow: bool, chosen: str) -> Iterator[tuple[str, str]]:
    """Yield methods with their backends."""
    for name in chosen.split(",") if chosen else (*heuristics(), *methods(), *formulations()):
        for backend in (*QUICK, *SLOW * slow) if make_method(name).needs_backend else QUICK[:1]:
            yield name, backend


def tally_of(seed: int, seconds: float, every: int, chosen: str) -> Tally:
    """Return the tally of the problems of one graph."""
    tally = Tally()
    for number, problem in enumerate(problems(seed)):
        tally.problems += 1
        optima = Optima(problem)
        for name, backend in contestants(seed % every == 0, chosen):
            label = f"seed {seed} problem {number} {name}/{backend}"
            began = time.monotonic()
            try:
                result = solve(problem, name, backend, stop=seconds, options=SolveOptions(threads=1))
            except RematError as error:
                tally.refusals[error.kind] += 1
                if isinstance(error, BackendError) and error.kind != "backend.unavailable":
                    tally.faults.append(f"{label}: {error.kind}: {error}")
            except Exception as error:
                tally.faults.append(f"{label}: crash: {type(error).__name__}: {error}")
            else:
                tally.answers[str(result.status)] += 1
                tally.faults += [f"{label}: {fault}" for fault in optima.faults(result)]
            if (took := time.monotonic() - began) > seconds + GRACE:
                tally.faults.append(f"{label}: {took:.1f} s of {seconds:g}")
    return tally


def main() -> int:
    """Return the exit code."""
    given = common.parse(
        str(__doc__), graphs=300, first=0, jobs=2, seconds=3.0, minutes=60.0, every=10, methods=""
    )  # fmt: skip
    total, began, last = Tally(), time.monotonic(), 0
    with ProcessPoolExecutor(given.jobs) as pool:
        seeds = range(given.first, given.first + given.graphs)
        waiting = {pool.submit(tally_of, seed, given.seconds, given.every, given.methods): seed for seed in seeds}
        for done in as_completed(waiting):
            if done.cancelled():
                continue
            total.add(done.result())
            last += 1
            for fault in done.result().faults:
                print(fault, flush=True)
            if time.monotonic() - began > 60 * given.minutes:
                pool.shutdown(wait=False, cancel_futures=True)
    print(f"{last} graphs, {total.problems} problems, {sum(total.answers.values())} answers "
          f"{dict(total.answers)}, {sum(total.refusals.values())} refusals {dict(total.refusals)}, "
          f"{len(total.faults)} faults, {time.monotonic() - began:.0f} s")  # fmt: skip
    return bool(total.faults)


if __name__ == "__main__":
    sys.exit(main())
