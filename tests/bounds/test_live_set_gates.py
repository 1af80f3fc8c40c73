"""Gates of the live set bound, compared with a search forwards over all sets of live tensors."""

from __future__ import annotations

import random
from heapq import heappop, heappush
from itertools import combinations

import pytest

from remat import Problem
from remat.bounds.live_set_bound import LiveSetSearch
from remat.bounds.live_set_game import LiveSetGame, Question
from remat.bounds.live_set_gates import GatedGame
from remat.graphs.io import load_graph
from remat.runtime.bits import bits, numbers
from remat.runtime.deadline import Deadline
from remat.testing import random_graph

EFFORT = 40


def least_memory(game: LiveSetGame) -> dict[int, int]:
    """Return the least memory in which each set can be live, as bits: steps run forwards, and tensors are freed."""
    done: dict[int, int] = {}
    queue = [(0, 0)]
    while queue:
        peak, live = heappop(queue)
        if live in done:
            continue
        done[live] = peak
        for tensor in numbers(live):
            heappush(queue, (peak, live & ~(1 << tensor)))
        held = frozenset(numbers(live))
        for op, (reads, writes) in enumerate(zip(game.reads, game.writes, strict=True)):
            if reads <= held:
                memory = game.needs[op] + game.bytes(held - game.touched[op])
                heappush(queue, (max(peak, memory), live | bits(writes)))
    return done


@pytest.mark.parametrize("seeds", [range(70), pytest.param(range(70, 1500), marks=pytest.mark.slow)])
def test_gates_refute_only_sets_that_cannot_be_live(seeds: range) -> None:
    """They refute none at its least memory, and many below, whether their op leaves room for a large tensor or not."""
    refuted = [0, 0]
    for seed in seeds:
        rng = random.Random(seed)
        problem = Problem(random_graph(seed, rng.choice([6, 7]), plain=seed % 2 == 0, buffers=seed % 4 == 1))
        plain = LiveSetGame(problem)
        tensors = [tensor for tensor, writer in enumerate(plain.writer) if writer >= 0]
        if not 4 <= len(tensors) <= 9:
            continue
        least, small = least_memory(plain), rng.choice([0, min(plain.size), sorted(plain.size)[len(tensors) // 4]])
        for chosen in rng.sample([*combinations(tensors, 2), *combinations(tensors, 3)], 10):
            goal, memory = frozenset(chosen), least[bits(chosen)]
            assert GatedGame(problem, small).decide(goal, Question(memory, EFFORT)) is not False, (seed, chosen)
            game, large = GatedGame(problem, small), [tensor for tensor in chosen if plain.size[tensor] > small]
            for tensor in large:
                for gate in game._gates_of(tensor, memory - 1):
                    rest = frozenset(large) - {tensor}
                    no_room = gate.room < game._unit
                    refuted[no_room] += game._gate_refutes(gate, rest, Question(memory - 1, EFFORT))
    assert min(refuted) > 50


def test_gates_close_the_least_peak_of_a_transformer() -> None:
    """Without gates the bound of ViT is 125.9 MB, even after minutes; 135.6 MB suffice."""
    problem = Problem(load_graph("vit"))
    game, memory = GatedGame(problem, 600_000), 135_000_000
    answers = (game.decide(game.reads[op], Question(memory, 100)) for op in game.order)
    assert next(answer for answer in answers if answer is not True) is False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "dit"])
def test_live_set_bound_of_transformers_is_within_a_thousandth(name: str) -> None:
    search = LiveSetSearch(Problem(load_graph(name)))
    search.run(Deadline.after(60))
    assert search.high is not None
    assert search.low <= search.high <= 1.002 * search.low
    *_, schedule = search.schedules(1 << 62, Deadline())
    found = search.problem.validate(schedule)
    assert found.accepted and found.peak <= 1.005 * search.low and found.cost < 12 * search.problem.graph.base_cost


def test_schedule_of_the_least_peak_keeps_gradients_of_a_resnet() -> None:
    """Without them ResNet-50 costs 35 times a step in the same memory."""
    search = LiveSetSearch(Problem(load_graph("resnet50")))
    search.run(Deadline.after(60))
    found = [search.problem.validate(each) for each in search.schedules(1 << 62, Deadline())]
    assert search.low == search.high == min(each.peak for each in found)
    assert min(each.cost for each in found) < 4 * search.problem.graph.base_cost
