"""Certificate of a schedule: verdict, peak, cost and violations."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from remat.io.figures import FIRST, LABEL, figure_of, new_axes, plain_text, set_title
from remat.io.files import write_atomic
from remat.io.views import html_pairs, html_picture
from remat.runtime.sizes import size_text, size_unit
from remat.runtime.text import clipped, counted
from remat.schedule.rules import Rules

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Tensors in the picture of a certificate.
DRAWN = 10


class Rule(StrEnum):
    """Rules for schedules; the value is the rule's name in words."""

    GRAPH_DIGEST = "graph digest"
    """A signed schedule has the digest of this graph."""
    UNKNOWN_OP = "unknown op"
    """Every computed op is in the graph."""
    UNKNOWN_TENSOR = "unknown tensor"
    """Every freed tensor is in the graph."""
    INPUT_NOT_LIVE = "input not live"
    """Every tensor is live when an op reads it."""
    INPUT_INCOMPLETE = "input incomplete"
    """Every accumulation buffer has all contributions when an op reads it."""
    FREE_NOT_LIVE = "free of a dead tensor"
    """Only live tensors are freed."""
    FREE_GRAPH_INPUT = "free of a graph input"
    """Graph inputs are never freed."""
    OFFLOAD_NOT_LIVE = "offload of a dead tensor"
    """Only live tensors are offloaded."""
    OFFLOAD_INCOMPLETE = "offload of an incomplete tensor"
    """Accumulation buffers have all contributions when they are offloaded."""
    OFFLOAD_AGAIN = "second host copy"
    """A tensor has at most one copy on the host."""
    FETCH_OF_LIVE = "fetch of a live tensor"
    """Only tensors that are not on the device are fetched."""
    NO_HOST_COPY = "no host copy"
    """Only tensors with a copy on the host are fetched or discarded."""
    OP_NOT_COMPUTED = "op not computed"
    """Every op is computed at least once."""
    OUTPUT_NOT_LIVE = "output not live"
    """Graph outputs and kept tensors are live at the end."""
    OUTPUT_INCOMPLETE = "output incomplete"
    """Graph outputs and kept tensors have all contributions at the end."""
    NOT_RECOMPUTABLE = "not recomputable"
    """Ops marked as not recomputable are computed once."""
    COMPUTES_PER_OP = "computes per op"
    """No op is computed more often than allowed."""
    ORDER = "order"
    """First computations follow the reference order, if the order is fixed."""
    NO_LINK = "no link"
    """Tensors move only where the machine has a link."""
    BUDGET = "budget"
    """No compute or fetch holds more than the budget."""
    HOST_CAPACITY = "host capacity"
    """Copies on the host take no more than its memory."""
    TIME_LIMIT = "time limit"
    """The schedule takes no longer than the machine's limit."""


#: Limits: a schedule that breaks no other rule computes the right values, in more memory or time.
LIMITS = frozenset({Rule.BUDGET, Rule.HOST_CAPACITY, Rule.TIME_LIMIT})


class Verdict(StrEnum):
    """Verdict of the validator."""

    VALID = "valid"
    """No rule is broken."""
    OVER_BUDGET = "over budget"
    """Only the budget, the host's capacity or the time limit is exceeded: a correct schedule that needs more."""
    INVALID = "invalid"
    """Another rule is broken; the peak and cost of such a schedule are meaningless."""


def overhead_percent(cost: float, base_cost: int) -> float | None:
    """Return the extra cost relative to computing each op once, in %.

    None if computing each op once costs nothing.

    Examples
    --------
    >>> overhead_percent(105, 100), overhead_percent(5, 0)
    (5.0, None)
    """
    return 100 * (cost - base_cost) / base_cost if base_cost else None


def overhead_text(cost: float, base_cost: int) -> str:
    """Return the overhead as text, or the cost if computing each op once costs nothing.

    Examples
    --------
    >>> overhead_text(105, 100), overhead_text(5000, 0)
    ('5 %', '5,000')
    """
    overhead = overhead_percent(cost, base_cost)
    return f"{cost:,}" if overhead is None else f"{overhead:.4g} %"


class BrokenRule:
    """Base of violations: dataclasses with a rule and a message."""

    __slots__ = ()
    rule: StrEnum
    message: str
    step: int | None

    @property
    def about(self) -> str | None:
        """Tensor concerned; None where there is none."""
        return None

    @property
    def place(self) -> str:
        """Short name of the place: the step, or else what is concerned."""
        return "the end" if self.step is None else f"step {self.step}"

    def __str__(self) -> str:
        return self.message

    def as_dict(self) -> dict[str, Any]:
        """Return the violation as JSON values."""
        return asdict(self) | {"rule": str(self.rule)}  # type: ignore[call-overload]


V = TypeVar("V", bound=BrokenRule)
#: Most places that are listed of equal faults.
_PLACES = 5


class Findings(ABC, Generic[V]):
    """Base of certificates: dataclasses with violations."""

    violations: tuple[V, ...]
    more_violations: int

    @abstractmethod
    def rows(self) -> list[tuple[str, str]]:
        """Return the lines of the text as pairs of label and text."""

    @property
    def first(self) -> V | None:
        """First violation, or None."""
        return self.violations[0] if self.violations else None

    def to_frame(self) -> pandas.DataFrame:
        """Return the violations as a data frame of pandas."""
        import pandas

        return pandas.DataFrame([violation.as_dict() for violation in self.violations])

    def __str__(self) -> str:
        return "\n".join(f"{word:<13} {text}" for word, text in self.rows())

    def _repr_html_(self) -> str:
        """Return the notebook's view: the lines of the text as a table."""
        return html_pairs(self.rows())

    def _violation_rows(self) -> list[tuple[str, str]]:
        """Return the violations; those of one rule and tensor together, the first in words."""
        groups: dict[tuple[StrEnum, str | None], list[V]] = {}
        for violation in self.violations:
            groups.setdefault((violation.rule, violation.about), []).append(violation)
        rows = []
        for first, *others in groups.values():
            rows.append(("violation", str(first)))
            if others:
                rows.append(("", f"the same at {_places(others)}"))
        return [*rows, ("", f"and {self.more_violations:,} more violations")] if self.more_violations else rows


def _places(violations: Sequence[BrokenRule]) -> str:
    """Return the steps of violations, or where there is none, their places.

    Examples
    --------
    >>> some = [Violation(k, None, None, Rule.BUDGET, "") for k in range(7)]
    >>> _places(some[:2]), _places(some)
    ('steps 0, 1', 'steps 0, 1, 2, 3, 4 and 2 more')
    """
    shown = [each.place for each in violations[:_PLACES]]
    more = f" and {len(violations) - _PLACES:,} more" if len(violations) > _PLACES else ""
    if len(shown) > 1 and all(place.startswith("step ") for place in shown):
        shown = [place.removeprefix("step ") for place in shown]
        return f"steps {', '.join(shown)}{more}"
    return f"{', '.join(shown)}{more}"


@dataclass(frozen=True, slots=True)
class Violation(BrokenRule):
    """One broken rule."""

    step: int | None
    """Position in the schedule, from 0; None if it concerns the schedule as a whole or its end."""
    op: str | None
    """Op concerned, if any."""
    tensor: str | None
    """Tensor concerned, if any."""
    rule: Rule
    message: str
    """One line, with step and names."""

    @property
    def about(self) -> str | None:
        """Tensor concerned."""
        return self.tensor

    @property
    def place(self) -> str:
        """Step, or else the op or tensor."""
        return f"step {self.step}" if self.step is not None else repr(self.op or self.tensor)


@dataclass(frozen=True, slots=True)
class Transfers:
    """Bytes that a schedule moves between device and host, and its time; times in the cost unit of the graph."""

    offloads: int = 0
    """Number of writes to the host."""
    fetches: int = 0
    """Number of reads from the host."""
    bytes_written: int = 0
    bytes_read: int = 0
    host_peak: int = 0
    """Largest memory of all copies on the host in bytes."""
    host_peak_step: int | None = None
    """First step with that memory; None without offloads."""
    time: int | None = None
    """Time of the whole schedule on the machine of the rules; None without a machine or if invalid."""
    stall: int | None = None
    """Part of it in which the device waits for transfers."""
    energy: int | None = None
    """Energy of computes and transfers, in units of that of a cost unit of computing; None if the machine has no power
    of transfers, or without a time."""


@dataclass(frozen=True)
class Certificate(Findings[Violation]):
    """Result of an independent check of a schedule; memory in bytes, cost in the cost unit of the graph.

    Attributes
    ----------
    verdict : Verdict
    peak : int
        Largest memory of the device at any compute or fetch, sampled after allocation and before freeing; 0 if
        there is neither.
    peak_step, peak_op : int, str or None
        First compute or fetch with that memory, and its op. None if there is neither; a fetch has no op.
    live_at_peak : tuple of (str, int)
        Tensors live at the peak and their bytes, largest first.
    workspace_at_peak : int
        Workspace of the op at the peak.
    pruned_peak : int or None
        Peak of the same computes with every free moved to the last use; None if invalid. `peak` is larger where
        tensors stay live after their last use.
    cost, base_cost : int
        Cost of all compute steps; cost of each op once.
    overhead : float or None
        ``100 (cost - base_cost) / base_cost``; None if invalid or if all costs are 0.
    steps, computes, recomputations : int
        Number of steps, of compute steps, and of compute steps after an op's first.
    redundant : int
        Compute steps that changed nothing, as all outputs were already live.
    masked : int
        Contributions not added, since the live instance of the buffer already had them.
    in_place, in_place_at_peak : int
        Number of outputs written in place of inputs; their bytes at the peak, which live_at_peak counts twice.
    transfers : Transfers or None
        Figures of the host and the time; None if no step moves a tensor and the rules have no machine.
    budget : int or None
    violations : tuple of Violation
        Those of the schedule as a whole, then by step, then those at the end; at most the requested number.
    more_violations : int
        Number of violations beyond those listed.
    graph, graph_digest, schedule_digest : str
    rules : Rules
    """

    verdict: Verdict
    peak: int
    peak_step: int | None
    peak_op: str | None
    live_at_peak: tuple[tuple[str, int], ...]
    workspace_at_peak: int
    pruned_peak: int | None
    cost: int
    base_cost: int
    overhead: float | None
    steps: int
    computes: int
    recomputations: int
    redundant: int
    masked: int
    violations: tuple[Violation, ...]
    more_violations: int
    graph: str
    graph_digest: str
    schedule_digest: str
    rules: Rules
    in_place: int = 0
    in_place_at_peak: int = 0
    transfers: Transfers | None = None

    def __repr__(self) -> str:
        return f"Certificate({self.graph!r}, {self.verdict}, peak {self.peak:,}, cost {self.cost:,})"

    def _repr_html_(self) -> str:
        """Return the notebook's view: the lines of the text as a table, and the tensors at the peak."""
        return f"<div>{html_pairs(self.rows())}{html_picture(self.plot(), 'tensors live at the peak')}</div>"

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the bytes of the largest tensors that are live at the peak, and of everything else there."""
        axes = new_axes(ax, (7, 3.2))
        scale, unit = size_unit(self.peak)
        bars = [*self.live_at_peak[:DRAWN], ("workspace", self.workspace_at_peak)]
        others, label = self.peak - sum(size for _, size in bars), f"memory at the peak ({unit})"
        if others > 5 * max(size for _, size in bars):  # its bar would leave no room for the others
            scale, unit = size_unit(max(size for _, size in bars))
            label = f"largest tensors at the peak ({unit}); all others hold {size_text(others)}"
        else:
            bars.append(("others", others))
        bars = [(name, size) for name, size in reversed(bars) if size]
        axes.barh([plain_text(clipped(name, 40)) for name, _ in bars], [size / scale for _, size in bars], color=FIRST)
        axes.set_xlabel(label, fontsize=LABEL)
        budget = "" if self.budget is None else f", budget {size_text(self.budget)}"
        title = f"{self.graph}: {self.verdict}, peak {size_text(self.peak)}{budget}"
        set_title(axes, title)
        return figure_of(axes)

    @property
    def accepted(self) -> bool:
        """True when no rule is broken."""
        return self.verdict is Verdict.VALID

    @property
    def time(self) -> int | None:
        """Time with stalls, in the cost unit of the graph: the cost, if nothing is moved; None if it is not known."""
        return self.cost if self.transfers is None else self.transfers.time

    @property
    def energy(self) -> int | None:
        """Energy in units of that of a cost unit of computing: the cost, if nothing is moved; None if not known."""
        return self.cost if self.transfers is None else self.transfers.energy

    @property
    def decisive(self) -> Violation | None:
        """First violation that decides the verdict: of a limit only if no other rule is broken; or None."""
        return next((each for each in self.violations if each.rule not in LIMITS), self.first)

    @property
    def budget(self) -> int | None:
        """Budget in bytes; None: no limit."""
        return self.rules.budget

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate as JSON values."""
        limits = self.rules.max_computes
        rules = vars(self.rules) | {
            "order": str(self.rules.order),
            "max_computes": dict(limits) if isinstance(limits, Mapping) else limits,
            "keep": sorted(self.rules.keep),
        }
        own = dict(vars(self))
        if not self.in_place:  # without what is new, the format stays that of earlier versions
            del own["in_place"], own["in_place_at_peak"]
        if self.transfers is None:
            del own["transfers"]
        else:
            moved = own["transfers"] = asdict(self.transfers)
            if moved["energy"] is None:
                del moved["energy"]
        if self.rules.machine is None:
            del rules["machine"]
        else:
            rules["machine"] = self.rules.machine.as_dict()
        return own | {
            "verdict": str(self.verdict),
            "live_at_peak": [list(pair) for pair in self.live_at_peak],
            "violations": [violation.as_dict() for violation in self.violations],
            "rules": rules,
        }

    def save(
        self,
        path: str | os.PathLike[str],
        graph: str | os.PathLike[str] | None = None,
        schedule: str | os.PathLike[str] | None = None,
    ) -> None:
        """Write a certificate file atomically, which ``remat verify`` checks.

        Parameters
        ----------
        path : path
        graph, schedule : path, optional
            Files that were checked; the certificate records their paths and digests. Without them,
            ``remat verify PATH GRAPH SCHEDULE`` needs to name them.

        Raises
        ------
        FormatError
            If a file cannot be read or written; names it.
        """
        from remat.schedule.certificate_files import CheckRecord, certificates_text, file_record

        record = CheckRecord(graph=file_record(graph), schedule=file_record(schedule), certificate=self.as_dict())
        write_atomic(path, certificates_text([record], path))

    def rows(self) -> list[tuple[str, str]]:
        """Return the lines of the text as pairs of label and text."""
        rows = [("verdict", str(self.verdict)), ("graph", f"{self.graph} ({self.graph_digest[:12]})")]
        others = len(self.violations) + self.more_violations - 1
        if self.first is not None and self.first.rule is Rule.GRAPH_DIGEST and others:  # names match by chance
            follow = f"{others:,} more violations follow from that; remat validate --json lists them"
            return [*rows, ("violation", str(self.first)), ("", follow)]
        where = "" if self.peak_step is None else f" at step {self.peak_step}"
        where += "" if self.peak_op is None else f" ({self.peak_op})"
        rows.append(("peak", f"{counted(self.peak, 'byte')}{where}"))
        if self.pruned_peak is not None and self.pruned_peak != self.peak:
            rows.append(("pruned peak", f"{counted(self.pruned_peak, 'byte')} (every free moved to the last use)"))
        if self.budget is not None:
            rows.append(("budget", counted(self.budget, "byte")))
        if self.live_at_peak:
            held = [f"{name} ({counted(size, 'byte')})" for name, size in self.live_at_peak[:3]]
            more = len(self.live_at_peak) - len(held)
            rows.append(("live at peak", ", ".join(held) + (f" and {more} more" if more else "")))
        overhead = "" if self.overhead is None else f", overhead {self.overhead:.4g} %"
        rows.append(("cost", f"{self.cost:,} (each op once {self.base_cost:,}{overhead})"))
        rows.append(
            ("steps", f"{self.steps:,}: {counted(self.computes, 'compute')}, {self.recomputations:,} of them again")
        )
        rows += [*self.transfer_rows(), *self.time_rows()]
        if self.redundant:
            rows.append(("redundant", f"{counted(self.redundant, 'compute')} of values already live"))
        if self.in_place:
            rows.append(("in place", f"{self.in_place:,} outputs, {self.in_place_at_peak:,} bytes of them at the peak"))
        if self.masked:
            rows.append(("masked", f"{self.masked:,} contributions already made"))
        return rows + self._violation_rows()

    def transfer_rows(self) -> list[tuple[str, str]]:
        """Return the lines about machine, transfers and host; none where nothing is known of them."""
        machine, moved = self.rules.machine, self.transfers
        if moved is None:
            return []
        rows = [] if machine is None else [("machine", str(machine))]
        if moved.offloads or moved.fetches:
            where = "" if moved.host_peak_step is None else f" at step {moved.host_peak_step}"
            out = f"{counted(moved.bytes_written, 'byte')} out in {counted(moved.offloads, 'offload')}"
            back = f"{counted(moved.bytes_read, 'byte')} in by {counted(moved.fetches, 'fetch')}"
            rows += [("moved", f"{out}, {back}"), ("host peak", f"{counted(moved.host_peak, 'byte')}{where}")]
        return rows

    def verdict_row(self) -> tuple[str, str]:
        """Return the line about the verdict, with the digests of graph and schedule."""
        return "certificate", f"{self.verdict}, graph {self.graph_digest[:12]}, schedule {self.schedule_digest[:12]}"

    def time_rows(self) -> list[tuple[str, str]]:
        """Return the line about the time with waits; none where it is not known."""
        moved = self.transfers
        if moved is None or moved.time is None:
            return []
        more = overhead_percent(moved.time, self.base_cost)
        relative = "" if more is None else f", {more:.4g} % more than each op once"
        rows = [("time", f"{moved.time:,}, {moved.stall:,} of it waiting for transfers{relative}")]
        if moved.energy is not None:
            rows.append(("energy", f"{moved.energy:,}, {moved.energy - self.cost:,} of it for transfers"))
        return rows
