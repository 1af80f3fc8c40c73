"""Tables of reports, in HTML and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from remat.runtime.text import printable


@dataclass(frozen=True)
class Sheet:
    """Table of a report.

    Attributes
    ----------
    title : str
    columns : tuple of str
    rows : sequence of rows
        Words, numbers and None.
    note : str
        Sentence below the title.
    best : set of (row, column)
        Places in bold.
    links : mapping of int to str
        Link of the last column, by row.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    best: frozenset[tuple[int, int]] = frozenset()
    links: Mapping[int, str] = field(default_factory=dict)

    def latex(self) -> str:
        """Return the table in LaTeX, for the package booktabs."""
        first = next(iter(self.rows), ())
        kinds = "".join("l" if isinstance(value, str) else "r" for value in first) or "l" * len(self.columns)
        lines = [f"\\begin{{tabular}}{{{kinds}}}", "\\toprule", _latex_row(map(_latex, self.columns)), "\\midrule"]
        for number, row in enumerate(self.rows):
            words = [_latex(shown(value)) for value in row]
            words = [f"\\textbf{{{w}}}" if (number, k) in self.best else w for k, w in enumerate(words)]
            lines.append(_latex_row(words))
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])

    def html(self) -> str:
        """Return the table in HTML, with its title."""
        words = {place for row in self.rows for place, value in enumerate(row) if isinstance(value, str)}
        kinds = [' class="text"' if place in words else "" for place in range(len(self.columns))]
        head = "".join(f"<th{kind}>{text_of(word)}</th>" for word, kind in zip(self.columns, kinds, strict=True))
        body = "".join(f"<tr>{self._html_row(number, kinds)}</tr>" for number in range(len(self.rows)))
        note = f"<p>{text_of(self.note)}</p>" if self.note else ""
        filters = '<input type="search" placeholder="filter rows" aria-label="filter rows">' * (len(self.rows) > 20)
        table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        return f"<section><h2>{text_of(self.title)}</h2>{note}{filters}{table}</section>"

    def _html_row(self, number: int, kinds: Sequence[str]) -> str:
        cells = []
        for place, (value, kind) in enumerate(zip(self.rows[number], kinds, strict=True)):
            text = text_of(shown(value))
            if (number, place) in self.best:
                text = f"<b>{text}</b>"
            if place == len(kinds) - 1 and number in self.links:
                text = f'<a href="{escape(self.links[number])}">{text}</a>'
            cells.append(f"<td{kind}{_key(value, kind)}>{text}</td>")
        return "".join(cells)


def shown(value: Any) -> str:
    """Return a value as tables show it."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def text_of(text: str) -> str:
    """Return a text for HTML."""
    return escape(printable(text))


def _key(value: Any, kind: str) -> str:
    """Return the attribute by which a number is sorted; unknown ones come last."""
    return "" if kind else f' data-key="{"Infinity" if value is None else value}"'


def _latex(word: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    special |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
    return "".join(special.get(sign, sign) for sign in printable(word))


def _latex_row(words: Any) -> str:
    return " & ".join(words) + r" \\"
