"""Problems with a machine: the least time, and claims that hold although tensors can be moved."""

import pickle
from dataclasses import replace
from functools import cache
from itertools import product
from random import Random

import pytest
from refusals import refused

from remat import Problem, solve
from remat.bounds import best_bound, bounds
from remat.config import Config
from remat.formulations.checkmate import Checkmate
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.roofline import with_times
from remat.graphs.zoo import TRAINING_STEPS
from remat.graphs.zoo.transformers import gpt
from remat.heuristics.transfers import Transfers, best_of_layers, move_everything
from remat.problem import Objective
from remat.problem.scope import Scope
from remat.registry import make_backend
from remat.runtime.deadline import Deadline, deadlines_by
from remat.runtime.solve_options import SolveOptions, Status
from remat.schedule import Machine, OrderRule
from remat.solving.auto import STAGES, Auto, AutoOptions, LeastCostSearch
from remat.solving.incumbents import Incumbents
from remat.solving.one_memory import OneMemory
from remat.solving.portfolio import Stage
from remat.solving.session import Session
from remat.solving.stop import TargetCost
from remat.testing import optimum
from remat.testing.exhaustive_transfers import least_time

FAST, SLOW, NONE = Machine(), Machine(10**6, 10**6), Machine(0, 0)
METHODS = ("auto", "retention-intervals", "checkmate/highs", "stages/highs", "greedy", "drops", "hierarchical")


def chain(n):
    return replace(unit_chain(n), cost_unit="us")


def random_network(random):
    """Return a small graph whose least time with a host is often below its least cost without."""
    b = GraphBuilder("network", cost_unit="us")
    names = []
    for k in range(random.randint(5, 7)):
        inputs = random.sample(names, min(len(names), random.randint(1, 2)))
        names.append(b.op(f"o{k}", inputs=inputs, size=random.randint(1, 4), cost=random.randint(1, 5)))
    return b.build()


def first_steps(graph, budget, machine):
    return least_time(graph, budget, machine).schedule


def test_machine_decides_the_objective_and_is_kept():
    machine = Machine.parse("pcie4,host=64GiB,duplex=half,latency=3us")
    problem = Problem(chain(3), 4, machine="pcie4,host=64GiB,duplex=half,latency=3us")
    assert (problem.machine, problem.objective, problem.rules.machine) == (machine, Objective.LEAST_TIME, machine)
    for same in (pickle.loads(pickle.dumps(problem)), replace(problem, budget=5), problem.plain):
        assert (same.machine, same.objective) == (machine, Objective.LEAST_TIME)
    alone = problem.one_memory
    assert (alone.machine, alone.objective, alone.one_memory is alone) == (None, Objective.LEAST_COST, True)
    assert ("machine", str(machine)) in problem.rows()


def test_contradictions_of_machine_and_objective_are_refused():
    graph = chain(3)
    with refused("problem.no-machine"):
        Problem(graph, 4, objective="least-time")
    with refused("problem.no-machine"):
        Problem(graph, 4, objective="least-peak", machine="pcie4")
    with refused("problem.no-times"):
        Problem(unit_chain(3), 4, machine="pcie4")
    assert Problem(unit_chain(3), 4, machine="pcie4,compute=1M").machine.compute_rate == 10**6
    with refused("problem.machine", culprit="3"):
        Problem(graph, 4, machine=3)


def test_configuration_has_the_machine(tmp_path):
    problem = Problem(chain(3), 4, machine="pcie4,host=64GiB,compute=3G,write=unlimited")
    problem.save(tmp_path / "net.toml")
    assert Config.from_file(tmp_path / "net.toml").make_problem().machine == problem.machine
    table = {"preset": "pcie4", "host": 100, "latency": "1us"}
    config = {"graph": str(tmp_path / "net.graph.json"), "budget": 4, "machine": table}
    read = Config.from_mapping({"problem": config}).make_problem()
    assert read.machine == Machine.parse("pcie4,host=100,latency=1us")
    assert read.objective is Objective.LEAST_TIME
    with refused("problem.machine", culprit="pcie9"):
        Config.from_mapping({"problem": config | {"machine": "pcie9"}}).make_problem()


@cache
def cases():
    """Return problems and least times: budgets that need recomputation without a host, or cannot be met by it."""
    found = []
    for seed in range(5):
        graph = random_network(Random(seed))
        floor = graph.structural_bound.peak
        for budget, machine in product({floor, max(floor, graph.reference_peak - 1)}, (FAST, SLOW)):
            problem = Problem(graph, budget, max_computes=1, machine=machine)
            found.append((problem, least_time(graph, budget, machine).time))
    return found


@pytest.mark.parametrize("method", METHODS)
def test_no_claim_excludes_a_schedule_that_moves_tensors(method):
    all_time = method in ("auto", "hierarchical")  # they use it where nothing is proved
    proved, some = 0, cases()[::4] if all_time else cases()
    for problem, least in some:
        result = solve(problem, method, stop=1 if all_time else 20)
        assert result.bound <= least
        assert result.status is not Status.INFEASIBLE
        if result.proved:
            assert result.objective == least
            proved += 1
    assert proved < len(cases()) or all_time
    assert proved or all_time or method in ("greedy", "drops")


def test_budget_below_the_largest_op_is_infeasible_on_any_machine():
    result = solve(Problem(chain(4), 2, machine=FAST))
    assert result.status is Status.INFEASIBLE
    assert "no schedule exists: budget 2 bytes" in result.message


@pytest.mark.parametrize("method", ["auto", "retention-intervals"])
def test_machine_without_a_link_keeps_optimum_and_proof(method):
    for machine, budget, order in ((NONE, 4, "fixed"), (Machine(0, None), 3, "free"), (Machine(host=0), 4, "fixed")):
        problem = Problem(chain(4), budget, order, machine=machine)
        with deadlines_by("processor"):  # the first search for a schedule has 0.2 s
            result, alone = (solve(each, method, stop=30) for each in (problem, problem.one_memory))
        assert (result.status, result.objective, result.bound) == (alone.status, alone.objective, alone.bound)
        assert (result.scope, result.certificate.time) == (alone.scope, alone.objective)
    never = Problem(chain(4), 5, max_computes=1, machine=NONE)
    assert solve(never, method, stop=30).status is Status.INFEASIBLE


@pytest.fixture
def no_search(monkeypatch):
    """Leave only the candidates with which `transfers` begins."""
    solutions = "_relax", "_from_relaxations", "_from_near"
    for part in ("_dropped", "_in_larger_memories", *solutions, "_descents", "_anneal"):
        monkeypatch.setattr(f"remat.heuristics.transfers.heuristic._Search.{part}", lambda *_, **__: None)
    monkeypatch.setattr(Transfers, "programmes_of", lambda *_: None)


def least_of_moves(problem):
    """Return the least times of everything moved and of layers moved; None if over the budget."""
    found = map(problem.validate, filter(None, [move_everything(problem), best_of_layers(problem)]))
    return [each.time if each.accepted else None for each in found]


@pytest.mark.parametrize(("rate", "moves"), [("1kB/s", False), ("1MB/s", True)])
def test_recomputation_and_moves_alone_are_candidates(rate, moves, no_search):
    """So `auto` is never slower than either, by construction; the optimum in one memory is known by brute force."""
    problem = Problem(chain(5), 3, machine=f"rate={rate}")
    alone = optimum(problem.one_memory, Scope(OrderRule.FIXED, staged=True)).cost
    moved = min(least_of_moves(problem))
    assert (moved < alone) is moves
    found = solve(problem, Auto(AutoOptions((Stage("transfers"), Stage("one-memory", seconds=1))))).certificate
    assert found.accepted
    assert found.time <= min(alone, moved)


def test_layers_moved_are_candidates(no_search):
    problem = Problem(gpt(layers=4, batch=4), "80%", machine="pcie4,compute=19.5Tflop/s")
    everything, layers = least_of_moves(problem)
    assert layers < everything
    found = solve(problem, Auto(AutoOptions((Stage("transfers"),)))).certificate
    assert found.accepted
    assert found.time <= layers


@pytest.mark.parametrize("seed", [None, 0, 5, 6])
def test_links_without_limits_give_the_base_cost_with_proof(seed):
    graph = chain(6) if seed is None else random_network(Random(seed))
    budget = graph.structural_bound.peak
    found = solve(Problem(graph, budget, machine=Machine()), "auto", stop=60)
    assert (found.status, found.certificate.time, found.bound) == (Status.OPTIMAL, graph.base_cost, graph.base_cost)
    assert found.certificate.transfers.offloads and found.certificate.peak <= budget


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "llama", "t5", "unet-ops", "resnet50-ops"])
def test_limits_of_links_are_exact_on_training_steps(name):
    """Unlimited links give the base cost at every feasible budget, links without a rate the optimum in one memory."""
    graph, one = with_times(TRAINING_STEPS[name](), "A100"), SolveOptions(threads=1)
    with deadlines_by("processor"):
        for budget in ("50%", "35%", "20%"):
            problem = Problem(graph, budget, machine=FAST)
            found = solve(problem, stop=60, options=one)
            assert found.status is (Status.INFEASIBLE if problem.hopeless else Status.OPTIMAL)
            assert problem.hopeless or found.objective == found.bound == graph.base_cost
        problem = Problem(graph, "50%", machine=NONE)
        found, alone = (solve(each, stop=60, options=one) for each in (problem, problem.one_memory))
    assert found.status is alone.status is Status.OPTIMAL
    assert found.objective == found.bound == alone.objective == alone.bound


def test_start_that_moves_tensors_is_kept():
    graph = chain(4)
    problem = Problem(graph, 3, machine=FAST)
    start = first_steps(graph, 3, FAST)
    assert least_time(graph, 3, FAST).time < least_time(graph, 3, NONE).time
    for method in ("retention-intervals", "greedy"):
        result = solve(problem, method, warm_start=start, stop=20)
        assert (result.objective, result.proved) == (graph.base_cost, True)
        assert result.schedule.has_transfers and result.certificate.time == result.objective
    with refused("problem.invalid-schedule", culprit="the warm start"):
        solve(problem.one_memory, warm_start=start)
    with refused("problem.no-time"):
        problem.value(problem.one_memory.validate(start))
    with refused("backend.no-machine", culprit="greedy"):
        Incumbents(problem.one_memory).add(start, "greedy")


@pytest.mark.slow
def test_default_method_recomputes_before_it_moves_more():
    """Long transfers: recomputations are the best schedule, which every later search keeps."""
    problem = Problem(chain(13), 6, machine=Machine(10**5, 10**5))
    with deadlines_by("processor"):
        result, alone = solve(problem, stop=12), solve(problem.one_memory, "few-stages", stop=20)
    names = [step.name for step in result.steps]
    assert result.proved or names.index("bounds in one memory") < len(names) - 1 - names[::-1].index("transfers")
    assert result.objective <= alone.objective


def test_default_method_ends_where_the_first_bound_is_met():
    Transfers().prepared()  # while it compiles, other searches run
    result = solve(Problem(chain(13), 14, machine=Machine(10**7, 10**7)), stop=60)
    assert result.proved
    assert {step.name for step in result.steps} <= {"drops", "greedy", "transfers", "bounds"}


def test_recomputation_alone_is_searched_until_none_is_faster():
    """The least time of this chain is 12 us, and 15 us without moves: a bound above 12 us comes before a search."""
    machine = Machine(10**6, 10**6)
    problem = Problem(chain(4), 3, machine=machine)

    def searched(*schedules):
        session = Session(problem, SolveOptions(Deadline.after(60)), "auto", solver=make_backend("cp-sat"))
        for schedule in schedules:
            session.add(schedule, "test")
        alone = OneMemory(session, LeastCostSearch, STAGES)
        alone.run(session.call.deadline)
        assert alone.over
        return session

    known = searched(solve(problem, "transfers", stop=TargetCost(12)).schedule)
    assert (known.value, [step.name for step in known.steps]) == (12, ["bounds in one memory"])
    assert known.notes == ["no schedule that only recomputes takes less than 12 (overhead 33.33 %)"]
    found = searched()
    assert (found.value, found.best.schedule.has_transfers, found.bound) == (15, False, 9)


def test_slow_link_carries_little_of_the_bytes_above_the_budget():
    """The reference peak is 18 bytes, the budget 4: 2.5 % of 14 are 0.35 bytes in 33 us, 10.6 kB/s."""
    graph = chain(16)
    assert (graph.reference_peak, graph.base_cost) == (18, 33)
    for rates, slow in (((10_600, 10_600), True), ((10_600, None), True), ((10_700, 10_700), False), ((0, 0), False)):
        problem = Problem(graph, 4, machine=Machine(*rates))
        session = Session(problem, SolveOptions(Deadline.after(60)), "auto", solver=make_backend("cp-sat"))
        assert LeastCostSearch(session).slow_link is slow


def test_target_below_every_cost_is_not_ruled_out():
    """The proof in one memory is that no schedule reaches the target; with a host some do."""
    result = solve(Problem(chain(4), 3, machine=FAST), "retention-intervals", stop=TargetCost(9))
    assert result.bound == 9 and not result.proved
    assert str(result.stop) != "criterion"


def test_result_shows_the_time():
    result = solve(Problem(chain(4), 4, machine=SLOW), "greedy", stop=20)
    assert result.as_dict()["aim"] == "least-time"
    assert result.as_dict()["certificate"]["transfers"]["time"] == result.objective
    assert f"time {result.objective:,} us" in str(result)


def test_bounds_and_formulations_in_one_memory_are_kept_from_other_problems():
    problem = Problem(chain(4), 3, machine=FAST)
    assert {bound.kind for bound in bounds(problem)} == {"the structural bound", "the transfer bound"}
    assert best_bound(problem).value == problem.graph.base_cost < best_bound(problem.one_memory).value
    without = replace(problem, machine=NONE)
    assert best_bound(without).value == best_bound(without.one_memory).value
    with refused("problem.transfers", culprit="checkmate"):
        Checkmate(problem)
