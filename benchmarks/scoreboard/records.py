"""Records: one small file for each instance, order and budget, with the best known schedule and the best bound.

A schedule is its sequence of computes, as positions in the reference order of the graph; ``3-7`` stands for five ops
in a row. Frees are implied. Every file has exactly one spelling, so that anything else is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.files import parse_json
from remat.schedule import OrderRule, Schedule, validate
from remat.schedule.certificate import Certificate, Rule, Verdict
from scoreboard.suite import Cell

FORMAT, VERSION = "remat-scoreboard", 1
#: A schedule computes each op this often at most, on average: what is longer is not read.
MOST_COMPUTES_PER_OP = 1000
_RUN = re.compile(r"(0|[1-9][0-9]{0,8})(?:-([1-9][0-9]{0,8}))?")


@dataclass(frozen=True)
class Found:
    """The best known schedule.

    Attributes
    ----------
    cost, peak : int
    method : str
        Who found it.
    seconds, limit : float or None
        When, in its run, and how long the run was allowed to take; None: not known.
    seed : int or None
    ops : str
        The computes.
    """

    cost: int
    peak: int
    method: str
    seconds: float | None
    limit: float | None
    seed: int | None
    ops: str


@dataclass(frozen=True)
class Record:
    """What is known of one cell.

    Attributes
    ----------
    cell : Cell
    graph_digest : str
    ops, base_cost, reference_peak, budget : int
        Of the graph and the problem.
    bound : int or None
        No schedule with this order rule costs less, however often ops are computed; None: there is no schedule.
    bound_kind : str
        What gives the bound, or the proof that there is no schedule.
    bound_order : str
        ``free`` if the bound holds for any order, ``fixed`` if for the reference order alone.
    found : Found or None
    """

    cell: Cell
    graph_digest: str
    ops: int
    base_cost: int
    reference_peak: int
    budget: int
    bound: int | None
    bound_kind: str
    bound_order: str
    found: Found | None

    @classmethod
    def empty(cls, cell: Cell, graph: ComputeGraph) -> Record:
        """Nothing known yet but what is plain."""
        problem = cell.problem(graph)
        assert problem.budget_bytes is not None
        return cls(
            cell, graph.digest, len(graph.ops), graph.base_cost, problem.reference_peak, problem.budget_bytes,
            graph.base_cost, "computing each op once", "free", None,
        )  # fmt: skip

    @property
    def closed(self) -> bool:
        """Whether nothing is left to be found."""
        return self.bound is None or (self.found is not None and self.found.cost <= self.bound)

    @property
    def gap(self) -> float | None:
        """(cost − bound) / cost; None without both."""
        if self.found is None or self.bound is None:
            return None
        return (self.found.cost - self.bound) / self.found.cost if self.found.cost else 0.0

    def overhead(self, cost: int | None) -> float | None:
        """A cost as an overhead in %."""
        return None if cost is None or not self.base_cost else 100 * (cost - self.base_cost) / self.base_cost


def to_text(record: Record) -> str:
    """The one spelling of a record."""
    content = {"format": FORMAT, "version": VERSION, **asdict(record.cell), **asdict(record)}
    del content["cell"]
    return json.dumps(content, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def from_text(text: str, name: str) -> Record:
    """The record in `text`; nothing is certified yet.

    Raises
    ------
    FormatError
        Beginning with `name`, if it is not a record in its one spelling.
    """
    content: Any = parse_json(text, name)
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        raise FormatError(f"{name}: not a record of the scoreboard, version {VERSION}")
    given = {key: value for key, value in content.items() if key not in ("format", "version")}
    try:
        cell = Cell(given.pop("instance"), given.pop("order"), given.pop("percent"))
        found = given.pop("found")
        record = Record(cell, found=None if found is None else Found(**found), **given)
    except (KeyError, TypeError) as error:
        raise FormatError(f"{name}: keys are missing or unknown: {' '.join(str(error).split())}") from None
    words = {"instance": cell.instance, "order": cell.order, "graph_digest": record.graph_digest,
             "bound_kind": record.bound_kind, "bound_order": record.bound_order}  # fmt: skip
    numbers: dict[str, Any] = {"percent": cell.percent, "ops": record.ops, "base_cost": record.base_cost,
               "reference_peak": record.reference_peak, "budget": record.budget}  # fmt: skip
    if record.bound is not None:
        numbers["bound"] = record.bound
    if record.found is not None:
        words |= {"method": record.found.method, "the sequence of ops": record.found.ops}
        numbers |= {"cost": record.found.cost, "peak": record.found.peak}
        for key in ("seconds", "limit", "seed"):
            value = getattr(record.found, key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
                raise FormatError(f"{name}: {key} is {value!r}")
    for key, value in words.items():
        if not isinstance(value, str):
            raise FormatError(f"{name}: {key} is {value!r}, not words")
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise FormatError(f"{name}: {key} is {value!r}, not a whole number")
    if cell.order not in ("fixed", "free") or record.bound_order not in ("fixed", "free"):
        raise FormatError(f"{name}: an order is neither fixed nor free")
    if to_text(record) != text:
        raise FormatError(f"{name}: not in the one spelling of a record; it was changed by hand or cut off")
    return record


def to_ops(graph: ComputeGraph, schedule: Schedule) -> str:
    """The computes of a schedule as text."""
    index = graph.op_index
    positions = graph.arrays.position[[index[name] for name in schedule.computes()]]
    starts = np.flatnonzero(np.diff(positions, prepend=-2) != 1).tolist()
    ends = [*starts[1:], len(positions)]
    at = positions.tolist()
    return " ".join(f"{at[a]}-{at[b - 1]}" if b - a > 1 else f"{at[a]}" for a, b in zip(starts, ends, strict=True))


def to_schedule(graph: ComputeGraph, ops: str, name: str, source: str = "") -> Schedule:
    """The schedule of a text of computes.

    Raises
    ------
    FormatError
        Beginning with `name`, where it is not one.
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
    """Check everything that a record says against the graph; the certificate of its schedule.

    Raises
    ------
    FormatError
        Beginning with `name`: for another graph, a schedule that is not valid, or a number that is not so.
    """
    problem = record.cell.problem(graph)
    plain = Record.empty(record.cell, graph)
    for field in ("graph_digest", "ops", "base_cost", "reference_peak", "budget"):
        said, true = getattr(record, field), getattr(plain, field)
        if said != true:
            raise FormatError(f"{name}: {field.replace('_', ' ')} is {said}, that of the graph is {true}")
    if record.bound is not None and record.bound < graph.base_cost:
        raise FormatError(f"{name}: the bound is {record.bound:,}, less than computing each op once")
    if record.bound_order == "fixed" and record.cell.order == "free":
        raise FormatError(f"{name}: a bound for the fixed order says nothing of a free one")
    if record.found is None:
        return None
    if record.bound is None:
        raise FormatError(f"{name}: there is a schedule, and {record.bound_kind} says that there is none")
    certificate = validate(graph, to_schedule(graph, record.found.ops, name), problem.rules)
    if not certificate.accepted:
        invalid = certificate.verdict is Verdict.INVALID
        why = next(v for v in certificate.violations if not invalid or v.rule is not Rule.BUDGET)
        raise FormatError(f"{name}: the schedule is {certificate.verdict}: {why}")
    for word, said, true in (
        ("cost", record.found.cost, certificate.cost),
        ("peak", record.found.peak, certificate.peak),
    ):
        if said != true:
            raise FormatError(f"{name}: the {word} is said to be {said:,}, that of the schedule is {true:,}")
    if record.bound > certificate.cost:
        raise FormatError(f"{name}: the bound is {record.bound:,}, more than the {certificate.cost:,} of the schedule")
    return certificate


def better(record: Record, found: Found) -> bool:
    """Whether `found` is strictly better than what is known: cheaper, or as cheap with a lower peak."""
    return record.found is None or (found.cost, found.peak) < (record.found.cost, record.found.peak)


def with_bound(record: Record, bound: int | None, kind: str, order: OrderRule) -> Record:
    """The record with that bound, or the proof that there is no schedule (None), if it says strictly more.

    Raises
    ------
    FormatError
        If it contradicts the schedule that is known.
    """
    known = record.bound
    if bound == known:  # the same for more schedules is more, too
        wider = order is OrderRule.FREE and record.bound_order != "free"
        return replace(record, bound_kind=kind, bound_order="free") if wider else record
    if known is None or (bound is not None and bound < known):
        return record
    if record.found is not None and (bound is None or bound > record.found.cost):
        claim = "there is no schedule" if bound is None else f"nothing costs less than {bound:,}"
        raise FormatError(f"{record.cell.name}: {kind} says that {claim}, but one costs {record.found.cost:,}")
    return replace(record, bound=bound, bound_kind=kind, bound_order=str(order))
