"""Objects in a notebook: short texts, HTML with escaped names, pictures and data frames."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from helpers import few
from refusals import refused

from remat import (
    Problem,
    SolveOptions,
    compare,
    frontier,
    max_batch,
    minimize,
    order,
    read_graph,
    read_schedule,
    simulate,
    solve,
    validate,
    write_graph,
)
from remat.allocation.entry import allocate
from remat.allocation.problem import AllocationProblem
from remat.config import Config
from remat.experiments.arenas import arenas
from remat.experiments.max_batch import as_family
from remat.experiments.trade_off import trade_off
from remat.graphs import ComputeGraph
from remat.graphs.batch_scaling import AffineGraph
from remat.graphs.families import unit_chain
from remat.graphs.zoo import ZOO
from remat.io.figures import write_figure
from remat.schedule import Schedule, schedule_buffers
from remat.schedule.buffer_tables import read_table

GRAPH = replace(unit_chain(6), name="<b>$chain")
PROBLEM = Problem(GRAPH, 5)
ONE = SolveOptions(threads=1)


@cache
def viewed(name: str) -> Any:
    """Return an object by its name."""
    return VIEWED[name]()


#: What makes each object; on first use, since every process that collects the tests reads this module.
VIEWED: dict[str, Callable[[], Any]] = {
    "graph": lambda: GRAPH,
    "problem": lambda: PROBLEM,
    "result": lambda: solve(PROBLEM, "greedy", options=ONE),
    "certificate": lambda: viewed("result").certificate,
    "comparison": lambda: compare(PROBLEM, [4, 5], ["greedy"], options=ONE),
    "frontier": lambda: frontier(PROBLEM, [4, 5], ["greedy"], options=ONE),
    "trade-off": lambda: trade_off(viewed("comparison")),
    "batch": lambda: max_batch(AffineGraph.scaled(GRAPH, 1), 40, "greedy", options=ONE),
    "arenas": lambda: arenas(GRAPH, ("reference", "kahn"), ("first-fit",)),
    "arena": lambda: arenas(GRAPH, ("reference",), ("first-fit",)).found[0],
    "addresses": lambda: allocate(AllocationProblem(schedule_buffers(GRAPH, Schedule.reference(GRAPH))), "first-fit"),
}


#: Tables that share their code with those of comparisons.
SIMILAR = ("frontier", "trade-off", "batch")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SIMILAR)) for name in VIEWED])
def test_notebooks_show_objects(name: str) -> None:
    shown = viewed(name)
    html = shown._repr_html_()
    assert "<b>" not in html
    assert ("image/png" in html) is hasattr(shown, "plot")
    assert len(repr(shown)) < 120
    if name == "result":  # the HTML of the others contains their picture
        assert shown.plot()._repr_png_().startswith(b"\x89PNG")


def test_tables_become_data_frames() -> None:
    matrix, curve, result, batch = (viewed(name) for name in ("comparison", "frontier", "result", "batch"))
    assert list(matrix.to_frame()["status"]) == [run["status"] for run in matrix.rows()]
    assert curve.to_frame()["cost"].tolist() == [cell.cost for cell in curve.of("greedy")]
    assert GRAPH.to_frame()["cost"].sum() == GRAPH.base_cost
    assert result.to_frame()["cost"].iloc[-1] == result.cost
    assert list(batch.to_frame()["batch"]) == [probe.batch for probe in batch.probes]
    found = viewed("addresses")
    assert (found.to_frame()["address"] + found.to_frame()["bytes"]).max() == found.price
    assert viewed("certificate").to_frame().empty


@pytest.mark.parametrize("name", few(["comparison", "frontier", "arenas", "trade-off"], 2))
def test_tables_save_themselves(name: str, tmp_path: Path) -> None:
    table, page = viewed(name), name in ("comparison", "frontier")
    for suffix in (".csv", ".json", ".png", *[".html"] * page):
        table.save(tmp_path / f"table{suffix}")
    assert (tmp_path / "table.csv").read_text() == table.to_csv()
    assert json.loads((tmp_path / "table.json").read_text())
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
    with refused("format.table"):
        table.save(tmp_path / ("table.txt" if page else "table.html"))


def test_arenas_save_themselves_one_by_one(tmp_path: Path) -> None:
    arena = viewed("arena")
    arena.save(tmp_path / "arena.json")
    assert json.loads((tmp_path / "arena.json").read_text())[0]["arena"] == arena.arena == arena.to_frame()["arena"][0]


def test_batches_save_their_schedule(tmp_path: Path) -> None:
    batch = viewed("batch")
    batch.save(tmp_path / "schedule.json")
    assert validate(batch.graph, read_schedule(tmp_path / "schedule.json")).peak <= 40
    with refused("problem.no-schedule-to-save"):
        replace(batch, schedule=None).save(tmp_path / "none.json")


def test_results_without_addresses_are_neither_drawn_nor_saved() -> None:
    none = replace(viewed("addresses"), addresses=None)
    with refused("problem.no-addresses"):
        none.plot()
    assert "bound" in none._repr_html_()


def test_problems_take_what_people_have(tmp_path: Any) -> None:
    chain = nx.DiGraph([("a", "b")])
    nx.set_node_attributes(chain, {node: {"size": 4, "cost": 1} for node in chain})
    write_graph(GRAPH, tmp_path / "graph.json")
    assert Problem(chain).graph == ComputeGraph.from_networkx(chain)
    assert Problem(tmp_path / "graph.json").graph == GRAPH
    assert Problem("vgg16").graph.name == "vgg16-b256"
    assert order(chain, "kahn").proved and minimize(chain, stop=5, options=ONE).proved
    assert compare(chain, ["100%"], ["greedy"], options=ONE).runs[0].result is not None
    assert frontier(tmp_path / "graph.json", [5], ["greedy"], options=ONE).problem.graph == GRAPH
    assert as_family("vgg16").at(2).digest == as_family(ZOO["vgg16"]).at(2).digest == ZOO["vgg16"](2).digest
    with refused("graph.no-graph", culprit="vgg61"):
        as_family("vgg61")
    with refused("problem.not-a-list", culprit="80%"):
        compare(GRAPH, "80%", ["greedy"])
    with refused("graph.not-a-graph"):
        Problem(Schedule.reference(GRAPH))  # type: ignore[arg-type]


@pytest.mark.slow
def test_pictures_are_the_same_bytes_in_each_format(tmp_path: Any) -> None:
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        texts = []
        for name in ("a", "b"):
            path = tmp_path / f"{name}{suffix}"
            write_figure(path, viewed("comparison").plot)
            texts.append(path.read_bytes())
        assert texts[0] == texts[1] and texts[0].startswith(start)
    with refused("format.picture"):
        write_figure(tmp_path / "x.gif", viewed("comparison").plot)


def test_unknown_arguments_are_refused_with_the_known_ones() -> None:
    with refused("problem.no-argument", culprit="time_limit"):
        compare(PROBLEM, [4], ["greedy"], time_limit=5)  # type: ignore[call-arg]
    with refused("problem.no-argument", culprit="kep"):
        max_batch("vgg16", "16GiB", "greedy", kep=())  # type: ignore[call-arg]


def test_parts_of_an_allocation_have_short_texts() -> None:
    found = viewed("addresses")
    assert all(len(repr(part)) < 100 for part in (found.problem, found.addresses, found.problem.buffers))


def test_method_may_name_its_backend() -> None:
    assert solve(PROBLEM, "checkmate/highs", options=ONE).backend == "highs"
    assert (
        Config.from_mapping({"solve": {"method": "checkmate/highs"}, "problem": {"graph": "x"}}).solve.backend
        == "highs"
    )
    with refused("format.two-backends"):
        Config.from_mapping({"solve": {"method": "checkmate/highs", "backend": "cp-sat"}, "problem": {"graph": "x"}})


def test_graphs_and_problems_save_themselves(tmp_path: Path) -> None:
    """A saved graph is read back equal; a saved problem is a configuration for the same question."""
    GRAPH.save(tmp_path / "graph.json")
    assert read_graph(tmp_path / "graph.json") == GRAPH
    asked = Problem(GRAPH, 0.9, max_computes={"f0": 2, "f1": 1}, keep=["f2"], order="free", count_constant_memory=True)
    asked.save(tmp_path / "asked.toml")
    with warnings.catch_warnings(action="error"):
        found = Config.from_file(tmp_path / "asked.toml").make_problem()
    assert found.rows() == asked.rows() and found.max_computes == asked.max_computes
    for shown in (GRAPH, PROBLEM):
        shown.save(tmp_path / "picture.png")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
        with refused("format.suffix"):
            shown.save(tmp_path / "x.txt")


def test_functions_take_files_names_and_networkx(tmp_path: Path) -> None:
    GRAPH.save(tmp_path / "graph.json")
    result = viewed("result")
    result.save(tmp_path / "schedule.json")
    for graph in (GRAPH, tmp_path / "graph.json", str(tmp_path / "graph.json"), GRAPH.to_networkx()):
        for schedule in (result.schedule, tmp_path / "schedule.json"):
            assert validate(graph, schedule).peak == simulate(graph, schedule).peak == result.peak
        assert solve(graph, "greedy", budget=5, options=ONE).cost == result.cost
        assert allocate(graph, "first-fit").price == GRAPH.reference_peak
    table = tmp_path / "buffers.csv"
    table.write_text("id,lower,upper,size\na,0,2,4\nb,1,3,2\n")
    assert allocate(table, "first-fit").price == allocate(read_table(table)[0], "first-fit").price == 6
    start = tmp_path / "schedule.json"
    assert solve(PROBLEM, "greedy", warm_start=start, options=SolveOptions(threads=1)).cost == viewed("result").cost
    batched = replace(GRAPH, meta={"batch": 1})
    batched.save(tmp_path / "batched.json")
    for family in (batched, tmp_path / "batched.json", str(tmp_path / "batched.json")):
        assert as_family(family).at(2).reference_peak == 2 * GRAPH.reference_peak
    with refused("graph.batch", culprit="$chain"):
        as_family(GRAPH)
    with refused("problem.no-problem", culprit="6"):
        solve(PROBLEM, budget=6)


def test_costs_in_units_of_time_stay_exact() -> None:
    """Fractions become whole us or ns; without a unit, or finer than ns, they are refused."""
    costs: list[tuple[tuple[float, float], str, tuple[int, int], str]] = [
        ((0.5, 2), "ms", (500, 2000), "us"), ((0.1, 1e-6), "ms", (100_000, 1), "ns"),
        ((1, 2), "s", (10**6, 2 * 10**6), "us"),
        ((1.25, 3), "us", (1250, 3000), "ns"), ((1, 2), "us", (1, 2), "us"), ((1, 2), "mac", (1, 2), "mac"),
    ]  # fmt: skip
    for (first, second), unit, whole, found in costs:
        graph = nx.DiGraph([("a", "b")])
        nx.set_node_attributes(graph, {"a": {"size": "1.5KiB", "cost": first}, "b": {"size": 1, "cost": second}})
        read = ComputeGraph.from_networkx(graph, cost_unit=unit)
        assert (tuple(op.cost for op in read.ops), read.cost_unit, read.tensors[0].size) == (whole, found, 1536)
    for cost, size, unit in ((0.5, 1, "none"), (1e-10, 1, "ms"), (float("nan"), 1, "ms"), (1, "much", "ms")):
        graph = nx.DiGraph()
        graph.add_node("a", size=size, cost=cost)
        with refused("graph.networkx", culprit="'a'"):
            ComputeGraph.from_networkx(graph, cost_unit=unit)
