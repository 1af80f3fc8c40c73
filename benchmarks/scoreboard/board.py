"""The board: the folder of records. What is offered is certified anew, and replaces only what is strictly worse."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.files import read_text, write_atomic
from remat.schedule import OrderRule, Schedule, validate
from remat.scope import Scope, covers
from scoreboard.records import Found, Record, better, certify, changed, from_text, to_ops, to_text, with_bound
from scoreboard.suite import BUDGETS, INSTANCES, ORDERS, Cell, Instance

#: The records of the repository.
BEST = Path(__file__).resolve().parent / "best"
#: Largest record that is read, in bytes.
MAX_BYTES = 4 * 1024 * 1024


class Board:
    """Records in a folder, ``INSTANCE/ORDER-PERCENT.json``; read anew whenever something is offered."""

    def __init__(self, folder: Path = BEST) -> None:
        self.folder = folder

    def path(self, cell: Cell) -> Path:
        """The file of a cell."""
        return self.folder / cell.instance / f"{cell.order}-{cell.percent}.json"

    def read(self, cell: Cell) -> Record | None:
        """The record of a cell, None if there is none yet.

        Raises
        ------
        FormatError
            Naming the file, if it is damaged or speaks of another cell.
        """
        path = self.path(cell)
        if not path.exists():
            return None
        record = from_text(read_text(path, MAX_BYTES), str(path))
        if record.cell != cell:
            raise FormatError(f"{path}: the record speaks of {record.cell.name}")
        return record

    def write(self, record: Record) -> None:
        """Write a record, whole or not at all."""
        path = self.path(record.cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, to_text(record))

    def records(self) -> list[Record]:
        """All records there are, in the order of the suite.

        Raises
        ------
        FormatError
            For a damaged record, or a file that belongs to no cell.
        """
        cells = [Cell(name, order, percent) for name in INSTANCES for order in ORDERS for percent in BUDGETS]
        expected = {self.path(cell) for cell in cells}
        for path in sorted(self.folder.rglob("*")) if self.folder.is_dir() else ():
            if path.is_file() and path not in expected:
                raise FormatError(f"{path}: belongs to no instance, order and budget of the scoreboard")
        return [record for cell in cells if (record := self.read(cell)) is not None]


@dataclass(frozen=True)
class Origin:
    """Where a schedule comes from; see :class:`scoreboard.records.Found`."""

    method: str
    seconds: float | None = None
    limit: float | None = None
    seed: int | None = None


class Shelf:
    """The records of one instance: a schedule or bound that is found for one of them may serve others as well."""

    def __init__(self, board: Board, instance: Instance, graph: ComputeGraph | None = None) -> None:
        self.board, self.instance = board, instance
        if graph is not None:
            self.graph = graph

    @cached_property
    def graph(self) -> ComputeGraph:
        """The graph of the instance, made once."""
        return self.instance.make()

    def record(self, order: str, percent: int) -> Record:
        """What is known of a cell, certified.

        Raises
        ------
        FormatError
            If the file is damaged, or says what is not so.
        """
        cell = Cell(self.instance.name, order, percent)
        record = self.board.read(cell) or Record.empty(cell, self.graph)
        certify(record, self.graph, str(self.board.path(cell)))
        return record

    def offer(self, schedule: Schedule, origin: Origin) -> list[Cell]:
        """Put a schedule wherever it is strictly better than what is known; the cells where it is."""
        improved = []
        free = validate(self.graph, schedule)
        for order, percent in ((order, percent) for order in ORDERS for percent in BUDGETS):
            record = self.record(order, percent)
            if record.found is not None and record.found.cost < free.cost:
                continue
            lean = schedule.without_frees()
            certificate = validate(self.graph, lean, record.cell.problem(self.graph).rules)
            if not certificate.accepted:
                continue
            found = Found(
                cost=certificate.cost, peak=certificate.peak, method=origin.method, seconds=_rounded(origin.seconds),
                limit=origin.limit, seed=origin.seed, ops=to_ops(self.graph, lean),
            )  # fmt: skip
            if better(record, found):
                record = changed(record, found=found)
                certify(record, self.graph, record.cell.name)
                self.board.write(record)
                improved.append(record.cell)
        return improved

    def offer_bound(self, bound: int | None, kind: str, scope: Scope, percent: int) -> list[Cell]:
        """Put a bound on cost at a budget (None: no schedule exists) wherever it says strictly more; the cells."""
        raised = []
        for order, other in ((order, other) for order in ORDERS for other in BUDGETS if other <= percent):
            record = self.record(order, other)
            if not covers(scope, record.cell.problem(self.graph)):
                continue
            following = with_bound(record, bound, kind, OrderRule(scope.order))
            if following is not record:
                self.board.write(following)
                raised.append(record.cell)
        return raised

    def offer_peak_bound(self, peak: int, kind: str, scope: Scope) -> list[Cell]:
        """Take note that no schedule in `scope` has a lower peak: budgets below it have none; the cells."""
        raised = []
        for order, percent in ((order, percent) for order in ORDERS for percent in BUDGETS):
            record = self.record(order, percent)
            if record.budget < peak and covers(scope, record.cell.problem(self.graph)):
                following = with_bound(record, None, kind, OrderRule(scope.order))
                if following is not record:
                    self.board.write(following)
                    raised.append(record.cell)
        return raised


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
