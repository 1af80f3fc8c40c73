"""Default method: optima of small problems, claims, reports, stopping, models and solvers."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from helpers import ONE, accepted
from refusals import refused
from scripted import ABSENT, Scripted
from small_graphs import KNOWN

import remat.solving.auto
import remat.solving.bounding
import remat.solving.least_known_budget
import remat.solving.portfolio
import remat.solving.session
from remat.backends.base import Availability
from remat.bounds.base import Bound
from remat.errors import BackendError, ModelError
from remat.graphs.families import unit_chain
from remat.graphs.layered import layered
from remat.heuristics.annealing import Annealing
from remat.heuristics.base import HeuristicRun
from remat.heuristics.drops import Drops
from remat.problem import Problem
from remat.problem.scope import EVERY_SCHEDULE, Scope, covers
from remat.registry import heuristics
from remat.runtime.solve_options import SolveOptions, Status, StopReason
from remat.schedule import OrderRule, Schedule
from remat.solving.auto import AutoOptions
from remat.solving.portfolio import Stage
from remat.solving.progress import Progress
from remat.solving.result import Result
from remat.solving.solve import solve
from remat.testing import optimum, random_budget, random_graph

#: 17 ops, 5 of the 10 bytes of the reference peak; the optimum costs 22, which heuristics find.
CHAIN = Problem(unit_chain(8), 5)
#: 7 ops; least feasible budget 16, structural bound 14.
TIGHT = KNOWN[0].graph


@pytest.fixture(autouse=True)
def short_budget_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the search for a sufficient budget after an infeasible result."""
    monkeypatch.setattr(remat.solving.least_known_budget, "LEAST_SECONDS", 0.01)


def leave_out(monkeypatch: pytest.MonkeyPatch, *methods: str) -> None:
    """Remove stages from the default table."""
    stages = tuple(stage for stage in remat.solving.auto.STAGES if stage.method not in methods)
    monkeypatch.setattr(remat.solving.auto, "STAGES", stages)


@pytest.fixture
def no_exhaustive_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remat.solving.portfolio, "EXHAUSTIVE_OPS", 0)
    leave_out(monkeypatch, "exhaustive", "live-search")


@pytest.fixture
def only_models_prove(monkeypatch: pytest.MonkeyPatch, no_exhaustive_search: None) -> None:
    """Disable all proofs except those of models, and descents, which take a second each."""
    monkeypatch.setattr(remat.solving.portfolio, "raise_bounds", lambda *_: None)
    leave_out(monkeypatch, "few-stages", "descent")  # few stages can prove optimality


def tight_problems(order: str, limit: int | None, count: int, **graph: Any) -> Iterator[Problem]:
    """Yield random tiny problems whose reference order exceeds the budget."""
    for seed in range(1000):
        tiny = random_graph(seed, **graph)
        problem = Problem(tiny, random_budget(tiny, seed), order, max_computes=limit)
        if problem.budget_bytes is not None and problem.budget_bytes < problem.reference_peak:
            yield problem
            count -= 1
        if not count:
            return


def check_steps(result: Result) -> None:
    """Assert falling costs and rising bounds, and that only the last step closes the gap."""
    costs = [step.objective for step in result.steps if step.objective is not None]
    bounds = [step.bound for step in result.steps]
    assert costs == sorted(costs, reverse=True)
    assert bounds == sorted(bounds)
    assert all(step.objective is None or step.objective > step.bound for step in result.steps[:-1])
    if result.status is Status.OPTIMAL and result.steps:
        assert result.steps[-1].objective == result.steps[-1].bound == result.objective


# -- tiny problems -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize(("limit", "buffers"), [(None, False), (2, False), (None, True)])
def test_tiny_problems_are_proved(order: str, limit: int | None, buffers: bool) -> None:
    """Several outputs, workspace, graph inputs, kept tensors, ops that run once.

    The reference search does not refill accumulation buffers, so its optimum may be higher.
    """
    for problem in tight_problems(order, limit, 3 if buffers else 6, **({"buffers": True} if buffers else {})):
        best = optimum(problem, Scope(OrderRule(order), staged=False))
        result = solve(problem, options=ONE)
        check_steps(result)
        assert covers(result.scope, problem)
        if best is None and not buffers:
            assert result.status is Status.INFEASIBLE
        elif best is not None:
            assert result.status is Status.OPTIMAL
            assert result.objective == result.bound <= best.cost
            assert buffers or result.objective == best.cost
            assert accepted(problem, result.schedule).cost == result.objective
        assert result.status in {Status.OPTIMAL, Status.INFEASIBLE}


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_infeasibility_is_proved(order: str) -> None:
    result = solve(Problem(TIGHT, 15, order), options=ONE)
    assert (result.status, result.stop, result.schedule) == (Status.INFEASIBLE, StopReason.FINISHED, None)
    assert str(result.scope) == {"fixed": "fixed order", "free": "any order"}[order] + ", any number of computes"
    assert result.message.startswith("no schedule exists (by exhaustive search); ")
    assert result.least_feasible_budget >= 16
    assert "exhaustive search" in str(result)


@pytest.mark.usefixtures("no_exhaustive_search")
@pytest.mark.parametrize("order", ["fixed", "free"])
def test_claims_without_exhaustive_search(order: str) -> None:
    solved = 0
    for problem in tight_problems(order, 2 if order == "free" else None, 4):
        best = optimum(problem, Scope(OrderRule(order), staged=False))
        result = solve(problem, options=ONE)
        check_steps(result)
        if best is None:
            assert result.status in {Status.INFEASIBLE, Status.UNKNOWN}
            continue
        assert result.bound <= best.cost
        assert result.status is not Status.INFEASIBLE or not covers(result.scope, problem)
        solved += result.objective == best.cost
    assert solved >= 2


def test_scope_names_limits_by_op() -> None:
    graph = unit_chain(5)
    problem = Problem(graph, 4, max_computes=dict.fromkeys(graph.op_names[:6], 2))
    result = solve(problem, options=ONE)
    assert result.status is Status.OPTIMAL
    assert str(result.scope) in {
        "fixed order, any number of computes",  # of a bound that ignores the limits
        "fixed order, any number of computes, limits of computes by op",
    }
    assert covers(result.scope, problem)


def test_graph_without_costs() -> None:
    graph = unit_chain(4)
    free = replace(graph, ops=tuple(replace(op, cost=0) for op in graph.ops))
    result = solve(Problem(free, 3), options=ONE)
    assert (result.status, result.objective, result.gap) == (Status.OPTIMAL, 0, 0.0)
    assert "cost 0" in str(result)


# -- reports -----------------------------------------------------------------------------------------------------------


def test_result_lists_steps() -> None:
    result = solve(CHAIN, options=ONE)
    names = [step.name for step in result.steps]
    assert names[-1] in {"exhaustive search", "live-search"}
    assert set(names) <= {"exhaustive search", *heuristics()}
    assert (result.method, result.status, result.objective) == ("auto", Status.OPTIMAL, 22)
    assert result.source in names
    line = next(line for line in str(result).splitlines() if line.startswith("steps"))
    assert all(f"{name} " in line for name in names)
    assert line.endswith("s (29.41 %, ≥ 29.41 %)")
    steps = json.loads(json.dumps(result.as_dict()))["steps"]
    assert [step[0] for step in steps] == names
    assert steps[-1][2:] == [22, 22]
    assert all(seconds >= 0 for _, seconds, _, _ in steps)


def test_no_steps_for_trivial_budgets() -> None:
    for budget in ("100%", None):
        assert solve(Problem(unit_chain(8), budget)).steps == ()
    assert solve(Problem(unit_chain(8), 2)).steps == ()


@pytest.mark.usefixtures("no_exhaustive_search")
def test_stops_when_bound_and_cost_meet() -> None:
    problem = Problem(layered(16, seed=2), "80%")
    result = solve(problem, stop=60, options=ONE)
    assert (result.status, result.stop) == (Status.OPTIMAL, StopReason.FINISHED)
    assert covers(result.scope, problem)
    check_steps(result)
    assert result.timings["total"] < 25, "annealing alone may take half of the time"


def test_progress_reports_improvements() -> None:
    news: list[Progress] = []
    assert Drops().prepared()
    result = solve(Problem(layered(140, 0.3, 6), "75%", "free"), stop=2, on_progress=news.append, options=ONE)
    costs = [moment.objective for moment in news if moment.objective is not None]
    bounds = [moment.bound for moment in news if moment.bound is not None]
    assert costs == sorted(costs, reverse=True)
    assert bounds == sorted(bounds)
    assert costs[-1] == result.objective
    assert {step.name for step in result.steps} <= {moment.phase for moment in news}
    points = [point.objective for point in result.incumbents if point.objective is not None]
    assert points == sorted(set(costs), reverse=True)


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_deadline() -> None:
    began = time.monotonic()
    result = solve(Problem(layered(200, 0.3, 1), "70%"), stop=0.5, options=ONE)
    assert time.monotonic() - began < 10
    assert result.stop is StopReason.DEADLINE
    assert result.status in {Status.FEASIBLE, Status.UNKNOWN}
    assert result.steps


@pytest.mark.usefixtures("no_exhaustive_search")
def test_ctrl_c_keeps_the_best_schedule() -> None:
    def interrupt(moment: Progress) -> None:
        if moment.objective is not None:
            raise KeyboardInterrupt

    result = solve(CHAIN, on_progress=interrupt, options=ONE)
    assert (result.stop, result.status) == (StopReason.INTERRUPTED, Status.FEASIBLE)
    assert result.certificate is not None
    assert result.certificate.accepted
    assert all(step.objective is None for step in result.steps[:-1])


@pytest.mark.usefixtures("no_exhaustive_search")
def test_stops_at_the_relative_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out(monkeypatch, "few-stages")  # they prove the optimum
    result = solve(CHAIN, options=SolveOptions(threads=1, relative_gap=0.25))
    assert (result.status, result.stop, result.objective, result.bound) == (Status.FEASIBLE, StopReason.GAP, 22, 17)
    quick = {"block-checkpointing", "drops", "rotor", "lower-sets", "eviction", "greedy"}
    assert {step.name for step in result.steps} <= quick
    closer = solve(CHAIN, options=SolveOptions(threads=1, relative_gap=0.2))
    assert closer.gap is not None
    assert closer.gap <= 0.2
    assert len(closer.steps) > 1


# -- models and solvers ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_models_prove")
def test_proof_in_a_narrow_scope_is_a_remark() -> None:
    result = solve(CHAIN, options=ONE)
    assert (result.status, result.objective, result.bound) == (Status.FEASIBLE, 22, 17)
    assert result.scope == EVERY_SCHEDULE
    assert (
        "no schedule costs less than 22 (overhead 29.41 %) within fixed order, staged recomputation" in result.message
    )
    assert [step.bound for step in result.steps] == [17] * len(result.steps)
    assert result.steps[-1].name == "retention-intervals by cp-sat"
    assert result.variables is not None


@pytest.mark.usefixtures("only_models_prove")
def test_infeasibility_in_a_narrow_scope_is_a_remark() -> None:
    result = solve(Problem(TIGHT, 15), options=ONE)  # infeasible in any scope, but no model proves it
    assert (result.status, result.stop) == (Status.UNKNOWN, StopReason.EXHAUSTED)
    assert "proved that no schedule exists within fixed order, staged recomputation" in result.message


@pytest.mark.usefixtures("only_models_prove")
def test_proof_in_the_full_scope_counts() -> None:
    best = optimum(Problem(TIGHT, 16, "free", max_computes=2), Scope(OrderRule.FREE, staged=False))
    assert best is not None
    result = solve(Problem(TIGHT, 16, "free", max_computes=2), options=ONE)
    assert (result.status, result.objective) == (Status.OPTIMAL, best.cost)
    assert str(result.scope) == "any order, at most 2 computes per op"
    none = solve(Problem(TIGHT, 15, "free", max_computes=2), options=ONE)
    assert (none.status, str(none.scope)) == (Status.INFEASIBLE, "any order, at most 2 computes per op")
    assert none.message.startswith("no schedule exists (proved by retention-intervals and cp-sat); ")


BROKEN = RuntimeError("out of\nluck")


@pytest.mark.usefixtures("only_models_prove")
@pytest.mark.parametrize(
    ("problem", "status", "objective"), [(CHAIN, Status.FEASIBLE, 22), (Problem(TIGHT, 15), Status.UNKNOWN, None)]
)
def test_solver_failure_is_a_remark(problem: Problem, status: Status, objective: int | None) -> None:
    result = solve(problem, backend=Scripted(BROKEN), options=ONE)
    assert (result.status, result.objective, result.backend) == (status, objective, "scripted")
    assert "backend 'scripted' crashed: RuntimeError: out of luck" in result.message
    assert ("stages was left out: backend 'scripted' crashed" in result.message) == (objective is None)


@pytest.mark.usefixtures("only_models_prove")
def test_missing_solver_is_one_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "state", Availability(ABSENT, "not on this machine"))
    leave_out(monkeypatch, "turns")
    turns = Stage("turns", options={"lns": 0.5, "bounds": 0.5})  # annealing would take all the time
    options = AutoOptions((*remat.solving.auto.STAGES, turns))
    result = solve(CHAIN, backend=Scripted(BROKEN), stop=3, options=ONE, method_options=options)
    assert result.stop is StopReason.EXHAUSTED, "a missing solver is not tried again"
    assert result.objective is not None
    assert result.message.count("backend 'scripted' was left out: not on this machine") == 1
    assert result.message.count("lns was left out: ") == 1


@pytest.mark.usefixtures("only_models_prove")
def test_solver_options_reach_only_that_solver() -> None:
    """Options for CP-SAT do not reach HiGHS, which solves the first model."""
    result = solve(CHAIN, options=SolveOptions(threads=1, solver={"no_such_option": 2}))
    first, second = [step.name for step in result.steps][-2:]
    assert (first, second) == ("stages by highs", "retention-intervals by cp-sat")
    assert "by highs" not in result.message
    assert result.message.count("no_such_option") == 1


def test_options_of_auto_are_a_table_of_stages() -> None:
    with refused("problem.no-options", culprit="auto"):
        solve(CHAIN, method_options={"copies": 3})
    stages = (
        Stage("greedy", 0.5, max_ops=10),
        Stage("eviction", 0.5, seconds=5, when=("no-schedule", "fixed-order")),
        Stage("eviction", 0.5, when=("free-order",)),
        Stage("retention-intervals/highs", 0.9, options={"copies": 2}),
        Stage("turns", options={"lns": 1, "bounds": 2}),
    )
    result = solve(CHAIN, stop=20, options=ONE, method_options=AutoOptions(stages))
    assert [step.name for step in result.steps][:2] == ["eviction", "retention-intervals by highs"]
    assert (result.status, result.objective) == (Status.OPTIMAL, 22)


def test_descent_reaches_the_budget_from_the_least_known_peak() -> None:
    descent = AutoOptions((Stage("descent", when=("no-schedule",)),))
    result = solve(CHAIN, stop=20, options=ONE, method_options=descent)
    assert [step.name for step in result.steps] == ["descent"]
    assert result.source == "annealing"
    assert result.peak is not None and result.peak <= 5
    missed = solve(Problem(TIGHT, 15), stop=2, options=ONE, method_options=descent)
    assert missed.status is Status.UNKNOWN
    assert "16 bytes" in missed.message


def test_live_sets_decide_whether_a_budget_suffices() -> None:
    """No single step of the graph needs more than 14 bytes."""
    stages = AutoOptions((Stage("live-sets", when=("no-schedule",)),) * 2)
    below, within = (solve(Problem(TIGHT, budget), options=ONE, method_options=stages) for budget in (15, 16))
    assert below.status is Status.INFEASIBLE
    assert below.message.startswith("no schedule exists (by the live set bound)")
    assert (within.status, within.source, within.peak) == (Status.FEASIBLE, "live set search", 16)


@pytest.mark.parametrize(
    ("stage", "kind", "culprit"),
    [
        (("evictoin",), "bad-stage", "evictoin"),
        (("stages/hihgs",), "bad-stage", "hihgs"),
        (("bounds", 1.0, None, None, None, (), False, {}, "stages"), "bad-stage", "stages"),
        (("stages", 1.5), "option", "share"),
        (("drops", 0.5, None, None, None, ("trianing",)), "unknown-condition", "trianing"),
        (("drops", 0.5, None, None, None, (), False, {"seed": 1}), "bad-stage", "seed"),
        (("turns", 0.5, None, None, None, (), False, {"stages": 1}), "bad-turns", "stages"),
        (("turns", 0.5, None, None, None, (), False, {"lns": 0}), "bad-turn-share", "lns"),
    ],
)
def test_stages_that_cannot_run_are_refused(stage: tuple[Any, ...], kind: str, culprit: str) -> None:
    with refused(f"problem.{kind}", culprit=culprit):
        AutoOptions((Stage(*stage),))


def test_heuristic_continues_in_the_background_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has one thread of its own, ends with the step, waits for its code, and its failure is a remark."""
    runs: list[tuple[bool, int, bool]] = []
    alone = Drops.run

    def recorded(drops: Drops, problem: Problem, run: HeuristicRun) -> Schedule | None:
        runs.append((run.background, run.threads, threading.current_thread() is threading.main_thread()))
        if not run.background:
            return alone(drops, problem, run)
        while not run.deadline.expired:
            time.sleep(0.001)
        raise ModelError("it has failed")

    assert Drops().prepared()
    monkeypatch.setattr(Drops, "run", recorded)
    drops_then_bounds = Stage("drops"), Stage("bounds", meanwhile="drops")
    stages = AutoOptions(drops_then_bounds)
    result = solve(CHAIN, stop=20, options=SolveOptions(threads=2), method_options=stages)
    assert runs == [(False, 2, True), (True, 1, False)]
    assert [step.name for step in result.steps] == ["drops", "bounds", "drops meanwhile"]
    assert "drops was left out: it has failed" in result.message
    solve(CHAIN, stop=20, options=ONE, method_options=stages)
    assert runs[2:] == [(False, 1, True)]
    monkeypatch.setattr(Drops, "prepared", lambda *_: threading.current_thread() is not threading.main_thread())
    result = solve(CHAIN, stop=20, options=SolveOptions(threads=2), method_options=stages)
    assert runs[3:] == [(True, 1, False)]
    assert "not compiled" not in result.message


def test_methods_that_cannot_run_are_left_out() -> None:
    stages = Stage("kahn"), Stage("rotor"), Stage("lower-sets"), Stage("greedy")
    result = solve(Problem(layered(30, seed=1), "90%"), stop=20, options=ONE, method_options=AutoOptions(stages))
    assert "kahn was left out: it does not support the objective" in result.message
    assert "rotor was left out: " in result.message
    assert result.source == "greedy"


@pytest.mark.usefixtures("no_exhaustive_search")
@pytest.mark.parametrize(
    "bound",
    [
        Bound(23, "a wrong bound", EVERY_SCHEDULE, 17),
        Bound(None, "a wrong bound", EVERY_SCHEDULE, 17, infeasible=True),
    ],
)
def test_contradicted_bound_is_an_error(bound: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remat.solving.bounding, "best_bound", lambda *_, **__: bound)
    leave_out(monkeypatch, "few-stages")  # which would prove it first
    with pytest.raises(BackendError, match=r"a wrong bound claims .*, but the schedule of .* costs"):
        solve(CHAIN, options=ONE)


def test_warm_start_is_used() -> None:
    problem = Problem(layered(140, 0.3, 5), "80%", "free")
    assert Annealing().prepared()  # load compiled code first
    first = solve(problem, stop=0.5, options=ONE)
    assert first.schedule is not None
    again = solve(problem, stop=0.1, warm_start=first.schedule, options=ONE)
    assert again.objective is not None
    assert first.objective is not None
    assert again.objective <= first.objective
