"""Checkmate's mixed integer programme: recompute, retain and free, stage by stage."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Formulation, Part, Values, VariableBounds
from remat.formulations.checkmate.layout import CheckmateLayout, CheckmateOptions
from remat.formulations.checkmate.minizinc import WrittenStages
from remat.graphs.in_place import most_pairs
from remat.modeling import Model, Vars
from remat.modeling.model import Named
from remat.modeling.naming import Labels
from remat.modeling.rows import NONE, column, expand, rows_from, running_values, sum_rows, sums_without
from remat.modeling.size import ModelSize
from remat.problem import Problem
from remat.problem.op_sequence import Instances, check_limits, most_computes, op_sequence, stages_of, useful_schedule
from remat.problem.scope import AtMost, Limit, Restriction, Scope
from remat.runtime.arrays import Bool, Int
from remat.schedule import OrderRule, Schedule


class Checkmate(Formulation):
    r"""Checkmate's MILP (Jain et al., MLSys 2020, eq. 9), by default with frontier-advancing stages.

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

    **Free stages** (`CheckmateOptions.frontier` = false): T stages k, in each of which any op may run once, in the
    reference order; R[k,j] and S[k,t] exist for all j and k > 0. First computes have no order. In place of (8a)-(8c)::

        (1d) nothing is retained into stage 0
        (1e) sum_k R[k,j] ≥ 1                                     for every op j whose outputs are never read

    FREE[k,t,p(t)] frees a result that is never used. For ops with one output it is 0 in an optimum (§4.8), and left
    out. Ops with several outputs have it, since a recomputation for one output regenerates all of them. A tensor that
    an op reads twice is one dependency, so it is freed once.

    **Extensions.** Tensors to keep: S[n,t] = 1. Graph inputs are part of M_held. Limits of computes:
    sum_k R[k,j] ≤ C_j. An accumulation buffer is filled once: S[k,t] = 1 from its first writer's stage to its last
    one's, S[k,t] ≤ S[k−1,t] afterwards, and its readers need S[k,t]. A writer that runs again after the buffer is freed
    holds its bytes for that one step. Outputs t that op l may write in place of inputs s: PLACE[k,t,s,l] ∈ [0, 1]::

        (10) sum_t PLACE[k,t,s,l] ≤ FREE[k,s,l];   sum_s PLACE[k,t,s,l] ≤ 1
        (9)  U[k,l] + w_l R[k,l] − sum_{t,s} m_t PLACE[k,t,s,l] ≤ budget, with the bound of U[k,l] raised accordingly

    Sizes are divided by their greatest common divisor, with the budget rounded down.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> print(Checkmate(Problem(unit_chain(8), 4)).build())  # doctest: +ELLIPSIS
    model checkmate: ...
    """

    name = "checkmate"
    options_type = CheckmateOptions
    counts_in_place = True

    def __init__(self, problem: Problem, options: CheckmateOptions | None = None) -> None:
        super().__init__(problem)
        self.options = options or CheckmateOptions()
        if self.options.frontier and problem.order is not OrderRule.FIXED:
            raise ProblemError(
                "the checkmate formulation with frontier-advancing stages keeps the reference order; ask for order "
                "'fixed', or for the option frontier = false",
                "order-rule",
            )
        if not self.options.frontier and problem.order is not OrderRule.FREE:
            fault = "without frontier-advancing stages first computes have no order; ask for order 'free'"
            raise ProblemError(fault, "order-rule")
        n = len(problem.graph.ops)
        self.layout = CheckmateLayout(problem, None if self.options.frontier else self.options.stages or n)
        buffers = np.flatnonzero(self.layout.is_buffer)
        if len(buffers) and not self.options.frontier:
            name = problem.graph.tensors[buffers[0]].name
            raise ProblemError(
                f"without frontier-advancing stages accumulation buffer {name!r} cannot be stated", "buffer"
            )

    def scope(self) -> Scope:
        most = most_computes(self.problem)
        if not self.layout.frontier:
            return Scope(OrderRule.FREE, False, most, (AtMost(Limit.STAGES, self.layout.T),))
        notes = (Restriction.FILLED_ONCE,) if self.layout.is_buffer.any() else ()
        return Scope(OrderRule.FIXED, True, most, notes)

    def estimate(self) -> ModelSize:
        return self.layout.size_of_model()

    def build(self) -> Model:
        return self.statement[0]

    @cached_property
    def statement(self) -> tuple[Model, Named]:
        """Model and its variables."""
        model = Model(self.name)
        at, arrays = self.layout, self.problem.graph.arrays
        stage, slot = at.runs()
        once = self.problem.once[arrays.order]
        self.deadline.check()
        first = (stage == slot) & at.frontier  # first computes are not choices
        stage_of_s, owner = at.retained()
        filling = at.is_buffer[owner] & (stage_of_s <= at.last_writer[owner])
        free_stage, freed = at.frees()
        self.deadline.check()
        forever = at.kept[at.free_tensor[freed]] & (free_stage == at.T - 1)
        model.booleans("R", len(slot), first, first | ~once[slot] | (not at.frontier))  # (8a), (8c)
        model.booleans("S", len(owner), filling)  # (8b)
        model.booleans("FREE", len(freed), 0, ~forever)  # (7a)
        most = np.array([at.capacity], dtype=np.int64) + at.place_most[slot]
        model.implied("U", len(slot), 0, most if at.place_most.any() else at.capacity)  # (9)
        model.implied("transient", int(at.part_count.sum()), 0, 1)
        model.implied("PLACE", int(at.place_count.sum()), 0, 1)
        x = model.named
        self._dependencies(model, x)
        self.deadline.check()
        self._memory(model, x, stage, slot)
        self.deadline.check()
        self._frees(model, x)
        self.deadline.check()
        self._workspace(model, x)
        self._places(model, x)
        self._limits(model, x)
        self.deadline.check()
        cost = arrays.cost[arrays.order][slot]
        priced = np.flatnonzero(~first & (cost > 0))
        model.minimize(x.R[priced], cost[priced], self.problem.graph.base_cost if at.frontier else 0)  # (1a)
        if at.frontier:
            model.overrides["minizinc"] = WrittenStages(self.problem, at, x, self._completed).model
        return model, x

    def _at(self, x: Vars, stage: Int, op: Int) -> Int:
        """Return R[stage, op] or U[stage, op]."""
        return x.index[self.layout.slot(stage, op)]

    def _s(self, x: Named, stage: Int, tensor: Int) -> Int:
        """Return S[stage, tensor], or NONE."""
        return column(x.S, self.layout.retention(stage, tensor))

    def _made(self, x: Named, stage: Int, tensor: Int) -> Int:
        """Return R of the op that writes an ordinary tensor in a stage; NONE for buffers."""
        return np.where(self.layout.is_buffer[tensor], NONE, self._at(x.R, stage, self.layout.writer[tensor]))

    def _dependencies(self, model: Model, x: Named) -> None:
        at = self.layout
        use, rank = expand(at.T - at.begin(at.use_op))
        tensor, reader = at.use_tensor[use], at.use_op[use]
        stage = at.begin(reader) + rank
        run, held, made = self._at(x.R, stage, reader), self._s(x, stage, tensor), self._made(x, stage, tensor)
        model.add(sum_rows("(1b) inputs there", run, held, made))  # (1d): nothing is retained into the first stage
        self.deadline.check()
        stage, tensor = at.retained()
        past = (stage > at.last_writer[tensor] + 1) | (~at.is_buffer[tensor])
        tensor, stage = tensor[past], stage[past]
        before, made = self._s(x, stage - 1, tensor), self._made(x, stage - 1, tensor)
        model.add(sum_rows("(1c) retained if there", self._s(x, stage, tensor), before, made))
        self._goals(model, x)

    def _goals(self, model: Model, x: Named) -> None:
        """Add (1c) for stage T, in which the tensors to keep are live; with free stages also (1e)."""
        at, arrays = self.layout, self.problem.graph.arrays
        kept = np.flatnonzero(at.kept & ((at.s_count > 0) | (not at.frontier)))
        row = np.arange(len(kept), dtype=np.int64)
        last = np.full(len(kept), at.T - 1, dtype=np.int64)
        held, made = self._s(x, last, kept), self._made(x, last, kept)
        model.add(rows_from("kept to the end", (row, held, 1), (row, made, 1), num_rows=len(kept), lower=1))
        if not at.frontier:  # (1b) already implies the computes of ops whose outputs are read
            ends = np.ones(at.n, dtype=np.bool_)
            ends[arrays.position[arrays.edge_producer]] = False
            op, stage = (a.ravel() for a in np.meshgrid(np.flatnonzero(ends), np.arange(at.T), indexing="ij"))
            goal = np.repeat(np.arange(ends.sum()), at.T)
            model.add(rows_from("(1e) computed", (goal, self._at(x.R, stage, op), 1), num_rows=ends.sum(), lower=1))

    def _memory(self, model: Model, x: Named, stage: Int, slot: Int) -> None:
        """Add (2) and (3) as rows U[k,j] − U[k,j−1] + frees − allocations = 0."""
        at = self.layout
        here = np.arange(len(slot), dtype=np.int64)  # row of (k, j)
        allocated = np.zeros(at.n, dtype=np.int64)
        ordinary = at.tensors[~at.is_buffer[at.tensors]]
        np.add.at(allocated, at.writer[ordinary], at.size[ordinary])
        begun = np.zeros(at.n, dtype=np.int64)  # buffers are allocated in the stage of their first writer
        buffers = np.flatnonzero(at.is_buffer)
        np.add.at(begun, at.writer[buffers], at.size[buffers])
        amount = allocated[slot] + np.where(stage == slot, begun[slot], 0)
        makes, later = np.flatnonzero(amount > 0), np.flatnonzero(slot > 0)
        retained_stage, owner = at.retained()
        free_stage, freed = at.frees()
        inside = at.free_op[freed] + 1 < at.width[free_stage]  # after op l of a stage there is an op l + 1
        free_row = at.slot(free_stage, at.free_op[freed] + 1)[inside]
        model.add(
            rows_from(
                "(2)-(3) memory",
                (here, x.U.index, 1),
                (later, x.U.index[later - 1], -1),
                (makes, x.R.index[makes], -amount[makes]),
                (at.first_slot[retained_stage], x.S.index, -at.size[owner]),
                (free_row, x.FREE.index[inside], at.size[at.free_tensor[freed[inside]]]),
                num_rows=len(here),
                lower=0,
                upper=0,
            )
        )

    def _frees(self, model: Model, x: Named) -> None:
        """Add (7b) 1 − FREE ≤ h and (7c) κ (1 − FREE) ≥ h, for the hazards h of every FREE, κ its largest value."""
        at = self.layout
        stage, freed = at.frees()
        tensor, op = at.free_tensor[freed], at.free_op[freed]
        row = np.arange(len(freed), dtype=np.int64)
        onward = np.flatnonzero(stage + 1 < at.T)
        # later uses of the same tensor: uses are sorted, so they follow
        uses = np.searchsorted(at.use_tensor * at.n + at.use_op, at.free_tensor * at.n + at.free_op, "right")
        ends = np.searchsorted(at.use_tensor, at.free_tensor, "right")
        which, rank = expand(ends - uses)
        self.deadline.check()
        later = at.use_op[uses[which] + rank]
        pair, rank = expand(at.T - at.begin(later))
        late_stage = at.begin(later)[pair] + rank
        late_row = at.free_first[which[pair]] + late_stage - at.begin(at.free_op[which[pair]])
        self.deadline.check()
        constant = 1.0 + (at.kept[tensor] & (stage == at.T - 1))  # S[T,t] = 1
        most = np.bincount(late_row, minlength=len(row)) + (stage + 1 < at.T) + constant
        hazards = (
            (row, self._at(x.R, stage, op), -1),
            (row[onward], self._s(x, stage[onward] + 1, tensor[onward]), 1),
            (late_row, self._at(x.R, late_stage, later[pair]), 1),
        )
        self.deadline.check()
        free_if_none = rows_from("(7b) free if no hazard", (row, x.FREE.index, 1), *hazards,
                                 num_rows=len(row), lower=1.0 - constant)  # fmt: skip
        no_free_if_any = rows_from("(7c) hazard, no free", (row, x.FREE.index, most), *hazards,
                                   num_rows=len(row), upper=most - constant)  # fmt: skip
        model.add(free_if_none, no_free_if_any)

    def _workspace(self, model: Model, x: Named) -> None:
        """Add (9) for ops with a workspace, outputs in place of inputs, or contributions to a freed buffer."""
        workspace = (self.layout.workspace[self.problem.graph.arrays.order] // self.layout.unit).astype(np.float64)
        at = self.layout
        part, rank = expand(at.part_count)
        tensor, op = at.part_tensor[part], at.part_op[part]
        stage = at.last_writer[tensor] + 1 + rank
        run, there = self._at(x.R, stage, op), self._s(x, stage, tensor)
        model.add(sum_rows("transient contribution", run, there, x.transient.index))
        _, slots = at.runs()
        writes = np.zeros(at.n, dtype=np.bool_)
        writes[at.part_op] = True
        rows = np.flatnonzero((workspace[slots] > 0) | writes[slots] | (at.place_most[slots] > 0))
        number = np.full(len(slots), -1, dtype=np.int64)
        number[rows] = np.arange(len(rows))
        here = number[at.slot(stage, op)]
        placed, pair = at.places()
        saving = number[at.slot(placed, at.place_op[pair])]
        model.add(
            rows_from(
                "(9) workspace",
                (number[rows], x.U.index[rows], 1),
                (number[rows], x.R.index[rows], workspace[slots[rows]]),
                (here, x.transient.index, at.size[tensor]),
                (saving, x.PLACE.index, -at.size[at.place_output[pair]]),
                num_rows=len(rows),
                upper=at.capacity,
            )
        )

    def _places(self, model: Model, x: Named) -> None:
        """Add (10) for outputs that may be written in place of inputs."""
        at = self.layout
        stage, pair = at.places()
        if not len(pair):
            return
        free = at.freed_at(stage, at.place_source[pair], at.place_op[pair])
        for name, ends in (("(10) input dies", at.place_source), ("(10) output once", at.place_output)):
            keys, row = np.unique(at.slot(stage, at.place_op[pair]) * len(at.size) + ends[pair], return_inverse=True)
            terms = [(row, x.PLACE.index, 1)]
            if ends is at.place_source:
                _, first = np.unique(row, return_index=True)
                terms.append((np.arange(len(keys)), x.FREE.index[free[first]], -1))
            model.add(rows_from(name, *terms, num_rows=len(keys), upper=float(ends is at.place_output)))

    def _limits(self, model: Model, x: Named) -> None:
        at = self.layout
        limits = [self.problem.compute_limits[op] for op in self.problem.graph.arrays.order.tolist()]
        limit = np.array([at.T if c is None else c for c in limits], dtype=np.float64)
        begin = at.begin(np.arange(at.n, dtype=np.int64))
        limited = np.flatnonzero((limit < at.T - begin) & ((limit > 1) | (not at.frontier)))
        row, rank = expand((at.T - begin)[limited])
        op = limited[row]
        runs = (row, self._at(x.R, begin[op] + rank, op), 1)
        model.add(rows_from("limit of computes", runs, num_rows=len(limited), upper=limit[limited]))

    def encode(self, schedule: Schedule) -> Values:
        problem = self.problem
        _, x = self.statement
        sequence = op_sequence(problem, schedule)
        check_limits(problem, sequence)
        stage = self._stages_of(sequence)
        runs, held = np.zeros(len(x.R), dtype=np.bool_), np.zeros(len(x.S), dtype=np.bool_)
        runs[self.layout.slot(stage, problem.graph.arrays.position[sequence])] = True
        instances = Instances.of(problem, sequence)
        until = np.append(stage, self.layout.T - 1)[instances.last_use]
        owner, rank = expand(np.maximum(0, until - stage[instances.step]))
        held[self.layout.retention(stage[instances.step][owner] + 1 + rank, instances.tensor[owner])] = True
        return self._completed(runs, held)

    def _completed(self, runs: Bool, held: Bool) -> Values:
        """Return the values of all variables from R and S, by their index."""
        model, x = self.statement
        values = np.zeros(model.num_vars)
        values[x.R.index] = runs
        values[x.S.index] = np.maximum(held, model.lower[x.S.index])  # buffers while they are filled
        lower, hazards = sums_without(model, "(7b) free if no hazard", x.FREE, values)
        values[x.FREE.index] = lower - hazards > 0.5
        _, gone = sums_without(model, "transient contribution", x.transient, values)
        values[x.transient.index] = np.maximum(0, gone)
        values[x.PLACE.index] = self._taken(values[x.FREE.index] > 0.5)
        stage, _ = self.layout.runs()
        values[x.U.index] = running_values(model, "(2)-(3) memory", x.U, values, stage)
        return values

    def _taken(self, freed: Bool) -> Values:
        """Return PLACE from the frees of inputs: as many pairs as possible of each op that runs."""
        at = self.layout
        stage, pair = at.places()
        taken = np.zeros(len(pair))
        possible = np.flatnonzero(freed[at.freed_at(stage, at.place_source[pair], at.place_op[pair])])
        by_run: dict[int, dict[tuple[int, int], int]] = {}
        for number in possible.tolist():
            ends = int(at.place_output[pair[number]]), int(at.place_source[pair[number]])
            by_run.setdefault(int(at.slot(stage[number], at.place_op[pair[number]])), {})[ends] = number
        for pairs in by_run.values():
            taken[[pairs[ends] for ends in most_pairs(list(pairs))]] = 1
        return taken

    def _stages_of(self, sequence: Int) -> Int:
        """Return the stage, from 0, of each compute."""
        if self.layout.frontier:
            return stages_of(self.problem, sequence) - 1
        position = self.problem.graph.arrays.position[sequence]
        stage: Int = np.append(0, np.cumsum(position[1:] <= position[:-1]))
        if stage[-1] >= self.layout.T:
            needed = f"{stage[-1] + 1} stages of ops in the reference order"
            raise ProblemError(f"the schedule needs {needed}, but the model has {self.layout.T}", "too-many-stages")
        return stage

    def variable_bounds(self, schedule: Schedule, part: Part) -> VariableBounds:
        """Release R of the ops and S of their inputs and outputs in the stages of `part`, and dependent variables."""
        if not self.layout.frontier:  # its stages differ from those of `part`
            return super().variable_bounds(schedule, part)
        model, x = self.statement
        values = self.encode(schedule)
        arrays = self.problem.graph.arrays
        touched = part.touched(arrays)
        stage, slot = self.layout.runs()
        retained_stage, owner = self.layout.retained()
        free_stage, freed = self.layout.frees()
        written, later = expand(self.layout.part_count)
        free = np.zeros(model.num_vars, dtype=np.bool_)

        def inside(stage: Int, first: int = part.first) -> Bool:
            return (first <= stage) & (stage <= part.last)

        free[x.R.index] = inside(stage) & part.ops[arrays.order[slot]]
        free[x.S.index] = inside(retained_stage) & touched[owner]
        # frees in the stage before depend on the retentions from it
        free[x.FREE.index] = inside(free_stage, part.first - 1) & touched[self.layout.free_tensor[freed]]
        placed, pair = self.layout.places()
        free[x.PLACE.index] = inside(placed, part.first - 1) & touched[self.layout.place_source[pair]]
        free[x.U.index] = inside(stage, part.first - 1)
        free[x.transient.index] = inside(self.layout.last_writer[self.layout.part_tensor[written]] + 1 + later)
        return VariableBounds(values, np.where(free, model.lower, values), np.where(free, model.upper, values))

    def retention(self, values: Values) -> Values:
        """Return S by stage and position of the writer of the retained tensor, maybe fractional; shape (T, n)."""
        at, (_, x) = self.layout, self.statement
        stage, tensor = at.retained()
        table = np.zeros((at.T, at.n))
        np.maximum.at(table, (stage, at.writer[tensor]), values[x.S.index])
        return table

    def labels(self) -> Labels:
        at, order = self.layout, self.problem.graph.arrays.order
        stage, slot = at.runs()
        run = {"stage": stage, "op": self.ops_named(order[slot])}
        stage, tensor = at.retained()
        retained = {"stage": stage, "tensor": self.tensors_named(tensor)}
        stage, pair = at.frees()
        tensor, op = at.free_tensor[pair], order[at.free_op[pair]]
        freed = {"stage": stage, "tensor": self.tensors_named(tensor), "op": self.ops_named(op)}
        part, rank = expand(at.part_count)
        tensor, op = at.part_tensor[part], order[at.part_op[part]]
        transient = {
            "stage": at.last_writer[tensor] + 1 + rank, "tensor": self.tensors_named(tensor), "op": self.ops_named(op)
        }  # fmt: skip
        stage, pair = at.places()
        output, source = at.place_output[pair], at.place_source[pair]
        place = {"stage": stage, "output": self.tensors_named(output), "input": self.tensors_named(source)}
        return {"R": run, "U": run, "S": retained, "FREE": freed, "transient": transient, "PLACE": place}

    def decode(self, values: Values) -> Schedule:
        _, x = self.statement
        runs = np.flatnonzero(values[x.R.index] > 0.5)  # stage after stage is the sequence
        _, slot = self.layout.runs()
        sequence = self.problem.graph.arrays.order[slot[runs]]
        return useful_schedule(self.problem, sequence, self.name)
