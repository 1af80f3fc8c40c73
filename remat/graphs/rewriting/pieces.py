"""Composition of the ops of a rewritten graph from the ops of a model file.

A reader of deployed models describes the ops of a file in ``meta["attrs"]``. Rewriting with whole kernels
(:class:`~remat.graphs.rewriting.RewriteOptions`) splits some of them. :func:`pieces` returns, for each op of the
rewritten graph, the original op that it represents and its role:

* ``whole``: the unchanged op, under its own name.
* ``part``: the op on a slice of its input. It writes a slice of the output as a separate tensor and includes the fused
  activation of the op.
* ``sum``: a partial sum. All ops with this role and the same output tensor represent one op of the file. The output is
  the sum of their results in any order, then the fused activation, applied once. A writer emits the op for each,
  without activation, and adds each result but the first to the sum so far. The last addition, or an op after it,
  applies the activation.
* ``join``: a concatenation of parts, in the order of the ``operands`` attribute of the op, or else of its inputs,
  along its attribute ``axis``. It writes the output tensor of the op of the file.

Operand number `i` of an op is its `i`-th non-constant input in the file; inputs read twice count twice. Each operand of
a part or a sum is one whole tensor of the rewritten graph. `Piece.constants` defines the cuts of constants. Each piece
has the attributes of the op of the file, except for the groups of a depthwise convolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.rewriting.annotations import JOIN_OF, part_of
from remat.graphs.rewriting.draft import Draft
from remat.graphs.rewriting.kinds import Kind
from remat.graphs.rewriting.reference_kernels import cut_constant


class PieceRole(StrEnum):
    """Role of an op in representing an op of the file."""

    WHOLE = "whole"
    PART = "part"
    SUM = "sum"
    JOIN = "join"


#: A slice of a constant: its axis, first element and end (exclusive).
ConstantSlice = tuple[int, int, int]


@dataclass(frozen=True)
class Piece:
    """Op of a model file that an op of a rewritten graph represents."""

    of: str
    """Op of the original graph."""
    role: PieceRole
    constants: Mapping[int, ConstantSlice | None]
    """Slice, or None for all, of each constant that a part or a sum reads, by position among the inputs of the op of
    the file. Only one piece of a sum has the bias.
    """
    groups: int | None = None
    """Groups of a depthwise convolution of this piece; None for other ops and for whole ops."""
    axis: int | None = None
    """Axis along which a join concatenates its inputs."""
    activation: str | None = None
    """Fused activation of the op of the file: included in each part, and applied once for a sum."""


def pieces(graph: ComputeGraph) -> dict[str, Piece]:
    """Return the piece that each op of a graph represents, by op.

    Parameters
    ----------
    graph : ComputeGraph
        A graph of a model file, or the result of rewriting it with whole kernels.

    Raises
    ------
    GraphError
        Naming the op, if it requires in-place kernels or its attributes are wrong.
    """
    draft = Draft(graph)
    found: dict[str, Piece] = {}
    for op in graph.ops:
        try:
            found[op.name] = _piece(draft, op.name)
        except (ValueError, LookupError, TypeError, AttributeError):
            reason = f"the attributes of op {op.name!r} do not describe a piece of a model"
            raise GraphError(reason, "pieces", op.name) from None
    return found


def _piece(draft: Draft, op: str) -> Piece:
    attributes = draft.attributes.get(op, {})
    if JOIN_OF in attributes:
        operands = draft.operands(op)
        assert operands is not None
        return Piece(str(attributes[JOIN_OF]), PieceRole.JOIN, {}, axis=operands[0].axis)
    part = part_of(op, attributes)
    if part is None and "output_slice" not in attributes and draft.kind(op) is not Kind.FINISH:
        return Piece(op, PieceRole.WHOLE, {}, activation=attributes.get("activation"))
    operands = draft.operands(op)
    if part is None or "output_slice" in attributes or operands is None or any(o.axis is not None for o in operands):
        raise GraphError(f"op {op!r} needs kernels that read and write in place", "in-place", op)
    constants = {
        entry["input"]: cut_constant(entry, part.axis, part.start, part.stop, part.extent)
        for entry in attributes.get("constants", ())
        if entry.get("role") != "bias" or not part.sum or part.bias
    }
    role = PieceRole.SUM if part.sum else PieceRole.PART
    reading = draft.reading(op, 0) if draft.kind(op) is Kind.DEPTHWISE else None
    groups = None if reading is None or reading.channels is None else reading.shape[reading.channels]
    return Piece(part.of, role, constants, groups, activation=attributes.get("activation"))
