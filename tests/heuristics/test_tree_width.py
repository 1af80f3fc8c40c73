"""TW-Remat: peaks on chains, separators, all kinds of graphs."""

import random

import networkx as nx
import pytest
from helpers import RUN, judged
from networkx.algorithms.approximation import treewidth
from refusals import refused

from remat.graphs.families import pyramid, unit_chain
from remat.graphs.layered import layered
from remat.graphs.zoo import ZOO
from remat.heuristics.tree_width import TreeWidth, TreeWidthOptions
from remat.heuristics.tree_width.heuristic import MOST_OPS
from remat.heuristics.tree_width.recursion import Ops, by_degree, by_fill_in, decomposition, separator_tree, sequence_of
from remat.problem import Problem
from remat.runtime.deadline import Deadline, OverdueError
from remat.schedule import Schedule, simulate, validate


def finest_schedule(problem):
    """Return the schedule whose leaves are single ops."""
    ops = Ops(problem)
    tree = separator_tree(ops.neighbours, by_degree)
    sequence = sequence_of(ops, tree, 1, 10**6, Deadline())
    return Schedule.of_computes(problem.graph, problem.graph.arrays.order[sequence])


# Peaks and costs of the published program on unit chains; costs depend on ties between bags.
CHAINS = {8: (5, 27), 16: (7, 49), 32: (8, 123), 64: (9, 269), 128: (11, 612)}


@pytest.mark.parametrize("n", CHAINS)
@pytest.mark.parametrize("order", ["fixed", "free"])
def test_peaks_on_unit_chains(n, order):
    problem = Problem(unit_chain(n), order=order)
    found = judged(problem, finest_schedule(problem))
    assert found.accepted
    assert found.peak == CHAINS[n][0]
    assert 0.9 * CHAINS[n][1] <= found.cost <= CHAINS[n][1]


@pytest.mark.parametrize("elimination", [by_degree, by_fill_in])
@pytest.mark.parametrize("seed", range(6))
def test_separators_disconnect_parts(seed, elimination):
    draw = random.Random(seed)
    count = draw.randint(2, 40)
    neighbours = [[] for _ in range(count)]
    for _ in range(draw.randint(0, 2 * count)):
        u, v = draw.sample(range(count), 2)
        if v not in neighbours[u]:
            neighbours[u].append(v)
            neighbours[v].append(u)
    tree = separator_tree(neighbours, elimination)
    for part in range(len(tree.children)):
        inside = [node for node in range(count) if part <= tree.home[node] < tree.end[part]]
        assert len(inside) == tree.num_nodes[part]
        assert sorted(tree.children[part]) == tree.children[part]
        assert tree.num_nodes[part] == tree.home.count(part) + sum(tree.num_nodes[c] for c in tree.children[part])
    for u, others in enumerate(neighbours):
        for v in others:  # one of the two parts is an ancestor of the other
            a, b = sorted((tree.home[u], tree.home[v]))
            assert a <= b < tree.end[a]


@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize("graph", [layered(60, seed=3), pyramid(5), ZOO["unet"]()], ids=lambda graph: graph.name)
def test_schedules_are_valid_on_any_graph(graph, order):
    problem = Problem(graph, order=order)
    assert validate(graph, finest_schedule(problem), problem.rules).accepted


def test_limits_of_computes_hold():
    graph = unit_chain(20)
    limited = Problem(graph, max_computes={"f4": 1, "f9": 2})
    computes = finest_schedule(limited).computes()
    assert validate(graph, finest_schedule(limited), limited.rules).accepted
    assert computes.count("f4") == 1
    assert computes.count("f3") > 2


def test_larger_budgets_cost_less():
    """Between the finest schedule (peak 9, cost 269) and no recomputation (peak 66)."""
    graph = unit_chain(64)
    costs = []
    for budget in (10, 14, 22, 42, 66):
        problem = Problem(graph, budget)
        found = validate(graph, TreeWidth().run(problem, RUN), problem.rules)
        assert found.accepted
        costs.append(found.cost)
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == 5
    assert costs[-1] == graph.base_cost


def test_limited_computes_on_a_wide_graph():
    problem = Problem(layered(200, seed=1), "50%")
    schedule = TreeWidth(TreeWidthOptions(most_computes=3)).run(problem, RUN)
    assert schedule.num_computes <= 3 * 200
    assert simulate(problem.graph, schedule).peak <= problem.graph.reference_peak


def test_too_many_ops_and_expired_deadline(monkeypatch):
    monkeypatch.setitem(MOST_OPS, by_degree, 20)
    with refused("problem.many-ops"):
        TreeWidth().run(Problem(unit_chain(10), 9), RUN)
    neighbours = Ops(Problem(layered(100))).neighbours
    with pytest.raises(OverdueError):
        separator_tree(neighbours, by_degree, Deadline.after(0))


@pytest.mark.parametrize("elimination", [by_degree, by_fill_in])
def test_bags_equal_those_of_networkx(elimination):
    neighbours = Ops(Problem(layered(80, 0.1, seed=2))).neighbours
    graph = nx.Graph()
    graph.add_nodes_from(range(len(neighbours)))  # the order decides ties
    graph.add_edges_from((u, v) for u, others in enumerate(neighbours) for v in others)
    _, known = treewidth.treewidth_decomp(graph, elimination(graph))
    bags, above = decomposition(neighbours, elimination, Deadline())
    assert {frozenset(bag) for bag in bags} == set(known)
    assert all(upper < k for k, upper in enumerate(above))
    tree = nx.Graph(enumerate(above[1:], 1))
    assert all(nx.is_connected(tree.subgraph(k for k, bag in enumerate(bags) if node in bag)) for node in graph)
