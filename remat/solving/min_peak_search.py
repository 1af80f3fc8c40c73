"""Search for the smallest budget: heuristics with ever smaller budgets, exhaustive search, and a solver."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

from remat.bounds.peak_bounds import held_bound, structural_bound
from remat.errors import ProblemError
from remat.formulations.retention_intervals import RetentionIntervals
from remat.heuristics.base import Heuristic, HeuristicRun, overrun_remark
from remat.ordering.best_first import MOST_STATES, Aim, explore
from remat.ordering.valley import Portfolio
from remat.problem import Objective
from remat.runtime.compiled import begin
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import MOST
from remat.schedule import OrderRule, Schedule
from remat.solving.chain_starts import BLOCKS, FEW, LOWER, chain_starts
from remat.solving.incumbents import Certified
from remat.solving.portfolio import EXHAUSTIVE_OPS, Policy, Stage
from remat.solving.session import Session

#: Seconds of the first attempt at one budget: per op, and at least. They double when a descent restarts.
ATTEMPT_PER_OP, ATTEMPT_LEAST = 0.002, 0.1
#: Number of descents: one for constructive heuristics, several for others while time remains.
ROUNDS = {"eviction": 1, "greedy": 1, "annealing": 4}
#: Share of the gap that the first attempt of a round closes, and the smallest share tried.
FIRST_STEP, LAST_STEP = {"drops": 1 / 8, "eviction": 0.5, "greedy": 0.5, "annealing": 1 / 16}, 1 / 64
#: Shares of the time left: bounds, loading a heuristic, eviction and greedy (each), annealing, the solver.
BOUND_SHARE, PREPARE_SHARE, GREEDY_SHARE, ANNEALING_SHARE, MODEL_SHARE = 0.3, 0.6, 0.2, 0.5, 0.5
#: Share of the time left for each heuristic on chains of blocks, and for drops at the least peak.
CHAIN_SHARE = 0.15
#: Share of the time left for the order search, the same if only the order may change, and for exhaustive search;
#: seconds of the last without a deadline.
ORDERING_SHARE, ONLY_ORDERING_SHARE, EXHAUSTIVE_SHARE, EXHAUSTIVE_SECONDS = 0.2, 0.6, 0.3, 60.0
#: Seconds below which loading kernels is not worthwhile.
LOADING_LEAST = 1.0
#: Ops up to which a solver runs, and orders are searched with and without kernels.
MODEL_OPS, ORDERING_OPS, SLOW_ORDERING_OPS = 250, 20_000, 200
#: States times ops up to which the interpreted search is faster than loading the compiled one, some tenths of a
#: second.
FIRST_WORK = 200_000
#: Ops up to which rules run before compiled code, which runs them again.
FIRST_RULES_OPS = 2_000
#: Stages of a quick search, which uses heuristics only.
QUICK_STAGES = 8


class MinPeakSearch(Policy):
    """Search for the least peak on one session; see :func:`remat.solving.min_peak.minimize`.

    `session`: its backend solves the model; None: no solver. `quick`: heuristics only.
    """

    endless = EXHAUSTIVE_SECONDS

    def __init__(self, session: Session, *, quick: bool = False) -> None:
        super().__init__(session)
        self.call, self.backend, self.quick = session.call, session.solver, quick
        #: The same rules without a budget, for searches with budgets of their own.
        self.problem = replace(session.problem, budget=None, objective=Objective.LEAST_COST)
        self.incumbents = session.incumbents
        self.ordered = False

    @property
    def best(self) -> Certified:
        """Schedule with the least peak so far, whatever the budget."""
        assert self.incumbents.least_peak is not None
        return self.incumbents.least_peak

    @property
    def peak(self) -> int:
        """Peak of the best schedule, in bytes."""
        return self.best.certificate.peak

    @property
    def bound(self) -> int:
        """Lower bound on the peak of all schedules, in bytes."""
        return self.session.bound

    @property
    def over(self) -> bool:
        """Return whether the least peak is proved or the stopping criterion reached; time may remain for the cost."""
        return self.bound >= self.peak or self.session.reached is not None

    # -- stages ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Search until the deadline, or until nothing is left to try."""
        self.follow(STAGES[:QUICK_STAGES] if self.quick else STAGES)
        if not self.quick:
            self._cheapen()
        # Time remains if there was nothing to cheapen.
        if self.clock.remaining > LOADING_LEAST if self.quick else math.isfinite(self.clock.seconds):
            self.descend("annealing", self.clock)
        self.session.conclude()

    def run_heuristic(self, heuristic: Heuristic) -> None:
        """Compute the bounds, then descend by one heuristic, which supports budgets only."""
        self.bounds(self.share(BOUND_SHARE))
        self.descend(heuristic.name, self.clock, heuristic)
        self.session.conclude()

    def bounds(self, deadline: Deadline) -> bool:
        with self.session.timed("bounds"):
            found = held_bound(self.problem, deadline=deadline)
            self.session.raise_peak_bound(found.value or 0, found.kind, found.cause)
        return True

    def orders_count(self) -> bool:
        """Return whether the order may change and the graph is small enough to search orders."""
        return self.problem.order is OrderRule.FREE and self.num_ops <= ORDERING_OPS

    def orders_left(self) -> bool:
        """Return whether the order search has not run yet."""
        return self.orders_count() and not self.ordered

    def only_orders(self) -> bool:
        """Return whether only the order may change."""
        return self.orders_count() and self.once

    def order_at_once(self, deadline: Deadline) -> None:
        """Order without kernels: sufficient for small networks, and for those whose largest op decides the peak."""
        found = structural_bound(self.problem)
        self.session.raise_peak_bound(found.value or 0, found.kind, found.cause)
        with self.session.timed("ordering"):
            if self.num_ops <= FIRST_RULES_OPS or not Portfolio.compiled():
                for rule in Portfolio.rules:
                    if self.over:
                        return
                    self.session.search_order(rule(), deadline)
            self._order_slowly(self.share(ORDERING_SHARE), FIRST_WORK // self.num_ops)

    def order_meanwhile(self, deadline: Deadline) -> None:
        """Start compiling the order search, which takes over ten seconds; search interpreted until it is ready."""
        begin(*Portfolio.kernels)
        if self.only_orders() and not Portfolio.compiled():
            with self.session.timed("ordering"):
                self._order_slowly(deadline.until(Portfolio.compiled))

    def order(self, _: Deadline) -> None:
        """Search for the order of least peak without recomputation: often low, and perhaps all that is allowed."""
        deadline = self.share(ONLY_ORDERING_SHARE if self.only_orders() else ORDERING_SHARE)
        self.ordered, search = True, Portfolio()
        with self.session.timed("ordering"):
            if not search.prepared(deadline):
                self.session.not_compiled(search.name)
                self._order_slowly(deadline)
                return
            found = self.session.search_order(search, deadline, self.peak, lambda: self.over)
            if self.only_orders():
                self.session.raise_peak_bound(found.bound, search.name)
                if not self.session.orders.exact:  # the other search decides who reads last
                    self._order_slowly(self.share(ORDERING_SHARE))

    def _order_slowly(self, deadline: Deadline, most_states: int = MOST_STATES) -> None:
        """Search orders of small graphs without kernels."""
        if self.over or self.num_ops > SLOW_ORDERING_OPS:
            return
        once, floor = replace(self.problem, max_computes=1), self.bound if self.only_orders() else 0
        found = explore(once, Aim.PEAK, limit=self.peak, floor=floor, deadline=deadline, most_states=most_states)
        if found is None:
            return
        self.session.states = (self.session.states or 0) + found.states
        if found.schedule is not None:
            self.session.add(found.schedule, "best-first search over orders")
        if self.only_orders():
            self.session.raise_peak_bound(found.bound, "best-first search over orders")

    def exhaust(self, deadline: Deadline) -> None:
        """Search exhaustively for the least peak."""
        with self.session.timed("exhaustive"):
            found = explore(self.problem, Aim.PEAK, limit=self.peak, floor=self.bound, deadline=deadline)
            if found is not None and found.schedule is not None:
                self.session.add(found.schedule, "exhaustive search")
            if found is not None:
                self.session.raise_peak_bound(found.bound, "exhaustive search")

    # -- heuristics --------------------------------------------------------------------------------------------------

    def descend_quickly(self, _: Deadline) -> None:
        """Run heuristics before annealing. Drops run only without blocks, and last while they are being compiled."""
        names = ["eviction", "greedy"]
        late = self.clock.remaining <= (LOADING_LEAST if self.quick else 0)
        if self.num_ops > EXHAUSTIVE_OPS and not late and not chain_starts(self.problem):
            drops = self.made("drops")
            begin(*drops.kernels)
            names.insert(0 if drops.compiled() else len(names), "drops")
        for name in names:
            self.descend(name, self.share(GREEDY_SHARE))

    def descend(self, name: str, deadline: Deadline, given: Heuristic | None = None) -> None:
        """Descend with ever smaller budgets: longer steps after a success, shorter ones after a failure."""
        # Even loading costs tenths of a second, so return early.
        if self.over or self.clock.expired:
            return
        first, most_rounds = FIRST_STEP.get(name, 0.5), ROUNDS.get(name, 1)
        with self.session.timed(name):
            heuristic = given or self.made(name)
            if given is None and not self._ready(heuristic):
                return
            seconds = max(ATTEMPT_LEAST, ATTEMPT_PER_OP * self.num_ops)
            seconds = min(seconds, deadline.remaining / 4)
            step, rounds, seed = first, 0, self.call.seed
            while not self.over and not deadline.expired and rounds < most_rounds:
                open_bytes = self.peak - self.bound
                target = self.peak - max(1, int(step * open_bytes))
                if self._attempt(heuristic, target, deadline.earlier(seconds), seed):
                    step = min(0.5, 2 * step)
                elif step * open_bytes > 1 and step > LAST_STEP:
                    step /= 2
                else:
                    step, rounds, seconds = first, rounds + 1, 2 * seconds
                seed = (seed + 1) % (MOST + 1)

    def run_chain_heuristics(self, *, cheaper: bool = False) -> None:
        """Run heuristics on chains of blocks, for the least peak or for a lower cost at the known one."""
        if self.clock.expired:
            return
        names = chain_starts(self.problem) if self.num_ops > EXHAUSTIVE_OPS else []
        # Lower sets hold too much for low peaks, and few stages find cheap schedules only.
        for name in (name for name in names if name != LOWER and (cheaper or name != FEW)):
            done = self.session.reached is not None or (self.over and not cheaper) or (self.quick and name != BLOCKS)
            if done or self.clock.expired:
                return
            with self.session.timed(name):
                heuristic = self.made(name)
                if not self._ready(heuristic):
                    continue
                with contextlib.suppress(ProblemError):
                    budget = self.peak if cheaper else self.bound
                    self._attempt(heuristic, budget, self.share(CHAIN_SHARE), self.call.seed)

    def _ready(self, heuristic: Heuristic) -> bool:
        """Load the kernels of a heuristic; return False with a remark if that takes too long."""
        ready = heuristic.prepared(self.share(PREPARE_SHARE))
        if not ready:
            self.session.not_compiled(heuristic.name)
        return ready

    def _attempt(self, heuristic: Heuristic, budget: int, deadline: Deadline, seed: int) -> bool:
        """Run a heuristic with `budget`; return whether it found a schedule within it."""

        def on_schedule(schedule: Schedule) -> bool:
            certified = self.session.add(schedule, heuristic.name)
            return certified.certificate.peak <= budget or self.session.reached is not None

        options = replace(self.call, deadline=deadline, seed=seed, threads=1)
        problem = replace(self.problem, budget=budget)
        if (
            problem.plain is not problem and problem.plain.hopeless
        ):  # impossible without outputs in place of inputs, which heuristics do not support
            return False
        run = HeuristicRun(options, problem.for_plain(self.best.schedule), on_schedule, self.backend)
        schedule = None
        with contextlib.suppress(OverdueError):
            schedule = heuristic.run(problem.plain, run)
        self.session.note(overrun_remark(heuristic, deadline))
        return schedule is not None and self.session.add(schedule, heuristic.name).certificate.peak <= budget

    def _cheapen(self) -> None:
        """Search for cheaper schedules of the least known peak."""
        done = self.best.certificate.cost <= self.session.cost_bound or self.session.reached is not None
        if done or self.clock.expired:
            return
        with self.session.timed("cost"):
            if self.num_ops <= EXHAUSTIVE_OPS:
                limit, share = self.best.certificate.cost, self.share(EXHAUSTIVE_SHARE)
                found = explore(self.problem, Aim.COST, limit=limit, peak=self.peak, deadline=share)
                if found is not None:
                    self.session.cost_bound = found.bound
                    if found.schedule is not None:
                        self.session.add(found.schedule, "exhaustive search")
                    if self.best.certificate.cost <= self.session.cost_bound:
                        return
            self.run_chain_heuristics(cheaper=True)
            if self.num_ops > EXHAUSTIVE_OPS:
                self._cheapen_by("drops", CHAIN_SHARE, EXHAUSTIVE_SECONDS)
            self._cheapen_by("annealing", 1.0, 8 * max(ATTEMPT_LEAST, ATTEMPT_PER_OP * self.num_ops))

    def _cheapen_by(self, name: str, share: float, endless: float) -> None:
        """Run a heuristic for a cheaper schedule of the least known peak, for a share of the time left."""
        heuristic = self.made(name)
        if self._ready(heuristic):
            self._attempt(heuristic, self.peak, self.clock.share(share, endless), self.call.seed)

    # -- a solver ----------------------------------------------------------------------------------------------------

    def solve_model(self, deadline: Deadline) -> None:
        """Minimise the peak in the model of retention intervals."""
        if self.backend is None or self.clock.expired:
            return
        session, known = self.session, self.bound
        self.model(RetentionIntervals, self.backend, replace(self.call, deadline=deadline, relative_gap=0.0))
        if self.bound > known:
            session.bound_kind, session.bound_cause = f"{RetentionIntervals.name} by {self.backend.full_name}", ""


#: The search as a table: stage, share of the time left, condition.
STAGES = (
    Stage(MinPeakSearch.order_at_once, ORDERING_SHARE, when=MinPeakSearch.only_orders),
    Stage(MinPeakSearch.order_meanwhile, ONLY_ORDERING_SHARE, when=MinPeakSearch.orders_count),
    Stage(MinPeakSearch.order, when=lambda search: search.only_orders() and Portfolio.compiled()),
    Stage(MinPeakSearch.bounds, BOUND_SHARE, when=lambda search: not (search.only_orders() and search.clock.expired)),
    # schedules without recomputation are found fastest
    Stage(MinPeakSearch.order, when=lambda search: search.orders_left() and Portfolio.compiled()),
    Stage(lambda search, _: search.run_chain_heuristics()),
    Stage(MinPeakSearch.descend_quickly),
    Stage(MinPeakSearch.order, when=MinPeakSearch.orders_left),
    Stage(MinPeakSearch.exhaust, EXHAUSTIVE_SHARE, when=lambda search: search.num_ops <= EXHAUSTIVE_OPS),
    Stage(lambda search, deadline: search.descend("annealing", deadline), ANNEALING_SHARE),
    Stage(MinPeakSearch.solve_model, MODEL_SHARE, when=lambda search: search.num_ops <= MODEL_OPS),
)
