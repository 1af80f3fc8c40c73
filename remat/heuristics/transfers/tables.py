"""Arrays of a problem for the kernels of transfers, and schedules of their programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from remat.problem import Problem
from remat.problem.op_sequence import allowed_computes, standing_buffers
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
    buffers, workspace = standing_buffers(problem)
    single = arrays.producers.counts == 1
    live = single | buffers
    num_ops, num_tensors = len(arrays.cost), len(arrays.size)
    writer = np.full(num_tensors, -1, dtype=np.int64)
    rows = arrays.producers.rows
    writer[rows[single[rows]]] = arrays.producers.indices[single[rows]]
    reads, writes = arrays.op_inputs.where(live), arrays.op_outputs.where(live)
    order = arrays.order if order is None else order
    nowhere: list[int | None] = [None] * num_tensors
    write, read = (nowhere, nowhere) if machine is None else machine.transfer_times(problem.graph)
    movable = live & np.array([a is not None and b is not None for a, b in zip(write, read, strict=True)])
    by_op = np.argsort(arrays.in_place[0], kind="stable")
    pairs = np.bincount(arrays.in_place[0], minlength=num_ops)
    budget = problem.budget_bytes - arrays.input_bytes - problem.constant_bytes
    host = -1 if machine is None or machine.host is None else machine.host
    duplex = machine is None or machine.full_duplex
    return TransferGraph(
        arrays.size.copy(), arrays.cost.copy(), reads.sums(arrays.size) + writes.sums(arrays.size) + workspace,
        reads.indptr, reads.indices, writes.indptr, writes.indices, writer,
        arrays.consumers.indptr.copy(), arrays.consumers.indices.copy(),
        np.append(0, np.cumsum(pairs)), arrays.in_place[1][by_op], arrays.in_place[2][by_op],
        (problem.kept & live).astype(np.int64),
        allowed_computes(problem, MOST_RUNS + 1) - 1, np.where(movable, MOST_FETCHES, 0),
        order.copy(), np.argsort(order),
        np.array([time or 0 for time in write], dtype=np.int64),
        np.array([time or 0 for time in read], dtype=np.int64),
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
    runs = MOST_RUNS + 1
    steps = runs * len(net.cost) + 3
    frees = runs * len(net.outputs) + 1
    kept = runs * (len(net.inputs) + len(net.outputs)) + tensors + 1
    gaps = int(min(net.most_fetches.sum(), kept)) + 1

    def of(length: int) -> Int:
        return np.zeros(length, dtype=np.int64)

    return Program(
        sequence=of(steps), begins=of(stages), fetch_begins=of(stages), fetch_tensors=of(gaps),
        memory=of(steps), waiting=of(steps), start=of(steps), room=of(steps),
        last=of(tensors), made=of(tensors), stamp=of(tensors), write_at=of(tensors), written=of(tensors),
        first_write=of(steps), next_write=of(tensors), host=of(steps),
        gap_tensor=of(gaps), gap_from=of(gaps), gap_to=of(gaps), gap_state=np.zeros(gaps, dtype=np.int8),
        gap_release=of(gaps), gap_issue=of(gaps), gap_arrival=of(gaps), first_gap=of(steps), next_gap=of(gaps),
        first_issue=of(steps), next_issue=of(gaps), heap=of(gaps), released=of(gaps),
        kept_tensor=of(kept), kept_from=of(kept), kept_to=of(kept), kept_made=of(kept),
        freed=of(frees), freed_at=of(frees), number=of(10),
    )  # fmt: skip


def prices_room(net: TransferGraph, chain: int) -> Prices:
    """Return room for prices of the changes of a program, with plans of at most `chain` ops."""
    from remat.heuristics.transfers.search_kernel import Prices

    steps = (MOST_RUNS + 1) * len(net.cost) + 4
    kept = (MOST_RUNS + 1) * (len(net.inputs) + len(net.outputs)) + len(net.size) + 1
    changes = MOST_RUNS * len(net.cost) + MOST_FETCHES * len(net.size) + 3 * chain

    def of(length: int) -> Int:
        return np.zeros(length, dtype=np.int64)

    return Prices(
        of(steps), of(steps), of(steps), of(steps), of(steps), np.zeros(kept), np.zeros(kept),
        of(chain), of(chain), of(len(net.size)), of(4), of(3 * changes),
    )  # fmt: skip


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
