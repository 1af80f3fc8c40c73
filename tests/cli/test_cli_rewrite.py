"""``remat rewrite`` through the entry point."""

import json
from pathlib import Path

import pytest
from shell import facts, ok

from remat.cli import main
from remat.graphs import read_graph
from remat.graphs.zoo import ZOO

pytestmark = pytest.mark.usefixtures("folder")


def test_rewrite_writes_a_graph_and_prints_rewrites() -> None:
    shown = ok("rewrite swiftnet-b-folded -o r.json --check")
    assert shown.err == ""
    for words in (
        "graph       swiftnet-b-folded-b1: 19 ops, 28 after rewriting\n",
        "rewrites    1 parallel-parts, 2 partial-sums\n",
        "            cell_b/project: 6 parts, added up in one buffer\n",
        "peak        81,536 -> 56,448 bytes (-30.77 %), each in the best order found\n",
        "bound       81,536 -> 56,448 bytes for any order: both proved least\n",
        "cost        13,735,680 mac, as before\n",
        "check       18 tensors agree within ",
    ):
        assert words in shown.out
    graph = read_graph("r.json")
    assert graph.reference_peak == 56448
    assert graph.meta["rewriting"][0]["digest"] == ZOO["swiftnet-b-folded"]().digest


def test_rewrite_with_search_and_rules(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts("rewrite swiftnet-b -o r.json --search --min-parts 2 --parts 3 --split-workspace -q")
    assert found["peak"][0] == found["bound"][0] == 122304
    assert found["peak"][1] == found["bound_of_all_choices"] == read_graph("r.json").reference_peak
    assert found["complete"]
    assert max(len(rewrite["parts"]) for rewrite in found["rewrites"] if rewrite["rule"] == "partial-sums") == 3
    words = ["--accumulator-bytes", "4", "--rules", "zero-copy-concat"]
    assert main(["rewrite", "swiftnet-c", "-o", "-", *words]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["name"] == "swiftnet-c-b1_rewritten"
    assert "rewrites    3 zero-copy-concat\n" in shown.err


def test_graph_without_shapes_stays_unchanged() -> None:
    assert "rewrites    none is possible; the graph has no shapes\n" in ok("rewrite chain.json -o o.json").out
    assert read_graph("o.json").reference_peak == 6


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_graph_is_written_elsewhere_on_a_full_disk(folder: Path) -> None:
    """The exit code is that of an error."""
    assert "No space left on device; it is in " in ok("rewrite swiftnet-b-folded -o /dev/full", code=2).err
    (kept,) = (path for path in folder.iterdir() if path.name != "chain.json")
    assert read_graph(kept).reference_peak == 56448
