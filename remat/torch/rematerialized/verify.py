"""Verification of one step of a rematerialized module against one step of the original."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from remat.errors import VerificationError
from remat.torch.distributed import Spread, local_part
from remat.torch.memory import profiled_memory, track_storages
from remat.torch.private import pytree

#: Tolerated excess of the measured peak over the predicted one: a share of it, and bytes for scalars that are not ops.
PEAK_SHARE, PEAK_BYTES = 0.01, 4096


@dataclass(frozen=True)
class Verification:
    """Comparison of one step with eager; it exists only if they agree.

    Attributes
    ----------
    outputs, gradients, buffers : int
        Numbers of tensors compared.
    bitwise : bool
        True if all of them are bitwise equal. Otherwise they differ by as much as two eager steps differ, or by the
        rounding of a type below 32 bits.
    difference : float
        Largest difference, relative to the largest entry.
    measured_peak, eager_peak : int or None
        Bytes of live tensors that the two steps allocated, by storages; None for compiled code.
    allocator_peak : int or None
        Peak of the allocator, with workspaces of kernels; None if they are not counted.
    host_peak : int or None
        Largest number of bytes that copies on the host held; None if no tensor moves.
    """

    outputs: int
    gradients: int
    buffers: int
    bitwise: bool
    difference: float
    measured_peak: int | None
    eager_peak: int
    allocator_peak: int | None = None
    host_peak: int | None = None

    def __str__(self) -> str:
        how = "bitwise equal" if self.bitwise else f"equal up to rounding ({self.difference:.2g})"
        text = f"{self.outputs} outputs, {self.gradients} gradients, {self.buffers} buffers {how}"
        if self.measured_peak is not None:
            text += f"; measured peak {self.measured_peak:,} bytes, eager {self.eager_peak:,}"
        if self.allocator_peak is not None:
            text += f"; with workspaces {self.allocator_peak:,}"
        if self.host_peak is not None:
            text += f"; host {self.host_peak:,}"
        return text


@dataclass(frozen=True)
class Expected:
    """Requirements on the memory and the results of a step."""

    peak: int
    """Predicted peak in bytes."""
    tolerance: float = 0.0
    """Largest difference, relative to the largest entry, that is allowed even if eager repeats its step bit by bit."""
    measure: bool = True
    """If true, measure the peak by storages (impossible for compiled code)."""
    allocator: int | None = None
    """If the predicted peak counts workspaces: bytes in addition to it that the allocator may allocate (states of
    random number generators). None: the allocator is not measured; nor is it for compiled code or on a GPU."""


@dataclass(frozen=True)
class _Outcome:
    """Results of a step: named tensors, and peaks."""

    tensors: dict[str, torch.Tensor]
    peak: int
    allocator_peak: int | None


def verify(
    original: nn.Module,
    rematerialized: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    expected: Expected,
) -> Verification:
    """Run one training step of both from the same state and compare their results.

    Gradients of parameters, buffers and the states of the random number generators are restored, also after an
    exception.

    Parameters
    ----------
    original : torch.nn.Module
        In training mode.
    rematerialized : callable
        Callable with the same arguments.
    expected : Expected

    Raises
    ------
    VerificationError
        With the first output, gradient or buffer that differs, and by how much; or if a measured peak exceeds the
        predicted one by more than 1 %.
    """
    measure, allocator = expected.measure, expected.allocator
    leaves = pytree.tree_leaves((args, kwargs))
    given = {str(i): leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad}
    targets = {name: each for name, each in original.named_parameters() if each.requires_grad} | given
    eager = _step(original, args, kwargs, targets, original)
    profiled = measure and allocator is not None and _on_cpu(original, leaves)
    ours = _step(rematerialized, args, kwargs, targets, original, measure=measure, profiled=profiled)
    differing = list(_differences(eager, ours))
    if differing:
        again = _step(original, args, kwargs, targets, original)
        _judge(differing, list(_differences(eager, again)), expected.tolerance)
    for peak, beside in ((ours.peak if measure else None, 0), (ours.allocator_peak, allocator or 0)):
        if peak is not None and peak > expected.peak * (1 + PEAK_SHARE) + PEAK_BYTES + beside:
            raise VerificationError(
                f"the measured peak is {peak:,} bytes, above the {expected.peak:,} bytes that were predicted", "peak"
            )
    counts = Counter(name.partition(" ")[0] for name in ours.tensors)
    return Verification(
        counts["output"], counts["gradient"], counts["buffer"], not differing,
        max((difference for _, difference in differing), default=0.0), ours.peak if measure else None, eager.peak,
        ours.allocator_peak,
    )  # fmt: skip


def _judge(differing: list[tuple[str, float]], between_eager: list[tuple[str, float]], tolerance: float) -> None:
    noise = dict(between_eager)
    for name, difference in differing:
        if not difference <= max(10 * noise.get(name, 0.0), tolerance):
            raise VerificationError(
                f"{name} differs from eager by {difference:.3g} of its greatest entry; "
                f"two eager steps differ by {noise.get(name, 0.0):.3g}"
            )


def _step(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    targets: Mapping[str, torch.Tensor],
    original: nn.Module,
    *,
    measure: bool = True,
    profiled: bool = False,
) -> _Outcome:
    """Run a step; return outputs, gradients for fixed tangents, statistics and the peak; restore all state."""
    tracker, record = track_storages(constants=(args, dict(kwargs), original)), None
    with _untouched(original, targets.values()):
        with ExitStack() as around:
            if profiled:
                record = around.enter_context(profiled_memory())
            if measure:  # compiled random ops do not run under a dispatch mode
                around.enter_context(tracker)
            returned = call(*args, **kwargs)
            outputs = [each for each in pytree.tree_leaves(returned) if isinstance(each, torch.Tensor)]
            del returned
            roots = [each for each in outputs if each.requires_grad]
            if not roots:
                raise VerificationError(
                    f"no output of {'eager' if call is original else 'the step'} requires a gradient to "
                    "compare (checkpoint(..., use_reentrant=True) loses it where no argument requires one: use "
                    "use_reentrant=False)",
                    "no-gradient",
                )
            _Loss.apply(*roots).backward()
        found = {f"output {number}": each.detach() for number, each in enumerate(outputs)}
        found |= {f"gradient of {name!r}": each.grad for name, each in targets.items() if each.grad is not None}
        found |= {f"buffer {name!r}": each.clone() for name, each in original.named_buffers()}
        found["the state of the random number generator"] = torch.get_rng_state()
        found = {name: local_part(each) for name, each in found.items()}
        return _Outcome(found, tracker.peak, None if record is None else record.peak)


def _on_cpu(module: nn.Module, leaves: list[Any]) -> bool:
    tensors = [*module.parameters(), *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))]
    return all(each.device.type == "cpu" for each in tensors)


class _Loss(torch.autograd.Function):
    """A loss that saves no tensors, so that the measured memory is the step's alone."""

    @staticmethod
    def forward(ctx: Any, *outputs: torch.Tensor) -> torch.Tensor:
        parts = [local_part(each) for each in outputs]
        ctx.kinds = [(each.shape, each.dtype, each.device) for each in parts]
        ctx.spreads = [Spread.of(each) for each in outputs]
        return parts[0].new_zeros((), dtype=torch.float32)  # a complex loss would need a gradient

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Any:
        parts = [_tangent(*each) for each in ctx.kinds]
        return tuple(part if own is None else own.tangent(part) for part, own in zip(parts, ctx.spreads, strict=True))


def _tangent(shape: torch.Size, kind: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a fixed gradient without symmetry: the gradient of a softmax's sum would be zero."""
    size = shape.numel()
    return (
        torch.linspace(-1, 1.5, size, dtype=kind, device=device).mul_(1 + 0.5j if kind.is_complex else 1).view(shape)
        if size > 1
        else torch.ones(shape, dtype=kind, device=device)
    )


def _differences(eager: _Outcome, ours: _Outcome) -> Iterator[tuple[str, float]]:
    """Yield tensors that are not bitwise equal, with their largest difference relative to the largest entry.

    For gradients that entry is the largest of all gradients: a gradient that is zero up to rounding (of a bias before
    batch norm) has no scale of its own.
    """
    gradients = [each for name, each in eager.tensors.items() if name.startswith("gradient")]
    largest = max((float(each.abs().max()) for each in gradients if each.numel()), default=0.0)
    for name in eager.tensors.keys() ^ ours.tensors.keys():
        raise VerificationError(f"{name} is there {'only in eager' if name in eager.tensors else 'not in eager'}")
    for name, a in eager.tensors.items():
        b = ours.tensors[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            raise VerificationError(
                f"{name} is of shape {tuple(b.shape)} and {b.dtype}, in eager {tuple(a.shape)} and {a.dtype}"
            )
        if not torch.equal(a, b):
            kind = torch.complex128 if a.is_complex() else torch.float64
            x, y = a.to(kind), b.to(kind)
            both = (x == y) | (x.isnan() & y.isnan())
            distance = (x - y).abs().masked_fill(both, 0.0).nan_to_num(nan=float("inf")).max().item()
            if distance:
                scale = largest if name.startswith("gradient") else float(x.abs().nan_to_num(0.0).max())
                yield name, distance / (scale or 1.0)


@contextmanager
def _untouched(module: nn.Module, targets: Collection[torch.Tensor]) -> Iterator[None]:
    """Remove gradients within the block; restore gradients, buffers and generators afterwards."""
    gradients = [target.grad for target in targets]
    buffers = {name: each.detach().clone() for name, each in module.named_buffers()}
    for target in targets:
        target.grad = None
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        with torch.no_grad():
            for name, each in module.named_buffers():
                each.copy_(buffers[name])
        for target, gradient in zip(targets, gradients, strict=True):
            target.grad = gradient
