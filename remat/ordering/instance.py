"""Ordering problem as arrays: tensors that each op reads, writes and holds, and those live before and after."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.errors import ProblemError
from remat.graphs.arrays import Csr, frozen, staircase
from remat.problem import Problem
from remat.runtime.arrays import Bool, Int
from remat.schedule import Schedule


@dataclass(frozen=True, eq=False)
class OrderInstance:
    """Ops to compute once each, in an order of least peak.

    Ops are numbered in the reference order, so every op has a higher number than those it depends on. Memory that is
    live at all times (graph inputs, constant memory) is in `held`. A tensor that is live only at the steps of its
    writers, since no op reads it and it is not kept, is in their `workspace`. Neither is a tensor here. The first op
    that writes a tensor allocates it, unless it is in `live`; an op may read it after all its writers in the instance.
    It is freed right after the last op that writes or reads it, unless it is in `kept`.

    Examples
    --------
    The order that computes both readers of `a` first holds more.

    >>> from remat import GraphBuilder
    >>> b = GraphBuilder("two branches")
    >>> _ = b.op("a", size=2), b.op("b", inputs=["a"], size=9), b.op("c", inputs=["a"], size=9)
    >>> _ = b.op("d", inputs=["b"], size=1), b.op("e", inputs=["c"], size=1), b.op("f", inputs=["d", "e"], size=1)
    >>> instance = OrderInstance.of(Problem(b.build()))
    >>> instance.peak_of(instance.reference), instance.peak_of([0, 1, 3, 2, 4, 5])
    (20, 12)
    """

    size: Int
    """Bytes. Shape (tensors,)."""
    workspace: Int
    """Bytes held only at the step of the op, less those of outputs that it writes in place of inputs; may be negative.
    Shape (ops,)."""
    op_inputs: Csr
    """Tensors that each op reads; it writes none of these."""
    op_outputs: Csr
    """Tensors that each op writes."""
    predecessors: Csr
    """Ops that must precede each op."""
    live: Bool
    """True for tensors that are live from the start. Shape (tensors,)."""
    kept: Bool
    """True for tensors that stay live to the end. Shape (tensors,)."""
    held: int
    """Bytes held at all steps, in addition to the tensors."""
    ops: Int
    """Positions of the ops in the graph. Shape (ops,)."""
    tensors: Int
    """Positions of the tensors in the graph. Shape (tensors,)."""
    exact: bool = True
    """True when every order has the same peak here and in the graph. It is false if the last reader of a tensor, which
    may write in its place, depends on the order."""

    def __post_init__(self) -> None:
        for array in (self.size, self.workspace, self.live, self.kept, self.ops, self.tensors):
            frozen(array)

    @classmethod
    def of(cls, problem: Problem, *, least: bool = True) -> OrderInstance:
        """Return the instance for the graph of `problem`, with its kept tensors and counted constant memory.

        Its budget, order rule and limits of computes are ignored. If the instance is not `exact`, its bounds hold for
        the graph if `least` is true; otherwise each order's peak here is an upper bound of that in the graph.

        Parameters
        ----------
        least : bool
            Assume that an op that may be the last reader of a tensor writes in its place.
        """
        arrays = problem.graph.arrays
        unread = ~problem.kept & (arrays.consumers.counts == 0)  # freed after each of its writers
        there = np.flatnonzero(~arrays.is_input & ~unread)
        number = np.full(len(arrays.size), -1, dtype=np.int64)
        number[there] = np.arange(len(there))
        workspace = arrays.workspace.copy()
        entries = arrays.op_outputs
        lost = unread[entries.indices]
        np.add.at(workspace, entries.rows[lost], arrays.size[entries.indices[lost]])
        position = arrays.position
        most, sure = saved_in_place(problem)
        workspace -= most if least else sure
        return cls(
            arrays.size[there],
            workspace[arrays.order],
            _renumbered(arrays.op_inputs, position, number),
            _renumbered(arrays.op_outputs, position, number),
            _renumbered(arrays.op_predecessors, position, position),
            live=np.zeros(len(there), dtype=np.bool_),
            kept=problem.kept[there],
            held=arrays.input_bytes + problem.constant_bytes,
            ops=arrays.order.copy(),
            tensors=there,
            exact=bool((most == sure).all()),
        )

    @cached_property
    def producers(self) -> Csr:
        """Ops that write each tensor."""
        return self.op_outputs.transposed(self.num_tensors)

    @cached_property
    def consumers(self) -> Csr:
        """Ops that read each tensor."""
        return self.op_inputs.transposed(self.num_tensors)

    @cached_property
    def successors(self) -> Csr:
        """Ops that must follow each op."""
        return self.predecessors.transposed(self.num_ops)

    @property
    def num_ops(self) -> int:
        """Number of ops to order."""
        return len(self.workspace)

    @property
    def num_tensors(self) -> int:
        """Number of tensors."""
        return len(self.size)

    @property
    def reference(self) -> Int:
        """Reference order."""
        return np.arange(self.num_ops, dtype=np.int64)

    @cached_property
    def start(self) -> int:
        """Bytes that are live before the first op."""
        return self.held + int(self.size[self.live].sum())

    @cached_property
    def op_bytes(self) -> Int:
        """Least bytes at the step of each op: held memory, tensors it reads and writes, its workspace.

        Shape (ops,).
        """
        touched = self.op_inputs.sums(self.size) + self.op_outputs.sums(self.size)
        return frozen(self.held + self.workspace + touched)

    @cached_property
    def structural_bound(self) -> int:
        """Lower bound of every peak: the largest need of one op, or the bytes live at the start or the end."""
        end = self.held + int(self.size[self.kept].sum())
        return max(int(self.op_bytes.max(initial=0)), self.start if self.num_ops else 0, end)

    def profile(self, order: Iterable[int] | Int) -> Int:
        """Return the memory at each step of an order, in bytes; shape (ops,).

        Raises
        ------
        ProblemError
            If it is not a topological order of all ops.
        """
        order, num_ops = _array(order), self.num_ops
        if order.shape != (num_ops,) or (np.sort(order) != np.arange(num_ops)).any():
            raise ProblemError(f"an order must have each of the {num_ops} ops once", "order-ops")
        position = np.empty(num_ops, dtype=np.int64)
        position[order] = np.arange(num_ops)
        wrong = position[self.predecessors.indices] > position[self.predecessors.rows]
        if wrong.any():
            at = int(wrong.argmax())
            early, late = self.predecessors.rows[at], self.predecessors.indices[at]
            raise ProblemError(f"op {early} comes before op {late}, on which it depends", "order-precedence")
        first = self.producers.lowest(position, num_ops)
        last = np.maximum(self.producers.highest(position, 0), self.consumers.highest(position, 0))
        first[self.live] = 0
        last[self.kept] = num_ops - 1
        return self.held + staircase(first, last, self.size, num_ops) + self.workspace[order]

    def peak_of(self, order: Iterable[int] | Int) -> int:
        """Return the peak of an order in bytes; it equals the validator's if the instance is whole and exact.

        Raises
        ------
        ProblemError
            If it is not a topological order of all ops.
        """
        return int(self.profile(order).max(initial=0))

    def schedule(self, problem: Problem, order: Iterable[int] | Int, source: str = "") -> Schedule:
        """Return the schedule that computes the ops in that order, frees implied; for the instance of `problem`."""
        return Schedule.of_computes(problem.graph, self.ops[_array(order)], source=source)

    def part(self, ops: Iterable[int] | Int, done: Iterable[int] | Int = ()) -> OrderInstance:
        """Return the instance of some ops after others are done and before the remaining ones.

        It holds and keeps the tensors that the ops done leave and the remaining ones need. Orders of consecutive parts,
        concatenated by :attr:`ops`, have the largest of their peaks.

        Parameters
        ----------
        ops, done : ops of this instance
            Dependencies of every op in `ops` are in `ops` or `done`.

        Raises
        ------
        ProblemError
            If they are not, or an op is in both.
        """
        chosen, before = self._mask(ops), self._mask(done)
        needed = ~(chosen | before)[self.predecessors.indices] & chosen[self.predecessors.rows]
        if needed.any() or (chosen & before).any():
            raise ProblemError("a part has an op twice, or lacks one that it depends on", "order-part")
        touched, begun, ahead = (self._touched(mask) for mask in (chosen, before, ~(chosen | before)))
        begun |= self.live
        here = begun & ~touched & (ahead | self.kept)
        there = np.flatnonzero(touched)
        op_number, tensor_number = _numbers(chosen), _numbers(touched)
        return OrderInstance(
            self.size[there],
            self.workspace[chosen],
            _renumbered(self.op_inputs, op_number, tensor_number),
            _renumbered(self.op_outputs, op_number, tensor_number),
            _renumbered(self.predecessors, op_number, op_number),
            live=begun[there],
            kept=(ahead | self.kept)[there],
            held=self.held + int(self.size[here].sum()),
            ops=self.ops[chosen],
            tensors=self.tensors[there],
            exact=self.exact,
        )

    def renumbered(self, order: Int, tensors: Int) -> OrderInstance:
        """Return the same instance with its ops and tensors numbered as they follow each other here.

        Parameters
        ----------
        order : int64 array, shape (ops,)
            A topological order.
        tensors : int64 array, shape (tensors,)
        """
        op_number, tensor_number = np.argsort(order), np.argsort(tensors)
        return OrderInstance(
            self.size[tensors],
            self.workspace[order],
            _renumbered(self.op_inputs, op_number, tensor_number),
            _renumbered(self.op_outputs, op_number, tensor_number),
            _renumbered(self.predecessors, op_number, op_number),
            live=self.live[tensors],
            kept=self.kept[tensors],
            held=self.held,
            ops=self.ops[order],
            tensors=self.tensors[tensors],
            exact=self.exact,
        )

    def _mask(self, ops: Iterable[int] | Int) -> Bool:
        mask = np.zeros(self.num_ops, dtype=np.bool_)
        mask[_array(ops)] = True
        return mask

    def _touched(self, ops: Bool) -> Bool:
        """Return a mask of the tensors that one of the ops reads or writes."""
        touched = np.zeros(self.num_tensors, dtype=np.bool_)
        for rows in (self.op_inputs, self.op_outputs):
            touched[rows.indices[ops[rows.rows]]] = True
        return touched


def saved_in_place(problem: Problem) -> tuple[Int, Int]:
    """Return bytes of outputs that each op writes in place of inputs, in some order and in every order; shape (ops,).

    An input dies at an op in every order if all other readers precede the op, and in none if one follows it.
    """
    arrays = problem.graph.arrays
    most, sure = np.zeros((2, len(arrays.cost)), dtype=np.int64)
    for op, pairs in arrays.in_place_pairs.items():
        always: dict[int, bool] = {}
        for source in {source for _, source in pairs if not problem.kept[source]}:
            others = arrays.consumers[source]
            others = others[others != op]
            if not len(others):
                always[source] = True
            elif not np.isin(others, arrays.op_successors.reachable(op)).any():
                always[source] = bool(np.isin(others, arrays.op_predecessors.reachable(op)).all())
        for found, dies in ((most, always), (sure, {source for source, known in always.items() if known})):
            taken = arrays.written_in_place(op, lambda _, source, dies=dies: source in dies)  # type: ignore[misc]
            found[op] = arrays.size[[output for output, _ in taken]].sum()
    return most, sure


def _array(ops: Iterable[int] | Int) -> Int:
    return np.asarray(ops if isinstance(ops, np.ndarray) else list(ops), dtype=np.int64)


def _numbers(mask: Bool) -> Int:
    """Return new numbers of the members of a mask; -1 for the others."""
    return np.where(mask, np.cumsum(mask) - 1, -1)


def _renumbered(rows: Csr, row_number: Int, column_number: Int) -> Csr:
    """Return the rows and columns that have new numbers, renumbered."""
    row, column = row_number[rows.rows], column_number[rows.indices]
    there = (row >= 0) & (column >= 0)
    return Csr.from_pairs(row[there], column[there], int((row_number >= 0).sum()))
