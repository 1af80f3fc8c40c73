"""Plots of orders: memory before and after, and the distribution of peaks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from remat.graphs import ComputeGraph
from remat.runtime.arrays import Int
from remat.runtime.sizes import size_unit
from remat.schedule.plots import empty_figure, plain_text, put_title
from remat.schedule.schedule import Schedule
from remat.schedule.simulate import simulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours of Okabe and Ito, distinguishable for colour-blind readers, and styles for print in grey.
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_STYLES = (("-", 2.4), ("--", 1.8), ("-.", 1.4), (":", 1.2))
"""Later styles are thinner, so that coinciding marks stay visible."""


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

    axes = ax if ax is not None else empty_figure((10, 4)).subplots()
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
        colour = _COLOURS[number % len(_COLOURS)]
        edges = np.arange(len(memory) + 1)
        axes.stairs(memory, edges, fill=True, color=colour, alpha=0.18)
        axes.stairs(memory, edges, color=colour, linewidth=1.4, label=plain_text(f"{name}: peak {run.peak:,} bytes"))
        axes.axhline(run.peak / scale, color=colour, linestyle="--", linewidth=0.8)
    axes.set(xlim=(0, longest), ylim=(0, 1.08 * highest / scale or 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="compute step", ylabel=f"memory ({unit})")
    put_title(axes, graph.name, columns=3)
    return axes


def plot_peak_distribution(
    peaks: Int,
    marks: Mapping[str, int],
    ax: Axes | None = None,
    *,
    title: str = "",
) -> Axes:
    """Plot the share of orders whose peak is at most a value, and mark some of them (Serenity, Fig. 3).

    Parameters
    ----------
    peaks : int64 array, shape (orders,)
        Peaks of sampled orders, in bytes.
    marks : mapping of str to int
        Peaks to mark, in bytes, by name.
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure, available as ``figure`` of the result.
    """
    axes = ax if ax is not None else empty_figure((7, 4.2)).subplots()
    values = np.sort(peaks)
    scale, unit = size_unit(int(max([*marks.values(), int(values.max(initial=0))], default=0)))
    if len(values):
        axes.ecdf(values / scale, color="#222222", linewidth=1.4, label=f"{len(values):,} orders at random")
    for number, (name, peak) in enumerate(sorted(marks.items(), key=lambda mark: mark[1])):
        share = 100 * float((values <= peak).mean()) if len(values) else 0.0
        style, width = _STYLES[number % len(_STYLES)]
        axes.axvline(
            peak / scale, color=_COLOURS[number % len(_COLOURS)], linestyle=style, linewidth=width,
            label=plain_text(f"{name}: {peak:,} bytes ({share:.3g} % of the orders within)"),
        )  # fmt: skip
    axes.set(ylim=(0, 1.02), xlabel=f"peak ({unit})", ylabel="share of orders")
    if title:
        axes.set_title(plain_text(title), fontsize="medium")
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.16), frameon=False, fontsize="small")
    axes.grid(alpha=0.25)
    return axes
