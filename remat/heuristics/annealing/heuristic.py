"""Simulated annealing of order and recomputation together."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np

from remat.errors import ProblemError
from remat.graphs import GraphBuilder
from remat.graphs.arrays import first_computes
from remat.heuristics.annealing.tables import slot_graph, slot_schedule
from remat.heuristics.base import Heuristic, HeuristicRun
from remat.heuristics.turns import Turns
from remat.heuristics.walks import PenaltyWeight, run_walks
from remat.problem import Problem
from remat.problem.op_sequence import op_sequence, useful_schedule
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Positive, Range
from remat.runtime.compiled import KernelSet
from remat.runtime.deadline import now
from remat.runtime.solve_options import SolveOptions
from remat.schedule import OrderRule, Schedule

if TYPE_CHECKING:
    from remat.heuristics.annealing.slots_kernel import SlotSchedule


#: Moves per op, of all rounds together, without a deadline or a number of moves.
MOVES_PER_OP = 20_000
#: Moves per op of the first hot rounds; fewer in the very first round, so that it answers soon.
ROUND_MOVES, FIRST_MOVES = 16_000, 500
#: Number of rounds after which their length doubles.
ROUNDS = 4
#: Share of the cooling schedule after which a hot round ends if another one had less energy there. That decides the
#: result: on a layered graph of 500 ops, rounds at 7.0 and 7.9 % ended at 5.3 %, and those at 8.5 to 10.5 % at 6.5 %.
HALFWAY = 0.5
#: Fewest moves of a cooling step.
BATCH = 5_000
#: Most moves between two checks of the clock; with a deadline, seconds between them, but at least the moves of the
#: smallest step. On 20,000 ops, the most moves would take a quarter of a second.
PIECE, CHECK_INTERVAL = 20_000, 0.05
#: Factor of each change of that penalty in a round, and of all together.
STEP, RANGE = 1.25, 100
#: First temperature per op, its least and its largest default, in mean costs of an op.
HEAT, LEAST_HEAT, MOST_HEAT = 0.01, 2.5, 5.0
#: Kinds of rounds: from the start at a temperature that forgets it, or from the best schedule.
HOT_ROUND, WARM_ROUND = "hot", "warm"
#: Moves of warm rounds relative to hot ones.
WARM_MOVES = 0.5
#: Moves per op below which a hot round does not reach the quality of a known schedule.
LEAST_HOT = 2_000
#: Share of the time up to the horizon for which rounds are planned, if this run is one of several turns.
SHARE = 0.8
#: Minimum time between two reports of schedules: seconds, and a multiple of the time that the last one took. On 100,000
#: ops a report takes over a second.
REPORT_INTERVAL, REPORT_PAUSE = 0.5, 9


class _Pace(NamedTuple):
    """Constants that depend on the moves per op for which there is time."""

    warm: tuple[float, ...]
    """First temperatures of warm rounds, in mean costs of an op, in turn."""
    met: tuple[tuple[float, float], ...]
    """Least and largest share of moves within the budget, outside which the penalty of excess memory rises or falls.
    Rounds of a kind take turns, since each range misses schedules that the other finds."""
    soft: float
    again: float
    """Defaults of the options of these names."""


#: Number of ops above which time is for one round, of some 100 moves per op or less.
MANY_OPS = 5_000
FEW = _Pace((0.5, 2.5), ((0.02, 0.15), (0.3, 0.6)), soft=1e-2, again=0.2)
MANY = _Pace((5.0, 0.5), ((0.6, 0.9), (0.3, 0.6)), soft=3e-3, again=0.1)


@dataclass(frozen=True)
class AnnealingOptions(Options):
    """Options of :class:`Annealing`."""

    moves: Positive | None = None
    """Moves of all rounds together. None: until the deadline, or 20,000 per op without one."""
    heat: Annotated[float, Range(above=0)] | None = None
    """First temperature of hot rounds, in mean costs of an op. None: 0.01 per op, within 2.5 to 5."""
    cold: Annotated[float, Range(above=0)] = 0.2
    """Last temperature, as a share of the cost of cheap ops (the tenth percentile of costs above 0)."""
    soft: float | None = None
    """First width of the soft excess, as a share of the budget: at this distance memory counts as near the peak.
    None: 0.01, above 5,000 ops 0.003."""
    hard: Annotated[float, Range(above=0)] = 2e-4
    """Last width of the soft excess, as a share of the budget."""
    again: Annotated[float, Range(0, 1)] | None = None
    """Probability of recomputing a missing input of a recomputation, instead of holding it for longer. None: 0.2, above
    5,000 ops 0.1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.soft is not None and not self.hard <= self.soft:
            raise ProblemError(f"soft must be at least hard, {self.hard}, not {self.soft}", "option", "soft")


def _example() -> None:
    graph = GraphBuilder("pair")
    graph.op("a", size=2)
    graph.op("b", inputs=["a"], size=1)
    run = HeuristicRun(SolveOptions(threads=1))
    _Search(Problem(graph.build(), 2, OrderRule.FREE), AnnealingOptions(moves=1), run).go()


#: Kernels of the moves.
KERNELS = KernelSet("annealing", __name__, _example)


class Annealing(Heuristic):
    """Simulated annealing on the sequence of computes, order and recomputation together.

    After FastSA (Imanishi et al., NeurIPS 2023), reimplemented from its description. A state is an array of slots that
    hold an op or nothing. A move shifts a run of an op, recomputes an op shortly before a read, or takes a
    recomputation back. With the op it recomputes a random part of those ancestors that would have to be held for it.
    The energy is

        cost + λ (max(0, peak − budget) + τ log(1 + Σ_slots exp((memory − budget) / τ)))

    In its last term every slot near the peak counts, not only the highest. τ falls with the temperature, and λ
    follows the share of states within the budget. Half of the recomputations are for tensors that live across a slot
    near the peak, drawn by its share in that sum. Peak and sum are known for blocks of slots, so that a move costs
    O(√T).

    A round is one anneal; rounds differ by their seeds, run in parallel threads, and grow. Hot rounds begin from the
    start or the reference order and forget it, and end halfway if another one had less energy there. Warm rounds begin
    from the best schedule at lower temperatures. Both kinds take turns by their gains. Without a deadline the same seed
    gives the same search. In a fixed order, first computes stay in the reference order, and recomputations may be
    anywhere. Ops that write accumulation buffers are not recomputed.

    A run with a horizon is one turn of several. The next run of the same object on the same problem resumes the round,
    and takes its start if that is better than its best schedule.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.schedule import simulate
    >>> problem = Problem(unit_chain(8), 5)
    >>> run = HeuristicRun(SolveOptions(seed=1, threads=1))
    >>> schedule = Annealing(AnnealingOptions(moves=100_000)).run(problem, run)
    >>> simulate(problem.graph, schedule).peak
    5
    """

    name = "annealing"
    options_type = AnnealingOptions
    kernels = (KERNELS,)

    def __init__(self, options: AnnealingOptions | None = None) -> None:
        super().__init__(options)
        self._search: _Search | None = None

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        if problem.budget_bytes is None:
            return Schedule.reference(problem.graph)
        if not self.prepared(run.deadline):
            return None
        search = self._search
        if run.horizon is None or search is None or search.problem is not problem:
            search = _Search(problem, self.options, run)
        else:
            search.resume(run)
        self._search = None if run.horizon is None else search
        search.go()
        return None if search.best is None else useful_schedule(problem, search.best, self.name)


class _Search:
    """Arrays of one problem, and rounds on them, also in parallel."""

    def __init__(self, problem: Problem, options: AnnealingOptions, run: HeuristicRun) -> None:
        assert problem.budget_bytes is not None
        self.problem, self.options, self.call = problem, options, run
        self.fixed = problem.order is OrderRule.FIXED
        arrays = problem.graph.arrays
        self.net = slot_graph(problem)
        num_ops = self.num_ops = len(arrays.cost)
        self.budget = problem.budget_bytes - arrays.input_bytes - problem.constant_bytes
        self.begin = self._start()
        self.width = 4 * max(num_ops, len(self.begin)) + 8
        self.batch = max(BATCH, 2 * num_ops)
        base = max(1, problem.graph.base_cost)
        self.mean = base / num_ops
        cheap = arrays.cost[arrays.cost > 0]
        self.heat = self.mean * (options.heat or min(max(HEAT * num_ops, LEAST_HEAT), MOST_HEAT))
        self.cold = min(self.heat, options.cold * float(np.quantile(cheap, 0.1))) if len(cheap) else self.heat
        pace = self.pace = MANY if num_ops > MANY_OPS else FEW
        self.soft = max(pace.soft, options.hard) if options.soft is None else options.soft
        self.again = pace.again if options.again is None else options.again
        self.per_byte = base / max(1, self.budget)
        # With a narrower soft excess one tensor would change it by more than a float can hold.
        self.narrow = max(1.0, float(arrays.size.max(initial=0)) / 100)
        self.best: Int | None = None
        self.best_cost: int | None = None
        self.next_report = -math.inf
        self.untold = self.enough = False
        self.lock = threading.Lock()
        self.tried, self.spent = 0, 0.0
        """Moves of all threads, and their seconds."""
        # If the first hot round gains, another one follows: results of single ones differ much by their seed.
        self.kinds = Turns({HOT_ROUND: 1.0, WARM_ROUND: 1.0}, {WARM_ROUND: ROUND_MOVES * num_ops})
        self.numbers = count()
        self.rounds = {HOT_ROUND: 0, WARM_ROUND: 0}
        """Rounds of each kind that have begun."""
        self.halfway = math.inf
        """Least energy of hot rounds halfway."""
        self.walks: list[Iterator[None]] = []
        if self.call.start is not None:
            self._take_start()

    def _start(self) -> Int:
        """Return the op sequence with which rounds begin."""
        from remat.heuristics.annealing.slots_kernel import LIMIT

        order = self.problem.graph.arrays.order
        if self.call.start is None:
            return order
        try:
            given = op_sequence(self.problem, self.call.start)
        except ProblemError:  # refills an accumulation buffer, which no state can express
            return order
        known = np.bincount(given, minlength=len(order))
        first = given[first_computes(given)]
        if (known > np.maximum(self.net.ops[:-1, LIMIT], 1)).any() or (self.fixed and not np.array_equal(first, order)):
            return order
        return given

    def resume(self, run: HeuristicRun) -> None:
        """Resume in another turn, from a better schedule if there is one."""
        self.call, self.enough = run, False
        if run.start is not None:
            self.begin = self._start()
            self._take_start()

    def _take_start(self) -> None:
        """Record the start as found, if it fits the budget and is better than the best schedule."""
        from remat.heuristics.annealing.slots_kernel import COST, PEAK

        state = self._state(self.begin)
        cost = int(state.number[COST])
        if state.number[PEAK] <= self.budget and (self.best_cost is None or cost < self.best_cost):
            self.best, self.best_cost = self.begin, cost

    def go(self) -> None:
        """Run rounds until time or moves are used up, or the schedule cannot be improved."""
        total = self._moves()
        threads = 1 if math.isfinite(total) else self.call.threads
        while len(self.walks) < threads:
            self.walks.append(self._walk(total))
        if threads == 1:
            self._advance(self.walks[0])
            return
        run_walks([partial(self._advance, walk) for walk in self.walks], threads, self._stop)

    def _stop(self) -> None:
        self.enough = True

    def _advance(self, walk: Iterator[None]) -> None:
        """Continue the rounds of a walk until there is a reason to stop; the walk keeps its state."""
        while not self._over():
            if next(walk, self) is self:
                return

    def _walk(self, most: float) -> Iterator[None]:
        """Run rounds of at most `most` moves in total, one batch per iteration."""
        while most > 0:
            with self.lock:
                number = next(self.numbers)
            for moves in self.round(most, number):
                most -= moves
                yield

    def _moves(self) -> float:
        """Return the moves of all rounds together."""
        if self.options.moves is not None:
            return float(self.options.moves)
        clock = self.call.horizon or self.call.deadline
        return math.inf if math.isfinite(clock.seconds) else MOVES_PER_OP * self.num_ops

    def _over(self) -> bool:
        return self.enough or self.call.deadline.expired or self.best_cost == self.problem.graph.base_cost

    def round(self, most: float, number: int) -> Iterator[int]:
        """Run one round of at most `most` moves; yield the moves of each batch."""
        from remat.heuristics.annealing.slots_kernel import BEST

        left = min(most, self._possible())
        kind, begin, hot, before = self._kind(number, left)
        order = self.rounds[kind]
        self.rounds[kind] += 1
        ranges = self.pace.met
        met = ranges[(order if kind == HOT_ROUND else order // len(self.pace.warm)) % len(ranges)]
        per_op = FIRST_MOVES
        if number > 0:
            per_op = ROUND_MOVES * 2 ** ((number - 1) // ROUNDS) * (WARM_MOVES if kind == WARM_ROUND else 1)
        left = min(per_op * self.num_ops, left)
        random = np.random.default_rng((self.call.seed, number))
        state, done, way = self._state(begin), 0, PenaltyWeight(self.per_byte, met, STEP, RANGE)
        along, judged = 0.0, kind != HOT_ROUND
        yield 0  # lets the caller check the clock
        while True:
            done += self._step(state, int(random.integers(2**31)), along, hot, way)
            yield self.batch
            left -= self.batch
            steps = int(min(left, self._possible()) / self.batch)  # it cools faster if time gets short
            if along >= 1.0 or left < self.batch:
                break
            along += (1.0 - along) / max(1, steps)
            if not judged and along > HALFWAY:
                judged = True
                if not self._promising(state, way):
                    break
        cost = int(state.number[BEST])
        if number > 0:  # the first round gains from the start, not from the best schedule of another round
            with self.lock:
                self.kinds.add(kind, done, 0.0 if cost < 0 or before is None else float(max(0, before - cost)))

    def _promising(self, state: SlotSchedule, way: PenaltyWeight) -> bool:
        """Return True if no hot round had less energy halfway."""
        from remat.heuristics.annealing.slots_kernel import COST, PEAK

        energy = float(state.number[COST] + way.per_byte * max(0.0, state.number[PEAK] - self.budget))
        with self.lock:
            self.halfway, least = min(energy, self.halfway), self.halfway
        return energy <= least

    def _possible(self) -> float:
        """Return the moves for which there is time, in this round and later ones."""
        horizon = self.call.horizon
        seconds = 0.95 * self.call.deadline.remaining if horizon is None else SHARE * horizon.remaining
        return self.rate * seconds if self.spent else math.inf

    @property
    def rate(self) -> float:
        """Moves per second of a thread so far, at all temperatures: cold ones are several times as fast as hot ones."""
        return self.tried / max(1e-9, self.spent)

    def _kind(self, number: int, left: float) -> tuple[str, Int, float, int | None]:
        """Return the next round: its kind, start, first temperature, and the cost to beat."""
        with self.lock:
            best, cost = self.best, self.best_cost
            kind = self.kinds.next()
            if best is None:
                return HOT_ROUND, self.begin, self.heat, cost
            if number > 0 and kind == HOT_ROUND and left >= LEAST_HOT * self.num_ops:
                return HOT_ROUND, self.begin, self.heat, cost
            temperatures = self.pace.warm
            warm = temperatures[self.rounds[WARM_ROUND] % len(temperatures)] * self.mean
            return WARM_ROUND, best, max(self.cold, min(self.heat, warm)), cost

    def _step(self, state: SlotSchedule, seed: int, along: float, hot: float, way: PenaltyWeight) -> int:
        """Run one batch of moves at the given fraction (0 .. 1) of the way from hot to cold."""
        from remat.heuristics.annealing.moves_kernel import Energy, anneal
        from remat.heuristics.annealing.slots_kernel import BEST, PEAK

        options, began = self.options, now()
        heat = hot * (self.cold / hot) ** along
        width = self.budget * self.soft * (options.hard / self.soft) ** along
        over = max(0.0, float(state.number[PEAK]) - self.budget)
        tau = max(width, self.narrow, over / 100)
        energy = Energy(heat, self.budget, way.per_byte, way.per_byte * width, tau)
        met, done, looks = 0.0, 0, math.isfinite(self.call.deadline.seconds)
        piece = min(PIECE, max(BATCH, int(CHECK_INTERVAL * self.rate))) if looks else PIECE
        while done == 0 or (done < self.batch and not self._over()):
            moves = min(piece, self.batch - done)
            met += moves * anneal(self.net, state, energy, -1 if done else seed, moves, self.fixed, self.again)
            done += moves
        way.follow(met / done)
        with self.lock:
            self.tried, self.spent = self.tried + done, self.spent + now() - began
        if state.number[BEST] >= 0 and (self.best_cost is None or state.number[BEST] < self.best_cost):
            with self.lock:
                if self.best_cost is None or state.number[BEST] < self.best_cost:
                    self.best_cost = int(state.number[BEST])
                    self.best, self.untold = state.best[state.best >= 0].astype(np.int64), True
        if self.untold:
            with self.lock:
                self._tell()
        return done

    def _tell(self) -> None:
        """Report the best schedule once, if the last report was long enough ago."""
        began = time.monotonic()
        if self.untold and began >= self.next_report and self.best is not None and self.call.on_schedule is not None:
            self.untold = False
            self.enough |= self.call.report(useful_schedule(self.problem, self.best, Annealing.name))
            ended = time.monotonic()
            self.next_report = ended + max(REPORT_INTERVAL, REPORT_PAUSE * (ended - began))

    def _state(self, sequence: Int) -> SlotSchedule:
        """Return the state with the sequence spread over the slots."""
        from remat.heuristics.annealing.slots_kernel import fill

        state = slot_schedule(self.net, sequence, self.width)
        fill(self.net, state, self.budget, self.narrow)
        return state
