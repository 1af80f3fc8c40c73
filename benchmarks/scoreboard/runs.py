"""Runs: a method on a cell for some seconds; what it finds goes to the board, and how it did into a log."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from remat.backends.base import SolveOptions
from remat.bounds.report import best_bound
from remat.deadline import Deadline
from remat.errors import FormatError
from remat.experiments.contestant import Contestant
from remat.io.files import parse_json, read_text
from remat.ordering.best_first import Aim, explore
from remat.problem import Problem
from remat.schedule import OrderRule
from remat.scope import Scope
from remat.solving.incumbents import one_line
from remat.solving.min_peak import minimize
from remat.solving.solve import solve
from scoreboard.board import BEST, Board, Origin, Shelf
from scoreboard.records import to_ops, to_schedule
from scoreboard.suite import INSTANCES, Cell

#: What runs here besides the methods of solve(), by name; none of them has a seed but the last.
BOUNDS, EXHAUSTIVE, LEAST_PEAK = "bounds", "exhaustive", "least-peak"
OWN = (BOUNDS, EXHAUSTIVE, LEAST_PEAK)
#: States of the exhaustive search, which may take 2 GB.
MOST_STATES = 3_000_000


@dataclass(frozen=True)
class Task:
    """One run: which method on which cell, and its limits. `warm`: it starts from the best known schedule."""

    cell: Cell
    method: str
    seconds: float
    seed: int
    warm: bool = False

    @property
    def key(self) -> str:
        """What a run is known by in the log."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Outcome:
    """What came of a task; plain values, so that they can come from another process.

    Attributes
    ----------
    cost : int or None
    ops : str or None
        The computes; see :func:`scoreboard.records.to_ops`.
    seconds : float or None
        When the schedule was found.
    total : float
    bound : int or None
        None: nothing, or that there is no schedule.
    bound_kind : str
    scope : tuple
        Order, staged, limit of computes and notes of the bound.
    infeasible : bool
    peak_bound : int or None
        No schedule in the scope has a lower peak.
    error : str
    interrupted : bool
    """

    cost: int | None = None
    ops: str | None = None
    seconds: float | None = None
    total: float = 0.0
    bound: int | None = None
    bound_kind: str = ""
    scope: tuple[str, bool, int | None, tuple[str, ...]] = ("free", False, None, ())
    infeasible: bool = False
    peak_bound: int | None = None
    error: str = ""
    interrupted: bool = False


def perform(task: Task, folder: Path = BEST) -> Outcome:
    """Run a task, in this process; errors of the method are part of the outcome."""
    graph = INSTANCES[task.cell.instance].make()
    problem = task.cell.problem(graph)
    begun = time.monotonic()
    try:
        if task.method == BOUNDS:
            outcome = _bound(problem, task)
        elif task.method == EXHAUSTIVE:
            outcome = _exhaust(problem, task)
        elif task.method == LEAST_PEAK:
            outcome = _least_peak(problem, task)
        else:
            outcome = _solve(problem, task, folder)
    except Exception as error:  # the others have their turn
        outcome = Outcome(error=one_line(error))
    return replace(outcome, total=time.monotonic() - begun)


def _bound(problem: Problem, task: Task) -> Outcome:
    """The best of all bounds on cost."""
    bound = best_bound(problem, task.seconds, threads=1)
    return Outcome(
        bound=bound.value, bound_kind=bound.kind, infeasible=bound.infeasible, scope=_plain(bound.scope)
    )  # fmt: skip


def _exhaust(problem: Problem, task: Task) -> Outcome:
    """The optimum by exhaustive search, as far as memory allows."""
    limit, deadline = 1 << 62, Deadline.after(task.seconds)
    found = explore(
        problem, Aim.COST, limit=limit, peak=problem.budget_bytes, deadline=deadline, most_states=MOST_STATES
    )
    if found is None:
        return Outcome(error="an op touches too many tensors to try")
    infeasible = found.schedule is None and found.bound == limit
    return Outcome(
        cost=None if found.schedule is None else found.bound,
        ops=None if found.schedule is None else to_ops(problem.graph, found.schedule),
        seconds=None if found.schedule is None else deadline.elapsed,
        bound=None if infeasible else found.bound,
        bound_kind="exhaustive search",
        scope=(str(problem.order), False, None, ()),
        infeasible=infeasible,
    )


def _least_peak(problem: Problem, task: Task) -> Outcome:
    """The leanest schedule, whatever it costs, and a bound on the peak: decides the smallest budgets."""
    result = minimize(problem, stop=task.seconds, options=SolveOptions(threads=1, seed=task.seed))
    return Outcome(
        cost=result.cost,
        ops=to_ops(problem.graph, result.schedule),
        seconds=result.incumbents[-1].time,
        bound_kind=result.bound_kind,
        scope=(str(problem.order), False, None, ()),
        peak_bound=result.bound,
        interrupted=result.stop == "interrupted",
    )


def _solve(problem: Problem, task: Task, folder: Path) -> Outcome:
    """What solve() makes of it, with the best known schedule as a start where that is asked for."""
    graph = problem.graph
    known = Board(folder).read(task.cell) if task.warm else None
    start = None
    if known is not None and known.found is not None:
        start = to_schedule(graph, known.found.ops, task.cell.name)
    method = Contestant.parse(task.method)
    result = solve(
        problem,
        method.method,
        method.backend or "cp-sat",
        stop=task.seconds,
        warm_start=start,
        options=SolveOptions(threads=1, seed=task.seed),
    )
    first = next((point.time for point in result.incumbents if point.objective == result.objective), None)
    infeasible = result.status == "infeasible"
    return Outcome(
        cost=result.objective,
        ops=None if result.schedule is None else to_ops(graph, result.schedule),
        seconds=None if result.schedule is None else first,
        bound=None if infeasible else result.bound,
        bound_kind="the structural bound" if infeasible and not result.variables else task.method,
        scope=_plain(result.scope),
        infeasible=infeasible,
        interrupted=result.stop == "interrupted",
    )


def _plain(scope: Scope) -> tuple[str, bool, int | None, tuple[str, ...]]:
    return str(scope.order), scope.staged, scope.max_computes, scope.notes


def deliver(task: Task, outcome: Outcome, shelf: Shelf) -> tuple[list[Cell], list[Cell]]:
    """Offer what a task found to the board; cells with a better schedule, and cells with a better bound."""
    order, staged, limit, notes = outcome.scope
    improved: list[Cell] = []
    if outcome.ops is not None:
        schedule = to_schedule(shelf.graph, outcome.ops, task.cell.name, task.method)
        improved = shelf.offer(schedule, Origin(task.method, outcome.seconds, task.seconds, task.seed))
    raised: list[Cell] = []
    scope = Scope(OrderRule(order), staged, limit, tuple(notes))
    if outcome.bound is not None or outcome.infeasible:
        raised = shelf.offer_bound(outcome.bound, outcome.bound_kind, scope, task.cell.percent)
    if outcome.peak_bound is not None:
        raised = shelf.offer_peak_bound(outcome.peak_bound, outcome.bound_kind, scope)
    return improved, raised


class Log:
    """Which runs are done, one JSON object in a line; a last line that was cut off is not counted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, dict[str, Any]] = {}
        if path.exists():
            text = read_text(path)
            whole = text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]
            for number, line in enumerate(whole, 1):
                content = parse_json(line, f"{path}, line {number}")
                if not isinstance(content, dict) or not isinstance(content.get("task"), dict):
                    raise FormatError(f"{path}, line {number}: not a run of the scoreboard")
                self.lines[json.dumps(content["task"], sort_keys=True)] = content
            if text and not text.endswith("\n"):
                path.write_text("".join(line + "\n" for line in whole), encoding="utf-8")

    def add(self, task: Task, outcome: Outcome, digest: str) -> None:
        """Note that a run is done."""
        content = {"task": asdict(task), "graph_digest": digest, **asdict(outcome)}
        del content["ops"]  # the board has it, if it is of any use
        self.lines[task.key] = content
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")


def outcomes(tasks: Iterable[Task], jobs: int, folder: Path) -> Iterator[tuple[Task, Outcome]]:
    """Run tasks, several at a time if asked to, and give each outcome as soon as it is there."""
    if jobs == 1:
        for task in tasks:
            yield task, perform(task, folder)
        return
    waiting = list(tasks)[::-1]
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        running = {}
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop()
                running[pool.submit(perform, task, folder)] = task
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                yield task, future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
