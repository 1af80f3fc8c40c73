"""The kit finds what it is for: every kind of broken backend and formulation, and its own optima are right."""

import time
from dataclasses import replace
from functools import partial
from unittest import SkipTest

import numpy as np
import pytest
from refusals import refused
from small_graphs import KNOWN

from remat.backends.base import Backend
from remat.backends.cp_sat import CpSat
from remat.errors import ProblemError
from remat.formulations.checkmate import Checkmate
from remat.formulations.ordering import OrderPositions
from remat.formulations.retention_intervals import RetentionIntervals, RetentionIntervalsOptions
from remat.modeling import Linear, Model
from remat.problem import Objective, Problem
from remat.problem.scope import Scope
from remat.runtime.status import Status, StopReason
from remat.schedule import OrderRule, validate
from remat.testing import BACKEND_CHECKS, FORMULATION_CHECKS, PAIR_CHECKS, ConformanceError, Effort, optimum
from remat.testing.problems import FREE, PLAIN, cases, worth_a_search
from remat.testing.raw_models import KINDS, enumerate_model

CHECKS = {
    kind: {check.__name__: check for check in checks}
    for kind, checks in (("backend", BACKEND_CHECKS), ("formulation", FORMULATION_CHECKS), ("pair", PAIR_CHECKS))
}
FEW = Effort(most_ops=4, cases=2, deadline=0.4, grace=0.2)


class Liar(Backend):
    """CP-SAT, but for what a test makes of its question or its answer."""

    name = "liar"
    native = CpSat.native
    ask, twist = staticmethod(lambda arguments: arguments), staticmethod(lambda raw, model: raw)

    @classmethod
    def availability(cls):
        return CpSat.availability()

    def solve(self, *arguments):
        return self.twist(CpSat().solve(*self.ask(arguments)), arguments[0])


def liar(**parts):
    return type("OneLiar", (Liar,), {name: staticmethod(part) for name, part in parts.items()})()


def without_last_record(arguments):
    model = arguments[0].copy("relaxed")
    model.records.pop()
    return (model, *arguments[1:])


def shifted(raw, model):
    return raw if raw.objective is None else replace(raw, objective=raw.objective - 1)


def late(arguments):
    time.sleep(2 * FEW.grace)
    return arguments


ANSWERS = {
    "feasible only": lambda raw, model: replace(raw, status=Status.FEASIBLE) if raw.status is Status.OPTIMAL else raw,
    "wrong objective": shifted,
    "no values": lambda raw, model: replace(raw, values=None),
    "zeros": lambda raw, model: raw if raw.values is None else replace(raw, values=np.zeros(model.num_vars)),
    "bound above": lambda raw, model: raw if raw.objective is None else replace(raw, bound=raw.objective + 5),
    "bound infinite": lambda raw, model: raw if raw.objective is None else replace(raw, bound=-np.inf),
    "no version": lambda raw, model: replace(raw, versions={}),
    "worse incumbents": lambda raw, model: replace(
        raw, incumbents=tuple(replace(i, objective=i.objective - 7) for i in raw.incumbents)
    ),
    "lost incumbent": lambda raw, model: replace(
        raw, status=Status.UNKNOWN, stop=StopReason.DEADLINE, values=None, objective=None
    ),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_wrong_answers_are_found(answer):
    with pytest.raises(ConformanceError):
        CHECKS["backend"]["linear"](liar(twist=ANSWERS[answer]), FEW)
    with pytest.raises(ConformanceError):
        CHECKS["pair"]["plain_graphs"](Checkmate, liar(twist=ANSWERS[answer]), FEW)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_forgotten_is_found(kind):
    with pytest.raises(ConformanceError):
        CHECKS["backend"][kind.replace(" ", "_")](liar(ask=without_last_record), Effort(cases=1))


def infeasible_is_unknown(raw, model):
    return replace(raw, status=Status.UNKNOWN) if raw.status is Status.INFEASIBLE else raw


FAULTS = {
    "infeasible": {"twist": infeasible_is_unknown},
    "takes_hints": {"ask": lambda a: (a[0], a[1], None, *a[3:])},  # so a wrong shape is not refused
    "deadline_keeps_the_incumbent": {"ask": late},
    "stops_when_asked": {"ask": lambda a: (a[0], a[1], a[2], lambda incumbent: a[3](incumbent) and False, a[4])},
    "takes_options": {"ask": lambda a: (a[0], replace(a[1], log=a[1].log and (lambda _: a[1].log(b""))), *a[2:])},
}  # fmt: skip


@pytest.mark.parametrize("check", FAULTS)
def test_broken_promises_are_found(check):
    with pytest.raises(ConformanceError):
        CHECKS["backend"][check](liar(**FAULTS[check]), replace(FEW, deadline=0.1))


def test_a_lost_hint_is_found():
    """A backend that gives up at its deadline, with nothing."""

    def nothing(raw, model):
        return replace(raw, status=Status.UNKNOWN, stop=StopReason.DEADLINE, values=None, objective=None, bound=None,
                       incumbents=())  # fmt: skip

    silent = liar(twist=nothing, ask=lambda a: (*a[:3], None, None))
    for kind, arguments in (("backend", (silent,)), ("pair", (Checkmate, silent))):
        with pytest.raises(ConformanceError, match="hint"):
            CHECKS[kind]["deadline_keeps_the_incumbent"](*arguments, replace(FEW, grace=5.0))
    with pytest.raises(ConformanceError):
        CHECKS["pair"]["infeasible_stays_infeasible"](Checkmate, silent, FEW)
    with pytest.raises(ConformanceError):
        CHECKS["pair"]["hints_are_taken"](Checkmate, silent, FEW)


def without_memory(kind):
    """A formulation that does not count memory."""

    class Loose(kind):
        def build(self):
            model = super().build().copy("loose")
            model.records = [record for record in model.records if "memory" not in record.name]
            return model

    return Loose


class Tight(Checkmate):
    """Little may be retained."""

    def build(self):
        model = super().build().copy("tight")
        retained = model.named.S
        model.add(Linear.rows("tight", np.zeros(len(retained)), retained.index, 1, upper=[len(retained) / 4]))
        return model


class Sparing(Checkmate):
    """Few recomputations are allowed, which `encode` does not know."""

    def build(self):
        model = super().build().copy("sparing")
        computed = model.named.R
        model.add(
            Linear.rows("few", np.zeros(len(computed)), computed.index, 1, upper=[len(self.problem.graph.ops) + 2])
        )
        return model


class Forgetful(Checkmate):
    def decode(self, values):
        return super().decode(np.zeros_like(values))


class Growing(Checkmate):
    def build(self):
        model = super().build()
        model.booleans("more", 1)
        return model


class Careless(Checkmate):
    def encode(self, schedule):
        try:
            return super().encode(schedule)
        except ProblemError:
            return np.zeros(self.build().num_vars)


class Boastful(RetentionIntervals):
    """Two copies, and a scope of any number."""

    def scope(self):
        return replace(super().scope(), max_computes=None)


class Lavish(RetentionIntervals):
    """Its linear rows cost nothing."""

    def build(self):
        model = super().build()
        offered = model.overrides.get("linear")
        if offered is not None:
            model.overrides["linear"] = partial(self.free_of_charge, offered)
        return model

    def free_of_charge(self, offered):
        form = offered()
        form.model.minimize([], [])
        return form


class Refusing(Checkmate):
    def __init__(self, problem):
        raise ProblemError("not today")


class Pretender(Checkmate):
    """It is said to state least peak, and states least cost whatever is asked."""

    objectives = frozenset(Objective)


FORMULATION_FAULTS = [
    (Pretender, "encodes_optimal_schedules"),
    (Tight, "encodes_optimal_schedules"),
    (Forgetful, "encodes_schedules_over_budget"),
    (Growing, "builds_the_same_model_again"),
    (Careless, "refuses_what_it_cannot_express"),
    (Sparing, "encodes_what_the_model_allows"),
    (Boastful, "says_its_scope"),
    (Lavish, "offers_an_equal_linear_form"),
    *((Refusing, check.__name__) for check in FORMULATION_CHECKS),  # nothing is left to look at
]


@pytest.mark.parametrize(("formulation", "check"), FORMULATION_FAULTS)
def test_broken_formulations_are_found(formulation, check):
    with pytest.raises(ConformanceError):
        CHECKS["formulation"][check](formulation)


PAIR_FAULTS = [
    (without_memory(Checkmate), "plain_graphs"), (Tight, "plain_graphs"), (Forgetful, "plain_graphs"),
    (Pretender, "least_peak_of_full_graphs"), (without_memory(OrderPositions), "orders_alone"),
]  # fmt: skip


@pytest.mark.parametrize(("formulation", "check"), PAIR_FAULTS)
def test_wrong_models_are_found(formulation, check):
    with pytest.raises(ConformanceError):
        CHECKS["pair"][check](formulation, CpSat())


def test_refusals_are_skips_with_the_reason():
    with pytest.raises(
        SkipTest, match="in any order: the checkmate formulation with frontier-advancing stages keeps the"
    ):
        CHECKS["pair"]["full_graphs_in_any_order"](Checkmate, CpSat())


def test_a_formulation_without_recomputation_is_looked_at():
    """Orders alone: no problem needs recomputation, and the checks have something to look at all the same."""
    asked, skipped = [], []

    def counting(arguments):
        asked.append(arguments[0])
        return arguments

    for name, check in CHECKS["pair"].items():
        before = len(asked)
        try:
            check(OrderPositions, liar(ask=counting), Effort(most_ops=4, cases=2, deadline=0.2, grace=5.0))
        except SkipTest as reason:
            assert "deadline" in name or "order-positions" in str(reason)
            skipped.append(name)
        else:
            assert len(asked) > before, name
    assert {"orders_alone", "plain_graphs_in_any_order", "hints_are_taken"}.isdisjoint(skipped)


def test_cases_of_which_none_is_wanted_are_a_fault(monkeypatch):
    monkeypatch.setattr("remat.testing.problems.TRIES", 100)
    with pytest.raises(ConformanceError, match=r"none of \d+ graphs with one output"):
        list(cases(Checkmate, PLAIN, Effort(most_ops=3), lambda case: False))


def test_options_of_a_formulation_change_the_scope():
    def three(problem):
        return RetentionIntervals(problem, RetentionIntervalsOptions(copies=3))

    CHECKS["pair"]["plain_graphs"](three, CpSat())


def test_cases_are_worth_solving():
    for family in (PLAIN, FREE):
        for case in cases(RetentionIntervals, family, Effort(), worth_a_search):
            assert case.best.cost > case.problem.graph.base_cost
            certificate = validate(case.problem.graph, case.best.schedule, case.problem.rules)
            assert certificate.accepted
            assert certificate.cost == case.best.cost


@pytest.mark.parametrize("known", KNOWN[:1], ids=lambda known: known.graph.name)
def test_optima_that_were_found_elsewhere(known):
    for budget, (free, free_twice, staged, _) in known.optima.items():
        for order, is_staged, computes, cost in (
            ("free", False, None, free),
            ("free", False, 2, free_twice),
            ("fixed", True, None, staged),
        ):
            best = optimum(Problem(known.graph, budget, order), Scope(OrderRule(order), is_staged, computes))
            assert (best and best.cost) == cost


def test_constant_memory_is_not_searched():
    graph = replace(KNOWN[0].graph, constant_memory=1)
    with refused("problem.constant-memory"):
        optimum(Problem(graph, count_constant_memory=True), Scope(OrderRule.FIXED, staged=True))


def test_a_model_is_enumerated():
    model = Model("none")
    model.add(Linear.rows("never", [0], model.booleans("b", 1).index, 1, lower=[2]))
    assert enumerate_model(model).optimum is None
