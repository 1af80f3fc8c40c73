"""Capture of a model in which each block is a single op, forward and backward."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from remat.errors import CaptureError
from remat.torch.blocks.calls import Call
from remat.torch.capture import capture
from remat.torch.captured import Captured, Layout, ResultValue
from remat.torch.distributed import to_local, with_placement
from remat.torch.execute.step import returned
from remat.torch.modes import kept_attributes
from remat.torch.private import pytree
from remat.torch.rematerialized.autograd_function import of_inputs, view_of


@dataclass(frozen=True, eq=False)
class BlockOp:
    """A call of a block as one op: which of its values enter and leave the op.

    Attributes
    ----------
    call : Call
    captured : Captured
        Step of the block.
    inputs : tuple of (str, str)
        Kind and name of each argument of the op: the call's tensors, and parameters to train.
    outputs : tuple of int
        For each output of the op: its position among the results of kind ``"output"``.
    tangents : tuple of (int or None)
        For each output of the op: the position of its gradient among the tangents.
    gradients : tuple of int
        For each result of the backward op: its position among the op's arguments.
    """

    call: Call
    captured: Captured
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[int, ...]
    tangents: tuple[int | None, ...]
    gradients: tuple[int, ...]

    @classmethod
    def of(cls, call: Call, captured: Captured) -> BlockOp:
        """Return the op of a call; raise CaptureError if the block changes its arguments."""
        trained = {each.name for each in cls.results(captured)}
        inputs = {
            (each.kind, each.name): None for each in captured.inputs
            if (each.kind == "input" and isinstance(each.node.meta["val"], torch.Tensor))
            or (each.kind == "parameter" and each.name in trained)
        }  # fmt: skip
        for each in captured.results_of("mutation"):
            if ("input", each.name) in inputs:
                raise CaptureError(f"block {call.path!r} changes its argument {each.name} in place")
        for own in captured.inputs:
            gradient = captured.gradient_spreads.get(own.name)
            if own.spread is not None and gradient is not None and gradient.part_shape != own.spread.part_shape:
                raise CaptureError(
                    f"the gradient of {own.kind} {own.name!r} of block {call.path!r} has another placement "
                    f"({gradient.placements}) than the tensor ({own.spread.placements}), and parts of other shapes: "
                    "leave this module out of the blocks, or rematerialize the whole model",
                    "gradient-placement",
                )
        tangent_of = {each.output: k for k, each in enumerate(captured.inputs_of("tangent"))}
        results = captured.results_of("output")
        outputs = tuple(
            k for k, each in enumerate(results)
            if each.node is not None and (k in tangent_of or not of_inputs(captured, each.node))
        )  # fmt: skip
        names = [name for _, name in inputs]
        gradients = tuple(names.index(each.name) for each in cls.results(captured))
        return cls(call, captured, tuple(inputs), outputs, tuple(map(tangent_of.get, outputs)), gradients)

    @staticmethod
    def results(captured: Captured) -> list[ResultValue]:
        """Return the gradients that the block computes."""
        return [each for each in captured.results_of("gradient") if each.node is not None]

    @cached_property
    def layouts(self) -> tuple[list[Layout], list[Layout]]:
        """Layouts of the outputs of the forward op, and of the backward op."""
        results = self.captured.results_of("output")
        passes = [results[k] for k in self.outputs], self.results(self.captured)
        forward, backward = (
            [Layout.of(each.node.meta["val"]) for each in nodes if each.node is not None] for nodes in passes
        )
        return forward, backward

    def made(self, backward: bool) -> list[torch.Tensor]:
        """Allocate the outputs of the forward or backward op."""
        return [layout.empty() for layout in self.layouts[backward]]


#: Ops of the model being captured, by number.
_OPS: dict[int, BlockOp] = {}


@torch.library.custom_op("remat::block", mutates_args=())  # type: ignore[untyped-decorator]  # Any without torch's sources
def block_op(tensors: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
    """Represent the forward pass of a block; allocates its outputs and computes nothing."""
    return _OPS[number].made(backward=False)


@torch.library.custom_op("remat::block_backward", mutates_args=())  # type: ignore[untyped-decorator]
def block_backward_op(tangents: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
    """Represent the backward pass of a block; allocates its gradients and computes nothing."""
    return _OPS[number].made(backward=True)


block_op.register_fake(lambda tensors, number: _OPS[number].made(backward=False))
block_backward_op.register_fake(lambda tangents, number: _OPS[number].made(backward=True))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.number, ctx.count = inputs[1], len(inputs[0])


def _backward(ctx: Any, given: Sequence[torch.Tensor | None]) -> Any:
    op = _OPS[ctx.number]
    layouts, _ = op.layouts
    tangents = [
        layout.empty().zero_() if each is None else each
        for each, layout, tangent in zip(given, layouts, op.tangents, strict=True)
        if tangent is not None
    ]
    gradients: list[torch.Tensor | None] = [None] * ctx.count
    for place, gradient in zip(op.gradients, block_backward_op(tangents, ctx.number), strict=True):
        gradients[place] = gradient
    return gradients, None


block_op.register_autograd(_backward, setup_context=_setup)
FORWARD, BACKWARD = torch.ops.remat.block.default, torch.ops.remat.block_backward.default


@dataclass(frozen=True, eq=False)
class Remainder:
    """A model's training step with one forward and one backward op for each call of a block."""

    captured: Captured
    ops: tuple[BlockOp, ...]

    def op_of(self, node: torch.fx.Node | None) -> tuple[BlockOp, int, bool] | None:
        """Return block op, number, and whether it is the backward op; None for other nodes."""
        if node is None or node.target not in (FORWARD, BACKWARD):
            return None
        number = int(node.args[1])
        return self.ops[number], number, node.target is BACKWARD


@dataclass(eq=False)
class _Stub:
    """Forward of a block that records its op."""

    ops: list[tuple[int, BlockOp]]
    calls: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        number, op = self.ops[self.calls % len(self.ops)]  # the model runs twice: for its outputs, and for the trace
        self.calls += 1
        leaves = pytree.tree_leaves((args, kwargs))
        state = dict(op.call.block.named_parameters()) | dict(op.call.block.named_buffers())
        spreads = op.captured.gradient_spreads
        tensors = [
            to_local(leaves[int(name)] if kind == "input" else state[name], spreads.get(name))
            for kind, name in op.inputs
        ]  # fmt: skip
        made = dict(zip(op.outputs, block_op(tensors, number), strict=True))
        values: list[Any] = []
        known: dict[torch.fx.Node, Any] = {}
        for each in op.captured.inputs:
            if each.kind != "tangent":
                value = leaves[int(each.name)] if each.kind == "input" else state.get(each.name)
                known[each.node] = to_local(value, spreads.get(each.name))
        for position, result in enumerate(op.captured.results_of("output")):
            if result.node is None:
                values.append(result.value)
                continue
            if position not in made:
                value = view_of(result.node, known)
            else:
                differentiable = op.tangents[op.outputs.index(position)] is not None
                value = made[position] if differentiable else made[position].detach()
            values.append(with_placement(value, result.spread))
        return returned(op.captured, values)


def capture_remainder(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], ops: Sequence[BlockOp], **how: Any
) -> Remainder:
    """Capture a model in which each call of a block is one op.

    `ops`: calls in order. `how`: options of :func:`remat.torch.capture`.
    """
    _OPS.clear()
    _OPS.update(enumerate(ops))
    try:
        with kept_attributes(model):
            for block in {op.call.block: None for op in ops}:
                own = [(k, op) for k, op in enumerate(ops) if op.call.block is block]
                block.__dict__["forward"] = _Stub(own)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="no formula for remat.block")
                captured = capture(model, tuple(args), kwargs, route="make_fx", **how)
    finally:
        _OPS.clear()
    found = [node.target for node in captured.nodes if node is not None and node.target in (FORWARD, BACKWARD)]
    if found.count(FORWARD) != len(ops):
        raise CaptureError(
            f"model {type(model).__name__!r} calls its blocks {len(ops)} times, and then {found.count(FORWARD)} times"
        )
    return Remainder(captured, tuple(ops))
