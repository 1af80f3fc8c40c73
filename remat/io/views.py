"""Views of results: tables as CSV and data frames, and HTML for notebooks.

Names come from files and are escaped. A view loads and runs nothing; its pictures are embedded.
"""

from __future__ import annotations

import base64
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from remat.errors import FormatError
from remat.io.figures import SUFFIXES, write_figure
from remat.io.files import write_atomic
from remat.runtime.text import csv_text, json_text, printable

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WORD = "text-align: left; vertical-align: top; padding-right: 1em"
_TEXT = "text-align: left; white-space: pre-wrap; overflow-wrap: anywhere"
#: Style of cells; of wide content on a phone, which scrolls; and of pictures, which stay readable there.
_CELL = "padding:.2em .6em"
_SCROLLS = "overflow-x:auto"
_PICTURE = "max-width:100%;min-width:25em"


class Table(ABC):
    """Base of results that are tables."""

    shown: ClassVar[tuple[str, ...]] = ()
    """Columns of the notebook's view; empty: all."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as JSON values; unknown values are None."""

    @abstractmethod
    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the table, on the given axes or in a new figure."""

    def to_json(self) -> str:
        """Return the rows as a JSON text."""
        return json_text(self.rows())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table or its picture atomically, by the suffix of `path`: ``.csv``, ``.json``, ``.svg`` and others.

        Raises
        ------
        FormatError
            If the file has another suffix or cannot be written; names it.
        """
        suffix, texts = Path(path).suffix.lower(), self._texts()
        if suffix in texts:
            write_atomic(path, texts[suffix]())
        elif suffix in SUFFIXES:
            write_figure(path, self.plot)
        else:
            raise FormatError(f"{path}: a table is written as {', '.join([*texts, *SUFFIXES])}", "table")

    def _texts(self) -> dict[str, Callable[[], str]]:
        """Return the texts that :meth:`save` writes, by suffix."""
        return {".csv": self.to_csv, ".json": self.to_json}

    def to_csv(self) -> str:
        """Return the rows as a CSV text; unknown values are empty."""
        return table_csv(self.rows())

    def to_frame(self) -> pandas.DataFrame:
        """Return the rows as a data frame of pandas."""
        import pandas

        return pandas.DataFrame(self.rows())

    def _repr_html_(self) -> str:
        """Return the notebook's view: the most important columns, and the picture."""
        rows = self.rows()
        columns = self.shown or tuple(rows[0] if rows else ())
        picture = html_picture(self.plot(), "plot of the table") if rows else ""
        cells = ([_percent(row.get(key)) if key == "gap" else row.get(key) for key in columns] for row in rows)
        return f"<div>{html_table(columns, cells)}{picture}</div>"


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with equal keys as a CSV text; unknown values are empty.

    Words that a spreadsheet would read as a formula get an apostrophe in front (OWASP, *CSV injection*).
    """
    return csv_text(list(rows[0]) if rows else [], ([_field(value) for value in row.values()] for row in rows))


def _field(value: Any) -> Any:
    """Return a CSV value that no spreadsheet reads as a formula."""
    if isinstance(value, Mapping):
        value = " ".join(f"{name}={text}" for name, text in value.items())
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def html_pairs(rows: Iterable[tuple[str, object]]) -> str:
    """Return a table of labels and texts.

    Examples
    --------
    >>> "<td" in html_pairs([("peak", "<12 bytes>")]), "&lt;12 bytes&gt;" in html_pairs([("peak", "<12 bytes>")])
    (True, True)
    """
    lines = (
        f'<tr><th style="{_WORD}">{_text(word)}</th><td style="{_TEXT}">{_text(text)}</td></tr>' for word, text in rows
    )
    return f"<table>{''.join(lines)}</table>"


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a line of column names."""
    head = "".join(f'<th style="{_CELL}">{_text(name)}</th>' for name in columns)
    lines = ("".join(f'<td style="{_CELL}">{_text(_cell(value))}</td>' for value in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div style="{_SCROLLS}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def html_picture(figure: Figure, description: str) -> str:
    """Return a figure as an embedded picture."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    picture = f'<img style="{_PICTURE}" alt="{_text(description)}" src="data:image/png;base64,{data}"/>'
    return f'<div style="{_SCROLLS}">{picture}</div>'


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.3g} %"


def _text(text: object) -> str:
    return escape(printable(str(text)))
