"""Selective checkpointing as a mixed integer programme with one binary variable per op of a region."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Formulation, Values
from remat.formulations.policies.held import Columns, Held, HeldMemory
from remat.formulations.policies.lives import Lives
from remat.modeling import Model
from remat.modeling.model import Named
from remat.modeling.naming import Labels
from remat.modeling.records import Linear
from remat.modeling.rows import rows_from, running_values
from remat.problem import Problem
from remat.problem.op_sequence import MemoryScale
from remat.problem.regions import Region, Replays, Saved, regions_of_blocks
from remat.problem.scope import Restriction, Scope
from remat.runtime.checked_options import Options
from remat.schedule import OrderRule, Schedule

#: Name of the rows of N and L.
HELD = "(3), (4) held"
#: Name of the rows of U.
HELD_BYTES = "(5) held"


@dataclass(frozen=True)
class PoliciesOptions(Options):
    """Options of :class:`Policies`."""

    regions: tuple[Region, ...] | None = None
    """Checkpointed regions; by default one for each numbered module in the names of ops, as in ``layers.0.mlp``."""
    plain: bool = True
    """Regions may also run without a checkpoint. False: the program checkpoints each of them."""

    def regions_of(self, problem: Problem) -> tuple[Region, ...]:
        """Return the regions for a problem."""
        return regions_of_blocks(problem) if self.regions is None else self.regions


class Policies(Formulation):
    r"""Selective checkpointing: the schedules that a framework's policy can express, for given regions.

    **Sets.** Ops j of the training step, in the reference order. Regions g ∈ G: disjoint parts of the forward pass,
    each with the ops J_g that its replay reaches, and an op e_g of the backward pass. *Slots* k = 0..K−1 are a fixed
    sequence: all ops in the reference order, and right before e_g the replays of all j ∈ J_g. Slot k belongs to op
    j(k); a_j and b_j are the slots of the first compute and of the replay of op j. Tensor t with size m_t is written by
    op p(t). Its sure reads are the first computes of its readers, and slot K if it is kept. Its possible reads are the
    replays of its readers.

    **Variables.**

    * x_j ∈ {0, 1}, j ∈ J_g: the replay of region g computes op j. Otherwise the outputs of op j are saved, or the
      region is plain.
    * q_g ∈ {0, 1}: region g is plain, that is, without a checkpoint and a replay. So op j is saved if
      s_j = 1 − x_j − q_g is 1.
    * N_t ∈ [0, 1]: the first instance of t is held up to slot b_p(t).
    * L_{t,i} ∈ [0, 1]: t is held up to its i-th possible read after the last sure one before b_p(t), or after b_p(t).
    * U_k ≥ 0: memory held between slots k − 1 and k.

    **Constraints.** For a tensor t with j = p(t) in region g, with possible reads by the replays of ops u_1, u_2, …::

        (1) minimise  sum_j C_j x_j, and the cost of computing each op once
        (2) x_j + q_g ≤ 1;   = 1 if op j cannot be saved;   x_j = 0 if op j may run only once
        (3) N_t ≥ 1 − x_j − q_g                    the store holds what is saved until the replay
            N_t ≥ 1 − x_j                          if there is a sure read after b_j
            N_t ≥ x_u − x_j                        for possible reads after b_j by ops u of other regions
        (4) L_{t,i} ≥ x_{u_i};   L_{t,i} ≥ L_{t,i+1};   before b_j also L_{t,i} ≥ N_t
        (5) U_k = sum of m_t over the tensors held between slots k − 1 and k: by a sure read, L or N
        (6) U_k + (bytes that op j(k) writes and that are not held before, and its workspace) · run_k ≤ budget

    run_k is 1 for first computes and x_j for replays. After its replay, a tensor with a sure read later is held up to
    that read for every choice: either the replay has computed it, or it was kept.

    The replay of PyTorch's ``checkpoint`` is that: it starts at the first saved tensor that the backward pass unpacks,
    runs the region's function from the start, and stops at the last one (``early_stop``). Values that no backward op
    needs are computed as well if the replay passes them. What such a policy cannot do: several replays of a region,
    a replay of a part of it, values dropped inside the forward pass and recomputed there, and another order.

    **Graph inputs**, tensors to keep, accumulation buffers and workspaces are as in `stages`; ops of regions write no
    buffers.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem.regions import regions_of
    >>> problem = Problem(unit_chain(4), 6)
    >>> regions = regions_of(problem, {"first": ["f0", "f1"], "second": ["f2", "f3"]})
    >>> model = Policies(problem, PoliciesOptions(regions)).build()
    >>> len(model.named.x), len(model.named.q)
    (4, 2)
    """

    name = "policies"
    options_type = PoliciesOptions

    def __init__(self, problem: Problem, options: PoliciesOptions | None = None) -> None:
        super().__init__(problem)
        self.options = options or PoliciesOptions()
        if problem.order is not OrderRule.FIXED:
            raise ProblemError("policies keep the reference order; ask for order 'fixed'", "order-rule")
        self.regions = self.options.regions_of(problem)
        self.replays = Replays(problem, self.regions)
        self.lives = Lives(problem, self.replays)
        scale = MemoryScale.of(problem, self.lives.buffers_and_workspace[1])
        self.unit, self.held, self.capacity = scale.unit, scale.held, scale.capacity

    def scope(self) -> Scope:
        notes = (Restriction.POLICIES,) if self.options.plain else (Restriction.POLICIES, Restriction.ALL_CHECKPOINTED)
        return Scope(OrderRule.FIXED, False, 2, notes)

    def build(self) -> Model:
        return self.statement[0]

    @cached_property
    def ops(self) -> list[int]:
        """Ops that a replay reaches, region by region; x has one entry for each."""
        return list(self.replays.region_of)

    @cached_property
    def columns(self) -> Columns:
        """Columns of x and q by op; N and L follow."""
        count = len(self.ops)
        return Columns(
            {op: number for number, op in enumerate(self.ops)},
            {op: count + region for op, region in self.replays.region_of.items()},
            self.replays.region_of,
            count + len(self.regions),
        )

    @cached_property
    def statement(self) -> tuple[Model, Named]:
        """Model and its variables."""
        model = Model(self.name)
        must_save, must_replay = self.replays.must_save, self.replays.must_replay
        x = model.booleans("x", len(self.ops), 0, np.array([op not in must_save for op in self.ops], dtype=np.int64))
        model.booleans("q", len(self.regions), 0, int(self.options.plain))
        at, rank = self.columns, np.arange(len(self.ops))
        sure = np.array([op in must_replay for op in self.ops], dtype=np.float64)
        model.add(
            rows_from(
                "(2) replayed or plain", (rank, x.index, 1), (rank, [at.plain[op] for op in self.ops], 1),
                num_rows=len(self.ops), lower=sure, upper=1,
            )
        )  # fmt: skip
        memory = HeldMemory(len(self.replays.slots))
        held = Held(at, memory)
        for life in self.lives:
            self.deadline.check()
            held.add(life)
        model.implied("held", held.count, 0, 1)
        model.add(held.rows(HELD))
        self._memory(model, memory)
        cost = self.problem.graph.arrays.cost[self.ops]
        model.minimize(x.index, cost, self.problem.graph.base_cost)  # (1)
        return model, model.named

    def _memory(self, model: Model, memory: HeldMemory) -> None:
        """Add (5), and those of (6) that some choice can violate."""
        slots, unit, (_, workspace) = self.replays.slots, self.unit, self.lives.buffers_and_workspace
        for own, (op, region) in zip(memory.own, slots, strict=True):
            own.append((self.columns.replayed[op] if region >= 0 else None, int(workspace[op])))
        most = memory.most // unit
        U, steps = model.implied("U", len(slots), 0, int(most.max(initial=0))), np.arange(len(slots))
        row, col, size = memory.changes()
        model.add(
            rows_from(
                HELD_BYTES, (steps, U.index, 1), (steps[1:], U.index[:-1], -1), (row, col, -size // unit),
                num_rows=len(slots), lower=memory.sure[:-1] // unit, upper=memory.sure[:-1] // unit,
            )
        )  # fmt: skip
        tight = np.flatnonzero(most > self.capacity).tolist()
        sure = [sum(size for run, size in memory.own[slot] if run is None) // unit for slot in tight]
        entries = [
            (number, run, size // unit)
            for number, slot in enumerate(tight)
            for run, size in memory.own[slot]
            if run is not None
        ]
        number, run, size = np.array(entries, dtype=np.int64).reshape(-1, 3).T
        model.add(
            rows_from(
                "(6) budget", (np.arange(len(tight)), U.index[tight], 1), (number, run, size),
                num_rows=len(tight), upper=self.capacity - np.array(sure, dtype=np.int64),
            )
        )  # fmt: skip

    def encode(self, schedule: Schedule) -> Values:
        return self.values_of(self.replays.choice(schedule, plain=self.options.plain))

    def values_of(self, saved: Saved) -> Values:
        """Return the values of all variables for a choice: N, L and U are the least that it allows."""
        model, named = self.statement
        graph, values = self.problem.graph, np.zeros(model.num_vars)
        bare = [region.name in saved.plain for region in self.regions]
        values[named.q.index] = bare
        for op, column in self.columns.replayed.items():
            values[column] = graph.op_names[op] not in saved.ops and not bare[self.replays.region_of[op]]
        held = next((record for record in model.records if record.name == HELD), None)
        if isinstance(held, Linear):  # otherwise there are no regions
            parts = np.flatnonzero(np.diff(held.row, prepend=-1, append=-1))
            for row, (first, last) in enumerate(pairwise(parts.tolist())):
                others = slice(first + 1, last)
                least = held.lower[row] - held.value[others] @ values[held.column[others]]
                values[held.column[first]] = max(values[held.column[first]], least)
        one_group = np.zeros(len(named.U), dtype=np.int64)
        values[named.U.index] = running_values(model, HELD_BYTES, named.U, values, one_group)
        return values

    def decode(self, values: Values) -> Schedule:
        return self.replays.schedule(self.saved(values), self.name)

    def saved(self, values: Values) -> Saved:
        """Return the choice that values represent."""
        _, named = self.statement
        plain = frozenset(
            region.name
            for region, chosen in zip(self.regions, values[named.q.index].tolist(), strict=True)
            if chosen > 0.5
        )
        ops = frozenset(
            self.problem.graph.op_names[op]
            for op, column in self.columns.replayed.items()
            if values[column] < 0.5 and self.regions[self.replays.region_of[op]].name not in plain
        )
        return Saved(ops, plain)

    def labels(self) -> Labels:
        return {
            "x": {"op": self.ops_named(np.array(self.ops, dtype=np.int64))},
            "q": {"region": [region.name for region in self.regions]},
        }
