"""Schedule files for ``remat compare``, and their table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from remat.cli.screen import memory
from remat.runtime.text import json_text

if TYPE_CHECKING:
    from remat.experiments.compare import Comparison
    from remat.experiments.trade_off import Point, TradeOff
    from remat.problem import Problem


def read_points(paths: Sequence[Path], problem: Problem) -> list[Point]:
    """Return the schedules of files, certified by the rules of `problem` without its budget.

    A schedule is named after its source, with its file as the setting, or else after its file. Raise
    FormatError with the path of a file that cannot be read.
    """
    from dataclasses import replace

    from remat.experiments.trade_off import Point
    from remat.schedule.io import read_schedule

    rules = replace(problem.rules, budget=None)
    points = []
    for path in paths:
        schedule = read_schedule(path, problem.graph)
        who, knob = (schedule.source, path.stem) if schedule.source else (path.stem, "")
        points.append(Point.of(problem.graph, schedule, who, knob, rules=rules))
    return points


def with_points(comparison: Comparison, points: Sequence[Point]) -> str:
    """Return the JSON text of a comparison, with the schedules of files if there are any."""
    text = comparison.to_json()
    if not points:
        return text
    content = {**json.loads(text), "schedules": [point.row() for point in points]}
    return json_text(content)


def print_trade_off(found: TradeOff) -> None:
    """Print a line for each schedule with peak and overhead, followed by faults."""
    from rich.text import Text

    from remat.cli.console import NUMBER, TEXT, console, print_columns
    from remat.schedule.certificate import overhead_text

    out, graph, front = console(), found.graph, found.front()

    def cells(point: Point) -> list[str]:
        if point.peak is None or point.cost is None:
            return [point.who, point.knob, "-", "-", "-", "no", ""]
        share = f"{100 * point.peak / graph.reference_peak:.4g} %" if graph.reference_peak else "-"
        extra = overhead_text(point.cost, graph.base_cost)
        return [point.who, point.knob, memory(point.peak), share, extra, "yes", "*" if point in front else ""]

    numbers = ("peak", "of reference", "overhead", "certified", "on the front")
    columns = [("schedule", TEXT), ("asked for", TEXT), *((heading, NUMBER) for heading in numbers)]
    print_columns(out, f"{graph.name}, peak against extra time", columns, map(cells, found.points))
    for point in found.points:
        for note in ([point.fault] if point.fault else []) + list(point.remarks):
            out.print(Text(f"{point.who}{' ' + point.knob if point.knob else ''}: {note}"), soft_wrap=True)
    out.print()
