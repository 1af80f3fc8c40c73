"""Submission: the library's answer to a schedule from elsewhere."""

from __future__ import annotations

import os
import time
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import remat
from remat.errors import FormatError
from remat.experiments.library.instances import Instance, LibraryProblem, instance, instances
from remat.experiments.library.ledger import (
    RECORDS,
    Ledger,
    certify,
    described,
    described_addresses,
    objective,
    serves,
)
from remat.experiments.library.records import Origin
from remat.io.files import parse_json, read_text
from remat.schedule import Certificate
from remat.schedule.address_files import read_addresses
from remat.schedule.addresses import AddressCertificate, check_addresses
from remat.schedule.io import read_schedule

#: Remedy for a file that does not name its graph.
NAMED = "name the instance by --instance"


class Verdict(StrEnum):
    """Answer to a submission."""

    BETTER = "better and added"
    """The record is in the ledger."""
    NOT_BETTER = "not better"
    """Valid, but every problem has a schedule that is as good, or none has room for it."""
    INFEASIBLE = "infeasible"
    """Not a valid schedule of the graph."""


class Decision(NamedTuple):
    """Verdict on a submission, with the reason and the problems that it improves."""

    verdict: Verdict
    instance: Instance
    certificate: Certificate | AddressCertificate
    reason: str
    better: list[LibraryProblem]

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"


def submit(path: str | os.PathLike[str], origin: Origin, name: str | None = None, folder: Path = RECORDS) -> Decision:
    """Certify the schedule (or addresses) in a file and add its record if it is better for a problem.

    Parameters
    ----------
    path : path
        Schedule in any format.
    origin : Origin
        Method, machine and time of the record.
    name : str, optional
        Instance; default: the one whose graph the schedule names by its digest.

    Raises
    ------
    RematError
        If the file is not a schedule, or belongs to no instance.
    """
    chosen = _of_digest(path) if name is None else instance(name)
    ledger = Ledger(chosen, folder)
    if chosen.floor:
        return _submit_addresses(path, origin, ledger)
    schedule = read_schedule(path, ledger.graph)
    certificate = certify(ledger.graph, schedule)
    if not certificate.accepted:
        return Decision(Verdict.INFEASIBLE, chosen, certificate, str(certificate.decisive), [])
    record = described(ledger.graph, schedule, certificate, origin)
    better = ledger.add(record)
    if better:
        return Decision(Verdict.BETTER, chosen, certificate, ", ".join(each.name for each in better), better)
    fitting = [standing for standing in ledger.standings() if serves(record, standing.problem)]
    if fitting:
        standing = fitting[-1]
        known = standing.best
        assert known is not None
        ours, best = objective(standing.problem, record)[0], objective(standing.problem, known)[0]
        reason = f"{standing.problem.name} has {best:,} by {known.origin.method}, this one {ours:,}"
    else:
        share = 100 * certificate.peak / chosen.peak
        reason = f"its peak is {share:.1f} % of the reference peak, above every budget of {chosen.name}"
    return Decision(Verdict.NOT_BETTER, chosen, certificate, reason, [])


def _submit_addresses(path: str | os.PathLike[str], origin: Origin, ledger: Ledger) -> Decision:
    """Certify the addresses in a file and add their record if the arena is smaller than the best known."""
    chosen = ledger.instance
    addresses = read_addresses(path, ledger.arena.buffers)
    certificate = check_addresses(addresses, ledger.arena.buffers)
    if not certificate.accepted:
        return Decision(Verdict.INFEASIBLE, chosen, certificate, str(certificate.first), [])
    (standing,) = ledger.standings()
    better = ledger.add(described_addresses(ledger.arena, addresses, origin))
    if better:
        return Decision(Verdict.BETTER, chosen, certificate, better[0].name, better)
    assert standing.best is not None
    by = standing.best.origin.method
    reason = f"{standing.problem.name} has {standing.value:,} bytes by {by}, these take {certificate.arena:,}"
    return Decision(Verdict.NOT_BETTER, chosen, certificate, reason, [])


def submitted(method: str, machine: str = "", seconds: float | None = None) -> Origin:
    """Return the origin of a submission today."""
    return Origin(
        date=time.strftime("%Y-%m-%d", time.gmtime()), method=method, machine=machine, seconds=seconds, clock="wall",
        version=remat.__version__,
    )  # fmt: skip


def _of_digest(path: str | os.PathLike[str]) -> Instance:
    """Return the instance whose graph a schedule file names by its digest."""
    try:
        content = parse_json(read_text(path), str(path))
    except FormatError as error:
        raise FormatError(f"{error}; for a file of another format, {NAMED}") from None
    digest = content.get("graph_digest") if isinstance(content, dict) else None
    found = [each for each in instances().values() if each.digest == digest and not each.floor]
    if not found:
        raise FormatError(f"{path}: its graph_digest is that of no instance; {NAMED}")
    return found[0]
