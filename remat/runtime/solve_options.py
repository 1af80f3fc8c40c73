"""Options of a solve, its status, and its stop reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from remat.errors import ProblemError
from remat.runtime.deadline import Deadline
from remat.runtime.sizes import memory_bytes
from remat.runtime.text import short


class Status(StrEnum):
    """Status of a model after a solve; :class:`StopReason` says why the solver stopped."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"
    ERROR = "error"


class StopReason(StrEnum):
    """Reason why a solver stopped."""

    FINISHED = "finished"
    """It proved what there is to prove."""
    EXHAUSTED = "exhausted"
    """It has nothing left to try, and has proved nothing."""
    GAP = "gap"
    """The wanted relative gap is reached."""
    CRITERION = "criterion"
    """A stopping criterion holds: a cost, a first schedule, some time without a better one."""
    DEADLINE = "deadline"
    INTERRUPTED = "interrupted"
    """Ctrl-C, or a callback returned true."""
    OTHER = "other"
    """A limit of the solver's own (memory, iterations)."""


#: Largest seed and largest number of threads that every solver accepts.
MOST = 2**31 - 1
#: Default relative gap at which a solve stops: 0.0001 %.
DEFAULT_GAP = 1e-6
#: Words for the start of a search (:attr:`SolveOptions.start`).
STARTS = ("auto", "none", "alone")


@dataclass(frozen=True)
class SolveOptions:
    """Options of methods, heuristics, bounds, backends and child processes.

    Attributes
    ----------
    deadline : Deadline
        Covers build and solve. :func:`remat.solve` sets it from `stop`.
    threads : int or None
        None: all CPUs that this process may use.
    seed : int
        Seed of all random choices.
    relative_gap : float
        Stop when (objective − bound) / objective is at most this; 0: prove optimality.
    log : callable taking a line of text, or None
        Receives the solver's own log.
    solver : mapping
        Passed to the solver untouched (names as in its manual).
    isolate : bool
        Run every solver in a process of its own (:class:`remat.backends.isolated.Isolated`), which is killed
        if it misses the deadline; its solutions so far are kept. Backends themselves ignore it.
    memory_limit : int, str or None
        Bytes that such a process may hold (``"4GiB"``); implies `isolate`. Stored as a number of bytes.
    start : str or Schedule
        Start of a formulation's search if no warm start is given. ``"auto"``: the schedule of a heuristic.
        ``"none"``: no start, so that a result shows what formulation and solver achieve alone. ``"alone"``: likewise,
        and for the least cost not even the reference order is an answer, so that a result shows the method's own
        schedule. A schedule is a warm start. Backends ignore it.

    Raises
    ------
    ProblemError
        If an option is out of range; it names the option.

    Examples
    --------
    >>> SolveOptions(threads=2, memory_limit="4GiB").memory_limit
    4294967296
    >>> SolveOptions(threads=0)
    Traceback (most recent call last):
    remat.errors.ProblemError: threads must be a whole number from 1, not 0
    """

    deadline: Deadline = field(default_factory=Deadline)
    threads: int | None = None
    seed: int = 0
    relative_gap: float = DEFAULT_GAP
    log: Callable[[str], None] | None = None
    solver: Mapping[str, Any] = field(default_factory=dict)
    isolate: bool = False
    memory_limit: int | str | None = None
    start: Any = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.deadline, Deadline):
            raise ProblemError(
                f"the deadline must be a Deadline, not {self.deadline!r}; `stop` takes seconds", "bad-deadline"
            )
        for what, value, least in (("threads", self.threads, 1), ("seed", self.seed, 0)):
            if value is None and what == "threads":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ProblemError(f"{what} must be a whole number from {least}, not {short(value)}", "number")
            if value > MOST:
                raise ProblemError(
                    f"{what} must be at most {MOST:,}, which all solvers take, not {short(value)}", "large-seed"
                )
        gap = self.relative_gap
        if isinstance(gap, bool) or not isinstance(gap, int | float) or not 0 <= gap < 1:
            raise ProblemError(f"the relative gap must be at least 0 and below 1, not {gap!r}", "bad-gap")
        if self.log is not None and not callable(self.log):
            raise ProblemError(f"the log must be a callable that takes a line of text, not {self.log!r}", "bad-log")
        if not isinstance(self.solver, Mapping):
            raise ProblemError(f"solver options must be a mapping of names to values, not {self.solver!r}", "solver")
        object.__setattr__(self, "solver", dict(self.solver))
        if self.memory_limit is not None:
            object.__setattr__(self, "memory_limit", memory_bytes(self.memory_limit))
            object.__setattr__(self, "isolate", True)
        if isinstance(self.start, str) and self.start not in STARTS:
            raise ProblemError(
                f"start is 'auto', 'none', 'alone' or a schedule, not {self.start!r}",
                "bad-start",
            )

    @property
    def from_nothing(self) -> bool:
        """Return True if no other method makes a start."""
        return isinstance(self.start, str) and self.start in ("none", "alone")

    @property
    def memory_bytes(self) -> int | None:
        """Memory limit in bytes; None: no limit."""
        return self.memory_limit if isinstance(self.memory_limit, int) else None


#: Defaults of all options.
DEFAULT_OPTIONS = SolveOptions()
