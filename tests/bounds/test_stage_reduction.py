"""Reduced problems: the same optimum of the slim relaxation, fewer ops, and solutions that hold for the original."""

import random
from dataclasses import replace

import numpy as np
import pytest
from generators import graph_with_chains, training_graph

from remat.backends.highs import Highs
from remat.bounds.stage_reduction import Known, StageReduction
from remat.bounds.stage_relaxation import StageRelaxation
from remat.graphs import GraphBuilder
from remat.modeling import Linear
from remat.problem import Problem
from remat.runtime.solve_options import SolveOptions

EXACT = SolveOptions(threads=1, relative_gap=0)


def optimum(problem: Problem, events: list[int]) -> int | None:
    """Return the least cost of a slim relaxation; None if it is infeasible."""
    relaxation = StageRelaxation(problem, events, slim=True)
    found = Highs().solve(relaxation.build(), EXACT)
    return None if found.objective is None else problem.graph.base_cost + round(found.objective) * relaxation.unit


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 60))])
def test_reductions_keep_the_optimum(block: int) -> None:
    smaller = limited = 0
    for seed in range(5 * block, 5 * block + 5):
        rng = random.Random(seed)
        graph = graph_with_chains(seed, rng, 6, 12)
        least, most = graph.structural_bound.peak, graph.reference_peak
        budget = int(least + (0.2 + 0.5 * rng.random()) * (most - least))
        problem = Problem(graph, budget, max_computes=3 if seed % 5 == 0 else None)
        events = sorted(rng.sample(range(len(graph.ops)), rng.choice([2, 3])))
        best = optimum(problem, events)
        reduced = StageReduction(problem, events)
        assert optimum(reduced.reduced, reduced.events) == best
        smaller += len(reduced.reduced.graph.ops) < len(graph.ops)
        event = rng.choice(events)
        bound = optimum(problem, [event])
        if best is None or bound is None:
            continue
        free = StageReduction(problem, events, Known(event, bound, bound + 2**40))
        assert free.reduced.max_computes == StageReduction(problem, events).reduced.max_computes
        for enough in (best, best + 1, best + rng.randrange(2, 20)):
            reduced = StageReduction(problem, events, Known(event, bound, enough))
            found = optimum(reduced.reduced, reduced.events)
            assert found == best if enough > best else found is None or found >= enough
            limited += reduced.reduced.max_computes != StageReduction(problem, events).reduced.max_computes
    assert smaller > 2
    assert limited > 2


def test_solutions_hold_for_the_original() -> None:
    """Tensors that a solution of the reduced problem holds can be held in the original, without more cost."""
    for seed in range(8):
        graph = training_graph(seed, 8)
        problem = Problem(graph, int(0.7 * graph.reference_peak))
        events = sorted(random.Random(seed).sample(range(len(graph.ops)), 3))
        reduced = StageReduction(problem, events)
        small = StageRelaxation(reduced.reduced, reduced.events, slim=True)
        found = Highs().solve(small.build(), EXACT)
        if found.values is None or found.objective is None:
            continue
        live = np.array(small.live)
        held = reduced.original((found.values[np.maximum(live, 0)] > 0.5) & (live >= 0))
        whole = StageRelaxation(problem, events, slim=True)
        model, columns = whole.build(), np.array(whole.live)
        index, value = columns[columns >= 0], held[columns >= 0].astype(float)
        model.add(Linear.rows("held", np.arange(len(index)), index, 1, lower=value, upper=value))
        again = Highs().solve(model, EXACT)
        assert again.objective is not None
        assert again.objective * whole.unit <= found.objective * small.unit + 1e-6


def test_small_tensors_and_chains_disappear() -> None:
    """A chain ``a, b, c`` becomes one op; the mean of its output is negligible, and needs no recomputation."""
    b = GraphBuilder("block")
    b.op("a", outputs={"x": 4000}, cost=5)
    b.op("b", inputs=["x"], outputs={"y": 4000}, cost=3)
    b.op("c", inputs=["y"], outputs={"z": 3000}, cost=2)
    b.op("mean", inputs=["z"], outputs={"m": 4}, cost=1)
    b.op("loss", inputs=["z"], outputs={"g": 1000}, cost=1)
    b.op("grad", inputs=["g", "z", "m"], outputs={"dx": 1000}, cost=1)
    problem = Problem(b.build(), 6000)
    reduced = StageReduction(problem, [4, 5], negligible=10)
    assert reduced.events == [2, 3]
    ops = {op.name: op for op in reduced.reduced.graph.ops}
    assert list(ops) == ["c", "mean", "loss", "grad"]
    assert (ops["c"].inputs, ops["c"].outputs, ops["c"].cost) == ((), ("z",), 10)
    assert (ops["mean"].outputs, ops["mean"].workspace) == ((), 4)
    assert reduced.original(np.zeros((2, 3), dtype=bool))[0].nonzero()[0].tolist() == [3]  # there is room for the mean
    assert len(StageReduction(problem, [1, 5]).reduced.graph.ops) == 6  # an event at b
    early = StageReduction(replace(problem, budget=9000), [2, 5], negligible=10)
    assert not early.original(np.zeros((2, len(early.reduced.graph.tensors)), dtype=bool))[0].any()  # no mean yet
