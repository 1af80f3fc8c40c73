"""Files of execution plans: a strict JSON format, and a write-only text format for people; both are canonical.

In JSON a statement is ``["allocate", register, tensor, bytes]``, ``["compute", op, [registers read], [registers
written]]`` or ``["deallocate", register]``. In text the same is ``%0 = allocate "x" 4096``, ``compute "f" (%1) ->
(%0)`` and ``deallocate %0``, one per line; names are JSON strings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from remat.graphs import ComputeGraph
from remat.io.documents import Document, Lines, Shape, canonical, check_header, decoded
from remat.io.limits import draw
from remat.schedule.formats.base import ScheduleFormat, needed_graph
from remat.schedule.plan import Allocate, Compute, Deallocate, ExecutionPlan, Statement
from remat.schedule.schedule import Schedule

NAME = "remat-plan"
VERSION = 1
#: First line of the text.
TITLE = f"{NAME} {VERSION}"

#: Memory in bytes for each statement during checks.
_STATEMENT_MEMORY = 400
_STATEMENTS: dict[str, Callable[..., Statement]] = {
    "allocate": Allocate, "compute": Compute, "deallocate": Deallocate,
}  # fmt: skip
_HEADER = ("graph", "graph_digest", "source")
Count = Annotated[int, Field(ge=0)]
Registers = Annotated[tuple[Count, ...], Field(strict=False)]
_SHAPE = "{at} is no allocate, compute or deallocate statement"
_Statement = (
    Annotated[tuple[Literal["allocate"], Count, str, Count], Field(strict=False)]
    | Annotated[tuple[Literal["compute"], str, Registers, Registers], Field(strict=False)]
    | Annotated[tuple[Literal["deallocate"], Count], Field(strict=False)]
)


class PlanDocument(Document):
    """An execution plan: the registers of the graph inputs, and the statements in order."""

    format: Literal["remat-plan"]
    version: Literal[1]
    statements: list[Annotated[_Statement, Shape(_SHAPE)]]
    inputs: list[Annotated[tuple[Count, str, Count], Field(strict=False), Shape(_SHAPE)]] = []
    """Register, tensor and bytes of each graph input."""
    graph: str = ""
    graph_digest: str = ""
    source: str = ""


def plan_to_json(plan: ExecutionPlan) -> str:
    """Return the canonical JSON of a plan: same content, same text; one statement per line; ASCII."""
    header = {key: getattr(plan, key) for key in _HEADER}
    inputs = Lines(json.dumps(_as_list(statement, with_word=False)) for statement in plan.inputs)
    statements = Lines(json.dumps(_as_list(statement, with_word=True)) for statement in plan.statements)
    return canonical({"format": NAME, "version": VERSION, **header, "inputs": inputs, "statements": statements})


def _as_list(statement: Statement, *, with_word: bool) -> list[Any]:
    match statement:
        case Allocate(register, tensor, size):
            return [*(["allocate"] if with_word else []), register, tensor, size]
        case Compute(op, reads, writes):
            return ["compute", op, list(reads), list(writes)]
        case Deallocate(register):
            return ["deallocate", register]


def plan_from_document(document: Any) -> ExecutionPlan:
    """Return the plan in a parsed JSON document; :meth:`ExecutionPlan.schedule` checks it against a graph.

    Raises
    ------
    FormatError
        For another format or version; for missing or unknown keys and wrong types, all listed with their places.
    """
    check_header(document, NAME, VERSION)
    draw(_STATEMENT_MEMORY * sum(len(part) for part in document.values() if isinstance(part, list)))
    found = decoded(PlanDocument, document)
    return ExecutionPlan(
        tuple(Allocate(*given) for given in found.inputs),
        tuple(_STATEMENTS[word](*rest) for word, *rest in found.statements),
        found.graph,
        found.graph_digest,
        found.source,
    )


def plan_to_text(plan: ExecutionPlan) -> str:
    """Return the text of a plan, for people; canonical.

    Examples
    --------
    >>> plan = ExecutionPlan((), (Allocate(0, "x", 8), Compute("f", (), (0,)), Deallocate(0)), graph="g")
    >>> print(plan_to_text(plan), end="")
    remat-plan 1
    graph "g"
    graph_digest ""
    source ""
    %0 = allocate "x" 8
    compute "f" () -> (%0)
    deallocate %0
    """
    lines = [TITLE, *(f"{key} {json.dumps(getattr(plan, key))}" for key in _HEADER)]
    lines += [str(given).replace("allocate", "input", 1) for given in plan.inputs]
    lines += [str(statement) for statement in plan.statements]
    return "\n".join(lines) + "\n"


def _plan(schedule: Schedule, graph: ComputeGraph | None) -> ExecutionPlan:
    return ExecutionPlan.of_schedule(needed_graph(graph, "an execution plan"), schedule)


JSON = ScheduleFormat(
    name="plan",
    description="execution plan: allocate, compute and deallocate statements over virtual registers (JSON)",
    recognizes=lambda source: source.looks_like_json and source.json.get("format") == NAME,
    read=lambda source, graph: plan_from_document(source.json).schedule(needed_graph(graph, "an execution plan")),
    write=lambda schedule, graph: plan_to_json(_plan(schedule, graph)),
)
TEXT = ScheduleFormat(
    name="plan-text",
    description="the same as lines of text; written only",
    write=lambda schedule, graph: plan_to_text(_plan(schedule, graph)),
)
