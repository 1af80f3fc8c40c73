"""Best policy of selective checkpointing for given regions: search, model, certificate and bound."""

from __future__ import annotations

from dataclasses import dataclass, field

from remat.backends.base import Backend
from remat.backends.highs import Highs
from remat.errors import ProblemError
from remat.formulations.policies import Policies, PoliciesOptions
from remat.heuristics.base import HeuristicRun
from remat.heuristics.policies import PolicySearch
from remat.problem import Problem
from remat.problem.regions import Saved
from remat.problem.scope import Scope
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status
from remat.schedule import Certificate, Schedule
from remat.schedule.certificate import overhead_percent
from remat.solving.incumbents import Certified, lower_bound

#: Share of the time limit for the search.
SEARCH = 0.2


@dataclass(frozen=True)
class BestPolicy:
    """Best policy found.

    Attributes
    ----------
    saved : Saved
    schedule : Schedule
        Unlike results of :func:`remat.solve`, it has the replays of ops that no later op reads.
    certificate : Certificate
    bound : int or None
        No policy for these regions costs less; None if unknown.
    scope : Scope
    source : str
        Method that found it.
    """

    saved: Saved
    schedule: Schedule = field(repr=False)
    certificate: Certificate = field(repr=False)
    bound: int | None
    scope: Scope
    source: str

    @property
    def overhead(self) -> float | None:
        """Extra cost in %; None if computing each op once costs nothing."""
        return self.certificate.overhead

    @property
    def bound_overhead(self) -> float | None:
        """Extra cost in % that no policy for these regions can undercut; None if unknown."""
        base = self.certificate.base_cost
        return None if self.bound is None else overhead_percent(max(self.bound, base), base)

    @property
    def optimal(self) -> bool:
        """True if no policy for these regions costs less."""
        return self.bound is not None and self.bound >= self.certificate.cost


def best_policy(
    problem: Problem, options: PoliciesOptions, *, time_limit: float | None = None, backend: Backend | None = None
) -> BestPolicy:
    """Return the best policy within the budget: first by a search, then by the formulation.

    Parameters
    ----------
    problem : Problem
        With a budget and a fixed order.
    options : PoliciesOptions
        Regions.
    time_limit : float, optional
        Seconds. Default: no limit.
    backend : Backend, optional
        Solver; default: HiGHS, which solves these models much faster than CP-SAT.

    Raises
    ------
    ProblemError
        If none keeps the budget, or none was found; names the peak of full replays.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem.regions import contiguous_groups, regions_of
    >>> problem = Problem(unit_chain(16), 10)
    >>> regions = regions_of(problem, contiguous_groups(problem, range(0, 16, 4)))
    >>> found = best_policy(problem, PoliciesOptions(regions))
    >>> found.certificate.peak, found.certificate.recomputations, found.optimal
    (10, 8, True)
    """
    deadline = Deadline.after(time_limit)
    formulation = Policies(problem, options)
    formulation.deadline = deadline
    replays = formulation.replays
    start = PolicySearch(options).run(problem, HeuristicRun(SolveOptions(deadline.share(SEARCH))))
    best = None if start is None else Certified(start, problem.validate(start), PolicySearch.name)
    if best is not None and not best.fits:
        best = None
    hint = None if best is None else formulation.encode(best.schedule)
    solver = backend or Highs()
    raw = solver.solve(formulation.build(), SolveOptions(deadline), hint)
    if raw.values is not None:
        made = formulation.decode(raw.values)
        other = Certified(made, problem.validate(made), f"{formulation.name} by {solver.name}")
        if other.fits and (best is None or other.certificate.cost < best.certificate.cost):
            best = other
    if best is None:
        known = replays.schedule(replays.least_saved)
        found = "keeps" if raw.status is Status.INFEASIBLE else "was found that keeps"
        raise ProblemError(
            f"no policy for the {len(formulation.regions)} regions of {problem.graph.name!r} {found} the budget of "
            f"{problem.budget_bytes:,} bytes; {problem.simulate(known).peak:,} bytes suffice with full replays; give a "
            "larger budget, more or smaller regions, or use a schedule, which is not limited to policies",
            "no-policy-fits",
        )
    bound = lower_bound(raw.bound)
    if raw.status is Status.OPTIMAL:
        bound = best.certificate.cost if bound is None else max(min(bound, best.certificate.cost), 0)
    saved = replays.choice(best.schedule, plain=options.plain)
    return BestPolicy(saved, best.schedule, best.certificate, bound, formulation.scope(), best.source)
