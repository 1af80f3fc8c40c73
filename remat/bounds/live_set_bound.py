"""Bound on the peak of schedules with any number of computes, from tensors that must be live together."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from remat.bounds.base import Bound, bound_on_peak
from remat.bounds.live_set_game import ENDLESS, Live, LiveSetGame, Question
from remat.bounds.live_set_gates import Gates
from remat.bounds.live_set_schedule import Computes
from remat.bounds.live_set_stops import Stops
from remat.bounds.peak_bounds import structural_bound
from remat.problem import Problem
from remat.problem.scope import EVERY_SCHEDULE
from remat.runtime.deadline import Deadline, OverdueError, now
from remat.schedule import Schedule

#: Ops of the largest graph: each tensor takes a bit per tensor.
MOST_OPS = 5_000
#: Efforts of the searches, in rounds: refutations are often short, and most sets of others are vain.
EFFORTS = 20, 500, 2_500, 12_500
#: Effort for a given budget; 20 decides the same on five training graphs at 25 %, in about the same time.
DECIDING_EFFORT = 100
#: Share by which the memory rises after a search that gave up; it doubles each further time for the same op.
RISE = 0.01
#: A round ends when the memory at which it gave up is within this share of what is necessary, and of what suffices.
FINE = 1e-3
#: Largest tensors that gates leave out in turn, relative to the bound so far: late ones and early ones, see
#: :class:`.live_set_gates.Gates`. In the zoo, one tensor of an image takes at least 7 % next to a text of at most 5 %,
#: which has parts of 1 %. The last number is that of forks: the sets of sd3 take two.
GATES = (0.06, 0.06, 0), (0.005, 0.06, 4)
#: The same where ops were merged: with forks, the bound of nasnet-a-large is 77.6 % after 30 s, and 79.0 % without.
MERGED_GATES = (0.06, 0.06, 0), (0.005, 0.005, 0)
#: Shares of the time left for gates, and of that for one question about all sets.
GATES_SHARE, QUESTION_SHARE = 0.5, 0.9
#: Times relative to the first pass: of gates in one call, and of a question in each round. Refutations take at most 0.4
#: of it on ten graphs of the zoo; what gates do not refute takes up to ten times as long as the pass.
GATES_TIME, QUESTION_TIMES = 2.0, (0.5, 2.0, math.inf)
#: Seconds added to the time of the first pass, which takes next to none on small graphs.
LEAST_SECONDS = 0.05
#: Questions in succession without a refutation after which a round with limited time ends.
MOST_VAIN = 3
#: Memory of first schedules, relative to the least that suffices. They hold tensors written late, without failed
#: searches, and take up to 1.5 s on graphs of 2,000 ops; with the least memory it is 10 s, or too many computes.
ROOMS = 1.3, 1.03
#: Computes of the longest of these: that of sd3 has 59,000. Those of diffusion-unet, with 200,000, take 8 s, and its
#: schedule with the least memory has 140,000.
MOST_ROOMY = 60_000
#: Computes per op of a first schedule with the least memory, which holds tensors written late. That of ResNet-50 costs
#: 2.6 times a step, others 16.
QUICK = 4
#: Most tensors to keep that are searched for: each set has as many steps to try. The 321 of a ResNet-50 take 0.1 s.
MOST_KEPT = 400


def live_set_bound(problem: Problem, *, deadline: float | Deadline | None = None) -> Bound:
    """Return a bound on the peak of every schedule, from the tensors that must be live together.

    Let the tensors ``S`` be live together, for example the inputs of an op. One of them was written last, by op ``w``.
    At that step, ``S`` and the inputs and outputs of ``w`` were in memory; right before it, the inputs of ``w`` and the
    tensors of ``S`` that ``w`` does not write were live. So the peak is at least the least, over all such sequences of
    sets down to the empty one, of the largest memory of a step. The bound is the largest such value over all ops, and
    over the tensors to keep.

    Each contribution to an accumulation buffer counts as a tensor; those to the same buffer share its bytes. The bound
    is exact, but for limits of computes, which it ignores. See :class:`LiveSetSearch`, and
    :class:`.live_set_gates.Gates` for sets that it refutes otherwise.

    Parameters
    ----------
    deadline : float, Deadline or None
        At the deadline, the best value so far is the bound. It is at least the structural bound, which is the result
        for graphs of more than :data:`MOST_OPS` ops and for problems with a host memory.

    Returns
    -------
    Bound
        On the peak; `infeasible` if it exceeds the budget.

    Examples
    --------
    A product of two tensors: one stays live while the other is computed from a large tensor.

    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("product")
    >>> for side in "ab":
    ...     _ = b.op(f"large_{side}", size=10)
    ...     _ = b.op(f"small_{side}", inputs=[f"large_{side}"], size=3)
    >>> _ = b.op("product", inputs=["small_a", "small_b"], size=1)
    >>> problem = Problem(b.build())
    >>> structural_bound(problem).value, live_set_bound(problem).value
    (13, 16)
    """
    search = LiveSetSearch(problem)
    search.run(Deadline.of(deadline))
    return search.bound()


@dataclass
class GateBounds:
    """Gates, and the memory that they refute.

    `vain`: the least memory at which they are known to refute no set. `unanswered`: memory at which they are not known
    to. `round`: number of rounds of questions.
    """

    gates: Gates
    vain: int = ENDLESS
    unanswered: set[int] = field(default_factory=set)
    round: int = 0


class LiveSetSearch:
    """Search for the least memory in which the inputs of each op can be live, from below and from above.

    A *pass* visits the ops in the reference order, with a memory that starts at the bound. If the inputs of an op
    cannot be live within it, the bound and the memory rise to the least memory beyond. If the search gives up, the
    memory rises by :data:`RISE`, and by twice as much each further time. At the end of a pass, all inputs can be live
    within the largest memory. Further passes halve the interval between the bound and the least such memory. Where they
    give up, the next ones aim above and below. When little is left there, the next round searches longer. After the
    first pass and between rounds, gates refute memory in between. A later call of :meth:`run` continues the search.

    Parameters
    ----------
    problem : Problem
        Its budget is ignored, except for :meth:`bound`.

    Attributes
    ----------
    low, high : int
        Bytes that are necessary, and bytes that suffice for all inputs in turn; without constant bytes.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self._began = problem, time.monotonic()
        self._first = structural_bound(problem)
        self.low = (self._first.value or 0) - problem.constant_bytes
        self.high: int | None = None
        self._cause, self._round = "", 0
        self._vain: tuple[int, int] | None = None
        """Least and most memory at which the present round gave up."""
        applies = not problem.can_move and len(problem.graph.ops) <= MOST_OPS
        self.game = LiveSetGame(problem) if applies else None
        self._stops: Stops | None = None
        # Without merged ops, stops take the time of other searches: `layered(75, seed=1)` is closed only without them.
        if self.game is not None and len(self.game.order) < len(problem.graph.ops):
            self._stops = Stops(self.game)
        self._first_seconds = LEAST_SECONDS
        """Of the first pass, as if no ops were merged."""
        self._gates: list[GateBounds] = []
        self._refuted: Live = frozenset()
        """The last set that gates refuted."""
        self._too_long = self._too_long_quick = False
        """True if a schedule, or a quick one, had too many computes; those with less memory mostly have more."""

    def bound(self) -> Bound:
        """Return the bound so far."""
        value = self.low + self.problem.constant_bytes
        if value == self._first.value:
            return self._first
        return bound_on_peak(
            self.problem, value, "the live set bound", EVERY_SCHEDULE, cause=self._cause, began=self._began
        )

    @property
    def _fine(self) -> int:
        """Bytes between what suffices and what is necessary that are not worth further passes, which take long."""
        return 1 + int(FINE * (self.high or 0))

    @property
    def nearly_closed(self) -> bool:
        """True if further passes could lower the memory that suffices by little."""
        return self.high is not None and self.high - self.low <= self._fine

    def run(self, clock: Deadline) -> None:
        """Search until the interval is closed, the last round is over, or the deadline."""
        while self.advance(clock):
            pass

    def advance(self, clock: Deadline) -> bool:
        """Run one pass; return False if none is left, or the deadline has passed."""
        game = self.game
        if game is None or clock.expired:
            return False
        game.clock = clock
        memory, first, began = self._memory(game), self.high is None, now()
        if memory is not None:
            self._pass(game, memory)
        if first:
            # Gates consider each op, also merged ones.
            self._first_seconds += (now() - began) * len(self.problem.graph.ops) / len(game.order)
            self.ask_gates(clock)
        return memory is not None

    def decide(self, budget: int, clock: Deadline) -> bool | None:
        """Decide the sets that must be live in turn for one budget: True if each fits, False if one does not.

        None: not decided. :attr:`high` or :attr:`low` change accordingly.
        """
        game, memory = self.game, budget - self.problem.constant_bytes
        if game is None or memory < self.low:
            return None if game is None else False
        game.clock = clock
        for name, goal in self._goals(game):
            decided = game.decide(goal, Question(memory, DECIDING_EFFORT))
            if decided is False:
                self.low, self._cause = int(game.lower(goal)), name
            if not decided:
                return decided
        self.high = memory
        return True

    def _memory(self, game: LiveSetGame) -> int | None:
        """Return the memory with which the next pass starts; None after the last round, or if the interval is closed.

        A round gives up at some memory. It halves the larger of the intervals above and below, until both are small.
        Then gates have their turn, and the next round begins.
        """
        if self.high is None:
            return self.low
        while self.high != self.low and self._round < len(EFFORTS):
            if self._vain is None:
                return (self.low + self.high) // 2
            least, most = self._vain
            above, below = self.high - max(most, self.low), least - self.low
            if max(above, below) > self._fine:
                return self.high - (above + 1) // 2 if above >= below else self.low + below // 2
            if self._round == 0:
                self._refute(game)
            self._round, self._vain = self._round + 1, None
            self.ask_gates(game.clock)
        return None

    def _pass(self, game: LiveSetGame, memory: int) -> None:
        """Decide for the inputs of each op, and for the tensors to keep, whether they can be live within `memory`."""
        effort, goals = EFFORTS[self._round], self._goals(game)
        for name, goal in goals:
            rise = RISE
            while game.upper(goal) > memory:
                asked = Question(memory, effort)
                decided = game.decide(goal, asked)
                if decided is None and self._stops and self._round > 0:
                    decided = self._stops.decide(goal, asked)
                if game.clock.expired:
                    return
                lower = game.lower(goal)
                if lower > self.low:
                    self.low, self._cause = int(lower), name
                if decided:
                    break
                if decided is None:
                    if self.high is not None:
                        least, most = self._vain or (memory, memory)
                        self._vain = min(least, memory), max(most, memory)
                        return
                    memory, rise = max(memory + 1, int(memory * (1 + rise))), 2 * rise
                elif self.high is not None and lower > memory:
                    return
                memory = max(memory, self.low)
        self.high = max(self.low, *(int(game.upper(goal)) for _, goal in goals))

    def _goals(self, game: LiveSetGame) -> list[tuple[str, Live]]:
        """Return the sets that must be live in turn, with the names of the ops that read them."""
        names = self.problem.graph.op_names
        goals = [(names[op], game.reads[op]) for op in game.order]
        return [*goals, ("", game.kept)] if len(game.kept) <= MOST_KEPT else goals

    def _refute(self, game: LiveSetGame) -> None:
        """Ask each set for less memory than the bound: there few steps are possible, and all others may need more."""
        for name, goal in self._goals(game):
            if game.upper(goal) > self.low:
                game.decide(goal, Question(self.low - 1, EFFORTS[0]))
                if game.lower(goal) > self.low:
                    self.low, self._cause = int(game.lower(goal)), name

    def ask_gates(self, clock: Deadline) -> None:
        """Ask gates for the largest memory that they refute, once the first pass is over.

        They have a share of the time, and at most :data:`GATES_TIME`: they refute much in less, or nothing.
        Each round has more time for a question. The next one, or a later call, continues with those that took too long.
        """
        if self.high is None:
            return
        clock = clock.share(GATES_SHARE)
        if math.isfinite(clock.remaining):
            clock = clock.earlier(GATES_TIME * self._first_seconds)
        self._gates = self._gates or [
            GateBounds(Gates(self.problem, int(small * self.low), int(early * self.low), forks))
            for small, early, forks in (MERGED_GATES if self._stops else GATES)
        ]
        while pending := [bounds for bounds in self._gates if self._pending(bounds)]:
            bounds = min(pending, key=lambda each: each.round)
            times = QUESTION_TIMES[bounds.round] if math.isfinite(clock.remaining) else math.inf
            if not self._ask_round(bounds, times * self._first_seconds, clock):
                return
            bounds.round += 1

    def _pending(self, bounds: GateBounds) -> bool:
        """Return True if gates may still refute memory."""
        assert self.high is not None
        return bounds.round < len(QUESTION_TIMES) and min(self.high, bounds.vain) - self.low > self._fine

    def _ask_round(self, bounds: GateBounds, limit: float, clock: Deadline) -> bool:
        """Ask gates for memory halfway between what is necessary and what they do not refute, until little is left.

        The first question is just below what suffices: sizes are often multiples of one, so that nothing lies between.
        Questions of earlier rounds that took too long come before new ones. `limit`: seconds of a question.
        Return False if the round is not over.
        """
        assert self.high is not None
        most, vain, earlier = min(self.high, bounds.vain), 0, bounds.unanswered.copy()
        while most - self.low > self._fine and (vain < MOST_VAIN or math.isinf(limit)):
            first = bounds.round == 0 and most == self.high
            new = most - self._fine if first else (self.low + most) // 2
            memory = min((each for each in earlier if self.low < each < most), default=new)
            part = clock.share(QUESTION_SHARE)
            last = part.remaining < limit
            refuted = self._gates_refute(bounds.gates, memory, part.earlier(limit))
            if refuted:
                vain = 0
                continue
            most, vain = memory, vain + 1
            if refuted is False:
                bounds.vain = memory
            elif not last:
                bounds.unanswered.add(memory)
        return not clock.expired

    def _gates_refute(self, gates: Gates, memory: int, clock: Deadline) -> bool | None:
        """Raise the bound if gates refute a set within the memory; return whether they do, None if time ran out.

        It begins with the set that they refuted last, and with those that need the most as far as known. With forks,
        inputs of the ops of most memory come first, and of these the last: they need at least as much as those that
        they depend on.
        """
        game, high = self.game, self.high
        assert game is not None and high is not None
        goals = [(name, goal) for name, goal in self._goals(game) if game.upper(goal) > memory]
        if gates.forks:
            needs = {game.reads[op]: game.needs[op] for op in game.order}
            goals.reverse()
            goals.sort(key=lambda each: -needs.get(each[1], 0))
        else:
            goals.sort(key=lambda each: game.upper(each[1]) <= high - self._fine)
        goals.sort(key=lambda each: each[1] != self._refuted)
        gates.game.clock = clock
        try:
            for name, goal in goals:
                if gates.refute(goal, memory):
                    self.low, self._cause, self._refuted = memory + 1, name, goal
                    return True
        except OverdueError:
            return None
        return False

    def schedules(self, limit: int, clock: Deadline) -> Iterator[Schedule]:
        """Yield schedules with ever smaller peaks below `limit`: none if the search implies none that is short enough.

        That of the last one is at most :attr:`high`. Those before it have more memory and take less time, see
        :data:`ROOMS`. There is none if some op may not run again.
        """
        game, high, below = self.game, self.high, limit - self.problem.constant_bytes
        if game is None or high is None or self._too_long:
            return
        if any(most is not None for most in self.problem.compute_limits):
            return
        quick: dict[str, Any] = {"memory": high, "by_writer": True, "most": QUICK * len(self.problem.graph.ops)}
        least: dict[str, Any] = {"memory": high}
        roomy = [{"memory": int(high * room), "by_writer": True, "failures": 0, "most": MOST_ROOMY} for room in ROOMS]
        first = [] if self._too_long_quick else [quick]
        for limits in [*first, *roomy, least]:
            memory = limits["memory"]
            schedule = Computes(game, **limits).schedule(clock) if memory < below else None
            if schedule is not None:
                yield schedule
                if memory == high:
                    return
            elif limits is quick and memory < below:
                self._too_long_quick = not clock.expired
        self._too_long = high < below and not clock.expired
