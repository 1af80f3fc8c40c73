"""Overhead against budget for several methods; each budget starts from the schedule of the next smaller one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

from remat.errors import BackendError, ProblemError
from remat.experiments.contestant import Contestant
from remat.experiments.frontier_cell import Cell
from remat.experiments.frontier_result import Frontier
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
    run_method,
    stored_or_run,
    unwatched,
)
from remat.experiments.staircase import memory_unit, next_budget
from remat.problem import Objective, Problem
from remat.problem.scope import covers
from remat.runtime.interruption import interrupted, interrupts
from remat.runtime.processes.workers import WorkerPool
from remat.runtime.solve_options import Status
from remat.schedule import Schedule
from remat.solving.auto import AUTO
from remat.solving.method import MethodLike
from remat.solving.stop import stopping

if TYPE_CHECKING:
    from remat.graphs.io import GraphLike

#: Seconds beyond the time limit of a cell until an executor without any answer counts as failed: a cluster needs time
#: to start workers.
PATIENCE = 300.0


@interrupts()
def frontier(
    problem: Problem | GraphLike,
    budgets: Sequence[str | int | float] | int,
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

    With a number in place of budgets, each method computes the curve from the least peak to the reference peak. The
    default method first searches for the least peak, at which all methods start. Each further budget is one at which a
    solve can determine most of the curve; see :func:`remat.experiments.staircase.next_budget`.

    Parameters
    ----------
    problem : Problem or graph
        Graph and rules; its own budget is ignored.
    budgets : sequence of str, int or float, or int
        As for :class:`remat.problem.Problem`, in any order; or the number of budgets to choose for each method.
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
    if problem.objective.is_memory:
        raise ProblemError(
            "a frontier is the least cost at each budget, and the least peak has no budgets: compare() takes it",
            "frontier-of-peaks",
        )
    chosen = tuple(chosen_methods(methods))
    problems = budgets if isinstance(budgets, int) else _problems(problem, budgets)
    if isinstance(problems, int) and (problems < 1 or isinstance(budgets, bool)):
        raise ProblemError(f"budgets must be a list, or their number, at least 1; not {budgets!r}", "number-of-budgets")
    check_arguments("frontier", limits, LimitArguments)
    given = Limits(**limits)
    work = _FrontierRun(
        Frontier(problem, chosen, () if isinstance(problems, int) else tuple(problems), {}, given.as_dict()), problems,
        given, store or NoStore(), on_cell, executor, watch or unwatched,
    )  # fmt: skip
    try:
        work.prepare()
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
    problems: Mapping[int, Problem] | int
    """The problem of each budget, or the number of budgets to choose."""
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

    @property
    def count(self) -> int:
        """Number of budgets of each method."""
        return self.problems if isinstance(self.problems, int) else len(self.problems)

    def prepare(self) -> None:
        """Search for the least peak if budgets are to be chosen."""
        if not isinstance(self.problems, int):
            return
        problem = replace(self.so_far.problem, budget=None, objective=Objective.LEAST_PEAK)
        run = stored_or_run(
            self.store, Contestant(AUTO, label="least peak"), problem, self.limits,
            watch=lambda: self.watch("least peak"),
        )  # fmt: skip
        if run.result is None:
            raise BackendError(f"the search for the least peak failed: {run.error}", "no-least-peak")
        self.so_far = replace(self.so_far, least=run)
        if run.is_interrupted:
            raise KeyboardInterrupt

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
        total, future = len(self.so_far.methods) * self.count, Future[Run]()
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
        while (problem := self._question(method)) is not None:
            below = self._below(method, problem)
            start = None if below is None or self.limits.options.from_nothing else below.schedule
            job = _Job(method, problem, below, start)
            known = self.store.find(method, problem, self.limits, start)
            if known is None:
                return job
            self._take(job, known)
        return None

    def _question(self, method: Contestant) -> Problem | None:
        """Return the next problem of a method, None at the end."""
        if not isinstance(self.problems, int):
            done = {cell.budget for cell in self.so_far.of(method)}
            return next((problem for budget, problem in self.problems.items() if budget not in done), None)
        cells = self.so_far.of(method)
        if len(cells) >= self.problems or any(cell.status == "failed" for cell in cells):
            return None
        ends = self._least(method).budget, self.so_far.problem.reference_peak
        new = [budget for budget in ends if budget not in [cell.budget for cell in cells]]
        budget = new[0] if new else next_budget(self.so_far.steps(method), memory_unit(self.so_far.problem.graph))
        return None if budget is None else replace(self.so_far.problem, budget=budget)

    def _below(self, method: Contestant, problem: Problem) -> Cell | None:
        """Return the cell of the next smaller budget with a schedule; the search for the least peak is the first."""
        cells = [cell for cell in self.so_far.of(method) if cell.schedule is not None]
        smaller = [cell for cell in cells if cell.budget < (problem.budget_bytes or 0)]
        if smaller:
            return smaller[-1]
        return None if self.so_far.least is None else self._least(method)

    def _least(self, method: Contestant) -> Cell:
        """Return the search for the least peak as the cell of a method at that peak."""
        run = self.so_far.least
        assert run is not None and run.result is not None and run.result.certificate is not None
        peak, objective = run.result.certificate.peak, self.so_far.problem.objective
        return Cell(method.label, peak, run.row(), run.result.schedule, peak, objective=objective)

    def _take(self, job: _Job, run: Run, fresh: bool = False) -> None:
        cell = _cell_of(run, job.below, job.start)
        others = self.so_far.of(job.method)
        for other in others:
            _check(other, cell)
            _check(cell, other)
        if fresh:
            self.store.add(run, self.limits, job.start)
        cells = {each.budget: each for each in (*others, cell)}
        better = {(cell.method, each.budget): _with_best(each, cells.values()) for each in cells.values()}
        budgets = tuple(sorted({*self.so_far.budgets, cell.budget}))
        self.so_far = replace(self.so_far, budgets=budgets, cells={**self.so_far.cells, **better})
        if self.on_cell is not None:
            self.on_cell(self.so_far, self.so_far.cells[cell.method, cell.budget])


def _with_best(cell: Cell, others: Iterable[Cell]) -> Cell:
    """Return a cell with the best schedule of all cells that fits its budget."""
    fitting = [
        (other.value, other) for other in others
        if other.value is not None and other.peak <= cell.budget and (cell.value is None or other.value < cell.value)
    ]  # fmt: skip
    if not fitting or cell.status in ("failed", "infeasible"):
        return cell
    return cell.with_schedule_of(min(fitting, key=lambda pair: pair[0])[1])


def _problems(problem: Problem, budgets: Sequence[str | int | float]) -> dict[int, Problem]:
    """Return the problem of each budget in bytes, ascending."""
    expect_list("budgets", budgets)
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
    """Refuse a proof that a schedule within the same budget contradicts.

    A claim covers the schedule if its scope is all schedules, or if the schedule is the method's own.
    """
    if small.value is None or small.peak > large.budget or not (large.complete or small.own):
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
