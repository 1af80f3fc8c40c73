"""Least peaks that are known, proved by every exact search for an order."""

import pytest
from small_graphs import KNOWN, LAYERED_PEAKS, LIBERIS_LANE, PUBLISHED_PEAKS

from remat import Problem, read_graph
from remat.deadline import Deadline
from remat.graphs import ComputeGraph, layered
from remat.graphs.zoo import ZOO
from remat.ordering.base import OrderSearch
from remat.ordering.closed_sets import BeamOrder, BestFirstOrder
from remat.ordering.instance import OrderInstance
from remat.ordering.serenity import Serenity
from remat.ordering.valley import ValleySearch


def assert_proved(search: type[OrderSearch], graph: ComputeGraph, least: int, seconds: float = 60.0) -> None:
    instance = OrderInstance.of(Problem(graph, order="free", max_computes=1))
    found = search().search(instance, deadline=Deadline.after(seconds))
    assert (found.peak, found.bound) == (least, least)
    assert instance.peak_of(found.order) == least
    nothing = search().search(instance, upper=least, deadline=Deadline.after(seconds))
    assert (nothing.order, nothing.peak, nothing.bound) == (None, None, least)


@pytest.mark.parametrize("search", [BestFirstOrder, BeamOrder, Serenity, ValleySearch])
def test_known_graphs(search: type[OrderSearch]) -> None:
    for known in KNOWN:
        assert_proved(search, known.graph, known.least_peak)
    assert_proved(search, LIBERIS_LANE, 4960)
    assert_proved(search, layered(60, 0.35, 2), 25_340)
    assert_proved(search, layered(70, 0.35, 2), 34_790)  # sets of ops of two words


@pytest.mark.parametrize(
    ("search", "name", "least"),
    [(ValleySearch, *peak) for peak in (*PUBLISHED_PEAKS, *LAYERED_PEAKS)] + [(Serenity, *p) for p in PUBLISHED_PEAKS],
)
def test_published_graphs(shared, search: type[OrderSearch], name: str, least: int) -> None:
    """Byte for byte; those of the random layered graphs with 250 and 500 ops were not known before."""
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
    """Cells that read the outputs of the last two, so that there is no single cut vertex between them."""
    assert_proved(ValleySearch, ZOO[name](), least, seconds=120)
