"""Records of an instance: lines of schedules and of bounds, each with its origin.

A schedule is its sequence of computes, as positions in the reference order of the graph; ``3-7`` stands for five
consecutive ops. Frees are implied. Lines are canonical; any other spelling is refused.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.documents import Document, decoded
from remat.io.files import parse_json
from remat.schedule import Schedule

#: Largest average number of computes per op; longer schedules are not read.
MOST_COMPUTES_PER_OP = 1000
_RUN = re.compile(r"(0|[1-9][0-9]{0,8})(?:-([1-9][0-9]{0,8}))?")

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Order = Literal["fixed", "free"]


class Origin(Document):
    """Run or person a record comes from."""

    date: Annotated[str, Field(pattern=r"^(|\d{4}-\d{2}-\d{2})$")] = ""
    """ISO date; empty: unknown."""
    method: str
    """Method of :func:`remat.experiments.library.runs.attempt`, or the name given with a submission."""
    machine: str = ""
    seconds: Seconds | None = None
    """Time of the run."""
    clock: Literal["processor", "wall"] = "processor"
    """Clock of `seconds`: of the processors, or of the wall until the schedule was found."""
    limit: Seconds | None = None
    """Time limit of the run in seconds."""
    seed: Count | None = None
    version: str = ""
    """Version of remat."""


class ScheduleRecord(Document):
    """Certified schedule. It serves every problem of its instance that allows its order and peak."""

    kind: Literal["schedule"] = "schedule"
    cost: Count
    peak: Count
    peak_step: Count
    order: Order
    """``fixed`` if first computes follow the reference order."""
    digest: str
    """Digest of the schedule."""
    computes: str
    """Computes, as positions."""
    origin: Origin


class BoundRecord(Document):
    """Bound on the cost within a budget, the peak, or the arena. Repeating the run of its origin gives it again."""

    kind: Literal["bound"] = "bound"
    measure: Literal["cost", "peak", "arena"]
    value: Count | None
    """None: no schedule exists."""
    budget: Count | None
    """Budget in bytes of a bound on cost; it also holds for smaller ones."""
    order: Order
    """``free`` if it holds for any order."""
    max_computes: Count | None
    """1 if it holds without recomputation only; None: any number of computes."""
    source: str
    """Name of the bound."""
    problem: str
    """Problem for which the run computed it, such as ``fixed-70``."""
    origin: Origin


class AddressRecord(Document):
    """Certified addresses of the buffers of an instance."""

    kind: Literal["addresses"] = "addresses"
    arena: Count
    """Bytes of the arena."""
    offsets: Annotated[str, Field(pattern=r"^(0|[1-9][0-9]*)( (0|[1-9][0-9]*))*$")]
    """Offset of each buffer in bytes."""
    origin: Origin


Record = ScheduleRecord | BoundRecord | AddressRecord
#: Classes of records by their kind.
KINDS: dict[str, type[Record]] = {"schedule": ScheduleRecord, "bound": BoundRecord, "addresses": AddressRecord}


def to_line(record: Record) -> str:
    """Return the canonical line of a record, without its end."""
    return json.dumps(record.model_dump(), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def from_text(text: str, name: str) -> list[Record]:
    """Parse the lines of a file of records, without certifying them.

    Raises
    ------
    FormatError
        For a line that is not a canonical record; begins with `name` and the line.
    """
    records: list[Record] = []
    if text and not text.endswith("\n"):
        raise FormatError(f"{name}: the last line is cut off")
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{name}, line {number}"
        content = parse_json(line, place)
        kind = content.get("kind") if isinstance(content, dict) else None
        try:
            record = decoded(KINDS.get(str(kind), ScheduleRecord), content)
        except FormatError as error:
            raise FormatError(f"{place}: {error}") from None
        if to_line(record) != line:
            raise FormatError(f"{place}: not in canonical form; `remat library submit` writes it")
        records.append(record)
    return records


def to_computes(graph: ComputeGraph, schedule: Schedule) -> str:
    """Return the computes of a schedule as text."""
    index = graph.op_index
    positions = graph.arrays.position[[index[name] for name in schedule.computes()]]
    starts = np.flatnonzero(np.diff(positions, prepend=-2) != 1).tolist()
    ends = [*starts[1:], len(positions)]
    at = positions.tolist()
    return " ".join(f"{at[a]}-{at[b - 1]}" if b - a > 1 else f"{at[a]}" for a, b in zip(starts, ends, strict=True))


def to_schedule(graph: ComputeGraph, record: ScheduleRecord, name: str) -> Schedule:
    """Return the schedule of a record.

    Raises
    ------
    FormatError
        If the computes are invalid; begins with `name`.
    """
    positions = positions_of(graph, record.computes, name)
    return Schedule.of_computes(graph, graph.arrays.order[positions], source=record.origin.method)


def positions_of(graph: ComputeGraph, computes: str, name: str) -> list[int]:
    """Return the positions of computes written as text.

    Raises
    ------
    FormatError
        If they are invalid; begins with `name`.
    """
    positions: list[int] = []
    for word in computes.split(" "):
        match = _RUN.fullmatch(word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not match or last < first or last >= len(graph.ops):
            raise FormatError(f"{name}: {word[:40]!r} in the computes is no op or run of ops of the graph")
        positions.extend(range(first, last + 1))
        if len(positions) > MOST_COMPUTES_PER_OP * len(graph.ops):
            raise FormatError(f"{name}: the sequence of computes is too long")
    return positions


def computes_each_once(record: ScheduleRecord, ops: int) -> bool:
    """Return True if a record of a graph with `ops` ops has no recomputation."""
    count = 0
    for word in record.computes.split(" "):
        first, _, last = word.partition("-")
        count += int(last or first) - int(first) + 1
    return count == ops
