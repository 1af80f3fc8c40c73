"""Origin of an fx node: the module that called it, and the user's line of source."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from os.path import commonprefix
from pathlib import Path

import torch

#: Root of a path in an ``nn_module_stack``, and the forms of items of containers in it.
_ROOT = re.compile(r"^(?:L\['self'\]|L__self__)\.?")
_ITEM = re.compile(r"\._modules\['([^']+)'\]|\[['\"]?([^'\"\]]+)['\"]?\]")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
#: File, line and function.
Frame = tuple[str, int, str]
_TORCH = Path(torch.__file__).parent
#: Prefixes of files that are not the user's; "torch/" rather than "torch", a prefix of torch_geometric.
_OTHERS = (f"{_TORCH}{os.sep}", f"{Path(__file__).parent}{os.sep}", "<")
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
