"""Status of a solve, and why it stopped."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Status of a model after a solve; :class:`StopReason` says why the solver stopped."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"
    ERROR = "error"


class StopReason(StrEnum):
    """Why a solver stopped."""

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
