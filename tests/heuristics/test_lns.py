"""Large neighbourhood search: validity with every formulation and backend, improvement, adaptation."""

import numpy as np
import pytest
from generators import staged as random_staged
from helpers import ONE, judged
from refusals import refused

from remat.backends.cp_sat import CpSat
from remat.backends.results import RawResult
from remat.errors import BackendError, ProblemError, RematError
from remat.formulations import Part, Scope
from remat.formulations.checkmate import Checkmate
from remat.formulations.retention_intervals import RetentionIntervals
from remat.graphs.families import unit_chain
from remat.graphs.layered import layered
from remat.heuristics import lns as module
from remat.heuristics.base import HeuristicRun
from remat.heuristics.lns import Lns, LnsOptions
from remat.heuristics.neighbourhoods import KINDS, LEAST, Portfolio, ScheduleProfile
from remat.heuristics.restricted_model import Statement, staged
from remat.modeling import violations
from remat.modeling.restriction import restrict
from remat.problem import Problem
from remat.registry import load
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions, Status, StopReason
from remat.schedule import OrderRule, Rule, Schedule
from remat.testing import optimum, random_budget, random_graph


def random_part(graph, rng):
    first, last = np.sort(rng.integers(0, len(graph.ops), 2)).tolist()
    return Part(rng.random(len(graph.ops)) < 0.5, first, last)


def within(seconds, **more):
    return HeuristicRun(SolveOptions(Deadline.after(seconds), threads=1), **more)


@pytest.mark.parametrize("buffers", [False, True])
@pytest.mark.parametrize(
    ("kind", "order"), [(RetentionIntervals, "fixed"), (RetentionIntervals, "free"), (Checkmate, "fixed")]
)
def test_bounds_of_a_part_contain_the_schedule(kind, order, buffers):
    """Values reproduce the schedule, satisfy the model, and lie within the bounds of part and model."""
    rng = np.random.default_rng(1)
    checked = smaller = 0
    for seed in range(5):
        graph = random_graph(seed, buffers=buffers, most_ops=8)
        formulation = kind(Problem(graph, None, order, max_computes=4))
        schedule = random_staged(graph, rng, 0.15)
        try:
            encoded = formulation.encode(schedule)
        except ProblemError:  # more computes than the problem allows
            continue
        for _ in range(3):
            part = random_part(graph, rng)
            bounds, model = formulation.variable_bounds(schedule, part), formulation.build()
            assert not violations(model, bounds.values)
            assert ((bounds.lower <= bounds.values) & (bounds.values <= bounds.upper)).all()
            assert ((bounds.lower >= model.lower) & (bounds.upper <= model.upper)).all()
            assert formulation.decode(bounds.values).computes() == formulation.decode(encoded).computes()
            small = restrict(model, bounds.lower, bounds.upper)
            assert not violations(small.model, small.reduce(bounds.values))
            checked += 1
            smaller += small.model.num_vars < model.num_vars
    assert checked >= 6
    assert smaller > checked / 2


@pytest.mark.parametrize("kind", [RetentionIntervals, Checkmate])
def test_model_of_all_ops_and_stages_has_the_same_optimum(kind):
    graph = unit_chain(4)
    formulation = kind(Problem(graph, 5))
    everything = Part(np.ones(len(graph.ops), dtype=np.bool_), 0, len(graph.ops) - 1)
    start = Lns().run(Problem(graph, 5), within(10))
    bounds = formulation.variable_bounds(start, everything)
    small = restrict(formulation.build(), bounds.lower, bounds.upper)
    options = SolveOptions(Deadline.after(20), threads=1)
    assert CpSat().solve(small.model, options).objective == CpSat().solve(formulation.build(), options).objective == 10


@pytest.mark.parametrize("options", [
    LnsOptions(size=4, seconds=0.5),
    LnsOptions(size=4, seconds=0.5, formulation_options={"copies": 3, "precedence": "reservoir"}),
    LnsOptions(formulation="checkmate", size=4, seconds=0.5),
    LnsOptions(formulation="checkmate", backend="highs", size=4, seconds=1.0),
])  # fmt: skip
def test_optimum_of_most_tiny_graphs(options):
    """The last neighbourhood covers the whole graph."""
    found = solved = 0
    for seed in range(4):
        graph = random_graph(seed, plain=True, most_ops=6)
        problem = Problem(graph, random_budget(graph, seed), max_computes=3)
        best = optimum(problem, Scope(OrderRule.FIXED, staged=True, max_computes=3))
        schedule = Lns(options).run(problem, HeuristicRun(SolveOptions(Deadline.after(5), seed=seed, threads=1)))
        certificate = judged(problem, schedule)
        assert {violation.rule for violation in certificate.violations} <= {Rule.BUDGET}
        assert best is None or not certificate.accepted or certificate.cost >= best.cost
        if best is not None:
            solved += 1
            found += certificate.accepted and certificate.cost == best.cost
    assert solved >= 3
    assert found >= solved - 1


def test_start_over_the_budget_is_repaired_and_improved():
    """Without a start heuristic the preliminary model lowers the peak step by step."""
    problem = Problem(unit_chain(6), 6)
    reference = Schedule.reference(problem.graph)
    reported = []
    options = LnsOptions(size=6, seconds=1.0, start_share=0.0)
    schedule = Lns(options).run(
        problem,
        HeuristicRun(SolveOptions(Deadline.after(15), seed=1, threads=1), start=reference, on_schedule=reported.append),
    )
    assert not judged(problem, reference).accepted
    certificates = [judged(problem, one) for one in reported]
    peaks = [c.peak for c in certificates if not c.accepted]
    costs = [c.cost for c in certificates if c.accepted]
    assert peaks == sorted(peaks, reverse=True)
    assert costs == sorted(costs, reverse=True)
    assert judged(problem, schedule).accepted
    assert reported[-1] == schedule


def test_interruption_returns_or_reports_the_best_schedule(monkeypatch):
    problem = Problem(layered(40, 0.3, 5), "80%")
    seen = []

    def stop(schedule):
        seen.append(schedule)
        return judged(problem, schedule).accepted

    clock = Deadline.after(60)
    assert Lns().run(problem, HeuristicRun(SolveOptions(clock, threads=1), on_schedule=stop)) == seen[-1]
    assert not clock.expired

    def interrupted(*_):
        raise KeyboardInterrupt

    def interrupted_in_solver(*_):
        return RawResult(Status.UNKNOWN, StopReason.INTERRUPTED)

    for solve in (interrupted, interrupted_in_solver):
        monkeypatch.setattr(CpSat, "solve", solve)
        assert judged(problem, Lns().run(problem, HeuristicRun(ONE, start=seen[-1]))).accepted
        with pytest.raises(KeyboardInterrupt):
            Lns().run(problem, HeuristicRun(ONE, start=seen[-1], on_schedule=lambda _: False))


def test_first_solver_error_raises_and_later_ones_are_tolerated(monkeypatch):
    problem = Problem(unit_chain(8), 7)
    solve, calls = CpSat.solve, []

    def failing(*_arguments, **_named):
        raise BackendError("CP-SAT went up in smoke")

    def fails_later(self, *arguments, **named):
        calls.append(1)
        return solve(self, *arguments, **named) if len(calls) < 4 else failing()

    monkeypatch.setattr(CpSat, "solve", failing)
    with refused("backend.failed", culprit="in smoke"):
        Lns().run(problem, within(30))
    monkeypatch.setattr(CpSat, "solve", fails_later)
    assert judged(problem, Lns(LnsOptions(size=4)).run(problem, within(30))).accepted
    assert 4 <= len(calls) <= 3 + module.FAILURES


def test_unstaged_start_is_reordered_into_stages():
    graph = unit_chain(4)
    order = [graph.ops[i].name for i in (0, 1, 2, 1, 0, 3, 4, 5, 6, 7, 8)]
    start = Schedule.from_steps([("compute", name) for name in order])
    problem = Problem(graph, 6)
    again = staged(problem, start)
    assert judged(problem, again).cost == judged(problem, start).cost
    assert again != start
    statement = Statement.around(RetentionIntervals, {}, problem, again)
    assert not statement.expresses(start)
    assert statement.expresses(again)
    assert not statement.crowded(problem, again), "every op can run once more"
    assert staged(Problem(graph, 6, "free"), start) is None


@pytest.mark.parametrize("kind", KINDS)
def test_neighbourhoods_have_the_requested_size_and_range(kind):
    graph = layered(60, 0.3, 5)
    problem = Problem(graph, "85%")
    rng = np.random.default_rng(2)
    schedule = random_staged(graph, rng, 0.15)
    profile = ScheduleProfile(problem, schedule)
    parts = [KINDS[kind](profile, rng, 12) for _ in range(10)]
    for part in parts:
        assert LEAST <= part.ops.sum() <= 13
        assert 0 <= part.first <= part.last < len(graph.ops)
    assert len({part.ops.tobytes() for part in parts}) > 5, "parts must differ"


def test_portfolio_adapts_sizes_and_choices():
    portfolio = Portfolio(KINDS, 20, 50)
    for _ in range(60):
        portfolio.learn("peak", better=False, finished=True)
        portfolio.learn("related", better=False, finished=False)
        portfolio.learn("in time", better=True, finished=True)
    assert portfolio.sizes == {**dict.fromkeys(KINDS, 20.0), "peak": 50.0, "related": float(LEAST)}
    rng = np.random.default_rng(1)
    profile = ScheduleProfile(Problem(unit_chain(30), 20), Schedule.reference(unit_chain(30)))
    chosen = [portfolio.choose(profile, rng)[0] for _ in range(60)]
    assert chosen.count("in time") > chosen.count("peak")


def test_errors_name_bad_options():
    problem = Problem(unit_chain(8), 7)
    for options, culprit in (
        (LnsOptions(formulation="retention"), "'retention'"),
        (LnsOptions(backend="cp"), "'cp'"),
        (LnsOptions(formulation_options={"copy": 2}), "'copy'"),
        (LnsOptions(formulation="checkmate", formulation_options={"copies": 2}), "'copies'"),
    ):
        with pytest.raises(RematError, match=culprit):
            Lns(options).run(problem, within(5))


def test_without_budget_no_recomputations():
    problem = Problem(unit_chain(8), None)
    assert judged(problem, Lns().run(problem, HeuristicRun(ONE))).recomputations == 0


def test_memory_limit_holds_for_restricted_models() -> None:
    problem = Problem(unit_chain(30), "60%")
    schedule, stages = Schedule.reference(problem.graph), load("formulations", "stages")
    assert Statement.around(stages, {}, problem, schedule, memory_limit=2**40).model.num_vars > 0
    with refused("problem.memory"):
        Statement.around(stages, {}, problem, schedule, memory_limit=1)
    tight = SolveOptions(Deadline.after(5), threads=1, memory_limit=4096, isolate=True)
    with refused("problem.memory"):
        Lns().run(problem, HeuristicRun(tight, start=schedule))
