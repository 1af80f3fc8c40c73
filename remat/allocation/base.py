"""The interface of whatever finds addresses, and what it found."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from remat.allocation.problem import AllocationProblem
from remat.backends.base import DEFAULT_OPTIONS, SolveOptions
from remat.compiled.algorithm import Algorithm
from remat.errors import ProblemError
from remat.schedule.addresses import Addresses, check_addresses

#: Receives better addresses as they are found.
OnAddresses = Callable[[Addresses], object]


@dataclass(frozen=True, eq=False)
class Allocation:
    """What an allocator found out.

    Attributes
    ----------
    problem : AllocationProblem
    addresses : Addresses or None
        None: none were found, or all that were found exceed a capacity.
    bound : int
        Bytes; no addresses have a lower :meth:`~remat.allocation.problem.AllocationProblem.price`.
    impossible : str
        Why no addresses keep to the capacities, where that is proved; else empty.
    method : str
        Who found the addresses.
    tried : int or None
        How many placements a search tried; None for what does not search.
    notes : tuple of str
        What else is worth knowing.
    """

    problem: AllocationProblem
    addresses: Addresses | None
    bound: int
    impossible: str = ""
    method: str = ""
    tried: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def price(self) -> int | None:
        """What was to be least, in bytes; None without addresses."""
        return None if self.addresses is None else self.problem.price(self.addresses)

    @property
    def proved(self) -> bool:
        """Whether nothing is left to find out: no addresses are better than these, or there are none at all."""
        return bool(self.impossible) or (self.price is not None and self.price <= self.bound)


class Allocator(Algorithm):
    """Finds addresses. Registered in the entry-point group ``remat.allocators``.

    Parameters
    ----------
    options : optional
        Of the class's `options_type`; None: its defaults.

    Raises
    ------
    ProblemError
        For anything else.

    Examples
    --------
    One that never uses a byte twice:

    >>> import numpy as np
    >>> from remat.schedule import Buffers
    >>> class Apart(Allocator):
    ...     name = "apart"
    ...     def allocate(self, problem, options=DEFAULT_OPTIONS, start=None, on_addresses=None):
    ...         offset = np.cumsum(problem.sizes) - problem.sizes
    ...         return self.found(problem, problem.addresses(offset, source=self.name))
    >>> b = Buffers.of(["a", "b", "c"], lower=[0, 1, 2], upper=[2, 3, 3], size=[4, 2, 1])
    >>> Apart().allocate(AllocationProblem(b)).price
    7
    """

    several_memories: ClassVar[bool] = False
    """Whether it can place buffers in more than one memory."""

    @classmethod
    def unavailable(cls) -> str:
        """Why it cannot be used here; empty where it can."""
        return ""

    @abstractmethod
    def allocate(
        self,
        problem: AllocationProblem,
        options: SolveOptions = DEFAULT_OPTIONS,
        start: Addresses | None = None,
        on_addresses: OnAddresses | None = None,
    ) -> Allocation:
        """Find addresses; at the deadline, and at Ctrl-C, the best so far.

        Parameters
        ----------
        options : SolveOptions
            Deadline, threads and seed; a model's solver takes the others.
        start : Addresses, optional
            Better ones than these are looked for; they are the answer where there are none.
        on_addresses : callable, optional
            Called with each better one.

        Raises
        ------
        ProblemError
            If the problem has several memories, and the allocator can fill only one.
        BackendError
            If what it needs is not installed.
        """

    def found(
        self,
        problem: AllocationProblem,
        addresses: Addresses | None,
        bound: int | None = None,
        *,
        impossible: str = "",
        tried: int | None = None,
        notes: tuple[str, ...] = (),
    ) -> Allocation:
        """An answer; addresses that exceed a capacity are none, and those that are wrong are an error of ours.

        Raises
        ------
        ProblemError
            If the addresses are wrong.
        """
        least = max(problem.bound, bound or 0)
        if addresses is not None:
            certificate = check_addresses(addresses)
            wrong = next((v for v in certificate.violations if v.rule != "capacity"), None)
            if wrong is not None:
                raise ProblemError(f"allocator {self.name!r} found wrong addresses: {wrong}", "wrong-addresses")
            if any(cap is not None and a > cap for a, cap in zip(addresses.arenas, problem.capacities, strict=True)):
                notes = (*notes, f"the smallest arena found has {addresses.arena:,} bytes")
                addresses = None
        impossible = impossible or problem.contradiction
        return Allocation(problem, addresses, least, impossible, self.name, tried, notes)

    def one_memory(self, problem: AllocationProblem) -> None:
        """Refuse a problem with several memories.

        Raises
        ------
        ProblemError
        """
        if len(problem.memories) > 1 and not self.several_memories:
            raise ProblemError(
                f"allocator {self.name!r} fills one memory, but there are {len(problem.memories)}", "several-memories"
            )
