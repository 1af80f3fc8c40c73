"""Checks of a heuristic: valid schedules, in time, deterministic, and no worse than their start."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from unittest import SkipTest

import numpy as np

from remat.errors import ProblemError
from remat.graphs.layered import layered
from remat.heuristics.base import Heuristic, HeuristicRun, OnSchedule
from remat.heuristics.greedy import Greedy
from remat.problem import Problem
from remat.problem.scope import Scope, covers
from remat.schedule import Certificate, OrderRule, Schedule, Verdict, validate
from remat.testing.exhaustive import Optimum, optimum
from remat.testing.graphs import random_budget, random_graph
from remat.testing.kit import USUAL, Effort, check_options_type, check_wrong_options, fail, in_time, options, require
from remat.testing.machine_checks import moves_tensors_on_machines
from remat.testing.problems import COST_FAMILIES, Family

#: A class of heuristics, or any callable that returns one: ``lambda: MyHeuristic(MyOptions(3))``.
MakeHeuristic = Callable[[], Heuristic]
HeuristicCheck = Callable[..., None]

#: Problems of each family to try until the heuristic has accepted as many as required.
ATTEMPTS = 40


def says_what_it_is(make: MakeHeuristic, effort: Effort = USUAL) -> None:
    """A name, and options in a frozen dataclass with defaults, or none."""
    heuristic = make()
    require(isinstance(heuristic, Heuristic) and heuristic.name, f"{heuristic!r} is no heuristic with a name")
    check_options_type(heuristic.name, heuristic.options_type)


def refuses_options(make: MakeHeuristic, effort: Effort = USUAL) -> None:
    """Options of the wrong type and invalid values are refused in one line that names the option."""
    check_wrong_options(make())


def _problems(make: MakeHeuristic, family: Family, effort: Effort) -> Iterator[tuple[str, Problem, int]]:
    """Yield problems that the heuristic accepts, each with a description and a seed."""
    given, refusal = 0, ""
    for seed in range(ATTEMPTS):
        graph = random_graph(seed, effort.most_ops, **family.graph)
        problem = Problem(graph, random_budget(graph, seed), family.order, family.max_computes)
        heuristic = make()
        try:
            heuristic.run(problem, _run(effort.deadline, seed))
        except ProblemError as error:
            refusal = str(error)
            require("\n" not in refusal, f"{heuristic.name} refuses a problem in several lines: {refusal}")
            continue
        given += 1
        yield f"{heuristic.name} on graph {graph.name!r}, budget {problem.budget_bytes}, {family.name}", problem, seed
        if given == effort.cases:
            return
    if not given:
        raise SkipTest(f"refuses {family.about}: {refusal}")


def _check_of_family(family: Family) -> HeuristicCheck:
    def check(make: MakeHeuristic, effort: Effort = USUAL) -> None:
        for who, problem, seed in _problems(make, family, effort):
            reported: list[Schedule] = []
            heuristic = make()
            schedule = heuristic.run(problem, _run(effort.deadline, seed, on_schedule=reported.append))
            best = _truth(problem, family.max_computes)
            for found in reported if schedule is None else (*reported, schedule):
                certificate = _valid(who, problem, found)
                if certificate.accepted:
                    require(best is not None and certificate.cost >= best.cost,
                            f"{who}: a schedule costs {certificate.cost}, exhaustive search finds {best}")  # fmt: skip
            _bounds(who, heuristic, problem, best)
            if reported:
                require(schedule is not None, f"{who}: it reports schedules, and returns none")
                assert schedule is not None
                require(
                    _worth(problem, schedule) <= min(_worth(problem, found) for found in reported),
                    f"{who}: it reports a better schedule than it returns",
                )

    check.__name__ = family.name.replace(" ", "_")
    check.__doc__ = f"Schedules of {family.about} are valid except for the budget; none is cheaper than the optimum."
    return check


def _run(
    seconds: float, seed: int = 0, start: Schedule | None = None, on_schedule: OnSchedule | None = None
) -> HeuristicRun:
    """Return a run with one thread and a deadline that starts now."""
    return HeuristicRun(options(seconds, seed=seed), start, on_schedule)


@lru_cache(maxsize=512)
def _truth(problem: Problem, limit: int | None) -> Optimum | None:
    return optimum(problem, Scope(problem.order, staged=False, max_computes=limit))


def _valid(who: str, problem: Problem, schedule: Schedule) -> Certificate:
    """Return the certificate of a schedule that breaks no rule except the budget."""
    require(isinstance(schedule, Schedule), f"{who}: {type(schedule).__name__} is no Schedule")
    certificate = validate(problem.graph, schedule, problem.rules)
    require(certificate.verdict is not Verdict.INVALID, f"{who}: the schedule is refused: {certificate.first}")
    return certificate


def _worth(problem: Problem, schedule: Schedule) -> tuple[bool, int]:
    """Return a sort key, better first: schedules within the budget by cost, then others by peak."""
    certificate = validate(problem.graph, schedule, problem.rules)
    return (False, certificate.cost) if certificate.accepted else (True, certificate.peak)


def _bounds(who: str, heuristic: Heuristic, problem: Problem, best: Optimum | None) -> None:
    """A bound has a scope; if that covers the problem the bound is at most the optimum."""
    if heuristic.bound is None:
        return
    require(heuristic.scope is not None, f"{who}: its bound has no scope")
    assert heuristic.scope is not None
    if best is not None and covers(heuristic.scope, problem):
        require(heuristic.bound <= best.cost, f"{who}: bound {heuristic.bound}, exhaustive search finds {best.cost}")


def finds_a_schedule(make: MakeHeuristic, effort: Effort = USUAL) -> None:
    """With the reference peak as the budget it finds a schedule, in some order."""
    refusal = ""
    for order in OrderRule:
        for seed in range(ATTEMPTS):
            problem = Problem(random_graph(seed, effort.most_ops, plain=True), "100%", order)
            try:
                schedule = make().run(problem, _run(effort.deadline))
            except ProblemError as error:
                refusal = str(error)
                continue
            if schedule is not None and validate(problem.graph, schedule, problem.rules).accepted:
                return
    fail(f"{make().name} finds no schedule of any tiny graph, {refusal or 'even with memory for all of the graph'}")


def gives_the_same_again(make: MakeHeuristic, effort: Effort = USUAL) -> None:
    """The same seed gives the same schedule, from the same object and from another one."""
    for who, problem, _, _ in _of_all_families(make, dataclasses.replace(effort, cases=1)):
        heuristic = make()
        runs = [each.run(problem, _run(effort.deadline, 5)) for each in (heuristic, heuristic, make())]
        require(runs[0] == runs[1] == runs[2], f"{who}: the same seed gives other schedules")


def _of_all_families(make: MakeHeuristic, effort: Effort) -> Iterator[tuple[str, Problem, int, Family]]:
    """Yield the problems of each family that the heuristic accepts."""
    for family in COST_FAMILIES:
        with contextlib.suppress(SkipTest):
            yield from ((*found, family) for found in list(_problems(make, family, effort)))


def leaves_the_problem_alone(make: MakeHeuristic, effort: Effort = USUAL) -> None:
    """Graph, arrays, limits and start stay unchanged."""
    limits = {"op0": 3}
    for order in OrderRule:
        graph = random_graph(11, effort.most_ops, plain=True)
        problem = Problem(graph, graph.reference_peak - 1, order, limits)
        start = Schedule.reference(graph)
        before = _content(problem), list(start.steps())
        try:
            make().run(problem, _run(effort.deadline, 0, start))
        except ProblemError:
            continue
        after = _content(problem, len(before[0]) - 5), list(start.steps())
        require(after == before, f"{make().name} changes the problem or its start")


def _content(problem: Problem, arrays: int | None = None) -> list[object]:
    """Return the content of a problem with its first `arrays` arrays: arrays cached on demand come last."""
    found = [array.tolist() for array in vars(problem.graph.arrays).values() if isinstance(array, np.ndarray)]
    return [
        problem.graph.digest,
        problem.budget_bytes,
        list(problem.compute_limits),
        sorted(problem.keep),
        problem.kept.tolist(),
        *found[:arrays],
    ]


def is_no_worse_than_its_start(make: MakeHeuristic, effort: Effort = USUAL) -> None:
    """The result is no worse than a good start. Skipped for heuristics that ignore the start.

    The start is the optimum on tiny graphs, and a schedule of `greedy` on a graph of sixty ops.
    """
    uses_it, worse = False, ""
    for who, problem, seed, start in _starts(make, effort):
        try:
            without = make().run(problem, _run(effort.deadline, seed))
            schedule = make().run(problem, _run(effort.deadline, seed, start))
        except ProblemError:
            continue
        given, ended = _worth(problem, start), None if schedule is None else _worth(problem, schedule)
        uses_it |= ended != (None if without is None else _worth(problem, without))
        if ended is None or ended > given:
            worse = worse or f"{who}: starts with {given}, and ends with {ended}"
    if not uses_it:
        raise SkipTest(f"{make().name} ignores the start")
    require(not worse, worse)


def _starts(make: MakeHeuristic, effort: Effort) -> Iterator[tuple[str, Problem, int, Schedule]]:
    for who, problem, seed, family in _of_all_families(make, effort):
        if (best := _truth(problem, family.max_computes)) is not None:
            yield who, problem, seed, best.schedule
    for order in OrderRule:
        problem = Problem(layered(60, seed=2), "90%", order)
        start = Greedy().run(Problem(problem.graph, "90%"), _run(10))
        if start is not None:
            yield f"{make().name} on graph {problem.graph.name!r}, order {order}", problem, 0, start


def ends_in_time(make: MakeHeuristic, effort: Effort = USUAL) -> None:
    """On a graph of 300 ops it returns a valid schedule, or none, soon after its deadline, even without time.

    First-time loading does not count.
    """
    graph = layered(300, seed=1)
    make().prepared()
    for order in OrderRule:
        problem = Problem(graph, "80%", order)
        for seconds in (0.0, effort.deadline):
            run = partial(_within, make(), problem, seconds)
            schedule = in_time(make().name, seconds, effort.grace, run)
            if schedule is not None:
                _valid(f"{make().name} with {seconds:g} s on {graph.name!r}", problem, schedule)


def _within(heuristic: Heuristic, problem: Problem, seconds: float) -> Schedule | None:
    """Return the schedule found in `seconds` seconds; None also if it refuses the problem."""
    with contextlib.suppress(ProblemError):
        return heuristic.run(problem, _run(seconds))
    return None


def stops_when_asked(make: MakeHeuristic, effort: Effort = USUAL) -> None:
    """A true return value of the callback ends the search with its schedule. Skipped if it is never called."""
    reported: list[float] = []

    def enough(schedule: Schedule) -> bool:
        reported.append(time.monotonic())
        return True

    graph = layered(60, seed=2)
    make().prepared()
    for order in OrderRule:
        heuristic = make()
        problem = Problem(graph, "90%", order)
        try:
            schedule = heuristic.run(problem, _run(20 * effort.deadline, on_schedule=enough))
        except ProblemError:
            continue
        if reported:
            took = time.monotonic() - reported[0]
            require(took <= effort.grace, f"{heuristic.name} runs for {took:.1f} s after a request to stop")
            require(schedule is not None, f"{heuristic.name} reports a schedule and returns none")
            return
    raise SkipTest(f"{make().name} reports no schedules")


#: All checks of a heuristic; each takes its class, and optionally an :class:`Effort`.
HEURISTIC_CHECKS: tuple[HeuristicCheck, ...] = (
    says_what_it_is,
    refuses_options,
    *(_check_of_family(family) for family in COST_FAMILIES),
    finds_a_schedule,
    gives_the_same_again,
    leaves_the_problem_alone,
    is_no_worse_than_its_start,
    ends_in_time,
    stops_when_asked,
    moves_tensors_on_machines,
)
