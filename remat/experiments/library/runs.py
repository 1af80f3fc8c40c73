"""Runs: a method on a problem of the library with a time limit; its schedule and bound are offered to the ledger."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import psutil

import remat
from remat.allocation import Allocation, allocate
from remat.bounds.selection import best_bound
from remat.errors import RematError
from remat.experiments.contestant import Contestant
from remat.experiments.library.instances import LibraryProblem
from remat.experiments.library.ledger import Ledger, Standing, addresses_of
from remat.experiments.library.records import (
    AddressRecord,
    BoundRecord,
    Order,
    Origin,
    ScheduleRecord,
    to_schedule,
)
from remat.heuristics.live_search import LiveSearchOptions
from remat.ordering.best_first import Aim, explore
from remat.ordering.live_search import LiveSearch
from remat.problem import Problem
from remat.problem.scope import EVERY_SCHEDULE, Scope, covers
from remat.runtime.deadline import Deadline
from remat.runtime.resources import available_cpus, processor_name
from remat.runtime.solve_options import SolveOptions
from remat.schedule import OrderRule, Schedule
from remat.schedule.addresses import Addresses
from remat.solving.min_peak import minimize
from remat.solving.progress import OnProgress
from remat.solving.solve import solve

#: States of the best-first search, at most 2 GB, and bytes of the live search.
MOST_STATES, LIVE_MEMORY = 3_000_000, 3_000_000_000
UNLIMITED = 1 << 62
#: Seconds to compute a bound again whose time limit is unknown.
RERUN = 60.0


@dataclass(frozen=True)
class Call:
    """Method of a run with its limits.

    Attributes
    ----------
    method : str
        Method of :func:`remat.solve`, or one of :data:`OWN`; for an arena, an allocator.
    seconds : float
        Time limit.
    seed, threads : int
    warm : bool
        Start from the best known schedule.
    on_progress : callable, optional
        As for :func:`remat.solve`; searches of :data:`OWN` other than the least peak report nothing.
    """

    method: str
    seconds: float
    seed: int = 0
    threads: int = 1
    warm: bool = False
    on_progress: OnProgress | None = None

    @property
    def options(self) -> SolveOptions:
        """Options for solve(), which continues until the gap is closed."""
        return SolveOptions(threads=self.threads, seed=self.seed, relative_gap=0)


class Answer(NamedTuple):
    """Schedules and a bound that a run found; `bound` None with `infeasible`: no schedule exists."""

    schedules: tuple[Schedule, ...] = ()
    bound: int | None = None
    source: str = ""
    scope: Scope = EVERY_SCHEDULE
    infeasible: bool = False
    on_peak: bool = False


class Improvements(NamedTuple):
    """Problems that a run improved, and the processor seconds that it took."""

    better: list[LibraryProblem]
    raised: list[LibraryProblem]
    seconds: float


def attempt(problem: LibraryProblem, ledger: Ledger, call: Call) -> Improvements:
    """Run a method on a problem and offer what it finds; for an arena, an allocator.

    Raises
    ------
    RematError
        If the method fails, or what it finds contradicts a record.
    """
    if problem.kind == "arena":
        return _place(problem, ledger, call)
    stated = _stated(problem, ledger)
    start = _start(ledger.standing(problem), ledger, call)
    began = _processor_seconds()
    answer = OWN.get(call.method, _solve)(stated, call, start)
    seconds = round(_processor_seconds() - began, 2)
    origin = _origin(call, seconds)
    better = {each.name: each for schedule in answer.schedules for each in ledger.offer(schedule, origin)}
    raised: list[LibraryProblem] = []
    if (answer.bound is not None or answer.infeasible) and covers(answer.scope, stated):
        record = BoundRecord(
            measure="peak" if answer.on_peak else "cost", value=None if answer.infeasible else answer.bound,
            budget=None if answer.on_peak else problem.budget, order=_covered_order(problem, answer.scope),
            max_computes=answer.scope.max_computes,
            source=answer.source.removeprefix("the "), problem=problem.label, origin=origin,
        )  # fmt: skip
        raised = ledger.add(record)
    return Improvements(list(better.values()), raised, seconds)


def _start(standing: Standing, ledger: Ledger, call: Call) -> Schedule | None:
    """Return the best known schedule for a warm run, and for bounds, which are easier below a known cost."""
    wanted = call.warm or call.method == "bounds"
    known = standing.best
    return to_schedule(ledger.graph, known, str(ledger.path)) if wanted and isinstance(known, ScheduleRecord) else None


def _stated(problem: LibraryProblem, ledger: Ledger) -> Problem:
    """Return the problem to solve: with the fixed order, which has stronger bounds, if the graph has no other."""
    stated = problem.problem(ledger.graph)
    forced = problem.kind == "free" and ledger.graph.has_one_order
    return replace(stated, order=OrderRule.FIXED) if forced else stated


def _covered_order(problem: LibraryProblem, scope: Scope) -> Order:
    """Return the order rule of the record of a bound that covers a problem."""
    return "free" if problem.kind == "free" or scope.order is OrderRule.FREE else "fixed"


def _place(problem: LibraryProblem, ledger: Ledger, call: Call) -> Improvements:
    """Run an allocator and offer its addresses and its bound."""
    known = ledger.standing(problem).best
    start = None
    if call.warm and isinstance(known, AddressRecord):
        start = addresses_of(ledger.arena, known, str(ledger.path))
    began = _processor_seconds()
    found = _allocated(ledger, call, start)
    seconds = round(_processor_seconds() - began, 2)
    origin = _origin(call, seconds)
    better = [] if found.addresses is None else ledger.offer_addresses(found.addresses, origin)
    record = BoundRecord(
        measure="arena", value=found.bound, budget=None, order="fixed", max_computes=None, source=call.method,
        problem=problem.label, origin=origin,
    )  # fmt: skip
    return Improvements(better, ledger.add(record), seconds)


def _allocated(ledger: Ledger, call: Call, start: Addresses | None = None) -> Allocation:
    return allocate(ledger.arena, call.method, time_limit=call.seconds, start=start, options=call.options)


class Repetition(NamedTuple):
    """Bound that the run of a record gives now; None: infeasible, or nothing if not `reached`."""

    value: int | None
    expected: int | None
    reached: bool

    def __str__(self) -> str:
        wanted = "infeasible" if self.expected is None else f"{self.expected:,}"
        if self.reached:
            return f"{wanted}, reached again"
        return f"{wanted} was not reached again: {'nothing' if self.value is None else f'{self.value:,}'}"


def rerun(standing: Standing, ledger: Ledger) -> Repetition:
    """Repeat the run that gave the best bound of a problem, which must have a record.

    The time limit is that of the record, or :data:`RERUN` seconds where it is unknown.
    """
    record = standing.bound.record
    assert record is not None
    kind, _, percent = record.problem.partition("-")
    problem = LibraryProblem(standing.problem.instance, kind, int(percent) if percent else None)  # type: ignore[arg-type]
    origin = record.origin
    call = Call(origin.method, origin.limit or RERUN, origin.seed or 0)
    if kind == "arena":
        value = _allocated(ledger, call).bound
        return Repetition(value, record.value, value >= (record.value or 0))
    answer = OWN.get(call.method, _solve)(_stated(problem, ledger), call, _start(standing, ledger, call))
    enough = answer.infeasible or (
        record.value is not None and answer.bound is not None and answer.bound >= record.value
    )
    return Repetition(None if answer.infeasible else answer.bound, record.value, enough)


def _origin(call: Call, seconds: float) -> Origin:
    """Return the origin of a run."""
    return Origin(
        date=time.strftime("%Y-%m-%d", time.gmtime()), method=call.method, machine=machine(), seconds=seconds,
        limit=float(call.seconds), seed=call.seed, version=remat.__version__,
    )  # fmt: skip


@cache
def machine() -> str:
    """Return processor, number of usable processors and system; no name of a computer."""
    return f"{processor_name()}, {available_cpus()} CPUs, {platform.system()}"


def _processor_seconds() -> float:
    """Return the processor time of this process and all that it started, also through the fork server."""
    here = psutil.Process()
    times = []
    for process in (here, *here.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended meanwhile
            times.append(process.cpu_times())
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


def _bound(problem: Problem, call: Call, start: Schedule | None) -> Answer:
    """Find the best of all bounds on cost; `start` is a schedule whose cost they need not exceed."""
    enough = None if start is None else problem.validate(start).cost
    bound = best_bound(problem, call.seconds, threads=call.threads, enough=enough)
    return Answer(bound=bound.value, source=bound.kind, scope=bound.scope, infeasible=bound.infeasible)


def _exhaust(problem: Problem, call: Call, start: Schedule | None) -> Answer:
    """Find the optimum by live search, or by a slower search of what that cannot state; `start` is to be improved."""
    if LiveSearch.applies(problem):
        return _live_search(problem, call, start)
    deadline = Deadline.after(call.seconds)
    found = explore(
        problem, Aim.COST, limit=UNLIMITED, peak=problem.budget_bytes, deadline=deadline, most_states=MOST_STATES
    )
    if found is None:
        raise RematError(f"{problem.graph.name}: an op has too many tensors for an exhaustive search")
    schedules = () if found.schedule is None else (found.schedule,)
    infeasible = not schedules and found.bound >= UNLIMITED
    scope = Scope(OrderRule(problem.order), staged=False)
    return Answer(schedules, None if infeasible else found.bound, "exhaustive search", scope, infeasible)


def _live_search(problem: Problem, call: Call, start: Schedule | None) -> Answer:
    """Run live search with the memory that some records need."""
    return _solve(problem, replace(call, method="live-search"), start, LiveSearchOptions(LIVE_MEMORY))


def _least_peak(problem: Problem, call: Call, _start: Schedule | None) -> Answer:
    """Find a schedule of least peak with recomputation and a bound on the peak, which decide the smallest budgets."""
    result = minimize(
        Problem(problem.graph, order=problem.order, keep=problem.keep),
        stop=call.seconds,
        options=call.options,
        on_progress=call.on_progress,
    )
    schedules = () if result.schedule is None else (result.schedule,)
    return Answer(
        schedules, result.bound, result.bound_kind, Scope(OrderRule(problem.order), staged=False), on_peak=True
    )


def _solve(problem: Problem, call: Call, start: Schedule | None, method_options: Any = None) -> Answer:
    """Call solve()."""
    method = Contestant.parse(call.method)
    result = solve(
        problem,
        method.method,
        method.backend or "cp-sat",
        stop=call.seconds,
        warm_start=start,
        options=call.options,
        method_options=method_options,
        on_progress=call.on_progress,
    )
    schedules = tuple(each for each in (result.schedule, result.least_peak_schedule) if each is not None)
    peak = problem.objective.is_memory
    infeasible = result.status == "infeasible"
    return Answer(
        schedules, None if infeasible else result.bound, result.bound_kind or call.method, result.scope, infeasible,
        on_peak=peak,
    )  # fmt: skip


#: Methods in addition to those of solve(), or with options of their own.
OWN: dict[str, Callable[[Problem, Call, Schedule | None], Answer]] = {
    "bounds": _bound, "exhaustive": _exhaust, "live-search": _live_search, "least-peak": _least_peak,
}  # fmt: skip
