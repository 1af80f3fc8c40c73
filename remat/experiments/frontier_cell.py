"""A cell of a frontier, and the folder that stores cells between processes."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from remat.errors import FormatError, RematError, ScheduleError
from remat.experiments.contestant import Contestant
from remat.experiments.runs import Run, question
from remat.io.documents import Document, ForeignDocument, check_header, decoded
from remat.io.files import made_folder, read_json, write_atomic, write_new
from remat.problem import Objective, Problem
from remat.runtime.text import clipped
from remat.schedule import Schedule
from remat.schedule.formats.remat_json import schedule_from_document, schedule_to_text
from remat.schedule.validate import validate

NAME, VERSION = "remat-frontier", 1


class RowDocument(ForeignDocument):
    """Keys of a cell's row that are read from its file."""

    budget_bytes: int
    status: str
    bound: int
    cost: int | None
    peak: int | None
    stop: str | None
    source: str | None


class CellDocument(Document):
    """File of a cell."""

    format: Literal["remat-frontier"]
    version: Literal[1]
    method: dict[str, Any]
    row: dict[str, Any]
    found_at: int | None
    own: bool
    complete: bool
    schedule: dict[str, Any] | None


@dataclass(frozen=True)
class Cell:
    """Result of one method at one budget.

    Attributes
    ----------
    method : str
        Label of the method.
    budget : int
        Bytes.
    row : mapping
        As :meth:`remat.experiments.runs.Run.row`.
    schedule : Schedule or None
    found_at : int or None
        Budget in bytes at which the schedule was found: this one or a smaller one. None without a schedule.
    own : bool
        True if the schedule is the formulation's own, so that its claims cover it.
    complete : bool
        True if bound and status cover every schedule within the rules.
    objective : Objective
        Objective of the problem.
    """

    method: str
    budget: int
    row: Mapping[str, Any] = field(repr=False)
    schedule: Schedule | None = field(default=None, repr=False)
    found_at: int | None = None
    own: bool = False
    complete: bool = False
    objective: Objective = Objective.DEFAULT

    @property
    def status(self) -> str:
        """``optimal``, ``feasible``, ``infeasible``, ``unknown`` or ``failed``."""
        return str(self.row["status"])

    @property
    def cost(self) -> int | None:
        """Certified cost of the schedule."""
        cost: int | None = self.row["cost"]
        return cost

    @property
    def value(self) -> int | None:
        """Certified objective of the schedule."""
        value: int | None = self.row[self.objective.key]
        return value

    @property
    def bound(self) -> int | None:
        """Value that no schedule in the scope can beat; None if the method failed."""
        bound: int | None = self.row["bound"]
        return bound

    @property
    def source(self) -> str:
        """Source of the schedule; empty without one."""
        return str(self.row["source"] or "")

    @property
    def interrupted(self) -> bool:
        """True if Ctrl-C ended it early."""
        return bool(self.row["stop"] == "interrupted")


class Folder:
    """Folder with one canonical file per finished cell, and one that identifies the task."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: str | os.PathLike[str], problem: Problem, limits: Mapping[str, Any]) -> Folder:
        """Open the folder, and create it if necessary.

        Raise FormatError with the path, if it cannot be written or belongs to another graph, other rules or other
        limits.
        """
        folder = cls(made_folder(path))
        asked = {"format": NAME, "version": VERSION, **question(problem, limits)}
        asked = json.loads(json.dumps(asked))
        file = folder.path / "question.json"
        if not file.exists():
            # Ignore names with a leading dot: temporary files of other writers.
            strange = any(not other.name.startswith(".") for other in folder.path.iterdir())
            if strange and not file.exists():  # no other process has started it in the meantime
                raise FormatError(
                    f"{path}: is neither empty nor the state of a frontier (there is no question.json)",
                    "no-state-folder",
                )
            write_new(file, _text(asked))
        difference = _difference(read_json(file), asked)
        if difference:
            raise FormatError(
                f"{path}: answers another question ({difference}); name another folder or remove this one",
                "other-question",
            )
        return folder

    def read(self, method: Contestant, problem: Problem) -> Cell | None:
        """Return the cell, its schedule validated; None if it is not finished.

        Raise FormatError with the path, if it is malformed, its schedule contradicts its row, or the method's options
        have changed.
        """
        assert problem.budget_bytes is not None
        file = self._file(method, problem.budget_bytes)
        if not file.exists():
            return None
        document = read_json(file)
        try:
            cell = _cell(document, method, problem)
        except (ScheduleError, FormatError, KeyError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, RematError) else "it is not what this program writes"
            raise FormatError(f"{file}: {why}; remove the file to compute it again", "unusable-cell") from None
        return cell

    def write(self, method: Contestant, cell: Cell) -> None:
        """Write a finished cell atomically.

        Raise FormatError with the path, if it cannot be written.
        """
        schedule = None if cell.schedule is None else json.loads(schedule_to_text(cell.schedule))
        content = {
            "format": NAME, "version": VERSION, "method": method.described(), "row": dict(cell.row),
            "found_at": cell.found_at, "own": cell.own, "complete": cell.complete, "schedule": schedule,
        }  # fmt: skip
        write_atomic(self._file(method, cell.budget), _text(content))

    def _file(self, method: Contestant, budget: int) -> Path:
        """Return a readable path; the digest distinguishes labels that are equal without their punctuation."""
        slug = re.sub(r"[^A-Za-z0-9]+", "-", method.label).strip("-")[:60]
        digest = hashlib.sha256(method.label.encode()).hexdigest()[:8]
        return self.path / f"{slug}-{digest}-{budget}.json"


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, indent=1, allow_nan=False) + "\n"


def _difference(known: Any, asked: Mapping[str, Any]) -> str:
    """Return the first difference between two tasks; empty if they are equal."""
    if not isinstance(known, dict) or known.get("format") != NAME or known.get("version") != VERSION:
        return f"it is not the state of a {NAME}, version {VERSION}"
    for section, values in asked.items():
        theirs = known.get(section)
        for key, value in values.items() if isinstance(values, dict) else ():
            before = theirs.get(key) if isinstance(theirs, dict) else None
            if before != value:
                was, now = (clipped(json.dumps(each), 40) for each in (before, value))
                return f"{section} {key.replace('_', ' ')} was {was}, now it is {now}"
    return ""


def _cell(document: Any, method: Contestant, problem: Problem) -> Cell:
    """Return the cell of a file's content, its schedule certified again."""
    try:
        check_header(document, NAME, VERSION)
        found = decoded(CellDocument, document)
    except FormatError as error:
        raise FormatError(f"it is not what this program writes: {error}") from None
    if found.method != method.described():
        raise FormatError(f"method {method.label} had other options ({clipped(json.dumps(found.method), 40)})")
    schedule = None if found.schedule is None else schedule_from_document(found.schedule)
    row = {"preliminary_seconds": None, **found.row}  # older files lack it
    row = {key: row[key] for key in Run(method, problem, None).row()} | row  # files are sorted
    cell = Cell(
        method.label, row["budget_bytes"], row, schedule, found.found_at, found.own, found.complete, problem.objective
    )  # fmt: skip
    check_cell(cell, method, problem)
    return cell


def check_cell(cell: Cell, method: Contestant, problem: Problem) -> None:
    """Refuse a cell of another task, or one whose schedule or proof contradicts its row.

    Raises
    ------
    FormatError, TypeError or ValueError
    """
    if set(cell.row) != set(Run(method, problem, None).row()):
        raise ValueError("its row has other columns")
    if cell.status != "failed":
        decoded(RowDocument, cell.row, "row")
    if cell.schedule is not None:
        certificate = validate(problem.graph, cell.schedule, problem.rules)
        if not certificate.accepted:
            raise FormatError(f"its schedule is not valid: {certificate.first}")
        if (certificate.cost, certificate.peak) != (cell.cost, cell.row["peak"]):
            raise FormatError(f"its schedule costs {certificate.cost:,}, unlike its row")
    elif cell.cost is not None:
        raise FormatError("its schedule is missing")
    proved = cell.value is not None and cell.value == cell.bound
    if cell.budget != problem.budget_bytes or (cell.status == "optimal") != proved:
        raise ValueError("its budget differs, or its status contradicts its bound")
