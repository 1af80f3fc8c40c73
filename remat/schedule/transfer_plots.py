"""Picture of a schedule on a machine: memory of device and host, links, and waits over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from remat.graphs import ComputeGraph
from remat.io.figures import FAULT, FETCHED, FIRST, GREY, LABEL, figure_of, set_title
from remat.runtime.sizes import size_text, size_unit
from remat.schedule.certificate import overhead_percent
from remat.schedule.drawing import Floats, time_unit
from remat.schedule.machine import Machine
from remat.schedule.schedule import Schedule, StepKind
from remat.schedule.simulate import simulate_valid
from remat.schedule.timing import Timing, time_schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from remat.runtime.arrays import Int
    from remat.schedule.simulate import Simulation


def plot_transfers(graph: ComputeGraph, schedule: Schedule, machine: Machine, budget: int | None = None) -> Figure:
    """Draw the memory of device and host and the work of device and links over time; waits of the device are marked.

    Raises
    ------
    ScheduleError
        With the first violation, if the schedule does not run on `graph`.
    ProblemError
        If the costs are no times, or the schedule moves a tensor where the machine has no link.
    """
    from matplotlib.figure import Figure

    run = simulate_valid(graph, schedule)
    timing = time_schedule(run, machine)
    scale, label = time_unit(graph.cost_unit, float(timing.time))
    figure = Figure(figsize=(9, 6), layout="constrained")
    device, host, work = figure.subplots(3, sharex=True, height_ratios=[3, 2, 1.4])
    clock = timing.clock(run.kinds)
    edges = np.append(clock, timing.time) / scale
    _draw_memory(device, edges, run.memory, "device", budget)
    _draw_memory(host, edges, np.zeros_like(clock) if run.host is None else run.host.memory, "host", machine.host)
    _draw_work(work, run, timing, scale)
    for axes in (device, host, work):
        _mark_waits(axes, run, timing, scale)
    work.set_xlabel(label, fontsize=LABEL)
    work.set_xlim(0, max(edges[-1], 1e-12))
    more = overhead_percent(timing.time, graph.base_cost) or 0
    waiting = 100 * timing.stall / timing.time if timing.time else 0
    set_title(device, f"{graph.name}: {more:.3g} % more time than each op once, {waiting:.3g} % of the time waiting")
    return figure_of(device)


def _draw_memory(axes: Axes, edges: Floats, memory: Int, name: str, limit: int | None) -> None:
    scale, unit = size_unit(int(max(memory.max(initial=1), limit or 0)))
    axes.stairs(memory / scale, edges, fill=True, color=FIRST, alpha=0.8, linewidth=0)
    drawn = limit is not None and limit <= 4 * max(memory.max(initial=1), 1)
    if drawn and limit is not None:
        axes.axhline(limit / scale, color=FAULT, linewidth=1, linestyle="--")
        axes.annotate(
            size_text(limit), (1, limit / scale), xycoords=("axes fraction", "data"), xytext=(-4, 3),
            textcoords="offset points", ha="right", fontsize=LABEL, color=FAULT,
        )  # fmt: skip
    axes.set_ylabel(f"{name} ({unit})", fontsize=LABEL)
    axes.set_ylim(0, 1.15 * max(memory.max(initial=0), limit if drawn and limit is not None else 0, 1) / scale)


def _draw_work(axes: Axes, run: Simulation, timing: Timing, scale: float) -> None:
    """Draw a row of bars for the device and each link."""
    computes = ("compute", StepKind.COMPUTE, FIRST)
    rows = (("from host", StepKind.FETCH, FETCHED), ("to host", StepKind.OFFLOAD, GREY), computes)
    for height, (_, kind, color) in enumerate(rows):
        of = run.kinds == kind
        begin, length = timing.start[of] / scale, (timing.end - timing.start)[of] / scale
        axes.broken_barh(list(zip(begin, length, strict=True)), (height - 0.35, 0.7), color=color, linewidth=0)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=LABEL)


def _mark_waits(axes: Axes, run: Simulation, timing: Timing, scale: float) -> None:
    """Shade the times at which the device waits."""
    computes = np.flatnonzero(run.is_compute)
    ends = np.concatenate([[0], timing.end[computes]])
    begins = np.append(timing.start[computes], timing.time)
    waits = begins > ends
    spans = list(zip(ends[waits] / scale, (begins - ends)[waits] / scale, strict=True))
    axes.broken_barh(spans, (0, 1), transform=axes.get_xaxis_transform(), color=FAULT, alpha=0.2, linewidth=0)
