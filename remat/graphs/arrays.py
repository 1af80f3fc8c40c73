"""Array views of a graph with compressed rows, and functions of sequences and intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from remat.errors import GraphError
from remat.graphs.in_place import most_pairs
from remat.graphs.ops_and_tensors import Op, Tensor
from remat.runtime.arrays import Bool, Int

#: Largest number of (producer, consumer, tensor) triples: a few buffers with many writers and readers exhaust memory.
MAX_EDGES = 100_000_000


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
    """Cache of `shared_lists`; at most one item."""

    @classmethod
    def from_pairs(cls, rows: Int, columns: Int, num_rows: int) -> Csr:
        """Return rows from (row, column) pairs in any order; duplicates are kept."""
        width = int(columns.max(initial=0)) + 1
        keys = np.sort(rows * width + columns)  # one key per pair: far faster than sorting by two keys
        indptr = np.zeros(num_rows + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=num_rows), out=indptr[1:])
        return cls(frozen(indptr), frozen(keys % width))

    @classmethod
    def distinct(cls, rows: Int, columns: Int, num_rows: int) -> Csr:
        """Return rows from (row, column) pairs in any order; duplicates are dropped."""
        width = int(columns.max(initial=0)) + 1
        keys = np.sort(rows * width + columns)  # far faster than np.unique, which hashes each key
        keys = keys[np.diff(keys, prepend=-1) > 0]
        return cls.from_pairs(keys // width, keys % width, num_rows)

    def __getitem__(self, row: int) -> Int:
        return self.indices[self.indptr[row] : self.indptr[row + 1]]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __iter__(self) -> Iterator[Int]:
        return (self[row] for row in range(len(self)))

    @property
    def rows(self) -> Int:
        """Row of each item of `indices`."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.counts)

    @property
    def counts(self) -> Int:
        """Length of each row."""
        return np.diff(self.indptr)

    def lists(self) -> list[list[int]]:
        """Return the rows as Python lists, for plain loops."""
        flat, ends = self.indices.tolist(), self.indptr.tolist()
        return [flat[a:b] for a, b in pairwise(ends)]

    def where(self, mask: Bool) -> Csr:
        """Return the rows restricted to the columns that `mask`, of shape (columns,), selects.

        Examples
        --------
        >>> rows = Csr.from_pairs(np.array([0, 0, 1]), np.array([2, 1, 0]), 2)
        >>> rows.where(np.array([True, False, True])).lists()
        [[2], [0]]
        """
        chosen = mask[self.indices]
        ends = np.concatenate([[0], np.cumsum(chosen)])
        return Csr(ends[self.indptr], self.indices[chosen])

    def transposed(self, num_columns: int) -> Csr:
        """Return the transposed table: for each column, the rows that contain it."""
        return Csr.from_pairs(self.indices, self.rows, num_columns)

    def entries(self, rows: Int) -> tuple[Int, Int]:
        """Return, for each entry of `rows` in turn, its position in `rows` and its position in `indices`.

        Examples
        --------
        >>> table = Csr.from_pairs(np.array([0, 0, 1]), np.array([2, 1, 0]), 2)
        >>> [each.tolist() for each in table.entries(np.array([1, 0]))]
        [[0, 1, 1], [2, 0, 1]]
        """
        counts = self.counts[rows]
        owner = np.repeat(np.arange(len(rows)), counts)
        return owner, np.arange(len(owner)) + np.repeat(self.indptr[rows] - np.cumsum(counts) + counts, counts)

    def sums(self, weights: Int) -> Int:
        """Return the sum of `weights`, of shape (columns,), over each row."""
        running = np.concatenate([[0], np.cumsum(weights[self.indices])])
        return running[self.indptr[1:]] - running[self.indptr[:-1]]

    def lowest(self, values: Int, most: int) -> Int:
        """Return the minimum of `values`, of shape (columns,), over each row; at most `most`."""
        found = np.full(len(self), most, dtype=np.int64)
        np.minimum.at(found, self.rows, values[self.indices])
        return found

    def highest(self, values: Int, least: int) -> Int:
        """Return the maximum of `values`, of shape (columns,), over each row; at least `least`."""
        found = np.full(len(self), least, dtype=np.int64)
        np.maximum.at(found, self.rows, values[self.indices])
        return found

    def reachable(self, start: int) -> Int:
        """Return all items reachable from `start`, except itself; rows and columns must number the same items.

        Examples
        --------
        >>> Csr.from_pairs(np.array([0, 1]), np.array([1, 2]), 3).reachable(0).tolist()
        [1, 2]
        """
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order

        links = csr_array((np.ones(len(self.indices), np.int8), self.indices, self.indptr), shape=(len(self),) * 2)
        return np.sort(breadth_first_order(links, start, return_predecessors=False)[1:]).astype(np.int64)

    def shared_lists(self) -> Sequence[Sequence[int]]:
        """Return :meth:`lists`, computed once and shared; callers must not modify the result.

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
    """Read-only arrays of one graph; ops and tensors are numbered as in ``graph.ops`` and ``graph.tensors``.

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
    in_place : int64 array, shape (3, pairs)
        Op, output and input of each pair such that the op may write the output in place of the input; without pairs
        of 0 bytes and without graph inputs.
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
    in_place: Int

    @classmethod
    def of(
        cls,
        name: str,
        tensors: Sequence[Tensor],
        ops: Sequence[Op],
        *,
        ends: tuple[Sequence[str], Sequence[str]],
        order: Sequence[str],
    ) -> GraphArrays:
        """Return the arrays of a graph whose names have been checked.

        `ends` are the graph inputs and the graph outputs; `order` lists the op names in the reference order.
        """
        num_ops, num_tensors = len(ops), len(tensors)
        tensor = {each.name: number for number, each in enumerate(tensors)}
        number_of = {each.name: number for number, each in enumerate(ops)}
        inputs, outputs = ends
        in_op, in_tensor = _pairs([x.inputs for x in ops], tensor)
        out_op, out_tensor = _pairs([x.outputs for x in ops], tensor)
        producers = Csr.from_pairs(out_tensor, out_op, num_tensors)
        # One triple for each (reader, producer of the tensor it reads).
        if (count := int(producers.counts[in_tensor].sum())) > MAX_EDGES:
            raise GraphError(f"graph {name!r} has {count:,} dependencies, more than {MAX_EDGES:,}")
        read, entry = producers.entries(in_tensor)
        edges = np.stack([producers.indices[entry], in_op[read], in_tensor[read]])
        edges = edges[:, np.lexsort(edges[::-1])]
        sequence = np.array([number_of[op] for op in order], dtype=np.int64)
        position = np.empty(num_ops, dtype=np.int64)
        position[sequence] = np.arange(num_ops)
        return cls(
            name=name,
            op_names=tuple(o.name for o in ops),
            size=frozen(np.array([t.size for t in tensors], dtype=np.int64)),
            cost=frozen(np.array([o.cost for o in ops], dtype=np.int64)),
            workspace=frozen(np.array([o.workspace for o in ops], dtype=np.int64)),
            recomputable=frozen(np.array([o.recomputable for o in ops], dtype=np.bool_)),
            op_inputs=Csr.from_pairs(in_op, in_tensor, num_ops),
            op_outputs=Csr.from_pairs(out_op, out_tensor, num_ops),
            producers=producers,
            consumers=Csr.from_pairs(in_tensor, in_op, num_tensors),
            edge_producer=frozen(edges[0]),
            edge_consumer=frozen(edges[1]),
            edge_tensor=frozen(edges[2]),
            is_input=_mask((tensor[t] for t in inputs), num_tensors),
            is_output=_mask((tensor[t] for t in outputs), num_tensors),
            order=frozen(sequence),
            position=frozen(position),
            in_place=frozen(_in_place(ops, tensor, inputs, tensors)),
        )

    @cached_property
    def op_predecessors(self) -> Csr:
        """Distinct ops that write an input of each op."""
        return Csr.distinct(self.edge_consumer, self.edge_producer, len(self.cost))

    @cached_property
    def op_successors(self) -> Csr:
        """Distinct ops that read an output of each op."""
        return Csr.distinct(self.edge_producer, self.edge_consumer, len(self.cost))

    def touched(self, op: int) -> Bool:
        """Mark the tensors that an op reads or writes."""
        mask = np.zeros(len(self.size), dtype=np.bool_)
        mask[self.op_inputs[op]] = mask[self.op_outputs[op]] = True
        return mask

    def writes_of(self, tensors: Bool) -> tuple[Int, Int]:
        """Return writer and tensor of each write of a marked tensor."""
        marked = tensors[self.producers.rows]
        return self.producers.indices[marked], self.producers.rows[marked]

    def edges_of(self, tensors: Bool) -> tuple[Int, Int, Int]:
        """Return writer, reader and tensor of each edge of a marked tensor."""
        marked = tensors[self.edge_tensor]
        return self.edge_producer[marked], self.edge_consumer[marked], self.edge_tensor[marked]

    def lifetimes(self, place: Int) -> tuple[Int, Int]:
        """Return, for each tensor, the first place of a writer and the last place of a writer or reader.

        Ops whose `place` is −1 are skipped. If all ops of a tensor are skipped, the places are ``len(place)`` and −1.
        """
        num_ops = len(place)
        first = self.producers.lowest(np.where(place < 0, num_ops, place), num_ops)
        return first, np.maximum(self.producers.highest(place, -1), self.consumers.highest(place, -1))

    @cached_property
    def input_bytes(self) -> int:
        """Bytes of the graph inputs, which are live throughout."""
        return int(self.size[self.is_input].sum())

    @cached_property
    def in_place_most(self) -> Int:
        """Largest number of output bytes that each op can write in place of inputs; shape (ops,)."""
        most = np.zeros(len(self.cost), dtype=np.int64)
        for op in self.in_place_pairs:
            most[op] = self.size[[output for output, _ in self.written_in_place(op, lambda *_: True)]].sum()
        return frozen(most)

    @cached_property
    def in_place_pairs(self) -> dict[int, list[tuple[int, int]]]:
        """Pairs (output, input) of `in_place`, by op."""
        found: dict[int, list[tuple[int, int]]] = {}
        for op, output, source in self.in_place.T.tolist():
            found.setdefault(op, []).append((output, source))
        return found

    def written_in_place(self, op: int, possible: Callable[[int, int], bool]) -> list[tuple[int, int]]:
        """Return the pairs (output, input) of `op` that take effect: a largest matching of the possible ones."""
        return most_pairs([pair for pair in self.in_place_pairs.get(op, ()) if possible(*pair)])

    @cached_property
    def op_bytes(self) -> Int:
        """Least memory in bytes at a step of each op: graph inputs, and the op's inputs, outputs and workspace.

        Outputs that the op may write in place of inputs are not counted.
        """
        weights = np.where(self.is_input, 0, self.size)
        touched = self.op_inputs.sums(weights) + self.op_outputs.sums(weights)
        return frozen(self.input_bytes + touched + self.workspace - self.in_place_most)

    @cached_property
    def reference_memory(self) -> Int:
        """Memory at each step of the reference order without recomputation, frees at last use; shape (ops,)."""
        num_ops = len(self.order)
        # A tensor that is neither read nor kept is live only while written, however many ops write it.
        unread = ~self.is_input & ~self.is_output & (self.consumers.counts == 0)
        live = ~self.is_input & ~unread
        first, last = self.lifetimes(self.position)
        last[self.is_output] = num_ops - 1
        fleeting = unread[self.producers.rows]
        when = self.position[self.producers.indices[fleeting]]
        held = staircase(first[live], last[live], self.size[live], num_ops)
        held += staircase(when, when, self.size[self.producers.rows[fleeting]], num_ops)
        last[self.is_output] = num_ops  # graph outputs never die
        for op in self.in_place_pairs:
            place = int(self.position[op])
            pairs = self.written_in_place(op, lambda _, source, place=place: bool(last[source] == place))  # type: ignore[misc]
            held[place] -= sum(int(self.size[output]) for output, _ in pairs)
        return frozen(self.input_bytes + held + self.workspace[self.order])

    @cached_property
    def reference_peak(self) -> int:
        """Largest of `reference_memory`."""
        return int(self.reference_memory.max())


def staircase(first: Int, last: Int, weight: Int, length: int) -> Int:
    """Return the total weight of the intervals ``first .. last`` that cover each place 0 .. `length` − 1.

    Examples
    --------
    >>> staircase(np.array([0, 1]), np.array([1, 2]), np.array([5, 7]), 4).tolist()
    [5, 12, 7, 0]
    """
    change = np.zeros(length + 1, dtype=np.int64)
    np.add.at(change, first, weight)
    np.subtract.at(change, last + 1, weight)
    return np.cumsum(change[:-1])


def first_computes(sequence: Int) -> Bool:
    """Return a mask of the steps of an op sequence that compute their op for the first time.

    Examples
    --------
    >>> first_computes(np.array([0, 1, 0, 2])).tolist()
    [True, True, False, True]
    """
    return occurrences(sequence) == 0


def occurrences(sequence: Int) -> Int:
    """Return, for each place of a sequence, how often its value occurs at earlier places.

    Examples
    --------
    >>> occurrences(np.array([0, 1, 0, 2, 0])).tolist()
    [0, 0, 1, 0, 2]
    """
    by_op = np.argsort(sequence, kind="stable")
    found = np.empty(len(sequence), dtype=np.int64)
    found[by_op] = np.arange(len(sequence)) - np.searchsorted(sequence[by_op], sequence[by_op])
    return found


def stacked(tables: Sequence[Csr]) -> tuple[list[Int], Int]:
    """Return the row limits of each table within one array, and that array: 0, then the entries of all `tables`.

    Examples
    --------
    >>> table = Csr.from_pairs(np.array([0, 1]), np.array([5, 6]), 2)
    >>> begins, links = stacked([table, table])
    >>> [each.tolist() for each in begins], links.tolist()
    ([[1, 2, 3], [3, 4, 5]], [0, 5, 6, 5, 6])
    """
    starts = np.cumsum([1, *(len(table.indices) for table in tables)]).tolist()
    links = np.concatenate([np.zeros(1, dtype=np.int64), *(table.indices for table in tables)])
    return [table.indptr + start for table, start in zip(tables, starts, strict=False)], links


def frozen(array: NDArray) -> NDArray:
    """Make `array` read-only and return it."""
    array.flags.writeable = False
    return array


def _pairs(rows: Sequence[Sequence[str]], number: dict[str, int]) -> tuple[Int, Int]:
    """Return the row and the number of each name."""
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    columns = np.array([number[name] for row in rows for name in row], dtype=np.int64)
    return np.repeat(np.arange(len(rows)), counts), columns


def _in_place(ops: Sequence[Op], tensor: dict[str, int], inputs: Sequence[str], tensors: Sequence[Tensor]) -> Int:
    """Return the pairs of :attr:`GraphArrays.in_place`; shape (3, pairs)."""
    given = set(inputs)
    pairs = [
        (number, tensor[output], tensor[source])
        for number, op in enumerate(ops)
        for output, source in op.in_place
        if source not in given and tensors[tensor[source]].size
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 3).T


def _mask(members: Iterator[int], length: int) -> Bool:
    mask = np.zeros(length, dtype=np.bool_)
    mask[list(members)] = True
    return frozen(mask)
