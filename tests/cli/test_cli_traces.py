"""``remat trace`` and ``remat layers`` through the real entry point."""

import json
import pickle
from pathlib import Path

import pytest

from remat.cli import main
from remat.graphs.io import write_graph
from remat.graphs.zoo.gpt import gpt
from remat.schedule import Schedule, write_schedule

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def step(tmp_path: Path) -> list[str]:
    """Three equal layers, and a schedule that computes an op of each of them again."""
    graph = gpt(layers=3, sequence=16, width=32, heads=2, vocabulary=50)
    order = list(graph.order or ())
    for layer in range(3):
        order.insert(order.index(f"grad_layers.{layer}.mlp.up"), f"layers.{layer}.mlp.gelu")
    write_graph(graph, tmp_path / "g.json")
    write_schedule(Schedule.from_steps([("compute", name) for name in order]), tmp_path / "s.json")
    return [str(tmp_path / "g.json"), str(tmp_path / "s.json")]


def test_both_traces_and_addresses_of_another_command(step: list[str], tmp_path: Path, capsys: Capture) -> None:
    chrome, snapshot, placed, addresses = (str(tmp_path / n) for n in ("t.json", "t.pickle", "p.pickle", "a.json"))
    assert main(["trace", *step, "--budget", "100%", "-o", chrome, "-o", snapshot]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert [line.split()[0] for line in shown.out.splitlines()] == [chrome, snapshot]
    facts = json.loads(Path(chrome).read_text())["otherData"]
    assert facts["budget"] >= facts["peak"] > 0
    assert main(["allocate", *step, "--method", "first-fit", "-q", "-o", addresses]) == 0
    assert main(["trace", *step, "-o", placed, "--addresses", addresses]) == 0
    offsets = {entry["offset"] for entry in json.loads(Path(addresses).read_text())["buffers"]}
    for path in (snapshot, placed):
        held, most, where = 0, 0, set()
        for event in pickle.loads(Path(path).read_bytes())["device_traces"][0]:
            held += {"alloc": 1, "free_completed": -1}.get(event["action"], 0) * event["size"]
            most = max(most, held)
            where |= {event["addr"]} if event["action"] == "alloc" else set()
        assert most == facts["peak"]
    assert where == offsets


def test_layers_on_the_terminal_and_in_files(step: list[str], tmp_path: Path, capsys: Capture) -> None:
    table = tmp_path / "l.csv"
    assert main(["layers", *step, "-o", str(table), "-o", str(tmp_path / "l.md")]) == 0
    shown = capsys.readouterr().out
    assert "layers.0-2 (3x)" in shown
    assert "total" in shown
    assert (tmp_path / "l.md").read_text().startswith("| layer | ops |")
    assert main(["layers", *step, "--all", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [row["layer"] for row in facts["rows"] if row["layer"].startswith("layers")] == [
        "layers.0", "layers.1", "layers.2"
    ]  # fmt: skip
    assert table.read_text().splitlines()[-1].split(",")[5] == str(facts["total"]["recomputed"]) != "0"
    assert main(["layers", step[0], "--by", "type"]) == 0  # of the reference order
    assert "softmax_backward" in capsys.readouterr().out
