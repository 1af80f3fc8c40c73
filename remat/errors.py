"""Errors that a user can cause, and that the shell reports in one line.

Everything that can go wrong with input (a graph, a schedule, a budget, a config) or with a solver raises a subclass
of :class:`RematError`; the message is one line and names the culprit. Anything else is a bug in ``remat``.
"""

from __future__ import annotations

from typing import ClassVar


class RematError(Exception):
    """Base of all errors that are not bugs; the message is one clear line.

    Parameters
    ----------
    message
        What is wrong, where, and what to do.
    kind
        Stable name of what is wrong, for example ``"cycle"``. The attribute `kind` has the area of the class in front,
        ``"graph.cycle"``; it is empty for errors without one.
    culprit
        Op, tensor, file or option that the message names; empty where there is none.

    Examples
    --------
    >>> error = GraphError("op 'a' reads 'x', which no op writes", "unknown-tensor", "x")
    >>> str(error), error.kind, error.culprit
    ("op 'a' reads 'x', which no op writes", 'graph.unknown-tensor', 'x')
    """

    area: ClassVar[str] = "remat"

    def __init__(self, message: str = "", kind: str = "", culprit: str = "") -> None:
        super().__init__(message)
        self.kind = f"{self.area}.{kind}" if kind else ""
        self.culprit = culprit


class GraphError(RematError):
    """A computation graph is not well formed; the message names the op or tensor."""

    area = "graph"


class FormatError(RematError):
    """A file cannot be read or written; the message names the file and the place in it."""

    area = "format"


class FormatRemark(UserWarning):
    """Remark on a file that is read all the same; the message is one line and names the file."""


class CaptureRemark(UserWarning):
    """A captured module does what a user should know of; the message is one line and names the module."""


class ScheduleError(RematError):
    """A schedule cannot be built or simulated; the message names the step."""

    area = "schedule"


class ProblemError(RematError):
    """A problem is ill-posed (a budget, an order rule, ...)."""

    area = "problem"


class ModelError(RematError):
    """A model is ill-formed, or cannot be expressed in what a backend understands."""

    area = "model"


class BackendError(RematError):
    """A solver is missing, unusable, or failed; the message names it."""

    area = "backend"


class CaptureError(RematError):
    """A module of a framework cannot be captured, or what was captured cannot be used so; the message says why."""

    area = "capture"


class MeasurementError(RematError):
    """Memory or time cannot be measured, or a cost not be found; the message names what and why."""

    area = "measurement"


class ExecutionError(RematError):
    """A captured step cannot be run; the message names the op, parameter or input."""

    area = "execution"


class VerificationError(RematError):
    """A rematerialized step is not what the original computes; the message names the first difference."""

    area = "verification"
