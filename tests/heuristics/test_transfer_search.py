"""Transfers: programs of any choices, starts, least times of tiny graphs, limits of rates, and reference strategies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from generators import training_graph
from helpers import ONE, RUN, accepted, judged, options
from refusals import refused

from remat.backends.highs import Highs
from remat.bounds.stage_bound import stage_bounds
from remat.bounds.transfer_relaxation import TransferRelaxation
from remat.bounds.transfer_search import TransferSearch
from remat.graphs import ComputeGraph
from remat.graphs.families import unit_chain
from remat.graphs.roofline import with_times
from remat.graphs.zoo.language_models import decoder
from remat.graphs.zoo.transformers import gpt
from remat.heuristics import HeuristicRun
from remat.heuristics.drops import Drops
from remat.heuristics.few_stages import FewStages
from remat.heuristics.transfers import Transfers, TransfersOptions, best_of_layers, move_everything, move_layers
from remat.heuristics.transfers.kernels import KERNELS
from remat.heuristics.transfers.relaxed import rounded
from remat.heuristics.transfers.starts import Starts
from remat.heuristics.transfers.state import State, Value
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.schedule import Machine, Schedule
from remat.schedule.certificate import Verdict
from remat.testing import random_graph
from remat.testing.exhaustive_transfers import least_time

A100 = "pcie4,compute=19.5Tflop/s"


def in_us(graph: ComputeGraph) -> ComputeGraph:
    return replace(graph, cost_unit="us")


def random_machine(graph: ComputeGraph, rng: np.random.Generator) -> Machine:
    """Rates of 0.1 to 2 bytes per unit of cost, latencies of 0 to 2 units; host limited in half of them."""
    write, read = (int(rate) * 10**5 for rate in rng.integers(1, 20, 2))
    host = int(graph.arrays.size.sum() // 3) if rng.integers(2) else None
    return Machine(write, read, host, latency=int(rng.integers(3)) * 1000, full_duplex=bool(rng.integers(2)))


def random_problem(seed: int) -> Problem:
    """Training steps with several outputs and buffers, or random graphs; some write in place or keep a tensor."""
    rng = np.random.default_rng(seed)
    if seed % 2:
        graph = in_us(training_graph(seed, 10, full=True))
    else:
        graph = in_us(random_graph(seed, int(rng.integers(3, 12)), in_place=seed % 4 == 0))
    machine = random_machine(graph, rng)
    room = graph.reference_peak - graph.structural_bound.peak
    budget = graph.structural_bound.peak + int(rng.random() * room)
    keep = [name for name in graph.tensor_names[:1] if name not in graph.inputs and rng.integers(2)]
    return Problem(graph, budget, keep=keep, machine=machine)


def choose_at_random(state: State, rng: np.random.Generator) -> None:
    """Recompute and fetch at random, each at most a few times."""
    net, end = state.net, len(state.net.order)
    chosen: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    producers = state.problem.graph.arrays.producers
    for op in range(len(net.cost)):
        if rng.random() < 0.4:
            stages = rng.integers(net.position[op] + 1, end + 1, rng.integers(1, 4))
            chosen[0].extend((op, int(stage)) for stage in stages)
    used = (np.diff(net.reader_ptr) > 0) | (net.kept > 0)
    for tensor in np.flatnonzero(used & (producers.counts > 0)).tolist():
        if rng.random() < 0.6:
            first = int(net.position[producers.indices[slice(*producers.indptr[tensor : tensor + 2])]].max()) + 1
            chosen[1].extend((tensor, int(stage)) for stage in rng.integers(first, end + 1, rng.integers(1, 4)))
    runs, fetches = (np.array(part, dtype=np.int64).reshape(-1, 2).T for part in chosen)
    state.take(*runs, *fetches)


#: Tensors that are still written are overwritten, freed before their recomputation, or both.
DURING_WRITES = (68, 226, 1680)


@pytest.mark.parametrize(
    "seeds", [(*range(12), *DURING_WRITES), pytest.param(range(12, 400), marks=pytest.mark.slow)], ids=len
)
def test_any_choices_give_a_valid_program_with_exact_time(seeds: Sequence[int]) -> None:
    KERNELS.ready()
    fits = moved = 0
    for seed in seeds:
        problem = random_problem(seed)
        state, rng = State(problem), np.random.default_rng(seed)
        for _ in range(10):
            choose_at_random(state, rng)
            value = state.evaluate()
            certificate = judged(problem, state.schedule("random"))
            if value.excess == 0:
                assert certificate.accepted, (seed, certificate.first)
                assert certificate.time == value.time, seed
                fits += 1
                moved += certificate.transfers is not None
            elif not (certificate.accepted and problem.graph.arrays.in_place.size):
                # the kernel counts the bytes of some outputs in place twice
                assert certificate.verdict is Verdict.OVER_BUDGET or "host" in str(certificate.first), seed
    assert moved > len(seeds) and fits > len(seeds)


def tiny(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    graph = in_us(random_graph(seed, int(rng.integers(3, 6)), plain=seed % 3 == 0))
    budget = graph.structural_bound.peak + int(rng.random() * (graph.reference_peak - graph.structural_bound.peak))
    return Problem(graph, budget, machine=random_machine(graph, rng))


@pytest.mark.parametrize(
    ("seeds", "share"), [(range(25), 0.7), pytest.param(range(25, 425), 0.7, marks=pytest.mark.slow)], ids=str
)
def test_least_times_of_tiny_graphs(seeds: range, share: float) -> None:
    """Never below the exhaustive search, and mostly equal to it."""
    equal = count = 0
    for seed in seeds:
        problem = tiny(seed)
        if (problem.graph.arrays.producers.counts > 1).any():
            continue
        assert problem.budget_bytes is not None and problem.machine is not None
        best = least_time(problem.graph, problem.budget_bytes, problem.machine)
        schedule = Transfers(TransfersOptions(moves=1_500)).run(problem, RUN)
        assert schedule is not None
        certificate = judged(problem, schedule)
        if certificate.accepted:
            assert best is not None and certificate.time is not None and certificate.time >= best.time, seed
        if best is not None:
            count += 1
            equal += certificate.accepted and certificate.time == best.time
    assert equal >= share * count > 0, (equal, count)


@pytest.mark.parametrize(("length", "budget", "transfer"), [(3, 3, 1), pytest.param(3, 4, 2, marks=pytest.mark.slow)])
def test_least_times_of_chains(length: int, budget: int, transfer: int) -> None:
    graph, machine = in_us(unit_chain(length)), Machine(latency=1000 * transfer)
    problem, best = Problem(graph, budget, machine=machine), least_time(graph, budget, machine)
    assert best is not None
    assert accepted(problem, Transfers(TransfersOptions(moves=4_000)).run(problem, RUN)).time == best.time


@pytest.mark.parametrize("budget", ["35%", "50%"])
def test_limits_of_rates(budget: str) -> None:
    """Unlimited rates give the base cost; without links, and without a machine, the search only recomputes."""
    graph = in_us(unit_chain(16))
    free = Problem(graph, budget, machine=Machine())
    assert accepted(free, Transfers().run(free, RUN)).time == graph.base_cost
    closed = Problem(graph, budget, machine=Machine(0, 0))
    search = Transfers(TransfersOptions(moves=3_000))
    alone, without = (search.run(each, RUN) for each in (closed, closed.one_memory))
    assert alone is not None and without is not None and not alone.has_transfers
    assert accepted(closed, alone).time == accepted(closed.one_memory, without).cost
    dropped = accepted(closed.one_memory, Drops().run(closed.one_memory, RUN))
    assert accepted(closed, alone).cost <= dropped.cost


def test_descends_from_schedules_above_the_budget() -> None:
    """The optimum of a larger budget, from few stages, leads to a faster schedule than no start."""
    problem = Problem(in_us(unit_chain(12)), 4, machine="rate=10kB/s")
    larger = FewStages().run(Problem(problem.graph, 5), RUN)
    assert larger is not None and judged(problem, larger).verdict is Verdict.OVER_BUDGET
    search = Transfers(TransfersOptions(moves=1))
    without = accepted(problem, search.run(problem, RUN)).time
    search.near = [larger]
    found = accepted(problem, search.run(problem, RUN)).time
    assert found is not None and without is not None and found < without
    assert not search.near


def test_begins_with_optima_in_larger_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Llama of two layers a descent from one of them is faster than all other descents together."""
    graph = with_times(decoder(layers=2, vocabulary=1000), "A100")
    problem = Problem(graph, "40%", machine="pcie4")
    with_them = accepted(problem, Transfers(TransfersOptions(moves=1, prices=(0.1,))).run(problem, RUN)).time
    monkeypatch.setattr("remat.heuristics.transfers.relaxed.ROOM_PARTS", ())
    without = accepted(problem, Transfers(TransfersOptions(moves=1, prices=(0.1,))).run(problem, RUN)).time
    assert with_them is not None and without is not None and with_them < without


def network(budget: str, *, layers: int = 3, vocabulary: int = 4000) -> Problem:
    return Problem(gpt(layers=layers, batch=4, vocabulary=vocabulary), budget, machine=A100)


def test_better_than_reference_strategies() -> None:
    problem = network("62%")
    found = accepted(problem, Transfers(TransfersOptions(moves=500)).run(problem, RUN)).time
    dropped = accepted(problem, Drops().run(problem.one_memory, RUN)).time
    assert found is not None and dropped is not None and found < dropped
    layers = best_of_layers(problem)
    assert layers is None or found <= accepted(problem, layers).time  # type: ignore[operator]
    everything = judged(problem, move_everything(problem))
    assert not everything.accepted or found <= everything.time  # type: ignore[operator]


def test_improves_a_start_and_reports_better_ones() -> None:
    """A schedule without moves and one with moves; each report is within the budget and faster than the last."""
    problem = network("60%")
    dropped = Drops().run(problem.one_memory, RUN)
    starts = [dropped, move_everything(problem)]
    for start in starts:
        assert start is not None
        reports: list[Schedule] = []
        run = HeuristicRun(ONE, start, reports.append)
        found = Transfers(TransfersOptions(moves=300, prices=(3.0,), leanings=(6.0,))).run(problem, run)
        times = [accepted(problem, each).time or 0 for each in reports]
        assert times == sorted(set(times), reverse=True)
        began = judged(problem, start)
        assert not began.accepted or (accepted(problem, found).time or 0) <= (began.time or 0)


def test_choices_of_a_schedule_give_its_program_again() -> None:
    problem = network("60%", layers=4, vocabulary=50_257)
    state = State(problem)
    schedule = move_everything(problem)
    assert state.take_schedule(schedule)
    state.evaluate()
    assert state.schedule("everything moved") == schedule


@pytest.mark.parametrize(("time", "least"), [(1, 12), (9, 15)])
def test_rounded_solution_with_all_events_is_a_schedule_of_least_time(time: int, least: int) -> None:
    """On a chain whose least time, by exhaustive search, moves (short transfers) or recomputes (long ones)."""
    machine = Machine(10**6 // time, 10**6 // time)
    problem = Problem(in_us(unit_chain(4)), 3, machine=machine)
    relaxation = TransferRelaxation(problem, range(len(problem.graph.ops)))
    values = Highs().solve(relaxation.build(), ONE).values
    assert values is not None
    state = State(problem)
    state.take(*rounded(relaxation, values, 0.5))
    assert state.evaluate() == (0, least)


def test_later_run_on_a_problem_continues_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, search = network("60%"), Transfers(TransfersOptions(moves=300, prices=(3.0,), leanings=(6.0,)))
    first = search.run(problem, RUN)
    monkeypatch.setattr(State, "descend", None)  # would fail
    again = search.run(problem, HeuristicRun(ONE, first))
    assert (accepted(problem, again).time or 0) <= (accepted(problem, first).time or 0)


def test_rounds_improve_the_best_starts_and_explore_more_rarely_in_vain() -> None:
    starts, choices = Starts(), State(network("60%")).copy()
    for time in (9, 5, 7, 8):
        starts.add(Value(0, time), choices)

    def rounds(count: int) -> list[tuple[int, bool]]:
        found = []
        for _ in range(count):
            start, explores = starts.next()
            starts.replace(start, start.value, choices, explored=explores)
            found.append((start.value.time, explores))
        return found

    assert rounds(4) == [(5, False), (7, False), (8, False), (9, True)]
    assert rounds(5) == [(5, False), (7, True), (5, False), (5, False), (8, True)]
    starts.replace(starts.known[0], Value(0, 6), choices, explored=True)
    assert [start.value.time for start in starts.known] == [5, 6, 7, 8, 9]
    assert rounds(3) == [(6, False), (6, True), (5, False)]
    starts.replace(starts.known[0], Value(0, 4), choices, explored=False)
    assert [start.value.time for start in starts.known] == [4, 6, 7, 8, 9]


def test_background_runs_begin_with_solutions_that_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread raises the bound with the same relaxations meanwhile."""
    problem, search = network("60%"), Transfers(TransfersOptions(moves=300, prices=(3.0,), leanings=(6.0,)))
    first = search.run(problem, RUN)
    shared = search.programmes_of(problem)
    assert shared is not None and search.last is not None
    search.last.rounded = 0
    monkeypatch.setattr(TransferSearch, "relax", None)  # would fail
    again = search.run(problem, HeuristicRun(ONE, first, background=True))
    assert search.last.rounded == len(shared.solutions) > 0
    assert (accepted(problem, again).time or 0) <= (accepted(problem, first).time or 0)


def test_first_run_begins_with_the_relaxations_that_bounds_have_solved() -> None:
    """In `auto` bounds come first while the kernels of the search are being compiled."""
    problem, search = network("60%"), Transfers(TransfersOptions(moves=300, prices=(3.0,), leanings=(6.0,)))
    shared = search.programmes_of(problem)
    *_, last = stage_bounds(problem, integer=False, programmes=shared)
    assert shared is not None
    known = len(shared.solutions)
    found = search.run(problem, HeuristicRun(ONE, horizon=Deadline()))
    assert search.last is not None
    assert (search.last.relaxation, search.last.rounded) == (shared, len(shared.solutions))
    assert 0 < known <= len(shared.solutions)
    assert last.value <= (accepted(problem, found).time or 0)


def test_drops_are_left_out_while_they_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a deadline; without one the search waits for them."""
    problem, begun = network("62%"), []
    monkeypatch.setattr(Drops, "compiled", lambda: False)
    monkeypatch.setattr(Drops, "run", None)  # would fail
    monkeypatch.setattr("remat.heuristics.transfers.heuristic.begin", lambda *sets: begun.extend(sets))
    found = Transfers().run(problem, HeuristicRun(options(0.5)))
    assert accepted(problem, found).time is not None
    assert begun == list(Drops.kernels)
    with pytest.raises(TypeError):
        Transfers(TransfersOptions(moves=10)).run(problem, RUN)


def test_same_seed_same_schedule() -> None:
    problem = network("62%")
    search = Transfers(TransfersOptions(moves=100, prices=(3.0,), leanings=(6.0,)))
    first, again = (search.run(problem, HeuristicRun(options(seed=3))) for _ in range(2))
    assert first == again


def test_reference_strategies() -> None:
    """Everything moved writes and fetches each saved tensor once; each second layer moves fewer bytes."""
    problem = network("100%", layers=4, vocabulary=50_257)
    everything = judged(problem, move_everything(problem))
    some = [judged(problem, schedule) for _, every, schedule in move_layers(problem) if every == 2]
    assert everything.transfers is not None and everything.recomputations == 0 and some
    assert everything.transfers.offloads == everything.transfers.fetches > 0
    moved = [each.transfers.bytes_written for each in some if each.transfers is not None]
    assert 0 < max(moved) < everything.transfers.bytes_written
    with refused("problem.no-budget"):
        move_everything(Problem(problem.graph, machine=A100))


def test_only_moves_if_recomputation_is_off() -> None:
    """Drops within the search do not recompute either."""
    problem = Problem(gpt(layers=2, sequence=32, width=64, heads=2, vocabulary=50), "75%", machine=A100)
    schedule = Transfers(TransfersOptions(moves=500, recompute=False)).run(problem, HeuristicRun())
    certificate = accepted(problem, schedule)
    assert certificate.transfers is not None
    assert certificate.recomputations == 0 and certificate.transfers.fetches > 0
