"""Stages with a second memory (POET), with links as flows: bounds of the least time, and schedules."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Values
from remat.formulations.programs import COMPUTE, FETCH, Program
from remat.formulations.stages.formulation import Stages
from remat.formulations.stages.layout import StagesOptions
from remat.formulations.timed_stages.links import StageLinks
from remat.formulations.timed_stages.placing import placed
from remat.formulations.transfer_times import TransferTimes
from remat.modeling import Model
from remat.modeling.naming import Labels
from remat.modeling.rows import column
from remat.problem import Objective, Problem
from remat.problem.scope import Restriction, Scope
from remat.runtime.arrays import Bool, Int
from remat.schedule import Schedule


class TimedStages(Stages):
    r"""Stages with a second memory, after POET (Patil et al., ICML 2022): a bound of the least time, and schedules.

    **Sets** and R, S, L, U with (2) to (9) as in :class:`~remat.formulations.stages.Stages`. Stage k has two parts: the
    recomputations, and op k. Tensors that can be moved, t ∈ T, take τ_t^r to read and τ_t^w to write.

    **Variables** in addition:

    * F[k,t] ∈ {0,1}: t is fetched in stage k, where its writer p(t) would run again.
    * W[t] ∈ {0,1}: t is written to the host after its first compute; its copy stays to the end.
    * a[k], e[k] ≥ 0: stalls in the first and in the second part of stage k.
    * x^r, x^w ≥ 0: work of each link in each part; q^r, q^w ≥ 0: work that is issued and not yet done at its end.
    * P[k,t] ∈ [0,1]: t has been fetched and not been read when op k begins; Q[k,t] ∈ [0,1]: t is written to the host,
      and has been retained since its first compute until the end of stage k.

    **Constraints**; F is added to the right of (2) and (3)::

        (1)  minimise  sum_{k,j} C_j R[k,j] + sum_k C_k + sum_k (a[k] + e[k])
        (10) F[k,t] ≤ W[t]
        (11) sum_t m_t W[t] ≤ capacity of the host
        (12) x ≤ sum_j C_j R[k,j] + a[k] in the first part, x ≤ C_k + e[k] in the second, for each link;
             half duplex: for x^r + x^w
        (13) q = q before + what is issued − x:  reads of F[k,t] in the first part of stage k,
             writes of W[t] in the second part of stage p(t)
        (14) q^r ≤ sum_t τ_t^r P[k,t] when op k begins;  P[k,t] ≤ P[k−1,t] + F[k,t];  P[k,t] ≤ S[k+1,t];
             P[k,t] ≤ 1 − R[k,u] for readers u of t;  P[k,t] = 0 for inputs of op k
        (15) q^w ≤ sum_t τ_t^w Q[k,t] at the end of stage k;  Q[k,t] ≤ S[k+1,t];
             Q[k,t] ≤ Q[k−1,t], for k = p(t) Q[k,t] ≤ W[t]

    **The model is a relaxation.** Take a program of the scope: staged, with writes and fetches at the places above. A
    link does at most a stage's time of work in a stage, (12), and its queue is (13). When op k begins, reads under way
    are of tensors that are live and have not been read: others are awaited, (14). At the end of a stage, writes under
    way are of tensors that are still live: a free waits for the write, (15). So the program's time is at least the
    optimum. In the model, links do transfers in any sequence and at once in both parts of a stage, so its optimum may
    be less than any schedule takes: it is a *bound*. :meth:`decode` then moves fetches ahead as far as the budget
    allows, also to places outside the scope; the time of that schedule is exact.

    Times are continuous: the model is for MILP solvers.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(replace(unit_chain(4), cost_unit="us"), 3, machine="rate=1MB/s")
    >>> print(TimedStages(problem).build())  # doctest: +ELLIPSIS
    model timed-stages: ...
    """

    name = "timed-stages"
    objectives = frozenset({Objective.LEAST_TIME})
    moves: ClassVar[bool] = True
    relaxes: ClassVar[bool] = True

    def __init__(self, problem: Problem, options: StagesOptions | None = None) -> None:
        super().__init__(problem, options)
        assert problem.machine is not None
        self.machine = problem.machine

    @cached_property
    def times(self) -> TransferTimes:
        """Times of transfers."""
        return TransferTimes.of(self.problem, self.machine)

    @property
    def apart(self) -> Bool:
        return self.times.movable

    @cached_property
    def links(self) -> StageLinks:
        """Transfers and links."""
        return StageLinks(self.problem, self.machine, self.times, self.choices)

    def scope(self) -> Scope:
        scope = super().scope()
        return replace(scope, notes=(*scope.notes, Restriction.STAGED_TRANSFERS)) if self.links.moved.size else scope

    def _otherwise(self, model: Model, stage: Int, tensor: Int) -> tuple[Int, ...]:
        if not hasattr(model.named, "F"):
            self.links.add(model)
        return (column(model.named.F, self.links.fetch_number[stage, tensor]),)

    def _minimise(self, model: Model) -> None:
        """Add the links, and set the objective (1)."""
        self.links.add_rows(model)
        super()._minimise(model)
        cost, stall = model.objective, model.named.stall.index.ravel()
        index = np.concatenate([cost.index, stall])
        weights = np.concatenate([cost.coefficient, np.full(len(stall), float(self.links.unit))])
        model.minimize(index, weights, cost.constant)

    def _offer_text(self, model: Model) -> None:
        """Offer no text: it has no second memory."""

    def encode(self, schedule: Schedule) -> Values:
        if schedule.has_transfers:
            raise ProblemError(f"formulation {self.name!r} encodes schedules without transfers only", "transfers")
        return super().encode(schedule)

    def labels(self) -> Labels:
        stage, tensor = self.links.fetches
        fetch = {"stage": stage, "tensor": self.tensors_named(tensor)}
        return {**super().labels(), "F": fetch, "W": {"tensor": self.tensors_named(self.links.moved)}}

    def decode(self, values: Values) -> Schedule:
        makes = self.makes(values)
        moved = {target for kind, target in zip(*makes, strict=True) if kind == FETCH}
        return placed(self.problem, makes, moved).schedule(self.problem, self.name)

    def makes(self, values: Values) -> Program:
        """Return the computes and fetches that values represent, in the places of the scope."""
        _, x = self.statement
        n, order = self.layout.n, self.problem.graph.arrays.order
        stage, tensor = (each[self._fetched(values)] for each in self.links.fetches)
        run_stage, run = (each[values[x.R.index] > 0.5] for each in self.choices.runs)
        own = np.arange(n)
        # stage, place in it, kind, target: a fetch takes the place of its writer
        columns = [
            np.concatenate([run_stage, own, stage]), np.concatenate([run, own, self.layout.first_writer[tensor]]),
            np.concatenate([np.full(len(run) + n, COMPUTE), np.full(len(stage), FETCH)]),
            np.concatenate([order[run], order, tensor]),
        ]  # fmt: skip
        by = np.lexsort(columns[2::-1])
        return Program(columns[2][by].tolist(), columns[3][by].tolist())

    def _fetched(self, values: Values) -> Bool:
        """Return a mask of the fetches that take place: of tensors neither retained into their stage nor computed."""
        (_, x), (stage, tensor) = self.statement, self.links.fetches
        there = [column(x.S, self.choices.s_table[stage, tensor]), self._made(x.R, stage, tensor)]
        sure = [(each >= 0) & (values[np.maximum(each, 0)] > 0.5) for each in there]
        return (values[x.F.index] > 0.5) & ~sure[0] & ~sure[1]
