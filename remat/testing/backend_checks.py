"""Checks of a backend alone, on raw models whose optima are found by enumeration."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from unittest import SkipTest

import numpy as np

from remat.backends.base import Availability, Backend
from remat.backends.results import Incumbent
from remat.errors import BackendError, ModelError
from remat.modeling import Linear, Model, Record
from remat.runtime.solve_options import Status, StopReason
from remat.testing.kit import USUAL, Effort, answer, answer_in_time, close, fail, options, require
from remat.testing.raw_models import KINDS, TinyModel, tiny_models

BackendCheck = Callable[..., None]


def says_whether_it_is_ready(backend: Backend, effort: Effort = USUAL) -> None:
    """Name, variant, native records and availability follow the interface."""
    cls = type(backend)
    require(
        cls.name and backend.full_name.partition(":")[0] == cls.name, f"{backend.full_name} is not named {cls.name}"
    )
    require(not backend.variant or cls.variants(), f"{cls.name} has a variant, but lists none")
    kinds = [kind for kind in cls.native if isinstance(kind, type) and issubclass(kind, Record)]
    require(
        kinds and len(kinds) == len(cls.native), f"{cls.name}: `native` must be a non-empty set of kinds of records"
    )
    for state in (cls.availability(), backend.ready()):
        require(isinstance(state, Availability), f"{cls.name}: availability is a {type(state).__name__}")
        require(state.reason, f"{cls.name}: availability without a version or a reason")
    require(backend.ready().ready, f"{backend.full_name} is not ready: {backend.ready().reason}")
    try:
        cls("no-such-variant")
    except BackendError as error:
        require("no-such-variant" in str(error), f"{cls.name}: the error for an unknown variant does not name it")
    else:
        if not cls.variants():
            fail(f"{cls.name} is a single solver, but accepts a variant")


def _solved(backend: Backend, tiny: TinyModel, effort: Effort, **other: object) -> None:
    raw = answer(backend, tiny.model, options(effort.patience, **other))
    who = f"{backend.full_name} on model {tiny.model.name!r}"
    if tiny.optimum is None:
        require(raw.status is Status.INFEASIBLE, f"{who}: the model is infeasible, the answer {raw.status}")
        require(raw.stop is StopReason.FINISHED, f"{who}: infeasible, but stopped by {raw.stop}")
        return
    require(raw.status is Status.OPTIMAL, f"{who}: ends {raw.status} ({raw.stop}) after {effort.patience} s")
    require(raw.objective is not None and close(raw.objective, tiny.optimum),
            f"{who}: claims optimum {raw.objective}, enumeration finds {tiny.optimum}")  # fmt: skip
    require(raw.stop is StopReason.FINISHED, f"{who}: optimal, but stopped by {raw.stop}")


def _check_of_kind(kind: str) -> BackendCheck:
    def check(backend: Backend, effort: Effort = USUAL) -> None:
        for tiny in tiny_models(kind, effort.cases):
            _solved(backend, tiny, effort)

    check.__name__ = kind.replace(" ", "_")
    check.__doc__ = f"Solve models with a record that is {kind}, against enumeration."
    return check


def empty_models(backend: Backend, effort: Effort = USUAL) -> None:
    """Models without variables, without records, and with a record without variables that never holds."""
    model = Model("empty")
    model.minimize([], [], 5)
    _solved(backend, TinyModel(model, 5.0, None), effort)
    model.add(Linear.rows("never", [], [], [], lower=[1]))
    _solved(backend, TinyModel(model, None, None), effort)
    loose = Model("no records")
    loose.minimize(loose.integers("x", 3, -2, [2, 5, 7]).index, [1, -3, 0])
    _solved(backend, TinyModel(loose, -17.0, None), effort)


def no_objective(backend: Backend, effort: Effort = USUAL) -> None:
    """Without an objective any solution is optimal, at cost 0."""
    model = Model("no objective")
    x = model.integers("x", 2, -4, 4)
    model.add(Linear.rows("row", [0, 0], x.index, [2, 3], lower=[7], upper=[7]))
    _solved(backend, TinyModel(model, 0.0, None), effort)


def infeasible(backend: Backend, effort: Effort = USUAL) -> None:
    """Models infeasible for integers only, with and without an objective, and with an infeasible hint."""
    model = Model("parity")
    x = model.integers("x", 2, 0, 9)
    model.add(Linear.rows("odd", [0, 0], x.index, [2, 4], lower=[7], upper=[7]))
    _solved(backend, TinyModel(model, None, None), effort)
    model.minimize(x.index, [-1, 1])
    _solved(backend, TinyModel(model, None, None), effort)
    raw = answer(backend, model, options(effort.patience), np.array([1.0, 1.0]))
    require(raw.status is Status.INFEASIBLE, f"{backend.full_name}: a hint makes an infeasible model {raw.status}")


def implied_variables(backend: Backend, effort: Effort = USUAL) -> None:
    """Variables that the solver may treat as continuous or integer."""
    model = Model("implied")
    b, u = model.booleans("b", 2), model.implied("u", 2, 0, 10)
    model.add(
        Linear.rows("carry", [0, 0, 1, 1, 1], [u[0], b[0], u[1], u[0], b[1]], [1, -3, 1, -1, -4], lower=[0, 0]),
        Linear.rows("some", [0, 0], b.index, [1, 1], lower=[1]),
    )
    model.minimize(u.index, [2, 3], 1)
    _solved(backend, TinyModel(model, 13.0, None), effort)


def takes_options(backend: Backend, effort: Effort = USUAL) -> None:
    """Threads, seed, gap and a log are accepted; the answer stays correct."""
    tiny = next(tiny_models("linear", 1))
    lines: list[str] = []
    for other in ({"threads": 2, "seed": 7}, {"threads": None, "seed": 0, "log": lines.append}):
        _solved(backend, tiny, effort, **other)
    require(all(isinstance(line, str) for line in lines), f"{backend.full_name} logs a line that is not text")
    raw = answer(backend, knapsack(12), options(effort.patience, relative_gap=0.5))
    require(raw.status in (Status.OPTIMAL, Status.FEASIBLE), f"{backend.full_name}: {raw.status} with a wanted gap")
    require(raw.stop in (StopReason.FINISHED, StopReason.GAP), f"{backend.full_name}: the gap stops it by {raw.stop}")
    if raw.bound is not None and raw.objective is not None:
        require(raw.objective - raw.bound <= 0.5 * abs(raw.objective), f"{backend.full_name}: stops above the gap")


def takes_hints(backend: Backend, effort: Effort = USUAL) -> None:
    """Optimal, partial and infeasible hints keep the optimum; a hint of the wrong shape is refused."""
    tiny = next(tiny_models("linear", 1))
    assert tiny.values is not None
    partial = tiny.values.copy()
    partial[::2] = np.nan
    for hint in (tiny.values, partial, tiny.model.lower - 3):
        raw = answer(backend, tiny.model, options(effort.patience), hint)
        best = raw.objective is not None and tiny.optimum is not None and close(raw.objective, tiny.optimum)
        require(best and raw.status is Status.OPTIMAL,
                f"{backend.full_name}: {raw.status} {raw.objective} with a hint, {tiny.optimum} without")  # fmt: skip
    try:
        backend.solve(tiny.model, options(effort.patience), tiny.values[:-1])
    except ModelError:
        return
    fail(f"{backend.full_name} accepts a hint that is too short for the model")


def knapsack(size: int) -> Model:
    """Return a multi-dimensional knapsack, hard to finish from about 50 items; the empty one has cost 0."""
    rng = np.random.default_rng(size)
    weight = rng.integers(10, 100, (size // 2, size))
    model = Model(f"knapsack {size}")
    take = model.booleans("take", size)
    row, column = np.indices(weight.shape)
    model.add(Linear.rows("weight", row, column, weight.ravel(), upper=weight.sum(axis=1) // 3))
    model.minimize(take.index, -rng.integers(50, 150, size))
    return model


def deadline_keeps_the_incumbent(backend: Backend, effort: Effort = USUAL) -> None:
    """A model too large to finish ends in time, no worse than the hint."""
    for size in (60, 120, 240, 480):
        model = knapsack(size)
        hint = _packed(model)
        raw = answer_in_time(backend, model, effort.deadline, effort, hint)
        worth = model.objective.value(hint)
        require(raw.objective is not None and raw.objective <= worth,
                f"{backend.full_name}: ends with {raw.objective}, the hint had {worth}")  # fmt: skip
        if raw.status is Status.FEASIBLE:
            require(raw.stop is StopReason.DEADLINE, f"{backend.full_name}: out of time, but stopped by {raw.stop}")
            break
    else:
        raise SkipTest(f"{backend.full_name} solves the largest model within {effort.deadline} s")


def expired_deadline(backend: Backend, effort: Effort = USUAL) -> None:
    """Without time only a feasible hint is known."""
    model = knapsack(60)
    for hint, status in ((None, Status.UNKNOWN), (_packed(model), Status.FEASIBLE)):
        raw = answer_in_time(backend, model, 0.0, effort, hint)
        said = (raw.status, raw.stop, raw.objective)
        expected = (status, StopReason.DEADLINE, None if hint is None else model.objective.value(hint))
        require(said == expected, f"{backend.full_name}: {said} in no time, not {expected}")


def _packed(model: Model) -> np.ndarray:
    """Pack greedily, item by item."""
    (record,) = model.records
    assert isinstance(record, Linear)
    weight = record.value.reshape(len(record), -1)
    values, left = np.zeros(model.num_vars), record.upper.copy()
    for item in range(model.num_vars):
        if (weight[:, item] <= left).all():
            values[item] = 1
            left -= weight[:, item]
    return values


def stops_when_asked(backend: Backend, effort: Effort = USUAL) -> None:
    """A true return value of `on_incumbent` ends the search, and its incumbent is kept."""
    calls: list[tuple[float, float]] = []

    def enough(incumbent: Incumbent) -> bool:
        calls.append((time.monotonic(), incumbent.objective))
        return True

    model = knapsack(120)
    raw = answer(backend, model, options(8 * effort.deadline), None, enough)  # it ends with the first one
    require(calls, f"{backend.full_name} ends {raw.status} and reported no incumbent")
    took = time.monotonic() - calls[0][0]
    require(took <= effort.grace, f"{backend.full_name} runs for {took:.1f} s after a request to stop")
    require(raw.objective is not None and raw.objective <= calls[0][1], f"{backend.full_name} lost its incumbent")


def raises_errors_of_callbacks(backend: Backend, effort: Effort = USUAL) -> None:
    """An exception of `on_incumbent` ends the search, and `solve` raises it."""

    def broken(incumbent: Incumbent) -> bool:
        raise ZeroDivisionError(incumbent.objective)

    began = time.monotonic()
    try:
        backend.solve(knapsack(30), options(effort.patience), None, broken)
    except ZeroDivisionError:
        took = time.monotonic() - began
        require(took < effort.patience, f"{backend.full_name} runs for {took:.1f} s after an error in a callback")
        return
    fail(f"{backend.full_name} swallows the error of a callback")


def prints_nothing(backend: Backend, effort: Effort = USUAL) -> None:
    """Nothing is written to standard output or standard error, with and without a log."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    with tempfile.TemporaryFile() as output:
        try:
            for number in (1, 2):
                os.dup2(output.fileno(), number)
            for log in (None, lambda _: None):
                backend.solve(knapsack(6), options(effort.patience, log=log))
        finally:
            for number, before in zip((1, 2), kept, strict=True):
                os.dup2(before, number)
                os.close(before)
        output.seek(0)
        printed = output.read()
    require(not printed, f"{backend.full_name} prints {printed[:200]!r}")


#: All checks of a backend; each takes a backend, and optionally an :class:`Effort`.
BACKEND_CHECKS: tuple[BackendCheck, ...] = (
    says_whether_it_is_ready,
    *(_check_of_kind(kind) for kind in KINDS),
    empty_models,
    no_objective,
    infeasible,
    implied_variables,
    takes_options,
    takes_hints,
    deadline_keeps_the_incumbent,
    expired_deadline,
    stops_when_asked,
    raises_errors_of_callbacks,
    prints_nothing,
)
