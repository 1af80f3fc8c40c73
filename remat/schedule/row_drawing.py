"""Tensors or layers that a schedule holds over time, and the strip of layers: parts of the picture of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from remat.graphs import ComputeGraph
from remat.graphs.arrays import occurrences
from remat.io.figures import AGAIN, FAULT, FIRST, GIVEN, INK, LABEL, NAME, RULE, draw_boxes, plain_text
from remat.runtime.arrays import Int
from remat.runtime.sizes import size_text
from remat.runtime.text import clipped
from remat.schedule.drawing import BINS, WIDE_BINS, Picture, draw_faults, shown_name
from remat.schedule.traces.layers import layer_labels, parts_of_order, shortened
from remat.schedule.traces.timeline import module_paths

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Most rows with tensor names; most rows of tensors in a graph without modules, and of layers in any graph.
NAMED_ROWS, _TENSOR_ROWS, _LAYER_ROWS = 40, 400, 40
#: Most tensors named in the rows of layers.
_NAMED_TENSORS = 5
#: Marks of brief recomputations, one below another, that fill the height of the rows.
_MARKS = 100
#: Share of the width that a letter of the small font takes.
_LETTER = 0.0075
_STRIPES = ("#D9D9D9", "#F2F2F2")


def draw_layer_strip(axes: Axes, picture: Picture) -> None:
    """Draw the layer of each step as a strip of two alternating greys, with names where there is room."""
    shown, layer = _layers(picture.graph)
    ops, edges = picture.ops, picture.edges
    if not len(ops):
        return
    grid = np.linspace(0, picture.right, BINS + 1)
    middle = np.clip(np.searchsorted(edges, (grid[:-1] + grid[1:]) / 2, "right") - 1, 0, len(ops) - 1)
    found = np.where(ops[middle] >= 0, layer[ops[middle]], -1)
    changes = np.concatenate([[0], np.flatnonzero(np.diff(found)) + 1, [len(found)]])
    for turn, (low, high) in enumerate(zip(changes[:-1].tolist(), changes[1:].tolist(), strict=True)):
        axes.axvspan(grid[low], grid[high], color=_STRIPES[turn % 2], linewidth=0)
        room = int((high - low) / BINS / _LETTER)
        name = shown[found[low]] if found[low] >= 0 else ""
        last = name.rsplit(".", 1)[-1]
        text = name if len(name) <= room else last if len(last) <= room and " " not in name else ""
        if text:
            axes.text((grid[low] + grid[high]) / 2, 0.5, plain_text(text), ha="center", va="center", fontsize=NAME,
                      transform=axes.get_xaxis_transform(), clip_on=True)  # fmt: skip
    axes.set(xlim=(0, picture.right), ylim=(0, 1))
    axes.set_yticks([0.5], ["layer"], fontsize=LABEL)
    axes.tick_params(axis="y", length=0)


def has_modules(graph: ComputeGraph) -> bool:
    """Return True if ops have modules."""
    return bool(module_paths(graph))


def by_layer(picture: Picture, max_tensors: int | None) -> bool:
    """Return True if rows are layers rather than tensors."""
    return max_tensors is None and len(picture.tensors) > (NAMED_ROWS if has_modules(picture.graph) else _TENSOR_ROWS)


def height_of_rows(picture: Picture, max_tensors: int | None) -> float:
    """Return the height in inches of the rows."""
    if by_layer(picture, max_tensors):
        return max(1.5, 0.16 * len(_groups(picture)[0]))
    rows = len(picture.tensors) if max_tensors is None else min(len(picture.tensors), max_tensors)
    return max(1.2, 0.18 * rows) if rows <= NAMED_ROWS else 5.5


def _layers(graph: ComputeGraph) -> tuple[list[str], Int]:
    """Return names of layers and that of each op: modules, or parts of the reference order; consecutive ones joined."""
    if not has_modules(graph):
        return parts_of_order(graph)
    labels = layer_labels(graph)
    names = list(dict.fromkeys(labels[op] for op in graph.arrays.order.tolist()))
    shown = shortened(names)
    number = {name: k for k, name in enumerate(names)}
    layer = np.array([number[name] for name in labels], dtype=np.int64)
    if (count := len(shown)) > _LAYER_ROWS:
        part = -(-count // _LAYER_ROWS)
        layer = layer // part
        shown = [f"{shown[k]} … {shown[min(k + part, count) - 1]}" for k in range(0, count, part)]
    return shown, layer


def _groups(picture: Picture) -> tuple[list[str], Int]:
    """Return the rows of layers and that of each tensor."""
    arrays = picture.graph.arrays
    shown, layer = _layers(picture.graph)
    first = arrays.producers.lowest(arrays.position, len(arrays.order))
    of_tensor = np.append(layer[arrays.order], len(shown))[first]
    return ([*shown, "graph inputs"] if (of_tensor == len(shown)).any() else shown), of_tensor


def draw_rows(axes: Axes, picture: Picture, max_tensors: int | None, *, legend: bool) -> None:
    """Draw the tensors held, or the bytes that each layer holds."""
    if by_layer(picture, max_tensors):
        _draw_layers(axes, picture)
    else:
        _draw_tensors(axes, picture, max_tensors, legend=legend)
    draw_faults(axes, picture, numbers=False)


def _draw_layers(axes: Axes, picture: Picture) -> None:
    from matplotlib.patches import StepPatch

    graph, found = picture.graph, picture.run.intervals
    names, group = _groups(picture)
    start, end = picture.before[found.start], picture.before[found.end]
    later, size = occurrences(found.tensor) > 0, graph.arrays.size[found.tensor]
    steps, rows = len(picture.memory), group[found.tensor]
    totals = []
    for chosen in (np.ones(len(later), dtype=np.bool_), later):
        change = np.zeros((steps + 1, len(names)), dtype=np.int64)
        np.add.at(change, (start[chosen], rows[chosen]), size[chosen])
        np.add.at(change, (end[chosen], rows[chosen]), -size[chosen])
        totals.append(picture.binned(np.cumsum(change, axis=0)[:-1]))
    (edges, held), (_, again) = totals
    # clipped, since one layer (the head of a language model) may hold ten times as much as the others
    highest = held.max(axis=0, initial=0)
    most = int(np.percentile(highest[highest > 0], 75)) if highest.any() else 1
    clip = " and more" if highest.max() > most else ""
    held, again = np.minimum(held, most), np.clip(again, 0.1 * most * (again > 0), most)  # a tenth stays visible
    for row in range(len(names)):
        for values, colour in ((held, FIRST), (again, AGAIN)):
            if values[:, row].any():
                tops = row + 1 - 0.92 * values[:, row] / most
                # axes.stairs() would compute the limits of each patch, which takes most of the time
                axes.add_artist(StepPatch(tops, edges, baseline=row + 1, fill=True, color=colour, linewidth=0))
        axes.axhline(row + 1, color=RULE, linewidth=0.4)
    for row in {int(group[tensor]) for tensor in picture.guilty}:
        axes.axhspan(row, row + 1, color=FAULT, alpha=0.15, linewidth=0)
    axes.set(xlim=(0, picture.right), ylim=(len(names), 0))
    axes.set_yticks(np.arange(len(names)) + 0.5, [shown_name(name) for name in names], fontsize=NAME)
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel(f"layer (row height: {size_text(most)}{clip})", fontsize=LABEL)
    _name_largest(axes, picture, group, len(names))


def _name_largest(axes: Axes, picture: Picture, rows: Int, count: int) -> None:
    """Write the names of the largest tensors where they are first held; guilty ones first."""
    graph, found = picture.graph, picture.run.intervals
    size = graph.arrays.size
    used: list[tuple[int, float, float]] = []
    first = {tensor: k for k, tensor in reversed(list(enumerate(found.tensor.tolist())))}
    ranked = sorted(first, key=lambda tensor: (tensor not in picture.guilty, -int(size[tensor]), tensor))
    for tensor in ranked[: 8 * _NAMED_TENSORS]:
        if len(used) >= _NAMED_TENSORS or not size[tensor]:
            break
        text = f"{clipped(graph.tensors[tensor].name, 28)} {size_text(int(size[tensor]))}"
        width = len(text) * _LETTER * picture.right
        left = min(float(picture.edges[picture.before[found.start[first[tensor]]]]), picture.right - width)
        row, room = int(rows[tensor]), max(1.0, count / 28)
        if any(abs(row - other) < room and left < at + wide and at < left + width for other, at, wide in used):
            continue
        used.append((row, left, width))
        style: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.75}
        place = min(max(row + 0.5, 0.4 * room), count - 0.4 * room)  # within the frame
        axes.text(left, place, plain_text(text), va="center", fontsize=NAME, bbox=style, clip_on=True,
                  color=FAULT if tensor in picture.guilty else INK)  # fmt: skip


def _draw_tensors(axes: Axes, picture: Picture, max_tensors: int | None, *, legend: bool) -> None:
    graph, found = picture.graph, picture.run.intervals
    begin, stop = picture.before[found.start], picture.before[found.end]
    later = occurrences(found.tensor) > 0
    sizes = graph.arrays.size
    tensors = picture.tensors
    shown = np.zeros(len(sizes), dtype=np.bool_)
    shown[tensors[np.argsort(-sizes[tensors], kind="stable")[:max_tensors]]] = True
    visible = shown[found.tensor]
    drawn = np.flatnonzero(visible)
    by_start = drawn[np.lexsort([found.tensor[drawn], begin[drawn]])]
    order = list(dict.fromkeys(found.tensor[by_start].tolist()))
    row = np.zeros(len(sizes), dtype=np.int64)
    row[order] = np.arange(len(order))

    gap = 0.1 if len(order) <= NAMED_ROWS else 0.0  # hundreds of gaps would be hairlines
    top = row[found.tensor] + gap
    given = graph.arrays.is_input[found.tensor]
    groups = (
        ("graph input", GIVEN, given & visible),
        ("first compute", FIRST, ~given & ~later & visible),
        ("recomputation", AGAIN, later & visible),
    )
    left, right, bottom = picture.edges[begin], picture.edges[stop], top + 1 - 2 * gap
    least = picture.right / WIDE_BINS
    brief = (later | (len(order) <= NAMED_ROWS)) & (right - left < least)
    left = np.where(brief, np.minimum(left, picture.right - least), left)
    right = np.where(brief, left + least, right)
    taller = np.where(brief, max(0.0, len(order) / _MARKS - 1) / 2, 0.0)
    # the thin edge keeps other bars visible that are narrower than a pixel
    draw_boxes(axes, (left, right, top - taller, bottom + taller), groups, linewidths=0.4)
    axes.set(xlim=(0, picture.right), ylim=(max(len(order), 1), 0))
    guilty = [int(row[tensor]) for tensor in order if tensor in picture.guilty]
    for place in guilty:
        axes.axhspan(place, place + 1, color=FAULT, alpha=0.15, linewidth=0)
    if len(order) <= NAMED_ROWS:
        axes.set_yticks(np.arange(len(order)) + 0.5, [shown_name(graph.tensors[t].name) for t in order], fontsize=LABEL)
        for place in guilty:
            axes.get_yticklabels()[place].set_color(FAULT)
        axes.set_ylabel("tensor", fontsize=LABEL)
    else:
        axes.set_ylabel("tensors in order of first allocation", fontsize=LABEL)
        _name_largest(axes, picture, np.where(shown, row, len(order)), len(order))
    if len(order) < len(tensors):
        axes.set_ylabel(f"the {len(order):,} largest of {len(tensors):,} tensors", fontsize=LABEL)
    if legend or given.any():  # the corner below the staircase of first allocations is free
        axes.legend(loc="lower left", frameon=False, fontsize=LABEL)
