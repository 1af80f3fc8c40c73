"""Simulated annealing of order and recomputation together."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Annotated

import numpy as np

from remat.backends.base import SolveOptions
from remat.compiled import KernelSet
from remat.errors import ProblemError
from remat.formulations.sequence import op_sequence, useful_schedule
from remat.graphs import GraphBuilder
from remat.graphs.arrays import first_computes
from remat.heuristics.annealing.tables import slot_graph, slot_schedule
from remat.heuristics.base import Heuristic, HeuristicRun
from remat.heuristics.turns import Turns
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.options import Options, Positive, Range
from remat.schedule import OrderRule, Schedule

if TYPE_CHECKING:
    from remat.heuristics.annealing.slots_kernel import SlotSchedule


#: Moves for each op, of all rounds together, where nothing else ends the search.
MOVES_PER_OP = 20_000
#: Moves for each op of the first anneal of a round; those of the very first round, which is to answer soon.
ROUND_MOVES, FIRST_MOVES = 6_000, 500
#: Rounds after which they become twice as long.
ROUNDS = 4
#: How often a round is heated up again, and the share of the way that it then goes anew.
REHEATS, REHEATED = 3, 0.5
#: Least moves of a step of cooling, and steps that are worth a round.
BATCH, STEPS = 5_000, 20
#: Most moves between two looks at the clock; where there is a deadline, seconds between them, as so many take a quarter
#: of a second on 20,000 ops, but not less than the least step.
PIECE, LOOK = 20_000, 0.05
#: Memory above the budget becomes more or less expensive where a smaller or larger share of the moves meets it; rounds
#: differ in this, since either way alone misses what the other finds.
MET = ((0.02, 0.15), (0.3, 0.6))
#: The first temperature is at least so many times the mean cost of an op.
HOT = 2.5
#: The kinds of rounds: from the start and at a temperature that forgets it, or on from the best schedule.
HOT_ROUND, WARM_ROUND = "hot", "warm"
#: First temperatures of warm rounds, in mean costs of an op, in turn.
WARM = (0.5, 2.5)
#: Moves for each op below which a hot round does not come near a schedule that is there already.
LEAST_HOT = 2_000
#: Share of the time up to the horizon that rounds are planned for, where this run is one turn of several.
SHARE = 0.6
#: A round is heated up again if the overhead it came to is at most so many times the least.
WORTH = 1.15
#: Seconds between two schedules that are told.
TELL = 0.5


@dataclass(frozen=True)
class AnnealingOptions(Options):
    """Options of :class:`Annealing`.

    Attributes
    ----------
    moves : int or None
        Moves of all rounds together. None: until the deadline, and 20,000 for each op where there is none.
    heat : float
        First temperature, as a share of the base cost, but no less than some mean costs of an op; of rounds that
        do not go on from the best schedule.
    cold : float
        Last temperature, as a share of the cost of cheap ops (the tenth percentile of costs above 0).
    soft, hard : float
        First and last width of the soft excess, as a share of the budget: which memory counts as near the peak.
    again : float
        Probability that an input which is not there at a recomputation is recomputed as well, and not held for longer.
    """

    moves: Positive | None = None
    heat: Annotated[float, Range(above=0)] = 1e-2
    cold: Annotated[float, Range(above=0)] = 0.2
    soft: float = 1e-2
    hard: Annotated[float, Range(above=0)] = 2e-4
    again: Annotated[float, Range(0, 1)] = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hard <= self.soft:
            raise ProblemError(f"soft must be at least hard, {self.hard}, not {self.soft}", "option", "soft")


def _example() -> None:
    graph = GraphBuilder("pair")
    graph.op("a", size=2)
    graph.op("b", inputs=["a"], size=1)
    run = HeuristicRun(SolveOptions(threads=1))
    _Search(Problem(graph.build(), 2, OrderRule.FREE), AnnealingOptions(moves=1), run).go()


#: The compiled moves.
KERNELS = KernelSet("annealing", __name__, _example)


class Annealing(Heuristic):
    """Simulated annealing on the sequence of computes, order and recomputation together.

    After FastSA (Imanishi et al., NeurIPS 2023), written anew from its description. A state is an array of slots that
    hold an op or nothing; a move shifts a run of an op, recomputes an op shortly before a read (with a random part of
    those ancestors that would have to be held for it), or takes a recomputation back. The energy is

        cost + λ (max(0, peak − budget) + τ log(1 + Σ_slots exp((memory − budget) / τ)))

    whose last part lets every slot near the peak count, and not the highest alone; τ falls with the temperature, and λ
    follows how often the budget is met. Half of the recomputations are for tensors that live across a slot near the
    peak, drawn by its share in that sum. A segment tree holds peak and sum, so that a move costs O(d log T) for an op
    with d tensors.

    A round is one anneal, heated up again from its best schedule some times; rounds differ by their seeds, run in
    threads of their own, and grow. Hot rounds begin from the start or the reference order and forget it; warm ones go
    on from the best schedule and do not. Both kinds take turns by what they brought. Without a deadline the same seed
    walks the same way. With the fixed order first computes stay in the reference order, and recomputations may be
    anywhere. Ops that write accumulation buffers are not recomputed.

    A run with a horizon is one turn of several: the next run of the same object on the same problem goes on in the
    middle of the round, with what it is given as a start if that is better than what it has.

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


class PenaltyWeight:
    """The weight of memory above the budget along one round."""

    def __init__(self, per_byte: float, met: tuple[float, float]) -> None:
        self.per_byte, self.met = per_byte, met
        self.least, self.most = per_byte / 100, per_byte * 100

    def follow(self, met: float) -> None:
        """Adapt to the share of moves that met the budget."""
        if met < self.met[0]:
            self.per_byte = min(self.most, self.per_byte * 1.25)
        elif met > self.met[1]:
            self.per_byte = max(self.least, self.per_byte / 1.25)


class _Search:
    """The arrays of one problem, and rounds on them, perhaps several at a time."""

    def __init__(self, problem: Problem, options: AnnealingOptions, run: HeuristicRun) -> None:
        assert problem.budget_bytes is not None
        self.problem, self.options, self.call = problem, options, run
        self.fixed = problem.order is OrderRule.FIXED
        arrays = problem.graph.arrays
        self.net = slot_graph(problem)
        num_ops = self.num_ops = len(arrays.cost)
        self.budget = problem.budget_bytes - arrays.input_bytes - problem.constant_bytes
        self.begin = self._start()
        self.width = 1 << math.ceil(math.log2(4 * max(num_ops, len(self.begin)) + 8))
        self.batch = max(BATCH, 2 * num_ops)
        base = max(1, problem.graph.base_cost)
        self.mean = base / num_ops
        cheap = arrays.cost[arrays.cost > 0]
        self.heat = base * max(options.heat, HOT / num_ops)
        self.cold = min(self.heat, options.cold * float(np.quantile(cheap, 0.1))) if len(cheap) else self.heat
        self.per_byte = base / max(1, self.budget)
        # Below this width of the soft excess one tensor would change it by more than a float can hold.
        self.narrow = max(1.0, float(arrays.size.max(initial=0)) / 100)
        self.best: Int | None = None
        self.best_cost: int | None = None
        self.told = -math.inf
        self.untold = self.enough = False
        self.lock = threading.Lock()
        self.rate = 0.0
        self.kinds = Turns({HOT_ROUND: 1.0, WARM_ROUND: 1.0})
        self.numbers, self.warm = count(), 0
        self.walks: list[Iterator[None]] = []
        if self.call.start is not None:
            self._take_start()

    def _start(self) -> Int:
        """The op sequence that rounds begin with."""
        from remat.heuristics.annealing.slots_kernel import LIMIT

        order = self.problem.graph.arrays.order
        if self.call.start is None:
            return order
        try:
            given = op_sequence(self.problem, self.call.start)
        except ProblemError:  # an accumulation buffer is filled twice, which no state says
            return order
        known = np.bincount(given, minlength=len(order))
        first = given[first_computes(given)]
        if (known > np.maximum(self.net.ops[:-1, LIMIT], 1)).any() or (self.fixed and not np.array_equal(first, order)):
            return order
        return given

    def resume(self, run: HeuristicRun) -> None:
        """Go on in another turn, from a better schedule where there is one."""
        self.call, self.enough = run, False
        if run.start is not None:
            self.begin = self._start()
            self._take_start()

    def _take_start(self) -> None:
        """Count what rounds begin with as found, where it keeps the budget and is better than what there is."""
        from remat.heuristics.annealing.slots_kernel import COST, HIGHEST

        state = self._state(self.begin)
        cost = int(state.number[COST])
        if state.tree[1, HIGHEST] <= self.budget and (self.best_cost is None or cost < self.best_cost):
            self.best, self.best_cost = self.begin, cost

    # -- rounds ------------------------------------------------------------------------------------------------------

    def go(self) -> None:
        """Run rounds until time or moves are over, or nothing can be better."""
        total = self._moves()
        threads = 1 if math.isfinite(total) else self.call.threads
        while len(self.walks) < threads:
            self.walks.append(self._walk(total))
        if threads == 1:
            self._go_on(self.walks[0])
            return
        with ThreadPoolExecutor(threads) as pool:
            running = [pool.submit(self._go_on, walk) for walk in self.walks]
            try:
                for thread in running:
                    thread.result()
            finally:  # after Ctrl-C, too
                self.enough = True

    def _go_on(self, walk: Iterator[None]) -> None:
        """Go on with rounds until there is a reason to stop; they stay where they are."""
        while not self._over():
            if next(walk, self) is self:
                return

    def _walk(self, most: float) -> Iterator[None]:
        """Rounds of at most `most` moves together, a batch at a time."""
        while most > 0:
            with self.lock:
                number = next(self.numbers)
            for moves in self.round(most, number):
                most -= moves
                yield

    def _moves(self) -> float:
        """Moves of all rounds together."""
        if self.options.moves is not None:
            return float(self.options.moves)
        clock = self.call.horizon or self.call.deadline
        return math.inf if math.isfinite(clock.seconds) else MOVES_PER_OP * self.num_ops

    def _over(self) -> bool:
        return self.enough or self.call.deadline.expired or self.best_cost == self.problem.graph.base_cost

    def round(self, most: float, number: int) -> Iterator[int]:
        """One round of at most `most` moves; gives the moves of each batch."""
        from remat.heuristics.annealing.slots_kernel import BEST

        num_ops = self.num_ops
        length: float = FIRST_MOVES * num_ops
        if number > 0:
            length = ROUND_MOVES * num_ops * 2 ** ((number - 1) // ROUNDS)
        # All of a round is to fit into what is left.
        left = min(most, self.rate * self._planned()) if self.rate else most
        whole = 1 + REHEATS * REHEATED
        reheats = 0 if number == 0 or left < STEPS * self.batch * whole else REHEATS
        length = min(length, left / (whole if reheats else 1))
        steps = max(1, int(length / self.batch))
        kind, begin, hot, before = self._kind(number, left)
        seeds = np.random.default_rng((self.call.seed, number)).integers(0, 2**31, (1 + reheats, steps))
        state, done, way = self._state(begin), 0, PenaltyWeight(self.per_byte, MET[number % 2])
        yield 0  # a look at the clock
        for turn in range(1 + reheats):
            if turn > 0:
                cost = int(state.number[BEST])
                if not self._worth(cost):
                    break
                state = self._state(state.best[state.best >= 0])
                state.number[BEST] = cost
                state.best[:] = state.held
            again = round(steps * REHEATED) if turn else steps
            for step in range(steps - again, steps):
                done += self._step(state, int(seeds[turn, step]), step / max(1, steps - 1), hot, way)
                yield self.batch
        cost = int(state.number[BEST])
        with self.lock:
            self.kinds.add(kind, done, 0.0 if cost < 0 or before is None else float(max(0, before - cost)))

    def _planned(self) -> float:
        """Seconds of moves that are still to come."""
        horizon = self.call.horizon
        return 0.95 * self.call.deadline.remaining if horizon is None else SHARE * horizon.remaining

    def _kind(self, number: int, left: float) -> tuple[str, Int, float, int | None]:
        """What round comes next: its kind, where it begins, its first temperature, and the cost it is to beat."""
        with self.lock:
            best, cost = self.best, self.best_cost
            kind = self.kinds.next()
            if best is None:
                return HOT_ROUND, self.begin, self.heat, cost
            if number > 0 and kind == HOT_ROUND and left >= LEAST_HOT * self.num_ops:
                return HOT_ROUND, self.begin, self.heat, cost
            warm = WARM[self.warm % len(WARM)] * self.mean
            self.warm += 1
            return WARM_ROUND, best, max(self.cold, min(self.heat, warm)), cost

    def _worth(self, cost: int) -> bool:
        """Whether a round that came to this cost (-1: none) is worth being heated up again."""
        base = self.problem.graph.base_cost
        return cost >= 0 and (self.best_cost is None or cost - base <= WORTH * (self.best_cost - base))

    def _step(self, state: SlotSchedule, seed: int, along: float, hot: float, way: PenaltyWeight) -> int:
        """One batch of moves, `along` the way from hot to cold (0 .. 1)."""
        from remat.heuristics.annealing.moves_kernel import anneal
        from remat.heuristics.annealing.slots_kernel import BEST

        options, began = self.options, time.perf_counter()
        heat = hot * (self.cold / hot) ** along
        width = self.budget * options.soft * (options.hard / options.soft) ** along
        over = max(0.0, float(state.tree[1, 0]) - self.budget)
        met, done, looks = 0.0, 0, math.isfinite(self.call.deadline.seconds)
        piece = min(PIECE, max(BATCH, int(LOOK * self.rate))) if looks else PIECE
        while done == 0 or (done < self.batch and not self._over()):
            moves = min(piece, self.batch - done)
            met += moves * anneal(
                self.net, state, -1 if done else seed, moves, self.budget, self.fixed, heat, way.per_byte,
                way.per_byte * width, max(width, self.narrow, over / 100), options.again,
            )  # fmt: skip
            done += moves
        way.follow(met / done)
        self.rate = done / max(1e-9, time.perf_counter() - began)
        if state.number[BEST] >= 0 and (self.best_cost is None or state.number[BEST] < self.best_cost):
            with self.lock:
                if self.best_cost is None or state.number[BEST] < self.best_cost:
                    self.best_cost = int(state.number[BEST])
                    self.best, self.untold = state.best[state.best >= 0], True
        if self.untold:
            with self.lock:
                self._tell()
        return done

    def _tell(self) -> None:
        """Hand on the best schedule where that is due: not too often, and not twice."""
        due = self.untold and time.monotonic() >= self.told + TELL
        if due and self.best is not None and self.call.on_schedule is not None:
            self.untold = False
            self.enough |= self.call.tell(useful_schedule(self.problem, self.best, Annealing.name))
            self.told = time.monotonic()

    def _state(self, sequence: Int) -> SlotSchedule:
        """The sequence spread over the slots."""
        from remat.heuristics.annealing.slots_kernel import fill

        state = slot_schedule(self.net, sequence, self.width)
        fill(self.net, state, self.budget, self.narrow)
        return state
