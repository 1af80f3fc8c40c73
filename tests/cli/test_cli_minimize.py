"""``remat minimize`` and ``remat order`` through the entry point."""

import sys
from pathlib import Path

import pytest
from shell import OWN_CLASSES, facts, ok
from small_graphs import PUBLISHED_PEAKS

from remat.graphs import GraphBuilder
from remat.graphs.io import read_graph, write_graph
from remat.schedule import Rules, validate
from remat.schedule.io import read_schedule
from remat.solving import min_peak

pytestmark = pytest.mark.usefixtures("folder")
SEARCH = "minimize chain.json --backend none -t 60 -q"


def test_minimize_prints_and_writes() -> None:
    shown = ok(f"{SEARCH} -o lean.json --plot lean.svg")
    lines = shown.out.splitlines()
    assert lines[0] == "status    proved least (stopped: finished)"
    assert "peak      3 bytes (50 % of the reference peak)" in lines
    assert any("cost 15 (each op once 9) (no schedule within this peak is cheaper)" in line for line in lines)
    assert not shown.err
    certificate = validate(read_graph("chain.json"), read_schedule("lean.json"), Rules(budget=3))
    assert (certificate.accepted, certificate.cost) == (True, 15)
    assert Path("lean.svg").read_bytes().startswith(b"<?xml")


def test_minimize_as_json_with_rules() -> None:
    found = facts(f"{SEARCH} --order free --max-computes 1 --keep f0")
    assert (found["proved"], found["cost_proved"], found["order"]) == (True, True, "free")
    rules = found["certificate"]["rules"]
    assert (rules["keep"], rules["max_computes"]) == (["f0"], 1)
    assert found["peak"] == found["bound"] == rules["budget"] == 6


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("solve chain.json -b 5 --method mine_here:Mine --json", '"method": "mine"'),
        ("solve chain.json -b 3 -m checkmate --backend mine_here:MySolver --json", "my-solver"),
        ("compare chain.json -b 5 -m mine_here:Mine -m checkmate/mine_here:MySolver", "my-solver"),
        ("minimize chain.json --method mine_here:Mine --json", '"method": "mine"'),
    ],
)
def test_classes_of_the_current_folder(line: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the program, ``sys.path`` lacks the folder at first."""
    Path("mine_here.py").write_text(OWN_CLASSES)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    monkeypatch.delitem(sys.modules, "mine_here", raising=False)
    assert expected in ok(line, "-q").out


def test_minimize_passes_limits_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, minimize = [], min_peak.minimize
    monkeypatch.setattr(
        min_peak, "minimize", lambda *args, **more: calls.append(more["options"]) or minimize(*args, **more)
    )
    words = "--gap 0.25 --isolate --memory-limit 3GiB --threads 1"
    assert "least" in ok(f"minimize chain.json -q -t 60 {words}").out
    (options,) = calls
    assert (options.relative_gap, options.isolate, options.memory_bytes) == (0.25, True, 3 * 2**30)


def test_solve_for_least_peak() -> None:
    found = facts("solve chain.json --objective least-peak -q -t 60")
    assert (found["peak"], found["proved"]) == (3, True)


# -- order -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def branches(folder: Path) -> None:
    """Two branches; the reference order computes both first halves first: peak 20 instead of 12."""
    b = GraphBuilder("branches")
    _ = b.op("a", size=2), b.op("b", inputs=["a"], size=9), b.op("c", inputs=["a"], size=9)
    _ = b.op("d", inputs=["b"], size=1), b.op("e", inputs=["c"], size=1), b.op("f", inputs=["d", "e"], size=1)
    write_graph(b.build(), "branches.json")


@pytest.mark.usefixtures("branches")
def test_order_prints_and_writes() -> None:
    files = "-o lean.json --plot lean.svg --sample 50 --plot-samples samples.svg"
    shown = ok(f"order branches.json --method serenity -q {files}")
    lines = shown.out.splitlines()
    assert lines[:5] == [
        "graph     branches: 6 ops",
        "before    20 bytes (reference order, 66.67 % above the least)",
        "after     12 bytes (40 % less)",
        "bound     12 bytes, serenity",
        "status    proved least by serenity",
    ]
    assert lines[5].startswith("method    serenity")
    assert lines[6].startswith("time ")
    assert not shown.err
    rules = Rules(budget=12, max_computes=1, order="free")
    certificate = validate(read_graph("branches.json"), read_schedule("lean.json"), rules)
    assert (certificate.accepted, certificate.peak) == (True, 12)
    for picture, *words in (
        ("lean.svg", "reference order: peak 20 bytes", "order by serenity: peak 12 bytes"),
        ("samples.svg", "50 orders of 6, every order equally likely", "least peak: 12 bytes"),
    ):
        drawn = Path(picture).read_text(encoding="utf-8")
        assert all(word in drawn for word in words)


@pytest.mark.usefixtures("branches")
def test_order_with_a_budget() -> None:
    found = facts("order branches.json -q --budget 60% --backend none")
    assert (found["peak"], found["proved"], found["order"]) == (12, True, "free")
    assert found["certificate"]["rules"]["max_computes"] == 1
    words = "--method serenity --option divide=false --option step_seconds=0.5"
    shown = ok(f"order branches.json -q --budget 11 {words}", code=1).out
    assert "no schedule exists (by serenity); 12 bytes (60 %) are known to suffice" in shown


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), PUBLISHED_PEAKS)
def test_published_peaks_are_proved(shared: Path, name: str, least: int) -> None:
    """By the default method."""
    found = facts("order", shared / "data" / "graphs" / f"{name}.json", "-q", "-t", "60")
    assert (found["peak"], found["proved"], found["certificate"]["recomputations"]) == (least, True, 0)
