"""Tables of a store, and the engine of its database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    create_engine,
    event,
    literal_column,
)
from sqlalchemy.engine import URL

metadata = MetaData()
versions = Table("remat_version", metadata, Column("version", Integer, primary_key=True))
#: One row per solve, known by the digest of all that determines it.
cells = Table(
    "remat_cells", metadata,
    Column("digest", String(64), primary_key=True),
    Column("graph", String(64), nullable=False),
    Column("run", Text, nullable=False),
    Column("state", String(8), nullable=False),
    Column("owner", String(200), nullable=False),
    Column("heartbeat", Float, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("finished", Float),
    Column("row", Text),
    Column("schedule", String(64)),
    Column("environment", String(64)),
    Index("remat_cells_by_state", "state"),
)  # fmt: skip
#: Cells of each study, with their labels.
members = Table(
    "remat_members", metadata,
    Column("study", String(200), primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", String(64), nullable=False, index=True),
    Column("instance", Text, nullable=False),
    Column("problem", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
)  # fmt: skip
#: Incumbents over time. Numbers are below 2**62, and decimal where 64 bits do not exist.
points = Table(
    "remat_points", metadata,
    Column("digest", String(64), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("seconds", Float, nullable=False),
    Column("objective", Numeric(30, 0, asdecimal=False).with_variant(BigInteger, "sqlite", "postgresql")),
    Column("bound", Numeric(30, 0, asdecimal=False).with_variant(BigInteger, "sqlite", "postgresql"), nullable=False),
)  # fmt: skip
#: Versions and machines, by the digest of their content.
environments = Table(
    "remat_environments", metadata, Column("digest", String(64), primary_key=True),
    Column("content", Text, nullable=False),
)  # fmt: skip


#: Options of libpq, so that a server that vanishes is an error after half a minute; otherwise a query waits for hours.
LIBPQ = {
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}  # fmt: skip


def engine(url: URL) -> Engine:
    """Return the engine of a database."""
    if url.get_backend_name() != "sqlite":
        is_libpq = url.get_driver_name() in ("psycopg", "psycopg2")
        given = {key: value for key, value in LIBPQ.items() if is_libpq and key not in url.query}
        return create_engine(url, pool_pre_ping=True, connect_args=given)
    made = create_engine(url, connect_args={"timeout": 60.0})

    @event.listens_for(made, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver would otherwise begin transactions late
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    @event.listens_for(made, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # a reader that later writes could otherwise wait forever

    return made


def now(made: Engine) -> ColumnElement[float]:
    """Return the database's own time in seconds, so that clocks of runners do not matter."""
    text = {
        "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
        "postgresql": "extract(epoch from clock_timestamp())::double precision",
    }.get(made.dialect.name, "unix_timestamp(now(6))")
    return literal_column(f"({text})", Float)
