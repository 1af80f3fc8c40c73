"""HTML view of a result for notebooks."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from html import escape

from remat.problem import Problem
from remat.runtime.text import printable
from remat.schedule import Schedule

_WORD = "text-align: left; vertical-align: top; padding-right: 1em"
_TEXT = "text-align: left; white-space: pre-wrap; overflow-wrap: anywhere"


def as_html(rows: Iterable[tuple[str, str]], problem: Problem, schedule: Schedule | None) -> str:
    """Return a table of a result's rows and, if there is a schedule, a plot of its memory.

    Names come from files and are escaped. The page loads and runs nothing; the plot is embedded.

    `rows`: label and text of each line.
    """
    lines = "".join(
        f'<tr><th style="{_WORD}">{_text(word)}</th><td style="{_TEXT}">{_text(text)}</td></tr>' for word, text in rows
    )
    picture = "" if schedule is None else _picture(problem, schedule)
    return f"<div><table>{lines}</table>{picture}</div>"


def _text(text: str) -> str:
    return escape(printable(text))


def _picture(problem: Problem, schedule: Schedule) -> str:
    from remat.schedule.plots import empty_figure, plot_memory

    figure, buffer = empty_figure((10, 4)), io.BytesIO()
    plot_memory(
        problem.graph, schedule, problem.budget_bytes, figure.subplots(), keep=problem.keep,
        count_constant_memory=problem.count_constant_memory,
    )  # fmt: skip
    figure.savefig(buffer, format="png", dpi=80)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<img alt="memory at each compute step" src="data:image/png;base64,{data}"/>'
