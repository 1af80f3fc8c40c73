"""Checks of an order search: valid orders, peaks equal to the validator's, and bounds that no order beats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from remat.graphs.layered import layered
from remat.ordering.base import Ordering, OrderSearch
from remat.ordering.instance import OrderInstance
from remat.problem import Problem
from remat.problem.scope import Scope
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule, validate
from remat.testing.exhaustive import least_peak
from remat.testing.graphs import random_graph
from remat.testing.kit import USUAL, Effort, check_options_type, check_wrong_options, in_time, require

#: A class of searches, or any callable that returns one: ``lambda: MySearch(MyOptions(3))``.
MakeSearch = Callable[[], OrderSearch]
OrderCheck = Callable[..., None]


def says_what_it_is(make: MakeSearch, effort: Effort = USUAL) -> None:
    """A name, and options in a frozen dataclass with defaults, or none; invalid options are refused."""
    search = make()
    require(isinstance(search, OrderSearch) and search.name, f"{search!r} is no order search with a name")
    check_options_type(search.name, search.options_type)
    check_wrong_options(search)


def finds_orders(make: MakeSearch, effort: Effort = USUAL) -> None:
    """On graphs of all kinds orders have the claimed peaks, and the best order respects the bound.

    Reported orders improve strictly, and the final one is at least as good.
    """
    for problem, instance, least in _questions(effort):
        reported: list[tuple[int, Int]] = []

        def report(order: Int, peak: int, reported: list[tuple[int, Int]] = reported) -> bool:
            reported.append((peak, order.copy()))
            return False

        found = _searched(make(), problem, instance, on_order=report, effort=effort)
        who = f"{make().name} on graph {problem.graph.name!r}"
        require(found.order is not None, f"{who} finds no order, though any will do")
        require(found.bound <= least, f"{who} claims a bound of {found.bound}, but an order has {least}")
        require((found.peak == least) >= found.proved, f"{who} claims that {found.peak} is the least, but {least} is")
        for peak, order in reported:
            require(instance.peak_of(order) == peak, f"{who} reports a peak of {peak} that is not that of its order")
        peaks = [peak for peak, _ in reported]
        require(sorted(set(peaks), reverse=True) == peaks, f"{who} reports orders that do not improve: {peaks}")
        require(not peaks or peaks[-1] >= (found.peak or 0), f"{who} reports a better order than it returns")


def wants_what_is_below(make: MakeSearch, effort: Effort = USUAL) -> None:
    """With an upper limit all orders are below it, and so is the bound."""
    for problem, instance, least in _questions(effort):
        for upper in (least, least + 1, instance.peak_of(instance.reference)):
            found = _searched(make(), problem, instance, upper=upper, effort=effort)
            who = f"{make().name} on graph {problem.graph.name!r} below {upper}"
            require(found.peak is None or found.peak < upper, f"{who} gives an order of peak {found.peak}")
            require(
                found.bound <= min(least, upper), f"{who} claims a bound of {found.bound}, but an order has {least}"
            )


def gives_the_same_again(make: MakeSearch, effort: Effort = USUAL) -> None:
    """The same seed gives the same order, and the instance stays unchanged."""
    for problem, instance, _ in _questions(effort):
        before = [getattr(instance, field.name) for field in dataclasses.fields(instance)]
        copies = [value.copy() if isinstance(value, np.ndarray) else value for value in before]
        first, second = (_searched(make(), problem, instance, seed=7, effort=effort) for _ in range(2))
        same = first.order is not None and second.order is not None and (first.order == second.order).all()
        require(same and first.bound == second.bound, f"{make().name} gives something else for the same seed")
        for value, copy in zip(before, copies, strict=True):
            kept = (value == copy).all() if isinstance(value, np.ndarray) else value == copy
            require(kept, f"{make().name} changes the instance")


def ends_in_time(make: MakeSearch, effort: Effort = USUAL) -> None:
    """It returns a valid answer soon after its deadline, even without time."""
    problem = _problem(layered(300, 0.5, seed=3))
    instance = OrderInstance.of(problem)
    search = make()
    search.prepared()
    for seconds in (0.0, effort.deadline):

        def attempt(seconds: float = seconds) -> Ordering:
            return search.search(instance, deadline=Deadline.after(seconds), seed=1)

        found = in_time(search.name, seconds, effort.grace, attempt)
        _check(f"{search.name} with {seconds:g} s", problem, instance, found)


def _problem(graph: object) -> Problem:
    return Problem(graph, order=OrderRule.FREE, max_computes=1, objective="least-peak")  # type: ignore[arg-type]


def _questions(effort: Effort) -> Iterator[tuple[Problem, OrderInstance, int]]:
    """Yield random problems with all features of graphs, and the least peak of their orders."""
    for seed in range(2 * effort.cases):
        problem, least = _question(seed, effort.most_ops)
        yield problem, OrderInstance.of(problem), least


@lru_cache(maxsize=1000)
def _question(seed: int, most_ops: int) -> tuple[Problem, int]:
    problem = _problem(random_graph(seed, most_ops, buffers=seed % 2 == 1))
    best = least_peak(problem, Scope(OrderRule.FREE, staged=False, max_computes=1))
    assert best is not None
    return problem, best.peak


def _searched(
    search: OrderSearch, problem: Problem, instance: OrderInstance, *, effort: Effort, seed: int = 0,
    upper: int | None = None, on_order: Callable[[Int, int], bool] | None = None,
) -> Ordering:  # fmt: skip
    deadline = Deadline.after(effort.patience)
    require(search.prepared(deadline), f"{search.name} is not compiled after {effort.patience:g} s")
    found = search.search(instance, deadline=deadline, seed=seed, upper=upper, on_order=on_order)
    _check(f"{search.name} on graph {problem.graph.name!r}", problem, instance, found)
    return found


def _check(who: str, problem: Problem, instance: OrderInstance, found: Ordering) -> None:
    """Check the order and its peak with the validator."""
    require(isinstance(found, Ordering), f"{who} gives a {type(found).__name__}, not an Ordering")
    require(
        (found.order is None) == (found.peak is None), f"{who} gives an order without a peak, or a peak without one"
    )
    if found.order is None:
        return
    certificate = validate(problem.graph, instance.schedule(problem, found.order), problem.rules)
    require(certificate.accepted, f"{who} gives no order: {certificate.first}")
    require(certificate.peak == found.peak, f"{who} claims peak {found.peak} for an order that has {certificate.peak}")


#: All checks of an order search; each takes its class, and optionally an :class:`Effort`.
ORDER_CHECKS: tuple[OrderCheck, ...] = (
    says_what_it_is,
    finds_orders,
    wants_what_is_below,
    gives_the_same_again,
    ends_in_time,
)
