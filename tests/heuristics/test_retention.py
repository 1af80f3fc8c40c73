"""Least recomputation for given retention: comparison with all alternatives, rules beyond the paper."""

import itertools

import numpy as np
import pytest
from refusals import refused

from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.heuristics.retention import recomputation_for, schedule_for
from remat.problem import Problem
from remat.schedule import Rules, validate
from remat.schedule.formats.checkmate import schedule_from_matrices
from remat.testing import random_graph


def random_retention(num_ops, seed, density=0.4):
    return np.tril(np.random.default_rng(seed).random((num_ops, num_ops)) < density, -1)


def predecessors(graph):
    arrays = graph.arrays
    return [sorted(arrays.position[arrays.op_predecessors[op]].tolist()) for op in arrays.order.tolist()]


@pytest.mark.parametrize("seed", range(12))
def test_recomputation_is_least_in_every_entry(seed):
    """Compared with all R that satisfy constraints (1b), (1c), (8a) and (8c) for S."""
    graph = random_graph(seed, 5, plain=True)
    num_ops, reads = len(graph.ops), predecessors(graph)
    S = random_retention(num_ops, seed)
    found = recomputation_for(Problem(graph), S)
    below = np.argwhere(np.tril(np.ones((num_ops, num_ops), dtype=bool), -1))
    feasible = 0
    for bits in itertools.product([False, True], repeat=len(below)):
        R = np.eye(num_ops, dtype=bool)
        R[below[:, 0], below[:, 1]] = bits
        inputs_there = all(
            R[t, u] or S[t, u] for t in range(num_ops) for v in range(num_ops) if R[t, v] for u in reads[v]
        )
        retained_if_there = not (S[1:] & ~(R[:-1] | S[:-1])).any()
        if inputs_there and retained_if_there:
            feasible += 1
            assert not (found & ~R).any()
    assert feasible
    assert not (S[1:] & ~(found[:-1] | S[:-1])).any()


@pytest.mark.parametrize("most", [None, 1, 2, 3])
def test_schedules_of_full_graphs_are_valid(most):
    """Several outputs, inputs, kept tensors, buffers, ops that run once, limits of computes."""
    counts = []
    for seed in range(30):
        graph = random_graph(seed, 8, buffers=seed % 2 == 0)
        problem = Problem(graph, max_computes=most)
        schedule = schedule_for(problem, random_retention(len(graph.ops), seed, density=0.2))
        certificate = validate(graph, schedule, problem.rules)
        assert certificate.accepted, certificate.first
        counts.append(np.bincount(schedule.targets).max())
    assert max(counts) >= (most or 4)


@pytest.mark.parametrize("seed", range(10))
def test_schedule_needs_no_more_than_its_matrices(seed):
    graph = random_graph(seed, 9, plain=True)
    problem = Problem(graph)
    S = random_retention(len(graph.ops), seed)
    as_written = validate(graph, schedule_from_matrices(graph, recomputation_for(problem, S), S))
    pruned = validate(graph, schedule_for(problem, S, source="me"))
    assert as_written.accepted
    assert pruned.cost <= as_written.cost
    assert pruned.peak <= as_written.peak
    assert schedule_for(problem, S, source="me").source == "me"


def test_kept_tensors_are_live_at_the_end():
    b = GraphBuilder("three")
    b.op("a", size=1, cost=5), b.op("b", inputs=["a"], size=1), b.op("c", inputs=["b"], size=1)
    graph = b.build()
    retained = np.eye(3, k=-1, dtype=bool)
    assert recomputation_for(Problem(graph), retained).sum() == 3
    problem = Problem(graph, keep=["a"])
    assert recomputation_for(problem, retained)[2].tolist() == [True, False, True]
    retained[2, 0] = True
    schedule = schedule_for(problem, retained)
    assert schedule.num_computes == 3
    assert validate(graph, schedule, Rules(keep=frozenset({"a"}))).accepted


def test_outputs_of_ops_that_run_once_are_held():
    b = GraphBuilder("once")
    b.op("a", size=1, recomputable=False), b.op("b", inputs=["a"], size=1), b.op("c", inputs=["a", "b"], size=1)
    graph = b.build()
    schedule = schedule_for(Problem(graph), np.zeros((3, 3), dtype=bool))
    assert schedule.computes() == ["a", "b", "b", "c"]


def test_accumulation_buffers_are_held_and_not_filled_again():
    b = GraphBuilder("sum")
    b.tensor("sum", 1)
    b.op("a", outputs=["sum"]), b.op("b", outputs=["sum"])
    b.op("c", inputs=["sum"], size=1), b.op("d", inputs=["sum", "c"], size=1)
    problem, nothing = Problem(b.build()), np.zeros((4, 4), dtype=bool)
    assert recomputation_for(problem, nothing).sum(axis=0).tolist() == [1, 1, 2, 1]
    assert schedule_for(problem, nothing).computes() == ["a", "b", "c", "c", "d"]


@pytest.mark.parametrize(
    "S", [np.zeros((4, 5), bool), np.zeros((5, 5)), np.eye(5, dtype=bool), np.eye(5, k=2, dtype=bool)]
)
def test_wrong_retention_is_refused(S):
    with refused("problem.retention"):
        recomputation_for(Problem(unit_chain(2)), S)
