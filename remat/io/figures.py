"""Figures and files of them: what all plots have in common.

matplotlib is imported only when a plot is drawn, and only its object-oriented part: no window, no current figure,
no global state.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat.errors import FormatError
from remat.io.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from remat.runtime.arrays import Bool

#: File formats of pictures.
SUFFIXES = (".png", ".svg", ".pdf")
#: Colours of Okabe and Ito, distinguishable for colour-blind readers, in the order in which lines take them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def write_figure(path: str | os.PathLike[str], draw: Callable[[], Figure | Axes]) -> None:
    """Write the figure of `draw` to a ``.png``, ``.svg`` or ``.pdf`` file atomically; same figure, same bytes.

    `draw` returns a figure or the axes of one; it is called only if the file name is right.

    Raises
    ------
    FormatError
        Naming the file, if its name has another suffix or it cannot be written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        kinds = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise FormatError(f"{path}: a picture is written as {kinds}, not {suffix or 'without suffix'!r}", "picture")
    import matplotlib

    # without fixed metadata, ids and dates in the files differ from run to run
    metadata = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "remat"}):
        figure = draw().get_figure(root=True)
        assert figure is not None
        figure.savefig(buffer, format=suffix[1:], dpi=120, metadata=metadata)
    write_atomic(path, buffer.getvalue())


def empty_figure(size: tuple[float, float]) -> Figure:
    """Return an empty figure of `size` inches, unknown to pyplot, that notebooks display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """Figure with IPython's display method, which pyplot adds only to its own figures."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png")
            return picture.getvalue()

    figure = NotebookFigure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain_text(text: str) -> str:
    """Escape dollar signs; matplotlib would typeset the text between them as a formula."""
    return text.replace("$", r"\$")


def put_title(axes: Axes, title: str, columns: int) -> None:
    """Set a title above the axes, and the legend between them in the given number of columns."""
    rows = -(-len(axes.get_legend_handles_labels()[0]) // columns)
    axes.set_title(plain_text(title), fontsize="medium", pad=10 + 16 * rows)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, fontsize="small")


def draw_boxes(
    axes: Axes,
    edges: tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]],
    groups: Iterable[tuple[str, str, Bool]],
    **style: Any,
) -> None:
    """Draw rectangles given by left, right, lower and upper edges, in groups with a label and a colour."""
    import numpy as np
    from matplotlib.collections import PolyCollection

    left, right, low, high = edges
    corners = ((left, low), (right, low), (right, high), (left, high))
    boxes = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)
    for label, colour, chosen in groups:
        if chosen.any():
            look = {"edgecolors": colour, **style}
            axes.add_collection(PolyCollection(list(boxes[chosen]), facecolors=colour, label=label, **look))
