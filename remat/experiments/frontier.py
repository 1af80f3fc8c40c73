"""Overhead against budget for several methods; each budget starts from the schedule of the next smaller one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from remat.errors import BackendError, ProblemError
from remat.experiments.contestant import Contestant
from remat.experiments.frontier_cell import Cell
from remat.experiments.pages import frontier_page
from remat.experiments.plots import Line, plot_frontier
from remat.experiments.running import RunnerLoop
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
    run_method,
    unwatched,
)
from remat.io.figures import figure_of
from remat.io.views import Table
from remat.problem import Problem
from remat.problem.scope import covers
from remat.runtime.interruption import interrupted, interrupts
from remat.runtime.processes.workers import WorkerPool
from remat.runtime.solve_options import Status
from remat.runtime.text import counted, json_text
from remat.schedule import Schedule
from remat.solving.method import MethodLike
from remat.solving.stop import stopping

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from remat.graphs.io import GraphLike

#: Seconds beyond the time limit of a cell until an executor without any answer counts as failed: a cluster needs time
#: to start workers.
PATIENCE = 300.0


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
    """

    problem: Problem
    methods: tuple[Contestant, ...]
    budgets: tuple[int, ...]
    cells: Mapping[tuple[str, int], Cell]
    limits: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False

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

    def rows(self) -> list[dict[str, Any]]:
        """Return the table as JSON values, method by method, budgets ascending; unknown values are None."""
        return [
            {**cell.row, "frontier_bound": self.bound(cell), "found_at": cell.found_at}
            for method in self.methods
            for cell in self.of(method)
        ]

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw overhead against budget; see :func:`remat.experiments.plots.plot_frontier`."""
        return figure_of(plot_frontier(self.problem, self.budgets, self.lines(), ax))

    def page(self) -> str:
        """Return the plot as an interactive page in HTML; see :func:`remat.experiments.pages.frontier_page`."""
        return frontier_page(self.problem, self.budgets, self.lines())

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
            "cells": self.rows(),
        }
        return json_text(content)


@interrupts()
def frontier(
    problem: Problem | GraphLike,
    budgets: Sequence[str | int | float],
    methods: Sequence[Contestant | MethodLike],
    *,
    store: RunStore | None = None,
    executor: Executor | None = None,
    watch: Watch | None = None,
    on_cell: Callable[[Frontier, Cell], object] | None = None,
    **limits: Unpack[LimitArguments],
) -> Frontier:
    """Compute the trade-off between memory and overhead for each method.

    A method proceeds from the smallest budget upward. Each solve starts from its schedule for the next smaller budget,
    which is also valid there. So overheads never rise with the budget, and heuristics profit from their earlier
    results. Methods do not share schedules.

    Parameters
    ----------
    problem : Problem or graph
        Graph and rules; its own budget is ignored.
    budgets : sequence of str, int or float
        As for :class:`remat.problem.Problem`, in any order.
    methods : sequence of str, class, object or Contestant
        As for :func:`remat.experiments.compare.compare`.
    store : RunStore, optional
        Cells in it that start from the same schedule are not solved again
        (:class:`remat.studies.stored_runs.StudyRuns`).
    executor : concurrent.futures.Executor, optional
        Runs cells in parallel, one of each method: a process pool
        (:class:`remat.runtime.processes.workers.WorkerPool`), or a cluster's executor (dask's
        ``client.get_executor()``). It is not shut down. None: one cell after another in this process.
    watch : callable, optional
        See :data:`remat.experiments.runs.Watch`; called only for cells that run in this process.
    on_cell : callable, optional
        Receives the frontier so far and the finished cell.
    **limits
        `stop` and `options` as for :func:`remat.solve`, per cell. With ``start="none"`` cells do not start from their
        neighbours either.

    Returns
    -------
    Frontier
        After Ctrl-C with the results so far. An interrupted cell is included but not stored.

    Raises
    ------
    RematError
        Before the first cell, for an invalid budget, a limit out of range, a name that is not registered, or a method
        or budget that appears twice.
    BackendError
        If a proof at one budget contradicts the method's own schedule at a smaller one, with both; or if a worker
        process dies.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> found = frontier(Problem(unit_chain(6)), [4, 5, 6], ["checkmate/highs", "greedy"], stop=60)
    >>> [(cell.budget, cell.status, cell.cost) for cell in found.of("checkmate/highs")]
    [(4, 'optimal', 18), (5, 'optimal', 16), (6, 'optimal', 15)]
    """
    problem = Problem.of(problem)
    expect_list("budgets", budgets)
    if problem.objective.is_memory:
        raise ProblemError(
            "a frontier is the least cost at each budget, and the least peak has no budgets: compare() takes it",
            "frontier-of-peaks",
        )
    chosen = tuple(chosen_methods(methods))
    problems = _problems(problem, budgets)
    check_arguments("frontier", limits, LimitArguments)
    given = Limits(**limits)
    work = _FrontierRun(
        Frontier(problem, chosen, tuple(problems), {}, given.as_dict()), problems, given, store or NoStore(), on_cell,
        executor, watch or unwatched,
    )  # fmt: skip
    try:
        work.loop()
    except KeyboardInterrupt:
        work.so_far = replace(work.so_far, interrupted=True)
    return work.so_far


def _cell_of(run: Run, below: Cell | None, start: Schedule | None) -> Cell:
    """Return a run as the cell above `below`, whose schedule was the start if there is one."""
    method, problem, result = run.method, run.problem, run.result
    budget = problem.budget_bytes
    assert budget is not None
    if result is None:
        if start is not None and below is not None:
            run = replace(run, error=f"{run.error} (started from the schedule for {below.budget:,} bytes)")
        return Cell(method.label, budget, run.row(), objective=problem.objective)
    found_at = None if result.schedule is None else budget
    source = result.source
    if start is not None and below is not None and source.startswith("the warm start"):
        found_at, source = below.found_at, below.source
    return Cell(
        method.label, budget, {**run.row(), "source": source}, result.schedule, found_at,
        own=source == f"{result.method} by {result.backend}", complete=covers(result.scope, problem),
        objective=problem.objective,
    )  # fmt: skip


@dataclass(frozen=True)
class _Job:
    """Cell to solve, and the cell from which it starts."""

    method: Contestant
    problem: Problem
    below: Cell | None
    start: Schedule | None


@dataclass
class _FrontierRun(RunnerLoop[_Job, Run]):
    """One call of :func:`frontier`; its state is the frontier so far."""

    so_far: Frontier
    problems: Mapping[int, Problem]
    limits: Limits
    store: RunStore
    on_cell: Callable[[Frontier, Cell], object] | None
    executor: Executor | None
    watch: Watch

    def __post_init__(self) -> None:
        super().__init__()
        self._broken: set[str] = set()  # methods whose current cell a broken executor has lost once
        self._heard = time.monotonic()
        self._patience = stopping(self.limits.stop, self.limits.options)[0].deadline.seconds + PATIENCE

    def fill(self) -> None:
        """Submit the next cell of each method that has none running; here only one cell runs at a time."""
        busy = {job.method.label for job in self.running.values()}
        for method in self.so_far.methods:
            if method.label not in busy and not interrupted() and (job := self._next(method)) is not None:
                self.running[self._submit(job)] = job
                if self.executor is None:
                    return

    def _submit(self, job: _Job) -> Future[Run]:
        method, problem = job.method, job.problem
        if self.executor is not None:
            try:
                return self.executor.submit(run_method, method, problem, self.limits, None, job.start)
            except Exception as error:
                raise _lost(method, error) from None
        total, future = len(self.so_far.methods) * len(self.problems), Future[Run]()
        budget = f"{problem.budget:,} bytes" if isinstance(problem.budget, int) else problem.budget
        line = f"[{len(self.so_far.cells) + 1}/{total}] {method.label} at {budget}"
        with self.watch(line) as on_progress:
            future.set_result(run_method(method, problem, self.limits, on_progress, job.start))
        return future

    def take(self, job: _Job, future: Future[Run]) -> None:
        """Take a cell; one that a broken executor has lost is solved again, once."""
        label = job.method.label
        self._heard = time.monotonic()
        is_lost = not future.cancelled() and isinstance(future.exception(), BrokenExecutor)
        if is_lost and label not in self._broken:
            self._broken.add(label)
            return
        run = _answer(future, job)
        self._take(job, run, fresh=True)
        if run.is_interrupted:
            raise KeyboardInterrupt
        self._broken.discard(label)

    def tick(self) -> None:
        """Refuse an executor that has not answered for too long."""
        if self.running and time.monotonic() > self._heard + self._patience:
            job = next(iter(self.running.values()))
            raise _lost(job.method, TimeoutError(f"no answer within {self._patience:g} s"))

    def interrupt(self) -> None:
        """Interrupt the workers of a pool."""
        if isinstance(self.executor, WorkerPool):
            self.executor.interrupt()

    def _next(self, method: Contestant) -> _Job | None:
        """Take cells of a method that are stored, and return the first one to solve."""
        for budget, problem in self.problems.items():
            if (method.label, budget) in self.so_far.cells:
                continue
            solved = [cell for cell in self.so_far.of(method) if cell.budget < budget and cell.schedule is not None]
            below = solved[-1] if solved else None
            start = None if below is None or self.limits.options.from_nothing else below.schedule
            job = _Job(method, problem, below, start)
            known = self.store.find(method, problem, self.limits, start)
            if known is None:
                return job
            self._take(job, known)
        return None

    def _take(self, job: _Job, run: Run, fresh: bool = False) -> None:
        cell = _cell_of(run, job.below, job.start)
        for below in self.so_far.of(job.method):
            if below.budget < cell.budget:
                _check(below, cell)
        if fresh:
            self.store.add(run, self.limits, job.start)
        self.so_far = replace(self.so_far, cells={**self.so_far.cells, (cell.method, cell.budget): cell})
        if self.on_cell is not None:
            self.on_cell(self.so_far, cell)


def _problems(problem: Problem, budgets: Sequence[str | int | float]) -> dict[int, Problem]:
    """Return the problem of each budget in bytes, ascending."""
    asked = [replace(problem, budget=budget) for budget in budgets]
    sizes = []
    for one in asked:
        if one.budget_bytes is None:
            raise ProblemError("a frontier needs budgets; it cannot include 'no budget'")
        sizes.append(one.budget_bytes)
    check_names("budget", [f"{size:,} bytes" for size in sizes])
    return dict(sorted(zip(sizes, asked, strict=True), key=lambda pair: pair[0]))


def _answer(future: Future[Run], job: _Job) -> Run:
    """Return the run that an executor delivered, its schedule certified again."""
    method, problem = job.method, job.problem
    try:
        run = future.result()
        if not isinstance(run, Run) or (run.method.label, run.problem.budget_bytes) != (
            method.label, problem.budget_bytes
        ):  # fmt: skip
            raise TypeError(f"the answer is no run of {method.label} at that budget")
        if run.result is None:
            return replace(run, method=method, problem=problem)
        schedule = run.result.schedule
        found = None if schedule is None else problem.validate(schedule)
        if found is not None and not found.accepted:
            raise ValueError(f"its schedule is not valid: {found.first}")
        result = replace(run.result, problem=problem, certificate=found)
        if (result.status is Status.OPTIMAL) != (result.objective is not None and result.objective == result.bound):
            raise ValueError("its status contradicts its bound")
        return Run(method, problem, result)
    except CancelledError:
        raise KeyboardInterrupt from None
    except (Exception, SystemExit) as error:  # an error of the executor: run_method() reports failures of methods
        raise _lost(method, error) from None


def _lost(method: Contestant, error: BaseException) -> BackendError:
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return BackendError(f"the executor lost a run of {method.label}: {line}; earlier results are kept", "run-lost")


def _check(small: Cell, large: Cell) -> None:
    """Refuse a proof that a schedule for a smaller budget contradicts.

    A claim covers the schedule if its scope is all schedules, or if the schedule is the method's own.
    """
    if small.value is None or not (large.complete or small.own):
        return
    verb = small.objective.verb
    place = f"of {large.method}: at budget {small.budget:,} bytes it has a schedule that {verb} {small.value:,}"
    if large.status == "infeasible":
        raise BackendError(
            f"the frontier {place}, and at {large.budget:,} bytes it claims that no schedule exists", "contradiction"
        )
    if large.bound is not None and large.bound > small.value:
        raise BackendError(
            f"the frontier {place}, and at {large.budget:,} bytes it claims that none {verb} less than {large.bound:,}",
            "contradiction",
        )
