"""Between the passes: the outputs go out, the gradients of a loss with respect to them come in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from remat.errors import ExecutionError
from remat.torch.captured import Captured
from remat.torch.execute.program import Layout, Values, results_of
from remat.torch.execute.step import returned

#: Makes a scalar of what the module returns.
Loss = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A tangent: its slot, a fake tensor like it, and the position of the output that it belongs to."""

    slot: int
    sample: Any
    output: int


def loss_output(captured: Captured, layout: Layout) -> int | None:
    """The position of the output that is the loss, where the module makes its own: the only differentiable scalar."""
    found = [each.output for each in _wanted(captured, layout) if each.sample.numel() == 1]
    return found[0] if len(found) == 1 else None


def _wanted(captured: Captured, layout: Layout) -> list[_Wanted]:
    position = {each.node: each.output for each in captured.inputs_of("tangent") if each.output is not None}
    return [_Wanted(slot, node.meta["val"], position[node]) for slot, node in layout.tangents]


def tangents(captured: Captured, layout: Layout, slots: Values, loss: Loss | None) -> Any:
    """Fill the slots of the tangents; the value of `loss`, None without it.

    Raises
    ------
    ExecutionError
        If the outputs are not one scalar and there is no loss, or the loss makes no scalar of them.
    """
    outputs = captured.results_of("output")
    values = results_of(layout, [each.node for each in outputs], slots)
    given = [each.value if each.node is None else value for each, value in zip(outputs, values, strict=True)]
    wanted = _wanted(captured, layout)
    if loss is not None:
        return _of_loss(captured, slots, given, wanted, loss)
    _of_scalar(slots, given, wanted)
    return None


def _of_scalar(slots: Values, given: list[Any], wanted: list[_Wanted]) -> None:
    """One for the only scalar among the differentiable outputs, zeros for the others."""
    scalars = [each for each in wanted if each.sample.numel() == 1]
    if len(scalars) != 1:
        raise ExecutionError(
            f"{len(scalars)} of {len(wanted)} differentiable outputs of the module are scalars: a loss is needed"
        )
    for each in wanted:
        slots[each.slot] = _empty(each.sample, given[each.output]).fill_(1 if each is scalars[0] else 0)


def _of_loss(captured: Captured, slots: Values, given: list[Any], wanted: list[_Wanted], loss: Loss) -> Any:
    """The gradients of what the user makes of the outputs."""
    leaves = {each.output: given[each.output].detach().requires_grad_() for each in wanted}
    versions = {position: leaf._version for position, leaf in leaves.items()}
    with torch.enable_grad():
        value = loss(returned(captured, [leaves.get(position, value) for position, value in enumerate(given)]))
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ExecutionError("the loss must be a tensor of one element that depends on what the module returns")
        found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    for position, leaf in leaves.items():
        if leaf._version != versions[position]:
            raise ExecutionError(f"the loss changed output {position} of the module in place")
    held = {leaf.untyped_storage()._cdata for leaf in leaves.values()}
    for each, gradient in zip(wanted, found, strict=True):
        slots[each.slot] = _own(gradient, each.sample, leaves[each.output], held)
    return value.detach()


def _own(gradient: Any, sample: Any, leaf: Any, held: set[int]) -> Any:
    """`gradient` with the strides that the graph was captured with, in memory of its own; zeros for None."""
    if gradient is not None and gradient.stride() == sample.stride():
        storage = gradient.untyped_storage()
        if storage._cdata not in held and storage.nbytes() == sample.untyped_storage().nbytes():
            held.add(storage._cdata)
            return gradient
    made = _empty(sample, leaf)
    return made.zero_() if gradient is None else made.copy_(gradient)


def _empty(sample: Any, like: Any) -> Any:
    """Memory laid out as the graph was captured with, on the device of an output."""
    return torch.empty_strided(sample.shape, sample.stride(), dtype=sample.dtype, device=like.device)
