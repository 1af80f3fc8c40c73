"""Merged ops and stops of the live set bound, compared with a search forwards over all sets of live tensors."""

from __future__ import annotations

import random
from heapq import heappop, heappush
from itertools import chain, combinations

import pytest

from remat import Problem
from remat.bounds.live_set_game import Live, LiveSetGame, Question
from remat.bounds.live_set_stops import Stops
from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.zoo import ZOO
from remat.runtime.bits import bits, numbers
from remat.testing import random_graph

SEEDS = [range(60), pytest.param(range(60, 600), marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def _always_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat.bounds.live_set_game.FEWER", 1)


def least_memory(game: LiveSetGame) -> dict[Live, int]:
    """Return the least memory in which each set can be live: steps run forwards, and tensors are freed."""
    done: dict[Live, int] = {}
    queue = [(0, 0)]
    while queue:
        peak, live = heappop(queue)
        held = frozenset(numbers(live))
        if held in done:
            continue
        done[held] = peak
        for tensor in held:
            heappush(queue, (peak, live & ~(1 << tensor)))
        for op in game.order:
            reads = game.reads[op]
            if reads <= held:
                # Parts of merged ops may run after some inputs are freed.
                for freed in chain.from_iterable(combinations(reads, size) for size in range(len(reads) + 1)):
                    after = held - set(freed) | game.writes[op]
                    heappush(queue, (max(peak, game.memory(op, after)), bits(after)))
    return done


def graph_with_chains(seed: int) -> ComputeGraph:
    """Return a graph in which most ops read the output of the one before."""
    rng, builder = random.Random(seed), GraphBuilder(f"chains-{seed}")
    names: list[str] = []
    for number in range(rng.choice([6, 7, 8, 9])):
        inputs = rng.sample(names, min(len(names), rng.choice([0, 1, 2])))
        if names and rng.random() < 0.75:
            inputs = sorted({names[-1], rng.choice(names)}) if rng.random() < 0.4 else names[-1:]
        size, workspace = rng.choice([1, 1, 2, 2, 3, 4, 6]), rng.choice([0, 0, 1])
        builder.op(f"op{number}", inputs=inputs, size=size, workspace=workspace)
        names.append(f"op{number}")
    return builder.build()


def small_problem(seed: int) -> Problem:
    """Return a problem with chains, or one with buffers, in-place ops and several outputs."""
    if seed % 3:
        return Problem(graph_with_chains(seed))
    return Problem(random_graph(seed, 6, plain=seed % 2 == 0, buffers=seed % 4 == 1))


@pytest.mark.parametrize("seeds", SEEDS)
def test_merged_ops_need_as_much_memory(seeds: range) -> None:
    merged = 0
    for seed in seeds:
        problem = small_problem(seed)
        single, game = LiveSetGame(problem, merge=False), LiveSetGame(problem)
        if len(game.order) == len(single.order) or len(single.size) > 9:
            continue
        least = least_memory(single)
        assert least_memory(game).items() <= least.items(), seed
        merged += 1
    assert merged > len(seeds) / 3


@pytest.mark.parametrize("seeds", SEEDS)
def test_stops_decide_as_exhaustive_search_does(seeds: range) -> None:
    """A set fits into its least memory, and not into less, in almost all questions."""
    decided = 0
    for seed in seeds:
        problem = small_problem(seed)
        game = LiveSetGame(problem)
        if len(game.size) > 9:
            continue
        least = least_memory(game)
        rng = random.Random(seed)
        for live in rng.sample(sorted(filter(None, least), key=sorted), min(6, len(least) - 1)):
            for memory in (least[live], least[live] - 1):
                answer = Stops(LiveSetGame(problem)).decide(live, Question(memory, 100))
                assert answer in {memory == least[live], None}, (seed, live)
                decided += answer is not None
    assert decided > 8 * len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "answer"), [(0.724, False), (0.7324, True)])
def test_cells_of_amoebanet_are_decided(memory: float, answer: bool) -> None:
    """The search over all sets decides neither within the same effort."""
    problem = Problem(ZOO["amoebanet-a"]())
    asked = Question(int(memory * problem.reference_peak), 500)
    game = LiveSetGame(problem)
    goal = game.reads[problem.graph.op_names.index("cell_6/comb_2/add")]
    assert game.decide(goal, asked) is None
    assert Stops(game).decide(goal, asked) is answer
    assert game.lower(goal) > asked.memory or game.upper(goal) <= asked.memory
