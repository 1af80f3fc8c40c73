"""Pictures of several methods: overhead against time, overhead against budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from remat.experiments.contestant import Contestant
from remat.experiments.frontier_cell import Cell
from remat.experiments.runs import REFERENCE_ORDER, Run
from remat.io.figures import COLOURS, MARKERS, empty_figure, plain_text
from remat.problem import Problem
from remat.runtime.sizes import size_unit
from remat.schedule.certificate import overhead_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_runs(groups: Sequence[Sequence[Run]]) -> Figure:
    """Draw the best objective (steps) and bound (dashed) against time: overhead, or peak if that is the objective.

    A method that found nothing has only its bound. A method that failed or proved infeasibility is only in the legend.
    If computing each op once costs nothing, costs replace overheads.

    Parameters
    ----------
    groups : sequence of sequences of Run
        Runs of one problem in each; one panel per group, one below another.
    """
    figure = empty_figure((9, 0.6 + 3.4 * max(len(groups), 1)))
    methods = list(dict.fromkeys(run.method.label for runs in groups for run in runs))
    for axes, runs in zip(figure.subplots(max(len(groups), 1), 1, squeeze=False)[:, 0], groups, strict=False):
        for run in runs:
            _draw(axes, run, methods.index(run.method.label))
        axes.set_title(_title(runs[0]), fontsize="medium")
        measure = Measure.of(runs[0].problem)
        if not measure.peak:  # the axis of peaks does not start at 0
            top = axes.get_ylim()[1]
            axes.set_ylim(-0.03 * top, top)
        axes.set(xlim=(0, None), ylabel=measure.label)
        axes.legend(fontsize="small", frameon=False)
        axes.grid(alpha=0.3)
        axes.set_xlabel("seconds")
    return figure


@dataclass(frozen=True)
class Line:
    """Line of a method in the picture of a frontier."""

    method: Contestant
    cells: Sequence[Cell]
    """By ascending budgets."""
    bounds: Sequence[int | None]
    """Value of each cell that no schedule in the method's scope can beat; None: no schedule exists there."""

    @property
    def missing(self) -> list[Cell]:
        """Cells without a schedule, though the method did not fail."""
        return [cell for cell in self.cells if cell.value is None and cell.status != "failed"]


def plot_frontier(problem: Problem, budgets: Sequence[int], lines: Sequence[Line]) -> Figure:
    """Draw overhead against budget with bounds, like Fig. 5 of Jain et al. (2020).

    A line continues to the right of a schedule, which is valid for every larger budget, up to a better one. A filled
    mark is a proved optimum of the method's scope. The dashed line below is the bound; it continues to the left, where
    it also holds. A cross on the axis is a budget without a schedule, thick if the method proved infeasibility. The
    grey part is below the structural bound. If computing each op once costs nothing, costs replace overheads.

    Parameters
    ----------
    budgets : sequence of int
        Bytes, ascending.
    """
    figure = empty_figure((9, 5))
    axes = figure.subplots()
    scale, unit = size_unit(max(*budgets, problem.reference_peak))
    edges = [budget / scale for budget in budgets]
    margin = 0.04 * (edges[-1] - edges[0]) or 0.05 * edges[0] or 1.0
    axes.set_xlim(edges[0] - margin, edges[-1] + margin)
    base = problem.objective.base(problem.graph)
    without = [line.method.label for line in lines if line.missing]
    strip = 0.03 + 0.035 * len(without)
    for number, line in enumerate(lines):
        _draw_line(axes, line, number, scale=scale, base=base, right=edges[-1])
        if line.missing:
            height = strip - 0.035 * (without.index(line.method.label) + 0.7)
            _draw_crosses(axes, line, number, scale=scale, height=height)
    top = max(axes.get_ylim()[1], 1e-9)
    axes.set_ylim(-top * strip / (1 - strip), top)  # a strip for the crosses, one row for each method with crosses
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= top])
    axes.axhline(0, color="#222222", linewidth=0.6)
    structural = problem.structural_peak / scale
    if structural > edges[0] - margin:
        axes.axvspan(edges[0] - margin, structural, color="#DDDDDD", linewidth=0, label="below the structural bound")
    axes.set(xlabel=f"budget ({unit})", ylabel="overhead (%)" if base else problem.objective.word)
    axes.set_title(plain_text(problem.graph.name) + ": bounds dashed, proved optima filled", fontsize="medium")
    if problem.reference_peak:
        share = 100 * scale / problem.reference_peak
        there, back = partial(np.multiply, share), partial(np.multiply, 1 / share)
        axes.secondary_xaxis("top", functions=(there, back)).set_xlabel("% of the reference peak", fontsize="small")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    return figure


def _draw_line(axes: Axes, line: Line, number: int, *, scale: int, base: int, right: float) -> None:
    """Draw schedules and bounds of a method; schedules are valid up to `right`."""
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    method, cells = line.method, line.cells
    # Lines of methods that agree coincide; draw earlier ones wider.
    width, size = max(3.6 - 0.8 * number, 1.0), max(10.5 - 2.0 * number, 4.0)

    def height(value: int) -> float:
        return cost_height(value, base)

    found = [(cell.budget / scale, height(cell.value), cell.status == "optimal")
             for cell in cells if cell.value is not None]  # fmt: skip
    if found:
        axes.step([x for x, *_ in found] + [right], [y for _, y, _ in found] + [found[-1][1]], where="post",
                  color=colour, linewidth=width)  # fmt: skip
        for proved in (True, False):
            some = [(x, y) for x, y, optimal in found if optimal is proved]
            axes.plot(*np.array(some).reshape(-1, 2).T, color=colour, marker=marker, linestyle="none", markersize=size,
                      markerfacecolor=colour if proved else "white", zorder=3)  # fmt: skip
    # An empty line for the legend: one entry for line and marks.
    failed = ": failed" if not found and any(cell.status == "failed" for cell in cells) else ""
    others = sorted({cell.source for cell in cells if cell.schedule is not None} - {method.source, REFERENCE_ORDER})
    by = f" (schedules also by {', '.join(others)})" if others else ""
    axes.plot([], [], color=colour, marker=marker, markersize=size, linewidth=width,
              label=plain_text(method.label + by) + failed)  # fmt: skip
    bounds = [(cell.budget / scale, bound) for cell, bound in zip(cells, line.bounds, strict=True) if bound is not None]
    if any(bound > base for _, bound in bounds):
        axes.step([x for x, _ in bounds], [height(bound) for _, bound in bounds], where="pre", color=colour,
                  linestyle="--", linewidth=1)  # fmt: skip


def _draw_crosses(axes: Axes, line: Line, number: int, *, scale: int, height: float) -> None:
    """Mark budgets without a schedule, at a height in shares of the axis."""
    proved = {cell.budget for cell, bound in zip(line.cells, line.bounds, strict=True) if bound is None}
    for thick, none in ((2.5, True), (1.0, False)):
        at = [cell.budget / scale for cell in line.missing if (cell.budget in proved) is none]
        axes.plot(at, [height] * len(at), color=COLOURS[number % len(COLOURS)], marker="x", markersize=5,
                  markeredgewidth=thick, linestyle="none", transform=axes.get_xaxis_transform())  # fmt: skip


def cost_height(cost: int, base: int) -> float:
    """Return the overhead in %, or the cost if computing each op once costs nothing."""
    overhead = overhead_percent(cost, base)
    return float(cost) if overhead is None else overhead


@dataclass(frozen=True)
class Measure:
    """Scale on which objectives and bounds of a problem are drawn."""

    label: str
    """Label of the axis."""
    unit: str
    """Suffix of a number."""
    scale: int
    """Bytes per unit of the axis; 0 for other values."""
    base: int
    """Value of computing each op once."""

    @classmethod
    def of(cls, problem: Problem) -> Measure:
        objective, base = problem.objective, problem.objective.base(problem.graph)
        if objective.is_memory:
            scale, unit = size_unit(problem.reference_peak)
            return cls(f"{objective.word} ({unit})", f" {unit}", scale, base)
        return cls("overhead (%)", " %", 0, base) if base else cls(objective.word, "", 0, base)

    @property
    def peak(self) -> bool:
        """True if peaks are drawn rather than costs."""
        return self.scale > 0

    def height(self, value: int) -> float:
        """Return the height of an objective or a bound."""
        return value / self.scale if self.scale else cost_height(value, self.base)


def _draw(axes: Axes, run: Run, number: int) -> None:
    colour, label = COLOURS[number % len(COLOURS)], run.method.label
    if run.result is None:
        axes.plot([], [], color=colour, marker="x", linestyle="none", label=f"{label}: failed")
        return
    if run.result.status == "infeasible":
        axes.plot([], [], color=colour, marker="x", linestyle="none", label=f"{label}: infeasible")
        return
    measure, points = Measure.of(run.problem), run.result.incumbents
    height = measure.height
    end = max([run.result.timings["total"], *(point.time for point in points)])
    found = [(point.time, height(point.objective)) for point in points if point.objective is not None]
    status = str(run.result.status)
    by = "" if run.result.source in (run.method.source, REFERENCE_ORDER) else f", schedule by {run.result.source}"
    if found:
        # a marker at each improvement, and the line up to the end of the run
        fresh = [k for k, (_, y) in enumerate(found) if k == 0 or y < found[k - 1][1]]
        axes.step(
            [x for x, _ in found] + [end], [y for _, y in found] + [found[-1][1]], where="post", color=colour,
            marker=MARKERS[number % len(MARKERS)], markersize=5, markevery=fresh,
            label=f"{label}: {status}, {found[-1][1]:.4g}{measure.unit}{plain_text(by)}",
        )  # fmt: skip
    first = [] if measure.peak else [(0.0, height(measure.base))]
    bounds = [*first, *((point.time, height(point.bound)) for point in points if point.bound > 0)]
    bounds.append((end, height(run.result.bound)))
    axes.step(
        *zip(*bounds, strict=True), where="post", color=colour, linestyle="--", linewidth=1,
        label=None if found else f"{label}: {status} (bound)",
    )  # fmt: skip


def _title(run: Run) -> str:
    name = plain_text(run.problem.graph.name)
    return f"{name}, " + ("no budget" if run.problem.budget is None else f"budget {run.budget}") + "; bounds dashed"
