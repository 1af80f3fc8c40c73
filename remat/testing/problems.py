"""Tiny problems whose optima are found by exhaustive search, picked so that they are worth solving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import SkipTest

from remat.errors import ProblemError
from remat.formulations.base import Formulation
from remat.problem import Problem
from remat.testing.exhaustive import FILLED_ONCE, Optimum, optimum
from remat.testing.graphs import random_budget, random_graph
from remat.testing.kit import Effort, MakeFormulation

#: What :class:`remat.formulations.base.Scope` may note and the exhaustive search knows.
KNOWN_NOTES = {FILLED_ONCE}
#: Problems that a formulation may refuse before it is taken for granted that it refuses all of the family.
REFUSALS = 40
#: Random problems looked at, at most.
TRIES = 2000


@dataclass(frozen=True)
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
    """

    name: str
    about: str
    order: str = "fixed"
    max_computes: int | None = None
    graph: Mapping[str, Any] = field(default_factory=dict)


PLAIN = Family("plain graphs", "graphs with one output per op and nothing else", graph={"plain": True})
FULL = Family(
    "full graphs", "graphs with several outputs per op, workspace, inputs, kept tensors and ops that run once"
)
LIMITED = Family("limited computes", "problems with a limit of computes per op", max_computes=2)
FREE = Family("free order", "problems with a free order", "free")
BUFFERS = Family("accumulation buffers", "graphs with accumulation buffers", graph={"buffers": True})
FAMILIES = (PLAIN, FULL, LIMITED, FREE, BUFFERS)


@dataclass(frozen=True)
class Case:
    """A problem as one formulation states it.

    Attributes
    ----------
    problem : Problem
    formulation : Formulation
    best : Optimum or None
        Cheapest schedule in the formulation's scope; None: there is none.
    exact : bool
        Whether the scope is one that the search knows; otherwise its optimum is only a lower bound.
    """

    problem: Problem
    formulation: Formulation
    best: Optimum | None
    exact: bool

    def __str__(self) -> str:
        return f"graph {self.problem.graph.name!r} with budget {self.problem.budget_bytes}, order {self.problem.order}"


def cases(
    make: MakeFormulation, family: Family, effort: Effort, wanted: Callable[[Case], bool], count: int | None = None
) -> Iterator[Case]:
    """`count` (default: ``effort.cases``) problems of the family that the formulation takes and that are wanted.

    Raises
    ------
    unittest.SkipTest
        With the formulation's own reason, if it refuses every problem of the family.
    """
    refusals, taken = [], 0
    left = effort.cases if count is None else count
    for seed in range(TRIES):
        graph = random_graph(seed, effort.most_ops, **family.graph)
        if len(graph.ops) > effort.most_ops + 1:
            continue
        problem = Problem(graph, random_budget(graph, seed), family.order, family.max_computes)
        try:
            formulation = make(problem)
        except ProblemError as error:
            refusals.append(str(error))
            if len(refusals) == REFUSALS and not taken:
                raise SkipTest(f"refuses {family.about}: {refusals[0]}") from None
            continue
        taken += 1
        scope = formulation.scope()
        case = Case(problem, formulation, optimum(problem, scope), set(scope.notes) <= KNOWN_NOTES)
        if wanted(case):
            yield case
            left -= 1
            if not left:
                return
    if not taken:
        raise SkipTest(f"refuses {family.about}: {refusals[0]}")


def needs_recomputation(case: Case) -> bool:
    """Whether the problem is feasible, at more than the cost of computing each op once."""
    return case.best is not None and case.best.cost > case.problem.graph.base_cost


def has_no_schedule(case: Case) -> bool:
    """Whether the problem is infeasible, in a way that the search knows."""
    return case.best is None and case.exact
