"""Groups that differ only in costs: one is solved for all, and each option is priced by its own ops."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from generators import jittered
from helpers import ONE, judged, some_slow

from remat import Problem, solve
from remat.graphs.families import unit_chain
from remat.hierarchy import Group, identical_groups
from remat.hierarchy.effort import Effort
from remat.hierarchy.group_options import Budgets, Measured, measured, options_of, undominated
from remat.hierarchy.method import Hierarchical, HierarchicalOptions
from remat.hierarchy.partition.base import Partitioner
from remat.hierarchy.recursion import Recursion, RecursionSettings
from remat.hierarchy.store import Store
from remat.hierarchy.subproblem import SubProblem
from remat.runtime.deadline import Deadline

EVICTION = Effort(("eviction",))


class Pairs(Partitioner):
    """Groups of four neighbours, each of two pairs; the first op is in no group."""

    name = "pairs"

    def forward_groups(self, problem: Problem, ops: Any, deadline: Deadline) -> list[Group]:
        pairs = {k: Group(f"pair {k}", ops[k : k + 2]) for k in range(1, len(ops) - 2, 2)}
        return [
            Group(f"four {k}", ops[k : k + 4], children=(pairs[k], pairs[k + 2]))
            for k in range(1, len(ops) - 4, 4)
        ]  # fmt: skip


def problem(seed: int = 0, layers: int = 10, budget: int = 8) -> Problem:
    """Return a chain of ops whose costs vary by 1 %, and their gradients."""
    chain = unit_chain(layers)
    return Problem(jittered(replace(chain, ops=[replace(op, cost=1000) for op in chain.ops]), seed=seed), budget)


def recursion(given: Problem, tolerance: float = 0.05, **more: Any) -> Recursion:
    settings = RecursionSettings(Budgets(3, 3), EVICTION, EVICTION, cost_tolerance=tolerance)
    return Recursion(Pairs().partition(given), settings, **{"workers": 1, **more})


def inside(run: Recursion) -> Iterator[tuple[Group, list[Measured]]]:
    """Yield the groups below the root with their options."""
    return ((group, run.options(group)) for group in run.hierarchy.groups() if group is not run.hierarchy.root)


def listed(run: Recursion) -> list[Any]:
    run.run()
    made = [(group.name, one.cost, one.option) for group, options in inside(run) for one in options]
    return [(name, cost, *(None if ops is None else ops.tolist() for ops in (option.forward, option.backward)))
            for name, cost, option in made]  # fmt: skip


def test_options_have_the_costs_of_their_own_group() -> None:
    """Compared with sums over ops, the sub-problem of each group, and the certificate of the schedule."""
    given = problem()
    run = recursion(given)
    run.run()
    assert run.classes == len(identical_groups(run.hierarchy)) - 1 < len(identical_groups(run.hierarchy, 0)) - 1
    assert run.others == sum(1 for _ in inside(run)) - run.classes
    for group, options in inside(run):
        part = SubProblem.of(given, group)
        assert len(options) > 2 and undominated(options) == options
        for one in options:
            whole = one.option.backward is not None
            computes = [*one.option.forward, *(one.option.backward if whole else ())]
            assert one.cost == sum(given.graph.ops[part.ops[op]].cost for op in computes)
            (own,) = measured(part, [one.option])
            assert (own.cost, own.peak, own.saved, own.needs) == (one.cost, one.peak, one.saved, one.needs)
            assert not whole or judged(part.problem, part.schedule(one.option)).cost == one.cost


@pytest.mark.slow
def test_stores_and_executors_keep_costs_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[SubProblem] = []

    def counted(part: SubProblem, *given: Any) -> Any:
        calls.append(part)
        return options_of(part, *given)

    monkeypatch.setattr("remat.hierarchy.tasks.options_of", counted)

    def solved(given: Problem, tolerance: float = 0.05, **more: Any) -> tuple[int, list[Any]]:
        calls.clear()
        found = listed(recursion(given, tolerance, **more))
        return len(calls), found

    few, first = solved(problem(), store=Store(tmp_path))
    assert solved(problem(), store=Store(tmp_path)) == (0, first)
    with ThreadPoolExecutor(2) as pool:
        assert solved(problem(), executor=pool) == (few, first)
    # other costs and other representatives have other keys
    assert solved(problem(1), store=Store(tmp_path)) == solved(problem(1))
    separate, exact = solved(problem(), 0)
    left, again = solved(problem(), 0, store=Store(tmp_path))
    assert few < separate and 0 < left < separate and again == exact


@pytest.mark.parametrize("seed", some_slow(range(3), 1))
def test_cost_and_bound_of_the_whole_schedule(seed: int) -> None:
    """Models prove only the options of the first group of each class."""
    options = HierarchicalOptions(
        partitioners=(Pairs,), leaf_methods=("checkmate",), group_methods=("eviction",),
        top_methods=("eviction", "h-ilp"), peaks=2, saved=2, moves=1, polish=False, workers=1,
    )  # fmt: skip
    given = problem(seed)
    result = solve(given, Hierarchical(options), "highs", stop=40, options=ONE)
    assert result.schedule is not None and "of them at costs of their own" in result.message
    certificate = judged(given, result.schedule)
    cost = {op.name: op.cost for op in given.graph.ops}
    assert certificate.accepted and certificate.peak <= 8
    assert certificate.cost == result.cost == sum(cost[op] for op in result.schedule.computes())
    best = solve(given, "retention-intervals", stop=60, options=ONE)
    assert best.proved and (result.bound or 0) <= best.cost <= result.cost <= 1.3 * best.cost
    assert not result.proved or result.cost == best.cost
