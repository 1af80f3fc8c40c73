"""Module paths and source lines of fx nodes, and messages for errors of capture."""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from os.path import commonprefix
from pathlib import Path

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from remat.errors import CaptureError
from remat.torch.capture.traced import opaque
from remat.torch.private import DataDependentOutputException, DynamicOutputShapeException

#: Root of a path in an ``nn_module_stack``, and the forms of items of containers in it.
_ROOT = re.compile(r"^(?:L\['self'\]|L__self__)\.?")
_ITEM = re.compile(r"\._modules\['([^']+)'\]|\[['\"]?([^'\"\]]+)['\"]?\]")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
#: File, line and function.
Frame = tuple[str, int, str]
_TORCH = Path(torch.__file__).parent
#: Prefixes of files that are not the user's; "torch/" rather than "torch", which also begins torch_geometric.
_OTHERS = (f"{_TORCH}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}", "<")
#: Folder of installed packages.
INSTALLED = f"{_TORCH.parent}{os.sep}"


def module_path(node: torch.fx.Node, prefix: str = "") -> str | None:
    """Return the dotted path of the module of a node or of its forward op; None if unknown.

    `prefix` is a common first part of all paths to remove.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return None
    path = _ROOT.sub("", str(list(stack.values())[-1][0]))
    path = _ITEM.sub(lambda found: "." + (found[1] or found[2]), path).lstrip(".")
    if prefix and (path == prefix or path.startswith(prefix + ".")):
        path = path[len(prefix) + 1 :]
    return path


def source_line(node: torch.fx.Node) -> list[str | int] | None:
    """Return file, line and function of the innermost frame outside torch and this package; None if unknown."""
    found = users_frame(frames_in(node.meta.get("stack_trace") or ""))
    return None if found is None else list(found)


def frames_in(text: str) -> list[Frame]:
    """Return file, line and function of the frames in the text of a traceback, the innermost last."""
    return [(file, int(line), function) for file, line, function in _FRAME.findall(text)]


def users_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame outside torch and this package."""
    return next((frame for frame in reversed(frames) if not frame[0].startswith(_OTHERS)), None)


def module_paths(nodes: Iterable[torch.fx.Node], prefix: str = "") -> dict[torch.fx.Node, str]:
    """Return the module paths of nodes; a sum of gradients gets the common path of its terms."""
    found: dict[torch.fx.Node, str] = {}
    for node in nodes:
        path = module_path(node, prefix)
        if path is None and (node.meta.get("partitioner_tag") == "is_backward"):
            parts = [found[each].split(".") for each in node.all_input_nodes if each in found]
            path = ".".join(commonprefix(parts))  # noqa: RUF071 (of lists)
        if path:
            found[node] = path
    return found


#: Dynamo's message for an output that it cannot flatten.
_OPAQUE = re.compile(r"unrecognized type \w+\((\w+)\) at output (\d+)")
#: PyTorch's message for an argument with a gradient that is changed in place.
_IN_PLACE = "leaf Variable that requires grad"
_DEPENDS_ON_DATA = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
#: Logger that repeats the exception at length on standard error.
_LOUD = DataDependentOutputException.__module__


def explained(module: torch.nn.Module, error: Exception) -> CaptureError:
    """Return the error of a route as a :class:`~remat.errors.CaptureError`."""
    from remat.torch.private import TorchDynamoException  # here, since Dynamo takes two seconds

    name = type(module).__name__
    if isinstance(error, CaptureError):
        return error
    if depends_on_data(error):
        what = first_line(error)
        part = "call ctc_loss" if "_ctc_loss" in what else "compute it"
        return CaptureError(
            f"module {name!r} has an op that depends on the values of tensors, not only on their shapes"
            f"{_place(error)}: {what}; {part} outside of the module",
            "data-dependent",
        )
    refused = _OPAQUE.search(str(error))
    if refused is not None:
        return CaptureError(opaque(*refused.groups()), "opaque-output")
    if isinstance(error, TorchDynamoException):
        return CaptureError(f"Dynamo cannot follow module {name!r}{_place(error)}: {first_line(error)}", "dynamo")
    remedy = "; a block cannot change its argument: x = x + y, or inplace=False" if _IN_PLACE in str(error) else ""
    what = first_line(error).rstrip(".") + remedy
    return CaptureError(
        f"module {name!r} fails on the sample arguments{_place(error)}: {type(error).__name__}: {what}", "fails"
    )


def depends_on_data(error: BaseException | None) -> bool:
    """Return True if control flow, or a size, depends on the values of tensors."""
    while error is not None:
        if isinstance(error, _DEPENDS_ON_DATA) or "data-dependent" in first_line(error).lower():
            return True
        error = error.__cause__
    return False


@contextmanager
def quiet_torch(name: str = _LOUD) -> Iterator[None]:
    """Silence a logger of torch that reports errors which torch also raises."""
    logger = logging.getLogger(name)
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
