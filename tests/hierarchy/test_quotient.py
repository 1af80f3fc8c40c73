"""Quotients, whose ops are groups with one option each: peak and cost bound those of the whole graph."""

import random
from dataclasses import replace

import numpy as np
from helpers import judged
from hierarchies import RandomHierarchy, random_hierarchy

from remat import Problem
from remat.formulations.composites import Composite, CompositeProblem, Option
from remat.graphs.families import unit_chain
from remat.heuristics.base import HeuristicRun
from remat.heuristics.transfers import Transfers, TransfersOptions
from remat.hierarchy.choosing import refined
from remat.hierarchy.effort import Effort
from remat.hierarchy.group_options import plain_options
from remat.hierarchy.groups import Group
from remat.hierarchy.quotient import Quotient, choice_of
from remat.hierarchy.subproblem import SubProblem
from remat.problem.op_sequence import useful_computes
from remat.runtime.deadline import Deadline
from remat.schedule import Machine, Schedule
from remat.schedule.validate import validate

EVICTION = Effort(("eviction",))


def composites(hierarchy: RandomHierarchy) -> list[Composite]:
    return [
        Composite(
            group.name, group.forward, group.backward,
            [Option(o.forward, o.backward if o.backward or not group.backward else None) for o in group.options]
            if group.backward else [Option(o.forward) for o in group.options],
        )
        for group in hierarchy.groups
    ]  # fmt: skip


def test_expanded_schedule_has_at_most_the_peak_and_cost_of_the_quotient() -> None:
    checked = again = 0
    for seed in range(40):
        rng = random.Random(seed)
        hierarchy = random_hierarchy(seed, 8)
        whole = Problem(hierarchy.graph)
        quotient = Quotient(CompositeProblem(whole, composites(hierarchy)))
        if not all(quotient.choices):
            continue
        options = [rng.choice(some) for some in quotient.choices]
        small = quotient.problem(options).graph
        order = list(range(len(small.ops)))
        spread = []
        buffers, can = small.arrays.producers.counts > 1, small.arrays.recomputable
        for op in order:
            spread.append(op)
            before = [b for b in order[: op + 1] if can[b] and not buffers[small.arrays.op_outputs[b]].any()]
            if before and rng.random() < 0.4:
                spread.append(rng.choice(before))
        useful = np.array(spread)[useful_computes(Problem(small), np.array(spread), refills=True)]
        for sequence in (order, useful.tolist()):
            schedule = Schedule.of_computes(small, sequence)
            claimed = validate(small, schedule, Problem(small).rules)
            certificate = validate(whole.graph, quotient.schedule(schedule, options), whole.rules)
            assert certificate.accepted, certificate.first
            assert certificate.peak <= claimed.peak, seed
            assert certificate.cost <= claimed.cost
            checked += 1
            again += claimed.cost > certificate.base_cost
    assert checked > 50 and again > 15


def test_moves_of_quotients_are_moves_of_saved_tensors() -> None:
    """A schedule within the budget of the quotient gives one of the whole graph within it, in any case."""
    moved = 0
    for seed in (2, 6, 9, 13, 17, 18, 21):
        rng = random.Random(seed)
        hierarchy = random_hierarchy(seed, 8)
        graph = replace(hierarchy.graph, cost_unit="us")
        least, most = graph.structural_bound.peak, graph.reference_peak
        stays = rng.sample(graph.tensor_names, 1)
        problem = Problem(
            replace(graph, meta={"on_device": stays}), rng.randint(least, max(least, most)),
            machine=rng.choice(["rate=1MB/s", "rate=500kB/s,duplex=half,latency=1us", Machine()]),
        )  # fmt: skip
        quotient = Quotient(CompositeProblem(problem, composites(hierarchy)))
        options = [rng.choice(some) for some in quotient.choices if some]
        if len(options) < len(quotient.choices):
            continue
        small = quotient.problem(options)
        found = Transfers(TransfersOptions(moves=50)).run(small, HeuristicRun())
        if found is None or not small.validate(found).accepted:
            continue
        schedule = quotient.schedule(found, options)
        assert judged(problem, schedule).accepted, seed
        assert not {tensor for kind, tensor in schedule.steps() if kind == "offload"} & set(stays)
        moved += schedule.has_transfers
    assert moved >= 3


def test_chosen_options_fit_the_budget() -> None:
    found = 0
    for seed in range(10):
        hierarchy = random_hierarchy(seed, 8, training=True)
        peak = hierarchy.graph.reference_peak
        problem = Problem(hierarchy.graph, max(hierarchy.graph.structural_bound.peak, peak - max(1, peak // 8)))
        best = choice_of(problem, composites(hierarchy), Deadline.after(5), effort=EVICTION, moves=1)
        if best is not None and best.fits:
            assert judged(problem, best.schedule).accepted
            found += 1
    assert found > 2


def test_options_for_the_remaining_memory_improve_the_choice() -> None:
    """With all or nothing saved a group cannot use the remaining memory; refining keeps existing options."""
    problem = Problem(unit_chain(12), 9)
    group = Group("middle", np.arange(2, 10), np.arange(15, 23))
    part = SubProblem.of(problem, group)
    plain = [Option(part.ops[o.forward], part.ops[o.backward]) for o in plain_options(part)[:2]]
    one = Composite("middle", group.forward, group.backward, plain)
    clock = Deadline.after(20)
    before = choice_of(problem, [one], clock, effort=EVICTION)
    assert before is not None
    more = refined(problem, [one], before, EVICTION, clock)
    assert more[0].options[:2] == one.options and len(more[0].options) > 2
    after = choice_of(problem, more, clock, effort=EVICTION, first=before.options)
    assert after is not None and after.fits
    worth = [judged(problem, each.schedule) for each in (before, after)]
    assert (not worth[1].accepted, worth[1].cost) < (not worth[0].accepted, worth[0].cost)
