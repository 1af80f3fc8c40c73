"""Array views of a graph: compressed rows of who reads, writes, precedes and follows whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from remat.errors import GraphError

if TYPE_CHECKING:
    from remat.graphs.graph import ComputeGraph, StructuralBound

#: A few buffers with many writers and many readers each would fill any memory with (writer, reader) pairs.
MAX_EDGES = 100_000_000

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Csr:
    """Compressed rows: row ``i`` is ``indices[indptr[i]:indptr[i+1]]``, ascending.

    Attributes
    ----------
    indptr : int64 array, shape (rows + 1,)
    indices : int64 array, shape (entries,)
    """

    indptr: Int
    indices: Int
    _lists: list[list[list[int]]] = field(default_factory=list, init=False, repr=False)
    """What `shared_lists` keeps: one item or none."""

    @classmethod
    def from_pairs(cls, rows: Int, columns: Int, num_rows: int) -> Csr:
        """Rows from (row, column) pairs in any order; duplicates are kept."""
        width = int(columns.max(initial=0)) + 1
        keys = np.sort(rows * width + columns)  # one key per pair: far faster than sorting by two
        indptr = np.zeros(num_rows + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=num_rows), out=indptr[1:])
        return cls(frozen(indptr), frozen(keys % width))

    def __getitem__(self, row: int) -> Int:
        return self.indices[self.indptr[row] : self.indptr[row + 1]]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __iter__(self) -> Iterator[Int]:
        return (self[row] for row in range(len(self)))

    @property
    def rows(self) -> Int:
        """Row of each entry of `indices`."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.counts)

    @property
    def counts(self) -> Int:
        """Length of each row."""
        return np.diff(self.indptr)

    def lists(self) -> list[list[int]]:
        """The rows as Python lists, for plain loops."""
        flat, ends = self.indices.tolist(), self.indptr.tolist()
        return [flat[a:b] for a, b in pairwise(ends)]

    def shared_lists(self) -> Sequence[Sequence[int]]:
        """The same, made once and kept, for who asks again and again; not to be changed.

        Examples
        --------
        >>> rows = Csr.from_pairs(np.array([0, 0, 1]), np.array([2, 1, 0]), 2)
        >>> rows.shared_lists(), rows.shared_lists() is rows.shared_lists()
        ([[1, 2], [0]], True)
        """
        if not self._lists:
            self._lists.append(self.lists())
        return self._lists[0]


@dataclass(frozen=True, eq=False)
class GraphArrays:
    """Read-only arrays of one graph; ops and tensors by their position in ``graph.ops`` and ``graph.tensors``.

    Attributes
    ----------
    size : int64 array, shape (tensors,)
        Bytes.
    cost, workspace : int64 arrays, shape (ops,)
        Cost units; bytes.
    recomputable : bool array, shape (ops,)
    op_inputs, op_outputs : Csr
        Tensors of each op.
    producers, consumers : Csr
        Ops of each tensor.
    edge_producer, edge_consumer, edge_tensor : int64 arrays, shape (edges,)
        All triples (producer op, consumer op, tensor), sorted.
    is_input, is_output : bool arrays, shape (tensors,)
        Graph inputs and graph outputs.
    order, position : int64 arrays, shape (ops,)
        Reference order as op numbers, and its inverse.
    """

    name: str
    op_names: tuple[str, ...]
    size: Int
    cost: Int
    workspace: Int
    recomputable: Bool
    op_inputs: Csr
    op_outputs: Csr
    producers: Csr
    consumers: Csr
    edge_producer: Int
    edge_consumer: Int
    edge_tensor: Int
    is_input: Bool
    is_output: Bool
    order: Int
    position: Int

    @classmethod
    def of(cls, graph: ComputeGraph) -> GraphArrays:
        """The arrays of `graph`, whose names have been checked."""
        num_ops, num_tensors = len(graph.ops), len(graph.tensors)
        tensor, op = graph.tensor_index, graph.op_index
        in_op, in_tensor = _pairs([x.inputs for x in graph.ops], tensor)
        out_op, out_tensor = _pairs([x.outputs for x in graph.ops], tensor)
        producers = Csr.from_pairs(out_tensor, out_op, num_tensors)
        # One triple for each (reader, producer of what it reads).
        counts = producers.counts[in_tensor]
        if counts.sum() > MAX_EDGES:
            raise GraphError(f"graph {graph.name!r} has {counts.sum():,} dependencies, more than {MAX_EDGES:,}")
        entry = np.repeat(producers.indptr[in_tensor] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        edges = np.stack([producers.indices[entry], np.repeat(in_op, counts), np.repeat(in_tensor, counts)])
        edges = edges[:, np.lexsort(edges[::-1])]
        order = np.array([op[name] for name in graph.order or ()], dtype=np.int64)
        position = np.empty(num_ops, dtype=np.int64)
        position[order] = np.arange(num_ops)
        return cls(
            name=graph.name,
            op_names=graph.op_names,
            size=frozen(np.array([t.size for t in graph.tensors], dtype=np.int64)),
            cost=frozen(np.array([o.cost for o in graph.ops], dtype=np.int64)),
            workspace=frozen(np.array([o.workspace for o in graph.ops], dtype=np.int64)),
            recomputable=frozen(np.array([o.recomputable for o in graph.ops], dtype=np.bool_)),
            op_inputs=Csr.from_pairs(in_op, in_tensor, num_ops),
            op_outputs=Csr.from_pairs(out_op, out_tensor, num_ops),
            producers=producers,
            consumers=Csr.from_pairs(in_tensor, in_op, num_tensors),
            edge_producer=frozen(edges[0]),
            edge_consumer=frozen(edges[1]),
            edge_tensor=frozen(edges[2]),
            is_input=_mask((tensor[t] for t in graph.inputs), num_tensors),
            is_output=_mask((tensor[t] for t in graph.outputs), num_tensors),
            order=frozen(order),
            position=frozen(position),
        )

    @cached_property
    def op_predecessors(self) -> Csr:
        """Distinct producers of what each op reads."""
        return self._op_pairs(self.edge_consumer, self.edge_producer)

    @cached_property
    def op_successors(self) -> Csr:
        """Distinct readers of what each op writes."""
        return self._op_pairs(self.edge_producer, self.edge_consumer)

    def _op_pairs(self, rows: Int, columns: Int) -> Csr:
        num_ops = len(self.cost)
        keys = np.sort(rows * num_ops + columns)  # far faster than np.unique, which looks up each one in a table
        keys = keys[np.diff(keys, prepend=-1) > 0]
        return Csr.from_pairs(keys // num_ops, keys % num_ops, num_ops)

    @cached_property
    def input_bytes(self) -> int:
        """Bytes of the graph inputs, which are live throughout."""
        return int(self.size[self.is_input].sum())

    def _sum_per_op(self, rows: Csr) -> Int:
        """Bytes of the tensors of each op that are not graph inputs."""
        weights = np.where(self.is_input, 0, self.size)[rows.indices]
        running = np.concatenate([[0], np.cumsum(weights)])
        return running[rows.indptr[1:]] - running[rows.indptr[:-1]]

    @cached_property
    def op_bytes(self) -> Int:
        """Bytes held at a step of each op at the least: graph inputs, its inputs, outputs and workspace."""
        return frozen(
            self.input_bytes + self._sum_per_op(self.op_inputs) + self._sum_per_op(self.op_outputs) + self.workspace
        )

    @cached_property
    def reference_memory(self) -> Int:
        """Memory at each step of the reference order without recomputation, frees at last use; shape (ops,)."""
        num_ops = len(self.order)
        # What nobody reads or keeps is there only while it is written, however many ops write it.
        unread = ~self.is_input & ~self.is_output & (self.consumers.counts == 0)
        live = ~self.is_input & ~unread
        first = np.full(len(self.size), num_ops, dtype=np.int64)
        last = np.zeros(len(self.size), dtype=np.int64)
        np.minimum.at(first, self.producers.rows, self.position[self.producers.indices])
        np.maximum.at(last, self.producers.rows, self.position[self.producers.indices])
        np.maximum.at(last, self.consumers.rows, self.position[self.consumers.indices])
        last[self.is_output] = num_ops - 1
        change = np.zeros(num_ops + 1, dtype=np.int64)
        np.add.at(change, first[live], self.size[live])
        np.add.at(change, last[live] + 1, -self.size[live])
        written = unread[self.producers.rows]
        when, size = self.position[self.producers.indices[written]], self.size[self.producers.rows[written]]
        np.add.at(change, when, size)
        np.add.at(change, when + 1, -size)
        return frozen(self.input_bytes + np.cumsum(change[:-1]) + self.workspace[self.order])

    @cached_property
    def reference_peak(self) -> int:
        """Largest of `reference_memory`."""
        return int(self.reference_memory.max())

    def structural_bound(self) -> StructuralBound:
        """The largest of `op_bytes`, or of the graph inputs and outputs together."""
        from remat.graphs.graph import StructuralBound

        op = int(self.op_bytes.argmax())
        ends = self.input_bytes + int(self.size[self.is_output & ~self.is_input].sum())
        if ends > self.op_bytes[op]:
            return StructuralBound(ends, None)
        return StructuralBound(int(self.op_bytes[op]), self.op_names[op])


def frozen(array: NDArray) -> NDArray:
    """`array`, made read-only."""
    array.flags.writeable = False
    return array


def _pairs(rows: Sequence[Sequence[str]], number: dict[str, int]) -> tuple[Int, Int]:
    """Row and number of each name."""
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    columns = np.array([number[name] for row in rows for name in row], dtype=np.int64)
    return np.repeat(np.arange(len(rows)), counts), columns


def _mask(members: Iterator[int], length: int) -> Bool:
    mask = np.zeros(length, dtype=np.bool_)
    mask[list(members)] = True
    return frozen(mask)
