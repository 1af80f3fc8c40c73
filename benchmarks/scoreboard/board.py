"""Board: the folder of records. Offers are certified, and replace only strictly worse records."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.files import read_text, write_atomic
from remat.problem.scope import Scope, covers
from remat.schedule import OrderRule, Schedule, validate
from scoreboard.records import Found, Record, certify, from_text, to_ops, to_text
from scoreboard.suite import BUDGETS, INSTANCES, ORDERS, Cell, Instance

#: The records of the repository.
BEST = Path(__file__).resolve().parent / "best"
#: Largest record that is read, in bytes.
MAX_BYTES = 4 * 1024 * 1024


class Board:
    """Records in a folder, ``INSTANCE/ORDER-PERCENT.json``; each offer reads them again."""

    def __init__(self, folder: Path = BEST) -> None:
        self.folder = folder

    def path(self, cell: Cell) -> Path:
        """Return the file of a cell."""
        return self.folder / cell.instance / f"{cell.order}-{cell.percent}.json"

    def read(self, cell: Cell) -> Record | None:
        """Return the record of a cell; None if missing.

        Raises
        ------
        FormatError
            If the file is damaged or belongs to another cell; names the file.
        """
        path = self.path(cell)
        if not path.exists():
            return None
        record = from_text(read_text(path, MAX_BYTES), str(path))
        if record.cell != cell:
            raise FormatError(f"{path}: the record speaks of {record.cell.name}")
        return record

    def write(self, record: Record) -> None:
        """Write a record atomically."""
        path = self.path(record.cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, to_text(record))

    def records(self) -> list[Record]:
        """Return all records in the order of the suite.

        Raises
        ------
        FormatError
            For a damaged record, or a file of no cell.
        """
        cells = [Cell(name, order, percent) for name in INSTANCES for order in ORDERS for percent in BUDGETS]
        unknown = {path for path in self.folder.rglob("*") if path.is_file()} - {self.path(cell) for cell in cells}
        if unknown:
            raise FormatError(f"{min(unknown)}: belongs to no instance, order and budget of the scoreboard")
        return [record for cell in cells if (record := self.read(cell)) is not None]


class InstanceRecords:
    """Records of one instance: a schedule or bound for one cell may improve others."""

    def __init__(self, board: Board, instance: Instance) -> None:
        self.board, self.instance = board, instance

    @cached_property
    def graph(self) -> ComputeGraph:
        """Graph of the instance."""
        return self.instance.make()

    def record(self, order: str, percent: int) -> Record:
        """Return the certified record of a cell.

        Raises
        ------
        FormatError
            If the file is damaged or wrong.
        """
        cell = Cell(self.instance.name, order, percent)
        record = self.board.read(cell) or Record.empty(cell, self.graph)
        certify(record, self.graph, str(self.board.path(cell)))
        return record

    def records(self) -> Iterator[Record]:
        """Yield the certified record of every cell."""
        return (self.record(order, percent) for order in ORDERS for percent in BUDGETS)

    def offer(
        self, schedule: Schedule, method: str, seconds: float | None = None, limit: float | None = None,
        seed: int | None = None,
    ) -> list[Cell]:  # fmt: skip
        """Store a schedule in all cells where it costs less, or as much with a lower peak; return the cells."""
        improved: list[Cell] = []
        lean = schedule.without_frees()
        for record in self.records():
            certificate = validate(self.graph, lean, record.cell.problem(self.graph).rules)
            known = record.found
            if certificate.accepted and (
                known is None or (certificate.cost, certificate.peak) < (known.cost, known.peak)
            ):
                found = Found(
                    cost=certificate.cost, peak=certificate.peak, method=method, limit=limit, seed=seed,
                    seconds=None if seconds is None else round(seconds, 1), ops=to_ops(self.graph, lean),
                )  # fmt: skip
                self._replace(record, improved, found=found)
        return improved

    def offer_bound(self, bound: int | None, kind: str, scope: Scope, budget: int) -> list[Cell]:
        """Store a bound on cost (None: infeasible) in all cells up to a budget in bytes that it improves; return them.

        Raises
        ------
        FormatError
            If it contradicts a known schedule.
        """
        raised: list[Cell] = []
        for record in self.records():
            known, found, name = record.bound, record.found, record.cell.name
            if record.budget > budget or not covers(scope, record.cell.problem(self.graph)):
                continue
            wider = bound == known and record.bound_order == "fixed" and scope.order is OrderRule.FREE
            higher = known is not None and (bound is None or bound > known)
            if higher and found is not None and (bound is None or bound > found.cost):
                claim = "there is no schedule" if bound is None else f"nothing costs less than {bound:,}"
                raise FormatError(f"{name}: {kind} says that {claim}, but one costs {found.cost:,}")
            if wider or higher:
                self._replace(record, raised, bound=bound, bound_kind=kind, bound_order=str(scope.order))
        return raised

    def _replace(self, record: Record, changed: list[Cell], **values: Any) -> None:
        """Write a record with changed values, and append its cell to `changed`."""
        record = record.model_copy(update=values)
        certify(record, self.graph, record.cell.name)
        self.board.write(record)
        changed.append(record.cell)
