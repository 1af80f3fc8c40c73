"""Nodes of retention intervals, their runs, and the tensors that they read, make and fill."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.formulations.staging import ComputeLimits
from remat.problem import Problem
from remat.problem.op_sequence import standing_buffers
from remat.runtime.arrays import Bool, Int

#: Code of the set of all runs of a node. Other codes: first single runs by index, then the sets in `NodeTables.sets`.
EVERY = -1
NOTHING: Int = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Touches:
    """Accesses of nodes to tensors, with the segments and the runs in which they occur.

    Attributes
    ----------
    node, tensor, begin, last, runs : int64 arrays of one shape
        `begin` and `last` are segments; `runs` is the code of a set of runs of the node.
    """

    node: Int
    tensor: Int
    begin: Int
    last: Int
    runs: Int

    @classmethod
    def of_ops(cls, op: Int, tensor: Int) -> Touches:
        """Touches by nodes with one run of one segment."""
        zero = np.zeros_like(op)
        return cls(op, tensor, zero, zero, zero + EVERY)


@dataclass(frozen=True)
class NodeTables:
    """Nodes, their runs, and their accesses to the tensors that cross borders.

    A *node* runs as a whole: an op, or a part of a composite. A *phantom* is the memory that the forward part of a
    composite saves for its backward part. Here it is a separate tensor, numbered after those of the graph. It is made
    at the end of a forward run and read before the first sub-step of the backward run with the same option.

    Attributes
    ----------
    position : int64 array, shape (nodes,)
        Position in the reference order.
    limit : int64 array, shape (nodes,)
        Largest number of runs of each node by the problem's limits of computes; -1: no limit.
    run_first : int64 array, shape (nodes + 1,)
        Runs ``run_first[k]:run_first[k + 1]`` are those of node k.
    run_node, run_option, run_cost : int64 arrays, shape (runs,)
    run_segments : int64 array, shape (runs,)
        Number of segments of each run.
    piece_run, piece_begin, piece_end, piece_demand : int64 arrays of one shape
        Bytes that a run holds in addition to interfaces in the segments ``begin <= segment < end``.
    reads, makes : Touches
        Of tensors with one writer, and of phantoms.
    fills, uses : Touches
        Contributions to accumulation buffers, and reads of these.
    set_node : int64 array, shape (sets,)
    sets : tuple of tuple of int
        Indices of runs within their node, for sets of more than one run and fewer than all.
    size : int64 array, shape (tensors and phantoms,)
    kept : bool array, shape (tensors and phantoms,)
        True for tensors that must be alive at the end.
    buffers : int64 array
        Accumulation buffers that cross borders and are read or kept.
    compute_limits : ComputeLimits or None
        Limits of ops in composites; None if every node is an op, since its number of copies already obeys its limit.
    """

    position: Int
    limit: Int
    run_first: Int
    run_node: Int
    run_option: Int
    run_cost: Int
    run_segments: Int
    piece_run: Int
    piece_begin: Int
    piece_end: Int
    piece_demand: Int
    reads: Touches
    makes: Touches
    fills: Touches
    uses: Touches
    set_node: Int
    sets: tuple[tuple[int, ...], ...]
    size: Int
    kept: Bool
    buffers: Int
    compute_limits: ComputeLimits | None = None

    @property
    def width(self) -> int:
        """Largest number of segments of a run, and units of time between two events."""
        return int(self.run_segments.max(initial=1))

    @property
    def is_plain(self) -> bool:
        """True if every node has one run of one segment, as an op has."""
        return self.width == 1 and len(self.run_node) == len(self.position)

    @classmethod
    def of_ops(cls, problem: Problem) -> NodeTables:
        """Return the tables of a problem in which every op is a node."""
        arrays = problem.graph.arrays
        is_buffer, workspace = standing_buffers(problem)
        op = np.arange(len(arrays.cost), dtype=np.int64)
        working = np.flatnonzero(workspace > 0)
        writer, made = arrays.op_outputs.rows, arrays.op_outputs.indices
        reader, read = arrays.op_inputs.rows, arrays.op_inputs.indices
        single, shared = arrays.producers.counts[made] == 1, is_buffer[made]
        wanted, used = ~arrays.is_input[read] & ~is_buffer[read], is_buffer[read]
        return cls(
            position=arrays.position,
            limit=np.array([-1 if limit is None else limit for limit in problem.compute_limits], dtype=np.int64),
            run_first=np.arange(len(op) + 1, dtype=np.int64), run_node=op, run_option=np.zeros_like(op),
            run_cost=arrays.cost, run_segments=np.ones_like(op), piece_run=working,
            piece_begin=np.zeros_like(working), piece_end=np.ones_like(working), piece_demand=workspace[working],
            reads=Touches.of_ops(reader[wanted], read[wanted]), makes=Touches.of_ops(writer[single], made[single]),
            fills=Touches.of_ops(writer[shared], made[shared]), uses=Touches.of_ops(reader[used], read[used]),
            set_node=NOTHING, sets=(), size=arrays.size, kept=problem.kept, buffers=np.flatnonzero(is_buffer),
        )  # fmt: skip
