"""Ledger of an instance: its records in order of arrival, and the best schedule and bound of each problem."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np

from remat.allocation import AllocationProblem
from remat.errors import FormatError
from remat.experiments.library.instances import Instance, LibraryProblem, instances
from remat.experiments.library.records import (
    AddressRecord,
    BoundRecord,
    Origin,
    Record,
    ScheduleRecord,
    computes_each_once,
    from_text,
    to_computes,
    to_line,
    to_schedule,
)
from remat.graphs import ComputeGraph
from remat.io.files import read_text, write_atomic
from remat.io.limits import budgeted
from remat.problem import Problem
from remat.schedule import Certificate, OrderRule, Rule, Rules, Schedule, validate
from remat.schedule.addresses import Addresses, check_addresses

#: Folder of the records, one file for each instance.
RECORDS = Path(__file__).with_name("records")
#: Largest file of records, in bytes.
MAX_BYTES = 32 * 1024 * 1024
#: Largest offset of a buffer in bytes.
MAX_OFFSET = 1 << 62


class Class(StrEnum):
    """Class of a problem: the time of the run, or the two runs, that found the optimum and proved it."""

    TOY = "toy"
    """At most 1 s, or decided without a run."""
    EASY = "easy"
    """At most 1 min."""
    MEDIUM = "medium"
    """At most 10 min."""
    HARD = "hard"
    """At most 1 h."""
    CLOSED = "closed"
    """Longer, or of unknown time."""
    OPEN = "open"
    """Not proved."""


#: Largest seconds of a class.
LIMITS = ((1, Class.TOY), (60, Class.EASY), (600, Class.MEDIUM), (3600, Class.HARD))


class Claim(NamedTuple):
    """Best bound on a problem: its value (None: infeasible), its name, and its record (None: by definition)."""

    value: int | None
    source: str
    record: BoundRecord | None = None


@dataclass(frozen=True)
class Standing:
    """Best known schedule (or addresses) and bound of a problem."""

    problem: LibraryProblem
    best: ScheduleRecord | AddressRecord | None
    bound: Claim

    @classmethod
    def first(cls, problem: LibraryProblem) -> Standing:
        """Return the standing without records."""
        return cls(problem, None, _by_definition(problem))

    def after(self, record: Record) -> Standing:
        """Return the standing after a record; this one if the record improves neither schedule nor bound.

        Better is a lower cost, or an equal cost with a lower peak; for the least peak it is the reverse.
        """
        problem, best = self.problem, self.best
        if isinstance(record, BoundRecord):
            claim = claimed(record, problem)
            return self if claim is None or not _higher(claim, self.bound) else replace(self, bound=claim)
        if serves(record, problem) and (best is None or objective(problem, record) < objective(problem, best)):
            return replace(self, best=record)
        return self

    @property
    def value(self) -> int | None:
        """Objective of the best schedule; None without one."""
        return None if self.best is None else objective(self.problem, self.best)[0]

    @property
    def infeasible(self) -> bool:
        """True if no schedule exists."""
        return self.bound.value is None

    @property
    def closed(self) -> bool:
        """True if the best schedule is proved optimal, or none exists."""
        return self.bound.value is None or (self.value is not None and self.value <= self.bound.value)

    @property
    def gap(self) -> float | None:
        """(value − bound) / value; None without both."""
        if self.value is None or self.bound.value is None:
            return None
        return (self.value - self.bound.value) / self.value if self.value else 0.0

    @property
    def group(self) -> Class:
        """Class of the problem."""
        if not self.closed:
            return Class.OPEN
        records = (self.bound.record,) if self.infeasible else (self.best, self.bound.record)
        runs = {record.origin for record in records if record is not None}
        if any(run.seconds is None for run in runs):
            return Class.CLOSED
        seconds = sum(run.seconds or 0.0 for run in runs)
        return next((name for most, name in LIMITS if seconds <= most), Class.CLOSED)

    def relative(self, value: int | None) -> float | None:
        """Return a value as an overhead in %, or a peak (an arena) in % of the problem's scale."""
        instance = self.problem.instance
        if value is None:
            return None
        if self.problem.kind in {"order", "arena"}:
            return 100 * value / self.problem.scale
        return 100 * (value - instance.cost) / instance.cost if instance.cost else None


class Ledger:
    """Records of an instance in a file, ``NAME.jsonl``."""

    def __init__(self, instance: Instance, folder: Path = RECORDS) -> None:
        self.instance, self.path = instance, folder / f"{instance.name}.jsonl"
        self.records = self._read()

    def _read(self) -> list[Record]:
        with budgeted():
            text = read_text(self.path, MAX_BYTES) if self.path.exists() else ""
            return from_text(text, str(self.path))

    @cached_property
    def graph(self) -> ComputeGraph:
        """Graph of the instance."""
        return self.instance.graph()

    def standing(self, problem: LibraryProblem) -> Standing:
        """Return the best known schedule and bound of a problem."""
        return reduce(Standing.after, self.records, Standing.first(problem))

    def standings(self) -> Iterator[Standing]:
        """Yield the standing of every problem."""
        return map(self.standing, self.instance.problems())

    def history(self, problem: LibraryProblem) -> Iterator[Record]:
        """Yield the records that improved the best schedule or bound of a problem, in order."""
        standing = Standing.first(problem)
        for record in self.records:
            before, standing = standing, standing.after(record)
            if standing is not before:
                yield record

    def until(self, date: str) -> Ledger:
        """Return the ledger at the end of an ISO date, without its file."""
        before = copy(self)
        before.records = [record for record in self.records if record.origin.date <= date]
        return before

    def offer(self, schedule: Schedule, origin: Origin) -> list[LibraryProblem]:
        """Add the record of a schedule; return the problems for which it is better, none if it is not valid.

        Raises
        ------
        FormatError
            If a bound contradicts it.
        """
        certificate = certify(self.graph, schedule)
        return self.add(described(self.graph, schedule, certificate, origin)) if certificate.accepted else []

    @cached_property
    def arena(self) -> AllocationProblem:
        """Buffers to place in one arena."""
        return AllocationProblem(self.instance.buffers(self.graph))

    def offer_addresses(self, addresses: Addresses, origin: Origin) -> list[LibraryProblem]:
        """Add the record of addresses; return the problems for which they are better, none if they are not valid.

        Raises
        ------
        FormatError
            If a bound contradicts them.
        """
        accepted = check_addresses(addresses, self.arena.buffers).accepted
        return self.add(described_addresses(self.arena, addresses, origin)) if accepted else []

    def add(self, record: Record) -> list[LibraryProblem]:
        """Append a record if it improves a problem; return these problems.

        Records that another process has added since are read first.

        Raises
        ------
        FormatError
            If a schedule and a bound contradict each other then.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(self.path.parent):
            self.records = self._read()
            known = list(self.standings())
            new = [standing.after(record) for standing in known]
            better = [now.problem for before, now in zip(known, new, strict=True) if now is not before]
            if better:
                _check_agreement(new, str(self.path))
                self.records.append(record)
                write_atomic(self.path, "".join(f"{to_line(each)}\n" for each in self.records))
        return better

    def check(self) -> int:
        """Certify every record again, in order; return their number.

        Raises
        ------
        FormatError
            For a record that is wrong, contradicts one before it, or improves no problem; names file and line.
        GraphError
            If the graph is not that of the manifest.
        """
        self._check_facts()
        known = [Standing.first(problem) for problem in self.instance.problems()]
        for number, record in enumerate(self.records, 1):
            place = f"{self.path}, line {number}"
            if isinstance(record, ScheduleRecord):
                _check_schedule(self.graph, record, place)
            elif isinstance(record, AddressRecord):
                addresses_of(self.arena, record, place)
            new = [standing.after(record) for standing in known]
            _check_agreement(new, place)
            if all(now is before for before, now in zip(known, new, strict=True)):
                raise FormatError(f"{place}: improves no problem of the library")
            known = new
        return len(self.records)

    def _check_facts(self) -> None:
        graph, instance = self.graph, self.instance
        true = facts(graph) | ({"floor": self.arena.bound} if instance.floor else {})
        for word, value in true.items():
            if getattr(instance, word) != value:
                raise FormatError(
                    f"instance {instance.name!r}: {word} is {getattr(instance, word)} in the manifest, but {value} by "
                    "its graph",
                )  # fmt: skip


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from adding records to a folder meanwhile, on systems with file locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def check_strays(folder: Path = RECORDS) -> None:
    """Raise FormatError if the folder has a file of no instance."""
    known = {f"{name}.jsonl" for name in instances()}
    for path in sorted(folder.glob("*")):
        if path.name not in known:
            raise FormatError(f"{path}: belongs to no instance of the library")


def objective(problem: LibraryProblem, record: ScheduleRecord | AddressRecord) -> tuple[int, int]:
    """Return the objective of a schedule, and the other of cost and peak as tie-break; or the arena of addresses."""
    if isinstance(record, AddressRecord):
        return record.arena, 0
    return (record.peak, record.cost) if problem.minimizes_peak else (record.cost, record.peak)


def serves(record: ScheduleRecord | AddressRecord, problem: LibraryProblem) -> bool:
    """Return True if a schedule keeps the rules of a problem of its instance, or if addresses are sought."""
    if isinstance(record, AddressRecord) or problem.kind == "arena":
        return isinstance(record, AddressRecord) and problem.kind == "arena"
    if problem.kind == "fixed" and record.order != "fixed":
        return False
    if problem.max_computes is not None and not computes_each_once(record, problem.instance.ops):
        return False
    return problem.budget is None or record.peak <= problem.budget


def claimed(record: BoundRecord, problem: LibraryProblem) -> Claim | None:
    """Return the claim of a bound on a problem of its instance; None if it does not cover the problem."""
    if record.measure == "arena" or problem.kind == "arena":
        return Claim(record.value, record.source, record) if record.measure == "arena" == problem.kind else None
    covered = record.order == "free" or problem.kind == "fixed"
    covered &= record.max_computes is None or record.max_computes == problem.max_computes
    if not covered:
        return None
    if record.measure == "peak":
        if problem.minimizes_peak:
            return Claim(record.value, record.source, record)
        small = problem.budget is not None and record.value is not None and problem.budget < record.value
        return Claim(None, record.source, record) if small else None
    if problem.minimizes_peak or problem.budget is None or record.budget is None or problem.budget > record.budget:
        return None
    return Claim(record.value, record.source, record)


def certify(graph: ComputeGraph, schedule: Schedule) -> Certificate:
    """Return the certificate of a schedule without a budget; its frees go right after last uses.

    Its rules have the fixed order if the schedule keeps that, and any order otherwise.
    """
    lean = schedule.without_frees()
    kept = validate(graph, lean, Rules(order=OrderRule.FIXED))
    return kept if kept.accepted else validate(graph, lean, Rules(order=OrderRule.FREE))


def described(graph: ComputeGraph, schedule: Schedule, certificate: Certificate, origin: Origin) -> ScheduleRecord:
    """Return the record of a schedule with its certificate from :func:`certify`."""
    return ScheduleRecord(
        cost=certificate.cost, peak=certificate.peak, peak_step=certificate.peak_step or 0,
        order="fixed" if certificate.rules.order is OrderRule.FIXED else "free", digest=certificate.schedule_digest,
        computes=to_computes(graph, schedule), origin=origin,
    )  # fmt: skip


def facts(graph: ComputeGraph) -> dict[str, int | str]:
    """Return the facts of a graph in the manifest."""
    from remat.bounds.peak_bounds import structural_bound

    problem = Problem(graph)
    least = structural_bound(problem).value
    assert least is not None
    return {
        "digest": graph.digest, "ops": len(graph.ops), "cost": graph.base_cost, "peak": problem.reference_peak,
        "least": least,
    }  # fmt: skip


def _check_schedule(graph: ComputeGraph, record: ScheduleRecord, place: str) -> None:
    """Raise unless graph and computes give the values of a record."""
    schedule = to_schedule(graph, record, place)
    certificate = certify(graph, schedule)
    if not certificate.accepted:
        why = next(each for each in certificate.violations if each.rule is not Rule.BUDGET)
        raise FormatError(f"{place}: the schedule is {certificate.verdict}: {why}")
    true = described(graph, schedule, certificate, record.origin)
    for word in type(record).model_fields:
        said, value = getattr(record, word), getattr(true, word)
        if said != value:
            raise FormatError(f"{place}: {word} is {said}, but {value} by graph and computes")


def addresses_of(arena: AllocationProblem, record: AddressRecord, place: str) -> Addresses:
    """Return the addresses of a record; raise FormatError, which begins with `place`, if they are wrong."""
    offsets = [int(word) for word in record.offsets.split(" ")]
    if len(offsets) != len(arena.buffers) or max(offsets) > MAX_OFFSET:
        raise FormatError(
            f"{place}: {len(offsets)} offsets are not one below 2^62 for each of {len(arena.buffers)} buffers"
        )
    addresses = arena.addresses(np.array(offsets, dtype=np.int64), source=record.origin.method)
    certificate = check_addresses(addresses, arena.buffers)
    if not certificate.accepted:
        raise FormatError(f"{place}: {certificate.first}")
    if addresses.arena != record.arena:
        raise FormatError(f"{place}: arena is {record.arena}, but {addresses.arena} by its offsets")
    return addresses


def described_addresses(arena: AllocationProblem, addresses: Addresses, origin: Origin) -> AddressRecord:
    """Return the record of valid addresses, with offsets in the order of the buffers of an instance."""
    offset = dict(zip(addresses.buffers.names, addresses.offset.tolist(), strict=True))
    offsets = " ".join(str(offset[name]) for name in arena.buffers.names)
    return AddressRecord(arena=addresses.arena, offsets=offsets, origin=origin)


def _check_agreement(standings: Iterable[Standing], place: str) -> None:
    """Raise if a bound exceeds a schedule."""
    for standing in standings:
        value, bound = standing.value, standing.bound
        if value is not None and (bound.value is None or bound.value > value):
            said = "there is no schedule" if bound.value is None else f"nothing is below {bound.value:,}"
            what = "an arena" if standing.problem.kind == "arena" else "a schedule"
            raise FormatError(
                f"{place}: {standing.problem.name}: {bound.source} says that {said}, but {what} has {value:,}",
            )  # fmt: skip


def _by_definition(problem: LibraryProblem) -> Claim:
    """Return the bound that follows from the facts of the instance."""
    instance = problem.instance
    if problem.kind == "arena":
        return Claim(instance.floor, "fullest step")
    if problem.minimizes_peak:
        return Claim(instance.least, "structural bound")
    assert problem.budget is not None
    if problem.budget < instance.least:
        return Claim(None, "structural bound")
    return Claim(instance.cost, "computing each op once")


def _higher(claim: Claim, known: Claim) -> bool:
    if known.value is None:
        return False
    return claim.value is None or claim.value > known.value
