"""Nobody is believed: every schedule is validated and priced anew before it counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from remat.backends.base import Values
from remat.errors import BackendError, RematError
from remat.formulations.base import Formulation, Scope
from remat.modeling import Model
from remat.modeling.model import Kind
from remat.problem import Problem
from remat.schedule import OrderRule, Schedule
from remat.schedule.certificate import Certificate, Verdict
from remat.schedule.validate import validate

#: Solvers that compute with floats meet integrality and bounds up to about this much, relative to what they sum.
TOLERANCE = 1e-6
#: What holds for every schedule of the graph, whatever the rules.
EVERY_SCHEDULE = Scope(OrderRule.FREE, staged=False)
#: The note of claims that hold within the problem's own limits of computes, where these differ from op to op.
OWN_LIMITS = "limits of computes by op"


@dataclass(frozen=True)
class Seen:
    """A schedule that has been validated.

    Attributes
    ----------
    schedule : Schedule
    certificate : Certificate
        Valid, or over budget and otherwise valid.
    source : str
        Who made it.
    """

    schedule: Schedule
    certificate: Certificate
    source: str

    @property
    def fits(self) -> bool:
        """Whether it keeps the budget too."""
        return self.certificate.accepted


class Judge:
    """Validates schedules for one problem, and keeps the cheapest that fits and the one with the least peak."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.best: Seen | None = None
        self.leanest: Seen | None = None

    def see(self, schedule: Schedule, source: str) -> Seen:
        """Validate `schedule` and remember it.

        Raises
        ------
        BackendError
            If any rule but the budget is broken; the message names `source` and the violation.
        """
        certificate = validate(self.problem.graph, schedule, self.problem.rules)
        if certificate.verdict is Verdict.INVALID:
            raise BackendError(f"{source} gives a schedule that is not valid: {certificate.first}")
        seen = Seen(schedule, certificate, source)
        if seen.fits and (self.best is None or _rank(seen) < _rank(self.best)):
            self.best = seen
        if self.leanest is None or certificate.peak < self.leanest.certificate.peak:
            self.leanest = seen
        return seen


def _rank(seen: Seen) -> tuple[int, int]:
    return seen.certificate.cost, seen.certificate.peak


class Reader:
    """Reads a backend's values as schedules, and compares what was claimed with what came.

    Parameters
    ----------
    judge : Judge
    formulation : Formulation
    model : Model
        The main model; values of the preliminary model begin with its variables.
    source : str
        Names formulation and backend in errors.
    """

    def __init__(self, judge: Judge, formulation: Formulation, model: Model, source: str) -> None:
        self._judge = judge
        self._formulation = formulation
        self._model = model
        self._integral = np.isin(model.kind, (Kind.INTEGER.value, Kind.BOOLEAN.value))
        # Whole costs of whole variables add up without error; with others the solver's tolerance stays in the sum.
        self._exact = bool(self._integral[model.objective.index].all())
        self._source = source
        self.notes: set[str] = set()

    def preliminary(self, values: Values) -> Seen:
        """The schedule that values of the preliminary model stand for; it may be over budget."""
        return self._judge.see(self._decode(values[: self._model.num_vars]), self._source)

    def main(self, values: Values, claimed: float) -> Seen:
        """The schedule that values of the main model stand for.

        Raises
        ------
        BackendError
            If it breaks a rule (the budget included), or costs more than was claimed, or the values do not cost what
            was claimed.
        """
        if not math.isfinite(claimed) or not np.isfinite(values).all():
            raise BackendError(f"{self._source} gives a cost or values that are not finite")
        schedule = self._decode(values)
        seen = self._judge.see(schedule, self._source)
        if not seen.fits:
            raise BackendError(f"{self._source} gives a schedule over budget: {seen.certificate.first}")
        cost = seen.certificate.cost
        worth = self._model.objective.value(np.where(self._integral, np.rint(values), values))
        if abs(claimed - worth) > TOLERANCE * max(1.0, abs(worth)):
            raise BackendError(
                f"{self._source} claims cost {_number(claimed)}, but its values cost {_number(worth)} "
                f"and the schedule costs {cost:,}"
            )
        slack = max(0.5, 1e-12 * cost) if self._exact else TOLERANCE * max(1.0, cost)
        if cost > worth + slack:
            raise BackendError(f"{self._source} claims cost {_number(claimed)}, the schedule costs {cost:,}")
        if cost < worth - slack:  # decode() dropped computes that nothing needs
            self.notes.add("decoding dropped useless computes from the solver's schedule")
        return seen

    def _decode(self, values: Values) -> Schedule:
        try:
            return replace(self._formulation.decode(values), source=self._source)
        except (RematError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise BackendError(f"{self._source} gives values that are no schedule: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """The message of `error` in one line, with its type unless it is one of ours."""
    text = " ".join(str(error).split())
    return text if isinstance(error, RematError) else f"{type(error).__name__}: {text}".rstrip(": ")


def lower_bound(bound: float | None) -> int | None:
    """A solver's lower bound on whole costs, rounded up, after what its arithmetic may be off by.

    Examples
    --------
    >>> lower_bound(10.2), lower_bound(10.0000001), lower_bound(None), lower_bound(float("-inf"))
    (11, 10, None, None)
    """
    if bound is None or not math.isfinite(bound):
        return None
    return math.ceil(bound - max(1e-6, 1e-9 * abs(bound)))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,}"


def own_scope(problem: Problem) -> Scope:
    """The scope of what speaks of all schedules within the rules of `problem`, and of no others.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> str(own_scope(Problem(unit_chain(2), max_computes=2)))
    'fixed order, ≤ 2 computes per op'
    """
    limit = problem.max_computes
    notes = () if limit is None or isinstance(limit, int) else (OWN_LIMITS,)
    return Scope(OrderRule(problem.order), False, limit if isinstance(limit, int) else None, notes)


def covers(scope: Scope, problem: Problem) -> bool:
    """Whether every schedule within the rules of `problem` is in `scope`, which is that of a claim about `problem`."""
    limited = scope.max_computes is not None and any(
        limit is None or limit > scope.max_computes for limit in problem.compute_limits
    )
    narrower = scope.order is OrderRule.FIXED and problem.order is OrderRule.FREE
    return not (scope.staged or set(scope.notes) - {OWN_LIMITS} or limited or narrower)


def structural_peak(problem: Problem) -> tuple[int, str]:
    """Bytes below which no schedule exists, and what needs them."""
    arrays, bound = problem.graph.arrays, problem.graph.structural_bound
    at_end = int(arrays.size[problem.kept | arrays.is_input].sum()) + problem.constant_bytes
    if bound.op is None or at_end > problem.structural_peak:
        return max(at_end, problem.structural_peak), "the tensors alive at the end need"
    return problem.structural_peak, f"op {bound.op!r} needs"
