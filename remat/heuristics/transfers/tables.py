"""Arrays of a problem for the kernels of transfers, and schedules of their programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from remat.problem import Problem
from remat.problem.op_sequence import LiveTables, allowed_computes
from remat.problem.transfer_times import TransferTimes
from remat.runtime.arrays import Int
from remat.schedule import Schedule
from remat.schedule.schedule import StepKind

if TYPE_CHECKING:
    from remat.heuristics.transfers.program_kernel import Choices, Program, TransferGraph
    from remat.heuristics.transfers.search_kernel import Prices

#: Most recomputations of an op, and most fetches of a tensor.
MOST_RUNS, MOST_FETCHES = 12, 12


def transfer_graph(problem: Problem, order: Int | None = None) -> TransferGraph:
    """Return the arrays of a problem with a budget, for a topological order; without a machine nothing can be moved.

    Parameters
    ----------
    order : int64 array, shape (ops,), optional
        Order of the first computes; default: the reference order.
    """
    from remat.heuristics.transfers.program_kernel import TransferGraph

    assert problem.budget_bytes is not None
    arrays, machine = problem.graph.arrays, problem.machine
    at = LiveTables.of(problem)
    reads, writes = at.reads, at.writes
    num_ops = len(arrays.cost)
    order = arrays.order if order is None else order
    times = TransferTimes.of(problem)
    by_op = np.argsort(arrays.in_place[0], kind="stable")
    pairs = np.bincount(arrays.in_place[0], minlength=num_ops)
    budget = problem.budget_bytes - arrays.input_bytes - problem.constant_bytes
    host = -1 if machine is None or machine.host is None else machine.host
    duplex = machine is None or machine.full_duplex
    return TransferGraph(
        arrays.size.copy(), arrays.cost.copy(), reads.sums(arrays.size) + writes.sums(arrays.size) + at.workspace,
        reads.indptr, reads.indices, writes.indptr, writes.indices, at.writer,
        arrays.consumers.indptr.copy(), arrays.consumers.indices.copy(),
        np.append(0, np.cumsum(pairs)), arrays.in_place[1][by_op], arrays.in_place[2][by_op],
        (problem.kept & at.live).astype(np.int64),
        allowed_computes(problem, MOST_RUNS + 1) - 1, np.where(at.live & times.linked, MOST_FETCHES, 0),
        order.copy(), np.argsort(order), times.write, times.read,
        np.array([budget, host, duplex], dtype=np.int64),
    )  # fmt: skip


def no_choices(net: TransferGraph) -> Choices:
    """Return choices without recomputations and fetches."""
    from remat.heuristics.transfers.program_kernel import Choices

    num_ops, num_tensors = len(net.cost), len(net.size)
    return Choices(
        np.zeros((num_ops, MOST_RUNS), dtype=np.int32), np.zeros(num_ops, dtype=np.int64),
        np.zeros((num_tensors, MOST_FETCHES), dtype=np.int32), np.zeros(num_tensors, dtype=np.int64),
    )  # fmt: skip


def program_room(net: TransferGraph) -> Program:
    """Return room for the program of any choices."""
    from remat.heuristics.transfers.program_kernel import Program

    stages, tensors = len(net.order) + 3, len(net.size)
    steps, kept = _most_steps(net), _most_kept(net)
    frees = (MOST_RUNS + 1) * len(net.outputs) + 1
    gaps = int(min(net.most_fetches.sum(), kept)) + 1
    return Program(
        sequence=_room(steps), begins=_room(stages), fetch_begins=_room(stages), fetch_tensors=_room(gaps),
        memory=_room(steps), waiting=_room(steps), start=_room(steps), room=_room(steps),
        last=_room(tensors), made=_room(tensors), stamp=_room(tensors),
        write_at=_room(tensors), written=_room(tensors), first_write=_room(steps), next_write=_room(tensors),
        host=_room(steps),
        gap_tensor=_room(gaps), gap_from=_room(gaps), gap_to=_room(gaps), gap_state=np.zeros(gaps, dtype=np.int8),
        gap_release=_room(gaps), gap_issue=_room(gaps), gap_arrival=_room(gaps),
        first_gap=_room(steps), next_gap=_room(gaps), first_issue=_room(steps), next_issue=_room(gaps),
        heap=_room(gaps), released=_room(gaps),
        kept_tensor=_room(kept), kept_from=_room(kept), kept_to=_room(kept), kept_made=_room(kept),
        freed=_room(frees), freed_at=_room(frees), first_free=_room(steps), next_free=_room(frees),
        number=_room(11),
    )  # fmt: skip


def prices_room(net: TransferGraph, chain: int) -> Prices:
    """Return room for prices of the changes of a program, with plans of at most `chain` ops."""
    from remat.heuristics.transfers.search_kernel import Prices

    steps, kept = _most_steps(net), _most_kept(net)
    changes = MOST_RUNS * len(net.cost) + MOST_FETCHES * len(net.size) + 3 * chain
    return Prices(
        _room(steps), _room(steps), _room(steps), _room(steps), _room(steps), np.zeros(kept), np.zeros(kept),
        _room(chain), _room(chain), _room(len(net.size)), _room(4), _room(3 * changes),
    )  # fmt: skip


def _room(length: int) -> Int:
    return np.zeros(length, dtype=np.int64)


def _most_steps(net: TransferGraph) -> int:
    """Return the room for values of each step, and of a few positions after the last one."""
    return (MOST_RUNS + 1) * len(net.cost) + 3


def _most_kept(net: TransferGraph) -> int:
    """Return the room for tensors that are kept from one use to the next."""
    return (MOST_RUNS + 1) * (len(net.inputs) + len(net.outputs)) + len(net.size) + 1


def schedule_of(problem: Problem, program: Program, source: str) -> Schedule:
    """Return the schedule of an evaluated program.

    At each step it frees, fetches, computes and then writes; tensors without further use are freed after that.
    """
    from remat.heuristics.transfers import program_kernel as kernel

    number = program.number
    steps, gaps = int(number[kernel.STEPS]), int(number[kernel.GAPS])
    used = program.gap_state[:gaps] == kernel.RELEASED
    released = program.released[: number[kernel.RELEASES]]
    released = released[used[released]]
    issued = np.array(
        [gap for k in range(steps + 1) for gap in _linked(program.first_issue[k], program.next_issue)], dtype=np.int64
    )
    writes = np.array(
        [
            (k, tensor)
            for k in range(steps)
            for tensor in _linked(program.first_write[k], program.next_write)
            if program.write_at[tensor] >= 0
        ],
        dtype=np.int64,
    ).reshape(-1, 2)
    frees = int(number[kernel.FREES])
    parts = [
        (StepKind.FREE, program.gap_tensor[released], program.gap_release[released]),
        (StepKind.FETCH, program.gap_tensor[issued], program.gap_issue[issued]),
        (StepKind.COMPUTE, program.sequence[:steps], np.arange(steps)),
        (StepKind.OFFLOAD, writes[:, 1], writes[:, 0]),
        (StepKind.FREE, program.freed[:frees], program.freed_at[:frees]),
    ]
    kinds = np.concatenate([np.full(len(targets), kind, dtype=np.int8) for kind, targets, _ in parts])
    targets = np.concatenate([part[1] for part in parts])
    rank = np.repeat(np.arange(len(parts)), [len(part[1]) for part in parts])
    order = np.lexsort((rank, np.concatenate([part[2] for part in parts])))
    return Schedule.for_graph(problem.graph, kinds[order], targets[order], source=source)


def _linked(first: int, following: Int) -> Iterator[int]:
    """Yield the entries of a linked list."""
    entry = int(first)
    while entry >= 0:
        yield entry
        entry = int(following[entry])
