"""Picture of largest batches: bars of networks and methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from remat.experiments.contestant import Contestant
from remat.graphs.batch_scaling import AffineGraph
from remat.io.figures import COLOURS, GIVEN, INK, LABEL, NAME, TITLE, figure_of, new_axes, plain_text, rule
from remat.runtime.sizes import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Batch(Protocol):
    """Attributes of a result that the picture shows; see :class:`remat.experiments.max_batch_result.BatchResult`."""

    @property
    def family(self) -> AffineGraph: ...
    @property
    def method(self) -> Contestant: ...
    @property
    def memory(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def plain(self) -> int: ...
    @property
    def upper(self) -> int: ...


def plot_batches(results: Sequence[Batch], ax: Axes | None = None) -> Axes:
    """Draw largest batch sizes as bars, network by network, like Fig. 6 of Jain et al. (2020).

    The first bar of a network is the reference order without recomputation, the others are the methods. Their height is
    relative to the first, their label is the batch size. The outline above a bar ends where larger batches are ruled
    out. If some network has no batch size without recomputation, heights are batch sizes.

    Parameters
    ----------
    results : sequence of BatchResult
        Results for one memory; at least one.
    ax : matplotlib Axes, optional
        Axes to draw on; default: a new figure, available as ``figure`` of the result.
    """
    from matplotlib.patches import Patch

    networks = list(dict.fromkeys(result.family.name for result in results))
    methods = list(dict.fromkeys(result.method.label for result in results))
    count = len(methods) + 1
    axes = new_axes(ax, (max(6.0, 1.6 + 0.5 * len(networks) * (count + 1)), 4.6))
    plain = {result.family.name: result.plain for result in results}
    relative = all(plain.values())
    width = 0.8 / count
    bars = [("no recomputation", GIVEN, {name: (size, size) for name, size in plain.items()})]
    for number, label in enumerate(methods):
        mine = {one.family.name: (one.batch, one.upper) for one in results if one.method.label == label}
        bars.append((label, COLOURS[number % len(COLOURS)], mine))
    handles = []
    for number, (label, colour, sizes) in enumerate(bars):
        for name, (batch, upper) in sizes.items():
            x, unit = networks.index(name) + (number - len(methods) / 2) * width, plain[name] if relative else 1
            axes.bar(x, batch / unit, 0.9 * width, color=colour)
            if upper > batch:
                axes.bar(x, (upper - batch) / unit, 0.9 * width, batch / unit, color="none", edgecolor=colour,
                         linestyle=":", linewidth=1.2)  # fmt: skip
            axes.annotate(f"{batch:,}", (x, batch / unit), (0, 2), textcoords="offset points", ha="center",
                          fontsize=LABEL if len(networks) * count <= 24 else NAME,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.2})  # fmt: skip
        handles.append(Patch(color=colour, label=plain_text(label)))
    if any(result.upper > result.batch for result in results):
        handles.append(Patch(facecolor="none", edgecolor=INK, linestyle=":", label="above: ruled out"))
    axes.set_xticks(range(len(networks)), [plain_text(name) for name in networks])
    axes.margins(y=0.1)
    axes.set_ylabel("batch size / that without recomputation" if relative else "batch size", fontsize=LABEL)
    axes.set_title(
        f"Largest batch in {size_text(results[0].memory)} with at most one extra forward pass", fontsize=TITLE
    )
    rule(axes, "y")
    figure_of(axes).legend(handles=handles, loc="outside lower center", ncols=3, fontsize=LABEL, frameon=False)
    return axes
