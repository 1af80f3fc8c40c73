"""Method `auto`: quick rules first, then the searches and the exact formulation in turns; the best result counts."""

from __future__ import annotations

import math
from dataclasses import replace

from remat.allocation.base import Allocation, Allocator, OnAddresses
from remat.allocation.by_model import ModelAllocator
from remat.allocation.canonical import KERNELS, CanonicalSearch
from remat.allocation.fits import MANY, quick
from remat.allocation.problem import AllocationProblem
from remat.errors import RematError
from remat.runtime.compiled import begin
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.schedule.addresses import Addresses

#: Time in seconds that turns share without a deadline; the search then continues until it is done.
TURNS = 120.0
#: Members with one memory, and their shares of the remaining time.
MEMBERS: tuple[tuple[type[Allocator], float], ...] = (
    (CanonicalSearch, 0.5), (ModelAllocator, 0.6), (CanonicalSearch, 1.0),
)  # fmt: skip


class Portfolio(Allocator):
    """First fit and best fit in six orders each, in milliseconds; then, if the arena exceeds the peak, longer searches.

    With one memory, half of the remaining time goes to :class:`~remat.allocation.canonical.CanonicalSearch`. Most of
    the rest goes to the exact formulation with CP-SAT, and what is left to the search again. With several memories
    the formulation gets all of it. Each starts from the best addresses so far, and a proof by one holds for all. The
    validator checks every result.

    Examples
    --------
    >>> from remat.schedule import Buffers
    >>> b = Buffers.of(["a", "b", "c"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 2, 1])
    >>> found = Portfolio().allocate(AllocationProblem(b))
    >>> found.price, found.proved, found.method
    (6, True, 'first-fit')
    """

    name = "auto"
    kernels = (KERNELS,)
    several_memories = True

    def allocate(
        self,
        problem: AllocationProblem,
        options: SolveOptions = DEFAULT_OPTIONS,
        start: Addresses | None = None,
        on_addresses: OnAddresses | None = None,
    ) -> Allocation:
        best = quick(problem, options)
        if start is not None and (best.price is None or problem.price(start) < best.price):
            best = self.found(problem, start, best.bound)
        if best.addresses is not None and on_addresses is not None:
            on_addresses(best.addresses)
        if len(problem.buffers) <= MANY and not best.proved:
            begin(*self.kernels)
            for member, share in MEMBERS if len(problem.memories) == 1 else ((ModelAllocator, 1.0),):
                if best.proved or options.deadline.expired:
                    break
                left = options.deadline.remaining
                seconds = share * left if math.isfinite(left) else TURNS * share if share < 1 else math.inf
                mine = options if math.isinf(seconds) else replace(options, deadline=options.deadline.earlier(seconds))
                try:
                    best = better(best, member().allocate(best.problem, mine, best.addresses, on_addresses))
                except RematError as error:  # results of the other members remain valid
                    best = replace(best, notes=(*best.notes, f"{member.name}: {error}"))
        return best


def better(first: Allocation, second: Allocation) -> Allocation:
    """Combine two results: the better addresses, the higher bound, either proof."""
    lacked = first.notes if first.price is not None or second.price is None else ()
    notes = tuple(dict.fromkeys([*lacked, *second.notes]))
    tried = None if first.tried is second.tried is None else (first.tried or 0) + (second.tried or 0)
    takes = second if second.price is not None and (first.price is None or second.price < first.price) else first
    return replace(
        takes, bound=max(first.bound, second.bound), impossible=first.impossible or second.impossible, notes=notes,
        tried=tried,
    )  # fmt: skip
