"""Parts shared by all checks: effort, failures, and the invariants of every answer."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

from remat.backends.base import Backend
from remat.backends.results import Incumbent, OnIncumbent, RawResult, Values
from remat.errors import RematError
from remat.formulations.base import Formulation
from remat.modeling import Model, violations
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import DEFAULT_GAP, SolveOptions, Status, StopReason

T = TypeVar("T")

#: A class of formulations, or any callable that returns one: ``lambda problem: MyFormulation(problem, MyOptions(3))``.
MakeFormulation = Callable[[Problem], Formulation]
#: Relative accuracy of solvers that compute with floats.
TOLERANCE = 1e-6
#: Largest difference between an incumbent's time and the time of its report, in seconds.
LATE = 5.0
#: Runs that must all be late before a backend counts as late.
TRIES = 3


@dataclass(frozen=True)
class Effort:
    """Extent of the checks."""

    most_ops: int = 5
    """Largest graph whose optimum is found by exhaustive search."""
    cases: int = 4
    """Random problems, or models, for each check."""
    deadline: float = 2.0
    """Seconds for models that are too large to finish."""
    grace: float = 1.0
    """Seconds after a deadline until which an answer is in time."""
    patience: float = 120.0
    """Seconds for tiny models, which must be solved to optimality."""


#: Default effort.
USUAL = Effort()


class ConformanceError(AssertionError):
    """A part breaks its contract; the message says where and how."""


def fail(message: str) -> NoReturn:
    """Report a fault."""
    raise ConformanceError(message)


def require(condition: object, message: str) -> None:
    """Report a fault unless `condition` holds."""
    if not condition:
        fail(message)


def close(first: float, second: float) -> bool:
    """Return True if two numbers are equal within the accuracy of solvers that compute with floats."""
    return abs(first - second) <= TOLERANCE * max(1.0, abs(first), abs(second))


def options(seconds: float, **other: object) -> SolveOptions:
    """Return options with one thread, no gap, and a deadline that starts now."""
    settings: dict[str, object] = {"threads": 1, "relative_gap": 0.0, **other}
    return SolveOptions(deadline=Deadline.after(seconds), **settings)  # type: ignore[arg-type]


def in_time(who: str, seconds: float, grace: float, attempt: Callable[[], T]) -> T:
    """Return the first answer of `attempt` that is in time.

    A busy machine is not a fault: `who` is late only if each of :data:`TRIES` runs is late.

    Raise ConformanceError if every answer is later than `grace` seconds after the deadline of `seconds`.
    """
    late = []
    for _ in range(TRIES):
        began = time.monotonic()
        found = attempt()
        late.append(time.monotonic() - began - seconds)
        if late[-1] <= grace:
            return found
    fail(f"{who}: {min(late):.1f} s late for a deadline of {seconds:g} s, or more, in {TRIES} runs")


def check_options_type(who: str, kind: Any) -> None:
    """Require options in a frozen dataclass with defaults, or None."""
    if kind is None:
        return
    require(dataclasses.is_dataclass(kind), f"{who}: options_type is no dataclass")
    try:
        defaults = kind()
    except Exception as error:
        fail(f"{who}: its options lack defaults: {error}")
    require(kind.__dataclass_params__.frozen, f"{who}: its options {defaults} can be changed")


class _Nonsense:
    """Invalid value for every option."""

    def __repr__(self) -> str:
        return "nonsense"


def check_wrong_options(part: Any) -> None:
    """Require that options of the wrong type and invalid values are refused in one line that names the option."""
    make: Any = type(part)
    for wrong in ({"moves": 3}, "fast"):
        refusal(f"{part.name} accepts {wrong!r} as options", partial(make, wrong))
    kind: Any = part.options_type
    for field in () if kind is None else dataclasses.fields(kind):
        what = f"{part.name} accepts nonsense for its option {field.name!r}"
        said = refusal(what, partial(kind, **{field.name: _Nonsense()}))
        require(field.name in said, f"{what}: the message does not name it: {said}")


def refusal(what: str, call: Callable[[], object]) -> str:
    """Return the message of a call that must be refused in one line; `what` describes the fault otherwise."""
    try:
        call()
    except RematError as error:
        require("\n" not in str(error), f"{what}: the message has several lines")
        return str(error)
    except Exception as error:
        fail(f"{what}, or fails on it: {type(error).__name__}: {error}")
    fail(what)


def answer(
    backend: Backend,
    model: Model,
    call: SolveOptions,
    hint: Values | None = None,
    on_incumbent: OnIncumbent | None = None,
) -> RawResult:
    """Solve `model` and return the answer after checking its invariants.

    Raises
    ------
    ConformanceError
        If values break the model or do not have the claimed objective, statuses contradict the rest of the answer,
        incumbents get worse or go back in time, a reported solution is lost, or a bound is above a solution.
    """
    raw, reported, bounds = _solve(backend, model, call, hint, on_incumbent)
    _check_answer(f"{backend.full_name} on model {model.name!r}", model, raw, reported, bounds)
    if raw.stop is StopReason.FINISHED and call.relative_gap <= DEFAULT_GAP:  # wider gaps stop it earlier
        every = [one.objective for one in reported] == [one.objective for one in raw.incumbents]
        require(every, f"{backend.full_name} on model {model.name!r} ends with other incumbents than it reported")
    return raw


def answer_in_time(
    backend: Backend, model: Model, seconds: float, effort: Effort, hint: Values | None = None
) -> RawResult:
    """Solve `model` within `seconds` seconds, not counting these checks; return the answer.

    Raise ConformanceError as :func:`answer`; also if the answer is later than ``effort.grace`` seconds after the
    deadline.
    """
    raw, reported, bounds = in_time(
        backend.full_name, seconds, effort.grace, lambda: _solve(backend, model, options(seconds), hint)
    )
    _check_answer(f"{backend.full_name} on model {model.name!r}", model, raw, reported, bounds)
    return raw


def _solve(
    backend: Backend, model: Model, call: SolveOptions, hint: Values | None, on_incumbent: OnIncumbent | None = None
) -> tuple[RawResult, list[Incumbent], list[float]]:
    """Return the answer, and the incumbents and bounds reported before it."""
    reported: list[Incumbent] = []
    bounds: list[float] = []

    def report(incumbent: Incumbent) -> object:
        reported.append(incumbent)
        age = call.deadline.elapsed - incumbent.time
        require(abs(age) < LATE, f"{backend.full_name} gives an incumbent a time that is {age:.1f} s from now")
        return on_incumbent(incumbent) if on_incumbent else None

    return backend.solve(model, call, hint, report, lambda _seconds, bound: bounds.append(bound)), reported, bounds


def _check_answer(who: str, model: Model, raw: RawResult, reported: list[Incumbent], bounds: list[float]) -> None:
    """Check the invariants of every answer."""
    require(isinstance(raw, RawResult), f"{who} gives a {type(raw).__name__}, not a RawResult")
    require(raw.status is not Status.ERROR, f"{who} fails: {raw.message}")
    _statuses(who, raw)
    for incumbent in (*raw.incumbents, *reported):
        _solution(who, model, incumbent.values, incumbent.objective)
    for sequence in (raw.incumbents, reported):
        for before, after in itertools.pairwise(sequence):
            require(before.time <= after.time, f"{who} reports incumbents that go back in time")
            require(
                after.objective <= before.objective + _slack(before.objective),
                f"{who} reports incumbents that get worse",
            )
    if raw.values is not None and raw.objective is not None:
        _solution(who, model, raw.values, raw.objective)
    best = min((incumbent.objective for incumbent in (*raw.incumbents, *reported)), default=math.inf)
    require(
        math.isinf(best) or (raw.objective is not None and raw.objective <= best + _slack(best)),
        f"{who} found a solution of {best}, and ends with {raw.objective}: an incumbent is lost",
    )
    of_incumbents = (incumbent.bound for incumbent in (*raw.incumbents, *reported))
    known = [bound for bound in (*bounds, *of_incumbents, raw.bound) if bound is not None]
    require(all(math.isfinite(bound) for bound in known), f"{who} gives a bound that is not finite instead of None")
    require(
        raw.objective is None or all(bound <= raw.objective + _slack(raw.objective) for bound in known),
        f"{who} gives bound {max(known, default=None)} above its own solution of {raw.objective}",
    )
    require(raw.build_seconds >= 0 and raw.solve_seconds >= 0, f"{who} took negative time")
    proved = raw.status in (Status.OPTIMAL, Status.INFEASIBLE)
    require(raw.versions or not proved, f"{who} does not report the solver's version")
    if raw.status is Status.OPTIMAL and raw.objective is not None:
        proof = raw.bound is not None and close(raw.bound, raw.objective)
        require(proof or raw.stop is StopReason.GAP, f"{who}: optimum {raw.objective} with bound {raw.bound}")


def _slack(number: float) -> float:
    return TOLERANCE * max(1.0, abs(number))


def _statuses(who: str, raw: RawResult) -> None:
    solved = raw.status in (Status.OPTIMAL, Status.FEASIBLE)
    has = (raw.values is not None, raw.objective is not None)
    require(has == (solved, solved), f"{who} has status {raw.status} and {'some' if any(has) else 'no'} solution")
    require(raw.status is not Status.INFEASIBLE or raw.bound is None, f"{who} has a bound where nothing is feasible")


def _solution(who: str, model: Model, values: Values, objective: float) -> None:
    wrong = violations(model, values)
    require(not wrong, f"{who} gives values that break the model: {'; '.join(wrong[:1])}")
    worth = model.objective.value(values)
    require(close(worth, objective), f"{who} claims objective {objective} for values that cost {worth}")
