"""Trade-off of peak and extra time: points, front, tables and plot."""

import csv
import io
import json
from pathlib import Path

from figures import collisions

from remat import Problem
from remat.experiments.compare import compare
from remat.experiments.trade_off import Point, TradeOff, trade_off
from remat.graphs.families import unit_chain
from remat.io.figures import write_figure
from remat.schedule import Schedule
from remat.schedule.saved_sets import schedule_of_saved

GRAPH = unit_chain(4)


def points() -> list[Point]:
    wrong = Schedule.from_steps([("compute", "f1")])
    return [
        Point.of(GRAPH, Schedule.reference(GRAPH)),
        Point.of(GRAPH, schedule_of_saved(GRAPH, []), "=saved", "nothing"),
        Point.of(GRAPH, schedule_of_saved(GRAPH, ["f1"]), "=saved", "f1"),
        Point.of(GRAPH, wrong, "wrong", "1"),
        Point.failed("broken", "2", "no luck"),
    ]


def test_front_contains_only_valid_schedules() -> None:
    found = TradeOff(GRAPH, tuple(points()))
    reference, nothing, some, wrong, broken = found.points
    assert (reference.who, reference.peak, reference.overhead, reference.certified) == ("reference order", 6, 0.0, True)
    assert (wrong.certified, wrong.peak, wrong.cost) == (False, None, None)
    assert "step 0: op 'f1' reads tensor 'f0'" in wrong.fault
    assert (broken.fault, broken.schedule) == ("no luck", None)
    assert nothing.peak == 6  # the backward pass recomputes all four values at its first step
    assert some.peak == 5
    assert found.front() == [some, reference]
    assert found.best(6) == reference
    assert found.best(5) == some
    assert found.best(5, "reference order") is None


def test_tables_and_plot(tmp_path: Path) -> None:
    matrix = compare(Problem(GRAPH), [5, 2], ["greedy"])
    found = trade_off(matrix, points())
    assert [point.knob for point in found.by_maker()["greedy"]] == ["5", "2"]
    assert found.by_maker()["greedy"][1].fault == "no schedule: infeasible"
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [row["who"] for row in rows][1] == "'=saved"  # escaped, as spreadsheets would read a formula
    facts = json.loads(found.to_json())
    assert facts["graph"]["reference_peak"] == 6
    assert [row["peak"] for row in facts["points"]] == [6, 6, 5, None, None, 5, None]
    (axes,) = found.plot().axes
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert "greedy (1 without a valid schedule)" in legend
    assert "broken (1 without a valid schedule)" in legend
    drawn = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in axes.get_lines()}
    assert [y for _, y in drawn["=saved"]] == [point.overhead for point in found.points[1:3]]
    assert sorted(text.get_text() for text in axes.texts) == ["f1", "nothing"]
    write_figure(tmp_path / "a.svg", found.plot)
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_plot_without_a_valid_schedule_says_so() -> None:
    (axes,) = TradeOff(GRAPH, (Point.failed("broken", "5", "no luck"),)).plot().axes
    assert [text.get_text() for text in axes.texts] == ["no valid schedule"]
    assert axes.get_ylim() == (0, 1)


def test_labels_of_the_plot() -> None:
    """Budgets have units, equal points share a label, and no label covers another one; the axis fits the data."""
    reference, saved = Schedule.reference(GRAPH), schedule_of_saved(GRAPH, ["f1"])
    points = [Point.of(GRAPH, reference, "a", knob) for knob in ("0.8", "0.6")]
    points += [Point.of(GRAPH, schedule, "b", knob) for schedule, knob in ((reference, "3221225472"), (saved, "5"))]
    (axes,) = TradeOff(GRAPH, tuple(points)).plot().axes
    assert sorted(text.get_text() for text in axes.texts) == ["0.8, 0.6", "3.00 GiB", "5"]
    assert not collisions(axes.figure)
    assert 4.8 < axes.get_xlim()[0] < 5 and 6 < axes.get_xlim()[1] < 6.2
    assert axes.get_ylabel() == "overhead (%)"
