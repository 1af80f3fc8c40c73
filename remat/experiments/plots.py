"""Picture of a frontier, overhead against budget; scales of objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from remat.experiments.contestant import Contestant
from remat.experiments.frontier_cell import Cell
from remat.experiments.runs import REFERENCE_ORDER
from remat.io.figures import (
    COLOURS,
    GREY,
    INK,
    LABEL,
    NAME,
    RULED_OUT,
    TITLE,
    figure_of,
    line_style,
    new_axes,
    new_panels,
    plain_text,
    rule,
    set_title,
)
from remat.problem import Problem
from remat.runtime.sizes import size_unit
from remat.schedule.certificate import overhead_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Part of the width by which the picture extends to the left to show the budgets below which no schedule exists.
SIGHT = 0.1
#: Height of a figure of several frontiers, relative to the largest overhead of a best schedule.
ROOM = 1.6


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

    def proved(self, cell: Cell) -> bool:
        """Return True if the bound at a cell proves that its schedule is the best."""
        return cell.value is not None and cell.value == self.bounds[self.cells.index(cell)]


def plot_frontier(
    problem: Problem, budgets: Sequence[int], lines: Sequence[Line], least: int, ax: Axes | None = None
) -> Axes:
    """Draw overhead against budget with bounds, like Fig. 5 of Jain et al. (2020).

    A line starts at the peak of a schedule, which is valid for every larger budget, and continues up to a better one. A
    filled mark is a proved optimum of the method's scope. The dashed line below is the bound; it continues to the left,
    where it also holds. No schedule lies in the grey part, by the bound on the peak and by bounds that cover every
    schedule within the rules. A cross below the axis is a budget without a schedule, thick if the method proved that
    its scope has none. Methods that failed are listed below the title. If computing each op once costs nothing, costs
    replace overheads.

    Parameters
    ----------
    budgets : sequence of int
        Bytes, ascending.
    least : int
        Bytes below which no schedule exists.
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure, available as ``figure`` of the result.
    """
    axes = new_axes(ax, (9, 5.4))
    _draw_frontier(axes, problem, budgets, lines, least)
    _, unit = _unit(problem, budgets)
    base = problem.objective.base(problem.graph)
    axes.set_xlabel(f"budget ({unit})", fontsize=LABEL)
    axes.set_ylabel("overhead (%)" if base else problem.objective.word, fontsize=LABEL)
    failed = sorted({line.method.label for line in lines for cell in line.cells if cell.status == "failed"})
    title = [f"{problem.graph.name}: least overhead at each budget" if base else problem.graph.name]
    title += wrap(f"failed: {', '.join(failed)}", 100) if failed else []
    set_title(axes, "\n".join(title))
    _add_shares(axes, problem, budgets)
    _explain(axes, lines)
    return axes


@dataclass(frozen=True)
class Panel:
    """Frontier in a figure of several."""

    title: str
    problem: Problem
    budgets: Sequence[int]
    """Bytes, ascending."""
    lines: Sequence[Line]


def plot_frontiers(panels: Sequence[Panel]) -> Figure:
    """Draw frontiers of one graph one below another, each as :func:`plot_frontier`, with one legend.

    The methods are the same in all. The figure is narrow, so that its text is legible on a phone. Overheads above
    :data:`ROOM` times the largest that a best schedule has are not drawn, but named.
    """
    first = panels[0]
    height = 1.7 + 1.75 * len(panels)
    rows = new_panels(None, (4.4, height), len(panels), sharex=True)
    base = first.problem.objective.base(first.problem.graph)
    best = [
        min((cost_height(cell.value, base) for line in panel.lines for cell in line.cells
             if cell.budget == budget and cell.value is not None), default=0.0)
        for panel in panels for budget in panel.budgets
    ]  # fmt: skip
    top = ROOM * max(best) or None
    for axes, panel in zip(rows, panels, strict=True):
        _draw_frontier(axes, panel.problem, panel.budgets, panel.lines, panel.problem.structural_peak, most=top)
        _name_higher(axes, panel.lines, base)
        axes.set_title(plain_text(panel.title), fontsize=LABEL, loc="right")
        axes.set_ylabel("overhead (%)" if base else first.problem.objective.word, fontsize=LABEL)
    _, unit = _unit(first.problem, first.budgets)
    rows[-1].set_xlabel(f"budget ({unit})", fontsize=LABEL)
    _add_shares(rows[0], first.problem, first.budgets)
    _explain(rows[0], [line for panel in panels for line in panel.lines], columns=1)
    figure = figure_of(rows[0])
    figure.suptitle(plain_text(first.problem.graph.name), fontsize=TITLE)
    return figure


def _name_higher(axes: Axes, lines: Sequence[Line], base: int) -> None:
    """Name the methods with overheads above the axes."""
    top = axes.get_ylim()[1]
    words = []
    for line in lines:
        above = [height for cell in line.cells if cell.value is not None
                 if (height := cost_height(cell.value, base)) > top]  # fmt: skip
        if above:
            words.append(f"{line.method.label} above: {min(above):,.0f} to {max(above):,.0f}" if len(above) > 1
                         else f"{line.method.label} above: {above[0]:,.0f}")  # fmt: skip
    style = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    axes.text(0.99, 0.97, plain_text("\n".join(words)), transform=axes.transAxes, ha="right", va="top", fontsize=NAME,
              color=GREY, bbox=style)  # fmt: skip


def _draw_frontier(
    axes: Axes, problem: Problem, budgets: Sequence[int], lines: Sequence[Line], least: int,
    *, most: float | None = None,
) -> None:  # fmt: skip
    """Draw lines, crosses, and the area below the bounds; set the limits of both axes, up to `most` at most."""
    scale, _ = _unit(problem, budgets)
    edges = [budget / scale for budget in budgets]
    floor, width = least / scale, edges[-1] - edges[0]
    margin = 0.04 * width or 0.05 * edges[0] or 1.0
    left = (floor if edges[0] - SIGHT * width <= floor < edges[0] else edges[0]) - margin
    axes.set_xlim(left, edges[-1] + margin)
    axes.margins(y=0.1)  # the highest mark is drawn whole
    base = problem.objective.base(problem.graph)
    without = [line.method.label for line in lines if line.missing]
    strip = 0.03 + 0.035 * len(without)
    for number, line in enumerate(lines):
        _draw_line(axes, line, number, scale=scale, base=base, right=edges[-1])
        if line.missing:
            height = strip - 0.035 * (without.index(line.method.label) + 0.7)
            _draw_crosses(axes, line, number, scale=scale, height=height)
    top = max(min(axes.get_ylim()[1], most or np.inf), 1e-9)
    axes.set_ylim(-top * strip / (1 - strip), top)  # a strip for the crosses, one row for each method with crosses
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= top])
    axes.axhline(0, color=INK, linewidth=0.8)
    starts = [left, *edges[:-1]]
    for low, high, bound in zip(starts, edges, _bounds_of_all(budgets, lines), strict=True):
        height = top if bound is None else cost_height(max(bound, base), base)
        axes.fill_between([low, high], 0, height, color=RULED_OUT, linewidth=0, zorder=0)
    axes.fill_between([min(left, floor), floor], 0, top, color=RULED_OUT, linewidth=0, zorder=0)
    rule(axes)


def _unit(problem: Problem, budgets: Sequence[int]) -> tuple[int, str]:
    """Return bytes per unit of the horizontal axis, and the unit."""
    return size_unit(max(*budgets, problem.reference_peak))


def _add_shares(axes: Axes, problem: Problem, budgets: Sequence[int]) -> None:
    """Add an axis above with shares of the reference peak."""
    if not problem.reference_peak:
        return
    share = 100 * _unit(problem, budgets)[0] / problem.reference_peak
    there, back = partial(np.multiply, share), partial(np.multiply, 1 / share)
    above = axes.secondary_xaxis("top", functions=(there, back))
    above.set_xlabel("% of the peak without recomputation", fontsize=LABEL)
    above.tick_params(labelsize=LABEL)


def _bounds_of_all(budgets: Sequence[int], lines: Sequence[Line]) -> list[int | None]:
    """Return, for each budget, the best bound that covers every schedule within the rules; None: none exists there."""
    found: list[int | None] = []
    for budget in budgets:
        cells = [cell for line in lines for cell in line.cells if cell.complete and cell.budget >= budget]
        none = any(cell.status == "infeasible" for cell in cells)
        found.append(None if none else max((cell.bound for cell in cells if cell.bound is not None), default=0))
    return found


def _explain(axes: Axes, lines: Sequence[Line], columns: int = 3) -> None:
    """Add a legend of the methods, and of the marks that occur."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = axes.get_legend_handles_labels()[0]
    found = {line.proved(cell) for line in lines for cell in line.cells if cell.value is not None}
    marks: dict[str, Any] = {"color": GREY, "linestyle": "none", "marker": "o", "markersize": 6}
    crosses = {**marks, "marker": "x", "markersize": 5}
    proofs = [bound is None for line in lines for cell, bound in zip(line.cells, line.bounds, strict=True)
              if cell in line.missing]  # fmt: skip
    for occurs, made in (
        (True in found, Line2D([], [], **marks, label="proved least in its scope")),
        (False in found, Line2D([], [], **marks, markerfacecolor="white", label="not proved least")),
        (True, Line2D([], [], color=GREY, linestyle="--", linewidth=1, label="bound of the method")),
        (False in proofs, Line2D([], [], **crosses, markeredgewidth=1, label="no schedule found")),
        (True in proofs, Line2D([], [], **crosses, markeredgewidth=2.5, label="no schedule exists in its scope")),
        (True, Patch(facecolor=RULED_OUT, label="below the best bound: no schedule exists")),
    ):
        handles += [made] if occurs else []
    figure_of(axes).legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=LABEL, frameon=False)


def _draw_line(axes: Axes, line: Line, number: int, *, scale: int, base: int, right: float) -> None:
    """Draw schedules and bounds of a method; schedules are valid up to `right`."""
    colour, marker = line_style(number)
    method, cells = line.method, line.cells
    # Lines of methods that agree coincide; draw earlier ones wider.
    width, size = max(3.6 - 0.8 * number, 1.0), max(10.5 - 2.0 * number, 4.0)

    def height(value: int) -> float:
        return cost_height(value, base)

    found = [(cell.budget / scale, height(cell.value), line.proved(cell)) for cell in cells if cell.value is not None]
    if found:
        places = [cell.peak / scale for cell in cells if cell.value is not None]
        axes.step([*places, right], [y for _, y, _ in found] + [found[-1][1]], where="post", color=colour,
                  linewidth=width)  # fmt: skip
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
