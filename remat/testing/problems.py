"""Tiny problems whose optima are found by exhaustive search, selected to be non-trivial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any
from unittest import SkipTest

from remat.errors import ProblemError
from remat.formulations.base import Formulation
from remat.problem import Objective, Problem
from remat.problem.scope import Scope
from remat.testing.exhaustive import FILLED_ONCE, Optimum, least_peak, optimum
from remat.testing.graphs import random_budget, random_graph
from remat.testing.kit import Effort, MakeFormulation, fail

#: Notes of scopes that the exhaustive search supports.
KNOWN_NOTES = {FILLED_ONCE}
#: Refusals after which a formulation counts as refusing the whole family.
REFUSALS = 40
#: Maximum number of random problems.
TRIES = 2000
#: Stated problems after which trivial ones are accepted.
ENOUGH = 80


@dataclass(frozen=True, eq=False)
class Family:
    """A kind of problem."""

    name: str
    about: str
    order: str = "fixed"
    max_computes: int | None = None
    graph: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of :func:`remat.testing.random_graph`."""
    objective: Objective = Objective.DEFAULT
    """Problems of least peak have no budget."""


PLAIN = Family("plain graphs", "graphs with one output per op and nothing else", graph={"plain": True})
FULL = Family(
    "full graphs", "graphs with several outputs per op, workspace, inputs, kept tensors and ops that run once"
)
LIMITED = Family("limited computes", "problems with a limit of computes per op", max_computes=2)
BUFFERS = Family("accumulation buffers", "graphs with accumulation buffers", graph={"buffers": True})


def in_any_order(family: Family) -> Family:
    """Return the family with a free order."""
    return replace(family, name=f"{family.name} in any order", about=f"{family.about}, in any order", order="free")


FREE_PLAIN, FREE, FREE_LIMITED, FREE_BUFFERS = map(in_any_order, (PLAIN, FULL, LIMITED, BUFFERS))


def of_least_peak(family: Family) -> Family:
    """Return the family with the least peak as the objective."""
    about = f"the least peak of {family.about}"
    return replace(family, name=f"least peak of {family.name}", about=about, objective=Objective.LEAST_PEAK)


ONCE = Family("orders alone", "plain graphs in any order without recomputation", "free", 1, {"plain": True})
COST_FAMILIES = (PLAIN, FULL, LIMITED, BUFFERS, FREE_PLAIN, FREE, FREE_LIMITED, FREE_BUFFERS, ONCE)
PEAK_FAMILIES = tuple(map(of_least_peak, (FULL, BUFFERS, FREE, FREE_BUFFERS, ONCE)))
FAMILIES = (*COST_FAMILIES, *PEAK_FAMILIES)


@dataclass(frozen=True)
class Case:
    """A problem stated by one formulation."""

    problem: Problem
    formulation: Formulation
    search: Callable[[Scope], Optimum | None]
    """Exhaustive search for the best schedule of a scope."""

    @cached_property
    def best(self) -> Optimum | None:
        """Best schedule in the formulation's scope by the problem's objective, or None."""
        scope = self.formulation.scope()
        return self.search(replace(scope, notes=tuple(note for note in scope.notes if note in KNOWN_NOTES)))

    @property
    def exact(self) -> bool:
        """True if the search supports the scope; otherwise its optimum is only a lower bound."""
        return set(self.formulation.scope().notes) <= KNOWN_NOTES

    @property
    def worth(self) -> int | None:
        """Objective of the best schedule, None without one."""
        return None if self.best is None else self.problem.objective.value(self.best)

    def __str__(self) -> str:
        graph, budget = self.problem.graph.name, self.problem.budget_bytes
        return f"graph {graph!r} with budget {budget}, order {self.problem.order}, {self.problem.objective}"


def cases(
    make: MakeFormulation,
    family: Family,
    effort: Effort,
    wanted: Callable[[Case], bool],
    *,
    count: int | None = None,
    otherwise: Callable[[Case], bool] | None = None,
) -> Iterator[Case]:
    """Yield `count` (default: ``effort.cases``) wanted problems of the family that the formulation accepts.

    Parameters
    ----------
    otherwise : callable, optional
        Selects substitutes if none of the first :data:`ENOUGH` problems is wanted.

    Raises
    ------
    unittest.SkipTest
        With the formulation's reason, if it refuses every problem of the family.
    ConformanceError
        If it states some problems, but none is wanted: a check must not pass without a case.
    """
    refusals, taken, left = [], 0, effort.cases if count is None else count
    passed: list[Case] = []
    given = 0
    for seed in range(TRIES):
        problem = _problem(family, seed, effort.most_ops)
        if problem is None:
            continue
        try:
            formulation = make(problem)
            if problem.objective not in formulation.objectives:
                raise ProblemError(f"the {formulation.name} formulation does not state {problem.objective}")
        except ProblemError as error:
            refusals.append(str(error))
            if len(refusals) == REFUSALS and not taken:
                raise SkipTest(f"refuses {family.about}: {refusals[0]}") from None
            continue
        taken += 1
        case = Case(problem, formulation, partial(_best, family, seed, effort.most_ops))
        if wanted(case):
            yield case
            given += 1
        elif otherwise is not None and otherwise(case) and len(passed) < left:
            passed.append(case)
        if given == left:
            return
        if not given and taken >= ENOUGH and passed:
            yield from passed
            return
    if not taken:
        raise SkipTest(f"refuses {family.about}: {refusals[0]}")
    if not given:
        yield from passed
        if not passed:
            fail(f"none of {taken} {family.about} that the formulation states is suitable for this check")


@lru_cache(maxsize=4096)
def _problem(family: Family, seed: int, most_ops: int) -> Problem | None:
    """Return the problem with this number; None if its graph is too large."""
    graph = random_graph(seed, most_ops, **family.graph)
    if len(graph.ops) > most_ops + 1:
        return None
    budget = None if family.objective.is_memory else random_budget(graph, seed)
    return Problem(graph, budget, family.order, family.max_computes, objective=family.objective)


@lru_cache(maxsize=4096)
def _best(family: Family, seed: int, most_ops: int, scope: Scope) -> Optimum | None:
    """Return the optimum of a problem, cached for all backends."""
    problem = _problem(family, seed, most_ops)
    assert problem is not None
    return (least_peak if family.objective.is_memory else optimum)(problem, scope)


def worth_a_search(case: Case) -> bool:
    """Return True if a schedule exists, but only with recomputation or, without it, in another order."""
    graph, objective = case.problem.graph, case.problem.objective
    if objective.is_memory:
        return case.worth is not None and case.worth < graph.reference_peak
    if case.worth is None or case.formulation.scope().max_computes != 1:
        return case.worth is not None and case.worth > objective.base(graph)
    return graph.reference_peak > (case.problem.budget_bytes or 0)


def is_feasible(case: Case) -> bool:
    """Return True if the problem is feasible."""
    return case.best is not None


def has_no_schedule(case: Case) -> bool:
    """Return True if the search proves the problem infeasible."""
    return case.best is None and case.exact
