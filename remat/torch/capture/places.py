"""Where an fx node comes from: the module that called it, the user's line of source."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from os.path import commonprefix
from pathlib import Path

import torch

#: The root of a path in an ``nn_module_stack``, and the ways in which items of containers are written there.
_ROOT = re.compile(r"^(?:L\['self'\]|L__self__)\.?")
_ITEM = re.compile(r"\._modules\['([^']+)'\]|\[['\"]?([^'\"\]]+)['\"]?\]")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
#: File, line and function.
Frame = tuple[str, int, str]
_TORCH = Path(torch.__file__).parent
#: Starts of files whose frames are not the user's; "torch/" rather than "torch", which torch_geometric begins with.
_OTHERS = (f"{_TORCH}{os.sep}", f"{Path(__file__).parent}{os.sep}", "<")
#: The folder of installed packages.
INSTALLED = f"{_TORCH.parent}{os.sep}"


def module_path(node: torch.fx.Node, prefix: str = "") -> str | None:
    """Dotted path of the module that a node belongs to, or that its forward op belongs to; None where unknown.

    `prefix` is a first part of all paths that is left out.
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
    """File, line and function of the innermost frame outside torch and this package; None where unknown."""
    found = users_frame(frames_in(node.meta.get("stack_trace") or ""))
    return None if found is None else list(found)


def frames_in(text: str) -> list[Frame]:
    """File, line and function of the frames in the text of a traceback, the innermost last."""
    return [(file, int(line), function) for file, line, function in _FRAME.findall(text)]


def users_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame that is neither torch's nor of this package."""
    return next((frame for frame in reversed(frames) if not frame[0].startswith(_OTHERS)), None)


def module_paths(nodes: Iterable[torch.fx.Node], prefix: str = "") -> dict[torch.fx.Node, str]:
    """Paths of the modules of nodes; sums of gradients belong to what all of their terms do."""
    found: dict[torch.fx.Node, str] = {}
    for node in nodes:
        path = module_path(node, prefix)
        if path is None and (node.meta.get("partitioner_tag") == "is_backward"):
            parts = [found[each].split(".") for each in node.all_input_nodes if each in found]
            path = ".".join(commonprefix(parts))  # noqa: RUF071 (of lists)
        if path:
            found[node] = path
    return found
