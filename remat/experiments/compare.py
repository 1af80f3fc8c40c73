"""Matrix of methods and budgets, run one after another under equal limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from remat.experiments.contestant import Contestant
from remat.experiments.pages import runs_page
from remat.experiments.run_plots import plot_runs
from remat.experiments.runs import (
    LimitArguments,
    Limits,
    NoStore,
    Run,
    RunStore,
    Watch,
    check_arguments,
    check_names,
    chosen_methods,
    expect_list,
    question,
    stored_or_run,
    unwatched,
)
from remat.io.views import Table
from remat.problem import Problem
from remat.runtime.interruption import interrupted, interrupts
from remat.runtime.text import counted, json_text
from remat.solving.method import MethodLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from remat.graphs.io import GraphLike


@dataclass(frozen=True)
class Comparison(Table):
    """Runs of a matrix, budget by budget, and their limits.

    Attributes
    ----------
    problem : Problem
        Graph and rules.
    runs : tuple of Run
    limits : mapping
        Result of :meth:`Limits.as_dict` for each run.
    interrupted : bool
        True if Ctrl-C ended the matrix before its last run.
    """

    problem: Problem
    runs: tuple[Run, ...]
    limits: Mapping[str, Any]
    interrupted: bool = False

    shown: ClassVar = ("method", "budget", "status", "overhead_percent", "peak", "gap", "total_seconds")

    def __repr__(self) -> str:
        return f"Comparison({self.problem.graph.name!r}, {counted(len(self.runs), 'run')})"

    def by_budget(self) -> list[list[Run]]:
        """Return the runs of each budget."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(run.budget, []).append(run)
        return list(groups.values())

    def to_json(self) -> str:
        """Return a JSON text with graph, rules, limits, and the row and incumbents of each run."""
        runs = []
        for run in self.runs:
            points = () if run.result is None else run.result.incumbents
            key = self.problem.objective.key
            incumbents = [{"seconds": p.time, key: p.objective, "bound": p.bound} for p in points]
            runs.append({**run.row(), "incumbents": incumbents})
        content = {**question(self.problem, self.limits), "interrupted": self.interrupted, "runs": runs}
        return json_text(content)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run (:meth:`Run.row`)."""
        return [run.row() for run in self.runs]

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the gap of schedules and bounds against time; see :func:`remat.experiments.run_plots.plot_runs`."""
        return plot_runs(self.by_budget(), ax)

    def page(self) -> str:
        """Return the plot as an interactive page in HTML; see :func:`remat.experiments.pages.runs_page`."""
        return runs_page(self.by_budget())

    def _texts(self) -> dict[str, Callable[[], str]]:
        return super()._texts() | {".html": self.page}


@interrupts()
def compare(
    problem: Problem | GraphLike,
    budgets: Sequence[str | int | float | None],
    methods: Sequence[Contestant | MethodLike],
    *,
    store: RunStore | None = None,
    watch: Watch | None = None,
    on_run: Callable[[Comparison], object] | None = None,
    **limits: Unpack[LimitArguments],
) -> Comparison:
    """Run every method at every budget, one after another, with the same limits.

    A failure is recorded in the method's run, and the matrix continues. Ctrl-C ends the matrix and keeps finished runs
    and the incumbent of the interrupted one.

    Parameters
    ----------
    problem : Problem or graph
        Graph, rules and objective; its own budget is ignored.
    budgets : sequence of str, int, float or None
        As for :class:`remat.problem.Problem`; ``[None]`` for the least peak without a budget.
    methods : sequence of str, class, object or Contestant
        As for :func:`remat.solve`; a str may include a backend (:meth:`Contestant.parse`).
    store : RunStore, optional
        Runs in it are not solved again (:class:`remat.studies.stored_runs.StudyRuns`).
    watch : callable, optional
        See :data:`Watch`.
    on_run : callable, optional
        Receives the comparison so far after every run.
    **limits
        `stop` and `options` as for :func:`remat.solve`, per run.

    Raises
    ------
    RematError
        Before the first run, for an invalid budget, a limit out of range, a name that is not registered, or a method or
        budget that appears twice.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> matrix = compare(Problem(unit_chain(4)), [5, 6], ["checkmate/highs", "greedy"], stop=60)
    >>> [(run.budget, run.method.label, run.result.objective) for run in matrix.runs]
    [('5', 'checkmate/highs', 10), ('5', 'greedy', 10), ('6', 'checkmate/highs', 9), ('6', 'greedy', 9)]
    """
    problem = Problem.of(problem)
    expect_list("budgets", budgets)
    chosen = chosen_methods(methods)
    problems = [replace(problem, budget=budget) for budget in budgets]
    check_names("budget", [str(budget) for budget in budgets])
    check_arguments("compare", limits, LimitArguments)
    given = Limits(**limits)
    done = Comparison(problem, (), given.as_dict())
    cells = [(one, method) for one in problems for method in chosen]
    for number, (one, method) in enumerate(cells, 1):
        title = f"[{number}/{len(cells)}] {method.label} {_at(one)}"
        try:
            run = stored_or_run(store or NoStore(), method, one, given, watch=partial(watch or unwatched, title))
        except KeyboardInterrupt:
            return replace(done, interrupted=True)
        stopped = interrupted() or run.is_interrupted
        done = replace(done, runs=(*done.runs, run), interrupted=stopped and number < len(cells))
        if on_run is not None:
            on_run(done)
        if stopped:
            break
    return done


def _at(problem: Problem) -> str:
    return "without budget" if problem.budget is None else f"at {problem.budget}"
