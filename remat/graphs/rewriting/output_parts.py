"""Splitting of a convolution or a linear layer by the channels of its output.

Partial execution (Liberis & Lane, *Pex: Memory-efficient Microcontroller Deep Learning through Partial Execution*,
2022): a layer computes some output channels at a time, and the layers behind it process them before the next ones.
"""

from __future__ import annotations

from dataclasses import replace

from remat.graphs.graph import ComputeGraph, Op
from remat.graphs.rewriting.draft import Draft, NewOp
from remat.graphs.rewriting.kinds import KIND, PARTIAL, Kind
from remat.graphs.rewriting.operands import Operand, Part
from remat.graphs.rewriting.splitting import share


def with_output_parts(graph: ComputeGraph, op: str, parts: int) -> ComputeGraph | None:
    """Return the graph in which ops compute equal parts of the output channels of `op`, and a concatenation joins them.

    Each part reads the whole input. The rules of :mod:`remat.graphs.rewriting.rules` then split the readers. Return
    None if the op is of another kind, or its channels cannot be divided.
    """
    draft = Draft(graph, kernels="in-place")
    found, reading, shape = draft.ops[op], draft.reading(op, 0), draft.output_shape(op)
    if draft.kind(op) not in {Kind.CONV, Kind.LINEAR} or reading is None or shape is None or reading.channels is None:
        return None
    axis, target, operands = reading.channels, found.outputs[0], draft.operands(op)
    size = draft.sizes[target]
    if shape[axis] % parts or size % parts or target in draft.kept or not operands:
        return None
    width = shape[axis] // parts
    new: list[NewOp] = []
    for number, cost in enumerate(share(found.cost, [1] * parts)):
        tensor = draft.unused(f"{target}/channels{number}")
        draft.add_tensor(tensor, size // parts, (*shape[:axis], width, *shape[axis + 1 :]))
        name = draft.unused(f"{op}/channels{number}")
        part = replace(found, name=name, outputs=(tensor,), cost=cost, type=PARTIAL + found.type)
        new.append(NewOp(part, operands, {KIND: Kind.OPAQUE.value}))
    pieces = Operand(tuple(Part(each.op.outputs[0], 0, width) for each in new), axis)
    join = Op(draft.unused(f"{op}/join"), (), (target,), type="Concat", phase=found.phase)
    new.append(NewOp(join, (pieces,), {KIND: Kind.CONCAT.value, "axis": axis}))
    draft.replace(op, new)
    return draft.build([], graph.name)
