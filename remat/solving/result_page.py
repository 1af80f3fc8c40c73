"""HTML view of a result for notebooks."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import TYPE_CHECKING

from remat.io.text import printable

if TYPE_CHECKING:
    from remat.solving.result import Result

_WORD = "text-align: left; vertical-align: top; padding-right: 1em"
_TEXT = "text-align: left; white-space: pre-wrap; overflow-wrap: anywhere"


def as_html(result: Result) -> str:
    """Return a table of ``str(result)`` and, if there is a schedule, a plot of its memory.

    Names come from files and are escaped. The page loads and runs nothing; the plot is embedded.

    Parameters
    ----------
    result : Result

    Returns
    -------
    str
        HTML.
    """
    rows = "".join(
        f'<tr><th style="{_WORD}">{_text(word)}</th><td style="{_TEXT}">{_text(text)}</td></tr>'
        for word, text in result.rows()
    )
    return f"<div><table>{rows}</table>{_picture(result)}</div>"


def _text(text: str) -> str:
    return escape(printable(text))


def _picture(result: Result) -> str:
    if result.schedule is None:
        return ""
    from remat.schedule.plots import empty_figure, plot_memory

    problem, figure, buffer = result.problem, empty_figure((10, 4)), io.BytesIO()
    plot_memory(
        problem.graph, result.schedule, problem.budget_bytes, figure.subplots(), keep=problem.keep,
        count_constant_memory=problem.count_constant_memory,
    )  # fmt: skip
    figure.savefig(buffer, format="png", dpi=80)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<img alt="memory at each compute step" src="data:image/png;base64,{data}"/>'
