"""Search for the stage bound in one memory, by programmes with more and more events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from remat.backends.highs import Highs
from remat.bounds.base import Bound, lacks_memory
from remat.bounds.stage_programmes import StageProgrammes
from remat.problem import Problem
from remat.problem.scope import scope_within_limits
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions
from remat.schedule import OrderRule

#: Share of the time left for each programme, and seconds without a deadline.
SHARE, PATIENCE = 0.6, 20.0
#: Consecutive programmes without improvement before the search stops.
TRIALS = 4
#: Largest number of ops times events for an integer programme.
MOST_WORK = 15_000


@dataclass(eq=False)
class ProgrammeSearch:
    """Search for the stage bound by programmes with more and more events, with the best bound so far.

    Parameters
    ----------
    enough : int or None
        Cost of a known schedule, at which the search stops.
    """

    problem: Problem
    enough: int | None
    clock: Deadline
    threads: int | None
    memory_limit: int | None
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        base = self.problem.graph.base_cost
        self.best = Bound(base, "the stage bound", scope_within_limits(self.problem, OrderRule.FIXED), base)

    def go(self, programmes: StageProgrammes, integer: bool) -> Iterator[Bound]:
        """Yield better bounds of programmes with more and more events."""
        failed, num_ops = 0, len(self.problem.graph.ops)
        yield from self._better(programmes, {})
        while programmes.events and not self._done and failed < TRIALS:
            seconds = min(SHARE * self.clock.remaining, PATIENCE) if integer else self.clock.remaining
            if integer and not programmes.worth(seconds):
                return
            call = SolveOptions(self.clock.earlier(seconds), self.threads)
            model = programmes.build(self.clock)
            if why := lacks_memory(model, self.memory_limit):
                self.best = replace(self.best, note=why)
                return
            before = self.best
            found = programmes.relax(model, call, self.enough)
            yield from self._better(programmes, found.linear.versions)
            values, decided = found.linear.values, False
            if integer and not self._done and len(programmes.events) * num_ops <= MOST_WORK:
                values, decided = programmes.solve(Highs(), found, call, self.enough)
                yield from self._better(programmes, found.linear.versions)
                values = found.linear.values if values is None and not decided else values
            failed = failed + 1 if self.best is before else 0
            if values is None or not programmes.widen(programmes.schedules(values)[0]):
                return

    @property
    def _done(self) -> bool:
        """True when no time is left, or the bound cannot or need not be improved."""
        value = self.best.value
        return self.clock.expired or value is None or (self.enough is not None and value >= self.enough)

    def _better(self, programmes: StageProgrammes, versions: Mapping[str, str]) -> Iterator[Bound]:
        value = programmes.value
        if programmes.infeasible:
            yield self._found(value=None, infeasible=True, versions=versions)
            return
        if self.enough is not None:
            value = min(value, max(self.enough, self.best.base_cost))
        if self.best.value is not None and value > self.best.value:
            yield self._found(value=value, versions=versions)

    def _found(self, **changes: object) -> Bound:
        self.best = replace(self.best, seconds=time.monotonic() - self.began, **changes)  # type: ignore[arg-type]
        return self.best
