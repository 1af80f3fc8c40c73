import pytest
from oracles import counted_least_peak
from refusals import refused

from remat.graphs.families import in_tree, path, pyramid, u_chain, unit_chain


@pytest.mark.parametrize("n", [1, 2, 3, 8, 30])
def test_unit_chain(n):
    graph = unit_chain(n)
    assert graph.base_cost == len(graph.ops) == 2 * n + 1
    assert graph.reference_peak == n + 2  # without recomputation all forward values live until their gradients
    assert graph.structural_bound.peak == 3
    k = {name: i for i, name in enumerate(graph.order)}
    edges = {(k[p], k[o.name]) for o in graph.ops for p in o.inputs}
    assert edges == {(i - 1, i) for i in range(1, 2 * n + 1)} | {(i, 2 * n - i) for i in range(n)}
    assert [o.phase for o in graph.ops] == ["forward"] * n + ["loss"] + ["backward"] * n
    if n <= 3:
        assert counted_least_peak(graph) == n + 2


@pytest.mark.parametrize("n", [1, 2, 9])
def test_path(n):
    graph = path(n)
    assert (graph.base_cost, graph.reference_peak, counted_least_peak(graph)) == (n, min(n, 2), min(n, 2))


@pytest.mark.parametrize("height", [1, 2, 3])
def test_pyramid(height):
    graph = pyramid(height)
    assert len(graph.ops) == (height + 1) * (height + 2) // 2
    assert graph.num_edges == height * (height + 1)
    assert graph.reference_peak == counted_least_peak(graph) == height + 2
    assert pyramid(height + 8).reference_peak == height + 10


@pytest.mark.parametrize("height", [1, 2, 3])
def test_in_tree(height):
    graph = in_tree(height)
    assert len(graph.ops) == 2 ** (height + 1) - 1
    assert all(len(readers) <= 1 for readers in graph.arrays.consumers)
    assert graph.reference_peak == counted_least_peak(graph) == height + 2


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_u_chain(depth):
    graph = u_chain(depth, shrink=3)
    assert len(graph.ops) == 2 * depth
    assert graph.base_cost == sum(t.size for t in graph.tensors) == 3**depth - 1
    assert graph.num_edges == 2 * depth - 1 + depth - 1


def test_invalid_parameters():
    for family, value in ((unit_chain, 0), (path, 0), (u_chain, 0), (pyramid, -1), (in_tree, -1)):
        with refused("graph.family"):
            family(value)
