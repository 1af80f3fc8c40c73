"""Solve of one cell: its task, its outcome, and the function from one to the other."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from remat.config import Config
from remat.errors import RematError
from remat.experiments.contestant import Contestant
from remat.experiments.runs import Limits, Run, run_method
from remat.graphs import ComputeGraph
from remat.graphs.formats.remat_json import graph_from_document
from remat.problem import Problem
from remat.runtime.deadline import Clock, deadlines_by, now
from remat.runtime.resources import available_cpus, processor_name
from remat.runtime.sizes import memory_bytes
from remat.schedule.certificate import Certificate
from remat.schedule.formats.remat_json import schedule_from_document, schedule_to_text
from remat.solving.method import make_method
from remat.solving.progress import Progress
from remat.solving.stop import AnyOf, Stop, TargetCost

#: Most seconds of wall time for each second of processor time: a process that waits forever uses none.
SLOWEST = 100.0
#: Least seconds between two schedules that a child sends before its result.
EVERY = 1.0


@dataclass(frozen=True)
class Task:
    """A cell as executors take it; it can be pickled."""

    digest: str
    graph: str
    """Graph file."""
    run: Mapping[str, Any]
    """As :attr:`remat.studies.plan.Cell.run`."""
    start: str = ""
    """Schedule file to start from; empty: none."""

    @property
    def time_limit(self) -> float | None:
        """Seconds of the solve."""
        limit: float | None = self.run["config"]["solve"]["time_limit"]
        return limit

    @property
    def clock(self) -> Clock:
        """Clock of the time limit."""
        clock: Clock = self.run.get("clock", "wall")
        return clock

    @property
    def wall_limit(self) -> float | None:
        """Seconds of wall time after which the process has failed."""
        factor = SLOWEST if self.clock == "processor" else 1.0
        return None if self.time_limit is None else factor * self.time_limit

    @property
    def memory_limit(self) -> int | None:
        """Bytes of the solve."""
        limit = self.run["config"]["solve"]["memory_limit"]
        return None if limit is None else memory_bytes(limit)


@dataclass(frozen=True)
class Outcome:
    """Result of a cell.

    Attributes
    ----------
    row : mapping
        As :meth:`remat.experiments.runs.Run.row`, without method and versions, with more of the result; JSON values.
    points : sequence of (seconds, objective or None, bound)
        Incumbents.
    schedule : str or None
        Schedule file.
    environment : mapping
        Versions, and facts of the machine.
    interrupted : bool
        True if Ctrl-C ended the cell, which has no result then.
    """

    row: Mapping[str, Any]
    points: Sequence[tuple[float, int | None, int]] = ()
    schedule: str | None = field(default=None, repr=False)
    environment: Mapping[str, Any] = field(default_factory=dict, repr=False)
    interrupted: bool = False


def certified(problem: Problem, schedule: str, name: str) -> Certificate:
    """Return the certificate of a schedule file.

    Raises
    ------
    RematError
        With `name`, if it is no schedule, or violates the rules of the problem.
    """
    certificate = problem.validate(schedule_from_document(json.loads(schedule)))
    if not certificate.accepted:
        raise RematError(f"{name}: its schedule is not valid: {certificate.first}", "schedule", name)
    return certificate


def _mapping(task: Task) -> dict[str, Any]:
    config = task.run["config"]
    return {**config, "problem": {**config["problem"], "graph": "-"}}


def problem_of(graph: ComputeGraph, run: Mapping[str, Any]) -> Problem:
    """Return the problem of a cell."""
    p = Config.from_mapping({"problem": {**run["config"]["problem"], "graph": "-"}}).problem
    rules = p.order, p.max_computes, p.keep, p.count_constant_memory
    return Problem(graph, p.budget, *rules, p.objective, p.machine)


def without_result(
    task: Task, found: Mapping[str, Any] | None, why: str, stop: str | None, seconds: float
) -> Outcome:  # fmt: skip
    """Return the outcome of a cell whose process sent no result, with its last schedule if there is one.

    `found`: what :func:`solve_here` last passed to its `on_schedule`.
    """
    if found is None:
        failed = {"status": "failed", "stop": stop, "message": why, "total_seconds": seconds}
        return Outcome(failed, environment=environment())
    problem = problem_of(graph_from_document(json.loads(task.graph)), task.run)
    certificate = certified(problem, found["schedule"], task.digest)
    row: dict[str, Any] = {
        **row_of_schedule(problem, certificate), "stop": stop, "bound": found["bound"], "message": why,
        "total_seconds": seconds, "to_best_seconds": found["seconds"], "source": found["source"],
    }  # fmt: skip
    points = [(found["seconds"], row["objective"], found["bound"] or 0)]
    return Outcome(row, points, found["schedule"], environment())


def row_of_schedule(problem: Problem, certificate: Certificate) -> dict[str, Any]:
    """Return the values of a row that follow from an accepted certificate."""
    return {
        "status": "feasible", "objective": problem.value(certificate), "cost": certificate.cost,
        "peak": certificate.peak, "overhead_percent": certificate.overhead,
        "recomputations": certificate.recomputations, "budget_bytes": problem.budget_bytes,
    }  # fmt: skip


def solve_here(task: Task, on_schedule: Callable[[dict[str, Any]], object] = lambda _head: None) -> Outcome:
    """Solve a cell in this process; `on_schedule` receives schedules found, at most one per second."""
    if "objects" in task.run:
        raise RematError(
            "the cell has Python objects that no store keeps; the program that made it solves it again", "objects"
        )
    graph = graph_from_document(json.loads(task.graph))
    problem = problem_of(graph, task.run)
    config = Config.from_mapping(_mapping(task)).with_options(task.run["options"])
    chosen = config.solve
    options = config.options_of(chosen.method)
    method = make_method(chosen.method, options)
    solver = config.solver_options_of(chosen.backend) if method.needs_backend else {}
    limits = config.model_copy(update={"solve": chosen.model_copy(update={"memory_limit": None})})
    sent: list[Any] = [None, -EVERY]

    def on_progress(moment: Progress) -> None:
        found = moment.schedule
        if found is not None and found is not sent[0] and time.monotonic() > sent[1] + EVERY:
            sent[:] = found, time.monotonic()
            on_schedule({"seconds": moment.elapsed, "bound": moment.bound, "source": found.source,
                         "schedule": schedule_to_text(found)})  # fmt: skip

    contestant = Contestant(chosen.method, chosen.backend if method.needs_backend else "", options)
    given = Limits(stop_of(chosen.time_limit, task.run.get("target")), limits.solve_options(graph, solver))
    start = schedule_from_document(json.loads(task.start)) if task.start else None
    with deadlines_by(task.clock):
        began = now()
        outcome = outcome_of(run_method(contestant, problem, given, on_progress, start))
        if task.clock == "processor":
            outcome = replace(outcome, row={**outcome.row, "total_seconds": now() - began})
    return outcome


def stop_of(time_limit: float | None, target: int | None) -> Stop:
    """Return the stopping rule of a cell with that time limit and that objective that suffices."""
    if target is None:
        return time_limit
    return AnyOf(TargetCost(target), *([] if time_limit is None else [time_limit]))


def outcome_of(run: Run) -> Outcome:
    """Return a run as the outcome of a cell."""
    row, result = run.row(), run.result
    versions = row.pop("versions")
    del row["method"]
    row["objective"] = None if result is None else result.objective
    if result is None:
        return Outcome(row, environment=environment(versions))
    row |= {"covers": result.scope.as_dict(), "least_feasible_budget": result.least_feasible_budget}
    points = [(point.time, point.objective, point.bound) for point in result.incumbents]
    schedule = None if result.schedule is None else schedule_to_text(result.schedule)
    return Outcome(row, points, schedule, environment(versions))


def environment(versions: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return versions and facts of the machine as JSON values."""
    return {"versions": dict(versions or {}), "machine": _machine()}


@cache
def _machine() -> dict[str, Any]:
    from psutil import virtual_memory

    return {
        "host": platform.node(), "system": platform.platform(), "processor": processor_name(),
        "cpus": available_cpus(), "memory": virtual_memory().total,
    }  # fmt: skip
