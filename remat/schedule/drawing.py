"""Parts of the picture of a schedule: memory profile, strip of layers, tensors or layers held.

Long schedules are summarized in bins of equal width, so that no part of the picture is narrower than a pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from remat.errors import ProblemError
from remat.graphs import ComputeGraph
from remat.graphs.arrays import occurrences
from remat.io.figures import draw_boxes, plain_text, put_title
from remat.runtime.arrays import Bool, Int
from remat.runtime.sizes import size_text, size_unit
from remat.runtime.text import clipped, short
from remat.schedule.certificate import overhead_text
from remat.schedule.schedule import Schedule
from remat.schedule.simulate import Counting, Simulation, simulate
from remat.schedule.traces.layers import NO_MODULE, layer_labels
from remat.schedule.traces.timeline import module_paths

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Horizontal axis: ``time`` is the cost of the computes so far, ``step`` their number.
Axis = Literal["time", "step"]
Floats = NDArray[np.float64]

_FIRST, _AGAIN, _GIVEN, _LINE, _FAULT = "#56B4E9", "#D55E00", "#BBBBBB", "#222222", "#A00020"
_VERDICTS = {"valid": "#00694B", "over budget": "#A65000", "not a valid schedule": _FAULT}
#: Most rows with tensor names; most rows of tensors in a graph without modules, and of layers in any graph.
NAMED_ROWS, _TENSOR_ROWS, _LAYER_ROWS = 40, 400, 40
#: Bins of a long schedule: two pixels each at the usual width. Most tensors named in the rows of layers.
_BINS, _NAMED_TENSORS = 500, 5
#: Share of the width that a letter of the small font takes.
_LETTER = 0.0075


@dataclass(frozen=True, eq=False)
class Picture:
    """Simulated schedule in the coordinates of the plots."""

    run: Simulation
    before: Int
    """Number of compute steps before each step. Shape (steps + 1,)."""
    edges: Floats
    """Start of each compute step on the axis, and the end of the last. Shape (compute steps + 1,)."""
    label: str
    """Label of the axis."""
    reference: Simulation
    """The reference order without recomputation."""

    @classmethod
    def of(cls, graph: ComputeGraph, schedule: Schedule, axis: Axis, **counting: Unpack[Counting]) -> Picture:
        """Simulate `schedule`; without costs the axis counts steps."""
        if axis not in ("time", "step"):
            raise ProblemError(f"the axis of a picture is time or step, not {short(axis)}", "axis")
        run = simulate(graph, schedule, **counting)
        before = np.concatenate([[0], np.cumsum(run.is_compute)])
        edges, label = np.arange(before[-1] + 1, dtype=np.float64), "step"
        ops = run.ops[run.is_compute]
        costs = np.where(ops >= 0, graph.arrays.cost[ops], 0).astype(np.float64)
        if axis == "time" and costs.sum() > 0:
            scale, label = _time_unit(graph.cost_unit, float(costs.sum()))
            edges = np.concatenate([[0.0], np.cumsum(costs)]) / scale
        return cls(run, before, edges, label, simulate(graph, Schedule.reference(graph), **counting))

    @property
    def graph(self) -> ComputeGraph:
        """The graph."""
        return self.run.graph

    @cached_property
    def memory(self) -> Int:
        """Bytes at each compute step."""
        return self.run.memory[self.run.is_compute]

    @cached_property
    def ops(self) -> Int:
        """Op of each compute step; -1 for ops that the graph lacks."""
        return self.run.ops[self.run.is_compute]

    @cached_property
    def again(self) -> Bool:
        """True for recomputations. Shape (compute steps,)."""
        return (occurrences(self.ops) > 0) & (self.ops >= 0)

    @property
    def right(self) -> float:
        """End of the axis."""
        return float(self.edges[-1]) or 1.0

    @cached_property
    def faults(self) -> list[tuple[float, str]]:
        """Place and step number of each violation that has a step, each step once."""
        steps = sorted({each.step for each in self.run.violations if each.step is not None})
        return [(float(self.edges[self.before[step]]), f"{step}") for step in steps]

    @cached_property
    def guilty(self) -> set[int]:
        """Tensors that violations concern."""
        index = self.graph.tensor_index
        return {index[each.tensor] for each in self.run.violations if each.tensor in index}

    def verdict(self, budget: int | None) -> str:
        """Return the verdict on the schedule."""
        if self.run.violations:
            return "not a valid schedule"
        return "valid" if budget is None or self.run.peak <= budget else "over budget"

    def title(self, budget: int | None) -> str:
        """Return the title; the verdict comes first if it is not "valid"."""
        graph, run, verdict = self.graph, self.run, self.verdict(budget)
        overhead = f", overhead {overhead_text(run.cost, graph.base_cost)}" if graph.base_cost else ""
        title = f"{graph.name}: {self.before[-1]:,} computes, {run.recomputations:,} of them recomputations{overhead}"
        if verdict == "over budget" and budget is not None:
            return f"{title}\nover budget: peak {size_text(run.peak)}, budget {size_text(budget)}"
        if run.violations:
            more = len(run.violations) - 1 + run.more_violations
            others = f"; {more:,} more {'violation' if more == 1 else 'violations'}" if more else ""
            return f"{graph.name}: {verdict}\n{run.violations[0].message}{others}"
        return title

    def saved_from(self) -> Int:
        """Return, at each compute step, the memory of the reference order at the latest op computed first there."""
        base = np.zeros(len(self.graph.ops), dtype=np.int64)
        base[self.reference.ops[self.reference.is_compute]] = self.reference.memory[self.reference.is_compute]
        fresh = ~self.again & (self.ops >= 0)
        latest = np.maximum.accumulate(np.where(fresh, np.arange(len(self.ops)), -1))
        return np.where(latest >= 0, base[self.ops[np.maximum(latest, 0)]], 0)

    def backward_from(self) -> float | None:
        """Return where the backward pass starts."""
        backward = np.array([op.phase == "backward" for op in self.graph.ops], dtype=np.bool_)
        found: Int = np.flatnonzero(backward[self.ops] & (self.ops >= 0))
        return float(self.edges[found[0]]) if len(found) and found[0] else None

    def binned(self, values: Int) -> tuple[Floats, Int]:
        """Return edges and values, or for long schedules bins and the largest value in each.

        Shape of `values`: (compute steps, ...).
        """
        if len(values) <= _BINS:
            return self.edges, values
        grid = np.linspace(0, self.right, _BINS + 1)
        low = np.clip(np.searchsorted(self.edges, grid[:-1], "right") - 1, 0, len(values) - 1)
        high = np.clip(np.searchsorted(self.edges, grid[1:], "left"), low + 1, len(values))
        padded = np.concatenate([values, values[-1:]])  # reduceat needs indices below the length
        return grid, np.maximum.reduceat(padded, np.stack([low, high], axis=1).ravel())[::2]

    def share_again(self, grid: Floats) -> Floats:
        """Return the share of each bin that recomputations take."""
        spent = np.concatenate([[0.0], np.cumsum(np.diff(self.edges) * self.again)])
        return np.diff(np.interp(grid, self.edges, spent)) / np.maximum(np.diff(grid), 1e-300)


def _time_unit(unit: str, total: float) -> tuple[float, str]:
    """Return the costs per unit of the axis, and its label."""
    if unit in ("us", "ns"):
        step = {"us": 1e-6, "ns": 1e-9}[unit]
        units = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
        name = next((name for name, least in units.items() if total * step >= least), "ns")
        return units[name] / step, f"time ({name})"
    if total < 100_000:
        return 1.0, "time (cost)" if unit == "none" else f"time ({unit})"
    power = 3 * min(int(np.log10(total)) // 3, 6)
    name = {"mac": "MAC", "flop": "FLOP", "cycle": "cycles", "none": "cost"}[unit]
    raised = str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return 10.0**power, f"time (10{raised} {name})"


def finish_axis(axes: Axes, picture: Picture) -> None:
    """Label the horizontal axis. Steps are numbered as in the schedule and in messages, frees included."""
    axes.set_xlabel(picture.label)
    if picture.label == "step":
        from matplotlib.ticker import MaxNLocator

        steps = len(picture.before) - 1
        ticks = [int(tick) for tick in MaxNLocator(10, integer=True).tick_values(0, steps) if 0 <= tick <= steps]
        axes.set_xticks([picture.edges[picture.before[tick]] for tick in ticks], [f"{tick:,}" for tick in ticks])


def draw_memory(axes: Axes, picture: Picture, budget: int | None) -> None:
    """Draw the memory at each step, what it would be without recomputation, the budget and the peak."""
    from matplotlib.markers import CARETDOWN
    from matplotlib.transforms import ScaledTranslation

    run, memory = picture.run, picture.memory
    again = picture.again.any()
    highest = max(run.peak, budget or 0, picture.reference.peak if again else 0)
    scale, unit = size_unit(highest)
    edges, values = picture.binned(memory)
    axes.stairs(values / scale, edges, fill=True, color=_FIRST, label="first compute")
    if again and len(values) == len(memory):
        axes.stairs(np.where(picture.again, memory, 0) / scale, edges, fill=True, color=_AGAIN, label="recomputation")
    elif again:
        share = picture.share_again(edges)
        axes.stairs(share * values / scale, edges, fill=True, color=_AGAIN, label="recomputation, as share of the time")
    axes.stairs(values / scale, edges, color=_LINE, linewidth=0.6)
    if again:
        axes.stairs(
            picture.binned(picture.saved_from())[1] / scale, edges, color="#666666", linewidth=0.9, baseline=None,
            label=f"without recomputation, peak {size_text(picture.reference.peak)}",
        )  # fmt: skip
    if budget is not None:
        axes.axhline(budget / scale, color=_LINE, linestyle="--", linewidth=1.2, label=f"budget {size_text(budget)}")
    if run.peak_step is not None:
        step = int(picture.before[run.peak_step])
        axes.plot(
            (picture.edges[step] + picture.edges[step + 1]) / 2, run.peak / scale, marker=CARETDOWN, markersize=7,
            color=_LINE, linestyle="none", clip_on=False,
            transform=axes.transData + ScaledTranslation(0, 3 / 72, axes.get_figure(root=True).dpi_scale_trans),  # type: ignore[union-attr]
            label=f"peak {size_text(run.peak)} (step {run.peak_step:,}, {_label(run.peak_op or '', 20)})",
        )  # fmt: skip
    axes.set(xlim=(0, picture.right), ylabel=f"memory ({unit})")
    top = 1.15 * highest / scale or 1
    axes.set_ylim(0, top)
    if (turn := picture.backward_from()) is not None:
        axes.axvline(turn, color=_LINE, linewidth=0.7, alpha=0.6)
        for side, text in (("right", "forward "), ("left", " backward")):
            axes.text(turn, 0.995 * top, text, ha=side, va="top", fontsize="small", color="#444444", clip_on=True)
    _draw_faults(axes, picture, numbers=True)
    put_title(axes, picture.title(budget), columns=3 if len(axes.get_legend_handles_labels()[0]) > 4 else 4)
    axes.title.set_color(_VERDICTS[picture.verdict(budget)])


def _draw_faults(axes: Axes, picture: Picture, *, numbers: bool) -> None:
    last = -picture.right
    for number, (place, step) in enumerate(picture.faults):
        axes.axvline(place, color=_FAULT, linestyle=":", linewidth=1.4, label="" if number else "violation")
        if numbers and place - last > 0.09 * picture.right:
            last = place
            axes.annotate(
                f"step {step}", (place, 0.02), (2, 0), xycoords=("data", "axes fraction"), textcoords="offset points",
                color=_FAULT, fontsize="small",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8},
            )  # fmt: skip


def shortened(names: Sequence[str]) -> list[str]:
    """Return module paths without the parts that all begin with.

    Examples
    --------
    >>> shortened(["model.layers.0", "model.layers.1", "model.head"])
    ['layers.0', 'layers.1', 'head']
    """
    split = [name.split(".") for name in names if name != NO_MODULE]
    common = 0
    while len(split) > 1 and all(len(parts) > common + 1 and parts[common] == split[0][common] for parts in split):
        common += 1
    return [name if name == NO_MODULE else ".".join(name.split(".")[common:]) for name in names]


def draw_layer_strip(axes: Axes, picture: Picture) -> None:
    """Draw the layer of each step as a strip of two alternating greys, with names where there is room."""
    labels = layer_labels(picture.graph)
    names = list(dict.fromkeys(labels))
    number = {name: k for k, name in enumerate(names)}
    layer = np.array([number[name] for name in labels], dtype=np.int64)
    ops, edges = picture.ops, picture.edges
    if not len(ops):
        return
    grid = np.linspace(0, picture.right, _BINS + 1)
    middle = np.clip(np.searchsorted(edges, (grid[:-1] + grid[1:]) / 2, "right") - 1, 0, len(ops) - 1)
    found = np.where(ops[middle] >= 0, layer[ops[middle]], -1)
    changes = np.concatenate([[0], np.flatnonzero(np.diff(found)) + 1, [len(found)]])
    shown = shortened(names)
    for turn, (low, high) in enumerate(zip(changes[:-1].tolist(), changes[1:].tolist(), strict=True)):
        colour = ("#D9D9D9", "#F2F2F2")[turn % 2]
        axes.axvspan(grid[low], grid[high], color=colour, linewidth=0)
        room = int((high - low) / _BINS / _LETTER)
        name = shown[found[low]] if found[low] >= 0 else ""
        last = name.rsplit(".", 1)[-1]
        text = name if len(name) <= room else last if len(last) <= room else ""
        if text:
            axes.text((grid[low] + grid[high]) / 2, 0.5, plain_text(text), ha="center", va="center", fontsize="x-small",
                      transform=axes.get_xaxis_transform(), clip_on=True)  # fmt: skip
    axes.set(xlim=(0, picture.right), ylim=(0, 1))
    axes.set_yticks([0.5], ["layer"], fontsize="small")
    axes.tick_params(axis="y", length=0)


def has_modules(graph: ComputeGraph) -> bool:
    """Return whether ops have modules."""
    return bool(module_paths(graph))


def by_layer(picture: Picture, max_tensors: int | None) -> bool:
    """Return whether rows are layers rather than tensors."""
    rows = len(np.unique(picture.run.intervals.tensor))
    return max_tensors is None and rows > (NAMED_ROWS if has_modules(picture.graph) else _TENSOR_ROWS)


def height_of_rows(picture: Picture, max_tensors: int | None) -> float:
    """Return the height in inches of the rows."""
    rows = len(np.unique(picture.run.intervals.tensor))
    if by_layer(picture, max_tensors):
        return max(1.5, 0.16 * len(_groups(picture)[0]))
    rows = min(rows, rows if max_tensors is None else max_tensors)
    return max(1.2, 0.18 * rows) if rows <= NAMED_ROWS else 5.5


def _groups(picture: Picture) -> tuple[list[str], Int]:
    """Return the rows of layers and that of each tensor: modules, or equal parts of the reference order."""
    graph, arrays = picture.graph, picture.graph.arrays
    order = arrays.order.tolist()
    if has_modules(graph):
        labels = layer_labels(graph)
        names = list(dict.fromkeys(labels[op] for op in order))
        shown = shortened(names)
        number = {name: k for k, name in enumerate(names)}
        layer = np.array([number[name] for name in labels], dtype=np.int64)
    else:
        shown = [f"{k:,}" for k in range(len(order))]
        layer = arrays.position.astype(np.int64)
    if (count := len(shown)) > _LAYER_ROWS:
        part = -(-count // _LAYER_ROWS)
        layer = layer // part
        last = "" if has_modules(graph) else "ops "
        shown = [f"{last}{shown[k]} … {shown[min(k + part, count) - 1]}" for k in range(0, count, part)]
    first = arrays.producers.lowest(arrays.position, len(order))
    of_tensor = np.append(layer[arrays.order], len(shown))[first]
    if (of_tensor == len(shown)).any():
        shown = [*shown, "graph inputs"]
    return shown, of_tensor


def draw_rows(axes: Axes, picture: Picture, max_tensors: int | None, *, legend: bool) -> None:
    """Draw the tensors held, or the bytes that each layer holds."""
    if by_layer(picture, max_tensors):
        _draw_layers(axes, picture)
    else:
        _draw_tensors(axes, picture, max_tensors, legend=legend)
    _draw_faults(axes, picture, numbers=False)


def _draw_layers(axes: Axes, picture: Picture) -> None:
    graph, found = picture.graph, picture.run.intervals
    names, group = _groups(picture)
    start, end = picture.before[found.start], picture.before[found.end]
    later, size = occurrences(found.tensor) > 0, graph.arrays.size[found.tensor]
    steps, rows = len(picture.memory), group[found.tensor]
    totals = []
    for chosen in (np.ones(len(later), dtype=np.bool_), later):
        change = np.zeros((steps + 1, len(names)), dtype=np.int64)
        np.add.at(change, (start[chosen], rows[chosen]), size[chosen])
        np.add.at(change, (end[chosen], rows[chosen]), -size[chosen])
        totals.append(picture.binned(np.cumsum(change, axis=0)[:-1]))
    (edges, held), (_, again) = totals
    # clipped, since one layer (the head of a language model) may hold ten times as much as the others
    highest = held.max(axis=0, initial=0)
    most = int(np.percentile(highest[highest > 0], 75)) if highest.any() else 1
    clip = " and more" if highest.max() > most else ""
    held, again = np.minimum(held, most), np.minimum(again, most)
    for row in range(len(names)):
        for values, colour in ((held, _FIRST), (again, _AGAIN)):
            if values[:, row].any():
                axes.stairs(row + 1 - 0.92 * values[:, row] / most, edges, baseline=row + 1, fill=True, color=colour)
        axes.axhline(row + 1, color="#CCCCCC", linewidth=0.4)
    for row in {int(group[tensor]) for tensor in picture.guilty}:
        axes.axhspan(row, row + 1, color=_FAULT, alpha=0.15, linewidth=0)
    axes.set(xlim=(0, picture.right), ylim=(len(names), 0))
    axes.set_yticks(np.arange(len(names)) + 0.5, [_label(name) for name in names], fontsize="x-small")
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel(f"layer (row height: {size_text(most)}{clip})", fontsize="small")
    _name_largest(axes, picture, group, len(names))


def _name_largest(axes: Axes, picture: Picture, rows: Int, count: int) -> None:
    """Write the names of the largest tensors where they are first held; guilty ones first."""
    graph, found = picture.graph, picture.run.intervals
    size = graph.arrays.size
    used: list[tuple[int, float, float]] = []
    first = {tensor: k for k, tensor in reversed(list(enumerate(found.tensor.tolist())))}
    ranked = sorted(first, key=lambda tensor: (tensor not in picture.guilty, -int(size[tensor]), tensor))
    for tensor in ranked[: 8 * _NAMED_TENSORS]:
        if len(used) >= _NAMED_TENSORS or not size[tensor]:
            break
        text = f"{clipped(graph.tensors[tensor].name, 28)} {size_text(int(size[tensor]))}"
        width = len(text) * _LETTER * picture.right
        left = min(float(picture.edges[picture.before[found.start[first[tensor]]]]), picture.right - width)
        row, room = int(rows[tensor]), max(1.0, count / 28)
        if any(abs(row - other) < room and left < at + wide and at < left + width for other, at, wide in used):
            continue
        used.append((row, left, width))
        style: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.75}
        axes.text(left, row + 0.5, plain_text(text), va="center", fontsize="x-small", bbox=style, clip_on=True,
                  color=_FAULT if tensor in picture.guilty else _LINE)  # fmt: skip


def _draw_tensors(axes: Axes, picture: Picture, max_tensors: int | None, *, legend: bool) -> None:
    graph, found = picture.graph, picture.run.intervals
    begin, stop = picture.before[found.start], picture.before[found.end]
    later = occurrences(found.tensor) > 0
    sizes = graph.arrays.size
    tensors = np.unique(found.tensor)
    shown = np.zeros(len(sizes), dtype=np.bool_)
    shown[tensors[np.argsort(-sizes[tensors], kind="stable")[:max_tensors]]] = True
    visible = shown[found.tensor]
    drawn = np.flatnonzero(visible)
    by_start = drawn[np.lexsort([found.tensor[drawn], begin[drawn]])]
    order = list(dict.fromkeys(found.tensor[by_start].tolist()))
    row = np.zeros(len(sizes), dtype=np.int64)
    row[order] = np.arange(len(order))

    top = row[found.tensor] + 0.1
    given = graph.arrays.is_input[found.tensor]
    groups = (
        ("graph input", _GIVEN, given & visible),
        ("first compute", _FIRST, ~given & ~later & visible),
        ("recomputation", _AGAIN, later & visible),
    )
    # the thin edge keeps bars visible that are narrower than a pixel
    draw_boxes(axes, (picture.edges[begin], picture.edges[stop], top, top + 0.8), groups, linewidths=0.4)
    axes.set(xlim=(0, picture.right), ylim=(max(len(order), 1), 0))
    guilty = [int(row[tensor]) for tensor in order if tensor in picture.guilty]
    for place in guilty:
        axes.axhspan(place, place + 1, color=_FAULT, alpha=0.15, linewidth=0)
    if len(order) <= NAMED_ROWS:
        axes.set_yticks(np.arange(len(order)) + 0.5, [_label(graph.tensors[t].name) for t in order], fontsize="small")
        for place in guilty:
            axes.get_yticklabels()[place].set_color(_FAULT)
        axes.set_ylabel("tensor")
    else:
        axes.set_ylabel("tensors in order of first allocation")
        _name_largest(axes, picture, np.where(shown, row, len(order)), len(order))
    if len(order) < len(tensors):
        axes.set_ylabel(f"the {len(order):,} largest of {len(tensors):,} tensors")
    if legend or given.any():  # the corner below the staircase of first allocations is free
        axes.legend(loc="lower left", frameon=False, fontsize="small")


def _label(name: str, length: int = 28) -> str:
    return plain_text(clipped(name, length))
