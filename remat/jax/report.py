"""Report on a rematerialized loss."""

from __future__ import annotations

from dataclasses import dataclass, field

from remat.jax.memory import CompiledMemory
from remat.solving.training_steps import StepReport


@dataclass(frozen=True)
class Verification:
    """Comparison of one rematerialized step with ``jax.value_and_grad``; it exists only if they agree.

    Attributes
    ----------
    values : int
        Arrays compared: the loss, auxiliary output and gradients.
    equal : int
        Arrays that are equal bit by bit.
    difference : float
        Largest difference, relative to the largest entry of its array.
    memory, plain_memory : CompiledMemory
        XLA's buffers of the two compiled steps.
    """

    values: int
    equal: int
    difference: float
    memory: CompiledMemory
    plain_memory: CompiledMemory

    def __str__(self) -> str:
        how = f"up to rounding ({self.difference:.2g}), {self.equal} bitwise"
        return (
            f"{self.values} values equal {'bitwise' if self.equal == self.values else how}; XLA assigns "
            f"{self.memory.step:,} bytes, {self.plain_memory.step:,} without recomputation"
        )


@dataclass(frozen=True, kw_only=True)
class Report(StepReport):
    """Prediction, certificate and, if requested, verification of a rematerialized loss and its gradients.

    Memory is in bytes. It counts the values of the captured equations: activations, gradients and temporaries, before
    XLA fuses any. Parameters and other arguments are `constant_memory`. Further attributes: :class:`StepReport`.

    Attributes
    ----------
    compiled_peak : int
        Peak if memory for the results is reserved from the start, as XLA does for results of a compiled function.
    xla_memory : CompiledMemory or None
        XLA's buffers of the compiled step, with `compiled` or `verify`.
    attempts : tuple of (int, int)
        Budgets of the schedules tried until XLA's memory kept the budget, and that memory.
    verification : Verification or None
    remarks : tuple of str
        Remarks on the capture.
    """

    compiled_peak: int
    xla_memory: CompiledMemory | None = None
    attempts: tuple[tuple[int, int], ...] = ()
    verification: Verification | None = field(default=None, repr=False)
    remarks: tuple[str, ...] = field(default=(), repr=False)

    @property
    def xla_peak(self) -> int | None:
        """Bytes that XLA assigns, with arguments if the budget counts them; None if the step was not compiled."""
        memory = self.xla_memory
        return None if memory is None else memory.step + (memory.arguments if self.constants_counted else 0)

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values, as ``str`` shows them."""
        verified = "not asked for" if self.verification is None else str(self.verification)
        return [
            *self.opening_rows("function", "XLA"),
            *self.budget_rows("parameters, other arguments and constants"),
            ("compiled", f"{self.compiled_peak:,} bytes predicted if results have their memory from the start"),
            ("XLA", self._xla_text()),
            self.saved_row(),
            *self.closing_rows(),
            *(("remark", text) for text in self.remarks),
            ("verified", verified),
        ]

    def _xla_text(self) -> str:
        if self.xla_peak is None:
            return "not compiled; compiled=True compares XLA's memory with the budget"
        text = f"{self.xla_peak:,} bytes assigned"
        if self.budget and self.xla_peak > self.budget:
            text += f", {100 * (self.xla_peak / self.budget - 1):.1f} % above the budget"
        return text if len(self.attempts) < 2 else f"{text}; best of {len(self.attempts)} schedules"
