"""Simulation: the memory of a schedule, step by step, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from remat.compiled import KernelSet
from remat.errors import ProblemError, ScheduleError
from remat.graphs import ComputeGraph
from remat.io.text import expect, short
from remat.runtime.arrays import Bool, Int
from remat.schedule import kernel
from remat.schedule.certificate import Violation
from remat.schedule.faults import Faults, explain
from remat.schedule.schedule import Schedule, StepKind

#: Most tensors that all steps together may read and write, each time counted: 8 bytes each, several times.
MAX_TOUCHED = 200_000_000
#: Steps from which on the compiled loops are used: below, interpreting takes less time than loading the compiler.
COMPILE_FROM = 50_000
#: And from which on it takes less time than compiling does, where compiled code cannot be kept.
COMPILE_ANEW_FROM = 2_000_000


@dataclass(frozen=True, eq=False)
class Intervals:
    """Instances of tensors: each lives in the steps ``start <= step < end``.

    Attributes
    ----------
    tensor, start, end : int64 arrays of one shape
        Position in ``graph.tensors``; steps. Graph inputs start at 0; what is live at the end has ``end`` = number
        of steps. Sorted by start, then tensor.
    """

    tensor: Int
    start: Int
    end: Int

    def __len__(self) -> int:
        return len(self.tensor)

    def live_at(self, step: int) -> Int:
        """Tensors held at `step`."""
        return self.tensor[(self.start <= step) & (step < self.end)]


@dataclass(frozen=True, eq=False)
class Simulation:
    """What happens when a schedule runs.

    Attributes
    ----------
    graph : ComputeGraph
    memory : int64 array, shape (steps,)
        Bytes. At a compute step: all that is live while the op runs, workspace included, before anything is freed;
        at a free step: what is left after it.
    is_compute : bool array, shape (steps,)
    ops : int64 array, shape (steps,)
        The computed op at compute steps (-1: not in the graph); -1 at free steps.
    counts : int64 array, shape (ops,)
        Computes of each op.
    intervals : Intervals
        The instances of all tensors.
    free_step, free_tensor : int64 arrays of one shape
        All frees that took place, given or implied: the tensor is gone after that step.
    violations : tuple of Violation
        Broken rules of the graph's semantics (names, inputs, frees, ops computed, outputs), by step, then those at
        the end; at most `max_violations`.
    more_violations : int
        How many more there are.
    redundant, masked : int
        Computes that changed nothing; contributions that the live instance had already.
    """

    graph: ComputeGraph
    memory: Int
    is_compute: Bool
    ops: Int
    counts: Int
    intervals: Intervals
    free_step: Int
    free_tensor: Int
    violations: tuple[Violation, ...]
    more_violations: int
    redundant: int
    masked: int

    @cached_property
    def peak_step(self) -> int | None:
        """First compute step with the largest memory; None without compute steps."""
        if not self.is_compute.any():
            return None
        return int(np.where(self.is_compute, self.memory, -1).argmax())

    @property
    def peak(self) -> int:
        """Largest memory at a compute step in bytes; 0 without compute steps."""
        return 0 if self.peak_step is None else int(self.memory[self.peak_step])

    @property
    def peak_op(self) -> str | None:
        """The op of `peak_step`."""
        if self.peak_step is None or self.ops[self.peak_step] < 0:
            return None
        return self.graph.op_names[self.ops[self.peak_step]]

    @cached_property
    def live_at_peak(self) -> tuple[tuple[str, int], ...]:
        """Tensors held at the peak and their bytes, largest first; without workspace and constant memory."""
        if self.peak_step is None:
            return ()
        tensors = (self.graph.tensors[t] for t in self.intervals.live_at(self.peak_step).tolist())
        return tuple(sorted(((t.name, t.size) for t in tensors), key=lambda pair: (-pair[1], pair[0])))

    @property
    def cost(self) -> int:
        """Sum of the costs of all compute steps, exact."""
        return sum(c * n for c, n in zip(self.graph.arrays.cost.tolist(), self.counts.tolist(), strict=True))

    @property
    def num_computes(self) -> int:
        """Number of compute steps of ops of the graph."""
        return int(self.counts.sum())

    @property
    def recomputations(self) -> int:
        """Computes after an op's first."""
        return int(np.maximum(self.counts - 1, 0).sum())


class Counting(TypedDict, total=False):
    """Options of :func:`simulate` that functions on top of it pass on: what stays to the end, and what counts."""

    keep: Iterable[str]
    count_constant_memory: bool


def simulate(
    graph: ComputeGraph,
    schedule: Schedule,
    *,
    keep: Iterable[str] = frozenset(),
    count_constant_memory: bool = False,
    max_violations: int = 20,
) -> Simulation:
    """Run `schedule` on `graph` and note the memory of every step, every instance, and what is wrong.

    A fault does not end the run: a missing input is taken as read, an illegal free as not written.

    Parameters
    ----------
    keep : iterable of str
        Tensors that must be live at the end, besides the graph's outputs.
    count_constant_memory : bool
        Whether the graph's constant memory counts.
    max_violations : int
        Most violations that are explained; the others are counted.

    Raises
    ------
    ProblemError
        If `keep` names a tensor that the graph does not have.
    ScheduleError
        If `graph` is no graph or `schedule` no schedule, or its steps read and write too many tensors.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("chain")
    >>> names = [b.op("a", size=4), b.op("b", inputs=["a"], size=2), b.op("c", inputs=["b"], size=1)]
    >>> s = simulate(b.build(), Schedule.from_steps([("compute", n) for n in names]))
    >>> s.memory.tolist(), s.peak, s.live_at_peak
    ([4, 6, 3], 6, (('a', 4), ('b', 2)))
    """
    expect(graph, ComputeGraph, "graph", ScheduleError)
    expect(schedule, Schedule, "schedule", ScheduleError)
    arrays = graph.arrays
    num_ops, num_tensors = len(graph.ops), len(graph.tensors)
    kept = kept_tensors(graph, keep)
    targets = graph_positions(graph, schedule)
    is_compute = schedule.kinds == StepKind.COMPUTE
    # Most instances there can be: one for each output of each compute, and the graph inputs.
    ops = np.where(is_compute, targets, -1)
    known = ops[ops >= 0]
    room = int(arrays.op_outputs.counts[known].sum())
    touched = room + int(arrays.op_inputs.counts[known].sum())
    if touched > MAX_TOUCHED:
        raise ScheduleError(f"the steps touch {touched:,} tensors, more than the {MAX_TOUCHED:,} that can be simulated")
    touched = 0 if schedule.has_frees else touched

    large = _compiled(len(schedule))
    new = _new_array if large else _new_list
    call = _kernel if large else _interpreted
    producers = arrays.producers.counts
    sides = [
        _as(large, x)
        for x in (
            schedule.kinds, targets, arrays.op_inputs.indptr, arrays.op_inputs.indices, arrays.op_outputs.indptr,
            arrays.op_outputs.indices, producers,
        )
    ]  # fmt: skip
    entries = len(arrays.op_outputs.indices)

    free_step, free_tensor, next_free = new(touched), new(touched), 0
    if not schedule.has_frees:
        scratch = (new(num_tensors), new(num_tensors), new(entries))
        next_free = call(kernel.implied_frees)(*sides, _as(large, kept), *scratch, free_step, free_tensor)

    live = arrays.input_bytes + (graph.constant_memory if count_constant_memory else 0)
    missing, freed = new(num_tensors), new(num_tensors, -1)
    begun = _as(large, np.where(producers == 0, 0, -1))
    memory, counts = new(len(schedule)), new(num_ops)
    intervals = tuple(new(room + len(graph.inputs)) for _ in range(3))
    fault = tuple(new(max(max_violations, 0), -1) for _ in range(5))
    totals = new(5)
    call(kernel.run)(
        *sides, _as(large, arrays.size), _as(large, arrays.workspace), free_step, free_tensor, next_free, live,
        new(entries), new(num_tensors), missing, begun, freed, memory, counts, *intervals, fault, totals,
    )  # fmt: skip

    num_faults, redundant, masked, num_intervals, num_freed = (int(x) for x in totals)
    tensor, start, end = (np.array(x[:num_intervals], dtype=np.int64) for x in intervals)
    shown = min(num_faults, len(fault[0]))
    faults = Faults(
        first=np.array([x[:shown] for x in fault], dtype=np.int64),
        count=num_faults,
        missing=np.array(missing, dtype=np.int64),
        begun=np.array(begun, dtype=np.int64),
        freed=np.array(freed, dtype=np.int64),
        counts=np.array(counts, dtype=np.int64),
    )
    violations, more = explain(graph, schedule, ops, kept, faults, limit=max_violations)
    order = np.lexsort((tensor, start))
    return Simulation(
        graph=graph,
        memory=np.array(memory, dtype=np.int64),
        is_compute=is_compute,
        ops=ops,
        counts=faults.counts,
        intervals=Intervals(tensor[order], start[order], end[order]),
        free_step=end[:num_freed] - (0 if schedule.has_frees else 1),
        free_tensor=tensor[:num_freed],
        violations=violations,
        more_violations=more,
        redundant=redundant,
        masked=masked,
    )


def simulate_valid(graph: ComputeGraph, schedule: Schedule, **counting: Unpack[Counting]) -> Simulation:
    """Run :func:`simulate` for what needs a schedule that keeps the semantics of its graph.

    Raises
    ------
    ScheduleError
        With the first violation, if there is one.
    """
    run = simulate(graph, schedule, **counting, max_violations=1)
    if run.violations:
        raise ScheduleError(f"the schedule is not valid: {run.violations[0]}", "not-valid")
    return run


def with_frees(graph: ComputeGraph, schedule: Schedule, *, keep: Iterable[str] = frozenset()) -> Schedule:
    """The same schedule with its implied frees written out; one that has frees is returned as it is.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("chain")
    >>> names = [b.op("a", size=4), b.op("b", inputs=["a"], size=2), b.op("c", inputs=["b"], size=1)]
    >>> list(with_frees(b.build(), Schedule.from_steps([("compute", n) for n in names])).steps())[2:4]
    [('free', 'a'), ('compute', 'c')]
    """
    if schedule.has_frees:
        return schedule
    done = simulate(graph, schedule, keep=keep)
    position = np.concatenate([np.arange(len(schedule)), done.free_step])
    order = np.argsort(position, kind="stable")
    kinds = np.concatenate([schedule.kinds, np.full(len(done.free_step), StepKind.FREE, dtype=np.int8)])[order]
    targets = np.concatenate([schedule.targets, done.free_tensor])[order]
    return Schedule(
        kinds, targets, schedule.op_names, graph.tensor_names, schedule.graph, schedule.graph_digest, schedule.source,
        schedule.meta,
    )  # fmt: skip


def kept_tensors(graph: ComputeGraph, keep: Iterable[str]) -> Bool:
    """Which tensors must be live at the end: the graph outputs and `keep`; shape (tensors,)."""
    if isinstance(keep, str):
        raise ProblemError(f"tensors to keep must be a list of names, not the single name {short(keep)}")
    kept = graph.arrays.is_output.copy()
    for name in keep:
        if name not in graph.tensor_index:
            raise ProblemError(f"tensor {name!r} to keep is not in graph {graph.name!r}", "kept-tensor")
        kept[graph.tensor_index[name]] = True
    return kept


def graph_positions(graph: ComputeGraph, schedule: Schedule) -> Int:
    """The targets of all steps as positions in ``graph.ops`` or ``graph.tensors``; -1: not in the graph."""
    targets = np.empty(len(schedule), dtype=np.int64)
    tables = (
        (StepKind.COMPUTE, schedule.op_names, graph.op_names, graph.op_index),
        (StepKind.FREE, schedule.tensor_names, graph.tensor_names, graph.tensor_index),
    )
    for kind, names, own_names, index in tables:
        where = schedule.kinds == kind
        positions = schedule.targets[where]
        if names is not own_names and len(positions):
            positions = np.array([index.get(name, -1) for name in names], dtype=np.int64)[positions]
        targets[where] = positions
    return targets


def _compiled(length: int) -> bool:
    """Whether so many steps are for the compiled loops: only if these are there; they may be next time."""
    if length < COMPILE_FROM or KERNELS.loaded:
        return length >= COMPILE_FROM
    if KERNELS.compiled() is not None or (not KERNELS.begin() and length >= COMPILE_ANEW_FROM):
        KERNELS.compile()
    return KERNELS.loaded


@cache
def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    from remat.compiled import kernel as compiled_kernel

    return compiled_kernel(function)


def _example() -> None:
    one, nothing = np.ones(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    place = np.zeros(2, dtype=np.int64)
    sides = (nothing, nothing, place, one, place, one, one)
    _kernel(kernel.implied_frees)(*sides, one, one, one, one, one, one)
    _kernel(kernel.run)(*sides, *[one] * 4, 0, 0, *[one] * 10, (one,) * 5, np.zeros(5, dtype=np.int64))


#: The compiled loops.
KERNELS = KernelSet("simulation", __name__, _example)


def _interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _new_list(length: int, value: int = 0) -> list[int]:
    return [value] * length


def _new_array(length: int, value: int = 0) -> Int:
    return np.full(length, value, dtype=np.int64)


def _as(large: bool, array: NDArray[Any]) -> Any:
    """For the compiled loops a fresh int64 array (one signature: writeable), for the interpreted ones a list."""
    return array.astype(np.int64) if large else array.tolist()
