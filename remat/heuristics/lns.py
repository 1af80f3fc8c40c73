"""Large neighbourhood search: a part of a schedule at a time, by any formulation and any backend."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import numpy as np

from remat.backends.base import Backend, RawResult, Status, StopReason
from remat.backends.processes.isolated import placed
from remat.deadline import OverdueError
from remat.errors import BackendError, ProblemError
from remat.formulations.base import Formulation, Part
from remat.heuristics.annealing import Annealing
from remat.heuristics.base import Best, Heuristic, HeuristicRun, rank_of
from remat.heuristics.greedy import Greedy
from remat.heuristics.neighbourhoods import KINDS, Landscape, Portfolio, around_highest
from remat.heuristics.restricted_model import Statement, staged
from remat.modeling import Model
from remat.problem import Problem
from remat.registry import load, make_backend
from remat.runtime.options import Options, Positive, Range
from remat.schedule import OrderRule, Schedule
from remat.schedule.certificate import Certificate, Verdict

#: Options of solvers for models this small: CP-SAT's presolve takes several times as long as its search.
QUICK: dict[str, dict[str, Any]] = {"cp-sat": {"cp_model_presolve": False, "linearization_level": 0}}
#: Sub-models in a row in which the solver may fail.
FAILURES = 3
#: Sub-models without success after which schedules twice as far from the best are worked on.
PATIENCE_TO_TRAVEL = 20
#: Share of the sub-models whose costs are noisy.
NOISY = 0.5
#: Parts of a unit of cost in which noisy costs are whole.
FINER = 64
#: Sub-models without success after which a search without a deadline ends.
PATIENCE = 100


@dataclass(frozen=True)
class LnsOptions(Options):
    """Options of :class:`Lns`.

    Attributes
    ----------
    formulation : str
        Name of a registered formulation.
    backend : str
        Name of a registered backend; empty: that of the solve, or ``cp-sat`` where there is none.
    formulation_options : mapping
        Options of the formulation, by name.
    solver_options : mapping
        Passed to the solver untouched; they go before those of the solve.
    size : int
        Ops that are free in a sub-model at first; adapts to what is solved in time.
    seconds : float
        Most time of one sub-model.
    noise : float
        Largest change of a cost, as a share of it, in every other sub-model.
    travel : float
        By how much, as a share of the least cost of recomputation found, the schedule that is worked on may cost more.
    start_share : float
        Share of the time in which a start within the budget is made, where none is given; with ``start="none"`` the
        search begins from the reference order.
    """

    formulation: str = "retention-intervals"
    backend: str = ""
    formulation_options: Mapping[str, Any] = field(default_factory=dict)
    solver_options: Mapping[str, Any] = field(default_factory=dict)
    size: Positive = 20
    seconds: Annotated[float, Range(above=0, below=math.inf)] = 1.0
    noise: Annotated[float, Range(0, below=1)] = 0.2
    travel: Annotated[float, Range(0)] = 0.02
    start_share: Annotated[float, Range(0, 1)] = 0.2


class Lns(Heuristic):
    """Large neighbourhood search (Shaw, CP 1998) with adaptive choice (Ropke and Pisinger, Transp. Sci. 40, 2006).

    Again and again a part of the schedule is chosen (:mod:`~remat.heuristics.neighbourhoods`), the model of a
    registered formulation is restricted to it (:func:`remat.modeling.restriction.restrict`), and a registered backend
    solves what is left, from the schedule as it is. What comes out is decoded and validated. Kinds of parts that led to
    something better are chosen more often, and parts grow while they are solved to the end and shrink while they are
    not. If the model of everything is solved to the end, so is the search.

    To get out of local optima, half of the sub-models are solved with costs that are a little off, at random, and
    schedules are worked on that are not much costlier than the best (record-to-record travel, Dueck, J. Comput. Phys.
    104, 1993). On random graphs this makes more of a difference than anything else.

    A start over the budget is repaired in the same way, by the formulation's preliminary model, around the step that
    holds most. Where no start is given, it is that of greedy rematerialization (fixed order) or annealing. A start that
    the formulation cannot express is put into stages; if it still cannot, the search begins from the reference order.
    There is always room for one more compute of each op than the schedule at hand has, within the problem's limits.

    Raises
    ------
    RematError
        For names that are not registered, options that the formulation does not have, or a problem it cannot state.
    BackendError
        If the backend is not available, fails from the first, or its answers are not what they claim.
    KeyboardInterrupt
        On Ctrl-C where somebody listens and so has the best schedule; otherwise it is returned.

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
        except OverdueError:  # the caller's: what there is by now is still good
            pass
        return search.best.schedule


class _Candidate(NamedTuple):
    """A schedule and its certificate."""

    schedule: Schedule
    certificate: Certificate


@dataclass
class _Search:
    """One run; its state is the best schedule, and the one that is worked on, which the formulation can express."""

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
        """Validate a schedule, and tell of it if it is the best.

        Raises
        ------
        BackendError
            If any rule but the budget is broken.
        """
        certificate = self.best.offer(schedule)
        if certificate.verdict is Verdict.INVALID:
            raise BackendError(f"{source} gives a schedule that is not valid: {certificate.first}")
        return _Candidate(schedule, certificate)

    # -- the start -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Find a schedule to work on."""
        candidates = []
        for schedule, source in self._starts():
            candidates.append(self.see(schedule, source))
            if candidates[-1].certificate.accepted or self.best.enough:
                break
        candidates.sort(key=lambda candidate: rank_of(candidate.certificate))
        for candidate in candidates:
            ways = (candidate.schedule, staged(self.problem, candidate.schedule))
            for schedule in (way for way in ways if way is not None):
                self.statement = self._around(schedule)
                if self.statement.expresses(schedule):
                    self.work = self.see(schedule, "lns")
                    return
        raise ProblemError(f"formulation {self.kind.name!r} cannot express the reference order")

    def _starts(self) -> Iterator[tuple[Schedule, str]]:
        """Schedules to start from: what is given, the reference order, and what other heuristics make."""
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

    # -- the search ------------------------------------------------------------------------------------------------

    def improve(self) -> None:
        """Think over one part after the other until time is over or there is nothing to do."""
        if self.problem.budget_bytes is None:
            return
        num_ops = len(self.problem.graph.ops)
        repair = Portfolio({"highest": around_highest}, self.options.size, num_ops)
        polish = Portfolio(KINDS, self.options.size, num_ops)
        failed, solved, idle = 0, 0, 0
        land = Landscape(self.problem, self.work.schedule)
        while not (self.best.enough or self.call.deadline.expired):
            if not self.fits and self.statement.preliminary is None:
                return
            portfolio = polish if self.fits else repair
            name, part = portfolio.choose(land, self.random)
            everything = bool(part.ops.all()) and part.first == 0 and part.last == num_ops - 1
            best = self.best.schedule
            try:
                new, raw = self._think(part, noisy=self.fits and not everything and self.random.random() < NOISY)
            except _SolverFailedError as failure:
                failed += 1
                if failed >= FAILURES and not solved:
                    raise BackendError(str(failure), "failed") from failure
                if failed >= FAILURES:
                    return
                portfolio.learn(name, better=False, finished=False)
                continue
            failed, solved = 0, solved + 1
            better = new is not None and rank_of(new.certificate) < rank_of(self.work.certificate)
            finished = raw is None or raw.status in (Status.OPTIMAL, Status.INFEASIBLE)
            portfolio.learn(name, better=better, finished=finished)
            idle = 0 if self.best.schedule is not best else idle + 1
            if new is not None and (better or self._near(new, idle)) and new.schedule != self.work.schedule:
                self._go_to(new)
                land = Landscape(self.problem, new.schedule)
            if raw is not None and raw.stop is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            if (everything and finished and not better) or (
                idle >= PATIENCE and math.isinf(self.call.deadline.seconds)
            ):
                return

    @property
    def fits(self) -> bool:
        """Whether the schedule that is worked on keeps the budget."""
        return self.work.certificate.accepted

    def _near(self, new: _Candidate, idle: int) -> bool:
        """Whether a schedule costs little more than the best; the longer nothing better is found, the more it may."""
        if self.best.cost is None or not (self.fits and new.certificate.accepted):
            return False
        base = self.problem.graph.base_cost
        travel = self.options.travel * (1 + idle / PATIENCE_TO_TRAVEL)
        return new.certificate.cost - base <= (1 + travel) * (self.best.cost - base)

    def _think(self, part: Part, *, noisy: bool) -> tuple[_Candidate | None, RawResult | None]:
        """Solve the model of a part; None where there is nothing to solve."""
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
        """Work on another schedule; state the problem anew where it leaves no room for more computes."""
        self.work = new
        if self.statement.crowded(self.problem, new.schedule):
            self.statement = self._around(new.schedule)

    def _around(self, schedule: Schedule) -> Statement:
        options, call = self.options.formulation_options, self.call
        return Statement.around(
            self.kind, options, self.problem, schedule, deadline=call.deadline, memory_limit=call.options.memory_bytes
        )


def _perturb(model: Model, noise: float, random: np.random.Generator) -> None:
    """Change the coefficients of the objective at random, by up to a share of theirs; they are whole afterwards."""
    index, coefficient = model.objective.index, model.objective.coefficient
    # In finer units, so that small costs change too; large ones are fine as they are, and must stay exact.
    unit = FINER if np.abs(coefficient).max(initial=0) < 2**30 else 1
    model.minimize(index, np.rint(unit * coefficient * (1 + noise * random.uniform(-1, 1, len(index)))))


class _SolverFailedError(BackendError):
    """The solver gave up on one sub-model."""
