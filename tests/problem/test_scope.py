"""Restrictions of scopes: serialisation, coverage."""

import json

import pytest

from remat import Problem
from remat.bounds.base import Bound
from remat.bounds.selection import applies
from remat.formulations.checkmate import Checkmate, CheckmateOptions
from remat.formulations.stages import Stages, StagesOptions
from remat.graphs import layered
from remat.graphs.families import unit_chain
from remat.heuristics.base import rank
from remat.problem.scope import EVERY_SCHEDULE, AtMost, Limit, Restriction, Scope, covers, own_scope, restrictions_hold
from remat.schedule import OrderRule, Schedule, validate

CHAIN = Problem(unit_chain(6), 5)
SCOPES = [
    EVERY_SCHEDULE,
    Scope(OrderRule.FIXED, True, 3, (Restriction.FILLED_ONCE, AtMost(Limit.COST, 12_345))),
    Scope(OrderRule.FREE, False, None, (AtMost(Limit.STAGES, 7),)),
    Scope(OrderRule.FREE, False, None, ("unknown words",)),
    Scope(OrderRule.FIXED, False, None, (Restriction.OWN_LIMITS,)),
]


@pytest.mark.parametrize("scope", SCOPES, ids=str)
def test_scope_survives_serialisation(scope):
    assert Scope.from_dict(json.loads(json.dumps(scope.as_dict()))) == scope


def test_scopes_of_formulations_hold_their_limits():
    stages = Stages(CHAIN, StagesOptions(cost_limit=12_345)).scope()
    assert AtMost(Limit.COST, 12_345) in stages.notes
    assert "cost at most 12,345" in str(stages)
    free = Checkmate(Problem(unit_chain(6), 5, "free"), CheckmateOptions(frontier=False)).scope()
    assert [note.limit for note in free.notes] == [Limit.STAGES]


@pytest.mark.parametrize("notes", [(AtMost(Limit.STAGES, 7),), (Restriction.FILLED_ONCE,), ("words",)])
def test_bound_of_restricted_schedules_does_not_apply_to_all(notes):
    bound = Bound(None, "a relaxation", Scope(OrderRule.FREE, False, None, notes), 13, infeasible=True)
    assert not applies(bound, CHAIN)
    assert not covers(bound.scope, CHAIN)
    assert applies(Bound(None, "another", own_scope(CHAIN), 13), CHAIN)


def test_claim_about_the_fixed_order_covers_the_only_order():
    scope = own_scope(CHAIN)
    assert covers(scope, Problem(CHAIN.graph, 5, "free"))
    assert not covers(scope, Problem(layered(10), "80%", "free"))


def test_restrictions_of_a_schedule():
    found = validate(CHAIN.graph, Schedule.reference(CHAIN.graph))
    for notes, holds in (
        ((), True),
        ((Restriction.OWN_LIMITS,), True),
        ((AtMost(Limit.COST, found.cost),), True),
        ((AtMost(Limit.COST, found.cost - 1),), False),
        ((AtMost(Limit.STAGES, 100),), False),  # a certificate has no stages
        ((Restriction.FILLED_ONCE,), False),
        (("words",), False),
    ):
        assert restrictions_hold(Scope(OrderRule.FREE, False, None, notes), found) is holds


def test_rank_of_schedules():
    assert sorted([(False, 1, 9), (True, 5, 3), (True, 5, 2), (False, 0, 10)], key=lambda one: rank(*one)) == [
        (True, 5, 2), (True, 5, 3), (False, 1, 9), (False, 0, 10),
    ]  # fmt: skip
