"""Compute sequences as arrays: binding a schedule to a graph, dead computes, instances and their last uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from remat.errors import ProblemError
from remat.graphs.arrays import Csr, first_computes
from remat.problem.problem import Problem
from remat.runtime.arrays import Bool, Int
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule


def op_sequence(problem: Problem, schedule: Schedule) -> Int:
    """Return the numbers of the computed ops in sequence, without recomputations whose results are never read.

    Raises
    ------
    ProblemError
        If the schedule names an unknown op, misses one, or frees an accumulation buffer and fills it again to keep
        the budget: formulations hold it from its first contribution to its last read.
    """
    sequence = computed_ops(problem, schedule)
    useful = sequence[useful_computes(problem, sequence)]
    _check_buffers(problem, schedule, useful)
    return useful


def computed_ops(problem: Problem, schedule: Schedule) -> Int:
    """Return the numbers of the computed ops in sequence.

    Raise ProblemError if the schedule names an unknown op or misses one.
    """
    index = problem.graph.op_index
    names = schedule.computes()
    unknown = next((name for name in names if name not in index), None)
    if unknown is not None:
        raise ProblemError(f"the schedule computes op {unknown!r}, which graph {problem.graph.name!r} does not have")
    sequence = np.array([index[name] for name in names], dtype=np.int64)
    missing = np.flatnonzero(np.bincount(sequence, minlength=len(index)) == 0)
    if len(missing):
        raise ProblemError(f"the schedule never computes op {problem.graph.ops[missing[0]].name!r}", "missing-op")
    return sequence


def order_of(problem: Problem, schedule: Schedule) -> Int:
    """Return the ops in the order of their first computes.

    Raise ProblemError if the schedule names an unknown op or misses one.
    """
    sequence = computed_ops(problem, schedule)
    return sequence[first_computes(sequence)]


def _check_buffers(problem: Problem, schedule: Schedule, sequence: Int) -> None:
    """Raise an error if `sequence`, which fills buffers only once, exceeds both the budget and the schedule's peak."""
    arrays, graph = problem.graph.arrays, problem.graph
    standing, _ = standing_buffers(problem)
    budget = problem.budget_bytes
    if budget is None or not standing.any() or schedule.num_computes == len(arrays.cost):
        return
    given = problem.simulate(schedule)
    lives = np.bincount(given.intervals.tensor, minlength=len(arrays.size))
    refilled = np.flatnonzero(standing & (lives > 1)).tolist()
    if not refilled:
        return
    run = problem.simulate(Schedule.of_computes(graph, sequence))
    memory, live = run.memory.copy(), run.intervals
    instances = Instances.of(problem, sequence)
    for tensor in refilled:
        first = int(np.argmax(instances.tensor == tensor))  # contributions after its last use are transient
        gap = np.zeros(len(sequence), dtype=np.bool_)
        gap[int(instances.step[first]) : int(instances.last_use[first]) + 1] = True
        for start, end in zip(live.start[live.tensor == tensor], live.end[live.tensor == tensor], strict=True):
            gap[start:end] = False
        memory[gap] += arrays.size[tensor]
    if memory.max(initial=0) > max(given.peak, budget):
        raise ProblemError(
            f"the schedule frees accumulation buffer {graph.tensors[refilled[0]].name!r} and fills it again, "
            "the formulation fills it once",
            "refilled-buffer",
        )


def useful_computes(
    problem: Problem, sequence: Int, deadline: Deadline | None = None, *, refills: bool = False
) -> Bool:
    """Mark the computes that are first ones, or whose result is kept or read before it is computed again.

    Accumulation buffers count as filled once, so that no later contribution is useful. With `refills` they may be
    filled again, and the last contribution of each op before a read is useful.

    Raise OverdueError at the deadline.
    """
    arrays = problem.graph.arrays
    inputs, outputs = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
    producers = arrays.producers.counts.tolist()
    useful = first_computes(sequence).tolist()
    # backwards, by tensor: number of writers whose contribution a later read still needs, and those already found
    left = [count if kept else 0 for count, kept in zip(producers, problem.kept.tolist(), strict=True)]
    given: dict[int, set[int]] = {}
    ops = sequence.tolist()
    steps = range(len(ops) - 1, -1, -1)
    for step in steps if deadline is None else deadline.each(steps, 10_000):
        op = ops[step]
        wanted = [t for t in outputs[op] if left[t] and (producers[t] == 1 or (refills and op not in given.get(t, ())))]
        if not (useful[step] or wanted):
            continue
        useful[step] = True
        for t in wanted:
            left[t] -= 1
            if producers[t] > 1:
                given.setdefault(t, set()).add(op)
        for t in inputs[op]:
            left[t] = producers[t]
            if producers[t] > 1:
                given[t] = set()
    return np.array(useful, dtype=np.bool_)


def check_limits(problem: Problem, sequence: Int) -> None:
    """Require that a sequence of op numbers computes no op more often than the problem allows.

    Raises
    ------
    ProblemError
        If it does; the message names the op.
    """
    computed = np.bincount(sequence, minlength=len(problem.graph.ops)).tolist()
    for op, (times, limit) in enumerate(zip(computed, problem.compute_limits, strict=True)):
        if limit is not None and times > limit:
            name = problem.graph.ops[op].name
            raise ProblemError(f"the schedule computes op {name!r} {times} times, of {limit} that the problem allows")


def most_computes(problem: Problem) -> int | None:
    """Return the largest limit of computes; None if some op has no limit."""
    limits = [limit for limit in problem.compute_limits if limit is not None]
    return max(limits) if len(limits) == len(problem.graph.ops) else None


def standing_buffers(problem: Problem) -> tuple[Bool, Int]:
    """Return the accumulation buffers that are held until they are read, and the workspace of each op.

    A buffer that is neither read nor kept is needed only during each contribution, so it counts as workspace.

    Returns
    -------
    buffers : bool array, shape (tensors,)
    workspace : int64 array, shape (ops,)
        Bytes that each op holds during its own step only.
    """
    arrays = problem.graph.arrays
    shared = arrays.producers.counts > 1
    wanted = (arrays.consumers.counts > 0) | problem.kept
    fleeting = (shared & ~wanted)[arrays.op_outputs.indices]
    workspace = arrays.workspace.copy()
    np.add.at(workspace, arrays.op_outputs.rows[fleeting], arrays.size[arrays.op_outputs.indices[fleeting]])
    return shared & wanted, workspace


@dataclass(frozen=True, eq=False)
class LiveTables:
    """Reads and writes of the tensors whose memory depends on the schedule.

    These are all but graph inputs, which are always held, and buffers that are needed during contributions only.

    Attributes
    ----------
    live : bool array, shape (tensors,)
    writer : int64 array, shape (tensors,)
        Op that computes each tensor; -1 for graph inputs and accumulation buffers.
    reads, writes : Csr
        Live tensors by op.
    workspace : int64 array, shape (ops,)
        As :func:`standing_buffers` returns it.
    """

    live: Bool
    writer: Int
    reads: Csr
    writes: Csr
    workspace: Int

    @classmethod
    def of(cls, problem: Problem) -> LiveTables:
        """Return the tables of a problem."""
        arrays = problem.graph.arrays
        buffers, workspace = standing_buffers(problem)
        single = arrays.producers.counts == 1
        writer = np.full(len(arrays.size), -1, dtype=np.int64)
        writer[single] = arrays.writes_of(single)[0]
        live = single | buffers
        return cls(live, writer, arrays.op_inputs.where(live), arrays.op_outputs.where(live), workspace)


def allowed_computes(problem: Problem, most: int) -> Int:
    """Return the limit of computes of each op: at most `most`, and 1 for contributions to accumulation buffers."""
    arrays = problem.graph.arrays
    allowed = np.array([most if limit is None else min(limit, most) for limit in problem.compute_limits])
    allowed[arrays.op_outputs.where(arrays.producers.counts > 1).counts > 0] = 1
    return allowed.astype(np.int64)


@dataclass(frozen=True)
class MemoryScale:
    """Budget in the largest unit that divides all sizes, which keeps the numbers in models small without loss.

    Attributes
    ----------
    unit : int
        Bytes: the greatest common divisor of sizes and workspaces.
    held : int
        Bytes that are always held: graph inputs, and constant memory if the problem counts it.
    capacity : int
        Units left by the budget, rounded down; without a budget, enough for everything at once.
    """

    unit: int
    held: int
    capacity: int

    @classmethod
    def of(cls, problem: Problem, workspace: Int) -> MemoryScale:
        """Return the scale of a problem, given the bytes that each op holds during its own step only.

        Raise ProblemError if the budget is less than the bytes that are always held.
        """
        arrays = problem.graph.arrays
        unit = int(np.gcd.reduce(np.concatenate([arrays.size[~arrays.is_input], workspace]))) or 1
        held = arrays.input_bytes + problem.constant_bytes
        most = int(arrays.size.sum()) + int(workspace.max()) + problem.constant_bytes
        budget = most if problem.budget_bytes is None else min(problem.budget_bytes, most)
        if budget < held:
            raise ProblemError(f"the budget of {budget:,} bytes is less than what is always held, {held:,} bytes")
        return cls(unit, held, (budget - held) // unit)


def useful_schedule(problem: Problem, sequence: Int, source: str, deadline: Deadline | None = None) -> Schedule:
    """Return the schedule of a compute sequence, with implied frees, less recomputations that are never read.

    Solvers may leave such recomputations in if they cost nothing; without them the schedule is shorter and holds less.

    Raise OverdueError at the deadline.
    """
    return Schedule.of_computes(problem.graph, sequence[useful_computes(problem, sequence, deadline)], source=source)


@dataclass(frozen=True)
class Instances:
    """Every (step, output) of a compute sequence, with the step of its last use.

    Attributes
    ----------
    step, tensor : int64 arrays, shape (instances,)
        Sorted by step, then as the op lists its outputs.
    last_use : int64 array, shape (instances,)
        Step of the last read before the tensor is computed again; `step` itself if there is none; the length of the
        sequence for tensors that must be alive at the end. An accumulation buffer has only one instance.
    """

    step: Int
    tensor: Int
    last_use: Int

    @classmethod
    def of(cls, problem: Problem, sequence: Int) -> Instances:
        """Return the instances of `sequence` (op numbers)."""
        arrays = problem.graph.arrays
        inputs, outputs = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
        buffer = (arrays.producers.counts > 1).tolist()
        latest = [len(sequence) if kept else -1 for kept in problem.kept.tolist()]
        found: list[tuple[int, int, int]] = []
        for step in range(len(sequence) - 1, -1, -1):
            op = int(sequence[step])
            for tensor in reversed(outputs[op]):
                found.append((step, tensor, max(step, latest[tensor])))
                if not buffer[tensor]:
                    latest[tensor] = -1
            for tensor in inputs[op]:
                latest[tensor] = max(latest[tensor], step)
        table = np.array(found[::-1], dtype=np.int64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], table[:, 2])


def stages_of(problem: Problem, sequence: Int) -> Int:
    """Return the stage (from 1) of each compute: stage k ends with the first compute of the k-th op in the order.

    Raises
    ------
    ProblemError
        If stages cannot express the sequence; see :func:`run_stages`.
    """
    graph = problem.graph
    return run_stages(
        graph.arrays.position[sequence], len(graph.ops), lambda op: f"op {graph.op_names[op]!r}", sequence
    )


def run_stages(position: Int, count: int, named: Callable[[int], str], node: Int) -> Int:
    """Return the stage (from 1) of each run: stage k ends with the first run of the k-th node of the reference order.

    Raise ProblemError if first runs leave the reference order, a stage runs a node twice or out of order, or a node
    runs again after the last stage; the message names the run.

    Parameters
    ----------
    position, node : int64 arrays, shape (runs,)
        Position of each run's node in the reference order, and its number.
    count : int
        Number of nodes.
    named : callable
        Returns the name of a node, given by number, for messages.
    """
    stages = np.empty(len(position), dtype=np.int64)
    done, last = 0, -1  # nodes run so far; the last run of the current stage
    places = position.tolist()
    for step, at in enumerate(places):
        if at > done or done == count or (last >= 0 and at <= places[last]):
            why = f"in stage {done + 1} after {named(int(node[last]))}"
            if at > done or done == count:
                why = "before its turn in the reference order" if at > done else "after the last stage"
            raise ProblemError(
                f"compute {step} of the schedule runs {named(int(node[step]))} {why}, which stages cannot express",
                "not-staged",
            )
        stages[step] = done + 1
        last = step
        if at == done:
            done, last = done + 1, -1
    return stages
