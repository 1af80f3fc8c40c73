"""Rows of untrusted CSV tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from remat.errors import FormatError
from remat.io.limits import CELL_MEMORY, MAX_STEPS, draw


def table_rows(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    r"""Yield the line and the cells of each row that is not blank; all rows have equal lengths.

    Raises
    ------
    FormatError
        With `name` and the line, for rows of other lengths, open quotes, too many cells.

    Examples
    --------
    >>> list(table_rows("op,us\n\na,1\n", "t.csv"))
    [(1, ['op', 'us']), (3, ['a', '1'])]
    """
    cells = text.count(",") + text.count("\n")
    if cells > MAX_STEPS:
        raise FormatError(f"{name}: more than the {MAX_STEPS:,} cells that are read", "table")
    draw(CELL_MEMORY * cells)
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    width = 0
    try:
        for row in rows:
            if any(cell.strip() for cell in row):
                width = width or len(row)
                if len(row) != width:
                    raise FormatError(f"{name}: line {rows.line_num}: {len(row)} cells, the first row {width}", "table")
                yield rows.line_num, row
    except csv.Error as error:
        raise FormatError(f"{name}: line {rows.line_num}: {error}", "table") from None
