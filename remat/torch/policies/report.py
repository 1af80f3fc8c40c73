"""Report on a policy of selective checkpointing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remat.schedule import Certificate
from remat.schedule.certificate import overhead_text
from remat.solving.policies import BestPolicy

if TYPE_CHECKING:
    from remat.solving.result import Result


@dataclass(frozen=True)
class PolicyReport:
    """Prediction and certificate of a policy, and what the framework's limits cost.

    Memory is in bytes, as in :class:`remat.torch.Report`: activations, gradients that the step returns, temporaries.

    Attributes
    ----------
    name : str
        Name of the graph.
    regions, plain : int
        Regions, and those of them that need no checkpoint.
    ops, saved : int
        Ops that replays could reach, and those of them that the policy saves.
    reference_peak : int
        Peak without checkpoints.
    budget : int
    predicted_peak : int
        Certified peak in eager mode.
    compiled_peak : int
        Certified peak of a compiled step with the same saved set, which recomputes each op at its first need, before
        Inductor fuses and reorders kernels.
    replay_peak, replay_overhead : int, float or None
        Peak and extra cost without a policy, when each region is replayed as a whole.
    found : BestPolicy
        Answer within the scope of policies: choice, schedule of the eager step, certificate, bound.
    best : Result or None
        Best schedule found without the limits of policies; None if not asked for.
    """

    name: str
    regions: int
    plain: int
    ops: int
    saved: int
    reference_peak: int
    budget: int
    predicted_peak: int
    compiled_peak: int
    replay_peak: int
    replay_overhead: float | None
    found: BestPolicy = field(repr=False)
    best: Result | None = field(default=None, repr=False)

    @property
    def certificate(self) -> Certificate:
        """Certificate of the eager step."""
        return self.found.certificate

    @property
    def overhead(self) -> float | None:
        """Extra cost in %; None if all costs are 0."""
        return self.certificate.overhead

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values, as ``str`` shows them."""
        share = 100 * self.predicted_peak / self.reference_peak if self.reference_peak else 100.0
        cost, base = self.certificate.cost, self.certificate.base_cost
        plain = f", {self.plain} without checkpoint" if self.plain else ""
        rows = [
            ("policy", f"{self.name}: {self.regions} regions{plain}, saves {self.saved} of {self.ops} ops"),
            (
                "peak",
                f"{self.predicted_peak:,} bytes predicted, {share:.1f} % of the {self.reference_peak:,} "
                "without checkpoints",
            ),
            ("compiled", f"{self.compiled_peak:,} bytes, before kernels are fused"),
            ("budget", f"{self.budget:,} bytes"),
            ("extra cost", overhead_text(cost, base)),
        ]
        if self.found.bound_overhead is not None:
            rows.append(("bound", f"no policy for these regions below +{self.found.bound_overhead:.2f} %"))
        if self.best is not None and self.best.overhead is not None:
            rows.append(("best schedule", f"+{self.best.overhead:.2f} %, without the limits of policies"))
        full = "" if self.replay_overhead is None else f", +{self.replay_overhead:.2f} %"
        rows.append(("full replays", f"{self.replay_peak:,} bytes{full}"))
        rows.append(("found by", self.found.source + (", proved least" if self.found.optimal else "")))
        rows.append(("scope", str(self.found.scope)))
        rows.append(self.certificate.verdict_row())
        return rows

    def __str__(self) -> str:
        return "\n".join(f"{word:<14} {text}" for word, text in self.rows())
