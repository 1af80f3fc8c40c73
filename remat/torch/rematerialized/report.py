"""Report on a rematerialized module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remat.schedule import Certificate
from remat.schedule.certificate import overhead_text

if TYPE_CHECKING:
    from remat.solving.result import Result
    from remat.torch.rematerialized.verify import Verification


@dataclass(frozen=True)
class Report:
    """Prediction, certificate and, if requested, verification of a rematerialized training step.

    Memory is in bytes. It counts the tensors of the step: activations, returned gradients and temporaries. Parameters,
    buffers and inputs are `constant_memory`. The optimizer's state and tensors of a loss outside the module do not
    count, nor do workspaces of kernels unless measured.

    Attributes
    ----------
    name : str
        Name of the graph.
    engine : str
        ``"eager"`` or ``"inductor"``.
    ops, recomputations : int
        Ops of the step, and computes beyond the first of each op.
    reference_peak : int
        Peak without recomputation.
    budget : int or None
        None for a given schedule without a budget.
    predicted_peak : int
        Certified peak.
    overhead : float or None
        Extra cost in % under the chosen cost model; None if all costs are 0.
    constant_memory : int
    constants_counted : bool
        True if peak and budget count the constant memory.
    workspace : int or None
        Largest workspace of a kernel; None if peak and budget do not count workspaces.
    random_state_bytes : int
        States of random number generators kept for ops that run again; in main memory, not in the peak.
    saved_bytes : int
        Bytes that the backward pass reads from the forward pass.
    certificate : Certificate
    result : Result or None
        Answer of the method; None for a given schedule.
    seconds : mapping-like of str to float
        Times of capture and solving, and of torch's partitioner (``"start"``, a part of solving) if it ran.
    verification : Verification or None
    fallback : str
        Reason why a run was recorded (route ``"make_fx"``) instead of torch.compile's graph; otherwise empty.
    costs : str
        Cost model, and the rates of a roofline.
    unset : tuple of str
        Attributes that forward sets without reading them; steps do not set them.
    """

    name: str
    engine: str
    ops: int
    recomputations: int
    reference_peak: int
    budget: int | None
    predicted_peak: int
    overhead: float | None
    constant_memory: int
    constants_counted: bool
    random_state_bytes: int
    saved_bytes: int
    certificate: Certificate = field(repr=False)
    workspace: int | None = None
    result: Result | None = field(default=None, repr=False)
    seconds: dict[str, float] = field(default_factory=dict, repr=False)
    verification: Verification | None = field(default=None, repr=False)
    fallback: str = field(default="", repr=False)
    unset: tuple[str, ...] = field(default=(), repr=False)
    costs: str = field(default="", repr=False)

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values, as ``str`` shows them."""
        share = 100 * self.predicted_peak / self.reference_peak if self.reference_peak else 100.0
        rows = [
            ("module", f"{self.name}: {self.ops:,} ops, {self.recomputations:,} recomputations, {self.engine} engine"),
            (
                "peak",
                f"{self.predicted_peak:,} bytes predicted, {share:.1f} % of the {self.reference_peak:,} "
                "without recomputation",
            ),
        ]
        if self.fallback:
            rows.append(("captured", f"by running it: what forward does in Python is not done again ({self.fallback})"))
        if self.unset:
            rows.append(("not set", f"attributes that forward sets and does not read: {', '.join(self.unset)}"))
        if self.budget is not None:
            rows.append(("budget", f"{self.budget:,} bytes"))
        counted = "counted" if self.constants_counted else "not counted"
        rows.append(("constant", f"{self.constant_memory:,} bytes of parameters, buffers and inputs, {counted}"))
        if self.workspace is not None:
            rows.append(("workspace", f"{self.workspace:,} bytes of a kernel at most, counted"))
        rows.append(("saved", f"{self.saved_bytes:,} bytes from forward to backward pass"))
        if self.random_state_bytes:
            rows.append(("random", f"{self.random_state_bytes:,} bytes of generator states, not counted"))
        cost, base = self.certificate.cost, self.certificate.base_cost
        rows.append(("extra cost", overhead_text(cost, base)))
        if self.costs:
            rows.append(("costs", self.costs))
        if self.result is not None:
            gap = "" if self.result.gap is None else f", gap {100 * self.result.gap:.4g} %"
            rows.append(("found by", f"{self.result.source}: {self.result.status}{gap}"))
            rows.append(("scope", str(self.result.scope)))
        digests = f"graph {self.certificate.graph_digest[:12]}, schedule {self.certificate.schedule_digest[:12]}"
        rows.append(("certificate", f"{self.certificate.verdict}, {digests}"))
        rows.append(("seconds", ", ".join(f"{word} {value:.1f}" for word, value in self.seconds.items())))
        rows.append(("verified", "not asked for" if self.verification is None else str(self.verification)))
        return rows

    def __str__(self) -> str:
        return "\n".join(f"{word:<12} {text}" for word, text in self.rows())
