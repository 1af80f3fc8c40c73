"""minimize(): the smallest budget for which a schedule is known, and a bound below which there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from remat.backends.base import DEFAULT_OPTIONS, Backend, SolveOptions, StopReason
from remat.deadline import Deadline
from remat.errors import BackendError, ProblemError
from remat.graphs import ComputeGraph
from remat.interruption import interrupts
from remat.problem import Problem
from remat.registry import make_backend
from remat.schedule import OrderRule, Schedule
from remat.schedule.certificate import Certificate
from remat.schedule.validate import validate
from remat.solving.incumbents import Certified
from remat.solving.min_peak_search import MinPeakSearch
from remat.solving.progress import OnPeakProgress, relative_gap
from remat.solving.result import Point, base_versions
from remat.solving.stop import Stop, stopping


@dataclass(frozen=True)
class MinimizeResult:
    """The answer of :func:`minimize`: memory in bytes, costs in the cost unit of the graph.

    Attributes
    ----------
    problem : Problem
        Without a budget.
    schedule : Schedule
        The one with the least peak found, and of those the cheapest.
    certificate : Certificate
        What the validator says of it, with its own peak as the budget.
    bound : int
        No schedule that the problem allows has a lower peak.
    bound_kind, bound_cause : str
        What gives the bound; the op at whose step, where there is one.
    cost_bound : int
        No schedule within that peak costs less.
    stop : StopReason
    incumbents : tuple of Point
        In order of time; their objective and bound are peaks.
    timings : mapping of str to float
        Seconds of each phase, and ``total``.
    source : str
        Who made the schedule.
    seed, threads : int, int or None
    versions : mapping of str to str
    message : str
        Anything else worth knowing.
    """

    problem: Problem = field(repr=False)
    schedule: Schedule
    certificate: Certificate = field(repr=False)
    bound: int
    bound_kind: str
    bound_cause: str
    cost_bound: int
    stop: StopReason
    incumbents: tuple[Point, ...] = field(default=(), repr=False)
    timings: Mapping[str, float] = field(default_factory=dict, repr=False)
    source: str = ""
    seed: int = 0
    threads: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict, repr=False)
    message: str = ""

    @property
    def peak(self) -> int:
        """The smallest budget for which a schedule is known."""
        return self.certificate.peak

    @property
    def cost(self) -> int:
        """Of that schedule."""
        return self.certificate.cost

    @property
    def proved(self) -> bool:
        """Whether no schedule has a lower peak."""
        return self.bound == self.peak

    @property
    def cost_proved(self) -> bool:
        """Whether no schedule with a peak as low costs less."""
        return self.cost_bound == self.cost

    @property
    def gap(self) -> float:
        """(peak − bound) / peak."""
        return relative_gap(self.peak, self.bound) or 0.0

    def as_dict(self) -> dict[str, Any]:
        """The same in JSON values; the steps of the schedule are left to its own file format."""
        return {
            "peak": self.peak,
            "bound": self.bound,
            "bound_kind": self.bound_kind,
            "bound_cause": self.bound_cause or None,
            "gap": self.gap,
            "proved": self.proved,
            "cost": self.cost,
            "cost_bound": self.cost_bound,
            "cost_proved": self.cost_proved,
            "order": str(self.problem.order),
            "reference_peak": self.problem.reference_peak,
            "stop": str(self.stop),
            "certificate": self.certificate.as_dict(),
            "incumbents": [[point.time, point.objective, point.bound] for point in self.incumbents],
            "timings": dict(self.timings),
            "source": self.source,
            "seed": self.seed,
            "threads": self.threads,
            "versions": dict(self.versions),
            "message": self.message,
        }

    def __str__(self) -> str:
        problem, graph, found = self.problem, self.problem.graph, self.certificate
        order = "fixed order" if problem.order is OrderRule.FIXED else "free order"
        unit = "" if graph.cost_unit == "none" else f" {graph.cost_unit}"
        overhead = "" if found.overhead is None else f"{found.overhead:.4g} %, "
        again = " (no schedule within this peak is cheaper)" if self.cost_proved else ""
        word = "proved least" if self.proved else f"least known, gap {100 * self.gap:.4g} %"
        where = f" at op {self.bound_cause!r}" if self.bound_cause else ""
        spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.timings.items() if name != "total")
        threads = "all" if self.threads is None else str(self.threads)
        rows = [
            ("status", f"{word} (stopped: {self.stop})"),
            ("problem", f"{graph.name}: {len(graph.ops):,} ops, {order}"),
            ("peak", self._memory(self.peak)),
            ("bound", f"{self._memory(self.bound)}, {self.bound_kind}{where}"),
            ("overhead", f"{overhead}cost {found.cost:,}{unit} (each op once {found.base_cost:,}){again}"),
            ("schedule", f"{found.computes:,} computes, {found.recomputations:,} of them again ({self.source})"),
            ("time", f"{self.timings.get('total', 0.0):.2f} s ({spent}; threads {threads}, seed {self.seed})"),
            ("versions", ", ".join(f"{name} {version}" for name, version in self.versions.items())),
        ]
        if self.message:
            rows.append(("note", self.message))
        return "\n".join(f"{name:<9} {text}" for name, text in rows)

    def _memory(self, size: int) -> str:
        peak = self.problem.reference_peak
        return f"{size:,} bytes" + (f" ({100 * size / peak:.4g} % of the reference peak)" if peak else "")


@interrupts()
def minimize(
    problem: Problem | ComputeGraph,
    method: str = "auto",
    backend: str | Backend | None = "cp-sat",
    *,
    stop: Stop = None,
    warm_start: Schedule | None = None,
    options: SolveOptions = DEFAULT_OPTIONS,
    on_progress: OnPeakProgress | None = None,
) -> MinimizeResult:
    """Find the smallest budget for which there is a schedule, and among schedules of that peak a cheap one.

    Heuristics are asked for less and less memory, each session starting from the best so far; small graphs
    are searched exhaustively; orders without recomputation up to some two hundred ops; and a solver minimises the
    peak in the preliminary model of retention intervals. The time that is left goes into a lower cost at the peak
    found. The bound is that of what cannot be made again, or comes from an exhaustive search, or from the solver
    where its model holds all schedules that the problem allows.

    Parameters
    ----------
    problem : Problem or ComputeGraph
        Graph and rules; its budget is not looked at. A graph alone: its reference order is kept, and ops may be
        computed any number of times.
    method : str
        ``"auto"`` is the only one so far.
    backend : str, Backend or None
        For the preliminary model; None: no solver.
    stop : float, Deadline or None
        Seconds for everything, or a deadline whose clock runs already; None: until there is nothing more to try, with
        at most a minute for each way of searching that has no end of its own.
    warm_start : Schedule, optional
        A valid schedule to start from.
    options : SolveOptions
        Threads, seed and the like, as for :func:`remat.solve`.
    on_progress : callable, optional
        Receives a :class:`remat.solving.progress.PeakProgress` at every new phase, schedule and bound.

    Returns
    -------
    MinimizeResult
        Always with a schedule, since the reference order is one; also after Ctrl-C.

    Raises
    ------
    ProblemError
        For an option out of range, or a start that is not a valid schedule.
    BackendError
        If there is no such backend, or what is claimed contradicts a schedule.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> found = minimize(unit_chain(4), stop=20, options=SolveOptions(threads=1))
    >>> found.peak, found.proved, found.cost, found.cost_proved
    (3, True, 15, True)
    """
    problem = Problem(problem) if isinstance(problem, ComputeGraph) else replace(problem, budget=None)
    if warm_start is not None and not isinstance(warm_start, Schedule):
        raise ProblemError(f"the warm start is a {type(warm_start).__name__}, not a Schedule")
    if method != "auto":
        raise ProblemError(f"the least peak is looked for by method 'auto' alone, not by {method!r}")
    call, criterion = stopping(stop, options)
    if criterion is not None and not math.isfinite(criterion.seconds):
        raise ProblemError(f"the search for the least peak does not stop {criterion}; give it seconds")
    solver: Backend | None = make_backend(backend) if isinstance(backend, str) else backend
    begun = time.monotonic()
    search = MinPeakSearch(problem, call, solver, warm_start, on_progress)
    search.run()
    best = search.best
    certificate = validate(problem.graph, best.schedule, replace(problem, budget=search.peak).rules)
    if not certificate.accepted or certificate.cost != best.certificate.cost:
        raise BackendError(f"the schedule of {best.source} changed its verdict: {certificate.first}")
    return MinimizeResult(
        problem=problem,
        schedule=best.schedule,
        certificate=certificate,
        bound=search.bound,
        bound_kind=search.bound_kind,
        bound_cause=search.bound_cause,
        cost_bound=search.cost_bound,
        stop=search.stop,
        incumbents=tuple(search.points),
        timings={**search.timings, "total": time.monotonic() - begun},
        source=best.source,
        seed=call.seed,
        threads=call.threads,
        versions=base_versions() | search.versions,
        message="; ".join(search.notes),
    )


def least_known_budget(problem: Problem, deadline: float | Deadline | None = 2.0, seed: int = 0) -> Certified:
    """A schedule with a low peak, by heuristics alone: what to say when a budget is refused.

    Parameters
    ----------
    problem : Problem
        Its budget is not looked at.
    deadline : float, Deadline or None
        A second or two are enough for some hundreds of ops.
    seed : int

    Returns
    -------
    Certified
        The schedule, its certificate (whose `peak` is a budget that suffices), and who made it.

    Raises
    ------
    KeyboardInterrupt
        At Ctrl-C.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> least_known_budget(Problem(unit_chain(6), 2)).certificate.peak < unit_chain(6).reference_peak
    True
    """
    call, _ = stopping(deadline, SolveOptions(threads=1, seed=seed))
    search = MinPeakSearch(replace(problem, budget=None), call)
    search.run(quick=True)
    if search.stop is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    return search.best
