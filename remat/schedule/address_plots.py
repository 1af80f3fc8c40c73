"""Plot of addresses over time; :mod:`remat.io.figures` describes what all plots have in common."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from remat.io.figures import (
    AGAIN,
    FAULT,
    FETCHED,
    FIRST,
    GIVEN,
    INK,
    LABEL,
    NAME,
    TINTS,
    draw_boxes,
    figure_of,
    new_axes,
    new_panels,
    place_labels,
    plain_text,
    put_title,
)
from remat.runtime.arrays import Bool, Int
from remat.runtime.sizes import size_text, size_unit
from remat.runtime.text import clipped
from remat.schedule.addresses import Addresses, check_addresses
from remat.schedule.buffers import Buffers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Largest number of buffers with labels, and with edges; share of the width and the height that one letter takes.
_NAMED, _EDGED, _LETTER_WIDTH, _LETTER_HEIGHT = 60, 500, 0.0068, 0.035
#: Most kinds of buffers that are named if there are more buffers.
_KINDS = 6
#: Most letters of a label, and the fewest that are shown when the name is cut.
_LONGEST, _SHORTEST = 16, 5


def plot_addresses(addresses: Addresses, ax: Axes | None = None, memory: int = 0) -> Axes:
    """Draw each buffer of one memory as a rectangle of its steps and bytes, with the peak and the arena.

    Up to 60 buffers have their names. More are tinted in the order of their first steps, light to dark, so that
    neighbours differ, and the largest kinds are named: buffers whose names differ in numbers only.

    Parameters
    ----------
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure, available as ``figure`` of the result.
    memory : int
        Position of the memory.
    """
    from matplotlib.ticker import MaxNLocator

    axes = new_axes(ax, (10, 5))
    b = addresses.buffers
    here = np.flatnonzero((addresses.memory == memory) & (b.size > 0))
    arena, peak = addresses.arenas[memory], addresses.peaks[memory]
    capacity = addresses.memories[memory].capacity
    scale, unit = size_unit(max(arena, capacity or 0))
    left, right = b.lower[here].astype(float), b.upper[here].astype(float)
    bottom = addresses.offset[here] / scale
    boxes = left, right, bottom, bottom + b.size[here] / scale
    edge: dict[str, Any] = {"edgecolors": INK, "linewidths": 0.5}
    if len(here) > _NAMED:
        edge = {"edgecolors": "white", "linewidths": 0.25} if len(here) <= _EDGED else {"linewidths": 0.0}
        edge["antialiased"] = len(here) <= _EDGED  # else neighbours would show hairlines between them
    bare = bool((b.tensor < 0).all())  # a bare table has no tensors
    groups = _groups(b, here, bare)
    draw_boxes(axes, boxes, groups, **edge)
    steps, height = max(b.steps, 1), max(arena, capacity or 0, 1) / scale
    axes.set_xlim(0, steps)
    axes.set_ylim(0, 1.05 * height)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    fetches = any(label == "fetched" and members.any() for label, _, members in groups)
    axes.set_xlabel("step" if bare else "compute or fetch" if fetches else "compute step", fontsize=LABEL)
    axes.set_ylabel(f"address ({unit})", fontsize=LABEL)
    if len(here) <= _NAMED:
        _name_all(axes, [b.names[k] for k in here.tolist()], boxes, steps, height)
    axes.axhline(peak / scale, color=INK, linestyle=":", linewidth=1.2, label=f"peak {size_text(peak)}")
    gap = f", {100 * (arena / peak - 1):.3g} % above the peak" if arena > peak > 0 else ""
    axes.axhline(arena / scale, color=INK, linestyle="-", linewidth=1.2, label=f"arena {size_text(arena)}{gap}")
    if capacity is not None:
        label = f"capacity {size_text(capacity)}"
        axes.axhline(capacity / scale, color=AGAIN, linestyle="--", linewidth=1.2, label=label)
    name = addresses.memories[memory].name if len(addresses.memories) > 1 else b.graph or "addresses"
    certificate = check_addresses(addresses, max_violations=1)
    fault = "" if certificate.first is None else f"\nnot valid: {certificate.first.message}"
    put_title(axes, f"{name}: {len(here):,} buffers, {addresses.source or 'addresses'}{fault}", columns=6)
    if fault:
        axes.title.set_color(FAULT)
    if len(here) > _NAMED:
        _name_kinds(axes, b, here, boxes)
    return axes


def _groups(b: Buffers, here: Int, bare: bool) -> list[tuple[str, str, Bool]]:
    """Return labels, colours and members of the groups of buffers; tensors of many buffers in five tints."""
    names = [b.names[k].rstrip("'") for k in here.tolist()]
    fetched = np.array([name.endswith(" fetched") for name in names], dtype=np.bool_) & (b.tensor[here] >= 0)
    again = np.array(["#" in name for name in names], dtype=np.bool_) & (b.tensor[here] >= 0) & ~fetched
    other = (b.tensor[here] < 0) & (not bare)
    word, first = "buffer" if bare else "tensor", ~again & ~fetched & ~other
    last = [("recomputed", AGAIN, again), ("fetched", FETCHED, fetched), ("workspace", GIVEN, other)]
    if len(here) <= _NAMED:
        return [(word, FIRST, first), *last]
    rank = np.argsort(np.argsort(b.lower[here], kind="stable"), kind="stable")
    fifth = len(TINTS) * rank // max(len(here), 1)
    labels = [f"{word}, allocated first", *["_"] * (len(TINTS) - 2), "allocated last"]
    return [(label, TINTS[k], first & (fifth == k)) for k, label in enumerate(labels)] + last


def _name_all(axes: Axes, names: Sequence[str], boxes: tuple[Any, ...], steps: int, height: float) -> None:
    """Write the name of each buffer that has room for it."""
    for name, x0, x1, y0, y1 in zip(names, *boxes, strict=True):
        text = _fitting(name, int((x1 - x0) / steps / _LETTER_WIDTH))
        if text and (y1 - y0) / height >= _LETTER_HEIGHT:
            axes.text((x0 + x1) / 2, (y0 + y1) / 2, plain_text(text), ha="center", va="center", fontsize=NAME,
                      clip_on=True)  # fmt: skip


def _name_kinds(axes: Axes, b: Buffers, here: Int, boxes: tuple[Any, ...]) -> None:
    """Name the kinds of buffers that take most bytes times steps, each at its longest member with room."""
    kinds: dict[str, list[int]] = {}
    for place, k in enumerate(here.tolist()):
        kinds.setdefault(re.sub("[0-9]+", "0", b.names[k].partition("#")[0]), []).append(place)
    if len(kinds) == 1:
        return
    area = (boxes[1] - boxes[0]) * (boxes[3] - boxes[2])
    ranked = sorted(kinds.values(), key=lambda members: -float(area[members].sum()))[:_KINDS]
    labels = []
    for members in ranked:
        longest = max(members, key=lambda place: float(boxes[1][place] - boxes[0][place]))
        more = f" and {len(members) - 1:,} more" if len(members) > 1 else ""
        total = size_text(int(b.size[here[members]].sum()))
        text = f"{clipped(b.names[int(here[longest])].partition('#')[0], 32)}{more}, {total} in all"
        labels.append(((boxes[0][longest] + boxes[1][longest]) / 2, boxes[2][longest], text, INK))
    for label in place_labels(axes, labels):
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})


def _fitting(name: str, room: int) -> str:
    """Clip a name to its last `room` letters, since names differ most at their ends; empty below the minimum."""
    room = min(room, _LONGEST)
    if len(name) <= room:
        return name
    return f"…{name[1 - room :]}" if room >= _SHORTEST else ""


def figure_of_addresses(addresses: Addresses, ax: Axes | None = None) -> Figure:
    """Draw all memories, one above the other, over the same steps; in the place of `ax`, if given."""
    count = len(addresses.memories)
    panels = new_panels(ax, (10, 1 + 4 * count), count, sharex=True)
    for k, axes in enumerate(panels):
        plot_addresses(addresses, axes, k)
    return figure_of(panels[0])
