"""Plot of off-chip traffic: a schedule against the reference order (after Fig. 11 of Ahn et al. 2020)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from remat.runtime.sizes import size_unit
from remat.schedule.plots import empty_figure, plain_text, write_figure
from remat.schedule.traffic import Traffic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"reference": "#BBBBBB", "schedule": "#0072B2"}


def plot_traffic(title: str, schedule: Sequence[Traffic], reference: Sequence[Traffic]) -> Figure:
    """Plot bytes fetched and (hatched) written for each capacity, by the reference order and by a schedule.

    The label above the bars is the factor by which the schedule moves less: ``all gone`` if only the reference order
    moves bytes, and ``none`` if neither does.

    Parameters
    ----------
    schedule, reference : sequence of Traffic
        The same capacities in the same order.
    """
    figure = empty_figure((max(5.0, 1.6 + 1.1 * len(schedule)), 4.4))
    axes = figure.subplots()
    top = max((found.total for found in (*schedule, *reference)), default=0)
    scale, unit = size_unit(max(top, 1))
    for side, (label, found) in enumerate((("reference", reference), ("schedule", schedule))):
        places = [number + 0.38 * side - 0.19 for number in range(len(found))]
        style: dict[str, Any] = {"width": 0.36, "color": _COLOURS[label], "edgecolor": "#222222", "linewidth": 0.6}
        name = "reference order" if label == "reference" else "schedule"
        fetched, written = ([getattr(one, what) / scale for one in found] for what in ("fetched", "written"))
        axes.bar(places, fetched, label=f"{name}: fetched", **style)
        axes.bar(places, written, bottom=fetched, hatch="////", label=f"{name}: written", **style)
    for number, (mine, theirs) in enumerate(zip(schedule, reference, strict=True)):
        height = max(mine.total, theirs.total) / scale
        above: dict[str, Any] = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "fontsize": "small"}
        axes.annotate(_gain(mine, theirs), (number, height), **above)
    axes.set_xticks(range(len(schedule)), [shown_size(one.on_chip) for one in schedule])
    axes.set(xlabel="on-chip memory", ylabel=f"off-chip traffic ({unit})", ylim=(0, 1.15 * top / scale or 1))
    axes.set_title(f"{plain_text(title)} (above: how many times less)", fontsize="medium")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize="small", frameon=False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return figure


def save_traffic_plot(
    title: str, schedule: Sequence[Traffic], reference: Sequence[Traffic], path: str | os.PathLike[str]
) -> None:
    """Write :func:`plot_traffic` to a ``.png`` or ``.svg`` file atomically.

    Raises
    ------
    FormatError
        Naming the file, if its name has another suffix or it cannot be written.
    """
    write_figure(path, lambda: plot_traffic(title, schedule, reference))


def shown_size(size: int) -> str:
    """Return bytes in a binary unit if that needs few digits.

    Examples
    --------
    >>> shown_size(262144), shown_size(1536), shown_size(1000)
    ('256 KiB', '1.5 KiB', '1,000 bytes')
    """
    scale, unit = size_unit(size)
    return f"{size / scale:g} {unit}" if scale > 1 and size * 100 % scale == 0 else f"{size:,} bytes"


def _gain(mine: Traffic, theirs: Traffic) -> str:
    if not mine.total:
        return "all gone" if theirs.total else "none"
    return f"{theirs.total / mine.total:.2f}×"
