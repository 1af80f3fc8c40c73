"""``remat order`` through the real entry point."""

import json
from pathlib import Path

import pytest
from small_graphs import PUBLISHED_PEAKS

from remat.cli import main
from remat.graphs import GraphBuilder
from remat.graphs.io import read_graph, write_graph
from remat.schedule import Rules, validate
from remat.schedule.io import read_schedule

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def branches(tmp_path: Path) -> str:
    """Two branches, whose first halves the reference order computes first: peak 20 instead of 12."""
    b = GraphBuilder("branches")
    _ = b.op("a", size=2), b.op("b", inputs=["a"], size=9), b.op("c", inputs=["a"], size=9)
    _ = b.op("d", inputs=["b"], size=1), b.op("e", inputs=["c"], size=1), b.op("f", inputs=["d", "e"], size=1)
    path = tmp_path / "branches.json"
    write_graph(b.build(), path)
    return str(path)


def test_what_is_printed_and_written(branches: str, tmp_path: Path, capsys: Capture) -> None:
    out, picture, samples = tmp_path / "lean.json", tmp_path / "lean.svg", tmp_path / "samples.svg"
    files = ["-o", str(out), "--plot", str(picture), "--sample", "50", "--plot-samples", str(samples)]
    assert main(["order", branches, "--method", "serenity", "-q", *files]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[:5] == [
        "graph     branches: 6 ops",
        "before    20 bytes (reference order)",
        "after     12 bytes (40 % less)",
        "bound     12 bytes, serenity",
        "status    proved least by serenity",
    ]
    assert lines[5].startswith("method    serenity")
    assert lines[6].startswith("time ")
    assert not shown.err
    certificate = validate(read_graph(branches), read_schedule(out), Rules(budget=12, max_computes=1, order="free"))
    assert (certificate.accepted, certificate.peak) == (True, 12)
    drawn = picture.read_text(encoding="utf-8"), samples.read_text(encoding="utf-8")
    assert "reference order: peak 20 bytes" in drawn[0]
    assert "order by serenity: peak 12 bytes" in drawn[0]
    assert "50 orders of 6, every order equally likely" in drawn[1]
    assert "least peak: 12 bytes" in drawn[1]


def test_budget_json_and_auto(branches: str, capsys: Capture) -> None:
    assert main(["order", branches, "-q", "--json", "--budget", "60%", "--backend", "none"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["peak"], facts["proved"], facts["order"]) == (12, True, "free")
    assert facts["certificate"]["rules"]["max_computes"] == 1
    words = ["--method", "serenity", "--option", "divide=false", "--option", "step_seconds=0.5"]
    assert main(["order", branches, "-q", "--budget", "11", *words]) == 1
    assert "no schedule exists (by serenity); 12 bytes (60 %) are known to suffice" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), PUBLISHED_PEAKS)
def test_published_peaks_are_proved(shared: Path, name: str, least: int, capsys: Capture) -> None:
    """Without a word on the method."""
    assert main(["order", str(shared / "data" / "graphs" / f"{name}.json"), "-q", "-t", "60", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["peak"], facts["proved"], facts["certificate"]["recomputations"]) == (least, True, 0)
