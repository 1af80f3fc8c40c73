"""Operators of a model file: their sequence for a schedule, and a check that it computes the same.

:func:`check_same` shares no code with :func:`sequence`. Two sequences compute the same if each output has the same
*number*, a digest of everything that it is computed from.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from remat.errors import FormatError
from remat.runtime.text import short

#: A tensor of a file: its name, or its position.
Value = Hashable


@dataclass(frozen=True)
class FileOp:
    """An operator of a file."""

    label: str
    """Name in messages."""
    reads: tuple[Value, ...]
    """Inputs in order; None for a missing optional one."""
    writes: tuple[Value, ...]
    """Outputs, likewise."""
    content: bytes = b""
    """Everything else that affects the result."""
    state: tuple[Value, ...] = ()
    """Variables and other state that it reads or changes; operators that share state keep their order."""


@dataclass(frozen=True)
class Instance:
    """A run of an operator, with the version of each value that it reads or writes, counted from 1.

    Values that no operator writes have version 0.
    """

    op: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class _Sequence:
    """Sequence of instances under construction; see :func:`sequence`."""

    def __init__(self, ops: Sequence[FileOp], scheduled: set[int]) -> None:
        self._ops, self._scheduled = ops, scheduled
        self._writer = {value: k for k, op in enumerate(ops) for value in op.writes if value is not None}
        self._version: dict[Value, int] = defaultdict(int)
        self._made_from: dict[int, tuple[int, ...]] = {}
        self.found: list[Instance] = []

    def run(self, position: int) -> None:
        """Run an operator, after the folded operators that it needs."""
        op = self._ops[position]
        for value in op.reads:
            self.need(value)
        reads = tuple(self._version[value] if value is not None else 0 for value in op.reads)
        for value in op.writes:
            if value is not None:
                self._version[value] += 1
        writes = tuple(self._version[value] if value is not None else 0 for value in op.writes)
        self._made_from[position] = reads
        self.found.append(Instance(position, reads, writes))

    def need(self, value: Value) -> None:
        """Run folded operators to make a value that is missing or outdated."""
        waiting = [(value, False)]
        while waiting:
            value, inputs_are_there = waiting.pop()
            writer = self._writer.get(value)
            if value is None or writer is None or writer in self._scheduled:
                continue
            if not inputs_are_there:
                waiting.append((value, True))
                waiting.extend((each, False) for each in self._ops[writer].reads)
            elif self._made_from.get(writer) != tuple(
                self._version[each] if each is not None else 0 for each in self._ops[writer].reads
            ):
                self.run(writer)

    def needed(self, outputs: Iterable[Value]) -> set[int]:
        """Return the folded operators that a scheduled operator or an output depends on."""
        waiting = [*outputs, *(value for k in self._scheduled for value in self._ops[k].reads)]
        found: set[int] = set()
        while waiting:
            writer = self._writer.get(waiting.pop())
            if writer is not None and writer not in self._scheduled and writer not in found:
                found.add(writer)
                waiting.extend(self._ops[writer].reads)
        return found

    def is_there(self, position: int) -> bool:
        """Return True if the inputs of an operator have been computed."""
        return all(value not in self._writer or self._version[value] for value in self._ops[position].reads)


def sequence(ops: Sequence[FileOp], computes: Sequence[int], outputs: Iterable[Value]) -> list[Instance]:
    """Return the instances of a file's operators in the order of a schedule.

    Operators that are not scheduled are *folded*: views and constants, for which the graph has no op. A folded operator
    runs right before its first reader, and again if its input has been recomputed. Without a reader it runs right after
    its inputs.

    Parameters
    ----------
    ops : sequence of FileOp
        In the order of the file.
    computes : sequence of int
        Positions in `ops`, in the order of the schedule; a repeated one is a recomputation.
    outputs : iterable of Value
        Outputs of the model.
    """
    made = _Sequence(ops, set(computes))
    outputs = list(outputs)
    unread = sorted(set(range(len(ops))) - set(computes) - made.needed(outputs))

    def run_unread() -> None:
        while ready := [k for k in unread if made.is_there(k)]:
            for k in ready:
                made.run(k)
                unread.remove(k)

    run_unread()
    for position in computes:
        made.run(position)
        run_unread()
    for value in outputs:
        made.need(value)
    run_unread()
    return _without_unread(ops, made.found, set(outputs))


def _without_unread(ops: Sequence[FileOp], instances: Sequence[Instance], outputs: set[Value]) -> list[Instance]:
    """Drop instances without a reader, but keep one of each operator.

    A schedule may compute values that it never uses, and ONNX Runtime would hold them to the end.
    """
    last = {each.op: k for k, each in enumerate(instances)}
    inner = {value for op in ops for value in op.reads} - outputs
    read: set[tuple[Value, int]] = set()
    kept: list[Instance] = []
    for k in range(len(instances) - 1, -1, -1):
        each = instances[k]
        op = ops[each.op]
        ends_here = k == last[each.op] and not inner.issuperset(op.writes)
        is_unread_in_file = k == last[each.op] and inner.isdisjoint(op.writes)
        if ends_here or is_unread_in_file or read.intersection(zip(op.writes, each.writes, strict=True)):
            read.update(zip(op.reads, each.reads, strict=True))
            kept.append(each)
    return kept[::-1]


def numbers(ops: Iterable[FileOp]) -> tuple[dict[Value, bytes], set[bytes]]:
    """Return a digest of the computation of each value, and the digests of all operators.

    Raise FormatError with the name of an operator that reads a value before it is written.
    """
    ops = list(ops)
    later = {value: op.label for op in ops for value in op.writes if value is not None}
    found: dict[Value, bytes] = {}
    state: dict[Value, bytes] = defaultdict(bytes)
    runs: set[bytes] = set()
    for op in ops:
        digest = hashlib.blake2b(op.content, digest_size=20)
        for value in op.reads:
            if value in later:
                raise FormatError(
                    f"{op.label} comes before {later[value]}, which writes its input {short(value)}; the runtime does "
                    "not check the order and would compute wrong numbers",
                    "not-topological",
                    op.label,
                )
            digest.update(b"\0" if value is None else found.get(value) or repr(value).encode())
        for key in op.state:
            digest.update(state[key])
        number = digest.digest()
        runs.add(number)
        for key in op.state:
            state[key] = number
        for k, value in enumerate(op.writes):
            if value is not None:
                found[value] = number + k.to_bytes(4, "little")
                later.pop(value, None)
    return found, runs


def check_same(before: Sequence[FileOp], after: Sequence[FileOp], outputs: Iterable[tuple[Value, Value]]) -> None:
    """Check that a rewritten file has the same outputs and operators, except for repeated ones.

    `outputs`: each output, before and after. Raise FormatError with the name of a changed output, or for other changes.
    """
    (old, old_runs), (new, new_runs) = numbers(before), numbers(after)
    for first, second in outputs:
        if old.get(first) != new.get(second):
            raise FormatError(f"output {short(first)} would change; nothing is written", "other-output")
    if old_runs != new_runs:
        raise FormatError(
            "an operator would read other values than before (variables keep the order of the file): nothing is "
            "written",
            "other-operator",
        )
