"""Checks of the kit fail on broken backends and formulations; optima of the kit."""

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
from remat.formulations.timed_intervals import TimedIntervals
from remat.modeling import Linear, Model
from remat.problem import Objective, Problem
from remat.problem.scope import Scope
from remat.runtime.solve_options import Status, StopReason
from remat.schedule import Machine, OrderRule, Schedule, validate
from remat.testing import (
    BACKEND_CHECKS,
    FORMULATION_CHECKS,
    MACHINE_CHECKS,
    PAIR_CHECKS,
    ConformanceError,
    Effort,
    optimum,
)
from remat.testing.problems import FREE, PLAIN, cases, worth_a_search
from remat.testing.raw_models import KINDS, enumerate_model

CHECKS = {
    kind: {check.__name__: check for check in checks}
    for kind, checks in (("backend", BACKEND_CHECKS), ("formulation", FORMULATION_CHECKS), ("pair", PAIR_CHECKS))
}
FEW = Effort(most_ops=4, cases=2, deadline=0.4, grace=0.2)


class Altered(Backend):
    """CP-SAT with changed questions or answers."""

    name = "altered"
    native = CpSat.native
    ask, twist = staticmethod(lambda arguments: arguments), staticmethod(lambda raw, model: raw)

    @classmethod
    def availability(cls):
        return CpSat.availability()

    def solve(self, *arguments):
        return self.twist(CpSat().solve(*self.ask(arguments)), arguments[0])


def altered(**parts):
    return type("AlteredBackend", (Altered,), {name: staticmethod(part) for name, part in parts.items()})()


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
def test_wrong_answers_fail(answer):
    with pytest.raises(ConformanceError):
        CHECKS["backend"]["linear"](altered(twist=ANSWERS[answer]), FEW)
    with pytest.raises(ConformanceError):
        CHECKS["pair"]["plain_graphs"](Checkmate, altered(twist=ANSWERS[answer]), FEW)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_record_fails(kind):
    with pytest.raises(ConformanceError):
        CHECKS["backend"][kind.replace(" ", "_")](altered(ask=without_last_record), Effort(cases=1))


def infeasible_is_unknown(raw, model):
    return replace(raw, status=Status.UNKNOWN) if raw.status is Status.INFEASIBLE else raw


FAULTS = {
    "infeasible": {"twist": infeasible_is_unknown},
    "takes_hints": {"ask": lambda a: (a[0], a[1], None, *a[3:])},  # accepts a wrong shape
    "deadline_keeps_the_incumbent": {"ask": late},
    "stops_when_asked": {"ask": lambda a: (a[0], a[1], a[2], lambda incumbent: a[3](incumbent) and False, a[4])},
    "takes_options": {"ask": lambda a: (a[0], replace(a[1], log=a[1].log and (lambda _: a[1].log(b""))), *a[2:])},
}  # fmt: skip


@pytest.mark.parametrize("check", FAULTS)
def test_broken_contracts_fail(check):
    with pytest.raises(ConformanceError):
        CHECKS["backend"][check](altered(**FAULTS[check]), replace(FEW, deadline=0.1))


def test_lost_hint_fails():
    """The backend has no result at its deadline."""

    def nothing(raw, model):
        return replace(raw, status=Status.UNKNOWN, stop=StopReason.DEADLINE, values=None, objective=None, bound=None,
                       incumbents=())  # fmt: skip

    resultless = altered(twist=nothing, ask=lambda a: (*a[:3], None, None))
    for kind, arguments in (("backend", (resultless,)), ("pair", (Checkmate, resultless))):
        with pytest.raises(ConformanceError, match="hint"):
            CHECKS[kind]["deadline_keeps_the_incumbent"](*arguments, replace(FEW, grace=5.0))
    with pytest.raises(ConformanceError):
        CHECKS["pair"]["infeasible_stays_infeasible"](Checkmate, resultless, replace(FEW, cases=1))
    with pytest.raises(ConformanceError):
        CHECKS["pair"]["hints_are_taken"](Checkmate, resultless, FEW)


def without_memory(kind):
    """Return the formulation without memory constraints."""

    class Loose(kind):
        def build(self):
            model = super().build().copy("loose")
            model.records = [record for record in model.records if "memory" not in record.name]
            return model

    return Loose


class LimitedRetention(Checkmate):
    """Few tensors may be retained."""

    def build(self):
        model = super().build().copy("tight")
        retained = model.named.S
        model.add(Linear.rows("tight", np.zeros(len(retained)), retained.index, 1, upper=[len(retained) / 4]))
        return model


class LimitedRecomputation(Checkmate):
    """Few recomputations are allowed, which `encode` ignores."""

    def build(self):
        model = super().build().copy("sparing")
        computed = model.named.R
        model.add(
            Linear.rows("few", np.zeros(len(computed)), computed.index, 1, upper=[len(self.problem.graph.ops) + 2])
        )
        return model


class DecodesZeros(Checkmate):
    def decode(self, values):
        return super().decode(np.zeros_like(values))


class GrowingModel(Checkmate):
    def build(self):
        model = super().build()
        model.booleans("more", 1)
        return model


class EncodesAnything(Checkmate):
    def encode(self, schedule):
        try:
            return super().encode(schedule)
        except ProblemError:
            return np.zeros(self.build().num_vars)


class ScopeTooWide(RetentionIntervals):
    """At most two copies, with a scope without limit."""

    def scope(self):
        return replace(super().scope(), max_computes=None)


class FreeLinearForm(RetentionIntervals):
    """Linear form with zero costs."""

    def build(self):
        model = super().build()
        offered = model.overrides.get("linear")
        if offered is not None:
            model.overrides["linear"] = partial(self.without_costs, offered)
        return model

    def without_costs(self, offered):
        form = offered()
        form.model.minimize([], [])
        return form


class RefusesAll(Checkmate):
    def __init__(self, problem):
        raise ProblemError("not today")


class ClaimsLeastPeak(Checkmate):
    """States least cost for any objective."""

    objectives = frozenset(Objective)


FORMULATION_FAULTS = [
    (ClaimsLeastPeak, "encodes_optimal_schedules"),
    (LimitedRetention, "encodes_optimal_schedules"),
    (DecodesZeros, "encodes_schedules_over_budget"),
    (GrowingModel, "builds_the_same_model_again"),
    (EncodesAnything, "refuses_what_it_cannot_express"),
    (LimitedRecomputation, "encodes_what_the_model_allows"),
    (ScopeTooWide, "says_its_scope"),
    (FreeLinearForm, "offers_an_equal_linear_form"),
    *((RefusesAll, check.__name__) for check in FORMULATION_CHECKS),  # no case is left
]


@pytest.mark.parametrize(("formulation", "check"), FORMULATION_FAULTS)
def test_broken_formulations_fail(formulation, check):
    with pytest.raises(ConformanceError):
        CHECKS["formulation"][check](formulation)


PAIR_FAULTS = [
    (without_memory(Checkmate), "plain_graphs"), (LimitedRetention, "plain_graphs"), (DecodesZeros, "plain_graphs"),
    (ClaimsLeastPeak, "least_peak_of_full_graphs"), (without_memory(OrderPositions), "orders_alone"),
]  # fmt: skip


@pytest.mark.parametrize(("formulation", "check"), PAIR_FAULTS)
def test_wrong_models_fail(formulation, check):
    with pytest.raises(ConformanceError):
        CHECKS["pair"][check](formulation, CpSat())


class StaysOver(TimedIntervals):
    """Its schedules exceed the budget."""

    def decode(self, values):
        return Schedule.reference(self.problem.graph)


class WaitsForNothing(TimedIntervals):
    """Its transfers take no time."""

    def __init__(self, problem, options=None):
        super().__init__(replace(problem, machine=Machine(host=problem.machine.host)), options)


@pytest.mark.parametrize("formulation", [StaysOver, WaitsForNothing])
def test_broken_formulations_with_transfers_fail(formulation):
    with pytest.raises(ConformanceError, match=r"budget|claims"):
        MACHINE_CHECKS[1](formulation, CpSat(), Effort(cases=3))
    with pytest.raises(SkipTest, match="transfers to a host"):
        MACHINE_CHECKS[1](Checkmate, CpSat(), Effort(cases=1))


def test_refusals_skip_with_the_reason():
    with pytest.raises(
        SkipTest, match="in any order: the checkmate formulation with frontier-advancing stages keeps the"
    ):
        CHECKS["pair"]["full_graphs_in_any_order"](Checkmate, CpSat())


def test_checks_cover_formulations_without_recomputation():
    models, skipped = [], []

    def counting(arguments):
        models.append(arguments[0])
        return arguments

    for name, check in CHECKS["pair"].items():
        before = len(models)
        try:
            check(OrderPositions, altered(ask=counting), Effort(most_ops=4, cases=1, deadline=0.2, grace=5.0))
        except SkipTest as reason:
            assert "deadline" in name or "order-positions" in str(reason)
            skipped.append(name)
        else:
            assert len(models) > before, name
    assert {"orders_alone", "plain_graphs_in_any_order", "hints_are_taken"}.isdisjoint(skipped)


def test_check_without_cases_fails(monkeypatch):
    monkeypatch.setattr("remat.testing.problems.TRIES", 100)
    with pytest.raises(ConformanceError, match=r"none of \d+ graphs with one output"):
        list(cases(Checkmate, PLAIN, Effort(most_ops=3), lambda case: False))


def test_options_change_the_scope():
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
def test_known_optima(known):
    for budget, (free, free_twice, staged, _) in known.optima.items():
        for order, is_staged, computes, cost in (
            ("free", False, None, free),
            ("free", False, 2, free_twice),
            ("fixed", True, None, staged),
        ):
            best = optimum(Problem(known.graph, budget, order), Scope(OrderRule(order), is_staged, computes))
            assert (best and best.cost) == cost


def test_constant_memory_is_refused():
    graph = replace(KNOWN[0].graph, constant_memory=1)
    with refused("problem.constant-memory"):
        optimum(Problem(graph, count_constant_memory=True), Scope(OrderRule.FIXED, staged=True))


def test_enumeration_of_an_infeasible_model():
    model = Model("none")
    model.add(Linear.rows("never", [0], model.booleans("b", 1).index, 1, lower=[2]))
    assert enumerate_model(model).optimum is None
