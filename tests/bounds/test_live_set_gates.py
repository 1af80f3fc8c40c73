"""Gates of the live set bound, compared with a search forwards over all sets of live tensors."""

from __future__ import annotations

import contextlib
import random
from heapq import heappop, heappush
from itertools import combinations

import pytest

from remat import Problem
from remat.bounds.live_set_bound import LiveSetSearch
from remat.bounds.live_set_game import LiveSetGame, Question
from remat.bounds.live_set_gates import Gates
from remat.graphs.io import load_graph
from remat.runtime.bits import bits, numbers
from remat.runtime.deadline import Deadline, OverdueError
from remat.testing import random_graph


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


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 3000), marks=pytest.mark.slow)])
def test_gates_refute_only_sets_that_cannot_be_live(seeds: range) -> None:
    """They refute none at its least memory, and many of those that the search has not refuted below."""
    refuted = 0
    for seed in seeds:
        rng = random.Random(seed)
        problem = Problem(random_graph(seed, rng.choice([6, 7]), plain=seed % 2 == 0, buffers=seed % 4 == 1))
        plain = LiveSetGame(problem, merge=False)
        tensors = [tensor for tensor, writer in enumerate(plain.writer) if writer >= 0]
        if not 4 <= len(tensors) <= 9:
            continue
        least, small = least_memory(plain), rng.choice([0, min(plain.size), sorted(plain.size)[len(tensors) // 4]])
        gates = Gates(problem, small, early=rng.choice([0, max(plain.size) // 2]), forks=rng.choice([0, 2, 4]))
        sets = [chosen for size in (1, 2, 3) for chosen in combinations(tensors, size)]
        for chosen in rng.sample(sets, min(12, len(sets))):
            memory = least[bits(chosen)]
            assert not gates.refute(frozenset(chosen), memory), (seed, chosen)
            refuted += gates.refute(frozenset(chosen), memory - 1)
    assert refuted > 2 * len(seeds)


@pytest.mark.parametrize(
    ("name", "small", "memory"),
    [
        ("vit", 600_000, 135_500_000),
        ("transformer", 8_000_000, 393_200_000),
        pytest.param("transformer-36", 2_000_000, 392_900_000, marks=pytest.mark.slow),
        pytest.param("sd3", 400_000, 82_700_000, marks=pytest.mark.slow),
        pytest.param("sd3", 4_500_000, 88_000_000, marks=pytest.mark.slow),
    ],
)
def test_gates_close_the_least_peak_of_a_transformer(name: str, small: int, memory: int) -> None:
    """Vit and sd3 need 14 and encoder–decoders 15 activations; without gates the bounds are 12 or 13 after minutes."""
    gates = Gates(Problem(load_graph(name)), small)
    game = gates.game
    gradients = [reads for op, reads in enumerate(game.reads) if "sum_" in game.problem.graph.op_names[op]]
    assert any(gates.refute(reads, memory) for reads in gradients)


@pytest.mark.parametrize(
    ("name", "memory", "goal"),
    [
        ("sd3", 89_000_000, "grad_layers.21.attn.split"),
        ("diffusion-unet", 461_000_000, "grad_down0.0.attn.ff.multiply"),
    ],
)
def test_gates_refute_sets_of_image_models(name: str, memory: int, goal: str) -> None:
    """Small tensors of the text are held next to two of the image; lines share none, and paths fork."""
    problem = Problem(load_graph(name))
    gates = Gates(problem, 400_000, early=4_500_000, forks=4)
    assert gates.refute(LiveSetGame(problem, merge=False).reads[problem.graph.op_names.index(goal)], memory)


def test_search_passes_wider_sets_to_narrower_ones() -> None:
    """Two gradients of diffusion-unet are made again of one before them, through sets of twice their bytes."""
    problem = Problem(load_graph("diffusion-unet"))
    game = LiveSetGame(problem)
    assert all(game.decide(game.reads[op], Question(462_600_000, 20)) for op in game.order)


def test_later_calls_continue_an_interrupted_question() -> None:
    """A set that takes some 700 checks of the clock is refuted in parts of 100."""
    gates = Gates(Problem(load_graph("vit")), 600_000)
    game, parts, refuted = gates.game, 0, None
    goal = game.reads[game.problem.graph.op_names.index("sum_layers.10.residual1")]
    while refuted is None:
        game.clock, parts = clock_of(100), parts + 1
        with contextlib.suppress(OverdueError):
            refuted = gates.refute(goal, 135_500_000)
    assert refuted
    assert 5 < parts < 20


def clock_of(checks: int) -> Deadline:
    """Return a deadline that expires after as many checks."""
    left = iter(range(checks))
    return Deadline().until(lambda: next(left, None) is None)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("vit", 5), ("dit", 12), ("transformer", 8)])
def test_live_set_bound_of_transformers_is_within_a_thousandth(name: str, most: int) -> None:
    """Schedules of the least peak cost at most `most` times a step: for the encoder-decoder 5.4."""
    search = LiveSetSearch(Problem(load_graph(name)))
    search.run(Deadline.after(60))
    assert search.high is not None
    assert search.low <= search.high <= 1.002 * search.low
    *_, schedule = search.schedules(1 << 62, Deadline())
    found = search.problem.validate(schedule)
    assert found.accepted and found.peak <= 1.005 * search.low and found.cost < most * search.problem.graph.base_cost


@pytest.mark.parametrize(
    ("name", "most"),
    [("resnet50", 4), ("convnext", 5), ("unet", 2), pytest.param("resnet101-ops", 3, marks=pytest.mark.slow)],
)
def test_schedules_of_the_least_peak_are_cheap(name: str, most: int) -> None:
    """Without gradients held, ResNet-50 costs 35 steps; with tensors held that few ops make, ConvNeXt costs 5.8.

    In steps of resnet101-ops an op writes outputs again that stay live.
    """
    search = LiveSetSearch(Problem(load_graph(name)))
    search.run(Deadline.after(60))
    found = [search.problem.validate(each) for each in search.schedules(1 << 62, Deadline())]
    assert all(each.accepted for each in found)
    assert search.low == search.high == min(each.peak for each in found)
    assert min(each.cost for each in found) < most * search.problem.graph.base_cost
