"""Plots of a schedule: memory over time, the tensors held, off-chip traffic, and orders compared.

A schedule that breaks the semantics of its graph is drawn as far as possible, with all violations and the tensors that
they concern marked. :mod:`remat.io.figures` describes what all plots have in common.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from remat.graphs import ComputeGraph
from remat.io.figures import (
    COLOURS,
    GIVEN,
    INK,
    LABEL,
    figure_of,
    new_axes,
    new_panels,
    plain_text,
    put_title,
    rule,
    set_title,
    write_figure,
)
from remat.runtime.arrays import Int
from remat.runtime.sizes import shown_size, size_text, size_unit
from remat.schedule.drawing import Axis, Picture, draw_brief_recomputations, draw_memory, draw_recomputed, finish_axis
from remat.schedule.row_drawing import draw_layer_strip, draw_rows, has_modules, height_of_rows
from remat.schedule.schedule import Schedule
from remat.schedule.simulate import Counting
from remat.schedule.step_lines import StepLines
from remat.schedule.traffic import Traffic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_memory(
    graph: ComputeGraph,
    schedule: Schedule,
    budget: int | None = None,
    ax: Axes | None = None,
    *,
    axis: Axis = "time",
    keep: Iterable[str] = (),
    count_constant_memory: bool = False,
) -> Axes:
    """Plot the memory held at each compute step, recomputations in a second colour, with the budget and the peak.

    A thin line is the memory of the reference order without recomputation, at the same ops. Strokes on the axis mark
    recomputations that are too short to be seen as areas. A schedule of more than
    500 computes is summarized in 500 bins: the largest memory, and recomputations as a share of the bin's time.

    Parameters
    ----------
    budget : int, optional
        Bytes; drawn as a line.
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure, available as ``figure`` of the result.
    axis : {"time", "step"}
        Horizontal axis: the cost of the computes so far, or steps, numbered as in the schedule. Without costs: steps.
    keep, count_constant_memory
        As for :func:`remat.schedule.simulate.simulate`: tensors that stay live to the end, and whether the graph's
        constant memory counts.
    """
    axes = new_axes(ax, (10, 4))
    picture = Picture.of(graph, schedule, axis, keep=keep, count_constant_memory=count_constant_memory)
    draw_memory(axes, picture, budget)
    if picture.hides_recomputations:
        draw_brief_recomputations(axes, picture)
    finish_axis(axes, picture)
    return axes


def plot_intervals(
    graph: ComputeGraph,
    schedule: Schedule,
    ax: Axes | None = None,
    max_tensors: int | None = None,
    *,
    axis: Axis = "time",
    keep: Iterable[str] = (),
) -> Axes:
    """Plot retention intervals as a Gantt chart: one row per tensor, from the top in order of first allocation.

    With more than 40 tensors rows are layers (the modules of the graph) and show the bytes that each holds. In a graph
    without modules that holds for more than 400 tensors; rows are then equal parts of the reference order.

    Parameters
    ----------
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure with a height that fits the rows.
    max_tensors : int, optional
        Draw only the largest tensors, never layers; the axis label says so.
    axis
        As for :func:`plot_memory`.
    keep
        Tensors that stay live to the end, besides the graph outputs.
    """
    picture = Picture.of(graph, schedule, axis, keep=keep)
    axes = new_axes(ax, (10, height_of_rows(picture, max_tensors)))
    draw_rows(axes, picture, max_tensors, legend=True)
    set_title(axes, picture.title(None))
    finish_axis(axes, picture)
    return axes


def plot_schedule(
    graph: ComputeGraph,
    schedule: Schedule,
    budget: int | None = None,
    max_tensors: int | None = None,
    ax: Axes | None = None,
    *,
    axis: Axis = "time",
    lines: StepLines | None = None,
    **counting: Unpack[Counting],
) -> Figure:
    """Draw :func:`plot_memory` above :func:`plot_intervals`, over the same axis and with their parameters.

    If recomputations are too short to be seen, bars between the parts show the bytes recomputed in each 1/250 of the
    axis. If the graph has modules, a strip shows the layer of each step.

    Parameters
    ----------
    ax : matplotlib Axes, optional
        Axes whose place the parts take; default: a new figure.
    lines : StepLines, optional
        Lines of the steps in the file of the schedule, for the title of a schedule that is not valid.
    """
    picture = Picture.of(graph, schedule, axis, lines, **counting)
    parts: list[tuple[float, Callable[[Axes], None]]] = [(3.2, lambda axes: draw_memory(axes, picture, budget))]
    if picture.hides_recomputations:
        parts.append((0.65, lambda axes: draw_recomputed(axes, picture)))
    if has_modules(graph):
        parts.append((0.2, lambda axes: draw_layer_strip(axes, picture)))
    rows = height_of_rows(picture, max_tensors)
    parts.append((rows, lambda axes: draw_rows(axes, picture, max_tensors, legend=False)))
    heights = [height for height, _ in parts]
    ratios = {"height_ratios": heights}
    panels = new_panels(ax, (10, 0.4 + sum(heights)), len(parts), sharex=True, gridspec_kw=ratios)
    for axes, (_, draw) in zip(panels, parts, strict=True):
        draw(axes)
    below = panels[-1]
    finish_axis(below, picture)
    return figure_of(below)


def save_plot(
    graph: ComputeGraph,
    schedule: Schedule,
    path: str | os.PathLike[str],
    budget: int | None = None,
    *,
    axis: Axis = "time",
    lines: StepLines | None = None,
    **counting: Unpack[Counting],
) -> None:
    """Write :func:`plot_schedule` to a ``.png``, ``.svg`` or ``.pdf`` file atomically; same schedule, same bytes.

    Raises
    ------
    FormatError
        Naming the file, if its name has another suffix or it cannot be written.
    """
    write_figure(path, lambda: plot_schedule(graph, schedule, budget, axis=axis, lines=lines, **counting))


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

    axes = new_axes(ax, (10, 4))
    keep = tuple(keep)
    pictures = {
        name: Picture.of(graph, schedule, "step", keep=keep, count_constant_memory=count_constant_memory)
        for name, schedule in schedules.items()
    }
    highest = max((picture.run.peak for picture in pictures.values()), default=0)
    scale, unit = size_unit(highest)
    for number, (name, picture) in enumerate(pictures.items()):
        style, width = _STYLES[number % len(_STYLES)]
        colour = COLOURS[number % len(COLOURS)]
        edges, memory = picture.binned(picture.memory)
        axes.stairs(memory / scale, edges, fill=True, color=colour, alpha=0.12)
        axes.stairs(memory / scale, edges, color=colour, linewidth=width, linestyle=style,
                    label=plain_text(f"{name}: peak {size_text(picture.run.peak)}"))  # fmt: skip
        axes.axhline(picture.run.peak / scale, color=colour, linestyle=":", linewidth=0.9)
    axes.set(xlim=(0, max((picture.right for picture in pictures.values()), default=1)))
    axes.set_ylim(0, 1.08 * highest / scale or 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("compute step", fontsize=LABEL)
    axes.set_ylabel(f"memory ({unit})", fontsize=LABEL)
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
    axes = new_axes(ax, (8, 4.6))
    values = np.sort(peaks)
    scale, unit = size_unit(int(max([*marks.values(), int(values.max(initial=0))], default=0)))
    if len(values):
        axes.ecdf(values / scale, color=INK, linewidth=1.6, label=f"{len(values):,} orders at random")
    for number, (name, peak) in enumerate(sorted(marks.items(), key=lambda mark: mark[1])):
        share = 100 * float((values <= peak).mean()) if len(values) else 0.0
        style, width = _STYLES[number % len(_STYLES)]
        axes.axvline(
            peak / scale, color=COLOURS[number % len(COLOURS)], linestyle=style, linewidth=width,
            label=plain_text(f"{name}: {size_text(peak)} ({share:.3g} % of the orders within)"),
        )  # fmt: skip
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(f"peak ({unit})", fontsize=LABEL)
    axes.set_ylabel("share of orders within the peak", fontsize=LABEL)
    if title:
        set_title(axes, title)
    figure_of(axes).legend(loc="outside lower center", ncols=2, frameon=False, fontsize=LABEL)
    rule(axes)
    return axes


def plot_traffic(title: str, schedule: Sequence[Traffic], reference: Sequence[Traffic], ax: Axes | None = None) -> Axes:
    """Plot the bytes fetched and (hatched) written at each capacity, by the reference order and by a schedule.

    The label above the bars is the factor by which the schedule reduces traffic (``less``) or increases it (``more``).
    It is ``all gone`` or ``new`` if only one of them moves bytes, and ``none`` if neither does. After Fig. 11 of Ahn et
    al. 2020.

    Parameters
    ----------
    schedule, reference : sequence of Traffic
        The same capacities in the same order.
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure, available as ``figure`` of the result.
    """
    axes = new_axes(ax, (max(6.0, 1.6 + 1.2 * len(schedule)), 4.4))
    top = max((found.total for found in (*schedule, *reference)), default=0)
    scale, unit = size_unit(max(top, 1))
    sides = (("reference order", GIVEN, reference), ("schedule", COLOURS[0], schedule))
    for side, (name, colour, found) in enumerate(sides):
        places = [number + 0.38 * side - 0.19 for number in range(len(found))]
        style: dict[str, Any] = {"width": 0.36, "color": colour, "edgecolor": INK, "linewidth": 0.6}
        fetched, written = ([getattr(one, what) / scale for one in found] for what in ("fetched", "written"))
        axes.bar(places, fetched, label=f"{name}: fetched", **style)
        axes.bar(places, written, bottom=fetched, hatch="////", label=f"{name}: written", **style)
    for number, (mine, theirs) in enumerate(zip(schedule, reference, strict=True)):
        height = max(mine.total, theirs.total) / scale
        above: dict[str, Any] = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "fontsize": LABEL}
        axes.annotate(_gain(mine, theirs), (number, height), **above)
    axes.set_xticks(range(len(schedule)), [shown_size(one.on_chip) for one in schedule])
    axes.set_ylim(0, 1.15 * top / scale or 1)
    axes.set_xlabel("on-chip memory", fontsize=LABEL)
    axes.set_ylabel(f"off-chip traffic ({unit})", fontsize=LABEL)
    set_title(axes, f"{title}\nbytes moved, compared with the reference order")
    figure_of(axes).legend(loc="outside lower center", ncols=2, fontsize=LABEL, frameon=False)
    rule(axes, "y")
    return axes


def _gain(mine: Traffic, theirs: Traffic) -> str:
    if not mine.total:
        return "all gone" if theirs.total else "none"
    if mine.total > theirs.total:
        return f"{mine.total / theirs.total:.2f}× more" if theirs.total else "new"
    return f"{theirs.total / mine.total:.2f}× less"
