"""Result of a frontier: overhead against budget for several methods, with bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from remat.experiments.contestant import Contestant
from remat.experiments.frontier_cell import Cell
from remat.experiments.pages import frontier_page
from remat.experiments.plots import Line, plot_frontier
from remat.experiments.runs import Run, question
from remat.experiments.staircase import Step, mean_gap, memory_unit
from remat.io.figures import figure_of
from remat.io.views import Table
from remat.problem import Problem
from remat.runtime.text import counted, json_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Frontier(Table):
    """Result of each method at each budget.

    Attributes
    ----------
    problem : Problem
        Graph and rules.
    methods : tuple of Contestant
    budgets : tuple of int
        Bytes, ascending.
    cells : mapping of (method label, budget in bytes) to Cell
        Finished cells, and interrupted ones with what they found.
    limits : mapping
        Limits of each cell, as :attr:`remat.experiments.compare.Comparison.limits`.
    interrupted : bool
        True if Ctrl-C came before the last cell.
    least : Run or None
        Search for the least peak, if the frontier chooses its budgets.
    """

    problem: Problem
    methods: tuple[Contestant, ...]
    budgets: tuple[int, ...]
    cells: Mapping[tuple[str, int], Cell]
    limits: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    least: Run | None = None

    shown: ClassVar = ("method", "budget", "status", "overhead_percent", "peak", "frontier_bound")

    def __repr__(self) -> str:
        methods, budgets = counted(len(self.methods), "method"), counted(len(self.budgets), "budget")
        return f"Frontier({self.problem.graph.name!r}, {methods}, {budgets})"

    def __str__(self) -> str:
        """One line for each method: budgets as shares of the reference peak, largest first, with their overheads."""
        return "\n".join(
            (f"{one.label}: " if len(self.methods) > 1 else "") + ", ".join(map(self._word, reversed(self.of(one))))
            for one in self.methods
        )

    def _word(self, cell: Cell) -> str:
        peak, overhead = self.problem.reference_peak, cell.row["overhead_percent"]
        share = f"{100 * cell.budget / peak:.3g} %" if peak else f"{cell.budget:,} bytes"
        if cell.value is None:
            return f"{share} {'impossible' if cell.status == 'infeasible' else 'none found'}"
        return f"{share} {cell.value:,}" if overhead is None else f"{share} +{overhead:.3g} %"

    def of(self, method: Contestant | str) -> list[Cell]:
        """Return the cells of a method, smallest budget first."""
        label = method if isinstance(method, str) else method.label
        return [self.cells[label, budget] for budget in self.budgets if (label, budget) in self.cells]

    def bound(self, cell: Cell) -> int | None:
        """Return a value that no schedule in the method's scope can beat at that budget; None: none exists there.

        A schedule that fits a budget fits every larger one. So a bound for a larger budget also holds here.
        """
        above = [other for other in self.of(cell.method) if other.budget >= cell.budget]
        if any(other.status == "infeasible" for other in above):
            return None
        base = self.problem.objective.base(self.problem.graph)
        return max([base, *(other.bound for other in above if other.bound is not None)])

    def proved(self, cell: Cell) -> bool:
        """Return True if no schedule in the method's scope is better at that budget."""
        return cell.value is not None and cell.value == self.bound(cell)

    def steps(self, method: Contestant | str) -> list[Step]:
        """Return the steps of a method's curve, by ascending budgets."""
        return [
            Step(cell.budget, cell.peak, cell.value, bound)
            for cell in self.of(method)
            if cell.value is not None and (bound := self.bound(cell)) is not None
        ]

    def mean_gap(self, method: Contestant | str) -> float | None:
        """Return the mean difference between the values and bounds of a method over all budgets between the ends."""
        return mean_gap(self.steps(method), memory_unit(self.problem.graph))

    @property
    def least_peak(self) -> int:
        """Bytes below which no schedule exists."""
        found = None if self.least is None else self.least.result
        return max(self.problem.structural_peak, 0 if found is None else found.bound)

    def rows(self) -> list[dict[str, Any]]:
        """Return the table as JSON values, method by method, budgets ascending; unknown values are None."""
        return [
            {**cell.row, "frontier_bound": self.bound(cell), "found_at": cell.found_at}
            for method in self.methods
            for cell in self.of(method)
        ]

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw overhead against budget; see :func:`remat.experiments.plots.plot_frontier`."""
        return figure_of(plot_frontier(self.problem, self.budgets, self.lines(), self.least_peak, ax))

    def page(self) -> str:
        """Return the plot as an interactive page in HTML; see :func:`remat.experiments.pages.frontier_page`."""
        return frontier_page(self.problem, self.budgets, self.lines(), self.least_peak)

    def _texts(self) -> dict[str, Callable[[], str]]:
        return super()._texts() | {".html": self.page}

    def lines(self) -> list[Line]:
        """Return the line of each method in the picture."""
        return [Line(one, self.of(one), [self.bound(cell) for cell in self.of(one)]) for one in self.methods]

    def to_json(self) -> str:
        """Return a JSON text with graph, rules, limits and the table."""
        content = {
            **question(self.problem, self.limits),
            "structural_peak": self.problem.structural_peak,
            "interrupted": self.interrupted,
            **({} if self.least is None else {"least_peak": self.least.row()}),
            "cells": self.rows(),
        }
        return json_text(content)
