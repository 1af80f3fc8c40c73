"""Stages in which ops run again, and where that makes tensors live, as bits of whole numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from remat.bounds.stage_relaxation import StageRelaxation
from remat.modeling.rows import NONE
from remat.runtime.arrays import Bool, Int


class Lifetimes(NamedTuple):
    """Where a tensor is live, and which runs of its writer are of use.

    Both by the set of stages in which its writer runs again, then by the set of those in which readers request it.
    """

    live: Int
    """1 at events at which it must be live, shape (sets, sets, events)."""
    of_use: Int
    """Stages in which a run of the writer is of use, as bits, shape (sets, sets)."""
    of_use_of_fewer: Int
    """Stages in which it can be of use for given requests, with any runs in later stages, shape (sets,)."""


@dataclass(eq=False)
class StageSets:
    """Sets of stages of a built relaxation: bit *i* stands for the stage that follows event *i*.

    Given the stages in which each op runs again, the tensors that must be live follow: those that a first compute, a
    reader that runs again or a later event requires, back to the event before which their writer ran last.

    Attributes
    ----------
    again : int64 array, shape (ops,)
        Stages in which an op may run again.
    wanted, free, links : int64 array, shape (tensors,)
        Stages in which a first compute requests a tensor; events whose op reads or writes it; and stages in which a
        request of a reader that runs again matters.
    held : bool array, shape (tensors,)
        Marks tensors that may take memory at an event.
    size : int64 array, shape (tensors, events)
        Bytes that a tensor takes at each event if it is live.
    room : int64 array, shape (events,)
    writer : int64 array, shape (tensors,)
        The only writer; -1 if there is none or there are several.
    """

    relaxation: StageRelaxation

    def __post_init__(self) -> None:
        relaxation = self.relaxation
        arrays = self._arrays = relaxation.problem.graph.arrays
        self.count = len(relaxation.events)
        self.full = (1 << self.count) - 1
        live = np.array(relaxation.live)
        self.size: Int = (arrays.size * (live >= 0)).T
        self.room: Int = np.array([relaxation.room(event) for event in relaxation.events])
        weight = 1 << np.arange(self.count)
        stages = relaxation.stages[1:]
        self.again: Int = weight @ np.array([stage.again >= 0 for stage in stages])
        wanted = np.zeros(live.shape, dtype=np.bool_)
        for marks, stage in zip(wanted, stages, strict=True):
            marks[relaxation.needed(stage)[1]] = True
        self.wanted: Int = weight @ wanted
        self.free: Int = weight @ np.array([relaxation.at(event) for event in relaxation.events])
        self.held: Bool = np.any(live >= 0, axis=0)
        single = arrays.producers.counts == 1
        writer: Int = np.where(single, arrays.producers.highest(np.arange(len(arrays.cost)), NONE), NONE)
        self.writer = writer
        old = arrays.position[np.maximum(writer, 0)] <= np.array(relaxation.events)[:, None]
        self._old: Int = weight @ (old & (writer >= 0))
        self.links: Int = self._old & ~self.wanted & ~self.free
        self._known: dict[tuple[int, int, int], Lifetimes] = {}

    @staticmethod
    def applies(relaxation: StageRelaxation) -> bool:
        """Return True if no tensor with variables has several writers."""
        shared = relaxation.problem.graph.arrays.producers.counts > 1
        return bool(relaxation.events) and not any((live[shared] >= 0).any() for live in relaxation.live)

    def cost(self, op: int) -> int:
        """Return the cost of an op in units of the relaxation."""
        return int(self._arrays.cost[op]) // self.relaxation.unit

    def options(self, op: int) -> list[int]:
        """Return the sets of stages in which an op may run again."""
        mask, limit = int(self.again[op]), self.relaxation.problem.compute_limits[op]
        most = self.count if limit is None else limit - 1
        return [k for k in range(self.full + 1) if k & ~mask == 0 and k.bit_count() <= most]

    @cached_property
    def all_again(self) -> int:
        """Cost if every op runs again wherever it may."""
        most = (self.cost(op) * max(each.bit_count() for each in self.options(op)) for op in range(len(self.again)))
        return sum(most)

    def lifetimes(self, tensor: int) -> Lifetimes:
        """Return where a tensor is live; tensors with the same stages share the arrays."""
        key = int(self.wanted[tensor]), int(self.free[tensor]), int(self._old[tensor])
        if key not in self._known:
            self._known[key] = self._lifetimes(*key)
        return self._known[key]

    def _lifetimes(self, wanted: int, free: int, old: int) -> Lifetimes:
        sets = np.arange(self.full + 1)
        again, requests = sets[:, None], sets[None, :] | wanted
        shape = len(sets), len(sets)
        live = np.zeros((*shape, self.count), dtype=np.int64)
        of_use, later = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        possible, ahead = np.zeros(len(sets), dtype=np.int64), np.zeros(len(sets), dtype=np.int64)
        for i in range(self.count - 1, -1, -1):
            asked, touched = requests >> i & 1, free >> i & 1
            of_use |= (later | asked) << i
            ahead = ahead | asked[0]
            possible |= (ahead | touched) << i
            if (old & ~free) >> i & 1:
                later = (later | asked) & ~(again >> i & 1)
            else:
                later = np.zeros_like(later)
            if touched:
                ahead = np.zeros_like(ahead)
            live[:, :, i] = later
        return Lifetimes(live, of_use, possible)

    def live(self, again: Int) -> Bool:
        """Return the tensors that are live at each event, given the stages in which each op runs again.

        Shape (events, tensors).
        """
        arrays = self._arrays
        requests = np.zeros(len(arrays.size), dtype=np.int64)
        np.bitwise_or.at(requests, arrays.edge_tensor, again[arrays.edge_consumer])
        live = np.zeros((self.count, len(arrays.size)), dtype=np.bool_)
        for tensor in np.flatnonzero(self.held).tolist():
            asked = int(requests[tensor]) & int(self.links[tensor])
            live[:, tensor] = self.lifetimes(tensor).live[int(again[self.writer[tensor]]), asked] > 0
        return live
