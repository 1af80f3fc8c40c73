"""Interface of allocators, and their result."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from remat.allocation.problem import AllocationProblem
from remat.errors import ProblemError
from remat.io.views import html_pairs, html_picture
from remat.runtime.compiled.algorithm import Algorithm
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.schedule.address_files import write_addresses
from remat.schedule.address_plots import figure_of_addresses
from remat.schedule.addresses import Addresses, check_addresses

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Receives each better set of addresses.
OnAddresses = Callable[[Addresses], object]


@dataclass(frozen=True, eq=False)
class Allocation:
    """Result of an allocator.

    Attributes
    ----------
    problem : AllocationProblem
    addresses : Addresses or None
        None: none were found, or all that were found exceed a capacity.
    bound : int
        Bytes; no addresses have a lower :meth:`~remat.allocation.problem.AllocationProblem.price`.
    impossible : str
        Reason why no addresses keep to the capacities, if proved; else empty.
    method : str
        Name of the allocator that found the addresses.
    tried : int or None
        Number of placements that a search tried; None for allocators without a search.
    notes : tuple of str
        Remarks for the result.
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
        """Bytes to minimise; None without addresses."""
        return None if self.addresses is None else self.problem.price(self.addresses)

    @property
    def proved(self) -> bool:
        """True when these addresses are proved optimal, or it is proved that there are none."""
        return bool(self.impossible) or (self.price is not None and self.price <= self.bound)

    def __repr__(self) -> str:
        price = "no addresses" if self.price is None else f"{self.price:,} bytes"
        return f"Allocation({self.problem.buffers.graph!r}, {price}, bound {self.bound:,})"

    def _repr_html_(self) -> str:
        """Return the notebook's view: the certificate of the addresses, the bound, and the picture."""
        rows = [] if self.addresses is None else check_addresses(self.addresses, self.problem.buffers).rows()
        rows += [("bound", f"{self.bound:,} bytes"), ("method", self.method), *(("note", note) for note in self.notes)]
        picture = "" if self.addresses is None else html_picture(self.plot(), "addresses over time")
        return f"<div>{html_pairs(rows)}{picture}</div>"

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the addresses over time; see :func:`remat.schedule.address_plots.figure_of_addresses`."""
        return figure_of_addresses(self._addresses_to("draw"), ax)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the addresses to a file atomically; see :func:`remat.schedule.address_files.write_addresses`.

        Raises
        ------
        ProblemError
            Without addresses.
        FormatError
            If the file cannot be written.
        """
        write_addresses(self._addresses_to("save"), path)

    def to_frame(self) -> pandas.DataFrame:
        """Return the buffers as a data frame of pandas: name, first and last step, bytes, memory and address."""
        import pandas

        found, buffers = self._addresses_to("list"), self.problem.buffers
        return pandas.DataFrame({
            "buffer": buffers.names, "first": buffers.lower, "end": buffers.upper, "bytes": buffers.size,
            "memory": [found.memories[k].name for k in found.memory], "address": found.offset,
        })  # fmt: skip

    def _addresses_to(self, do: str) -> Addresses:
        """Return the addresses, or refuse `do` without any."""
        if self.addresses is None:
            raise ProblemError(f"there are no addresses to {do}: {self.impossible or 'none found'}", "no-addresses")
        return self.addresses


class Allocator(Algorithm):
    """Base of allocators, registered in the entry-point group ``remat.allocators``.

    Parameters
    ----------
    options : optional
        Options of the class's `options_type`; None: the defaults.

    Raises
    ------
    ProblemError
        For options of another type.

    Examples
    --------
    An allocator that never uses a byte twice:

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
    """True for allocators that can place buffers in more than one memory."""

    @classmethod
    def unavailable(cls) -> str:
        """Return the reason why it cannot be used here; empty if it can."""
        return ""

    @abstractmethod
    def allocate(
        self,
        problem: AllocationProblem,
        options: SolveOptions = DEFAULT_OPTIONS,
        start: Addresses | None = None,
        on_addresses: OnAddresses | None = None,
    ) -> Allocation:
        """Find addresses; at the deadline, and at Ctrl-C, return the best so far.

        Parameters
        ----------
        options : SolveOptions
            Deadline, threads and seed; solvers of models also use the others.
        start : Addresses, optional
            Known addresses; they are the result if none better are found.
        on_addresses : callable, optional
            Called with each better set of addresses.

        Raises
        ------
        ProblemError
            If the problem has several memories and the allocator supports only one.
        BackendError
            If a dependency is not installed.
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
        """Return a result; addresses above a capacity are dropped, and wrong addresses are an internal error.

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
