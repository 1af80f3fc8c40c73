"""Runs of comparisons, frontiers and searches for the largest batch as cells of a study."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

from remat.config.sections import ProblemSection, SolveSection
from remat.errors import RematError
from remat.experiments.contestant import Contestant
from remat.experiments.runs import Limits, Run
from remat.graphs import ComputeGraph
from remat.problem import Problem
from remat.problem.scope import Scope
from remat.runtime.resources import available_cpus
from remat.runtime.solve_options import Status, StopReason
from remat.schedule import Schedule
from remat.schedule.formats.remat_json import schedule_to_text
from remat.solving.result import Point, Result
from remat.solving.stop import AnyOf, MaxSeconds, Stop, TargetCost, described
from remat.studies.heartbeat import Heartbeat
from remat.studies.instances import Instance
from remat.studies.plan import Cell, run_of
from remat.studies.solving import outcome_of
from remat.studies.store import STALE, Store
from remat.studies.store import Result as StoredResult

_T = TypeVar("_T")

#: Seconds between two checks of a run that another runner has in progress.
PAUSE = 0.5
#: Seconds to wait for it beyond its time limit, and in place of the limit if it has none.
GRACE, LONGEST_WAIT = 10.0, 600.0


class StudyRuns:
    """Study that receives the runs of an experiment, and answers those that the store has.

    A run that another runner has in progress is awaited, up to its time limit and :data:`GRACE` seconds.

    It is the `store` of :func:`remat.experiments.compare.compare`, :func:`remat.frontier` and :func:`remat.max_batch`.
    The cells of an earlier experiment of that name leave the study; their results stay in the store.

    Parameters
    ----------
    store : Store or str
        Open store, or its URL.
    name : str
        Name of the study.
    stale : float
        Seconds without a heartbeat after which other runners may claim the run in progress.

    Attributes
    ----------
    asked, reused : int
        Number of runs, and of those that the store had, or that another runner finished meanwhile.
    faults : list of str
        Reasons why runs could not be stored; after the first, no other is.

    Examples
    --------
    >>> from remat.experiments.compare import compare
    >>> from remat.graphs.families import unit_chain
    >>> with Store("sqlite://") as store:
    ...     for _ in range(2):
    ...         runs = StudyRuns(store, "chain")
    ...         done = compare(Problem(unit_chain(4)), [5, 6], ["greedy"], store=runs)
    ...         print(runs.reused, [run.result.cost for run in done.runs])
    0 [10, 9]
    2 [10, 9]
    """

    def __init__(self, store: Store | str, name: str, *, stale: float = STALE) -> None:
        self.store = Store(store) if isinstance(store, str) else store
        self.name = name
        self.asked = self.reused = 0
        self.faults = list[str]()
        self._owner = secrets.token_hex(8)
        self._stale = stale
        self._heartbeat = Heartbeat(self.store, self._owner, stale)
        self._instance: Instance | None = None
        self._entered: dict[str, Cell] = {}
        self.store.clear(name)
        self._heartbeat.open()

    def find(self, method: Contestant, problem: Problem, limits: Limits, start: Schedule | None) -> Run | None:
        """Return a run that the store has, its schedule certified again; otherwise claim it.

        Raises
        ------
        RematError
            If its schedule is missing, not valid, or contradicts its row.
        """
        self.asked += 1
        found = self._attempt(lambda: self._enter(self._cell(method, problem, limits, start), problem.graph))
        if found is None or found.state != "done" or "covers" not in found.row:  # its process was killed
            return None
        self.reused += 1
        schedule = self.store.schedule(found) if found.schedule else None
        return Run(method, problem, _result(method, problem, limits, found, schedule))

    def add(self, run: Run, limits: Limits, start: Schedule | None) -> None:
        """Store a run that :meth:`find` did not have, unless Ctrl-C ended it."""
        if not run.is_interrupted:
            self._attempt(lambda: self._finish(self._cell(run.method, run.problem, limits, start), run))

    def close(self) -> None:
        """Release runs without a result, and close the store."""
        self._heartbeat.close()
        for cell in self._entered.values():
            self._attempt(partial(self.store.release, cell, self._owner))
        self.store.close()

    def __enter__(self) -> StudyRuns:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _attempt(self, work: Callable[[], _T]) -> _T | None:
        """Return the result of `work`; None if the store cannot be written, which must not end the experiment."""
        if self.faults:
            return None
        try:
            return work()
        except RematError as error:
            if error.kind not in ("remat.store", "format.not-written"):
                raise
            self.faults.append(str(error))
            return None

    def _enter(self, cell: Cell, graph: ComputeGraph) -> StoredResult | None:
        """Return the result of a cell, or claim it; wait while another runner solves it.

        The wait is bounded, since that runner may wait for a claim of this one.
        """
        self._entered[cell.digest] = cell
        until = time.monotonic() + GRACE + (LONGEST_WAIT if cell.time_limit is None else cell.time_limit)
        while True:
            take = time.monotonic() >= until
            found = self.store.enter(self.name, self._at(graph), cell, self._owner, stale=self._stale, take=take)
            if found is True:
                self._heartbeat.hold(cell.digest)
                return None
            if found:
                return found
            time.sleep(PAUSE)

    def _finish(self, cell: Cell, run: Run) -> None:
        self._heartbeat.drop(cell.digest)
        self.store.finish(cell, self._owner, outcome_of(run))

    def _at(self, graph: ComputeGraph) -> Instance:
        if self._instance is None or self._instance.graph is not graph:
            self._instance = Instance(graph.name, graph)
        return self._instance

    def _cell(self, method: Contestant, problem: Problem, limits: Limits, start: Schedule | None) -> Cell:
        run = _run(method, problem, limits)
        given = limits.options.start
        if start is None and isinstance(given, Schedule):
            start = given
        if start is not None:
            bare = replace(start, source="", meta={})  # how it was found determines nothing
            run["start"] = self.store.keep(schedule_to_text(bare))
        budget = "" if problem.budget is None else str(problem.budget)
        return Cell.of(self._at(problem.graph), budget, method.label, run)


def _run(method: Contestant, problem: Problem, limits: Limits) -> dict[str, Any]:
    """Return what determines a run except graph and start, as a study of a file has it where that is possible."""
    options = limits.of(method)
    most = problem.max_computes
    rules = ProblemSection(
        graph="-", budget=problem.budget, order=problem.order.value,
        max_computes=dict(most) if isinstance(most, Mapping) else most, keep=tuple(sorted(problem.keep)),
        count_constant_memory=problem.count_constant_memory, objective=str(problem.objective),
        machine=None if problem.machine is None else problem.machine.settings,
    )  # fmt: skip
    time_limit, target, is_plain = _stop(limits.stop)
    backend = method.backend_name
    solve = SolveSection(
        method=method.name, backend=backend or "cp-sat", time_limit=time_limit, gap=options.relative_gap,
        threads=options.threads or available_cpus(), seed=options.seed,
        isolate=options.isolate and options.memory_limit is None, memory_limit=options.memory_limit,
        start=options.start if isinstance(options.start, str) else "auto",
    )  # fmt: skip
    solver, told = method.described()["solver_options"], _told(method.options)
    given = {**options.solver, **method.solver_options}
    is_plain &= told is not None and isinstance(method.method, str) and isinstance(method.backend, str)
    run = run_of(rules, solve, {backend: given} if given and given == solver else {}, told or {})
    if target is not None:
        run["target"] = target
    if not is_plain or given != solver:
        run["objects"] = [method.described(), described(limits.stop), repr(sorted(options.solver.items()))]
    return run


def _stop(stop: Stop) -> tuple[float | None, int | None, bool]:
    """Return seconds and target of a stopping rule, and if it consists of nothing else."""
    parts = stop.criteria if isinstance(stop, AnyOf) else (stop,)
    seconds = [MaxSeconds(one) if isinstance(one, int | float) else one for one in parts]
    times = [one.limit for one in seconds if isinstance(one, MaxSeconds)]
    targets = [one.target for one in parts if isinstance(one, TargetCost)]
    others = len(parts) - len(times) - len(targets) - parts.count(None)
    return min(times, default=None), max(targets, default=None), not others and len(targets) < 2


def _told(options: Any) -> dict[str, Any] | None:
    """Return the options of a method that differ from their defaults; None if some are no JSON values."""
    if options is None:
        return {}
    try:
        default = type(options)()
        names = [each.name for each in fields(options)]
        changed = {name: getattr(options, name) for name in names if getattr(options, name) != getattr(default, name)}
        values: dict[str, Any] = json.loads(json.dumps(changed, allow_nan=False))
    except (TypeError, ValueError):
        return None
    return values


def _result(
    method: Contestant, problem: Problem, limits: Limits, found: StoredResult, schedule: Schedule | None
) -> Result:
    """Return the result of a stored run."""
    row = found.row
    times = {part: row[f"{part}_seconds"] for part in ("build", "preliminary", "solve", "total")}
    return Result(
        problem, schedule, None if schedule is None else problem.validate(schedule), Status(row["status"]),
        StopReason(row["stop"]), row["bound"], Scope.from_dict(row["covers"]), row["least_feasible_budget"],
        tuple(Point(*point) for point in found.points),
        timings={part: seconds for part, seconds in times.items() if seconds is not None},
        variables=row["variables"], constraints=row["constraints"], method=method.name, backend=method.backend_name,
        source=row["source"] or "", seed=limits.options.seed, threads=limits.options.threads,
        versions=found.environment.get("versions", {}), message=row["message"],
    )  # fmt: skip
