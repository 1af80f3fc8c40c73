"""Operators of a model file: the sequence that a schedule makes of them, and what they compute.

The sequence is written by one function and checked by another that shares nothing with it: two sequences compute the
same where each output has the same *number*, a digest of all that goes into it.
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
    """For messages."""
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    """`reads` and `writes`: in order; None for what is optional and absent."""
    content: bytes = b""
    """All else that decides what it computes."""
    state: tuple[Value, ...] = ()
    """What it reads or changes in addition to tensors, such as variables: all that touch one keep their order."""


@dataclass(frozen=True)
class Instance:
    """A run of an operator, with the version of each value that it reads or writes, counted from 1.

    Values that no operator writes have version 0.
    """

    op: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class _Sequence:
    """Makes the sequence of instances; see :func:`sequence`."""

    def __init__(self, ops: Sequence[FileOp], scheduled: set[int]) -> None:
        self._ops, self._scheduled = ops, scheduled
        self._writer = {value: k for k, op in enumerate(ops) for value in op.writes if value is not None}
        self._version: dict[Value, int] = defaultdict(int)
        self._made_from: dict[int, tuple[int, ...]] = {}
        self.found: list[Instance] = []

    def run(self, position: int) -> None:
        """Run an operator, and before it those of the folded ones that it needs."""
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
        """Run the folded operators without which a value is missing, or one of an earlier instance."""
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
        """Return the folded operators on which a scheduled one or an output depends."""
        waiting = [*outputs, *(value for k in self._scheduled for value in self._ops[k].reads)]
        found: set[int] = set()
        while waiting:
            writer = self._writer.get(waiting.pop())
            if writer is not None and writer not in self._scheduled and writer not in found:
                found.add(writer)
                waiting.extend(self._ops[writer].reads)
        return found

    def is_there(self, position: int) -> bool:
        """Return whether the inputs of an operator have been computed."""
        return all(value not in self._writer or self._version[value] for value in self._ops[position].reads)


def sequence(ops: Sequence[FileOp], computes: Sequence[int], outputs: Iterable[Value]) -> list[Instance]:
    """Return the instances of a file's operators in the order of a schedule.

    Operators that are not scheduled are *folded*: views and constants that the graph has no op for. One runs right
    before what first reads it, again where its input has been recomputed, and right after its inputs where nothing
    reads it.

    Parameters
    ----------
    ops : sequence of FileOp
        In the order of the file.
    computes : sequence of int
        Positions in `ops`, in the order of the schedule; one that stands twice is recomputed.
    outputs : iterable of Value
        Those of the model.
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
    """Return the instances without those that nothing reads, but for one of each operator.

    A schedule may compute what it never uses, and ONNX Runtime would hold that to the end.
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
    """Return a digest for each value of what it is computed by and from, and those of all operators.

    Raise FormatError, naming the operator that stands before one that writes what it reads.
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
                    f"{op.label} stands before {later[value]}, which writes {short(value)}: the runtime would run "
                    "it all the same, and give wrong numbers",
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
    """Check that a rewritten file computes what it did: same outputs, no operator lost, none made up.

    `outputs`: each output, before and after.

    Raise FormatError, naming the operator or the output.
    """
    (old, old_runs), (new, new_runs) = numbers(before), numbers(after)
    for first, second in outputs:
        if old.get(first) != new.get(second):
            raise FormatError(f"output {short(first)} would not be what it was: nothing is written", "other-output")
    if old_runs != new_runs:
        raise FormatError(
            "an operator would read other values than before (variables keep the order of the file): nothing is "
            "written",
            "other-operator",
        )
