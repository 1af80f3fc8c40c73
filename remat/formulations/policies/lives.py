"""Lives of tensors over the slots of a policy: pieces that are always held, and pieces that depend on the choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from remat.problem import Problem
from remat.problem.op_sequence import standing_buffers
from remat.problem.regions import Replays
from remat.runtime.arrays import Int

#: Slot of a second instance that does not exist.
NEVER = -1


@dataclass
class Life:
    """Reads of one tensor that ops write, over the slots.

    Attributes
    ----------
    writer : int
        Its op; of a buffer the first one.
    size : int
    first, again : int
        Slot of its first compute, and of its replay (:data:`NEVER` without one).
    early, late : int
        Last read that happens for every choice before the replay, and after it (:data:`NEVER` without one).
    early_tail, late_tail : list of (slot, op)
        Later reads by replays, in order: they happen if that op is replayed.
    """

    writer: int
    size: int
    first: int
    again: int
    early: int
    late: int
    early_tail: list[tuple[int, int]] = field(default_factory=list)
    late_tail: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Lives:
    """Lives of all tensors, and the workspace of each op."""

    problem: Problem
    replays: Replays

    @cached_property
    def buffers_and_workspace(self) -> tuple[np.ndarray, Int]:
        """Accumulation buffers that are held until they are read, and the workspace of each op."""
        return standing_buffers(self.problem)

    @cached_property
    def own_slots(self) -> tuple[list[int], dict[int, int]]:
        """Slot of the first compute of each op, and of the replay of each op that has one."""
        first, again = [0] * len(self.problem.graph.ops), dict[int, int]()
        for slot, (op, region) in enumerate(self.replays.slots):
            if region < 0:
                first[op] = slot
            else:
                again[op] = slot
        return first, again

    def __iter__(self) -> Iterator[Life]:
        arrays, slots = self.problem.graph.arrays, len(self.replays.slots)
        first, again = self.own_slots
        buffers, _ = self.buffers_and_workspace
        kept = self.problem.kept
        for tensor in np.flatnonzero(~arrays.is_input & (arrays.size > 0)).tolist():
            writers = arrays.producers[tensor].tolist()
            if not writers or (len(writers) > 1 and not buffers[tensor]):
                continue  # a buffer without a reader counts as workspace
            begin = min(first[op] for op in writers)
            replay = again.get(writers[0], NEVER) if len(writers) == 1 else NEVER
            readers = arrays.consumers[tensor].tolist()
            sure = [first[op] for op in readers]
            sure += [first[op] for op in writers] * (len(writers) > 1) + [slots] * bool(kept[tensor])
            maybe = sorted((again[op], op) for op in readers if op in again)
            early = max([begin, *(at for at in sure if replay == NEVER or at < replay)])
            late = NEVER if replay == NEVER else max((at for at in sure if at > replay), default=NEVER)
            yield Life(
                writers[0], int(arrays.size[tensor]), begin, replay, early, late,
                [(at, op) for at, op in maybe if at > early and (replay == NEVER or at < replay)],
                [(at, op) for at, op in maybe if replay != NEVER and at > max(late, replay)],
            )  # fmt: skip
