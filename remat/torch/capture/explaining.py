"""Errors of capture: one line, with the place in the user's source."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from remat.errors import CaptureError
from remat.torch.capture.origins import INSTALLED, frames_in, users_frame
from remat.torch.capture.traced import opaque

#: Dynamo's message for an output that it cannot flatten.
_OPAQUE = re.compile(r"unrecognized type \w+\((\w+)\) at output (\d+)")
_DEPENDS_ON_DATA = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
#: Logger that repeats the exception at length on standard error.
_LOUD = "torch._subclasses.fake_tensor"


def explained(module: torch.nn.Module, error: Exception) -> CaptureError:
    """Return the error of a route as a :class:`~remat.errors.CaptureError`."""
    from torch._dynamo.exc import TorchDynamoException  # here, since Dynamo takes two seconds

    name = type(module).__name__
    if isinstance(error, CaptureError):
        return error
    if depends_on_data(error):
        what = first_line(error)
        advice = "; call ctc_loss outside of the module" if "_ctc_loss" in what else ""
        return CaptureError(
            f"module {name!r} does what depends on the values of tensors, not only on their shapes"
            f"{_place(error)}: {what}{advice}",
            "data-dependent",
        )
    refused = _OPAQUE.search(str(error))
    if refused is not None:
        return CaptureError(opaque(*refused.groups()), "opaque-output")
    if isinstance(error, TorchDynamoException):
        return CaptureError(f"Dynamo cannot follow module {name!r}{_place(error)}: {first_line(error)}", "dynamo")
    return CaptureError(
        f"module {name!r} fails on the sample arguments{_place(error)}: {type(error).__name__}: {first_line(error)}",
        "fails",
    )


def depends_on_data(error: BaseException | None) -> bool:
    """Return whether control flow, or a size, depends on the values of tensors."""
    while error is not None:
        if isinstance(error, _DEPENDS_ON_DATA) or "data-dependent" in first_line(error).lower():
            return True
        error = error.__cause__
    return False


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Silence torch's logger of errors that it also raises."""
    logger = logging.getLogger(_LOUD)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _place(error: BaseException) -> str:
    """Return the innermost place in the user's source, from the text of Dynamo's message or from the traceback.

    If that place is in an installed package, the line of the user's own code that leads there comes first.
    """
    frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    frames = named if users_frame(named := frames_in(str(error))) else frames
    own = [frame for frame in frames if not frame[0].startswith(INSTALLED)]
    places = dict.fromkeys(filter(None, (users_frame(own), users_frame(frames))))
    return f" ({'; '.join(f'{file}, line {line}' for file, line, _ in places)})" if places else ""
