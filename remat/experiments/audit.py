"""Audit of many schedules: a certificate for each, and reports as tables, JUnit and SARIF."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree import ElementTree

from remat._version import __version__
from remat.errors import FormatError, RematError
from remat.graphs.io import load_with_format
from remat.graphs.profiles import load_profiled
from remat.io.documents import Document, decoded
from remat.io.files import exists, parse_json, read_text, read_toml, table_rows
from remat.io.views import table_csv
from remat.problem import Problem
from remat.runtime.text import json_text, one_line, printable
from remat.schedule.certificate import Certificate, Rule
from remat.schedule.certificate_files import CheckRecord, FileRecord, certificates_text, check_named_files, file_record
from remat.schedule.explain import explain
from remat.schedule.io import read_with_format
from remat.schedule.step_lines import step_lines

if TYPE_CHECKING:
    from remat.graphs import ComputeGraph
    from remat.schedule.schedule import Schedule

#: Suffixes of reports: table, certificates, JUnit, SARIF.
SUFFIXES = (".csv", ".json", ".xml", ".sarif")
_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


class Line(Document):
    """Line of a manifest."""

    graph: str
    """File, or name of a zoo graph."""
    schedule: str
    """File."""
    budget: int | str | None = None
    """As in a problem (``"80%"``); default: that of the command."""
    machine: str | None = None
    """As in a problem (``"pcie4,host=64GiB"``); default: that of the command."""


class Manifest(Document):
    """Manifest in TOML or JSON."""

    check: list[Line]


def read_manifest(path: str | os.PathLike[str]) -> list[Line]:
    """Return the lines of a manifest (.toml, .json, or .csv with the columns graph, schedule, budget, machine).

    Paths are relative to the manifest. Raise FormatError with the path, and the line if known, if it is malformed, or
    names too many lines or bytes, a pipe or a device.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".csv":
        lines = list(_csv_lines(path))
    elif suffix in (".toml", ".json"):
        text = read_toml(path) if suffix == ".toml" else parse_json(read_text(path), str(path))
        try:
            lines = decoded(Manifest, text).check
        except FormatError as error:
            raise FormatError(f"{path}: {error}", "manifest") from None
    else:
        raise FormatError(f"{path}: the suffix of a manifest must be one of .toml, .json, .csv", "manifest")
    folder = Path(path).parent
    found = [
        line.model_copy(update={"graph": _graph_of(folder, line.graph), "schedule": str(folder / line.schedule)})
        for line in lines
    ]
    check_named_files(path, len(found), (name for line in found for name in (line.graph, line.schedule)))
    return found


def _graph_of(folder: Path, name: str) -> str:
    """Return the path of a graph file next to the manifest, or the name of a zoo graph."""
    from remat.graphs.zoo import ZOO

    return name if name in ZOO and not exists(folder / name) else str(folder / name)


def _csv_lines(path: str | os.PathLike[str]) -> Iterator[Line]:
    rows = table_rows(read_text(path), str(path))
    heads = [cell.strip() for cell in next(rows, (0, []))[1]]
    unknown = [head for head in heads if head not in Line.model_fields]
    if unknown or not {"graph", "schedule"} <= set(heads):
        raise FormatError(
            f"{path}: line 1: the columns must be graph, schedule, budget and machine, not {heads}", "manifest"
        )
    for _, cells in rows:
        yield Line(**{head: cell.strip() for head, cell in zip(heads, cells, strict=True) if cell.strip()})


@dataclass(frozen=True)
class Audited:
    """Outcome of one check.

    Attributes
    ----------
    record : CheckRecord
        Files with digests and formats, and the certificate or the error.
    certificate : Certificate or None
        None if a file could not be read.
    schedule : Schedule or None
    error : RematError or None
        Error that reading a file raised.
    context : tuple of (str, str)
        Line in the file, the steps around the first violation, and the life of its tensor, as pairs of label and text.
    lines : list of int
        Line of each step in the file of a refused schedule, from 1; empty if unknown.
    """

    record: CheckRecord
    certificate: Certificate | None = None
    schedule: Schedule | None = field(default=None, repr=False)
    error: RematError | None = None
    context: tuple[tuple[str, str], ...] = ()
    lines: Sequence[int] = field(default=(), repr=False)

    @property
    def verdict(self) -> str:
        """Verdict of the validator; ``not read`` without a certificate."""
        return "not read" if self.certificate is None else str(self.certificate.verdict)

    @property
    def fault(self) -> str:
        """Violation that decides the verdict, or the reason why a file cannot be read; empty for a valid schedule."""
        return self.record.error if self.certificate is None else str(self.certificate.decisive or "")

    def certificate_dict(self) -> dict[str, Any]:
        """Return the certificate as JSON values; where lines are known, violations at a step have a ``line``."""
        found = {} if self.certificate is None else self.certificate.as_dict()
        for violation in found.get("violations", []) if self.lines else []:
            if violation["step"] is not None:
                violation["line"] = self.lines[violation["step"]]
        return found

    def row(self) -> dict[str, Any]:
        """Return the row of the table."""
        found = self.certificate
        numbers = ("budget", "peak", "cost", "overhead", "recomputations", "graph_digest", "schedule_digest")
        return {
            "graph": self.record.graph.file,
            "schedule": self.record.schedule.file,
            "read_as": self.record.schedule.format,
            "verdict": self.verdict,
            **{name: getattr(found, name, None) for name in numbers},
            "violations": found and len(found.violations) + found.more_violations,
            "rule": str(found.decisive.rule) if found and found.decisive else None,
            "fault": self.fault,
        }


@dataclass(frozen=True)
class Audit:
    """Outcomes of many checks, in the order given."""

    checks: tuple[Audited, ...]

    @property
    def accepted(self) -> bool:
        """True if every schedule is valid."""
        return all(each.certificate is not None and each.certificate.accepted for each in self.checks)

    @property
    def complete(self) -> bool:
        """True if every file could be read."""
        return all(each.certificate is not None for each in self.checks)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each check as JSON values; unknown values are None."""
        return [each.row() for each in self.checks]

    def text(self, path: str | os.PathLike[str]) -> str:
        """Return the report at `path`, in the format of its suffix (:data:`SUFFIXES`)."""
        suffix = Path(path).suffix.lower()
        if suffix == ".csv":
            return table_csv(self.rows())
        if suffix == ".xml":
            return self.to_junit()
        return self.to_sarif() if suffix == ".sarif" else certificates_text((e.record for e in self.checks), path)

    def to_junit(self) -> str:
        """Return a report in JUnit's XML: a test case for each schedule, in a suite for each graph."""
        unread = sum(each.certificate is None for each in self.checks)
        refused = sum(each.certificate is not None and not each.certificate.accepted for each in self.checks)
        totals = {"tests": str(len(self.checks)), "failures": str(refused), "errors": str(unread)}
        root = ElementTree.Element("testsuites", {"name": "remat validate", **totals})
        graphs: dict[str, list[Audited]] = {}
        for each in self.checks:
            graphs.setdefault(each.record.graph.file, []).append(each)
        for graph, checks in graphs.items():
            kinds = ["error" if c.certificate is None else "" if c.certificate.accepted else "failure" for c in checks]
            counts = {f"{kind}s": str(kinds.count(kind)) for kind in ("failure", "error")}
            suite = ElementTree.SubElement(
                root, "testsuite", {"name": one_line(graph), "tests": str(len(checks)), **counts}
            )
            for each, kind in zip(checks, kinds, strict=True):
                name = one_line(each.record.schedule.file)
                case = ElementTree.SubElement(suite, "testcase", classname=one_line(graph), name=name)
                if kind:
                    fault = ElementTree.SubElement(case, kind, message=one_line(each.fault), type=each.verdict)
                    fault.text = "\n".join(f"{label:<9} {printable(text)}" for label, text in each.context) or None
        ElementTree.indent(root)
        return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"

    def to_sarif(self) -> str:
        """Return a report in SARIF 2.1.0: a result for each violation listed, a notification for each error."""
        rules = list(Rule)
        unread = [
            {"level": "error", "message": {"text": one_line(each.record.error)}}
            for each in self.checks if each.certificate is None
        ]  # fmt: skip
        driver = {
            "name": "remat", "version": __version__, "informationUri": "https://remat.readthedocs.io",
            "rules": [{"id": _rule_id(rule), "name": rule.name, "shortDescription": {"text": str(rule)}}
                      for rule in rules],
        }  # fmt: skip
        run = {
            "tool": {"driver": driver},
            "invocations": [{"executionSuccessful": not unread, "toolExecutionNotifications": unread}],
            "artifacts": [_artifact(each.record.schedule) for each in self.checks],
            "results": [found for k, each in enumerate(self.checks) for found in _results(k, each, rules)],
        }
        return json_text({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule_id(rule: Rule) -> str:
    return str(rule).replace(" ", "-")


def _uri(file: str) -> str:
    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


def _artifact(record: FileRecord) -> dict[str, Any]:
    hashes = {"hashes": {"sha-256": record.sha256}} if record.sha256 else {}
    return {"location": {"uri": _uri(record.file)}, **hashes}


def _results(number: int, each: Audited, rules: Sequence[Rule]) -> Iterator[dict[str, Any]]:
    if each.certificate is None or each.certificate.accepted:
        return
    file, lines = each.record.schedule.file, each.lines
    for violation in each.certificate.violations:
        place: dict[str, Any] = {"artifactLocation": {"uri": _uri(file), "index": number}}
        if violation.step is not None and lines:
            place["region"] = {"startLine": lines[violation.step]}
        names = [(violation.op, "function"), (violation.tensor, "variable")]
        logical = [{"name": name, "kind": kind} for name, kind in names if name]
        location = {"physicalLocation": place, **({"logicalLocations": logical} if logical else {})}
        yield {
            "ruleId": _rule_id(violation.rule), "ruleIndex": rules.index(violation.rule), "level": "error",
            "message": {"text": one_line(violation.message)}, "locations": [location],
        }  # fmt: skip


@dataclass(frozen=True)
class Costs:
    """Profile whose costs replace those of the graphs, and its device."""

    file: Path | None = None
    device: str | None = None


def audit(lines: Iterable[Line], rules: Mapping[str, Any], costs: Costs | None = None) -> Audit:
    """Validate many schedules; a file that cannot be read is reported, and the others are checked.

    Parameters
    ----------
    lines : iterable of Line
        Paths are relative to the current folder.
    rules : mapping
        Keywords of :class:`~remat.problem.Problem` for every line; budget and machine of a line take precedence.
    """
    costs = costs or Costs()
    loaded = lru_cache(maxsize=2)(lambda name: _load(name, costs))
    return Audit(tuple(_audited(line, rules, costs, loaded) for line in lines))


def _load(name: str, costs: Costs) -> tuple[ComputeGraph, FileRecord]:
    graph, format_name = load_with_format(name)
    return load_profiled(graph, costs.file, costs.device), file_record(name, format_name)


def _audited(line: Line, rules: Mapping[str, Any], costs: Costs, load: Any) -> Audited:
    record = CheckRecord(
        graph=FileRecord(file=line.graph), schedule=FileRecord(file=line.schedule),
        costs=None if costs.file is None else file_record(costs.file), device=costs.device,
    )  # fmt: skip
    try:
        graph, graph_file = load(line.graph)
        own = {"budget": line.budget, "machine": line.machine}
        problem = Problem(graph, **{**rules, **{key: value for key, value in own.items() if value is not None}})
        schedule, format_name = read_with_format(line.schedule, graph)
        record = record.model_copy(update={"graph": graph_file, "schedule": file_record(line.schedule, format_name)})
        found = problem.validate(schedule)
        lines = [] if found.accepted else step_lines(line.schedule, format_name, schedule, graph)
        context: list[tuple[str, str]] = []
        if (decisive := found.decisive) is not None:
            if lines and decisive.step is not None:
                context = [("in the file", f"line {lines[decisive.step]} of {line.schedule} (step {decisive.step})")]
            context += explain(graph, schedule, decisive, problem.rules)
    except RematError as error:
        return Audited(record.model_copy(update={"error": str(error)}), error=error)
    record = record.model_copy(update={"certificate": found.as_dict()})
    return Audited(record, found, schedule, context=tuple(context), lines=lines)
