"""Checkmate's mixed integer program: recompute, retain and free, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from remat.errors import ProblemError
from remat.formulations.base import Formulation, Leeway, Part, Scope, Values
from remat.formulations.retention_layout import expand
from remat.formulations.sequence import (
    Instances,
    MemoryScale,
    check_limits,
    op_sequence,
    stages_of,
    standing_buffers,
    useful_schedule,
)
from remat.modeling import Linear, Model, Vars
from remat.problem import Problem
from remat.schedule import OrderRule, Schedule

Int = NDArray[np.int64]


@dataclass(frozen=True)
class _Blocks:
    """The blocks of variables, in the order in which they are made."""

    R: Vars
    S: Vars
    FREE: Vars
    U: Vars
    transient: Vars


class Checkmate(Formulation):
    r"""Checkmate's MILP with frontier-advancing stages (Jain et al., MLSys 2020, eq. 9).

    **Sets.** Ops 0..n−1 in the reference order; stages k = 0..n−1, of which stage k ends with the first compute of op
    k, and in which every op j ≤ k may run once, in order. Tensors t with size m_t and writer p(t); U(t) its readers.

    **Variables.** R[k,j] ∈ {0,1}, j ≤ k: op j runs in stage k. S[k,t] ∈ {0,1}, k > p(t): t is retained from stage k−1
    into stage k. FREE[k,t,l] ∈ {0,1}: t is freed right after op l, which reads it, in stage k. U[k,j] ∈ [0, budget]:
    memory held while op j runs in stage k.

    **Constraints**, in the paper's numbering::

        (1a) minimise  sum_{k,j} C_j R[k,j]
        (1b) R[k,j] ≤ R[k,p(t)] + S[k,t]                          for every t that op j reads
        (1c) S[k,t] ≤ R[k−1,p(t)] + S[k−1,t]
        (2)  U[k,0] = M_held + sum_t m_t S[k,t] + m(0) R[k,0]      m(j): bytes of the outputs of op j
        (3)  U[k,j+1] = U[k,j] − sum_{t read by j} m_t FREE[k,t,j] + m(j+1) R[k,j+1]
        (7b) 1 − FREE[k,t,l] ≤ h;   (7c) κ (1 − FREE[k,t,l]) ≥ h
             with h = (1 − R[k,l]) + S[k+1,t] + sum_{j ∈ U(t), l < j ≤ k} R[k,j],  κ = its largest value
        (8a) R[k,k] = 1;   (8b) S[k,t] only for k > p(t);   (8c) R[k,j] only for j ≤ k
        (9)  U[k,j] + w_j R[k,j] ≤ budget                         w_j: workspace

    FREE[k,t,p(t)], the freeing of a result nobody uses, is 0 in an optimum for ops with one output (§4.8) and left
    out; it is there for ops with several outputs, which regenerate all of them when one is wanted. A tensor that an
    op reads twice is one dependency, so it is freed once.

    **Extensions.** Tensors to be kept: S[n,t] = 1. Graph inputs are part of M_held. Limits of computes:
    sum_k R[k,j] ≤ C_j. An accumulation buffer is filled once: S[k,t] = 1 from its first writer's stage to its last
    one's, S[k,t] ≤ S[k−1,t] afterwards, its readers need S[k,t]; a writer that runs again while the buffer is gone
    holds its bytes for that one step.

    Sizes are divided by their greatest common divisor, with the budget rounded down.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> print(Checkmate(Problem(unit_chain(8), 4)).build())  # doctest: +ELLIPSIS
    model checkmate: ...
    """

    name = "checkmate"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        if problem.order is not OrderRule.FIXED:
            raise ProblemError("the checkmate formulation keeps the reference order; ask for order 'fixed'")
        arrays = problem.graph.arrays
        self.n = len(arrays.cost)
        self.is_buffer, self.workspace = standing_buffers(problem)
        scale = MemoryScale.of(problem, self.workspace)
        self.unit, self.capacity = scale.unit, scale.capacity
        self._prepare()

    def _prepare(self) -> None:
        """Tensors and uses by position in the reference order."""
        arrays = self.problem.graph.arrays
        writer = np.full(len(arrays.size), self.n, dtype=np.int64)
        self.last_writer = np.zeros(len(arrays.size), dtype=np.int64)
        positions = arrays.position[arrays.producers.indices]
        np.minimum.at(writer, arrays.producers.rows, positions)
        np.maximum.at(self.last_writer, arrays.producers.rows, positions)
        self.writer = writer  # position of the (first) writer; n for graph inputs
        self.size = arrays.size // self.unit
        self.kept = self.problem.kept & ~arrays.is_input
        fleeting = (arrays.producers.counts > 1) & ~self.is_buffer  # counted as workspace
        self.tensors = np.flatnonzero(~arrays.is_input & ~fleeting)
        # uses: (tensor, position of reader), sorted by tensor, then position
        tensor = arrays.consumers.rows
        reader = arrays.position[arrays.consumers.indices]
        wanted = ~arrays.is_input[tensor]
        by_use = np.lexsort((reader[wanted], tensor[wanted]))
        self.use_tensor, self.use_op = tensor[wanted][by_use], reader[wanted][by_use]
        # what FREE stands for: every use, and the writer itself for ops with several outputs
        several = np.zeros(self.n, dtype=np.bool_)
        several[arrays.position[arrays.op_outputs.counts > 1]] = True
        own = self.tensors[~self.is_buffer[self.tensors]]
        own = own[several[self.writer[own]]]
        self.free_tensor = np.concatenate([self.use_tensor, own])
        self.free_op = np.concatenate([self.use_op, self.writer[own]])
        self.s_count = np.where(fleeting, 0, np.maximum(0, self.n - 1 - self.writer))
        self.s_first = np.cumsum(self.s_count) - self.s_count
        self.free_count = self.n - self.free_op
        self.free_first = np.cumsum(self.free_count) - self.free_count
        # (writer position, buffer) pairs: transient contributions after the last writer's stage
        into = np.flatnonzero(self.is_buffer[arrays.producers.rows])
        self.part_tensor, self.part_op = arrays.producers.rows[into], positions[into]
        self.part_count = self.n - 1 - self.last_writer[self.part_tensor]
        self.part_first = np.cumsum(self.part_count) - self.part_count

    def scope(self) -> Scope:
        limits = [limit for limit in self.problem.compute_limits if limit is not None]
        most = max(limits) if len(limits) == self.n else None
        notes = ("each accumulation buffer filled once",) if self.is_buffer.any() else ()
        return Scope(OrderRule.FIXED, True, most, notes)

    def build(self) -> Model:
        return self.statement[0]

    # -- variables -------------------------------------------------------------------------------------------------

    @cached_property
    def statement(self) -> tuple[Model, _Blocks]:
        """The model, and its variables."""
        model = Model(self.name)
        stage, slot = expand(np.arange(1, self.n + 1, dtype=np.int64))  # the lower triangle, row by row
        arrays = self.problem.graph.arrays
        once = np.array([limit == 1 for limit in self.problem.compute_limits])[arrays.order]
        owner, rank = expand(self.s_count)
        stage_of_s = self.writer[owner] + 1 + rank
        filling = self.is_buffer[owner] & (stage_of_s <= self.last_writer[owner])
        freed, at = expand(self.free_count)
        forever = self.kept[self.free_tensor[freed]] & (self.free_op[freed] + at == self.n - 1)
        x = _Blocks(
            R=model.booleans("R", len(slot), stage == slot, (stage == slot) | ~once[slot]),  # (8a), (8c)
            S=model.booleans("S", len(owner), filling),  # (8b)
            FREE=model.booleans("FREE", len(freed), 0, ~forever),  # (7a)
            U=model.implied("U", len(slot), 0, self.capacity),  # (9)
            transient=model.implied("transient", int(self.part_count.sum()), 0, 1),
        )
        self._dependencies(model, x)
        self._memory(model, x, stage, slot)
        self._frees(model, x)
        self._workspace(model, x)
        self._limits(model, x)
        cost = arrays.cost[arrays.order][slot]
        again = np.flatnonzero((stage != slot) & (cost > 0))
        model.minimize(x.R[again], cost[again], self.problem.graph.base_cost)  # (1a)
        return model, x

    @staticmethod
    def _at(x: Vars, stage: Int, slot: Int) -> Int:
        """R[stage, slot] or U[stage, slot] of the lower triangle."""
        return x.index[stage * (stage + 1) // 2 + slot]

    def _s(self, x: _Blocks, stage: Int, tensor: Int) -> Int:
        return x.S.index[self.s_first[tensor] + stage - self.writer[tensor] - 1]

    # -- constraints -----------------------------------------------------------------------------------------------

    def _dependencies(self, model: Model, x: _Blocks) -> None:
        use, rank = expand(self.n - self.use_op)
        stage, tensor, reader = self.use_op[use] + rank, self.use_tensor[use], self.use_op[use]
        row = np.arange(len(use), dtype=np.int64)
        ordinary = ~self.is_buffer[tensor]
        model.add(
            _at_most_zero(
                "(1b) inputs there",
                [(row, self._at(x.R, stage, reader), 1), (row, self._s(x, stage, tensor), -1),
                 (row[ordinary], self._at(x.R, stage, self.writer[tensor])[ordinary], -1)],
                len(row),
            )
        )  # fmt: skip
        tensor, rank = expand(self.s_count)
        stage = self.writer[tensor] + 1 + rank
        past = (stage > self.last_writer[tensor] + 1) | (~self.is_buffer[tensor])
        tensor, stage, rank = tensor[past], stage[past], rank[past]
        row = np.arange(len(tensor), dtype=np.int64)
        before = rank > 0
        ordinary = ~self.is_buffer[tensor]
        model.add(
            _at_most_zero(
                "(1c) retained if there",
                [(row, self._s(x, stage, tensor), 1),
                 (row[before], self._s(x, stage[before] - 1, tensor[before]), -1),
                 (row[ordinary], self._at(x.R, stage[ordinary] - 1, self.writer[tensor[ordinary]]), -1)],
                len(row),
            )
        )  # fmt: skip
        self._keep(model, x)

    def _keep(self, model: Model, x: _Blocks) -> None:
        """(1c) for stage n, in which the tensors to be kept are there."""
        kept = np.flatnonzero(self.kept & (self.s_count > 0))
        row = np.arange(len(kept), dtype=np.int64)
        last = np.full(len(kept), self.n - 1, dtype=np.int64)
        ordinary = ~self.is_buffer[kept]
        model.add(
            Linear.rows(
                "kept to the end",
                np.concatenate([row, row[ordinary]]),
                np.concatenate([self._s(x, last, kept), self._at(x.R, last[ordinary], self.writer[kept[ordinary]])]),
                1,
                lower=1,
                num_rows=len(kept),
            )
        )

    def _memory(self, model: Model, x: _Blocks, stage: Int, slot: Int) -> None:
        """(2) and (3) as rows U[k,j] − U[k,j−1] + frees − allocations = 0."""
        here = np.arange(len(slot), dtype=np.int64)  # row of (k, j) in the triangle
        allocated = np.zeros(self.n, dtype=np.int64)
        ordinary = self.tensors[~self.is_buffer[self.tensors]]
        np.add.at(allocated, self.writer[ordinary], self.size[ordinary])
        begun = np.zeros(self.n, dtype=np.int64)  # buffers begin in the stage of their first writer
        buffers = np.flatnonzero(self.is_buffer)
        np.add.at(begun, self.writer[buffers], self.size[buffers])
        amount = allocated[slot] + np.where(stage == slot, begun[slot], 0)
        makes, later = np.flatnonzero(amount > 0), np.flatnonzero(slot > 0)
        owner, rank = expand(self.s_count)
        retained_row = (self.writer[owner] + 1 + rank) * (self.writer[owner] + 2 + rank) // 2
        freed, at = expand(self.free_count)
        free_stage = self.free_op[freed] + at
        inside = self.free_op[freed] < free_stage  # after op l of a stage there is an op l + 1
        free_row = (free_stage * (free_stage + 1) // 2 + self.free_op[freed] + 1)[inside]
        parts = [
            (here, x.U.index, np.ones(len(here))),
            (later, x.U.index[later - 1], np.full(len(later), -1.0)),
            (makes, x.R.index[makes], -amount[makes].astype(np.float64)),
            (retained_row, x.S.index, -self.size[owner].astype(np.float64)),
            (free_row, x.FREE.index[inside], self.size[self.free_tensor[freed[inside]]].astype(np.float64)),
        ]
        model.add(
            Linear.rows("(2)-(3) memory", *(np.concatenate(p) for p in zip(*parts, strict=True)), lower=0.0, upper=0.0,
                        num_rows=len(here))
        )  # fmt: skip

    def _frees(self, model: Model, x: _Blocks) -> None:
        """(7b) 1 − FREE ≤ h and (7c) κ (1 − FREE) ≥ h."""
        rows, columns, coefficients, most, constant = self._hazards(x)
        count = len(x.FREE)
        every = np.arange(count, dtype=np.int64)
        row = np.concatenate([every, rows])
        column = np.concatenate([x.FREE.index, columns])
        model.add(
            Linear.rows("(7b) free if no hazard", row, column, np.concatenate([np.ones(count), coefficients]),
                        lower=1.0 - constant, num_rows=count),
            Linear.rows("(7c) hazard, no free", row, column, np.concatenate([most, coefficients]),
                        upper=most - constant, num_rows=count),
        )  # fmt: skip

    def _hazards(self, x: _Blocks) -> tuple[Int, Int, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """The hazards h of every FREE variable as (row, column, coefficient), its largest value κ, and its constant."""
        freed, at = expand(self.free_count)
        tensor, op = self.free_tensor[freed], self.free_op[freed]
        stage = op + at
        row = np.arange(len(freed), dtype=np.int64)
        onward = np.flatnonzero(stage + 1 < self.n)
        # later uses of the same tensor: uses are sorted, so they follow
        uses = np.searchsorted(
            self.use_tensor * self.n + self.use_op, self.free_tensor * self.n + self.free_op, "right"
        )
        ends = np.searchsorted(self.use_tensor, self.free_tensor, "right")
        which, rank = expand(ends - uses)
        later = self.use_op[uses[which] + rank]
        pair, k = expand(self.n - later)
        late_stage = later[pair] + k
        late_row = self.free_first[which[pair]] + late_stage - self.free_op[which[pair]]
        rows = np.concatenate([row, row[onward], late_row])
        columns = np.concatenate(
            [
                self._at(x.R, stage, op),
                self._s(x, stage[onward] + 1, tensor[onward]),
                self._at(x.R, late_stage, later[pair]),
            ]
        )
        coefficients = np.ones(len(rows))
        coefficients[: len(row)] = -1.0
        constant = 1.0 + (self.kept[tensor] & (stage == self.n - 1))  # S[n,t] = 1
        most = np.bincount(late_row, minlength=len(row)) + (stage + 1 < self.n) + constant
        return rows, columns, coefficients, most, constant

    def _workspace(self, model: Model, x: _Blocks) -> None:
        """(9) where an op has a workspace, or may contribute to a buffer that is gone."""
        workspace = (self.workspace[self.problem.graph.arrays.order] // self.unit).astype(np.float64)
        part, rank = expand(self.part_count)
        tensor, op = self.part_tensor[part], self.part_op[part]
        stage = self.last_writer[tensor] + 1 + rank
        row = np.arange(len(part), dtype=np.int64)
        model.add(
            _at_most_zero(
                "transient contribution",
                [
                    (row, self._at(x.R, stage, op), 1),
                    (row, self._s(x, stage, tensor), -1),
                    (row, x.transient.index, -1),
                ],
                len(part),
            )
        )
        kinds, slots = expand(np.arange(1, self.n + 1, dtype=np.int64))
        writes = np.zeros(self.n, dtype=np.bool_)
        writes[self.part_op] = True
        rows = np.flatnonzero((workspace[slots] > 0) | writes[slots])
        number = np.full(len(slots), -1, dtype=np.int64)
        number[rows] = np.arange(len(rows))
        at = stage * (stage + 1) // 2 + op
        del kinds
        model.add(
            Linear.rows(
                "(9) workspace",
                np.concatenate([number[rows], number[rows], number[at]]),
                np.concatenate([x.U.index[rows], x.R.index[rows], x.transient.index]),
                np.concatenate([np.ones(len(rows)), workspace[slots[rows]], self.size[tensor].astype(np.float64)]),
                upper=float(self.capacity),
                num_rows=len(rows),
            )
        )

    def _limits(self, model: Model, x: _Blocks) -> None:
        order = self.problem.graph.arrays.order
        limits = [self.problem.compute_limits[op] for op in order.tolist()]
        limited = np.array([j for j, c in enumerate(limits) if c is not None and 1 < c < self.n - j], dtype=np.int64)
        row, rank = expand(self.n - limited)
        model.add(
            Linear.rows("limit of computes", row, self._at(x.R, limited[row] + rank, limited[row]), 1,
                        upper=np.array([limits[j] for j in limited.tolist()], dtype=np.float64), num_rows=len(limited))
        )  # fmt: skip

    # -- translation -----------------------------------------------------------------------------------------------

    def encode(self, schedule: Schedule) -> Values:
        problem = self.problem
        model, x = self.statement
        sequence = op_sequence(problem, schedule)
        check_limits(problem, sequence)
        stage = stages_of(problem, sequence) - 1
        values = np.zeros(model.num_vars)
        values[self._at(x.R, stage, problem.graph.arrays.position[sequence])] = 1
        instances = Instances.of(problem, sequence)
        until = np.append(stage, self.n - 1)[instances.last_use]
        owner, rank = expand(np.maximum(0, until - stage[instances.step]))
        values[self._s(x, stage[instances.step][owner] + 1 + rank, instances.tensor[owner])] = 1
        values[x.S.index] = np.maximum(values[x.S.index], model.lower[x.S.index])  # buffers while they are filled
        rows, columns, coefficients, _, constant = self._hazards(x)
        hazards = constant + np.bincount(rows, coefficients * values[columns], minlength=len(x.FREE))
        values[x.FREE.index] = hazards < 0.5
        part, rank = expand(self.part_count)
        at = self.last_writer[self.part_tensor[part]] + 1 + rank
        values[x.transient.index] = np.maximum(
            0, values[self._at(x.R, at, self.part_op[part])] - values[self._s(x, at, self.part_tensor[part])]
        )
        self._fill_memory(model, x, values)
        return values

    def leeway(self, schedule: Schedule, part: Part) -> Leeway:
        """R of the ops and S of their inputs and outputs in the stages of `part`, and what follows from these."""
        model, x = self.statement
        values = self.encode(schedule)
        arrays = self.problem.graph.arrays
        touched = np.zeros(len(arrays.size), dtype=np.bool_)
        for table in (arrays.op_inputs, arrays.op_outputs):
            touched[table.indices[part.ops[table.rows]]] = True
        stage, slot = expand(np.arange(1, self.n + 1, dtype=np.int64))
        owner, rank = expand(self.s_count)
        freed, at = expand(self.free_count)
        written, later = expand(self.part_count)
        free = np.zeros(model.num_vars, dtype=np.bool_)

        def inside(stage: Int, first: int = part.first) -> NDArray[np.bool_]:
            return (first <= stage) & (stage <= part.last)

        free[x.R.index] = inside(stage) & part.ops[arrays.order[slot]]
        free[x.S.index] = inside(self.writer[owner] + 1 + rank) & touched[owner]
        # what is freed in the stage before depends on what is retained from it
        free[x.FREE.index] = inside(self.free_op[freed] + at, part.first - 1) & touched[self.free_tensor[freed]]
        free[x.U.index] = inside(stage, part.first - 1)
        free[x.transient.index] = inside(self.last_writer[self.part_tensor[written]] + 1 + later)
        return Leeway(values, np.where(free, model.lower, values), np.where(free, model.upper, values))

    def _fill_memory(self, model: Model, x: _Blocks, values: Values) -> None:
        """U from (2) and (3), by running sums along each stage."""
        record = next(r for r in model.records if isinstance(r, Linear) and r.name == "(2)-(3) memory")
        other = ~np.isin(record.column, x.U.index)
        change = -np.bincount(
            record.row[other], record.value[other] * values[record.column[other]], minlength=len(record)
        )
        total = np.cumsum(change)
        first = np.arange(self.n) * (np.arange(self.n) + 1) // 2
        offset = np.where(first > 0, total[first - 1], 0)
        values[x.U.index] = total - np.repeat(offset, np.arange(1, self.n + 1))

    def decode(self, values: Values) -> Schedule:
        _, x = self.statement
        runs = np.flatnonzero(values[x.R.index] > 0.5)  # the triangle row by row is the sequence
        _, slot = expand(np.arange(1, self.n + 1, dtype=np.int64))
        sequence = self.problem.graph.arrays.order[slot[runs]]
        return useful_schedule(self.problem, sequence, self.name)


def _at_most_zero(name: str, parts: list[tuple[Int, Int, int]], num_rows: int) -> Linear:
    """Rows ``sum of coefficient * x <= 0`` from (row, column, coefficient) parts."""
    rows, columns, values = zip(*parts, strict=True)
    value = np.repeat(np.array(values, dtype=np.float64), [len(row) for row in rows])
    return Linear.rows(name, np.concatenate(rows), np.concatenate(columns), value, upper=0.0, num_rows=num_rows)
