"""Graph file of remat, version 1: strict reader and canonical writer.

The JSON Schema of the format is ``graph.schema.json`` in this folder.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from remat.graphs.formats.base import GraphFormat
from remat.graphs.graph import COST_UNITS, MAX_NAME_LENGTH, MAX_TOTAL, PHASES, ComputeGraph, Op, Tensor
from remat.graphs.graph_text import NAME, VERSION, graph_text
from remat.io.documents import Document, check_header, decoded
from remat.runtime.text import short

Count = Annotated[int, Field(ge=0, json_schema_extra={"exclusiveMaximum": MAX_TOTAL})]
Name = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_LENGTH})]
Names = Annotated[list[Name], Field(json_schema_extra={"uniqueItems": True})]
Pair = Annotated[list[Name], Field(json_schema_extra={"minItems": 2, "maxItems": 2})]


class TensorDocument(Document):
    """A tensor."""

    name: Name
    size: Count
    """Bytes."""


class OpDocument(Document):
    """An op. A tensor in the outputs of several is an accumulation buffer."""

    name: Name
    outputs: Names
    """Tensors it writes."""
    inputs: Names = []
    """Tensors it reads."""
    cost: Count = 0
    """In the unit `cost_unit`."""
    type: str = ""
    """Kind of computation, free text."""
    workspace: Count = 0
    """Bytes held only while it runs."""
    phase: Annotated[str, Field(json_schema_extra={"enum": list(PHASES)})] = ""
    recomputable: bool = True
    """True if it may run more than once."""
    # Most ops have none, and pydantic would copy a default of `[]` deeply for each: a fifth of the time of reading.
    in_place: Annotated[list[Pair], Field(json_schema_extra={"default": []})] = Field(default_factory=list)
    """Pairs of an output and an input of the same size; the output is written over the input if the input dies."""


class GraphDocument(Document):
    """Ops and tensors of a computation graph.

    The reader checks what a schema cannot express: unique names, known tensors, no cycle, a topological order.
    """

    format: Literal["remat-graph"]
    version: Literal[1]
    tensors: list[TensorDocument]
    ops: Annotated[list[OpDocument], Field(json_schema_extra={"minItems": 1})]
    name: Annotated[str, Field(json_schema_extra={"maxLength": MAX_NAME_LENGTH})] = ""
    source: str = ""
    """Where the graph comes from."""
    cost_unit: Annotated[str, Field(json_schema_extra={"enum": list(COST_UNITS)})] = "none"
    constant_memory: Count = 0
    """Bytes resident throughout (parameters and the like)."""
    inputs: Names = []
    """Tensors live from the start and never freed."""
    outputs: Names = []
    """Tensors that must be live at the end."""
    order: Names = []
    """Reference order, op names; default: the order of ops."""
    meta: dict[str, Any] = {}
    """Further data."""


def graph_from_document(document: Any, remarks: list[str] | None = None) -> ComputeGraph:
    """Return the graph of a parsed JSON document in format ``remat-graph``.

    `remarks` receives notable facts that are not errors: ops without a cost.

    Raise FormatError for another format or version; for missing or unknown keys and wrong types, all listed with their
    places, such as ``ops[3].cost``. Raise GraphError as :class:`ComputeGraph` does.

    Examples
    --------
    >>> import json
    >>> text = graph_to_text(ComputeGraph("g", [Tensor("x", 4)], [Op("a", outputs=("x",), cost=1)]))
    >>> graph_from_document(json.loads(text)).reference_peak
    4
    """
    check_header(document, NAME, VERSION)
    found = decoded(GraphDocument, document)
    free = [op.name for op in found.ops if "cost" not in op.model_fields_set]
    if free and remarks is not None:
        some = ", ".join(short(name, 40) for name in free[:3]) + (", ..." if len(free) > 3 else "")
        remarks.append(f"{len(free):,} of {len(found.ops):,} ops say no cost, which is taken as 0 ({some})")
    return ComputeGraph(
        name=found.name,
        tensors=[Tensor(t.name, t.size) for t in found.tensors],
        ops=[
            Op(
                o.name,
                tuple(o.inputs),
                tuple(o.outputs),
                o.cost,
                o.workspace,
                o.type,
                o.phase,
                o.recomputable,
                tuple((*pair,) for pair in o.in_place),  # type: ignore[misc]
            )
            for o in found.ops
        ],
        inputs=found.inputs,
        outputs=found.outputs,
        order=found.order if "order" in found.model_fields_set else None,
        constant_memory=found.constant_memory,
        cost_unit=found.cost_unit,
        source=found.source,
        meta=found.meta,
    )


def graph_to_text(graph: ComputeGraph) -> str:
    """Return the canonical text of a graph: equal graphs give equal text; one tensor or op per line; ASCII.

    Raise FormatError if `meta` contains a value that JSON cannot express.
    """
    return graph_text({field: getattr(graph, field) for field in graph.__dataclass_fields__})


FORMAT = GraphFormat(
    name="remat-json",
    description="the graph file of remat, version 1",
    suffixes=(".json",),
    recognizes=lambda source: source.looks_like_json and source.json.get("format") == NAME,
    read=lambda source: graph_from_document(source.json, source.remarks),
    write=graph_to_text,
)
