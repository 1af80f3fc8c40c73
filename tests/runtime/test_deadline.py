"""Deadlines: checks between pieces of work, late methods."""

import time

import pytest
from helpers import ONE

import remat.config
from remat import Problem, solve
from remat.formulations.checkmate import Checkmate
from remat.formulations.h_ilp import HIlp
from remat.formulations.h_intervals.formulation import HierarchicalIntervals
from remat.formulations.ordering import OrderPositions, liveness
from remat.formulations.retention_intervals import RetentionIntervals
from remat.formulations.stages import Stages
from remat.graphs.families import unit_chain
from remat.graphs.io import write_graph
from remat.graphs.layered import layered
from remat.heuristics.base import Heuristic, HeuristicRun
from remat.heuristics.greedy import Greedy
from remat.modeling import PlainLinear, lower
from remat.modeling.bridges import plain_rows
from remat.modeling.matrix import to_matrix
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import StopReason


def test_check_raises_after_the_deadline():
    Deadline().check()
    Deadline.after(60).check()
    for seconds in (0, -1):
        with pytest.raises(OverdueError, match="no time is left"):
            Deadline.after(seconds).check()


def test_each_checks_before_every_piece():
    assert list(Deadline().each(range(5))) == list(Deadline.after(60).each(range(5), 2)) == [0, 1, 2, 3, 4]
    seen = []
    with pytest.raises(OverdueError):
        for item in Deadline.after(0.05).each(range(1000), 10):
            seen.append(item)
            time.sleep(0.01)
    assert seen == list(range(len(seen)))
    assert 0 < len(seen) < 100
    assert len(seen) % 10 == 0


@pytest.mark.parametrize("kind", [Checkmate, Stages, RetentionIntervals])
def test_models_are_not_built_after_the_deadline(kind):
    formulation = kind(Problem(unit_chain(8), 5))
    formulation.deadline = Deadline.after(0)
    with pytest.raises(OverdueError):
        formulation.build()
    formulation.deadline = Deadline.after(60)
    model = formulation.build()
    if kind is RetentionIntervals:
        with pytest.raises(OverdueError):
            lower(model, {PlainLinear}, deadline=Deadline.after(0))
    with pytest.raises(OverdueError):
        to_matrix(lower(model, {PlainLinear}).model, Deadline.after(0))


@pytest.mark.parametrize(("kind", "ops", "work", "least"), [
    (HierarchicalIntervals, 600, lambda given: given.tables(), 3), (HIlp, 600, lambda given: given.tables, 3),
    (OrderPositions, 60, OrderPositions.build, 30),
    (OrderPositions, 60, lambda given: to_matrix(lower(given.build(), {PlainLinear}, given.deadline).model), 60),
    (RetentionIntervals, 60, lambda given: given.build().overrides["minizinc"](), 12),
    (Stages, 60, Stages.build, 36),
])  # fmt: skip
def test_large_tables_are_built_in_pieces(kind, ops, work, least, monkeypatch):
    """With thousands of ops each of these once ran for up to 5 s after the deadline."""
    monkeypatch.setattr(liveness, "ENTRIES", 1000)
    monkeypatch.setattr(plain_rows, "PIECE", 1000)
    monkeypatch.setattr("remat.formulations.stages.formulation.ROWS", 500, raising=False)
    checks: list[None] = []
    formulation = kind(Problem(layered(ops, seed=1), "80%", "free" if kind is OrderPositions else "fixed"))
    formulation.deadline = Deadline().until(lambda: bool(checks.append(None)))
    work(formulation)
    assert len(checks) >= least


@pytest.fixture(scope="module")
def large():
    graph = layered(2000, seed=1)
    graph.reference_peak, graph.arrays  # noqa: B018
    return graph


@pytest.mark.parametrize("method", ["greedy", "eviction", "checkpoint-last", "linearized-greedy", "lp-rounding"])
def test_heuristics_end_at_the_deadline(method, large):
    """Without a deadline each takes many seconds, or cannot evaluate one schedule in time."""
    began = time.monotonic()
    try:
        solve(Problem(large, "50%"), method, stop=0.4, options=ONE)
    except Exception as error:
        assert "training graph" in str(error)
    assert time.monotonic() - began < 0.4 + 2.5  # a search for a lower peak takes up to a second


def test_late_heuristic_is_waited_for():
    """Its schedule counts, and the message reports the delay."""

    class Late(Heuristic):
        name = "late"

        def run(self, problem, run):
            time.sleep(run.deadline.remaining + 1.2)
            return Greedy().run(problem, HeuristicRun())

    result = solve(Problem(unit_chain(8), 7), Late, stop=0.2)
    assert result.source == "late"
    assert "late continued for 1.2 s after its deadline" in result.message


def test_late_build_stops_at_the_deadline():
    class Late(Checkmate):
        name = "late"

        def build(self):
            time.sleep(0.5)
            self.deadline = Deadline()
            return super().build()

    result = solve(Problem(unit_chain(8), 5), Late, "highs", stop=0.4, options=ONE)
    assert result.stop is StopReason.DEADLINE


def test_time_limit_includes_reading(tmp_path, monkeypatch):
    read = remat.config.configuration.load_graph

    def slowly(path):
        time.sleep(0.6)
        return read(path)

    monkeypatch.setattr("remat.config.configuration.load_graph", slowly)
    path = tmp_path / "graph.json"
    write_graph(layered(60, seed=1), path)
    options = {"problem": {"graph": str(path), "budget": "80%"}, "solve": {"method": "annealing", "time_limit": 0.5}}
    result = remat.config.Config.from_mapping({}, "options", overrides=options).run()
    assert result.stop is StopReason.DEADLINE
    assert result.source != "annealing"
