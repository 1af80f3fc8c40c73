"""The allocators of the library `omnimalloc`, each in a process of its own."""

from __future__ import annotations

import json
import math
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import numpy as np

from remat.allocation.base import Allocation, Allocator, OnAddresses
from remat.allocation.problem import AllocationProblem
from remat.backends.base import DEFAULT_OPTIONS, SolveOptions, wheel_availability
from remat.backends.processes.children import child
from remat.backends.resources import available_cpus
from remat.errors import BackendError
from remat.io.text import clipped, one_line
from remat.schedule.addresses import Addresses

#: Versions of the library that this is written for.
VERSIONS = ">=1.0,<2"
#: Seconds between two looks at the clock, those before the deadline at which the library is to end, those that its
#: process has beyond it, and its longest run.
TICK, EARLY, GRACE, LONGEST = 0.02, 0.1, 1.0, 3600.0


class LibraryAllocator(Allocator):
    """An allocator of `omnimalloc`; it knows neither capacities nor several memories.

    It runs in a process that is ended at the deadline or by Ctrl-C; the library is told of the deadline, too, where it
    has limits of its own.

    Source: F. Peddinghaus, omnimalloc (Apache-2.0).
    """

    theirs: ClassVar[str]
    """The library's own name of the allocator."""
    limited: ClassVar[bool] = False
    """Whether it has a limit of time of its own."""

    @classmethod
    def unavailable(cls) -> str:
        state = wheel_availability("omnimalloc", VERSIONS, "remat[allocation]")
        return "" if state.ready else state.reason

    def allocate(
        self,
        problem: AllocationProblem,
        options: SolveOptions = DEFAULT_OPTIONS,
        start: Addresses | None = None,
        on_addresses: OnAddresses | None = None,
    ) -> Allocation:
        self.one_memory(problem)
        if reason := self.unavailable():
            raise BackendError(f"allocator {self.name!r} cannot be used: {reason}")
        held = np.flatnonzero(problem.sizes > 0)
        if problem.contradiction or not len(held) or options.deadline.expired:
            return self.found(problem, start)
        c = problem.compressed
        left = options.deadline.remaining
        job = {
            "allocator": self.theirs,
            "until": time.monotonic() + min(left, LONGEST) if self.limited else None,
            "threads": options.threads or available_cpus(),
            "seed": options.seed,
            "lower": problem.buffers.lower[held].tolist(),
            "upper": problem.buffers.upper[held].tolist(),
            "size": c.size[held].tolist(),
        }
        said = _answer(job, options)
        if "error" in said:
            raise BackendError(f"allocator {self.name!r} failed: {clipped(one_line(said['error']), 300)}")
        if not said:
            note = "interrupted" if math.isinf(options.deadline.seconds) else "not done at the deadline"
            return self.found(problem, start, notes=(note,))
        offset = np.zeros(len(problem.buffers), dtype=np.int64)
        offset[held] = np.array(said["offset"], dtype=np.int64) * c.unit
        addresses = problem.addresses(offset, source=self.name)
        bound = addresses.arena if said.get("proved") else 0
        answer = self.found(problem, addresses, bound if problem.open_memories else 0)
        if answer.addresses is None or (start is not None and problem.price(start) <= problem.price(addresses)):
            return self.found(problem, start if start is not None else addresses, answer.bound, notes=answer.notes)
        if on_addresses is not None:
            on_addresses(addresses)
        return answer


def _answer(job: dict[str, Any], options: SolveOptions) -> dict[str, Any]:
    """What a process says to a job; nothing, where it is not done in time."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = child(_serve, (theirs, json.dumps(job)), (__name__,))
    process.start()
    theirs.close()
    try:
        late = 0.0
        while not ours.poll(TICK):
            late += TICK if options.deadline.expired else 0.0
            if late > (GRACE if math.isfinite(options.deadline.seconds) else 0.0):
                return {}
        return dict(json.loads(ours.recv_bytes(2**30)))
    except (EOFError, OSError):
        process.join(1)
        return {"error": f"its process ended with exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()
        ours.close()


def _serve(connection: Connection, text: str) -> None:
    """In the process: call the library and report."""
    from remat.backends.processes.guard import end_with_parent

    end_with_parent()
    try:
        said = _run(json.loads(text))
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    connection.send_bytes(json.dumps(said).encode())


def _run(job: dict[str, Any]) -> dict[str, Any]:
    import omnimalloc
    from omnimalloc import allocators as known

    columns = zip(job["size"], job["lower"], job["upper"], strict=True)
    asked = tuple(
        omnimalloc.Allocation(id=k, size=size, start=lower, end=upper) for k, (size, lower, upper) in enumerate(columns)
    )
    omnimalloc.set_max_threads(job["threads"])
    name, limit = job["allocator"], None
    if job["until"] is not None:  # a point in time that all processes of the machine share
        limit = max(job["until"] - time.monotonic() - EARLY, 0.001)
    proved = False
    if name == "supermalloc":
        result = known.SupermallocAllocator(timeout=limit, num_threads=job["threads"]).solve(asked)
        placed, proved = result.allocations, bool(result.proved_optimal)
    else:
        made = {
            "telamalloc": lambda: known.TelamallocAllocator(seed=job["seed"], max_backtracks=2**31 - 1, timeout=limit),
            "minimalloc": lambda: known.MinimallocAllocator(timeout=limit),
            "greedy": lambda: known.GreedyByAllAllocator(num_threads=job["threads"]),
            "best_fit": known.BestFitAllocator,
        }[name]()
        placed = made.allocate(asked)
    offset = {found.id: found.offset for found in placed}
    return {"offset": [offset[k] for k in range(len(asked))], "proved": proved}


class SuperMalloc(LibraryAllocator):
    """A portfolio of branch-and-bound searches on the least arena, with a proof where it closes."""

    name, theirs, limited = "supermalloc", "supermalloc", True


class TelaMalloc(LibraryAllocator):
    """Search in tiers of long and large buffers, after Maas et al., ASPLOS 2023, as the library adapts it."""

    name, theirs, limited = "telamalloc", "telamalloc", True


class MiniMalloc(LibraryAllocator):
    """The published solver of Moffitt, ASPLOS 2023; it needs Google's package `minimalloc`, which no registry has."""

    name, theirs, limited = "minimalloc", "minimalloc", True

    @classmethod
    def unavailable(cls) -> str:
        import importlib.util

        if reason := super().unavailable():
            return reason
        if importlib.util.find_spec("minimalloc") is None:
            return "the package minimalloc is not installed; github.com/google/minimalloc says how (no registry has it)"
        return ""


class LibraryGreedy(LibraryAllocator):
    """The library's first fit in seven orders."""

    name, theirs = "omnimalloc-greedy", "greedy"


class LibraryBestFit(LibraryAllocator):
    """The library's best fit in the order given."""

    name, theirs = "omnimalloc-best-fit", "best_fit"
