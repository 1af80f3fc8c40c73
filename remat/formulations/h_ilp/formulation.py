"""Hierarchical integer programme of HiRemate: phases, options, phantoms and corrections."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Formulation, Values
from remat.formulations.composites.composite import CompositeProblem
from remat.formulations.composites.expansion import Step
from remat.formulations.composites.expansion import expand as expand_steps
from remat.formulations.composites.recognition import encoded
from remat.formulations.h_ilp.conversions import Plan, steps_in, values_of
from remat.formulations.h_ilp.layout import HIlpOptions, Tables
from remat.formulations.h_ilp.phases import Phases
from remat.formulations.h_ilp.rows import Program, stated
from remat.formulations.staging import TABLE_BYTES, some_stages
from remat.modeling import Linear, Model
from remat.modeling.size import ModelSize
from remat.problem import Problem
from remat.problem.op_sequence import MemoryScale, most_computes, standing_buffers
from remat.problem.scope import Restriction, Scope
from remat.runtime.arrays import Bool, Int
from remat.schedule import OrderRule, Schedule


class HIlp(Formulation):
    r"""H-ILP (HiRemate, appendix B): nodes with options, in phases.

    **Sets.** Nodes k = 0..T−1 in a topological order: ops, and the forward and the backward parts F_j and B_j of
    composites j (a *layer*). Options o of each node: the runs of :class:`CompositeProblem`. Data d with size s_d: the
    tensors that cross between nodes or are kept; k → d: node k contributes to d; d → k: some option of k reads d, O(d,
    k) are those that do. Phases t = 0..T−1: phase t ends with the first compute of node t, and in it every earlier node
    may run once, in order.

    **Variables**, each only where it can be useful (the paper's A, C and D follow from them, see below)::

        R[t,k,o]  1 if node k runs with option o in phase t; CR[t,k] = sum_o R[t,k,o]
        P[t,d]    1 if d is live before phase t
        S[t,k,d]  1 if d then contains the contribution of k; with one contributor this is P
        K[t,k,d]  1 if k contributes to d in phase t and d is retained; with one contributor this is CR
        Sp[t,j,o] 1 if the phantom of option o of layer j is live before phase t
        Q[t,j,o]  1 if it is live in phase t between F_j and B_j
        L[t,d,k]  in [0,1]: d is live in phase t after its previous reader, or its last contributor, up to reader k
        B[t,k,d]  in [0,1]: d is live in phase t after contributor k, of several that may run in that phase
        V[t,k,d]  in [0,1]: d is live while its contributor k runs; stated as its liveness afterwards, plus `over`
        U[t,k]    memory while k runs, without the memory inside k

    **Constraints**, with the numbers of the paper if it has them, READ[t,d,k] = sum_{o in O(d,k)} R[t,k,o]::

        minimise  sum_{t,k,o} cost[k,o] R[t,k,o]
        (5)  CR[t,k] ≤ 1;  CR[t,t] = 1;  CR[t,k] only for k ≤ t
        (6)  sum_o Q[t,j,o] ≤ 1
        (7)  Q[t,j,o] ≤ Sp[t,j,o] + R[t,F_j,o]
        (8)  Q[t,j,o] ≥ Sp[t+1,j,o],  Q[t,j,o] ≥ R[t,F_j,o]
        (9)  Q[t,j,o] ≥ R[t,B_j,o]
        (d1) S[t,k,d] ≤ P[t,d]
        (d2) S[t+1,k,d] ≤ S[t,k,d] + K[t,k,d];   K[t,k,d] ≤ CR[t,k]
        (d3) READ[t,d,k'] ≤ K[t,k,d] + S[t,k,d]             for all k → d → k'; at the end S = 1 for data to keep
        (a1) L[t,d,k] ≥ READ[t,d,k];  L[t,d,k_i] ≥ L[t,d,k_{i+1}], after the last reader P[t+1,d] in its place
        (a2) B[t,k_i,d] ≥ B[t,k_{i−1},d], K[t,k_i,d], P[t,d];  at most the first L
        (a3) V[t,k,d] ≥ CR[t,k], liveness after k
        (u)  U[t,k] = sum_d s_d (P, B, V or L, the liveness of d at k) + sum_{j,o} p[j,o] (Sp or Q)
        (10) U[t,k] + sum_o m[i,k,o] R[t,k,o] − sum_{d in F_i} s_d D[t,k,d] − sum_{d in G_i} s_d C[t,k,d] ≤ budget

    With one contributor k of d, (d2) and (d3) are L[t,d,k'] ≤ CR[t,k] + P[t,d] for the first reader k'.

    **Liveness.** The paper's A[t,k,d], d is live after k, is P, B or L; D[t,k,d] = L before − L after reader k (V − L
    for a contributor), C[t,k,d] = V − P. The paper equates D with a conjunction, by a large coefficient. (a1) instead
    holds a tensor as long as any reader runs: the same schedules, and a tighter relaxation.

    **Corrections.** (10) is one row for each set of sub-steps i of k's options with the same F_i (interfaces whose last
    use is before the sub-step) and G_i (outputs not made yet). m[i,k,o] is the memory inside, without interfaces, less
    the part that U contains, the phantom of a forward part. For options without such sub-steps, m is the value that
    their own rows imply. Rows that others imply are left out. Every option has its rows, including fast-forwards, and
    the subtracted bytes are always part of U.

    **Reads of single options.** A tensor that only one option of B_j reads binds that option alone, through O(d,k).
    The phantom of a forward part stays at least until the next phase, or until B_j may run. An option without a
    backward part is therefore better if only the outputs are needed.

    Without composites every node is an op. If each op has one output, the schedules are those of `checkmate`, except
    that buffers may be freed and filled again.

    Examples
    --------
    >>> from remat.formulations.composites import Composite, Option
    >>> from remat.graphs.families import unit_chain
    >>> middle = Composite("middle", [1, 2], [6, 7], [Option([1, 2], [6, 7]), Option([1, 2], [1, 2, 6, 7])])
    >>> print(HIlp(Problem(unit_chain(4), 5), HIlpOptions((middle,))).build())  # doctest: +ELLIPSIS
    model h-ilp: ...
    """

    name = "h-ilp"
    options_type = HIlpOptions

    def __init__(self, problem: Problem, options: HIlpOptions | None = None) -> None:
        super().__init__(problem)
        self.options = options or HIlpOptions()
        if problem.order is not OrderRule.FIXED and not self.options.composites:
            raise ProblemError(
                "the h-ilp formulation keeps the reference order of ops; ask for order 'fixed'", "order-rule"
            )
        self.whole = CompositeProblem(problem, self.options.composites)
        MemoryScale.of(problem, standing_buffers(problem)[1])  # raises if the budget is below what is always held

    @cached_property
    def tables(self) -> Tables:
        """Nodes, choices and data, by number."""
        return Tables(self.whole, self.options.corrections, self.deadline)

    @cached_property
    def phases(self) -> Phases:
        """Numbers of the variables, by phase."""
        every = np.arange(self.tables.T)
        return Phases(self.tables, self._may_run(every))

    def _may_run(self, phases: Int) -> Bool:
        extra = None if self.most_cost is None else max(0, self.most_cost - self.tables.base)
        return self.tables.may_run(extra, phases, self.deadline, ahead=self.options.ahead)

    def scope(self) -> Scope:
        most = most_computes(self.problem)
        notes = () if self.options.ahead else (Restriction.NO_AHEAD,)
        if not self.options.composites:
            return Scope(OrderRule.FIXED, True, most, notes)
        return Scope(self.problem.order, True, most, (Restriction.COMPOSITES, *notes))

    def estimate(self) -> ModelSize:
        """Estimate the size of the model from a sample of its phases."""
        at = self.tables
        now = some_stages(at.T)
        phases = Phases(at, self._may_run(now), now)
        reads = np.bincount(at.read_node, minlength=at.T)
        rows = np.array([len(stated(each)) for each in at.rows], dtype=np.int64)
        by_node = 2 * np.bincount(at.read_node, at.read_count + 3, at.T) + np.bincount(at.make_node, minlength=at.T)
        by_node += 2 + at.num + rows * (at.num + reads)
        there, parts = phases.active & (now[:, None] <= phases.until), phases.parts
        carried = int((there & (now[:, None] > at.maker)).sum())
        contributions = int((there[:, at.make_data[parts]] & (now[:, None] > at.make_node[parts])).sum())
        ahead, back = phases.phantom_runs
        phantoms = 4 * int((ahead & back).sum()) + 16 * int((ahead | back).sum())
        entries = int((phases.may @ by_node).sum()) + 4 * carried + contributions + phantoms
        return ModelSize(entries * at.T // len(now), TABLE_BYTES * at.T * max(at.T, len(at.tensor)))

    def build(self) -> Model:
        return self.statement.model

    @cached_property
    def statement(self) -> Program:
        """Model, with its columns of liveness."""
        return Program(self.name, self.phases, self.deadline)

    def encode(self, schedule: Schedule) -> Values:
        """Encode a schedule; if its runs can be recognised in several ways, return the values that claim least."""
        return encoded(
            self.whole, schedule, lambda runs: values_of(self.statement, Plan.of(self.tables, runs)), self._claimed
        )

    def _claimed(self, values: Values) -> tuple[float, ...]:
        """Return the units by which memory exceeds the budget, the cost, and the cost of the decoded schedule."""
        model, x = self.statement.model, self.statement.x
        held = [values[x.U.index] - model.upper[x.U.index]]
        for record in model.records:
            if isinstance(record, Linear) and record.name == "(10) budget":
                terms = record.value * values[record.column]
                held.append(np.bincount(record.row, terms, len(record)) - record.upper)
        decoded = self.problem.simulate(self.decode(values)).cost  # lower if an option computes tensors never read
        return np.concatenate(held).max(initial=0), model.objective.value(values), decoded

    def decode(self, values: Values) -> Schedule:
        return expand_steps(self.whole, self.steps(values), self.name)

    def steps(self, values: Values) -> list[Step]:
        """Return the nodes computed, with their options, and the tensors live throughout each."""
        return steps_in(self.statement, values)
