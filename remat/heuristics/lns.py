"""Large neighbourhood search: reoptimize one part of a schedule at a time, with any formulation and any backend."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import numpy as np

from remat.backends.base import Backend
from remat.backends.choice import placed
from remat.backends.results import RawResult
from remat.errors import BackendError, ProblemError
from remat.formulations.base import Formulation, Part
from remat.heuristics.annealing import Annealing
from remat.heuristics.base import Best, Heuristic, HeuristicRun
from remat.heuristics.greedy import Greedy
from remat.heuristics.neighbourhoods import KINDS, Portfolio, ScheduleProfile, around_highest
from remat.heuristics.restricted_model import Statement, staged
from remat.modeling import Model
from remat.problem import Problem
from remat.registry import load, make_backend
from remat.runtime.checked_options import Options, Positive, Range
from remat.runtime.deadline import OverdueError
from remat.runtime.solve_options import Status, StopReason
from remat.schedule import OrderRule, Schedule
from remat.schedule.certificate import Certificate, Verdict

#: Options of solvers for models this small: CP-SAT's presolve takes several times as long as its search.
QUICK: dict[str, dict[str, Any]] = {"cp-sat": {"cp_model_presolve": False, "linearization_level": 0}}
#: Consecutive sub-models in which the solver may fail.
FAILURES = 3
#: Sub-models without success after which the current schedule may be twice as far from the best.
PATIENCE_TO_TRAVEL = 20
#: Share of the sub-models whose costs are perturbed.
NOISY = 0.5
#: Factor by which costs are scaled before perturbed costs are rounded to integers.
FINER = 64
#: Sub-models without success after which a search without a deadline stops.
PATIENCE = 100


@dataclass(frozen=True)
class LnsOptions(Options):
    """Options of :class:`Lns`."""

    formulation: str = "retention-intervals"
    """Name of a registered formulation."""
    backend: str = ""
    """Name of a registered backend; empty: that of the solve, or ``cp-sat`` without one."""
    formulation_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the formulation, by name."""
    solver_options: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the solver unchanged; they override those of the solve."""
    size: Positive = 20
    """Free ops of the first sub-models; adapts to what the solver finishes in time."""
    seconds: Annotated[float, Range(above=0, below=math.inf)] = 1.0
    """Time limit of one sub-model."""
    noise: Annotated[float, Range(0, below=1)] = 0.2
    """Largest change of a cost, as a share of it, in every other sub-model."""
    travel: Annotated[float, Range(0)] = 0.02
    """Largest excess of the current schedule's cost over the best, as a share of the least recomputation cost found."""
    start_share: Annotated[float, Range(0, 1)] = 0.2
    """Share of the time for finding a start within the budget if none is given; with ``start="none"`` the search begins
    from the reference order."""


class Lns(Heuristic):
    """Large neighbourhood search (Shaw, CP 1998) with adaptive choice (Ropke and Pisinger, Transp. Sci. 40, 2006).

    Each iteration chooses a part of the schedule (:mod:`~remat.heuristics.neighbourhoods`) and restricts the model of a
    registered formulation to it (:func:`remat.modeling.restriction.restrict`). A registered backend solves that model,
    warm-started with the current schedule. The solution is decoded and validated. Kinds of parts that led to
    improvements are chosen more often; parts grow while they are solved to optimality, and shrink otherwise. The search
    ends when the model of the whole problem is solved to the end.

    To leave local optima, the costs of half of the sub-models are perturbed at random, and the current schedule may be
    slightly costlier than the best (record-to-record travel, Dueck, J. Comput. Phys. 104, 1993). On random graphs this
    has the largest effect of all parts.

    A start over the budget is repaired in the same way, by the formulation's preliminary model, around the step with
    the most memory. The default start is that of greedy rematerialization (fixed order) or annealing. A start that the
    formulation cannot express is converted to stages; if that fails, the search begins from the reference order. The
    model always allows one more compute of each op than the current schedule has, within the problem's limits.

    Raises
    ------
    RematError
        For names that are not registered, options that the formulation does not have, or a problem it cannot state.
    BackendError
        If the backend is not available, fails on all first sub-models, or returns an invalid answer.
    KeyboardInterrupt
        On Ctrl-C if the run has a receiver, which already has the best schedule; without one, `run` returns it.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.schedule import simulate
    >>> problem = Problem(unit_chain(6), 6)
    >>> found = Lns().run(problem, HeuristicRun())
    >>> simulate(problem.graph, found).peak, simulate(problem.graph, found).recomputations
    (6, 2)
    """

    name = "lns"
    options_type = LnsOptions

    uses_backend = True

    @property
    def needs_backend(self) -> bool:
        return not self.options.backend

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        kind: type[Formulation] = load("formulations", self.options.formulation)
        own = self.options.backend
        backend: Backend = run.backend if run.backend is not None and not own else make_backend(own or "cp-sat")
        backend.check_ready()
        search = _Search(problem, run, self.options, kind, backend)
        try:
            search.begin()
            search.improve()
        except KeyboardInterrupt:
            if run.on_schedule is not None or search.best.schedule is None:
                raise
        except OverdueError:  # the caller's deadline; the best schedule so far is valid
            pass
        return search.best.schedule


class _Candidate(NamedTuple):
    """A schedule and its certificate."""

    schedule: Schedule
    certificate: Certificate


@dataclass
class _Search:
    """One run; its state is the best schedule and the current one, which the formulation can express."""

    problem: Problem
    call: HeuristicRun
    options: LnsOptions
    kind: type[Formulation]
    backend: Backend

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.call.seed)
        options = self.call.options
        self.solver = {**QUICK.get(self.backend.full_name, {}), **options.solver, **self.options.solver_options}
        self.placed = placed(self.backend, options)
        self.best = Best(self.problem, self.call, self.problem.graph.base_cost, over_budget=True)

    def see(self, schedule: Schedule, source: str) -> _Candidate:
        """Validate a schedule, and report it if it is the best.

        Raise BackendError if the schedule breaks any rule but the budget.
        """
        certificate = self.best.offer(schedule)
        if certificate.verdict is Verdict.INVALID:
            raise BackendError(f"{source} gives a schedule that is not valid: {certificate.first}")
        return _Candidate(schedule, certificate)

    def begin(self) -> None:
        """Find the first schedule to improve."""
        candidates = []
        for schedule, source in self._starts():
            candidates.append(self.see(schedule, source))
            if candidates[-1].certificate.accepted or self.best.enough:
                break
        candidates.sort(key=lambda candidate: self.best.rank_of(candidate.certificate))
        for candidate in candidates:
            ways = (candidate.schedule, staged(self.problem, candidate.schedule))
            for schedule in (way for way in ways if way is not None):
                self.statement = self._around(schedule)
                if self.statement.expresses(schedule):
                    self.work = self.see(schedule, "lns")
                    return
        raise ProblemError(f"formulation {self.kind.name!r} cannot express the reference order")

    def _starts(self) -> Iterator[tuple[Schedule, str]]:
        """Yield schedules to start from: the given one, the reference order, and those of other heuristics."""
        run = self.call
        if run.start is not None:
            yield run.start, "the start"
        yield Schedule.reference(self.problem.graph), "the reference order"
        if run.options.from_nothing:
            return
        makers: list[Heuristic] = [Greedy()] if self.problem.order is OrderRule.FIXED else []
        for maker in [*makers, Annealing()]:
            part = run.deadline.earlier(self.options.start_share * run.deadline.remaining)
            if part.expired:
                continue
            made = maker.run(self.problem, HeuristicRun(run.until(part).options))
            if made is not None:
                yield made, maker.name

    def improve(self) -> None:
        """Solve one part after the other until time is up or nothing is left to improve."""
        if self.problem.budget_bytes is None:
            return
        num_ops = len(self.problem.graph.ops)
        repair = Portfolio({"highest": around_highest}, self.options.size, num_ops)
        polish = Portfolio(KINDS, self.options.size, num_ops)
        failed, solved, idle = 0, 0, 0
        profile = ScheduleProfile(self.problem, self.work.schedule)
        while not (self.best.enough or self.call.deadline.expired):
            if not self.fits and self.statement.preliminary is None:
                return
            portfolio = polish if self.fits else repair
            name, part = portfolio.choose(profile, self.random)
            everything = bool(part.ops.all()) and part.first == 0 and part.last == num_ops - 1
            best = self.best.schedule
            try:
                new, raw = self._reoptimise(part, noisy=self.fits and not everything and self.random.random() < NOISY)
            except _SolverFailedError as failure:
                failed += 1
                if failed >= FAILURES and not solved:
                    raise BackendError(str(failure), "failed") from failure
                if failed >= FAILURES:
                    return
                portfolio.learn(name, better=False, finished=False)
                continue
            failed, solved = 0, solved + 1
            rank_of = self.best.rank_of
            better = new is not None and rank_of(new.certificate) < rank_of(self.work.certificate)
            finished = raw is None or raw.status in (Status.OPTIMAL, Status.INFEASIBLE)
            portfolio.learn(name, better=better, finished=finished)
            idle = 0 if self.best.schedule is not best else idle + 1
            if new is not None and (better or self._near(new, idle)) and new.schedule != self.work.schedule:
                self._go_to(new)
                profile = ScheduleProfile(self.problem, new.schedule)
            if raw is not None and raw.stop is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            if (everything and finished and not better) or (
                idle >= PATIENCE and math.isinf(self.call.deadline.seconds)
            ):
                return

    @property
    def fits(self) -> bool:
        """True when the current schedule fits the budget."""
        return self.work.certificate.accepted

    def _near(self, new: _Candidate, idle: int) -> bool:
        """Return True if a schedule costs little more than the best; the margin grows while nothing better is found."""
        if self.best.cost is None or not (self.fits and new.certificate.accepted):
            return False
        base = self.problem.graph.base_cost
        travel = self.options.travel * (1 + idle / PATIENCE_TO_TRAVEL)
        return new.certificate.cost - base <= (1 + travel) * (self.best.cost - base)

    def _reoptimise(self, part: Part, *, noisy: bool) -> tuple[_Candidate | None, RawResult | None]:
        """Solve the model of a part; return its schedule and result, each None if there is none."""
        small, hint = self.statement.cut(self.work.schedule, part, preliminary=not self.fits)
        if not len(small.model.objective.index):
            return None, None
        if noisy:
            _perturb(small.model, self.options.noise, self.random)
        options = replace(
            self.call.options, deadline=self.call.deadline.earlier(self.options.seconds), threads=self.call.threads,
            seed=int(self.random.integers(2**31)), relative_gap=0.0, solver=self.solver,
        )  # fmt: skip
        source = f"{self.kind.name} by {self.backend.full_name}"
        try:
            raw = self.placed.solve(small.model, options, hint)
        except BackendError as error:
            raise _SolverFailedError(str(error)) from error
        if raw.status is Status.ERROR:
            raise _SolverFailedError(f"backend {self.backend.full_name!r} failed: {raw.message}")
        if raw.values is None:
            return None, raw
        values = small.expand(raw.values)[: self.statement.model.num_vars]
        new = self.see(self.statement.formulation.decode(values), source)
        if self.fits and not new.certificate.accepted:
            raise BackendError(f"{source} gives a schedule over budget: {new.certificate.first}")
        return new, raw

    def _go_to(self, new: _Candidate) -> None:
        """Make a schedule the current one; restate the problem if it leaves no room for more computes."""
        self.work = new
        if self.statement.crowded(self.problem, new.schedule):
            self.statement = self._around(new.schedule)

    def _around(self, schedule: Schedule) -> Statement:
        options, call = self.options.formulation_options, self.call
        return Statement.around(
            self.kind, options, self.problem, schedule, deadline=call.deadline, memory_limit=call.options.memory_bytes
        )


def _perturb(model: Model, noise: float, random: np.random.Generator) -> None:
    """Scale the coefficients of the objective by random factors within 1 ± `noise`, and round them to integers."""
    index, coefficient = model.objective.index, model.objective.coefficient
    # In finer units, so that small costs change too; large ones stay in theirs to remain exact.
    unit = FINER if np.abs(coefficient).max(initial=0) < 2**30 else 1
    model.minimize(index, np.rint(unit * coefficient * (1 + noise * random.uniform(-1, 1, len(index)))))


class _SolverFailedError(BackendError):
    """Raised when the solver fails on one sub-model."""
