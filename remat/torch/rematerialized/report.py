"""Report on a rematerialized module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remat.solving.training_steps import StepReport

if TYPE_CHECKING:
    from remat.torch.rematerialized.verify import Verification
    from remat.torch.transfers.optimizer_state import StateBytes


@dataclass(frozen=True, kw_only=True)
class Report(StepReport):
    """Prediction, certificate and, if requested, verification of a rematerialized training step.

    Memory is in bytes. It counts the tensors of the step: activations, returned gradients and temporaries. Parameters,
    buffers, inputs and the state on the device of a given optimizer are `constant_memory`. Tensors of a loss outside
    the module do not count, nor do workspaces of kernels unless measured. Further attributes: :class:`StepReport`;
    `seconds` also has the time of torch's partitioner (``"start"``, a part of solving) if it ran.

    Attributes
    ----------
    engine : str
        ``"eager"`` or ``"inductor"``.
    workspace : int or None
        Largest workspace of a kernel; None if peak and budget do not count workspaces.
    random_state_bytes : int
        States of random number generators kept for ops that run again; in main memory, not in the peak.
    state : StateBytes or None
        State of the optimizer on device and host; None if no optimizer was given.
    verification : Verification or None
    compiled_peak : int or None
        Peak of the program that TorchInductor compiles, workspaces of library calls included; None if not computed.
    attempts : tuple of (int, int)
        Budgets of the schedules tried until that peak kept the budget, and the peaks of their programs.
    fallback : str
        Reason why a run was recorded (route ``"make_fx"``) instead of torch.compile's graph; otherwise empty.
    unset : tuple of str
        Attributes that forward sets without reading them; steps do not set them.
    """

    engine: str
    random_state_bytes: int
    workspace: int | None = None
    state: StateBytes | None = None
    verification: Verification | None = field(default=None, repr=False)
    compiled_peak: int | None = None
    attempts: tuple[tuple[int, int], ...] = ()
    fallback: str = field(default="", repr=False)
    unset: tuple[str, ...] = field(default=(), repr=False)

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values, as ``str`` shows them."""
        rows = self.opening_rows("module", f"{self.engine} engine")
        if self.fallback:
            rows.append(("captured", f"by running it: what forward does in Python is not done again ({self.fallback})"))
        if self.unset:
            rows.append(("not set", f"attributes that forward sets and does not read: {', '.join(self.unset)}"))
        on_device = self.state is not None and self.state.device > 0
        rows += self.budget_rows(f"parameters, buffers{', state of the optimizer' if on_device else ''} and inputs")
        if self.state is not None:
            rows.append(
                ("optimizer", f"{self.state.device:,} bytes of state on the device, {self.state.host:,} on the host")
            )
        if self.workspace is not None:
            rows.append(("workspace", f"{self.workspace:,} bytes of a kernel at most, counted"))
        if self.compiled_peak is not None:
            rows.append(("compiled", self._compiled_text()))
        rows.append(self.saved_row())
        if self.random_state_bytes:
            rows.append(("random", f"{self.random_state_bytes:,} bytes of generator states, not counted"))
        verified = "not asked for" if self.verification is None else str(self.verification)
        return [*rows, *self.closing_rows(), ("verified", verified)]

    def _compiled_text(self) -> str:
        assert self.compiled_peak is not None
        text = f"{self.compiled_peak:,} bytes after fusion, workspaces included"
        if self.budget and self.compiled_peak > self.budget:
            text += f", {100 * (self.compiled_peak / self.budget - 1):.1f} % above the budget"
        return text if len(self.attempts) < 2 else f"{text}; best of {len(self.attempts)} schedules"
