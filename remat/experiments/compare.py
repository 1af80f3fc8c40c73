"""A matrix of methods and budgets, run one after the other under equal limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from remat.backends.base import DEFAULT_OPTIONS, SolveOptions
from remat.deadline import Deadline
from remat.errors import ProblemError
from remat.experiments.contestant import Contestant
from remat.interruption import interrupted, interrupts
from remat.io.text import csv_text, json_text
from remat.problem import Objective, Problem
from remat.schedule import Schedule
from remat.schedule.validate import validate
from remat.solving.incumbents import one_line
from remat.solving.method import MethodLike
from remat.solving.progress import OnProgress
from remat.solving.result import Result
from remat.solving.solve import solve
from remat.solving.stop import Stop, described, stopping

#: Called with a line that says which run begins; what it returns is held open during the run and told of its progress.
Watch = Callable[[str], AbstractContextManager[OnProgress | None]]


#: The source of a schedule that nobody has to find.
NOBODY = "the reference order"


@dataclass(frozen=True)
class Limits:
    """What each run of an experiment is given, the same for all.

    Attributes
    ----------
    stop : float, StoppingCriterion or None
        As for :func:`remat.solve`; seconds are those of each run.
    options : SolveOptions
        Its solver options go to every method; those of a method go before them.

    Raises
    ------
    ProblemError
        Naming one that is out of range.

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
        """The options of one method."""
        return replace(self.options, solver={**self.options.solver, **method.solver_options})

    def as_dict(self) -> dict[str, Any]:
        """The limits in JSON values; what is as usual and was not there in older files is left out."""
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
        None where the method failed.
    error : str
        Why it failed, in one line.
    """

    method: Contestant
    problem: Problem
    result: Result | None
    error: str = ""

    @property
    def budget(self) -> str:
        """The budget as it was asked for."""
        return "no budget" if self.problem.budget is None else str(self.problem.budget)

    @property
    def seconds_to_best(self) -> float | None:
        """When the best schedule was found, None without one."""
        if self.result is None or self.result.objective is None:
            return None
        return next(point.time for point in self.result.incumbents if point.objective == self.result.objective)

    def row(self) -> dict[str, Any]:
        """What is to be known of the run, in JSON values; only what ends in ``seconds`` depends on the clock."""
        answer, found = self.result, None if self.result is None else self.result.certificate
        times = {} if answer is None else answer.timings
        return {
            "method": self.method.label,
            "budget": self.budget,
            "budget_bytes": self.problem.budget_bytes,
            "status": "failed" if answer is None else str(answer.status),
            "stop": None if answer is None else str(answer.stop),
            "overhead_percent": None if found is None else found.overhead,
            "cost": None if found is None else found.cost,
            "peak": None if found is None else found.peak,
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
    """The runs of a matrix, budget by budget, and the limits they had.

    Attributes
    ----------
    problem : Problem
        Graph and rules.
    runs : tuple of Run
    limits : mapping
        What :meth:`Limits.as_dict` makes of the limits that each run had.
    interrupted : bool
        Whether Ctrl-C ended the matrix before its last run.
    """

    problem: Problem
    runs: tuple[Run, ...]
    limits: Mapping[str, Any]
    interrupted: bool = False

    def by_budget(self) -> list[list[Run]]:
        """The runs of each budget."""
        groups: dict[str, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(run.budget, []).append(run)
        return list(groups.values())

    def to_json(self) -> str:
        """The text of a JSON file: graph, rules, limits, and for each run its row and its incumbents."""
        runs = []
        for run in self.runs:
            points = () if run.result is None else run.result.incumbents
            what = "cost" if self.problem.objective is Objective.LEAST_COST else "peak"
            incumbents = [{"seconds": p.time, what: p.objective, "bound": p.bound} for p in points]
            runs.append({**run.row(), "incumbents": incumbents})
        content = {
            **question(self.problem, self.limits),
            "interrupted": self.interrupted,
            "runs": runs,
        }
        return json_text(content)

    def to_csv(self) -> str:
        """The text of a CSV file: one line for each run, unknown values empty."""
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
    """Run every method at every budget, one after the other, each with the same limits.

    A method that fails takes up its cell with the reason, and the others go on. Ctrl-C ends the matrix; what is done
    by then is kept, and so is what the interrupted method had found.

    Parameters
    ----------
    problem : Problem
        Graph, rules and objective; its own budget is not looked at.
    budgets : sequence of str, int, float or None
        As for :class:`remat.problem.Problem`; the least peak is mostly asked for with ``[None]``.
    methods : sequence of str, class, object or Contestant
        Whatever :func:`remat.solve` takes for a method; a str may name a backend, too (:meth:`Contestant.parse`).
    stop, options
        Of each run, as for :func:`remat.solve`; the clock of each begins anew.
    watch : callable, optional
        See :data:`Watch`.
    on_run : callable, optional
        Receives the comparison so far after every run.

    Raises
    ------
    RematError
        Before the first run, for a budget that cannot be read, a limit out of range, a name that is not
        registered, or a method or budget that stands twice.

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
    # Compiles the simulation, so that the first run does not pay for all.
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
    """Let one method answer one problem; where it fails, whatever the reason, the run says why.

    Parameters
    ----------
    limits : Limits
    on_progress, warm_start
        As for :func:`remat.solve`.
    """
    try:
        options = limits.of(method)
        if warm_start is not None and not isinstance(options.start, str):
            options = replace(options, start="auto")  # what it had before is the better start
        result = solve(
            problem, method.method, method.backend or "cp-sat", stop=limits.stop, warm_start=warm_start,
            options=options, method_options=method.options, on_progress=on_progress,
        )  # fmt: skip
    except Exception as error:  # whatever a plug-in does, the others have their turn
        return Run(method, problem, None, one_line(error))
    return Run(method, problem, result)


def chosen_methods(methods: Sequence[Contestant | MethodLike]) -> list[Contestant]:
    """The methods, words read by :meth:`Contestant.parse`.

    Raises
    ------
    RematError
        For a name that is not registered; a ProblemError if there is no method, or one stands twice.
    """
    if isinstance(methods, str):
        raise ProblemError(f"the methods are a list, not the text {methods!r}")
    chosen = [as_contestant(method) for method in methods]
    check_names("method", [method.label for method in chosen])
    return chosen


def as_contestant(method: Contestant | MethodLike) -> Contestant:
    """A method as it takes part, a word read by :meth:`Contestant.parse`."""
    if isinstance(method, Contestant):
        return method
    return Contestant.parse(method) if isinstance(method, str) else Contestant.of(method)


def check_names(what: str, names: Sequence[str]) -> None:
    """Refuse an empty list, and a name that stands twice."""
    if not names:
        raise ProblemError(f"there is no {what} to compare")
    for name in names:
        if names.count(name) > 1:
            raise ProblemError(f"{what} {name!r} stands twice in the comparison")


def question(problem: Problem, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Graph, rules and limits in JSON values: what is asked, but for budgets and methods."""
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
            **({"objective": str(problem.objective)} if problem.objective is not Objective.LEAST_COST else {}),
        },
        "limits": dict(limits),
    }


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows like those of :meth:`Run.row` as the text of a CSV file, unknown values empty.

    Words that a spreadsheet would take for a formula begin with an apostrophe (OWASP, *CSV injection*).
    """
    return csv_text(list(rows[0]) if rows else [], ([_field(value) for value in row.values()] for row in rows))


def _field(value: Any) -> Any:
    """A value of a CSV file, none that a spreadsheet would take for a formula."""
    if isinstance(value, Mapping):
        value = " ".join(f"{name}={text}" for name, text in value.items())
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _budget(problem: Problem) -> str:
    return "no budget" if problem.budget is None else f"budget {problem.budget}"


def unwatched(_line: str) -> AbstractContextManager[OnProgress | None]:
    """A watch that shows nothing."""
    return nullcontext()
