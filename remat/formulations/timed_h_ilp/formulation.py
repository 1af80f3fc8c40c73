"""Hierarchical programme with a second memory: options of groups, and moves of what groups save and hand over."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Values
from remat.formulations.composites.expansion import computed_by
from remat.formulations.h_ilp.conversions import known, plan_in, steps_in
from remat.formulations.h_ilp.formulation import HIlp
from remat.formulations.h_ilp.layout import HIlpOptions
from remat.formulations.h_ilp.phases import Phases
from remat.formulations.placing import placed
from remat.formulations.programs import COMPUTE, FETCH, Program
from remat.formulations.timed_h_ilp.program import Movable, TimedProgram
from remat.modeling import Model
from remat.modeling.rows import NONE, column
from remat.modeling.size import ModelSize
from remat.problem import Objective, Problem
from remat.problem.scope import Restriction, Scope
from remat.problem.transfer_times import TransferTimes
from remat.runtime.arrays import Bool
from remat.schedule import Schedule


class TimedHIlp(HIlp):
    r"""H-ILP with a second memory: a bound of the least time of groups with options, and schedules.

    It joins the hierarchical programme of HiRemate (Gusak et al. 2024, appendix B) with the links of
    :class:`~remat.formulations.timed_stages.TimedStages`. OffMate, the successor of HiRemate, moves what groups save in
    a similar way; its time is the largest sum of one channel.

    **Sets** and R, P, S, K, Sp, Q, L, B, V, U with (5) to (10) as in :class:`~remat.formulations.h_ilp.HIlp`. Items i
    that can be moved: data with one contributor, and phantoms (j, o), all tensors of which move together. They take
    τ_i^r to read and τ_i^w to write, m_i bytes, and are made by node k(i), F_j for a phantom. P[t,i] is their retention
    before phase t, Sp for a phantom. READ[t,i,k] is the sum of R[t,k,o] over the options o that read i, for a phantom
    R[t,B_j,o].

    **Variables** in addition:

    * F[t,i] ∈ {0,1}: i is fetched in phase t, where k(i) would run again.
    * W[i] ∈ {0,1}: i is written to the host after the first run of k(i); its copy stays to the end.
    * a[t], e[t] ≥ 0: stalls before node t begins in phase t, and after.
    * x^r, x^w ≥ 0: work of each link in each part; q^r, q^w ≥ 0: work that is issued and not yet done at its end.
    * G[t,i] ∈ [0,1]: i has been fetched and not been read when node t begins; H[t,i] ∈ [0,1]: i is written to the host,
      and has been retained since the first run of k(i) until the end of phase t.

    **Constraints**; F is added to the right of (7), and of (d2)-(d3) for one contributor::

        minimise  sum_{t,k,o} cost[k,o] R[t,k,o] + sum_t (a[t] + e[t])
        (t1) F[t,i] ≤ W[i]
        (t2) sum_i m_i W[i] ≤ capacity of the host
        (t3) x ≤ sum_{k<t,o} cost[k,o] R[t,k,o] + a[t] in the first part, x ≤ sum_o cost[t,o] R[t,t,o] + e[t] in the
             second, for each link; half duplex: for x^r + x^w
        (t4) q = q before + what is issued − x:  reads of F[t,i] in the first part of phase t,
             writes of W[i] in the second part of phase k(i)
        (t5) q^r ≤ sum_i τ_i^r G[t,i] when node t begins;  G[t,i] ≤ G[t−1,i] + F[t,i];  G[t,i] ≤ P[t+1,i];
             G[t,i] ≤ 1 − READ[t,i,k] for k ≤ t;  q^r = 0 at the end
        (t6) q^w ≤ sum_i τ_i^w H[t,i] at the end of phase t;  H[t,i] ≤ P[t+1,i];
             H[t,i] ≤ H[t−1,i], for t = k(i) H[t,i] ≤ W[i]
        (t7) W[j,o] ≤ R[F_j,F_j,o] for a phantom

    **The model is a relaxation** for programs of its scope: groups in phases, transfers at the places above, each
    phantom moved as a whole, and each node beginning when all that it reads has arrived. The proof is that of timed
    stages with nodes as ops: a free inside of a node that waits for a write is a stall of its part. So the optimum is a
    *bound*, which the schedules of the scope need not reach. :meth:`decode` then moves fetches ahead as far as the
    budget allows, and ops inside of a node wait only for what they read themselves: the time of that schedule is exact,
    and may even be below the bound.

    Ops that contribute to accumulation buffers run once. Times are continuous: the model is for MILP solvers.

    Examples
    --------
    >>> from remat.formulations.composites import Composite, Option
    >>> from remat.graphs.families import unit_chain
    >>> middle = Composite("middle", [1, 2], [6, 7], [Option([1, 2], [6, 7]), Option([1, 2], [1, 2, 6, 7])])
    >>> problem = Problem(replace(unit_chain(4), cost_unit="us"), 5, machine="rate=1MB/s")
    >>> print(TimedHIlp(problem, HIlpOptions((middle,))).build())  # doctest: +ELLIPSIS
    model timed-h-ilp: ...
    """

    name = "timed-h-ilp"
    objectives = frozenset({Objective.LEAST_TIME})
    moves: ClassVar[bool] = True
    relaxes: ClassVar[bool] = True

    def __init__(self, problem: Problem, options: HIlpOptions | None = None) -> None:
        super().__init__(_contributing_once(problem), options)

    @cached_property
    def movable(self) -> Movable:
        """Data and phantoms that can be moved."""
        return Movable(self.tables, TransferTimes.of(self.problem))

    @cached_property
    def phases(self) -> Phases:
        every = np.arange(self.tables.T)
        return Phases(self.tables, self._may_run(every), apart=self.movable.apart)

    def scope(self) -> Scope:
        scope = super().scope()
        notes = [*scope.notes, Restriction.STAGED_TRANSFERS]
        if self.options.composites:
            notes.append(Restriction.WAITING_GROUPS)
        if _contributors(self.problem).any():
            notes.append(Restriction.CONTRIBUTE_ONCE)
        return replace(scope, notes=tuple(notes))

    def estimate(self) -> ModelSize:
        size, moved = super().estimate(), len(self.movable.tensors)
        return replace(size, nonzeros=size.nonzeros + 12 * self.tables.T * moved)

    @cached_property
    def statement(self) -> TimedProgram:
        return TimedProgram(self.name, self.problem, self.phases, self.movable)

    def build(self) -> Model:
        return self.statement.model

    def encode(self, schedule: Schedule) -> Values:
        if schedule.has_transfers:
            raise ProblemError(f"formulation {self.name!r} encodes schedules without transfers only", "transfers")
        return super().encode(schedule)

    def decode(self, values: Values) -> Schedule:
        fetched = self._fetched(values)
        moved = {tensor for _, item in fetched for tensor in self.movable.tensors[item].tolist()}
        return placed(self.problem, self.makes(values), moved).schedule(self.problem, self.name)

    def makes(self, values: Values) -> Program:
        """Return the computes and fetches that values represent, in the places of the scope."""
        plan, steps = plan_in(self.statement, values), steps_in(self.statement, values)
        # phase, node, place there: data come before a run of their maker, phantoms after it
        parts = [
            ((phase, step.node, 1), [(COMPUTE, op) for op in ops.tolist()])
            for phase, step, ops in zip(plan.phase.tolist(), steps, computed_by(self.whole, steps), strict=True)
        ]
        data = len(self.movable.data)
        for phase, item in self._fetched(values):
            place = phase, int(self.movable.maker[item]), 0 if item < data else 2
            parts.append((place, [(FETCH, tensor) for tensor in self.movable.tensors[item].tolist()]))
        parts.sort(key=lambda part: part[0])
        return Program.of([step for _, some in parts for step in some])

    def _fetched(self, values: Values) -> list[tuple[int, int]]:
        """Return phase and item of the fetches that take place: of what is neither retained nor made in the phase."""
        at, phases, links, worth = self.tables, self.phases, self.statement.links, known(values)
        t, item = links.items.fetch_stage, links.items.fetch_item
        chosen = values[links.F.index] > 0.5
        t, item = t[chosen], item[chosen]
        before = np.where(t > 0, links.items.onward[t - 1, item], NONE)
        made = np.zeros(len(t))
        data = len(self.movable.data)
        for place, (phase, each) in enumerate(zip(t.tolist(), item.tolist(), strict=True)):
            if each < data:
                node = int(self.movable.maker[each])
                choices = at.first[node] + np.arange(at.num[node])
            else:
                choices = at.phantom_forward[self.movable.phantoms[[each - data]]]
            columns = phases.run_column(np.full(len(choices), phase), choices)
            made[place] = worth(column(self.statement.R, columns)).sum()
        there = (worth(before) > 0.5) | (made > 0.5)
        return list(zip(t[~there].tolist(), item[~there].tolist(), strict=True))


def _contributors(problem: Problem) -> Bool:
    """Mark the ops that contribute to accumulation buffers."""
    arrays = problem.graph.arrays
    return arrays.op_outputs.where(arrays.producers.counts > 1).counts > 0


def _contributing_once(problem: Problem) -> Problem:
    """Return a problem whose ops contribute to accumulation buffers only once."""
    once = np.flatnonzero(_contributors(problem)).tolist()
    if not once:
        return problem
    names = problem.graph.op_names
    limits = {names[op]: limit for op, limit in enumerate(problem.compute_limits) if limit is not None}
    return replace(problem, max_computes=limits | {names[op]: 1 for op in once})
