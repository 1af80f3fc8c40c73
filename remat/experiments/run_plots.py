"""Pictures of methods compared: the gap of schedules and bounds to the best bound, against time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from remat.experiments.plots import Measure
from remat.experiments.runs import REFERENCE_ORDER, Run
from remat.io.figures import (
    GREY,
    INK,
    LABEL,
    RULED_OUT,
    figure_of,
    label_ends,
    line_style,
    logarithmic,
    new_panels,
    raised,
    rule,
    set_title,
)
from remat.problem.scope import covers
from remat.runtime.sizes import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Least time in seconds on the logarithmic axis.
_FIRST_SECONDS = 1e-3
#: Points between the lines of methods that agree.
_RAISE = 2.2


def plot_runs(groups: Sequence[Sequence[Run]], ax: Axes | None = None) -> Figure:
    """Draw the gap of each schedule (steps) and bound (dashed) to the best bound against time.

    Both axes are logarithmic. Zero is the best bound that covers every schedule within the rules. Schedules come down
    to it from above, bounds rise to it from below, through the grey part, in which no schedule exists. The label of a
    method is its objective: overhead, or peak if that is minimized. Methods that failed or proved that no schedule
    exists are listed below the title.

    Parameters
    ----------
    groups : sequence of sequences of Run
        Runs of one problem in each; one panel per group, one below another.
    ax : matplotlib Axes, optional
        Axes whose place the panels take; default: a new figure.
    """
    heights = [3.2 if _curves(runs) else 1.0 for runs in groups] or [1.0]
    size, ratios = (10, 0.4 + sum(heights)), {"height_ratios": heights}
    panels = new_panels(ax, size, len(heights), gridspec_kw=ratios)
    methods = list(dict.fromkeys(run.method.label for runs in groups for run in runs))
    for axes, runs in zip(panels, groups, strict=False):
        _draw_panel(axes, runs, methods)
    return figure_of(panels[0])


@dataclass(frozen=True)
class Gaps:
    """Scale of a panel: gaps to the best bound."""

    measure: Measure
    best: int
    """The best bound of the runs that covers every schedule within the rules."""
    unit: str
    """``%``, or the unit of the objective if the best bound is 0."""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Gaps:
        problem = runs[0].problem
        bounds = [
            run.result.bound for run in runs
            if run.result is not None and run.result.status != "infeasible" and covers(run.result.scope, problem)
        ]  # fmt: skip
        measure = Measure.of(problem)
        least = 0 if measure.peak else measure.base
        best = max([least, *bounds])
        return cls(measure, best, "%" if best else measure.unit.strip())

    def gap(self, value: int) -> float:
        """Return the gap of a value to the best bound; negative below it."""
        return 100 * (value - self.best) / self.best if self.best else self.measure.height(value)

    def text(self, value: int) -> str:
        """Return an objective or a bound with its unit."""
        return f"{self.measure.height(value):.4g}{self.measure.unit}"


@dataclass(frozen=True)
class Curve:
    """Schedules and bounds of a run over time."""

    run: Run
    found: list[tuple[float, float]]
    """Time and gap of each schedule."""
    bounds: list[tuple[float, float]]
    label: str

    @classmethod
    def of(cls, run: Run, gaps: Gaps) -> Curve | None:
        """Return the curve of a run; None if it failed or proved that no schedule exists."""
        result, method = run.result, run.method
        if result is None or result.status == "infeasible":
            return None
        points = result.incumbents
        end = max([result.timings["total"], *(point.time for point in points)])
        found = [(point.time, point.objective) for point in points if point.objective is not None]
        bounds = [] if gaps.measure.peak else [(0.0, gaps.measure.base)]
        bounds += [(point.time, point.bound) for point in points if point.bound > 0]
        bounds.append((end, result.bound))
        if not found:
            return cls(run, [], _gaps(bounds, gaps), f"{method.label}: no schedule")
        value = found[-1][1]
        proof = "" if result.status != "optimal" else ", optimal"
        narrow = " in its scope" if proof and not covers(result.scope, run.problem) else ""
        by = "" if result.source in (method.source, REFERENCE_ORDER) else f", by {result.source}"
        return cls(
            run, _gaps([*found, (end, value)], gaps), _gaps(bounds, gaps),
            f"{method.label}: {gaps.text(value)}{proof}{narrow}{by}",
        )  # fmt: skip

    @property
    def improvements(self) -> list[int]:
        """Positions of schedules better than all before."""
        return [k for k, (_, y) in enumerate(self.found) if k == 0 or y < self.found[k - 1][1]]


def _gaps(values: Sequence[tuple[float, int]], gaps: Gaps) -> list[tuple[float, float]]:
    return [(max(time, _FIRST_SECONDS), gaps.gap(value)) for time, value in values]


def _curves(runs: Sequence[Run]) -> list[Curve]:
    """Return the curves of a panel, which is empty without a schedule."""
    gaps = Gaps.of(runs)
    curves = [curve for run in runs if (curve := Curve.of(run, gaps)) is not None]
    return curves if any(curve.found for curve in curves) else []


def _draw_panel(axes: Axes, runs: Sequence[Run], methods: Sequence[str]) -> None:
    curves = _curves(runs)
    set_title(axes, "\n".join([_title(runs[0]), *_without(runs, curves)]))
    if not curves:
        _say_none(axes, runs)
        return
    _scale(axes, curves, Gaps.of(runs))
    _leave_room(axes, max(y for curve in curves for _, y in curve.found or curve.bounds), _RAISE * len(methods) + 6)
    right, ends = axes.get_xlim()[1], []
    for curve in curves:
        number = methods.index(curve.run.method.label)
        colour, marker = line_style(number)
        axes.step(*zip(*curve.bounds, strict=True), where="post", color=colour, linestyle="--", linewidth=1)
        if curve.found:
            place = raised(axes, _RAISE * number)
            axes.step(
                *zip(*curve.found, strict=True), where="post", color=colour, linewidth=1.6, label=curve.label,
                marker=marker, markersize=5, markevery=curve.improvements, zorder=3,
                transform=place,
            )  # fmt: skip
            end = curve.found[-1]
            axes.plot([end[0], right], [end[1]] * 2, color=colour, linewidth=0.7, linestyle=":", transform=place)
        ends.append(((curve.found or curve.bounds)[-1][1], curve.label, colour))
    label_ends(axes, ends)


def _without(runs: Sequence[Run], curves: Sequence[Curve]) -> list[str]:
    """Return lines that list the runs without a curve in the panel, by reason."""
    reasons: dict[str, list[str]] = {}
    for run in runs:
        if not any(curve.run is run for curve in curves):
            status = "failed" if run.result is None else str(run.result.status)
            reasons.setdefault("no schedule" if status == "unknown" else status, []).append(run.method.label)
    return [line for why, names in reasons.items() for line in wrap(f"{why}: {', '.join(names)}", 100)]


def _scale(axes: Axes, curves: Sequence[Curve], gaps: Gaps) -> None:
    from matplotlib.ticker import FuncFormatter

    heights = np.array([y for curve in curves for _, y in (*curve.found, *curve.bounds)])
    # gaps below a ten-thousandth of the largest do not stretch the axis, nor do errors of rounding
    sizes = np.abs(heights[np.abs(heights) > max(1e-4 * np.abs(heights).max(initial=0), 1e-7)])
    if len(sizes):
        least = 10.0 ** math.floor(math.log10(sizes.min()))
        axes.set_yscale("symlog", linthresh=least, linscale=0.6)
        low, high = min(heights.min(), -least), max(heights.max(), least)
        axes.set_ylim(low * (2.5 if low < -least else 1.3), high * (4 if high > least else 1.5))
    else:
        axes.set_ylim(-1, 1)
    logarithmic(axes)
    times = [x for curve in curves for x, _ in (*curve.found, *curve.bounds)]
    first = [x for x in times if x > _FIRST_SECONDS] or [_FIRST_SECONDS]
    axes.set_xlim(0.7 * min(first), 1.1 * max(times))
    best = gaps.text(gaps.best)
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:+g} {gaps.unit}".replace("-", "−") if value else "0")
    )
    axes.axhspan(axes.get_ylim()[0], 0, color=RULED_OUT, linewidth=0, zorder=0)
    axes.axhline(0, color=INK, linewidth=0.9)
    axes.annotate(
        f"best bound {best}: no schedule below", (0.008, 0), (0, -3), ("axes fraction", "data"), "offset points",
        va="top", fontsize=LABEL, color=GREY,
    )  # fmt: skip
    rule(axes)
    axes.set_xlabel("seconds", fontsize=LABEL)
    axes.set_ylabel(f"{'peak' if gaps.measure.peak else 'cost'} above the best bound", fontsize=LABEL)


def _leave_room(axes: Axes, highest: float, points: float) -> None:
    """Raise the upper limit so that `points` fit between it and the highest value."""
    transform = axes.yaxis.get_transform()
    low, top, high = transform.transform(np.array([*axes.get_ylim(), highest]))
    share = min(points / (axes.bbox.height * 72 / figure_of(axes).dpi), 0.5)
    wanted = (high - share * low) / (1 - share)
    if wanted > top:
        axes.set_ylim(top=float(transform.inverted().transform(wanted)))


def _say_none(axes: Axes, runs: Sequence[Run]) -> None:
    """Write that no method found a schedule."""
    size = runs[0].problem.budget_bytes
    proved = any(
        run.result is not None and run.result.status == "infeasible" and covers(run.result.scope, run.problem)
        for run in runs
    )
    within = "" if size is None else f" within {size_text(size)}"
    text = f"no schedule exists{within}: proved" if proved else f"no schedule found{within}"
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.set(xticks=[], yticks=[])


def _title(run: Run) -> str:
    size = run.problem.budget_bytes
    limit = "no budget" if size is None else f"budget {run.budget}"
    shown = "" if size is None or run.budget.endswith("B") else f" ({size_text(size)})"
    return f"{run.problem.graph.name}, {limit}{shown}"
