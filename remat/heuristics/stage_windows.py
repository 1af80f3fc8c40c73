"""Search around a schedule by stage programmes with many events, in which only a window of tensors may change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from remat.bounds.base import lacks_memory
from remat.bounds.stage_programmes import StageProgrammes, stage_memory
from remat.bounds.stage_relaxation import prominent_peaks
from remat.problem.op_sequence import order_of
from remat.runtime.arrays import Bool
from remat.runtime.solve_options import SolveOptions
from remat.schedule import Schedule

#: Most events at peaks of the schedule, and most at peaks of schedules that followed from solutions.
PEAKS, LATER = 8, 8
#: Part of the budget above which a peak of memory becomes an event.
HIGH = 0.5
#: Part of the ops before the first event in each of the first windows, and in those of the first pairs; factor of it
#: after a round without a better schedule.
PART, PAIR, WIDER = 0.1, 0.2, 1.25
#: Consecutive windows without a better schedule that end a round.
ROUND = 20
#: Most seconds for a programme.
SECONDS = 5.0


class StageWindows:
    """Windows of ops whose outputs may be held or not, one after another, around the best schedule so far.

    A programme with an event for each block of a model is too large for a solver. But next to a good schedule most
    tensors can stay as they are. A window is an interval of the reference order before the first event. The events of a
    programme are the most prominent peaks of the best schedule, and steps at which earlier solutions exceeded the
    budget. A tensor computed outside the window is live at an event exactly if the schedule holds it there. Gradients
    and accumulation buffers may change as well.

    Neighbouring windows overlap by half. After them, pairs of windows at random places follow: what one part of a model
    keeps in addition, another one may give up.

    Parameters
    ----------
    programmes : StageProgrammes
        With one memory, and its first programme solved.
    variables : int
        Largest number of variables of a programme before tensors are fixed.
    seed : int
    """

    def __init__(self, programmes: StageProgrammes, variables: int, seed: int) -> None:
        self._programmes, self._variables = programmes, variables
        arrays = programmes.problem.graph.arrays
        self._first = arrays.producers.lowest(arrays.position, len(arrays.cost))
        self._always = (self._first > programmes.first) | (arrays.producers.counts != 1)
        self._later: list[int] = []
        self._masks = self._rounds(np.random.default_rng(seed))
        self._left = 0
        self.tired = False
        """True after a round without a better schedule."""

    @staticmethod
    def applies(programmes: StageProgrammes, schedule: Schedule) -> bool:
        """Return True if programmes are those of a schedule: one memory, and the reference order of first computes."""
        problem, order = programmes.problem, programmes.problem.graph.arrays.order
        known = programmes.solved and programmes.first >= 0 and programmes.link is None
        return known and np.array_equal(order_of(problem, schedule), order)

    def schedules(self, schedule: Schedule, cost: int, call: SolveOptions) -> list[Schedule]:
        """Return schedules that follow from a solution for the next window, which costs less than a schedule."""
        programmes = self._programmes.with_events([*self._peaks(schedule), *self._later])
        model = programmes.build(call.deadline, cost)
        if model.num_vars > self._variables or lacks_memory(model, call.memory_bytes):
            self.tired = True
            return []
        limited = replace(call, deadline=call.deadline.earlier(SECONDS))
        found = programmes.around(model, schedule, next(self._masks) | self._always, limited)
        if found and programmes.problem.simulate(found[0]).peak > programmes.budget:
            before = set(programmes.events)
            programmes.widen(found[0])
            self._later = [*self._later, *(programmes.events - before)][-LATER:]
        return found

    def learn(self, *, better: bool) -> None:
        """Record whether the last window led to a better schedule."""
        self._left = ROUND if better else self._left - 1
        self.tired |= self._left <= 0

    def _rounds(self, rng: np.random.Generator) -> Iterator[Bool]:
        """Yield masks of tensors: windows from the first event back, then pairs of them, wider after each round."""
        last, part = self._programmes.first, PAIR
        self._left = ROUND
        for middle in np.arange(1.0, 0.0, -PART / 2) * last:
            yield self._inside(middle, PART)
        while True:
            self._left = ROUND
            while self._left > 0:
                one, other = rng.uniform(0, last, 2)
                yield self._inside(one, part) | self._inside(other, part)
            part = min(1.0, WIDER * part)

    def _inside(self, middle: float, part: float) -> Bool:
        return np.abs(self._first - middle) <= part / 2 * self._programmes.first

    def _peaks(self, schedule: Schedule) -> list[int]:
        memory = stage_memory(self._programmes.problem, schedule)[:-1]
        return prominent_peaks(memory, int(HIGH * self._programmes.budget))[:PEAKS]
