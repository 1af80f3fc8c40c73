"""Stage relaxation with a host: bounds the time of schedules that recompute, offload and fetch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from remat.bounds.stage_relaxation import Stage, StageRelaxation, numbered
from remat.modeling import Linear, Model
from remat.modeling.rows import NONE, Term, rows_from
from remat.problem.transfer_times import TransferTimes
from remat.runtime.arrays import Bool, Int

#: Number of rows (17) of an event.
MOST_TOGETHER = 6
#: Largest coefficient of the objective, since HiGHS fails on much larger ones: longer times are rounded down to
#: multiples of a unit.
LARGEST = 10**6


@dataclass(frozen=True)
class _MovingStage(Stage):
    """A stage with more variables of each tensor, −1 where there is none, and the variable ``stall``.

    `allocated` is `here` unless tensors are allocated as a whole.
    """

    allocated: Int
    host: Int
    write: Int
    stall: int


@dataclass(eq=False)
class TransferRelaxation(StageRelaxation):
    """Stage relaxation of a problem on a machine with a host, for the least time.

    Sets: as in :class:`remat.bounds.stage_relaxation.StageRelaxation`. A tensor *moves* if the machine has links in
    both directions and an op writes it; it is *whole* after the first computes of all of its writers. The clock time of
    an event is the start of its compute. A stage lasts from the clock time of one event, or the start of the schedule,
    to that of the next, or the end.

    Variables: ``again``, ``live`` and ``through`` as there, but ``live[j, t]`` is 1 if ``t`` is on the device or on the
    host. For tensors that move, from 0 to 1: ``here[j, t]``, the part of ``t`` that is on the device at event ``j``, 1
    once it is computed or has arrived (``live[j, t]`` for others); ``host[j, t]``, the part that is on the host;
    ``write[j, t]`` and ``read[j, t]``, the part of the time of one transfer of ``t`` that lies in stage ``j``, at
    most 1. ``stall[j] >= 0``, the time of a stage without its first computes and the costs of ``again`` (in the
    model as multiples of the longest cost or transfer).

    Minimise ``sum cost(o) again[j, o] + sum stall[j]`` subject to (2) to (4), (7) and (8); to (1), (5) and (6) with
    ``here`` in place of ``live``, and in (5) with ``again[j, w] + read[j, t]`` in place of ``again[j, w]``; and to

    (9) ``live[j, t] <= here[j, t] + host[j, t]`` and ``host[j, t] <= live[j, t]``;
    (10) ``here[j, t] <= here[j − 1, t] + sum of again[j, writers of t] + read[j, t]`` for old ``t``;
    (11) ``here[j − 1, t] + again[j, w] + read[j, t] >= 1``, or ``>= again[j, o]``, wherever (3) or (4) has
         ``live[j − 1, t] + again[j, w]``;
    (12) ``host[j, t] <= host[j − 1, t] + write[j, t]``; there is no ``write[j, t]`` before ``t`` is whole;
    (13) ``sum size(t) host[j, t]`` is at most the memory of the host;
    (14) link to the host: ``sum write time(t) write[j, t] <= base[j] + sum cost(o) again[j, o] + stall[j]``, where
         ``base[j]`` is the cost of first computes from event ``j − 1`` until before event ``j``; the same for the link
         back with ``read``; with half duplex one row for the sum of both;
    (15) for each event ``a``: ``ever[a, o] <= sum of again[j, o]`` and ``more[a, t] <= sum of read[j, t]`` over all
         stages ``j`` after it, ``ever[a, o] >= again[a + 1, o]``, ``ever[a, o] >= ever[a + 1, o]``;
    (16) (3), (4) and (11) for the stage from event ``a`` to the end, with ``ever[a, ·]`` and ``more[a, ·]`` in place of
         ``again[j, ·]`` and ``read[j, ·]``;
    (17) for each event ``j`` and each ``m`` below 6: the sum of those ``here[j, t]`` where ``m + 1`` times ``size(t)``
         exceeds what the op of the event leaves of the budget is at most ``m``.

    With `whole`, the boolean ``allocated[j, t]`` replaces ``here[j, t]`` in (1) and (17), and

    (18) ``here[j, t] <= allocated[j, t]``.

    It changes no linear relaxation, but integer programmes: the device holds no part of a tensor.

    *Proof.* Take any schedule with this order of first computes, and set the variables as described. Set
    ``ever[a, o] = 1`` if ``o`` runs again after event ``a``, and ``more[a, t]`` to the sum of reads, at most 1.

    (2) to (4), (7), (16): a copy is made only of a value on the device. So a value that exists at an event existed at
    the event before, or a writer ran in between. (1): bytes are allocated before they arrive. (5), (6): if a tensor is
    not on the device throughout a stage, its part at the end was computed or read in the stage. (9): a free waits for
    the write, and the host keeps the copy until the tensor has arrived, so a value that is not complete on the device
    has a complete copy. Of a value that is nowhere complete there is no copy: while one is written, the value is on the
    device. (10), (11): a fetch issued after the compute of an event begins after it, and an op starts
    after its inputs have arrived; so what is not there at the event, and not computed since, is read in between.
    (12): a copy is written after the computes of its value; where an event divides its time, ``host`` is the part
    written so far, and the tensor is still on the device. (14): a link does one transfer at a time, and computes do not
    overlap. (15): by definition. (17): a tensor that is partly here is allocated as a whole, and ``m + 1`` of these do
    not fit. (18): bytes are allocated before they arrive. The time of the schedule is the sum of all stages. ∎

    The rows (15) and (16) make the linear relaxation at least as high as with any single one of its events. Without
    them, recomputations by halves in two stages replace a whole one.

    Parameters
    ----------
    whole : bool
        Add the variables ``allocated`` and the rows (18).
    """

    whole: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        arrays, machine = self.problem.graph.arrays, self.problem.machine
        assert machine is not None
        self._machine = machine
        self._write, self._read, linked, _ = TransferTimes.of(self.problem)
        self._whole = arrays.producers.highest(arrays.position, -1)
        self._moves = linked & self.own
        self._span = max(1, *(int(times.max()) for times in (arrays.cost, self._write, self._read)))
        self.unit = max(1, self._span // LARGEST)

    def _variables(self, model: Model, since: int, until: int) -> Stage:
        plain = super()._variables(model, since, until)
        stall = int(model.continuous("stall", 1, 0, np.inf).index[0])
        read = _parts(model, "read", self._moves & (self._whole <= since) & (self._use > since))
        here, copied = plain.live.copy(), np.zeros(len(read), dtype=np.bool_)
        allocated = here
        if until < len(self.problem.graph.arrays.cost):
            copied = self._moves & (self._whole < until) & (self._use > until)
            away = copied & (plain.live >= 0)
            here[away] = _parts(model, "here", away)[away]
            if self.whole:
                allocated = plain.live.copy()
                allocated[away] = model.booleans("allocated", int(away.sum())).index
        return _MovingStage(
            since, until, plain.again, plain.live, plain.through, here, read,
            allocated=allocated, host=_parts(model, "host", copied), write=_parts(model, "write", copied), stall=stall,
        )  # fmt: skip

    def _transfers(self, stage: Stage, before: Stage | None) -> list[Linear]:
        """Return the rows (9) to (14), (17) and (18)."""
        assert isinstance(stage, _MovingStage)
        rows = [*self._fetched(stage, before), *self._links(stage)]
        if stage.until < len(self.problem.graph.arrays.cost):
            rows += [self._remains(stage, before), *self._copies(stage, before), *self._whole_tensors(stage)]
        return rows

    def _memory(self, stage: Stage) -> Linear:
        assert isinstance(stage, _MovingStage)
        return super()._memory(replace(stage, here=stage.allocated))

    def _whole_tensors(self, stage: _MovingStage) -> list[Linear]:
        """Return the rows (17) and (18)."""
        arrays = self.problem.graph.arrays
        room = self._budget - int(arrays.op_bytes[arrays.order[stage.until]])
        there = np.flatnonzero(stage.allocated >= 0)
        size = arrays.size[there]
        moved = np.flatnonzero(stage.allocated != stage.here)
        row = np.arange(len(moved))
        terms = (row, stage.allocated[moved], 1), (row, stage.here[moved], -1)
        rows = [rows_from("allocated", *terms, num_rows=len(row), lower=0)]
        for most in range(MOST_TOGETHER):
            large = there[size * (most + 1) > room]
            if len(large) > most:
                rows.append(rows_from("whole tensors", (0, stage.allocated[large], 1), num_rows=1, upper=most))
        return rows

    def _fetched(self, stage: Stage, before: Stage | None) -> list[Linear]:
        """Return the rows (11)."""
        reader, writer, tensor = self.asked(stage)
        moved = stage.read[tensor] >= 0
        row, reader = np.arange(int(moved.sum())), reader[moved]
        asked = (row, stage.again[reader], -1), *self._regained(stage, before, writer[moved], tensor[moved])
        writer, tensor = self.needed(stage)
        moved = stage.read[tensor] >= 0
        needed = self._regained(stage, before, writer[moved], tensor[moved])
        return [
            rows_from("here for what runs again", *asked, num_rows=len(row), lower=0),
            rows_from("here for what runs first", *needed, num_rows=int(moved.sum()), lower=1),
        ]

    @staticmethod
    def _regained(stage: Stage, before: Stage | None, writer: Int, tensor: Int) -> list[Term]:
        """Return terms, one row per tensor, for its part here before the stage, the runs of a writer, and reads."""
        row = np.arange(len(tensor))
        held = np.full(len(tensor), NONE) if before is None else before.here[tensor]
        return [(row, held, 1), (row, stage.again[writer], 1), (row, stage.read[tensor], 1)]

    def _remains(self, stage: Stage, before: Stage | None) -> Linear:
        """Return the rows (10)."""
        lasting = self._lasting(stage)
        lasting = lasting[stage.here[lasting] != stage.live[lasting]]
        row = np.arange(len(lasting))
        held = np.full(len(row), NONE) if before is None else before.here[lasting]
        terms = (row, stage.here[lasting], -1), (row, held, 1), (row, stage.read[lasting], 1)
        return rows_from("here on", *terms, self._runs(stage, lasting), num_rows=len(row), lower=0)

    def _copies(self, stage: _MovingStage, before: Stage | None) -> list[Linear]:
        """Return the rows (9), (12) and (13)."""
        away = np.flatnonzero(stage.here != stage.live)
        row = np.arange(len(away))
        somewhere = (row, stage.live[away], -1), (row, stage.here[away], 1), (row, stage.host[away], 1)
        copied = np.flatnonzero(stage.host >= 0)
        line = np.arange(len(copied))
        last = before.host[copied] if isinstance(before, _MovingStage) else np.full(len(line), NONE)
        written = (line, stage.host[copied], -1), (line, last, 1), (line, stage.write[copied], 1)
        both = copied[stage.live[copied] >= 0]
        copies = np.arange(len(both))
        exist = (copies, stage.live[both], 1), (copies, stage.host[both], -1)
        found = [
            rows_from("here or on the host", *somewhere, num_rows=len(row), lower=0),
            rows_from("copies of what is live", *exist, num_rows=len(copies), lower=0),
            rows_from("copies", *written, num_rows=len(line), lower=0),
        ]
        if self._machine.host is not None:
            size = self.problem.graph.arrays.size[copied] / self.scale
            room = self._machine.host / self.scale
            found.append(rows_from("host memory", (0, stage.host[copied], size), num_rows=1, upper=room))
        return found

    def _links(self, stage: _MovingStage) -> list[Linear]:
        """Return the rows (14)."""
        arrays = self.problem.graph.arrays
        runs = np.flatnonzero(stage.again >= 0)
        base = int(arrays.cost[arrays.order[max(0, stage.since) : stage.until]].sum())
        time = (0, stage.again[runs], arrays.cost[runs] / self._span), (0, stage.stall, 1)
        out: Term = (0, stage.write, -self._write / self._span)
        back: Term = (0, stage.read, -self._read / self._span)
        busy = [[out], [back]] if self._machine.full_duplex else [[out, back]]
        return [rows_from("link", *time, *moves, num_rows=1, lower=-base / self._span) for moves in busy]

    def _afterwards(self, model: Model, stages: list[Stage]) -> list[Linear]:
        """Return the rows (15) and (16); for the last event they are those of the last stage."""
        n = len(self.problem.graph.arrays.cost)
        rows: list[Linear] = []
        whole = stages[-1]
        for a in range(len(stages) - 3, -1, -1):
            event, following, later = stages[a], stages[a + 1], whole
            ever = _parts(model, "ever", following.again >= 0)
            more = _parts(model, "more", following.read >= 0)
            whole = replace(following, until=n, again=ever, read=more)
            rows += [
                _at_most("ever", ever, [stage.again for stage in stages[a + 1 :]]),
                _at_most("more", more, [following.read, later.read]),
                *(_at_most("ever if again", part, [ever]) for part in (following.again, later.again)),
                self._requests(whole, event),
                self._needs(whole, event),
                *self._fetched(whole, event),
            ]
        return rows

    def _costs(self, model: Model, stages: list[Stage]) -> tuple[Int, Int]:
        index, cost = super()._costs(model, stages)
        stalls = [stage.stall for stage in stages if isinstance(stage, _MovingStage)]
        return np.append(index, stalls), np.append(cost, np.full(len(stalls), self._span // self.unit))


def _parts(model: Model, name: str, where: Bool) -> Int:
    """Add variables from 0 to 1 at the marked positions; return an array of them, −1 elsewhere."""
    place = np.flatnonzero(where)
    return numbered(len(where), place, model.continuous(name, len(place), 0, 1).index)


def _at_most(name: str, smaller: Int, larger: list[Int]) -> Linear:
    """Return rows ``smaller[i] <= sum of larger[·][i]`` where both sides may be positive."""
    there = np.flatnonzero((smaller >= 0) & (larger[0] >= 0))
    row = np.arange(len(there))
    terms = [(row, smaller[there], -1), *((row, part[there], 1) for part in larger)]
    return rows_from(name, *terms, num_rows=len(row), lower=0)
