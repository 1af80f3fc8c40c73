"""Between the passes: the outputs go out, the gradients of a loss with respect to them come in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from remat.errors import ExecutionError
from remat.torch.captured import Captured, Input
from remat.torch.execute.step import returned
from remat.torch.layout import Layout

#: Makes a scalar of what the module returns.
Loss = Callable[[Any], Any]


def loss_output(captured: Captured) -> int | None:
    """Return the position of the output that is the loss, where the module makes its own: the only scalar."""
    found = _scalars(captured.inputs_of("tangent"))
    return found[0].output if len(found) == 1 else None


def tangents(captured: Captured, values: Sequence[Any], loss: Loss | None) -> tuple[Any, list[Any]]:
    """Return the value of `loss`, None without it, and the tangents.

    Parameters
    ----------
    captured : Captured
    values : sequence
        Of its outputs, None where they are no tensors.
    loss : callable or None

    Raises
    ------
    ExecutionError
        If the outputs are not one scalar and there is no loss, or the loss makes no scalar of them.
    """
    outputs = captured.results_of("output")
    given = [each.value if each.node is None else value for each, value in zip(outputs, values, strict=True)]
    wanted = captured.inputs_of("tangent")
    return (None, _of_scalar(given, wanted)) if loss is None else _of_loss(captured, given, wanted, loss)


def _scalars(wanted: Sequence[Input]) -> list[Input]:
    return [each for each in wanted if each.node.meta["val"].numel() == 1]


def _of_scalar(given: list[Any], wanted: Sequence[Input]) -> list[Any]:
    """One for the only scalar among the differentiable outputs, zeros for the others."""
    scalars = _scalars(wanted)
    if len(scalars) != 1:
        raise ExecutionError(
            f"{len(scalars)} of {len(wanted)} differentiable outputs of the module are scalars: a loss is needed",
            "needs-loss",
        )
    return [_empty(each, given[_output(each)]).fill_(1 if each is scalars[0] else 0) for each in wanted]


def _of_loss(captured: Captured, given: list[Any], wanted: Sequence[Input], loss: Loss) -> tuple[Any, list[Any]]:
    """The gradients of what the user makes of the outputs."""
    leaves = {_output(each): given[_output(each)].detach().requires_grad_() for each in wanted}
    versions = {position: leaf._version for position, leaf in leaves.items()}
    with torch.enable_grad():
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
    return value.detach(), [
        _own(each, gradient, leaves[_output(each)], held) for each, gradient in zip(wanted, found, strict=True)
    ]


def _output(tangent: Input) -> int:
    assert tangent.output is not None
    return tangent.output


def _empty(tangent: Input, output: torch.Tensor) -> torch.Tensor:
    """Return memory laid out as a tangent was captured, on the device of its output."""
    return Layout.of(tangent.node.meta["val"])._replace(device=output.device).empty()


def _own(tangent: Input, gradient: torch.Tensor | None, output: torch.Tensor, held: set[int]) -> torch.Tensor:
    """`gradient` with the strides that the graph was captured with, in memory of its own; zeros for None."""
    if gradient is None:
        return _empty(tangent, output).zero_()
    storage, same = gradient.untyped_storage(), gradient.stride() == tangent.node.meta["val"].stride()
    if same and storage._cdata not in held and storage.nbytes() == tangent.size:
        held.add(storage._cdata)
        return gradient
    return _empty(tangent, output).copy_(gradient)
