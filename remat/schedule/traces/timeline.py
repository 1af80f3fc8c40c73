"""Timeline of a schedule: tensors held and ops computed step by step, shared by all traces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from remat.graphs import ComputeGraph
from remat.graphs.arrays import occurrences
from remat.runtime.arrays import Bool, Int
from remat.runtime.text import one_line
from remat.schedule.buffers import Buffers, schedule_buffers
from remat.schedule.schedule import Schedule
from remat.schedule.simulate import Simulation, simulate_valid

#: Kinds of buffers, in the order in which plots stack them.
KINDS = ("constant", "input", "activation", "loss", "gradient", "recomputed", "fetched", "workspace")


@dataclass(frozen=True, eq=False)
class Timeline:
    """Valid schedule as buffers over computes and fetches, the steps that allocate, counted from 0."""

    graph: ComputeGraph
    run: Simulation
    ops: Int
    """Op of each step; -1 for a fetch. Shape (steps,)."""
    number: Int
    """Ordinal of each step among the computes of its op, from 1; recomputations have 2 or more, a fetch 0."""
    memory: Int
    """Bytes held at each step, as simulated. Shape (steps,)."""
    buffers: Buffers
    """Instances of tensors, workspaces and, if counted, the constant memory."""
    kinds: tuple[str, ...]
    """One of :data:`KINDS` for each buffer."""
    op: Int
    """Op that writes it; -1 for graph inputs, fetched copies and constant memory. Shape (buffers,)."""
    stays: Bool
    """True for buffers still held after the last step. Shape (buffers,)."""

    @classmethod
    def of(
        cls, graph: ComputeGraph, schedule: Schedule, keep: Iterable[str] = (), count_constant_memory: bool = False
    ) -> Timeline:
        """Simulate `schedule` and return its timeline.

        Raise ScheduleError, naming the first violation, if the schedule does not run on `graph`.
        """
        keep = tuple(keep) if not isinstance(keep, str) else keep
        run = simulate_valid(graph, schedule, keep=keep, count_constant_memory=count_constant_memory)
        buffers = schedule_buffers(graph, schedule, keep=keep, constant_memory=count_constant_memory)
        ops = run.ops[run.allocates]
        tensors = len(graph.tensors)
        # if a tensor has more instances than frees, its last instance remains
        left = np.bincount(run.intervals.tensor, minlength=tensors) > np.bincount(run.free_tensor, minlength=tensors)
        stays = (buffers.upper == len(ops)) & (buffers.tensor >= 0) & left[buffers.tensor]
        instance, op, kinds = _numbers(buffers.tensor), np.full(len(buffers), -1, dtype=np.int64), []
        given, later = graph.arrays.is_input, set(buffers.pairs[0].tolist())
        rows = zip(buffers.names, *(x.tolist() for x in (buffers.lower, buffers.tensor, instance)), strict=True)
        for k, (name, lower, tensor, number) in enumerate(rows):
            if tensor < 0 and name.rstrip("'") == "constant memory":
                kinds.append("constant")
                stays[k] = True
                continue
            if tensor >= 0 and given[tensor]:
                kinds.append("input")
                continue
            op[k] = ops[lower - (k in later)]
            if op[k] < 0:
                kinds.append("fetched")
                continue
            phase = graph.ops[op[k]].phase
            kinds.append(
                "workspace" if tensor < 0 else "recomputed" if number > 1
                else {"backward": "gradient", "loss": "loss"}.get(phase, "activation")
            )  # fmt: skip
        return cls(graph, run, ops, _numbers(ops), run.memory[run.allocates], buffers, tuple(kinds), op, stays)

    @property
    def peak(self) -> int:
        """Largest value of `memory` in bytes."""
        return int(self.memory.max(initial=0))

    def events(self) -> list[tuple[int, bool]]:
        """Return all starts (True) and ends (False) of buffers, by position in `buffers`, in chronological order.

        At each step starts precede the ends after the step, so the largest sum of held bytes is the peak. Buffers that
        stay have no end.
        """
        b = self.buffers
        begun = [(lower, 0, k, True) for k, lower in enumerate(b.lower.tolist())]
        ended = [(upper - 1, 1, k, False) for k, upper in enumerate(b.upper.tolist()) if not self.stays[k]]
        return [(k, begins) for _, _, k, begins in sorted(begun + ended)]

    def held(self) -> dict[str, Int]:
        """Return the bytes of each kind at each step; their sum is `memory`."""
        result = {}
        kinds = np.array([KINDS.index(kind) for kind in self.kinds], dtype=np.int64)
        for code, kind in enumerate(KINDS):
            mine = kinds == code
            if mine.any():
                change = np.zeros(len(self.ops) + 1, dtype=np.int64)
                np.add.at(change, self.buffers.lower[mine], self.buffers.size[mine])
                np.add.at(change, self.buffers.upper[mine], -self.buffers.size[mine])
                result[kind] = np.cumsum(change)[:-1]
        return result


def _numbers(values: Int) -> Int:
    """Return the number of occurrences of each value up to and including its position; 0 for -1."""
    return (occurrences(values) + 1) * (values >= 0)


def module_paths(graph: ComputeGraph) -> dict[str, str]:
    """Return the module of each op that has one in ``meta["modules"]``."""
    found = graph.meta.get("modules")
    if not isinstance(found, Mapping):
        return {}
    return {op: path for op, path in found.items() if op in graph.op_index and isinstance(path, str) and path}


@dataclass(frozen=True)
class SourceLine:
    """Line of the user's program: file, number from 1 (0: unknown), name of the function."""

    file: str
    line: int = 0
    function: str = ""

    def __str__(self) -> str:
        return self.file + (f":{self.line}" if self.line else "") + (f", in {self.function}" if self.function else "")


#: ``file``, ``file:12``, ``file:12 function``, ``file:12, in function``.
_PLACE = re.compile(r"(?P<file>.+?)(?::(?P<line>[0-9]{1,9}))?(?:(?:, in |[:, ]+)(?P<function>[^\s:]+))?")


def source_lines(graph: ComputeGraph, op: str) -> list[SourceLine]:
    """Return the user's lines that an op comes from, innermost first, from ``meta["source_lines"]``.

    There an op has a string (``file:12, in forward``), a list ``[file, 12, "forward"]``, or a list of those.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> lines = {"a": "net.py:12, in forward", "b": [["net.py", 3, "f"], "main.py"]}
    >>> b = GraphBuilder("g", meta={"source_lines": lines})
    >>> names = [b.op("a", size=1), b.op("b", size=1)]
    >>> [[str(line) for line in source_lines(b.build(), op)] for op in "ab"]
    [['net.py:12, in forward'], ['net.py:3, in f', 'main.py']]
    """
    lines = graph.meta.get("source_lines")
    found: Any = lines.get(op) if isinstance(lines, Mapping) else None
    if isinstance(found, str) or _is_line(found):
        found = [found]
    result = [_line(each) for each in found] if isinstance(found, Sequence) else []
    return [line for line in result if line is not None]


def _is_line(value: Any) -> bool:
    return isinstance(value, Sequence) and 2 <= len(value) <= 3 and isinstance(value[0], str) and type(value[1]) is int


def _line(value: Any) -> SourceLine | None:
    if isinstance(value, str):
        match = _PLACE.fullmatch(one_line(value))
        return SourceLine(match["file"], int(match["line"] or 0), match["function"] or "") if match else None
    if not _is_line(value):
        return None
    return SourceLine(one_line(value[0]), value[1], one_line(value[2]) if isinstance(value[-1], str) else "")
