"""Report on a model whose blocks are rematerialized."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from remat.runtime.text import counted
from remat.schedule import Certificate
from remat.schedule.certificate import overhead_text


@dataclass(frozen=True)
class BlockChoice:
    """Option of one block.

    Attributes
    ----------
    path : str
    kind : int
        Number of its kind: blocks of one kind have the same graph.
    saved : int
        Bytes that the block keeps from its forward to its backward pass, arguments excluded.
    extra : float
        Cost of its recomputations in % of its own cost.
    """

    path: str
    kind: int
    saved: int
    extra: float


@dataclass(frozen=True)
class BlocksReport:
    """Prediction and certificate of a training step of a model with rematerialized blocks.

    Memory is in bytes and counts as in :class:`~remat.torch.rematerialized.report.Report`, for the whole model: its
    blocks, and the remainder, which runs as it is.

    Attributes
    ----------
    name : str
    blocks : tuple of BlockChoice
        One for each call of a block, in order.
    ops, recomputations : int
        Of the whole step.
    reference_peak, budget, predicted_peak : int
        Peak without recomputation, budget, and certified peak of the whole step.
    overhead : float or None
        Extra cost in % under the chosen cost model; None if all costs are 0.
    bound : int or None
        Least cost of any choice of these options within the budget.
    options : tuple of int
        Number of options of each kind of block.
    constant_memory : int
    constants_counted : bool
    random_state_bytes : int
        States of random number generators kept for ops that run again; not in the peak.
    certificate : Certificate
        Of the composed schedule, on the graph of the whole step.
    seconds : mapping-like of str to float
        Times of recording calls, capture, options and the choice.
    costs : str
        Cost model, and the rates of a roofline.
    """

    name: str
    blocks: tuple[BlockChoice, ...] = field(repr=False)
    ops: int
    recomputations: int
    reference_peak: int
    budget: int
    predicted_peak: int
    overhead: float | None
    bound: int | None
    options: tuple[int, ...]
    constant_memory: int
    constants_counted: bool
    random_state_bytes: int
    certificate: Certificate = field(repr=False)
    seconds: dict[str, float] = field(default_factory=dict, repr=False)
    costs: str = field(default="", repr=False)

    @property
    def gap(self) -> float | None:
        """Distance of the cost from `bound`, as a share of the cost; None if one is unknown."""
        if self.bound is None or not self.certificate.cost:
            return None
        return max(0.0, 1 - self.bound / self.certificate.cost)

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values, as ``str`` shows them."""
        share = 100 * self.predicted_peak / self.reference_peak if self.reference_peak else 100.0
        constants = "counted" if self.constants_counted else "not counted"
        kinds = f"{counted(len(self.blocks), 'call')} of {counted(len(self.options), 'kind')}"
        rows = [
            ("model", f"{self.name}: {self.ops:,} ops, {self.recomputations:,} recomputations"),
            ("blocks", f"{kinds}, {_listed(self.options)} options"),
            *((" ", text) for text in self._choices()),
            (
                "peak",
                f"{self.predicted_peak:,} bytes predicted, {share:.1f} % of the {self.reference_peak:,} "
                "without recomputation",
            ),
            ("budget", f"{self.budget:,} bytes"),
            ("constant", f"{self.constant_memory:,} bytes of parameters, buffers and inputs, {constants}"),
        ]
        if self.random_state_bytes:
            rows.append(("random", f"{self.random_state_bytes:,} bytes of generator states, not counted"))
        rows.append(("extra cost", overhead_text(self.certificate.cost, self.certificate.base_cost)))
        if self.gap is not None:
            rows.append(("gap", f"{100 * self.gap:.2g} % to the best choice of these options, one for each block"))
        if self.costs:
            rows.append(("costs", self.costs))
        rows.append(self.certificate.verdict_row())
        rows.append(("seconds", ", ".join(f"{word} {value:.1f}" for word, value in self.seconds.items())))
        return rows

    def _choices(self) -> list[str]:
        """Describe each option in use: number of blocks, first of them, saved bytes, extra cost."""
        counts = Counter((each.kind, each.saved, each.extra) for each in self.blocks)
        first = {(each.kind, each.saved, each.extra): each.path for each in reversed(self.blocks)}
        return [
            f"{count:>4} × saves {saved:,} bytes, +{extra:.1f} % ({first[kind, saved, extra]}"
            + (", ...)" if count > 1 else ")")
            for (kind, saved, extra), count in sorted(counts.items())
        ]

    def __str__(self) -> str:
        return "\n".join(f"{word:<12} {text}" for word, text in self.rows())


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")
