"""Tiny random problems with a host, whose least time an exhaustive search finds."""

from dataclasses import replace
from functools import lru_cache
from random import Random

from remat import Problem
from remat.schedule import Machine
from remat.testing import random_budget, random_graph
from remat.testing.exhaustive_transfers import LeastTime, least_time


@lru_cache(maxsize=600)
def transfer_problem(seed: int, most_ops: int = 5) -> tuple[Problem, LeastTime | None]:
    """Return a problem on a machine with fast or slow links and much or little host memory, and its least time."""
    rng = Random(seed)
    graph = random_graph(seed, most_ops, plain=rng.random() < 0.5)
    ops = [replace(op, recomputable=True) for op in graph.ops]  # the search has no limits of computes
    graph = replace(graph, ops=ops, cost_unit="us")
    rate = rng.choice([5 * 10**5, 10**6, 2 * 10**6, None])
    total = sum(tensor.size for tensor in graph.tensors)
    machine = Machine(
        rate, rng.choice([rate, 10**6]), rng.choice([None, None, rng.randint(1, total)]),
        rng.choice([0, 1000, 2000]), rng.random() < 0.5,
    )  # fmt: skip
    best = least_time(graph, random_budget(graph, seed), machine)
    return Problem(graph, random_budget(graph, seed), machine=machine), best
