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
        Stable name of the error, for example ``"cycle"``. The attribute `kind` adds the area of the class, as in
        ``"graph.cycle"``; it is empty for errors without a name.
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
    """Remark on a file that can still be read; the message is one line and names the file."""


class UntestedTorchWarning(UserWarning):
    """The installed PyTorch is newer than the versions that `remat.torch` is tested with."""


class CaptureRemark(UserWarning):
    """A captured module does something that users should know; the message is one line and names the module."""


class ScheduleError(RematError):
    """A schedule cannot be built or simulated; the message names the step."""

    area = "schedule"


class ProblemError(RematError):
    """A problem is ill-posed (a budget, an order rule, ...)."""

    area = "problem"


class ModelError(RematError):
    """A model is ill-formed, or cannot be expressed for a backend."""

    area = "model"


class BackendError(RematError):
    """A solver is missing, unusable, or failed; the message names it."""

    area = "backend"


class CaptureError(RematError):
    """A module of a framework cannot be captured, or its capture cannot be used as requested; the message says why."""

    area = "capture"


class MeasurementError(RematError):
    """Memory or time cannot be measured, or a cost cannot be found; the message says which and why."""

    area = "measurement"


class ExecutionError(RematError):
    """A captured step cannot be run; the message names the op, parameter or input."""

    area = "execution"


class VerificationError(RematError):
    """A rematerialized step computes other values than the original; the message names the first difference."""

    area = "verification"
