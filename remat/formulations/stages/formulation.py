"""Stages with liveness per read: Checkmate's MILP without variables that cannot affect the optimum."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Formulation, Part, Values, VariableBounds
from remat.formulations.stages.choices import StageChoices
from remat.formulations.stages.layout import StageLayout, StagesOptions, size_of
from remat.formulations.stages.minizinc import WrittenStages
from remat.modeling import Model, Vars
from remat.modeling.model import Named
from remat.modeling.naming import Labels
from remat.modeling.rows import (
    NONE,
    ONE,
    Term,
    column,
    expand,
    first_of,
    largest_onward,
    pieces,
    rows_from,
    running_values,
    sum_rows,
    sums_without,
)
from remat.modeling.size import ModelSize
from remat.problem import Problem
from remat.problem.op_sequence import (
    Instances,
    MemoryScale,
    check_limits,
    most_computes,
    op_sequence,
    stages_of,
    standing_buffers,
    useful_schedule,
)
from remat.problem.scope import AtMost, Limit, Restriction, Scope
from remat.runtime.arrays import Bool, Int
from remat.schedule import OrderRule, Schedule

#: Rows that are built between two checks of the deadline: about 0.2 s.
ROWS = 1_000_000


class Stages(Formulation):
    r"""Stages with liveness per read: the schedules of `checkmate`, by a tighter and smaller model.

    **Sets.** Ops, stages and tensors as in :class:`remat.formulations.checkmate.Checkmate`: stage k ends with the
    first compute of op k, and every earlier op may run once in it, in the reference order. F(k): tensors that are live
    in stage k for every choice, from their writer on: inputs and outputs of op k; in the last stage tensors to keep.

    **Variables**, each only where it can be useful:

    * R[k,j] ∈ {0,1}: op j < k is recomputed in stage k. Only if a reader of it, or a reader of a reader that is
      recomputed as well, runs for the first time in stage k or later, at a cost within the limit.
    * S[k,t] ∈ {0,1}: tensor t is retained into stage k. Only up to the last stage in which it may be read. If a stage
      neither reads nor computes t, S[k,t] and S[k+1,t] are one variable: t can be freed before the stage as well.
    * L[k,t,u] ∈ [0,1]: t ∉ F(k) is live in stage k after its previous reader, or its writer, up to reader u.
    * U[k,j] ∈ [0, budget]: memory held while op j is recomputed in stage k.

    With readers u_1 < … < u_r of t that may run in stage k, and L[k,t,u_{r+1}] standing for S[k+1,t]::

        (1) minimise  sum_{k,j} C_j R[k,j], and the cost of computing each op once
        (2) L[k,t,u_1] ≤ R[k,p(t)] + S[k,t]
        (3) 1 ≤ R[k,p(t)] + S[k,t]                               for inputs t of op k; in the last stage, t to keep
        (4) L[k,t,u_i] ≥ R[k,u_i]
        (5) L[k,t,u_i] ≥ L[k,t,u_{i+1}]
        (6) sum_{t ∉ F(k)} m_t S[k+1,t] ≤ budget − sum_{t ∈ F(k)} m_t − w_k
        (7) U[k,j] = sum_t m_t · (S[k,t] if j < p(t), 1 if t ∈ F(k), else L[k,t,u] of the first reader u ≥ j)

    (2), (4) and (5) imply Checkmate's (1b) and (1c). In the relaxation, Checkmate's (7c) frees a share of a tensor as
    soon as one of several hazards is a fraction; (4) and (5) hold the tensor as long as any reader runs. (6) is a
    knapsack in S alone, from which solvers derive cover cuts. (7) is stated as differences between the ops of a stage.

    **Presolve.** Before the first stage in which all useful tensors together exceed the budget, no tensor need be
    freed early. Nothing is recomputed before that stage, and every tensor may be retained into it. Rows of (6) and (7)
    that hold with all useful tensors live are left out, and with a row its U. An L that only one reader needs is that
    reader's R.

    **Extensions.** (8) All outputs of a recomputed op with several, and contributions to a freed accumulation buffer,
    are held in that step: over[k,t] ≥ R[k,j] − L[k,t,u_1]. (9) Workspace is added to U where the op runs. Graph
    inputs, tensors to keep, limits of computes and buffers are as in `checkmate`.

    Examples
    --------
    >>> from remat.formulations.checkmate import Checkmate
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(8), 4)
    >>> Stages(problem).build().num_vars, Checkmate(problem).build().num_vars
    (508, 614)
    """

    name = "stages"
    options_type = StagesOptions

    def __init__(self, problem: Problem, options: StagesOptions | None = None) -> None:
        super().__init__(problem)
        if problem.order is not OrderRule.FIXED:
            raise ProblemError("the stages formulation keeps the reference order; ask for order 'fixed'")
        self.options = options or StagesOptions()
        self.most_cost, base = self.options.cost_limit, problem.graph.base_cost
        if self.most_cost is not None and self.most_cost < base:
            raise ProblemError(
                f"the cost limit {self.most_cost:,} is below {base:,}, the cost of computing each op once"
            )
        MemoryScale.of(problem, standing_buffers(problem)[1])  # raises if the budget is below what is always held

    @cached_property
    def layout(self) -> StageLayout:
        """Layout of ops, tensors and stages."""
        return StageLayout(self.problem, self._extra, self.options.ahead, self.deadline)

    @property
    def _extra(self) -> int | None:
        """Largest cost of recomputations; None: no limit."""
        return None if self.most_cost is None else self.most_cost - self.problem.graph.base_cost

    @cached_property
    def choices(self) -> StageChoices:
        """Numbers of the variables."""
        return StageChoices(self.problem, self.layout, self._check, self.apart)

    @property
    def apart(self) -> Bool:
        """Mask of the tensors for which each retention is a choice of its own."""
        return np.zeros(len(self.layout.size), dtype=np.bool_)

    def estimate(self) -> ModelSize:
        return size_of(self.problem, self._extra, self.options.ahead, self.deadline)

    def _check(self) -> None:
        """Check the current deadline, which may have been replaced since the choices were built."""
        self.deadline.check()

    def scope(self) -> Scope:
        most = most_computes(self.problem)
        notes: tuple[Restriction | AtMost, ...] = (Restriction.FILLED_ONCE,) if self.layout.is_buffer.any() else ()
        if not self.options.ahead:
            notes = (*notes, Restriction.NO_AHEAD)
        if self.options.cost_limit is not None:
            notes = (*notes, AtMost(Limit.COST, self.options.cost_limit))
        return Scope(OrderRule.FIXED, True, most, notes)

    def build(self) -> Model:
        return self.statement[0]

    @cached_property
    def statement(self) -> tuple[Model, Named]:
        """Model and its variables."""
        model = Model(self.name)
        R = model.booleans("R", len(self.choices.runs[0]))
        S = model.booleans("S", int(self.choices.retained[2].max(initial=-1)) + 1)
        stage, _, reader, _ = self.choices.reads
        tail = column(S, self._tail)
        own = self._own
        L = model.implied("L", int(own.sum()), 0, 1)
        run = column(R, self.choices.run_number[stage, reader])
        live = run.copy()
        live[own] = L.index
        self._chain(model, own, live, run, tail)
        self.deadline.check()
        self._availability(model, R, S, live)
        self.deadline.check()
        self._memory(model, R, S, live)
        self.deadline.check()
        self._limits(model, R)
        self._minimise(model)
        self._offer_text(model)
        return model, model.named

    def _offer_text(self, model: Model) -> None:
        """Offer the model in MiniZinc."""
        most = self._compute_limits - 1
        model.overrides["minizinc"] = WrittenStages(self.choices, most, model.named, self._completed).model

    @property
    def _compute_limits(self) -> Int:
        """Largest number of computes of each op, by position."""
        limits = [self.layout.n if limit is None else limit for limit in self.problem.compute_limits]
        return np.array(limits)[self.problem.graph.arrays.order]

    def _minimise(self, model: Model) -> None:
        """Set the objective (1)."""
        cost = self.problem.graph.arrays.cost[self.problem.graph.arrays.order][self.choices.runs[1]]
        priced = np.flatnonzero(cost > 0)
        model.minimize(model.named.R.index[priced], cost[priced], self.problem.graph.base_cost)

    @cached_property
    def _tail(self) -> Int:
        """Number of S into the next stage for the last read of a tensor in each; NONE for other reads."""
        stage, tensor, _, last = self.choices.reads
        return np.where(last, self.choices.s_table[stage + 1, tensor], NONE)

    @property
    def _own(self) -> Bool:
        """Mask of the reads that have an L; for the others, R of the reader takes its place."""
        _, _, _, last = self.choices.reads
        return ~last | (self._tail != NONE)

    def _chain(self, model: Model, own: Bool, live: Int, run: Int, tail: Int) -> None:
        """Add (4) and (5): L of a read is at least R of its reader, and at least the next L."""
        _, _, _, last = self.choices.reads
        following = np.where(last, tail, np.roll(live, -1))
        self._add_sums(model, "(4) live while read", run[own], live[own])
        self._add_sums(model, "(5) live before", following[own], live[own])

    def _add_sums(self, model: Model, name: str, left: Int, *right: Int) -> None:
        """Add rows ``left <= sum of right`` in pieces."""
        for part in self.deadline.each(pieces(np.ones_like(left), ROWS), 1):
            model.add(sum_rows(name, left[part], *(each[part] for each in right)))

    def _availability(self, model: Model, R: Vars, S: Vars, live: Int) -> None:
        """Add (2) and (3): the first L of a tensor, and inputs of a stage's last op, are retained or recomputed."""
        at = self.layout
        stage, tensor, _, last = self.choices.reads
        first = first_of(last)
        # carried on without a read in the stage
        on_stage, on_tensor, number = self.choices.retained
        on_stage = on_stage - 1
        carried = (on_stage >= at.first_stage) & ~at.fixed[on_stage, on_tensor]
        carried &= ~self.choices.is_read[on_stage, on_tensor] & (self.choices.s_table[on_stage, on_tensor] != number)
        on_stage, on_tensor = on_stage[carried], on_tensor[carried]
        stage = np.concatenate([stage[first], on_stage])
        tensor = np.concatenate([tensor[first], on_tensor])
        what = np.concatenate([live[first], column(S, self.choices.s_table[on_stage + 1, on_tensor])])
        made, held = self._made(R, stage, tensor), self._held(S, stage, tensor)
        self._add_sums(model, "(2) retained or recomputed", what, made, held, *self._otherwise(model, stage, tensor))
        stage, tensor = np.nonzero(at.fixed)
        needed = (stage >= at.first_stage) & (stage > at.last_writer[tensor])
        stage, tensor = stage[needed], tensor[needed]
        made, held = self._made(R, stage, tensor), self._held(S, stage, tensor)
        there = made, held, *self._otherwise(model, stage, tensor)
        self._add_sums(model, "(3) inputs there", np.full(len(stage), ONE), *there)

    def _otherwise(self, model: Model, stage: Int, tensor: Int) -> tuple[Int, ...]:
        """Return columns of other ways by which tensors are there in stages."""
        del model, stage, tensor
        return ()

    def _made(self, R: Vars, stage: Int, tensor: Int) -> Int:
        """Return the column of the recomputation that writes an ordinary tensor."""
        at = self.layout
        number = self.choices.run_number[stage, np.minimum(at.first_writer[tensor], at.n - 1)]
        return column(R, np.where(at.is_buffer[tensor], NONE, number))

    def _held(self, S: Vars, stage: Int, tensor: Int) -> Int:
        return column(S, self.choices.s_table[stage, tensor])

    def _limits(self, model: Model, R: Vars) -> None:
        limits, op = self._compute_limits, self.choices.runs[1]
        counts = np.bincount(op, minlength=self.layout.n)
        tight = counts >= limits
        number = np.cumsum(tight) - 1
        mine = np.flatnonzero(tight[op])
        runs = (number[op[mine]], R.index[mine], 1)
        model.add(rows_from("limit of computes", runs, num_rows=tight.sum(), upper=limits[tight] - 1))

    def _excess(self, model: Model) -> tuple[int, int]:
        """Return the column of the units by which the capacity rises, and their maximum; NONE for a fixed capacity."""
        del model
        return NONE, 0

    def _first_computes(self, model: Model, S: Vars, excess: int) -> None:
        """Add the rows (6) that can be violated."""
        at = self.layout
        _, onward = self.choices.carried
        held = (at.fixed * at.size).sum(axis=1) + at.workspace
        most = held + ((onward != NONE) * at.size).sum(axis=1)
        stages = np.flatnonzero((most > at.capacity) & (np.arange(at.n) >= at.first_stage))
        row, tensor = np.nonzero(onward[stages] >= 0)
        retained = (row, S.index[onward[stages[row], tensor]], at.size[tensor])
        spare = at.capacity - held[stages]
        more = (np.arange(len(stages)), excess, -1)
        model.add(rows_from("(6) first computes", retained, more, num_rows=len(stages), upper=spare))

    def _memory(self, model: Model, R: Vars, S: Vars, live: Int) -> None:
        """Add (6) to (9)."""
        at = self.layout
        excess, most = self._excess(model)
        self._first_computes(model, S, excess)
        into, onward = self.choices.carried
        tight = np.flatnonzero(self.choices.tight)
        stage, op = self.choices.runs[0][tight], self.choices.runs[1][tight]
        U = model.implied("U", len(tight), 0, at.capacity + most)
        self.deadline.check()
        first_live = np.where(at.fixed, ONE, column(S, onward))
        k, t, reader, last = self.choices.reads
        head = first_of(last)
        first_live[k[head], t[head]] = live[head]
        pk, pt = np.nonzero(at.first_writer < np.arange(at.n)[:, None])
        before, after = column(S, into[pk, pt]), first_live[pk, pt]
        following = np.where(last, column(S, onward[k, t]), np.roll(live, -1))
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
        terms: list[Term] = [(np.arange(len(tight)), U.index, 1)]
        for k_, slot, t_, there, sign in self.deadline.each(changes, 1):
            row = np.searchsorted(keys, k_ * at.n + slot)
            row[row == len(keys)] = -1
            good = (row >= 0) & (there != NONE) & (at.size[t_] > 0)
            if len(keys):
                good &= stage[row] == k_
            terms.append((row[good], there[good], -sign * at.size[t_[good]]))
        on = np.flatnonzero(stage[1:] == stage[:-1]) + 1
        terms.append((on, U.index[on - 1], -1))
        self.deadline.check()
        model.add(rows_from("(7) recomputations", *terms, num_rows=len(tight), lower=0, upper=0))
        self.deadline.check()
        self._spare_outputs(model, tight, first_live, excess)

    def _spare_outputs(self, model: Model, tight: Int, first_live: Int, excess: int) -> None:
        """Add (8) for outputs that are recomputed without a use, and (9) for these and workspace."""
        at, arrays = self.layout, self.problem.graph.arrays
        stage, op = self.choices.runs[0][tight], self.choices.runs[1][tight]
        number = arrays.order[op]
        run, rank = expand(arrays.op_outputs.counts[number])
        tensor = arrays.op_outputs.indices[arrays.op_outputs.indptr[number[run]] + rank]
        mine = self.choices.spare[1][tensor] & (at.size[tensor] > 0) & ~at.fixed[stage[run], tensor]
        run, tensor = run[mine], tensor[mine]
        wanted = first_live[stage[run], tensor]
        choice = np.flatnonzero(wanted != NONE)
        over = model.implied("over", len(choice), 0, 1)
        again, U = model.named.R.index[tight], model.named.U
        model.add(sum_rows("(8) unwanted outputs", again[run[choice]], wanted[choice], over.index))
        always = np.flatnonzero(wanted == NONE)
        extra = np.flatnonzero(at.workspace[op] > 0)
        needs = np.unique(np.concatenate([extra, run])) if excess == NONE else np.arange(len(tight))
        row_of = np.full(len(tight), -1, dtype=np.int64)
        row_of[needs] = np.arange(len(needs))
        model.add(
            rows_from(
                "(9) with workspace",
                (row_of[needs], U.index[needs], 1),
                (row_of[extra], again[extra], at.workspace[op[extra]]),
                (row_of[run[always]], again[run[always]], at.size[tensor[always]]),
                (row_of[run[choice]], over.index, at.size[tensor[choice]]),
                (row_of[needs], excess, -1),
                num_rows=len(needs),
                upper=at.capacity,
            )
        )

    def encode(self, schedule: Schedule) -> Values:
        problem, at = self.problem, self.layout
        _, x = self.statement
        sequence = op_sequence(problem, schedule)
        check_limits(problem, sequence)
        cost = int(problem.graph.arrays.cost[sequence].sum())
        if self.most_cost is not None and cost > self.most_cost:
            raise ProblemError(
                f"the schedule costs {cost:,}, more than the limit of {self.most_cost:,}", "over-the-limit"
            )
        stage = stages_of(problem, sequence) - 1
        op = problem.graph.arrays.position[sequence]
        runs, held = np.zeros(len(x.R), dtype=np.bool_), np.zeros(len(x.S), dtype=np.bool_)
        chosen = np.flatnonzero((op < stage) & (stage >= at.first_stage))
        number = self.choices.run_number[stage[chosen], op[chosen]]
        strange = np.flatnonzero(number == NONE)
        if len(strange):
            step = int(chosen[strange[0]])
            name = problem.graph.op_names[sequence[step]]
            raise ProblemError(f"compute {step} of the schedule recomputes op {name!r} ahead of its use", "ahead")
        runs[number] = True
        instances = Instances.of(problem, sequence)
        until = np.append(stage, at.n - 1)[instances.last_use]
        owner, rank = expand(np.maximum(0, until - stage[instances.step]))
        number = self.choices.s_table[stage[instances.step][owner] + 1 + rank, instances.tensor[owner]]
        held[number[number >= 0]] = True
        return self._completed(runs, held)

    def _completed(self, runs: Bool, held: Bool) -> Values:
        """Return the values of all variables from R and S: L, U and `over` are the least that these allow."""
        model, x = self.statement
        values = np.zeros(model.num_vars)
        values[x.R.index], values[x.S.index] = runs, held
        stage, _, reader, last = self.choices.reads
        live = values[column(x.R, self.choices.run_number[stage, reader])]
        tail = column(x.S, self._tail)
        live = np.maximum(live, np.where(tail >= 0, values[tail], 0))
        values[x.L.index] = largest_onward(live, last)[self._own]
        _, spare = sums_without(model, "(8) unwanted outputs", x.over, values)
        values[x.over.index] = np.maximum(0, spare)
        stages = self.choices.runs[0][self.choices.tight]
        values[x.U.index] = running_values(model, "(7) recomputations", x.U, values, stages)
        return values

    def variable_bounds(self, schedule: Schedule, part: Part) -> VariableBounds:
        """Release R of the ops and S of their inputs and outputs in the stages of `part`, and dependent variables."""
        (model, x), arrays = self.statement, self.problem.graph.arrays
        values = self.encode(schedule)
        touched = part.touched(arrays)
        free = np.zeros(model.num_vars, dtype=np.bool_)
        stage, op = self.choices.runs
        free[x.R.index] = (part.first <= stage) & (stage <= part.last) & part.ops[arrays.order[op]]
        stage_of_s, tensor, number = self.choices.retained
        chosen = np.zeros(len(x.S), dtype=np.bool_)
        chosen[number[(part.first <= stage_of_s) & (stage_of_s <= part.last) & touched[tensor]]] = True
        free[x.S.index] = chosen
        moved = np.append(stage_of_s[chosen[number]], [part.first, part.last])  # one choice may span many stages
        first, last = moved.min() - 1, moved.max()
        free[x.U.index] = ((first <= stage) & (stage <= last))[self.choices.tight]
        stage, _, _, _ = self.choices.reads
        free[x.L.index] = ((first <= stage) & (stage <= last))[self._own]
        free[x.over.index] = True
        return VariableBounds(values, np.where(free, model.lower, values), np.where(free, model.upper, values))

    def retention(self, values: Values) -> Values:
        """Return S by stage and position of the writer of the retained tensor, maybe fractional; shape (n, n)."""
        at, (_, x) = self.layout, self.statement
        number = self.choices.s_table[:-1]
        share = np.where(number == ONE, 1.0, 0.0)
        share[number >= 0] = values[x.S.index[number[number >= 0]]]
        stage, _ = np.indices(number.shape)
        share[(stage > at.first_writer) & (stage <= at.s_until) & (stage < at.first_stage)] = 1  # everything fits
        table = np.zeros((at.n, at.n + 1))
        np.maximum.at(table.T, at.first_writer, share.T)
        return table[:, :-1]

    def labels(self) -> Labels:
        order, choices = self.problem.graph.arrays.order, self.choices
        stage, op = choices.runs
        run = {"stage": stage, "op": self.ops_named(order[op])}
        tight = np.flatnonzero(choices.tight)
        use = {"stage": stage[tight], "op": self.ops_named(order[op[tight]])}
        stage, tensor, number = choices.retained
        _, first = np.unique(number, return_index=True)  # the first of the stages that share a variable
        retained = {"stage": stage[first], "tensor": self.tensors_named(tensor[first])}
        stage, tensor, reader, _ = choices.reads
        own = self._own
        live = {
            "stage": stage[own], "tensor": self.tensors_named(tensor[own]), "reader": self.ops_named(order[reader[own]])
        }  # fmt: skip
        return {"R": run, "S": retained, "L": live, "U": use}

    def decode(self, values: Values) -> Schedule:
        _, x = self.statement
        table = np.eye(self.layout.n, dtype=np.bool_)
        table[self.choices.runs] = values[x.R.index] > 0.5
        _, op = np.nonzero(table)
        return useful_schedule(self.problem, self.problem.graph.arrays.order[op], self.name)
