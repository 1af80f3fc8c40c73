"""What all checks share: how much is tried, how a fault is named, and the laws that every answer keeps."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

from remat.backends.base import (
    DEFAULT_GAP,
    Backend,
    Incumbent,
    OnIncumbent,
    RawResult,
    SolveOptions,
    Status,
    StopReason,
    Values,
)
from remat.deadline import Deadline
from remat.errors import RematError
from remat.formulations.base import Formulation
from remat.modeling import Model, violations
from remat.problem import Problem

T = TypeVar("T")

#: A class of formulations, or any callable that gives one: ``lambda problem: MyFormulation(problem, MyOptions(3))``.
MakeFormulation = Callable[[Problem], Formulation]
#: Solvers that compute with floats are right up to this, relative to the number.
TOLERANCE = 1e-6
#: Seconds between the time of an incumbent and that of the call that reports it.
LATE = 5.0
#: Runs in each of which a backend must be late before it is called late.
TRIES = 3


@dataclass(frozen=True)
class Effort:
    """How much the checks try.

    Attributes
    ----------
    most_ops : int
        Largest graph whose optimum is found by exhaustive search.
    cases : int
        Random problems, or models, for each check.
    deadline : float
        Seconds given to models that are too large to finish.
    grace : float
        Seconds after a deadline by which the answer must be there.
    patience : float
        Seconds given to tiny models, which must be solved to the end.
    """

    most_ops: int = 5
    cases: int = 4
    deadline: float = 2.0
    grace: float = 1.0
    patience: float = 120.0


#: What is tried unless a caller says otherwise.
USUAL = Effort()


class ConformanceError(AssertionError):
    """A formulation or backend does not keep its contract; the message says where and how."""


def fail(message: str) -> NoReturn:
    """Report a fault."""
    raise ConformanceError(message)


def require(condition: object, message: str) -> None:
    """Report a fault unless `condition` holds."""
    if not condition:
        fail(message)


def close(first: float, second: float) -> bool:
    """Whether two numbers are equal as far as a solver that computes with floats can tell."""
    return abs(first - second) <= TOLERANCE * max(1.0, abs(first), abs(second))


def options(seconds: float, **other: object) -> SolveOptions:
    """One thread, the optimum itself (no gap), and a deadline whose clock begins now."""
    settings: dict[str, object] = {"threads": 1, "relative_gap": 0.0, **other}
    return SolveOptions(deadline=Deadline.after(seconds), **settings)  # type: ignore[arg-type]


def in_time(who: str, seconds: float, grace: float, attempt: Callable[[], T]) -> T:
    """Return the first answer that `attempt` gives in time.

    A busy machine is no fault of `who`: it is late if it is late in each of :data:`TRIES` runs.

    Raises
    ------
    ConformanceError
        If every answer comes later than `grace` seconds after the deadline of `seconds`.
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
    """Require that options are a frozen dataclass with defaults, or that there are none."""
    if kind is None:
        return
    require(dataclasses.is_dataclass(kind), f"{who}: options_type is no dataclass")
    try:
        defaults = kind()
    except Exception as error:
        fail(f"{who}: its options lack defaults: {error}")
    require(kind.__dataclass_params__.frozen, f"{who}: its options {defaults} can be changed")


class _Nonsense:
    """What is out of range for every option."""

    def __repr__(self) -> str:
        return "nonsense"


def check_wrong_options(part: Any) -> None:
    """Require that options of another kind are refused, and nonsense for each of its own, by name and in one line."""
    make: Any = type(part)
    for wrong in ({"moves": 3}, "fast"):
        refusal(f"{part.name} takes {wrong!r} for its options", partial(make, wrong))
    kind: Any = part.options_type
    for field in () if kind is None else dataclasses.fields(kind):
        what = f"{part.name} takes nonsense for its option {field.name!r}"
        said = refusal(what, partial(kind, **{field.name: _Nonsense()}))
        require(field.name in said, f"{what}: the message does not name it: {said}")


def refusal(what: str, call: Callable[[], object]) -> str:
    """Return the message of a call that must be refused in one line; `what` says what it does otherwise."""
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
    """What the backend says of `model`, after it was checked by the laws of every answer.

    Raises
    ------
    ConformanceError
        If values break the model or do not cost what is claimed, statuses contradict what comes with them, incumbents
        get worse or go back in time, a solution that was reported is lost, or a bound lies above a solution.
    """
    raw, told, bounds = _asked(backend, model, call, hint, on_incumbent)
    _check_answer(f"{backend.full_name} on model {model.name!r}", model, raw, told, bounds)
    if raw.stop is StopReason.FINISHED and call.relative_gap <= DEFAULT_GAP:  # at a wider gap it is stopped earlier
        every = [one.objective for one in told] == [one.objective for one in raw.incumbents]
        require(every, f"{backend.full_name} on model {model.name!r} ends with other incumbents than it reported")
    return raw


def answer_in_time(
    backend: Backend, model: Model, seconds: float, effort: Effort, hint: Values | None = None
) -> RawResult:
    """What the backend says of `model` when it has so many seconds; what these checks do afterwards does not count.

    Raises
    ------
    ConformanceError
        As :func:`answer`; and if the answer comes later than ``effort.grace`` seconds after the deadline.
    """
    raw, told, bounds = in_time(
        backend.full_name, seconds, effort.grace, lambda: _asked(backend, model, options(seconds), hint)
    )
    _check_answer(f"{backend.full_name} on model {model.name!r}", model, raw, told, bounds)
    return raw


def _asked(
    backend: Backend, model: Model, call: SolveOptions, hint: Values | None, on_incumbent: OnIncumbent | None = None
) -> tuple[RawResult, list[Incumbent], list[float]]:
    """The answer, and the incumbents and bounds that it was preceded by."""
    told: list[Incumbent] = []
    bounds: list[float] = []

    def tell(incumbent: Incumbent) -> object:
        told.append(incumbent)
        age = call.deadline.elapsed - incumbent.time
        require(abs(age) < LATE, f"{backend.full_name} gives an incumbent a time that is {age:.1f} s from now")
        return on_incumbent(incumbent) if on_incumbent else None

    return backend.solve(model, call, hint, tell, lambda _seconds, bound: bounds.append(bound)), told, bounds


def _check_answer(who: str, model: Model, raw: RawResult, told: list[Incumbent], bounds: list[float]) -> None:
    """Check the laws of every answer."""
    require(isinstance(raw, RawResult), f"{who} gives a {type(raw).__name__}, not a RawResult")
    require(raw.status is not Status.ERROR, f"{who} fails: {raw.message}")
    _statuses(who, raw)
    for incumbent in (*raw.incumbents, *told):
        _solution(who, model, incumbent.values, incumbent.objective)
    for sequence in (raw.incumbents, told):
        for before, after in itertools.pairwise(sequence):
            require(before.time <= after.time, f"{who} reports incumbents that go back in time")
            require(
                after.objective <= before.objective + _slack(before.objective),
                f"{who} reports incumbents that get worse",
            )
    if raw.values is not None and raw.objective is not None:
        _solution(who, model, raw.values, raw.objective)
    best = min((incumbent.objective for incumbent in (*raw.incumbents, *told)), default=math.inf)
    require(
        math.isinf(best) or (raw.objective is not None and raw.objective <= best + _slack(best)),
        f"{who} found a solution of {best}, and ends with {raw.objective}: an incumbent is lost",
    )
    of_incumbents = (incumbent.bound for incumbent in (*raw.incumbents, *told))
    known = [bound for bound in (*bounds, *of_incumbents, raw.bound) if bound is not None]
    require(all(math.isfinite(bound) for bound in known), f"{who} gives a bound that is not finite instead of None")
    require(
        raw.objective is None or all(bound <= raw.objective + _slack(raw.objective) for bound in known),
        f"{who} gives bound {max(known, default=None)} above its own solution of {raw.objective}",
    )
    require(raw.build_seconds >= 0 and raw.solve_seconds >= 0, f"{who} took negative time")
    proved = raw.status in (Status.OPTIMAL, Status.INFEASIBLE)
    require(raw.versions or not proved, f"{who} does not say which version of the solver it is")
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
