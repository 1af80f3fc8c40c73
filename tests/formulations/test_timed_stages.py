"""Timed stages: bounds hold for the programs of the scope, and schedules are valid and never beat the search."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import ONE, accepted, answer, some_slow
from transfer_problems import transfer_problem

from remat import Problem, solve
from remat.backends.highs import Highs
from remat.formulations.placing import placed
from remat.formulations.programs import FETCH
from remat.formulations.timed_stages import TimedStages
from remat.graphs.families import unit_chain
from remat.modeling import Kind, violations
from remat.problem.scope import Scope
from remat.runtime.solve_options import Status
from remat.schedule import Machine, OrderRule, Schedule
from remat.testing import optimum

#: Error of times of HiGHS, in units of cost.
CLOSE = 1e-4


def time_in_scope(formulation, values):
    """Return the time of the program that values represent, with fetches at the places of the scope."""
    problem, makes = formulation.problem, formulation.makes(values)
    moved = {target for kind, target in zip(*makes, strict=True) if kind == FETCH}
    return accepted(problem, placed(problem, makes, moved, ahead=False).schedule(problem, "")).time


def least_with_choices(formulation, values):
    """Return the least objective with the given choices."""
    model = formulation.build().copy("choices")
    fixed = model.kind == Kind.BOOLEAN.value
    chosen = np.rint(values[fixed])
    model.lower[fixed], model.upper[fixed] = chosen, chosen
    return Highs().solve(model, ONE).objective


@pytest.mark.parametrize("seed", some_slow(range(500), 20))
def test_bound_holds_for_the_optimum_and_for_other_programs(seed):
    problem, best = transfer_problem(seed)
    formulation = TimedStages(problem)
    raw = answer(formulation, Highs())
    if raw.values is None:
        assert raw.status is Status.INFEASIBLE
        return
    assert accepted(problem, formulation.decode(raw.values)).time >= best.time
    assert time_in_scope(formulation, raw.values) >= raw.objective - CLOSE
    rng = np.random.default_rng(seed)
    model = formulation.build().copy("other weights")
    x = model.named
    chosen = np.concatenate([x.R.index, x.F.index, x.W.index])
    model.minimize(chosen, rng.uniform(0.1, 1, len(chosen)))  # nothing is done that is of no use
    other = Highs().solve(model, ONE).values
    assert least_with_choices(TimedStages(problem), other) <= time_in_scope(formulation, other) + CLOSE


@pytest.mark.parametrize("seed", some_slow(range(40), 4))
def test_without_a_link_the_bound_is_the_least_cost_of_stages(seed):
    problem = replace(transfer_problem(seed)[0], machine=Machine(0, 0))
    best = optimum(problem.one_memory, Scope(OrderRule.FIXED, staged=True))
    raw = answer(TimedStages(problem), Highs())
    assert (raw.objective and round(raw.objective, 4)) == (best and best.cost)


def test_schedules_without_transfers_are_expressed():
    graph = replace(unit_chain(6), cost_unit="us")
    problem = Problem(graph, 100, machine="rate=1MB/s")
    formulation = TimedStages(problem)
    values = formulation.encode(Schedule.reference(graph))
    assert violations(formulation.build(), values) == []
    assert formulation.build().objective.value(values) == graph.base_cost


def test_result_claims_an_optimum_only_if_the_bound_is_reached():
    graph = replace(unit_chain(4), cost_unit="us")
    for machine in ("rate=1MB/s", "rate=1MB/s,duplex=half", "rate=300kB/s,latency=2us"):
        result = solve(Problem(graph, 3, machine=machine), TimedStages, "highs", options=ONE)
        assert result.certificate.accepted
        assert result.status is not Status.OPTIMAL or result.bound == result.certificate.time
