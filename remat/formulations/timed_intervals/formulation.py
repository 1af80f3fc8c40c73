"""Retention intervals in time: computes, copies on the host and the transfers between both memories."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from remat.formulations.base import Formulation, Values
from remat.formulations.programs import program_of
from remat.formulations.timed_intervals.encoder import ProgramEncoder, decoded
from remat.formulations.timed_intervals.layout import TimedIntervalsOptions, TimedLayout
from remat.formulations.timed_intervals.rows import TimedRows
from remat.modeling import Model
from remat.modeling.naming import Labels
from remat.modeling.size import ModelSize
from remat.problem import Objective, Problem
from remat.problem.op_sequence import MemoryScale, standing_buffers
from remat.problem.scope import AtMost, Limit, Restriction, Scope
from remat.schedule import Schedule


class TimedIntervals(Formulation):
    r"""Retention intervals in time, with copies of tensors on the host: the least time or energy of a machine.

    It extends Moccasin's retention intervals (Bartan et al., ICML 2023, §2), which name paging as future work. Events
    are replaced by time, so recomputations are not confined to stages.

    The energy follows POET (Patil et al., ICML 2022): computes and transfers take their time at the power of each.

    **Sets.** Ops v ∈ V with duration w_v; copies i = 1..C_v of each op. Fetches f = 1..F_t and writes q = 1..Q_t of
    each tensor t with size m_t; they take τ_t^r and τ_t^w. An *instance* of t is made by a copy of its writer or by a
    fetch.

    **Variables**, times from 0 to a horizon:

    * s, e of each copy: start and end; a ∈ {0, 1}: it runs.
    * of each fetch: g, the time at which it is issued and allocates its bytes; y and z, start and end of the read;
      r ∈ {0, 1}: it takes place.
    * of each write: p, the time at which it is issued and takes memory of the host; u and o, start and end of the
      write; d, the time at which the copy is discarded; b ∈ {0, 1}: it takes place.
    * of each instance: l, the time at which it is freed. It is present if its copy runs or its fetch takes place. It
      begins at s or g, and is complete at e or z.
    * T, the time of the schedule.

    **Constraints**::

        (1)  minimise  T,  or the energy  sum c_v a + sum ε_t^r r + sum ε_t^w b
        (2)  e = s + w;   z = y + τ^r;   o = u + τ^w
        (3)  of each instance, complete ≤ l; the intervals [begin, l) of the instances of a tensor do not overlap
        (4)  copies, fetches and writes of one op or tensor are used in sequence;
             with the fixed order, e of the first copy of an op ≤ s of that of the next one
        (5)  a copy reads each input from one present instance: complete ≤ s and e ≤ l
        (6)  the intervals [s, e) of computes do not overlap, and no g and no p is strictly inside of one;
             the intervals [y, z) do not overlap, nor do the intervals [u, o); half duplex: all of both
        (7)  a = 1 for the first copy of each op
        (8)  a write copies one present instance: complete ≤ p, u and o ≤ l
        (9)  a fetch reads one copy that is written: o ≤ y and z ≤ d;   g ≤ y
        (10) sum of m_t over instances with begin ≤ k < l, plus workspaces of computes at k, ≤ budget   at every time k
        (11) p ≤ u;   o ≤ d;   d of one write ≤ p of the next one of the tensor
        (12) sum of m_t over writes with p ≤ k < d, ≤ capacity of the host                              at every time k
        (13) an instance of each tensor to keep has the largest l
        (14) an accumulation buffer is allocated before its writers start and complete when they end
        (15) e ≤ T and z ≤ T; implied: sums of w, of τ^r, and of τ^w are at most T
        (16) implied: each recomputation, fetch and write serves one of (5), (8), (9) and (13)
        (17) T ≤ time limit of the machine

    c_v is the cost of an op. ε_t^r and ε_t^w are the energies of transfers, in units of that of a cost unit of
    computing. p, d, (11) and (12) are only there if the capacity of the host is less than the bytes of all tensors it
    may get.

    **The model is exact.** Let a *gap* be a time at which no compute is under way. A valid program gives a solution:
    the times of :func:`remat.schedule.timing.time_schedule`, where g and p are the clock of the device when a step is
    issued. It is in a gap, and what precedes in the program is not later, so (10) and (12) hold. Conversely, a solution
    gives a program. A transfer is issued in the last gap that is not after its start, which is not before g or p. A
    free or discard takes place in the first gap after it. Memory only falls by that, as nothing is allocated between.
    Transfers on one link are issued in the sequence of their starts. So by induction over the program, every step takes
    place at the latest when it does in the solution.

    Work that takes no time gets one tick, a fraction of the unit so small that all of it together is less than a unit.
    Then steps that depend on each other never share a time, and times rounded down to units are exact.

    With an unlimited host, one write of each tensor suffices: its copy serves all fetches. Graph inputs stay on the
    device, and accumulation buffers are not moved; ops that contribute to one run once.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(replace(unit_chain(4), cost_unit="us"), 3, machine="rate=1MB/s")
    >>> print(TimedIntervals(problem).build())  # doctest: +ELLIPSIS
    model timed-intervals: ...
    """

    name = "timed-intervals"
    options_type: ClassVar[type | None] = TimedIntervalsOptions
    objectives = frozenset({Objective.LEAST_TIME, Objective.LEAST_ENERGY})
    moves: ClassVar[bool] = True

    def __init__(self, problem: Problem, options: TimedIntervalsOptions | None = None) -> None:
        super().__init__(problem)
        self.options = options or TimedIntervalsOptions()
        self.scale = MemoryScale.of(problem, standing_buffers(problem)[1])

    @cached_property
    def layout(self) -> TimedLayout:
        """Copies, transfers and instances."""
        return TimedLayout(self.problem, self.options)

    def scope(self) -> Scope:
        at, options = self.layout, self.options
        most = max(options.copies if limit is None else limit for limit in self.problem.compute_limits)
        notes: list[Restriction | AtMost] = []
        if (self.problem.graph.arrays.producers.counts > 1).any():
            notes.append(Restriction.CONTRIBUTE_ONCE)
        if not at.is_complete.all():
            notes.append(AtMost(Limit.FETCHES, options.fetches))
        if at.is_limited and (at.needed_fetches > options.writes).any():
            notes.append(AtMost(Limit.WRITES, options.writes))
        return Scope(self.problem.order, False, most, tuple(notes))

    def estimate(self) -> ModelSize:
        at = self.layout
        intervals = len(at.instance_tensor) + 2 * len(at.duration) + 3 * (len(at.fetches) + len(at.writes))
        pairs = len(at.read_pair) + len(at.origin_write) + len(at.source_fetch)
        return ModelSize(8 * intervals + 6 * pairs)

    def linear_estimate(self) -> ModelSize:
        at = self.layout
        points = len(at.duration) + len(at.fetches) + len(at.writes)
        return replace(self.estimate(), nonzeros=self.estimate().nonzeros + 8 * points**2 + 4 * at.horizon)

    def build(self) -> Model:
        return self.statement.model

    @cached_property
    def statement(self) -> TimedRows:
        """Variables and constraints, with the model."""
        at = self.layout
        timed = self.most_cost is not None and self.objective.includes_time
        most = self.most_cost if timed and self.most_cost is not None else at.in_units(at.horizon)
        rows = TimedRows(at, Model(self.name), self.scale, most)
        rows.add_all(self.deadline)
        return rows

    def encode(self, schedule: Schedule) -> Values:
        rows = self.statement
        return ProgramEncoder(rows, program_of(self.problem, schedule)).encode()

    def decode(self, values: Values) -> Schedule:
        program = decoded(self.statement, values).useful(self.problem)
        return program.schedule(self.problem, self.name)

    def labels(self) -> Labels:
        at = self.layout
        copy = {"op": self.ops_named(at.copies.copy_node), "compute": at.copies.copy_rank}
        fetch = {"tensor": self.tensors_named(at.fetches.tensor), "fetch": at.fetches.rank}
        write = {"tensor": self.tensors_named(at.writes.tensor), "write": at.writes.rank}
        host = write if at.is_limited else {"tensor": [], "write": np.zeros(0, dtype=np.int64)}
        return {
            **dict.fromkeys(("active", "start", "finish"), copy),
            **dict.fromkeys(("fetched", "issue", "read_start", "arrival"), fetch),
            **dict.fromkeys(("copied", "write_start", "written"), write),
            **dict.fromkeys(("reserve", "discard"), host),
        }
