"""Function that finds addresses with any allocator."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from remat.allocation.base import Allocation, Allocator, OnAddresses
from remat.allocation.problem import AllocationProblem
from remat.errors import ProblemError, RematError
from remat.graphs.io import as_graph
from remat.registry import make
from remat.runtime.deadline import Deadline
from remat.runtime.interruption import interrupts
from remat.runtime.solve_options import DEFAULT_OPTIONS, SolveOptions
from remat.runtime.text import short
from remat.schedule import Buffers, Schedule, schedule_buffers
from remat.schedule.addresses import Addresses, check_addresses
from remat.schedule.buffer_tables import read_table

if TYPE_CHECKING:
    from remat.graphs.io import GraphLike

#: Default time limit of a search in seconds.
TIME_LIMIT = 60.0


def allocate(
    problem: AllocationProblem | Buffers | GraphLike,
    method: str | type[Allocator] | Allocator = "auto",
    *,
    time_limit: float | None = TIME_LIMIT,
    start: Addresses | None = None,
    on_addresses: OnAddresses | None = None,
    options: SolveOptions = DEFAULT_OPTIONS,
    method_options: Any = None,
) -> Allocation:
    """Find addresses for buffers; at the time limit and at Ctrl-C, return the best so far.

    Parameters
    ----------
    problem : AllocationProblem, Buffers, path, str or graph
        Also buffers, their table (``.csv``), or a graph (or its file or name), whose reference order is taken.
    method : str, type or Allocator
        Name in the entry-point group ``remat.allocators``, or an allocator or its class.
    time_limit : float or None
        Seconds; None: until a proof.
    start : Addresses, optional
        Known addresses to improve.
    on_addresses : callable, optional
        Called with each better set of addresses.
    options : SolveOptions
        Threads, seed and others; `time_limit` replaces its deadline.
    method_options : optional
        Options of the method's `options_type`.

    Raises
    ------
    ProblemError
        If the method does not support the problem, or `start` is for other buffers.
    BackendError
        If a dependency is not installed.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.schedule import Schedule, schedule_buffers
    >>> graph = unit_chain(8)
    >>> found = allocate(AllocationProblem(schedule_buffers(graph, Schedule.reference(graph))))
    >>> found.price == graph.reference_peak, found.proved, allocate(graph, "first-fit").price == found.price
    (True, True, True)
    """
    problem = _asked(problem)
    if time_limit is not None and not (isinstance(time_limit, int | float) and 0 <= time_limit < math.inf):
        raise ProblemError(f"the time limit must be a number of seconds, not {short(time_limit)}", "time-limit")
    if start is not None and start.buffers is not problem.buffers:
        raise ProblemError("the addresses to start from are for other buffers", "other-buffers")
    allocator = _made(method, method_options)
    if reason := allocator.unavailable():
        raise RematError(f"allocator {allocator.name!r} cannot be used: {reason}", "unavailable")
    with interrupts():
        mine = replace(options, deadline=Deadline.after(time_limit))
        if problem.buffers.after:
            return _by_chains(problem, allocator, mine, start, on_addresses)
        return allocator.allocate(problem, mine, start, on_addresses)


def _asked(problem: AllocationProblem | Buffers | GraphLike) -> AllocationProblem:
    """Return a problem as it is, or that of buffers, their table, or the reference order of a graph."""
    if isinstance(problem, AllocationProblem):
        return problem
    if isinstance(problem, Buffers):
        return AllocationProblem(problem)
    if isinstance(problem, str | os.PathLike) and Path(problem).suffix.lower() == ".csv":
        return AllocationProblem(read_table(problem)[0])
    graph = as_graph(problem)
    return AllocationProblem(schedule_buffers(graph, Schedule.reference(graph)))


def _by_chains(
    problem: AllocationProblem, allocator: Allocator, options: SolveOptions, start: Addresses | None,
    on_addresses: OnAddresses | None,
) -> Allocation:  # fmt: skip
    """Let an allocator place buffers written in each other's place as one buffer, which loses no solutions."""
    whole, which = problem.buffers.chains()
    allowed = None
    if problem.allowed is not None:
        allowed = np.ones((len(whole), len(problem.memories)), dtype=np.bool_)
        np.logical_and.at(allowed, which, problem.allowed)
    chained = AllocationProblem(whole, problem.memories, problem.alignment, allowed)
    first = np.array([int(np.flatnonzero(which == k)[0]) for k in range(len(whole))], dtype=np.int64)

    def apart(found: Addresses) -> Addresses:
        return problem.addresses(found.offset[which], found.memory[which], found.source)

    begin = None
    if start is not None and check_addresses(start).accepted:
        begin = chained.addresses(start.offset[first], start.memory[first], start.source)
    tell = None if on_addresses is None else lambda found: on_addresses(apart(found))
    answer = allocator.allocate(chained, options, begin, tell)
    addresses = None if answer.addresses is None else apart(answer.addresses)
    return replace(answer, problem=problem, addresses=addresses)


def _made(method: str | type[Allocator] | Allocator, options: Any) -> Allocator:
    if isinstance(method, str):
        found = make("allocators", method, options)
    else:
        found = method(options) if isinstance(method, type) else method
    if not isinstance(found, Allocator):
        raise ProblemError(f"{short(method)} is no allocator")
    return found
