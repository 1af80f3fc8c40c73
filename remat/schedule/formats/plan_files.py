"""Files of execution plans: a strict JSON format, and a write-only text format for people; both are canonical.

In JSON a statement is ``["allocate", register, tensor, bytes]``, ``["compute", op, [registers read], [registers
written]]`` or ``["deallocate", register]``. In text the same is ``%0 = allocate "x" 4096``, ``compute "f" (%1) ->
(%0)`` and ``deallocate %0``, one per line; names are JSON strings. Version 2 has plans that move tensors to a host:
``["offload", slot, register]``, ``["fetch", slot, register]`` and ``["discard", slot]``, in text ``@0 = offload %1``,
``fetch @0 -> %1`` and ``discard @0``. Other plans are written in version 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.documents import Document, Lines, Shape, canonical, check_header, decoded
from remat.io.limits import draw
from remat.schedule.formats.base import ScheduleFormat, needed_graph
from remat.schedule.plan import Allocate, Compute, Deallocate, Discard, ExecutionPlan, Fetch, Offload, Statement
from remat.schedule.schedule import Schedule

NAME = "remat-plan"
#: Versions without and with transfers.
VERSION, VERSION_WITH_TRANSFERS = 1, 2

#: Memory in bytes for each statement during checks.
_STATEMENT_MEMORY = 400
_STATEMENTS: dict[str, Callable[..., Statement]] = {
    "allocate": Allocate, "compute": Compute, "deallocate": Deallocate,
    "offload": Offload, "fetch": Fetch, "discard": Discard,
}  # fmt: skip
_WORDS = {kind: word for word, kind in _STATEMENTS.items()}
_HEADER = ("graph", "graph_digest", "source")
Count = Annotated[int, Field(ge=0)]
Registers = Annotated[tuple[Count, ...], Field(strict=False)]
_SHAPE = "{at} is no statement of an execution plan"
_Statement = (
    Annotated[tuple[Literal["allocate"], Count, str, Count], Field(strict=False)]
    | Annotated[tuple[Literal["compute"], str, Registers, Registers], Field(strict=False)]
    | Annotated[tuple[Literal["deallocate", "discard"], Count], Field(strict=False)]
    | Annotated[tuple[Literal["offload", "fetch"], Count, Count], Field(strict=False)]
)


class PlanDocument(Document):
    """An execution plan: the registers of the graph inputs, and the statements in order."""

    format: Literal["remat-plan"]
    version: Literal[1, 2]
    """2 if a statement moves tensors to a host or back."""
    statements: list[Annotated[_Statement, Shape(_SHAPE)]]
    inputs: list[Annotated[tuple[Count, str, Count], Field(strict=False), Shape(_SHAPE)]] = []
    """Register, tensor and bytes of each graph input."""
    graph: str = ""
    graph_digest: str = ""
    source: str = ""


def plan_to_json(plan: ExecutionPlan) -> str:
    """Return the canonical JSON of a plan: same content, same text; one statement per line; ASCII."""
    header = {key: getattr(plan, key) for key in _HEADER}
    inputs = Lines(json.dumps(_values(statement)) for statement in plan.inputs)
    statements = Lines(json.dumps([_WORDS[type(each)], *_values(each)]) for each in plan.statements)
    return canonical({"format": NAME, "version": _version(plan), **header, "inputs": inputs, "statements": statements})


def _values(statement: Statement) -> list[Any]:
    return [getattr(statement, name) for name in statement.__match_args__]


def _version(plan: ExecutionPlan) -> int:
    moves = any(isinstance(statement, Offload | Fetch | Discard) for statement in plan.statements)
    return VERSION_WITH_TRANSFERS if moves else VERSION


def plan_from_document(document: Any) -> ExecutionPlan:
    """Return the plan in a parsed JSON document; :meth:`ExecutionPlan.schedule` checks it against a graph.

    Raises
    ------
    FormatError
        For another format or version; for missing or unknown keys and wrong types, all listed with their places; for
        statements that move tensors in version 1.
    """
    check_header(document, NAME, (VERSION, VERSION_WITH_TRANSFERS))
    draw(_STATEMENT_MEMORY * sum(len(part) for part in document.values() if isinstance(part, list)))
    found = decoded(PlanDocument, document)
    inputs = tuple(Allocate(*given) for given in found.inputs)
    statements = tuple(_STATEMENTS[word](*rest) for word, *rest in found.statements)
    plan = ExecutionPlan(inputs, statements, found.graph, found.graph_digest, found.source)
    if _version(plan) > found.version:
        raise FormatError(f"a statement moves a tensor, which needs version {VERSION_WITH_TRANSFERS}", "version")
    return plan


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
    lines = [f"{NAME} {_version(plan)}", *(f"{key} {json.dumps(getattr(plan, key))}" for key in _HEADER)]
    lines += [str(given).replace("allocate", "input", 1) for given in plan.inputs]
    lines += [str(statement) for statement in plan.statements]
    return "\n".join(lines) + "\n"


def _plan(schedule: Schedule, graph: ComputeGraph | None) -> ExecutionPlan:
    return ExecutionPlan.of_schedule(needed_graph(graph, "an execution plan"), schedule)


JSON = ScheduleFormat(
    name="plan",
    description="execution plan: statements over virtual registers, also with a host (JSON)",
    recognizes=lambda source: source.looks_like_json and source.json.get("format") == NAME,
    read=lambda source, graph: plan_from_document(source.json).schedule(needed_graph(graph, "an execution plan")),
    write=lambda schedule, graph: plan_to_json(_plan(schedule, graph)),
)
TEXT = ScheduleFormat(
    name="plan-text",
    description="the same as lines of text; written only",
    write=lambda schedule, graph: plan_to_text(_plan(schedule, graph)),
)
