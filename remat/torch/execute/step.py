"""Results of an executed step, the tangents between its passes, and their transfer to a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from remat.errors import ExecutionError
from remat.torch.captured import Captured, Input, Layout
from remat.torch.private import pytree


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
    return pytree.tree_unflatten(values, captured.outputs_spec)


def give_gradients(targets: Mapping[str, Any], gradients: Mapping[str, Any]) -> None:
    """Set or add to ``.grad`` of each target, as autograd does.

    A gradient becomes ``.grad`` itself if there is none yet, unless its strides differ from the target's or it shares
    its memory with another one. Otherwise it is added in place. Raise ExecutionError with the name of a gradient
    without a target.
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

    Raise ExecutionError with the name of a buffer that the module lacks.
    """
    with torch.no_grad():
        for name, value in values.items():
            if name not in targets:
                raise ExecutionError(f"the step changes buffer {name!r}, which the module does not have", "buffer")
            targets[name].copy_(value)


#: Returns a scalar, given the module's return value.
Loss = Callable[[Any], Any]


def scalar_outputs(captured: Captured) -> list[int]:
    """Return the positions of differentiable outputs that are scalars; a single one is the loss of the module."""
    return [_output(each) for each in captured.inputs_of("tangent") if each.node.meta["val"].numel() == 1]


def tangents(captured: Captured, values: Sequence[Any], loss: Loss | None) -> tuple[Any, list[Any]]:
    """Return the value of `loss`, None without it, and the tangents.

    `values`: the outputs; None for those other than tensors. Without `loss` the module must compute its own.

    Raise ExecutionError if there is no loss and not exactly one differentiable output is a scalar, or if the
    loss is not a scalar.
    """
    outputs, wanted = captured.results_of("output"), captured.inputs_of("tangent")
    given = [each.value if each.node is None else value for each, value in zip(outputs, values, strict=True)]
    leaves = {_output(each): given[_output(each)].detach().requires_grad_() for each in wanted}
    versions = {position: leaf._version for position, leaf in leaves.items()}
    with torch.enable_grad():
        if loss is None:
            scalars = scalar_outputs(captured)
            if len(scalars) != 1:
                scarce = f"{len(scalars)} of {len(wanted)} differentiable outputs of the module are scalars"
                raise ExecutionError(f"{scarce}: a loss is needed", "needs-loss")
            value = leaves[scalars[0]]
        else:
            value = loss(returned(captured, [leaves.get(position, value) for position, value in enumerate(given)]))
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ExecutionError(
                "the loss must be a tensor of one element that depends on what the module returns", "loss-value"
            )
        found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    for position, leaf in leaves.items():
        if leaf._version != versions[position]:
            raise ExecutionError(f"the loss changed output {position} of the module in place", "loss-in-place")
    held = {leaf.untyped_storage()._cdata for leaf in leaves.values()}
    return None if loss is None else value.detach(), [
        _own(each, gradient, leaves[_output(each)], held) for each, gradient in zip(wanted, found, strict=True)
    ]


def _output(tangent: Input) -> int:
    assert tangent.output is not None
    return tangent.output


def _own(tangent: Input, gradient: torch.Tensor | None, output: torch.Tensor, held: set[int]) -> torch.Tensor:
    """Return `gradient` with the tangent's captured strides and memory of its own; zeros for None."""
    layout = Layout.of(tangent.node.meta["val"])._replace(device=output.device)
    if gradient is None:
        return layout.empty().zero_()
    storage = gradient.untyped_storage()
    if gradient.stride() == layout.strides and storage._cdata not in held and storage.nbytes() == tangent.size:
        held.add(storage._cdata)
        return gradient
    return layout.empty().copy_(gradient)
