"""Annealing in turns, and from a schedule that is there already."""

from typing import Any

import pytest
from helpers import judged

from remat import Problem, layered
from remat.backends.base import SolveOptions
from remat.deadline import Deadline
from remat.heuristics.annealing import Annealing, AnnealingOptions
from remat.heuristics.base import HeuristicRun
from remat.heuristics.drops import Drops

ONE = SolveOptions(seed=3, threads=1)


def test_turns_go_on_where_the_last_one_stopped() -> None:
    """Cut into turns, a search of so many moves comes to what it comes to at once."""
    problem = Problem(layered(60, 0.3, 5), "75%")
    options = AnnealingOptions(moves=150_000)
    whole = Annealing(options).run(problem, HeuristicRun(ONE))
    annealing, turns = Annealing(options), 0
    found = None
    for _ in range(40):
        turns += 1
        short = HeuristicRun(ONE, horizon=Deadline()).until(Deadline.after(0.005))
        found = annealing.run(problem, short)
    found = annealing.run(problem, HeuristicRun(ONE, horizon=Deadline()))
    assert whole is not None
    assert found == whole
    assert turns > 1


def test_what_a_turn_is_given_is_gone_on_with() -> None:
    problem = Problem(layered(60, 0.3, 5), "75%")
    better = Annealing(AnnealingOptions(moves=300_000)).run(problem, HeuristicRun(ONE))
    annealing = Annealing()
    first = HeuristicRun(ONE, horizon=Deadline.after(60)).until(Deadline.after(0.001))
    annealing.run(problem, first)
    found = annealing.run(problem, HeuristicRun(ONE, better, horizon=first.horizon).until(Deadline.after(0.001)))
    assert better is not None
    assert found is not None
    assert judged(problem, found).cost <= judged(problem, better).cost


def test_few_moves_improve_a_good_start() -> None:
    """At a high temperature a hundred moves for each op only forget it."""
    problem = Problem(layered(1000, seed=1), "80%")
    start = Drops().run(problem, HeuristicRun(ONE))
    assert start is not None
    few = AnnealingOptions(moves=100 * len(problem.graph.ops))
    found = Annealing(few).run(problem, HeuristicRun(ONE, start))
    assert found is not None
    base = problem.graph.base_cost
    before, after = (judged(problem, one).cost - base for one in (start, found))
    assert after < 0.97 * before


def test_the_clock_is_looked_at_within_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step has two moves for each op; on 20,000 ops they took half a second, and so much was a limit passed."""
    asked: list[int] = []

    def anneal(*given: Any) -> float:
        asked.append(given[3])
        return 0.5

    assert Annealing().prepared()
    monkeypatch.setattr("remat.heuristics.annealing.moves_kernel.anneal", anneal)
    problem = Problem(layered(10_000, 0.01, 1), "80%")
    Annealing().run(problem, HeuristicRun(ONE).until(Deadline.after(600).until(lambda: len(asked) >= 4)))
    assert asked == 4 * [5_000]
