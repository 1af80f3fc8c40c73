"""Retention intervals (Moccasin): optional intervals from a compute to the last use of its outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from remat.formulations.base import Formulation, Part, Preliminary, Values, VariableBounds
from remat.formulations.retention_intervals.encoder import Gap, IntervalsEncoder, RunSequence
from remat.formulations.retention_intervals.layout import IntervalsLayout
from remat.formulations.retention_intervals.linear import Rise, StagedCopies, linear_form
from remat.formulations.retention_intervals.minizinc import WrittenIntervals
from remat.formulations.retention_intervals.rows import IntervalRows
from remat.formulations.retention_intervals.tables import NodeTables
from remat.formulations.retention_intervals.variables import IntervalVariables
from remat.modeling import Cumulative, Model
from remat.modeling.alternatives import LinearForm, WrittenModel
from remat.modeling.check import cumulative_use
from remat.modeling.naming import Labels
from remat.modeling.size import ModelSize
from remat.problem import Objective, Problem
from remat.problem.op_sequence import MemoryScale, op_sequence, standing_buffers, useful_schedule
from remat.problem.scope import Restriction, Scope
from remat.runtime.arrays import Bool, Int
from remat.runtime.checked_options import Options, Positive
from remat.schedule import Schedule


@dataclass(frozen=True)
class RetentionIntervalsOptions(Options):
    """Options of :class:`RetentionIntervals`."""

    copies: Positive = 2
    """C_v of the ops for which the problem sets no limit of computes."""
    precedence: Literal["cover", "reservoir"] = "cover"
    """Form of constraint (5): a literal for each pair of a read and an instance that may serve it, or the paper's
    reservoirs (10). Both have the same solutions; cover literals are about twice as fast on CP-SAT."""


class RetentionIntervals(Formulation):
    r"""Retention intervals (Bartan et al., *Moccasin*, ICML 2023, §2).

    **Sets.** Ops v ∈ V with cost w_v and workspace; copies i = 1..C_v of each op; outputs t of v with size m_t. An
    *instance* (t, i) is output t of copy i. Time is a set D of integer *events*.

    **Variables.** s_v^i ∈ D: event of copy i; a_v^i ∈ {0, 1}: copy i runs; e_t^i ∈ D ∪ {|D|+1}: event before which
    instance (t, i) is freed (exclusive: it is live at s, ..., e − 1).

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
    s_j^1 = j(j+1)/2; (6) is then implied. Recomputations of op j are confined to stages in which they can be useful.

    (4) is one `Cumulative`. (5) is stated with one *cover literal* for each pair of a read and an instance that may
    serve it, or with the equivalent reservoirs (10) of the paper (`RetentionIntervalsOptions.precedence`).

    **Least peak.** With this objective, phase 1 below is the model, and M is the structural bound.

    **Linear backends** receive the fixed order as a variable for each op and stage, which has the same schedules:
    :class:`~remat.formulations.retention_intervals.linear.StagedCopies`. Bridges lower the free order.

    **Two phases** (§2.4). Phase 1 minimises max(M_var, M): the capacity in (4) becomes a variable τ ≥ M, eq. (12), and
    the reference order is a solution (13). Phase 2 is the model above, started from the solution of phase 1.

    **Extensions.** Several outputs per op, each with its own end; workspace as an interval of one event; tensors to
    keep: an instance with e = |D| + 1. An accumulation buffer is filled once, by the first computes of its writers, and
    read afterwards. If a writer runs again for another output, its contribution is masked while the buffer is live, and
    held for that one event otherwise. Interval lengths are exact. Sizes are divided by their greatest common divisor,
    with the budget rounded down, which is exact as well.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> f = RetentionIntervals(Problem(unit_chain(4), 4))
    >>> print(f.build())  # doctest: +ELLIPSIS
    model retention-intervals: ...
    """

    name = "retention-intervals"
    options_type: ClassVar[type | None] = RetentionIntervalsOptions
    objectives = frozenset({Objective.LEAST_COST, Objective.LEAST_PEAK})

    def __init__(self, problem: Problem, options: RetentionIntervalsOptions | None = None) -> None:
        super().__init__(problem)
        self.options = options or RetentionIntervalsOptions()
        if self.objective.is_memory:
            problem = replace(problem, budget=problem.structural_peak)  # a lower bound on every peak
        self.scale = MemoryScale.of(problem, standing_buffers(problem)[1])
        self.unit, self.held = self.scale.unit, self.scale.held

    @cached_property
    def layout(self) -> IntervalsLayout:
        """Copies, instances and reads."""
        return IntervalsLayout(self.tables(), self.problem.order, self.options.copies)

    def tables(self) -> NodeTables:
        """Return the nodes, which are ops, and the tensors they touch."""
        return NodeTables.of_ops(self.problem)

    @cached_property
    def capacity(self) -> int:
        """Units that the budget leaves for tensors that are not always held."""
        return self.scale.capacity

    @cached_property
    def peaks(self) -> tuple[int, int]:
        """Smallest and largest τ in units, (12) and (13): the reference order keeps the largest."""
        run = self.problem.simulate(Schedule.reference(self.problem.graph))
        return self.capacity, max(self.capacity, -(-(run.peak - self.held) // self.unit))

    def named(self, node: int) -> str:
        """Return the name of a node in messages."""
        return f"op {self.problem.graph.op_names[node]!r}"

    def scope(self) -> Scope:
        most = max(self.options.copies if limit is None else limit for limit in self.problem.compute_limits)
        notes = (Restriction.FILLED_ONCE,) if len(self.layout.tables.buffers) else ()
        return Scope(self.problem.order, self.layout.fixed, most, notes)

    def estimate(self) -> ModelSize:
        at = self.layout
        instances, pairs = len(at.made), len(at.pair_read)
        choices = int((np.diff(at.tables.run_first) * at.copies).sum()) - len(at.copy_node)
        stages = 0  # one entry per value of a start
        if at.fixed:
            again = np.flatnonzero(at.copy_rank > 0)
            stages = int((at.last_stage[at.copy_node[again]] - at.slot[again] - at.copy_rank[again] + 1).sum())
        return ModelSize(8 * instances + 8 * pairs + 2 * (stages + choices))

    def linear_estimate(self) -> ModelSize | None:
        return self._staged().estimate() if self.layout.fixed else self.estimate()

    def build(self) -> Model:
        if not self.objective.is_memory:
            return self.statement.model
        model = self._phase_one.model
        tau = model.objective.index
        model.minimize(tau, self.unit, self.held)  # in bytes
        model.overrides.pop("minizinc", None)  # the text counts in units
        return model

    def preliminary(self) -> Preliminary | None:
        return None if self.objective.is_memory else self._phase_one

    @cached_property
    def _phase_one(self) -> Preliminary:
        """Phase 1: minimise max(M_var, M), eqs. (12) and (13)."""
        model = Model(f"{self.name}, phase 1")
        variables = self._variables(model)
        least, most = self.peaks
        tau = model.integers("tau", 1, least, most)
        self.rows(variables, int(tau.index[0])).add_all(self.deadline)
        model.minimize(tau.index, 1)
        self._offer_forms(variables, most)
        memory = next(record for record in model.records if isinstance(record, Cumulative))

        def extend(values: Values) -> Values:
            _, used = cumulative_use(memory, values)
            if used.max(initial=0) > most:  # above the bound of τ, which is the reference order's peak
                return extend(self.encode_runs(Schedule.reference(self.problem.graph)))
            return np.append(values, max(least, used.max(initial=0)))

        return Preliminary(model, float(self.capacity), extend)

    @cached_property
    def statement(self) -> IntervalVariables:
        """Variables of phase 2, with its model."""
        model = Model(self.name)
        variables = self._variables(model)
        self.deadline.check()
        rows = self.rows(variables)
        rows.add_all(self.deadline)
        rows.minimise_cost()
        self._offer_forms(variables)
        return variables

    def _offer_forms(self, variables: IntervalVariables, highest_peak: int | None = None) -> None:
        """Offer the model also as handwritten MiniZinc text and in linear rows."""

        def written() -> WrittenModel:
            return WrittenIntervals(self.problem, variables, self.scale, self.deadline, highest_peak).model()

        def encode(schedule: Schedule) -> Values:
            values = self.encode_runs(schedule)
            return values if highest_peak is None else self.extended(values)

        model = variables.model
        model.overrides["minizinc"] = written
        if self.layout.fixed:
            model.overrides[LinearForm.name] = lambda: linear_form(self._staged(highest_peak), encode, self.decode)

    def _staged(self, highest_peak: int | None = None) -> StagedCopies:
        """Return the linear form of phase 2, or of phase 1 with `highest_peak`, in units."""
        problem, rise = self.problem, None
        if self.objective.is_memory:
            problem = replace(problem, budget=problem.structural_peak)
        if highest_peak is not None:
            unit, held = (self.unit, self.held) if self.objective.is_memory else (1, 0)
            rise = Rise(highest_peak - self.capacity, self.capacity, unit, held)
        staged = StagedCopies(problem, self.layout.copies, rise)
        staged.deadline = self.deadline
        return staged

    def _variables(self, model: Model) -> IntervalVariables:
        return IntervalVariables(self.layout, model, covers=self.options.precedence == "cover")

    def rows(self, variables: IntervalVariables, tau: int | None = None) -> IntervalRows:
        """Return the constraints on variables; `tau` is the variable of the capacity, if any."""
        return IntervalRows(variables, self.unit, self.capacity, tau)

    def encode(self, schedule: Schedule) -> Values:
        values = self.encode_runs(schedule)
        return self.extended(values) if self.objective.is_memory else values

    def extended(self, values: Values) -> Values:
        """Return values of phase 1 from those of phase 2."""
        return self._phase_one.extend(values)

    def encode_runs(self, schedule: Schedule) -> Values:
        """Return values of the variables of phase 2."""
        return IntervalsEncoder(self.layout, self.runs_of(schedule), self.named).values(self.statement)

    def runs_of(self, schedule: Schedule) -> RunSequence:
        """Return the runs that form a schedule."""
        sequence = op_sequence(self.problem, schedule)
        return RunSequence(sequence, np.zeros_like(sequence), {})

    def variable_bounds(self, schedule: Schedule, part: Part) -> VariableBounds:
        """Release the copies of the ops of `part` within its stages, and the instances that these make or read.

        With the free order, idle copies of these ops take events within the stages, so that there is room for them
        between the copies that are fixed.
        """
        at = self.layout
        variables = self.statement
        model, x = variables.model, variables.blocks
        mine = part.ops[at.copy_node]
        encoder = IntervalsEncoder(at, self.runs_of(schedule), self.named, Gap(part.first, part.last, mine))
        values = encoder.values(variables)
        touched = part.touched(self.problem.graph.arrays)
        lower, upper = values.copy(), values.copy()

        def release(index: Int, which: Bool) -> None:
            chosen = index[which]
            lower[chosen], upper[chosen] = model.lower[chosen], model.upper[chosen]

        low, high = encoder.range
        moves = mine & (low <= high)
        release(x.active.index, moves)
        lower[x.start.index[moves]], upper[x.start.index[moves]] = low[moves], high[moves]
        release(x.end.index, touched[at.made.tensor])
        release(x.after.index, moves[np.nonzero(variables.after_table >= 0)[0]])
        release(x.buffer_start.index, touched[at.tables.buffers])
        release(x.buffer_end.index, touched[at.tables.buffers])
        again = variables.contributions
        release(x.transient.index, moves[again.copy] | touched[again.tensor])
        release(x.masked.index, moves[again.copy] | touched[again.tensor])
        if len(x.cover):
            pair = variables.covered
            reader, maker = at.read.copy[at.pair_read[pair]], at.made.copy[at.pair_made[pair]]
            release(x.cover.index, moves[reader] | mine[maker])
        return VariableBounds(values, lower, upper)

    def labels(self) -> Labels:
        at, variables = self.layout, self.statement
        node, rank, made, read = at.copy_node, at.copy_rank, at.made, at.read
        copy = {"op": self.ops_named(node), "compute": rank}
        end = {"tensor": self.tensors_named(made.tensor), "compute": rank[made.copy]}
        later, units = np.nonzero(variables.after_table >= 0)
        after = {"op": self.ops_named(node[later]), "compute": rank[later], "units": units}
        buffer = {"tensor": self.tensors_named(at.tables.buffers)}
        again = variables.contributions
        contribution = {
            "op": self.ops_named(node[again.copy]), "compute": rank[again.copy],
            "tensor": self.tensors_named(again.tensor),
        }  # fmt: skip
        reader, instance = read.copy[at.pair_read[variables.covered]], at.pair_made[variables.covered]
        cover = {
            "op": self.ops_named(node[reader]), "compute": rank[reader],
            "tensor": self.tensors_named(made.tensor[instance]), "written by": rank[made.copy[instance]],
        }  # fmt: skip
        return {
            "start": copy, "active": copy, "end": end, "after": after, "buffer_start": buffer, "buffer_end": buffer,
            "transient": contribution, "masked": contribution, **({"cover": cover} if variables.has_covers else {}),
        }  # fmt: skip

    def decode(self, values: Values) -> Schedule:
        x = self.statement.blocks
        runs = values[x.active.index] > 0.5
        in_time = np.argsort(values[x.start.index][runs], kind="stable")
        return useful_schedule(self.problem, self.layout.copy_node[runs][in_time], self.name)
