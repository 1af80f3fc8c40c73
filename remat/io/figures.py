"""Style, layout and files of figures: what all plots have in common.

matplotlib is imported only when a plot is drawn, and only its object-oriented part: no window, no current figure,
no global state. Sizes of fonts are names, relative to the user's ``font.size``.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from remat.errors import FormatError
from remat.io.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from numpy.typing import NDArray

    from remat.runtime.arrays import Bool

#: File formats of pictures.
SUFFIXES = (".png", ".svg", ".pdf")
#: Colours of Okabe and Ito, distinguishable for colour-blind readers, in the order in which lines take them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
#: Roles, from the same colours: first computes, recomputations, fetches from a host, graph inputs and workspace.
FIRST, AGAIN, FETCHED, GIVEN = "#56B4E9", "#D55E00", "#009E73", "#BBBBBB"
#: Text and lines, secondary text, lines of a grid, areas in which no schedule exists, faults.
INK, GREY, RULE, RULED_OUT, FAULT = "#222222", "#666666", "#DDDDDD", "#E6E6E6", "#A00020"
#: Tints of first computes, light to dark, for neighbours that touch.
TINTS = ("#A9D8F2", "#7FC4EA", "#56B4E9", "#2F93CC", "#0072B2")
#: Sizes of titles, of labels and legends, and of names inside a picture.
TITLE, LABEL, NAME = "medium", "small", "x-small"
#: Letters of a title per inch of new axes, which the final layout widens by a fifth.
TITLE_LETTERS = 15


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
        found = repr(suffix) if suffix else "without a suffix"
        raise FormatError(f"{path}: a picture is written as {kinds}, not {found}", "picture")
    import matplotlib

    # without fixed metadata, ids and dates in the files differ from run to run
    metadata = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "remat"}):
        figure_of(draw()).savefig(buffer, format=suffix[1:], dpi=120, metadata=metadata)
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


def new_axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """Return the given axes, or those of a new figure of `size` inches in the style of all plots."""
    return dressed(empty_figure(size).subplots()) if ax is None else ax


def new_panels(ax: Axes | None, size: tuple[float, float], rows: int, columns: int = 1, **grid: Any) -> list[Axes]:
    """Return axes in rows and columns: of a new figure of `size` inches, or in the place of `ax`, which is hidden.

    `grid`: keywords of ``Figure.subplots``.
    """
    if ax is None:
        return [dressed(each) for each in empty_figure(size).subplots(rows, columns, squeeze=False, **grid).flat]
    ax.set_axis_off()
    spec = ax.get_subplotspec()
    keywords = grid.pop("gridspec_kw", {})
    figure = ax.get_figure(root=False)
    assert figure is not None
    if spec is not None:
        inner = spec.subgridspec(rows, columns, **keywords)
    else:
        left, bottom, width, height = ax.get_position().bounds
        edges = {"left": left, "right": left + width, "bottom": bottom, "top": bottom + height}
        inner = figure.add_gridspec(rows, columns, **edges, **keywords)  # type: ignore[assignment]
    return [dressed(each) for each in inner.subplots(squeeze=False, **grid).flat]


def dressed(axes: Axes) -> Axes:
    """Give new axes the style of all plots."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(labelsize=LABEL, color=GREY)
    axes.set_axisbelow(True)
    return axes


def figure_of(drawn: Figure | Axes) -> Figure:
    """Return the whole figure that axes or a part of a figure belong to."""
    figure = drawn.get_figure(root=True)
    assert figure is not None
    return figure


def rule(axes: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Draw a light grid below everything else."""
    axes.grid(axis=axis, color=RULE, linewidth=0.7)
    axes.set_axisbelow(True)


def logarithmic(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with plain numbers at 1, 2 and 5 of each power of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def line_style(number: int) -> tuple[str, str]:
    """Return colour and marker of the line with a number; the first 49 lines differ in one or both.

    Examples
    --------
    >>> line_style(0), line_style(7)
    (('#0072B2', 'o'), ('#0072B2', 's'))
    """
    turns, place = divmod(number, len(COLOURS))
    return COLOURS[place], MARKERS[(place + turns) % len(MARKERS)]


def raised(axes: Axes, points: float) -> Any:
    """Return the transformation of data moved up by some points, so that lines that coincide lie next to each other."""
    from matplotlib.transforms import ScaledTranslation

    return axes.transData + ScaledTranslation(0, points / 72, figure_of(axes).dpi_scale_trans)


def spread(places: Sequence[float], room: float, low: float, high: float) -> list[float]:
    """Move places apart by at least `room`, as little as possible, and keep their order, between `low` and `high`.

    If they do not fit, they get equal distances.

    Examples
    --------
    >>> spread([1, 1, 5], 2, 0, 10)
    [0.0, 2.0, 5.0]
    >>> spread([9, 9], 2, 0, 10)
    [8.0, 10.0]
    """
    room = min(room, (high - low) / max(len(places) - 1, 1))
    order = sorted(range(len(places)), key=lambda k: places[k])
    blocks: list[tuple[float, int]] = []  # sum of the offsets of the members from the first, and their number

    def start(block: tuple[float, int]) -> float:
        return min(max(block[0] / block[1], low), high - room * (block[1] - 1))

    for k in order:  # pool adjacent violators
        blocks.append((float(places[k]), 1))
        while len(blocks) > 1 and start(blocks[-2]) + room * blocks[-2][1] > start(blocks[-1]) + 1e-12:
            (total, count), (more, others) = blocks[-2], blocks[-1]
            blocks[-2:] = [(total + more - room * count * others, count + others)]
    result = [0.0] * len(places)
    ranked = iter(order)
    for block in blocks:
        for step in range(block[1]):
            result[next(ranked)] = start(block) + room * step
    return result


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write a label for each height at the right edge of the axes, moved apart, with thin lines to the heights.

    `ends`: y in data, text, colour. Call it when the scale is set.
    """
    figure = figure_of(axes)
    figure.draw_without_rendering()
    box = axes.get_window_extent()
    shares = [float((axes.transData.transform((0, y))[1] - box.y0) / max(box.height, 1)) for y, *_ in ends]
    room = 1.35 * 10 * _LABEL_SCALE * figure.dpi / 72 / max(box.height, 1)
    for (y, text, colour), height in zip(ends, spread(shares, room, 0.0, 1.0), strict=True):
        axes.annotate(
            plain_text(text), (1, y), (1.035, height), ("axes fraction", "data"), "axes fraction", color=colour,
            fontsize=LABEL, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "relpos": (0, 0.5), "shrinkA": 1,
                        "shrinkB": 0},
        )  # fmt: skip


#: Height of a label's font relative to ``font.size``, and offsets in points at which labels are tried.
_LABEL_SCALE = 0.833
_OFFSETS = [(sign * x, y) for x in (5, 14, 26) for y in (4, -12, 12, -20, 22) for sign in (1, -1)]


def place_labels(axes: Axes, labels: Sequence[tuple[float, float, str, str]]) -> list[Annotation]:
    """Write a label next to each point where it covers neither points nor other labels; leave out those without room.

    `labels`: x, y, text, colour, most important first. Call it last: it measures the finished layout.
    """
    figure = figure_of(axes)
    figure.draw_without_rendering()
    frame, unit = axes.get_window_extent(), figure.dpi / 72
    points = [axes.transData.transform((x, y)) for x, y, *_ in labels]
    taken: list[Any] = []
    placed = []
    for (x, y, text, colour), point in zip(labels, points, strict=True):
        label = axes.annotate(
            plain_text(text), (x, y), (0, 0), textcoords="offset points", color=colour, fontsize=NAME, ha="left"
        )
        label.set_in_layout(False)
        size = label.get_window_extent()
        for right, up in _OFFSETS:
            left = point[0] + right * unit - (size.width if right < 0 else 0)
            box = type(size).from_bounds(left, point[1] + up * unit, size.width, size.height)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            near = box.padded(2.5 * unit)
            if inside and not near.count_contains(points) and not box.count_overlaps(taken):
                label.set_position((right, up))
                label.set_horizontalalignment("right" if right < 0 else "left")
                taken.append(box.padded(unit))
                placed.append(label)
                break
        else:
            label.remove()
    return placed


def plain_text(text: str) -> str:
    """Escape dollar signs; matplotlib would typeset the text between them as a formula."""
    return text.replace("$", r"\$")


def set_title(axes: Axes, title: str, **style: Any) -> None:
    """Set a title above the axes, with lines that are wrapped at about their width."""
    width = axes.get_window_extent().width / axes.figure.dpi
    length = max(30, round(TITLE_LETTERS * width))
    lines = [wrapped for line in title.split("\n") for wrapped in wrap(line, length) or [""]]
    axes.set_title(plain_text("\n".join(lines)), fontsize=TITLE, **style)


def put_title(axes: Axes, title: str, columns: int) -> None:
    """Set a title above the axes, and the legend between them in the given number of columns."""
    rows = -(-len(axes.get_legend_handles_labels()[0]) // columns)
    set_title(axes, title, pad=10 + 16 * rows)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, fontsize=LABEL)


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
