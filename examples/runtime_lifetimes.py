"""Draw what each runtime counts: ``python runtime_lifetimes.py docs/images/runtimes.png``."""

import sys
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from remat.io.figures import FIRST, GIVEN, LABEL, RULE, TITLE, figure_of, new_panels, write_figure

#: Tensors of x -> relu a -> reshape v -> relu b -> pool y; v has the bytes of a.
TENSORS = ("x", "a", "v (view)", "b", "y")
OPS = ("relu", "reshape", "relu", "pool", "end")
RUNTIMES = ("TFLM", "LiteRT", "ExecuTorch", "ONNX Runtime")
END = len(OPS)


def spans(runtime: str) -> dict[str, tuple[int, int, bool]]:
    """Return for each tensor its first op, its end (exclusive), and True if its bytes count."""
    held = {"x": (0, 1, True), "a": (0, 2, True), "v (view)": (1, 3, True), "b": (2, 4, True), "y": (3, END, True)}
    if runtime != "TFLM":
        held |= {"a": (0, 3, True), "v (view)": (1, 3, False)}
    if runtime in ("LiteRT", "ONNX Runtime"):
        held["x"] = (0, END, runtime == "LiteRT")
    return held


def draw() -> Figure:
    """Draw the lifetimes in four runtimes."""
    panels = new_panels(None, (8, 4.4), 2, 2, sharex=True, sharey=True)
    for axes, runtime in zip(panels, RUNTIMES, strict=True):
        axes.set_title(runtime, fontsize=TITLE, loc="left")
        for row, (tensor, (begin, end, counts)) in enumerate(spans(runtime).items()):
            colour = GIVEN if tensor == "x" else FIRST
            style: dict[str, Any] = {"color": colour} if counts else hollow(colour)
            axes.barh(row, end - begin, left=begin, height=0.66, **style)
        axes.set_xticks([place + 0.5 for place in range(END)], OPS, fontsize=LABEL)
        axes.set_xticks(range(1, END), minor=True)
        axes.grid(which="minor", axis="x", color=RULE, linewidth=0.7)
        axes.tick_params(which="both", length=0)
    panels[0].set(xlim=(0, END), ylim=(len(TENSORS) - 0.5, -0.5))
    panels[0].set_yticks(range(len(TENSORS)), TENSORS, fontsize=LABEL)
    figure = figure_of(panels[0])
    handles = [
        Patch(color=GIVEN, label="graph input"), Patch(color=FIRST, label="computed"),
        Patch(**hollow(FIRST), label="no bytes of its own, or the caller's"),
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=LABEL)
    return figure


def hollow(colour: str) -> dict[str, Any]:
    """Return the style of bars that do not count."""
    return {"facecolor": "white", "edgecolor": colour, "hatch": "////", "linewidth": 1.0}


write_figure(sys.argv[1], draw)
