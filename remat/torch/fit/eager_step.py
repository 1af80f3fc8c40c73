"""Memory of one eager training step, measured on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from remat.errors import ProblemError
from remat.torch.capture.explaining import explained, quiet_torch
from remat.torch.capture.fakes import FakeWorld, grouped_products
from remat.torch.capture.loss import WITHOUT, WithLoss
from remat.torch.fit.optimizers import OptimizerLike, optimizer_of
from remat.torch.memory import StorageTracker, track_storages
from remat.torch.modes import kept_modes
from remat.torch.private import TorchDispatchMode, pytree


@dataclass(frozen=True)
class EagerStep:
    """Memory of an eager training step in bytes, beyond parameters, buffers and inputs.

    Attributes
    ----------
    peak : int
        Largest number in forward and backward pass: activations, temporaries and gradients.
    op : str
        Op that runs at the peak.
    gradients : int
        Gradients of parameters after the backward pass.
    state : int
        State of the optimizer after its first step.
    update : int
        Largest number in the step of the optimizer: gradients, state and temporaries.
    """

    peak: int
    op: str
    gradients: int
    state: int
    update: int

    @property
    def total(self) -> int:
        """Largest number of bytes in the second and later steps, when the optimizer has its state."""
        return max(self.peak + self.state, self.update)


def eager_step(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: str | int | Callable[[Any], torch.Tensor] | None = None,
    optimizer: OptimizerLike = None,
) -> EagerStep:
    """Run an eager training step on fake tensors and return its memory, to the byte that real tensors would need.

    Workspaces inside kernels do not count. The module remains unchanged.

    Raises
    ------
    CaptureError
        If the module or the optimizer cannot run on fake tensors, because a size depends on the data.
    ProblemError
        As :func:`~remat.torch.fit.optimizers.optimizer_of`.
    """
    whole = module if loss is None else WithLoss(module, loss)
    world = FakeWorld.of(whole, args, kwargs)
    fakes = {name.removeprefix(f"{WITHOUT}.") if loss is not None else name: x for name, x in world.parameters.items()}
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    with quiet_torch(), grouped_products(), kept_modes(module), world.swapped() as running, world.mode:
        module.train()
        try:
            chosen = optimizer_of(optimizer, names, fakes) if optimizer else None
            return _measured(running, world, chosen)
        except ProblemError:
            raise
        except Exception as error:
            raise explained(module, error) from error


def _measured(module: nn.Module, world: FakeWorld, optimizer: torch.optim.Optimizer | None) -> EagerStep:
    parameters = list(world.parameters.values())
    before = {id(each): each.grad for each in parameters}
    try:
        with (
            torch.enable_grad(),
            track_storages(constants=(list(world.state.values()), world.args, dict(world.kwargs))) as tracker,
        ):
            _differentiate(module(*world.args, **world.kwargs))
            peak, op = _turn(tracker)
            gradients = tracker.live
            if optimizer is not None:
                with AnyNumber():
                    optimizer.step()
            update, _ = _turn(tracker)
            for each in parameters:
                each.grad = None
            return EagerStep(peak, op, gradients, tracker.live, update)
    finally:
        for each in parameters:
            each.grad = before[id(each)]


class AnyNumber(TorchDispatchMode):
    """Makes numbers read from fake tensors 1: optimizers scale steps by norms, which does not change their memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == "aten._local_scalar_dense.default":
            return 1.0 if args[0].is_floating_point() else 1
        return func(*args, **(kwargs or {}))


def _turn(tracker: StorageTracker) -> tuple[int, str]:
    """Return the peak so far and its op; start the next phase."""
    found = tracker.peak, tracker.peak_op or ""
    tracker.peak, tracker.peak_op = tracker.live, None
    return found


def _differentiate(outputs: Any) -> None:
    """Run the backward pass from the only number among the outputs, or from all outputs."""
    tensors = [each for each in pytree.tree_leaves(outputs) if isinstance(each, torch.Tensor) and each.requires_grad]
    numbers = [each for each in tensors if each.numel() == 1]
    starts = numbers if len(numbers) == 1 else tensors
    torch.autograd.backward(starts, [torch.ones_like(each) for each in starts])
