"""Plots of a schedule: memory over time, the tensors held, off-chip traffic, and orders compared.

A schedule that breaks the semantics of its graph is drawn as far as possible, with the first violation above it and
its step marked. :mod:`remat.io.figures` describes what all plots have in common.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from remat.graphs import ComputeGraph
from remat.graphs.arrays import occurrences
from remat.io.figures import COLOURS, draw_boxes, empty_figure, plain_text, put_title, write_figure
from remat.runtime.arrays import Int
from remat.runtime.sizes import size_text, size_unit
from remat.runtime.text import clipped
from remat.schedule.certificate import overhead_text
from remat.schedule.schedule import Schedule
from remat.schedule.simulate import Counting, Simulation, simulate
from remat.schedule.traffic import Traffic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FIRST, _AGAIN, _GIVEN, _LINE = "#56B4E9", "#D55E00", "#BBBBBB", "#222222"
#: Largest number of rows with tensor names on the axis; with more rows the axis shows counts.
_NAMED_ROWS = 40


def plot_memory(
    graph: ComputeGraph,
    schedule: Schedule,
    budget: int | None = None,
    ax: Axes | None = None,
    *,
    keep: Iterable[str] = (),
    count_constant_memory: bool = False,
) -> Axes:
    """Plot the memory held at each compute step, recomputations in a second colour, with the budget and the peak.

    Parameters
    ----------
    budget : int, optional
        Bytes; drawn as a line.
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure, available as ``figure`` of the result.
    keep, count_constant_memory
        As for :func:`remat.schedule.simulate.simulate`: tensors that stay live to the end, and whether the graph's
        constant memory counts.
    """
    axes = _axes(ax, (10, 4))
    _draw_memory(axes, _Picture.of(graph, schedule, keep=keep, count_constant_memory=count_constant_memory), budget)
    axes.set_xlabel("compute step")
    return axes


def plot_intervals(
    graph: ComputeGraph,
    schedule: Schedule,
    ax: Axes | None = None,
    max_tensors: int = 1000,
    *,
    keep: Iterable[str] = (),
) -> Axes:
    """Plot retention intervals as a Gantt chart: one row per tensor, from the top in order of first allocation.

    Parameters
    ----------
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure with a height that fits the rows.
    max_tensors : int
        With more tensors, only the largest are drawn, and the axis label says so.
    keep
        Tensors that stay live to the end, besides the graph outputs.
    """
    picture = _Picture.of(graph, schedule, keep=keep)
    axes = _axes(ax, (10, _height(picture, max_tensors)))
    _draw_intervals(axes, picture, max_tensors, legend=True)
    axes.set_title(plain_text(picture.title), fontsize="medium")
    axes.set_xlabel("compute step")
    return axes


def plot_schedule(
    graph: ComputeGraph,
    schedule: Schedule,
    budget: int | None = None,
    max_tensors: int = 1000,
    **counting: Unpack[Counting],
) -> Figure:
    """Draw :func:`plot_memory` above :func:`plot_intervals`, over the same steps and with their parameters."""
    picture = _Picture.of(graph, schedule, **counting)
    rows = _height(picture, max_tensors)
    figure = empty_figure((10, 3.6 + rows))
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3.2, rows]})
    _draw_memory(above, picture, budget)
    _draw_intervals(below, picture, max_tensors, legend=False)
    below.set_xlabel("compute step")
    return figure


def save_plot(
    graph: ComputeGraph,
    schedule: Schedule,
    path: str | os.PathLike[str],
    budget: int | None = None,
    **counting: Unpack[Counting],
) -> None:
    """Write :func:`plot_schedule` to a ``.png``, ``.svg`` or ``.pdf`` file atomically; same schedule, same bytes.

    Raises
    ------
    FormatError
        Naming the file, if its name has another suffix or it cannot be written.
    """
    write_figure(path, lambda: plot_schedule(graph, schedule, budget, **counting))


@dataclass(frozen=True, eq=False)
class _Picture:
    """Simulated schedule in the coordinates of the plots: compute step ``k`` spans ``k`` to ``k + 1``."""

    run: Simulation
    before: Int
    """Number of compute steps before each step. Shape (steps + 1,)."""
    title: str
    broken: float | None
    """Compute step of the first violation."""

    @classmethod
    def of(cls, graph: ComputeGraph, schedule: Schedule, **counting: Unpack[Counting]) -> _Picture:
        """Simulate `schedule`."""
        run = simulate(graph, schedule, **counting)
        before = np.concatenate([[0], np.cumsum(run.is_compute)])
        overhead = f", overhead {overhead_text(run.cost, graph.base_cost)}" if graph.base_cost else ""
        title = f"{graph.name}: {before[-1]:,} computes, {run.recomputations:,} of them recomputations{overhead}"
        broken = None
        if run.violations:
            first = run.violations[0]
            broken = None if first.step is None else float(before[first.step])
            where = "" if broken is None else f" (compute step {broken:.0f} of the picture)"
            title = f"{graph.name}: not a valid schedule\n{first.message}{where}"
        return cls(run, before, title, broken)


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    return ax if ax is not None else empty_figure(size).subplots()


def _height(picture: _Picture, max_tensors: int) -> float:
    """Return the height in inches of the interval chart: a line of text per tensor for few rows, else constant."""
    rows = min(len(np.unique(picture.run.intervals.tensor)), max_tensors)
    return max(1.2, 0.18 * rows) if rows <= _NAMED_ROWS else 5.5


def _draw_memory(axes: Axes, picture: _Picture, budget: int | None) -> None:
    from matplotlib.markers import CARETDOWN

    run = picture.run
    scale, unit = size_unit(max(run.peak, budget or 0))
    memory, ops = run.memory[run.is_compute] / scale, run.ops[run.is_compute]
    edges, again = np.arange(len(memory) + 1), (occurrences(ops) > 0) & (ops >= 0)
    axes.stairs(memory, edges, fill=True, color=_FIRST, label="first compute")
    if again.any():
        axes.stairs(np.where(again, memory, 0), edges, fill=True, color=_AGAIN, label="recomputation")
    axes.stairs(memory, edges, color=_LINE, linewidth=0.6)
    if budget is not None:
        axes.axhline(budget / scale, color=_LINE, linestyle="--", linewidth=1.2, label=f"budget {size_text(budget)}")
    if len(memory):
        step, peak_op = int(memory.argmax()), run.peak_op or ""
        axes.plot(
            step + 0.5, memory[step], marker=CARETDOWN, markersize=8, color=_LINE, linestyle="none",
            label=f"peak {size_text(run.peak)} (compute step {step}, {_label(peak_op, 20)})",
        )  # fmt: skip
    if picture.broken is not None:
        axes.axvline(picture.broken, color=_LINE, linestyle=":", linewidth=1.2, label="broken")
    axes.set(xlim=(0, max(len(memory), 1)), ylabel=f"memory ({unit})")
    axes.set_ylim(0, 1.12 * max(run.peak, budget or 0) / scale or 1)
    put_title(axes, picture.title, columns=5)


def _draw_intervals(axes: Axes, picture: _Picture, max_tensors: int, *, legend: bool) -> None:
    graph, found = picture.run.graph, picture.run.intervals
    start, end = picture.before[found.start], picture.before[found.end]
    later = occurrences(found.tensor) > 0
    sizes = graph.arrays.size
    tensors = np.unique(found.tensor)
    shown = np.zeros(len(sizes), dtype=np.bool_)
    shown[tensors[np.argsort(-sizes[tensors], kind="stable")[:max_tensors]]] = True
    visible = shown[found.tensor]
    drawn = np.flatnonzero(visible)
    by_start = drawn[np.lexsort([found.tensor[drawn], start[drawn]])]
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
    draw_boxes(axes, (start, end, top, top + 0.8), groups, linewidths=0.4)
    axes.set(xlim=(0, max(int(picture.before[-1]), 1)), ylim=(max(len(order), 1), 0))
    if len(order) <= _NAMED_ROWS:
        axes.set_yticks(np.arange(len(order)) + 0.5, [_label(graph.tensors[t].name) for t in order], fontsize="small")
        axes.set_ylabel("tensor")
    else:
        axes.set_ylabel("tensors in order of first allocation")
    if len(order) < len(tensors):
        axes.set_ylabel(f"the {len(order):,} largest of {len(tensors):,} tensors")
    if legend or given.any():  # the corner below the staircase of first allocations is free
        axes.legend(loc="lower left", frameon=False, fontsize="small")


def _label(name: str, length: int = 28) -> str:
    return plain_text(clipped(name, length))


#: Styles for print in grey; later ones are thinner, so that coinciding marks stay visible.
_STYLES = (("-", 2.4), ("--", 1.8), ("-.", 1.4), (":", 1.2))


def plot_footprints(
    graph: ComputeGraph,
    schedules: Mapping[str, Schedule],
    ax: Axes | None = None,
    *,
    keep: Iterable[str] = (),
    count_constant_memory: bool = False,
) -> Axes:
    """Plot the memory at each compute step of several schedules of one graph, with their peaks (Serenity, Fig. 12).

    Parameters
    ----------
    schedules : mapping of str to Schedule
        By their names in the legend; later ones are drawn above earlier ones.
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure, available as ``figure`` of the result.
    keep, count_constant_memory
        As for :func:`remat.schedule.simulate.simulate`.
    """
    from matplotlib.ticker import MaxNLocator

    axes = _axes(ax, (10, 4))
    keep = tuple(keep)
    runs = {
        name: simulate(graph, schedule, keep=keep, count_constant_memory=count_constant_memory)
        for name, schedule in schedules.items()
    }
    highest = max((run.peak for run in runs.values()), default=0)
    scale, unit = size_unit(highest)
    longest = 1
    for number, (name, run) in enumerate(runs.items()):
        memory = run.memory[run.is_compute] / scale
        longest = max(longest, len(memory))
        colour = COLOURS[number % len(COLOURS)]
        edges = np.arange(len(memory) + 1)
        axes.stairs(memory, edges, fill=True, color=colour, alpha=0.18)
        axes.stairs(memory, edges, color=colour, linewidth=1.4, label=plain_text(f"{name}: peak {run.peak:,} bytes"))
        axes.axhline(run.peak / scale, color=colour, linestyle="--", linewidth=0.8)
    axes.set(xlim=(0, longest), ylim=(0, 1.08 * highest / scale or 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="compute step", ylabel=f"memory ({unit})")
    put_title(axes, graph.name, columns=3)
    return axes


def plot_peak_distribution(peaks: Int, marks: Mapping[str, int], ax: Axes | None = None, *, title: str = "") -> Axes:
    """Plot the share of orders whose peak is at most each value, and mark some peaks (Serenity, Fig. 3).

    Parameters
    ----------
    peaks : int64 array, shape (orders,)
        Peaks of sampled orders, in bytes.
    marks : mapping of str to int
        Peaks to mark, in bytes, by name.
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure, available as ``figure`` of the result.
    """
    axes = _axes(ax, (7, 4.2))
    values = np.sort(peaks)
    scale, unit = size_unit(int(max([*marks.values(), int(values.max(initial=0))], default=0)))
    if len(values):
        axes.ecdf(values / scale, color="#222222", linewidth=1.4, label=f"{len(values):,} orders at random")
    for number, (name, peak) in enumerate(sorted(marks.items(), key=lambda mark: mark[1])):
        share = 100 * float((values <= peak).mean()) if len(values) else 0.0
        style, width = _STYLES[number % len(_STYLES)]
        axes.axvline(
            peak / scale, color=COLOURS[number % len(COLOURS)], linestyle=style, linewidth=width,
            label=plain_text(f"{name}: {peak:,} bytes ({share:.3g} % of the orders within)"),
        )  # fmt: skip
    axes.set(ylim=(0, 1.02), xlabel=f"peak ({unit})", ylabel="share of orders")
    if title:
        axes.set_title(plain_text(title), fontsize="medium")
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.16), frameon=False, fontsize="small")
    axes.grid(alpha=0.25)
    return axes


def plot_traffic(title: str, schedule: Sequence[Traffic], reference: Sequence[Traffic]) -> Figure:
    """Plot the bytes fetched and (hatched) written at each capacity, by the reference order and by a schedule.

    The label above the bars is the factor by which the schedule reduces traffic: ``all gone`` if only the reference
    order moves bytes, and ``none`` if neither does. After Fig. 11 of Ahn et al. 2020.

    Parameters
    ----------
    schedule, reference : sequence of Traffic
        The same capacities in the same order.
    """
    figure = empty_figure((max(5.0, 1.6 + 1.1 * len(schedule)), 4.4))
    axes = figure.subplots()
    top = max((found.total for found in (*schedule, *reference)), default=0)
    scale, unit = size_unit(max(top, 1))
    sides = (("reference order", "#BBBBBB", reference), ("schedule", "#0072B2", schedule))
    for side, (name, colour, found) in enumerate(sides):
        places = [number + 0.38 * side - 0.19 for number in range(len(found))]
        style: dict[str, Any] = {"width": 0.36, "color": colour, "edgecolor": "#222222", "linewidth": 0.6}
        fetched, written = ([getattr(one, what) / scale for one in found] for what in ("fetched", "written"))
        axes.bar(places, fetched, label=f"{name}: fetched", **style)
        axes.bar(places, written, bottom=fetched, hatch="////", label=f"{name}: written", **style)
    for number, (mine, theirs) in enumerate(zip(schedule, reference, strict=True)):
        height = max(mine.total, theirs.total) / scale
        above: dict[str, Any] = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "fontsize": "small"}
        axes.annotate(_gain(mine, theirs), (number, height), **above)
    axes.set_xticks(range(len(schedule)), [shown_size(one.on_chip) for one in schedule])
    axes.set(xlabel="on-chip memory", ylabel=f"off-chip traffic ({unit})", ylim=(0, 1.15 * top / scale or 1))
    axes.set_title(f"{plain_text(title)} (above: how many times less)", fontsize="medium")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize="small", frameon=False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return figure


def shown_size(size: int) -> str:
    """Return bytes in a binary unit if that needs few digits.

    Examples
    --------
    >>> shown_size(262144), shown_size(1536), shown_size(1000)
    ('256 KiB', '1.5 KiB', '1,000 bytes')
    """
    scale, unit = size_unit(size)
    return f"{size / scale:g} {unit}" if scale > 1 and size * 100 % scale == 0 else f"{size:,} bytes"


def _gain(mine: Traffic, theirs: Traffic) -> str:
    if not mine.total:
        return "all gone" if theirs.total else "none"
    return f"{theirs.total / mine.total:.2f}×"
