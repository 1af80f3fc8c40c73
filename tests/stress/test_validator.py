"""Validator against a second simulator and rules by definition, on 100,000 schedules.

REMAT_STRESS_SCHEDULES sets the number. Graphs have accumulation buffers, several or no outputs per op, inputs, outputs,
workspaces, constant memory and ops that run once. Schedules are random, valid, or valid except for one or two changes.
All rules are covered.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from processes import count

from remat.graphs import ComputeGraph
from remat.schedule import OrderRule, Rules, Verdict, validate

sys.path.append(str(Path(__file__).resolve().parent.parent / "schedule"))
from schedule_oracle import Steps, as_schedule, naive, random_graph, random_steps, random_valid_steps

#: Schedules per graph.
EACH = 10


def tiny_graph(random: Random) -> ComputeGraph:
    """Return a tiny graph with some ops that run once."""
    graph = random_graph(random, 5)
    ops = [replace(op, recomputable=random.random() < 0.85) for op in graph.ops]
    return ComputeGraph(
        graph.name, graph.tensors, ops, graph.inputs, graph.outputs, graph.order, constant_memory=graph.constant_memory
    )


def mutated(random: Random, graph: ComputeGraph, steps: Steps) -> Steps:
    """Return the steps with one or two changes."""
    steps = list(steps)
    for _ in range(random.randint(1, 2)):
        place, kind = random.randrange(len(steps) + 1), random.randrange(4)
        if kind == 0 and place < len(steps):
            del steps[place]
        elif kind == 1 and place < len(steps):
            other = random.randrange(len(steps))
            steps[place], steps[other] = steps[other], steps[place]
        elif kind == 2:
            steps.insert(place, ("compute", random.choice(graph.op_names)))
        elif graph.tensor_names:
            steps.insert(place, ("free", random.choice(graph.tensor_names)))
    return steps


def random_schedule(random: Random, graph: ComputeGraph) -> Steps:
    kind = random.random()
    if kind < 0.25:
        return random_steps(random, graph)
    steps = random_valid_steps(random, graph, frees=random.random() < 0.6)
    return steps if kind < 0.6 else mutated(random, graph, steps)


def random_rules(random: Random, graph: ComputeGraph) -> Rules:
    limits = random.choice([None, None, 1, 2, {name: random.randint(1, 3) for name in graph.op_names[::2]}])
    return Rules(
        random.choice([None, random.randint(0, 60), random.randint(0, 200)]),
        random.choice(list(OrderRule)),
        limits,
        frozenset(name for name in graph.tensor_names if random.random() < 0.1),
        random.random() < 0.5,
    )


def broken_rules(graph: ComputeGraph, steps: Steps, rules: Rules, memory: list[int]) -> list[tuple]:
    """List step, rule, op and tensor of each violation, by definition of the rules."""
    found: list[tuple] = []
    computes = [(step, name) for step, (word, name) in enumerate(steps) if word == "compute" and name in graph.op_index]
    first: dict[str, int] = {}
    for step, name in computes:
        first.setdefault(name, step)
    before: list[str] = []
    if rules.order is OrderRule.FIXED:
        for name in graph.order:
            if name in first:
                if any(first[other] > first[name] for other in before):
                    found.append((first[name], "order", name, None))
                before.append(name)
    for op in graph.ops:
        limit = rules.max_computes.get(op.name) if isinstance(rules.max_computes, dict) else rules.max_computes
        what = "computes per op"
        if not op.recomputable:
            limit, what = 1, "not recomputable"
        for step in [step for step, name in computes if name == op.name][slice(limit, None) if limit else slice(0, 0)]:
            found.append((step, what, op.name, None))
    over = [k for k, (word, _) in enumerate(steps) if word == "compute" and memory[k] > (rules.budget or 0)]
    if rules.budget is not None and over:
        name = steps[over[0]][1]
        found.append((over[0], "budget", name if name in graph.op_index else None, None))
    return found


def check(random: Random, graph: ComputeGraph) -> str:
    """Judge one schedule twice; return its verdict."""
    steps, rules = random_schedule(random, graph), random_rules(random, graph)
    constant = graph.constant_memory if rules.count_constant_memory else 0
    expected = naive(graph, steps, rules.keep, constant)
    forbidden = broken_rules(graph, steps, rules, expected.memory)
    schedule = as_schedule(random, graph, steps)
    if random.random() < 0.02:  # digest of another graph, reported first
        schedule = replace(schedule, graph_digest="0" * 64)
        forbidden.append((None, "graph digest", None, None))
    got = validate(graph, schedule, rules, max_violations=10**4)
    reported = sorted((str(v.step), str(v.rule), str(v.op), str(v.tensor)) for v in got.violations)
    assert reported == sorted(tuple(map(str, fault)) for fault in [*expected.faults, *forbidden])
    assert got.more_violations == 0
    places = [v.step for v in got.violations if v.step is not None]
    assert places == sorted(places)
    over = [fault for fault in forbidden if fault[1] == "budget"]
    invalid = len(expected.faults) + len(forbidden) > len(over)
    assert got.verdict is (Verdict.INVALID if invalid else Verdict.OVER_BUDGET if over else Verdict.VALID)
    at_computes = [memory for memory, (word, _) in zip(expected.memory, steps, strict=True) if word == "compute"]
    assert got.peak == max(at_computes, default=0)
    names = [name for word, name in steps if word == "compute"]
    assert got.cost == sum(op.cost * names.count(op.name) for op in graph.ops)
    assert (got.redundant, got.masked) == (expected.redundant, expected.masked)
    if got.pruned_peak is not None:
        bare = [(word, name) for word, name in steps if word == "compute"]
        pruned = naive(graph, bare, rules.keep, constant)
        assert got.pruned_peak == max(pruned.memory, default=0)
    return str(got.verdict)


def run_many(number: int, seed: int) -> dict[str, int]:
    verdicts: dict[str, int] = {}
    for turn in range(number // EACH):
        random = Random(seed * 10**9 + turn)
        graph = tiny_graph(random)
        for _ in range(EACH):
            try:
                verdict = check(random, graph)
            except AssertionError as error:
                raise AssertionError(f"graph {turn} of seed {seed}: {error}") from error
            verdicts[verdict] = verdicts.get(verdict, 0) + 1
    return verdicts


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hundred_thousand_schedules() -> None:
    number = count("SCHEDULES", 100_000)
    verdicts = run_many(number, count("SEED", 0))
    assert sum(verdicts.values()) == number
    assert min(verdicts.get(str(verdict), 0) for verdict in Verdict) > number / 50  # each verdict is frequent


def test_some_schedules() -> None:
    assert run_many(400, 1).keys() == {str(verdict) for verdict in Verdict}
