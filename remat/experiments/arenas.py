"""Arena against order: memory that allocators need for schedules of one graph in different orders."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from remat.allocation import AllocationProblem, allocate
from remat.errors import ProblemError
from remat.graphs import ComputeGraph
from remat.graphs.io import as_graph
from remat.io.figures import COLOURS, INK, LABEL, NAME, figure_of, new_axes, plain_text, put_title, rule
from remat.io.views import Table, html_pairs, html_picture
from remat.ordering.instance import OrderInstance
from remat.problem import Problem
from remat.registry import allocators, make
from remat.runtime.deadline import Deadline
from remat.runtime.sizes import size_unit
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions, Status
from remat.runtime.text import clipped
from remat.schedule import Schedule, schedule_buffers
from remat.solving.method import OrderMethod, make_method
from remat.solving.order import order

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from remat.graphs.io import GraphLike

#: Default orders: ``reference`` is the graph's own order, the others are methods of :func:`remat.order`. ``auto`` is
#: named ``optimal`` if it proves its order.
ORDERS = ("reference", "kahn", "depth-first", "least-peak-first", "auto")
ALLOCATORS = ("first-fit", "best-fit", "auto")


@dataclass(frozen=True, repr=False)
class Arena:
    """Memory that an allocator needs for one order, in bytes.

    Attributes
    ----------
    order, allocator : str
    peak : int
        Peak of the schedule in that order.
    arena : int or None
        None: the allocator found nothing in time, or is not installed.
    bound : int
        Lower bound on any arena for this order.
    seconds : float
    """

    order: str
    allocator: str
    peak: int
    arena: int | None
    bound: int
    seconds: float

    def __repr__(self) -> str:
        found = "none found" if self.arena is None else f"{self.arena:,} bytes"
        return f"Arena({self.order!r}, {self.allocator!r}, {found})"

    def rows(self) -> list[tuple[str, str]]:
        """Return the figures as pairs of label and text."""
        found = "none found" if self.arena is None else f"{self.arena:,} bytes"
        if self.arena is not None and self.peak:
            found += f" ({100 * (self.arena / self.peak - 1):.3g} % above the peak)"
        return [
            ("order", self.order),
            ("allocator", self.allocator),
            ("arena", found),
            ("bound", f"{self.bound:,} bytes"),
            ("peak", f"{self.peak:,} bytes"),
            ("time", f"{self.seconds:.2f} s"),
        ]

    def _repr_html_(self) -> str:
        """Return the notebook's view: the figures as a table, and the picture."""
        return f"<div>{html_pairs(self.rows())}{html_picture(self.plot(), 'arena and peak')}</div>"

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the arena and the peak of its order; see :func:`plot_arenas`."""
        return figure_of(plot_arenas([self], ax=ax))

    def to_frame(self) -> pandas.DataFrame:
        """Return the figures as a data frame of one row."""
        return self._table().to_frame()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the figures or their picture, as :meth:`remat.io.views.Table.save`."""
        self._table().save(path)

    def _table(self) -> Arenas:
        return Arenas("", (self,))


@dataclass(frozen=True)
class Arenas(Table):
    """Arenas of one graph, order by order.

    Attributes
    ----------
    title : str
        Name of the graph and number of its ops.
    found : tuple of Arena
    """

    title: str
    found: tuple[Arena, ...]

    def __repr__(self) -> str:
        return f"Arenas({self.title!r}, {len(self.found)} arenas)"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each arena."""
        return [{**asdict(one), "seconds": round(one.seconds, 3)} for one in self.found]

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the arenas; see :func:`plot_arenas`."""
        return figure_of(plot_arenas(self.found, self.title, ax))


def arenas(
    graph: GraphLike,
    orders: Sequence[str] = ORDERS,
    methods: Sequence[str] = ALLOCATORS,
    *,
    time_limit: float = 20.0,
    options: SolveOptions = DEFAULT_OPTIONS,
) -> Arenas:
    """Return the arena of each order under each installed allocator.

    Parameters
    ----------
    graph : ComputeGraph, path, str or networkx.DiGraph
        As for :class:`remat.problem.Problem`.
    orders : sequence of str
        ``reference`` or methods of :func:`remat.order`.
    methods : sequence of str
        Names of allocators.
    time_limit : float
        Seconds for each order, and for each allocation.

    Raises
    ------
    RematError
        If an order or an allocator is unknown.

    Examples
    --------
    >>> from remat.graphs.families import in_tree
    >>> [(a.order, a.arena) for a in arenas(in_tree(3), ("reference", "kahn"), ("first-fit",)).found]
    [('reference', 5), ('kahn', 9)]
    """
    graph = as_graph(graph)
    known = allocators()
    for name in methods:
        if name not in known:
            raise known.unknown(name)
    usable = [name for name in methods if not make("allocators", name, None).unavailable()]
    if not usable:
        raise ProblemError("none of the allocators is installed")
    found = []
    for name, schedule in _schedules(graph, orders, time_limit, options):
        problem = AllocationProblem(schedule_buffers(graph, schedule))
        for method in usable:
            began = time.monotonic()
            answer = allocate(problem, method, time_limit=time_limit, options=options)
            spent = time.monotonic() - began
            found.append(Arena(name, method, problem.buffers.peak(), answer.price, answer.bound, spent))
    return Arenas(f"{graph.name}: {len(graph.ops):,} ops", tuple(found))


def _schedules(
    graph: ComputeGraph, orders: Sequence[str], time_limit: float, options: SolveOptions
) -> Iterator[tuple[str, Schedule]]:
    for name in orders:
        if name == "reference":
            yield name, Schedule.reference(graph)
            continue
        method = make_method(name)
        if isinstance(method, OrderMethod):  # a rule's own order, even if the reference order is better
            problem = Problem(graph, order="free", max_computes=1, objective="least-peak")
            instance, deadline = OrderInstance.of(problem), Deadline.after(time_limit)
            if method.search.prepared(deadline):
                found = method.search.search(instance, deadline=deadline, seed=options.seed)
                if found.order is not None:
                    yield name, instance.schedule(problem, found.order, name)
            continue
        result = order(graph, method, stop=time_limit, options=options)
        if result.schedule is not None:
            yield ("optimal" if name == "auto" and result.status is Status.OPTIMAL else name), result.schedule


def plot_arenas(found: Sequence[Arena], title: str = "", ax: Axes | None = None) -> Axes:
    """Draw the arenas as bars, grouped by order, with the peak of each order as a line across its group.

    The label of a bar above its line is the share by which the arena exceeds the peak.

    Parameters
    ----------
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure, available as ``figure`` of the result.
    """
    names, methods = (list(dict.fromkeys(getattr(one, key) for one in found)) for key in ("order", "allocator"))
    axes = new_axes(ax, (min(10, 4 + len(names) * len(methods)), 4.5))
    scale, unit = size_unit(max([one.peak for one in found] + [one.arena or 0 for one in found], default=1))
    width = 0.8 / max(len(methods), 1)
    by_pair = {(one.order, one.allocator): one for one in found}
    for m, method in enumerate(methods):
        place, height = [], []
        for k, name in enumerate(names):
            one = by_pair.get((name, method))
            if one is not None and one.arena is not None:
                place.append(k - 0.4 + (m + 0.5) * width)
                height.append(one.arena / scale)
                above = one.arena / one.peak - 1 if one.peak else 0.0
                if above >= 0.0005:
                    axes.annotate(
                        f"+{100 * above:.1f} %", (place[-1], height[-1]), (0, 2), textcoords="offset points",
                        ha="center", fontsize=NAME,
                    )  # fmt: skip
        axes.bar(np.array(place), height, width * 0.92, color=COLOURS[m % len(COLOURS)], label=plain_text(method))
    peaks = {one.order: one.peak for one in found}
    for k, name in enumerate(names):
        label = "peak of the order: no arena is smaller" if k == 0 else None
        axes.plot([k - 0.42, k + 0.42], [peaks[name] / scale] * 2, color=INK, linewidth=1.8, label=label)
    axes.set_xticks(range(len(names)), [plain_text(clipped(name, 24)) for name in names])
    axes.set_xlabel("order", fontsize=LABEL)
    axes.set_ylabel(f"arena ({unit})", fontsize=LABEL)
    axes.set_ylim(0, None)
    axes.margins(y=0.1)
    rule(axes, "y")
    put_title(axes, title, columns=min(6, 1 + len(names) * len(methods)))
    return axes
