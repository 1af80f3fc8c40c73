"""The question of an order in arrays: what each op reads, writes and holds, and what is live before and after."""

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
    """Ops to be computed once each, in an order of least peak.

    Ops are numbered in the reference order, so that every op has a higher number than those it depends on. What is
    live at all times (graph inputs, constant memory) is in `held`, and what is live at the steps of its writers only,
    since nobody reads or keeps it, is in their `workspace`: no tensor here is either. A tensor is allocated by the
    first op that writes it, unless it is in `live`; an op may read it after all its writers in the instance; and it is
    freed right after the last op that writes or reads it, unless it is in `kept`.

    Attributes
    ----------
    size : int64 array, shape (tensors,)
        Bytes.
    workspace : int64 array, shape (ops,)
        Bytes that are held at the step of the op only, less those of outputs that it writes in place of inputs; it may
        be negative.
    op_inputs, op_outputs : Csr
        Tensors that each op reads and writes; none in both.
    predecessors : Csr
        Ops that must come before each op.
    live : bool array, shape (tensors,)
        Which are allocated from the start.
    kept : bool array, shape (tensors,)
        Which stay at the end.
    held : int
        Bytes throughout, beside the tensors.
    ops, tensors : int64 arrays, shapes (ops,) and (tensors,)
        Their positions in the graph.
    exact : bool
        Whether every order has the peak here that it has in the graph. It is not so where it depends on the order
        which op is the last to read a tensor in whose place it may write.

    Examples
    --------
    The order that computes both halves of `a` first holds more.

    >>> from remat import GraphBuilder
    >>> b = GraphBuilder("two branches")
    >>> _ = b.op("a", size=2), b.op("b", inputs=["a"], size=9), b.op("c", inputs=["a"], size=9)
    >>> _ = b.op("d", inputs=["b"], size=1), b.op("e", inputs=["c"], size=1), b.op("f", inputs=["d", "e"], size=1)
    >>> instance = OrderInstance.of(Problem(b.build()))
    >>> instance.peak_of(instance.reference), instance.peak_of([0, 1, 3, 2, 4, 5])
    (20, 12)
    """

    size: Int
    workspace: Int
    op_inputs: Csr
    op_outputs: Csr
    predecessors: Csr
    live: Bool
    kept: Bool
    held: int
    ops: Int
    tensors: Int
    exact: bool = True

    @classmethod
    def of(cls, problem: Problem, *, least: bool = True) -> OrderInstance:
        """The question of an order for the graph of `problem`, with what it keeps and the constant memory it counts.

        Its budget, its order rule and its limits of computes are not looked at. Where the instance is not `exact`, a
        bound for it is one for the graph if `least`, and otherwise no order has a higher peak in the graph.

        Parameters
        ----------
        least : bool
            Whether an op that may be the last reader of a tensor, or not, writes in its place.
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
        return cls._made(
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

    @classmethod
    def _made(
        cls, size: Int, workspace: Int, *pairs: tuple[Int, Int], live: Bool, kept: Bool, held: int, ops: Int,
        tensors: Int, exact: bool,
    ) -> OrderInstance:  # fmt: skip
        """From pairs of an op and a tensor that it reads, one that it writes, and an op that must come before it."""
        reads, writes, needs = (Csr.from_pairs(*columns, len(workspace)) for columns in pairs)
        return cls(
            frozen(size), frozen(workspace), reads, writes, needs, frozen(live), frozen(kept), int(held), frozen(ops),
            frozen(tensors), exact,
        )  # fmt: skip

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
        """Ops that must come after each op."""
        return self.predecessors.transposed(self.num_ops)

    @property
    def num_ops(self) -> int:
        """How many ops there are to be ordered."""
        return len(self.workspace)

    @property
    def num_tensors(self) -> int:
        """How many tensors come and go."""
        return len(self.size)

    @property
    def reference(self) -> Int:
        """The reference order."""
        return np.arange(self.num_ops, dtype=np.int64)

    @cached_property
    def start(self) -> int:
        """Bytes that are live before the first op."""
        return self.held + int(self.size[self.live].sum())

    @cached_property
    def op_bytes(self) -> Int:
        """Bytes at the step of each op at the least: what is held, what it reads and writes, its workspace.

        Shape (ops,).
        """
        touched = self.op_inputs.sums(self.size) + self.op_outputs.sums(self.size)
        return frozen(self.held + self.workspace + touched)

    @cached_property
    def structural_bound(self) -> int:
        """No order has a lower peak: what one op needs, or what is live before the first or after the last."""
        end = self.held + int(self.size[self.kept].sum())
        return max(int(self.op_bytes.max(initial=0)), self.start if self.num_ops else 0, end)

    # -- orders ------------------------------------------------------------------------------------------------------

    def profile(self, order: Iterable[int] | Int) -> Int:
        """Memory at each step of an order, in bytes; shape (ops,).

        Raises
        ------
        ProblemError
            If it is not an order of all ops in which every op comes after those it depends on.
        """
        order, num_ops = _array(order), self.num_ops
        if order.shape != (num_ops,) or (np.sort(order) != np.arange(num_ops)).any():
            raise ProblemError(f"an order has each of the {num_ops} ops once", "order-ops")
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
        """The peak of an order in bytes: what the validator finds for its schedule, if the instance is whole and exact.

        Raises
        ------
        ProblemError
            If it is not an order of all ops in which every op comes after those it depends on.
        """
        return int(self.profile(order).max(initial=0))

    def schedule(self, problem: Problem, order: Iterable[int] | Int, source: str = "") -> Schedule:
        """The schedule that computes the ops in that order, with implied frees; for the instance of `problem`."""
        return Schedule.of_computes(problem.graph, self.ops[_array(order)], source=source)

    # -- parts -------------------------------------------------------------------------------------------------------

    def part(self, ops: Iterable[int] | Int, done: Iterable[int] | Int = ()) -> OrderInstance:
        """The question for some ops after others are done and before the rest.

        What it holds and keeps is what the done ones leave and the rest needs. Orders of parts that follow each other,
        put together by :attr:`ops`, have the largest of their peaks.

        Parameters
        ----------
        ops, done : ops of this instance
            With every op in `ops`, what it depends on is in `ops` or `done`.

        Raises
        ------
        ProblemError
            If it is not, or an op is in both.
        """
        chosen, before = self._mask(ops), self._mask(done)
        needed = ~(chosen | before)[self.predecessors.indices] & chosen[self.predecessors.rows]
        if needed.any() or (chosen & before).any():
            raise ProblemError("a part has an op twice, or without what it depends on", "order-part")
        touched, begun, ahead = (self._touched(mask) for mask in (chosen, before, ~(chosen | before)))
        begun |= self.live
        here = begun & ~touched & (ahead | self.kept)
        there = np.flatnonzero(touched)
        op_number, tensor_number = _numbers(chosen), _numbers(touched)
        return self._made(
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

    def _mask(self, ops: Iterable[int] | Int) -> Bool:
        mask = np.zeros(self.num_ops, dtype=np.bool_)
        mask[_array(ops)] = True
        return mask

    def _touched(self, ops: Bool) -> Bool:
        """Tensors that one of the ops reads or writes."""
        touched = np.zeros(self.num_tensors, dtype=np.bool_)
        for rows in (self.op_inputs, self.op_outputs):
            touched[rows.indices[ops[rows.rows]]] = True
        return touched


def saved_in_place(problem: Problem) -> tuple[Int, Int]:
    """Bytes of outputs that each op writes in place of inputs, in some order and in every order; shape (ops,).

    An input dies at an op in every order if all other readers come before it, and in none if one comes after it.
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
    """New numbers of those in a mask; -1 for the others."""
    return np.where(mask, np.cumsum(mask) - 1, -1)


def _renumbered(rows: Csr, row_number: Int, column_number: Int) -> tuple[Int, Int]:
    """The pairs of `rows` with other numbers, without those that have none."""
    row, column = row_number[rows.rows], column_number[rows.indices]
    there = (row >= 0) & (column >= 0)
    return row[there], column[there]
