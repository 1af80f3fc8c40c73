"""Errors that a user can cause, and that the shell reports in one line.

Everything that can go wrong with input (a graph, a schedule, a budget, a config) or with a solver raises a subclass
of :class:`RematError`; the message is one line and names the culprit. Anything else is a bug in ``remat``.
"""

from __future__ import annotations


class RematError(Exception):
    """Base of all errors that are not bugs; the message is one clear line."""


class GraphError(RematError):
    """A computation graph is not well formed; the message names the op or tensor."""


class FormatError(RematError):
    """A file cannot be read or written; the message names the file and the place in it."""


class FormatRemark(UserWarning):
    """What is not wrong with a file, and yet to be known; the message is one line and names the file."""


class ScheduleError(RematError):
    """A schedule cannot be built or simulated; the message names the step."""


class ProblemError(RematError):
    """A problem is ill-posed (a budget, an order rule, ...)."""


class ModelError(RematError):
    """A model is ill-formed, or cannot be expressed in what a backend understands."""


class BackendError(RematError):
    """A solver is missing, unusable, or failed; the message names it."""


class CaptureError(RematError):
    """A module of a framework cannot be captured, or what was captured cannot be used so; the message says why."""


class MeasurementError(RematError):
    """Memory or time cannot be measured, or a cost not be found; the message names what and why."""


class ExecutionError(RematError):
    """A captured step cannot be run; the message names the op, parameter or input."""


class VerificationError(RematError):
    """A rematerialized step is not what the original computes; the message names the first difference."""
