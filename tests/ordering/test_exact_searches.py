"""Every exact search for an order: least peaks of all kinds of graphs and parts, interruption, published peaks."""

import itertools
from functools import cache

import pytest
from helpers import Countdown
from oracles import counted_least_peak
from small_graphs import KNOWN, LAYERED_PEAKS, LIBERIS_LANE, PUBLISHED_PEAKS

from remat import Problem, SolveOptions, read_graph, solve
from remat.graphs import ComputeGraph, GraphBuilder, layered
from remat.graphs.zoo import ZOO
from remat.ordering import closed_sets, dynamic_programme
from remat.ordering.base import OrderSearch
from remat.ordering.best_first import Aim, explore
from remat.ordering.closed_sets import BeamOrder, BestFirstOrder
from remat.ordering.instance import OrderInstance
from remat.ordering.serenity import Serenity, SerenityOptions, cut_positions
from remat.ordering.valley import ValleySearch
from remat.runtime.deadline import Deadline
from remat.testing.graphs import random_graph

SERENITIES = [
    Serenity(SerenityOptions(divide=d, soft_budgets=s)) for d, s in itertools.product((False, True), repeat=2)
]
SEARCHES = [BestFirstOrder(), BeamOrder(), ValleySearch(), *SERENITIES]
every_search = pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.name)


def joined(*parts: ComputeGraph) -> ComputeGraph:
    """Return the graphs in sequence, with an op between them that reads all final tensors of the first."""
    b = GraphBuilder("joined")
    between: list[str] = []
    for number, part in enumerate(parts):
        for tensor in part.tensors:
            if tensor.name not in part.inputs:
                b.tensor(f"{number}.{tensor.name}", tensor.size)
        read = {name for op in part.ops for name in op.inputs}
        for op in part.ops:
            reads = [f"{number}.{name}" for name in op.inputs if name not in part.inputs] or between
            writes = [f"{number}.{name}" for name in op.outputs]
            b.op(f"{number}.{op.name}", inputs=reads, outputs=writes, workspace=op.workspace)
        left = [f"{number}.{t.name}" for t in part.tensors if t.name not in read and t.name not in part.inputs]
        b.op(f"join {number}", inputs=left, size=3)
        between = [f"join {number}"]
        b.output(*(f"{number}.{name}" for name in part.outputs if name not in part.inputs))
    return b.build()


def once(graph: ComputeGraph, **rules: object) -> OrderInstance:
    return OrderInstance.of(Problem(graph, order="free", max_computes=1, **rules))  # type: ignore[arg-type]


@cache
def instances() -> list[tuple[OrderInstance, int]]:
    """Return whole graphs with their least peaks, and parts and joined graphs with the result of one search.

    Graphs have buffers, workspaces, kept tensors, several outputs and inputs. Kept tensors, several outputs and buffers
    cross the cuts of joined graphs.
    """
    whole = [random_graph(seed, 10, buffers=seed % 3 == 1) for seed in range(18)]
    whole += [layered(10 + seed % 9, 0.4, seed) for seed in range(0, 8, 2)]
    found = [(once(graph), counted_least_peak(graph)) for graph in whole]
    others = [layered(10 + seed % 9, 0.4, seed) for seed in range(0, 24, 6)]
    parts = [once(graph).part(range(2, len(graph.ops) - 1), range(2)) for graph in others]
    for seed in range(0, 36, 6):
        graph = joined(*(random_graph(seed + k, 7, buffers=k == 1) for k in range(3)))
        parts.append(once(graph, keep=[graph.tensors[0].name]))
        assert len(cut_positions(parts[-1])) > 1
    return found + [(part, SEARCHES[seed % len(SEARCHES)].search(part).bound) for seed, part in enumerate(parts)]


@every_search
def test_least_peak_of_all_kinds_of_graphs(search: OrderSearch) -> None:
    """Compared with a search over sets of ops that shares no code, and with each other."""
    for instance, least in instances():
        found = search.search(instance)
        assert (found.peak, found.bound) == (least, least)
        assert instance.peak_of(found.order) == least
        below = search.search(instance, upper=least)
        assert (below.order, below.peak, below.bound) == (None, None, least)
        assert search.search(instance, upper=least + 1).peak == least


@every_search
def test_interrupted_searches_give_valid_bounds(search: OrderSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds increase with the number of deadline checks."""
    monkeypatch.setattr(dynamic_programme, "MOST_PIECE", 3)
    monkeypatch.setattr(closed_sets, "PIECE", 3)
    for seed in range(2):
        graph = layered(13, seed=seed)
        instance, least, bounds = once(graph), counted_least_peak(graph), [0]
        for checks in (*range(0, 30, 7), *range(40, 400, 60), 10**6):
            found = search.search(instance, deadline=Countdown(checks))
            assert bounds[-1] <= found.bound <= least
            bounds.append(found.bound)
            if found.order is not None:
                assert least <= found.peak == instance.peak_of(found.order)
        assert found.proved


@pytest.mark.slow
def test_500_random_graphs() -> None:
    """Compared with exhaustive search, best-first search and CP-SAT."""
    for number in range(500):
        graph = random_graph(number, 10, buffers=number % 3 == 1)
        problem = Problem(graph, order="free", max_computes=1, objective="least-peak")
        instance, least = OrderInstance.of(problem), counted_least_peak(graph)
        for search in SEARCHES:
            found = search.search(instance)
            assert (found.peak, found.bound) == (least, least), (graph.name, search.options)
        explored = explore(problem, Aim.PEAK, limit=least + 1)
        assert explored is not None
        assert explored.bound == least
        result = solve(problem, "retention-intervals", stop=60, options=SolveOptions(threads=1, seed=number))
        assert (result.peak, result.proved) == (least, True), graph.name


# -- known least peaks -------------------------------------------------------------------------------------------------


def assert_proved(search: OrderSearch, graph: ComputeGraph, least: int, seconds: float = 60.0) -> None:
    instance = once(graph)
    found = search.search(instance, deadline=Deadline.after(seconds))
    assert (found.peak, found.bound) == (least, least)
    assert instance.peak_of(found.order) == least


@pytest.mark.parametrize("search", [BestFirstOrder(), BeamOrder(), Serenity(), ValleySearch()], ids=lambda s: s.name)
def test_known_graphs(search: OrderSearch) -> None:
    for known in KNOWN:
        assert_proved(search, known.graph, known.least_peak)
    assert_proved(search, LIBERIS_LANE, 4960)
    assert_proved(search, layered(60, 0.35, 2), 25_340)
    assert_proved(search, layered(70, 0.35, 2), 34_790)  # sets of ops take two machine words


@pytest.mark.parametrize(
    ("search", "name", "least"),
    [(ValleySearch(), *peak) for peak in (*PUBLISHED_PEAKS, *LAYERED_PEAKS)]
    + [(Serenity(), *peak) for peak in PUBLISHED_PEAKS],
)
def test_published_graphs(shared, search: OrderSearch, name: str, least: int) -> None:
    """Exact to the byte; peaks of random layered graphs with 250 and 500 ops are unpublished."""
    assert_proved(search, read_graph(shared / "data" / "graphs" / f"{name}.json"), least)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("nasnet-a-mobile", 4_107_520), ("amoebanet-a-mobile", 3_896_112), ("darts", 2_408_448),
        ("randwire-regular", 13_672_960),
        pytest.param("nasnet-a-large", 28_183_584, marks=pytest.mark.slow),
        pytest.param("amoebanet-a", 17_332_724, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_whole_networks_of_cells(name: str, least: int) -> None:
    """Cells read the outputs of the last two, so no single cut vertex separates them."""
    assert_proved(ValleySearch(), ZOO[name](), least, seconds=120)
