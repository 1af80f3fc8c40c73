"""Picture of an estimate: what the memory is for, and the extra cost of smaller memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from remat.io.figures import COLOURS, INK, LABEL, new_panels, rule, set_title
from remat.runtime.sizes import size_text, size_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Drawn(NamedTuple):
    """Content of a picture of an estimate; memory in bytes."""

    title: str
    parts: Mapping[str, int]
    rows: Sequence[Mapping[str, Any]]
    """As :meth:`remat.torch.fit.estimate.Estimate.rows`."""
    total: int | None
    memory: int | None


def plot_estimate(found: Drawn, ax: Axes | None = None) -> Axes:
    """Draw the parts of the memory as a bar, and extra cost against memory below, on a common axis.

    Vertical lines: the step as it is (dotted), and the memory of the device. The dashed line is the bound on the extra
    cost.
    """
    above, below = new_panels(ax, (9, 5.4), 2, sharex=True, gridspec_kw={"height_ratios": [1, 3]})
    scale, unit = size_unit(max(sum(found.parts.values()), found.memory or 0))
    left = 0.0
    for (word, size), colour in zip(found.parts.items(), COLOURS, strict=False):
        above.barh(0, size / scale, left=left, height=0.6, color=colour, label=f"{word}: {size_text(size)}")
        left += size / scale
    above.set_yticks([])
    set_title(above, found.title)
    above.legend(fontsize=LABEL, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.05))
    _draw_curve(below, found, scale)
    below.set_xlabel(f"memory ({unit})", fontsize=LABEL)
    below.set_ylabel("extra cost (%)", fontsize=LABEL)
    for axes in (above, below):
        if found.total is not None:
            axes.axvline(found.total / scale, color=INK, linewidth=0.9, linestyle=":")
        if found.memory is not None:
            axes.axvline(found.memory / scale, color=INK, linewidth=1.2)
    below.legend(fontsize=LABEL, frameon=False)
    below.set_xlim(left=0)
    below.set_ylim(bottom=0)
    rule(below)
    return below


def _draw_curve(axes: Axes, found: Drawn, scale: int) -> None:
    rows = found.rows
    solved = [row for row in rows if row["overhead_percent"] is not None and row["needed"] is not None]
    bounds = [row for row in rows if row["bound_percent"] is not None]
    axes.step([row["needed"] / scale for row in solved], [row["overhead_percent"] for row in solved], where="post",
              color=COLOURS[0], marker="o", markersize=4, clip_on=False,
              label="least extra cost found, certified")  # fmt: skip
    if bounds:
        axes.step([row["memory"] / scale for row in bounds], [row["bound_percent"] for row in bounds],
                  where="pre", color=COLOURS[1], linewidth=1.2, linestyle="--", clip_on=False, zorder=3,
                  label="no schedule of this order costs less")  # fmt: skip
    if found.total is not None:
        axes.plot([], [], color=INK, linestyle=":", label=f"as it is: {size_text(found.total)}")
    if found.memory is not None:
        axes.plot([], [], color=INK, linewidth=1.2, label=f"memory: {size_text(found.memory)}")
