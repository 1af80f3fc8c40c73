"""Plot of addresses over time; :mod:`remat.io.figures` describes what all plots have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from remat.io.figures import draw_boxes, empty_figure, plain_text, put_title
from remat.runtime.sizes import size_unit
from remat.schedule.addresses import Addresses, check_addresses

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TENSOR, _AGAIN, _OTHER, _LINE = "#56B4E9", "#D55E00", "#BBBBBB", "#222222"
#: Largest number of buffers with labels; share of the width and the height of the plot that one letter takes.
_NAMED, _LETTER_WIDTH, _LETTER_HEIGHT = 60, 0.0068, 0.035
#: Most letters of a label, and the fewest that are shown when the name is cut.
_LONGEST, _SHORTEST = 16, 5


def plot_addresses(addresses: Addresses, ax: Axes | None = None, memory: int = 0) -> Axes:
    """Draw each buffer of one memory as a rectangle of its steps and bytes, with the peak and the arena.

    Parameters
    ----------
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure, available as ``figure`` of the result.
    memory : int
        Position of the memory.
    """
    from matplotlib.ticker import MaxNLocator

    axes = ax if ax is not None else empty_figure((10, 5)).subplots()
    b = addresses.buffers
    here = np.flatnonzero((addresses.memory == memory) & (b.size > 0))
    arena, peak = addresses.arenas[memory], addresses.peaks[memory]
    capacity = addresses.memories[memory].capacity
    scale, unit = size_unit(max(arena, capacity or 0))
    left, right = b.lower[here].astype(float), b.upper[here].astype(float)
    bottom = addresses.offset[here] / scale
    top = bottom + b.size[here] / scale
    again = np.array(["#" in b.names[k] and b.tensor[k] >= 0 for k in here.tolist()], dtype=np.bool_)
    bare = bool((b.tensor < 0).all())  # a bare table has no tensors
    other = (b.tensor[here] < 0) & (not bare)
    groups = (
        ("buffer" if bare else "tensor", _TENSOR, ~again & ~other),
        ("recomputed", _AGAIN, again),
        ("workspace", _OTHER, other),
    )
    edge = 0.5 if len(here) <= 500 else 0.15
    draw_boxes(axes, (left, right, bottom, top), groups, edgecolors=_LINE, linewidths=edge)
    steps, height = max(b.steps, 1), max(arena, capacity or 0, 1) / scale
    if len(here) <= _NAMED:
        for k, (x0, x1, y0, y1) in zip(here.tolist(), zip(left, right, bottom, top, strict=True), strict=True):
            name = _fitting(b.names[k], int((x1 - x0) / steps / _LETTER_WIDTH))
            if name and (y1 - y0) / height >= _LETTER_HEIGHT:
                axes.text(
                    (x0 + x1) / 2, (y0 + y1) / 2, plain_text(name), ha="center", va="center", fontsize="x-small",
                    clip_on=True,
                )  # fmt: skip
    axes.axhline(peak / scale, color=_LINE, linestyle=":", linewidth=1.2, label=f"peak {peak:,} bytes")
    axes.axhline(arena / scale, color=_LINE, linestyle="-", linewidth=1.2, label=f"arena {arena:,} bytes")
    if capacity is not None:
        axes.axhline(
            capacity / scale, color=_AGAIN, linestyle="--", linewidth=1.2, label=f"capacity {capacity:,} bytes"
        )
    axes.set_xlim(0, steps)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(ylim=(0, 1.05 * height), xlabel="compute step" if not bare else "step", ylabel=f"address ({unit})")
    name = addresses.memories[memory].name if len(addresses.memories) > 1 else b.graph or "addresses"
    certificate = check_addresses(addresses, max_violations=1)
    fault = "" if certificate.first is None else f"\nnot valid: {certificate.first.message}"
    put_title(axes, f"{name}: {len(here):,} buffers, {addresses.source or 'addresses'}{fault}", columns=6)
    return axes


def _fitting(name: str, room: int) -> str:
    """Clip a name to its last `room` letters, since names differ most at their ends; empty below the minimum."""
    room = min(room, _LONGEST)
    if len(name) <= room:
        return name
    return f"…{name[1 - room :]}" if room >= _SHORTEST else ""


def figure_of_addresses(addresses: Addresses) -> Figure:
    """Draw all memories, one above the other, over the same steps."""
    count = len(addresses.memories)
    figure = empty_figure((10, 1 + 4 * count))
    axes = figure.subplots(count, 1, sharex=True, squeeze=False)
    for k in range(count):
        plot_addresses(addresses, axes[k, 0], k)
    return figure
