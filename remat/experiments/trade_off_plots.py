"""Picture of a trade-off: overhead against peak, one line per maker in the order of its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat.experiments.plots import COLOURS, MARKERS, cost_height
from remat.experiments.trade_off import Point, TradeOff
from remat.runtime.sizes import size_text, size_unit
from remat.schedule.plots import empty_figure, figure_saver, plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_trade_off(found: TradeOff) -> Figure:
    """Draw overhead against peak of all valid schedules; lower left is better.

    A line joins the points of one maker in the given order, so that a setting without a monotone effect is visible.
    Each point of a maker with several shows its setting. The grey steps are the Pareto front of all. Makers without a
    valid schedule are only in the legend. If computing each op once costs nothing, costs replace overheads.

    Returns
    -------
    matplotlib Figure
    """
    graph, figure = found.graph, empty_figure((9, 5.5))
    axes = figure.subplots()
    peaks = [point.peak for point in found.points if point.peak is not None]
    scale, unit = size_unit(max([graph.reference_peak, *peaks]))
    front = [(point.peak or 0, cost_height(point.cost or 0, graph.base_cost)) for point in found.front()]
    if front:
        right = max(graph.reference_peak, *(peak for peak, _ in front))
        axes.step([*(peak / scale for peak, _ in front), right / scale], [*(y for _, y in front), front[-1][1]],
                  where="post", color="#BBBBBB", linewidth=4, zorder=1, label="best of all")  # fmt: skip
    for number, (who, points) in enumerate(found.by_maker().items()):
        _draw_maker(axes, number, who, points, scale=scale, base=graph.base_cost)
    axes.axvline(graph.reference_peak / scale, color="#222222", linewidth=0.8, linestyle=":")
    axes.axhline(0, color="#222222", linewidth=0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"peak ({unit}); dotted: the reference order, nothing computed again")
    axes.set_ylabel("extra time (%)" if graph.base_cost else "cost")
    axes.set_title(plain_text(graph.name), fontsize="medium")
    axes.legend(fontsize="small", frameon=False)
    axes.grid(alpha=0.3)
    return figure


save_trade_off_plot = figure_saver(plot_trade_off)
"""Write :func:`plot_trade_off` to a ``.png`` or ``.svg`` file; see :func:`remat.schedule.plots.figure_saver`."""


def _draw_maker(axes: Axes, number: int, who: str, points: list[Point], *, scale: int, base: int) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    valid = [point for point in points if point.peak is not None]
    failed = len(points) - len(valid)
    label = plain_text(who) + (f" ({failed} without a valid schedule)" if failed else "")
    places = [((point.peak or 0) / scale, cost_height(point.cost or 0, base)) for point in valid]
    axes.plot([x for x, _ in places], [y for _, y in places], color=colour, marker=marker, markersize=5,
              linewidth=1.2 if len(places) > 1 else 0, label=label, zorder=2)  # fmt: skip
    if len(valid) < 2:
        return
    names: dict[tuple[float, float], list[str]] = {}
    for point, place in zip(valid, places, strict=True):
        names.setdefault(place, []).append(_knob(point.knob))
    # alternate labels above and below the points, since makers often meet
    offset, align, rise = ((4, 4), "left", "bottom") if number % 2 == 0 else ((-4, -4), "right", "top")
    for place, knobs in names.items():
        axes.annotate(plain_text(", ".join(knobs)), place, xytext=offset, textcoords="offset points", fontsize=7,
                      color=colour, ha=align, va=rise)  # fmt: skip


def _knob(knob: str) -> str:
    """Return the label of a setting; a large whole number is a budget in bytes."""
    return size_text(int(knob)) if len(knob) < 20 and knob.isdecimal() and int(knob) >= 1024 else knob
