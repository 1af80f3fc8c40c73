"""Retention intervals (Moccasin): optional intervals from a compute to the last use of its outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from remat.formulations.base import Formulation, Leeway, Part, Preliminary, Values
from remat.formulations.retention_intervals.encoder import RetentionEncoder
from remat.formulations.retention_intervals.layout import RetentionBlocks, RetentionLayout, StageGrid
from remat.formulations.retention_intervals.leeway import leeway
from remat.formulations.retention_intervals.minizinc import written
from remat.formulations.retention_intervals.precedence import covers, reservoirs
from remat.formulations.sequence import MemoryScale, standing_buffers, useful_schedule
from remat.modeling import ALWAYS, AllDifferent, Clauses, Cumulative, Domain, Linear, Model
from remat.modeling.check import cumulative_use
from remat.modeling.rows import difference_rows, expand
from remat.modeling.size import ModelSize
from remat.problem import Objective, Problem
from remat.runtime.options import Options, Positive
from remat.schedule import OrderRule, Schedule, simulate
from remat.scope import Restriction, Scope

Int = NDArray[np.int64]


@dataclass(frozen=True)
class RetentionIntervalsOptions(Options):
    """Options of :class:`RetentionIntervals`.

    Attributes
    ----------
    copies : int
        C_v of the ops for which the problem sets no limit of computes.
    precedence : ``"cover"`` or ``"reservoir"``
        How constraint (5) is stated: by a literal for each pair of a read and an instance that may serve it, or by
        the paper's reservoirs (10). Same solutions; cover literals are about twice as fast on CP-SAT.
    """

    copies: Positive = 2
    precedence: Literal["cover", "reservoir"] = "cover"


class RetentionIntervals(Formulation):
    r"""Retention intervals (Bartan et al., *Moccasin*, ICML 2023, §2).

    **Sets.** Ops v ∈ V with cost w_v and workspace; copies i = 1..C_v of each op; outputs t of v with size m_t. An
    *instance* (t, i) is output t of copy i. Time is a set D of integer *events*.

    **Variables.** s_v^i ∈ D: event of copy i; a_v^i ∈ {0, 1}: whether copy i runs; e_t^i ∈ D ∪ {|D|+1}: event before
    which instance (t, i) is freed (exclusive: it is live at s, ..., e − 1).

    **Constraints**, in the paper's numbering::

        (1)  minimise  sum_{v,i} w_v a_v^i
        (2)  a_v^i  ⇒  s_v^i + 1 ≤ e_t^i                             for every output t of v
        (3)  a_v^{i+1}  ⇒  e_t^i ≤ s_v^{i+1};   a_v^{i+1} ≤ a_v^i    (the second breaks symmetry)
        (4)  sum of m_t over instances with s ≤ k < e, plus workspace of what runs at k, ≤ M   for every event k
        (5)  a_v^i  ⇒  for every input u of v there is an active instance j with s_u^j + 1 ≤ s_v^i, s_v^i + 1 ≤ e_u^j
        (6)  all s_v^i are different
        (7)  a_v^1 = 1
        (9)  D = {1, ..., sum_v C_v}                                 (free order)
        (11) D = {1, ..., n(n+1)/2}                                  (fixed order)

    With the **fixed order** (§2.3) stage k consists of k events, op j may start only at the j-th event of a stage, and
    s_j^1 = j(j+1)/2; (6) is then implied. Recomputations of op j are confined to stages in which they can be of use.

    (4) is one `Cumulative`. (5) is stated with one *cover literal* for each pair of a read and an instance that may
    serve it, or with the paper's reservoirs (10) (`RetentionIntervalsOptions.precedence`); both mean the same.

    **Least peak.** Where the problem asks for it, phase 1 below is the model, with the structural bound for M.

    **Two phases** (§2.4). Phase 1 minimises max(M_var, M): the capacity in (4) becomes a variable τ ≥ M, eq. (12), and
    the reference order is a solution (13). Phase 2 is the model above, started from the solution of phase 1.

    **Extensions.** Several outputs per op, each with its own end; workspace as an interval of one event; tensors to be
    kept: an instance with e = |D| + 1. An accumulation buffer is filled once, by the first computes of its writers,
    and read afterwards; if a writer runs again for another output, its contribution is masked while the buffer is
    live, and held for that one event otherwise. Interval lengths are exact, and sizes are divided by their greatest
    common divisor with the budget rounded down, so nothing is lost and nothing allowed too much.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> f = RetentionIntervals(Problem(unit_chain(4), 4))
    >>> print(f.build())  # doctest: +ELLIPSIS
    model retention-intervals: ...
    """

    name = "retention-intervals"
    options_type = RetentionIntervalsOptions
    objectives = frozenset(Objective)

    def __init__(self, problem: Problem, options: RetentionIntervalsOptions | None = None) -> None:
        super().__init__(problem)
        if problem.objective is Objective.LEAST_PEAK:
            problem = replace(problem, budget=problem.structural_peak)  # no schedule holds less
        self.options = options or RetentionIntervalsOptions()
        self.layout = RetentionLayout.of(problem, self.options.copies)
        self.grid = StageGrid(len(problem.graph.ops)) if problem.order is OrderRule.FIXED else None
        _, self.workspace = standing_buffers(problem)
        scale = MemoryScale.of(problem, self.workspace)
        self.unit, self.held, self.capacity = scale.unit, scale.held, scale.capacity

    @property
    def horizon(self) -> int:
        """|D|, the number of events."""
        return self.grid.horizon if self.grid else len(self.layout.copy_op)

    @cached_property
    def reference_peak(self) -> int:
        """Peak in bytes of the reference order, with what the problem keeps and counts."""
        problem = self.problem
        return simulate(
            problem.graph,
            Schedule.reference(problem.graph),
            keep=frozenset(problem.keep),
            count_constant_memory=problem.count_constant_memory,
        ).peak

    def scope(self) -> Scope:
        most = max(self.options.copies if limit is None else limit for limit in self.problem.compute_limits)
        notes = (Restriction.FILLED_ONCE,) if len(self.layout.buffers) else ()
        return Scope(OrderRule(self.problem.order), self.grid is not None, most, notes)

    def estimate(self) -> ModelSize:
        at = self.layout
        copies, instances, pairs = len(at.copy_op), len(at.instance_copy), len(at.pair_read)
        stages = 0  # values of the starts, each of them an entry
        if self.grid is not None:
            again = np.flatnonzero(at.copy_rank > 0)
            slot = self.problem.graph.arrays.position[at.copy_op[again]] + 1
            stages = int((at.last_stage[at.copy_op[again]] - slot - at.copy_rank[again] + 1).sum())
        variables = 2 * copies + instances + pairs
        return ModelSize(variables, 3 * instances + 4 * pairs, 8 * instances + 8 * pairs + 2 * stages)

    @property
    def asks_peak(self) -> bool:
        """Whether the peak is to be minimised, which is what phase 1 states."""
        return self.problem.objective is Objective.LEAST_PEAK

    def build(self) -> Model:
        if not self.asks_peak:
            return self.statement[0]
        model = self._phase_one.model
        tau = model.objective.index
        model.minimize(tau, self.unit, self.held)  # in bytes
        model.overrides.pop("minizinc", None)  # whose text counts in units
        return model

    def preliminary(self) -> Preliminary | None:
        return None if self.asks_peak else self._phase_one

    @cached_property
    def _phase_one(self) -> Preliminary:
        """Phase 1: minimise max(M_var, M), eqs. (12) and (13)."""
        model = Model(f"{self.name}, phase 1")
        blocks = self._variables(model)
        peak = -(-(self.reference_peak - self.held) // self.unit)
        tau = model.integers("tau", 1, self.capacity, max(self.capacity, peak))
        self._constraints(model, blocks, int(tau.index[0]))
        model.minimize(tau.index, 1)
        model.overrides["minizinc"] = lambda: written(self, blocks, highest_peak=max(self.capacity, peak))

        memory = next(record for record in model.records if isinstance(record, Cumulative))

        def extend(values: Values) -> Values:
            _, used = cumulative_use(memory, values)
            if used.max(initial=0) > max(self.capacity, peak):  # worse than the reference order, which τ is made for
                return extend(RetentionEncoder(self, Schedule.reference(self.problem.graph)).values())
            return np.append(values, max(self.capacity, used.max(initial=0)))

        return Preliminary(model, float(self.capacity), extend)

    @cached_property
    def statement(self) -> tuple[Model, RetentionBlocks]:
        """Phase 2, and its variables."""
        model = Model(self.name)
        blocks = self._variables(model)
        self.deadline.check()
        self._constraints(model, blocks, None)
        again = np.flatnonzero(self.layout.copy_rank > 0)
        cost = self.problem.graph.arrays.cost[self.layout.copy_op[again]]
        model.minimize(blocks.active[again], cost, self.problem.graph.base_cost)  # (1)
        model.overrides["minizinc"] = lambda: written(self, blocks)
        return model, blocks

    # -- variables -------------------------------------------------------------------------------------------------

    @cached_property
    def singles(self) -> Int:
        """Copies that hold something for one event only: workspace, or a buffer's transient contribution."""
        layout = self.layout
        needs = self.workspace[layout.copy_op] > 0
        needs[self.contributions[0]] = True
        return np.flatnonzero(needs)

    @cached_property
    def contributions(self) -> tuple[Int, Int]:
        """(copy, buffer) for every recomputation of a writer of an accumulation buffer."""
        layout, arrays = self.layout, self.problem.graph.arrays
        again = np.flatnonzero(layout.copy_rank > 0)
        owner, rank = expand(arrays.op_outputs.counts[layout.copy_op[again]])
        tensor = arrays.op_outputs.indices[arrays.op_outputs.indptr[layout.copy_op[again]][owner] + rank]
        into = np.isin(tensor, layout.buffers)
        return again[owner[into]], tensor[into]

    @cached_property
    def covered(self) -> Int:
        """Pairs of a read and an instance that need a literal: those of reads with a choice."""
        choices = np.bincount(self.layout.pair_read, minlength=len(self.layout.read_copy))
        return np.flatnonzero(choices[self.layout.pair_read] > 1)

    def start_bounds(self) -> tuple[Int, Int]:
        layout = self.layout
        if self.grid is None:
            ones = np.ones(len(layout.copy_op), dtype=np.int64)
            return ones, ones * self.horizon
        slot = self.problem.graph.arrays.position[layout.copy_op] + 1
        again = layout.copy_rank > 0
        first = self.grid.event(slot + layout.copy_rank, slot)
        last = np.where(again, self.grid.event(layout.last_stage[layout.copy_op], slot), first)
        return first, last

    def _variables(self, model: Model) -> RetentionBlocks:
        layout, horizon = self.layout, self.horizon
        first, last = self.start_bounds()
        copies, instances, buffers = len(layout.copy_op), len(layout.instance_copy), len(layout.buffers)
        contributions = len(self.contributions[0])
        covers = len(self.covered) if self.options.precedence == "cover" else 0
        return RetentionBlocks(
            start=model.integers("start", copies, first, last),
            active=model.booleans("active", copies, lower=(layout.copy_rank == 0).astype(np.int64)),  # (7)
            end=model.integers("end", instances, first[layout.instance_copy] + 1, horizon + 1),
            after=model.integers("after", len(self.singles), first[self.singles] + 1, last[self.singles] + 1),
            buffer_start=model.integers("buffer_start", buffers, 1, horizon),
            buffer_end=model.integers("buffer_end", buffers, 2, horizon + 1),
            transient=model.booleans("transient", contributions),
            masked=model.booleans("masked", contributions),
            cover=model.booleans("cover", covers),
        )

    # -- constraints -----------------------------------------------------------------------------------------------

    def _constraints(self, model: Model, x: RetentionBlocks, tau: int | None) -> None:
        layout = self.layout
        active = np.where(layout.copy_rank == 0, ALWAYS, x.active.index)  # as a literal
        self._grid_or_all_different(model, x)
        self.deadline.check()
        copy = layout.instance_copy
        model.add(difference_rows("(2) end after start", x.end.index, x.start[copy], 1, active[copy]))
        later = np.flatnonzero(layout.copy_rank[copy] + 1 < np.bincount(layout.copy_op)[layout.copy_op[copy]])
        following = copy[later] + 1
        model.add(difference_rows("(3) one after the other", x.start[following], x.end[later], 0, active[following]))
        again = np.flatnonzero(layout.copy_rank > 1)
        model.add(Clauses.pairs("(3) in sequence", ~x.active[again], x.active[again - 1]))
        model.add(difference_rows("after", x.after.index, x.start[self.singles], 1, None, exact=True))
        self.deadline.check()
        model.add(self._memory(x, active, tau))
        self.deadline.check()
        if self.options.precedence == "cover":
            model.add(*covers(layout, x, active, self.covered))
        else:
            model.add(reservoirs(layout, x, active))
        model.add(*self._kept(x))
        if len(layout.buffers):
            model.add(*self._buffers(x, active))

    def _grid_or_all_different(self, model: Model, x: RetentionBlocks) -> None:
        layout = self.layout
        if self.grid is None:
            model.add(AllDifferent("(6) different starts", x.start.index))
            return
        again = np.flatnonzero(layout.copy_rank > 0)
        if not len(again):
            return
        slot = self.problem.graph.arrays.position[layout.copy_op[again]] + 1
        stages = layout.last_stage[layout.copy_op[again]] - slot - layout.copy_rank[again] + 1
        owner, rank = expand(stages)
        values = self.grid.event((slot + layout.copy_rank[again])[owner] + rank, slot[owner])
        indptr = np.concatenate([[0], np.cumsum(stages)])
        model.add(Domain("(11) stage grid", x.start[again], indptr, values))

    def _memory(self, x: RetentionBlocks, active: Int, tau: int | None) -> Cumulative:
        """(4), or (13) where the capacity is the variable `tau`."""
        layout, arrays = self.layout, self.problem.graph.arrays
        single, (contributing, into) = self.singles, self.contributions
        after = np.zeros(len(layout.copy_op), dtype=np.int64)
        after[single] = x.after.index
        buffers = layout.buffers
        working = single[self.workspace[layout.copy_op[single]] > 0]
        return Cumulative(
            "(4) memory",
            start=np.concatenate(
                [x.start[layout.instance_copy], x.start[working], x.buffer_start.index, x.start[contributing]]
            ),
            end=np.concatenate([x.end.index, after[working], x.buffer_end.index, after[contributing]]),
            demand=np.concatenate(
                [
                    arrays.size[layout.instance_tensor],
                    self.workspace[layout.copy_op[working]],
                    arrays.size[buffers],
                    arrays.size[into],
                ]
            )
            // self.unit,
            presence=np.concatenate(
                [
                    active[layout.instance_copy],
                    active[working],
                    np.full(len(buffers), ALWAYS, dtype=np.int64),
                    x.transient.index,
                ]
            ),
            capacity=self.capacity,
            capacity_variable=tau,
        )

    def _kept(self, x: RetentionBlocks) -> list[Linear]:
        """Tensors to be kept are alive at the end: the last copy that runs holds until |D| + 1."""
        layout, horizon = self.layout, self.horizon
        kept = np.flatnonzero(self.problem.kept[layout.instance_tensor])
        copy = layout.instance_copy[kept]
        counts = np.bincount(layout.copy_op)[layout.copy_op[copy]]
        last = layout.copy_rank[copy] + 1 == counts
        # Copy i holds to the end unless copy i + 1 runs; the last copy, where it runs.
        literal = np.where(last, x.active[copy], ~x.active.index[np.minimum(copy + 1, len(layout.copy_op) - 1)])
        literal[last & (layout.copy_rank[copy] == 0)] = ALWAYS
        # A copy that does not run may end anywhere, so nothing is lost by holding it to the end as well.
        rows = np.arange(len(kept), dtype=np.int64)
        return [Linear.rows("kept to the end", rows, x.end[kept], 1, lower=float(horizon + 1), num_rows=len(kept),
                            enforce=literal)]  # fmt: skip

    def _buffers(self, x: RetentionBlocks, active: Int) -> list[Linear | Clauses]:
        """Accumulation buffers: one instance from the first contribution to the last read."""
        layout, arrays = self.layout, self.problem.graph.arrays
        number = np.full(len(arrays.size), -1, dtype=np.int64)
        number[layout.buffers] = np.arange(len(layout.buffers))
        writes = arrays.producers.counts[layout.buffers]
        owner, rank = expand(writes)
        writer = arrays.producers.indices[arrays.producers.indptr[layout.buffers][owner] + rank]
        first = x.start[layout.copy_first[writer]]
        reads = np.flatnonzero(number[layout.read_tensor] >= 0)
        buffer, reader = number[layout.read_tensor[reads]], layout.read_copy[reads]
        # each read waits for the first compute of every writer
        entry, k = expand(writes[buffer])
        before = arrays.producers.indices[arrays.producers.indptr[layout.buffers[buffer]][entry] + k]
        kept = np.flatnonzero(self.problem.kept[layout.buffers])
        contributing, into = self.contributions
        single = np.zeros(len(layout.copy_op), dtype=np.int64)
        single[self.singles] = x.after.index
        running = x.active[contributing]
        clause = np.arange(len(contributing), dtype=np.int64)
        return [
            difference_rows("buffer begins", first, x.buffer_start[owner], 0, None),
            difference_rows("buffer filled", x.buffer_end[owner], first, 1, None),
            difference_rows("buffer complete", x.start[reader[entry]], x.start[layout.copy_first[before]], 1,
                      active[reader[entry]]),
            difference_rows("buffer live", x.buffer_end[buffer], x.start[reader], 1, active[reader]),
            Linear.rows("buffer kept", np.arange(len(kept)), x.buffer_end[kept], 1, lower=float(self.horizon + 1),
                        num_rows=len(kept)),
            difference_rows("masked while live", x.buffer_end[number[into]], x.start[contributing], 1, x.masked.index),
            Clauses.grouped("masked or transient", np.concatenate([clause, clause, clause]),
                            np.concatenate([~running, x.masked.index, x.transient.index]), len(contributing)),
        ]  # fmt: skip

    # -- translation -----------------------------------------------------------------------------------------------

    def encode(self, schedule: Schedule) -> Values:
        values = RetentionEncoder(self, schedule).values()
        return self._phase_one.extend(values) if self.asks_peak else values

    def leeway(self, schedule: Schedule, part: Part) -> Leeway:
        return leeway(self, schedule, part)

    def decode(self, values: Values) -> Schedule:
        _, x = self.statement
        runs = values[x.active.index] > 0.5
        in_time = np.argsort(values[x.start.index][runs], kind="stable")
        return useful_schedule(self.problem, self.layout.copy_op[runs][in_time], self.name)
