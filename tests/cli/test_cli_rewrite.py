"""``remat rewrite``: what it writes and prints, and what it refuses."""

import json
from pathlib import Path

import pytest

from remat.cli import main
from remat.graphs import read_graph, write_graph
from remat.graphs.families import unit_chain
from remat.graphs.zoo import ZOO

Capture = pytest.CaptureFixture[str]


def test_it_writes_the_graph_and_says_what_was_done(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "rewritten.json"
    assert main(["rewrite", "swiftnet-b-folded", "-o", str(out), "--check"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "graph       swiftnet-b-folded-b1: 19 ops, 28 after rewriting\n" in shown.out
    assert "rewrites    1 parallel-parts, 2 partial-sums\n" in shown.out
    assert "            cell_b/project: 6 parts, added up in one buffer\n" in shown.out
    assert "peak        81,536 -> 56,448 bytes (-30.77 %), each in the best order found\n" in shown.out
    assert "bound       81,536 -> 56,448 bytes for any order: both proved least\n" in shown.out
    assert "cost        13,735,680 mac, as before\n" in shown.out
    assert "check       18 tensors agree within " in shown.out
    graph = read_graph(out)
    assert graph.reference_peak == 56448
    assert graph.meta["rewriting"][0]["digest"] == ZOO["swiftnet-b-folded"]().digest


def test_search_options_and_json(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "rewritten.json"
    words = ["--search", "--min-parts", "2", "--parts", "3", "--split-workspace", "--json", "-q"]
    assert main(["rewrite", "swiftnet-b", "-o", str(out), *words]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["peak"][0] == facts["bound"][0] == 122304
    assert facts["peak"][1] == facts["bound_of_all_choices"] == read_graph(out).reference_peak
    assert facts["complete"]
    assert max(len(rewrite["parts"]) for rewrite in facts["rewrites"] if rewrite["rule"] == "partial-sums") == 3
    assert main(["rewrite", "swiftnet-c", "-o", "-", "--accumulator-bytes", "4", "--rules", "zero-copy-concat"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["name"] == "swiftnet-c-b1_rewritten"
    assert "rewrites    3 zero-copy-concat\n" in shown.err


def test_nothing_to_rewrite(tmp_path: Path, capsys: Capture) -> None:
    write_graph(unit_chain(4), tmp_path / "chain.json")
    assert main(["rewrite", str(tmp_path / "chain.json"), "-o", str(tmp_path / "o.json")]) == 0
    assert "rewrites    none is possible; the graph has no shapes\n" in capsys.readouterr().out
    assert read_graph(tmp_path / "o.json").reference_peak == 6


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The graph goes to the current folder instead, and the exit code is that of an error."""
    monkeypatch.chdir(tmp_path)
    assert main(["rewrite", "swiftnet-b-folded", "-o", "/dev/full"]) == 2
    assert "No space left on device; it is in " in capsys.readouterr().err
    (kept,) = tmp_path.iterdir()
    assert read_graph(kept).reference_peak == 56448
