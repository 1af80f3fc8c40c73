"""Best schedules so far, each validated and priced from its steps."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace

import numpy as np

from remat.backends.results import Values
from remat.errors import BackendError, RematError
from remat.formulations.base import Formulation
from remat.modeling import Model
from remat.modeling.model import Kind
from remat.problem import Problem
from remat.schedule import Schedule
from remat.schedule.certificate import Certificate, Verdict
from remat.schedule.validate import validate

#: Relative tolerance at which floating-point solvers meet integrality and bounds.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Certified:
    """A validated schedule."""

    schedule: Schedule
    certificate: Certificate
    """Valid, or over budget and otherwise valid."""
    source: str
    """Origin of the schedule."""

    @property
    def by_peak(self) -> tuple[int, int]:
        """Sort key: peak, then cost."""
        return self.certificate.peak, self.certificate.cost

    @property
    def fits(self) -> bool:
        """Return True if it is within the budget."""
        return self.certificate.accepted


@dataclass(frozen=True)
class SufficientBudget:
    """A budget that is known to suffice: the peak of a schedule."""

    found: Certified
    whole: int
    """Reference peak, in bytes."""
    prices: tuple[float, ...] = ()
    """Extra cost, in %, of the cheapest schedules known at that budget and at the next ten percent of the reference
    peak, as far as computed."""

    @property
    def share(self) -> float:
        """Budget in % of the reference peak, rounded up to two digits."""
        return -(-10_000 * self.found.certificate.peak // self.whole) / 100

    @property
    def next_ten(self) -> int:
        """Next multiple of ten percent above the budget."""
        return 10 * (int(self.share) // 10 + 1)

    def __str__(self) -> str:
        text = f"{self.found.certificate.peak:,} bytes"
        if not self.whole:
            return f"{text} are known to suffice"
        prices = [f"{price:.3g} %" for price in self.prices]
        prices = [f" at +{price} cost" for price in prices[:1]] + [f", {self.next_ten} % at +{p}" for p in prices[1:]]
        return f"{text} ({self.share:.12g} %) are known to suffice{''.join(prices)}"


class Incumbents:
    """Validates schedules for one problem; stores the best one within the budget and the one with the least peak.

    The best is the cheapest, or the one with the least peak, by the problem's objective; the other value breaks ties.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.best: Certified | None = None
        self.least_peak: Certified | None = None
        self._lock = threading.Lock()

    def add(self, schedule: Schedule, source: str) -> Certified:
        """Validate and store `schedule`.

        Raise BackendError if any rule but the budget is broken; the message names `source` and the violation.
        """
        schedule = self.problem.of_plain(schedule)
        if schedule.has_transfers and self.problem.machine is None:
            raise BackendError(f"{source} moves tensors to a host, but the problem has no machine", "no-machine")
        certificate = self._known(schedule) or validate(self.problem.graph, schedule, self.problem.rules)
        if certificate.verdict is Verdict.INVALID:
            raise BackendError(f"{source} gives a schedule that is not valid: {certificate.first}", "invalid-schedule")
        seen = Certified(schedule, certificate, source)
        rank = self.problem.objective.rank
        with self._lock:
            if seen.fits and (self.best is None or rank(certificate) < rank(self.best.certificate)):
                self.best = seen
            if self.least_peak is None or seen.by_peak < self.least_peak.by_peak:
                self.least_peak = seen
        return seen

    def _known(self, schedule: Schedule) -> Certificate | None:
        """Return the certificate of a stored schedule with the same steps: searches often return those again."""
        for one in (self.best, self.least_peak):
            if one is not None and _are_same(one.schedule, schedule):
                return one.certificate
        return None


def _are_same(one: Schedule, other: Schedule) -> bool:
    """Return True if two schedules have the same graph, steps and name tables."""
    return one is other or (
        one.graph_digest == other.graph_digest
        and np.array_equal(one.kinds, other.kinds)
        and np.array_equal(one.targets, other.targets)
        and (one.op_names, one.tensor_names) == (other.op_names, other.tensor_names)
    )


class Reader:
    """Decodes a backend's values into schedules, and checks its claims against them.

    `model`: the main model; values of the preliminary model begin with its variables. `source`: names formulation and
    backend in errors.
    """

    def __init__(self, incumbents: Incumbents, formulation: Formulation, model: Model, source: str) -> None:
        self._incumbents = incumbents
        self._formulation = formulation
        self._model = model
        self._integral = np.isin(model.kind, (Kind.INTEGER.value, Kind.BOOLEAN.value))
        # Integer variables give exact sums; with others the solver's tolerance remains.
        self._exact = bool(self._integral[model.objective.index].all())
        self._source = source
        self.notes: set[str] = set()

    def preliminary(self, values: Values) -> Certified:
        """Return the schedule for values of the preliminary model; it may be over budget."""
        return self._incumbents.add(self._decode(values[: self._model.num_vars]), self._source)

    def main(self, values: Values, claimed: float) -> Certified:
        """Return the schedule for values of the main model, whose objective is its cost or its peak.

        Raise BackendError if it breaks a rule (including the budget), costs more than claimed, or the values contradict
        the claim.
        """
        if not math.isfinite(claimed) or not np.isfinite(values).all():
            raise BackendError(f"{self._source} gives a cost or values that are not finite", "not-finite")
        schedule = self._decode(values)
        seen = self._incumbents.add(schedule, self._source)
        objective = self._incumbents.problem.objective
        value, word = objective.value(seen.certificate), objective.word
        if not seen.fits and not objective.is_memory:
            raise BackendError(f"{self._source} gives a schedule over budget: {seen.certificate.first}", "over-budget")
        worth = self._model.objective.value(np.where(self._integral, np.rint(values), values))
        if abs(claimed - worth) > TOLERANCE * max(1.0, abs(worth)):
            raise BackendError(
                f"{self._source} claims {word} {_number(claimed)}, but its values {word} {_number(worth)} "
                f"and the schedule {word}s {value:,}",
                "wrong-cost",
            )
        slack = max(0.5, 1e-12 * value) if self._exact else TOLERANCE * max(1.0, value)
        if value > worth + slack and not self._formulation.relaxes:
            raise BackendError(
                f"{self._source} claims {word} {_number(claimed)}, the schedule {word}s {value:,}", "wrong-cost"
            )
        if value < worth - slack and not objective.is_memory:  # decode() dropped useless computes
            self.notes.add("decoding dropped useless computes from the solver's schedule")
        return seen

    def _decode(self, values: Values) -> Schedule:
        try:
            found = self._formulation.decode(values)
            given, wanted = self._formulation.problem.graph, self._incumbents.problem.graph
            if given is not wanted and found.graph_digest == given.digest:  # they differ only in outputs in place
                found = replace(found, graph_digest=wanted.digest)
            return replace(found, source=self._source)
        except (RematError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise BackendError(
                f"{self._source} gives values that are no schedule: {one_line(error)}", "no-schedule"
            ) from error


def one_line(error: BaseException) -> str:
    """Return the message of `error` in one line, with its type unless it is a RematError."""
    if isinstance(error, MemoryError):
        return "it ran out of memory"
    text = " ".join(str(error).split())
    return text if isinstance(error, RematError) else f"{type(error).__name__}: {text}".rstrip(": ")


def lower_bound(bound: float | None) -> int | None:
    """Return a solver's lower bound on integer costs, rounded up after subtracting its numerical error.

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
