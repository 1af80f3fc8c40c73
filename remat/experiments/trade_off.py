"""Peak against overhead: schedules of methods and of other tools, all certified by the validator, and their picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from remat.errors import ProblemError
from remat.experiments.compare import Comparison
from remat.experiments.plots import cost_height
from remat.experiments.runs import Run
from remat.graphs import ComputeGraph
from remat.io.figures import (
    GIVEN,
    GREY,
    INK,
    LABEL,
    figure_of,
    line_style,
    new_axes,
    place_labels,
    plain_text,
    rule,
    set_title,
)
from remat.io.views import Table
from remat.runtime.sizes import size_text, size_unit
from remat.runtime.text import expect, json_text
from remat.schedule import Schedule
from remat.schedule.certificate import Certificate
from remat.schedule.rules import Rules
from remat.schedule.validate import validate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_trade_off(found: TradeOff, ax: Axes | None = None) -> Axes:
    """Draw overhead against peak of all valid schedules; lower left is better.

    A line joins the points of one maker in the given order, so that a setting without a monotone effect is visible.
    Each point of a maker with several shows its setting, if there is room. The grey steps are the Pareto front of all.
    Makers without a valid schedule are only in the legend. If computing each op once costs nothing, costs replace
    overheads.

    Parameters
    ----------
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure, available as ``figure`` of the result.
    """
    graph, axes = found.graph, new_axes(ax, (9, 5.8))
    peaks = [point.peak for point in found.points if point.peak is not None]
    scale, unit = size_unit(max([graph.reference_peak, *peaks]))
    front = [(point.peak or 0, cost_height(point.cost or 0, graph.base_cost)) for point in found.front()]
    if front:
        right = max(graph.reference_peak, *peaks)
        axes.step([*(peak / scale for peak, _ in front), right / scale], [*(y for _, y in front), front[-1][1]],
                  where="post", color=GIVEN, linewidth=5, zorder=1, label="best of all")  # fmt: skip
    labels = []
    for number, (who, points) in enumerate(found.by_maker().items()):
        labels += _draw_maker(axes, number, who, points, scale=scale, base=graph.base_cost)
    axes.axvline(graph.reference_peak / scale, color=INK, linewidth=0.8, linestyle=":", label="without recomputation")
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.margins(0.08)
    if not peaks:
        axes.set_ylim(0, 1)
        axes.text(0.5, 0.5, "no valid schedule", transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.set_xlabel(f"peak ({unit})", fontsize=LABEL)
    axes.set_ylabel("overhead (%)" if graph.base_cost else "cost", fontsize=LABEL)
    set_title(axes, f"{graph.name}: overhead against peak, lower left is better")
    rule(axes)
    figure_of(axes).legend(loc="outside lower center", ncols=3, fontsize=LABEL, frameon=False)
    place_labels(axes, labels)
    return axes


def _draw_maker(
    axes: Axes, number: int, who: str, points: list[Point], *, scale: int, base: int
) -> list[tuple[float, float, str, str]]:
    """Draw the points of a maker; return labels of its settings: x, y, text, colour."""
    colour, marker = line_style(number)
    valid = [point for point in points if point.peak is not None]
    failed = len(points) - len(valid)
    label = plain_text(who) + (f" ({failed} without a valid schedule)" if failed else "")
    places = [((point.peak or 0) / scale, cost_height(point.cost or 0, base)) for point in valid]
    size = max(9.0 - 1.2 * number, 4.5)  # points of makers that agree coincide: draw earlier ones larger
    axes.plot([x for x, _ in places], [y for _, y in places], color=colour, marker=marker, markersize=size,
              linewidth=1.2 if len(places) > 1 else 0, label=label, zorder=2)  # fmt: skip
    if len(valid) < 2:
        return []
    names: dict[tuple[float, float], list[str]] = {}
    for point, place in zip(valid, places, strict=True):
        names.setdefault(place, []).append(_knob(point.knob))
    return [(*place, ", ".join(knobs), colour) for place, knobs in names.items()]


def _knob(knob: str) -> str:
    """Return the label of a setting; a large whole number is a budget in bytes."""
    return size_text(int(knob)) if len(knob) < 20 and knob.isdecimal() and int(knob) >= 1024 else knob


@dataclass(frozen=True)
class Point:
    """A schedule in a comparison.

    Attributes
    ----------
    who : str
        Maker of the schedule; the points of one maker are one line of a picture.
    knob : str
        Setting of the maker: a budget, a share, a policy.
    schedule : Schedule or None
        None if the maker failed.
    certificate : Certificate or None
        Result of the validator.
    fault : str
        Why there is no schedule, or why it does not count; empty if it does.
    remarks : tuple of str
        Notes that do not make the schedule invalid.
    bound : int or None
        Proved lower bound on the cost of any schedule within that peak, if any.
    """

    who: str
    knob: str
    schedule: Schedule | None = field(repr=False)
    certificate: Certificate | None = field(repr=False)
    fault: str = ""
    remarks: tuple[str, ...] = ()
    bound: int | None = None

    @classmethod
    def of(
        cls,
        graph: ComputeGraph,
        schedule: Schedule,
        who: str = "",
        knob: str = "",
        *,
        rules: Rules | None = None,
        remarks: Iterable[str] = (),
        bound: int | None = None,
    ) -> Point:
        """Certify a schedule as it is for `graph`; `who` defaults to its source."""
        certificate = validate(graph, schedule, rules)
        fault = "" if certificate.first is None else str(certificate.first)
        return cls(who or schedule.source or "schedule", knob, schedule, certificate, fault, tuple(remarks), bound)

    @classmethod
    def failed(cls, who: str, knob: str, fault: str) -> Point:
        """Return the point of a maker that failed."""
        return cls(who, knob, None, None, fault)

    @property
    def certified(self) -> bool:
        """True if the validator accepts it."""
        return self.certificate is not None and self.certificate.accepted

    @property
    def peak(self) -> int | None:
        """Peak in bytes; None without a valid schedule."""
        return self.certificate.peak if self.certificate is not None and self.certified else None

    @property
    def cost(self) -> int | None:
        """Cost of the schedule, in the graph's unit; None without a valid schedule."""
        return self.certificate.cost if self.certificate is not None and self.certified else None

    @property
    def overhead(self) -> float | None:
        """Overhead in %; None without a valid schedule, or if computing each op once costs nothing."""
        return self.certificate.overhead if self.certificate is not None and self.certified else None

    def row(self) -> dict[str, Any]:
        """Return the point as JSON values; unknown values are None."""
        found = self.certificate
        return {
            "who": self.who, "knob": self.knob, "certified": self.certified, "peak": self.peak, "cost": self.cost,
            "overhead_percent": self.overhead, "bound": self.bound,
            "recomputations": None if found is None else found.recomputations,
            "fault": self.fault, "remarks": "; ".join(self.remarks),
        }  # fmt: skip


@dataclass(frozen=True)
class TradeOff(Table):
    """Schedules of one graph by peak and cost.

    Attributes
    ----------
    graph : ComputeGraph
    points : tuple of Point

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> g = unit_chain(4)
    >>> found = TradeOff(g, (Point.of(g, Schedule.reference(g)),))
    >>> [(point.who, point.peak, point.overhead) for point in found.points]
    [('reference order', 6, 0.0)]
    """

    graph: ComputeGraph
    points: tuple[Point, ...]

    shown: ClassVar = ("who", "knob", "certified", "peak", "overhead_percent", "fault")

    def __repr__(self) -> str:
        return f"TradeOff({self.graph.name!r}, {len(self.points)} points)"

    def __post_init__(self) -> None:
        expect(self.graph, ComputeGraph, "graph", ProblemError)
        object.__setattr__(self, "points", tuple(self.points))

    def by_maker(self) -> dict[str, list[Point]]:
        """Return the points of each maker, in order."""
        groups: dict[str, list[Point]] = {}
        for point in self.points:
            groups.setdefault(point.who, []).append(point)
        return groups

    def best(self, budget: int, who: str | None = None) -> Point | None:
        """Return the cheapest point, of one maker or of all, whose peak is within `budget` bytes."""
        fitting = [
            point for point in self.points
            if point.peak is not None and point.peak <= budget and who in (None, point.who)
        ]  # fmt: skip
        return min(fitting, key=lambda point: (point.cost, point.peak), default=None)

    def front(self) -> list[Point]:
        """Return the Pareto-optimal points in peak and cost, by rising peak."""
        found: list[Point] = []
        valid = [point for point in self.points if point.peak is not None]
        for point in sorted(valid, key=lambda each: (each.peak, each.cost)):
            if not found or (point.cost or 0) < (found[-1].cost or 0):
                found.append(point)
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each point."""
        return [point.row() for point in self.points]

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw overhead against peak; see :func:`plot_trade_off`."""
        return figure_of(plot_trade_off(self, ax))

    def to_json(self) -> str:
        """Return a JSON text with the graph's figures and the table."""
        graph = self.graph
        facts = {
            "name": graph.name, "digest": graph.digest, "base_cost": graph.base_cost, "cost_unit": graph.cost_unit,
            "reference_peak": graph.reference_peak,
        }  # fmt: skip
        return json_text({"graph": facts, "points": self.rows()})


def points_of_runs(runs: Iterable[Run]) -> list[Point]:
    """Return the results of methods as points, with the budget as `knob`."""
    points = []
    for run in runs:
        result = run.result
        if result is None:
            points.append(Point.failed(run.method.label, run.budget, run.error))
        elif result.schedule is None or result.certificate is None:
            points.append(Point.failed(run.method.label, run.budget, f"no schedule: {result.status}"))
        else:
            points.append(Point(run.method.label, run.budget, result.schedule, result.certificate))
    return points


def trade_off(comparison: Comparison, others: Sequence[Point] = ()) -> TradeOff:
    """Return the trade-off of the runs of a comparison and of other points of the same graph."""
    return TradeOff(comparison.problem.graph, (*others, *points_of_runs(comparison.runs)))
