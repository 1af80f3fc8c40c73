"""Between the passes: the outputs go out, the gradients of a loss with respect to them come in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from remat.errors import ExecutionError
from remat.torch.captured import Captured
from remat.torch.execute.program import Layout, Values, called, results_of
from remat.torch.execute.step import returned

#: Makes a scalar of what the module returns.
Loss = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A tangent: its slot, its fx node, and the output that it belongs to; None: to a loss within the graph."""

    slot: int
    node: torch.fx.Node
    output: int | None


def loss_output(captured: Captured, layout: Layout) -> int | None:
    """The position of the output that is the loss, where the module makes its own: the only differentiable scalar."""
    outputs = [each.node for each in captured.results_of("output")]
    found = [each for each in _wanted(captured, layout) if each.node.meta["val"].numel() == 1]
    if len(found) != 1:
        return None
    if found[0].output is not None:
        return found[0].output
    return next((outputs.index(node) for node in found[0].node.all_input_nodes if node in outputs), None)


def _wanted(captured: Captured, layout: Layout) -> list[_Wanted]:
    of_node = {each.node: each.output for each in captured.inputs_of("tangent")}
    return [_Wanted(slot, node, of_node.get(node)) for slot, node in layout.tangents]


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
    own = [each for each in wanted if each.output is None]
    if loss is not None:
        if own:
            raise ExecutionError("the graph was captured with a loss of its own, so there is no place for another one")
        return _of_loss(captured, slots, given, wanted, loss)
    for each in own:  # the graph itself says what they are: ones like its loss
        known = layout.derivation(each.node.all_input_nodes).values(slots)
        slots[each.slot] = called(each.node.target, each.node.args, each.node.kwargs, known)
    if not own:
        _of_scalar(slots, given, wanted)
    return None


def _of_scalar(slots: Values, given: list[Any], wanted: list[_Wanted]) -> None:
    """One for the only scalar among the differentiable outputs, zeros for the others."""
    scalars = [each for each in wanted if each.node.meta["val"].numel() == 1]
    if len(scalars) != 1:
        raise ExecutionError(
            f"{len(scalars)} of {len(wanted)} differentiable outputs of the module are scalars: a loss is needed"
        )
    for each in wanted:
        sample = each.node.meta["val"]
        made = torch.empty_strided(sample.shape, sample.stride(), dtype=sample.dtype, device=given[each.output].device)  # type: ignore[index]
        slots[each.slot] = made.fill_(1 if each is scalars[0] else 0)


def _of_loss(captured: Captured, slots: Values, given: list[Any], wanted: list[_Wanted], loss: Loss) -> Any:
    """The gradients of what the user makes of the outputs."""
    leaves = {each.output: given[each.output].detach().requires_grad_() for each in wanted}  # type: ignore[index]
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
        slots[each.slot] = _own(gradient, each.node.meta["val"], leaves[each.output], held)
    return value.detach()


def _own(gradient: Any, sample: Any, leaf: Any, held: set[int]) -> Any:
    """`gradient` with the strides that the graph was captured with, in memory of its own; zeros for None."""
    if gradient is not None and gradient.stride() == sample.stride():
        storage = gradient.untyped_storage()
        if storage._cdata not in held and storage.nbytes() == sample.untyped_storage().nbytes():
            held.add(storage._cdata)
            return gradient
    made = torch.empty_strided(sample.shape, sample.stride(), dtype=leaf.dtype, device=leaf.device)
    return made.zero_() if gradient is None else made.copy_(gradient)
