"""H-ILP with a second memory: timed stages on ops and on groups, one memory, and schedules within the budget."""

import random
from dataclasses import replace

import numpy as np
import pytest
from helpers import ONE, accepted, answer, some_slow
from hierarchies import random_hierarchy
from transfer_problems import transfer_problem

from remat import Problem, Schedule, solve
from remat.backends.highs import Highs
from remat.errors import ProblemError
from remat.formulations.composites import Composite, CompositeProblem, Option
from remat.formulations.h_ilp import HIlp, HIlpOptions
from remat.formulations.timed_h_ilp import TimedHIlp
from remat.formulations.timed_stages import TimedStages
from remat.graphs.families import unit_chain
from remat.hierarchy.quotient import Quotient
from remat.modeling import violations
from remat.problem.scope import Restriction
from remat.schedule import Machine


def optimum(formulation):
    """Return the optimum; None if infeasible."""
    return rounded(answer(formulation, Highs()).objective)


def rounded(objective):
    """Round by the error of HiGHS."""
    return None if objective is None else round(objective, 3)


def hierarchy_problem(seed, most_ops=4):
    """Return a random problem on a machine without latency, with random groups and options, and their random source."""
    h, rng = random_hierarchy(seed, most_ops), random.Random(seed)
    graph = replace(h.graph, cost_unit="us")
    least, most = graph.structural_bound.peak, graph.reference_peak
    rate, total = rng.choice([5 * 10**5, 10**6, 2 * 10**6]), sum(tensor.size for tensor in graph.tensors)
    host = rng.choice([None, None, rng.randint(1, max(1, total))])
    machine = Machine(rate, rng.choice([rate, 10**6]), host, full_duplex=rng.random() < 0.5)
    groups = tuple(
        Composite(g.name, g.forward, g.backward, [Option(o.forward, o.backward or None) for o in g.options])
        for g in h.groups
    )
    return Problem(graph, rng.randint(least, max(least, most)), machine=machine), groups, rng


def has_buffers(problem):
    """Ops that contribute to a buffer run once in this model only."""
    return bool((problem.graph.arrays.producers.counts > 1).any())


def seeds(part, many=10):
    """Return four seeds for the quick part, `many` for others."""
    return range(4) if part == 0 else range(many * part, many * part + many)


def frees_saved_unread(schedule, graph):
    """True if a group runs again and what it saves is freed before its backward part has read it."""
    computed, unread = set(), set()
    for kind, name in schedule.steps():
        if kind == "compute":
            op = graph.ops[graph.op_index[name]]
            unread.difference_update(op.inputs)
            if name in computed:
                unread.update(tensor for tensor in op.outputs if tensor.startswith("saved by"))
            computed.add(name)
        elif kind == "free" and name in unread:
            return True
    return False


@pytest.mark.parametrize("part", some_slow(range(31), 1))
def test_without_groups_it_is_timed_stages(part):
    compared = 0
    for problem, best in map(transfer_problem, seeds(part)):
        if (problem.graph.arrays.op_outputs.counts > 1).any():
            continue  # stages count spare outputs in another way
        formulation = TimedHIlp(problem)
        raw = answer(formulation, Highs())
        assert rounded(raw.objective) == optimum(TimedStages(problem))
        if raw.values is not None:
            assert accepted(problem, formulation.decode(raw.values)).time >= best.time
            compared += 1
    assert compared


@pytest.mark.parametrize("part", some_slow(range(15), 1))
def test_groups_with_one_option_are_ops_of_timed_stages(part):
    """Interfaces count throughout a node in both models without corrections; the saved bytes are a tensor in stages.

    Stages may free saved bytes at once. By (8), groups hold them up to the next phase.
    """
    compared = 0
    for problem, groups, rng in map(hierarchy_problem, seeds(part, 30)):
        if has_buffers(problem):
            continue
        single = []
        for g in groups:
            whole = [option for option in g.options if option.backward is not None or not len(g.backward)]
            single.append(Composite(g.name, g.forward, g.backward, [rng.choice(whole)]))
        small = Quotient(CompositeProblem(problem.one_memory, tuple(single))).problem([0] * len(single))
        small = Problem(small.graph, problem.budget_bytes, machine=problem.machine)
        found = optimum(TimedHIlp(problem, HIlpOptions(tuple(single), corrections=False)))
        stages = TimedStages(small)
        raw = answer(stages, Highs())
        if raw.values is not None and frees_saved_unread(stages.decode(raw.values), small.graph):
            assert found is None or found >= rounded(raw.objective)
        else:
            assert found == rounded(raw.objective)
        compared += found is not None
    assert compared


@pytest.mark.parametrize("part", some_slow(range(41), 1))
def test_schedules_keep_the_budget_whatever_the_weights(part):
    moved = 0
    for seed, (problem, groups, _) in zip(seeds(part), map(hierarchy_problem, seeds(part)), strict=True):
        formulation = TimedHIlp(problem, HIlpOptions(groups))
        raw = answer(formulation, Highs())
        if raw.values is None:
            continue
        accepted(problem, formulation.decode(raw.values))
        model, rng = formulation.build().copy("other weights"), np.random.default_rng(seed)
        x = model.named
        chosen = np.concatenate([x.R.index, x.F.index, x.W.index])
        for sign in (1, -1):
            model.minimize(chosen, sign * rng.uniform(0.1, 1, len(chosen)))
            schedule = formulation.decode(Highs().solve(model, ONE).values)
            accepted(problem, schedule)
            moved += schedule.has_transfers
    assert moved


@pytest.mark.parametrize("part", some_slow(range(21), 1))
def test_without_a_link_the_bound_is_the_least_cost_of_groups(part):
    for problem, groups, _ in map(hierarchy_problem, seeds(part)):
        if not has_buffers(problem):
            options, alone = HIlpOptions(groups), replace(problem, machine=Machine(0, 0))
            assert optimum(TimedHIlp(alone, options)) == optimum(HIlp(problem.one_memory, options))


def saving_chain():
    """Return a chain and its middle ops as a group that saves all, or all but its output."""
    graph = replace(unit_chain(6), cost_unit="us")
    forward, backward = [1, 2, 3, 4], [8, 9, 10, 11]
    options = [Option(forward, backward), Option(forward, [1, 2, 3, *backward])]
    return graph, Composite("middle", forward, backward, options)


def test_saved_tensors_move_together_instead_of_being_recomputed():
    graph, middle = saving_chain()
    options = HIlpOptions((middle,))
    for rate, cost in ((None, 13), (3 * 10**5, 15)):
        problem = Problem(graph, 6, machine=Machine(rate, rate))
        result = solve(problem, TimedHIlp, "highs", method_options=options, options=ONE)
        assert result.certificate.accepted and result.certificate.cost == cost
    problem = Problem(graph, 6, machine=Machine())
    formulation = TimedHIlp(problem, options)
    steps = formulation.decode(answer(formulation, Highs()).values).steps()
    assert {tensor for kind, tensor in steps if kind == "fetch"} >= {"f1", "f2", "f3"}
    assert {Restriction.STAGED_TRANSFERS, Restriction.WAITING_GROUPS} <= set(formulation.scope().notes)


def test_schedules_without_transfers_are_expressed():
    graph, middle = saving_chain()
    formulation = TimedHIlp(Problem(graph, 100, machine="rate=1MB/s"), HIlpOptions((middle,)))
    values = formulation.encode(Schedule.reference(graph))
    assert violations(formulation.build(), values) == []
    assert formulation.build().objective.value(values) == graph.base_cost
    with pytest.raises(ProblemError, match="without transfers only"):
        formulation.encode(Schedule.from_steps([("compute", "f0"), ("offload", "f0"), ("free", "f0"), ("fetch", "f0")]))
