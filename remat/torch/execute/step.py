"""Results of an executed step, and their transfer to a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree

from remat.errors import ExecutionError
from remat.torch.captured import Captured


@dataclass(frozen=True, eq=False)
class Step:
    """The results of one step.

    Attributes
    ----------
    outputs : Any
        Return value of the module in its own structure, detached from autograd.
    loss : Tensor or None
        Scalar whose gradients these are; None for inference.
    gradients : dict of str to Tensor
        By name of the parameter or position of the input; entries without a gradient are left out.
    buffers : dict of str to Tensor
        New values of the buffers that the step changes.
    inputs : dict of str to Tensor
        New values of the inputs that the step changes, by position.
    """

    outputs: Any
    loss: Any
    gradients: Mapping[str, Any] = field(default_factory=dict)
    buffers: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)


def returned(captured: Captured, values: list[Any]) -> Any:
    """Return the module's return value, given its outputs in order."""
    if captured.outputs_spec is None:
        return values[0] if len(values) == 1 else tuple(values)
    return _pytree.tree_unflatten(values, captured.outputs_spec)


def give_gradients(targets: Mapping[str, Any], gradients: Mapping[str, Any]) -> None:
    """Set or add to ``.grad`` of each target, as autograd does.

    A gradient becomes ``.grad`` itself if there is none yet, unless its strides differ from the target's or it shares
    its memory with another one. Otherwise it is added in place.

    Raises
    ------
    ExecutionError
        With the name of a gradient without a target.
    """
    taken: set[int] = set()
    with torch.no_grad():
        for name, gradient in gradients.items():
            if name not in targets:
                raise ExecutionError(f"the step has a gradient of {name!r}, which the module does not have", "gradient")
            target = targets[name]
            if not target.requires_grad:
                continue
            if target.grad is not None:
                target.grad.add_(gradient)
                continue
            storage = gradient.untyped_storage()
            alone = storage._cdata not in taken and storage.nbytes() == gradient.numel() * gradient.element_size()
            if not alone or gradient.stride() != target.stride():
                gradient = torch.empty_like(target).copy_(gradient)
            taken.add(storage._cdata)
            target.grad = gradient


def give_buffers(targets: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Copy new values into buffers.

    Raises
    ------
    ExecutionError
        With the name of a buffer that the module lacks.
    """
    with torch.no_grad():
        for name, value in values.items():
            if name not in targets:
                raise ExecutionError(f"the step changes buffer {name!r}, which the module does not have", "buffer")
            targets[name].copy_(value)
