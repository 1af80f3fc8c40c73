"""Runs of an experiment: one method on one problem under the limits that all share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypedDict

from remat.errors import ProblemError
from remat.experiments.contestant import Contestant
from remat.problem import Objective, Problem
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions, StopReason
from remat.runtime.text import nearest, short
from remat.schedule import Schedule
from remat.schedule.certificate import Certificate
from remat.solving.incumbents import one_line
from remat.solving.method import MethodLike
from remat.solving.progress import OnProgress
from remat.solving.result import Result
from remat.solving.solve import solve
from remat.solving.stop import Stop, described, stopping

#: Called with a title for each run. The returned context is open during the run, and its value receives the progress.
Watch = Callable[[str], AbstractContextManager[OnProgress | None]]


#: Source of a schedule that no method had to find.
REFERENCE_ORDER = "the reference order"


class LimitArguments(TypedDict, total=False):
    """Arguments of :class:`Limits` that other functions pass on."""

    stop: Stop
    options: SolveOptions


def check_arguments(function: str, given: Iterable[str], known: type) -> None:
    """Raise ProblemError for an argument that the TypedDict `known` lacks; names the known ones."""
    names = list(known.__annotations__)
    for name in given:
        if name not in names:
            remedy = (
                "; stop takes the seconds of each run" if "time" in name or "limit" in name else nearest(name, names)
            )
            raise ProblemError(
                f"{function}() has no argument {short(name)}; it also takes {', '.join(names)}{remedy}", "no-argument"
            )


@dataclass(frozen=True)
class Limits:
    """Limits of each run of an experiment.

    Attributes
    ----------
    stop : float, StoppingCriterion or None
        As for :func:`remat.solve`; seconds per run.
    options : SolveOptions
        Its solver options go to every method; options of a method take precedence.

    Raises
    ------
    ProblemError
        If a limit is out of range, with its name.

    Examples
    --------
    >>> Limits(10, SolveOptions(threads=2)).as_dict()["time_limit"]
    10
    """

    stop: Stop = None
    options: SolveOptions = DEFAULT_OPTIONS

    def __post_init__(self) -> None:
        stopping(self.stop, self.options)
        if isinstance(self.stop, Deadline) or math.isfinite(self.options.deadline.seconds):
            raise ProblemError("a running deadline cannot be shared by many runs; stop takes the seconds of each")

    def of(self, method: Contestant) -> SolveOptions:
        """Return the options of one method."""
        return replace(self.options, solver={**self.options.solver, **method.solver_options})

    def as_dict(self) -> dict[str, Any]:
        """Return the limits as JSON values, without defaults that older files lack."""
        told, start = self.options, self.options.start
        more = {} if start == "auto" else {"start": start if isinstance(start, str) else start.source or "a schedule"}
        return {
            "time_limit": described(self.stop), "threads": told.threads, "seed": told.seed, "gap": told.relative_gap,
            "isolate": told.isolate, "memory_limit": told.memory_limit, **more,
        }  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One cell of the matrix.

    Attributes
    ----------
    method : Contestant
    problem : Problem
    result : Result or None
        None if the method failed.
    error : str
        Reason of the failure, in one line.
    """

    method: Contestant
    problem: Problem
    result: Result | None
    error: str = ""

    @property
    def budget(self) -> str:
        """Budget as given."""
        return "no budget" if self.problem.budget is None else str(self.problem.budget)

    @property
    def is_interrupted(self) -> bool:
        """True if Ctrl-C ended it early."""
        return self.result is not None and self.result.stop is StopReason.INTERRUPTED

    @property
    def seconds_to_best(self) -> float | None:
        """Time at which the best schedule was found; None without a schedule, or if unknown."""
        if self.result is None or self.result.objective is None:
            return None
        points = self.result.incumbents
        return next((point.time for point in points if point.objective == self.result.objective), None)

    def row(self) -> dict[str, Any]:
        """Return the run as JSON values; only keys that end in ``seconds`` depend on the clock."""
        answer, found = self.result, None if self.result is None else self.result.certificate
        times = {} if answer is None else answer.timings
        return {
            "method": self.method.label,
            "budget": self.budget,
            "budget_bytes": self.problem.budget_bytes,
            "status": "failed" if answer is None else str(answer.status),
            "stop": None if answer is None else str(answer.stop),
            "overhead_percent": None if answer is None else answer.overhead,
            "cost": None if found is None else found.cost,
            "peak": None if found is None else found.peak,
            self.problem.objective.key: None if answer is None else answer.objective,
            "bound": None if answer is None else answer.bound,
            "gap": None if answer is None else answer.gap,
            "scope": None if answer is None else str(answer.scope),
            "source": None if answer is None else answer.source,
            "recomputations": None if found is None else found.recomputations,
            **({} if self.problem.machine is None else _transfers(found)),
            "to_best_seconds": self.seconds_to_best,
            **{f"{part}_seconds": times.get(part) for part in ("build", "preliminary", "solve", "total")},
            "variables": None if answer is None else answer.variables,
            "constraints": None if answer is None else answer.constraints,
            "versions": {} if answer is None else dict(answer.versions),
            "message": self.error if answer is None else answer.message,
        }


def _transfers(found: Certificate | None) -> dict[str, int | None]:
    """Return stalls, bytes moved and the host's peak; None without a schedule."""
    moved = None if found is None else found.transfers
    names = ("stall", "bytes_written", "bytes_read", "host_peak")
    return {name: None if moved is None else getattr(moved, name) for name in names}


def run_method(
    method: Contestant,
    problem: Problem,
    limits: Limits,
    on_progress: OnProgress | None = None,
    warm_start: Schedule | None = None,
) -> Run:
    """Solve one problem with one method; a failure is recorded in the run.

    Parameters
    ----------
    limits : Limits
    on_progress, warm_start
        As for :func:`remat.solve`.
    """
    try:
        options = limits.of(method)
        if warm_start is not None and not isinstance(options.start, str):
            options = replace(options, start="auto")  # the given start is better
        result = solve(
            problem, method.method, method.backend or "cp-sat", stop=limits.stop, warm_start=warm_start,
            options=options, method_options=method.options, on_progress=on_progress,
        )  # fmt: skip
    except Exception as error:  # a faulty plug-in must not end the matrix
        return Run(method, problem, None, one_line(error))
    return Run(method, problem, result)


class RunStore(Protocol):
    """Store of runs between processes, such as :class:`remat.studies.stored_runs.StudyRuns`."""

    def find(self, method: Contestant, problem: Problem, limits: Limits, start: Schedule | None) -> Run | None:
        """Return the run that is stored; None: it is to be solved and added."""

    def add(self, run: Run, limits: Limits, start: Schedule | None) -> None:
        """Store a run."""


class NoStore:
    """Store that keeps nothing."""

    def find(self, *_question: object) -> None:
        """Return None."""

    def add(self, *_run: object) -> None:
        """Ignore the run."""


def stored_or_run(
    store: RunStore, method: Contestant, problem: Problem, limits: Limits, start: Schedule | None = None, *,
    watch: Callable[[], AbstractContextManager[OnProgress | None]],
) -> Run:  # fmt: skip
    """Return the run in the store, or solve and store it; `watch` is called if it is solved."""
    run = store.find(method, problem, limits, start)
    if run is None:
        with watch() as on_progress:
            run = run_method(method, problem, limits, on_progress, start)
        store.add(run, limits, start)
    return run


def chosen_methods(methods: Sequence[Contestant | MethodLike]) -> list[Contestant]:
    """Return the methods as contestants; :meth:`Contestant.parse` reads each str.

    Raises
    ------
    RematError
        For a name that is not registered; a ProblemError if there is no method, or one appears twice.
    """
    expect_list("methods", methods)
    chosen = [as_contestant(method) for method in methods]
    check_names("method", [method.label for method in chosen])
    return chosen


def expect_list(what: str, values: object) -> None:
    """Refuse a text where a list is needed: its characters would be taken one by one."""
    if isinstance(values, str):
        raise ProblemError(f"{what} must be a list, not the text {values!r}; write [{values!r}]", "not-a-list")


def as_contestant(method: Contestant | MethodLike) -> Contestant:
    """Return a method as a contestant; :meth:`Contestant.parse` reads a str."""
    if isinstance(method, Contestant):
        return method
    return Contestant.parse(method) if isinstance(method, str) else Contestant.of(method)


def check_names(what: str, names: Sequence[str]) -> None:
    """Refuse an empty list and repeated names."""
    if not names:
        raise ProblemError(f"there is no {what} to compare")
    for name in names:
        if names.count(name) > 1:
            raise ProblemError(f"{what} {name!r} appears twice in the comparison")


def question(problem: Problem, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return graph, rules and limits as JSON values: everything that defines the task except budgets and methods."""
    graph, most = problem.graph, problem.max_computes
    return {
        "graph": {
            "name": graph.name,
            "digest": graph.digest,
            "ops": len(graph.ops),
            "base_cost": graph.base_cost,
            "cost_unit": graph.cost_unit,
            "reference_peak": problem.reference_peak,
        },
        "rules": {
            "order": str(problem.rules.order),
            "max_computes": dict(most) if isinstance(most, Mapping) else most,
            "keep": sorted(problem.keep),
            "count_constant_memory": problem.count_constant_memory,
            **({} if problem.objective is Objective.DEFAULT else {"objective": str(problem.objective)}),
            **({} if problem.machine is None else {"machine": problem.machine.settings}),
        },
        "limits": dict(limits),
    }


def unwatched(_line: str) -> AbstractContextManager[OnProgress | None]:
    """Return a context that shows no progress."""
    return nullcontext()
