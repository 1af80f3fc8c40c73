"""Deadlines are looked at between pieces of work, and nothing is ever broken off from outside."""

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
from remat.modeling.bridges import clauses
from remat.modeling.matrix import to_matrix
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.status import StopReason


def test_a_look_at_the_clock():
    Deadline().check()
    Deadline.after(60).check()
    for seconds in (0, -1):
        with pytest.raises(OverdueError, match="no time is left"):
            Deadline.after(seconds).check()


def test_each_looks_before_every_piece():
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
def test_models_are_not_built_when_time_is_over(kind):
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
def test_what_grows_with_the_graph_is_made_in_pieces(kind, ops, work, least, monkeypatch):
    """With thousands of ops each of them ran for up to 5 s after the deadline."""
    monkeypatch.setattr(liveness, "ENTRIES", 1000)
    monkeypatch.setattr(clauses, "PIECE", 1000)
    monkeypatch.setattr("remat.formulations.stages.formulation.ROWS", 500, raising=False)
    looks: list[None] = []
    formulation = kind(Problem(layered(ops, seed=1), "80%", "free" if kind is OrderPositions else "fixed"))
    formulation.deadline = Deadline().until(lambda: bool(looks.append(None)))
    work(formulation)
    assert len(looks) >= least


@pytest.fixture(scope="module")
def large():
    graph = layered(2000, seed=1)
    graph.reference_peak, graph.arrays  # noqa: B018
    return graph


@pytest.mark.parametrize("method", ["greedy", "eviction", "checkpoint-last", "linearized-greedy", "lp-rounding"])
def test_heuristics_end_when_time_is_over(method, large):
    """Each of them takes many seconds for this graph without a deadline, or cannot look at one schedule in time."""
    began = time.monotonic()
    try:
        solve(Problem(large, "50%"), method, stop=0.4, options=ONE)
    except Exception as error:
        assert "training graph" in str(error)
    assert time.monotonic() - began < 0.4 + 2.5  # a look for a lower peak takes a second where nothing is found


def test_a_heuristic_that_is_late_is_waited_for():
    """It is not struck, what it found counts, and the result says that it was late."""

    class Late(Heuristic):
        name = "late"

        def run(self, problem, run):
            time.sleep(run.deadline.remaining + 1.2)
            return Greedy().run(problem, HeuristicRun())

    result = solve(Problem(unit_chain(8), 7), Late, stop=0.2)
    assert result.source == "late"
    assert "late continued for 1.2 s after its deadline" in result.message


def test_a_build_that_is_late_ends_with_the_deadline():
    """A formulation that does not look at the clock makes the answer late, and nothing else."""

    class Late(Checkmate):
        name = "late"

        def build(self):
            time.sleep(0.5)
            self.deadline = Deadline()
            return super().build()

    result = solve(Problem(unit_chain(8), 5), Late, "highs", stop=0.4, options=ONE)
    assert result.stop is StopReason.DEADLINE


def test_reading_counts(tmp_path, monkeypatch):
    """The clock of the shell begins before the graph is read, not after."""
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
