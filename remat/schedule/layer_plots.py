"""Picture of a table of layers: bytes saved and recomputed, and time paid, as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from remat.io.figures import (
    AGAIN,
    FIRST,
    GREY,
    INK,
    LABEL,
    NAME,
    TITLE,
    figure_of,
    new_panels,
    plain_text,
    rule,
)
from remat.runtime.arrays import Int
from remat.runtime.sizes import size_text, size_unit
from remat.runtime.text import clipped
from remat.schedule.certificate import overhead_text
from remat.schedule.drawing import time_unit
from remat.schedule.traces.layers import LayerRow, LayerTable, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Most bars; longer tables have a bar for several consecutive rows.
MOST_BARS = 40


def plot_layers(table: LayerTable, ax: Axes | None = None) -> Figure:
    """Draw, for each layer, the bytes saved and recomputed and the time of first computes and recomputations.

    The outline is what the layer saves without recomputation (its activations). A row of several equal layers has the
    sum of their numbers. Tables of more than 40 rows have a bar for several consecutive layers. Without a backward pass
    the bytes are those held at the peak.

    Parameters
    ----------
    ax : matplotlib Axes, optional
        Axes whose place the panels take; default: a new figure.
    """
    names, rows = _bars(table)
    panels = new_panels(ax, (10, max(2.6, 1.5 + 0.24 * len(names))), 1, 2, sharey=True, gridspec_kw={"wspace": 0.04})
    memory, time = panels
    memory.margins(x=0.03)
    at = np.arange(len(names))
    _draw_bytes(memory, at, rows, table)
    _draw_time(time, at, rows, table)
    memory.set_yticks(at, [plain_text(clipped(name, 32)) for name in names], fontsize=LABEL if len(at) <= 24 else NAME)
    memory.set_ylim(len(names) - 0.4, -0.6)
    for axes in panels:
        axes.use_sticky_edges = False  # the left end of an empty bar would hold the limit
        axes.autoscale_view(scaley=False)
        axes.set_xlim(left=0)
        rule(axes, "x")
        axes.tick_params(axis="y", length=0)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=LABEL,
                    handlelength=1.2, columnspacing=1.2)  # fmt: skip
    figure = figure_of(memory)
    if ax is None:
        figure.suptitle(plain_text(_title(table)), fontsize=TITLE)
    return figure


def _bars(table: LayerTable) -> tuple[list[str], list[list[LayerRow]]]:
    """Return the name and the rows of each bar."""
    rows = [row for row in table.rows if row.ops or row.at_peak]
    names = shortened([row.layer for row in rows])
    part = -(-len(rows) // MOST_BARS) if rows else 1
    shown = []
    for k in range(0, len(rows), part):
        last = min(k + part, len(rows)) - 1
        several = f" ({rows[k].count}×)" if rows[k].count > 1 and last == k else ""
        shown.append(names[k] + several if last == k else f"{names[k]} … {names[last]}")
    return shown, [rows[k : k + part] for k in range(0, len(rows), part)]


def _sums(bars: Sequence[Sequence[LayerRow]], what: str) -> Int:
    return np.array([sum((getattr(row, what) or 0) * row.count for row in rows) for rows in bars], dtype=np.int64)


def _draw_bytes(axes: Axes, at: Int, bars: Sequence[Sequence[LayerRow]], table: LayerTable) -> None:
    backward = table.total.saved is not None
    columns = ("saved" if backward else "at_peak", "recomputed", "activations")
    kept, again, full = (_sums(bars, what) for what in columns)
    scale, unit = size_unit(int(max([*(kept + again), *full], default=1)))
    axes.barh(at, kept / scale, 0.72, color=FIRST, label="saved" if backward else "held at the peak")
    axes.barh(at, again / scale, 0.72, kept / scale, color=AGAIN, label="recomputed")
    if backward and full.any():
        axes.barh(at, full / scale, 0.86, fill=False, edgecolor=GREY, linewidth=0.9, label="without recomputation")
    axes.set_xlabel(f"bytes {'saved for the backward pass' if backward else 'held'}, and recomputed ({unit})",
                    fontsize=LABEL)  # fmt: skip


def _draw_time(axes: Axes, at: Int, bars: Sequence[Sequence[LayerRow]], table: LayerTable) -> None:
    once, extra = _sums(bars, "cost"), _sums(bars, "extra_cost")
    scale, label = time_unit(table.cost_unit, float(max(once + extra, default=1)) or 1.0)
    axes.barh(at, once / scale, 0.72, color=FIRST, label="first computes")
    axes.barh(at, extra / scale, 0.72, once / scale, color=AGAIN, label="recomputations")
    for place, (cost, more) in enumerate(zip(once.tolist(), extra.tolist(), strict=True)):
        if more and cost:
            digits = 1 if more < 0.01 * cost else 0
            axes.annotate(f"+{100 * more / cost:.{digits}f} %", ((cost + more) / scale, place), (3, 0), "data",
                          "offset points", va="center", fontsize=NAME, color=INK)  # fmt: skip
    axes.margins(x=0.1)
    axes.set_xlabel(label, fontsize=LABEL)


def _title(table: LayerTable) -> str:
    total = table.total
    parts = [f"peak {size_text(total.at_peak)}"]
    if total.saved is not None and total.activations:
        parts.append(f"{size_text(total.saved)} saved of {size_text(total.activations)}")
    if total.cost:
        parts.append(f"overhead {overhead_text(total.cost + total.extra_cost, total.cost)}")
    return f"{table.graph}: {', '.join(parts)}"
