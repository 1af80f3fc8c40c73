"""Store of studies: a database by URL through SQLAlchemy, and a folder of graphs and schedules by content.

Optuna's storage and exca were read first. From Optuna come the heartbeat of running work and its expiry, and a database
of any vendor by URL; its tables of trials and parameters do not fit solves that are known in advance. From exca comes
the name of a result: the digest of what determines it. exca keeps results in files per task, pickled, and has no
claims, so two runners would solve a cell twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from remat.errors import FormatError, RematError
from remat.graphs import ComputeGraph
from remat.graphs.formats.remat_json import graph_from_document
from remat.io.files import made_folder, read_text, write_new
from remat.runtime.interruption import interrupted
from remat.runtime.processes import guard
from remat.schedule import Schedule
from remat.schedule.formats.remat_json import schedule_from_document
from remat.studies.instances import Instance
from remat.studies.plan import Cell, Plan
from remat.studies.solving import Outcome, Task, certified, problem_of

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

#: Version of the tables.
VERSION = 1
#: Default store.
DEFAULT_URL = "sqlite:///study.db"
#: Seconds without a heartbeat after which the cells of a runner go to others.
STALE = 60.0
#: Seconds for which an unreachable database is tried again.
PATIENCE = 300.0
#: Rows of one statement.
ROWS = 1000

_T = TypeVar("_T")


@dataclass(frozen=True)
class Result:
    """Cell of a study in the store.

    Attributes
    ----------
    cell : Cell
    state : str
        ``waiting``, ``running``, ``done``, or ``failed``: the solve or its process failed.
    row : mapping
        As :attr:`remat.studies.solving.Outcome.row`; empty unless finished.
    points : tuple of (seconds, objective or None, bound)
        Incumbents.
    schedule : str
        Digest of the schedule file; empty without one.
    environment : mapping
        Versions and machine.
    """

    cell: Cell
    state: str
    row: Mapping[str, Any] = field(default_factory=dict)
    points: tuple[tuple[float, int | None, int], ...] = ()
    schedule: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Claim(NamedTuple):
    """Cell that a runner has claimed, the number of its attempt, and its position in the study."""

    cell: Cell
    attempt: int
    position: int


class Store:
    """Studies in a database, and the graphs and schedules of their cells in a folder next to it.

    Several processes, also on several machines, may use a store at the same time.

    Parameters
    ----------
    url : str
        As SQLAlchemy takes it: ``sqlite:///study.db``, ``postgresql+psycopg://user@host/base``.
    folder : path, optional
        Folder of files. Default: that of a SQLite file with ``.files`` after its name; for ``sqlite://``, a database in
        memory, a temporary one; otherwise ``study.files`` in the current folder.

    Raises
    ------
    RematError
        If SQLAlchemy or the driver of the database is not installed, or the database cannot be reached.
    """

    def __init__(self, url: str = DEFAULT_URL, folder: str | os.PathLike[str] | None = None) -> None:
        try:
            import sqlalchemy
        except ImportError:
            raise RematError(
                "studies need the package sqlalchemy: pip install 'remat[study]'", "unavailable", "sqlalchemy"
            ) from None
        from remat.studies import tables

        try:
            self.url = sqlalchemy.make_url(url)
            self._engine = tables.engine(self.url)
        except sqlalchemy.exc.ArgumentError:
            raise RematError(f"{url!r} is not the URL of a database (sqlite:///study.db)", "store", url) from None
        except (sqlalchemy.exc.NoSuchModuleError, ImportError) as error:
            shown = self.url.render_as_string()
            raise RematError(f"{shown}: the driver is missing: {error}", "unavailable", shown) from None
        self._sql, self._tables = sqlalchemy, tables
        faults = sqlalchemy.exc
        self._transient = (
            faults.OperationalError, faults.IntegrityError, faults.InternalError, faults.InterfaceError,
        )  # fmt: skip
        is_file = self.url.get_backend_name() == "sqlite"
        self._temporary = contextlib.ExitStack()
        self.is_shared = not is_file or self.url.database not in (None, "", ":memory:")
        """False for a database in memory, which has a single runner."""
        if folder is None and not self.is_shared:
            folder = self._temporary.enter_context(guard.temporary_folder())
        self.folder = Path(folder or f"{self.url.database if is_file else 'study'}.files")
        self._last = "", ""
        self._graph: tuple[str, ComputeGraph] | None = None
        self._attempt(self._open, patience=0.0)

    @classmethod
    def existing(cls, url: str = DEFAULT_URL, folder: str | os.PathLike[str] | None = None) -> Store:
        """Return a store; a SQLite file that does not exist is an error."""
        path = url.removeprefix("sqlite:///")
        if path != url and not Path(path.partition("?")[0]).exists():
            raise RematError(f"{path}: there is no store (--store names another one)", "store", path)
        return cls(url, folder)

    def close(self) -> None:
        """Close all connections, and remove the folder of a database in memory."""
        self._engine.dispose()
        self._temporary.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- studies -------------------------------------------------------------------------------------------------------

    def add(self, plan: Plan) -> int:
        """Add the cells of a plan, keep results of those already known, and return the number of new ones.

        Cells of an earlier plan of that name that this one lacks leave the study; their results stay in the store.
        """
        for digest, instance in plan.instances.items():
            self._write("graphs", digest, instance.text)
        t = self._tables
        rows = [self._new(cell, plan.given.get(cell.digest)) for cell in plan.cells]
        members = [_member(plan.name, number, cell) for number, cell in enumerate(plan.cells)]

        def work(connection: Connection) -> int:
            known = {row.digest for row in connection.execute(self._sql.select(t.cells.c.digest))}
            new = [row for row in rows if row["digest"] not in known]
            self._insert(connection, t.cells, new)
            connection.execute(t.members.delete().where(t.members.c.study == plan.name))
            self._insert(connection, t.members, members)
            return len(new)

        return self._attempt(work)

    def clear(self, study: str) -> None:
        """Remove all cells from a study; their results stay in the store."""
        t = self._tables
        self._attempt(lambda connection: connection.execute(t.members.delete().where(t.members.c.study == study)))

    def enter(
        self, study: str, instance: Instance, cell: Cell, owner: str, *, stale: float = STALE, take: bool = False
    ) -> Result | bool:  # fmt: skip
        """Add a cell to a study; return its result, or True if it is claimed for `owner`.

        Return False if another runner has it, with a heartbeat in the last `stale` seconds; `take` claims it even then.
        """
        self._write("graphs", instance.digest, instance.text)
        t, now = self._tables, self._tables.now(self._engine)
        mine = t.cells.c.digest == cell.digest
        free = self._sql.or_(t.cells.c.state != "running", t.cells.c.owner == owner, t.cells.c.heartbeat < now - stale)

        def work(connection: Connection) -> str | bool:
            state = connection.execute(self._sql.select(t.cells.c.state).where(mine)).scalar()
            if state is None:
                self._insert(connection, t.cells, [self._new(cell, None)])
            members = connection.execute(self._sql.select(t.members).where(t.members.c.study == study)).all()
            if cell.digest not in {row.digest for row in members}:
                position = max((row.position for row in members), default=-1) + 1
                self._insert(connection, t.members, [_member(study, position, cell)])
            if state == "done":
                return "done"
            change = t.cells.update().where(mine, t.cells.c.state != "done", *([] if take else [free]))
            return bool(connection.execute(change.values(state="running", owner=owner, heartbeat=now)).rowcount)

        entered = self._attempt(work)
        return self.results(study, only=cell)[0] if isinstance(entered, str) else entered

    def keep(self, schedule: str) -> str:
        """Write a schedule file, and return its digest."""
        digest = _digest(schedule)
        self._write("schedules", digest, schedule)
        return digest

    def studies(self) -> list[str]:
        """Return the names of all studies."""
        query = self._sql.select(self._tables.members.c.study).distinct()
        return self._attempt(lambda connection: sorted(row.study for row in connection.execute(query)))

    def remove(self, study: str) -> int:
        """Remove a study, with the results of cells that no other study has; return their number."""
        t = self._tables
        others = self._sql.select(t.members.c.digest)

        def work(connection: Connection) -> int:
            connection.execute(t.members.delete().where(t.members.c.study == study))
            connection.execute(t.points.delete().where(t.points.c.digest.not_in(others)))
            return int(connection.execute(t.cells.delete().where(t.cells.c.digest.not_in(others))).rowcount)

        self._known(study)
        return self._attempt(work)

    def retry(self, study: str) -> int:
        """Set failed cells of a study to wait again, and return their number."""
        t = self._tables
        mine = self._sql.select(t.members.c.digest).where(t.members.c.study == study)
        change = t.cells.update().where(t.cells.c.state == "failed", t.cells.c.digest.in_(mine))
        return self._attempt(lambda c: int(c.execute(change.values(state="waiting", attempts=0)).rowcount))

    def counts(self, study: str) -> dict[str, int]:
        """Return the number of cells by state."""
        t = self._tables
        query = (
            self._sql.select(t.cells.c.state, self._sql.func.count().label("number"))
            .join(t.members, t.members.c.digest == t.cells.c.digest)
            .where(t.members.c.study == study).group_by(t.cells.c.state)
        )  # fmt: skip
        found = self._attempt(lambda connection: {row.state: row.number for row in connection.execute(query)})
        if not found:
            self._known(study)
        return {state: found.get(state, 0) for state in ("waiting", "running", "done", "failed")}

    def results(self, study: str, *, certify: bool = True, only: Cell | None = None) -> list[Result]:
        """Return the cells of a study in order.

        `certify`: validate every schedule again. `only`: a cell to return alone.

        Raises
        ------
        RematError
            If there is no such study; or naming the cell, if its schedule is missing, not valid or contradicts its row.
        """
        t = self._tables
        joined = t.members.join(t.cells, t.members.c.digest == t.cells.c.digest)
        wanted = t.members.c.study == study
        if only is not None:
            wanted &= t.members.c.digest == only.digest
        query = (
            self._sql.select(*t.members.c, *(c for c in t.cells.c if c.name != "digest"), t.environments.c.content)
            .select_from(joined.outerjoin(t.environments, t.environments.c.digest == t.cells.c.environment))
            .where(wanted).order_by(t.members.c.position)
        )  # fmt: skip
        mine = self._sql.select(t.members.c.digest).where(wanted)
        pointed = self._sql.select(t.points).where(t.points.c.digest.in_(mine)).order_by(t.points.c.number)

        def work(connection: Connection) -> tuple[Sequence[Any], Sequence[Any]]:
            return connection.execute(query).all(), connection.execute(pointed).all()

        rows, points = self._attempt(work)
        if not rows:
            self._known(study)
        lists: dict[str, list[tuple[float, int | None, int]]] = {}
        for point in points:
            lists.setdefault(point.digest, []).append((point.seconds, _whole(point.objective), int(point.bound)))
        found = []
        for row in rows:
            cell = Cell(
                row.digest, row.instance, row.problem, row.method, row.seed, row.graph, json.loads(row.run)
            )  # fmt: skip
            result = Result(
                cell, row.state, json.loads(row.row or "{}"), tuple(lists.get(row.digest, ())), row.schedule or "",
                json.loads(row.content or "{}"),
            )  # fmt: skip
            found.append(result)
        if certify:
            self._certify(found)
        return found

    def graph(self, cell: Cell) -> ComputeGraph:
        """Return the graph of a cell; the last one is kept."""
        if self._graph is None or self._graph[0] != cell.graph:
            self._graph = cell.graph, graph_from_document(json.loads(self.graph_text(cell.graph)))
        return self._graph[1]

    def schedule(self, result: Result) -> Schedule:
        """Return the schedule of a result that has one."""
        return schedule_from_document(json.loads(self.schedule_text(result.schedule)))

    def schedule_text(self, digest: str) -> str:
        """Return a schedule file by its digest."""
        return self._read("schedules", digest)

    def graph_text(self, digest: str) -> str:
        """Return a graph file by its digest."""
        return self._read("graphs", digest)

    # -- runners -------------------------------------------------------------------------------------------------------

    def claim(
        self, study: str, owner: str, *, stale: float = STALE, limit: int = 1, after: int = -1
    ) -> list[Claim]:  # fmt: skip
        """Claim up to `limit` cells for a runner, of those behind position `after` in the study.

        A cell is free if it waits, or if its runner has sent no heartbeat for `stale` seconds. Each claim is one
        conditional update, so that of several runners only one gets a cell.
        """
        t, now = self._tables, self._tables.now(self._engine)
        free = self._sql.or_(
            t.cells.c.state == "waiting",
            self._sql.and_(t.cells.c.state == "running", t.cells.c.heartbeat < now - stale),
        )
        query = (
            self._sql.select(*t.members.c, t.cells.c.graph, t.cells.c.run, t.cells.c.attempts)
            .join(t.cells, t.members.c.digest == t.cells.c.digest)
            .where(t.members.c.study == study, t.members.c.position > self._sql.bindparam("after"), free)
            .order_by(t.members.c.position).limit(limit)
        )  # fmt: skip

        def work(connection: Connection) -> list[Claim]:
            claimed: list[Claim] = []
            place = after
            while len(claimed) < limit and (found := connection.execute(query, {"after": place}).all()):
                for row in found:  # another runner may have taken it meanwhile
                    place = row.position
                    change = t.cells.update().where(t.cells.c.digest == row.digest, free).values(
                        state="running", owner=owner, heartbeat=now, attempts=t.cells.c.attempts + 1
                    )  # fmt: skip
                    if len(claimed) < limit and connection.execute(change).rowcount:
                        cell = Cell(
                            row.digest, row.instance, row.problem, row.method, row.seed, row.graph, json.loads(row.run)
                        )
                        claimed.append(Claim(cell, row.attempts + 1, place))
            return claimed

        return self._attempt(work)

    def task(self, cell: Cell) -> Task:
        """Return a cell as executors take it."""
        if cell.graph != self._last[0]:  # cells of a graph follow each other
            self._last = cell.graph, self.graph_text(cell.graph)
        start = cell.run.get("start")
        return Task(cell.digest, self._last[1], cell.run, "" if start is None else self.schedule_text(start))

    def beat(self, owner: str, digests: Sequence[str]) -> None:
        """Send the heartbeat of a runner for cells that it has claimed; an unreachable database is not tried again."""
        t = self._tables
        now = t.now(self._engine)

        def work(connection: Connection) -> None:
            for start in range(0, len(digests), ROWS):
                mine = t.cells.c.digest.in_(digests[start : start + ROWS])
                change = t.cells.update().where(mine, t.cells.c.owner == owner, t.cells.c.state == "running")
                connection.execute(change.values(heartbeat=now))

        if digests:
            self._attempt(work, patience=0.0)

    def finish(self, cell: Cell, owner: str, outcome: Outcome) -> bool:
        """Store the outcome of a claimed cell; return False if another runner has the cell by now."""
        t = self._tables
        environment = json.dumps(outcome.environment)
        place = _digest(environment)
        points = [
            {"digest": cell.digest, "number": number, "seconds": seconds, "objective": objective, "bound": bound}
            for number, (seconds, objective, bound) in enumerate(outcome.points)
        ]
        change = t.cells.update().where(
            t.cells.c.digest == cell.digest, t.cells.c.owner == owner, t.cells.c.state == "running"
        ).values(**self._result(outcome), environment=place, finished=t.now(self._engine))  # fmt: skip

        def work(connection: Connection) -> bool:
            if not connection.execute(change).rowcount:
                return False
            connection.execute(t.points.delete().where(t.points.c.digest == cell.digest))
            self._insert(connection, t.points, points)
            if not connection.execute(
                self._sql.select(t.environments.c.digest).where(t.environments.c.digest == place)
            ).first():
                with connection.begin_nested():
                    connection.execute(t.environments.insert().values(digest=place, content=environment))
            return True

        return self._attempt(work)

    def release(self, cell: Cell, owner: str) -> None:
        """Give a claimed cell back, for any runner."""
        t = self._tables
        change = t.cells.update().where(
            t.cells.c.digest == cell.digest, t.cells.c.owner == owner, t.cells.c.state == "running"
        )
        self._attempt(lambda connection: connection.execute(change.values(state="waiting", owner="", heartbeat=0.0)))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _open(self, connection: Connection) -> None:
        """Create the tables, or check their version."""
        t = self._tables
        t.metadata.create_all(connection)
        found = connection.execute(self._sql.select(t.versions.c.version)).scalars().all()
        if not found:
            connection.execute(t.versions.insert().values(version=VERSION))
        elif found[0] != VERSION:
            raise RematError(
                f"{self.url.render_as_string()}: the store has version {found[0]}, this program writes {VERSION}",
                "store", self.url.render_as_string(),
            )  # fmt: skip

    def _attempt(self, work: Callable[[Connection], _T], *, patience: float = PATIENCE) -> _T:
        """Return the result of a transaction; retry while the database is unreachable or busy."""
        until, pause = time.monotonic() + patience, 0.05
        while True:
            try:
                with self._engine.begin() as connection:
                    return work(connection)
            except self._transient as error:
                if time.monotonic() > until or interrupted():
                    where = self.url.render_as_string()
                    raise RematError(f"{where}: {_first_line(error)}", "store", where) from None
                time.sleep(pause)
                pause = min(2.0, 2 * pause)
            except self._sql.exc.SQLAlchemyError as error:
                where = self.url.render_as_string()
                raise RematError(f"{where}: {_first_line(error)}", "store", where) from None

    def _insert(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        for start in range(0, len(rows), ROWS):
            connection.execute(table.insert(), rows[start : start + ROWS])

    def _new(self, cell: Cell, outcome: Outcome | None) -> dict[str, Any]:
        """Return the row of a cell that the store does not have yet."""
        return {
            "digest": cell.digest, "graph": cell.graph, "run": json.dumps(cell.run, sort_keys=True), "attempts": 0,
            "owner": "", "heartbeat": 0.0, **self._result(outcome),
        }  # fmt: skip

    def _result(self, outcome: Outcome | None) -> dict[str, Any]:
        """Write the schedule of an outcome, and return state, row and schedule of its cell."""
        if outcome is None:
            return {"state": "waiting", "row": None, "schedule": None}
        place = None
        if outcome.schedule is not None:
            place = self.keep(outcome.schedule)
        state = "failed" if outcome.row["status"] == "failed" else "done"
        return {"state": state, "row": json.dumps(outcome.row, allow_nan=False), "schedule": place}

    def _known(self, study: str) -> None:
        names = self.studies()
        if study not in names:
            known = ", ".join(names) or "none"
            raise RematError(f"there is no study {study!r} in the store; there are {known}", "no-study", study)

    def _certify(self, results: Sequence[Result]) -> None:
        for result in results:
            if not result.schedule:
                continue
            cell = result.cell
            text = self.schedule_text(result.schedule)
            found = certified(problem_of(self.graph(cell), cell.run), text, cell.title)
            if (found.cost, found.peak) != (result.row["cost"], result.row["peak"]):
                raise RematError(
                    f"{cell.title}: its schedule costs {found.cost:,} and needs {found.peak:,} bytes, unlike its row",
                    "contradiction", cell.title,
                )  # fmt: skip

    def _path(self, kind: str, digest: str) -> Path:
        return self.folder / kind / digest[:2] / f"{digest}.json"

    def _write(self, kind: str, digest: str, text: str) -> None:
        path = self._path(kind, digest)
        if not path.exists():
            made_folder(path.parent)
            write_new(path, text)

    def _read(self, kind: str, digest: str) -> str:
        path = self._path(kind, digest)
        text = read_text(path)
        if _digest(text) != digest:
            raise FormatError(f"{path}: has changed since it was written", "changed", str(path))
        return text


def _member(study: str, position: int, cell: Cell) -> dict[str, Any]:
    return {
        "study": study, "position": position, "digest": cell.digest, "instance": cell.instance,
        "problem": cell.problem, "method": cell.method, "seed": cell.seed,
    }  # fmt: skip


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _first_line(error: Exception) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())[:200]
