"""Integer programmes that constrain memory only at a few steps where it peaks, and the schedules that follow."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from remat.backends.highs import Highs
from remat.backends.isolated import placed
from remat.backends.results import RawResult
from remat.bounds.base import lacks_memory, whole_units
from remat.bounds.peak_bounds import step_memory
from remat.bounds.reduced_costs import cheaper_than
from remat.bounds.stage_relaxation import StageRelaxation, prominent_peaks
from remat.heuristics.base import Best, Heuristic, HeuristicRun
from remat.heuristics.drops import Drops
from remat.heuristics.neighbourhoods import ScheduleProfile
from remat.modeling import Model
from remat.problem import Problem
from remat.problem.op_sequence import useful_schedule
from remat.problem.scope import scope_within_limits
from remat.runtime.arrays import Bool, Int
from remat.runtime.checked_options import Options, Positive
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import SolveOptions, Status
from remat.schedule import OrderRule, Schedule

#: Share of the time left for one programme.
SHARE = 0.4
#: Relative gap, of the cost of recomputation, at which a programme stops: with identical layers, closing it takes long.
GAP = 1e-4


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
    event. The rest follows: other inputs of an op are recomputed just before it (:func:`schedule_of_held`). If that
    schedule also fits the budget at all other steps, at the cost of the programme's solution, it is optimal. Otherwise
    the steps with the most prominent excess become events, too. Meanwhile :class:`~remat.heuristics.drops.Drops` brings
    the schedule within the budget, and reduced costs fix variables that would make a schedule costlier than the best.

    On a training step the first event is near the loss, and the programme is a knapsack with precedence over the values
    that the forward pass saves. PyTorch's partitioner solves a similar knapsack, for bytes saved instead of the peak.

    In a free order it still follows the reference order, and gives no bound.

    Attributes
    ----------
    bound : int or None
        No schedule in `scope` costs less; None if no programme was solved, or the order is free.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem, heuristic = Problem(unit_chain(8), 7), FewStages()
    >>> schedule = heuristic.run(problem, HeuristicRun(SolveOptions(Deadline.after(60))))
    >>> from remat.schedule import simulate
    >>> simulate(problem.graph, schedule).cost, heuristic.bound
    (20, 20)
    """

    name = "few-stages"
    options_type = FewStagesOptions

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        self.bound = self.scope = None
        if problem.budget_bytes is None or problem.budget_bytes >= problem.reference_peak:
            return Schedule.reference(problem.graph)
        search = _Search(self, problem, run)
        if run.start is not None:
            search.best.offer(run.start, report=False)
        with contextlib.suppress(OverdueError):  # keep what was found before the deadline
            search.go()
        if search.solved and problem.order is OrderRule.FIXED and not problem.graph.in_place:
            self.bound, self.scope = search.bound, scope_within_limits(problem, OrderRule.FIXED)
        return None if search.best.cost is None else search.best.schedule


@dataclass(eq=False)
class _Search:
    """One run: the events so far, the best schedule and the best bound."""

    heuristic: FewStages
    problem: Problem
    call: HeuristicRun
    solved: bool = False
    events: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        assert self.problem.budget_bytes is not None
        self.budget = self.problem.budget_bytes
        self.base = self.bound = self.problem.graph.base_cost
        self.backend = placed(Highs(), self.call.options)
        self.drops = Drops()
        self.best = Best(self.problem, self.call)

    def go(self) -> None:
        """Solve programmes with more and more events."""
        peaks = prominent_peaks(step_memory(self.problem), self.budget)
        self.events.update(peaks[:1])
        share = SHARE
        while self.events and not self._over():
            relaxation = StageRelaxation(self.problem, sorted(self.events))
            part = self.call.deadline.share(share)
            model = relaxation.build(part)
            memory = self.call.options.memory_bytes
            if model.num_vars > self.heuristic.options.variables or lacks_memory(model, memory):
                return
            raw = self._solve(relaxation, model, part)
            if raw is None or raw.values is None:
                return
            held = [(raw.values[np.maximum(live, 0)] > 0.5) & (live >= 0) for live in relaxation.live]
            schedule = schedule_of_held(self.problem, relaxation.events, held)
            self.best.offer(schedule)
            if self.drops.prepared(self.call.deadline.earlier(0.0)):
                improved = self.drops.improved(self.problem, schedule, self.call.deadline)
                if improved is not None:
                    self.best.offer(improved)
            if not self._add(schedule):
                if raw.status is Status.OPTIMAL or share >= 1:
                    return
                share = 1.0  # the schedule fits, and may not be optimal

    def _over(self) -> bool:
        cost = self.best.cost
        return self.best.enough or self.call.deadline.expired or (cost is not None and self.bound >= cost)

    def _solve(self, relaxation: StageRelaxation, model: Model, deadline: Deadline) -> RawResult | None:
        """Solve one programme and raise the bound; return None if nothing is cheaper than the best schedule."""
        options = self.call.options
        call = SolveOptions(
            deadline, options.threads, options.seed, relative_gap=GAP, memory_limit=options.memory_limit
        )
        asked = self.best.cost
        if asked is not None and not options.isolate:
            linear = Highs().relax(model, call)
            self._raise(relaxation, linear.bound)
            if self._over():
                return None
            if not linear.infeasible:
                model = cheaper_than(model, linear, (asked - 1 - self.base) // relaxation.unit)
        raw = self.backend.solve(model, call)
        if raw.status is Status.INFEASIBLE:
            if asked is not None:
                self.bound, self.solved = max(self.bound, asked), True
            return None
        most = math.inf if asked is None else (asked - self.base) / relaxation.unit
        self._raise(relaxation, None if raw.bound is None else min(raw.bound, most))
        return raw

    def _raise(self, relaxation: StageRelaxation, extra: float | None) -> None:
        if extra is not None:
            self.bound = max(self.bound, self.base + relaxation.unit * max(0, whole_units(extra)))
            self.solved = True

    def _add(self, schedule: Schedule) -> bool:
        """Make events of the steps where a schedule exceeds the budget most; return True if any are new."""
        memory = stage_memory(self.problem, schedule)
        added = 0
        for step in prominent_peaks(memory, self.budget):
            # The memory of recomputations peaks between the first compute of the stage before and that of their stage.
            new = next(
                (k for k in (step, step - 1, step + 1) if 0 <= k < len(memory) - 1 and k not in self.events), None
            )
            if new is not None:
                self.events.add(new)
                added += 1
            if added == self.heuristic.options.more:
                break
        return added > 0


def stage_memory(problem: Problem, schedule: Schedule) -> Int:
    """Return the largest memory in each stage (ending with its first compute), and after the last stage.

    Bytes, shape (ops + 1,).

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(2), 4)
    >>> stage_memory(problem, Schedule.reference(problem.graph)).tolist()
    [1, 2, 3, 4, 3, 0]
    """
    profile = ScheduleProfile(problem, schedule)
    most = np.zeros(profile.num_ops + 1, dtype=np.int64)
    np.maximum.at(most, profile.stage, profile.memory)
    return most


def schedule_of_held(problem: Problem, events: Sequence[int], held: Sequence[Bool]) -> Schedule:
    """Return the reference order with recomputations, in which only held tensors outlast an event.

    Between two events, values stay while they are of use. Before each op, missing values that it needs are recomputed
    in the reference order. Inputs of the graph and accumulation buffers always stay.

    `events`: positions in the reference order, ascending. `held`, shape (tensors,): tensors live at each event in
    addition to those that its op reads and writes.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(2), 4)
    >>> nothing = np.zeros(len(problem.graph.tensors), dtype=bool)
    >>> schedule_of_held(problem, [2], [nothing]).computes()
    ['f0', 'f1', 'loss', 'g1', 'f0', 'g0']
    """
    arrays = problem.graph.arrays
    order, place = arrays.order.tolist(), arrays.position.tolist()
    writers, inputs = arrays.producers.shared_lists(), arrays.op_inputs.shared_lists()
    always = arrays.is_input | (arrays.producers.counts > 1)
    there = arrays.is_input.copy()
    stays = dict(zip(events, held, strict=True))
    sequence: list[int] = []

    def make(wanted: list[int]) -> None:
        found: set[int] = set()
        while wanted:
            op = wanted.pop()
            if op not in found:
                found.add(op)
                wanted.extend(w for tensor in inputs[op] if not there[tensor] for w in writers[tensor])
        for op in sorted(found, key=lambda each: place[each]):
            sequence.append(op)
            there[arrays.op_outputs[op]] = True

    for position, op in enumerate(order):
        make([op])
        if (held_here := stays.get(position)) is not None:
            stay = always | held_here
            stay[arrays.op_inputs[op]] = stay[arrays.op_outputs[op]] = True
            there &= stay
    make([w for tensor in np.flatnonzero(problem.kept & ~there).tolist() for w in writers[tensor]])
    return useful_schedule(problem, np.array(sequence, dtype=np.int64), FewStages.name)
