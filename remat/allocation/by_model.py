"""Exact formulation of addresses, solved by a backend."""

from __future__ import annotations

from dataclasses import dataclass

from remat.allocation.base import Allocation, Allocator, OnAddresses
from remat.allocation.fits import quick
from remat.allocation.formulation import AddressFormulation
from remat.allocation.problem import AllocationProblem
from remat.backends.results import Incumbent
from remat.errors import BackendError, ProblemError
from remat.modeling import Cumulative
from remat.registry import make_backend
from remat.runtime.checked_options import Options
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions, Status
from remat.schedule.addresses import Addresses

#: Largest number of pairs of buffers that are live together; the model has a choice for each.
MAX_PAIRS = 1_000_000


@dataclass(frozen=True)
class ModelOptions(Options):
    """Options of the exact formulation."""

    backend: str = "cp-sat"
    """Solver: ``name`` or ``name:variant``."""


class ModelAllocator(Allocator):
    """Exact formulation with a solver, started from the best greedy rule; see :mod:`remat.allocation.formulation`.

    The solver proves that no arena is smaller, or that no addresses keep to the capacities.

    Examples
    --------
    >>> from remat.schedule import Buffers, Memory
    >>> b = Buffers.of(["a", "b", "c"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 2, 1])
    >>> found = ModelAllocator().allocate(AllocationProblem(b, (Memory("fast", 4), Memory("slow"))))
    >>> found.price, found.proved
    (2, True)
    """

    name = "model"
    options_type = ModelOptions
    several_memories = True

    def allocate(
        self,
        problem: AllocationProblem,
        options: SolveOptions = DEFAULT_OPTIONS,
        start: Addresses | None = None,
        on_addresses: OnAddresses | None = None,
    ) -> Allocation:
        backend = make_backend(self.options.backend)
        if start is None:
            start = quick(problem, options).addresses
        if problem.contradiction or not problem.sizes.any():
            return self.found(problem, start)
        if (pairs := len(problem.compressed.pairs()[0])) > MAX_PAIRS:
            note = f"{pairs:,} pairs of buffers live together, more than the {MAX_PAIRS:,} that a model takes"
            return self.found(problem, start, notes=(note,))
        if start is not None and problem.price(start) <= problem.bound:
            return self.found(problem, start)
        ceiling = int(problem.sizes.sum()) if start is None or not problem.open_memories else problem.price(start)
        formulation = AddressFormulation(problem, ceiling, redundant=Cumulative in backend.native)
        hint = None if start is None else formulation.encode(start)
        source = f"{self.name} by {backend.full_name}"

        def tell(found: Incumbent) -> object:
            if on_addresses is not None:
                on_addresses(formulation.decode(found.values, source))
            return not problem.open_memories  # any solution suffices

        raw = backend.solve(formulation.model, options, hint, tell)
        if raw.status is Status.ERROR:
            raise BackendError(f"backend {backend.full_name!r} failed on addresses: {raw.message}")
        notes = (raw.message,) if raw.message else ()
        if raw.status is Status.INFEASIBLE:
            if start is not None:
                raise ProblemError(f"backend {backend.full_name!r} finds no addresses, but there are some")
            return self.found(problem, None, impossible=f"proved by {backend.full_name}", notes=notes)
        best = start if raw.values is None else formulation.decode(raw.values, source)
        if best is not None and start is not None and problem.price(start) <= problem.price(best):
            best = start
        bound = None if raw.bound is None or not problem.open_memories else round(raw.bound) * formulation.unit
        return self.found(problem, best, bound, notes=notes)
