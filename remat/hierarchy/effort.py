"""Methods and solver of sub-problems, and the answer of one method to a sub-problem."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from remat.backends.base import Backend
from remat.errors import BackendError, ModelError, ProblemError
from remat.formulations.composites import Composite
from remat.problem import Problem
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import MOST, SolveOptions
from remat.schedule import Schedule
from remat.solving.method import FormulationMethod, MethodLike, make_method
from remat.solving.result import base_versions
from remat.solving.session import Session
from remat.solving.warm_start import take_warm_start

#: One thread each, since sub-problems run in parallel.
ONE_THREAD = SolveOptions(threads=1)


@dataclass
class Solvers:
    """Solvers of the models of groups."""

    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    """Versions of packages and programs, by the full name of the backend that uses them."""
    faults: dict[str, str] = field(default_factory=dict)
    """First error of each backend that failed."""

    def add(self, other: Solvers) -> None:
        """Add versions and faults of `other`."""
        for backend, versions in other.versions.items():
            self.versions.setdefault(backend, {}).update(versions)
        self.faults = other.faults | self.faults

    def __str__(self) -> str:
        shown = [
            f"{backend} ({', '.join(map(' '.join, versions.items()))})" if versions else backend
            for backend, versions in sorted(self.versions.items())
        ]
        failed = [f"{backend} failed on groups: {fault}" for backend, fault in sorted(self.faults.items())]
        return "; ".join(([f"groups solved by {', '.join(shown)}"] if shown else []) + failed)


@dataclass(frozen=True)
class Effort:
    """Methods and solver of sub-problems, with their time."""

    methods: tuple[MethodLike, ...] = ("drops",)
    """Names, classes or objects of methods. Each solves the group for every budget, and the best certified schedule is
    kept. The first one also solves problems whose ops are groups with one option each
    (:mod:`remat.hierarchy.quotient`). Methods that do not apply to a sub-problem are skipped."""
    seconds: float = 2.0
    """Seconds for each method and budget."""
    backend: Backend | None = None
    """Solves models; without one, methods that solve models are skipped."""
    call: SolveOptions = ONE_THREAD
    """Seed, gap, isolation and solver options. Its deadline is ignored."""
    solvers: Solvers = field(default_factory=Solvers, compare=False)
    """Collects reports of the backend."""

    def seeded(self, number: int) -> Effort:
        """Return the same effort with another seed for each `number`."""
        return replace(self, call=replace(self.call, seed=(self.call.seed + number) % (MOST + 1)))


def answered(
    problem: Problem, method: MethodLike, effort: Effort, deadline: Deadline, *, start: Schedule | None = None,
    composites: Sequence[Composite] = (), over: bool = False,
) -> Schedule | None:  # fmt: skip
    """Return the best certified schedule that a method finds for a problem with a budget, or None.

    A formulation that accepts composites gets them. A method that does not apply, or fails, finds nothing. With `over`,
    the schedule of least peak is returned if none keeps the budget.
    """
    call, solver = replace(effort.call, deadline=deadline.earlier(effort.seconds)), None
    try:
        answerer = make_method(method if isinstance(method, str | type) else deepcopy(method))  # one per thread
        if composites and isinstance(answerer, FormulationMethod) and answerer.has_option("composites"):
            answerer = answerer.with_options(composites=tuple(composites))
        if answerer.needs_backend:
            if effort.backend is None:
                return None
            solver = effort.backend
        session = Session(problem, call, answerer.name, solver=solver, warm_start=start)
        if start is not None and not session.decided:
            take_warm_start(session.incumbents, start)
        if not session.enough:
            with contextlib.suppress(OverdueError):
                answerer.run(session)
    except ProblemError:
        return None
    except (ModelError, BackendError) as error:
        if solver is not None:
            effort.solvers.faults.setdefault(solver.full_name, str(error))
        return None
    if solver is not None and session.size is not None:
        versions = {name: text for name, text in session.versions.items() if name not in base_versions()}
        effort.solvers.add(Solvers({solver.full_name: versions}))
    best = session.incumbents.least_peak if over and session.best is None else session.best
    return None if best is None else best.schedule
