"""Stages with a second memory (POET), with links as flows: bounds of the least time, and schedules."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Values
from remat.formulations.links import Items, LinkFlows
from remat.formulations.placing import placed
from remat.formulations.programs import COMPUTE, FETCH, Program
from remat.formulations.stages.formulation import Stages
from remat.formulations.stages.layout import StagesOptions
from remat.modeling import Model, Vars
from remat.modeling.naming import Labels
from remat.modeling.rows import NONE, ONE, column
from remat.problem import Objective, Problem
from remat.problem.scope import Restriction, Scope
from remat.problem.transfer_times import TransferTimes
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
    * G[k,t] ∈ [0,1]: t has been fetched and not been read when op k begins; H[k,t] ∈ [0,1]: t is written to the host,
      and has been retained since its first compute until the end of stage k.

    **Constraints**; F is added to the right of (2) and (3)::

        (1)  minimise  sum_{k,j} C_j R[k,j] + sum_k C_k + sum_k (a[k] + e[k])
        (t1) F[k,t] ≤ W[t]
        (t2) sum_t m_t W[t] ≤ capacity of the host
        (t3) x ≤ sum_j C_j R[k,j] + a[k] in the first part, x ≤ C_k + e[k] in the second, for each link;
             half duplex: for x^r + x^w
        (t4) q = q before + what is issued − x:  reads of F[k,t] in the first part of stage k,
             writes of W[t] in the second part of stage p(t)
        (t5) q^r ≤ sum_t τ_t^r G[k,t] when op k begins;  G[k,t] ≤ G[k−1,t] + F[k,t];  G[k,t] ≤ S[k+1,t];
             G[k,t] ≤ 1 − R[k,u] for readers u of t;  G[k,t] = 0 for inputs of op k;
             at the end, S[n+1,t] = 1 for tensors to keep, and q^r = 0
        (t6) q^w ≤ sum_t τ_t^w H[k,t] at the end of stage k;  H[k,t] ≤ S[k+1,t];
             H[k,t] ≤ H[k−1,t], for k = p(t) H[k,t] ≤ W[t]

    **The model is a relaxation.** Take a program of the scope: staged, with writes and fetches at the places above. A
    link does at most a stage's time of work in a stage, (t3), and its queue is (t4). When op k begins, reads under way
    are of tensors that are live and have not been read: others are awaited, (t5). At the end of a stage, writes under
    way are of tensors that are still live: a free waits for the write, (t6). So the program's time is at least the
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
        self.links: LinkFlows
        """Links of the model, once it is built."""

    @cached_property
    def times(self) -> TransferTimes:
        """Times of transfers."""
        return TransferTimes.of(self.problem)

    @property
    def apart(self) -> Bool:
        return self.times.movable

    @cached_property
    def fetches(self) -> tuple[Int, Int]:
        """(stage, tensor) of every fetch that is a choice: where retention is one, too."""
        stage, tensor, _ = self.choices.retained
        moves = self.apart[tensor]
        return stage[moves], tensor[moves]

    @cached_property
    def moved(self) -> Int:
        """Tensors that can be fetched, the items of the links."""
        return np.unique(self.fetches[1])

    @cached_property
    def _item(self) -> Int:
        """Item of each tensor, or NONE."""
        item = np.full(len(self.times.movable), NONE, dtype=np.int64)
        item[self.moved] = np.arange(len(self.moved))
        return item

    def scope(self) -> Scope:
        scope = super().scope()
        return replace(scope, notes=(*scope.notes, Restriction.STAGED_TRANSFERS)) if self.moved.size else scope

    def _items(self, R: Vars, S: Vars) -> Items:
        """Return the tensors that can be moved, with the columns of the model that they depend on."""
        at, moved, choices = self.layout, self.moved, self.choices
        onward = column(S, choices.s_table[1:, moved])
        stage, item = np.indices(onward.shape)
        kept = (onward == NONE) & (stage >= at.first_writer[moved][item]) & (stage + 1 < at.s_from[moved][item])
        onward[kept] = ONE  # before retention is a choice
        onward[-1, self.problem.kept[moved]] = ONE
        needed = at.fixed[:, moved].copy()
        needed[-1] = np.isin(moved, at.use_tensor[at.use_op == at.n - 1])
        read_stage, read_tensor, reader, _ = choices.reads
        mine = np.flatnonzero(self._item[read_tensor] != NONE)
        return Items(
            at.first_writer[moved], self.problem.graph.arrays.size[moved], self.times.write[moved],
            self.times.read[moved], self.fetches[0], self._item[self.fetches[1]], onward, needed,
            read_stage[mine], self._item[read_tensor[mine]], np.arange(len(mine)),
            column(R, choices.run_number[read_stage[mine], reader[mine]]),
        )  # fmt: skip

    def _otherwise(self, model: Model, stage: Int, tensor: Int) -> tuple[Int, ...]:
        if not hasattr(model.named, "F"):
            self.links = LinkFlows(self.problem, model, self._items(model.named.R, model.named.S))
        return (self.links.fetched(stage, self._item[tensor]),)

    def _minimise(self, model: Model) -> None:
        """Add the links, and set the objective (1)."""
        stage, run = self.choices.runs
        cost = self.problem.graph.arrays.cost[self.problem.graph.arrays.order]
        self.links.add_rows(model, (stage, model.named.R.index, cost[run]), (np.arange(self.layout.n), ONE, cost))
        super()._minimise(model)
        self.links.minimise_stalls(model)

    def _offer_text(self, model: Model) -> None:
        """Offer no text: it has no second memory."""

    def encode(self, schedule: Schedule) -> Values:
        if schedule.has_transfers:
            raise ProblemError(f"formulation {self.name!r} encodes schedules without transfers only", "transfers")
        return super().encode(schedule)

    def labels(self) -> Labels:
        stage, tensor = self.fetches
        fetch = {"stage": stage, "tensor": self.tensors_named(tensor)}
        return {**super().labels(), "F": fetch, "W": {"tensor": self.tensors_named(self.moved)}}

    def decode(self, values: Values) -> Schedule:
        makes = self.makes(values)
        moved = {target for kind, target in zip(*makes, strict=True) if kind == FETCH}
        return placed(self.problem, makes, moved).schedule(self.problem, self.name)

    def makes(self, values: Values) -> Program:
        """Return the computes and fetches that values represent, in the places of the scope."""
        _, x = self.statement
        n, order = self.layout.n, self.problem.graph.arrays.order
        stage, tensor = (each[self._fetched(values)] for each in self.fetches)
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
        (_, x), (stage, tensor) = self.statement, self.fetches
        there = [column(x.S, self.choices.s_table[stage, tensor]), self._made(x.R, stage, tensor)]
        sure = [(each >= 0) & (values[np.maximum(each, 0)] > 0.5) for each in there]
        return (values[x.F.index] > 0.5) & ~sure[0] & ~sure[1]
