"""Tiny problems whose optima are found by exhaustive search, picked so that they are worth solving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from unittest import SkipTest

from remat.errors import ProblemError
from remat.formulations.base import Formulation
from remat.problem import Objective, Problem
from remat.schedule import Certificate
from remat.scope import Scope
from remat.testing.exhaustive import FILLED_ONCE, Optimum, least_peak, optimum
from remat.testing.graphs import random_budget, random_graph
from remat.testing.kit import Effort, MakeFormulation, fail

#: What :class:`remat.formulations.base.Scope` may note and the exhaustive search knows.
KNOWN_NOTES = {FILLED_ONCE}
#: Problems that a formulation may refuse before it is taken for granted that it refuses all of the family.
REFUSALS = 40
#: Random problems looked at, at most.
TRIES = 2000
#: Problems that a formulation states before those have to do that are not worth a search.
ENOUGH = 80


@dataclass(frozen=True, eq=False)
class Family:
    """A kind of problems.

    Attributes
    ----------
    name, about : str
        In one or two words; in a few more.
    order : str
    max_computes : int or None
    graph : mapping
        Keywords of :func:`remat.testing.random_graph`.
    objective : Objective
        Problems of least peak have no budget.
    """

    name: str
    about: str
    order: str = "fixed"
    max_computes: int | None = None
    graph: Mapping[str, Any] = field(default_factory=dict)
    objective: Objective = Objective.LEAST_COST


PLAIN = Family("plain graphs", "graphs with one output per op and nothing else", graph={"plain": True})
FULL = Family(
    "full graphs", "graphs with several outputs per op, workspace, inputs, kept tensors and ops that run once"
)
LIMITED = Family("limited computes", "problems with a limit of computes per op", max_computes=2)
BUFFERS = Family("accumulation buffers", "graphs with accumulation buffers", graph={"buffers": True})


def in_any_order(family: Family) -> Family:
    """The same graphs and budgets, with a free order."""
    return replace(family, name=f"{family.name} in any order", about=f"{family.about}, in any order", order="free")


FREE_PLAIN, FREE, FREE_LIMITED, FREE_BUFFERS = map(in_any_order, (PLAIN, FULL, LIMITED, BUFFERS))


def of_least_peak(family: Family) -> Family:
    """The same graphs, of which the least peak is wanted."""
    about = f"the least peak of {family.about}"
    return replace(family, name=f"least peak of {family.name}", about=about, objective=Objective.LEAST_PEAK)


ONCE = Family("orders alone", "plain graphs in any order without recomputation", "free", 1, {"plain": True})
COST_FAMILIES = (PLAIN, FULL, LIMITED, BUFFERS, FREE_PLAIN, FREE, FREE_LIMITED, FREE_BUFFERS, ONCE)
PEAK_FAMILIES = tuple(map(of_least_peak, (FULL, BUFFERS, FREE, FREE_BUFFERS, ONCE)))
FAMILIES = (*COST_FAMILIES, *PEAK_FAMILIES)


@dataclass(frozen=True)
class Case:
    """A problem as one formulation states it.

    Attributes
    ----------
    problem : Problem
    formulation : Formulation
    best : Optimum or None
        Best schedule in the formulation's scope, by the problem's objective; None: there is none.
    exact : bool
        Whether the scope is one that the search knows; otherwise its optimum is only a lower bound.
    """

    problem: Problem
    formulation: Formulation
    best: Optimum | None
    exact: bool

    @property
    def worth(self) -> int | None:
        """The optimum: a cost, or bytes."""
        return None if self.best is None else self.best.peak if self.is_of_peak else self.best.cost

    @property
    def is_of_peak(self) -> bool:
        """Whether the least peak is asked for."""
        return self.problem.objective is Objective.LEAST_PEAK

    def measure(self, certificate: Certificate) -> int:
        """What a schedule is worth by the problem's objective."""
        return certificate.peak if self.is_of_peak else certificate.cost

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
    """`count` (default: ``effort.cases``) problems of the family that the formulation takes and that are wanted.

    Parameters
    ----------
    otherwise : callable, optional
        What is taken instead if none of the first :data:`ENOUGH` problems is wanted.

    Raises
    ------
    unittest.SkipTest
        With the formulation's own reason, if it refuses every problem of the family.
    ConformanceError
        If it states some, but none is as it is wanted: a check must not pass because it looked at nothing.
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
        scope = formulation.scope()
        case = Case(problem, formulation, _best(family, seed, effort.most_ops, scope), set(scope.notes) <= KNOWN_NOTES)
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
            fail(f"none of {taken} {family.about} that the formulation states is of use to this check")


@lru_cache(maxsize=4096)
def _problem(family: Family, seed: int, most_ops: int) -> Problem | None:
    """The problem of that number; None where its graph is too large."""
    graph = random_graph(seed, most_ops, **family.graph)
    if len(graph.ops) > most_ops + 1:
        return None
    budget = None if family.objective is Objective.LEAST_PEAK else random_budget(graph, seed)
    return Problem(graph, budget, family.order, family.max_computes, objective=family.objective)


@lru_cache(maxsize=4096)
def _best(family: Family, seed: int, most_ops: int, scope: Scope) -> Optimum | None:
    """Its optimum, found once for all backends."""
    problem = _problem(family, seed, most_ops)
    assert problem is not None
    return least_peak(problem, scope) if family.objective is Objective.LEAST_PEAK else optimum(problem, scope)


def worth_a_search(case: Case) -> bool:
    """Whether there is a schedule, but only by computing something again, or else in another order alone."""
    if case.is_of_peak:
        return case.best is not None and case.best.peak < case.problem.graph.reference_peak
    if case.best is None or case.formulation.scope().max_computes != 1:
        return case.best is not None and case.best.cost > case.problem.graph.base_cost
    return case.problem.graph.reference_peak > (case.problem.budget_bytes or 0)


def is_feasible(case: Case) -> bool:
    """Whether the problem is feasible."""
    return case.best is not None


def has_no_schedule(case: Case) -> bool:
    """Whether the problem is infeasible, in a way that the search knows."""
    return case.best is None and case.exact
