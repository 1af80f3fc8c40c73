"""Arenas by order and allocator."""

import pytest
from refusals import refused

from remat.cli import main
from remat.experiments.arenas import Arena, arenas, plot_arenas
from remat.graphs.families import in_tree


def test_arenas_of_every_order_and_allocator() -> None:
    graph = in_tree(3)
    table = arenas(graph, ("reference", "kahn"), ("first-fit", "auto"))
    found = table.found
    assert [(a.order, a.allocator) for a in found] == [
        (order, method) for order in ("reference", "kahn") for method in ("first-fit", "auto")
    ]
    assert all(a.arena is not None and a.arena >= a.bound >= a.peak for a in found)
    lines = table.to_csv().splitlines()
    assert lines[0] == "order,allocator,peak,arena,bound,seconds"
    assert len(lines) == 5
    with refused("remat.unknown-name", culprit="frist-fit"):
        arenas(graph, ("reference",), ("frist-fit",))


@pytest.mark.slow
def test_arenas_command_on_swiftnet(tmp_path, capsys) -> None:
    """The search reaches the least peak of the whole network."""
    words = ["--order", "auto", "--method", "first-fit", "--method", "auto", "-t", "60"]
    files = ["-o", str(tmp_path / "a.csv"), "--plot", str(tmp_path / "a.svg")]
    assert main(["arenas", "swiftnet-folded", *words, *files]) == 0
    rows = [line.split(",") for line in (tmp_path / "a.csv").read_text().splitlines()[1:]]
    assert [row[:3] for row in rows] == [["optimal", m, "200704"] for m in ("first-fit", "auto")]
    assert rows[1][3] == "200704"
    assert int(rows[0][3]) >= 200704
    assert "optimal" in (tmp_path / "a.svg").read_text()


def test_plot_of_arenas() -> None:
    found = [Arena("x", "one", 10, 12, 10, 0.1), Arena("x", "two", 10, None, 10, 0.1), Arena("y", "one", 8, 8, 8, 0.1)]
    axes = plot_arenas(found, "two orders")
    assert [round(bar.get_height()) for bar in axes.patches] == [12, 8]
    assert [line.get_ydata()[0] for line in axes.lines] == [10, 8]
    assert [text.get_text() for text in axes.texts] == ["+20.0 %"]
