"""Interactive pages of comparisons and frontiers."""

import json
from functools import cache
from pathlib import Path

import pytest
from browser import browse, embedded, needs_browser
from shell import ok

from remat.experiments.compare import compare
from remat.experiments.frontier import frontier
from remat.experiments.frontier_result import Frontier
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.problem import Problem
from remat.runtime.sizes import size_unit

#: Overhead in % of costs of the chain of 6.
OVERHEAD = {cost: 100 * (cost - 13) / 13 for cost in (15, 16, 18)}


@cache
def curve() -> Frontier:
    return frontier(Problem(unit_chain(6)), [2, 4, 5, 6], ["checkmate/highs", "greedy"], stop=60)


def test_frontier_page_has_all_cells() -> None:
    """The chain costs 13 without recomputation, and 18, 16 and 15 at budgets 4, 5 and 6; no schedule fits 2."""
    found = curve()
    problem = found.problem
    data = embedded(found.page())
    first, second = data["panels"][0]["series"]
    assert (first["name"], second["name"]) == ("checkmate/highs", "greedy")
    assert [mark[:3] for mark in first["marks"]] == [
        [2, None, 2],
        [4, OVERHEAD[18], 1],
        [5, OVERHEAD[16], 1],
        [6, OVERHEAD[15], 1],
    ]
    assert first["line"][-1] == [6, OVERHEAD[15]] and first["bound"][0] == [4, OVERHEAD[18]]
    assert data["panels"][0]["below"] == problem.structural_peak / size_unit(problem.reference_peak)[0]
    assert found.page() == found.page()


def test_comparison_page_lists_methods_without_a_schedule() -> None:
    found = compare(Problem(unit_chain(6)), [4, 2], ["checkmate/highs", "greedy"], stop=60)
    data = embedded(found.page())
    assert [panel["title"] for panel in data["panels"]] == ["budget 4 (4 bytes)"]  # no curve at 2
    optimal = data["panels"][0]["series"][0]
    assert optimal["line"][-1][1] == optimal["bound"][-1][1] == OVERHEAD[18]
    assert [mark[2] for mark in optimal["marks"]][-1] == 1
    best = data["panels"][0]["best"]  # Checkmate's proof covers schedules in stages only
    assert (best["value"], best["whole"], best["text"]) == (0, 100, "0 %")
    assert all("budget 2" in text for _, text in data["lines"]) and len(data["lines"]) == 2


@needs_browser
def test_browser_draws_charts(tmp_path: Path) -> None:
    """Marks by key, by the pointer and by name; both axes."""
    page = curve().page()
    script = """
      const seen = {}, text = () => element("detail").textContent;
      const press = key => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      seen.start = text(); press("ArrowRight"); seen.right = text(); press("ArrowDown"); seen.down = text();
      element("find").value = "greedy"; find(); seen.found = element("found").textContent;
      element("extra").querySelector("button").click(); draw(); seen.log = element("extra").textContent;
      picture.point(view.width - 20, view.height / 2); seen.last = text();
      document.title = JSON.stringify(seen);
    """
    seen = json.loads(browse(page, script, tmp_path)["title"])
    assert "checkmate/highs" in seen["start"] and "budget4 bytes" in seen["start"]
    assert "budget5 bytes" in seen["right"] and "greedy" in seen["down"]
    assert seen["found"] == "4 found" and "axis: log" in seen["log"] and "budget6 bytes" in seen["last"]


@pytest.mark.slow
@needs_browser
def test_browser_draws_gaps_to_the_best_bound(tmp_path: Path) -> None:
    """The optimum 18 in stages lies 38 % above 13, the best bound that covers every schedule."""
    page = compare(Problem(unit_chain(6)), [4], ["checkmate/highs"], stop=60).page()
    script = """
      const texts = [], fill = pen.fillText.bind(pen);
      pen.fillText = (text, x, y) => { texts.push([text, y]); fill(text, x, y); };
      draw(); const gaps = texts.splice(0);
      [...element("extra").querySelectorAll("button")].find(each => each.textContent === "heights: gap").click();
      draw(); document.title = JSON.stringify([gaps, texts, element("extra").textContent]);
    """
    gaps, values, buttons = json.loads(browse(page, script, tmp_path)["title"])
    heights = dict(gaps)
    assert heights["+10"] < heights["0"] < heights["best bound 0 %: no schedule below"]
    assert any(text.startswith("cost above the best bound (%)") for text in heights)
    assert any(text.startswith("overhead (%)") for text, _ in values) and "heights: value" in buttons


def test_commands_write_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_graph(unit_chain(4), "chain.json")
    ok("compare chain.json -b 5 -m greedy -t 20 -q --plot c.html")
    ok("frontier chain.json -b 4,5 -m greedy -t 20 -q --plot f.html")
    assert embedded(Path("c.html").read_text())["axis"] == "seconds"
    assert embedded(Path("f.html").read_text())["axis"] == "budget (bytes)"
