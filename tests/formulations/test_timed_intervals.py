"""Timed intervals: exhaustive search, backends, one memory, orders and limits."""

from dataclasses import replace

import pytest
from helpers import accepted, answer, solved, some_slow, usable
from refusals import refused
from transfer_problems import transfer_problem

from remat import Problem, Schedule
from remat.backends.cp_sat import CpSat
from remat.backends.highs import Highs
from remat.backends.minizinc import MiniZinc
from remat.formulations.timed_intervals import TimedIntervals, TimedIntervalsOptions
from remat.graphs.families import unit_chain
from remat.modeling import violations
from remat.problem.scope import EVERY_SCHEDULE, AtMost, Limit, Restriction, Scope
from remat.runtime.solve_options import Status
from remat.schedule import Machine, OrderRule
from remat.testing import optimum, random_budget, random_graph
from remat.testing.exhaustive_transfers import least_energy

AMPLE = TimedIntervalsOptions(copies=3, fetches=3, writes=2)
NO_LINK = Machine(0, 0)


def chain(n):
    return replace(unit_chain(n), cost_unit="us")


#: The first 30 are quick; these three take CP-SAT or the search some seconds.
LONG = [10, 26, 30]
SEEDS = [*(seed for seed in range(533) if seed not in LONG), *LONG]


@pytest.mark.parametrize("seed", some_slow(SEEDS, 30))
def test_optimum_is_that_of_exhaustive_search_and_both_are_expressed(seed):
    problem, best = transfer_problem(seed)
    formulation = TimedIntervals(problem, AMPLE)
    raw = answer(formulation, CpSat())
    if best is None:
        assert raw.status is Status.INFEASIBLE
        return
    found = formulation.decode(raw.values)
    assert raw.status is Status.OPTIMAL
    assert (accepted(problem, found).time, raw.objective) == (best.time, best.time)
    for schedule in (found, best.schedule):
        values = formulation.encode(schedule)
        assert violations(formulation.build(), values) == []
        assert formulation.build().objective.value(values) == best.time
        assert accepted(problem, formulation.decode(values)).time == best.time


#: Gecode does not decide seeds 5, 24 and 35 in two minutes.
@pytest.mark.parametrize("seed", some_slow([seed for seed in range(40) if seed not in (5, 24, 35)], 1))
@pytest.mark.parametrize("backend", [MiniZinc("gecode"), Highs()], ids=str)
def test_bridges_do_not_change_the_optimum(backend, seed):
    usable(backend)
    problem, best = transfer_problem(seed, 4)
    formulation = TimedIntervals(problem, TimedIntervalsOptions(copies=2, fetches=1))
    expected = solved(formulation, CpSat())
    assert solved(formulation, backend) == expected
    assert expected is None or expected >= best.time


@pytest.mark.parametrize("seed", some_slow(range(60), 6))
@pytest.mark.parametrize("order", ["fixed", "free"])
def test_without_a_link_the_least_time_is_the_least_cost(order, seed):
    graph = replace(random_graph(seed, 5), cost_unit="us")
    problem = Problem(graph, random_budget(graph, seed), order, machine=NO_LINK)
    best = optimum(problem.one_memory, Scope(OrderRule(order), staged=False, max_computes=2))
    assert solved(TimedIntervals(problem), CpSat()) == (best and best.cost)


@pytest.mark.parametrize("seed", some_slow(range(60), 6))
def test_buffers_stay_on_the_device(seed):
    graph = replace(random_graph(seed, 5, buffers=True), cost_unit="us")
    problem = Problem(graph, random_budget(graph, seed), machine=NO_LINK)
    formulation = TimedIntervals(problem)
    best, found = optimum(problem.one_memory, EVERY_SCHEDULE), answer(formulation, CpSat())
    assert Restriction.CONTRIBUTE_ONCE in formulation.scope().notes
    assert best is not None or found.status is Status.INFEASIBLE
    if found.values is not None:
        assert accepted(problem, formulation.decode(found.values)).time == found.objective >= best.cost
        values = formulation.encode(formulation.decode(found.values))
        assert violations(formulation.build(), values) == []


#: CP-SAT finds the optimum of seed 116 and does not prove it in two minutes.
@pytest.mark.parametrize("seed", some_slow([seed for seed in range(300) if seed != 116], 8))
def test_least_energy_is_that_of_exhaustive_search(seed):
    problem, _ = transfer_problem(seed)
    machine = replace(problem.machine, link_power=(0, 300, 1000, 5000)[seed % 4])
    problem = replace(problem, machine=machine, objective="least-energy")
    best = least_energy(problem.graph, problem.budget_bytes, machine)
    assert solved(TimedIntervals(problem, AMPLE), CpSat()) == best


@pytest.mark.parametrize("seed", some_slow(range(100), 5))
def test_time_limit_excludes_exactly_what_is_slower(seed):
    """With the least time as the limit something exists, for any objective; below it nothing does."""
    problem, best = transfer_problem(seed)
    if best is None or not problem.graph.base_cost:
        pytest.skip("there is no least time to limit")
    limit = -(-1000 * best.time // problem.graph.base_cost)
    for time_limit, feasible in ((limit, True), (limit - 1, False)):
        machine = replace(problem.machine, link_power=500, time_limit=time_limit)
        if machine.longest_time(problem.graph) >= best.time and not feasible:
            continue  # the time that the limit allows is rounded down
        limited = replace(problem, machine=machine, objective="least-energy")
        assert (solved(TimedIntervals(limited, AMPLE), CpSat()) is not None) is feasible


def test_unlimited_rates_give_the_base_cost():
    graph = chain(2)
    assert solved(TimedIntervals(Problem(graph, graph.structural_bound.peak, machine=Machine())), CpSat()) == 5


def test_scope_names_the_limits_that_bind():
    problem = Problem(chain(3), 4, machine="rate=1MB/s,host=2")
    notes = TimedIntervals(problem).scope().notes
    assert notes == (AtMost(Limit.FETCHES, 2), AtMost(Limit.WRITES, 1))
    assert TimedIntervals(problem, TimedIntervalsOptions(fetches=9, writes=9)).scope().notes == ()
    ample = replace(problem, max_computes=1, machine="rate=1MB/s")
    assert TimedIntervals(ample).scope() == Scope(OrderRule.FIXED, False, 1)


def test_problems_and_schedules_that_it_cannot_state_are_refused():
    with refused("model.no-machine", culprit="timed-intervals"):
        TimedIntervals(Problem(chain(3), 4))
    problem, best = next(given for given in map(transfer_problem, range(50)) if given[1].schedule.has_transfers)
    useless = ("compute", problem.graph.op_names[0])
    again = Schedule.from_steps([*Schedule.reference(problem.graph).steps(), useless])
    assert TimedIntervals(problem, TimedIntervalsOptions(copies=1)).encode(again) is not None
    with refused("problem.too-many"):
        TimedIntervals(problem, TimedIntervalsOptions(fetches=0)).encode(best.schedule)
