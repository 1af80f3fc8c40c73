"""Runs of the parts of options: memory by sub-step, and the tensors that cross the border of the group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from remat.errors import ProblemError
from remat.graphs import ComputeGraph
from remat.graphs.arrays import GraphArrays
from remat.modeling.rows import expand
from remat.runtime.arrays import Bool, Int

#: Largest number of memory rows of one run: comparing them takes its square for each interface.
MOST_ROWS = 64


@dataclass(frozen=True, eq=False)
class Row:
    """Sub-steps of a run at which the same of its interfaces are live, with the largest memory among them.

    The memory of the schedule at such a sub-step is a sum: the memory held after the run, `memory`, and all interfaces
    that are freed with the run. Those of them in `freed` are subtracted, and those in `not_made` that the run makes.
    """

    memory: int
    """Bytes of internal tensors and workspace, without interfaces."""
    freed: Int
    """Interfaces whose last use in the run is before these sub-steps: not live here if they are freed with the run."""
    not_made: Int
    """Interfaces that the run has not made yet (or again): not live here if this run makes them."""


@dataclass(frozen=True, eq=False)
class Run:
    """One part of an option: a sequence of ops that runs as a whole, as the compute of one node.

    Attributes
    ----------
    option : int
        Number of the option among those of its composite; 0 for a single op.
    ops : int64 array, shape (sub-steps,)
        Ops of the flat graph in the order in which they are computed; an op may occur several times.
    cost : int
        Cost of all sub-steps.
    memory : int64 array, shape (sub-steps,)
        Bytes held at each sub-step in addition to interfaces: internal tensors (including those that the forward part
        saved for the backward part), the run's private copies of interfaces, and the op's workspace.
    phantom : int64 array
        Internal tensors that are held afterwards, for the backward part. None for backward parts.
    saved : int
        Bytes of the phantom.
    tensor : int64 array, shape (interfaces,)
        Tensors of the flat graph that cross the border and that this run needs or makes, ascending.
    needs, makes : bool arrays, shape (interfaces,)
        True if the tensor must be live and complete before the run; true if the run writes it for other nodes.
    last : int64 array, shape (interfaces,)
        Last sub-step that reads or writes it.
    absent_tensor, absent_from, absent_until : int64 arrays
        Sub-steps ``from <= i < until`` in which an interface that the run makes is not live, unless it was before.
    """

    option: int
    ops: Int
    cost: int
    memory: Int
    phantom: Int
    saved: int
    tensor: Int
    needs: Bool
    makes: Bool
    last: Int
    absent_tensor: Int
    absent_from: Int
    absent_until: Int

    @property
    def peak(self) -> int:
        """Largest of `memory`."""
        return int(self.memory.max(initial=0))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Memory rows of the run, by sub-steps with the same live interfaces; no row implies another.

        If every row of the chosen run keeps the budget, the schedule keeps it at every sub-step. In long runs,
        consecutive sub-steps share a row, which has their largest memory and the corrections that all of them have.
        """
        steps = len(self.ops)
        marks = np.concatenate([[0], self.last + 1, self.absent_from, self.absent_until])
        begins = np.unique(marks[marks < steps])
        if not steps:
            return ()
        if len(begins) > MOST_ROWS:
            begins = begins[np.arange(MOST_ROWS) * len(begins) // MOST_ROWS]
        ends = np.append(begins[1:], steps)
        most = np.maximum.reduceat(self.memory, begins)
        gone = self.last[:, None] < begins
        hidden = np.zeros((len(self.tensor), len(begins)), dtype=np.bool_)
        which = np.searchsorted(self.tensor, self.absent_tensor)
        inside = (self.absent_from[:, None] <= begins) & (ends <= self.absent_until[:, None])
        np.logical_or.at(hidden, which, inside)
        return undominated([
            Row(int(held), self.tensor[gone[:, i]], self.tensor[hidden[:, i]]) for i, held in enumerate(most)
        ])  # fmt: skip


def undominated(rows: list[Row]) -> tuple[Row, ...]:
    """Return the rows that no other implies by a subset of the corrections and at least as much memory."""
    found: list[tuple[Row, frozenset[int], frozenset[int]]] = []
    for row in sorted(rows, key=lambda each: (-each.memory, len(each.freed) + len(each.not_made))):
        freed, hidden = frozenset(row.freed.tolist()), frozenset(row.not_made.tolist())
        if not any(f <= freed and h <= hidden for _, f, h in found):
            found.append((row, freed, hidden))
    return tuple(row for row, _, _ in found)


@dataclass(frozen=True, eq=False)
class Border:
    """Border between groups: the tensors of a graph that do not cross it."""

    graph: ComputeGraph
    internal: Bool
    """Tensors that only ops of one group touch, and that are not kept to the end. Shape (tensors,)."""
    passing: Bool
    """Tensors that are neither read nor kept: live only while they are written. Shape (tensors,)."""

    @property
    def arrays(self) -> GraphArrays:
        """Arrays of the graph."""
        return self.graph.arrays


class _Touches(NamedTuple):
    """All reads and writes of a sequence of ops, by tensor, then sub-step; without graph inputs."""

    tensor: Int
    step: Int
    written: Bool


def _touches(arrays: GraphArrays, ops: Int) -> _Touches:
    tensors: list[Int] = []
    steps: list[Int] = []
    writes: list[Bool] = []
    for table, written in ((arrays.op_inputs, False), (arrays.op_outputs, True)):
        step, rank = expand(table.counts[ops])
        tensor = table.indices[table.indptr[ops[step]] + rank]
        own = ~arrays.is_input[tensor]
        tensors.append(tensor[own])
        steps.append(step[own])
        writes.append(np.full(int(own.sum()), written))
    tensor, step, is_write = np.concatenate(tensors), np.concatenate(steps), np.concatenate(writes)
    by = np.lexsort((is_write, step, tensor))
    return _Touches(tensor[by], step[by], is_write[by])


def _early_reads(arrays: GraphArrays, touches: _Touches, ops: Int, buffers: Int) -> Int:
    """Return those of `buffers` that are read before all their writers have run here."""
    tensor, step, written = touches
    early = []
    for buffer in buffers.tolist():
        first, end = np.searchsorted(tensor, [buffer, buffer + 1])
        reads = step[first:end][~written[first:end]]
        if not len(reads):
            continue
        writers = np.unique(ops[step[first:end][written[first:end] & (step[first:end] < reads[0])]])
        if len(writers) < arrays.producers.counts[buffer]:
            early.append(buffer)
    return np.array(early, dtype=np.int64)


def make_run(
    border: Border, ops: Int, own: Bool, *, option: int, saved: Int, taken: Int | None, who: str
) -> tuple[Run, Int]:
    """Build the run of a sequence of ops.

    Raise ProblemError if the sequence reads an internal tensor that is not live, or one of its own outputs before
    making it.

    Parameters
    ----------
    ops : int64 array
    own : bool array, shape (ops of the graph,)
        Ops whose outputs the node makes for others; outputs of other ops of the sequence are private copies.
    saved : int64 array
        Internal tensors that are held afterwards.
    taken : int64 array or None
        Internal tensors that are live at the start; None: those that the sequence reads before it writes them.
    who : str
        Name of the part in messages.

    Returns
    -------
    run : Run
    taken : int64 array
        Internal tensors that are live at the start.
    """
    arrays, steps = border.arrays, len(ops)
    size = arrays.size
    touches = _touches(arrays, ops)
    tensor, step, written = touches
    mine = np.zeros(len(size), dtype=np.bool_)  # made for others
    writer = ops[step[written]]
    mine[tensor[written][own[writer]]] = True
    mine &= ~border.internal & ~border.passing
    is_read, is_saved = (np.zeros(len(size), dtype=np.bool_) for _ in range(2))
    is_read[tensor[~written]] = True
    is_saved[saved] = True
    # an accumulation buffer is held from its first contribution on if it is needed, otherwise only while it is written
    held = (arrays.producers.counts > 1) & (is_read | is_saved | mine)
    begins = np.append(True, tensor[1:] != tensor[:-1])[: len(tensor)]
    begins |= written & ~held[tensor]
    at = np.flatnonzero(begins)
    last = np.append(at, len(tensor))[1:] - 1  # also where no tensor is touched
    what, start, end = tensor[at], step[at], step[last]
    outside = ~written[at]  # read before it is written here
    early = _early_reads(arrays, touches, ops, np.unique(what[held[what]]))
    outside |= np.isin(what, early)
    final = np.append(what[1:] != what[:-1], True)[: len(what)]

    internal, needs = border.internal[what], outside & ~border.internal[what]
    entering = np.unique(what[outside & internal])
    missing = entering[:0] if taken is None else np.setdiff1d(entering, taken)
    _check_there(border, np.append(what[needs & mine[what] & ~held[what]], missing), ops, who)
    lives = internal | border.passing[what] | ~(mine[what] | needs)
    begin = np.where(outside, 0, start)
    until = np.where(final & is_saved[what], steps - 1, end)
    change = np.zeros(steps + 1, dtype=np.int64)
    np.add.at(change, begin[lives], size[what[lives]])
    np.subtract.at(change, until[lives] + 1, size[what[lives]])
    memory = np.cumsum(change)[:steps] + arrays.workspace[ops]

    crossing = np.unique(what[(mine[what] | needs) & ~internal & ~border.passing[what]])
    place = np.full(len(size), -1, dtype=np.int64)
    place[crossing] = np.arange(len(crossing))
    need = np.zeros(len(crossing), dtype=np.bool_)
    need[place[what[needs]]] = True
    used = np.zeros(len(crossing), dtype=np.int64)
    counts = (place[what] >= 0) & (needs | mine[what])  # a later private copy is not a use
    np.maximum.at(used, place[what[counts]], end[counts])
    made = mine[what] & ~outside
    before = np.append(0, end[:-1] + 1)[: len(what)]  # an instance is freed after its last use, until the next one
    before = np.where(np.append(True, what[1:] != what[:-1])[: len(what)], 0, before)
    made &= before < start
    run = Run(
        option=option, ops=ops, cost=int(arrays.cost[ops].sum()), memory=memory, phantom=saved,
        saved=int(size[saved].sum()), tensor=crossing, needs=need, makes=mine[crossing], last=used,
        absent_tensor=what[made], absent_from=before[made], absent_until=start[made],
    )  # fmt: skip
    return run, entering


def _check_there(border: Border, missing: Int, ops: Int, who: str) -> None:
    """Raise an error if the sequence reads any of `missing`."""
    for tensor in missing.tolist():
        reader = next(op for op in ops.tolist() if tensor in border.arrays.op_inputs[op])
        name, what = border.graph.op_names[reader], border.graph.tensors[tensor].name
        raise ProblemError(f"{who} computes op {name!r} before tensor {what!r}, which it reads, is there", "composite")
