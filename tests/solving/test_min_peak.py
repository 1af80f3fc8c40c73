"""minimize(): the least peak, proved where it can be, in every set of rules; and the quick version for messages."""

import json
from dataclasses import replace

import pytest
from helpers import ONE, judged
from refusals import refused
from scripted import ABSENT, Scripted

import remat.solving.portfolio
from remat import Problem, Schedule, layered, minimize, solve, validate
from remat.backends.base import Availability
from remat.backends.results import RawResult
from remat.graphs import GraphBuilder
from remat.graphs.families import unit_chain
from remat.graphs.zoo import ZOO
from remat.heuristics.drops import Drops
from remat.ordering.best_first import Aim, explore
from remat.registry import load, make_backend
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status, StopReason
from remat.solving import min_peak_search
from remat.solving.min_peak import least_known_budget
from remat.solving.min_peak_search import MinPeakSearch
from remat.solving.progress import Progress
from remat.solving.result import Result
from remat.solving.session import Session
from remat.solving.stop import AnyOf, TargetCost
from remat.testing.graphs import random_graph


def checked(result: Result) -> Result:
    """The result, whose schedule is validated anew and whose claims fit together."""
    problem = replace(result.problem, budget=result.peak)
    certificate = judged(problem, result.schedule)
    assert certificate.accepted, certificate.first
    assert (certificate.peak, certificate.cost) == (result.peak, result.cost)
    assert result.bound <= result.peak
    assert result.peak <= validate(problem.graph, Schedule.reference(problem.graph), result.problem.rules).peak
    assert problem.graph.base_cost <= result.cost_bound <= result.cost
    assert result.proved == (result.bound == result.peak) == ("proved least" in str(result))
    points = [(point.objective, point.bound) for point in result.incumbents]
    assert points[-1] == (result.peak, result.bound)
    assert points == sorted(points, key=lambda point: (-point[0], point[1]))
    assert json.loads(json.dumps(result.as_dict()))["peak"] == result.peak
    return result


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_tiny_graphs_are_proved(order: str) -> None:
    """Peak and cost are those of the exhaustive search alone, whoever found them."""
    for seed in range(300, 306):
        graph = random_graph(seed, plain=False, buffers=seed % 2 == 1, most_ops=6)
        for limit in (None, 1):
            problem = Problem(graph, order=order, max_computes=limit)
            found = checked(minimize(problem, backend=None, stop=60))
            assert found.proved
            assert found.cost_proved
            peak = explore(problem, Aim.PEAK, limit=10**9).bound
            assert (found.peak, found.cost) == (peak, explore(problem, Aim.COST, limit=10**9, peak=peak).bound)
            assert found.stop is StopReason.FINISHED


def test_rules_count_and_the_budget_of_the_problem_does_not() -> None:
    graph = unit_chain(3)
    for problem in (graph, Problem(graph, 1), Problem(graph, "100%")):
        found = checked(minimize(problem, backend=None, stop=60))
        assert (found.peak, found.cost, found.problem.budget) == (3, 10, None)
    builder = GraphBuilder("rules", constant_memory=50)
    builder.op("a", size=5, cost=1)
    builder.op("b", inputs=["a"], size=5, cost=1)
    builder.op("c", inputs=["b"], size=5, cost=1)
    builder.op("d", inputs=["a", "c"], size=1, cost=1)
    graph = builder.build()
    cases = [
        ({}, 11), ({"max_computes": 1}, 15), ({"max_computes": 1, "keep": ("b",)}, 16),
        ({"keep": ("b",)}, 11),  # b is made again at the end
        ({"count_constant_memory": True}, 61),
    ]  # fmt: skip
    for rules, peak in cases:
        assert checked(minimize(Problem(graph, **rules), backend=None, stop=60)).peak == peak
    once = checked(minimize(Problem(graph, max_computes={"a": 1}), backend=None, stop=60))
    assert (once.peak, once.bound_kind, once.bound_cause) == (15, "the bound of what cannot be made again", "c")


def test_a_solver_lowers_the_peak() -> None:
    """Without the other ways, the preliminary model alone; its bound counts where it holds all that is allowed."""
    graph = layered(14, 0.3, 3)
    options = SolveOptions(Deadline.after(60), threads=1, relative_gap=0)
    for order, limit in (("free", 1), ("fixed", None)):
        problem = Problem(graph, order=order, max_computes=limit)
        session = Session(
            replace(problem, objective="least-peak"), options, "auto", "cp-sat", solver=make_backend("cp-sat")
        )
        search = MinPeakSearch(session)
        search.bounds(options.deadline)
        before = search.bound
        search.solve_model(options.deadline)
        least = explore(problem, Aim.PEAK, limit=10**9).bound
        assert least <= search.peak <= graph.reference_peak
        if limit == 1:
            assert (search.peak, search.bound) == (least, least)
        else:
            assert search.bound == before  # staged schedules only: no bound on all


#: A claim to have proved more than there is.
BOAST = RawResult(Status.UNKNOWN, StopReason.DEADLINE, bound=1e6)


def larger(order: str, limit: int | None) -> Problem:
    """Too large for the exhaustive search."""
    return Problem(layered(30, 0.3, 1), order=order, max_computes=limit)


@pytest.fixture
def no_heuristics(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("descend", "run_chain_heuristics", "_cheapen"):
        monkeypatch.setattr(MinPeakSearch, name, lambda *_: None)


def test_a_bound_above_a_schedule_is_an_error(no_heuristics: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(min_peak_search, "ORDERING_OPS", 0)
    for problem in (larger("free", 1), larger("fixed", None)):
        with refused("backend.refuted"):
            minimize(problem, backend=Scripted(BOAST), stop=60)


@pytest.mark.parametrize("first", [200_000, 0])
def test_small_networks_wait_for_no_compiled_code(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    def compiled_code(*_: object, **__: object) -> None:
        raise AssertionError("loads compiled code")

    # 0: all is left to the search that runs while others compile
    monkeypatch.setattr(min_peak_search, "FIRST_WORK", first)
    monkeypatch.setattr(min_peak_search.Portfolio, "compiled", lambda: bool(first))
    monkeypatch.setattr(min_peak_search, "held_bound", compiled_code)
    monkeypatch.setattr(min_peak_search.Portfolio, "prepared", compiled_code)
    cells = {"swiftnet-cells-folded": 200_704, "swiftnet-c-folded": 32_536, "swiftnet": 301_056, "darts": 2_408_448}
    for name, least in cells.items():
        found = checked(remat.order(ZOO[name]()))
        assert (found.peak, found.bound) == (least, least)


def test_a_backend_that_is_not_there_is_a_remark(no_heuristics: None) -> None:
    found = checked(minimize(larger("fixed", 2), backend=Scripted(Availability(ABSENT, "there is none")), stop=60))
    assert "backend 'scripted' was left out: there is none" in str(found)


def test_a_start_is_kept(no_heuristics: None) -> None:
    problem = larger("free", None)
    lean = minimize(replace(problem, max_computes=1), backend=None, stop=60).schedule
    found = checked(minimize(problem, backend=None, stop=0.001, warm_start=lean))
    assert found.peak == 15_890
    assert found.stop is StopReason.DEADLINE
    assert not found.proved


def test_ctrl_c_keeps_the_best() -> None:
    moments: list[Progress] = []

    def interrupt(moment: Progress) -> None:
        moments.append(moment)
        if moment.objective < larger("free", None).reference_peak:
            raise KeyboardInterrupt

    found = checked(minimize(larger("free", None), backend=None, stop=60, on_progress=interrupt))
    assert found.stop is StopReason.INTERRUPTED
    assert found.peak == moments[-1].objective < found.problem.reference_peak
    assert {moment.bound for moment in moments} <= {0, found.bound}


def test_least_known_budget() -> None:
    problem = Problem(layered(30, 0.3, 1), 5, "free")
    seen = least_known_budget(problem, 0.5)
    certificate = validate(problem.graph, seen.schedule, replace(problem, budget=seen.certificate.peak).rules)
    assert certificate.accepted
    assert seen.certificate.peak < problem.reference_peak


def test_least_known_budget_hands_on_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(min_peak_search, "held_bound", interrupt)
    with pytest.raises(KeyboardInterrupt):
        least_known_budget(Problem(unit_chain(4)))


# -- the objective is a part of the question ---------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "backend"), [("free", "cp-sat"), ("fixed", "cp-sat"), ("fixed", "highs")])
def test_a_formulation_states_the_least_peak(order: str, backend: str) -> None:
    """Phase 1 of retention intervals by itself; its optimum is that of its scope, checked by an exhaustive search."""
    for seed in (300, 303, 305):
        graph = random_graph(seed, plain=False, buffers=False, most_ops=5)
        problem = Problem(graph, order=order, max_computes=2, objective="least-peak")
        result = solve(problem, "retention-intervals", backend, stop=60, options=ONE)
        assert (result.status, result.objective) == (Status.OPTIMAL, result.peak)
        assert result.certificate is not None
        assert result.certificate.accepted
        least = explore(replace(problem, objective="least-cost"), Aim.PEAK, limit=10**9).bound
        assert result.peak is not None
        assert result.peak >= least
        if order == "free":
            assert result.peak == least


def test_any_heuristic_is_asked_for_less_and_less() -> None:
    for method in ("greedy", "drops", "griewank-walther", "lns"):
        load("heuristics", method)().prepared(Deadline())  # compiling is not what is looked at here
        result = minimize(unit_chain(8), method, stop=20, options=ONE)
        assert result.peak is not None
        assert result.peak < unit_chain(8).reference_peak
        assert (result.method, result.source) == (method, method)
        assert 0 < result.bound <= result.peak
        assert method in result.timings


def test_a_budget_is_an_upper_limit() -> None:
    graph = unit_chain(4)
    within = solve(Problem(graph, 4, objective="least-peak"), stop=30, options=ONE)
    assert (within.status, within.peak, within.cost) == (Status.OPTIMAL, 3, 15)
    below = solve(Problem(graph, 3, max_computes=1, objective="least-peak"), stop=30, options=ONE)
    assert (below.status, below.schedule) == (Status.INFEASIBLE, None)
    assert "no schedule exists (by " in below.message
    assert str(below).splitlines()[0] == "status    infeasible (stopped: finished)"


def test_the_search_stops_at_its_criterion() -> None:
    result = minimize(unit_chain(40), stop=AnyOf(60, TargetCost(60)), options=ONE)
    assert (result.stop, result.timings["total"] < 50) == ("criterion", True)
    assert result.peak is not None
    assert result.peak <= 60


def test_who_cannot_state_it_says_so() -> None:
    with refused("problem.no-peak", culprit="checkmate"):
        minimize(unit_chain(3), "checkmate")
    with refused("problem.bad-objective", culprit="least"):
        Problem(unit_chain(3), objective="least")


def test_nothing_is_loaded_after_the_deadline(monkeypatch):
    """Each heuristic takes tenths of a second to import, and none of them could run."""

    def too_late(*_):
        raise AssertionError("loaded after the deadline")

    monkeypatch.setattr(remat.solving.portfolio, "load", too_late)
    monkeypatch.setattr(remat.solving.portfolio, "chain_start", too_late)
    result = minimize(unit_chain(40), stop=Deadline(0.0))
    assert result.peak == unit_chain(40).reference_peak
    assert result.stop is StopReason.DEADLINE


@pytest.mark.parametrize(
    ("compiled", "quick", "training", "order"),
    [
        (True, False, False, ["drops", "eviction", "greedy"]),
        (None, False, False, ["eviction", "greedy", "drops"]),
        (True, True, False, ["eviction", "greedy"]),
        (True, False, True, ["eviction", "greedy"]),
    ],
)
def test_drops_are_asked_first_where_there_are_no_blocks(monkeypatch, compiled, quick, training, order):
    """Eviction, greedy and annealing left 3,000 ops in random layers at 92 % in 12 s; drops have 70 % in three."""
    asked = []
    monkeypatch.setattr(MinPeakSearch, "descend", lambda _, name, *__: asked.append(name))
    monkeypatch.setattr(MinPeakSearch, "_cheapen", lambda _: None)
    monkeypatch.setattr(MinPeakSearch, "run_chain_heuristics", lambda _: None)
    monkeypatch.setattr(Drops, "compiled", lambda *_: compiled)
    graph = unit_chain(40) if training else layered(60, seed=1)
    session = Session(Problem(graph, objective="least-peak"), SolveOptions(Deadline.after(0.9 if quick else 60)), "")
    MinPeakSearch(session, quick=quick).run()
    assert asked[: len(order)] == order
    assert asked.count("drops") == order.count("drops")
