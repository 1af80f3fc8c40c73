"""Stage relaxation: a fixed order cut into stages at a few of its steps, where memory is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from remat.bounds.base import cost_unit
from remat.deadline import Deadline
from remat.modeling import Linear, Model
from remat.modeling.rows import NONE, Term, rows_from
from remat.problem import Problem
from remat.runtime.arrays import Bool, Int


@dataclass(frozen=True)
class _Stage:
    """What may happen after the first compute at position `since` (−1: from the start), up to that at `until`.

    `again` holds the variable of each op, −1 where it has none; likewise `live` and `through` that of each tensor.
    """

    since: int
    until: int
    again: Int
    live: Int
    through: Int


@dataclass(eq=False)
class StageRelaxation:
    """The stage relaxation of a problem with a fixed order and a budget.

    Sets: *events* are the first computes at the positions ``k`` in `events`, and time between two of them, before the
    first and after the last is a stage. *Old* is what was there before a stage began.

    Variables: ``again[j, o]``, old op ``o`` runs again in stage ``j``; ``live[j, t]``, tensor ``t`` is live at the
    event that ends stage ``j`` (1 for what that op reads or writes); ``through[j, t]``, old tensor ``t`` is live all
    through stage ``j``; ``held[j]``, the bytes of such tensors.

    Minimise ``sum cost(o) again[j, o]`` subject to

    (1) memory at each event: what the op needs by itself, plus ``size(t) live[j, t]``, is at most the budget;
    (2) ``live[j, t] <= live[j − 1, t] + sum of again[j, writers of t]`` for old ``t`` that gets no first contribution;
    (3) ``live[j − 1, t] + again[j, w] >= 1`` for each old writer ``w`` of what a first compute in stage ``j`` reads, or
        of what is to be kept, at the end;
    (4) ``live[j − 1, t] + again[j, w] >= again[j, o]`` for each input ``t`` of old op ``o``, and each writer ``w``;
    (5) ``through[j, t] >= live[j, t] − sum of again[j, writers of t]``, ``held[j] = sum size(t) through[j, t]``;
    (6) memory during a recomputation: where ``again[j, o]``, what ``o`` needs by itself, plus ``held[j]`` without its
        inputs and outputs, is at most the budget;
    (7) for accumulation buffers: ``live[j, t] + sum over later stages of again[i, w] >= 1`` for each writer ``w`` that
        ran, if ``t`` is needed later by a first compute or at the end;
    (8) ``sum of again[j, o]`` over all stages is less than the limit of computes.

    What can serve nobody has no variable: ops whose outputs are not read, however indirectly, by anything that is
    first computed after the beginning of a stage. Source and proof: documentation, page Bounds.

    Parameters
    ----------
    problem : Problem
    events : sequence of int
        Positions in the reference order. More of them never make the optimum less, but a larger model, and at times
        a weaker linear relaxation.

    Attributes
    ----------
    unit : int
        Every cost of recomputation is a multiple of it; the model counts in it.
    live : list of int64 arrays, shape (tensors,)
        Once it is built: for each event the variables ``live[j, t]``, −1 where a tensor has none.
    """

    problem: Problem
    events: Sequence[int]
    unit: int = field(init=False)
    live: list[Int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        arrays = self.problem.graph.arrays
        self.unit = cost_unit(self.problem)
        self.events = sorted(set(self.events))
        self._own = ~arrays.is_input
        self._first = arrays.producers.lowest(arrays.position, len(arrays.cost))
        self._use_of_op, self._use = self._last_uses()

    def build(self, deadline: Deadline | None = None) -> Model:
        """The model, in units of cost; memory is counted in sizes of the largest tensor.

        Raises
        ------
        OverdueError
            At the deadline, which is looked at for each stage.
        """
        clock = deadline or Deadline()
        arrays, problem = self.problem.graph.arrays, self.problem
        assert problem.budget_bytes is not None
        self._scale = float(max(1, arrays.size.max()))
        self._budget = problem.budget_bytes - problem.constant_bytes
        model = Model("stage relaxation")
        n = len(arrays.cost)
        stages: list[_Stage] = []
        for since, until in clock.each(pairwise([-1, *self.events, n]), 1):
            stage = self._variables(model, since, until)
            before = stages[-1] if stages else None
            stages.append(stage)
            model.add(self._requests(stage, before), self._needs(stage, before))
            if until < n:
                model.add(self._memory(stage), *self._retention(stage, before))
                self._during(model, stage)
        clock.check()
        self.live = [stage.live for stage in stages if stage.until < n]
        model.add(self._refills(stages), self._limits(stages))
        again = np.concatenate([stage.again for stage in stages])
        op = np.tile(np.arange(n), len(stages))[again >= 0]
        model.minimize(again[again >= 0], arrays.cost[op] // self.unit)
        return model

    # -- what there is ---------------------------------------------------------------------------------------------

    def _last_uses(self) -> tuple[Int, Int]:
        """Last position at which each op, and each tensor, may matter to a first compute; the end for what is kept."""
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

    def _at(self, position: int) -> Bool:
        """Tensors that the op at a position reads or writes."""
        arrays = self.problem.graph.arrays
        mask = np.zeros(len(arrays.size), dtype=np.bool_)
        if 0 <= position < len(arrays.order):
            op = arrays.order[position]
            mask[arrays.op_inputs[op]] = True
            mask[arrays.op_outputs[op]] = True
        return mask

    def _variables(self, model: Model, since: int, until: int) -> _Stage:
        arrays, n = self.problem.graph.arrays, len(self.problem.graph.arrays.cost)
        once = np.array([limit == 1 for limit in self.problem.compute_limits], dtype=np.bool_)
        runs = np.flatnonzero((arrays.position <= since) & (self._use_of_op > since))
        again = _numbers(n, runs, model.booleans("again", len(runs), 0, ~once[runs]).index)
        none = np.full(len(arrays.size), NONE, dtype=np.int64)
        if until == n:
            return _Stage(since, until, again, none, none)
        there = self._own & (self._first < until) & (self._use > until) & ~self._at(until)
        live = np.flatnonzero(there)
        fresh = np.zeros(len(arrays.size), dtype=np.bool_)
        late = arrays.position[arrays.producers.indices]
        fresh[arrays.producers.rows[(late > since) & (late <= until)]] = True
        read = np.zeros(len(arrays.size), dtype=np.bool_)
        read[arrays.op_inputs[arrays.order[until]]] = True
        old = np.flatnonzero(self._own & (self._first <= since) & ~fresh & (there | read))
        return _Stage(
            since,
            until,
            again,
            _numbers(len(arrays.size), live, model.booleans("live", len(live)).index),
            _numbers(len(arrays.size), old, model.implied("through", len(old), 0, 1).index),
        )

    # -- rows ------------------------------------------------------------------------------------------------------

    def _requests(self, stage: _Stage, before: _Stage | None) -> Linear:
        """(4)."""
        arrays = self.problem.graph.arrays
        asks = (stage.again[arrays.edge_consumer] >= 0) & ~self._at(stage.since)[arrays.edge_tensor]
        reader, writer, tensor = (
            column[asks] for column in (arrays.edge_consumer, arrays.edge_producer, arrays.edge_tensor)
        )
        row, name = np.arange(len(reader)), "inputs of what runs again"
        terms = (row, stage.again[reader], -1), (row, stage.again[writer], 1), (row, _live(before, tensor), 1)
        return rows_from(name, *terms, num_rows=len(row), lower=0)

    def _needs(self, stage: _Stage, before: _Stage | None) -> Linear:
        """(3)."""
        arrays, n = self.problem.graph.arrays, len(self.problem.graph.arrays.cost)
        when = arrays.position[arrays.edge_consumer]
        wanted = (when > stage.since) & (when <= stage.until)
        writer, tensor = arrays.edge_producer[wanted], arrays.edge_tensor[wanted]
        if stage.until == n:
            kept = self.problem.kept[arrays.producers.rows]
            writer = np.concatenate([writer, arrays.producers.indices[kept]])
            tensor = np.concatenate([tensor, arrays.producers.rows[kept]])
        old = (arrays.position[writer] <= stage.since) & ~self._at(stage.since)[tensor] & self._own[tensor]
        pairs = np.unique(writer[old] * len(arrays.size) + tensor[old])
        writer, tensor = pairs // len(arrays.size), pairs % len(arrays.size)
        row, name = np.arange(len(pairs)), "inputs of what runs first"
        terms = (row, stage.again[writer], 1), (row, _live(before, tensor), 1)
        return rows_from(name, *terms, num_rows=len(row), lower=1)

    def _memory(self, stage: _Stage) -> Linear:
        """(1)."""
        arrays = self.problem.graph.arrays
        live = np.flatnonzero(stage.live >= 0)
        room = (self._budget - int(arrays.op_bytes[arrays.order[stage.until]])) / self._scale
        weight = arrays.size[live] / self._scale
        return rows_from("memory", (0, stage.live[live], weight), num_rows=1, upper=room)

    def _retention(self, stage: _Stage, before: _Stage | None) -> list[Linear]:
        """(2) and (5), but for ``held``."""
        old = np.flatnonzero(stage.through >= 0)
        lasting = old[(stage.live[old] >= 0) & ~self._at(stage.since)[old]]
        left, right = np.arange(len(lasting)), np.arange(len(old))
        regained = (left, stage.live[lasting], -1), (left, _live(before, lasting), 1), self._runs(stage, lasting)
        # 1 for what the event's op reads: on the right
        through = (right, stage.through[old], 1), (right, stage.live[old], -1), self._runs(stage, old)
        return [
            rows_from("live on", *regained, num_rows=len(left), lower=0),
            rows_from("live throughout", *through, num_rows=len(right), lower=stage.live[old] < 0),
        ]

    def _runs(self, stage: _Stage, tensors: Int) -> Term:
        """For each of the tensors a row with the runs of its writers in the stage."""
        writers = self.problem.graph.arrays.producers
        row, entry = writers.entries(tensors)
        return row, stage.again[writers.indices[entry]], 1

    def _during(self, model: Model, stage: _Stage) -> None:
        """(6), and ``held`` of (5)."""
        arrays = self.problem.graph.arrays
        op = arrays.order[stage.until]
        old, runs = np.flatnonzero(stage.through >= 0), np.flatnonzero(stage.again >= 0)
        outputs = arrays.op_outputs[op]
        # What is live throughout is live at the event, beside the outputs of its op.
        most = self._budget - arrays.input_bytes - int(arrays.workspace[op]) - int(arrays.size[outputs].sum())
        runs = runs[self._budget - arrays.op_bytes[runs] < most]
        if most < 0 or not len(runs) or not len(old):
            return
        held = model.continuous("held", 1, 0, most / self._scale).index
        total = (0, held, 1), (0, stage.through[old], -arrays.size[old] / self._scale)
        model.add(rows_from("bytes held throughout", *total, num_rows=1, lower=0))
        row = np.arange(len(runs))
        terms: list[Term] = [
            (row, held, -1),
            (row, stage.again[runs], (self._budget - arrays.op_bytes[runs] - most) / self._scale),
        ]
        for ends in (arrays.op_inputs, arrays.op_outputs):
            number, entry = ends.entries(runs)
            tensor = ends.indices[entry]
            terms.append((number, stage.through[tensor], arrays.size[tensor] / self._scale))
        name = "memory during a recomputation"
        model.add(rows_from(name, *terms, num_rows=len(row), lower=-most / self._scale))

    def _refills(self, stages: list[_Stage]) -> Linear:
        """(7)."""
        arrays, n = self.problem.graph.arrays, len(self.problem.graph.arrays.cost)
        last = np.where(self.problem.kept, n, arrays.consumers.highest(arrays.position, -1))
        shared = arrays.producers.counts[arrays.producers.rows] > 1
        writer, tensor = arrays.producers.indices[shared], arrays.producers.rows[shared]
        found: list[tuple[int, Int]] = []
        for j, stage in enumerate(stages):
            ran = (stage.live[tensor] >= 0) & (arrays.position[writer] <= stage.until) & (last[tensor] > stage.until)
            for w, t in zip(writer[ran].tolist(), tensor[ran].tolist(), strict=True):
                found.append((int(stage.live[t]), np.array([later.again[w] for later in stages[j + 1 :]])))
        terms = [(number, np.append(later, live), 1) for number, (live, later) in enumerate(found)]
        return rows_from("buffers filled again", *terms, num_rows=len(found), lower=1)

    def _limits(self, stages: list[_Stage]) -> Linear:
        """(8)."""
        limits = [(op, limit) for op, limit in enumerate(self.problem.compute_limits) if limit is not None]
        terms = [(row, [stage.again[op] for stage in stages], -1) for row, (op, _) in enumerate(limits)]
        lower = [1 - limit for _, limit in limits]
        return rows_from("limits of computes", *terms, num_rows=len(limits), lower=lower)


def _numbers(length: int, where: Int, index: Int) -> Int:
    """Return an array of no variables with `index` at the places `where`."""
    numbers = np.full(length, NONE, dtype=np.int64)
    numbers[where] = index
    return numbers


def _live(stage: _Stage | None, tensor: Int) -> Int:
    """Variables of `tensor` being live at the end of a stage; −1 without one."""
    return np.full(len(tensor), NONE, dtype=np.int64) if stage is None else stage.live[tensor]
