"""Random hierarchies are what they say, and the plain search over them agrees with the searches over ops."""

import random

import pytest
from composite_search import CompositeSearch, memory_of
from hierarchies import RandomHierarchy, random_hierarchy

from remat.problem import Problem
from remat.schedule import Schedule, simulate
from remat.scope import Scope
from remat.testing import optimum, random_budget, random_graph
from remat.testing.exhaustive import FILLED_ONCE


def random_sequence(graph, rng):
    """A valid compute sequence: the reference order, with ops computed again whose inputs were all computed."""
    order = graph.arrays.order.tolist()
    sequence = []
    for place, op in enumerate(order):
        sequence.append(op)
        sequence += [order[rng.randrange(place + 1)] for _ in range(rng.choice([0, 0, 1, 2]))]
    return sequence


@pytest.mark.parametrize("buffers", [False, True])
def test_memory_is_what_the_validator_simulates(buffers):
    for seed in range(60):
        graph = random_graph(seed, 7, buffers=buffers) if seed % 2 else random_hierarchy(seed, 5).graph
        sequence = random_sequence(graph, random.Random(seed))
        run = simulate(graph, Schedule.of_computes(graph, sequence))
        assert not run.violations
        assert memory_of(graph, sequence) == run.memory.tolist()


def test_all_kinds_of_hierarchies_come():
    """Groups with and without a backward part, several options, fast-forwards, buffers across borders, what is kept."""
    found = set()
    for seed in range(120):
        h = random_hierarchy(seed, 5)
        graph = h.graph
        for group in h.groups:
            found.add("backward" if group.backward else "plain")
            found |= {"several options"} if len(group.options) > 1 else set()
            if group.backward and any(not option.backward for option in group.options):
                found.add("fast-forward")
            if any(len(set(o.backward)) < len(o.backward) for o in group.options):
                found.add("again and again")
            if any(set(o.backward) & set(group.forward) for o in group.options):
                found.add("recomputed backward")
        found |= {"kept"} if graph.outputs else set()
        found |= {"soft"} if any(t.size == 0 for t in graph.tensors) else set()
        found |= {"runs once"} if not all(op.recomputable for op in graph.ops) else set()
        found |= {"several contributors"} if (graph.arrays.producers.counts > 1).any() else set()
    assert found == {"backward", "plain", "several options", "fast-forward", "again and again", "recomputed backward",
                     "kept", "soft", "runs once", "several contributors"}  # fmt: skip


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_leaves_alone_are_ops(order):
    """Without groups the search finds what the exhaustive search over ops finds."""
    tight = 0
    for seed in range(25):
        graph = random_graph(seed, 5, buffers=seed % 3 == 0)
        problem = Problem(graph, random_budget(graph, seed), order)
        scope = Scope(problem.order, order == "fixed", None if order == "fixed" else 2, (FILLED_ONCE,))
        best = optimum(problem, scope)
        found = CompositeSearch(RandomHierarchy(graph, ()), problem, copies=scope.max_computes).cheapest()
        assert (best and best.cost) == found, seed
        tight += best is not None and best.cost > graph.base_cost
    assert tight >= 1
