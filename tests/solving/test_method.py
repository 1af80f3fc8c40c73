"""Methods by name, class and object; one set of options for all solvers."""

from pathlib import Path
from typing import Any

import pytest
from helpers import ONE
from refusals import refused

import remat.solving.auto
from remat import Problem, SolveOptions, layered, solve
from remat.backends.cp_sat import CpSat
from remat.backends.highs import Highs
from remat.backends.isolated import Isolated
from remat.backends.results import RawResult
from remat.errors import ProblemError
from remat.formulations.checkmate import Checkmate
from remat.graphs.families import unit_chain
from remat.heuristics.drops import Drops
from remat.heuristics.greedy import Greedy
from remat.problem.scope import Restriction, Scope, covers, own_scope
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule
from remat.schedule.io import read_schedule, write_schedule
from remat.solving.auto import Auto
from remat.solving.method import FormulationMethod, HeuristicMethod, Method, known_methods, make_method
from remat.solving.session import Session
from remat.solving.stop import AnyOf, FirstFeasible, Gap, MaxSeconds, NoImprovement, TargetCost, stopping

CHAIN = Problem(unit_chain(8), 7)


class Twice(Method):
    """Greedy, started from its own schedule."""

    name = "twice"

    def run(self, session: Session) -> None:
        for _ in range(2):
            with session.step("greedy"):
                session.improve(Greedy(), session.call.deadline)
        session.conclude()


def test_methods_by_name_class_and_object() -> None:
    for one in (Twice, Twice()):
        result = solve(CHAIN, one)
        assert (result.method, result.backend, result.source, len(result.steps)) == ("twice", "", "greedy", 2)
        assert result.stop == "exhausted"
    for greedy in ("greedy", Greedy, Greedy()):
        assert solve(CHAIN, greedy).objective == 20
    for backend in (Highs, Highs()):
        checkmate = solve(CHAIN, Checkmate, backend, options=ONE)
        assert (checkmate.method, checkmate.backend, checkmate.status) == ("checkmate", "highs", "optimal")
    kinds = [type(make_method(one)) for one in ("auto", "stages", "lns", Drops)]
    assert kinds == [Auto, FormulationMethod, HeuristicMethod, HeuristicMethod]


def test_known_methods_cover_all_groups() -> None:
    assert {"auto", "stages", "drops", "hierarchical"} <= set(known_methods())


@pytest.mark.parametrize(
    ("arguments", "named", "kind"),
    [
        ((unit_chain(3),), {}, "problem.no-problem"),
        (("vgg16",), {}, "problem.no-problem"),
        ((CHAIN, 3), {}, "problem.no-method"),
        ((CHAIN, Problem), {}, "problem.no-method"),
        ((CHAIN, "auto", 7), {}, "problem.no-backend"),
        ((CHAIN, Checkmate, int), {}, "problem.no-backend"),
        ((CHAIN, "auto"), {"method_options": 3}, "problem.no-options"),
        ((CHAIN, Twice), {"method_options": 3}, "problem.no-options"),
        ((CHAIN, Greedy()), {"method_options": 3}, "problem.no-options"),
        ((CHAIN, "greedy"), {"options": SolveOptions(solver={"presolve": "off"})}, "problem.unused"),
        *(((CHAIN,), {"stop": stop}, "problem.bad-stop") for stop in (0, float("nan"), "60", [1])),
        ((CHAIN,), {"options": 5}, "problem.bad-options"),
        ((CHAIN,), {"warm_start": "x.json"}, "problem.no-schedule"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple, named: dict, kind: str) -> None:
    with refused(kind):
        solve(*arguments, **named)


# -- one set of options ------------------------------------------------------------------------------------------------


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("a solver in this process")


@pytest.mark.parametrize(("method", "backend"), [("lns", "highs"), ("lns", "cp-sat")])
def test_lns_uses_the_backend_in_a_child_process(method: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    isolated: list[str] = []
    isolated_solve = Isolated.solve

    def noted(self: Isolated, *arguments: Any, **named: Any) -> RawResult:
        isolated.append(self.full_name)
        return isolated_solve(self, *arguments, **named)

    monkeypatch.setattr(Isolated, "solve", noted)
    monkeypatch.setattr(CpSat, "solve", refuse)
    monkeypatch.setattr(Highs, "solve", refuse)
    wasteful = solve(Problem(unit_chain(8), 5), "greedy").schedule
    options = SolveOptions(threads=1, isolate=True, memory_limit="2GiB", start=wasteful)
    result = solve(CHAIN, method, backend, stop=AnyOf(1, TargetCost(21)), options=options)
    assert result.backend == backend
    assert 20 <= result.objective <= CHAIN.validate(wasteful).cost
    assert set(isolated) == {backend}


def test_start_none_runs_the_formulation_alone() -> None:
    """Greedy finds the optimum here, so its schedule would hide the formulation's."""
    started = solve(CHAIN, "checkmate", "highs", stop=60, options=ONE)
    alone = solve(CHAIN, "checkmate", "highs", stop=60, options=SolveOptions(threads=1, start="none"))
    assert (started.objective, started.source, "start" in started.timings) == (20, "greedy", True)
    assert (alone.objective, alone.source, "start" in alone.timings) == (20, "checkmate by highs", False)
    given = SolveOptions(threads=1, start=started.schedule)
    assert solve(CHAIN, "checkmate", "highs", stop=60, options=given).source == "the warm start"


def test_timings_of_a_heuristic() -> None:
    result = solve(CHAIN, "greedy")
    assert set(result.timings) == {"greedy", "total"}
    assert 0 < result.timings["greedy"] <= result.timings["total"]


def test_schedule_over_the_budget_is_reported_apart(tmp_path: Path) -> None:
    problem = Problem(unit_chain(16), 5)
    result = solve(problem, "chen-sqrt")
    assert (result.status, result.schedule) == ("unknown", None)
    schedule, found = result.least_peak_schedule, result.least_peak_certificate
    assert schedule is not None
    assert found is not None
    assert (schedule.source, found.verdict) == ("chen-sqrt", "over budget")
    assert 5 < found.peak < problem.reference_peak
    line = next(line for line in str(result).splitlines() if line.startswith("least "))
    assert f"peak of chen-sqrt, {found.peak - 5} bytes over the budget: {found.peak} bytes" in line
    assert result.least_feasible_budget < found.peak, "another method found a lower one, which the message names"
    assert "\nleast " not in str(solve(Problem(unit_chain(16), 2))), (
        "no line for the reference order if a lower peak is known"
    )
    with refused("problem.no-schedule"):
        result.save(tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()
    write_schedule(schedule, tmp_path / "over.json")
    assert read_schedule(tmp_path / "over.json") == schedule
    within = solve(CHAIN, "greedy")
    within.save(tmp_path / "found.json")
    assert read_schedule(tmp_path / "found.json") == within.schedule
    assert within.least_peak_schedule is None


def test_message_suggests_the_percent_sign() -> None:
    graph = unit_chain(100)
    assert "needs (a number without a unit is bytes; did you mean 2%?)" in solve(Problem(graph, "2")).message
    assert "did you mean" not in solve(Problem(graph, "2B")).message


def test_problem_copies_limits_and_counts_kept_tensors() -> None:
    graph = unit_chain(4)
    limits = {"f0": 2}
    problem = Problem(graph, 5, max_computes=limits, keep=[op.outputs[0] for op in graph.ops])
    limits["f0"] = 9
    limits["f1"] = 1
    assert problem.max_computes == {"f0": 2}
    assert problem.structural_peak == len(graph.ops)
    with pytest.raises(TypeError):
        problem.max_computes["f0"] = 3  # type: ignore[index]
    with refused("problem.keep", culprit="f0"):
        Problem(graph, keep="f0")


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_solve_stops_at_its_criterion() -> None:
    problem = Problem(unit_chain(8), 6, "free")
    free = solve(problem, "annealing", stop=FirstFeasible(), options=ONE)
    assert (free.stop, free.status) == ("criterion", "feasible")
    for criterion in (AnyOf(60, TargetCost(21)), AnyOf(60, TargetCost(16))):  # the optimum, and a cost below it
        result = solve(problem, "annealing", stop=criterion, options=ONE)
        assert result.stop == "criterion"
        assert result.timings["total"] < 50
    assert solve(CHAIN, stop=AnyOf(20, Gap(0.5)), options=ONE).stop in ("gap", "finished")


def test_criteria_set_deadline_and_gap() -> None:
    options, criterion = stopping(AnyOf(MaxSeconds(30), Gap(0.1), NoImprovement(5)), ONE)
    assert (options.deadline.seconds, options.relative_gap, options.threads) == (30, 0.1, 1)
    assert str(criterion) == "after 30 s, or at a gap of 10 %, or after 5 s without a better schedule"
    both, none = stopping(100, SolveOptions(Deadline.after(5)))
    assert both.deadline.seconds <= 5
    assert none is None
    for wrong in (
        AnyOf,
        lambda: MaxSeconds(0),
        lambda: Gap(1),
        lambda: TargetCost(-1),
        lambda: NoImprovement("1"),
    ):
        with pytest.raises(ProblemError):
            wrong()


def test_restrictions_of_own_scope() -> None:
    limited = Problem(unit_chain(3), 4, max_computes={"f0": 2})
    assert own_scope(limited).notes == (Restriction.OWN_LIMITS,)
    assert str(own_scope(limited)) == "fixed order, any number of computes, limits of computes by op"
    assert covers(own_scope(limited), limited)
    narrower = Scope(OrderRule.FIXED, False, None, (Restriction.FILLED_ONCE,))
    assert not covers(narrower, CHAIN)


def test_bounds_of_auto_are_isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Highs, CpSat):
        monkeypatch.setattr(kind, "solve", refuse)
    monkeypatch.setattr(Highs, "relax", refused)
    stages = tuple(stage for stage in remat.solving.auto.STAGES if stage.method not in {"few-stages", "live-search"})
    monkeypatch.setattr(remat.solving.auto, "STAGES", stages)  # these would run first and close the gap
    options = SolveOptions(threads=1, isolate=True, memory_limit="2GiB")
    result = solve(Problem(unit_chain(30), 8), stop=AnyOf(30, Gap(0.1)), options=options)
    assert "bounds" in [step.name for step in result.steps]
    assert result.bound > result.problem.graph.base_cost
    with refused("problem.not-isolated", culprit="lp-rounding"):
        solve(Problem(layered(16, seed=2), "80%"), "lp-rounding", options=options)
