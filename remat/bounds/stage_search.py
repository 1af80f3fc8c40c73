"""Search for the stage bound in one memory, by programmes with more and more events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from remat.bounds.base import Bound, Measure
from remat.bounds.bound_search import MOST_WORK, PATIENCE, BoundSearch
from remat.bounds.stage_programmes import StageProgrammes
from remat.runtime.solve_options import SolveOptions

#: Share of the time left for each programme.
SHARE = 0.6
#: Consecutive programmes without improvement before the search stops.
TRIALS = 4


@dataclass(eq=False)
class StageSearch(BoundSearch):
    """Search for the stage bound.

    Parameters
    ----------
    programmes : StageProgrammes, optional
        Programmes of the problem to resume.
    """

    kind = "the stage bound"
    measure = Measure.COST

    programmes: StageProgrammes | None = None

    def go(self, integer: bool) -> Iterator[Bound]:
        known, failed, num_ops = self.programmes, 0, len(self.problem.graph.ops)
        programmes = known if known is not None and known.problem is self.problem else StageProgrammes(self.problem)
        cut = programmes.cut(self.clock)
        yield from self._take(programmes, {})
        if cut and not programmes.widen(cut[0]):
            return
        while programmes.events and not self.done and failed < TRIALS:
            seconds = min(SHARE * self.clock.remaining, PATIENCE) if integer else self.clock.remaining
            if integer and not programmes.worth(seconds):
                return
            call = SolveOptions(self.clock.earlier(seconds), self.threads)
            model = programmes.build(self.clock, self.enough)
            self.check_memory(model)
            before = self.best
            found = programmes.relax(model, call)
            yield from self._take(programmes, found.linear.versions)
            values, decided = found.linear.values, False
            if integer and not self.done and len(programmes.events) * num_ops <= MOST_WORK:
                values, decided = programmes.solve(found, call)
                yield from self._take(programmes, found.linear.versions)
                values = found.linear.values if values is None and not decided else values
            failed = failed + 1 if self.best is before else 0
            if values is None or not programmes.widen(programmes.schedules(values)[0]):
                return

    def _take(self, programmes: StageProgrammes, versions: object) -> Iterator[Bound]:
        """Yield what the programmes have proved, if it is better."""
        if programmes.infeasible:
            yield self.infeasible(versions)
        else:
            yield from self.raised(programmes.value, versions)
