"""Order instances: peaks equal to the validator's, parts, search methods."""

import random
from dataclasses import replace

import numpy as np
import pytest
from oracles import counted_least_peak
from refusals import refused
from small_graphs import LIBERIS_LANE

from remat import Problem, solve
from remat.errors import ProblemError
from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.families import unit_chain
from remat.ordering.base import Ordering, OrderSearch
from remat.ordering.instance import OrderInstance
from remat.ordering.rules import Kahn
from remat.schedule import validate
from remat.testing.graphs import random_graph

GRAPHS = [random_graph(seed, 12, buffers=seed % 3 == 1) for seed in range(60)]


def free_order(graph: ComputeGraph, **rules) -> Problem:
    return Problem(graph, order="free", max_computes=1, objective="least-peak", **rules)


def random_order(instance: OrderInstance, seed: int) -> list[int]:
    rng = random.Random(seed)
    before = [set(row) for row in instance.predecessors.lists()]
    order: list[int] = []
    while len(order) < instance.num_ops:
        ready = [op for op in range(instance.num_ops) if op not in order and before[op] <= set(order)]
        order.append(rng.choice(ready))
    return order


@pytest.mark.parametrize("number", range(0, 60, 6))
def test_peaks_equal_the_validators(number: int) -> None:
    """Buffers, several outputs, workspaces, graph inputs, kept and unread tensors, constant memory."""
    for seed, graph in enumerate(GRAPHS[number : number + 6]):
        graph = replace(graph, constant_memory=5)
        keep = [graph.tensors[seed % len(graph.tensors)].name]
        problem = free_order(graph, keep=keep, count_constant_memory=seed % 2 == 0)
        instance = OrderInstance.of(problem)
        assert (
            instance.peak_of(instance.reference)
            == validate(graph, instance.schedule(problem, instance.reference), problem.rules).peak
        )
        for k in range(4):
            order = random_order(instance, k)
            certificate = validate(graph, instance.schedule(problem, order), problem.rules)
            assert certificate.accepted, certificate.first
            assert instance.peak_of(order) == certificate.peak
            assert instance.structural_bound <= certificate.peak
        assert problem.structural_peak <= instance.structural_bound


def test_profiles_of_parts_join_to_the_whole() -> None:
    """Includes parts of parts, with tensors live before, meanwhile and after."""
    rng = random.Random(3)
    for seed, graph in enumerate(GRAPHS):
        whole = OrderInstance.of(free_order(graph, keep=[graph.tensors[0].name]))
        order = random_order(whole, seed)
        first, second = sorted(rng.sample(range(whole.num_ops + 1), 2))
        tail = whole.part(order[first:], order[:first])
        number = {op: k for k, op in enumerate(sorted(order[first:]))}
        parts = [
            whole.part(order[:first]),
            tail.part([number[op] for op in order[first:second]]),
            tail.part([number[op] for op in order[second:]], [number[op] for op in order[first:second]]),
        ]
        profile = []
        for part, ops in zip(parts, (order[:first], order[first:second], order[second:]), strict=True):
            of_graph = whole.ops[ops].tolist()
            profile += part.profile([part.ops.tolist().index(op) for op in of_graph]).tolist()
        assert profile == whole.profile(order).tolist()


def test_wrong_orders_and_parts_are_refused() -> None:
    instance = OrderInstance.of(Problem(unit_chain(3)))
    for order in ([0, 1], [0, 0, 1, 2, 3, 4, 5], [7, 0, 1, 2, 3, 4, 5]):
        with refused("problem.order-ops"):
            instance.peak_of(order)
    with refused("problem.order-precedence"):
        instance.peak_of([1, 0, 2, 3, 4, 5, 6])
    with refused("problem.order-part"):
        instance.part([2])
    with refused("problem.order-part"):
        instance.part([0, 1], [0])
    assert instance.part([]).structural_bound == 0


class BestOfMany(OrderSearch):
    """Best of a hundred random orders; `bound` is the claimed bound."""

    name = "best-of-many"
    bound = 0

    def search(self, instance, *, deadline=None, seed=0, upper=None, on_order=None) -> Ordering:
        orders = [random_order(instance, seed + k) for k in range(100)]
        peak, order = min((instance.peak_of(order), order) for order in orders)
        return Ordering(np.array(order), peak, self.bound, 100, ("a remark",))


def test_searches_are_methods() -> None:
    """By class, object and name; results are certified, notes are reported."""
    problem = free_order(LIBERIS_LANE)
    result = solve(problem, BestOfMany)
    assert (result.peak, result.proved, result.source) == (4960, False, "best-of-many")
    assert result.states == result.as_dict()["states"] == 100
    assert "best-of-many, 100 states" in str(result)
    assert "a remark" in result.message
    assert solve(problem, "kahn").peak == solve(problem, Kahn()).peak == 5216
    with pytest.raises(ProblemError, match="takes none"):
        solve(problem, Kahn, method_options=3)
    with pytest.raises(ProblemError, match="has its options already"):
        solve(problem, Kahn(), method_options=3)
    with pytest.raises(ProblemError, match="searches for an order, but the problem fixes it"):
        solve(replace(problem, order="fixed"), "kahn")
    with pytest.raises(ProblemError, match="does not search for the least cost"):
        solve(replace(problem, objective="least-cost", budget="90%"), "kahn")


def test_bound_holds_only_without_recomputation() -> None:
    """With recomputation it is a remark; an order below the bound is an error."""
    b = GraphBuilder("once")
    _ = (
        b.op("a", size=1),
        b.op("b", inputs=["a"], size=8),
        b.op("c", inputs=["b"], size=1),
        b.op("d", inputs=["a", "c"], size=8),
    )
    b.op("e", inputs=["d", "b"], size=1)
    once = free_order(b.build())
    assert (counted_least_peak(once.graph), once.structural_peak) == (18, 17)
    result = solve(once, type("Unsure", (BestOfMany,), {"bound": 16}))
    assert (result.peak, result.bound, result.proved) == (18, 17, False)
    sure = type("Sure", (BestOfMany,), {"bound": 18})
    result = solve(once, sure)
    assert (result.bound, result.proved, result.bound_kind) == (18, True, "best-of-many")
    result = solve(replace(once, budget=17), sure)
    assert result.schedule is None
    assert "no schedule exists (by best-of-many)" in result.message
    result = solve(replace(once, max_computes=None), sure)
    assert (result.bound, result.proved) == (17, False)
    assert "no order has a lower peak without recomputation" in result.message
    with refused("backend.refuted", culprit="best-of-many"):
        solve(once, type("Wrong", (BestOfMany,), {"bound": 99}))
