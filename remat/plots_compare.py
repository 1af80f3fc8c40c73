"""Picture of a comparison: overhead and bound of each method against time, one panel for each budget."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from remat.compare import Comparison, Run
from remat.schedule.plots import empty_figure, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which colour-blind people can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def plot_comparison(comparison: Comparison) -> Figure:
    """Overhead of the best schedule (steps) and of the bound (dashed) against time.

    A method that found nothing has only its bound; one that failed or proved that there is
    none is only named in the legend. Where computing each op
    once costs nothing, costs take the place of overheads.

    Returns
    -------
    matplotlib Figure
        One panel for each budget, one below the other.
    """
    groups = comparison.by_budget()
    figure = empty_figure((9, 0.6 + 3.4 * max(len(groups), 1)))
    methods = list(dict.fromkeys(run.method.label for run in comparison.runs))
    for axes, runs in zip(figure.subplots(max(len(groups), 1), 1, squeeze=False)[:, 0], groups, strict=False):
        for run in runs:
            _draw(axes, run, methods.index(run.method.label))
        axes.set_title(_title(runs[0]), fontsize="medium")
        top = axes.get_ylim()[1]
        axes.set_ylim(-0.03 * top, top)
        axes.set_xlim(left=0)
        axes.set_ylabel("overhead (%)" if comparison.problem.graph.base_cost else "cost")
        axes.legend(fontsize="small", frameon=False)
        axes.grid(alpha=0.3)
        axes.set_xlabel("seconds")
    return figure


def save_comparison_plot(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write :func:`plot_comparison` to a ``.png`` or ``.svg`` file, whole or not at all.

    Raises
    ------
    FormatError
        Naming the file, if its name has another suffix or it cannot be written.
    """
    write_figure(path, lambda: plot_comparison(comparison))


def _draw(axes: Axes, run: Run, number: int) -> None:
    colour, label = _COLOURS[number % len(_COLOURS)], run.method.label
    if run.result is None:
        axes.plot([], [], color=colour, marker="x", linestyle="none", label=f"{label}: failed")
        return
    if run.result.status == "infeasible":
        axes.plot([], [], color=colour, marker="x", linestyle="none", label=f"{label}: infeasible")
        return
    base, points = run.problem.graph.base_cost, run.result.incumbents

    def height(cost: int) -> float:
        return 100 * (cost - base) / base if base else float(cost)

    end = max([run.result.timings["total"], *(point.time for point in points)])
    found = [(point.time, height(point.objective)) for point in points if point.objective is not None]
    status = str(run.result.status)
    if found:
        # a marker where something better came, and the line on to the end of the run
        fresh = [k for k, (_, y) in enumerate(found) if k == 0 or y < found[k - 1][1]]
        axes.step(
            [x for x, _ in found] + [end], [y for _, y in found] + [found[-1][1]], where="post", color=colour,
            marker=_MARKERS[number % len(_MARKERS)], markersize=5, markevery=fresh,
            label=f"{label}: {status}, {found[-1][1]:.4g}{' %' if base else ''}",
        )  # fmt: skip
    bounds = [(0.0, height(base)), *((point.time, height(point.bound)) for point in points)]
    bounds.append((end, height(run.result.bound)))
    axes.step(
        *zip(*bounds, strict=True), where="post", color=colour, linestyle="--", linewidth=1,
        label=None if found else f"{label}: {status} (bound)",
    )  # fmt: skip


def _title(run: Run) -> str:
    name = run.problem.graph.name.replace("$", r"\$")
    return f"{name}, " + ("no budget" if run.problem.budget is None else f"budget {run.budget}") + "; bounds dashed"
