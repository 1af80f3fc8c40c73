"""Statistics and reports of studies."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import browse, needs_browser
from figures import collisions

pytest.importorskip("sqlalchemy")

from remat.studies.budget_curves import budget_panels
from remat.studies.measures import objective
from remat.studies.plan import Cell
from remat.studies.report import Report
from remat.studies.solving import solve_here
from remat.studies.statistics import duel, performance_profile, shifted_geometric_mean
from remat.studies.store import Result
from remat.studies.study import Study


def result(instance: str, method: str, cost: int | None, **row: Any) -> Result:
    cell = Cell("0" * 64, instance, "80%", method, 0, "1" * 64, {})
    if cost is None:
        return Result(cell, "failed", {"status": "failed", "message": "died"})
    row = {"status": "feasible", "objective": cost, "cost": cost, "overhead_percent": cost - 100.0, "gap": 0.5} | row
    return Result(cell, "done", row, ((0.5, cost + 10, 90), (1.0, cost, 95)), "f" * 64)


@pytest.fixture
def report() -> Report:
    return Report("name <b>", [
        result("x", "a_1", 110), result("y", "a_1", 120, status="optimal", total_seconds=3.0), result("z", "a_1", None),
        result("x", "<script>", 105), result("y", "<script>", 120), result("z", "<script>", 130),
    ])  # fmt: skip


def test_profiles_count_problems_without_a_value() -> None:
    found = performance_profile({"a": [1.0, 2.0, None, 0.0], "b": [2.0, 1.0, None, 3.0]})
    assert found == {"a": [(1.0, 0.5), (2.0, 0.75)], "b": [(1.0, 0.25), (2.0, 0.5)]}


def test_sign_test_agrees_with_the_binomial() -> None:
    found = duel([1.0] * 8 + [2.0] * 2 + [5.0], [1.5] * 10 + [5.0])
    assert (found.wins, found.losses, found.ties) == (8, 2, 1)
    assert found.p == pytest.approx(112 / 1024)
    assert shifted_geometric_mean([], 1.0) is None


def test_tables_of_a_report(report: Report) -> None:
    first, second, best = report.summary().rows
    assert list(first)[:7] == ["a_1", 3, 1, 1, 0, 1, 1]
    assert list(second)[:7] == ["<script>", 3, 0, 3, 0, 0, 3]
    assert list(best)[:1] == ["virtual best"]
    means = [row[7] for row in (first, second, best)]  # of x and y, which both methods solve
    assert means == pytest.approx([(11 * 21) ** 0.5 - 1, (6 * 21) ** 0.5 - 1, (6 * 21) ** 0.5 - 1])
    assert "2 with overheads" in report.summary().note
    assert list(report.duels().rows[0])[2:5] == [0, 2, 1]
    text = report.summary().latex()
    assert "a\\_1 & 3 & 1" in text
    assert text.count("\\\\\n") == 4


def test_page_shows_names_as_text_and_loads_nothing(report: Report) -> None:
    page = report.html()
    assert page.count("<script>") == 1
    assert "&lt;script&gt;" in page
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)
    assert page.count("<img") == 4


def test_overheads_are_medians_over_seeds_with_the_least_in_bold(report: Report) -> None:
    sheet = report.overheads()
    assert [list(row) for row in sheet.rows] == [
        ["x", "80%", 10.0, 5.0], ["y", "80%", 20.0, 20.0], ["z", "80%", None, 30.0]
    ]  # fmt: skip
    assert sheet.best == {(0, 3), (1, 2), (1, 3), (2, 3)}
    assert "x & 80\\% & 10 & \\textbf{5}" in sheet.latex()


def test_problems_without_a_schedule_are_left_out_of_profiles(report: Report) -> None:
    proved = result("z", "a_1", None)
    proved = replace(proved, row={"status": "infeasible", "total_seconds": 1.0})
    without = Report("r", [each for each in report.results if each.cell.instance != "z"] + [proved])
    assert len(without._feasible) == 2
    assert performance_profile(without.values(objective, without._feasible))["a_1"][-1][1] == 1.0


def test_figures_without_a_value_are_left_out() -> None:
    report = Report("r", [result("x", method, None) for method in ("a_1", "b")])
    assert report.figures() == {}
    assert "<img" not in report.html()


@needs_browser
def test_each_cell_is_linked_to_the_page_of_its_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Report, "figures", lambda _: {})  # drawing them takes seconds
    study = Study.from_mapping(
        {
            "name": "chains",
            "instances": {"generate": [{"generator": "unit-chain", "n": 5}]},
            "problem": {"budget": "80%"},
            "methods": [{"method": "greedy"}],
        },
        "sqlite://",
    )
    ((cell, *_),) = study.store.claim("chains", "me")
    study.store.finish(cell, "me", solve_here(study.store.task(cell)))
    page = study.report().html()
    assert f'href="#{cell.digest}"' in page
    assert f'href="#{cell.digest}"' not in study.report(pages=False).html()
    script = f"""
        document.querySelector("iframe").addEventListener("load", () => {{
          document.title = document.querySelector("iframe").contentDocument.querySelector("h1").textContent;
        }});
        location.hash = "{cell.digest}";
    """
    assert browse(page, script, tmp_path)["title"] == cell.title
    study.close()


def test_curves_of_budgets_have_a_panel_for_each_machine() -> None:
    machines = ["host=0,compute=1G", "rate=1GB/s,compute=1G"]
    study = Study.from_mapping(
        {
            "name": "chains",
            "instances": {"generate": [{"generator": "unit-chain", "n": 5}]},
            "problem": {"budget": [2, 5, 7], "machine": machines},
            "methods": [{"method": "greedy"}, {"method": "auto"}],
            "solve": {"time_limit": 60},
        },
        "sqlite://",
    )
    for cell, *_ in study.store.claim("chains", "me", limit=16):
        study.store.finish(cell, "me", solve_here(study.store.task(cell)))
    (word,) = [word for word in study.report().figures() if word.startswith("budgets-")]
    assert word == "budgets-unit-chain-n-5"
    (panels,) = budget_panels(study.results(), study.store).values()
    assert [panel.title for panel in panels] == [f"machine={each}" for each in machines]
    for panel in panels:
        best = panel.lines[1]
        assert best.cells[0].status == "infeasible" and best.bounds[0] is None
        values = [cell.value or 0 for cell in best.cells[1:]]
        assert values == sorted(values, reverse=True) and values[-1] == panel.problem.graph.base_cost
        assert all(cell.complete for cell in best.cells)
    figure = study.report().figures()[word][1]()
    assert len(figure.axes) == 2 and not collisions(figure)


def test_report_without_any_result() -> None:
    cells = [Result(each.cell, "waiting") for each in (result("x", "a", 1), result("x", "b", 1))]
    page = Report("empty", cells).html()
    assert "0 of 2 cells finished" in page
    assert "<img" not in page
