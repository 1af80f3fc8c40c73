"""Annealing: incremental memory, distance to known optima, resumed runs, starts."""

import numpy as np
import pytest
from helpers import ONE, RUN, judged
from oracles import least_cost

from remat.graphs import ComputeGraph, GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.layered import layered
from remat.heuristics.annealing.heuristic import Annealing, AnnealingOptions, _Search
from remat.heuristics.annealing.tables import MOST_RUNS
from remat.heuristics.base import HeuristicRun
from remat.heuristics.drops import Drops
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions
from remat.schedule import Schedule, simulate, validate
from remat.testing import random_budget, random_graph

SHORT = AnnealingOptions(moves=30_000)
SEED = SolveOptions(seed=3, threads=1)


def test_optimum_of_most_tiny_graphs():
    found = possible = 0
    for seed in range(18):
        graph = random_graph(seed, plain=True)
        problem = Problem(graph, random_budget(graph, seed), "free")
        best = least_cost(problem, 3, staged=False)
        schedule = Annealing(SHORT).run(problem, HeuristicRun(SolveOptions(seed=seed, threads=1)))
        if best is not None:
            possible += 1
            found += schedule is not None and judged(problem, schedule).cost <= best
    assert possible >= 15
    assert found >= possible - 1


@pytest.mark.parametrize("fixed", [False, True])
def test_incremental_memory_equals_simulation(fixed):
    """After thousands of moves, peak, sums and blocks match a simulation and a rebuild from scratch."""
    from remat.heuristics.annealing.moves_kernel import Energy, anneal
    from remat.heuristics.annealing.slots_kernel import BEST, COST, INSTANCES, PEAK, REPEATED, fill

    recomputed = improved = 0
    for seed in range(6):
        graph = random_graph(seed, most_ops=9, buffers=seed % 2 == 1)
        problem = Problem(graph, random_budget(graph, seed), "fixed" if fixed else "free")
        search = _Search(problem, SHORT, RUN)
        state, rules = search._state(search.begin), search.rules._replace(again=0.5)
        for part in range(5):
            anneal(search.net, state, Energy(3.0, search.budget, 0.5, 0.5, 2.0), rules, part, 2000)
            ops = state.held[state.held >= 0]
            run = simulate(graph, Schedule.of_computes(graph, ops), keep=problem.keep)
            assert run.violations == ()
            assert state.number[PEAK] + graph.arrays.input_bytes == run.peak
            assert state.number[COST] == run.cost
            recomputed += len(ops) - len(graph.ops)
            if state.number[BEST] >= 0:
                best = Schedule.of_computes(graph, state.best[state.best >= 0])
                run = simulate(graph, best, keep=problem.keep)
                assert run.violations == ()
                assert run.cost == state.number[BEST]
                assert run.peak <= search.budget + graph.arrays.input_bytes
                improved += run.cost > graph.base_cost
            soft, cost, repeated = state.total[0], state.number[COST], state.number[REPEATED]
            spans, instances = state.spans.copy(), state.tensors[:-1, INSTANCES].copy()
            fill(search.net, state, search.budget, 2.0)
            assert (state.number[COST], state.number[REPEATED]) == (cost, repeated)
            assert state.total[0] == pytest.approx(soft, rel=1e-6)
            assert np.array_equal(state.tensors[:-1, INSTANCES], instances)
            for tensor, count in enumerate(instances):
                assert np.array_equal(state.spans[tensor, :count], spans[tensor, :count])
    assert recomputed > 0
    assert improved > 0


def blocks_around_a_peak(blocks: int, residual: bool) -> ComputeGraph:
    """Blocks, an op of much memory, and a reader of the last block; each op costs 1. Residual blocks end in a sum."""
    builder = GraphBuilder("blocks")
    first = state = builder.op("first", size=1, cost=1)
    for k in range(blocks):
        branch = builder.op(f"branch{k}", inputs=[state], size=4, cost=1)
        state = builder.op(f"end{k}", inputs=[state, branch] if residual else [branch], size=4, cost=1)
    builder.op("peak", inputs=[first], size=20, cost=1)
    builder.op("last", inputs=["peak"], size=1, cost=1)
    builder.op("end", inputs=["last", state], size=1, cost=1)
    return builder.build()


def changes_of_cost(problem: Problem, start: Schedule) -> set[int]:
    """Return by how much a move changes the cost of a schedule, if all missing inputs are recomputed; 200 seeds."""
    from remat.heuristics.annealing.moves_kernel import Energy, anneal
    from remat.heuristics.annealing.slots_kernel import COST

    search = _Search(problem, SHORT, HeuristicRun(ONE, start=start))
    search.width = 400  # room for recomputations in a row
    changes = set()
    for seed in range(200):
        state = search._state(search.begin)
        before = state.number[COST]
        energy = Energy(1e-3, search.budget, 10.0, 0.1, 2.0)
        anneal(search.net, state, energy, search.rules._replace(again=1.0), seed, 1)
        changes.add(int(state.number[COST] - before))
    return changes


def test_one_move_recomputes_residual_blocks():
    """Next to the peak no block fits, so all run again, as does the first op."""
    graph = blocks_around_a_peak(4, residual=True)
    assert 9 in changes_of_cost(Problem(graph, 22), Schedule.reference(graph))


def test_one_move_takes_back_a_chain_of_recomputations():
    graph = blocks_around_a_peak(4, residual=False)
    end = len(graph.ops) - 1
    again = Schedule.of_computes(graph, [*range(end), *range(1, 9), end])
    assert -8 in changes_of_cost(Problem(graph, "100%"), again)


def test_regions_reach_all_ops_of_a_large_graph():
    from remat.heuristics.annealing.moves_kernel import Energy, anneal

    search = _Search(Problem(layered(5_000, 0.1, 1), "80%", "free"), SHORT, RUN)
    state = search._state(search.begin)
    before, width = state.held.copy(), 0.01 * search.budget
    energy = Energy(search.heat, search.budget, search.per_byte, search.per_byte * width, width)
    anneal(search.net, state, energy, search.rules, 1, 60_000)
    moved = np.unique(before[(before != state.held) & (before >= 0)])
    assert min(np.bincount(moved // 1_000)) > 900


def test_unsupported_starts_fall_back_to_the_reference_order():
    """First computes out of the fixed order, more runs than the tables hold, a buffer that is filled twice."""
    builder = GraphBuilder("star")
    builder.op("a", size=5, cost=1)
    readers = [builder.op(f"r{k}", inputs=["a"], size=1, cost=1) for k in range(MOST_RUNS + 2)]
    builder.op("join", inputs=readers, size=1, cost=1)
    graph = builder.build()
    order = list(range(len(graph.ops)))
    backwards = [0, *order[-2:0:-1], order[-1]]
    often = [op for reader in order[1:-1] for op in (0, reader)] + order[-1:]
    for ops, rule, begin in (
        (backwards, "free", backwards), (backwards, "fixed", order), (often, "free", order), (often, "fixed", order)
    ):  # fmt: skip
        start = Schedule.of_computes(graph, ops)
        problem = Problem(graph, "95%", rule)
        assert _Search(problem, SHORT, HeuristicRun(ONE, start=start)).begin.tolist() == begin
        schedule = Annealing(AnnealingOptions(moves=1)).run(problem, HeuristicRun(ONE, start=start))
        assert schedule is None or judged(problem, schedule).accepted
    b = GraphBuilder("sum")
    b.tensor("sum", 4)
    b.op("a", outputs=["sum"], cost=1), b.op("b", outputs=["sum"], cost=1)
    b.op("c", inputs=["sum"], size=1, cost=1), b.op("wide", inputs=["c"], size=9, cost=1)
    b.op("d", inputs=["sum", "wide"], size=1, cost=1)
    problem = Problem(b.build(), 13)
    steps = [("compute", op) for op in ("a", "b", "c", "wide", "a", "b", "d")]
    start = Schedule.from_steps([*steps[:3], ("free", "sum"), *steps[3:]])
    assert validate(problem.graph, start).accepted
    assert _Search(problem, SHORT, HeuristicRun(ONE, start=start)).begin.tolist() == list(range(5))


@pytest.mark.parametrize("graph", [layered(16, seed=2), layered(60, 0.3, 5)])
def test_two_threads(graph):
    """The second round of the smaller graph starts before the speed of moves is known."""
    problem = Problem(graph, "80%", "free")
    schedule = Annealing().run(problem, HeuristicRun(SolveOptions(Deadline.after(0.4), threads=2)))
    assert judged(problem, schedule).accepted


def test_sizes_over_six_orders_of_magnitude():
    """The budget is far below the first peak; sums do not overflow."""
    builder = GraphBuilder("uneven")
    before = []
    for k in range(12):
        builder.op(f"f{k}", inputs=before, size=10 ** (k % 7), cost=k + 1)
        before = [f"f{k}"]
    for k in range(11, -1, -1):
        builder.op(f"b{k}", inputs=[f"f{k}", *before], size=1, cost=1)
        before = [f"b{k}"]
    problem = Problem(builder.build(), 1_100_150, "free")
    certificate = judged(problem, Annealing(AnnealingOptions(moves=100_000)).run(problem, RUN))
    assert certificate.accepted
    assert certificate.recomputations > 0


def test_seeds_change_the_result():
    problem = Problem(layered(40, 0.3, 5), "85%", "free")
    one, other = (Annealing(SHORT).run(problem, HeuristicRun(SolveOptions(seed=seed, threads=1))) for seed in (1, 2))
    assert one != other


def test_resumed_runs_equal_one_long_run():
    problem = Problem(layered(60, 0.3, 5), "75%")
    options = AnnealingOptions(moves=80_000)
    whole = Annealing(options).run(problem, HeuristicRun(SEED))
    annealing, turns = Annealing(options), 0
    for _ in range(40):
        turns += 1
        short = HeuristicRun(SEED, horizon=Deadline()).until(Deadline.after(0.005))
        found = annealing.run(problem, short)
    found = annealing.run(problem, HeuristicRun(SEED, horizon=Deadline()))
    assert found == whole
    assert turns > 1


def test_resumed_run_uses_a_better_start():
    problem = Problem(layered(60, 0.3, 5), "75%")
    better = Annealing(AnnealingOptions(moves=300_000)).run(problem, HeuristicRun(SEED))
    annealing = Annealing()
    first = HeuristicRun(SEED, horizon=Deadline.after(60)).until(Deadline.after(0.001))
    annealing.run(problem, first)
    found = annealing.run(problem, HeuristicRun(SEED, better, horizon=first.horizon).until(Deadline.after(0.001)))
    assert judged(problem, found).cost <= judged(problem, better).cost


def test_restarts_have_a_third_of_the_moves_and_their_best_three_results_are_improved(monkeypatch):
    problem = Problem(layered(100, 0.3, 2), "58%", "free")
    call = HeuristicRun(SolveOptions(seed=2, threads=1), Drops().run(problem, RUN))
    search = _Search(problem, AnnealingOptions(moves=1_000_000), call)
    plans, plan = [], search._plan
    monkeypatch.setattr(search, "_plan", lambda *given: plans.append(plan(*given)) or plans[-1])
    search.go()
    improving = [round_.improved is not None for round_ in plans]
    first = improving.index(True)
    assert all(improving[first:])
    share = sum(round_.moves for round_ in plans[:first]) * len(problem.graph.ops) / 1_000_000
    assert share == pytest.approx(0.35, abs=0.05)
    assert len({id(round_.improved) for round_ in plans[first : first + 3]}) == 3
    assert plans[-1].improved is search.found[0]
    assert search.found[0].cost == search.best_cost


def test_rounds_on_training_graphs_improve_the_best_schedule(monkeypatch):
    problem = Problem(unit_chain(40), 12)
    call = HeuristicRun(SolveOptions(seed=2, threads=1), Drops().run(problem, RUN))
    search = _Search(problem, AnnealingOptions(moves=400_000), call)
    plans, plan = [], search._plan
    monkeypatch.setattr(search, "_plan", lambda *given: plans.append((plan(*given), search.best_cost)) or plans[-1][0])
    search.go()
    assert plans[0][0].begin is search.begin
    assert len(plans) > 5
    assert all(round_.improved is not None for round_, _ in plans[1:])
    assert all(len(round_.begin) == best for round_, best in plans[1:])


def test_another_thread_plans_a_round_before_any_move_has_been_timed():
    problem = Problem(layered(40, 0.3, 5), "100%", "free")
    call = HeuristicRun(SolveOptions(Deadline.after(60)), Schedule.reference(problem.graph))
    search = _Search(problem, AnnealingOptions(), call)
    assert [search._plan(number, search._possible()).moves for number in range(3)] == [500, 500, 500]


def test_few_moves_improve_a_good_start():
    """With a high initial temperature, a hundred moves per op would only lose the start."""
    problem = Problem(layered(500, seed=1), "80%")
    start = Drops().run(problem, HeuristicRun(SEED))
    few = AnnealingOptions(moves=100 * len(problem.graph.ops))
    found = Annealing(few).run(problem, HeuristicRun(SEED, start))
    base = problem.graph.base_cost
    before, after = (judged(problem, one).cost - base for one in (start, found))
    assert after < 0.97 * before


def test_deadline_is_checked_within_a_step(monkeypatch):
    """A step has two moves per op: half a second on 20,000 ops."""
    moves = []

    def anneal(*given):
        moves.append(given[5])
        return 0.5

    assert Annealing().prepared()
    monkeypatch.setattr("remat.heuristics.annealing.moves_kernel.anneal", anneal)
    problem = Problem(layered(10_000, 0.01, 1), "80%")
    Annealing().run(problem, HeuristicRun(SEED).until(Deadline.after(600).until(lambda: len(moves) >= 4)))
    assert moves == 4 * [5_000]
