"""Texts of figures, measured: which of them overlap or leave the figure."""

from collections.abc import Iterable
from itertools import combinations
from typing import Any

from matplotlib.axes import Axes
from matplotlib.text import Text


def collisions(figure: Any) -> list[tuple[str, str]]:
    """Return pairs of texts whose boxes overlap by more than a pixel, and texts that leave the figure (paired with it).

    Names drawn inside boxes (clipped to the axes) may leave the figure.
    """
    figure.draw_without_rendering()
    canvas = figure.bbox
    boxes = [(text.get_text(), _box(text), text.get_clip_on()) for text in _texts(figure)]
    found = [(one, other) for (one, a, _), (other, b, _) in combinations(boxes, 2) if a.overlaps(b)]
    for name, box, clipped in boxes:
        inside = canvas.x0 <= box.x0 and box.x1 <= canvas.x1 and canvas.y0 <= box.y0 and box.y1 <= canvas.y1
        found += [] if inside or clipped else [(name, "(figure)")]
    return found


def _texts(figure: Any) -> Iterable[Text]:
    """Yield the texts that are visible; ticks outside the limits of their axes are not."""
    ticks = set()
    for axes in figure.findobj(Axes):
        for axis, limits in ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim()))):
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not limits[0] <= tick.get_loc() <= limits[1] or not axes.axison:
                    ticks |= {tick.label1, tick.label2}
            if not axes.axison:
                ticks.add(axis.label)
    for text in figure.findobj(Text):
        if text.get_text().strip() and text.get_visible() and text not in ticks:
            yield text


def _box(text: Text) -> Any:
    """Return the box of a text without its arrow, smaller by a pixel."""
    return Text.get_window_extent(text).padded(-1)
