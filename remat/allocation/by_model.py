"""Exact formulation of addresses, disjoint rectangles of fixed steps and variable addresses, solved by a backend."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from remat.allocation.base import Allocation, Allocator, OnAddresses
from remat.allocation.fits import quick
from remat.allocation.problem import AllocationProblem
from remat.backends.results import Incumbent
from remat.errors import BackendError, ProblemError
from remat.modeling import ALWAYS, Cumulative, Linear, Model, NoOverlap2D, Vars
from remat.registry import make_backend
from remat.runtime.arrays import Float
from remat.runtime.checked_options import Options
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions, Status
from remat.schedule.addresses import Addresses


class AddressFormulation:
    """Exact formulation of addresses.

    *Sets.* Buffers i with moments ``[f_i, l_i)`` (:class:`~remat.allocation.problem.Compressed`) and sizes ``s_i`` in
    units of their greatest common divisor; memories m with capacities ``C_m`` or none; ``A_i`` the memories in which
    buffer i may lie.

    *Variables.* ``o_i`` the offset, ``t_i`` the top, ``x_im`` whether i lies in m (only where there are several
    memories), ``h_m`` the arena of a memory without a capacity.

    Minimise ``sum(h_m for m without a capacity)`` subject to

    1. ``t_i = o_i + s_i``;
    2. for each m: the rectangles ``[f_i, l_i) x [o_i, t_i)`` with ``x_im`` do not overlap (:class:`NoOverlap2D`);
    3. ``sum(x_im for m in A_i) = 1``;
    4. ``t_i <= C_m``, or ``t_i <= h_m``, where ``x_im``;
    5. ``h_m`` is at least the largest sum of what must live there at one moment, and their sum at least the bound.

    With `redundant`, the model also states a consequence of (2), for one memory only. At every address, the moments of
    the buffers that cover it sum to at most the number of moments (:class:`Cumulative` over addresses).

    Parameters
    ----------
    ceiling : int
        Bytes that suffice for every arena, from known addresses.

    Examples
    --------
    >>> from remat.schedule import Buffers
    >>> b = Buffers.of(["a", "b", "c"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 2, 2])
    >>> print(AddressFormulation(AllocationProblem(b), ceiling=8).model)
    model addresses: 10 variables, 7 constraints
      offset        integer      3   (3,)
      top           integer      3   (3,)
      arena         integer      1   (1,)
      moment        integer      3   (3,)
      top           linear       3   6 non-zeros
      in the arena  linear       3   6 non-zeros
      apart         nooverlap2d  1   3 rectangles
      minimise      1 terms
    """

    def __init__(self, problem: AllocationProblem, ceiling: int, redundant: bool = False) -> None:
        self.problem, c = problem, problem.compressed
        caps = [cap for cap in problem.capacities if cap is not None]
        # capacities in the same unit: a fraction of a unit cannot be used
        self.unit = math.gcd(c.unit, problem.alignment) if not c.size.any() else c.unit
        self.held = np.flatnonzero(c.size > 0)
        self.size = c.size[self.held]
        self.first, self.last = c.first[self.held], c.last[self.held]
        most = max([-(-ceiling // self.unit), *(cap // self.unit for cap in caps)])
        self.model = self._build(most, ceiling, redundant)

    def _build(self, most: int, ceiling: int, redundant: bool) -> Model:
        problem, count = self.problem, len(self.held)
        memories = len(problem.memories)
        m = Model("addresses")
        room = np.maximum(most - self.size, 0)
        self.offset = m.integers("offset", count, 0, room)
        self.top = m.integers("top", count, self.size, room + self.size)
        places = problem.places[self.held]
        self.inside: Vars | None = None
        if memories > 1:
            self.inside = m.booleans("inside", (count, memories), 0, places.astype(np.float64))
        open_ = problem.open_memories
        low = -(-problem.bound // self.unit)
        if open_:
            least = low if len(open_) == 1 else 0
            self.arena = m.integers("arena", len(open_), least, max(-(-ceiling // self.unit), least))
        row = np.arange(count)
        both = np.concatenate([row, row])
        m.add(
            Linear.rows(
                "top", both, np.concatenate([self.top.index, self.offset.index]), np.repeat([1.0, -1.0], count),
                lower=self.size.astype(np.float64), upper=self.size.astype(np.float64), num_rows=count,
            )
        )  # fmt: skip
        if self.inside is not None:
            each = np.repeat(row, memories)
            m.add(Linear.rows("one memory", each, self.inside.index.ravel(), 1, lower=1, upper=1, num_rows=count))
        moment = m.integers("moment", count, self.first, self.first).index
        for k in range(memories):
            present = np.full(count, ALWAYS) if self.inside is None else self.inside[:, k]
            if (cap := problem.capacities[k]) is None:
                arena = np.full(count, self.arena[open_.index(k)])
                m.add(Linear.rows(
                    "in the arena", both, np.concatenate([arena, self.top.index]), np.repeat([1.0, -1.0], count),
                    lower=0, num_rows=count, enforce=None if self.inside is None else present,
                ))  # fmt: skip
            else:
                m.add(Linear.rows(
                    "in the capacity", row, self.top.index, 1, upper=float(cap // self.unit), num_rows=count,
                    enforce=None if self.inside is None else present,
                ))  # fmt: skip
            m.add(NoOverlap2D("apart", moment, self.offset.index, self.last - self.first, self.size, present))
        if len(open_) > 1:
            m.add(Linear.rows("bound", np.zeros(len(open_)), self.arena.index, 1, lower=[float(low)]))
        if redundant and memories == 1 and count:
            m.add(Cumulative(
                "addresses", self.offset.index, self.top.index, self.last - self.first, np.full(count, ALWAYS),
                problem.compressed.moments,
            ))  # fmt: skip
        if open_:
            m.minimize(self.arena.index, 1)
        return m

    def encode(self, addresses: Addresses) -> Float | None:
        """Return values for addresses; None if an offset is not an integer number of units."""
        if (addresses.offset[self.held] % self.unit).any():
            return None
        offset = addresses.offset[self.held] // self.unit
        values = np.full(self.model.num_vars, np.nan)
        values[self.offset.index], values[self.top.index] = offset, offset + self.size
        memory = addresses.memory[self.held]
        if self.inside is not None:
            values[self.inside.index] = memory[:, None] == np.arange(len(self.problem.memories))
        for number, k in enumerate(self.problem.open_memories):
            values[self.arena[number]] = (offset + self.size)[memory == k].max(initial=0)
        if self.problem.open_memories:
            values[self.arena.index] = np.maximum(values[self.arena.index], self.model.lower[self.arena.index])
        for block in self.model.blocks:
            if block.name == "moment":
                values[block.index] = self.first
        return values

    def decode(self, values: Float, source: str) -> Addresses:
        """Return the addresses for values."""
        count = len(self.problem.buffers)
        offset, memory = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        offset[self.held] = np.rint(values[self.offset.index]).astype(np.int64) * self.unit
        if self.inside is not None:
            memory[:] = self.problem.places.argmax(axis=1)
            memory[self.held] = values[self.inside.index].argmax(axis=1)
        return self.problem.addresses(offset, memory, source)


#: Largest number of pairs of buffers that are live together; the model has a choice for each.
MAX_PAIRS = 1_000_000


@dataclass(frozen=True)
class ModelOptions(Options):
    """Options of the exact formulation."""

    backend: str = "cp-sat"
    """Solver: ``name`` or ``name:variant``."""


class ModelAllocator(Allocator):
    """Exact formulation with a solver, started from the best greedy rule; see :mod:`remat.allocation.by_model`.

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
