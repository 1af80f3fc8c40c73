"""Statistics and reports of studies."""

import re
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from remat.studies.plan import Cell
from remat.studies.report import Report
from remat.studies.statistics import duel, performance_profile, shifted_geometric_mean
from remat.studies.store import Result


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
    assert best[7] == pytest.approx((6 * 21 * 31) ** (1 / 3) - 1)
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
