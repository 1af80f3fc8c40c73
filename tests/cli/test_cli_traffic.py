"""``remat traffic`` through the real entry point."""

import json
from pathlib import Path

import pytest

from remat.cli import main
from remat.graphs.io import write_graph
from remat.graphs.zoo import swiftnet_cell
from remat.schedule import Schedule, write_schedule

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def cell(tmp_path: Path) -> list[str]:
    """SwiftNet's cell A without copies, and a schedule that keeps the wide ends of the cell for last."""
    graph = swiftnet_cell(fold_concats=True)
    order = list(graph.order or ())
    order.insert(1, order.pop(order.index("cell_a/id")))
    write_graph(graph, tmp_path / "g.json")
    write_schedule(Schedule.from_steps([("compute", name) for name in order]), tmp_path / "s.json")
    return [str(tmp_path / "g.json"), str(tmp_path / "s.json")]


def test_table_files_and_picture(cell: list[str], tmp_path: Path, capsys: Capture) -> None:
    table, rows, picture = (tmp_path / name for name in ("t.json", "t.csv", "t.png"))
    words = [
        "--on-chip",
        "128KiB,192KiB",
        "--on-chip",
        "262144",
        "-o",
        str(table),
        "-o",
        str(rows),
        "--plot",
        str(picture),
    ]
    assert main(["traffic", *cell, *words]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].split() == ["on", "chip", "fetched", "written", "total", "reference", "order", "times", "less"]
    assert [line.split()[0] for line in lines[1:4]] == ["131,072", "196,608", "262,144"]
    assert lines[4] == "blocks of 512 bytes; graph inputs, compulsory: 0 bytes"
    assert not shown.err
    found = json.loads(table.read_text())
    assert found["graph"] == "swiftnet-a-folded-b1"
    first = found["rows"][0]
    assert (first["on_chip"], first["reference_total"], first["block"]) == (131_072, 317_440, 512)
    assert first["total"] == first["fetched"] + first["written"]
    assert first["times_less"] == first["reference_total"] / first["total"]
    heads, *data = rows.read_text().splitlines()
    assert heads.split(",") == list(first)
    assert len(data) == 3
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_json_and_block(cell: list[str], capsys: Capture) -> None:
    assert main(["traffic", *cell, "--on-chip", "200kB", "--block", "4KiB", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["on_chip"], row["block"]) == (200_000, 4096)
