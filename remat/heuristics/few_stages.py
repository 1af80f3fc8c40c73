"""Integer programmes that constrain memory only at a few steps where it peaks, and the schedules that follow."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from remat.bounds.base import lacks_memory
from remat.bounds.stage_programmes import StageProgrammes
from remat.heuristics.base import Best, Heuristic, HeuristicRun
from remat.heuristics.drops import Drops
from remat.heuristics.stage_windows import StageWindows
from remat.problem import Problem
from remat.problem.scope import scope_within_limits
from remat.runtime.checked_options import Options, Positive
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import SolveOptions
from remat.schedule import OrderRule, Schedule

#: Seconds left below which a run that knows no schedule has the solver for one event and for small programmes only:
#: large ones need a cost to undercut. Drops find one, but loading them takes 0.6 to 1 s of processor time. Many small
#: programmes are decided in less.
SEVERAL = 5.0
#: Share of the time left for a programme; the rest is for the schedules that follow.
SHARE = 0.8
#: The same for one of several events in such a run. If it is not decided in this time, it needs a cost to undercut.
ALONE = 0.35
#: Share of the time left for the drops of one schedule while they are not compiled.
INTERPRETED = 0.6
#: Multiple of the base cost above which the bound of such a run leaves little hope of a schedule, and no programme of
#: several events follows: on GPT-2 of 77 ops at 25 % those of 7 and 10 events prove 2.2 and 2.4, and there is none.
HOPELESS = 2.0
#: Ops above which windows come first, after programmes with this share of the time left: large programmes are rarely
#: decided, and more often for a lower cost to undercut. On smaller graphs windows took time from what finds more. An
#: elimination of ops that a deadline ended continues with the larger share: it needs seconds in all.
MANY_OPS, QUICK = 600, 0.15


@dataclass(frozen=True)
class FewStagesOptions(Options):
    """Options of :class:`FewStages`."""

    more: Positive = 3
    """Steps added to the programme at a time."""
    variables: Positive = 60_000
    """Largest number of variables of a programme."""


class FewStages(Heuristic):
    """Stage relaxation with a few events, solved as an integer programme and turned into a schedule.

    :class:`remat.bounds.stage_relaxation.StageRelaxation` constrains memory only at some steps of the reference order,
    its events, and bounds the cost of every schedule with that order. Its solution gives the tensors held at each
    event. The rest follows: missing values are recomputed as late as possible, or the held ones before their event
    (:func:`remat.bounds.stage_programmes.schedule_of_held`). If such a schedule also fits the budget at all other
    steps, at the cost of the programme's solution, it is optimal. Otherwise the steps with the most prominent excess
    become events, too. Meanwhile :class:`~remat.heuristics.drops.Drops` brings the schedules within the budget.

    Before each programme, path cuts (:mod:`remat.bounds.path_cuts`) raise its linear relaxation, and reduced costs fix
    variables that would make a schedule costlier than the best. Rows (5) and (6) of the relaxation are left out until a
    schedule exceeds the budget at no step that could become an event.

    On a training step the first event is near the loss, and the programme is a knapsack with precedence over the values
    that the forward pass saves. PyTorch's partitioner solves a similar knapsack, for bytes saved instead of the peak.

    Programmes with an event for each block of a model are too large for a solver. On graphs of many ops, a run with a
    start therefore solves them with most tensors as in the best schedule (:mod:`remat.heuristics.stage_windows`).

    In a free order it still follows the reference order, and gives no bound.

    Attributes
    ----------
    bound : int or None
        No schedule in `scope` costs less; None if no programme was solved, or the order is free.
    programmes : StageProgrammes or None
        Those of the last run; a later run on the same problem, and the stage bound, can resume them.
    near : list of Schedule
        Schedules that follow from the solution of the last programme, perhaps above the budget.
    waiting : list of Schedule
        Schedules of these programmes that drops have not improved yet, for want of time.
    windows : StageWindows or None
        Search around the best schedule, which a later run continues.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.runtime.deadline import Deadline
    >>> problem, heuristic = Problem(unit_chain(8), 7), FewStages()
    >>> schedule = heuristic.run(problem, HeuristicRun(SolveOptions(Deadline.after(60))))
    >>> from remat.schedule import simulate
    >>> simulate(problem.graph, schedule).cost, heuristic.bound
    (20, 20)
    """

    name = "few-stages"
    options_type = FewStagesOptions
    programmes: StageProgrammes | None = None
    waiting: list[Schedule]
    windows: StageWindows | None = None

    def programmes_of(self, problem: Problem) -> StageProgrammes | None:
        if problem.budget_bytes is not None and (self.programmes is None or self.programmes.problem is not problem):
            self.programmes, self.near, self.waiting, self.windows = StageProgrammes(problem), (), [], None
        return self.programmes

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        self.bound = self.scope = None
        if problem.budget_bytes is None or problem.budget_bytes >= problem.reference_peak:
            return Schedule.reference(problem.graph)
        programmes = self.programmes_of(problem)
        assert programmes is not None
        search = _Search(self, programmes, run)
        if run.start is not None:
            search.best.offer(run.start, report=False)
        with contextlib.suppress(OverdueError):  # keep what was found before the deadline
            search.go()
        if programmes.solved and problem.order is OrderRule.FIXED and not problem.graph.in_place:
            self.bound, self.scope = programmes.value, scope_within_limits(problem, OrderRule.FIXED)
        return None if search.best.cost is None else search.best.schedule


@dataclass(eq=False)
class _Search:
    """One run."""

    heuristic: FewStages
    programmes: StageProgrammes
    call: HeuristicRun

    def __post_init__(self) -> None:
        self.drops = Drops()
        self.best = Best(self.programmes.problem, self.call)

    def go(self) -> None:
        self._offer([])
        if self.call.start is not None and len(self.programmes.problem.graph.ops) > MANY_OPS:
            if self.heuristic.windows is None:
                self._solve_programmes(QUICK)
                self._offer([])
            self._solve_windows()
        self._solve_programmes(SHARE)
        self._offer([])

    def _solve_programmes(self, share: float) -> None:
        """Solve programmes with more and more events, each in a share of the time left."""
        programmes, options = self.programmes, self.call.options
        cut = programmes.cut(self.call.deadline)
        self._offer(cut)
        if cut and not self._over() and not programmes.widen(cut[0], self.heuristic.options.more):
            return
        while programmes.events and not self._over():
            brief = self.best.cost is None and self.call.deadline.remaining < SEVERAL
            first = len(programmes.events) == 1
            part = self.call.deadline.share(ALONE if brief and not first else SHARE if programmes.pending else share)
            if not programmes.worth(part.remaining):
                return
            call = self._limits(part)
            model = programmes.build(part, self.best.cost)
            if model.num_vars > self.heuristic.options.variables or lacks_memory(model, options.memory_bytes):
                return
            if programmes.approachable and not brief and not options.isolate:
                limits = self._limits(self.call.deadline.share(SHARE))
                self._offer(programmes.approach(limits, self.heuristic.options.more))
                continue
            found = None if options.isolate else programmes.relax(model, call)
            if self._over():
                return
            small = programmes.small and programmes.value < HOPELESS * programmes.base
            several = not brief or first or small
            values, decided = programmes.solve(found or model, call, several=several, exact=False)
            unsolved = values is None and not decided
            if unsolved and found is not None:
                values = found.linear.values
            if values is None:
                return
            self.heuristic.near = schedules = programmes.schedules(values)
            before = self.best.cost
            self._offer(schedules, drop=not brief or part.expired)
            if unsolved:
                return
            if programmes.widen(schedules[0], self.heuristic.options.more):
                continue
            if decided or self.best.cost == before:
                return

    def _solve_windows(self) -> None:
        """Solve programmes around the best schedule, until a round of windows brings no better one."""
        heuristic, best = self.heuristic, self.best
        if best.schedule is None or best.cost is None or self._over():
            return
        if not StageWindows.applies(self.programmes, best.schedule):
            return
        if heuristic.windows is None:
            heuristic.windows = StageWindows(self.programmes, heuristic.options.variables, self.call.seed)
        windows, call = heuristic.windows, self._limits(self.call.deadline)
        windows.tired = False
        while not (windows.tired or self._over()):
            before = best.cost
            self._offer(windows.schedules(best.schedule, before, call))
            windows.learn(better=best.cost < before)

    def _limits(self, deadline: Deadline) -> SolveOptions:
        """Return options for a solver."""
        given = self.call.options
        return SolveOptions(deadline, given.threads, given.seed, isolate=given.isolate, memory_limit=given.memory_limit)

    def _over(self) -> bool:
        cost, gap = self.best.cost, self.call.options.relative_gap
        near = cost is not None and cost - self.programmes.value <= gap * cost
        return near or self.best.enough or self.call.deadline.expired

    def _offer(self, schedules: list[Schedule], *, drop: bool = True) -> None:
        """Offer schedules; with `drop` also brought within the budget by drops, and those that still wait for drops."""
        for schedule in schedules:
            self.best.offer(schedule)
        waiting = self.heuristic.waiting
        waiting += schedules
        while drop and waiting and not self._over():
            deadline = self.call.deadline if self.drops.compiled() else self.call.deadline.share(INTERPRETED)
            improved = self.drops.improved(self.programmes.problem, waiting.pop(0), deadline)
            if improved is not None:
                self.best.offer(improved)
