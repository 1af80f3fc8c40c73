"""Drops: memory of staged schedules, starts, orders by list scheduling."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import RUN, accepted, judged

from remat import registry
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.layered import layered
from remat.graphs.zoo.transformers import gpt
from remat.heuristics.drops import heuristic
from remat.heuristics.drops.heuristic import (
    MANY,
    Drops,
    DropsOptions,
    descend,
    orders,
    recomputations,
    sequence,
    tables,
)
from remat.heuristics.drops.kernels import kernels_of
from remat.heuristics.greedy import Greedy
from remat.problem import Problem
from remat.runtime.compiled import kernel
from remat.runtime.compiled.interpreted import interpreted
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule, simulate
from remat.schedule.certificate import Verdict
from remat.testing.graphs import random_budget, random_graph

SEEDS = range(100)


def problem_of(seed: int, order: str = "fixed") -> Problem:
    graph = random_graph(seed, 9, buffers=seed % 3 == 0)
    return Problem(graph, random_budget(graph, seed), order, [None, 2, 3][seed % 3])


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_memory_equals_simulation(compiled: bool) -> None:
    """Interpreted by default, because compiling the kernel takes longer than the test."""
    from remat.heuristics.drops.stages_kernel import ADD, BUDGET, EXCESS, TAKE, change

    if compiled:

        @kernel
        def changed(net, state, op, stage, what):
            change(net, state, op, stage, what)
    else:
        changed = interpreted(change)

    for seed in SEEDS if compiled else SEEDS[:30]:
        problem = problem_of(seed)
        net, state = tables(problem, problem.graph.arrays.order)
        rng, num_ops = random.Random(seed), len(net.order)
        for _ in range(12):
            op = rng.randrange(num_ops)
            stage = rng.randint(int(net.position[op]) + 1, num_ops)
            again = stage in state.runs[op, : state.times[op]]
            if not again and state.times[op] >= net.limit[op]:
                continue
            changed(net, state, op, stage, TAKE if again else ADD)
            run = simulate(problem.graph, Schedule.of_computes(problem.graph, sequence(net, state)))
            memory = state.memory + np.repeat(state.lazy, 256)[: len(state.memory)]
            assert not run.violations
            assert memory[:-1].max() + problem.graph.arrays.input_bytes == run.peak
            assert state.number[EXCESS] == np.maximum(memory - state.number[BUDGET], 0).sum()


def test_start_is_reproduced_and_improved() -> None:
    from remat.heuristics.drops.stages_kernel import EXCESS

    recomputed = kept = 0
    for seed in SEEDS[:50]:
        problem = problem_of(seed)
        order = problem.graph.arrays.order
        start = Drops().run(problem, RUN)
        again = recomputations(problem, order, start)
        assert again is not None
        recomputed += len(again[0])
        net, state = tables(problem, order, again)
        made = Schedule.of_computes(problem.graph, sequence(net, state))
        assert made.computes() == start.computes()
        before = judged(problem, start)
        assert before.verdict is not Verdict.INVALID, (seed, before.first)
        memory = state.memory + np.repeat(state.lazy, 256)[: len(state.memory)]
        assert memory[:-1].max() + problem.graph.arrays.input_bytes == before.peak
        if state.number[EXCESS] == 0:
            after = simulate(problem.graph, Drops().improved(problem, start, RUN.deadline))
            assert after.cost <= before.cost
            assert after.peak <= problem.budget_bytes
            kept += 1
    assert recomputed > 25
    assert kept > 10


def test_interpreted_and_compiled_drops_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [problem_of(seed) for seed in SEEDS[:20]]
    starts = [Schedule.reference(problem.graph) for problem in problems]
    network = gpt(layers=4)
    problems += [Problem(network, "60%")] * 2
    starts += [Schedule.reference(network), Drops().run(Problem(network, "80%"), RUN)]

    def improved() -> list[Schedule | None]:
        return [Drops().improved(*each, Deadline()) for each in zip(problems, starts, strict=True)]

    compiled = improved()
    monkeypatch.setattr(Drops, "compiled", lambda *_: False)
    monkeypatch.setattr(Drops, "prepared", None)
    assert improved() == compiled != starts


def test_greedy_takes_the_same_drops_until_they_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(layered(100, seed=7), "80%")
    drops = Drops(DropsOptions((2.0,))).run(problem, RUN)
    monkeypatch.setattr(Drops, "compiled", lambda *_: False)
    alone, in_turn = (Greedy().run(problem, replace(RUN, horizon=horizon)) for horizon in (None, Deadline()))
    assert in_turn.computes() == drops.computes() != alone.computes()


def test_start_must_be_staged() -> None:
    problem = Problem(unit_chain(3), 5)
    order = problem.graph.arrays.order
    backwards = ("f0", "f1", "f2", "loss", "g2", "f1", "f0", "g1", "g0")
    assert recomputations(problem, order, Schedule.from_steps([("compute", op) for op in backwards])) is None
    assert recomputations(problem, order[::-1], Schedule.reference(problem.graph)) is None
    once = replace(problem, max_computes=1)
    steps = [("compute", op) for op in ("f0", "f1", "f2", "loss", "g2", "f0", "f1", "g1", "g0")]
    assert recomputations(problem, order, Schedule.from_steps(steps)) is not None
    assert recomputations(once, order, Schedule.from_steps(steps)) is None


def test_drops_use_a_better_start() -> None:
    """Block checkpointing on a transformer near its least budget; drops alone recompute more."""
    graph = gpt(layers=6)
    blocks = registry.load("heuristics", "block-checkpointing")()
    start = blocks.run(Problem(graph, "49%"), RUN)
    problem = Problem(graph, simulate(graph, start).peak)
    alone, started = Drops().run(problem, RUN), Drops().run(problem, dataclasses.replace(RUN, start=start))
    assert accepted(problem, started).cost < min(accepted(problem, each).cost for each in (alone, start))


def test_list_scheduling_lowers_the_peak() -> None:
    for seed in SEEDS[:50]:
        problem = problem_of(seed, "free")
        for order in orders(problem, Schedule.reference(problem.graph), Deadline()):
            problem.graph.with_order([problem.graph.op_names[op] for op in order])  # raises unless topological
    graph = layered(250, 0.43, 1789)
    better = orders(Problem(graph, "80%", "free"), None, Deadline())[-1]
    assert graph.with_order([graph.op_names[op] for op in better]).reference_peak < graph.reference_peak


def test_evaluations_per_drop_are_bounded_on_repeated_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bound each drop took 244 evaluations, hence quadratic time."""
    from remat.heuristics.drops import search_kernel as search
    from remat.heuristics.drops.stages_kernel import EXCESS

    problem = Problem(gpt(layers=360, width=64, heads=4, sequence=64), "50%")
    net, state = tables(problem, problem.graph.arrays.order)
    assert len(net.cost) >= MANY
    evaluations = drops = 0
    whole = search.change_many

    def counted(*given: Any) -> Any:
        nonlocal evaluations, drops
        steps = min(given[4], 1) * 1_000  # 0 when recomputations are removed
        left, taken = whole(*given[:4], steps, *given[5:])
        evaluations, drops = evaluations + steps, drops + taken
        return left, taken

    monkeypatch.setattr(search, "change_many", counted)
    descend(net, state, 6.0, Deadline())
    assert state.number[EXCESS] == 0
    assert evaluations <= 120 * drops, evaluations / drops


def test_full_table_of_recomputations_stays_consistent() -> None:
    """An overfull table made its linked lists circular and the search endless."""
    from remat.heuristics.drops.stages_kernel import EXCESS, LEFT

    problem, room = Problem(layered(60, seed=1), "60%"), 15
    order = problem.graph.arrays.order
    net, state = tables(problem, order)
    state = state._replace(node_op=state.node_op[:room].copy(), node_next=np.append(np.arange(1, room), -1))
    state.number[LEFT] = room
    descend(net, state, 6.0, Deadline.after(30))
    found = Schedule.of_computes(problem.graph, sequence(net, state))
    assert 0 < found.num_computes - len(order) <= room
    rebuilt = tables(problem, order, recomputations(problem, order, found))[1]
    assert state.number[EXCESS] == rebuilt.number[EXCESS] > 0
    assert state.number[LEFT] == room - (found.num_computes - len(order))


def test_cheap_op_behind_a_costly_one_is_dropped() -> None:
    """Holding the input saves nothing; it is worth more per byte than the drop itself."""
    b = GraphBuilder("costly input")
    b.op("matmul", size=4, cost=100)
    b.op("tanh", inputs=["matmul"], size=4, cost=1)
    b.op("next", inputs=["tanh"], size=4, cost=1)
    b.op("outside", inputs=["next"], size=1, cost=1, workspace=2)
    b.op("backward", inputs=["outside", "tanh"], size=1, cost=1)
    problem = Problem(b.build(), 10)
    assert accepted(problem, Drops().run(problem, RUN)).cost == 205


def test_descent_cut_short_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run builds no tables; the one after it starts from the beginning, as that of another object."""
    made: list[object] = []
    checks = iter(range(10_000))

    def counted(*given: Any) -> Any:
        made.append(given)
        return tables(*given)

    monkeypatch.setattr(heuristic, "kernels_of", lambda state: kernels_of(state)._replace(batch=1))
    monkeypatch.setattr(heuristic, "tables", counted)
    problem = Problem(layered(300, seed=1), "70%")
    assert problem.budget_bytes is not None
    one = DropsOptions((6.0,))
    drops = Drops(one)
    part = drops.run(problem, RUN.until(Deadline.after(600).until(lambda: next(checks) > 4)))
    assert part is not None
    assert problem.simulate(part).peak > problem.budget_bytes
    begun = len(made)
    resumed = drops.run(problem, RUN)
    assert len(made) == begun
    assert resumed is not None
    assert judged(problem, resumed).peak <= problem.budget_bytes
    again = drops.run(problem, RUN)
    whole = Drops(one).run(problem, RUN)
    assert len(made) == begun + 2
    assert again is not None
    assert whole is not None
    assert again.computes() == whole.computes()
    assert judged(problem, resumed).cost <= 1.05 * judged(problem, whole).cost
