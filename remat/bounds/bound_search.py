"""Searches for a bound in the reference order that raise it step by step."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from remat.bounds.base import Bound, Measure, lacks_memory
from remat.modeling import Model
from remat.problem import Problem
from remat.problem.scope import scope_within_limits
from remat.runtime.deadline import Deadline, OverdueError
from remat.schedule import OrderRule

#: Seconds for each integer programme without a deadline.
PATIENCE = 20.0
#: Largest number of ops times events for an integer programme.
MOST_WORK = 15_000


@dataclass(eq=False)
class BoundSearch(ABC):
    """Search for a bound on the objective in the reference order, with the best one so far.

    Parameters
    ----------
    problem : Problem
    enough : int or None
        Objective of a known schedule, at which the search stops.
    clock : Deadline
    threads, memory_limit : int or None

    Attributes
    ----------
    best : Bound
    """

    kind: ClassVar[str]
    measure: ClassVar[Measure]

    problem: Problem
    enough: int | None
    clock: Deadline
    threads: int | None
    memory_limit: int | None
    best: Bound = field(init=False)
    began: float = field(init=False, default_factory=time.monotonic)

    def __post_init__(self) -> None:
        base = self.problem.graph.base_cost
        scope = scope_within_limits(self.problem, OrderRule.FIXED)
        self.best = Bound(base, self.kind, scope, base, measure=self.measure)

    @abstractmethod
    def go(self, integer: bool) -> Iterator[Bound]:
        """Yield better bounds, of integer programmes only if `integer`; raise `OverdueError` when time is up."""

    @property
    def done(self) -> bool:
        """True when no time is left, or the bound cannot or need not be improved."""
        value = self.best.value
        return self.clock.expired or value is None or (self.enough is not None and value >= self.enough)

    def check_memory(self, model: Model) -> None:
        """Note on the bound why a model does not fit into memory, and raise `OverdueError`, if it does not."""
        if why := lacks_memory(model, self.memory_limit):
            self.best = replace(self.best, note=why)
            raise OverdueError

    def raised(self, value: int, versions: object) -> Iterator[Bound]:
        """Yield the bound with this value if it is better; at most :attr:`enough` where that is known."""
        if self.enough is not None:
            value = min(value, max(self.enough, self.best.base_cost))
        if self.best.value is not None and value > self.best.value:
            yield self._found(value=value, versions=versions)

    def infeasible(self, versions: object) -> Bound:
        """Return the bound that no schedule exists."""
        return self._found(value=None, infeasible=True, versions=versions)

    def _found(self, **changes: object) -> Bound:
        self.best = replace(self.best, seconds=time.monotonic() - self.began, **changes)  # type: ignore[arg-type]
        return self.best
