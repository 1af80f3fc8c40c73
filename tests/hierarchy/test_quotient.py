"""Groups with an option each as ops of a smaller graph: what the small one holds, the whole one does not exceed."""

import random

import numpy as np
from helpers import judged
from hierarchies import RandomHierarchy, random_hierarchy

from remat import Problem
from remat.formulations.composites import Composite, CompositeProblem, Option
from remat.graphs.families import unit_chain
from remat.hierarchy.effort import Effort
from remat.hierarchy.group_options import plain_options
from remat.hierarchy.groups import Group
from remat.hierarchy.quotient import Quotient, choice_of
from remat.hierarchy.refine import refined
from remat.hierarchy.subproblem import SubProblem
from remat.problem.op_sequence import useful_computes
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule
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


def test_a_schedule_of_the_quotient_is_one_of_the_whole_with_at_most_its_peak_and_cost() -> None:
    looked = again = 0
    for seed in range(80):
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
            looked += 1
            again += claimed.cost > certificate.base_cost
    assert looked > 100 and again > 30


def test_options_are_chosen_so_that_the_whole_fits() -> None:
    found = 0
    for seed in range(20):
        hierarchy = random_hierarchy(seed, 8, training=True)
        peak = hierarchy.graph.reference_peak
        problem = Problem(hierarchy.graph, max(hierarchy.graph.structural_bound.peak, peak - max(1, peak // 8)))
        best = choice_of(problem, composites(hierarchy), Deadline.after(5), effort=EVICTION, moves=1)
        if best is not None and best.fits:
            assert judged(problem, best.schedule).accepted
            found += 1
    assert found > 5


def test_options_for_the_memory_that_is_left_are_better_than_those_there_were() -> None:
    """With everything saved or nothing, a group cannot use what is left over; what was there stays in its place."""
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
