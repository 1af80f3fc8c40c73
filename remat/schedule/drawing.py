"""Memory profile of a schedule: its coordinates, and the marks that all parts of its picture share.

Long schedules are summarized in bins of equal width, so that no part of the picture is narrower than a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from remat.errors import ProblemError
from remat.graphs import ComputeGraph
from remat.graphs.arrays import occurrences
from remat.io.figures import AGAIN, FAULT, FIRST, GREY, INK, LABEL, plain_text, put_title, raised
from remat.runtime.arrays import Bool, Int
from remat.runtime.sizes import size_text, size_unit
from remat.runtime.text import clipped, short
from remat.schedule.certificate import overhead_text
from remat.schedule.schedule import Schedule
from remat.schedule.simulate import Counting, Simulation, simulate
from remat.schedule.step_lines import StepLines, described

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Horizontal axis: ``time`` is the cost of the computes so far, ``step`` their number.
Axis = Literal["time", "step"]
Floats = NDArray[np.float64]

_VERDICTS = {"valid": "#00694B", "over budget": "#A65000", "not a valid schedule": FAULT}
#: Bins of a long schedule: two pixels each at the usual width.
BINS = 500
#: Bins of recomputations: wide enough for a single one to be seen.
WIDE_BINS = 250


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
    lines: StepLines | None = None
    """Lines of the steps in the file of the schedule."""

    @classmethod
    def of(
        cls,
        graph: ComputeGraph,
        schedule: Schedule,
        axis: Axis,
        lines: StepLines | None = None,
        **counting: Unpack[Counting],
    ) -> Picture:
        """Simulate `schedule`; without costs the axis counts steps."""
        if axis not in ("time", "step"):
            raise ProblemError(f"the axis of a picture is time or step, not {short(axis)}", "axis")
        run = simulate(graph, schedule, **counting)
        before = np.concatenate([[0], np.cumsum(run.is_compute)])
        edges, label = np.arange(before[-1] + 1, dtype=np.float64), "step"
        ops = run.ops[run.is_compute]
        costs = np.where(ops >= 0, graph.arrays.cost[ops], 0).astype(np.float64)
        if axis == "time" and costs.sum() > 0:
            scale, label = time_unit(graph.cost_unit, float(costs.sum()))
            edges = np.concatenate([[0.0], np.cumsum(costs)]) / scale
        return cls(run, before, edges, label, simulate(graph, Schedule.reference(graph), **counting), lines)

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

    @cached_property
    def hidden(self) -> Bool:
        """True for recomputations too short to be seen as areas. Shape (compute steps,)."""
        return self.again & (np.diff(self.edges) < self.right / WIDE_BINS)

    @property
    def hides_recomputations(self) -> bool:
        """True if there are recomputations too short to be seen as areas."""
        return bool(self.hidden.any())

    @cached_property
    def tensors(self) -> Int:
        """Tensors held at some step, ascending."""
        return np.unique(self.run.intervals.tensor)

    @property
    def right(self) -> float:
        """End of the axis."""
        return float(self.edges[-1]) or 1.0

    @cached_property
    def faults(self) -> list[tuple[float, str]]:
        """Place of each violation that has a step, and its step and line as words; each step once."""
        steps = sorted({each.step for each in self.run.violations if each.step is not None})
        numbers = [None if self.lines is None else self.lines.number(step) for step in steps]
        return [
            (float(self.edges[self.before[step]]), f"step {step}" + ("" if line is None else f", line {line}"))
            for step, line in zip(steps, numbers, strict=True)
        ]

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
            return f"{graph.name}: {verdict}\n{described(run.violations[0], self.lines)}{others}"
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
        if len(values) <= BINS:
            return self.edges, values
        grid = np.linspace(0, self.right, BINS + 1)
        low = np.clip(np.searchsorted(self.edges, grid[:-1], "right") - 1, 0, len(values) - 1)
        high = np.clip(np.searchsorted(self.edges, grid[1:], "left"), low + 1, len(values))
        padded = np.concatenate([values, values[-1:]])  # reduceat needs indices below the length
        return grid, np.maximum.reduceat(padded, np.stack([low, high], axis=1).ravel())[::2]

    def recomputed(self) -> tuple[Floats, Int]:
        """Return the edges of 250 bins and the bytes that recomputations write in each; -1 for bins without any."""
        grid = np.linspace(0, self.right, WIDE_BINS + 1)
        again = np.flatnonzero(self.again)
        middles = (grid[:-1] + grid[1:]) / 2
        low, high = np.searchsorted(middles, self.edges[again]), np.searchsorted(middles, self.edges[again + 1])
        brief = low == high
        low[brief] = np.searchsorted(grid[1:-1], self.edges[again[brief]], "right")
        high[brief] = low[brief] + 1
        arrays = self.graph.arrays
        written = arrays.op_outputs.sums(arrays.size)[self.ops[again]]
        bytes_and_count = np.zeros((2, WIDE_BINS + 1), dtype=np.int64)
        for change, amount in zip(bytes_and_count, (written, np.ones_like(written)), strict=True):
            np.add.at(change, low, amount)
            np.add.at(change, high, -amount)
        total, count = np.cumsum(bytes_and_count, axis=1)[:, :-1]
        return grid, np.where(count > 0, total, -1)

    def share_again(self, grid: Floats) -> Floats:
        """Return the share of each bin that recomputations take."""
        spent = np.concatenate([[0.0], np.cumsum(np.diff(self.edges) * self.again)])
        return np.diff(np.interp(grid, self.edges, spent)) / np.maximum(np.diff(grid), 1e-300)


def time_unit(unit: str, total: float) -> tuple[float, str]:
    """Return the costs per unit of an axis of time that ends at `total`, and its label."""
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
    axes.set_xlabel(picture.label, fontsize=LABEL)
    if picture.label == "step":
        from matplotlib.ticker import MaxNLocator

        steps = len(picture.before) - 1
        ticks = [int(tick) for tick in MaxNLocator(10, integer=True).tick_values(0, steps) if 0 <= tick <= steps]
        axes.set_xticks([picture.edges[picture.before[tick]] for tick in ticks], [f"{tick:,}" for tick in ticks])


def draw_memory(axes: Axes, picture: Picture, budget: int | None) -> None:
    """Draw the memory at each step, what it would be without recomputation, the budget and the peak."""
    from matplotlib.markers import CARETDOWN

    run, memory = picture.run, picture.memory
    again = picture.again.any()
    highest = max(run.peak, budget or 0, picture.reference.peak if again else 0)
    scale, unit = size_unit(highest)
    edges, values = picture.binned(memory)
    axes.stairs(values / scale, edges, fill=True, color=FIRST, label="first compute")
    if again and len(values) == len(memory):
        axes.stairs(np.where(picture.again, memory, 0) / scale, edges, fill=True, color=AGAIN, snap=False,
                    label="recomputation")  # fmt: skip
    elif again:
        share = picture.share_again(edges)
        axes.stairs(share * values / scale, edges, fill=True, color=AGAIN, label="recomputation, as share of the time")
    axes.stairs(values / scale, edges, color=INK, linewidth=0.6)
    if again:
        axes.stairs(
            picture.binned(picture.saved_from())[1] / scale, edges, color=GREY, linewidth=0.9, baseline=None,
            label=f"without recomputation, peak {size_text(picture.reference.peak)}",
        )  # fmt: skip
    if budget is not None:
        axes.axhline(budget / scale, color=INK, linestyle="--", linewidth=1.2, label=f"budget {size_text(budget)}")
    if run.peak_step is not None:
        step = min(int(picture.before[run.peak_step]), len(picture.edges) - 2)  # a fetch comes before a compute
        axes.plot(
            (picture.edges[step] + picture.edges[step + 1]) / 2, run.peak / scale, marker=CARETDOWN, markersize=7,
            color=INK, linestyle="none", clip_on=False, transform=raised(axes, 3),
            label=f"peak {size_text(run.peak)} (step {run.peak_step:,}, {shown_name(run.peak_op or '', 20)})",
        )  # fmt: skip
    axes.set_xlim(0, picture.right)
    axes.set_ylabel(f"memory ({unit})", fontsize=LABEL)
    top = 1.15 * highest / scale or 1
    axes.set_ylim(0, top)
    if (turn := picture.backward_from()) is not None:
        axes.axvline(turn, color=INK, linewidth=0.7, alpha=0.6)
        for side, text in (("right", "forward "), ("left", " backward")):
            axes.text(turn, 0.995 * top, text, ha=side, va="top", fontsize=LABEL, color=GREY, clip_on=True)
    draw_faults(axes, picture, numbers=True)
    put_title(axes, picture.title(budget), columns=3 if len(axes.get_legend_handles_labels()[0]) > 4 else 4)
    axes.title.set_color(_VERDICTS[picture.verdict(budget)])


def draw_brief_recomputations(axes: Axes, picture: Picture) -> None:
    """Mark recomputations too short to be seen as areas by strokes on the horizontal axis."""
    places = picture.edges[:-1][picture.hidden]
    axes.plot(places, np.zeros(len(places)), "|", color=AGAIN, markersize=14, markeredgewidth=1.6, clip_on=False)


def draw_recomputed(axes: Axes, picture: Picture) -> None:
    """Draw the bytes that recomputations write in each of 250 bins, wide enough for the shortest to be visible."""
    from matplotlib.ticker import MaxNLocator

    grid, recomputed = picture.recomputed()
    highest = int(recomputed.max(initial=0))
    scale, unit = size_unit(highest)
    shown = np.where(recomputed >= 0, np.maximum(recomputed, 0.06 * (highest or 1)), 0) / scale
    axes.stairs(shown, grid, fill=True, color=AGAIN, linewidth=0)
    axes.set(xlim=(0, picture.right), ylim=(0, 1.1 * (highest or 1) / scale))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.set_ylabel(f"recomputed\n({unit})", fontsize=LABEL)


def draw_faults(axes: Axes, picture: Picture, *, numbers: bool) -> None:
    """Draw a line at the step of each violation, with its number where there is room."""
    last = -picture.right
    for number, (place, words) in enumerate(picture.faults):
        axes.axvline(place, color=FAULT, linestyle=":", linewidth=1.4, label="" if number else "violation")
        if numbers and place - last > 0.01 * len(words) * picture.right:
            last = place
            axes.annotate(
                words, (place, 0.02), (2, 0), xycoords=("data", "axes fraction"), textcoords="offset points",
                color=FAULT, fontsize=LABEL,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8},
            )  # fmt: skip


def shown_name(name: str, length: int = 28) -> str:
    """Return a name for a picture: clipped, and without formulas."""
    return plain_text(clipped(name, length))
