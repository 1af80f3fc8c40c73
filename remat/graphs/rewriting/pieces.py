"""How the ops of a rewritten graph are made of the ops of a model file.

A reader of deployed models describes the ops of a file in ``meta["attrs"]``; rewriting with whole kernels
(:class:`~remat.graphs.rewriting.RewriteOptions`) splits some of them. :func:`pieces` says for each op of the rewritten
graph which op of the read graph it stands for, and in what way:

* ``whole``: that op, as it is. Its name is the op's own.
* ``part``: that op for a slice of its input; it writes a slice of the output as a tensor of its own. It has the fused
  activation of the op.
* ``sum``: a partial sum. All ops with this role and the same output tensor stand for one op of the file: the output is
  the sum of their results, in whatever order they come, then the fused activation, applied once. A writer emits the
  op for each, without activation, and adds each result but the first to the sum so far; the last addition, or an op
  after it, applies the activation.
* ``join``: a concatenation of parts, in the order of the ``operands`` attribute of the op, or else of its inputs,
  along its attribute ``axis``. It writes the tensor that the op of the file writes.

Operand number `i` of an op is its `i`-th input of the file that is no constant; what is read twice counts twice. Each
operand of a part or a sum is one whole tensor of the rewritten graph. Constants are cut as `Piece.constants` says.
Attributes of the op of the file are those of each piece, but for the groups of a depthwise convolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.rewriting.annotations import Attributes
from remat.graphs.rewriting.draft import Draft
from remat.graphs.rewriting.kernels import cut_constant
from remat.graphs.rewriting.kinds import Kind
from remat.graphs.rewriting.parts import JOIN_OF, PartOf, part_of


class PieceRole(StrEnum):
    """How an op stands for an op of the file."""

    WHOLE = "whole"
    PART = "part"
    SUM = "sum"
    JOIN = "join"


#: A slice of a constant: its axis, the first element and the one after the last.
ConstantSlice = tuple[int, int, int]


@dataclass(frozen=True)
class Piece:
    """Op of a model file that an op of a rewritten graph stands for.

    Attributes
    ----------
    of : str
        The op of the graph that was read.
    role : PieceRole
    constants : mapping of int to (axis, start, stop) or None
        The constants that a part or a sum reads, by their position among the inputs of the op of the file: the slice,
        or None for all of it. The bias of a sum is in one of its pieces only. Empty for other roles.
    groups : int or None
        Groups of a depthwise convolution of this piece; None for other ops and where the op is whole.
    axis : int or None
        Of the inputs that a join concatenates.
    activation : str or None
        The fused activation of the op of the file: part of each part, and due once for a sum.
    """

    of: str
    role: PieceRole
    constants: Mapping[int, ConstantSlice | None]
    groups: int | None = None
    axis: int | None = None
    activation: str | None = None


def pieces(graph: ComputeGraph) -> dict[str, Piece]:
    """Return what each op of a graph stands for, by op.

    Parameters
    ----------
    graph : ComputeGraph
        A graph of a model file, or one that was made of it by rewriting with whole kernels.

    Raises
    ------
    GraphError
        Naming the op, where kernels in place are needed, or attributes are wrong.
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
    entries = [entry for entry in attributes.get("constants", ()) if _is_read(entry, part)]
    constants = {entry["input"]: _cut(entry, part) for entry in entries}
    role = PieceRole.SUM if part.sum else PieceRole.PART
    groups = _groups(draft, op) if draft.kind(op) is Kind.DEPTHWISE else None
    return Piece(part.of, role, constants, groups, activation=attributes.get("activation"))


def _is_read(entry: Attributes, part: PartOf) -> bool:
    return entry.get("role") != "bias" or not part.sum or part.bias


def _cut(entry: Attributes, part: PartOf) -> ConstantSlice | None:
    return cut_constant(entry, part.axis, part.start, part.stop, part.extent)


def _groups(draft: Draft, op: str) -> int | None:
    reading = draft.reading(op, 0)
    return None if reading is None or reading.channels is None else reading.shape[reading.channels]
