"""The default method asks for an order that fits before it recomputes anything."""

import pytest
from helpers import ONE
from refusals import refused

import remat.solving.order_start
from remat import Problem, solve
from remat.backends.base import SolveOptions, Status
from remat.deadline import Deadline
from remat.graphs.families import unit_chain
from remat.graphs.layered import layered
from remat.ordering.base import Ordering, OrderSearch
from remat.ordering.rules import RULES
from remat.registry import Registered, load
from remat.solving.order_start import OrderStart
from remat.solving.session import Session

#: 60 ops. Orders without recomputation need 52.2 % of the reference peak, and the structural bound is 39.9 %.
GRAPH = layered(60, 0.3, 5)


#: The search that is asked after the rules.
SEARCH = next(name for name in remat.solving.order_start.SEARCHES if name in Registered("methods"))


@pytest.fixture(autouse=True, scope="module")
def compiled():
    assert load("methods", SEARCH)().prepared()


def started(problem, seconds=20.0):
    session = Session(problem, SolveOptions(Deadline.after(seconds), threads=1), "auto")
    start = OrderStart(session)
    start.run(session.call.deadline, session.call.deadline)
    return start, session


def test_an_order_that_fits_is_the_answer():
    """Before anything else ran; it was annealing that came upon it."""
    result = solve(Problem(GRAPH, "53%", "free"), stop=30, options=ONE)
    assert (result.status, result.overhead, result.schedule.num_computes) == (Status.OPTIMAL, 0, 60)
    assert [step.name for step in result.steps] == ["order"]
    assert result.source in {SEARCH, *(rule.name for rule in RULES)}


def test_where_none_fits_it_is_a_start():
    start, session = started(Problem(GRAPH, "50%", "free"))
    assert session.incumbents.best is None
    assert not session.infeasible
    assert session.incumbents.least_peak.certificate.peak == 23_020
    assert start.order.computes() == session.incumbents.least_peak.schedule.computes()
    result = solve(Problem(GRAPH, "50%", "free"), stop=1, options=ONE)
    assert "order" in [step.name for step in result.steps]


def test_where_nothing_is_recomputed_it_is_a_proof():
    result = solve(Problem(GRAPH, "50%", "free", 1), stop=30, options=ONE)
    assert result.status is Status.INFEASIBLE
    assert f"(by {SEARCH})" in str(result)


def test_for_other_questions_there_is_nothing_to_do():
    for problem in (Problem(GRAPH, "50%"), Problem(GRAPH, None, "free")):
        start, session = started(problem)
        assert not start.pending
        assert start.order is None
        assert session.steps == []


def test_what_is_not_compiled_is_not_waited_for(monkeypatch):
    """The rules alone, and the search when its code is there."""
    session = Session(Problem(GRAPH, "53%", "free"), ONE, "auto")
    start = OrderStart(session)
    start.run(Deadline.after(20), None)
    assert start.pending
    assert start.order is not None
    monkeypatch.setattr(remat.solving.order_start, "RULES", ())
    start.run(Deadline.after(20), Deadline.after(20))
    assert not start.pending
    assert session.incumbents.best.certificate.cost == GRAPH.base_cost


class Liar(OrderSearch):
    name = "liar"

    def search(self, instance, *, deadline=None, seed=0, upper=None, on_order=None):
        return Ordering(instance.reference, 5)


def test_a_peak_that_is_wrong_is_an_error(monkeypatch):
    monkeypatch.setattr(remat.solving.order_start, "RULES", (Liar,))
    with refused("backend.wrong-peak"):
        OrderStart(Session(Problem(unit_chain(8), 5, "free"), ONE, "auto")).run(Deadline.after(20), None)
