"""Stage relaxation: a fixed order divided into stages by a few steps, at which memory is constrained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from remat.bounds.base import cost_unit
from remat.modeling import Linear, Model
from remat.modeling.rows import NONE, Term, rows_from
from remat.problem import Problem
from remat.runtime.arrays import Bool, Int, distinct
from remat.runtime.deadline import Deadline

#: Names of the rows (1): of all tensors, and of those too large for a host.
MEMORY, ON_DEVICE = "memory", "memory on the device"


@dataclass(frozen=True)
class Stage:
    """Variables of the stage after the first compute at position `since` (−1: from the start), up to that at `until`.

    `again` contains the variable of each op, `live` and `through` those of each tensor; −1 where there is none. `here`
    is `live`, and `read` has no variables, but with a host memory (:mod:`remat.bounds.transfer_relaxation`).
    """

    since: int
    until: int
    again: Int
    live: Int
    through: Int
    here: Int
    read: Int


@dataclass(eq=False)
class StageRelaxation:
    """Stage relaxation of a problem with a fixed order and a budget.

    Sets: *events* are the first computes at the positions ``k`` in `events`. The periods between two events, before the
    first and after the last are *stages*. An op or tensor is *old* if its first compute precedes the stage.

    Variables: ``again[j, o]``, old op ``o`` runs again in stage ``j``; ``live[j, t]``, tensor ``t`` is live at the
    event that ends stage ``j`` (1 for inputs and outputs of its op); ``through[j, t]``, old tensor ``t`` is live
    throughout stage ``j``; ``held[j]``, the bytes of such tensors.

    Minimise ``sum cost(o) again[j, o]`` subject to

    (1) memory at each event: the memory of the op's step alone, plus ``size(t) live[j, t]``, is at most the budget;
    (2) ``live[j, t] <= live[j − 1, t] + sum of again[j, writers of t]`` for old ``t`` without a first contribution;
    (3) ``live[j − 1, t] + again[j, w] >= 1`` for each old writer ``w`` of a tensor ``t`` that a first compute in stage
        ``j`` reads, or, in the last stage, of one to keep;
    (4) ``live[j − 1, t] + again[j, w] >= again[j, o]`` for each input ``t`` of old op ``o``, and each writer ``w``;
    (5) ``through[j, t] >= live[j, t] − sum of again[j, writers of t]``, ``held[j] = sum size(t) through[j, t]``;
    (6) memory during a recomputation: where ``again[j, o]``, the memory of the step of ``o`` alone, plus ``held[j]``
        without its inputs and outputs, is at most the budget;
    (7) for accumulation buffers: ``live[j, t] + sum over later stages of again[i, w] >= 1`` for each writer ``w`` that
        has run, if ``t`` is needed later by a first compute or at the end;
    (8) ``sum of again[j, o]`` over all stages is less than the limit of computes;
    (9) with a `main` event, (3) and (4) for the time after it as a whole, in which op ``o`` runs again if ``ever[o]``:
        ``ever[o] <= sum of again[j, o]`` over the stages after it. So its linear relaxation is at least the one with
        this event alone.

    Ops that cannot be useful in a stage have no variable: no first compute after the start of the stage reads their
    outputs, directly or indirectly. Source and proof: documentation, page Bounds.

    Parameters
    ----------
    events : sequence of int
        Positions in the reference order. More events never lower the optimum, but make the model larger and
        sometimes weaken its linear relaxation, unless it has path cuts (:mod:`remat.bounds.path_cuts`).
    slim : bool
        Leave out rows (5) and (6).
    main : int, optional
        Event of the rows (9).
    more : sequence of int
        Bytes in addition at each event, in ascending order of the events, that a host holds
        (:class:`remat.bounds.link_room.LinkRoom`). Larger tensors are on the device: (1) also holds without the other
        ones and these bytes. Rows (6) do not count them, so `slim` is true.

    Attributes
    ----------
    unit : int
        Unit of cost in the model, which divides every cost of recomputation.
    scale : float
        Bytes of a unit of memory in the built model.
    stages : list of Stage
        Variables of each stage; empty until :meth:`build`.
    own : bool array, shape (tensors,)
        Marks the tensors that an op writes.
    """

    problem: Problem
    events: Sequence[int]
    slim: bool = False
    main: int | None = None
    more: Sequence[int] = ()
    unit: int = field(init=False)
    scale: float = field(init=False)
    stages: list[Stage] = field(init=False, default_factory=list)
    own: Bool = field(init=False)

    def __post_init__(self) -> None:
        arrays = self.problem.graph.arrays
        self.unit = cost_unit(self.problem)
        self.scale = float(max(1, arrays.size.max()))
        self.events = sorted(set(self.events))
        self.own = ~arrays.is_input
        self._first = arrays.producers.lowest(arrays.position, len(arrays.cost))
        self._use_of_op, self._use = self._last_uses()

    def build(self, deadline: Deadline | None = None) -> Model:
        """Build the model, with costs in `unit` and memory in sizes of the largest tensor.

        Raises
        ------
        OverdueError
            At the deadline, which is checked for each stage.
        """
        clock = deadline or Deadline()
        arrays, problem = self.problem.graph.arrays, self.problem
        assert problem.budget_bytes is not None
        self._budget = problem.budget_bytes - problem.constant_bytes
        model = Model("stage relaxation")
        n = len(arrays.cost)
        stages: list[Stage] = []
        for since, until in clock.each(pairwise([-1, *self.events, n]), 1):
            stage = self._variables(model, since, until)
            before = stages[-1] if stages else None
            stages.append(stage)
            model.add(self._requests(stage, before), self._needs(stage, before), *self._transfers(stage, before))
            if until < n:
                model.add(self._memory(stage), *self._on_device(stage), *self._retention(stage, before))
                if not self.slim:
                    self._during(model, stage)
        clock.check()
        self.stages = stages
        model.add(self._refills(stages), self._limits(stages), *self._afterwards(model, stages))
        index, cost = self._costs(model, stages)
        model.minimize(index, cost)
        return model

    def _afterwards(self, model: Model, stages: list[Stage]) -> list[Linear]:
        """Return the rows (9)."""
        if self.main is None or self.main == self.events[-1]:  # after the last event there is one stage
            return []
        since = self.events.index(self.main)
        later = stages[since + 1 :]
        place = np.flatnonzero(later[0].again >= 0)
        ever = numbered(len(later[0].again), place, model.implied("ever", len(place), 0, 1).index)
        whole = replace(later[0], until=later[-1].until, again=ever)
        row = np.arange(len(place))
        runs = (row, ever[place], -1), *((row, stage.again[place], 1) for stage in later)
        some = rows_from("ever", *runs, num_rows=len(row), lower=0)
        return [some, self._requests(whole, stages[since]), self._needs(whole, stages[since])]

    def _transfers(self, stage: Stage, before: Stage | None) -> list[Linear]:
        """Return the rows of a host memory: none here."""
        return []

    def _costs(self, model: Model, stages: list[Stage]) -> tuple[Int, Int]:
        """Return variables and their costs in `unit`."""
        arrays = self.problem.graph.arrays
        again = np.concatenate([stage.again for stage in stages])
        op = np.tile(np.arange(len(arrays.cost)), len(stages))[again >= 0]
        return again[again >= 0], arrays.cost[op] // self.unit

    @property
    def live(self) -> list[Int]:
        """Variables ``live[j, t]`` of each event, shape (tensors,); −1 where a tensor has none."""
        return [stage.live for stage in self.stages[:-1]]

    def _last_uses(self) -> tuple[Int, Int]:
        """Return the last position of a first compute that may need each op, and each tensor; the end if kept."""
        arrays = self.problem.graph.arrays
        n = len(arrays.cost)
        inputs, outputs = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
        use, of_op = np.where(self.problem.kept, n, -1).tolist(), [-1] * n
        for place, op in zip(range(n - 1, -1, -1), arrays.order[::-1].tolist(), strict=True):
            last = max([place, *(use[tensor] for tensor in outputs[op])])
            of_op[op] = last
            for tensor in inputs[op]:
                use[tensor] = max(use[tensor], last)
        return np.array(of_op, dtype=np.int64), np.array(use, dtype=np.int64)

    def at(self, position: int) -> Bool:
        """Mark the tensors that the op at a position reads or writes."""
        arrays = self.problem.graph.arrays
        if 0 <= position < len(arrays.order):
            return arrays.touched(arrays.order[position])
        return np.zeros(len(arrays.size), dtype=np.bool_)

    def _variables(self, model: Model, since: int, until: int) -> Stage:
        arrays, n = self.problem.graph.arrays, len(self.problem.graph.arrays.cost)
        runs = np.flatnonzero((arrays.position <= since) & (self._use_of_op > since))
        again = numbered(n, runs, model.booleans("again", len(runs), 0, ~self.problem.once[runs]).index)
        none = np.full(len(arrays.size), NONE, dtype=np.int64)
        if until == n:
            return Stage(since, until, again, none, none, none, none)
        there = self.own & (self._first < until) & (self._use > until) & ~self.at(until)
        live = np.flatnonzero(there)
        fresh = np.zeros(len(arrays.size), dtype=np.bool_)
        late = arrays.position[arrays.producers.indices]
        fresh[arrays.producers.rows[(late > since) & (late <= until)]] = True
        read = np.zeros(len(arrays.size), dtype=np.bool_)
        read[arrays.op_inputs[arrays.order[until]]] = True
        old = np.flatnonzero(self.own & (self._first <= since) & ~fresh & (there | read))
        index = numbered(len(arrays.size), live, model.booleans("live", len(live)).index)
        through = numbered(len(arrays.size), old, model.implied("through", len(old), 0, 1).index)
        return Stage(since, until, again, index, through, here=index, read=none)

    def asked(self, stage: Stage) -> tuple[Int, Int, Int]:
        """Return reader, writer and tensor of each input of an old op that the stage does not begin with."""
        arrays = self.problem.graph.arrays
        asks = (stage.again[arrays.edge_consumer] >= 0) & ~self.at(stage.since)[arrays.edge_tensor]
        return arrays.edge_consumer[asks], arrays.edge_producer[asks], arrays.edge_tensor[asks]

    def _requests(self, stage: Stage, before: Stage | None) -> Linear:
        """Return the rows (4)."""
        reader, writer, tensor = self.asked(stage)
        row, name = np.arange(len(reader)), "inputs of what runs again"
        terms = (row, stage.again[reader], -1), (row, stage.again[writer], 1), (row, at_end(before, tensor), 1)
        return rows_from(name, *terms, num_rows=len(row), lower=0)

    def needed(self, stage: Stage) -> tuple[Int, Int]:
        """Return old writer and tensor of what first computes of the stage read, and of what is kept to the end."""
        arrays, n = self.problem.graph.arrays, len(self.problem.graph.arrays.cost)
        when = arrays.position[arrays.edge_consumer]
        wanted = (when > stage.since) & (when <= stage.until)
        writer, tensor = arrays.edge_producer[wanted], arrays.edge_tensor[wanted]
        if stage.until == n:
            keeper, kept = arrays.writes_of(self.problem.kept)
            writer, tensor = np.append(writer, keeper), np.append(tensor, kept)
        old = (arrays.position[writer] <= stage.since) & ~self.at(stage.since)[tensor] & self.own[tensor]
        pairs = distinct(writer[old] * len(arrays.size) + tensor[old])
        return pairs // len(arrays.size), pairs % len(arrays.size)

    def _needs(self, stage: Stage, before: Stage | None) -> Linear:
        """Return the rows (3)."""
        writer, tensor = self.needed(stage)
        row, name = np.arange(len(writer)), "inputs of what runs first"
        terms = (row, stage.again[writer], 1), (row, at_end(before, tensor), 1)
        return rows_from(name, *terms, num_rows=len(row), lower=1)

    def _memory(self, stage: Stage) -> Linear:
        """Return the row (1) of an event."""
        arrays = self.problem.graph.arrays
        live = np.flatnonzero(stage.here >= 0)
        weight, room = arrays.size[live] / self.scale, self.whole_room(stage) / self.scale
        return rows_from(MEMORY, (0, stage.here[live], weight), num_rows=1, upper=room)

    def _on_device(self, stage: Stage) -> list[Linear]:
        """Return the row (1) of the tensors that are too large for a host, if there are others."""
        more = self._more(stage.until)
        size = self.problem.graph.arrays.size
        live = np.flatnonzero((stage.here >= 0) & (size > more))
        if not more or not len(live):
            return []
        room = (self.room(stage.until) - more) / self.scale
        return [rows_from(ON_DEVICE, (0, stage.here[live], size[live] / self.scale), num_rows=1, upper=room)]

    def _more(self, position: int) -> int:
        """Return the bytes that a host holds at an event."""
        return self.more[self.events.index(position)] if len(self.more) else 0

    def whole_room(self, stage: Stage) -> int:
        """Return the bytes that tensors can take at the end of a stage: a multiple of what divides all their sizes."""
        room = self.room(stage.until)
        unit = int(np.gcd.reduce(self.problem.graph.arrays.size[stage.here >= 0]))
        some = stage.here is not stage.live  # a host can hold parts of tensors
        return room if some or not unit else room // unit * unit

    def room(self, position: int) -> int:
        """Return the bytes that the step of the op at an event leaves of the budget, and those on a host."""
        arrays = self.problem.graph.arrays
        return self._budget - int(arrays.op_bytes[arrays.order[position]]) + self._more(position)

    def _retention(self, stage: Stage, before: Stage | None) -> list[Linear]:
        """Return the rows (2) and (5), except those of ``held``."""
        old = np.flatnonzero(stage.through >= 0)
        lasting = self._lasting(stage)
        left, right = np.arange(len(lasting)), np.arange(len(old))
        regained = (left, stage.live[lasting], -1), (left, at_end(before, lasting), 1), self._runs(stage, lasting)
        live_on = rows_from("live on", *regained, num_rows=len(left), lower=0)
        if self.slim:
            return [live_on]
        # `live` is the constant 1 for inputs of the event's op, so it is part of the right-hand side
        regains = self._runs(stage, old), (right, stage.read[old], 1)
        through = (right, stage.through[old], 1), (right, stage.here[old], -1), *regains
        return [
            live_on,
            rows_from("live throughout", *through, num_rows=len(right), lower=stage.live[old] < 0),
        ]

    def _lasting(self, stage: Stage) -> Int:
        """Return the old tensors that may be live at both ends of a stage, without those of its first event."""
        return np.flatnonzero((stage.through >= 0) & (stage.live >= 0) & ~self.at(stage.since))

    def _runs(self, stage: Stage, tensors: Int) -> Term:
        """Return terms, one row per tensor, for the runs of its writers in the stage."""
        writers = self.problem.graph.arrays.producers
        row, entry = writers.entries(tensors)
        return row, stage.again[writers.indices[entry]], 1

    def _during(self, model: Model, stage: Stage) -> None:
        """Add the rows (6), and those of ``held`` in (5)."""
        arrays = self.problem.graph.arrays
        op = arrays.order[stage.until]
        old, runs = np.flatnonzero(stage.through >= 0), np.flatnonzero(stage.again >= 0)
        outputs = arrays.op_outputs[op]
        # Tensors that are live throughout are also live at the event, in addition to the outputs of its op.
        most = self._budget - arrays.input_bytes - int(arrays.workspace[op]) - int(arrays.size[outputs].sum())
        runs = runs[self._budget - arrays.op_bytes[runs] < most]
        if most < 0 or not len(runs) or not len(old):
            return
        held = model.continuous("held", 1, 0, most / self.scale).index
        total = (0, held, 1), (0, stage.through[old], -arrays.size[old] / self.scale)
        model.add(rows_from("bytes held throughout", *total, num_rows=1, lower=0))
        row = np.arange(len(runs))
        terms: list[Term] = [
            (row, held, -1),
            (row, stage.again[runs], (self._budget - arrays.op_bytes[runs] - most) / self.scale),
        ]
        for ends in (arrays.op_inputs, arrays.op_outputs):
            number, entry = ends.entries(runs)
            tensor = ends.indices[entry]
            terms.append((number, stage.through[tensor], arrays.size[tensor] / self.scale))
        name = "memory during a recomputation"
        model.add(rows_from(name, *terms, num_rows=len(row), lower=-most / self.scale))

    def _refills(self, stages: list[Stage]) -> Linear:
        """Return the rows (7)."""
        arrays, n = self.problem.graph.arrays, len(self.problem.graph.arrays.cost)
        last = np.where(self.problem.kept, n, arrays.consumers.highest(arrays.position, -1))
        writer, tensor = arrays.writes_of(arrays.producers.counts > 1)
        found: list[tuple[int, Int]] = []
        for j, stage in enumerate(stages):
            ran = (stage.live[tensor] >= 0) & (arrays.position[writer] <= stage.until) & (last[tensor] > stage.until)
            for w, t in zip(writer[ran].tolist(), tensor[ran].tolist(), strict=True):
                found.append((int(stage.live[t]), np.array([later.again[w] for later in stages[j + 1 :]])))
        terms = [(number, np.append(later, live), 1) for number, (live, later) in enumerate(found)]
        return rows_from("buffers filled again", *terms, num_rows=len(found), lower=1)

    def _limits(self, stages: list[Stage]) -> Linear:
        """Return the rows (8), without those that are always satisfied."""
        count = np.sum([stage.again >= 0 for stage in stages], axis=0).tolist()
        every = zip(self.problem.compute_limits, count, strict=True)
        limits = [(op, limit) for op, (limit, most) in enumerate(every) if limit is not None and limit <= most]
        terms = [(row, [stage.again[op] for stage in stages], -1) for row, (op, _) in enumerate(limits)]
        lower = [1 - limit for _, limit in limits]
        return rows_from("limits of computes", *terms, num_rows=len(limits), lower=lower)


def numbered(length: int, where: Int, index: Int) -> Int:
    """Return an array of -1, no variable, with `index` at the positions `where`."""
    numbers = np.full(length, NONE, dtype=np.int64)
    numbers[where] = index
    return numbers


def at_end(stage: Stage | None, tensor: Int) -> Int:
    """Return the variables ``live`` of tensors at the end of a stage; −1 where there is none."""
    return np.full(len(tensor), NONE, dtype=np.int64) if stage is None else stage.live[tensor]


#: Largest number of peaks considered, the highest ones.
MOST_PEAKS = 500


def prominent_peaks(memory: Int, above: int) -> list[int]:
    """Return the positions of local maxima of `memory` above a value, the most prominent first.

    The prominence of a peak is the least drop of memory between it and a higher peak (or an end).

    Examples
    --------
    >>> prominent_peaks(np.array([3, 7, 5, 9, 2, 6, 1]), 5)
    [3, 5, 1]
    """
    padded = np.concatenate([[-1], memory, [-1]])
    step = np.flatnonzero(np.diff(padded)) + 1  # first of each run of equal values
    heights = padded[step]
    top = (heights > padded[step - 1]) & (np.append(heights[1:], 0) < heights) & (heights > above)
    found: list[tuple[int, int]] = []
    highest = step[top][np.argsort(-heights[top], kind="stable")][:MOST_PEAKS]
    for k in highest.tolist():
        higher = np.flatnonzero(padded > padded[k])
        place = int(np.searchsorted(higher, k))
        left = int(higher[place - 1]) if place else 0
        right = int(higher[place]) if place < len(higher) else len(padded) - 1
        valley = max(int(padded[left : k + 1].min()), int(padded[k : right + 1].min()))
        found.append((valley - int(padded[k]), k - 1))
    return [k for _, k in sorted(found)]
