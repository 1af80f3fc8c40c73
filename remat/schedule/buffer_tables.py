"""Tables of buffers and addresses, in the CSV form of MiniMalloc."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from remat.errors import FormatError, ScheduleError
from remat.graphs.graph import MAX_NAME_LENGTH
from remat.io.files import decode_text, read_bytes, table_rows
from remat.runtime.text import csv_text, short
from remat.schedule.addresses import ONE_MEMORY, Addresses, Memory
from remat.schedule.buffers import MAX_BYTES, Buffers

#: Required and optional columns of a table.
COLUMNS, MORE_COLUMNS = ("id", "lower", "upper", "size"), ("offset", "memory")
_WHOLE = re.compile(r"[0-9]{1,19}", re.ASCII)


def read_table(path: str | os.PathLike[str]) -> tuple[Buffers, Addresses | None]:
    """Read the buffers of a CSV table with the columns ``id,lower,upper,size``, and their addresses if it has offsets.

    Columns may be in any order. Optional columns: ``offset`` and ``memory`` (a name).

    Raises
    ------
    FormatError
        Naming file and line, for a missing or unknown column, a number that is not a non-negative integer,
        a duplicate name, or a buffer without steps.
    """
    return table_from_text(decode_text(read_bytes(path), str(path)), str(path))


def table_from_text(text: str, name: str = "the table") -> tuple[Buffers, Addresses | None]:
    r"""Read a table from a text; see :func:`read_table`.

    Examples
    --------
    >>> buffers, addresses = table_from_text("id,lower,upper,size,offset\na,0,3,4,0\nb,1,2,2,4\n")
    >>> buffers.names, addresses.arena
    (('a', 'b'), 6)
    >>> table_from_text("id,lower,upper,size\na,3,3,4\n")
    Traceback (most recent call last):
    remat.errors.FormatError: the table: line 2: buffer 'a' lives in no step: lower 3, upper 3
    """
    rows = table_rows(text, name)
    header = _header(next(rows, (1, [""]))[1], name)
    numbers: list[list[int]] = []
    memories: dict[str, int] = {}
    places: list[int] = []
    lines: dict[str, int] = {}
    for line, cells in rows:
        at = f"{name}: line {line}"
        entry = dict(zip(header, cells, strict=True))
        called = entry["id"].strip()
        if not 0 < len(called) <= MAX_NAME_LENGTH or not called.isprintable():
            raise FormatError(f"{at}: id {short(called)} is empty, too long or unprintable", "table")
        if called in lines:
            raise FormatError(f"{at}: id {short(called)} is on line {lines[called]} already", "table")
        lines[called] = line
        numbers.append([_number(entry[word], word, at) for word in (*COLUMNS[1:], "offset") if word in entry])
        if numbers[-1][0] >= numbers[-1][1]:
            lower, upper = numbers[-1][:2]
            raise FormatError(f"{at}: buffer {short(called)} lives in no step: lower {lower}, upper {upper}", "table")
        if "memory" in entry:
            places.append(memories.setdefault(entry["memory"].strip() or "memory", len(memories)))
    columns = np.array(numbers, dtype=np.int64).reshape(len(lines), 3 + ("offset" in header)).T
    try:
        buffers = Buffers.of(lines, *columns[:3])
    except ScheduleError as error:
        raise FormatError(f"{name}: {error}", "table") from None
    if "offset" not in header:
        return buffers, None
    where = np.array(places or [0] * len(lines), dtype=np.int64)
    known = tuple(Memory(word) for word in memories) or ONE_MEMORY
    return buffers, Addresses(buffers, columns[3].copy(), where, known, source=name)


def _header(cells: list[str], name: str) -> list[str]:
    header = [cell.strip().lower() for cell in cells]
    missing = [word for word in COLUMNS if word not in header]
    if missing:
        raise FormatError(f"{name}: no column {', '.join(missing)}; a table begins with {','.join(COLUMNS)}", "table")
    unknown = [word for word in header if word not in COLUMNS + MORE_COLUMNS]
    if unknown:
        raise FormatError(f"{name}: unknown column {short(unknown[0])}; optional: {', '.join(MORE_COLUMNS)}", "table")
    if len(set(header)) < len(header):
        raise FormatError(f"{name}: a column stands there twice", "table")
    return header


def _number(cell: str, word: str, at: str) -> int:
    text = cell.strip()
    value = int(text) if _WHOLE.fullmatch(text) else -1
    if value < 0 or value > MAX_BYTES:
        what = "negative" if re.fullmatch(r"-[0-9]+", text, re.ASCII) else f"not a whole number from 0 to {MAX_BYTES:,}"
        raise FormatError(f"{at}: {word} {short(text)} is {what}", "table")
    return value


def table_text(buffers: Buffers, addresses: Addresses | None = None) -> str:
    """Return buffers, and their addresses if given, as a CSV table; several memories add a column.

    Examples
    --------
    >>> print(table_text(Buffers.of(["a"], [0], [3], [4])), end="")
    id,lower,upper,size
    a,0,3,4
    """
    numbers = (buffers.lower, buffers.upper, buffers.size)
    columns: list[list[Any]] = [list(buffers.names), *(array.tolist() for array in numbers)]
    header = list(COLUMNS)
    if addresses is not None:
        header.append("offset")
        columns.append(addresses.offset.tolist())
        if len(addresses.memories) > 1:
            header.append("memory")
            columns.append([addresses.memories[k].name for k in addresses.memory.tolist()])
    return csv_text(header, zip(*columns, strict=True))
