"""Interactive pages of several methods: overhead against time, overhead against budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat.experiments.plots import Line, Measure, cost_height
from remat.experiments.run_plots import Gaps
from remat.experiments.runs import Run
from remat.io.figures import line_style
from remat.io.page import page_text
from remat.problem import Problem
from remat.runtime.sizes import size_text, size_unit
from remat.runtime.text import printable

#: Kinds of marks.
OPEN, FILLED, CROSS = range(3)


def runs_page(groups: Sequence[Sequence[Run]]) -> str:
    """Return a page of :func:`remat.experiments.run_plots.plot_runs`, with a logarithmic axis of time.

    Methods without a schedule are listed above the picture, in which panels without curves are left out.
    """
    methods = list(dict.fromkeys(run.method.label for runs in groups for run in runs))
    panels: list[dict[str, Any]] = []
    without: dict[tuple[str, str], list[str]] = {}
    for runs in groups:
        gaps = Gaps.of(runs)
        measure = gaps.measure
        size = runs[0].problem.budget_bytes
        title = "no budget" if size is None else f"budget {runs[0].budget} ({size_text(size)})"
        series = []
        for run in runs:
            if run.result is None or run.result.schedule is None:
                what = f"failed: {run.error}" if run.result is None else f"{run.result.status}, no schedule"
                without.setdefault((run.method.label, what), []).append(title)
            if run.result is not None and run.result.status != "infeasible":
                series.append(_run_series(run, measure, methods.index(run.method.label)))
        panels.append(
            {"title": printable(title), "label": measure.label, "zero": not measure.peak, "below": None,
             "best": _best(gaps), "series": series}
        )  # fmt: skip
    name = printable(groups[0][0].problem.graph.name) if groups else ""
    lines = [("", printable(f"{label}, {', '.join(titles)}: {what}")) for (label, what), titles in without.items()]
    return page_text(
        {"kind": "chart", "title": f"{name}: methods compared", "lines": lines, "axis": "seconds", "log": True,
         "note": "Dashed: bounds. Filled: proved optimal.",
         "panels": [panel for panel in panels if panel["series"]] or panels}
    )  # fmt: skip


def _best(gaps: Gaps) -> dict[str, Any]:
    """Return the best bound of a panel on the scale of its values, and the value that 100 % of a gap stands for."""
    measure, value = gaps.measure, gaps.measure.height(gaps.best)
    percent = measure.unit == " %"
    word, unit = "peak" if measure.peak else "cost", f" ({gaps.unit})" if gaps.unit else ""
    return {
        "value": value, "whole": 100 + value if percent else value, "text": gaps.text(gaps.best),
        "label": f"{word} above the best bound{unit}",
    }  # fmt: skip


def _run_series(run: Run, measure: Measure, number: int) -> dict[str, Any]:
    assert run.result is not None
    result, points = run.result, run.result.incumbents
    end = max([result.timings["total"], *(point.time for point in points)])
    line: list[tuple[float, float]] = []
    marks: list[tuple[float, float, int, list[tuple[str, str]]]] = []
    found = [(point.time, point.objective) for point in points if point.objective is not None]
    for place, (time, value) in enumerate(found):
        y = measure.height(value)
        if not line or y < line[-1][1]:
            best = place == len(found) - 1 or value == min(value for _, value in found)
            proved = FILLED if best and result.status == "optimal" else OPEN
            marks.append((time, y, proved, [
                ("value", f"{y:.6g}{measure.unit} ({value:,})"), ("found at", f"{time:.3g} s"),
                ("result", f"{result.status}, bound {result.bound:,}, by {printable(result.source or '-')}"),
            ]))  # fmt: skip
        line.append((time, y))
    if line:
        line.append((end, line[-1][1]))
    bounds = [] if measure.peak else [(0.0, measure.height(measure.base))]
    bounds += [(point.time, measure.height(point.bound)) for point in points if point.bound > 0]
    bounds.append((end, measure.height(result.bound)))
    return _series(run.method.label, number, line, bounds, marks, before=False)


def frontier_page(problem: Problem, budgets: Sequence[int], lines: Sequence[Line], least: int) -> str:
    """Return a page of :func:`remat.experiments.plots.plot_frontier`, with the same arguments."""
    scale, unit = size_unit(max(*budgets, problem.reference_peak))
    base = problem.objective.base(problem.graph)
    word = "overhead (%)" if base else problem.objective.word
    series, failures = [], []
    for number, one in enumerate(lines):
        curve: list[tuple[float, float]] = []
        marks: list[tuple[float, float | None, int, list[tuple[str, str]]]] = []
        bounds: list[tuple[float, float]] = []
        for cell, bound in zip(one.cells, one.bounds, strict=True):
            x = cell.budget / scale
            share = f" ({100 * cell.budget / problem.reference_peak:.4g} %)" if problem.reference_peak else ""
            rows = [("budget", f"{size_text(cell.budget)}{share}"), ("status", cell.status)]
            if cell.status == "failed":
                failures.append(("", printable(f"{cell.method}, {size_text(cell.budget)}: {cell.row['message']}")))
            elif cell.value is None:
                marks.append((x, None, CROSS, rows))
            else:
                y = cost_height(cell.value, base)
                rows += [(word, f"{y:.6g} ({cell.value:,})"), ("schedule by", printable(cell.source or "-"))]
                rows += [] if bound is None else [("bound", f"{cost_height(bound, base):.6g} ({bound:,})")]
                marks.append((x, y, FILLED if one.proved(cell) else OPEN, rows))
                curve.append((cell.peak / scale, y))
            if bound is not None:
                bounds.append((x, cost_height(bound, base)))
        if curve:
            curve.append((budgets[-1] / scale, curve[-1][1]))
        series.append(_series(one.method.label, number, curve, bounds, marks, before=True))
    panel = {"title": "", "label": word, "zero": True, "below": least / scale, "series": series}
    note = "Dashed: bounds. Filled: proved optimal. Cross: no schedule found. Grey: below the bound on the peak."
    name = printable(problem.graph.name)
    return page_text(
        {"kind": "chart", "title": f"{name}: {word.partition(' (')[0]} at each budget", "lines": failures,
         "axis": f"budget ({unit})", "log": False, "note": note, "panels": [panel]}
    )  # fmt: skip


def _series(
    name: str, number: int, line: Sequence[Any], bound: Sequence[Any], marks: Sequence[Any], *, before: bool
) -> dict[str, Any]:
    """Return a method's curve; `before`: its bound holds to the left of each of its places."""
    colour, marker = line_style(number)
    return {
        "name": printable(name), "colour": colour, "marker": marker,
        "line": line, "bound": bound, "before": before, "marks": marks,
    }  # fmt: skip
