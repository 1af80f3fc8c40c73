"""Integer programme of the least cost, in any order, with the memory of several first computes in a given order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from remat.bounds.base import cost_unit
from remat.modeling import Model
from remat.modeling.rows import difference_rows, rows_from
from remat.problem import Problem
from remat.runtime.arrays import Bool


class OrderedProgramme:
    """Programme of the schedules in which some ops, the *events*, run for the first time in a given order.

    Stage ``j`` lasts from event ``j − 1`` to event ``j``, each event belongs to the stage that it ends, and the last
    stage lasts to the end. All variables are 0 or 1: ``by[j, u]``, op ``u`` ran by the end of stage ``j``;
    ``runs[j, u]``, it runs in stage ``j``, for the first time or again; ``live[j, t]``, tensor ``t`` is live at event
    ``j``, and neither read nor written by it. Minimise ``sum cost(u) runs[j, u]`` subject to

    (1) ``by[j, u] >= by[j, w]`` for each reader ``w`` of an output of ``u``; ``by[j]`` is 1 for the events up to ``j``
        and all that they depend on, and 0 for the ops that depend on event ``j`` or a later one, and for later events;
    (2) ``by[j, u] − by[j − 1, u] <= runs[j, u] <= by[j, u]``; in the last stage ``by`` is 1;
    (3) ``live[j, t] + sum over stages k = j + 1 .. i of runs[k, u] >= by[i, w] − by[j + 1, w] + runs[j + 1, w]`` for
        each writer ``u`` and reader ``w`` of ``t`` and each stage ``i > j``; and ``>= 1`` for ``i`` the last stage if
        ``t`` is to be kept;
    (4) ``live[j, t] <= live[j − 1, t] + sum over writers u of runs[j, u]``; ``live[j − 1, t]`` is 1 for inputs and
        outputs of event ``j − 1``;
    (5) ``sum size(t) live[j, t]`` is at most the budget less the memory of the step of event ``j`` alone.

    The optimum is a lower bound on the cost of these schedules. Read the variables off one of them. (1), (2), (4) and
    (5) hold by definition. The right side of (3) is 1 only if ``w`` runs in stage ``j + 1``, or for the first time in
    one of the stages up to ``i``. Then ``t`` was live at event ``j``, or each of its writers has run since.

    Parameters
    ----------
    problem : Problem
        With a budget.
    events : sequence of int
        Ops, in an order that the graph allows.
    """

    def __init__(self, problem: Problem, events: Sequence[int]) -> None:
        self.problem, self.events, self.arrays = problem, events, problem.graph.arrays
        self.model = Model(f"{len(events)} ordered events")
        n, m, stages = len(self.arrays.cost), len(self.arrays.size), len(events) + 1
        low, high = self._known()
        self.by = self.model.booleans("by", (stages, n), low, high)
        self.runs = self.model.booleans("runs", (stages, n), 0, high)
        self.live = self.model.booleans("live", (len(events), m))
        self._progress()
        for j in range(len(events)):
            apart = self._apart(j)
            self._needs(j, apart)
            self._origins(j, apart)
            self._memory(j, apart)
        cost = self.arrays.cost // cost_unit(problem)
        self.model.minimize(self.runs.index.ravel(), np.tile(cost, stages))

    def _known(self) -> tuple[Bool, Bool]:
        """Return bounds of `by`, by (1) and (2)."""
        arrays, count = self.arrays, len(self.events)
        low, high = np.zeros((2, count + 1, len(arrays.cost)), dtype=np.bool_)
        low[count] = high[:] = True
        for i, event in enumerate(self.events):
            low[i:, np.append(arrays.op_predecessors.reachable(event), event)] = True
            high[: i + 1, arrays.op_successors.reachable(event)] = False
            high[:i, event] = False
        return low, high

    def _apart(self, j: int) -> Bool:
        """Return a mask of the tensors that event `j` neither reads nor writes, without graph inputs."""
        return ~(self.arrays.is_input | self.arrays.touched(self.events[j]))

    def _progress(self) -> None:
        """Add (1), (2) and the limits of computes."""
        by, runs, pairs, once = self.by.index, self.runs.index, self.arrays.op_successors, self.problem.once
        row = np.arange(by.shape[1])
        self.model.add(difference_rows("first stage", runs[0], by[0], exact=True))
        for before, now, ran in zip(by, by[1:], runs[1:], strict=False):
            self.model.add(difference_rows("closed", before[pairs.rows], before[pairs.indices]))
            self.model.add(difference_rows("ran before", now, before))
            self.model.add(difference_rows("run by then", now, ran))
            terms = (row, ran, 1), (row, now, -1), (row, before, 1)
            self.model.add(rows_from("first run", *terms, num_rows=len(row), lower=0, upper=np.where(once, 0, np.inf)))

    def _needs(self, j: int, apart: Bool) -> None:
        """Add (3) for event `j`."""
        arrays, by, runs, live = self.arrays, self.by.index, self.runs.index, self.live.index[j]
        writer, reader, tensor = arrays.edges_of(apart)
        row, last = np.arange(len(tensor)), len(self.events)
        terms = [(row, live[tensor], 1), (row, runs[j + 1][reader], -1)]
        for i in range(j + 1, last + 1):
            terms.append((row, runs[i][writer], 1))
            later = [(row, by[i][reader], -1), (row, by[j + 1][reader], 1)] if i > j + 1 else []
            self.model.add(rows_from("live or run", *terms, *later, num_rows=len(row), lower=0))
        keeper, stays = arrays.writes_of(apart & self.problem.kept)
        row = np.arange(len(stays))
        ran = [(row, runs[i][keeper], 1) for i in range(j + 1, last + 1)]
        self.model.add(rows_from("kept", (row, live[stays], 1), *ran, num_rows=len(row), lower=1))

    def _origins(self, j: int, apart: Bool) -> None:
        """Add (4) for event `j`."""
        tensors, place = np.flatnonzero(apart), np.cumsum(apart) - 1
        writer, tensor = self.arrays.writes_of(apart)
        row = np.arange(len(tensors))
        written = place[tensor], self.runs.index[j][writer], 1
        terms = [(row, self.live.index[j][tensors], -1), written]
        surely = np.zeros(len(tensors), dtype=np.bool_)
        if j > 0:
            surely = ~self._apart(j - 1)[tensors]
            terms.append((row[~surely], self.live.index[j - 1][tensors[~surely]], 1))
        self.model.add(rows_from("live before or run", *terms, num_rows=len(row), lower=-1.0 * surely))

    def _memory(self, j: int, apart: Bool) -> None:
        """Add (5) for event `j`."""
        problem, sizes = self.problem, self.arrays.size
        assert problem.budget_bytes is not None
        room = problem.budget_bytes - problem.constant_bytes - int(self.arrays.op_bytes[self.events[j]])
        scale = float(max(1, sizes.max()))
        weight = np.where(apart, sizes, 0) / scale
        self.model.add(rows_from("memory", (0, self.live.index[j], weight), num_rows=1, upper=room / scale))
