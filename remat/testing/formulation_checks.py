"""Checks of a formulation alone: its model, and the translation of schedules. No solver is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from unittest import SkipTest

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Formulation
from remat.graphs import ComputeGraph
from remat.modeling import Model, PlainLinear, lower, violations
from remat.modeling.alternatives import LinearForm
from remat.modeling.bridges import kind_of
from remat.problem import Problem
from remat.problem.scope import Scope
from remat.schedule import OrderRule, Schedule, validate
from remat.testing.exhaustive import optimum
from remat.testing.graphs import random_graph
from remat.testing.kit import USUAL, Effort, MakeFormulation, close, fail, require
from remat.testing.problems import FAMILIES, FREE_PLAIN, ONCE, PLAIN, Case, Family, cases

FormulationCheck = Callable[..., None]


def states_plain_problems(make: MakeFormulation, effort: Effort = USUAL) -> None:
    """Plain graphs are stated in some order, or in any order without recomputation; others may be refused."""
    for family in (PLAIN, FREE_PLAIN, ONCE):
        try:
            next(cases(make, family, effort, lambda case: True))
        except SkipTest as refusal:
            reason = str(refusal)
        else:
            return
    fail(f"the formulation states plain graphs in no order: {reason}")


def says_its_scope(make: MakeFormulation, effort: Effort = USUAL) -> None:
    """Name and scope exist; the scope respects a fixed order and limits of computes."""
    for case in _every(make, effort):
        scope, limit = case.formulation.scope(), case.problem.max_computes
        require(isinstance(scope, Scope) and case.formulation.name, "the formulation has no name or no scope")
        if case.problem.order is OrderRule.FIXED:
            require(scope.order is OrderRule.FIXED, f"{case}: the order is fixed, the scope says {scope}")
        if isinstance(limit, int):
            require(scope.max_computes is not None and scope.max_computes <= limit,
                    f"{case}: the limit of computes is {limit}, the scope says {scope}")  # fmt: skip


def builds_the_same_model_again(make: MakeFormulation, effort: Effort = USUAL) -> None:
    """The same problem gives the same arrays, also after encoding and decoding."""
    for case in _every(make, effort):
        first = case.formulation.build()
        before = _arrays(first)
        if case.best is not None:
            case.formulation.decode(case.formulation.encode(case.best.schedule))
        for model in (case.formulation.build(), make(case.problem).build()):
            require(_same(before, _arrays(model)), f"{case}: building again gives another model")


def _arrays(model: Model) -> list[object]:
    """Return copies of all arrays of a model, in order."""
    found: list[object] = [model.num_vars, model.lower.copy(), model.upper.copy(), model.kind.copy()]
    found += [(block.name, block.kind, block.index.shape) for block in model.blocks]
    for record in model.records:
        found += [type(record), *dataclasses.astuple(record)]  # type: ignore[call-overload]
    return [*found, model.objective.index.copy(), model.objective.coefficient.copy(), model.objective.constant]


def _same(first: list[object], second: list[object]) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else a == b
        for a, b in zip(first, second, strict=True)
    )


def encodes_optimal_schedules(make: MakeFormulation, effort: Effort = USUAL) -> None:
    """The optimal schedule of the scope satisfies the model with its own cost or peak, and decodes to the same."""
    for case in _every(make, effort, lambda case: case.best is not None and case.exact):
        assert case.best is not None
        model, values = case.formulation.build(), case.formulation.encode(case.best.schedule)
        require(values.shape == (model.num_vars,), f"{case}: encode() gives values of another shape than the model")
        wrong = violations(model, values)
        require(not wrong, f"{case}: a schedule of the scope breaks the model: {'; '.join(wrong[:1])}")
        worth = model.objective.value(values)
        require(close(worth, case.worth or 0), f"{case}: a schedule worth {case.worth} has objective {worth}")
        _comes_back(case, case.best.schedule)


def encodes_schedules_over_budget(make: MakeFormulation, effort: Effort = USUAL) -> None:
    """The budget is ignored: the reference order is encoded and decoded, whatever its peak."""
    for case in _every(make, effort):
        _comes_back(case, Schedule.reference(case.problem.graph))


def _comes_back(case: Case, schedule: Schedule) -> None:
    rules = dataclasses.replace(case.problem.rules, budget=None)
    back = case.formulation.decode(case.formulation.encode(schedule))
    before, after = (validate(case.problem.graph, s, rules) for s in (schedule, back))
    require(after.accepted, f"{case}: decode(encode(s)) is no valid schedule: {after.first}")
    require(after.cost == before.cost, f"{case}: decode(encode(s)) costs {after.cost}, s costs {before.cost}")
    require(after.peak <= before.peak, f"{case}: decode(encode(s)) has peak {after.peak}, s has {before.peak}")


def refuses_what_it_cannot_express(make: MakeFormulation, effort: Effort = USUAL) -> None:
    """encode() refuses unknown ops, missing ops and too many computes with a ProblemError."""
    for case in _every(make, effort, families=(PLAIN, FREE_PLAIN, ONCE)):
        graph = case.problem.graph
        names = [graph.op_names[op] for op in graph.arrays.order.tolist()]
        for what, computes in (("misses an op", names[:-1]), ("computes an unknown op", [*names, "no such op"])):
            _refused(case.formulation, Schedule.from_steps([("compute", name) for name in computes]), what)
    for seed in range(200):
        graph = random_graph(seed, effort.most_ops, plain=True)
        unlimited = Problem(graph, graph.structural_bound.peak, "fixed")
        best = optimum(unlimited, Scope(OrderRule.FIXED, staged=True))
        if best is None or best.schedule.num_computes == len(graph.ops):
            continue
        try:
            formulation = make(dataclasses.replace(unlimited, max_computes=1))
        except ProblemError:
            return
        _refused(formulation, best.schedule, "computes an op twice where once is allowed")
        return


def encodes_what_the_model_allows(make: MakeFormulation, effort: Effort = USUAL) -> None:
    """A schedule with very many recomputations satisfies the model without its budget, or is refused."""
    for case in _every(make, effort, families=(PLAIN, FREE_PLAIN, ONCE)):
        graph = case.problem.graph
        schedule = _keeping_nothing(graph)
        formulation = make(dataclasses.replace(case.problem, budget=sum(tensor.size for tensor in graph.tensors)))
        try:
            values = formulation.encode(schedule)
        except ProblemError:
            continue
        wrong = violations(formulation.build(), values)
        require(not wrong, f"{case}: a schedule that is not refused breaks the model: {'; '.join(wrong[:1])}")


def _keeping_nothing(graph: ComputeGraph) -> Schedule:
    """Return the schedule that computes all ancestors of an op again right before it."""
    arrays = graph.arrays
    steps: list[tuple[str, str]] = []

    def compute(op: int) -> None:
        for earlier in arrays.op_predecessors[op].tolist():
            compute(earlier)
        steps.append(("compute", graph.op_names[op]))

    for op in arrays.order.tolist():
        compute(op)
    return Schedule.from_steps(steps)


def _refused(formulation: Formulation, schedule: Schedule, what: str) -> None:
    try:
        formulation.encode(schedule)
    except ProblemError:
        return
    fail(f"formulation {formulation.name!r} encodes a schedule that {what}")


def lowers_to_linear_rows(make: MakeFormulation, effort: Effort = USUAL) -> None:
    """Bridges lower the model to linear rows, which an encoded schedule satisfies too."""
    for case in _every(make, effort):
        lowered = lower(case.formulation.build(), {PlainLinear})
        if case.best is not None and case.exact:
            wrong = violations(lowered.model, lowered.extend(case.formulation.encode(case.best.schedule)))
            require(not wrong, f"{case}: a schedule of the scope breaks the linear rows: {'; '.join(wrong[:1])}")


def offers_an_equal_linear_form(make: MakeFormulation, effort: Effort = USUAL) -> None:
    """A linear form of the formulation's own, if any, accepts encoded schedules with the same objective."""
    for case in _every(make, effort, lambda case: case.best is not None and case.exact):
        assert case.best is not None
        model, values = case.formulation.build(), case.formulation.encode(case.best.schedule)
        if LinearForm.name not in model.overrides:
            continue
        form: LinearForm = model.overrides[LinearForm.name]()
        kinds = {kind_of(record) for record in form.model.records}
        require(kinds <= {PlainLinear}, f"{case}: the linear form has records of the kinds {kinds}")
        hint = form.hint(values)
        for stated, given in ((form.model, hint), (model, form.values(hint))):
            wrong = violations(stated, given)
            require(not wrong, f"{case}: a schedule of the scope breaks {stated.name}: {'; '.join(wrong[:1])}")
            worth = stated.objective.value(given)
            require(close(worth, case.worth or 0), f"{case}: a schedule worth {case.worth} has objective {worth}")


def _every(
    make: MakeFormulation,
    effort: Effort,
    wanted: Callable[[Case], bool] = lambda case: True,
    families: tuple[Family, ...] = FAMILIES,
) -> Iterator[Case]:
    """Yield cases of all families that the formulation states; fail if there are none to check."""
    given = 0
    for family in families:
        try:
            for case in cases(make, family, effort, wanted):
                given += 1
                yield case
        except SkipTest:
            continue
    if not given:
        fail("the formulation states no problem for this check")


#: All checks of a formulation; each takes its class, and optionally an :class:`Effort`.
FORMULATION_CHECKS: tuple[FormulationCheck, ...] = (
    states_plain_problems,
    says_its_scope,
    builds_the_same_model_again,
    encodes_optimal_schedules,
    encodes_schedules_over_budget,
    refuses_what_it_cannot_express,
    encodes_what_the_model_allows,
    lowers_to_linear_rows,
    offers_an_equal_linear_form,
)
