"""Checks of a formulation with a backend, on tiny graphs whose optima are found by exhaustive search."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from unittest import SkipTest

from remat.backends.base import Backend
from remat.backends.results import RawResult, Values
from remat.errors import ProblemError
from remat.graphs.layered import layered
from remat.heuristics.base import HeuristicRun
from remat.heuristics.greedy import Greedy
from remat.modeling import violations
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status, StopReason
from remat.schedule import Certificate, Schedule, validate
from remat.testing.kit import (
    USUAL,
    ConformanceError,
    Effort,
    MakeFormulation,
    answer,
    answer_in_time,
    close,
    options,
    require,
)
from remat.testing.problems import (
    FAMILIES,
    FREE,
    FULL,
    ONCE,
    PLAIN,
    Case,
    Family,
    cases,
    has_no_schedule,
    is_feasible,
    worth_a_search,
)

PairCheck = Callable[..., None]


def _check_of_family(family: Family) -> PairCheck:
    def check(make: MakeFormulation, backend: Backend, effort: Effort = USUAL) -> None:
        for case in cases(make, family, effort, worth_a_search, otherwise=is_feasible):
            _solved(case, backend, effort)

    check.__name__ = family.name.replace(" ", "_")
    check.__doc__ = f"Find the optimum of {family.about}, against exhaustive search."
    return check


def _solved(case: Case, backend: Backend, effort: Effort, hint: Values | None = None) -> RawResult:
    """Return the answer, after checking that it is the optimum of the scope and a certified schedule."""
    who = f"{case.formulation.name} on {backend.full_name}, {case}"
    model = case.formulation.build()
    raw = answer(backend, model, options(effort.patience), hint)
    if case.best is None:
        require(
            raw.status is Status.INFEASIBLE or not case.exact, f"{who}: no schedule exists, the answer is {raw.status}"
        )
        return raw
    require(raw.status is Status.OPTIMAL or (raw.status is Status.INFEASIBLE and not case.exact),
            f"{who}: {raw.status} ({raw.stop}), exhaustive search finds {case.worth}")  # fmt: skip
    require(raw.stop is StopReason.FINISHED, f"{who}: {raw.status}, but stopped by {raw.stop}")
    if raw.values is None or raw.objective is None:
        return raw
    certificate = _certified(who, case.problem, case.formulation.decode(raw.values))
    value = case.problem.value
    worth, best = value(certificate), value(_certified(who, case.problem, case.best.schedule))
    # A solver may compute ops of cost 0 or leave useless computes to decode(), so the schedule may be cheaper.
    require(worth <= raw.objective + 0.5, f"{who}: claims {raw.objective}, the schedule is worth {worth}")
    right = close(raw.objective, best) and worth == best
    require(right or (not case.exact and worth > best),
            f"{who}: claims optimum {raw.objective} (schedule: {worth}), there is one of {best}")  # fmt: skip
    again = case.formulation.encode(case.formulation.decode(raw.values))
    wrong = violations(model, again)
    require(not wrong, f"{who}: the answer, encoded again, breaks the model: {'; '.join(wrong[:1])}")
    back = _certified(who, case.problem, case.formulation.decode(again))
    require(back.cost == certificate.cost, f"{who}: decode(encode(s)) costs {back.cost}, s costs {certificate.cost}")
    for incumbent in raw.incumbents:
        _certified(who, case.problem, case.formulation.decode(incumbent.values))
    return raw


def _certified(who: str, problem: Problem, schedule: Schedule) -> Certificate:
    certificate = validate(problem.graph, schedule, problem.rules)
    require(certificate.accepted, f"{who}: the schedule is refused: {certificate.first}")
    return certificate


def infeasible_stays_infeasible(make: MakeFormulation, backend: Backend, effort: Effort = USUAL) -> None:
    """The solver proves infeasibility if exhaustive search does, also with a hint over budget."""
    for number, case in enumerate(_first(make, (PLAIN, FREE, ONCE), effort, has_no_schedule)):
        hint = case.formulation.encode(Schedule.reference(case.problem.graph)) if not number else None
        _solved(case, backend, effort, hint)


def hints_are_taken(make: MakeFormulation, backend: Backend, effort: Effort = USUAL) -> None:
    """The optimum as a hint stays the optimum, and a wide gap does not lose it."""
    for case in _first(make, (FULL, PLAIN, FREE, ONCE), effort, lambda case: worth_a_search(case) and case.exact):
        assert case.best is not None
        hint = case.formulation.encode(case.best.schedule)
        _solved(case, backend, effort, hint)
        raw = answer(backend, case.formulation.build(), options(effort.patience, relative_gap=0.99), hint)
        require(raw.objective is not None and case.worth is not None and raw.objective <= case.worth + 1e-6,
                f"{backend.full_name}, {case}: ends with {raw.objective}, the hint is worth {case.worth}")  # fmt: skip


def _first(
    make: MakeFormulation, families: tuple[Family, ...], effort: Effort, wanted: Callable[[Case], bool]
) -> list[Case]:
    """Return at most two cases of the first of some families that has any.

    Raise SkipTest if the formulation refuses all of them. Raise ConformanceError if it states some problems, but none
    is wanted.
    """
    refusal, fault = SkipTest("there is no such family"), None
    for family in families:
        try:
            return list(cases(make, family, effort, wanted, count=min(2, effort.cases)))
        except SkipTest as reason:
            refusal = reason
        except ConformanceError as reason:
            fault = reason
    raise fault or refusal


def deadline_keeps_the_incumbent(make: MakeFormulation, backend: Backend, effort: Effort = USUAL) -> None:
    """On a model too large to finish the answer is in time and no worse than the hint."""
    for ops in (30, 60, 120, 240):
        problem, start, cost = _large(ops)
        try:
            formulation = make(problem)
            hint = formulation.encode(start)
        except ProblemError as error:
            raise SkipTest(f"cannot start from a greedy schedule of {ops} ops: {error}") from None
        raw = answer_in_time(backend, formulation.build(), effort.deadline, effort, hint)
        who = f"{formulation.name} on {backend.full_name}, {ops} ops"
        require(raw.values is not None, f"{who}: {raw.status}, though a schedule was given as a hint")
        assert raw.values is not None
        found = _certified(who, problem, formulation.decode(raw.values)).cost
        require(found <= cost, f"{who}: ends with cost {found}, the hint had {cost}")
        if raw.status is Status.FEASIBLE:
            require(raw.stop is StopReason.DEADLINE, f"{who}: out of time, but stopped by {raw.stop}")
            return
    raise SkipTest(f"{backend.full_name} solves the largest model within {effort.deadline} s")


@lru_cache(maxsize=8)
def _large(ops: int) -> tuple[Problem, Schedule, int]:
    """Return a problem, a schedule within the budget with at most two computes per op, and its cost."""
    graph = layered(ops, seed=1)
    for percent in (80, 85, 90, 95):
        problem = Problem(graph, f"{percent}%")
        start = Greedy().run(
            Problem(graph, f"{percent}%", max_computes=2), HeuristicRun(SolveOptions(Deadline.after(20)))
        )
        if start is not None:
            certificate = validate(graph, start, problem.rules)
            if certificate.accepted and certificate.cost > graph.base_cost:
                return problem, start, certificate.cost
    raise SkipTest(f"no start is known for {ops} ops")


#: All checks of a formulation on a backend; each takes the formulation's class and a backend.
PAIR_CHECKS: tuple[PairCheck, ...] = (
    *(_check_of_family(family) for family in FAMILIES),
    infeasible_stays_infeasible,
    hints_are_taken,
    deadline_keeps_the_incumbent,
)
