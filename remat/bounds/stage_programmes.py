"""Stage relaxations of one problem with more and more events, and the schedules that follow from their solutions."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from remat.backends.highs import Highs
from remat.bounds.base import whole_units
from remat.bounds.cost_sums import attained, objective_of
from remat.bounds.event_cut import EventCut
from remat.bounds.link_room import LinkRoom
from remat.bounds.path_cuts import Tightened, tightened
from remat.bounds.peak_bounds import step_memory
from remat.bounds.reduced_costs import cheaper_than, costing_at_most, fixed_sides
from remat.bounds.stage_elimination import StageElimination
from remat.bounds.stage_reduction import Known, StageReduction
from remat.bounds.stage_relaxation import MEMORY, StageRelaxation, prominent_peaks
from remat.bounds.stage_solvers import MOST_VARIABLES, by_cp_sat, holding_less, is_whole, solve_programme
from remat.bounds.stage_sums import stage_sums
from remat.bounds.sum_branching import SumBranching
from remat.graphs.arrays import first_computes
from remat.modeling import Model, lower
from remat.modeling.matrix import to_matrix
from remat.modeling.restriction import Restricted, restrict
from remat.problem import Problem
from remat.problem.op_sequence import computed_ops, op_sequence, useful_schedule
from remat.problem.training_step import training_step
from remat.runtime.arrays import Bool, Float, Int
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status
from remat.schedule import Schedule

#: Factor of the time for another try of a programme that was not decided.
LONGER = 1.5
#: Share of the time of a programme for the elimination of ops, which decides more than a solver, or soon ends.
ELIMINATION = 0.8
#: Other solutions of an elimination that are turned into schedules: if one of 32 fits, the first or second does.
ALIKE = 4
#: Share of the time of a programme for the solver's own branch and bound, before sums are branched on.
SOLVER = 0.5
#: Seconds for a programme below which the solver has all of them.
BRANCHING = 8.0
#: Most variables of a small programme. With these, CP-SAT decides 10 events on ResNets with GroupNorm in 1 to 2 s.
#: ResNet-50 has 6,000 with 7 events, which take longer, and there search finds better schedules meanwhile.
SMALL = 2_000
#: Part of the gap between the bound and the cost sought that a solution may leave, where later programmes follow.
PRECISION = 0.1
#: Gap of the best schedule below which another solution of the same cost is sought: more events would bring little.
CLOSE = 1e-3
#: Factor of the distance of a cost limit from the bound, after each refuted limit, in :meth:`StageProgrammes.approach`.
#: The first distance is the relative gap at which a solve ends.
RISE = 4.0
#: Least and largest gap of the best schedule with which that is tried. Closer ones are left to windows: `t5` at 25 %
#: has a gap of 3e-5, which they close in 2 s; CP-SAT finds no solution within the limit in 2.5 s. With a larger gap,
#: time is for better schedules.
FAR, FARTHEST = 1e-4, 0.02
#: Number of ops above which the linear relaxation with the first event is solved by minimum cuts, and up to which it is
#: on graphs other than training steps: those of 100,000 ops in random layers take minutes.
CUT_OPS, MOST_CUT_OPS = 5_000, 20_000


class Following(NamedTuple):
    """Schedules that follow from a solution, the cheapest first, with the cost and peak of that."""

    cost: int
    peak: int
    schedules: list[Schedule]


class StageProgrammes:
    """Stage relaxations of a problem, each with more events than the last.

    The first event is the step of the most prominent peak of the reference order. Later ones are steps at which a
    schedule that follows from a solution exceeds the budget. So a few events suffice: none is at a step that no cheap
    schedule exceeds.

    Parameters
    ----------
    problem : Problem
        With a budget.
    negligible : float
        Part of the budget for the smallest tensors, which are left out. Then programmes are smaller, and their memory
        is often a multiple of a larger unit; but what follows from their solutions can exceed the budget by this part.

    Attributes
    ----------
    events : set of int
        Positions in the reference order.
    slim : bool
        True while rows (5) and (6) of the relaxation are left out.
    first : int
        The first event; -1 if no step of the reference order exceeds the budget.
    value : int
        No schedule in the reference order costs less.
    infeasible : bool
        True if no such schedule exists.
    solved : bool
        True if a relaxation has been solved.
    eliminated : bool
        True if the last programme was solved by elimination of ops.
    approached : bool
        True after :meth:`approach`.
    tried : float
        Seconds in which an integer programme with the present events was not decided.
    enough : int or None
        Cost that the schedules sought undercut, as given to :meth:`build`.
    link : LinkRoom or None
        What a host can hold, if it is set before the first programme. Then :attr:`value`, if it is below
        ``link.below``, bounds the time of schedules that move tensors.
    decisive : set of int
        Events of the programme that gave :attr:`value`.
    likely : set of int
        Events of other programmes of the problem, which the next :meth:`widen` adds.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> programmes = StageProgrammes(Problem(unit_chain(8), 4))
    >>> call = SolveOptions(Deadline(), threads=1)
    >>> while True:
    ...     found = programmes.relax(programmes.build(call.deadline), call)
    ...     values, _ = programmes.solve(found, call)
    ...     if not programmes.widen(programmes.schedules(values)[0]):
    ...         break
    >>> sorted(programmes.events), programmes.value
    ([9, 10, 11, 12, 13, 14], 26)
    """

    def __init__(self, problem: Problem, negligible: float = 0.0) -> None:
        assert problem.budget_bytes is not None
        self._negligible = int(negligible * problem.budget_bytes)
        self.problem, self.budget = problem, problem.budget_bytes
        self.base = self.value = problem.graph.base_cost
        self.slim, self.infeasible, self.solved = True, False, False
        self.tried, self.eliminated, self.approached = 0.0, False, False
        self._variables = 0
        self._cut: list[Schedule] | None = None
        self._search: StageElimination | None = None
        self._reduction: StageReduction | None = None
        self._alone: tuple[int, int] | None = None  # the first event, and the bound of the relaxation with it alone
        self._sole: tuple[StageRelaxation, Tightened] | None = None  # that relaxation, and its linear one
        self.enough: int | None = None
        self.link: LinkRoom | None = None
        self.likely: set[int] = set()
        self.decisive: set[int] = set()
        self.events = set(prominent_peaks(step_memory(problem), self.budget)[:1])
        self.first = next(iter(self.events), -1)

    def with_events(self, events: Iterable[int]) -> StageProgrammes:
        """Return programmes with the first event and the given ones, and what the first event alone has proved."""
        other = copy.copy(self)
        other.events, other.slim, other.tried, other._search = {self.first, *events}, True, 0.0, None
        return other

    @property
    def pending(self) -> bool:
        """True if the elimination of the last programme ended at its deadline, and would continue."""
        return self._search is not None and self._search.pending and self._same(self._search)

    @property
    def small(self) -> bool:
        """True if the last programme was so small that more time may decide it, and others with more events."""
        return 0 < self._variables <= SMALL

    def worth(self, seconds: float) -> bool:
        """Return False if about as many seconds were not enough for the present events."""
        return seconds >= LONGER * self.tried

    def build(self, deadline: Deadline, enough: int | None = None) -> Model:
        """Build the relaxation with the events so far, for schedules that cost less than `enough`.

        A slim one with several events is that of a smaller problem, :class:`StageReduction`.

        Raises
        ------
        OverdueError
            At the deadline.
        """
        problem, events = self.problem, sorted(self.events)
        if self.link is not None:
            enough = self.link.below if enough is None else min(enough, self.link.below)
        self.enough, self._reduction = enough, None
        more = () if self.link is None else self.link.room[events].tolist()
        if self.slim and len(events) > 1 and not problem.graph.in_place:
            known = None if enough is None or self._alone is None else Known(*self._alone, enough)
            self._reduction = StageReduction(problem, events, known, self._negligible)
            problem, events = self._reduction.reduced, self._reduction.events
        main = None if self._alone is None else events[sorted(self.events).index(self._alone[0])]
        self.relaxation = StageRelaxation(problem, events, self.slim, main, more)
        model = self.relaxation.build(deadline)
        self._variables = model.num_vars
        return model

    @property
    def _limited(self) -> int | None:
        """The cost below which the relaxation as built has all schedules; None: it has all."""
        return self.enough if self._reduction is not None and self._reduction.known is not None else None

    def cut(self, deadline: Deadline) -> list[Schedule]:
        """Raise :attr:`value` to the linear relaxation of the first event of a large graph, by minimum cuts.

        Return the schedules of :class:`~remat.bounds.event_cut.EventCut`; none on smaller graphs, where linear
        programmes take little time, and with more events.
        """
        num_ops = len(self.problem.graph.ops)
        if len(self.events) != 1 or num_ops <= CUT_OPS:
            return []
        if num_ops > MOST_CUT_OPS and training_step(self.problem) is None:
            return []
        if self._cut is None:
            model = self.build(deadline)
            found = EventCut(self.relaxation)
            found.solve(deadline)
            self.infeasible |= found.infeasible
            self._raise(model, -(-found.bound // self.relaxation.unit), None)
            self._cut = [] if found.best is None else self._following(found.best.live[None]).schedules
        return self._cut

    def relax(self, model: Model, call: SolveOptions) -> Tightened:
        """Add path cuts to a model, until its linear relaxation reaches :attr:`enough`, and raise :attr:`value`."""
        cost = None if self.enough is None else (self.enough - self.base) / self.relaxation.unit
        found = tightened(self.relaxation, model, call, cost)
        if found.linear.infeasible:
            self._none_below(self._limited)
        if found.linear.bound is not None:  # rounding errors are subtracted from it already
            self._raise(model, math.ceil(found.linear.bound), self._limited)
        if len(self.events) == 1:
            self._sole = self.relaxation, found
        return found

    def solve(
        self, found: Tightened | Model, call: SolveOptions, *, several: bool = True, exact: bool = True
    ) -> tuple[Float | None, bool]:
        """Solve an integer programme for a solution below :attr:`enough`, and raise :attr:`value`.

        Programmes of few events are solved by elimination of ops, others by a solver; without `several` they are not.
        Without `exact` the solver may stop at a solution whose cost is within :data:`PRECISION`.

        Return the solution, None if there is none in time, and whether the programme is decided.
        """
        model, enough = found if isinstance(found, Model) else found.lean, self.enough
        branch, self.eliminated = None, False
        if isinstance(found, Tightened) and not found.linear.infeasible and StageElimination.applies(self.relaxation):
            values, decided = self._eliminate(found, call)
            self.eliminated = values is not None or decided
            if self.eliminated:
                return values, decided
        if not several:
            return None, False
        if enough is not None and isinstance(found, Tightened):
            if not found.linear.infeasible:
                model = cheaper_than(found.full, found.linear, self._most_below(enough), model)
            if len(self.events) > 1 and call.deadline.remaining >= BRANCHING:
                branch = partial(self._branch, found, call)
        seconds = call.deadline.remaining
        limited = call if branch is None else replace(call, deadline=call.deadline.share(SOLVER))
        raw = solve_programme(self.relaxation, model, limited, self._near(0.0 if exact else PRECISION))
        if raw.status is Status.INFEASIBLE:
            return None, self._none_below(enough)
        if raw.bound is not None:
            self._raise(model, whole_units(raw.bound), enough, raw.values)
        if raw.values is not None:
            return self._fitting(model, raw.values, call), raw.status is Status.OPTIMAL
        if branch is not None:
            values, decided = branch()
            if decided:
                return values, True
        self.tried = seconds
        return None, False

    def _near(self, precision: float) -> int:
        """Return the objective that closes all but a part, `precision`, of the gap to the cost sought."""
        near = (self.value - self.base) // self.relaxation.unit
        return near if self.enough is None else near + int(precision * (self._most_below(self.enough) - near))

    def _fitting(self, model: Model, values: Float, call: SolveOptions) -> Float:
        """Return another solution if a schedule that follows from it is an optimum; otherwise the given one."""
        cost = self.base + self.relaxation.unit * objective_of(model, values)
        optimal = cost - self.value <= call.relative_gap * cost
        close = self.enough is not None and self.enough - cost <= CLOSE * cost

        def fits(solution: Float) -> bool:
            found = self._following(self._held(solution))
            return found.cost <= cost and found.peak <= self.budget

        if not optimal or not close or not is_whole(self.relaxation, model) or fits(values):
            return values
        less = holding_less(self.relaxation, model, values, call, fits)
        return less if fits(less) else values

    def _eliminate(self, found: Tightened, call: SolveOptions) -> tuple[Float | None, bool]:
        """Solve a programme by elimination of ops, as :meth:`solve` does."""
        relaxation, enough = self.relaxation, self.enough
        duals = found.linear.duals.get(MEMORY, np.zeros(len(relaxation.events)))
        most = None if enough is None else self._most_below(enough)
        search = self._search
        if search is None or not self._same(search):
            search = StageElimination(relaxation, -duals / relaxation.scale)
        self._search = search
        outcome = search.run(most, call.deadline.share(ELIMINATION))
        if math.isinf(outcome.bound):
            return None, self._none_below(enough)
        self._raise(found.lean, int(outcome.bound), enough)
        if outcome.live is None:
            return None, False
        values = np.zeros(max(1, found.lean.num_vars))  # tensors without a variable refer to the first
        for columns, live in zip(relaxation.live, outcome.live, strict=True):
            values[columns[live]] = 1.0
        return values, outcome.cost == outcome.bound

    def _same(self, search: StageElimination) -> bool:
        """Return True if a search is for the present programme."""
        known, new = search.relaxation, self.relaxation
        return known.problem is new.problem and known.events == new.events

    def _branch(self, found: Tightened, call: SolveOptions) -> tuple[Float | None, bool]:
        """Solve a programme by branching on sums of variables, as :meth:`solve` does."""
        matrix, enough = to_matrix(lower(found.lean, Highs.native).model), self.enough
        assert enough is not None
        most = self._most_below(enough)
        outcome = SumBranching(matrix, stage_sums(self.relaxation, matrix.shape[1]), most, call).run()
        if outcome.bound > most:
            return None, self._none_below(enough)
        if math.isfinite(outcome.bound):
            self._raise(found.lean, math.ceil(outcome.bound), enough, outcome.values)
        return outcome.values, outcome.values is not None

    def _most_below(self, enough: int) -> int:
        """Return the most units of recomputation of schedules that cost less than `enough`."""
        return (enough - 1 - self.base) // self.relaxation.unit

    def _none_below(self, enough: int | None) -> bool:
        """Record that no solution is below a cost; without a cost, that there is none. Return True."""
        if enough is None:
            self.infeasible = True
        else:
            self._raise_value(enough)
        return True

    def _raise_value(self, value: int) -> None:
        """Raise :attr:`value`, and record the events of the programme if it is better."""
        self.solved = True
        if value > self.value:
            self.value, self.decisive = value, set(self.events)

    def _raise(self, model: Model, extra: int, enough: int | None, values: Float | None = None) -> None:
        """Raise :attr:`value` by a bound on the objective of a model, for which a solution may be known."""
        if values is not None:
            extra = attained(model, extra, objective_of(model, values))
        if enough is not None:
            extra = attained(model, extra, self._most_below(enough) + 1)
        cost = self.base + self.relaxation.unit * max(0, extra)
        self._raise_value(cost if enough is None else min(cost, enough))
        if len(self.events) == 1:
            self._alone = next(iter(self.events)), self.value

    def schedules(self, values: Float) -> list[Schedule]:
        """Return schedules that follow from a solution, a fractional one rounded: the cheapest first.

        If none fits, some of those that follow from other solutions of an elimination precede them.
        """
        best = self._following(self._held(values))
        search, rng = self._search, np.random.default_rng(0)
        if self.eliminated and search is not None and self._same(search):
            for _ in range(ALIKE):
                if best.peak <= self.budget:
                    break
                best = min(best, self._following(search.live(rng)), key=lambda each: (each.cost, each.peak))
        return best.schedules

    def around(self, model: Model, schedule: Schedule, free: Bool, call: SolveOptions) -> list[Schedule]:
        """Return schedules that cost less than :attr:`enough`, close to a given one; none if none is found in time.

        In the programme as built, tensors are live at events where they are in the given schedule, except `free` ones.
        """
        assert self.enough is not None
        relaxation = self.relaxation
        names = self.problem.graph.tensor_index
        tensors = np.array([names[name] for name in relaxation.problem.graph.tensor_names], dtype=np.int64)
        held = held_by(self.problem, schedule, sorted(self.events))
        if self._reduction is not None:
            held = self._reduction.merged(held)
        live = np.array(relaxation.live)
        stays = (live >= 0) & ~free[tensors]
        lower, upper = model.lower.copy(), model.upper.copy()
        lower[live[stays]] = upper[live[stays]] = held[:, tensors][stays]
        small = restrict(costing_at_most(model, self._most_below(self.enough)), lower, upper, call.deadline)
        raw = by_cp_sat(relaxation, small.model, call, cp_model_probing_level=0)  # probing took a quarter of the time
        return [] if raw.values is None else self.schedules(small.expand(raw.values))

    @property
    def approachable(self) -> bool:
        """True if a known cost is a little above, the programme as built is large, and :meth:`approach` has not run."""
        far = self.enough is not None and FAR * self.value < self.enough - self.value <= FARTHEST * self.value
        known = far and self._sole is not None and len(self.events) > 1
        large = self.slim and self.link is None and self._variables > MOST_VARIABLES
        return known and large and not self.approached

    def approach(self, call: SolveOptions, more: int = 3) -> list[Schedule]:
        """Raise :attr:`value`, and return schedules that cost little more; none if none is found in time.

        CP-SAT decides whether a solution of the present events is within a limit of the cost, close to the bound. If
        there is none, the limit is a bound, and a higher one follows. If its schedules exceed the budget, at most
        `more` steps become events. Reduced costs of the linear relaxation with the first event alone fix variables.
        """
        assert self.enough is not None
        self.approached, known, found = True, self.enough, list[Schedule]()
        distance = call.relative_gap
        while not call.deadline.expired:
            limit = min(known, self.value + max(self.relaxation.unit, int(distance * self.value)))
            small = self._within_limit(self.build(call.deadline, limit), call.deadline)
            raw = by_cp_sat(self.relaxation, small.model, call, math.inf, cp_model_probing_level=0)
            if raw.values is not None:
                found = self.schedules(small.expand(raw.values))
                if self.problem.simulate(found[0]).peak <= self.budget or not self.widen(found[0], more):
                    break
            elif raw.status is Status.INFEASIBLE and self._none_below(limit) and limit != known:
                distance *= RISE
            else:
                break
        return found

    def _within_limit(self, model: Model, deadline: Deadline) -> Restricted:
        """Return the model with the limit :attr:`enough` on its cost, and without the variables that this fixes.

        Proof: let a schedule cost less. What it holds at the first event and computes again later, after ops are
        merged, is a solution of the relaxation with this event alone. So the reduced costs of that one apply to it.
        """
        assert self._sole is not None and self.enough is not None
        (sole, found), relaxation, most = self._sole, self.relaxation, self._most_below(self.enough)
        matrix = to_matrix(found.linear.lowered.model)
        sides = np.full(matrix.shape[1] + 1, -1.0)  # the last one is that of no variable
        index, side = fixed_sides(matrix, found.linear.row_duals, most)
        sides[index] = side
        lower, upper = model.lower.copy(), model.upper.copy()

        def fix(columns: Int, side: Float) -> None:
            known = (columns >= 0) & (side >= 0)
            lower[columns[known]] = upper[columns[known]] = side[known]

        graph, small, event = sole.problem.graph, relaxation.problem.graph, sorted(self.events).index(self.first)
        tensors = [graph.tensor_index[name] for name in small.tensor_names]
        fix(relaxation.live[event], sides[sole.live[0][tensors]])
        ops = [graph.op_index[op.name] for op in small.ops]
        again = sides[sole.stages[1].again[ops]]
        for stage in relaxation.stages[event + 1 :]:
            fix(stage.again, np.where(again == 0, 0.0, -1.0))
        return restrict(costing_at_most(model, most), lower, upper, deadline)

    def _held(self, values: Float) -> Bool:
        """Mark the tensors of the relaxation's problem that a solution holds at each event."""
        live = np.array(self.relaxation.live)
        return (values[np.maximum(live, 0)] > 0.5) & (live >= 0)

    def _following(self, held: Bool) -> Following:
        """Return schedules that hold tensors of the relaxation's problem at the events."""
        events, reduction = self.relaxation.events, self._reduction
        if reduction is not None:
            events, held = reduction.at, reduction.original(held)
        found = [schedule_of_held(self.problem, events, held, ahead=ahead) for ahead in (False, True)]
        runs = [self.problem.simulate(schedule) for schedule in found]
        first = min((0, 1), key=lambda number: (runs[number].cost, runs[number].peak))
        return Following(runs[first].cost, runs[first].peak, found if first == 0 else found[::-1])

    def widen(self, schedule: Schedule, most: int = 3) -> bool:
        """Make at most `most` events of the steps where a schedule exceeds the budget most; return True if any are new.

        If none are, the rows left out so far are added.
        """
        memory = stage_memory(self.problem, schedule)
        before = len(self.events)
        self.events |= self.likely
        for step in prominent_peaks(memory, self.budget):
            # The memory of recomputations peaks between the first compute of the stage before and that of their stage.
            near = (k for k in (step, step - 1, step + 1) if 0 <= k < len(memory) - 1 and k not in self.events)
            if (new := next(near, None)) is not None:
                self.events.add(new)
            if len(self.events) >= before + most:
                break
        if len(self.events) > before:
            self.tried = 0.0
            return True
        if not self.slim or self.link is not None or not (memory > self.budget).any():
            return False
        self.slim = False
        return True


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
    sequence = computed_ops(problem, schedule)
    first = first_computes(sequence)
    most = np.zeros(len(problem.graph.ops) + 1, dtype=np.int64)
    memory = problem.simulate(Schedule.of_computes(problem.graph, sequence)).memory
    np.maximum.at(most, np.cumsum(first) - first, memory)
    return most


def held_by(problem: Problem, schedule: Schedule, events: Sequence[int]) -> Bool:
    """Mark the tensors that a schedule holds at each event, besides those that the event's op reads or writes.

    The schedule has the reference order; `events` are positions in it, ascending. Accumulation buffers are marked from
    their last contribution to their last read. Shape (events, tensors).

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(2), 4)
    >>> held = held_by(problem, Schedule.reference(problem.graph), [2])
    >>> [problem.graph.tensor_names[tensor] for tensor in np.flatnonzero(held[0])]
    ['f0']
    """
    arrays = problem.graph.arrays
    inputs, outputs = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
    sequence = op_sequence(problem, schedule)
    steps = np.flatnonzero(first_computes(sequence))
    event_at = {int(steps[event]): number for number, event in enumerate(events)}
    held, needed = np.zeros((len(events), len(arrays.size)), dtype=np.bool_), problem.kept.copy()
    for step in range(len(sequence) - 1, -1, -1):
        op = sequence[step]
        needed[outputs[op]] = False
        if step in event_at:
            held[event_at[step]] = needed
            held[event_at[step], inputs[op]] = False
        needed[inputs[op]] = True
    return held


def schedule_of_held(
    problem: Problem, events: Sequence[int], held: Sequence[Bool] | Bool, *, ahead: bool = False
) -> Schedule:
    """Return the reference order with recomputations, in which only held tensors outlast an event.

    Between two events, values stay while they are of use. Before each op, missing values that it needs are recomputed
    in the reference order. Inputs of the graph and accumulation buffers always stay.

    `events`: positions in the reference order, ascending. `held`, shape (tensors,): tensors live at each event in
    addition to those that its op reads and writes. With `ahead`, those that are missing then are recomputed before the
    event, so that what they need does not have to be recomputed after it.

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
        held_here = stays.get(position)
        if ahead and held_here is not None:
            missing = held_here & ~there
            missing[arrays.op_outputs[op]] = False
            make([w for tensor in np.flatnonzero(missing).tolist() for w in writers[tensor]])
        make([op])
        if held_here is not None:
            stay = always | held_here
            stay[arrays.op_inputs[op]] = stay[arrays.op_outputs[op]] = True
            there &= stay
    make([w for tensor in np.flatnonzero(problem.kept & ~there).tolist() for w in writers[tensor]])
    return useful_schedule(problem, np.array(sequence, dtype=np.int64), "stages")
