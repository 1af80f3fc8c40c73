"""Live search as a heuristic: the cheapest schedule of a small graph, with a proof."""

from __future__ import annotations

from dataclasses import dataclass

from remat.errors import ProblemError
from remat.heuristics.base import Best, Heuristic, HeuristicRun
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
        search, best = LiveSearch(problem, memory=self.options.memory), Best(problem, run)
        if run.start is not None:
            best.offer(run.start, report=False)
        if best.cost is None:
            some = search.any_schedule(deadline=run.deadline.share(FEASIBILITY_SHARE))
            self.infeasible = some.bound >= ENDLESS
            if some.schedule is not None:
                best.offer(some.schedule)
        if not (self.infeasible or best.enough):
            found = search.run(best.cost, deadline=run.deadline)
            if found.schedule is not None:
                best.offer(found.schedule)
            self.infeasible = best.cost is None and found.bound >= ENDLESS
            self.bound = None if self.infeasible else found.bound
        return None if best.cost is None else best.schedule
