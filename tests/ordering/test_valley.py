"""Valley search: exhaustive search, hard graphs, equal branches, callbacks."""

import random

import numpy as np
import pytest
from helpers import some_slow
from oracles import least_order_peak
from small_graphs import from_lists

from remat import Problem
from remat.graphs import ComputeGraph, GraphBuilder, layered
from remat.ordering.instance import OrderInstance
from remat.ordering.lifetimes import Lifetimes, twin_pairs
from remat.ordering.limit_search import Answer, LimitSearch
from remat.ordering.numbering import by_structure
from remat.ordering.valley import Climb, ValleySearch
from remat.runtime.deadline import Deadline
from remat.testing.graphs import random_graph

#: More states than any search here needs.
ENOUGH = 10**8


def once(graph: ComputeGraph) -> OrderInstance:
    return OrderInstance.of(Problem(graph, order="free", max_computes=1))


def some_graph(seed: int) -> ComputeGraph:
    """Return layered graphs, and graphs with buffers, several outputs, workspaces and unread tensors."""
    if seed % 2:
        return random_graph(seed, 11, plain=False, buffers=seed % 4 == 1)
    return layered(8 + seed % 7, (0.2, 0.3, 0.4, 0.6)[seed // 2 % 4], seed)


@pytest.mark.parametrize("first", [0, 25])
def test_limits_agree_with_exhaustive_search(first: int) -> None:
    """Forwards, backwards and for both tie-breaking rules."""
    for seed in range(first, first + 25):
        graph = some_graph(seed)
        instance, best = once(graph), least_order_peak(graph)
        forwards = Lifetimes.of(instance)
        for way in (forwards, forwards.mirrored):
            for rule in (0, 1):
                search = LimitSearch(way)
                search.shuffle(seed, rule)
                assert search.go(best + seed % 5, ENOUGH) is Answer.FOUND, seed
                assert search.go(best - 1, ENOUGH) is Answer.REFUTED, seed
                assert search.above <= best
                assert search.go(best, ENOUGH) is Answer.FOUND, seed
                order = search.order if way is forwards else search.order[::-1]
                assert instance.peak_of(order) == best
                limit = 0
                while search.go(limit, ENOUGH) is Answer.REFUTED:
                    assert limit < search.above <= best
                    limit = search.above
        climb = Climb(instance, 0, 2**40)
        climb.start()
        climb.cut(Deadline())
        assert 0 < climb.low <= best


@pytest.mark.parametrize(
    ("inputs", "sizes", "least"),
    [
        ([[], [0], [1], [2], [3], [1, 2], [5], [4], [2], [0, 1]], [5, 1, 13, 1, 8, 2, 1, 8, 8, 3], 21),
        ([[], [0], [1], [1, 2], [2], [], [4], [0], [7], [0, 1]], [2, 1, 3, 5, 5, 13, 13, 5, 13, 1], 19),
        ([[], [0], [], [2], [2], [3], [1], [1], [0], [5, 8], [5]], [3, 13, 3, 1, 2, 3, 3, 2, 2, 13, 1], 18),
    ],
)
def test_lower_valley_before_a_valley(inputs: list[list[int]], sizes: list[int], least: int) -> None:
    """Searches that continue from every valley without checking the steps between fail on these graphs."""
    instance = once(from_lists("valleys", inputs, sizes))
    for way in (Lifetimes.of(instance), Lifetimes.of(instance).mirrored):
        for rule in (0, 1):
            search = LimitSearch(way)
            search.shuffle(0, rule)
            assert search.go(least, ENOUGH) is Answer.FOUND


def test_equal_branches_are_tried_in_one_order() -> None:
    """24 branches would give 2^24 choices; 22 are equal."""
    builder = GraphBuilder("branches")
    builder.op("in", size=10)
    for k in range(24):
        builder.op(f"a{k}", inputs=["in"], size=7)
        builder.op(f"b{k}", inputs=[f"a{k}"], size=9 + (k == 5))
        builder.op(f"c{k}", inputs=[f"b{k}"], size=3, workspace=int(k == 7))
    builder.op("sum", inputs=[f"c{k}" for k in range(24)], size=3)
    instance = once(builder.build())
    assert len(twin_pairs(instance)[0]) == 21
    found = ValleySearch().search(instance, deadline=Deadline.after(60))
    assert found.proved
    assert found.states < 100_000
    pairs = 0
    for seed in range(20):
        rng = random.Random(seed)
        inputs: list[list[int]] = []
        for v in range(12):
            again = inputs and rng.random() < 0.4
            inputs.append(inputs[-1] if again else sorted(rng.sample(range(v), min(v, rng.choice([0, 1, 1, 2])))))
        graph = from_lists("twins", inputs, [rng.choice([1, 1, 4]) for _ in inputs], kept=[rng.randrange(12)])
        pairs += len(twin_pairs(once(graph))[0])
        assert ValleySearch().search(once(graph)).peak == least_order_peak(graph), seed
    assert pairs > 20


def test_callback_stops_the_search() -> None:
    instance = once(layered(100, 0.27, 446))
    found = ValleySearch().search(instance, on_order=lambda order, peak: True)
    assert found.peak == instance.peak_of(found.order)
    assert found.states == 0


@pytest.mark.parametrize("seed", some_slow(range(4), 1))
def test_reference_order_does_not_matter(seed: int) -> None:
    """A random reference order has the same peak and bound after two rounds."""
    graph = layered(150, 0.3, seed)
    peaks = []
    for shuffled in range(3):
        instance = once(graph.with_order(random_order(graph, shuffled)))
        numbered, ops = by_structure(instance, Deadline())
        assert numbered.peak_of(numbered.reference) == instance.peak_of(ops)
        climb = Climb(numbered, 0, 2**60)
        climb.see(numbered.reference)
        climb.start()
        climb.round(Deadline())
        climb.round(Deadline())
        peaks.append((climb.high, climb.low))
    assert len(set(peaks)) == 1


def test_branches_that_look_alike_are_numbered_as_wholes() -> None:
    """Ops of equal branches with equal paths have the same numbers and inputs from any reference order."""
    b = GraphBuilder("branches")
    b.op("source", size=7)
    for branch in range(4):
        b.op(f"split{branch}", inputs=["source"], size=4)
        for path in range(2):
            b.op(f"a{branch}{path}", inputs=[f"split{branch}"], size=3)
            b.op(f"b{branch}{path}", inputs=[f"a{branch}{path}"], size=2)
    b.op("end", inputs=[f"b{branch}{path}" for branch in range(4) for path in range(2)], size=1)
    graph, found = b.build(), set()
    for seed in range(8):
        numbered, _ = by_structure(once(graph.with_order(random_order(graph, seed))), Deadline())
        tables = (numbered.op_inputs, numbered.op_outputs, numbered.predecessors)
        found.add(tuple(np.concatenate([numbered.size, *(table.indices for table in tables)]).tolist()))
    assert len(found) == 1


def random_order(graph: ComputeGraph, seed: int) -> list[str]:
    """Return a random topological order of a graph whose ops have one output each."""
    rng = random.Random(seed)
    place = {op.name: rng.random() for op in graph.ops}
    waiting = {op.name: {producer_of(graph, name) for name in op.inputs} - {None} for op in graph.ops}
    order: list[str] = []
    while len(order) < len(place):
        done = set(order)
        order.append(min((op for op in waiting if op not in done and waiting[op] <= done), key=place.__getitem__))
    return order


def producer_of(graph: ComputeGraph, tensor: str) -> str | None:
    """Return the op that writes a tensor of a graph whose ops have one output each."""
    return tensor if tensor in graph.op_index else None
