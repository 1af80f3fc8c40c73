"""Files of execution plans: a strict JSON format, and a text for reading. Both are written canonically and read again.

In JSON a statement is ``["allocate", register, tensor, bytes]``, ``["compute", op, [registers read], [registers
written]]`` or ``["deallocate", register]``. In text the same is ``%0 = allocate "x" 4096``, ``compute "f" (%1) ->
(%0)`` and ``deallocate %0``, one a line; names are JSON strings.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.documents import Document, Shape, check_header, decoded
from remat.io.formats import Source
from remat.io.limits import check_count
from remat.io.text import short
from remat.schedule.formats.base import ScheduleFormat, needed_graph
from remat.schedule.plan import Allocate, Compute, Deallocate, ExecutionPlan, Statement
from remat.schedule.schedule import Schedule

NAME = "remat-plan"
VERSION = 1
#: First line of the text.
TITLE = f"{NAME} {VERSION}"

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
    """An execution plan: the registers of the graph inputs, and the statements in turn."""

    format: Literal["remat-plan"]
    version: Literal[1]
    statements: list[Annotated[_Statement, Shape(_SHAPE)]]
    inputs: list[Annotated[tuple[Count, str, Count], Field(strict=False), Shape(_SHAPE)]] = []
    """Register, tensor and bytes of each."""
    graph: str = ""
    graph_digest: str = ""
    source: str = ""


_STRING = r'"(?:[^"\\]|\\.)*"'
#: More digits than any size or register has are not read.
_NUMBER = r"\d{1,30}"
_REGISTERS = rf"\((?:%{_NUMBER}(?:, %{_NUMBER})*)?\)"
_LINE = re.compile(
    rf"(?P<key>graph|graph_digest|source) (?P<value>{_STRING})"
    rf"|%(?P<register>{_NUMBER}) = (?P<kind>input|allocate) (?P<tensor>{_STRING}) (?P<size>{_NUMBER})"
    rf"|compute (?P<op>{_STRING}) (?P<reads>{_REGISTERS}) -> (?P<writes>{_REGISTERS})"
    rf"|deallocate %(?P<freed>{_NUMBER})"
)


def plan_to_json(plan: ExecutionPlan) -> str:
    """The canonical JSON of a plan: same content, same text; one statement a line; ASCII."""
    parts = [f'"format": "{NAME}"', f'"version": {VERSION}']
    parts += [f'"{key}": {json.dumps(getattr(plan, key))}' for key in _HEADER]
    for key, statements in (("inputs", plan.inputs), ("statements", plan.statements)):
        lines = ",\n".join(json.dumps(_as_list(statement, with_word=key != "inputs")) for statement in statements)
        parts.append(f'"{key}": [\n{lines}\n]' if lines else f'"{key}": []')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _as_list(statement: Statement, *, with_word: bool) -> list[Any]:
    match statement:
        case Allocate(register, tensor, size):
            return [*(["allocate"] if with_word else []), register, tensor, size]
        case Compute(op, reads, writes):
            return ["compute", op, list(reads), list(writes)]
        case Deallocate(register):
            return ["deallocate", register]


def plan_from_document(document: Any) -> ExecutionPlan:
    """The plan in a parsed JSON document; what it says is held against a graph by :meth:`ExecutionPlan.schedule`.

    Raises
    ------
    FormatError
        For another format or version, or with all missing or unknown keys and wrong types; each with its place.
    """
    check_header(document, NAME, VERSION)
    found = decoded(PlanDocument, document)
    return ExecutionPlan(
        tuple(Allocate(*given) for given in found.inputs),
        tuple(_statement(item) for item in found.statements),
        found.graph,
        found.graph_digest,
        found.source,
    )


def _statement(item: _Statement) -> Statement:
    match item:
        case ("allocate", register, tensor, size):
            return Allocate(register, tensor, size)
        case ("compute", op, reads, writes):
            return Compute(op, reads, writes)
        case ("deallocate", register):
            return Deallocate(register)
    raise AssertionError(item)


def plan_to_text(plan: ExecutionPlan) -> str:
    """The canonical text of a plan, to be read by people too.

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
    lines += [f"%{item.register} = input {json.dumps(item.tensor)} {item.size}" for item in plan.inputs]
    lines += [_as_line(statement) for statement in plan.statements]
    return "\n".join(lines) + "\n"


def _as_line(statement: Statement) -> str:
    match statement:
        case Allocate(register, tensor, size):
            return f"%{register} = allocate {json.dumps(tensor)} {size}"
        case Compute(op, reads, writes):
            return f"compute {json.dumps(op)} ({_joined(reads)}) -> ({_joined(writes)})"
        case Deallocate(register):
            return f"deallocate %{register}"


def _joined(registers: tuple[int, ...]) -> str:
    return ", ".join(f"%{register}" for register in registers)


def plan_from_text(text: str) -> ExecutionPlan:
    """The plan in a text; empty lines and what follows a ``#`` at the start of a line are left out.

    Raises
    ------
    FormatError
        Naming the line that is not understood, or in the wrong place.
    """
    check_count(text.count("\n"), "lines")
    header: dict[str, str] = {}
    inputs: list[Allocate] = []
    statements: list[Statement] = []
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not lines or lines[0][1] != TITLE:
        raise FormatError(f"the first line must be {TITLE!r}")
    for number, line in lines[1:]:
        found = _LINE.fullmatch(line)
        if found is None:
            raise FormatError(f"line {number} is no header, input, allocate, compute or deallocate: {short(line)}")
        if key := found["key"]:
            if key in header or inputs or statements:
                raise FormatError(f"line {number}: {key} stands twice, or after the statements")
            header[key] = _string(found["value"], number)
        elif found["kind"]:
            item = Allocate(int(found["register"]), _string(found["tensor"], number), int(found["size"]))
            if found["kind"] == "allocate":
                statements.append(item)
            elif statements:
                raise FormatError(f"line {number}: an input stands after the statements")
            else:
                inputs.append(item)
        elif found["op"]:
            reads, writes = (tuple(map(int, re.findall(r"\d+", found[what]))) for what in ("reads", "writes"))
            statements.append(Compute(_string(found["op"], number), reads, writes))
        else:
            statements.append(Deallocate(int(found["freed"])))
    return ExecutionPlan(tuple(inputs), tuple(statements), **header)


def _string(text: str, line: int) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        raise FormatError(f"line {line}: {short(text)} is not a JSON string") from None


def _is_json_plan(source: Source) -> bool:
    return source.looks_like_json and isinstance(source.json, dict) and source.json.get("format") == NAME


def _read(plan: ExecutionPlan, graph: ComputeGraph | None) -> Schedule:
    return plan.schedule(needed_graph(graph, "an execution plan"))


def _plan(schedule: Schedule, graph: ComputeGraph | None) -> ExecutionPlan:
    if graph is None:
        raise FormatError("an execution plan can only be written together with the graph it is for")
    return ExecutionPlan.of_schedule(graph, schedule)


JSON = ScheduleFormat(
    name="plan",
    description="execution plan: allocate, compute and deallocate statements over virtual registers (JSON)",
    recognizes=_is_json_plan,
    read=lambda source, graph: _read(plan_from_document(source.json), graph),
    write=lambda schedule, graph: plan_to_json(_plan(schedule, graph)),
)
TEXT = ScheduleFormat(
    name="plan-text",
    description="the same as lines of text",
    recognizes=lambda source: source.data[:4096].lstrip().startswith(f"{NAME} ".encode()),
    read=lambda source, graph: _read(plan_from_text(source.text), graph),
    write=lambda schedule, graph: plan_to_text(_plan(schedule, graph)),
)
