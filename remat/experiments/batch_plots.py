"""Picture of largest batches: bars of networks and methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from remat.experiments.contestant import Contestant
from remat.graphs.batch_scaling import AffineGraph
from remat.io.figures import COLOURS, empty_figure, plain_text
from remat.runtime.sizes import size_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def plot_batches(results: Sequence[Batch]) -> Figure:
    """Draw largest batch sizes as bars, network by network, like Fig. 6 of Jain et al. (2020).

    The first bar of a network is the reference order without recomputation, the others are the methods. Their height is
    relative to the first, their label is the batch size. The outline above a bar ends where larger batches are ruled
    out. If some network has no batch size without recomputation, heights are batch sizes.

    Parameters
    ----------
    results : sequence of BatchResult
        Results for one memory; at least one.
    """
    from matplotlib.patches import Patch

    networks = list(dict.fromkeys(result.family.name for result in results))
    methods = list(dict.fromkeys(result.method.label for result in results))
    figure = empty_figure((max(6.0, 1.6 + 0.55 * len(networks) * (len(methods) + 1.8)), 4.8))
    axes = figure.subplots()
    plain = {result.family.name: result.plain for result in results}
    relative = all(plain.values())
    width = 0.8 / (len(methods) + 1)
    bars = [("no recomputation", "#999999", {name: (size, size) for name, size in plain.items()})]
    for number, label in enumerate(methods):
        mine = {one.family.name: (one.batch, one.upper) for one in results if one.method.label == label}
        bars.append((label, COLOURS[number % len(COLOURS)], mine))
    handles = []
    for number, (label, colour, sizes) in enumerate(bars):
        for name, (batch, upper) in sizes.items():
            x, unit = networks.index(name) + (number - len(methods) / 2) * width, plain[name] if relative else 1
            axes.bar(x, batch / unit, 0.92 * width, color=colour)
            if upper > batch:
                axes.bar(x, (upper - batch) / unit, 0.92 * width, batch / unit, color="none", edgecolor=colour,
                         linestyle=":", linewidth=1.0)  # fmt: skip
            axes.annotate(f"{batch:,}", (x, batch / unit), (0, 3), textcoords="offset points", ha="center",
                          fontsize="small", bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.2})  # fmt: skip
        handles.append(Patch(color=colour, label=plain_text(label)))
    if any(result.upper > result.batch for result in results):
        handles.append(Patch(facecolor="none", edgecolor="#000000", linestyle=":", label="not ruled out"))
    axes.set_xticks(range(len(networks)), [plain_text(name) for name in networks])
    axes.margins(y=0.12)
    axes.set_ylabel("batch size / without recomputation" if relative else "batch size")
    scale, unit_name = size_unit(results[0].memory)
    axes.set_title(f"Largest batch in {results[0].memory / scale:.4g} {unit_name} with one extra forward pass at most",
                   fontsize="medium")  # fmt: skip
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    return figure
