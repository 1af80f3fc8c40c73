"""One cell in a child process with pinned processors, a memory limit and a deadline."""

from __future__ import annotations

import json
import os
import platform
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from remat.backends.cp_sat import CpSat
from remat.backends.highs import Highs
from remat.config import Config
from remat.errors import RematError
from remat.experiments.contestant import Contestant
from remat.experiments.runs import Run
from remat.graphs import ComputeGraph
from remat.graphs.formats.remat_json import graph_from_document
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.runtime.processes import guard, wire
from remat.runtime.processes.process_trees import cap
from remat.runtime.processes.supervised import Supervised
from remat.runtime.resources import available_cpus
from remat.runtime.solve_options import StopReason
from remat.runtime.text import one_line
from remat.schedule.formats.remat_json import schedule_from_document, schedule_to_text
from remat.schedule.validate import validate
from remat.solving.method import make_method
from remat.solving.progress import Progress
from remat.solving.solve import solve

#: Seconds beyond the time limit until the process of a cell is killed.
GRACE = 10.0
#: Seconds until a child must have started: the first one waits for a fork server that imports for seconds.
START = 120.0
#: Least seconds between two schedules that a child sends before its result.
EVERY = 1.0
#: Modules that the fork server imports once for all children.
PRELOAD = (__name__, *CpSat.preload, *Highs.preload, "numba", "remat.studies.preloading")


@dataclass(frozen=True)
class Task:
    """A cell as it is sent to whatever solves it; it can be pickled."""

    digest: str
    graph: str
    """Graph file."""
    run: Mapping[str, Any]
    """As :attr:`remat.studies.plan.Cell.run`."""


@dataclass(frozen=True)
class Outcome:
    """Result of a cell.

    Attributes
    ----------
    row : mapping
        As :meth:`remat.experiments.runs.Run.row`, without method and versions; JSON values.
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


def solve_cell(task: Task, cpus: frozenset[int] = frozenset(), *, grace: float = GRACE) -> Outcome:
    """Solve a cell in a child process.

    The child is killed at its memory limit, or `grace` seconds after its time limit; its last schedule counts
    nevertheless. A child that dies or fails is an outcome with status ``failed``.

    `cpus`: processors to which the child is pinned; empty: all.
    """
    limits = task.run["config"]["solve"]
    memory = Config.model_validate(_mapping(task)).solve_options(_NO_GRAPH).memory_bytes
    began = time.monotonic()
    found: Mapping[str, Any] | None = None
    failure = ""
    given = (task, cpus, memory, dict(os.environ))
    child = Supervised(_serve, given, PRELOAD, Deadline.after(START), memory, grace=grace, passes_interrupt=False)
    with child:
        for message in child.messages():
            if message.kind == "ready":
                child.deadline = Deadline.after(limits["time_limit"])
            elif message.kind == "result":
                head = message.head
                points = [(seconds, value, bound) for seconds, value, bound in head["points"]]
                return Outcome(head["row"], points, head["schedule"], head["environment"])
            elif message.kind == "incumbent":
                found = message.head
            else:
                failure = message.head["text"]
        if child.ending is not None and child.ending.stop is StopReason.INTERRUPTED:
            return Outcome({"status": "failed", "message": child.ending.reason}, interrupted=True)
        if child.failure is not None:
            failure = str(child.failure)
        elif child.ending is not None:
            failure = f"the process of the cell {child.ending.reason}"
        elif not failure:
            child.process.join(1)
            failure = f"the process of the cell ended with exit code {child.process.exitcode}"
    stop = None if child.ending is None else str(child.ending.stop)
    return _killed(task, found, one_line(failure), stop, time.monotonic() - began)


def certified(graph: ComputeGraph, run: Mapping[str, Any], schedule: str, name: str) -> tuple[int, int]:
    """Return the certified cost and peak of a schedule file.

    Raises
    ------
    RematError
        With `name`, if it is no schedule, or violates the rules of the problem.
    """
    found = schedule_from_document(json.loads(schedule))
    certificate = validate(graph, found, _problem(graph, run).rules)
    if not certificate.accepted:
        raise RematError(f"{name}: its schedule is not valid: {certificate.first}", "schedule", name)
    return certificate.cost, certificate.peak


def _mapping(task: Task) -> dict[str, Any]:
    config = task.run["config"]
    return {**config, "problem": {**config["problem"], "graph": "-"}}


def _problem(graph: ComputeGraph, run: Mapping[str, Any]) -> Problem:
    p = Config.from_mapping({"problem": {**run["config"]["problem"], "graph": "-"}}).problem
    return Problem(graph, p.budget, p.order, p.max_computes, p.keep, p.count_constant_memory, p.objective)


def _killed(task: Task, found: Mapping[str, Any] | None, why: str, stop: str | None, seconds: float) -> Outcome:
    """Return the outcome of a child that sent no result, with its last schedule if there is one."""
    if found is None:
        row = {"status": "failed", "stop": stop, "message": why, "total_seconds": seconds}
        return Outcome(row, environment=environment())
    graph = graph_from_document(json.loads(task.graph))
    cost, peak = certified(graph, task.run, found["schedule"], task.digest)
    problem = _problem(graph, task.run)
    certificate = validate(graph, schedule_from_document(json.loads(found["schedule"])), problem.rules)
    objective = problem.value(certificate)
    base = problem.objective.other.base(graph) if problem.objective.is_memory else problem.objective.base(graph)
    overhead = None if not base else 100 * (cost / base - 1)
    row = {
        "status": "feasible", "stop": stop, "objective": objective, "cost": cost, "peak": peak,
        "overhead_percent": overhead, "bound": found["bound"], "message": why, "total_seconds": seconds,
        "to_best_seconds": found["seconds"], "source": found["source"], "budget_bytes": problem.budget_bytes,
    }  # fmt: skip
    points = [(found["seconds"], objective, found["bound"] or 0)]
    return Outcome(row, points, found["schedule"], environment())


# -- in the child ------------------------------------------------------------------------------------------------------


def _serve(
    connection: Connection, task: Task, cpus: frozenset[int], memory_limit: int | None, environment: dict[str, str]
) -> None:
    """Send schedules while the solve runs, then its result, and exit."""
    guard.enter_child(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    if memory_limit is not None:
        cap(os.getpid(), memory_limit)
    try:
        wire.write(connection, wire.Message("ready"))
        try:
            outcome = solve_here(task, lambda head: wire.write(connection, wire.Message("incumbent", head)))
            head = {
                "row": outcome.row, "points": outcome.points, "schedule": outcome.schedule,
                "environment": outcome.environment,
            }  # fmt: skip
            wire.write(connection, wire.Message("result", head))
        except MemoryError:
            wire.write(connection, wire.Message("failure", {"text": "the cell ran out of memory"}))
        except Exception as error:
            text = str(error) if isinstance(error, RematError) else f"{type(error).__name__}: {error}"
            wire.write(connection, wire.Message("failure", {"text": text}))
    except OSError:  # the parent has ended
        pass
    finally:
        os._exit(0)  # without the interpreter's cleanup: a solver past its deadline may still be running


def solve_here(task: Task, on_schedule: Callable[[dict[str, Any]], object] = lambda _head: None) -> Outcome:
    """Solve a cell in this process; `on_schedule` receives schedules found, at most one per second."""
    graph = graph_from_document(json.loads(task.graph))
    problem = _problem(graph, task.run)
    config = Config.from_mapping(_mapping(task)).with_options(task.run["options"])
    chosen = config.solve
    options = config.options_of(chosen.method)
    method = make_method(chosen.method, options)
    solver = config.solver_options_of(chosen.backend) if method.needs_backend else {}
    limits = config.model_copy(update={"solve": chosen.model_copy(update={"memory_limit": None})})
    sent: list[Any] = [None, -EVERY]

    def on_progress(now: Progress) -> None:
        if now.schedule is not None and now.schedule is not sent[0] and time.monotonic() > sent[1] + EVERY:
            sent[:] = now.schedule, time.monotonic()
            source = now.schedule.source
            on_schedule({"seconds": now.elapsed, "bound": now.bound, "source": source,
                         "schedule": schedule_to_text(now.schedule)})  # fmt: skip

    result = solve(
        problem, chosen.method, chosen.backend, stop=chosen.time_limit, method_options=options,
        options=limits.solve_options(graph, solver), on_progress=on_progress,
    )  # fmt: skip
    label = Contestant(chosen.method, chosen.backend if method.needs_backend else "")
    row = {**Run(label, problem, result).row(), "objective": result.objective}
    versions = row.pop("versions")
    del row["method"]
    points = [(point.time, point.objective, point.bound) for point in result.incumbents]
    schedule = None if result.schedule is None else schedule_to_text(result.schedule)
    return Outcome(row, points, schedule, environment(versions))


def environment(versions: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return versions and facts of the machine as JSON values."""
    return {"versions": dict(versions or {}), "machine": _machine()}


@cache
def _machine() -> dict[str, Any]:
    from psutil import virtual_memory

    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "host": platform.node(), "system": platform.platform(), "processor": (names or [platform.machine()])[0],
        "cpus": available_cpus(), "memory": virtual_memory().total,
    }  # fmt: skip


class _NoGraph:
    """Stands for the graph where no option depends on it."""


_NO_GRAPH: Any = _NoGraph()
