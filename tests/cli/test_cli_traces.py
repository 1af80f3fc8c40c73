"""``remat trace``, ``remat layers`` and ``remat traffic`` through the entry point."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import steps
from shell import facts, ok

from remat.graphs import ComputeGraph
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.graphs.zoo import swiftnet_cell
from remat.graphs.zoo.transformers import gpt
from remat.schedule import Schedule, write_schedule


def write(graph: ComputeGraph, order: list[str]) -> None:
    write_graph(graph, "g.json")
    write_schedule(Schedule.from_steps([("compute", name) for name in order]), "s.json")


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three equal layers, and a schedule that recomputes one op of each."""
    monkeypatch.chdir(tmp_path)
    graph = gpt(layers=3, sequence=16, width=32, heads=2, vocabulary=50)
    order = list(graph.order or ())
    for layer in range(3):
        order.insert(order.index(f"grad_layers.{layer}.mlp.up"), f"layers.{layer}.mlp.gelu")
    write(graph, order)


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SwiftNet's cell A without copies, and a schedule that computes ``cell_a/id`` second."""
    monkeypatch.chdir(tmp_path)
    graph = swiftnet_cell(fold_concats=True)
    order = list(graph.order or ())
    order.insert(1, order.pop(order.index("cell_a/id")))
    write(graph, order)


@pytest.mark.usefixtures("step")
def test_trace_formats_and_given_addresses() -> None:
    shown = ok("trace g.json s.json --budget 100% -o t.json -o t.pickle -o t.pftrace")
    assert shown.err == ""
    assert [line.split()[0] for line in shown.out.splitlines()] == ["t.json", "t.pickle", "t.pftrace"]
    assert b"bytes" in Path("t.pftrace").read_bytes()
    found = json.loads(Path("t.json").read_text())["otherData"]
    assert found["budget"] >= found["peak"] > 0
    ok("allocate g.json s.json --method first-fit -q -o a.json")
    ok("trace g.json s.json -o p.pickle --addresses a.json")
    offsets = {entry["offset"] for entry in json.loads(Path("a.json").read_text())["buffers"]}
    for path in ("t.pickle", "p.pickle"):
        held, most, where = 0, 0, set()
        for event in pickle.loads(Path(path).read_bytes())["device_traces"][0]:
            held += {"alloc": 1, "free_completed": -1}.get(event["action"], 0) * event["size"]
            most = max(most, held)
            where |= {event["addr"]} if event["action"] == "alloc" else set()
        assert most == found["peak"]
    assert where == offsets


def test_trace_and_addresses_of_transfers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_graph(replace(unit_chain(2), cost_unit="us"), "g.json")
    write_schedule(steps("f0 f1 >f0 -f0 loss g1 -loss -f1 <f0 g0"), "s.json")
    ok("trace g.json s.json --machine rate=1MB/s -o t.json -o t.pftrace")
    found = json.loads(Path("t.json").read_text())["otherData"]
    assert (found["time"], found["stall"], found["peak"], found["host_peak"]) == (7, 2, 3, 1)
    ok("allocate g.json s.json --method first-fit -q -o a.json")
    buffers = {entry["id"] for entry in json.loads(Path("a.json").read_text())["buffers"]}
    assert "f0#2 fetched" in buffers
    ok("trace g.json s.json -o p.pickle --addresses a.json")
    assert "--machine" in ok("trace g.json s.json -o u.json", code=2).err
    assert not Path("u.json").exists()


@pytest.mark.usefixtures("step")
def test_layers_prints_and_writes_tables() -> None:
    shown = ok("layers g.json s.json -o l.csv -o l.md").out
    assert "layers.0-2 (3x)" in shown and "total" in shown
    assert Path("l.md").read_text().startswith("| layer | ops |")
    found = facts("layers g.json s.json --all")
    layers = [row["layer"] for row in found["rows"] if row["layer"].startswith("layers")]
    assert layers == ["layers.0", "layers.1", "layers.2"]
    assert Path("l.csv").read_text().splitlines()[-1].split(",")[5] == str(found["total"]["recomputed"]) != "0"
    assert "softmax_backward" in ok("layers g.json --by type").out  # of the reference order


@pytest.mark.usefixtures("cell")
def test_traffic_prints_and_writes_tables_and_plot() -> None:
    shown = ok("traffic g.json s.json --on-chip 128KiB,192KiB --on-chip 262144 -o t.json -o t.csv --plot t.png")
    lines = [line for line in shown.out.splitlines() if line.strip()]
    assert lines[1].split() == ["on", "chip", "fetched", "written", "total", "reference", "order", "times", "less"]
    assert [line.split()[0] for line in lines[3:6]] == ["131,072", "196,608", "262,144"]
    assert lines[6] == "blocks of 512 bytes; graph inputs, compulsory: 0 bytes"
    assert not shown.err
    found = json.loads(Path("t.json").read_text())
    assert found["graph"] == "swiftnet-a-folded-b1"
    first = found["rows"][0]
    assert (first["on_chip"], first["reference_total"], first["block"]) == (131_072, 317_440, 512)
    assert first["total"] == first["fetched"] + first["written"]
    assert first["times_less"] == first["reference_total"] / first["total"]
    heads, *data = Path("t.csv").read_text().splitlines()
    assert heads.split(",") == list(first)
    assert len(data) == 3
    assert Path("t.png").read_bytes().startswith(b"\x89PNG")
    (row,) = facts("traffic g.json s.json --on-chip 200kB --block 4KiB")["rows"]
    assert (row["on_chip"], row["block"]) == (200_000, 4096)
