"""Records: one file for each instance, order and budget, with the best known schedule and the best bound.

A schedule is its sequence of computes, as positions in the reference order of the graph; ``3-7`` stands for five
consecutive ops. Frees are implied. Files are canonical; any other spelling is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.documents import Document, decoded
from remat.io.files import parse_json
from remat.schedule import Certificate, Rule, Schedule, validate
from scoreboard.suite import Cell

#: Largest average number of computes per op; longer schedules are not read.
MOST_COMPUTES_PER_OP = 1000
#: Fields that describe the graph.
FACTS = ("graph_digest", "ops", "base_cost", "reference_peak", "budget")
_RUN = re.compile(r"(0|[1-9][0-9]{0,8})(?:-([1-9][0-9]{0,8}))?")

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Order = Literal["fixed", "free"]


class Found(Document):
    """Best known schedule."""

    cost: Count
    peak: Count
    method: str
    """Method that found it."""
    seconds: Seconds | None = None
    """Time in its run at which it was found; None: unknown."""
    limit: Seconds | None = None
    """Time limit of the run in seconds; None: unknown."""
    seed: Count | None = None
    ops: str
    """Computes, as positions."""


class Record(Document):
    """Record of one cell: graph, problem, best known bound, best known schedule."""

    format: Literal["remat-scoreboard"] = "remat-scoreboard"
    version: Literal[1] = 1
    instance: str
    order: Order
    percent: Count
    graph_digest: str
    ops: Count
    base_cost: Count
    reference_peak: Count
    budget: Count
    bound: Count | None
    """Lower bound on the cost with this order rule and any number of computes; None: infeasible."""
    bound_kind: str
    """Source of the bound or of the proof of infeasibility."""
    bound_order: Order
    """``free`` if the bound holds for any order, ``fixed`` if only for the reference order."""
    found: Found | None

    @property
    def cell(self) -> Cell:
        """Cell of the record."""
        return Cell(self.instance, self.order, self.percent)

    @classmethod
    def empty(cls, cell: Cell, graph: ComputeGraph) -> Record:
        """Return a record with the bound of computing each op once."""
        problem = cell.problem(graph)
        return decoded(cls, {
            **asdict(cell), "graph_digest": graph.digest, "ops": len(graph.ops), "base_cost": graph.base_cost,
            "reference_peak": problem.reference_peak, "budget": problem.budget_bytes, "bound": graph.base_cost,
            "bound_kind": "computing each op once", "bound_order": "free", "found": None,
        })  # fmt: skip

    @property
    def closed(self) -> bool:
        """True if the schedule is proved optimal or the cell infeasible."""
        return self.bound is None or (self.found is not None and self.found.cost <= self.bound)

    @property
    def gap(self) -> float | None:
        """(cost − bound) / cost; None without both."""
        if self.found is None or self.bound is None:
            return None
        return (self.found.cost - self.bound) / self.found.cost if self.found.cost else 0.0

    def overhead(self, cost: int | None) -> float | None:
        """Return a cost as an overhead in %."""
        return None if cost is None or not self.base_cost else 100 * (cost - self.base_cost) / self.base_cost


def to_text(record: Record) -> str:
    """Return the canonical text of a record."""
    return json.dumps(record.model_dump(), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def from_text(text: str, name: str) -> Record:
    """Parse a record, without certifying it.

    Raises
    ------
    FormatError
        If the text is not a canonical record; begins with `name`.
    """
    content = parse_json(text, name)
    try:
        record = decoded(Record, content)
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from None
    if to_text(record) != text:
        raise FormatError(f"{name}: not in the one spelling of a record; it was changed by hand or cut off")
    return record


def to_ops(graph: ComputeGraph, schedule: Schedule) -> str:
    """Return the computes of a schedule as text."""
    index = graph.op_index
    positions = graph.arrays.position[[index[name] for name in schedule.computes()]]
    starts = np.flatnonzero(np.diff(positions, prepend=-2) != 1).tolist()
    ends = [*starts[1:], len(positions)]
    at = positions.tolist()
    return " ".join(f"{at[a]}-{at[b - 1]}" if b - a > 1 else f"{at[a]}" for a, b in zip(starts, ends, strict=True))


def to_schedule(graph: ComputeGraph, ops: str, name: str, source: str = "") -> Schedule:
    """Return the schedule of a text of computes.

    Raises
    ------
    FormatError
        If the text is invalid; begins with `name`.
    """
    positions: list[int] = []
    for word in ops.split(" "):
        match = _RUN.fullmatch(word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not match or last < first or last >= len(graph.ops):
            raise FormatError(f"{name}: {word[:40]!r} in the sequence of ops is no op or run of ops of the graph")
        positions.extend(range(first, last + 1))
        if len(positions) > MOST_COMPUTES_PER_OP * len(graph.ops):
            raise FormatError(f"{name}: the sequence of ops is too long")
    return Schedule.of_computes(graph, graph.arrays.order[positions], source=source)


def certify(record: Record, graph: ComputeGraph, name: str) -> Certificate | None:
    """Check all values of a record against the graph; return the certificate of its schedule.

    Raises
    ------
    FormatError
        For another graph, an invalid schedule, or a wrong number; begins with `name`.
    """
    plain, found, certificate = Record.empty(record.cell, graph), record.found, None
    facts = [(word, getattr(record, word), getattr(plain, word)) for word in FACTS]
    if found is not None:
        certificate = validate(graph, to_schedule(graph, found.ops, name), record.cell.problem(graph).rules)
        if not certificate.accepted:
            why = min(certificate.violations, key=lambda violation: violation.rule is Rule.BUDGET)
            raise FormatError(f"{name}: the schedule is {certificate.verdict}: {why}")
        facts += [(word, getattr(found, word), getattr(certificate, word)) for word in ("cost", "peak")]
    for word, said, true in facts:
        if said != true:
            raise FormatError(f"{name}: {word} is {said}, but by graph and schedule it is {true}")
    if record.bound_order == "fixed" and record.order == "free":
        raise FormatError(f"{name}: a bound for the fixed order says nothing of a free one")
    if record.bound is None:
        if found is not None:
            raise FormatError(f"{name}: there is a schedule, and {record.bound_kind} says that there is none")
    elif record.bound < graph.base_cost:
        raise FormatError(f"{name}: the bound is {record.bound:,}, less than computing each op once")
    elif found is not None and record.bound > found.cost:
        raise FormatError(f"{name}: the bound is {record.bound:,}, more than the {found.cost:,} of the schedule")
    return certificate
