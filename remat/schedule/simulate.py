"""Simulation: memory of a schedule, step by step, and its violations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from remat.errors import ProblemError, ScheduleError
from remat.graphs import ComputeGraph
from remat.runtime.arrays import Bool, Int
from remat.runtime.text import nearest, short
from remat.schedule.certificate import Rule, Violation
from remat.schedule.faults import Faults
from remat.schedule.host import HostCopies, HostUse
from remat.schedule.io import as_schedule, graph_of
from remat.schedule.last_uses import last_uses
from remat.schedule.schedule import Schedule, StepKind

if TYPE_CHECKING:
    from remat.graphs.io import GraphLike
    from remat.schedule.io import ScheduleLike

#: Limit of reads and writes of tensors over all steps; each takes about a microsecond.
MAX_TOUCHED = 50_000_000
COMPUTE, FREE = int(StepKind.COMPUTE), int(StepKind.FREE)


@dataclass(frozen=True, eq=False)
class Intervals:
    """Instances of tensors: each is live at the steps ``start <= step < end``.

    Attributes
    ----------
    tensor, start, end : int64 arrays of one shape
        Position in ``graph.tensors``; steps. Graph inputs start at 0; instances live at the end have ``end`` = number
        of steps. Sorted by start, then tensor.
    """

    tensor: Int
    start: Int
    end: Int

    def __len__(self) -> int:
        return len(self.tensor)

    def live_at(self, step: int) -> Int:
        """Return the tensors held at `step`."""
        return self.tensor[(self.start <= step) & (step < self.end)]


@dataclass(frozen=True, eq=False)
class Simulation:
    """Result of running a schedule.

    Attributes
    ----------
    graph : ComputeGraph
    kinds : int8 array, shape (steps,)
        :class:`~remat.schedule.schedule.StepKind` codes.
    memory : int64 array, shape (steps,)
        Bytes of the device. At a compute step: everything live while the op runs, workspace included, before any free;
        at another step: the bytes after it.
    ops, moved : int64 arrays, shape (steps,)
        The computed op at compute steps, the tensor at other steps; -1: another kind of step, or not in the graph.
    counts : int64 array, shape (ops,)
        Number of computes of each op.
    intervals : Intervals
        Instances of all tensors.
    host : HostUse or None
        Memory and transfers of the host; None if no step moves a tensor.
    free_step, free_tensor : int64 arrays of one shape
        All frees that took place, explicit or implied: the tensor is dead after that step.
    violations : tuple of Violation
        Violations of the graph's semantics (names, inputs, frees, ops computed, outputs), by step, then those at the
        end; at most `max_violations`.
    more_violations : int
        Number of violations beyond those.
    redundant, masked : int
        Computes that changed nothing; contributions that the live instance already had.
    in_place : int64 array, shape (3, pairs)
        Step, output and input of each output written in place of an input: their bytes count once in `memory`.
    """

    graph: ComputeGraph
    kinds: NDArray[np.int8]
    memory: Int
    ops: Int
    moved: Int
    counts: Int
    intervals: Intervals
    host: HostUse | None
    free_step: Int
    free_tensor: Int
    violations: tuple[Violation, ...]
    more_violations: int
    redundant: int
    masked: int
    in_place: Int

    @cached_property
    def is_compute(self) -> Bool:
        """Mask of compute steps; shape (steps,)."""
        return self.kinds == StepKind.COMPUTE

    @cached_property
    def allocates(self) -> Bool:
        """Mask of the steps that may allocate on the device, computes and fetches; shape (steps,)."""
        return self.is_compute | (self.kinds == StepKind.FETCH)

    @property
    def fetched(self) -> Bool:
        """Mask of the instances that a fetch allocates; shape (instances,)."""
        found = self.intervals
        begun_by = np.append(np.where(self.kinds == StepKind.FETCH, self.moved, -1), -1)  # one more: without steps
        return begun_by[found.start] == found.tensor

    @cached_property
    def peak_step(self) -> int | None:
        """First compute or fetch with the largest memory; None if there is neither."""
        if not self.allocates.any():
            return None
        return int(np.where(self.allocates, self.memory, -1).argmax())

    @property
    def peak(self) -> int:
        """Largest memory at a compute or fetch in bytes; 0 if there is neither."""
        return 0 if self.peak_step is None else int(self.memory[self.peak_step])

    @property
    def peak_op(self) -> str | None:
        """Op of `peak_step`; None if that is a fetch."""
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
    def in_place_at_peak(self) -> int:
        """Bytes that outputs at the peak save because they are written in place of inputs."""
        return int(self.graph.arrays.size[self.in_place[1, self.in_place[0] == self.peak_step]].sum())

    @property
    def cost(self) -> int:
        """Exact sum of the costs of all compute steps."""
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
    """Options of :func:`simulate` that other functions pass on: tensors to keep, and constant memory."""

    keep: Iterable[str]
    count_constant_memory: bool


def simulate(  # noqa: C901 - one loop: a call at each step takes 2 to 4 % more time
    graph: GraphLike,
    schedule: ScheduleLike,
    *,
    keep: Iterable[str] = frozenset(),
    count_constant_memory: bool = False,
    max_violations: int = 20,
) -> Simulation:
    """Run `schedule` on `graph`; record the memory of every step, every instance, and the violations.

    A violation does not end the run: a missing input counts as read, and an illegal free is ignored.

    Parameters
    ----------
    graph : ComputeGraph, path, str or networkx.DiGraph
        Graph, or a file, the name of a zoo graph, or a networkx graph.
    schedule : Schedule or path
        Schedule, or a file in any format.
    keep : iterable of str
        Tensors that must be live at the end, besides the graph's outputs.
    count_constant_memory : bool
        Count the graph's constant memory.
    max_violations : int
        Largest number of violations described; others are counted.

    Raises
    ------
    ProblemError
        If `keep` names a tensor that the graph does not have.
    ScheduleError
        If `graph` or `schedule` has the wrong type, or the steps read and write too many tensors.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("chain")
    >>> names = [b.op("a", size=4), b.op("b", inputs=["a"], size=2), b.op("c", inputs=["b"], size=1)]
    >>> s = simulate(b.build(), Schedule.from_steps([("compute", n) for n in names]))
    >>> s.memory.tolist(), s.peak, s.live_at_peak
    ([4, 6, 3], 6, (('a', 4), ('b', 2)))
    """
    graph = graph_of(graph)
    schedule = as_schedule(schedule, graph)
    arrays = graph.arrays
    kept = kept_tensors(graph, keep)
    targets = graph_positions(graph, schedule)
    kinds = schedule.kinds
    ops = np.where(kinds == StepKind.COMPUTE, targets, -1)
    _check_length(graph, ops)
    after = {} if schedule.has_frees else last_uses(graph, kinds.tolist(), targets.tolist(), kept)

    reads, writes = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
    producers, size = arrays.producers.counts.tolist(), arrays.size.tolist()
    workspace = arrays.workspace.tolist()
    live = arrays.input_bytes + (graph.constant_memory if count_constant_memory else 0)
    begun = [-1 if count else 0 for count in producers]  # start of the live instance of each tensor
    given: list[set[int]] = [set() for _ in producers]  # ops that have contributed to it
    freed = [-1] * len(producers)
    counts = [0] * len(graph.ops)
    memory: list[int] = []
    instances: list[tuple[int, int, int]] = []
    redundant = masked = 0
    faults = Faults(graph, schedule, ops, max_violations)
    host = HostCopies(faults, targets, begun=begun, given=given)
    leaving = host.leaving  # checked here: calls at each compute and free take 5 % more time

    def free(tensor: int, step: int, end: int) -> None:
        nonlocal live
        if tensor in leaving:
            host.discard_after(tensor, step)
        live -= size[tensor]
        instances.append((tensor, begun[tensor], end))
        begun[tensor], freed[tensor] = -1, step

    for step, (kind, target) in enumerate(zip(kinds.tolist(), targets.tolist(), strict=True)):
        if target < 0:
            faults.unknown(step)
            memory.append(live)
        elif kind == COMPUTE:
            for t in reads[target]:
                if begun[t] < 0 or len(given[t]) < producers[t]:
                    faults.read(step, t, begun[t], freed[t])
            changed = counts[target] == 0
            for t in writes[target]:
                if begun[t] < 0:
                    live += size[t]
                    begun[t] = step
                    given[t].clear()
                if target not in given[t]:
                    given[t].add(target)
                    changed = True
                elif producers[t] > 1:
                    masked += 1
            redundant += not changed
            counts[target] += 1
            memory.append(live + workspace[target])
            if leaving:
                host.await_inputs(target, step)
        elif kind != FREE:
            live += host.move(kind, target, step, freed)
            memory.append(live)
        elif producers[target] and begun[target] >= 0:
            free(target, step, step)
            memory.append(live)
        else:
            faults.at(step, Rule.FREE_NOT_LIVE if producers[target] else Rule.FREE_GRAPH_INPUT, target, freed[target])
            memory.append(live)
        for t in after.get(step, ()):
            if begun[t] >= 0:  # false if a read of a missing value was the last use
                free(t, step, step + 1)

    num_freed = len(instances)
    instances += [(t, start, len(schedule)) for t, start in enumerate(begun) if start >= 0]
    tensor, start, end = np.array(instances, dtype=np.int64).reshape(-1, 3).T
    lost = [t for t in np.flatnonzero(kept).tolist() if begun[t] < 0 or len(given[t]) < producers[t]]
    faults.at_the_end([op for op, count in enumerate(counts) if not count], lost, begun, freed)
    order = np.lexsort((tensor, start))
    held = np.array(memory, dtype=np.int64)
    free_step = end[:num_freed] - (0 if schedule.has_frees else 1)
    in_place = _in_place(graph, ops, kinds, Intervals(tensor, start, np.append(free_step, end[num_freed:])))
    np.subtract.at(held, in_place[0], arrays.size[in_place[1]])
    return Simulation(
        graph=graph,
        kinds=kinds,
        memory=held,
        ops=ops,
        moved=np.where(kinds == StepKind.COMPUTE, -1, targets),
        counts=np.array(counts, dtype=np.int64),
        intervals=Intervals(tensor[order], start[order], end[order]),
        host=host.use(len(schedule)) if schedule.has_transfers else None,
        free_step=free_step,
        free_tensor=tensor[:num_freed],
        violations=tuple(faults.found),
        more_violations=faults.count - len(faults.found),
        redundant=redundant,
        masked=masked,
        in_place=in_place,
    )


def _in_place(graph: ComputeGraph, ops: Int, kinds: NDArray[np.int8], found: Intervals) -> Int:
    """Return step, output and input where an op wrote an output in place of an input; shape (3, pairs).

    The output is allocated at the step, and the input, which is older, is freed before the next compute or fetch. Each
    output and each input is in at most one pair.

    `ops` is -1 at steps other than computes. In `found`, `end` is the step of the free, or the step right after which
    it happens, or the number of steps.
    """
    arrays = graph.arrays
    taken: list[tuple[int, int, int]] = []
    steps = np.flatnonzero((kinds == StepKind.COMPUTE) | (kinds == StepKind.FETCH))
    if arrays.in_place.size and len(steps):
        went = found.end < len(ops)
        last = steps[np.searchsorted(steps, found.end[went], side="right") - 1]
        dying = dict(
            zip(zip(last.tolist(), found.tensor[went].tolist(), strict=True), found.start[went].tolist(), strict=True)
        )
        begun = set(zip(found.start.tolist(), found.tensor.tolist(), strict=True))
        for step in steps[np.isin(ops[steps], list(arrays.in_place_pairs))].tolist():

            def possible(output: int, source: int, step: int = step) -> bool:
                return (step, output) in begun and dying.get((step, source), step) < step

            taken += [(step, *pair) for pair in arrays.written_in_place(int(ops[step]), possible)]
    return np.array(taken, dtype=np.int64).reshape(-1, 3).T


def _check_length(graph: ComputeGraph, ops: Int) -> None:
    """Refuse steps that read and write too many tensors; `ops` has −1 for other steps."""
    arrays = graph.arrays
    touched = int((arrays.op_outputs.counts + arrays.op_inputs.counts)[ops[ops >= 0]].sum())
    if touched > MAX_TOUCHED:
        raise ScheduleError(f"the steps touch {touched:,} tensors, more than the {MAX_TOUCHED:,} that can be simulated")


def simulate_valid(graph: ComputeGraph, schedule: Schedule, **counting: Unpack[Counting]) -> Simulation:
    """Run :func:`simulate`; refuse a schedule that breaks the semantics of its graph.

    Raise ScheduleError with the first violation.
    """
    run = simulate(graph, schedule, **counting, max_violations=1)
    if run.violations:
        raise ScheduleError(f"the schedule is not valid: {run.violations[0]}", "not-valid")
    return run


def with_frees(graph: ComputeGraph, schedule: Schedule, *, keep: Iterable[str] = frozenset()) -> Schedule:
    """Return the schedule with its implied frees and discards written out, or itself if it has none.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("chain")
    >>> names = [b.op("a", size=4), b.op("b", inputs=["a"], size=2), b.op("c", inputs=["b"], size=1)]
    >>> list(with_frees(b.build(), Schedule.from_steps([("compute", n) for n in names])).steps())[2:4]
    [('free', 'a'), ('compute', 'c')]
    """
    if schedule.has_frees and not schedule.has_transfers:
        return schedule
    done = simulate(graph, schedule, keep=keep)
    implied = [] if schedule.has_frees else [(StepKind.FREE, done.free_step, done.free_tensor)]
    if done.host is not None:
        implied.append((StepKind.DISCARD, done.host.discard_step, done.host.discard_tensor))
    position = np.concatenate([np.arange(len(schedule)), *(steps for _, steps, _ in implied)])
    order = np.argsort(position, kind="stable")
    more = [np.full(len(steps), kind, dtype=np.int8) for kind, steps, _ in implied]
    kinds = np.concatenate([schedule.kinds, *more])[order]
    own = np.where(schedule.kinds == StepKind.COMPUTE, schedule.targets, graph_positions(graph, schedule))
    targets = np.concatenate([own, *(tensors for _, _, tensors in implied)])[order]
    return replace(schedule, kinds=kinds, targets=targets, tensor_names=graph.tensor_names)


def kept_tensors(graph: ComputeGraph, keep: Iterable[str]) -> Bool:
    """Mark tensors that must be live at the end: the graph outputs and `keep`; shape (tensors,)."""
    if isinstance(keep, str):
        raise ProblemError(f"tensors to keep must be a list of names, not the single name {short(keep)}")
    kept = graph.arrays.is_output.copy()
    for name in keep:
        if name not in graph.tensor_index:
            raise ProblemError(
                f"tensor {name!r} to keep is not in graph {graph.name!r}{nearest(name, graph.tensor_index)}",
                "kept-tensor",
            )
        kept[graph.tensor_index[name]] = True
    return kept


def graph_positions(graph: ComputeGraph, schedule: Schedule) -> Int:
    """Return the targets of all steps as positions in ``graph.ops`` or ``graph.tensors``; -1: not in the graph."""
    targets = np.empty(len(schedule), dtype=np.int64)
    is_compute = schedule.kinds == StepKind.COMPUTE
    tables = (
        (is_compute, schedule.op_names, graph.op_names, graph.op_index),
        (~is_compute, schedule.tensor_names, graph.tensor_names, graph.tensor_index),
    )
    for where, names, own_names, index in tables:
        positions = schedule.targets[where]
        if names is not own_names and len(positions):
            positions = np.array([index.get(name, -1) for name in names], dtype=np.int64)[positions]
        targets[where] = positions
    return targets
