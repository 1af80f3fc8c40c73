"""Buffers of a schedule: steps and size of each instance of a tensor and of each workspace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from remat.errors import ScheduleError
from remat.graphs import ComputeGraph
from remat.graphs.arrays import occurrences
from remat.runtime.arrays import Int
from remat.runtime.text import short
from remat.schedule.schedule import Schedule
from remat.schedule.simulate import Intervals, simulate_valid

#: Largest total size of all buffers in bytes, and largest step: the sum of any two such numbers fits into 64 bits.
MAX_BYTES = 2**61


@dataclass(frozen=True, eq=False)
class Buffers:
    """Buffers, each of which holds its bytes at the steps ``lower <= step < upper``. Immutable.

    Attributes
    ----------
    names : tuple of str
        Unique names.
    lower, upper, size : int64 arrays, shape (buffers,)
        Steps from 0; bytes.
    tensor : int64 array, shape (buffers,)
        Position in ``graph.tensors``; -1 for workspaces, constant memory and buffers of a bare table.
    graph, graph_digest : str
        Name and digest of the graph; empty when unknown.
    after : tuple of (int, int)
        Pairs of a buffer and the earlier buffer whose place it takes: an output written in place of an input. Both have
        the same size. The later one starts when the earlier one ends, one step after the op that writes it.

    Raises
    ------
    ScheduleError
        Naming the buffer, for a duplicate name, a buffer without steps, or a number that is negative or too large.

    Examples
    --------
    >>> b = Buffers.of(["a", "b", "c"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 2, 1])
    >>> len(b), b.steps, b.peak()
    (3, 3, 6)
    """

    names: tuple[str, ...]
    lower: Int
    upper: Int
    size: Int
    tensor: Int
    graph: str = ""
    graph_digest: str = ""
    after: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        count = len(self.names)
        if any(array.shape != (count,) for array in (self.lower, self.upper, self.size, self.tensor)):
            raise ScheduleError(f"{count} buffers need arrays of as many numbers")
        if len(set(self.names)) < count:
            seen: set[str] = set()
            twice = next(name for name in self.names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise ScheduleError(f"two buffers have the name {short(twice)}")
        for word, wrong in (
            ("begins before step 0", self.lower < 0),
            ("lives in no step: it ends where it begins, or before", self.upper <= self.lower),
            ("has a negative size", self.size < 0),
            (f"has more than {MAX_BYTES:,} bytes, or lives that long", np.maximum(self.size, self.upper) > MAX_BYTES),
        ):
            if wrong.any():
                raise ScheduleError(f"buffer {short(self.names[int(wrong.argmax())])} {word}")
        if float(self.size.sum(dtype=np.float64)) > MAX_BYTES:
            raise ScheduleError(f"the buffers have more than {MAX_BYTES:,} bytes together")
        for array in (self.lower, self.upper, self.size, self.tensor):
            array.flags.writeable = False
        later, earlier = self.pairs
        if (self.lower[later] != self.upper[earlier]).any() or (self.size[later] != self.size[earlier]).any():
            raise ScheduleError("a buffer in the place of another one begins where that ends, and has its size")

    @property
    def pairs(self) -> Int:
        """Pairs of `after`; shape (2, pairs)."""
        return np.array(self.after, dtype=np.int64).reshape(-1, 2).T

    def chains(self) -> tuple[Buffers, Int]:
        """Merge buffers that take each other's place; also return the number of each buffer's merged buffer."""
        first = np.arange(len(self))
        for later, earlier in sorted(self.after, key=lambda pair: self.lower[pair[0]]):
            first[later] = first[earlier]
        kept, which = np.unique(first, return_inverse=True)
        upper = np.zeros(len(kept), dtype=np.int64)
        np.maximum.at(upper, which, self.upper)
        names = tuple(self.names[k] for k in kept.tolist())
        arrays = self.lower[kept], upper, self.size[kept], self.tensor[kept]
        return Buffers(names, *arrays, self.graph, self.graph_digest), which

    @classmethod
    def of(cls, names: Iterable[str], lower: object, upper: object, size: object) -> Buffers:
        """Make buffers from plain lists, without a graph."""
        called = tuple(names)
        low, high, bytes_ = (np.array(values, dtype=np.int64) for values in (lower, upper, size))
        return cls(called, low, high, bytes_, np.full(len(called), -1, dtype=np.int64))

    def __repr__(self) -> str:
        return f"Buffers({self.graph!r}, {len(self):,} buffers, {self.steps:,} steps)"

    def __len__(self) -> int:
        return len(self.names)

    @property
    def steps(self) -> int:
        """First step after all buffers have ended."""
        return int(self.upper.max(initial=0))

    def rounded(self, alignment: int = 1) -> Int:
        """Return sizes rounded up to multiples of `alignment`."""
        return -(-self.size // alignment) * alignment

    def live(self, alignment: int = 1) -> tuple[Int, Int]:
        """Return steps at which a buffer starts, ascending, and the bytes live there (each size rounded up)."""
        return live_sums(self.lower, self.upper, self.rounded(alignment))

    def peak(self, alignment: int = 1) -> int:
        """Return the largest sum of live sizes at one step: no arena is smaller."""
        return int(self.live(alignment)[1].max(initial=0))


def live_sums(lower: Int, upper: Int, size: Int) -> tuple[Int, Int]:
    """Return steps at which an interval starts, ascending, and the total size of the intervals that cover each."""
    times = np.unique(lower)
    began, ended = np.argsort(lower, kind="stable"), np.argsort(upper, kind="stable")
    totals = []
    for when, order in ((lower, began), (upper, ended)):
        summed = np.concatenate([[0], np.cumsum(size[order])])
        totals.append(summed[np.searchsorted(when[order], times, side="right")])
    return times, totals[0] - totals[1]


def schedule_buffers(
    graph: ComputeGraph,
    schedule: Schedule,
    *,
    keep: Iterable[str] = (),
    inputs: bool = True,
    workspaces: bool = True,
    constant_memory: bool = False,
) -> Buffers:
    """Return the buffers of `schedule` on the device; their steps are its computes and fetches, counted from 0.

    Each instance of a tensor is a buffer: ``tensor``, and after recomputation ``tensor#2``, ``tensor#3``, ... The copy
    that a fetch allocates is named ``tensor#2 fetched``. An accumulation buffer is one buffer from its first
    contribution on. The workspace of an op is a buffer of one step, ``op workspace``. Tensors of 0 bytes have no
    buffer. The buffer of an output written in place of an input starts at the next step, in the place of that input;
    there is none if the output is freed before.

    Parameters
    ----------
    keep : iterable of str
        Tensors that stay live to the end, besides the graph's outputs, if frees are implied.
    inputs : bool
        Include the graph inputs, which are live from start to end.
    workspaces : bool
        Include workspaces.
    constant_memory : bool
        Include the graph's constant memory as a buffer over all steps.

    Raises
    ------
    ScheduleError
        Naming the first violation, if the schedule does not run on `graph`.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("chain")
    >>> names = [b.op("a", size=4), b.op("b", inputs=["a"], size=2, workspace=1), b.op("c", inputs=["b"], size=1)]
    >>> found = schedule_buffers(b.build(), Schedule.reference(b.build()))
    >>> found.names, found.lower.tolist(), found.upper.tolist(), found.peak()
    (('a', 'b', 'b workspace', 'c'), [0, 1, 1, 2], [2, 3, 2, 3], 7)
    """
    run = simulate_valid(graph, schedule, keep=keep)
    before = np.concatenate([[0], np.cumsum(run.allocates)]).astype(np.int64)
    found = run.intervals
    lower, upper = before[found.start], before[found.end]
    count = int(before[-1])
    taken = [_instances_at(found, *pair) for pair in run.in_place.T.tolist()]
    lower[[output for output, _ in taken]] += 1
    used = (graph.arrays.size[found.tensor] > 0) & (lower < upper)
    if not inputs:
        used &= ~graph.arrays.is_input[found.tensor]
    place = np.where(used, np.cumsum(used) - 1, -1)
    fetched = run.fetched[used]
    tensor, lower, upper = found.tensor[used], lower[used], upper[used]
    size = graph.arrays.size[tensor]
    names = _instances([graph.tensor_names[t] for t in tensor.tolist()])
    names = [f"{name} fetched" if moved else name for name, moved in zip(names, fetched.tolist(), strict=True)]

    ops = run.ops[run.allocates]
    step = np.flatnonzero((ops >= 0) & (graph.arrays.workspace[ops] > 0)) if workspaces else np.zeros(0, dtype=np.int64)
    names += _instances([f"{graph.op_names[o]} workspace" for o in ops[step].tolist()])
    extra_size = graph.arrays.workspace[ops[step]]
    begins, ends = step, step + 1
    if constant_memory and graph.constant_memory and count:
        names.append("constant memory")
        extra_size = np.append(extra_size, graph.constant_memory)
        begins, ends = np.append(begins, 0), np.append(ends, count)
    arrays = (
        np.concatenate([lower, begins]),
        np.concatenate([upper, ends]),
        np.concatenate([size, extra_size]),
        np.concatenate([tensor, np.full(len(begins), -1)]),
    )
    order = np.lexsort((np.arange(len(names)), arrays[0]))
    low, high, sizes, tensors = (array[order].astype(np.int64) for array in arrays)
    called = _distinct([names[i] for i in order.tolist()])
    rank = np.argsort(order)
    after = tuple((int(rank[place[o]]), int(rank[place[s]])) for o, s in taken if min(place[o], place[s]) >= 0)
    return Buffers(called, low, high, sizes, tensors, graph.name, graph.digest, after)


def _instances_at(found: Intervals, step: int, output: int, source: int) -> tuple[int, int]:
    """Return the numbers of two instances at a step: an output, and the input in whose place it is written."""
    alive = (found.start <= step) & (step < found.end)
    return tuple(int(np.flatnonzero(alive & (found.tensor == tensor))[0]) for tensor in (output, source))  # type: ignore[return-value]


def _instances(names: list[str]) -> list[str]:
    """Append ``#2`` to the second occurrence of a name, and so on."""
    number = {name: k for k, name in enumerate(dict.fromkeys(names))}
    before = occurrences(np.array([number[name] for name in names], dtype=np.int64)).tolist()
    return [f"{name}#{k + 1}" if k else name for name, k in zip(names, before, strict=True)]


def _distinct(names: list[str]) -> tuple[str, ...]:
    """Make names unique, even if a tensor is called ``x#2`` or ``y workspace``."""
    taken: set[str] = set()
    result = []
    for name in names:
        while name in taken:
            name += "'"
        taken.add(name)
        result.append(name)
    return tuple(result)
