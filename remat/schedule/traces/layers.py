"""Table of the bytes that a schedule saves and recomputes in each layer; equal layers share a row."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from remat.errors import FormatError, ProblemError
from remat.graphs import ComputeGraph
from remat.io.files import write_atomic
from remat.runtime.arrays import Int
from remat.runtime.sizes import size_unit
from remat.runtime.text import aligned, csv_text, printable, short
from remat.schedule.schedule import Schedule
from remat.schedule.traces.timeline import Timeline, module_paths

By = Literal["module", "type"]
SUFFIXES = (".csv", ".md")
#: Most parts of the reference order that stand for layers.
MOST_PARTS = 40
#: Rows for ops and tensors outside all layers.
NO_MODULE, INPUTS, CONSTANT = "(no module)", "(graph inputs)", "(constant memory)"


@dataclass(frozen=True)
class LayerRow:
    """One layer, or several equal layers with the numbers of one of them.

    Attributes
    ----------
    layer : str
        Module path, with ``0-11`` in place of a number for several layers.
    count : int
        Number of layers in the row.
    ops : int
    activations : int or None
        Bytes that its forward pass writes and that are outputs or that the backward pass reads; without recomputation
        these are saved. None without a backward pass.
    saved : int or None
        Bytes written by its forward pass that are held when the backward pass starts.
    recomputed : int
        Bytes recomputed, counted each time.
    at_peak : int
        Bytes held at the peak of the whole step, workspace included.
    cost : int
        Cost of computing each of its ops once.
    extra_cost : int
        Cost of its recomputations.
    """

    layer: str
    count: int = 1
    ops: int = 0
    activations: int | None = None
    saved: int | None = None
    recomputed: int = 0
    at_peak: int = 0
    cost: int = 0
    extra_cost: int = 0


@dataclass(frozen=True)
class LayerTable:
    """Rows by layer, in the order of their first ops.

    Attributes
    ----------
    graph : str
    cost_unit : str
    rows : tuple of LayerRow
    total : LayerRow
        Sums over all layers; its `at_peak` is the peak.
    """

    graph: str
    cost_unit: str
    rows: tuple[LayerRow, ...]
    total: LayerRow

    def cells(self) -> list[tuple[str, ...]]:
        """Return header, rows and total as text: bytes in binary units, costs unscaled, ``-`` for unknown values."""
        times = f"cost ({self.cost_unit})" if self.cost_unit != "none" else "cost"
        head = ("layer", "ops", "activations", "saved", "recomputed", "at peak", times, "extra")
        return [head, *(_words(row) for row in (*self.rows, self.total))]

    def to_markdown(self) -> str:
        """Return a Markdown table."""
        head, *rows = ([word.replace("|", r"\|") for word in line] for line in self.cells())
        lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def to_csv(self) -> str:
        """Return CSV: integers, empty if unknown; the last row is the total."""
        return csv_text([each.name for each in fields(LayerRow)], map(astuple, (*self.rows, self.total)))

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers by name, as JSON values."""
        rows = [asdict(row) for row in (*self.rows, self.total)]
        return {"graph": self.graph, "cost_unit": self.cost_unit, "rows": rows[:-1], "total": rows[-1]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as ``.csv`` or ``.md`` atomically.

        Raises
        ------
        FormatError
            Naming the file, if its name has another suffix or it cannot be written.
        """
        suffix = Path(path).suffix.lower()
        if suffix not in SUFFIXES:
            raise FormatError(f"{path}: layers are written as {' or '.join(SUFFIXES)}, not {suffix!r}", "layer-table")
        write_atomic(path, self.to_csv() if suffix == ".csv" else self.to_markdown())

    def __str__(self) -> str:
        return "\n".join(aligned(self.cells(), right=range(1, 8)))


def layer_table(
    graph: ComputeGraph,
    schedule: Schedule,
    *,
    by: By | None = None,
    depth: int | None = None,
    collapse: bool = True,
    keep: Iterable[str] = (),
    count_constant_memory: bool = False,
) -> LayerTable:
    """Return saved and recomputed bytes and cost of each layer under `schedule`.

    A tensor belongs to the layer of the op that writes it first. Layers whose paths differ in one consecutive number
    become one row if all their ops and all numbers of the row are equal.

    Parameters
    ----------
    schedule : Schedule
        A valid schedule.
    by : {"module", "type"}, optional
        Rows are modules (``meta["modules"]``) or types of ops; default: modules if the graph has them, otherwise types.
        A graph with neither has up to 40 equal parts of the reference order.
    depth : int, optional
        Parts of a module path that make a row. Default: down to the first number in a path (``layers.3``); paths
        without a number use the same number of parts.
    collapse : bool
        Merge equal layers into one row.
    keep, count_constant_memory
        As for :func:`remat.schedule.simulate.simulate`.

    Raises
    ------
    ScheduleError
        Naming the first violation, if the schedule does not run on `graph`.
    ProblemError
        If `by` is ``"module"`` and the graph has none, or `depth` is not a positive integer.

    Examples
    --------
    >>> from remat.graphs.zoo.transformers import gpt
    >>> graph = gpt(layers=12)
    >>> table = layer_table(graph, Schedule.reference(graph))
    >>> [(row.layer, row.count) for row in table.rows][:3]
    [('embedding', 1), ('layers.0-11', 12), ('head', 1)]
    >>> table.total.at_peak == graph.reference_peak
    True
    """
    timeline = Timeline.of(graph, schedule, keep, count_constant_memory)
    labels = layer_labels(graph, by, depth)
    sums = _sums(timeline, labels)
    total = _sum(tuple(sums.values()))
    rows = _collapsed(graph, labels, sums) if collapse else list(sums.values())
    return LayerTable(graph.name, graph.cost_unit, tuple(rows), total)


def layer_labels(graph: ComputeGraph, by: By | None = None, depth: int | None = None) -> list[str]:
    """Return the layer of each op; parameters as those of :func:`layer_table`."""
    if by not in (None, "module", "type"):
        raise ProblemError(f"layers are by module or by type, not by {short(by)}", "layers")
    if depth is not None and (type(depth) is not int or depth < 1):
        raise ProblemError(f"the depth of layers must be a whole number from 1, not {short(depth)}", "layers")
    paths = module_paths(graph)
    if by is None and not paths and not any(op.type for op in graph.ops):
        names, part = parts_of_order(graph)
        return [names[k] for k in part.tolist()]
    if by == "type" or (by is None and not paths):
        return [op.type or "(no type)" for op in graph.ops]
    if not paths:
        raise ProblemError(f"graph {graph.name!r} has no 'modules' in meta to make layers of", "layers")
    split = [paths[op.name].split(".") if op.name in paths else [] for op in graph.ops]
    if depth is not None:
        lengths = [depth] * len(split)
    else:
        numbered = [next((k + 1 for k, part in enumerate(parts) if part.isdigit()), 0) for parts in split]
        longest = max(numbered) or 1
        lengths = [length or longest for length in numbered]
    return [".".join(parts[:length]) or NO_MODULE for parts, length in zip(split, lengths, strict=True)]


def parts_of_order(graph: ComputeGraph) -> tuple[list[str], Int]:
    """Return the names of up to 40 equal parts of the reference order, and the part of each op.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> names, part = parts_of_order(unit_chain(50))
    >>> names[0], names[-1], int(part[-1])
    ('ops 0 … 2', 'ops 99 … 100', 33)
    """
    count = len(graph.ops)
    size = max(1, -(-count // MOST_PARTS))
    if size == 1:
        names = [f"op {graph.op_names[op]}" for op in graph.arrays.order.tolist()]
    else:
        names = [f"ops {k:,} … {min(k + size, count) - 1:,}" for k in range(0, count, size)]
    return names, graph.arrays.position.astype(np.int64) // size


def shortened(names: Sequence[str]) -> list[str]:
    """Return module paths without the parts that all begin with.

    Examples
    --------
    >>> shortened(["model.layers.0", "model.layers.1", "model.head"])
    ['layers.0', 'layers.1', 'head']
    """
    split = [name.split(".") for name in names if not name.startswith("(")]
    common = 0
    while len(split) > 1 and all(len(parts) > common + 1 and parts[common] == split[0][common] for parts in split):
        common += 1
    return [name if name.startswith("(") else ".".join(name.split(".")[common:]) for name in names]


def _sums(timeline: Timeline, labels: Sequence[str]) -> dict[str, LayerRow]:
    graph, arrays, b = timeline.graph, timeline.graph.arrays, timeline.buffers
    counts: dict[str, Counter[str]] = {labels[op]: Counter() for op in arrays.order.tolist()}
    phases = [op.phase for op in graph.ops]
    computes = timeline.run.counts.tolist()
    for op, (label, cost) in enumerate(zip(labels, arrays.cost.tolist(), strict=True)):
        counts[label] += {"ops": 1, "cost": cost, "extra_cost": cost * max(computes[op] - 1, 0)}

    backward = np.flatnonzero(
        np.array([op >= 0 and phases[op] == "backward" for op in timeline.ops.tolist()], dtype=bool)
    )
    turn = int(backward[0]) if len(backward) else None
    peak_step = int(timeline.memory.argmax()) if len(timeline.memory) else 0
    first = _first_writers(graph)
    rows = zip(
        b.tensor.tolist(), b.lower.tolist(), b.upper.tolist(), b.size.tolist(), timeline.kinds, timeline.op.tolist(),
        strict=True,
    )  # fmt: skip
    for tensor, lower, upper, size, kind, op in rows:
        if kind in ("constant", "input"):
            label = INPUTS if kind == "input" else CONSTANT
        else:
            label = labels[first[tensor] if tensor >= 0 else op]
        mine = counts.setdefault(label, Counter())
        if lower <= peak_step < upper:
            mine["at_peak"] += size
        if kind == "recomputed":
            mine["recomputed"] += size
        if turn is not None and tensor >= 0 and lower < turn < upper and _forward(phases, first[tensor]):
            mine["saved"] += size
    if turn is not None:
        readers = arrays.consumers.lists()
        for tensor, size in enumerate(arrays.size.tolist()):
            if first[tensor] >= 0 and _forward(phases, first[tensor]):
                read = any(phases[op] == "backward" for op in readers[tensor])
                if read or arrays.is_output[tensor]:
                    counts[labels[first[tensor]]]["activations"] += size
    known = {} if turn is None else {"activations": 0, "saved": 0}
    return {label: LayerRow(label, **(known | mine)) for label, mine in counts.items()}


def _forward(phases: Sequence[str], op: int) -> bool:
    return op >= 0 and phases[op] != "backward"


def _first_writers(graph: ComputeGraph) -> list[int]:
    """Return, for each tensor, the op that writes it first in the reference order; -1 for graph inputs."""
    arrays = graph.arrays
    first = arrays.producers.lowest(arrays.position, len(graph.ops))
    return np.append(arrays.order, -1)[first].tolist()


def _sum(rows: Sequence[LayerRow]) -> LayerRow:
    totals: dict[str, Any] = {}
    for each in fields(LayerRow)[1:]:
        known = [value for row in rows if (value := getattr(row, each.name)) is not None]
        totals[each.name] = sum(known) if known or each.default is not None else None
    return LayerRow("total", **totals)


@dataclass
class _Run:
    """Equal layers whose paths differ in one consecutive number."""

    parts: list[str]
    rows: list[LayerRow]
    place: int | None = None  # position of the number in which they differ


def _collapsed(graph: ComputeGraph, labels: Sequence[str], sums: dict[str, LayerRow]) -> list[LayerRow]:
    inside: dict[str, list[Hashable]] = {}
    for number in graph.arrays.order.tolist():
        op = graph.ops[number]
        inside.setdefault(labels[number], []).append((op.type, op.phase, op.cost, op.workspace, op.recomputable))
    runs: list[_Run] = []
    latest: dict[Hashable, _Run] = {}
    for label, row in sums.items():
        parts = re.split(r"(?<![^.])([0-9]+)(?![^.])", label)  # every second part is a number
        facts = (tuple(inside.get(label, ())), astuple(row)[1:])
        keys = {k: (facts, k, *parts[:k], *parts[k + 1 :]) for k in range(1, len(parts), 2)}
        for place, key in keys.items():
            run = latest.get(key)
            if run and run.place in (None, place) and int(parts[place]) == int(run.parts[place]) + len(run.rows):
                run.place = place
                run.rows.append(row)
                break
        else:
            run = _Run(parts, [row])
            runs.append(run)
        latest |= dict.fromkeys(keys.values(), run)
    return [_row(run) for run in runs]


def _row(run: _Run) -> LayerRow:
    row, count = run.rows[0], len(run.rows)
    if count == 1 or run.place is None:
        return row
    parts = list(run.parts)
    parts[run.place] += f"-{int(parts[run.place]) + count - 1}"
    return replace(row, layer="".join(parts), count=count)


def _words(row: LayerRow) -> tuple[str, ...]:
    several = row.count > 1 and row.layer != "total"
    extra = f"{row.extra_cost:,}"
    if row.cost and row.extra_cost:
        extra += f" (+{100 * row.extra_cost / row.cost:.1f} %)"
    sizes = (row.activations, row.saved, row.recomputed, row.at_peak)
    return (
        printable(row.layer) + (f" ({row.count}x)" if several else ""), f"{row.ops:,}",
        *("-" if size is None else _bytes(size) for size in sizes), f"{row.cost:,}", extra,
    )  # fmt: skip


def _bytes(size: int) -> str:
    scale, unit = size_unit(size)
    return f"{size / scale:.4g} {unit}" if scale > 1 else f"{size} B"
