"""Results of a search for the largest batch: every probe, the largest batch that fits, and their picture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from remat.errors import ProblemError
from remat.experiments.contestant import Contestant
from remat.graphs import ComputeGraph
from remat.graphs.batch_scaling import AffineGraph
from remat.io.figures import COLOURS, GIVEN, INK, LABEL, NAME, figure_of, new_axes, plain_text, rule, set_title
from remat.io.views import html_pairs, html_picture
from remat.runtime.sizes import size_text
from remat.schedule import Schedule
from remat.schedule.certificate import Certificate
from remat.schedule.io import write_schedule

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class BatchVerdict(StrEnum):
    """Result of a probe."""

    FITS = "fits"
    """A certified schedule is within the memory and the cost limit."""
    INFEASIBLE = "infeasible"
    """No schedule in the scope fits the memory."""
    TOO_EXPENSIVE = "too expensive"
    """Every schedule in the scope that fits the memory costs more than one extra forward pass."""
    NOT_FOUND = "not found"
    """The method found no schedule, which proves nothing."""
    FAILED = "failed"
    """The method failed."""

    @property
    def proved(self) -> bool:
        """True if the verdict rules out the batch size."""
        return self in (BatchVerdict.INFEASIBLE, BatchVerdict.TOO_EXPENSIVE)


@dataclass(frozen=True)
class Probe:
    """A batch size that was tried.

    Attributes
    ----------
    batch : int
    verdict : BatchVerdict
    most : int
        Cost limit: each op once, and the forward pass again.
    method : str
        Label of the method.
    cost, bound : int or None
        Certified cost of the best schedule within the memory, and a cost that no schedule in the scope can beat.
    scope : str
        Schedules that verdict and bound cover.
    complete : bool
        True if these are all schedules within the rules.
    seconds : float
    source : str
        Source of the schedule.
    why : str
        Reason, if the batch does not fit.
    """

    batch: int
    verdict: BatchVerdict
    most: int
    method: str
    cost: int | None = None
    bound: int | None = None
    scope: str = ""
    complete: bool = False
    seconds: float = 0.0
    source: str = ""
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the probe as JSON values."""
        return {**asdict(self), "verdict": str(self.verdict)}


@dataclass(frozen=True, repr=False)
class BatchResult:
    """Result of :func:`max_batch`.

    Attributes
    ----------
    family : AffineGraph
    memory : int
        Bytes.
    method : Contestant
    batch : int
        Largest batch size with a certified schedule; 0 if not even 1 has one.
    graph : ComputeGraph or None
        The graph at that batch size.
    schedule, certificate : optional
        Schedule at that batch size, and its certificate.
    plain : int
        Largest batch size of the reference order without recomputation.
    reason : Probe or None
        Probe of ``batch + 1``; None if Ctrl-C came before it.
    upper : int
        Smallest proved upper limit of the batch size, in the scope of the method.
    probes : tuple of Probe
        All probes in order, including those of the start heuristic.
    source : str
        Source of the schedule.
    limits : mapping
        Limits of each probe.
    interrupted : bool
    """

    family: AffineGraph
    memory: int
    method: Contestant
    batch: int
    graph: ComputeGraph | None
    schedule: Schedule | None
    certificate: Certificate | None
    plain: int
    reason: Probe | None
    upper: int
    probes: tuple[Probe, ...]
    source: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def proved(self) -> bool:
        """True if no larger batch fits, in the scope of the method."""
        return self.upper == self.batch

    @property
    def claim(self) -> str:
        """Statement on larger batches, in a sentence."""
        if self.reason is None:
            return f"interrupted; {self.upper:,} is the largest not ruled out"
        text = f"at {self.reason.batch:,} {self.reason.why}"
        if self.reason.verdict.proved:
            return f"{text} ({self.reason.scope})"
        return f"{text}; {self.upper:,} is the largest not ruled out"

    def __repr__(self) -> str:
        claim = "the largest" if self.proved else f"{self.upper:,} not ruled out"
        return f"BatchResult({self.family.name!r}, batch {self.batch:,} in {size_text(self.memory)}, {claim})"

    def rows(self) -> list[tuple[str, str]]:
        """Return memory, batches and the claim on larger ones as pairs of label and text."""
        rows = [
            ("network", self.family.name),
            ("memory", f"{self.memory:,} bytes"),
            ("batch", f"{self.batch:,} ({self.plain:,} without recomputation)"),
            ("larger", self.claim),
            ("method", self.method.label),
        ]
        found = self.certificate
        if found is not None:
            rows += [("overhead", "unknown" if found.overhead is None else f"{found.overhead:.4g} %")]
            rows += [("peak", f"{found.peak:,} bytes"), ("source", self.source)]
        return rows

    def _repr_html_(self) -> str:
        """Return the notebook's view: the lines of :meth:`rows`, and the picture."""
        return f"<div>{html_pairs(self.rows())}{html_picture(self.plot(), 'largest batch')}</div>"

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the largest batch next to that without recomputation."""
        return figure_of(plot_batches([self], ax))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the schedule at the largest batch to a file atomically; its graph is :attr:`graph`.

        Raises
        ------
        ProblemError
            Without a schedule.
        FormatError
            If the file cannot be written.
        """
        if self.schedule is None:
            raise ProblemError("there is no schedule to save: not even batch size 1 fits", "no-schedule-to-save")
        write_schedule(self.schedule, path)

    def to_frame(self) -> pandas.DataFrame:
        """Return the probes as a data frame of pandas."""
        import pandas

        return pandas.DataFrame([probe.as_dict() for probe in self.probes])

    def row(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        found, reason = self.certificate, self.reason
        return {
            "network": self.family.name,
            "method": self.method.label,
            "memory": self.memory,
            "batch": self.batch,
            "upper": self.upper,
            "proved": self.proved,
            "reason": None if reason is None else str(reason.verdict),
            "scope": None if reason is None else reason.scope,
            "plain_batch": self.plain,
            "overhead_percent": None if found is None else found.overhead,
            "peak": None if found is None else found.peak,
            "source": self.source,
            "probes": len(self.probes),
            "seconds": sum(probe.seconds for probe in self.probes),
            "interrupted": self.interrupted,
            "claim": self.claim,
        }


def plot_batches(results: Sequence[BatchResult], ax: Axes | None = None) -> Axes:
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
    set_title(axes, f"Largest batch in {size_text(results[0].memory)} with at most one extra forward pass")
    rule(axes, "y")
    figure_of(axes).legend(handles=handles, loc="outside lower center", ncols=3, fontsize=LABEL, frameon=False)
    return axes
