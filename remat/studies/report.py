"""Report of a study: one HTML file with figures, tables and schedules, which loads nothing; figures and tables apart.

Figures are Matplotlib's as embedded SVG. A small script sorts and filters tables, and opens the interactive page
(:mod:`remat.io.page`) of a cell's schedule.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat.experiments.plots import plot_frontiers
from remat.io.figures import COLOURS, empty_figure, logarithmic, plain_text, write_figure
from remat.io.files import made_folder, write_atomic
from remat.io.page import page_script, script_source
from remat.runtime.text import counted, printable
from remat.studies import embedded_pages
from remat.studies.budget_curves import budget_panels
from remat.studies.measures import (
    Curve,
    gap,
    gap_curve,
    objective,
    overhead,
    overhead_curve,
    problem_of,
    proof_seconds,
)
from remat.studies.sheets import Sheet, text_of
from remat.studies.statistics import (
    duel,
    performance_profile,
    quantile,
    shifted_geometric_mean,
    value_at,
    virtual_best,
)
from remat.studies.store import Result, Store

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
class Report:
    """Figures and tables of a study.

    Attributes
    ----------
    name : str
    results : sequence of Result
        Cells; those without a result count as unsolved.
    store : Store, optional
        Its schedules become pages of the report, and its graphs are those of curves over budgets.
    pages : bool
        False: without pages of schedules.
    """

    name: str
    results: Sequence[Result] = field(repr=False)
    store: Store | None = field(default=None, repr=False)
    pages: bool = True

    @cached_property
    def methods(self) -> list[str]:
        """Labels of methods, in the order of the study."""
        return list(dict.fromkeys(each.cell.method for each in self.results))

    @cached_property
    def _problems(self) -> list[tuple[str, str, int]]:
        return list(dict.fromkeys(problem_of(each) for each in self.results))

    @cached_property
    def _by_method(self) -> dict[str, dict[tuple[str, str, int], Result]]:
        found: dict[str, dict[tuple[str, str, int], Result]] = {method: {} for method in self.methods}
        for each in self.results:
            found[each.cell.method][problem_of(each)] = each
        return found

    @cached_property
    def _feasible(self) -> list[tuple[str, str, int]]:
        """Problems of which no method has proved that they have no schedule."""
        without = {problem_of(each) for each in self.results if each.row.get("status") == "infeasible"}
        return [problem for problem in self._problems if problem not in without]

    def values(
        self, of: Callable[[Result], float | None], problems: Sequence[tuple[str, str, int]] | None = None
    ) -> dict[str, list[float | None]]:  # fmt: skip
        """Return a value of each cell by method, for `problems` (default: all) in their order."""
        chosen = self._problems if problems is None else problems
        return {
            method: [None if problem not in cells else of(cells[problem]) for problem in chosen]
            for method, cells in self._by_method.items()
        }

    # -- tables --------------------------------------------------------------------------------------------------------

    def summary(self) -> Sheet:
        """Return counts by status and shifted geometric means of each method, and of the virtual best."""
        objectives = self.values(objective)
        measures = [_comparable(self.values(of)) for of in (overhead, gap, proof_seconds)]
        best = virtual_best(objectives)
        rows: list[list[Any]] = []
        for method in self.methods:
            counts = Counter(str(each.row.get("status", each.state)) for each in self._by_method[method].values())
            wins = sum(a is not None and a == b for a, b in zip(objectives[method], best, strict=True))
            rows.append([
                method, counts.total(), counts["optimal"], counts["feasible"], counts["infeasible"],
                counts.total() - counts["optimal"] - counts["feasible"] - counts["infeasible"], wins,
                *(_mean(values[method]) for values in measures),
            ])  # fmt: skip
        together = [_mean(virtual_best(values)) for values in measures]
        solved = sum(value is not None for value in best)
        rows.append([VIRTUAL_BEST, len(best), None, None, None, len(best) - solved, solved, *together])
        columns = (
            "method", "cells", "optimal", "feasible", "infeasible", "none", "best", "overhead %", "gap %", "proof s",
        )  # fmt: skip
        numbers = [len(values[self.methods[0]]) if self.methods else 0 for values in measures]
        note = (
            "Means are geometric, shifted by 1 (%, s), over the problems for which all methods that have such values "
            "have one: {:,} with overheads, {:,} with gaps, {:,} with proofs. best: cells with the best objective "
            "of all methods.".format(*numbers)
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

    def overheads(self) -> Sheet:
        """Return the overhead of each method on each problem, the median over seeds."""
        places = list(dict.fromkeys((instance, problem) for instance, problem, _ in self._problems))
        rows: list[list[Any]] = []
        best = set()
        for number, (instance, problem) in enumerate(places):
            values: list[float | None] = []
            for method in self.methods:
                cells = self._by_method[method]
                found = [overhead(each) for key, each in cells.items() if key[:2] == (instance, problem)]
                median = quantile(found, 0.5) if found else math.inf
                values.append(median if math.isfinite(median) else None)
            least = min((value for value in values if value is not None), default=None)
            best |= {(number, 2 + k) for k, value in enumerate(values) if value is not None and value == least}
            rows.append([instance, problem, *values])
        columns = ("instance", "problem", *self.methods)
        note = "In %, the median over seeds; the least of each row in bold. A dash: no schedule from half the seeds."
        return Sheet("Overhead of each problem", columns, rows, note, frozenset(best))

    def cells(self, pages: Collection[str] = ()) -> Sheet:
        """Return a row for each cell; `pages`: digests of cells that have a page."""
        columns = (
            "instance", "problem", "seed", "method", "status", "overhead %", "gap %", "seconds", "peak", "message",
            "schedule",
        )  # fmt: skip
        rows = [
            [
                each.cell.instance, each.cell.problem, each.cell.seed, each.cell.method,
                str(each.row.get("status", each.state)), overhead(each), gap(each), each.row.get("total_seconds"),
                each.row.get("peak"), self._message(each), each.schedule[:12],
            ]
            for each in self.results
        ]  # fmt: skip
        links = {n: f"#{each.cell.digest}" for n, each in enumerate(self.results) if each.cell.digest in pages}
        note = "schedule: first digits of its file in the store" + ("; a click shows it." if links else ".")
        return Sheet("Cells", columns, rows, note, links=links)

    @staticmethod
    def _message(result: Result) -> str:
        """Return the reason of a cell that failed or was refused."""
        return str(result.row["message"])[:120] if result.row.get("status") in ("failed", "refused") else ""

    # -- figures -------------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, tuple[str, Callable[[], Figure]]]:
        """Return the figures by name: title, and the function that draws it. Figures without a value are left out."""
        profile = "Performance profile (Dolan and Moré): share of problems within a ratio of the best"
        curve = "against time: median over problems, with quartiles over seeds"
        drawn: dict[str, tuple[str, Callable[[], Figure]]] = {
            "objective-profile": (
                f"{profile} objective", lambda: self._profile(objective, "objective", self._feasible)
            ),
            "time-profile": (
                f"{profile} time to a proof", lambda: self._profile(proof_seconds, "time", self._problems)
            ),
            "overhead": (f"Overhead {curve}", lambda: self._curves("overhead (%)", overhead_curve)),
            "gap": (f"Gap {curve}", lambda: self._curves("gap (%)", gap_curve)),
        }  # fmt: skip
        measures: dict[str, Callable[[Result], object]] = {
            "objective-profile": objective, "time-profile": proof_seconds, "overhead": overhead_curve, "gap": gap_curve,
        }  # fmt: skip
        known = {word for word, of in measures.items() if any(_has_value(of(each)) for each in self.results)}
        kept = {word: figure for word, figure in drawn.items() if word in known}
        panels = {} if self.store is None else budget_panels(self.results, self.store)
        for name, some in panels.items():
            word = "budgets-" + re.sub(r"[^\w.-]+", "-", name)
            kept[word] = f"Overhead at each budget: {name}", partial(plot_frontiers, some)
        return kept

    def _profile(
        self, of: Callable[[Result], float | None], word: str, problems: Sequence[tuple[str, str, int]]
    ) -> Figure:  # fmt: skip
        figure, axes = _figure()
        profiles = performance_profile(self.values(of, problems))
        most = max((ratio for points in profiles.values() for ratio, _ in points), default=1.0)
        end = max(1.05, most * 1.05)
        for number, (method, points) in enumerate(profiles.items()):
            xs, ys = [1.0, *(ratio for ratio, _ in points), end], [0.0, *(share for _, share in points)]
            axes.step(xs, [*ys, ys[-1]], where="post", **_style(method, number))
        axes.set(xlabel=f"ratio of {word} to the best", ylabel="share of problems", ylim=(-0.02, 1.02), xlim=(1, end))
        if end > 3:
            logarithmic(axes)
        _legend(axes)
        return figure

    def _curves(self, label: str, curve: Callable[[Result], Curve]) -> Figure:
        """Draw the median over problems of each seed: its median and quartiles over seeds, and the virtual best."""
        figure, axes = _figure()
        of_seed: dict[int, list[tuple[str, str, int]]] = {}
        for problem in self._feasible:
            of_seed.setdefault(problem[2], []).append(problem)
        curves = {
            method: {problem: curve(cells[problem]) if problem in cells else [] for problem in self._feasible}
            for method, cells in self._by_method.items()
        }
        moments = [time for lines in curves.values() for line in lines.values() for time, _ in line if time > 0]
        low, high = min(moments, default=0.1), max(moments, default=1.0)
        times = [low * (max(high / low, 1.001)) ** (step / STEPS) for step in range(STEPS + 1)]
        values = {
            method: {problem: [value_at(line, time) for time in times] for problem, line in lines.items()}
            for method, lines in curves.items()
        }
        values[VIRTUAL_BEST] = {
            problem: virtual_best({method: values[method][problem] for method in curves}) for problem in self._feasible
        }
        for number, (method, lines) in enumerate(values.items()):
            medians = [
                [quantile([lines[problem][step] for problem in problems], 0.5) for problems in of_seed.values()]
                for step in range(len(times))
            ]
            bands = [[_finite(quantile(each, share)) for each in medians] for share in (0.25, 0.5, 0.75)]
            style = _style(method, number)
            axes.plot(times, bands[1], drawstyle="steps-post", **style)
            axes.fill_between(times, bands[0], bands[2], step="post", alpha=0.15, color=style["color"], linewidth=0)
        axes.set(xlabel="seconds", ylabel=label, xlim=(0.9 * low, 1.1 * high))
        logarithmic(axes)
        _legend(axes)
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
        """Write the tables of methods, pairs and problems to a folder in LaTeX, for the package booktabs."""
        place = made_folder(folder)
        for word, sheet in (("methods", self.summary()), ("duels", self.duels()), ("overheads", self.overheads())):
            write_atomic(place / f"{word}.tex", sheet.latex())

    def html(self) -> str:
        """Return the report as a page; same results, same page but for the figures' own identifiers."""
        script, style = ((_FOLDER / f"report.{suffix}").read_text(encoding="utf-8") for suffix in ("js", "css"))
        policy = (
            "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
            f"script-src {script_source(script)} {script_source(page_script())}"
        )
        pages = {} if self.store is None or not self.pages else embedded_pages.pages(self.store, self.results)
        data = {"frame": embedded_pages.frame() if pages else "", "mark": embedded_pages.MARK, "cells": pages}
        parts = [self.summary().html(), self.duels().html() if len(self.methods) > 1 else ""]
        for title, draw in self.figures().values():
            buffer = io.BytesIO()
            draw().savefig(buffer, format="svg")
            picture = base64.b64encode(buffer.getvalue()).decode("ascii")
            title = text_of(title)
            image = f'<img alt="{title}" src="data:image/svg+xml;base64,{picture}">'
            parts.append(f'<h2>{title}</h2><div class="scroll">{image}</div>')
        parts += [self.overheads().html(), self.cells(pages).html()]
        lines = "".join(f"<p>{text_of(fact)}</p>" for fact in self._facts())
        return (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{text_of(self.name)}</title><style>{style}</style></head><body><h1>{text_of(self.name)}</h1>{lines}"
            f'{"".join(parts)}<dialog><button>close</button><iframe title="schedule"></iframe></dialog>'
            f'<script id="pages" type="application/json">{json.dumps(data, separators=(",", ":"))}</script>'
            f"<script>{script}</script></body></html>\n"
        )

    def _facts(self) -> list[str]:
        """Return the lines below the title."""
        hosts = {str(each.environment.get("machine", {}).get("processor", "")) for each in self.results} - {""}
        versions = {str(each.environment.get("versions", {}).get("remat", "")) for each in self.results} - {""}
        done = sum(each.state in ("done", "failed") for each in self.results)
        instances = {each.cell.instance for each in self.results}
        seeds = {each.cell.seed for each in self.results}
        limits = [each.cell.run.get("config", {}).get("solve", {}) for each in self.results]
        seconds = {f"{limit['time_limit']:g} s" for limit in limits if limit.get("time_limit")}
        threads = {str(limit["threads"]) for limit in limits if "threads" in limit}
        clocks = {each.cell.run.get("clock", "wall") for each in self.results}
        limited = ", ".join(sorted(seconds)) or "none"
        limited += " of processor time" if seconds and clocks == {"processor"} else ""
        left_out = len(self._problems) - len(self._feasible)
        facts = [
            f"{done:,} of {counted(len(self.results), 'cell')} finished: {counted(len(self.methods), 'method')}, "
            f"{counted(len(instances), 'instance')}, {counted(len(seeds), 'seed')}. Time limit {limited}, "
            f"threads {', '.join(sorted(threads)) or '-'}.",
            f"remat {', '.join(sorted(versions)) or '-'}; {', '.join(sorted(hosts)) or '-'}.",
            "Every schedule was certified again when this report was made. Click on a column to sort.",
        ]
        if left_out:
            facts.append(
                f"{left_out:,} of {len(self._problems):,} problems (with seeds) have no schedule, as a method proves: "
                "profiles of the objective and curves leave them out. In curves, a cell without a schedule is infinite."
            )
        return facts


def _comparable(values: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
    """Return the values of methods on the problems for which all have one; methods without any value do not count."""
    some = {method for method, row in values.items() if any(value is not None for value in row)}
    shared = [
        k for k, column in enumerate(zip(*(values[method] for method in some), strict=True)) if None not in column
    ]
    return {method: [row[k] for k in shared] for method, row in values.items()}


def _mean(values: Sequence[float | None]) -> float | None:
    return shifted_geometric_mean([max(0.0, value) for value in values if value is not None], SHIFT)


def _has_value(value: object) -> bool:
    """Return True for a number, or a curve with one."""
    if isinstance(value, list):
        return any(each is not None for _time, each in value)
    return value is not None


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan


def _style(method: str, number: int) -> dict[str, Any]:
    """Return label, colour and dashes of a method's line."""
    label = plain_text(printable(method))
    if method == VIRTUAL_BEST:
        return {"label": label, "color": "#000000", "linestyle": ":"}
    dashes = ("-", "--", "-.")[number // len(COLOURS) % 3]
    return {"label": label, "color": COLOURS[number % len(COLOURS)], "linestyle": dashes}


def _legend(axes: Axes) -> None:
    """Draw the legend next to the axes, where it covers no curve."""
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), borderaxespad=0)


def _figure() -> tuple[Figure, Axes]:
    figure = empty_figure((8.0, 4.2))
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    return figure, axes
