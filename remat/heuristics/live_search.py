"""Live search as a heuristic: the cheapest schedule of a small graph, with a proof."""

from __future__ import annotations

from dataclasses import dataclass

from remat.errors import ProblemError
from remat.heuristics.base import Heuristic, HeuristicRun
from remat.ordering.live_search import ENDLESS, KERNELS, LiveSearch
from remat.ordering.live_sets import MOST
from remat.problem import Problem
from remat.problem.scope import own_scope
from remat.runtime.checked_options import Options, Positive
from remat.schedule import Schedule

#: Share of the time in which it seeks any schedule, or proves that none exists, if none is known.
FEASIBILITY_SHARE = 0.4


@dataclass(frozen=True)
class LiveSearchOptions(Options):
    """Options of :class:`CheapestByLiveSearch`."""

    memory: Positive = 1 << 29
    """Bytes for states."""


class CheapestByLiveSearch(Heuristic):
    """Best-first search backward over sets of live tensors, exact for graphs of at most 128 ops.

    :class:`remat.ordering.live_search.LiveSearch` states its rules with their proofs. Without a start it first seeks
    any schedule in a free order, with ops that cost nothing, or the proof that none exists for either order rule. If
    time or memory runs out, a bound remains.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> search = CheapestByLiveSearch()
    >>> found = search.run(Problem(unit_chain(8), 4), HeuristicRun())
    >>> len(found.computes()), search.bound
    (26, 26)
    >>> search.run(Problem(unit_chain(8), 2), HeuristicRun()), search.infeasible
    (None, True)
    """

    name = "live-search"
    options_type = LiveSearchOptions
    kernels = (KERNELS,)

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        self.bound, self.scope, self.infeasible = None, own_scope(problem), False
        if problem.budget_bytes is None:
            return Schedule.reference(problem.graph)
        if not LiveSearch.applies(problem):
            raise ProblemError(
                f"{self.name} takes at most {MOST} ops and {MOST} tensors besides graph inputs, each with one writer,"
                f" and no limits of computes or outputs in place of inputs; auto takes {problem.graph.name!r}",
                "live-search", self.name,
            )  # fmt: skip
        if not self.prepared(run.deadline):
            return None
        search, limit = LiveSearch(problem, memory=self.options.memory), None
        if run.start is not None and (known := problem.validate(run.start)).accepted:
            limit = known.cost
        else:
            some = search.any_schedule(deadline=run.deadline.share(FEASIBILITY_SHARE))
            self.infeasible = some.bound >= ENDLESS
            if self.infeasible:
                return None
            if some.schedule is not None and problem.validate(some.schedule).accepted and run.report(some.schedule):
                return some.schedule
        found = search.run(limit, deadline=run.deadline)
        self.infeasible = limit is None and found.schedule is None and found.bound >= ENDLESS
        self.bound = None if self.infeasible else found.bound
        return run.start if limit is not None and found.schedule is None else found.schedule
