"""Stages with liveness per read: Checkmate's question, stated with what can be of use only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from remat.errors import ProblemError
from remat.formulations.base import Formulation, Scope, Values
from remat.formulations.retention_layout import expand
from remat.formulations.sequence import Instances, check_limits, op_sequence, stages_of, useful_schedule
from remat.formulations.stage_layout import StageLayout
from remat.modeling import Linear, Model, Vars
from remat.problem import Problem
from remat.schedule import OrderRule, Schedule

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

#: In place of a column number: nothing; always one.
NONE, ONE = -1, -2


@dataclass(frozen=True)
class StagesOptions:
    """Options of :class:`Stages`.

    Attributes
    ----------
    cost_limit : int or None
        State only schedules that cost at most this, such as the cost of one that is known. Recomputations that no
        such schedule has are left out of the model. None: no limit.
    """

    cost_limit: int | None = None
    ahead: bool = True

    def __post_init__(self) -> None:
        limit = self.cost_limit
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise ProblemError(f"the cost limit must be a whole number from 0, not {limit!r}")


@dataclass(frozen=True)
class _Blocks:
    """The blocks of variables, in the order in which they are made."""

    R: Vars
    S: Vars
    L: Vars
    U: Vars
    over: Vars


class Stages(Formulation):
    """TODO."""

    name = "stages"
    options_type = StagesOptions

    def __init__(self, problem: Problem, options: StagesOptions | None = None) -> None:
        super().__init__(problem)
        if problem.order is not OrderRule.FIXED:
            raise ProblemError("the stages formulation keeps the reference order; ask for order 'fixed'")
        self.options = options or StagesOptions()
        limit = self.options.cost_limit
        extra = None if limit is None else limit - problem.graph.base_cost
        if extra is not None and extra < 0:
            base = problem.graph.base_cost
            raise ProblemError(f"the cost limit {limit:,} is below {base:,}, the cost of computing each op once")
        self.layout = StageLayout.of(problem, extra, self.options.ahead)

    def scope(self) -> Scope:
        limits = [limit for limit in self.problem.compute_limits if limit is not None]
        most = max(limits) if len(limits) == self.layout.n else None
        notes = ("each accumulation buffer filled once",) if self.layout.is_buffer.any() else ()
        if self.options.cost_limit is not None:
            notes = (*notes, f"cost at most {self.options.cost_limit:,}")
        return Scope(OrderRule.FIXED, True, most, notes)

    def build(self) -> Model:
        return self.statement[0]

    # -- what there is -----------------------------------------------------------------------------------------------

    @cached_property
    def runs(self) -> tuple[Int, Int]:
        """(stage, op) of every recomputation that is a choice, stage by stage."""
        stage, op = np.nonzero(self.layout.may_run)
        return stage, op

    @cached_property
    def run_number(self) -> Int:
        """[stage, op]: number of the recomputation in `runs`, or NONE; shape (stages, ops)."""
        table = np.full((self.layout.n, self.layout.n), NONE, dtype=np.int64)
        table[self.runs] = np.arange(len(self.runs[0]))
        return table

    @cached_property
    def retained(self) -> tuple[Int, Int, Int]:
        """(stage, tensor, number) of every retention that is a choice, tensor by tensor.

        What is neither read nor made in a stage may as well be gone before it: retained into such a stage and out of
        it are one choice, and have one number.
        """
        at = self.layout
        tensor, rank = expand(np.maximum(0, at.s_until - at.s_from + 1))
        stage = at.s_from[tensor] + rank
        writer = np.where(at.is_buffer[tensor], stage, at.first_writer[tensor])  # no buffer is made anew
        idle = ~(at.fixed | self._is_read)[stage - 1, tensor] & ~at.may_run[stage - 1, writer]
        return stage, tensor, np.cumsum((rank == 0) | ~idle) - 1

    @cached_property
    def _s_table(self) -> Int:
        """[stage, tensor]: number of S in `retained`; NONE: no such choice, ONE: it must be; shape (n + 1, tensors)."""
        at = self.layout
        table = np.full((at.n + 1, len(at.size)), NONE, dtype=np.int64)
        stage, tensor = np.indices(table.shape)
        table[at.is_buffer[tensor] & (stage > at.first_writer[tensor]) & (stage <= at.last_writer[tensor])] = ONE
        stage, tensor, number = self.retained
        table[stage, tensor] = number
        return table

    def _s(self, stage: Int, tensor: Int) -> Int:
        return self._s_table[stage, tensor]

    @cached_property
    def reads(self) -> tuple[Int, Int, Int, Bool]:
        """(stage, tensor, reader) of reads by recomputations of what is not live anyway, and whether each is the last.

        By stage, then tensor, then reader.
        """
        at = self.layout
        stage, op = self.runs
        counts = np.bincount(at.use_op, minlength=at.n)
        by_op = np.argsort(at.use_op, kind="stable")
        run, rank = expand(counts[op])
        use = by_op[(np.cumsum(counts) - counts)[op[run]] + rank]
        stage, reader, tensor = stage[run], op[run], at.use_tensor[use]
        loose = ~at.fixed[stage, tensor]
        stage, reader, tensor = stage[loose], reader[loose], tensor[loose]
        by = np.lexsort((reader, tensor, stage))
        stage, reader, tensor = stage[by], reader[by], tensor[by]
        last = np.append((stage[1:] != stage[:-1]) | (tensor[1:] != tensor[:-1]), True)[: len(stage)]
        return stage, tensor, reader, last

    # -- variables ---------------------------------------------------------------------------------------------------

    @cached_property
    def statement(self) -> tuple[Model, _Blocks]:
        """The model, and its variables."""
        at = self.layout
        model = Model(self.name)
        R = model.booleans("R", len(self.runs[0]))
        S = model.booleans("S", int(self.retained[2].max(initial=-1)) + 1)
        stage, tensor, reader, last = self.reads
        tail = self._column(S, self._s(np.where(last, stage + 1, at.n), tensor))
        own = ~last | (tail != NONE)  # otherwise live as long as the read is there, R itself
        L = model.implied("L", int(own.sum()), 0, 1)
        column = self._column(R, self.run_number[stage, reader])
        live = column.copy()
        live[own] = L.index
        self._chain(model, own, live, column, tail)
        self._availability(model, R, S, live)
        U, over = self._memory(model, R, S, live)
        self._limits(model, R)
        cost = self.problem.graph.arrays.cost[self.problem.graph.arrays.order][self.runs[1]]
        priced = np.flatnonzero(cost > 0)
        model.minimize(R.index[priced], cost[priced], self.problem.graph.base_cost)  # (1)
        return model, _Blocks(R, S, L, U, over)

    @staticmethod
    def _column(block: Vars, number: Int) -> Int:
        """Columns of a block by number within it; NONE and ONE stay."""
        return np.where(number >= 0, block.index[0] + number, number) if len(block) else number

    # -- constraints -------------------------------------------------------------------------------------------------

    def _chain(self, model: Model, own: Bool, live: Int, column: Int, tail: Int) -> None:
        """(4) L of a read is at least R of its reader, and at least what follows."""
        _, _, _, last = self.reads
        mine = np.flatnonzero(own)
        row = np.arange(len(mine), dtype=np.int64)
        model.add(_at_most("(4) live while read", [(row, column[mine], 1), (row, live[mine], -1)], len(mine)))
        following = np.where(last[mine], tail[mine], live[np.minimum(mine + 1, len(live) - 1)])
        model.add(_at_most("(5) live before", [(row, following, 1), (row, live[mine], -1)], len(mine)))

    def _availability(self, model: Model, R: Vars, S: Vars, live: Int) -> None:
        """(2) what is live first was retained or is recomputed, and (3) what the last op of a stage reads too."""
        at = self.layout
        stage, tensor, _, last = self.reads
        first = np.append(True, last[:-1])[: len(last)]
        # carried on without a read in the stage
        on_stage, on_tensor, number = self.retained
        on_stage = on_stage - 1
        carried = (on_stage >= at.first_stage) & ~at.fixed[on_stage, on_tensor]
        carried &= ~self._is_read[on_stage, on_tensor] & (self._s(on_stage, on_tensor) != number)
        on_stage, on_tensor = on_stage[carried], on_tensor[carried]
        stage = np.concatenate([stage[first], on_stage])
        tensor = np.concatenate([tensor[first], on_tensor])
        what = np.concatenate([live[first], self._column(S, self._s(on_stage + 1, on_tensor))])
        row = np.arange(len(what), dtype=np.int64)
        model.add(
            _at_most(
                "(2) retained or recomputed",
                [(row, what, 1), (row, self._made(R, stage, tensor), -1), (row, self._held(S, stage, tensor), -1)],
                len(what),
            )
        )
        stage, tensor = np.nonzero(at.fixed)
        needed = (stage >= at.first_stage) & (stage > at.last_writer[tensor])
        stage, tensor = stage[needed], tensor[needed]
        row = np.arange(len(stage), dtype=np.int64)
        model.add(
            _at_most(
                "(3) inputs there",
                [(row, self._made(R, stage, tensor), -1), (row, self._held(S, stage, tensor), -1)],
                len(stage),
                -1.0,
            )
        )

    @cached_property
    def _is_read(self) -> Bool:
        """[stage, tensor]: whether some recomputation there may read it."""
        table = np.zeros((self.layout.n, len(self.layout.size)), dtype=np.bool_)
        table[self.reads[0], self.reads[1]] = True
        return table

    def _made(self, R: Vars, stage: Int, tensor: Int) -> Int:
        """Column of the recomputation that makes an ordinary tensor anew."""
        at = self.layout
        number = self.run_number[stage, np.minimum(at.first_writer[tensor], at.n - 1)]
        return self._column(R, np.where(at.is_buffer[tensor], NONE, number))

    def _held(self, S: Vars, stage: Int, tensor: Int) -> Int:
        return self._column(S, self._s(stage, tensor))

    def _limits(self, model: Model, R: Vars) -> None:
        order = self.problem.graph.arrays.order
        limits = np.array([self.layout.n if c is None else c for c in self.problem.compute_limits])[order]
        op = self.runs[1]
        counts = np.bincount(op, minlength=self.layout.n)
        tight = counts >= limits
        number = np.cumsum(tight) - 1
        mine = np.flatnonzero(tight[op])
        model.add(
            Linear.rows("limit of computes", number[op[mine]], R.index[mine], 1, upper=limits[tight] - 1.0,
                        num_rows=int(tight.sum()))
        )  # fmt: skip

    # -- memory ------------------------------------------------------------------------------------------------------

    @cached_property
    def _tables(self) -> tuple[Int, Int]:
        """[stage, tensor]: the number of S into the stage, and of S into the next one."""
        at = self.layout
        into, onward = self._s_table[:-1].copy(), self._s_table[1:].copy()
        stage, _ = np.indices(into.shape)
        into[stage <= at.first_writer] = NONE
        onward[(stage < at.first_writer) | at.fixed] = NONE
        return into, onward

    @cached_property
    def _tight(self) -> Bool:
        """Which of `runs` could come to hold more than the budget, if everything of use were there."""
        at = self.layout
        into, onward = self._tables
        stage, op = self.runs
        load = np.zeros((at.n, at.n + 1), dtype=np.int64)
        k, t = np.nonzero(at.first_writer < np.arange(at.n)[:, None])
        before = (into[k, t] != NONE) * at.size[t]
        after = (at.fixed[k, t] | self._is_read[k, t] | (onward[k, t] != NONE)) * at.size[t]
        np.add.at(load[:, 0], k, before)
        np.add.at(load, (k, at.first_writer[t]), after - before)
        k, t, reader, last = self.reads
        gone = last & (onward[k, t] == NONE)
        np.subtract.at(load, (k[gone], reader[gone] + 1), at.size[t[gone]])
        most = np.cumsum(load, axis=1)[stage, op] + at.workspace[op] + self._spare[0][op]
        return most > at.capacity

    @cached_property
    def _spare(self) -> tuple[Int, Bool]:
        """Bytes of outputs that may be made though nobody wants them, by op; and which tensors these are."""
        at, arrays = self.layout, self.problem.graph.arrays
        several = (arrays.op_outputs.counts > 1)[arrays.producers.indices]
        some = at.is_buffer.copy()
        some[arrays.producers.rows[several]] = True
        spare = np.zeros(at.n, dtype=np.int64)
        mine = some[arrays.op_outputs.indices]
        np.add.at(spare, arrays.position[arrays.op_outputs.rows[mine]], at.size[arrays.op_outputs.indices[mine]])
        return spare, some

    def _memory(self, model: Model, R: Vars, S: Vars, live: Int) -> tuple[Vars, Vars]:
        """(6) at the first compute of each stage, (7) and (8) at recomputations."""
        at = self.layout
        into, onward = self._tables
        # (6)
        held = (at.fixed * at.size).sum(axis=1) + at.workspace
        most = held + ((onward != NONE) * at.size).sum(axis=1)
        stages = np.flatnonzero((most > at.capacity) & (np.arange(at.n) >= at.first_stage))
        row, tensor = np.nonzero(onward[stages] >= 0)
        model.add(
            Linear.rows("(6) first computes", row, S.index[onward[stages[row], tensor]], at.size[tensor],
                        upper=(at.capacity - held[stages]).astype(np.float64), num_rows=len(stages))
        )  # fmt: skip
        # (7)
        tight = np.flatnonzero(self._tight)
        stage, op = self.runs[0][tight], self.runs[1][tight]
        U = model.implied("U", len(tight), 0, at.capacity)
        first_live = np.where(at.fixed, ONE, self._column(S, onward))
        k, t, reader, last = self.reads
        head = np.append(True, last[:-1])[: len(last)]
        first_live[k[head], t[head]] = live[head]
        pk, pt = np.nonzero(at.first_writer < np.arange(at.n)[:, None])
        before, after = self._column(S, into[pk, pt]), first_live[pk, pt]
        following = np.where(last, self._column(S, onward[k, t]), live[np.minimum(np.arange(len(k)) + 1, len(k) - 1)])
        writer = at.first_writer[pt]
        zero = np.zeros_like(writer)
        changes = [  # (stage, slot from which it holds, tensor, column, sign)
            (pk, zero, pt, before, 1),
            (pk, writer, pt, before, -1),
            (pk, writer, pt, after, 1),
            (k, reader + 1, t, live, -1),
            (k, reader + 1, t, following, 1),
        ]
        keys = stage * at.n + op
        rows, columns, values = [np.arange(len(tight))], [U.index], [np.ones(len(tight))]
        constant = np.zeros(len(tight))
        for k_, slot, t_, column, sign in changes:
            row = np.searchsorted(keys, k_ * at.n + slot)
            row[row == len(keys)] = -1
            good = (row >= 0) & (column != NONE) & (at.size[t_] > 0)
            if len(keys):
                good &= stage[row] == k_
            row, column, amount = row[good], column[good], sign * at.size[t_[good]].astype(np.float64)
            np.add.at(constant, row[column == ONE], amount[column == ONE])
            rows.append(row[column >= 0])
            columns.append(column[column >= 0])
            values.append(-amount[column >= 0])
        on = np.flatnonzero(stage[1:] == stage[:-1]) + 1
        rows.append(on)
        columns.append(U.index[on - 1])
        values.append(-np.ones(len(on)))
        model.add(
            Linear.rows("(7) recomputations", np.concatenate(rows), np.concatenate(columns), np.concatenate(values),
                        lower=constant, upper=constant, num_rows=len(tight))
        )  # fmt: skip
        over = self._spare_outputs(model, R, U, tight, first_live)
        return U, over

    def _spare_outputs(self, model: Model, R: Vars, U: Vars, tight: Int, first_live: Int) -> Vars:
        """(8) workspace, and outputs that come along although nobody wants them."""
        at, arrays = self.layout, self.problem.graph.arrays
        stage, op = self.runs[0][tight], self.runs[1][tight]
        number = arrays.order[op]
        run, rank = expand(arrays.op_outputs.counts[number])
        tensor = arrays.op_outputs.indices[arrays.op_outputs.indptr[number[run]] + rank]
        mine = self._spare[1][tensor] & (at.size[tensor] > 0) & ~at.fixed[stage[run], tensor]
        run, tensor = run[mine], tensor[mine]
        wanted = first_live[stage[run], tensor]
        choice = np.flatnonzero(wanted != NONE)
        over = model.implied("over", len(choice), 0, 1)
        row = np.arange(len(choice), dtype=np.int64)
        column = R.index[tight]
        model.add(
            _at_most(
                "(8) unwanted outputs",
                [(row, column[run[choice]], 1), (row, wanted[choice], -1), (row, over.index, -1)],
                len(choice),
            )
        )
        always = np.flatnonzero(wanted == NONE)
        extra = np.flatnonzero(at.workspace[op] > 0)
        needs = np.unique(np.concatenate([extra, run]))
        row_of = np.full(len(tight), -1, dtype=np.int64)
        row_of[needs] = np.arange(len(needs))
        model.add(
            Linear.rows(
                "(9) with workspace",
                row_of[np.concatenate([needs, extra, run[always], run[choice]])],
                np.concatenate([U.index[needs], column[extra], column[run[always]], over.index]),
                np.concatenate(
                    [np.ones(len(needs)), at.workspace[op[extra]], at.size[tensor[always]], at.size[tensor[choice]]]
                ),
                upper=float(at.capacity),
                num_rows=len(needs),
            )
        )
        return over

    # -- translation -------------------------------------------------------------------------------------------------

    def encode(self, schedule: Schedule) -> Values:
        problem, at = self.problem, self.layout
        model, x = self.statement
        sequence = op_sequence(problem, schedule)
        check_limits(problem, sequence)
        cost = int(problem.graph.arrays.cost[sequence].sum())
        if self.options.cost_limit is not None and cost > self.options.cost_limit:
            raise ProblemError(f"the schedule costs {cost:,}, more than the limit of {self.options.cost_limit:,}")
        stage = stages_of(problem, sequence) - 1
        op = problem.graph.arrays.position[sequence]
        values = np.zeros(model.num_vars)
        chosen = np.flatnonzero((op < stage) & (stage >= at.first_stage))
        number = self.run_number[stage[chosen], op[chosen]]
        strange = np.flatnonzero(number == NONE)
        if len(strange):
            step = int(chosen[strange[0]])
            name = problem.graph.op_names[sequence[step]]
            raise ProblemError(f"compute {step} of the schedule recomputes op {name!r} ahead of its use")
        values[x.R.index[number]] = 1
        instances = Instances.of(problem, sequence)
        until = np.append(stage, at.n - 1)[instances.last_use]
        owner, rank = expand(np.maximum(0, until - stage[instances.step]))
        number = self._s(stage[instances.step][owner] + 1 + rank, instances.tensor[owner])
        values[x.S.index[number[number >= 0]]] = 1
        self._fill(model, x, values)
        return values

    def _fill(self, model: Model, x: _Blocks, values: Values) -> None:
        """The values of L, U and `over` that go with R and S: the least."""
        stage, tensor, reader, last = self.reads
        held = values[self._column(x.R, self.run_number[stage, reader])]
        tail = self._column(x.S, self._s(np.where(last, stage + 1, self.layout.n), tensor))
        held = np.maximum(held, np.where(tail >= 0, values[tail], 0))
        group = np.cumsum(last[::-1])  # from the end, as what follows decides
        held = (np.maximum.accumulate(held[::-1] + 2 * group) - 2 * group)[::-1]
        values[x.L.index] = held[~last | (tail != NONE)]
        _, spare = _without(model, "(8) unwanted outputs", x.over, values)
        values[x.over.index] = np.maximum(0, spare)
        lower, other = _without(model, "(7) recomputations", x.U, values)
        total = np.cumsum(lower - other)
        begins = self.runs[0][self._tight]
        first = np.searchsorted(begins, begins)
        values[x.U.index] = total - np.where(first > 0, total[first - 1], 0)

    def retention(self, values: Values) -> Values:
        """S by stage and position of the op whose output is retained, fractional where the values are; shape (n, n)."""
        at, (_, x) = self.layout, self.statement
        number = self._s_table[:-1]
        share = np.where(number == ONE, 1.0, 0.0)
        share[number >= 0] = values[x.S.index[number[number >= 0]]]
        stage, _ = np.indices(number.shape)
        share[(stage > at.first_writer) & (stage <= at.s_until) & (stage < at.first_stage)] = 1  # everything fits
        table = np.zeros((at.n, at.n + 1))
        np.maximum.at(table.T, at.first_writer, share.T)
        return table[:, :-1]

    def decode(self, values: Values) -> Schedule:
        _, x = self.statement
        table = np.eye(self.layout.n, dtype=np.bool_)
        table[self.runs] = values[x.R.index] > 0.5
        _, op = np.nonzero(table)
        return useful_schedule(self.problem, self.problem.graph.arrays.order[op], self.name)


def _at_most(name: str, parts: list[tuple[Int, Int, int]], num_rows: int, upper: float = 0.0) -> Linear:
    """Rows ``sum of coefficient * x <= upper`` from (row, column, coefficient) parts; columns may be NONE or ONE."""
    limit = np.full(num_rows, upper)
    rows, columns, values = [], [], []
    for row, column, coefficient in parts:
        np.subtract.at(limit, row[column == ONE], coefficient)
        there = column >= 0
        rows.append(row[there])
        columns.append(column[there])
        values.append(np.full(int(there.sum()), float(coefficient)))
    return Linear.rows(
        name, np.concatenate(rows), np.concatenate(columns), np.concatenate(values), upper=limit, num_rows=num_rows
    )


def _without(model: Model, name: str, block: Vars, values: Values) -> tuple[Values, Values]:
    """Lower bounds of a record's rows, and what they sum up to without a block; none if there is no such record."""
    for record in model.records:
        if isinstance(record, Linear) and record.name == name:
            other = ~np.isin(record.column, block.index)
            terms = record.value[other] * values[record.column[other]]
            return record.lower, np.bincount(record.row[other], terms, len(record)).astype(np.float64)
    return np.zeros(0), np.zeros(0)
