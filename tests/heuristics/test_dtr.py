"""DTR: scores by definition, the paper's bound on chains, all rules."""

from itertools import product
from math import isqrt
from typing import get_args

import pytest
from helpers import RUN, accepted

from remat import GraphBuilder, Problem
from remat.graphs.families import unit_chain
from remat.heuristics.dtr import Dtr, DtrOptions, Score, _Online
from remat.runtime.deadline import Deadline
from remat.testing.graphs import random_graph

SCORES = get_args(Score)


def test_scores_match_the_paper() -> None:
    """a -> b -> c -> d -> e with b and d evicted: both count for c, and d's class stays joined to c's side."""
    builder = GraphBuilder("five")
    for name, size, cost in (("a", 2, 3), ("b", 4, 5), ("c", 5, 7), ("d", 8, 11), ("e", 1, 13)):
        builder.op(name, inputs=[chr(ord(name) - 1)] if name > "a" else [], size=size, cost=cost)
    problem = Problem(builder.build(), 100)

    def score(kind: Score, tensor: int) -> float:
        machine = _Online(problem, list(range(5)), DtrOptions(score=kind), Deadline())
        for now in range(4):
            machine.now = now
            machine.uses = [[4]] * 5  # all are read at the end
            assert machine.make(now)
        machine.drop(1)
        machine.drop(3)
        return machine.value(tensor)

    a, c = 0, 2  # clock 26; a was last touched at 8, c at 26
    expected = {
        "dtr": ((3 + 5) / 2 / 19, (7 + 5 + 11) / 5), "dtr-eq": ((3 + 5) / 2 / 19, (7 + 5 + 11) / 5),
        "dtr-local": (3 / 2 / 19, 7 / 5), "lru": (1 / 19, 1.0), "size": (1 / 2, 1 / 5), "msps": (3 / 2, (7 + 5) / 5),
    }  # fmt: skip
    for kind in SCORES:
        assert (score(kind, a), score(kind, c)) == pytest.approx(expected[kind])


@pytest.mark.parametrize("score", SCORES)
def test_schedules_are_valid(score: Score) -> None:
    again = 0
    for seed, order in product(range(20), ("fixed", "free")):
        graph = random_graph(seed, plain=False, buffers=seed % 2 == 1, most_ops=8)
        problem = Problem(graph, order=order)
        for budget in range(graph.structural_bound.peak, graph.reference_peak + 1, 5):
            one = Problem(graph, budget, order)
            if (schedule := Dtr(DtrOptions(score=score)).run(one, RUN)) is not None:
                again += accepted(one, schedule).recomputations
        assert Dtr(DtrOptions(score=score)).run(problem, RUN) is not None
    assert again


@pytest.mark.parametrize("n", [16, 64, 144])
def test_linear_cost_in_square_root_of_memory_on_chains(n: int) -> None:
    """Theorem 3.1 of the paper: N ops forward and backward in 2 sqrt(N) slots take O(N) computes."""
    for score in ("dtr", "dtr-eq"):
        problem = Problem(unit_chain(n), 2 * isqrt(n) + 2)
        schedule = Dtr(DtrOptions(score=score)).run(problem, RUN)
        assert schedule is not None
        assert accepted(problem, schedule).cost <= 2 * (2 * n + 1)
