"""Contestants given as classes and objects."""

from helpers import ONE

from remat import Problem, frontier, max_batch
from remat.backends.highs import Highs
from remat.experiments.compare import compare
from remat.experiments.contestant import Contestant
from remat.formulations.checkmate import Checkmate
from remat.graphs.batch_scaling import AffineGraph
from remat.graphs.families import unit_chain
from remat.heuristics.greedy import Greedy
from remat.runtime.processes.workers import WorkerPool
from remat.solving.method import Method

CHAIN = Problem(unit_chain(6))


class Quick(Method):
    """Method that is not registered."""

    name = "quick"

    def run(self, session):
        session.improve(Greedy(), session.call.deadline)
        session.conclude()


def test_compare_classes_and_objects():
    done = compare(CHAIN, [5], [Quick, Greedy, Contestant(Checkmate, Highs)], options=ONE)
    assert [run.method.label for run in done.runs] == ["quick", "greedy", "checkmate/highs"]
    assert [run.error for run in done.runs] == ["", "", ""]
    assert done.runs[2].result.objective == 16
    made = compare(CHAIN, [5], [Greedy(), Quick(), Contestant(Checkmate, Highs(), label="own")], options=ONE)
    assert [run.method.label for run in made.runs] == ["greedy", "quick", "own"]
    assert [run.result.objective for run in made.runs] == [run.result.objective for run in done.runs]


def test_default_backend_of_a_formulation():
    assert Contestant.of(Checkmate).label == "checkmate/cp-sat"
    assert Contestant.of(Checkmate, default=Highs).label == "checkmate/highs"
    assert Contestant.of(Checkmate, Highs()).source == "checkmate by highs"
    assert Contestant.parse(" checkmate/minizinc:gecode ").backend == "minizinc:gecode"
    assert Contestant.parse("lns/highs").backend == "highs"  # a heuristic that solves models


def test_frontier_of_classes_in_other_processes():
    with WorkerPool(1) as pool:
        found = frontier(CHAIN, [5], [Greedy, Contestant(Checkmate, Highs)], executor=pool, options=ONE)
    assert [found.of(label)[0].cost for label in ("checkmate/highs",)] == [16]
    assert found.of("greedy")[0].status != "failed"


def test_largest_batch_by_a_class():
    answer = max_batch(AffineGraph.scaled(unit_chain(6), 1), 40, Contestant(Checkmate, Highs), options=ONE)
    assert (answer.batch, answer.proved) == (10, True)
    heuristic = max_batch(AffineGraph.scaled(unit_chain(6), 1), 40, Greedy, options=ONE)
    assert heuristic.method.is_heuristic
    assert heuristic.batch >= heuristic.plain == 5
