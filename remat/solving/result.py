"""Result of solve(): a certified schedule, or the reason why there is none, with all figures."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remat.errors import ProblemError
from remat.io.views import html_pairs, html_picture
from remat.problem import Objective, Problem
from remat.runtime.solve_options import Status, StopReason
from remat.schedule import OrderRule, Schedule
from remat.schedule.certificate import overhead_percent, overhead_text
from remat.schedule.io import write_schedule
from remat.solving.progress import relative_gap

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from remat.problem.scope import Scope
    from remat.schedule.certificate import Certificate
    from remat.schedule.drawing import Axis


@dataclass(frozen=True)
class Point:
    """State of a solve when it found a better schedule or bound.

    Attributes
    ----------
    time : float
        Seconds since the deadline's clock began.
    objective : int or None
        Certified cost of the best schedule; None before the first.
    bound : int
        Lower bound for the scope.
    """

    time: float
    objective: int | None
    bound: int


@dataclass(frozen=True)
class Step:
    """Outcome of one step of a method.

    Attributes
    ----------
    name : str
    seconds : float
    objective : int or None
        Certified cost of the best schedule after the step.
    bound : int
        Lower bound for the scope after the step.
    """

    name: str
    seconds: float
    objective: int | None
    bound: int


@dataclass(frozen=True)
class Result:
    """The answer of :func:`remat.solve`. Costs are in the cost unit of the graph, memory in bytes.

    Attributes
    ----------
    problem : Problem
    schedule : Schedule or None
        Best schedule found; always within the rules of the problem.
    certificate : Certificate or None
        The validator's certificate of it; None without a schedule.
    status : Status
        ``optimal``: no schedule in the scope is cheaper. ``infeasible``: no schedule in the scope exists.
        ``unknown``: nothing was found in time, and nothing proved.
    stop : StopReason
    bound : int
        Lower bound on the cost (or peak in bytes, by the problem's objective) of all schedules in the scope.
    bound_kind, bound_cause, cost_bound : str, str, int or None
        For the least peak: source of the bound; the op that causes it, if any; and a lower bound on the cost of all
        schedules with that peak.
    scope : Scope
        Schedules that status and bound cover.
    least_feasible_budget : int
        Smallest peak of all schedules found: a budget known to suffice.
    least_peak_schedule, least_peak_certificate : optional
        If no schedule fits the budget: the one with the least peak that the method found (the reference order counts),
        and its certificate. None otherwise.
    incumbents : tuple of Point
        In order of time.
    steps : tuple of Step
        Steps of ``auto``, in order; empty for other methods.
    timings : mapping of str to float
        Seconds of each phase and ``total``: ``start`` (the start heuristic), ``build``, ``preliminary`` (phase 1) and
        ``solve`` of a formulation, or the name of a heuristic.
    variables, constraints : int or None
        Size of the model; None without a model.
    method, backend : str
        Names of method and backend; `backend` is empty for methods without one.
    states : int or None
        Number of states of an order search; None without one.
    source : str
        Origin of the schedule; empty without one.
    seed, threads : int, int or None
    versions : mapping of str to str
    message : str
        Reason if there is no schedule, and other remarks.
    """

    problem: Problem = field(repr=False)
    schedule: Schedule | None
    certificate: Certificate | None = field(repr=False)
    status: Status
    stop: StopReason
    bound: int
    scope: Scope
    least_feasible_budget: int
    incumbents: tuple[Point, ...] = field(default=(), repr=False)
    steps: tuple[Step, ...] = field(default=(), repr=False)
    timings: Mapping[str, float] = field(default_factory=dict, repr=False)
    variables: int | None = None
    constraints: int | None = None
    method: str = ""
    backend: str = ""
    source: str = ""
    seed: int = 0
    threads: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict, repr=False)
    message: str = ""
    least_peak_schedule: Schedule | None = field(default=None, repr=False)
    least_peak_certificate: Certificate | None = field(default=None, repr=False)
    bound_kind: str = ""
    bound_cause: str = ""
    cost_bound: int | None = None
    states: int | None = None

    @property
    def asks_peak(self) -> bool:
        """Return True if the objective is the peak."""
        return self.problem.objective.is_memory

    @property
    def objective(self) -> int | None:
        """Certified objective of the schedule, such as its cost or its peak; None without one."""
        return None if self.certificate is None else self.problem.value(self.certificate)

    @property
    def cost(self) -> int | None:
        """Certified cost of the schedule; None without one."""
        return None if self.certificate is None else self.certificate.cost

    @property
    def peak(self) -> int | None:
        """Certified peak of the schedule in bytes; None without one."""
        return None if self.certificate is None else self.certificate.peak

    @property
    def overhead(self) -> float | None:
        """Overhead of the schedule in %; None without one, or if computing each op once costs nothing."""
        priced, found = self._priced, self.certificate
        return None if found is None else overhead_percent(priced.value(found), priced.base(self.problem.graph))

    @property
    def _priced(self) -> Objective:
        """Objective to which the overhead refers: the problem's, or for the least peak the cost."""
        objective = self.problem.objective
        return objective.other if objective.is_memory else objective

    @property
    def proved(self) -> bool:
        """Return True if the schedule is proved optimal in the scope."""
        return self.status is Status.OPTIMAL

    @property
    def cost_proved(self) -> bool:
        """Return True if the cost is proved least in the scope; for the least peak, among schedules with that peak."""
        return self.cost_bound == self.cost if self.asks_peak else self.proved

    @property
    def gap(self) -> float | None:
        """(objective − bound) / objective; None without a schedule."""
        return relative_gap(self.objective, self.bound)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the schedule to a file atomically.

        Raises
        ------
        ProblemError
            If no schedule fits the budget. To write the one over budget, call
            ``write_schedule(result.least_peak_schedule, path)``.
        FormatError
            If the file cannot be written; names it.
        """
        write_schedule(self._schedule_to("save"), path)

    def plot(self, max_tensors: int | None = None, axis: Axis = "time", ax: Axes | None = None) -> Figure:
        """Plot the memory over the schedule with the budget, and below it the lifetimes of tensors.

        Parameters
        ----------
        max_tensors : int, optional
            Draw only the largest tensors; default: layers if there are many.
        axis : {"time", "step"}
            Horizontal axis: the cost of the computes so far, or steps.
        ax : matplotlib Axes, optional
            Axes whose place the parts take; default: a new figure.

        Returns
        -------
        matplotlib Figure
            Drawn by :func:`remat.schedule.plots.plot_schedule`; ``savefig`` writes it to a file.

        Raises
        ------
        ProblemError
            If no schedule fits the budget.

        Examples
        --------
        >>> from remat import Problem, solve
        >>> from remat.graphs.families import unit_chain
        >>> len(solve(Problem(unit_chain(4), 5), "greedy").plot().axes)
        2
        """
        from remat.schedule.plots import plot_schedule

        problem = self.problem
        return plot_schedule(
            problem.graph, self._schedule_to("draw"), problem.budget_bytes, max_tensors, ax, axis=axis,
            keep=problem.keep, count_constant_memory=problem.count_constant_memory,
        )  # fmt: skip

    def _schedule_to(self, do: str) -> Schedule:
        """Return the schedule, or refuse `do` without one."""
        if self.schedule is None:
            over = self.least_peak_schedule is not None
            advice = "; the one with the least peak is over the budget (result.least_peak_schedule)" if over else ""
            raise ProblemError(f"there is no schedule to {do}: {self.status}{advice}", "no-schedule")
        return self.schedule

    def as_dict(self) -> dict[str, Any]:
        """Return the result in JSON values, without the schedule's steps, which have their own file format."""
        return {
            "aim": str(self.problem.objective),
            "status": str(self.status),
            "stop": str(self.stop),
            "objective": self.objective,
            "bound": self.bound,
            "gap": self.gap,
            "scope": self.scope.as_dict(),
            "budget": self.problem.budget_bytes,
            "reference_peak": self.problem.reference_peak,
            "least_feasible_budget": self.least_feasible_budget,
            "certificate": None if self.certificate is None else self.certificate.as_dict(),
            "incumbents": [[point.time, point.objective, point.bound] for point in self.incumbents],
            "steps": [[step.name, step.seconds, step.objective, step.bound] for step in self.steps],
            "timings": dict(self.timings),
            "variables": self.variables,
            "constraints": self.constraints,
            "states": self.states,
            "method": self.method,
            "backend": self.backend,
            "source": self.source,
            "seed": self.seed,
            "threads": self.threads,
            "versions": dict(self.versions),
            "message": self.message,
            **(self._peak_facts() if self.asks_peak else {}),
        }

    def _peak_facts(self) -> dict[str, Any]:
        return {
            "peak": self.peak,
            "bound_kind": self.bound_kind,
            "bound_cause": self.bound_cause or None,
            "proved": self.proved,
            "cost": self.cost,
            "cost_bound": self.cost_bound,
            "cost_proved": self.cost_proved,
            "order": str(self.problem.order),
        }

    def __str__(self) -> str:
        return "\n".join(f"{word:<9} {text}" for word, text in self.rows())

    def _repr_html_(self) -> str:
        """Return the notebook's view: the lines of ``str(result)`` as a table, and the memory of the schedule."""
        picture = ""
        if self.schedule is not None:
            picture = html_picture(self.problem.plot(self.schedule), "memory at each compute step")
        return f"<div>{html_pairs(self.rows())}{picture}</div>"

    def __repr__(self) -> str:
        found = "no schedule" if self.objective is None else f"{self.problem.objective.word} {self.objective:,}"
        return f"Result({self.problem.graph.name!r}, {self.status}, {found})"

    def to_frame(self) -> pandas.DataFrame:
        """Return the incumbents as a data frame of pandas: seconds, objective (missing before the first), bound."""
        import pandas

        return pandas.DataFrame(
            [[point.time, point.objective, point.bound] for point in self.incumbents],
            columns=["seconds", self.problem.objective.key, "bound"],
        )

    def rows(self) -> list[tuple[str, str]]:
        """Return the lines of ``str(result)`` as pairs of label and text."""
        rows = [("status", f"{self._verdict()} (stopped: {self.stop})"), *self._answer_rows()]
        rows.append(("scope", str(self.scope)))
        size = "" if self.variables is None else f", {self.variables:,} variables, {self.constraints:,} constraints"
        size += "" if self.states is None else f", {self.states:,} states"
        rows.append(("method", self.method + (f" by {self.backend}" if self.backend else "") + size))
        if self.steps:
            rows.append(("steps", ", ".join(self._describe(step) for step in self.steps)))
        threads = "all" if self.threads is None else str(self.threads)
        spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.timings.items() if name != "total")
        how = f"threads {threads}, seed {self.seed}"
        rows.append(("time", f"{self.timings.get('total', 0.0):.2f} s ({f'{spent}; ' if spent else ''}{how})"))
        rows.append(("versions", ", ".join(f"{name} {version}" for name, version in self.versions.items())))
        if self.message:
            rows.append(("note", self.message))
        return rows

    def _over_rows(self) -> list[tuple[str, str]]:
        """Return the row of the schedule over budget, omitting the reference order if a lower peak is known."""
        schedule, found = self.least_peak_schedule, self.least_peak_certificate
        if schedule is None or found is None or found.peak >= self.problem.reference_peak > self.least_feasible_budget:
            return []
        over = f"{found.peak - (self.problem.budget_bytes or 0):,} bytes over the budget"
        return [("least", f"peak of {schedule.source}, {over}: {_memory(self.problem, found.peak)}")]

    def _describe(self, step: Step) -> str:
        """Return a step's name, time, cost and bound."""
        objective = self.problem.objective
        base = objective.base(self.problem.graph)

        def share(value: int) -> str:
            return overhead_text(value, base) if base else f"{objective.word} {value:,}"

        known = [] if step.objective is None else [share(step.objective)]
        if step.bound > base:
            known.append(f"≥ {share(step.bound)}")
        return f"{step.name} {step.seconds:.2f} s" + (f" ({', '.join(known)})" if known else "")

    def _verdict(self) -> str:
        if self.asks_peak and self.certificate is not None:
            return "proved least" if self.proved else f"least known, gap {100 * (self.gap or 0.0):.4g} %"
        return str(self.status)

    def _overhead(self, found: Certificate) -> str:
        """Describe the overhead and the value that it comes from."""
        priced = self._priced
        overhead = "" if self.overhead is None else f"{self.overhead:.4g} %, "
        again = " (no schedule within this peak is cheaper)" if self.asks_peak and self.cost_proved else ""
        once = f" (each op once {priced.base(self.problem.graph):,})"
        return f"{overhead}{priced.word} {priced.value(found):,}{self._unit(priced)}{once}{again}"

    def _bound(self) -> str:
        """Describe the bound: with its source for the least peak, otherwise with the gap."""
        objective = self.problem.objective
        if self.asks_peak:
            by = f", {self.bound_kind}" if self.bound_kind else ""
            where = f" at op {self.bound_cause!r}" if self.bound_cause else ""
            return f"{_memory(self.problem, self.bound)}{by}{where}"
        gap = f"gap {100 * (self.gap or 0.0):.4g} %"
        return f"{objective.word} {self.bound:,}{self._unit(objective)}, {gap}"

    def _unit(self, objective: Objective) -> str:
        """Return the unit of an objective, that of the graph's costs by default, after a space."""
        unit = objective.unit or self.problem.graph.cost_unit
        return "" if unit == "none" else f" {unit}"

    def _answer_rows(self) -> list[tuple[str, str]]:
        problem, found = self.problem, self.certificate
        graph, objective = problem.graph, problem.objective
        budget = "no budget" if problem.budget_bytes is None else f"budget {_memory(problem, problem.budget_bytes)}"
        order = "fixed order" if problem.order is OrderRule.FIXED else "free order"
        rows = [("problem", f"{graph.name}: {len(graph.ops):,} ops, {order}, {budget}")]
        if found is None and self.asks_peak:
            return [*rows, ("bound", _memory(problem, self.bound))]
        if found is None:
            once = f" (each op once {objective.base(graph):,})"
            return [*rows, ("bound", f"{objective.word} {self.bound:,}{once}"), *self._over_rows()]
        overhead, peak = ("overhead", self._overhead(found)), ("peak", _memory(problem, found.peak))
        first, last = (peak, overhead) if self.asks_peak else (overhead, peak)
        made = ("schedule", f"{found.computes:,} computes, {found.recomputations:,} of them again ({self.source})")
        moved = found.transfer_rows()
        if found.transfers is not None and found.transfers.stall is not None:
            moved.append(("waits", f"{found.transfers.stall:,}{self._unit(objective)} for transfers"))
        return [*rows, first, ("bound", self._bound()), last, made, *moved]


def _memory(problem: Problem, size: int) -> str:
    """Format bytes with their share of the reference peak."""
    peak = problem.reference_peak
    return f"{size:,} bytes" + (f" ({100 * size / peak:.4g} % of the reference peak)" if peak else "")


def base_versions() -> dict[str, str]:
    """Return the versions of Python, numpy and this package."""
    import numpy as np

    from remat._version import __version__

    return {"remat": __version__, "python": platform.python_version(), "numpy": np.__version__}
