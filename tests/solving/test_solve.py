"""solve() with a formulation that selects from a menu, and scripted backends."""

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from refusals import refused
from scripted import ABSENT, Reply, Script, Scripted

import remat.solving.method
from remat.backends.base import Availability
from remat.backends.results import Incumbent, OnIncumbent, RawResult, Values
from remat.errors import BackendError, ModelError, ProblemError, RematError
from remat.formulations.base import Formulation, Preliminary
from remat.graphs import ComputeGraph, GraphBuilder
from remat.heuristics.base import Heuristic, HeuristicRun
from remat.modeling import Linear, Model
from remat.problem import Problem
from remat.problem.scope import Scope
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status, StopReason
from remat.schedule import OrderRule, Schedule
from remat.solving.model_solve import ModelSolve
from remat.solving.progress import Progress
from remat.solving.result import Result
from remat.solving.session import Session
from remat.solving.solve import solve


def skip_graph(large: int = 4, small: int = 1) -> ComputeGraph:
    """a -> b -> c -> d with a skip a -> d: reference peak 9 (c), structural bound 8 (b), base cost 4."""
    b = GraphBuilder("skip")
    b.op("a", size=large, cost=1)
    b.op("b", inputs=["a"], size=large, cost=1)
    b.op("c", inputs=["b"], size=small, cost=1)
    b.op("d", inputs=["c", "a"], size=1, cost=1)
    b.output("d")
    return b.build()


#: Cost 4 and peak 9; cost 5 and peak 8; cost 6 and peak 8.
MENU = ("abcd", "abcad", "abcaad")


def sequence(ops: str) -> Schedule:
    graph = skip_graph()
    return Schedule.of_computes(graph, [graph.op_index[op] for op in ops])


def picked(number: int, size: int = len(MENU)) -> Values:
    values = np.zeros(size)
    values[number] = 1.0
    return values


class Menu(Formulation):
    """Select one schedule of :data:`MENU`."""

    name = "menu"
    menu = MENU
    with_preliminary = False

    def scope(self) -> Scope:
        return Scope(OrderRule.FIXED, staged=False, max_computes=3)

    def build(self) -> Model:
        model = Model("menu")
        pick = model.booleans("pick", len(self.menu))
        model.add(Linear.rows("one", np.zeros(len(pick)), pick.index, 1, lower=[1], upper=[1]))
        model.minimize(pick.index, [len(ops) for ops in self.menu])
        return model

    def encode(self, schedule: Schedule) -> Values:
        for number, ops in enumerate(self.menu):
            if "".join(schedule.computes()) == ops:
                return picked(number, len(self.menu))
        raise ProblemError("not on the menu")

    def decode(self, values: Values) -> Schedule:
        return sequence(self.menu[int(np.argmax(values))])

    def preliminary(self) -> Preliminary | None:
        if not self.with_preliminary:
            return None
        model = self.build().copy("peak")
        peak = model.integers("peak", 1, 0, 100)
        model.minimize(peak.index, 1)
        return Preliminary(model, 8.0, lambda values: np.append(values, 9.0))


class WithPreliminary(Menu):
    with_preliminary = True


def scripted_answer(
    number: int | None = None,
    *,
    reported: Sequence[tuple[float, int]] = (),
    replies: list[bool] | None = None,
    **facts: object,
) -> Script:
    """Return a script that answers with schedule `number` of the menu; `facts` override fields of the answer.

    The script first reports the incumbents in `reported`, pairs of cost and number, and stores the replies of the
    callback in `replies`.
    """
    answer: dict = {"status": Status.UNKNOWN, "stop": StopReason.FINISHED, "versions": {"scripted": "1.2"}}
    if number is not None:
        cost = float(len(MENU[number]))
        answer |= {"status": Status.OPTIMAL, "objective": cost, "bound": cost, "values": picked(number)}

    def script(model: Model, options: SolveOptions, hint: Values | None, report: OnIncumbent) -> RawResult:
        found = [bool(report(Incumbent(0.1, cost, 4.0, picked(choice)))) for cost, choice in reported]
        if replies is not None:
            replies.extend(found)
        return RawResult(**(answer | facts))  # type: ignore[arg-type]

    return script


def never(*_: object) -> RawResult:
    raise AssertionError("the backend must not be called")


def run(script: Reply, budget: object = 8, method: type[Formulation] = Menu, **options: object) -> Result:
    return solve(Problem(skip_graph(), budget), method, Scripted(script), **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_heuristics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable heuristics; tests supply their own starts."""
    monkeypatch.setattr(remat.solving.method, "heuristics", dict)


# -- answers without a solver ------------------------------------------------------------------------------------------


def test_budget_below_structural_bound_is_infeasible() -> None:
    started = time.perf_counter()
    result = run(never, budget=7)
    assert time.perf_counter() - started < 0.5
    assert (result.status, result.stop, result.schedule) == (Status.INFEASIBLE, StopReason.FINISHED, None)
    assert "7 bytes is below the 8 bytes that op 'b' needs" in result.message
    assert "8 bytes (88.89 %) are known to suffice at +25 % cost, 90 % at +25 %" in result.message
    assert result.least_feasible_budget == 8
    assert str(result.scope) == "any order, any number of computes"
    assert (result.objective, result.gap, result.bound) == (None, None, 4)


def test_share_in_the_message_suffices() -> None:
    graph = skip_graph(40_002, 19_999)
    assert "80,004 bytes (80.01 %) are known to suffice" in solve(Problem(graph, "80%"), Menu, Scripted(never)).message
    assert Problem(graph, "80.01%").budget_bytes >= 80_004


def test_structural_bound_includes_kept_tensors() -> None:
    result = solve(Problem(skip_graph(), 8, keep=["a", "b"]), Menu, Scripted(never))
    assert result.status is Status.INFEASIBLE
    assert "below the 9 bytes that the tensors alive at the end need" in result.message


@pytest.mark.parametrize("budget", [None, 9, "100%", 10])
def test_reference_order_within_the_budget_is_optimal(budget: object) -> None:
    result = run(never, budget=budget)
    assert (result.status, result.objective, result.bound, result.gap) == (Status.OPTIMAL, 4, 4, 0.0)
    assert result.source == "the reference order"
    assert result.variables is None
    assert str(result.scope) == "any order, any number of computes"
    assert result.certificate is not None
    assert result.certificate.accepted


def test_unavailable_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "state", Availability(ABSENT, "of the imagination"))
    with refused("backend.unavailable", culprit="scripted"):
        run(never)


# -- correct solvers --------------------------------------------------------------------------------------------------


def test_optimum_is_certified_with_its_scope() -> None:
    result = run(scripted_answer(1))
    assert (result.status, result.objective, result.bound, result.gap) == (Status.OPTIMAL, 5, 5, 0.0)
    assert result.schedule == sequence("abcad")
    assert result.schedule is not None
    assert result.schedule.source == "menu by scripted"
    assert result.certificate is not None
    assert (result.certificate.peak, result.least_feasible_budget) == (8, 8)
    assert str(result.scope) == "fixed order, at most 3 computes per op"
    assert (result.variables, result.constraints) == (3, 1)
    assert result.versions["scripted"] == "1.2"
    assert {"remat", "python", "numpy"} <= set(result.versions)
    assert set(result.timings) == {"build", "preliminary", "solve", "total"}
    assert result.source == "menu by scripted"


FEASIBLE = {"status": Status.FEASIBLE, "stop": StopReason.DEADLINE}


@pytest.mark.parametrize(
    ("number", "facts", "gap", "expected"),
    [
        (2, FEASIBLE | {"bound": 4.2}, 0, (Status.FEASIBLE, StopReason.DEADLINE, 5)),  # rounded up to an integer cost
        (1, FEASIBLE | {"bound": 4.2}, 0, (Status.OPTIMAL, StopReason.FINISHED, 5)),
        (2, FEASIBLE | {"bound": 4.0000001}, 0, (Status.FEASIBLE, StopReason.DEADLINE, 4)),
        (1, FEASIBLE | {"bound": None}, 0, (Status.FEASIBLE, StopReason.DEADLINE, 4)),  # cost of each op once
        (2, {"stop": StopReason.GAP, "bound": 5.0}, 0.5, (Status.FEASIBLE, StopReason.GAP, 5)),
        (2, {"bound": 5.0}, 0, (Status.FEASIBLE, StopReason.FINISHED, 5)),
    ],
)
def test_status_and_bound_by_proof(
    number: int, facts: dict, gap: float, expected: tuple[Status, StopReason, int]
) -> None:
    result = run(scripted_answer(number, **facts), options=SolveOptions(relative_gap=gap))
    assert (result.status, result.stop, result.bound) == expected
    assert result.objective == len(MENU[number])
    assert result.gap == pytest.approx((result.objective - result.bound) / result.objective)


def test_incumbents_survive_a_missing_final_answer() -> None:
    news: list[Progress] = []
    stopped: list[bool] = []
    script = scripted_answer(reported=[(6.0, 2), (5.0, 1)], replies=stopped, stop=StopReason.DEADLINE)
    result = run(script, on_progress=news.append)
    assert stopped == [False, False]
    assert (result.status, result.stop, result.objective) == (Status.FEASIBLE, StopReason.DEADLINE, 5)
    assert [(p.objective, p.bound) for p in result.incumbents] == [(6, 4), (5, 4)]
    assert [p.time for p in result.incumbents] == sorted(p.time for p in result.incumbents)
    assert [p.phase for p in news if p.objective is None][-1] == "solve"
    assert (news[-1].overhead, news[-1].gap) == (25.0, 0.2)


def test_intermediate_bounds_are_recorded() -> None:
    class Bounding(Scripted):
        def solve(self, model, options, hint=None, on_incumbent=None, on_bound=None) -> RawResult:  # type: ignore[no-untyped-def]
            on_bound(0.1, 4.5)
            on_bound(0.2, float("-inf"))
            return RawResult(Status.UNKNOWN, StopReason.DEADLINE)

    result = solve(Problem(skip_graph(), 8), Menu, Bounding(never))
    assert result.bound == 5
    assert [(p.objective, p.bound) for p in result.incumbents] == [(None, 5)]


def test_options_reach_the_backend_unchanged() -> None:
    backend = Scripted(scripted_answer(1))
    deadline = Deadline.after(50)
    lines: list[str] = []
    solve(
        Problem(skip_graph(), 8),
        Menu,
        backend,
        stop=deadline,
        options=SolveOptions(
            threads=3, seed=7, relative_gap=0.25, solver={"emphasis": "feasibility"}, log=lines.append
        ),
    )
    ((_, options, hint),) = backend.calls
    assert options.deadline is deadline
    assert (options.threads, options.seed, options.relative_gap) == (3, 7, 0.25)
    assert options.solver == {"emphasis": "feasibility"}
    assert options.log == lines.append
    assert hint is not None
    assert hint.tolist() == picked(0).tolist(), "hint by the reference order, even over the budget"


# -- faulty solvers ---------------------------------------------------------------------------------------------------


def fails(self: Menu, values: Values) -> Schedule:
    raise IndexError("off the menu")


def undercounts(self: Menu) -> Model:
    model = Menu.build(self)
    model.minimize(model.objective.index, 4)
    return model


#: Faulty formulations: decoding fails, decodes to an invalid schedule, undercounts costs.
NOT_DECODING = type("NotDecoding", (Menu,), {"decode": fails})
WRONG = type("Wrong", (Menu,), {"decode": lambda *_: sequence("abdc")})
UNDERCOUNTING = type("Undercounting", (Menu,), {"build": undercounts})


@pytest.mark.parametrize(
    ("script", "method", "kind"),
    [
        (scripted_answer(1, objective=4.0, bound=4.0), Menu, "wrong-cost"),
        (scripted_answer(1, objective=6.0), Menu, "wrong-cost"),
        (scripted_answer(0), Menu, "over-budget"),
        (scripted_answer(1, objective=float("nan")), Menu, "not-finite"),
        (scripted_answer(1, values=np.array([np.nan, 1, 0])), Menu, "not-finite"),
        (scripted_answer(1, values=np.array([0.0, 1.0])), Menu, "wrong-shape"),
        (scripted_answer(1, values=None), Menu, "no-values"),
        (scripted_answer(2, bound=7.0), Menu, "refuted"),
        (scripted_answer(status=Status.ERROR, message="out of luck"), Menu, "failed"),
        (scripted_answer(1), NOT_DECODING, "no-schedule"),
        (scripted_answer(1), WRONG, "invalid-schedule"),
        (scripted_answer(1, objective=4.0, bound=4.0), UNDERCOUNTING, "wrong-cost"),
    ],
)
def test_faulty_answers_are_errors(script: Script, method: type[Formulation], kind: str) -> None:
    with refused(f"backend.{kind}", culprit="scripted"):
        run(script, method=method)


def test_wrong_incumbent_stops_the_solver_with_an_error() -> None:
    stopped: list[bool] = []
    with refused("backend.wrong-cost"):
        run(
            scripted_answer(
                1, reported=[(5.0, 2)], replies=stopped, status=Status.FEASIBLE, stop=StopReason.INTERRUPTED, bound=4.0
            )
        )
    assert stopped == [True]


def test_infeasible_despite_a_known_schedule_is_an_error() -> None:
    with refused("backend.refuted"):
        run(scripted_answer(status=Status.INFEASIBLE), warm_start=sequence("abcad"))


def test_decoding_may_drop_useless_computes() -> None:
    class Pruning(Menu):
        def decode(self, values: Values) -> Schedule:
            return sequence("abcad")

    result = run(scripted_answer(2, status=Status.FEASIBLE, stop=StopReason.DEADLINE, bound=4.0), method=Pruning)
    assert (result.objective, result.status) == (5, Status.FEASIBLE)
    assert "dropped useless computes" in result.message


# -- no schedule -------------------------------------------------------------------------------------------------------


def test_infeasible_in_a_narrow_scope_names_the_scope() -> None:
    result = run(scripted_answer(status=Status.INFEASIBLE))
    assert (result.status, result.stop) == (Status.INFEASIBLE, StopReason.FINISHED)
    assert (
        "no schedule exists within fixed order, at most 3 computes per op (proved by menu and scripted)"
        in result.message
    )
    assert "says nothing of schedules beyond" in result.message
    assert "8 bytes (88.89 %) are known to suffice" in result.message


def test_infeasible_in_the_full_scope_is_checked() -> None:
    backend = Scripted(scripted_answer(status=Status.INFEASIBLE))
    result = solve(Problem(skip_graph(), 8, max_computes=1), Menu, backend)
    assert result.message.startswith("no schedule exists (proved by menu and scripted); ")
    with refused("backend.refuted"):
        solve(Problem(skip_graph(), 8, max_computes=3), Menu, backend)


def test_no_schedule_in_time_is_unknown() -> None:
    result = run(scripted_answer(stop=StopReason.DEADLINE))
    assert (result.status, result.stop, result.schedule) == (Status.UNKNOWN, StopReason.DEADLINE, None)
    assert result.message.startswith("no schedule was found in time, and none is ruled out; ")


def test_no_method_starts_after_the_deadline() -> None:
    """Reading a large graph may take all the time; loading compiled code would take another second."""

    class Slow(Heuristic):
        name = "slow"

        def prepared(self, *_: Any) -> bool:
            raise AssertionError("prepared after the deadline")

        def run(self, *_: Any) -> None:
            raise AssertionError("ran after the deadline")

    for method, backend in ((Slow, "cp-sat"), (Menu, Scripted(never)), ("auto", "cp-sat")):
        result = solve(Problem(skip_graph(), 8), method, backend, stop=Deadline(0.0))
        assert (result.status, result.stop, result.steps) == (Status.UNKNOWN, StopReason.DEADLINE, ())


# -- starts ------------------------------------------------------------------------------------------------------------


def test_warm_start_within_the_budget_is_hint_and_fallback() -> None:
    backend = Scripted(scripted_answer(stop=StopReason.DEADLINE))
    result = solve(Problem(skip_graph(), 8), WithPreliminary, backend, warm_start=sequence("abcaad"))
    assert (result.status, result.objective, result.source) == (Status.FEASIBLE, 6, "the warm start")
    ((model, _, hint),) = backend.calls
    assert model.name == "menu", "no preliminary phase with a warm start"
    assert hint is not None
    assert hint.tolist() == picked(2).tolist()


def test_costlier_warm_start_is_the_hint_if_the_best_schedule_is_inexpressible() -> None:
    """The model keeps schedules up to its cost, so that the hint stays valid."""

    class Short(Menu):
        menu = ("abcaad", "abcaaad")
        left_out: list[int | None] = []

        def leave_out_above(self, cost: int | None) -> None:
            self.left_out.append(cost)

    session = Session(Problem(skip_graph(), 8), SolveOptions(), "menu")
    session.incumbents.add(sequence("abcad"), "another method")
    backend = Scripted(scripted_answer(stop=StopReason.DEADLINE))
    ModelSolve(session, Short, backend).run(sequence("abcaad"))
    ((_, _, hint),) = backend.calls
    assert hint is not None and hint.tolist() == picked(0, 2).tolist()
    assert Short.left_out == [6] and session.cost == 5


def test_warm_start_outside_the_scope_is_kept() -> None:
    outside = sequence("abcaaad")
    result = run(scripted_answer(status=Status.INFEASIBLE), warm_start=outside)
    assert (result.status, result.objective, result.bound) == (Status.FEASIBLE, 7, 4)
    assert "proved that no schedule fits within: fixed order" in result.message
    assert str(result.scope) == "any order, any number of computes"


def test_warm_start_without_recomputation_is_optimal() -> None:
    b = GraphBuilder("order")
    b.op("x", size=5, cost=1), b.op("y", size=5, cost=1)
    b.op("p", inputs=["x"], size=1, cost=1), b.op("q", inputs=["y"], size=1, cost=1)
    graph = b.build(order=["x", "y", "p", "q"])
    better = Schedule.of_computes(graph, [graph.op_index[o] for o in "xpyq"])
    result = solve(Problem(graph, 8, order="free"), Menu, Scripted(never), warm_start=better)
    assert (result.status, result.objective, result.source) == (Status.OPTIMAL, 4, "the warm start")


@pytest.mark.parametrize("ops", ["abdc", "abc"])
def test_invalid_warm_start_is_refused(ops: str) -> None:
    with refused("problem.invalid-schedule"):
        run(never, warm_start=sequence(ops))


def test_preliminary_model_finds_the_start() -> None:
    def script(model: Model, options: SolveOptions, hint: Values | None, report: OnIncumbent) -> RawResult:
        assert hint is not None
        assert len(hint) == model.num_vars
        if model.name == "peak":
            assert hint[-1] == 9.0
            assert not report(Incumbent(0.1, 9.0, None, np.append(picked(0), 9.0)))
            assert report(Incumbent(0.1, 8.0, None, np.append(picked(2), 8.0))), "stop at the goal"
            return RawResult(Status.FEASIBLE, StopReason.INTERRUPTED, 8.0, 0.0, np.append(picked(2), 8.0))
        assert hint.tolist() == picked(2).tolist()
        return RawResult(Status.OPTIMAL, StopReason.FINISHED, 5.0, 5.0, picked(1))

    backend = Scripted(script)
    result = solve(Problem(skip_graph(), 8), WithPreliminary, backend, stop=100, options=SolveOptions(relative_gap=0.1))
    assert [model.name for model, _, _ in backend.calls] == ["peak", "menu"]
    assert backend.calls[0][1].deadline.seconds < 60
    assert backend.calls[1][1].deadline.seconds == 100
    assert [options.relative_gap for _, options, _ in backend.calls] == [0.0, 0.1], "phase 1 has no gap"
    assert (result.status, result.objective) == (Status.OPTIMAL, 5)
    assert [(p.objective, p.bound) for p in result.incumbents] == [(6, 4), (5, 4), (5, 5)]


def test_preliminary_schedule_survives_an_empty_answer() -> None:
    def script(model: Model, options: SolveOptions, hint: Values | None, report: OnIncumbent) -> RawResult:
        if model.name == "peak":
            return RawResult(Status.OPTIMAL, StopReason.FINISHED, 8.0, 8.0, np.append(picked(2), 8.0))
        return RawResult(Status.UNKNOWN, StopReason.DEADLINE)

    result = run(script, method=WithPreliminary)
    assert (result.status, result.objective, result.stop) == (Status.FEASIBLE, 6, StopReason.DEADLINE)


def test_preliminary_bound_above_the_budget_proves_infeasibility() -> None:
    backend = Scripted(lambda *_: RawResult(Status.OPTIMAL, StopReason.FINISHED, 9.0, 9.0, np.append(picked(0), 9.0)))
    result = solve(Problem(skip_graph(), 8), WithPreliminary, backend)
    assert result.status is Status.INFEASIBLE
    assert len(backend.calls) == 1
    assert "no schedule exists within fixed order" in result.message


def test_heuristic_gives_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wasteful(Heuristic):
        name = "greedy"

        def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
            assert run.deadline.seconds <= 11
            assert run.seed == 3
            return sequence("abcaad")

    monkeypatch.setattr(remat.solving.method, "heuristics", lambda: {"greedy": ""})
    monkeypatch.setattr(remat.solving.method, "load", lambda group, name: Wasteful)
    backend = Scripted(scripted_answer(stop=StopReason.DEADLINE))
    result = solve(Problem(skip_graph(), 8), WithPreliminary, backend, stop=100, options=SolveOptions(seed=3))
    assert (result.objective, result.source) == (6, "greedy")
    assert [model.name for model, _, _ in backend.calls] == ["menu"]

    monkeypatch.setattr(Wasteful, "run", lambda *_: sequence("abcad"))
    alone = solve(Problem(skip_graph(), 8), "greedy", options=SolveOptions(seed=3))
    assert (alone.objective, alone.bound, alone.method, alone.backend) == (5, 4, "greedy", "")

    class Own(Heuristic):
        name = "own"

        def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
            return sequence("abcaad")

    own = solve(Problem(skip_graph(), 8), Own)
    assert (own.objective, own.source, own.method, own.backend) == (6, "own", "own", "")

    monkeypatch.setattr(Wasteful, "run", lambda *_: None)
    nothing = solve(Problem(skip_graph(), 8), "greedy")
    assert nothing.status is Status.UNKNOWN
    assert "greedy found no schedule within the budget, which proves nothing" in nothing.message


# -- crashes and interruptions -----------------------------------------------------------------------------------------


def test_crash_is_an_error_unless_a_schedule_was_found() -> None:
    crash = RuntimeError("segment\nviolated")
    with refused("backend.crashed", culprit="scripted"):
        run(crash)

    def script(model: Model, options: SolveOptions, hint: Values | None, report: OnIncumbent) -> RawResult:
        report(Incumbent(0.1, 5.0, None, picked(1)))
        raise crash

    result = run(script)
    assert (result.status, result.stop, result.objective) == (Status.FEASIBLE, StopReason.OTHER, 5)
    assert "'scripted' crashed: RuntimeError: segment violated; the schedule found before is kept" in result.message


def test_unsupported_model_is_an_error() -> None:
    with pytest.raises(ModelError, match="no bridge"):
        run(ModelError("no bridge"), warm_start=sequence("abcaad"))


def test_interrupted_solver_keeps_its_schedule() -> None:
    result = run(scripted_answer(1, status=Status.FEASIBLE, stop=StopReason.INTERRUPTED, bound=None))
    assert (result.status, result.stop, result.objective) == (Status.FEASIBLE, StopReason.INTERRUPTED, 5)
    result = run(scripted_answer(stop=StopReason.INTERRUPTED))
    assert (result.status, result.stop) == (Status.UNKNOWN, StopReason.INTERRUPTED)
    assert result.message.startswith("no schedule was found before the interruption")


def test_interrupted_preliminary_phase_ends_the_solve() -> None:
    backend = Scripted(lambda *_: RawResult(Status.UNKNOWN, StopReason.INTERRUPTED))
    result = solve(Problem(skip_graph(), 8), WithPreliminary, backend)
    assert (result.stop, len(backend.calls)) == (StopReason.INTERRUPTED, 1)


def test_ctrl_c_outside_the_solver() -> None:
    class Slow(Menu):
        def build(self) -> Model:
            raise KeyboardInterrupt

    result = run(never, method=Slow, warm_start=sequence("abcaad"))
    assert (result.stop, result.objective) == (StopReason.INTERRUPTED, 6)
    with pytest.raises(KeyboardInterrupt):
        run(never, method=Slow)


def test_errors_of_callbacks_propagate() -> None:
    def complain(moment: Progress) -> None:
        if moment.objective is not None:
            raise ZeroDivisionError("mine")

    stopped: list[bool] = []
    with pytest.raises(ZeroDivisionError, match="mine"):
        run(scripted_answer(reported=[(5.0, 1)], replies=stopped, stop=StopReason.INTERRUPTED), on_progress=complain)
    assert stopped == [True]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"deadline": 5}, "problem.bad-deadline"),
        ({"threads": 0}, "problem.number"),
        ({"threads": True}, "problem.number"),
        ({"relative_gap": 1.0}, "problem.bad-gap"),
        ({"relative_gap": float("nan")}, "problem.bad-gap"),
        ({"log": "log.txt"}, "problem.bad-log"),
        ({"solver": "presolve"}, "problem.solver"),
        ({"memory_limit": "a lot"}, "problem.bad-memory"),
        ({"start": "greedy"}, "problem.bad-start"),
    ],
)
def test_common_options_out_of_range(options: dict, kind: str) -> None:
    with refused(kind):
        SolveOptions(**options)


def test_unknown_names_are_errors_even_without_a_solve() -> None:
    with pytest.raises(RematError, match="no method 'checkmat'; did you mean 'checkmate'"):
        solve(Problem(skip_graph()), "checkmat")
    with pytest.raises(BackendError, match="no backend 'higs'; known are highs"):
        solve(Problem(skip_graph()), "checkmate", "higs")


# -- results -----------------------------------------------------------------------------------------------------------


def test_printed_result_is_aligned_and_short() -> None:
    lines = str(run(scripted_answer(1))).splitlines()
    assert 9 <= len(lines) <= 12
    assert all(len(line.split(" ", 1)[0]) <= 9 and line[9] == " " and line[10] != " " for line in lines)
    text = "\n".join(lines)
    assert "25 %, cost 5 (each op once 4)" in text
    assert "8 bytes (88.89 % of the reference peak)" in text
    assert "menu by scripted, 3 variables, 1 constraints" in text


def test_result_as_json() -> None:
    for script, budget in ((scripted_answer(1), 8), (scripted_answer(status=Status.INFEASIBLE), 8), (never, 7)):
        result = run(script, budget=budget)
        again = json.loads(json.dumps(result.as_dict(), allow_nan=False))
        assert again["status"] == str(result.status)
        assert again["objective"] == result.objective
        assert again["least_feasible_budget"] == result.least_feasible_budget
        assert (again["certificate"] is None) == (result.schedule is None)
