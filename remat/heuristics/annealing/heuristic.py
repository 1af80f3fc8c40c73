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
from remat.problem.training_step import training_step
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
#: Moves per op of the first round, so that it answers soon, and of later ones until a schedule fits the budget.
FIRST_MOVES, SEEKING_MOVES = 500, 16_000
#: Fewest moves of a cooling step.
BATCH = 5_000
#: Most moves between two checks of the clock; with a deadline, seconds between them, but at least the moves of the
#: smallest step. On 20,000 ops, the most moves would take a quarter of a second.
PIECE, CHECK_INTERVAL = 20_000, 0.05
#: Factor of each change of that penalty in a round, and of all together.
STEP, RANGE = 1.25, 100
#: First temperature per op until a schedule fits, its least and its largest default, in mean costs of an op.
HEAT, LEAST_HEAT, MOST_HEAT = 0.01, 2.5, 5.0
#: Share of the time up to the horizon for which rounds are planned, if this run is one of several turns.
SHARE = 0.8
#: Minimum time between two reports of schedules: seconds, and a multiple of the time that the last one took. On 100,000
#: ops a report takes over a second.
REPORT_INTERVAL, REPORT_PAUSE = 0.5, 9


class _Pace(NamedTuple):
    """Constants that depend on the graph, and on the moves per op for which there is time."""

    share: float
    """Share of all moves for restarts."""
    restarts: tuple[tuple[float, int], ...]
    """First temperatures of restarts, in mean costs of an op, and their moves per op. Each has two in turn, from the
    start and from the reference order."""
    kept: int
    """Number of the best schedules from which the first rounds after the restarts begin."""
    moves: int
    """Moves per op of these rounds."""
    heats: tuple[float, ...]
    """Their first temperatures, in mean costs of an op. Those that gain more have more rounds."""
    met: tuple[tuple[float, float], ...]
    """Least and largest share of moves within the budget, outside which the penalty of excess memory rises or falls.
    Rounds take turns, since each range misses schedules that the other finds."""
    shares: tuple[float, float, float, float]
    """Cumulative shares of moves, as in :class:`~remat.heuristics.annealing.moves_kernel.Rules`."""
    soft: float
    again: float
    """Defaults of the options of these names."""


#: Number of ops above which time is for one round, of some 100 moves per op or less.
MANY_OPS = 5_000
FEW = _Pace(
    0.35, ((0.5, 500), (5.0, 500), (2.5, 500), (10.0, 500), (10.0, 2_000)),
    3, 500, (0.1, 0.25, 0.5, 2.5), ((0.02, 0.15), (0.3, 0.6)), (0.08, 0.22, 0.52, 0.67), soft=1e-2, again=0.2,
)  # fmt: skip
MANY = _Pace(
    0.0, ((5.0, FIRST_MOVES),), 1, 8_000, (0.5, 5.0), ((0.6, 0.9), (0.3, 0.6)), (0.02, 0.15, 0.48, 0.65),
    soft=3e-3, again=0.1,
)  # fmt: skip
#: The same for training graphs, whose starts are good. Layers are recomputed as a whole there.
STEPS = FEW._replace(
    share=0.0, restarts=((0.1, FIRST_MOVES),), kept=1, heats=(0.1, 0.03, 0.25, 0.5, 2.5),
    shares=(0.15, 0.45, 0.60, 0.75), again=0.95,
)  # fmt: skip


@dataclass
class _Found:
    """Schedule within the budget, from which rounds begin."""

    cost: int
    sequence: Int


class _Round(NamedTuple):
    """Plan of a round."""

    begin: Int
    hot: float
    """First temperature, in cost units."""
    met: tuple[float, float]
    """Range of `_Pace.met`."""
    moves: int
    """Moves per op."""
    improved: _Found | None = None
    """Schedule that the result replaces unless it costs more; None: of a restart."""
    heat: float = 0.0
    """First temperature as in `_Pace.heats`."""


@dataclass(frozen=True)
class AnnealingOptions(Options):
    """Options of :class:`Annealing`."""

    moves: Positive | None = None
    """Moves of all rounds together. None: until the deadline, or 20,000 per op without one."""
    heat: Annotated[float, Range(above=0)] | None = None
    """Highest temperature, in mean costs of an op. None: 10, and 0.01 per op within 2.5 to 5 until a schedule fits."""
    cold: Annotated[float, Range(above=0)] = 0.2
    """Last temperature, as a share of the cost of cheap ops (the tenth percentile of costs above 0)."""
    soft: float | None = None
    """First width of the soft excess, as a share of the budget: at this distance memory counts as near the peak.
    None: 0.01, above 5,000 ops 0.003."""
    hard: Annotated[float, Range(above=0)] = 2e-4
    """Last width of the soft excess, as a share of the budget."""
    again: Annotated[float, Range(0, 1)] | None = None
    """Probability of recomputing a missing input of a recomputation, instead of holding it for longer. None: 0.2, on
    training graphs 0.95, above 5,000 ops 0.1."""

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
    recomputation back, with those that only it needs. With an op it recomputes a random part of those ancestors that
    would have to be held for it.
    The energy is

        cost + λ (max(0, peak − budget) + τ log(1 + Σ_slots exp((memory − budget) / τ)))

    In its last term every slot near the peak counts, not only the highest. τ falls with the temperature, and λ
    follows the share of states within the budget. Half of the recomputations are for tensors that live across a slot
    near the peak, drawn by its share in that sum. Peak and sum are known for blocks of slots, so that a move costs
    O(√T).

    A round is one anneal; rounds differ by their seeds, and run in parallel threads. A third of the moves is for short
    restarts, from the start and the reference order in turn. Later rounds improve the best three of their results, then
    the best two, then the best. On training graphs all rounds improve the best schedule. Without a deadline the same
    seed gives the same search. In a fixed order, first computes stay in the reference order, and recomputations may be
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


def _pace(problem: Problem) -> _Pace:
    if len(problem.graph.ops) > MANY_OPS:
        return MANY
    return FEW if training_step(problem) is None else STEPS


class _Search:
    """Arrays of one problem, and rounds on them, also in parallel."""

    def __init__(self, problem: Problem, options: AnnealingOptions, run: HeuristicRun) -> None:
        from remat.heuristics.annealing.moves_kernel import Rules

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
        pace = self.pace = _pace(problem)
        self.soft = max(pace.soft, options.hard) if options.soft is None else options.soft
        self.rules = Rules(self.fixed, pace.again if options.again is None else options.again, pace.shares)
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
        self.numbers = count()
        self.found: list[_Found] = []
        """The best of the start and the results of restarts, improved since, the cheapest first."""
        self.heats = Turns({str(heat): 1.0 for heat in pace.heats})
        """Temperatures of the rounds that improve a schedule."""
        self.restarts = self.improvements = 0
        """Rounds of each kind that have begun."""
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
            self._keep(_Found(cost, self.begin))

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
        left = min(most, self._possible())
        with self.lock:
            plan = self._plan(number, left)
        left = min(plan.moves * self.num_ops, left)
        random = np.random.default_rng((self.call.seed, number))
        state, way = self._state(plan.begin), PenaltyWeight(self.per_byte, plan.met, STEP, RANGE)
        along, done = 0.0, 0
        yield 0  # lets the caller check the clock
        while True:
            self._step(state, int(random.integers(2**31)), along, plan.hot, way)
            yield self.batch
            done += self.batch
            left -= self.batch
            steps = int(min(left, self._possible()) / self.batch)  # it cools faster if time gets short
            if along >= 1.0 or left < self.batch:
                break
            along += (1.0 - along) / max(1, steps)
        with self.lock:
            self._take_result(plan, done, state)

    def _plan(self, number: int, left: float) -> _Round:
        """Return the next round, while `left` moves are left for this thread."""
        if self.best is None:
            moves = FIRST_MOVES if number == 0 else SEEKING_MOVES
            return _Round(self.begin, self.heat, self._met(number), moves)
        along = self.tried / max(1.0, self.tried + left * max(1, len(self.walks)))
        if number == 0:
            return self._restart(math.inf)
        if not self.found or along < self.pace.share:
            return self._restart((self.pace.share - along) / (1.0 - along) * left / self.num_ops)
        return self._improvement(along)

    def _met(self, turn: int) -> tuple[float, float]:
        return self.pace.met[turn % len(self.pace.met)]

    def _restart(self, rest: float) -> _Round:
        """Return the next restart, while `rest` moves per op are left for restarts."""
        turn, reference = divmod(self.restarts, 2)
        self.restarts += 1
        heats = self.pace.restarts
        heat, moves = heats[turn % len(heats)]
        begin = self.problem.graph.arrays.order if reference else self.begin
        return _Round(begin, self._hot(heat), self._met(turn // len(heats)), int(min(moves, max(FIRST_MOVES, rest))))

    def _improvement(self, along: float) -> _Round:
        """Return the next round that improves a schedule, after a part `along` of all moves."""
        pace = self.pace
        kept = min(math.ceil(pace.kept * (1.0 - along) / (1.0 - pace.share)), len(self.found))
        turn, self.improvements = self.improvements, self.improvements + 1
        improved, heat = self.found[turn % max(1, kept)], float(self.heats.next())
        met = self._met(turn // len(pace.heats))
        return _Round(improved.sequence, self._hot(heat), met, pace.moves, improved, heat)

    def _hot(self, heat: float) -> float:
        """Return a first temperature in cost units from one in mean costs of an op."""
        most = math.inf if self.options.heat is None else self.options.heat
        return max(self.cold, min(heat, most) * self.mean)

    def _take_result(self, plan: _Round, moves: int, state: SlotSchedule) -> None:
        """Record the best schedule of a round."""
        from remat.heuristics.annealing.slots_kernel import BEST

        cost, improved = int(state.number[BEST]), plan.improved
        gain = 0.0 if cost < 0 or improved is None else float(max(0, improved.cost - cost))
        if improved is not None:
            self.heats.add(str(plan.heat), moves, gain)
        if cost < 0:
            return
        sequence = state.best[state.best >= 0].astype(np.int64)
        if improved is None:
            self._keep(_Found(cost, sequence))
        elif cost <= improved.cost:
            improved.cost, improved.sequence = cost, sequence
            self.found.sort(key=lambda each: each.cost)

    def _keep(self, found: _Found) -> None:
        """Record a schedule if it is one of the best; of those with equal costs, which are often equal, keep one."""
        if all(each.cost != found.cost for each in self.found):
            self.found = sorted([*self.found, found], key=lambda each: each.cost)[: self.pace.kept]

    def _possible(self) -> float:
        """Return the moves for which there is time, in this round and later ones."""
        horizon = self.call.horizon
        seconds = 0.95 * self.call.deadline.remaining if horizon is None else SHARE * horizon.remaining
        return self.rate * seconds if self.spent else math.inf

    @property
    def rate(self) -> float:
        """Moves per second of a thread so far, at all temperatures: cold ones are several times as fast as hot ones."""
        return self.tried / max(1e-9, self.spent)

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
            met += moves * anneal(self.net, state, energy, self.rules, -1 if done else seed, moves)
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
