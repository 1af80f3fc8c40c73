"""The transfer bound: never above the least time of exhaustive search, and its limits."""

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from generators import training_graph

from remat.backends.highs import Highs
from remat.bounds import best_bound, bounds, stage_bound
from remat.bounds.implied_memory import implied_memory
from remat.bounds.link_room import LinkRoom
from remat.bounds.path_cuts import tightened
from remat.bounds.peak_bounds import step_memory
from remat.bounds.stage_programmes import StageProgrammes
from remat.bounds.stage_relaxation import StageRelaxation
from remat.bounds.transfer_relaxation import TransferRelaxation
from remat.bounds.transfer_search import TransferSearch
from remat.graphs import ComputeGraph
from remat.graphs.families import unit_chain
from remat.heuristics.base import HeuristicRun
from remat.heuristics.transfers import Transfers, TransfersOptions
from remat.problem import Problem
from remat.runtime import deadline
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions
from remat.schedule import Machine
from remat.testing import random_graph
from remat.testing.exhaustive_transfers import least_time

SECOND = 10**6  # cost units


def chain(n: int, forward: int = 1, backward: int = 1) -> ComputeGraph:
    graph = replace(unit_chain(n), cost_unit="us")
    ops = [replace(op, cost=forward if op.name.startswith("f") else backward) for op in graph.ops]
    return replace(graph, ops=ops)


def random_problem(seed: int) -> Problem | None:
    """Return a small problem with a tight budget on a random machine; None if no step exceeds the budget."""
    rng = random.Random(seed)
    graph = random_graph(seed, 5, plain=seed % 3 > 0)
    if len(graph.tensors) > 5:  # slow for the exhaustive search
        return None
    graph = replace(graph, cost_unit="us", ops=[replace(op, recomputable=True) for op in graph.ops])
    rates = [rng.choice([None, *(rng.randint(*ends) * SECOND // 10 for ends in ((1, 9), (5, 30)))]) for _ in range(2)]
    total = sum(tensor.size for tensor in graph.tensors)
    machine = Machine(
        *rates, host=rng.choice([None, rng.randint(1, total)]), latency=rng.choice([0, 0, 1500]),
        full_duplex=rng.random() < 0.5,
    )  # fmt: skip
    problem = Problem(graph, graph.structural_bound.peak + rng.choice([0, 0, 1, 2]), machine=machine)
    return None if problem.hopeless or problem.budget_bytes >= graph.reference_peak else problem


def relaxed(problem: Problem, events: list[int]) -> tuple[int, int]:
    """Return the bounds of the linear and of the integer programme with path cuts, in hundredths of the cost unit."""
    relaxation = TransferRelaxation(problem, events, whole=True)
    options = SolveOptions(threads=1, relative_gap=0.0)
    model = relaxation.build()
    linear, whole = Highs().relax(model, options).bound, Highs().solve(model, options).bound
    parts = Highs().relax(TransferRelaxation(problem, events).build(), options).bound
    assert parts == pytest.approx(linear, abs=1e-6)
    of_parts = Highs().solve(TransferRelaxation(problem, events).build(), options).bound
    assert parts <= of_parts + 1e-6
    assert of_parts <= whole + 1.1e-6  # HiGHS leaves 1e-6 open
    cut = tightened(relaxation, model, options)
    whole_cut = Highs().solve(cut.lean, options).bound
    assert linear <= cut.linear.bound + 1e-6
    assert whole <= whole_cut + 1.1e-6
    values = cut.linear.bound, whole_cut
    return tuple(100 * problem.graph.base_cost + round(100 * relaxation.unit * value) for value in values)


def check_never_above_the_least_time(seeds: Iterable[int]) -> tuple[int, int]:
    """Return the numbers of problems and of those where the integer programme of all events is the least time."""
    count = equal = 0
    for seed in seeds:
        problem = random_problem(seed)
        if problem is None:
            continue
        best = least_time(problem.graph, problem.budget_bytes, problem.machine)
        if best is None:
            continue
        n = len(problem.graph.ops)
        events = sorted(random.Random(seed).sample(range(n), 2))
        for some in (events[:1], events, list(range(n))):
            linear, whole = relaxed(problem, some)
            assert linear <= 100 * best.time + 1, (seed, some)
            assert whole <= 100 * best.time + 1, (seed, some)
        count += 1
        equal += -(-(whole - 1) // 100) == best.time
    return count, equal


def test_bound_is_never_above_the_least_time():
    count, equal = check_never_above_the_least_time((16, 34, 56, 63, 76))
    assert count == 5
    assert equal > count // 2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 12_500, 2_500))
def test_bound_is_never_above_the_least_time_of_many(first: int):
    count, equal = check_never_above_the_least_time(range(first, first + 2_500))
    assert count > 200
    assert equal > count // 2


def raised_by_path_cuts(seed: int) -> bool:
    """Return True if path cuts raise the linear relaxation of a training graph; no bound exceeds a schedule's time."""
    rng, call = random.Random(seed), SolveOptions(threads=1, relative_gap=0.0)
    graph = replace(training_graph(seed, rng.choice((8, 12, 16))), cost_unit="us")
    least, most = graph.structural_bound.peak, graph.reference_peak
    rate = max(1, int(most * rng.choice((0.02, 0.05, 0.1, 0.3)) * SECOND / 10))
    problem = Problem(graph, int(least + rng.random() * 0.5 * (most - least)), machine=Machine(rate, rate))
    if problem.hopeless:
        return False
    relaxation = TransferRelaxation(problem, rng.sample(range(2, len(graph.ops) - 1), 6), whole=True)
    model = relaxation.build()
    plain, cut = Highs().relax(model, call), tightened(relaxation, model, call)
    schedule = Transfers(TransfersOptions(moves=1_000)).run(problem, HeuristicRun(call))
    if plain.infeasible or schedule is None or not (found := problem.validate(schedule)).accepted:
        return False
    assert graph.base_cost + relaxation.unit * Highs().solve(cut.lean, call).bound <= found.time + 1e-3
    return cut.linear.bound > plain.bound + 1e-6


def test_path_cuts_raise_relaxations_on_training_graphs():
    assert raised_by_path_cuts(91)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 600, 150))
def test_path_cuts_give_no_bound_above_known_times(first: int):
    assert sum(map(raised_by_path_cuts, range(first, first + 150))) > 2


def linked(problem: Problem, below: int) -> int:
    """Return the bound of programmes in one memory that is larger by what the links can save."""
    programmes, call = StageProgrammes(problem.one_memory), SolveOptions(threads=1, relative_gap=0.0)
    programmes.link = LinkRoom.of(problem, below)
    while programmes.events:
        values, _ = programmes.solve(programmes.relax(programmes.build(call.deadline), call), call)
        if values is None or not programmes.widen(programmes.schedules(values)[0]):
            break
    return below if programmes.infeasible else min(programmes.value, below)


def test_events_of_other_programmes_follow_the_first() -> None:
    """The second programme then has the bound that more and more events lead to."""
    problem, call = Problem(unit_chain(8), 4), SolveOptions(threads=1)
    first, again = StageProgrammes(problem), StageProgrammes(problem)
    for programmes, most in (first, 20), (again, 2):
        for _ in range(most):
            values, _ = programmes.solve(programmes.relax(programmes.build(call.deadline), call), call)
            assert values is not None
            if not programmes.widen(programmes.schedules(values)[0]):
                break
        again.likely = first.decisive
    assert len(first.decisive) > 3
    assert again.value == first.value > problem.graph.base_cost


def check_link_room(seeds: Iterable[int]) -> tuple[int, int]:
    """Return the numbers of problems bounded above the base cost, and of those where moves undercut recomputation."""
    above = moved = 0
    for seed in seeds:
        problem = random_problem(seed)
        if problem is None or not problem.can_move or None in (problem.machine.write_rate, problem.machine.read_rate):
            continue
        best = least_time(problem.graph, problem.budget_bytes, problem.machine)
        if best is None:
            continue
        values = [linked(problem, below) for below in (best.time + 1, best.time + 4)]
        assert max(values) <= best.time, seed
        above += max(values) > problem.graph.base_cost
        alone = stage_bound(problem.one_memory, threads=1)
        moved += alone.infeasible or alone.value > best.time
    return above, moved


def test_room_of_links_gives_no_bound_above_the_least_time():
    above, moved = check_link_room((56, 63, 110, 156, 263))
    assert above == 4
    assert moved > 0


@pytest.mark.slow
def test_room_of_links_gives_no_bound_above_the_least_time_of_many():
    above, moved = check_link_room(range(12_500))
    assert above > 100
    assert moved > 20


@pytest.mark.parametrize(("forward", "backward"), [pytest.param(1, 1, marks=pytest.mark.slow), (2, 4)])
def test_bound_of_chains(forward, backward):
    """Slower links never lower the bound; without links it is the stage bound, with unlimited ones the base cost."""
    graph = chain(3, forward, backward)
    rates = [None, *(SECOND // time for time in (1, 2, 4)), 0]
    values = [best_bound(Problem(graph, 3, machine=Machine(rate, rate)), threads=1).value for rate in rates]
    assert all(fast <= slow for fast, slow in pairwise(values))
    assert values[0] == graph.base_cost
    assert values[-1] == stage_bound(Problem(graph, 3), threads=1).value > graph.base_cost


@pytest.mark.parametrize("events", [[4], [2, 9], [3, 5, 7, 11]])
def test_implied_memory_is_that_of_the_reference_order_where_nothing_is_dropped(events):
    graph = unit_chain(6)
    problem = Problem(graph, graph.reference_peak)
    relaxation = StageRelaxation(problem, events)
    values = Highs().relax(relaxation.build(), SolveOptions(threads=1)).values
    assert implied_memory(relaxation, values) == pytest.approx(step_memory(problem), abs=1e-6)


def test_half_duplex_and_a_small_host_raise_the_bound():
    graph = chain(3, 2, 4)
    free, half, small = (
        best_bound(Problem(graph, 3, machine=Machine(SECOND // 4, SECOND // 4, **more)), threads=1).value
        for more in ({}, {"full_duplex": False}, {"host": 1})
    )
    assert free <= half
    assert free < small < 28


def test_bounds_of_a_machine_are_times():
    problem = Problem(chain(4), 3, machine=Machine(SECOND, SECOND))
    structural, transfer = bounds(problem, threads=1)
    assert structural.measure == "peak"
    assert str(transfer).startswith("time ≥ 9 ")
    assert str(transfer).endswith("for fixed order, any number of computes; by the transfer bound")
    assert [bound.measure for bound in bounds(Problem(problem.graph, 3, "free", machine=problem.machine))] == ["peak"]


def test_long_times_give_nearly_the_bound_of_short_ones():
    """In FLOPs a time has many digits; HiGHS found no solution of such models on a transformer of 2,631 ops."""
    short = replace(unit_chain(6), cost_unit="us")
    scale = 10**9
    ops = [replace(op, cost=op.cost * scale) for op in short.ops]
    long = replace(short, ops=ops, cost_unit="flop")
    few = stage_bound(Problem(short, 4, machine="rate=500kB/s"), integer=False).value
    many = stage_bound(Problem(long, 4, machine="rate=500kB/s,compute=1000T"), integer=False).value
    exact = stage_bound(Problem(short, 4, machine="rate=500kB/s")).value
    assert short.base_cost < few and (1 - 1e-5) * scale * (few - 1) <= many <= scale * exact


def test_no_relaxation_begins_that_would_exceed_the_time(monkeypatch):
    """Interrupted ones left the search for schedules no time: 34.3 instead of 27.7 % on an encoder-decoder in 4 s."""
    clock, solve = [0.0], Highs.relax

    def relax(self, model, call):
        clock[0] += model.num_vars
        return solve(self, model, call)

    monkeypatch.setattr(deadline, "_clock", [lambda: clock[0]])
    monkeypatch.setattr(Highs, "relax", relax)
    problem = Problem(chain(12), "30%", machine="rate=100kB/s")
    alone, short = (TransferSearch(problem, None, Deadline(), 1, None) for _ in range(2))
    alone.continue_relaxing(Deadline())
    least, total = alone.solutions[0][0].build().num_vars, clock[0]
    assert len(alone.solutions) > 3
    for seconds in range(least, int(total), int(total) // 10):
        clock[0] = 0.0
        short.continue_relaxing(Deadline.after(seconds))
        assert clock[0] <= seconds
    assert 0 < len(short.solutions) <= len(alone.solutions)
