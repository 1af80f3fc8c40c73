"""Arena of LiteRT without delegates: the runtime's planner, and the order that is best for it.

Source: LiteRT ``tflite/arena_planner.cc``, ``simple_memory_arena.cc`` and the kernels' ``inplace_operator`` (f677904).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from remat.deploy.dataflow import sequence
from remat.deploy.libstdcxx import set_order, sorted_order
from remat.deploy.tflite_file import TfliteFile
from remat.errors import FormatError
from remat.graphs.formats.tflite.assembly import Assembly
from remat.graphs.formats.tflite.tables import OperatorEntry, TensorEntry
from remat.runtime.deadline import Deadline

#: Alignment of tensors in bytes; sizes are not rounded.
ALIGNMENT = 64
#: Inputs whose place the first output of a kernel may take; kernels in :data:`_COPIES` do not change the data.
_SHARED = {
    **dict.fromkeys(("ADD", "SUB", "MUL", "DIV"), (0, 1)),
    **dict.fromkeys(("SOFTMAX", "DYNAMIC_UPDATE_SLICE", "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "BITCAST"), (0,)),
}  # fmt: skip
_COPIES = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "BITCAST"})
#: Largest tensor in bytes that is too small to share its place with a changed one.
_SCALAR = 4
#: Node after the last one: tensors that are held for ever.
_NEVER = 2**31 - 1


class LitertPlanner:
    """Planner of LiteRT for the main subgraph of a model, in any order of its operators.

    Parameters
    ----------
    temporaries : mapping of int to sequence of int, optional
        Bytes of each tensor that a kernel adds, by operator; 0 for those outside the arena.
    """

    def __init__(self, file: TfliteFile, temporaries: Mapping[int, Sequence[int]] | None = None) -> None:
        tables = file.tables[0]
        self._file, self._operators = file, tables.operators
        self._temporaries = temporaries or {}
        self._apart = _outside_arena(tables.tensors, file.assembly)
        read = [p for entry in tables.operators for p in entry.inputs if p >= 0]
        self._outputs = [p for p in tables.outputs if p >= 0]
        self._inputs = [p for p in tables.inputs if p >= 0 and p not in self._apart]
        self._variables = [p for p, tensor in enumerate(tables.tensors) if tensor.is_variable]
        self._references = Counter([*self._outputs, *self._inputs, *read])
        touched = {p for entry in tables.operators for p in (*entry.inputs, *entry.outputs) if p >= 0}
        self._size = {p: tables.tensors[p].bytes() for p in {*touched, *self._inputs} - self._apart}
        self._listed = self._size | {p: tables.tensors[p].bytes() for p in self._variables}
        self.shared: dict[int, int] = {}
        """Tensors that have no place of their own, and the tensor whose place they use."""
        for entry in tables.operators:
            self._share(entry)

    def _share(self, entry: OperatorEntry) -> None:
        if entry.kind not in _SHARED or not entry.outputs or entry.outputs[0] not in self._size:
            return
        output, changes = entry.outputs[0], entry.kind not in _COPIES
        for k in _SHARED[entry.kind]:
            source = entry.inputs[k] if k < len(entry.inputs) else -1
            if source not in self._size or source in self._inputs or output in self._outputs:
                continue
            same = self._size[source] == self._size[output] > _SCALAR and self._references[source] <= 1
            if not changes or same:
                root = self.shared.get(source, source)
                if self._size[root] == self._size[output] and (not changes or self._references[root] <= 1):
                    self.shared[output] = root
                return

    def pairs(self) -> dict[int, tuple[int, int]]:
        """Return the outputs that take the place of an input, with that input, by operator."""
        found = {}
        for position, entry in enumerate(self._operators):
            output = entry.outputs[0] if entry.outputs else -1
            if entry.kind not in _COPIES and output in self.shared:
                found[position] = (
                    output,
                    next(p for p in entry.inputs if p >= 0 and self.shared.get(p, p) == self.shared[output]),
                )
        return found

    def arena(self, order: Iterable[int] | None = None) -> int:
        """Return the bytes of the arena with operators in this order, by default that of the file."""
        shared, size = self.shared, dict(self._listed)
        held = [*self._variables, *self._inputs]
        first, last = dict.fromkeys(held, 0), dict.fromkeys([*held, *self._outputs], _NEVER)
        added: list[list[int]] = []  # the sets of LiteRT, one for each node; held tensors are in the first
        number = len(self._file.tables[0].tensors)
        for node, position in enumerate(range(len(self._operators)) if order is None else order):
            entry = self._operators[position]
            new = [p for p in entry.outputs if p >= 0]
            for p in new:
                first.setdefault(p, node)
            for p in entry.inputs:
                root = shared.get(p, p)
                last[root] = max(node, last.get(root, 0))
            for p, bytes_ in enumerate(self._temporaries.get(position, ()), number):
                first[p] = last[p] = node
                size[p] = bytes_
                new.append(p)
            number += len(self._temporaries.get(position, ()))
            added.append(new if node else [*held, *new])
        rows = [
            (p, first[p], last.get(p, _NEVER), size[p])  # an output without a reader is never freed
            for each in added or [held]
            for p in set_order(each)
            if size.get(p)
        ]
        rows = sorted_order(rows, key=_rank)
        apart = {*shared, *self._variables}
        return _arena((begin, end, bytes_) for p, begin, end, bytes_ in rows if p not in apart)


def _rank(row: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """Return the rank of a tensor (number, first node, last node, bytes): those held throughout are placed first."""
    number, first, last, size = row
    return (0, number, 0) if (first, last) == (0, _NEVER) else (1, -size, first)


def _outside_arena(tensors: Sequence[TensorEntry], assembly: Assembly) -> set[int]:
    """Return the constants, variables and resources, and what is computed from constants alone."""
    inside = assembly.name_of.keys() | assembly.base.keys()
    return {p for p, tensor in enumerate(tensors) if tensor.is_apart or p not in inside}


def _arena(rows: Iterable[tuple[int, int, int]]) -> int:
    """Place tensors (first node, last node, bytes) one by one in the tightest gap; return the end of the last one."""
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last; by offset
    high = 0
    for first, last, size in rows:
        if not size:
            continue
        at = best = -1
        gap = _NEVER**2
        for offset, end, other_first, other_last in placed:
            if other_last < first or other_first > last:
                continue
            start = -(-max(at, 0) // ALIGNMENT) * ALIGNMENT
            if start + size <= offset and offset - start < gap:
                best, gap = start, offset - max(at, 0)
            at = max(at, end)
            if not gap:
                break
        if best < 0:
            best = -(-max(at, 0) // ALIGNMENT) * ALIGNMENT
        high = max(high, best + size)
        low, above = 0, len(placed)
        while low < above:
            middle = (low + above) // 2
            low, above = (middle + 1, above) if placed[middle][0] <= best else (low, middle)
        placed.insert(low, (best, best + size, first, last))
    return high


def best_order(
    file: TfliteFile,
    planner: LitertPlanner,
    starts: Iterable[Sequence[int]],
    goal: int,
    deadline: Deadline,
) -> tuple[list[int], int]:
    """Return the order of operators with the smallest arena found, and its bytes.

    Operators move one at a time, from the best of `starts`; a move stays if the arena does not grow. The search ends at
    `goal` bytes or at the deadline.

    Raise FormatError if there is no order to start from.

    Parameters
    ----------
    starts : iterable of sequence of int
        Orders of operators that are not folded, by position.
    """
    ops, outputs = file.operators, file.outputs

    def cost(order: Sequence[int]) -> int:
        return planner.arena([each.op for each in sequence(ops, order, outputs)])

    found = min(((cost(order), list(order)) for order in starts), default=None, key=lambda each: each[0])
    if found is None:
        raise FormatError("there is no order of operators to start from")
    best, order = found
    before = _predecessors(file, order)
    draw, idle = random.Random(0), 0
    while best > goal and len(order) > 2 and deadline.remaining and idle < 200 * len(order):
        idle += 1
        trial = _moved(order, before, draw)
        if trial != order and (now := cost(trial)) <= best:
            if now < best:
                idle = 0
            best, order = now, trial
    return order, best


def _moved(order: list[int], before: Mapping[int, frozenset[int]], draw: random.Random) -> list[int]:
    """Move a random operator to a random place between its predecessors and its successors."""
    k = draw.randrange(len(order))
    chosen = order[k]
    low = max((j + 1 for j in range(k) if order[j] in before[chosen]), default=0)
    high = next((j - 1 for j in range(k + 1, len(order)) if chosen in before[order[j]]), len(order) - 1)
    place = draw.randint(low, high)
    rest = order[:k] + order[k + 1 :]
    return [*rest[:place], chosen, *rest[place:]]


def _predecessors(file: TfliteFile, order: Sequence[int]) -> dict[int, frozenset[int]]:
    """Return the operators of `order` that must come before each of them: through folded ones, and by shared state."""
    writer = {value: k for k, op in enumerate(file.operators) for value in op.writes if value is not None}
    kept: set[int] = set(order)
    through: dict[int, frozenset[int]] = {}
    state: dict[object, int] = {}
    found: dict[int, frozenset[int]] = {}
    for k, op in enumerate(file.operators):
        sources: set[int] = {state[key] for key in op.state if key in state}
        for value in op.reads:
            if (source := writer.get(value)) is not None:
                sources |= {source} if source in kept else through.get(source, frozenset())
        (found if k in kept else through)[k] = frozenset(sources)
        state.update(dict.fromkeys(op.state, k))
    return found
