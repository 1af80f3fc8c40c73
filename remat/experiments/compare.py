"""Matrix of methods and budgets, run one after another under equal limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from remat.errors import ProblemError
from remat.experiments.contestant import Contestant
from remat.problem import Objective, Problem
from remat.runtime.deadline import Deadline
from remat.runtime.interruption import interrupted, interrupts
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.runtime.text import csv_text, json_text
from remat.schedule import Schedule
from remat.schedule.validate import validate
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
    def seconds_to_best(self) -> float | None:
        """Time at which the best schedule was found; None without a schedule."""
        if self.result is None or self.result.objective is None:
            return None
        return next(point.time for point in self.result.incumbents if point.objective == self.result.objective)

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
            "to_best_seconds": self.seconds_to_best,
            **{f"{part}_seconds": times.get(part) for part in ("build", "preliminary", "solve", "total")},
            "variables": None if answer is None else answer.variables,
            "constraints": None if answer is None else answer.constraints,
            "versions": {} if answer is None else dict(answer.versions),
            "message": self.error if answer is None else answer.message,
        }


@dataclass(frozen=True)
class Comparison:
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
        content = {
            **question(self.problem, self.limits),
            "interrupted": self.interrupted,
            "runs": runs,
        }
        return json_text(content)

    def to_csv(self) -> str:
        """Return a CSV text with a line per run; unknown values are empty."""
        return table_csv([run.row() for run in self.runs])


@interrupts()
def compare(
    problem: Problem,
    budgets: Sequence[str | int | float | None],
    methods: Sequence[Contestant | MethodLike],
    *,
    stop: Stop = None,
    options: SolveOptions = DEFAULT_OPTIONS,
    watch: Watch | None = None,
    on_run: Callable[[Comparison], object] | None = None,
) -> Comparison:
    """Run every method at every budget, one after another, with the same limits.

    A failure is recorded in the method's run, and the matrix continues. Ctrl-C ends the matrix and keeps finished runs
    and the incumbent of the interrupted one.

    Parameters
    ----------
    problem : Problem
        Graph, rules and objective; its own budget is ignored.
    budgets : sequence of str, int, float or None
        As for :class:`remat.problem.Problem`; ``[None]`` for the least peak without a budget.
    methods : sequence of str, class, object or Contestant
        As for :func:`remat.solve`; a str may include a backend (:meth:`Contestant.parse`).
    stop, options
        As for :func:`remat.solve`, per run.
    watch : callable, optional
        See :data:`Watch`.
    on_run : callable, optional
        Receives the comparison so far after every run.

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
    chosen = chosen_methods(methods)
    problems = [replace(problem, budget=budget) for budget in budgets]
    check_names("budget", [str(budget) for budget in budgets])
    # Compile the simulation first, so that its time does not count for the first run.
    validate(problem.graph, Schedule.reference(problem.graph), problem.rules)
    limits = Limits(stop, options)
    done = Comparison(problem, (), limits.as_dict())
    cells = [(one, method) for one in problems for method in chosen]
    for number, (one, method) in enumerate(cells, 1):
        try:
            with (watch or unwatched)(f"[{number}/{len(cells)}] {_budget(one)}, {method.label}") as on_progress:
                run = run_method(method, one, limits, on_progress)
        except KeyboardInterrupt:
            return replace(done, interrupted=True)
        stopped = interrupted() or (run.result is not None and run.result.stop == "interrupted")
        done = replace(done, runs=(*done.runs, run), interrupted=stopped and number < len(cells))
        if on_run is not None:
            on_run(done)
        if stopped:
            break
    return done


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


def chosen_methods(methods: Sequence[Contestant | MethodLike]) -> list[Contestant]:
    """Return the methods as contestants; :meth:`Contestant.parse` reads each str.

    Raises
    ------
    RematError
        For a name that is not registered; a ProblemError if there is no method, or one appears twice.
    """
    if isinstance(methods, str):
        raise ProblemError(f"methods must be a list, not the text {methods!r}")
    chosen = [as_contestant(method) for method in methods]
    check_names("method", [method.label for method in chosen])
    return chosen


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
        },
        "limits": dict(limits),
    }


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows such as those of :meth:`Run.row` as a CSV text; unknown values are empty.

    Words that a spreadsheet would read as a formula get an apostrophe in front (OWASP, *CSV injection*).
    """
    return csv_text(list(rows[0]) if rows else [], ([_field(value) for value in row.values()] for row in rows))


def _field(value: Any) -> Any:
    """Return a CSV value that no spreadsheet reads as a formula."""
    if isinstance(value, Mapping):
        value = " ".join(f"{name}={text}" for name, text in value.items())
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _budget(problem: Problem) -> str:
    return "no budget" if problem.budget is None else f"budget {problem.budget}"


def unwatched(_line: str) -> AbstractContextManager[OnProgress | None]:
    """Return a context that shows no progress."""
    return nullcontext()
