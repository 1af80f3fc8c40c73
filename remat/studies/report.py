"""Report of a study: one HTML file with its figures and tables, which loads nothing; figures and LaTeX tables apart.

The interactive page of schedules (:mod:`remat.io.page`) shows one picture, so reports have a frame of their own:
figures of Matplotlib as embedded SVG, and tables that a script of ten lines sorts.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat.io.figures import COLOURS, empty_figure, plain_text, write_figure
from remat.io.files import made_folder, write_atomic
from remat.runtime.text import printable
from remat.studies.statistics import (
    duel,
    performance_profile,
    quantile,
    shifted_geometric_mean,
    value_at,
    virtual_best,
)
from remat.studies.store import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Shifts of geometric means: seconds, % of overhead, % of gap.
SHIFT = 1.0
#: Points of time of curves.
STEPS = 60
VIRTUAL_BEST = "virtual best"

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Sheet:
    """Table of a report: title, columns, and rows of words, numbers and None."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    note: str = ""

    def latex(self) -> str:
        """Return the table in LaTeX, for the package booktabs."""
        first = next(iter(self.rows), ())
        kinds = "".join("l" if isinstance(value, str) else "r" for value in first) or "l" * len(self.columns)
        lines = [f"\\begin{{tabular}}{{{kinds}}}", "\\toprule", _latex_row(self.columns), "\\midrule"]
        lines += [_latex_row([_shown(value) for value in row]) for row in self.rows]
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])

    def html(self) -> str:
        """Return the table in HTML."""
        words = {place for row in self.rows for place, value in enumerate(row) if isinstance(value, str)}
        kind = [' class="text"' if place in words else "" for place in range(len(self.columns))]
        head = "".join(f"<th{kind[k]}>{_text(word)}</th>" for k, word in enumerate(self.columns))
        lines = (
            "".join(f"<td{kind[k]}{_key(value, kind[k])}>{_text(_shown(value))}</td>" for k, value in enumerate(row))
            for row in self.rows
        )
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        note = f"<p>{_text(self.note)}</p>" if self.note else ""
        table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        return f"<h2>{_text(self.title)}</h2>{note}{table}"


@dataclass(frozen=True)
class Report:
    """Figures and tables of a study.

    Attributes
    ----------
    name : str
    results : sequence of Result
        Cells; those without a result count as unsolved.
    """

    name: str
    results: Sequence[Result] = field(repr=False)

    @cached_property
    def methods(self) -> list[str]:
        """Labels of methods, in the order of the study."""
        return list(dict.fromkeys(each.cell.method for each in self.results))

    @cached_property
    def _problems(self) -> list[tuple[str, str, int]]:
        return list(dict.fromkeys(_problem(each) for each in self.results))

    @cached_property
    def _by_method(self) -> dict[str, dict[tuple[str, str, int], Result]]:
        found: dict[str, dict[tuple[str, str, int], Result]] = {method: {} for method in self.methods}
        for each in self.results:
            found[each.cell.method][_problem(each)] = each
        return found

    def values(self, of: Callable[[Result], float | None]) -> dict[str, list[float | None]]:
        """Return a value of each cell by method, for all problems in one order."""
        return {
            method: [None if problem not in cells else of(cells[problem]) for problem in self._problems]
            for method, cells in self._by_method.items()
        }

    # -- tables --------------------------------------------------------------------------------------------------------

    def summary(self) -> Sheet:
        """Return counts by status and shifted geometric means of each method, and of the virtual best."""
        overheads, times, gaps = self.values(overhead), self.values(proof_seconds), self.values(gap)
        objectives = self.values(objective)
        best = virtual_best(objectives)
        rows: list[list[Any]] = []
        for method in self.methods:
            counts = Counter(str(each.row.get("status", each.state)) for each in self._by_method[method].values())
            wins = sum(a is not None and a == b for a, b in zip(objectives[method], best, strict=True))
            rows.append([
                method, counts.total(), counts["optimal"], counts["feasible"], counts["infeasible"],
                counts.total() - counts["optimal"] - counts["feasible"] - counts["infeasible"], wins,
                *(_mean(values[method]) for values in (overheads, gaps, times)),
            ])  # fmt: skip
        together = [_mean(virtual_best(values)) for values in (overheads, gaps, times)]
        solved = sum(value is not None for value in best)
        rows.append([VIRTUAL_BEST, len(best), None, None, None, len(best) - solved, solved, *together])
        columns = (
            "method",
            "cells",
            "optimal",
            "feasible",
            "infeasible",
            "none",
            "best",
            "overhead %",
            "gap %",
            "proof s",
        )
        note = (
            "Means are geometric, shifted by 1 (%, s), over the cells that have the value: compare them only between "
            "methods that solve the same cells. best: cells with the best objective of all methods."
        )
        return Sheet("Methods", columns, rows, note)

    def duels(self) -> Sheet:
        """Return wins, losses and the sign test of each pair of methods by objective."""
        values = self.values(objective)
        rows = []
        for a, b in combinations(self.methods, 2):
            found = duel(values[a], values[b])
            rows.append([a, b, found.wins, found.losses, found.ties, found.p])
        note = "A smaller objective wins; p of the two-sided sign test without ties, not corrected for many pairs."
        return Sheet("Wins and losses", ("method", "against", "wins", "losses", "ties", "p"), rows, note)

    def cells(self) -> Sheet:
        """Return a row for each cell."""
        columns = (
            "instance",
            "problem",
            "seed",
            "method",
            "status",
            "overhead %",
            "gap %",
            "seconds",
            "peak",
            "schedule",
        )
        rows = [
            [
                each.cell.instance, each.cell.problem, each.cell.seed, each.cell.method,
                str(each.row.get("status", each.state)), overhead(each), gap(each), each.row.get("total_seconds"),
                each.row.get("peak"), each.schedule[:12],
            ]
            for each in self.results
        ]  # fmt: skip
        return Sheet("Cells", columns, rows, "schedule: first digits of its file in the folder of the store.")

    # -- figures -------------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, tuple[str, Callable[[], Figure]]]:
        """Return the figures by name: title, and the function that draws it."""
        profile = "Performance profile (Dolan and Moré): share of problems within a ratio of the best"
        return {
            "objective-profile": (f"{profile} objective", lambda: self._profile(objective, "objective")),
            "time-profile": (f"{profile} time to a proof", lambda: self._profile(proof_seconds, "time")),
            "overhead": (
                "Overhead against time: median and quartiles; cells without a schedule count as infinite",
                lambda: self._curves("overhead (%)", _overheads),
            ),
            "gap": (
                "Gap against time: median and quartiles; cells without a schedule count as infinite",
                lambda: self._curves("gap (%)", _gaps),
            ),
        }  # fmt: skip

    def _profile(self, of: Callable[[Result], float | None], word: str) -> Figure:
        figure, axes = _figure()
        profiles = performance_profile(self.values(of))
        most = max((ratio for points in profiles.values() for ratio, _ in points), default=1.0)
        end = max(1.05, most * 1.05)
        for number, (method, points) in enumerate(profiles.items()):
            xs, ys = [1.0, *(ratio for ratio, _ in points), end], [0.0, *(share for _, share in points)]
            axes.step(xs, [*ys, ys[-1]], where="post", label=plain_text(printable(method)), color=_colour(number))
        axes.set(xlabel=f"ratio of {word} to the best", ylabel="share of problems", ylim=(-0.02, 1.02), xlim=(1, end))
        if end > 3:
            axes.set_xscale("log")
        axes.legend(loc="lower right")
        return figure

    def _curves(self, label: str, curve: Callable[[Result], list[tuple[float, float | None]]]) -> Figure:
        figure, axes = _figure()
        curves = {method: [curve(each) for each in cells.values()] for method, cells in self._by_method.items()}
        moments = [time for lines in curves.values() for points in lines for time, _ in points if time > 0]
        low, high = min(moments, default=0.1), max(moments, default=1.0)
        times = [low * (max(high / low, 1.001)) ** (step / STEPS) for step in range(STEPS + 1)]
        for number, (method, lines) in enumerate(curves.items()):
            bands = [
                [_finite(quantile([value_at(points, time) for points in lines], share)) for time in times]
                for share in (0.25, 0.5, 0.75)
            ]
            axes.plot(
                times, bands[1], label=plain_text(printable(method)), color=_colour(number), drawstyle="steps-post"
            )
            axes.fill_between(times, bands[0], bands[2], step="post", alpha=0.15, color=_colour(number), linewidth=0)
        axes.set(xlabel="seconds", ylabel=label, xscale="log")
        if curves:
            axes.legend(loc="upper right")
        return figure

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file."""
        write_atomic(path, self.html())

    def save_figures(self, folder: str | os.PathLike[str]) -> None:
        """Write each figure to a folder as PDF and SVG."""
        place = made_folder(folder)
        for word, (_title, draw) in self.figures().items():
            for suffix in (".pdf", ".svg"):
                write_figure(place / f"{word}{suffix}", draw)

    def save_tables(self, folder: str | os.PathLike[str]) -> None:
        """Write the tables of methods and pairs to a folder in LaTeX, for the package booktabs."""
        place = made_folder(folder)
        for word, sheet in (("methods", self.summary()), ("duels", self.duels())):
            write_atomic(place / f"{word}.tex", sheet.latex())

    def html(self) -> str:
        """Return the report as a page; same results, same page but for the figures' own identifiers."""
        script, style = ((_FOLDER / f"report.{suffix}").read_text(encoding="utf-8") for suffix in ("js", "css"))
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
        policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
        hosts = {str(each.environment.get("machine", {}).get("processor", "")) for each in self.results} - {""}
        versions = {str(each.environment.get("versions", {}).get("remat", "")) for each in self.results} - {""}
        done = sum(each.state in ("done", "failed") for each in self.results)
        facts = [
            f"{done:,} of {len(self.results):,} cells finished; {len(self.methods):,} methods.",
            f"remat {', '.join(sorted(versions)) or '-'}; {', '.join(sorted(hosts)) or '-'}.",
            "Every schedule was certified again when this report was made. Click on a column to sort.",
        ]
        parts = [self.summary().html(), self.duels().html() if len(self.methods) > 1 else ""]
        for title, draw in self.figures().values():
            buffer = io.BytesIO()
            draw().savefig(buffer, format="svg")
            data = base64.b64encode(buffer.getvalue()).decode("ascii")
            parts.append(f'<h2>{_text(title)}</h2><img alt="{_text(title)}" src="data:image/svg+xml;base64,{data}">')
        parts.append(self.cells().html())
        lines = "".join(f"<p>{_text(fact)}</p>" for fact in facts)
        return (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{_text(self.name)}</title><style>{style}</style></head><body><h1>{_text(self.name)}</h1>{lines}"
            f"{''.join(parts)}<script>{script}</script></body></html>\n"
        )


# -- values of a cell --------------------------------------------------------------------------------------------------


def objective(result: Result) -> float | None:
    """Return the objective of a cell's schedule."""
    value: float | None = result.row.get("objective")
    return value


def overhead(result: Result) -> float | None:
    """Return the overhead of a cell's schedule in %."""
    value: float | None = result.row.get("overhead_percent")
    return value


def gap(result: Result) -> float | None:
    """Return the gap of a cell in %."""
    value = result.row.get("gap")
    return None if value is None else 100.0 * float(value)


def proof_seconds(result: Result) -> float | None:
    """Return the seconds to a proof, of an optimum or that no schedule exists; None without a proof."""
    value: float | None = result.row.get("total_seconds")
    return value if result.row.get("status") in ("optimal", "infeasible") else None


def _overheads(result: Result) -> list[tuple[float, float | None]]:
    """Return the overhead over time, from that of the last schedule and the objectives before it."""
    last, final = objective(result), overhead(result)
    if not last or final is None or result.row.get("cost") != last:
        return []
    base = last / (1 + final / 100)
    return [(time, None if value is None else 100 * (value / base - 1)) for time, value, _ in result.points]


def _gaps(result: Result) -> list[tuple[float, float | None]]:
    return [
        (time, None if not value else 100 * max(0.0, (value - bound) / value)) for time, value, bound in result.points
    ]


def _problem(result: Result) -> tuple[str, str, int]:
    return result.cell.instance, result.cell.problem, result.cell.seed


def _mean(values: Sequence[float | None]) -> float | None:
    return shifted_geometric_mean([max(0.0, value) for value in values if value is not None], SHIFT)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan


def _colour(number: int) -> str:
    return str(COLOURS[number % len(COLOURS)])


def _figure() -> tuple[Figure, Axes]:
    figure = empty_figure((8.0, 4.2))
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    return figure, axes


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _text(text: str) -> str:
    return escape(printable(text))


def _key(value: Any, kind: str) -> str:
    """Return the attribute by which a number is sorted; unknown ones come last."""
    return "" if kind else f' data-key="{"Infinity" if value is None else value}"'


def _latex_row(words: Sequence[str]) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    special |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
    return " & ".join("".join(special.get(sign, sign) for sign in printable(word)) for word in words) + r" \\"
