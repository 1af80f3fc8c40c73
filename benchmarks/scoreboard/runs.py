"""Runs: a method on a cell with a time limit; results go to the board and a log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from remat.bounds.selection import best_bound
from remat.errors import FormatError
from remat.experiments.contestant import Contestant
from remat.io.files import parse_json, read_text
from remat.ordering.best_first import Aim, explore
from remat.problem import Problem
from remat.problem.scope import EVERY_SCHEDULE, Scope
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions
from remat.schedule import OrderRule, Schedule
from remat.solving.incumbents import one_line
from remat.solving.min_peak import minimize
from remat.solving.solve import solve
from scoreboard.board import BEST, Board, InstanceRecords
from scoreboard.records import to_schedule
from scoreboard.suite import INSTANCES, Cell

#: States of the exhaustive search, at most 2 GB.
MOST_STATES = 3_000_000


@dataclass(frozen=True)
class Task:
    """One run: method, cell and limits; warm runs start from the best known schedule."""

    cell: Cell
    method: str
    seconds: float
    seed: int
    warm: bool = False

    @property
    def key(self) -> str:
        """Name of the run in the log."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def options(self) -> SolveOptions:
        """Options with one thread and the seed."""
        return SolveOptions(threads=1, seed=self.seed)


@dataclass(frozen=True)
class Outcome:
    """Result of a task: a schedule and its time, and a bound on cost, or on the peak, in a scope.

    `infeasible`: no schedule exists; `total`: seconds of the run.
    """

    schedule: Schedule | None = None
    cost: int | None = None
    seconds: float | None = None
    bound: int | None = None
    bound_kind: str = ""
    scope: Scope = EVERY_SCHEDULE
    infeasible: bool = False
    peak_bound: int | None = None
    error: str = ""
    interrupted: bool = False
    total: float = 0.0

    def __str__(self) -> str:
        if self.error or self.infeasible:
            return self.error or "no schedule exists"
        if self.cost is not None:
            return f"cost {self.cost:,}"
        return "no schedule found" if self.bound is None else f"bound {self.bound:,}"


def perform(task: Task, folder: Path = BEST) -> Outcome:
    """Run a task in this process; errors of the method become part of the outcome."""
    problem = task.cell.problem(INSTANCES[task.cell.instance].make())
    began = time.monotonic()
    try:
        outcome = OWN.get(task.method, _solve)(problem, task, folder)
    except Exception as error:  # other runs continue
        outcome = Outcome(error=one_line(error))
    return replace(outcome, total=time.monotonic() - began)


def _bound(problem: Problem, task: Task, _folder: Path) -> Outcome:
    """Find the best of all bounds on cost."""
    bound = best_bound(problem, task.seconds, threads=1)
    return Outcome(bound=bound.value, bound_kind=bound.kind, infeasible=bound.infeasible, scope=bound.scope)


def _exhaust(problem: Problem, task: Task, _folder: Path) -> Outcome:
    """Find the optimum by exhaustive search, as far as memory allows."""
    limit, deadline = 1 << 62, Deadline.after(task.seconds)
    found = explore(
        problem, Aim.COST, limit=limit, peak=problem.budget_bytes, deadline=deadline, most_states=MOST_STATES
    )
    if found is None:
        return Outcome(error="an op touches too many tensors to try")
    proof: dict[str, Any] = {"bound_kind": "exhaustive search", "scope": Scope(OrderRule(problem.order), staged=False)}
    if found.schedule is not None:
        return Outcome(found.schedule, found.bound, deadline.elapsed, found.bound, **proof)
    return Outcome(bound=found.bound, **proof) if found.bound < limit else Outcome(infeasible=True, **proof)


def _least_peak(problem: Problem, task: Task, _folder: Path) -> Outcome:
    """Find a schedule of least peak and a bound on the peak, which decide the smallest budgets."""
    result = minimize(problem, stop=task.seconds, options=task.options)
    return Outcome(
        result.schedule, result.cost, result.incumbents[-1].time, None, result.bound_kind,
        Scope(OrderRule(problem.order), staged=False), peak_bound=result.bound,
        interrupted=result.stop == "interrupted",
    )  # fmt: skip


def _solve(problem: Problem, task: Task, folder: Path) -> Outcome:
    """Call solve(); warm tasks start from the best known schedule."""
    known = Board(folder).read(task.cell) if task.warm else None
    start = to_schedule(problem.graph, known.found.ops, task.cell.name) if known and known.found else None
    method = Contestant.parse(task.method)
    result = solve(
        problem, method.method, method.backend or "cp-sat", stop=task.seconds, warm_start=start, options=task.options
    )
    infeasible = result.status == "infeasible"
    return Outcome(
        result.schedule, result.objective,
        next((point.time for point in result.incumbents if point.objective == result.objective), None),
        None if infeasible else result.bound,
        "the structural bound" if infeasible and not result.variables else task.method,
        result.scope, infeasible, interrupted=result.stop == "interrupted",
    )  # fmt: skip


#: Methods in addition to those of solve(); only `least-peak` has a seed.
OWN: dict[str, Callable[[Problem, Task, Path], Outcome]] = {
    "bounds": _bound, "exhaustive": _exhaust, "least-peak": _least_peak,
}  # fmt: skip


def deliver(task: Task, outcome: Outcome, instance_records: InstanceRecords) -> tuple[list[Cell], list[Cell]]:
    """Offer an outcome to the board; return cells with a better schedule, and cells with a better bound."""
    improved: list[Cell] = []
    raised: list[Cell] = []
    if outcome.schedule is not None:
        improved = instance_records.offer(outcome.schedule, task.method, outcome.seconds, task.seconds, task.seed)
    if outcome.peak_bound is not None:
        raised = instance_records.offer_bound(None, outcome.bound_kind, outcome.scope, outcome.peak_bound - 1)
    elif outcome.bound is not None or outcome.infeasible:
        budget = instance_records.record(task.cell.order, task.cell.percent).budget
        raised = instance_records.offer_bound(outcome.bound, outcome.bound_kind, outcome.scope, budget)
    return improved, raised


class Log:
    """Log of finished runs, one JSON object per line; a truncated last line is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[str] = set()
        text = read_text(path) if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            content = parse_json(line, f"{path}, line {number}")
            if not isinstance(content, dict) or not isinstance(content.get("task"), dict):
                raise FormatError(f"{path}, line {number}: not a run of the scoreboard")
            self.done.add(json.dumps(content["task"], sort_keys=True))
        if whole != text:
            path.write_text(whole, encoding="utf-8")

    def add(self, task: Task, outcome: Outcome, digest: str) -> None:
        """Log a finished run."""
        facts = {name: value for name, value in vars(outcome).items() if name not in ("schedule", "scope")}
        content = {"task": asdict(task), "graph_digest": digest, **facts, "scope": outcome.scope.as_dict()}
        self.done.add(task.key)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")


def outcomes(tasks: Sequence[Task], jobs: int, folder: Path) -> Iterator[tuple[Task, Outcome]]:
    """Run tasks, `jobs` in parallel, and yield each outcome when it is available."""
    if jobs == 1:
        yield from ((task, perform(task, folder)) for task in tasks)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        running = {pool.submit(perform, task, folder): task for task in tasks}
        yield from ((running[future], future.result()) for future in as_completed(running))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
