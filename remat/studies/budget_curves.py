"""Overhead against budget in the results of a study, for each instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, permutations

from remat.experiments.contestant import Contestant
from remat.experiments.frontier_cell import Cell
from remat.experiments.frontier_result import Frontier
from remat.experiments.plots import Panel
from remat.problem import Problem
from remat.problem.scope import Scope, covers
from remat.schedule import Schedule
from remat.schedule.rules import Rules
from remat.studies.solving import problem_of
from remat.studies.store import Result, Store

#: Fewest budgets of a curve.
FEWEST = 3


@dataclass
class _Curves:
    """Cells of one instance and one set of rules, which differ in budget, method and seed."""

    title: str
    problem: Problem
    cells: dict[tuple[str, int], list[Cell]] = field(default_factory=dict)

    @property
    def _other_rules(self) -> Rules:
        return replace(self.problem.rules, budget=None, machine=None)

    def take_from(self, other: _Curves) -> None:
        """Take the schedules for another machine, certified for this one: no search finds all of them on each."""
        if other._other_rules != self._other_rules:
            return
        for key, cells in other.cells.items():
            mine = self.cells.get(key, [])
            problem = replace(self.problem, budget=key[1])
            for schedule in [cell.schedule for cell in cells if mine and cell.schedule is not None]:
                found = problem.validate(schedule)
                if found.accepted:
                    row = {**mine[0].row, problem.objective.key: problem.value(found), "cost": found.cost}
                    row["peak"] = found.peak
                    mine.append(replace(mine[0], row={**row, "status": "feasible"}, schedule=None))

    def panel(self) -> Panel:
        """Return the best of all seeds at each budget; a schedule counts for all larger budgets."""
        budgets = tuple(sorted({budget for _, budget in self.cells}))
        labels = dict.fromkeys(label for label, _ in self.cells)
        found = {
            key: max(cells, key=lambda cell: (cell.complete, cell.bound or 0)) if all(c.value is None for c in cells)
            else min((cell for cell in cells if cell.value is not None), key=lambda cell: cell.value or 0)
            for key, cells in self.cells.items()
        }  # fmt: skip
        for label in labels:
            mine = [budget for budget in budgets if (label, budget) in found]
            for below, budget in pairwise(mine):
                small, large = found[label, below], found[label, budget]
                if small.value is not None and (large.value is None or small.value < large.value):
                    found[label, budget] = large.with_schedule_of(small)
        methods = tuple(Contestant("auto", label=label) for label in labels)
        cells = {key: replace(cell, schedule=None) for key, cell in found.items()}  # the methods' names are enough
        frontier = Frontier(self.problem, methods, budgets, cells)
        return Panel(self.title, self.problem, budgets, frontier.lines())


def budget_panels(results: Sequence[Result], store: Store) -> dict[str, list[Panel]]:
    """Return the panels of each instance that has three or more budgets, one for each set of other rules.

    A panel has a line for each method, and is named after the rules that vary, such as ``machine=pcie4``. Schedules for
    one machine count on the others, too, at their time there.
    """
    found: dict[str, dict[str, _Curves]] = {}
    for each in results:
        if each.row.get("status") in (None, "refused") or not each.row.get("budget_bytes"):
            continue
        title = each.cell.problem.partition(" ")[2]
        curves = found.setdefault(each.cell.instance, {})
        if title not in curves:
            curves[title] = _Curves(title, problem_of(store.graph(each.cell), each.cell.run))
        schedule = store.schedule(each) if each.schedule else None
        cell = _cell(each, curves[title].problem, schedule)
        curves[title].cells.setdefault((cell.method, cell.budget), []).append(cell)
    for curves in found.values():
        for one, other in permutations(curves.values(), 2):
            one.take_from(other)
    panels = {
        name: [one.panel() for one in curves.values() if not one.problem.objective.is_memory]
        for name, curves in found.items()
    }
    return {name: some for name, some in panels.items() if min((len(one.budgets) for one in some), default=0) >= FEWEST}


def _cell(result: Result, problem: Problem, schedule: Schedule | None) -> Cell:
    row, told = result.row, result.row.get("covers")
    complete = told is not None and covers(Scope.from_dict(told), problem)
    values = {"cost": None, "bound": None, "source": None, **row, problem.objective.key: row.get("objective")}
    return Cell(
        result.cell.method, row["budget_bytes"], values, schedule, complete=complete, objective=problem.objective
    )  # fmt: skip
