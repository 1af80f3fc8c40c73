"""Search for schedules of least time with a host: recompute, keep or move."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from remat.bounds.link_room import LinkRoom
from remat.bounds.stage_programmes import CUT_OPS
from remat.bounds.transfer_search import TransferSearch
from remat.heuristics.base import Best, Heuristic, HeuristicRun
from remat.heuristics.drops import Drops
from remat.heuristics.transfers.kernels import KERNELS
from remat.heuristics.transfers.references import move_best_layers
from remat.heuristics.transfers.relaxed import in_larger_memories, rounded
from remat.heuristics.transfers.starts import Starts
from remat.heuristics.transfers.state import State, Value, copied
from remat.heuristics.transfers.walks import Annealer
from remat.heuristics.walks import run_walks
from remat.problem import Problem
from remat.problem.op_sequence import order_of
from remat.problem.training_step import training_step
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Positive, Range
from remat.runtime.compiled import begin
from remat.runtime.deadline import Deadline, OverdueError, now
from remat.runtime.solve_options import SolveOptions
from remat.schedule import OrderRule, Schedule
from remat.schedule.certificate import Verdict

if TYPE_CHECKING:
    from remat.heuristics.transfers.program_kernel import Choices

#: Moves per op, of all rounds together, without a deadline or a number of moves.
MOVES_PER_OP = 60
#: Rounds without a deadline, and the share of the remaining time of a round with one.
ROUNDS, ROUND_SHARE = 3, 0.3
#: Moves per op of a round with a deadline, and its least seconds.
ROUND_MOVES, LEAST_SECONDS = 250, 1.0
#: Most other rounds of annealing between two that explore, on graphs up to a number of ops. On T5 (1,001 ops) this
#: would cost 0.3 points in 30 s.
MOST_BETWEEN, SMALL = 2, 300
#: Share of the time for drops, and seconds between two reports of a walk.
DROPS_SHARE, SHARE_INTERVAL = 0.15, 1.0
#: Share of the time for the relaxation, and least parts in its solution that are recomputed or fetched, in turns.
RELAXED_SHARE, PARTS = 0.5, (0.1, 0.25, 0.5, 0.75)
#: Share of the time for optima in larger memories, the number of the first ones after which they stop if none led to a
#: better schedule, and the time to undercut, in base costs, where none is known.
LARGER_SHARE, IN_VAIN, MOST_TIME = 0.15, 2, 2
#: Factors by which the best price is varied, one after the other.
FINER = (0.7, 1.4, 0.85, 1.2)


@dataclass(frozen=True)
class TransfersOptions(Options):
    """Options of :class:`Transfers`."""

    prices: tuple[Annotated[float, Range(above=0)], ...] = (0.1, 0.03, 0.01, 0.3, 1.0, 3.0)
    """Prices of time on a link, relative to time of the device, one descent for each: low values move more."""
    leanings: tuple[Annotated[float, Range(above=0)], ...] = (6.0, 0.5)
    """Price of holding an input for longer relative to recomputing it, as in drops; each is tried at the best price."""
    share: Annotated[float, Range(above=0, most=1)] = 0.03
    """Share of the excess that one round of a descent removes."""
    moves: Positive | None = None
    """Moves of all rounds of annealing. None: until the deadline, or 60 per op without one."""
    recompute: bool = True
    """False: compute each op once, and only move tensors."""


class Transfers(Heuristic):
    """Search over what each stage recomputes and fetches, for the least time on a machine with a host.

    A tensor that an op reads is *kept* since its last use, *recomputed* just before, or *fetched*. Any such choices
    give a program (:mod:`.program_kernel`): a tensor to be fetched is written once, when it is computed, and
    freed when that has ended or when the room is needed; its fetch is issued as late as it arrives on time, or as early
    as there is room. The time with all stalls is exact, as in :func:`remat.schedule.timing.time_schedule`, and takes
    one pass over the program.

    1. *Descents* take, again and again, the tensors that are cheapest to move or recompute for the bytes above the
       budget that they remove, summed over steps. Link time has a price: a high one recomputes more. A move counts only
       for the steps between which both links have had idle time for it, or else costs the time that the device waits.
       What proves unnecessary is taken back. The first descents begin from starts that decide on all tensors at once:
       optima in one memory that is larger by parts of what the links can save (:func:`.relaxed.in_larger_memories`),
       the *rounded solution* of the relaxation that gives the transfer bound (:func:`.relaxed.rounded`), and schedules
       that another search found, which may exceed the budget (:attr:`near`).
    2. Others begin without choices, with several prices in turn, which are then refined.
    3. Their best choices compete with everything moved, each k-th layer moved, drops without moves, and the start.
       With a deadline, drops are left out while their kernels are being compiled.
    4. *Annealing* adds, removes and exchanges recomputations and fetches at random, each evaluated exactly. Short
       rounds improve the best choices; others explore, from high temperatures and with a higher price of time that the
       device waits (:class:`.starts.Starts`). Threads walk apart and share the best choices.

    In the background of other searches it only anneals. It also starts from the solutions that programmes of the
    transfer bound find meanwhile.

    Where nothing can be moved, it searches for recomputations alone.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from remat.graphs.families import unit_chain
    >>> chain = replace(unit_chain(8), cost_unit="us")
    >>> problem = Problem(chain, 5, machine="rate=1MB/s")
    >>> problem.validate(Transfers(TransfersOptions(moves=2_000)).run(problem, HeuristicRun())).time
    17
    """

    name = "transfers"
    options_type = TransfersOptions
    moves: ClassVar[bool] = True
    kernels = (KERNELS,)
    last: _Last | None = None
    """State of the last run, from which a later one on the same problem with a start or in turns continues."""

    def programmes_of(self, problem: Problem) -> TransferSearch | None:
        return self._continued(problem).relaxation

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        if problem.budget_bytes is None:
            return Schedule.reference(problem.graph)
        if not self.prepared(run.deadline):
            return None
        if run.start is None and run.horizon is None:
            self.last = None
        search = _Search(self._continued(problem), run, self.options, self.near)
        self.near = ()
        search.go()
        return search.best.schedule

    def _continued(self, problem: Problem) -> _Last:
        """Return the state of the last run on a problem, or a new one."""
        if self.last is None or self.last.given is not problem:
            self.last = _Last(problem, problem if self.options.recompute else replace(problem, max_computes=1))
        return self.last


@dataclass(eq=False)
class _Last:
    """State of the runs on a problem: ended descents are not repeated, the relaxation and annealing continue."""

    given: Problem
    problem: Problem
    """That, perhaps without recomputation."""
    descended: bool = False
    rounded: int = 0
    """Number of solutions of the relaxation from which descents have begun."""
    starts: Starts = field(default_factory=Starts)
    order: Int | None = None
    """Order of first computes of the choices in `starts`."""

    @cached_property
    def relaxation(self) -> TransferSearch | None:
        """Search for the transfer bound; None where it does not apply."""
        if not self.problem.can_move or self.problem.order is OrderRule.FREE:
            return None
        return TransferSearch(self.problem.relaxed[0], None, Deadline(), 1, None)


class _Search:
    """One run: the best value of choices, and the best schedule, which may be one that no choices express."""

    def __init__(self, last: _Last, run: HeuristicRun, options: TransfersOptions, near: Sequence[Schedule]) -> None:
        self.last, self.problem, self.call, self.options, self.near = last, last.problem, run, options, near
        self.order: Int = self.problem.graph.arrays.order
        if self.problem.order is OrderRule.FREE and run.start is not None:
            self.order = order_of(self.problem, run.start)
        if last.order is None or not np.array_equal(self.order, last.order):
            most_between = MOST_BETWEEN if len(self.order) <= SMALL else math.inf
            last.order, last.starts = self.order, Starts(most_between)
        self.state = State(self.problem, self.order)
        self.value = self.state.evaluate()
        self.best = Best(self.problem, run, self.problem.graph.base_cost)
        self.best_price = options.prices[0], options.leanings[0]
        """Price of link time and leaning of the best descent."""
        self._lock = threading.Lock()

    def go(self) -> None:
        """Search until time or moves are used up, or no time can be saved."""
        self.offer(self.state.schedule(Transfers.name))
        if self.over:
            return
        again = self.call.start is not None and (self.last.descended or self.call.background)
        self._given(drops=not again)
        if not again:
            self._layers()
            self._in_larger_memories()
        if not self.call.background:
            self._relax()
        self._from_relaxations()
        self._from_near()
        if not again:
            self._descents()
            self.last.descended = not self.call.deadline.expired
        if not self.over:
            self._anneal()

    @property
    def over(self) -> bool:
        """True when the search must or may stop."""
        return self.best.enough or self.call.deadline.expired

    def offer(self, schedule: Schedule) -> None:
        """Offer a schedule, unless it breaks a rule: a start may recompute where that is off."""
        certificate = self.problem.validate(schedule)
        if certificate.verdict is not Verdict.INVALID:
            self.best.take(schedule, certificate)

    def consider(self, state: State, value: Value) -> bool:
        """Offer the schedule of a state if its value is the best; return true if it is."""
        with self._lock:
            if value >= self.value:
                return False
            self.value = value
            if value.excess == 0:
                self.offer(state.schedule(Transfers.name))
            return True

    def _given(self, *, drops: bool) -> None:
        """Consider the start, and drops without moves."""
        dropped = self._dropped() if drops and not self.call.options.from_nothing else None
        for schedule in (self.call.start, dropped):
            if schedule is not None:
                self.offer(schedule)
                if self.state.take_schedule(schedule):
                    self._begin(self.state.evaluate())

    def _dropped(self) -> Schedule | None:
        """Return the result of drops without moves; None while their kernels are being compiled, with a deadline."""
        part = self.call.deadline.earlier(DROPS_SHARE * self.call.deadline.remaining)
        if math.isfinite(part.seconds) and not Drops.compiled():
            begin(*Drops.kernels)
            return None
        return Drops().run(self.problem.one_memory, HeuristicRun(self.call.until(part).options))

    def _descents(self) -> None:
        """Descend at several prices of link time, and near the best of them."""
        found: dict[tuple[float, float], tuple[Value, Choices]] = {}

        def attempt(price: float, leaning: float) -> None:
            if not self.over and (price, leaning) not in found:
                self.state.clear()
                found[price, leaning] = self._descend(price, leaning), self.state.copy()

        def best() -> tuple[float, float]:
            return min(found, key=lambda pair: found[pair][0])

        first, *others = self.options.leanings
        for price in self.options.prices:
            attempt(price, first)
        for leaning in others:
            attempt(best()[0] if found else 1.0, leaning)
        for factor in FINER if found else ():
            price, leaning = best()
            attempt(price * factor, leaning)
        if found:
            self.best_price = best()
            self.last.starts.add(*found[self.best_price])

    def _descend(self, price: float, leaning: float) -> Value:
        """Descend from the choices of the state, and consider what that gives."""
        deadline = self.call.deadline
        self.state.descend(price, leaning, deadline, share=self.options.share)
        self.state.repair(deadline)
        value = self.state.take_back(deadline)
        self.consider(self.state, value)
        return value

    def _relax(self) -> None:
        """Continue the relaxations behind the transfer bound."""
        relaxation = self.last.relaxation
        if not self.over and relaxation is not None:
            relaxation.continue_relaxing(self.call.deadline.share(RELAXED_SHARE))

    def _from_relaxations(self) -> None:
        """Descend from rounded solutions of the relaxations, as far as they are new."""
        relaxation = self.last.relaxation
        if self.over or relaxation is None:
            return
        new = relaxation.solutions[self.last.rounded :]
        for solution in [each for each in new if each[0].whole or each is new[-1]]:
            found = []
            for least in PARTS:
                if not self.call.deadline.expired:
                    self.state.take(*rounded(*solution, least))
                    found.append((self._descend(*self.best_price), self.state.copy()))
            if found:
                self.last.starts.add(*min(found, key=itemgetter(0)))
        self.last.rounded = len(relaxation.solutions)

    def _in_larger_memories(self) -> None:
        """Descend from schedules that recompute less than is needed without a host, while that leads to better ones."""
        small = len(self.problem.graph.ops) <= CUT_OPS
        if self.over or not small or not LinkRoom.applies(self.problem) or self.last.relaxation is None:
            return
        below = MOST_TIME * self.problem.graph.base_cost if self.value.excess else self.value.time
        part = SolveOptions(self.call.deadline.share(LARGER_SHARE), self.call.threads)
        best, choices = self.value, None
        with contextlib.suppress(OverdueError):
            for number, schedule in enumerate(in_larger_memories(self.problem, below, part), 1):
                if self.state.take_schedule(schedule) and (value := self._descend(*self.best_price)) < best:
                    best, choices = value, self.state.copy()
                if choices is None and number == IN_VAIN:
                    break
        if choices is not None:
            self.last.starts.add(best, choices)

    def _from_near(self) -> None:
        """Descend from schedules that another search found, which may exceed the budget."""
        for schedule in self.near:
            if not self.over and self.state.take_schedule(schedule):
                self.last.starts.add(self._descend(*self.best_price), self.state.copy())

    def _layers(self) -> None:
        """Consider everything moved, and each k-th layer."""
        step = training_step(self.problem)
        if step is None or not self.problem.can_move:
            return
        if move_best_layers(self.state, step, lambda: self.over) is not None:
            self._begin(self.state.take_back(self.call.deadline))

    def _begin(self, value: Value) -> None:
        """Consider the choices of the state, and let annealing start from them."""
        self.consider(self.state, value)
        self.last.starts.add(value, self.state.copy())

    def _anneal(self) -> None:
        """Run rounds of annealing, in threads where the number of moves is not limited."""
        if not self.last.starts.known:
            self.state.clear()
            self._begin(self.state.evaluate())
        limited = self.options.moves is not None or math.isinf(self.call.deadline.seconds)
        if limited:
            most = self.options.moves or MOVES_PER_OP * len(self.order)
            self._walk(0, max(1, most // ROUNDS))
            return
        threads = self.call.threads
        run_walks([partial(self._walk, number, None) for number in range(threads)], threads, self._stop)

    def _stop(self) -> None:
        self.best.enough = True

    def _walk(self, number: int, moves: int | None) -> None:
        """Anneal in rounds of some moves, or until the search is over."""
        starts = self.last.starts
        state = State(self.problem, self.order) if number else self.state
        seeds = np.random.default_rng((self.call.seed, number))
        walk = Annealer(state, int(seeds.integers(2**31)))
        for _ in count() if moves is None else range(ROUNDS):
            if self.over:
                return
            if number == 0:
                self._from_relaxations()
            start, explores = starts.next()
            state.restore(start.choices)
            walk.restart(explores=explores)
            shared = now()
            for done in self._round(walk, moves):
                stop = done >= 1 or self.over
                if stop or now() > shared + SHARE_INTERVAL:
                    shared = now()
                    self._share(walk)
                if stop:
                    break
            found = start.value if walk.best is None else Value(0, walk.best)
            starts.replace(start, found, copied(walk.choices), explored=explores)

    def _share(self, walk: Annealer) -> None:
        """Consider the best choices of a walk, which then continues."""
        if walk.best is None or (not self.value.excess and walk.best >= self.value.time):
            return
        current = walk.state.copy()
        walk.state.restore(walk.choices)
        self.consider(walk.state, walk.state.evaluate())
        walk.state.restore(current)
        walk.state.evaluate()

    def _round(self, walk: Annealer, moves: int | None) -> Iterator[float]:
        """Make the moves of a round; yield the share that is done, from time to time."""
        done, made = 0.0, 0
        deadline = self.call.deadline
        begin = deadline.elapsed
        most = ROUND_SHARE * deadline.remaining
        while done < 1:
            made += walk.advance(done, None if moves is None else moves - made)
            spent = deadline.elapsed - begin
            planned = max(LEAST_SECONDS, min(most, ROUND_MOVES * len(self.order) * spent / made))
            done = made / moves if moves is not None else spent / planned
            yield done
