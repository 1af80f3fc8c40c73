"""The search for the smallest budget: descent on the budget by heuristics, exhaustive search, and a solver."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

from remat.backends.base import MOST
from remat.bounds.non_recomputable import held_bound
from remat.bounds.structural import structural_bound
from remat.compiled import begin
from remat.deadline import Deadline, OverdueError
from remat.errors import ProblemError
from remat.formulations.retention_intervals import RetentionIntervals
from remat.heuristics.base import Heuristic, HeuristicRun, went_on
from remat.ordering.best_first import MOST_STATES, Aim, explore
from remat.ordering.valley import Portfolio
from remat.problem import Objective
from remat.schedule import OrderRule, Schedule
from remat.solving.chain_starts import BLOCKS, FEW, LOWER, chain_starts
from remat.solving.incumbents import Certified
from remat.solving.portfolio import EXHAUSTIVE_OPS, Policy, Stage
from remat.solving.session import Session

#: Seconds of the first attempt at one budget: for each op, and at least. They double when a descent starts again.
ATTEMPT_PER_OP, ATTEMPT_LEAST = 0.002, 0.1
#: How often a descent starts again: for what builds from nothing once, otherwise until time is over or this often.
ROUNDS = {"eviction": 1, "greedy": 1, "annealing": 4}
#: Shares of what is open above the bound that the first session of a round asks for, and the smallest that is asked.
FIRST_STEP, LAST_STEP = {"drops": 1 / 8, "eviction": 0.5, "greedy": 0.5, "annealing": 1 / 16}, 1 / 64
#: Shares of the time left: the bounds, loading a heuristic, eviction and greedy (each), annealing, the solver.
BOUND_SHARE, PREPARE_SHARE, GREEDY_SHARE, ANNEALING_SHARE, MODEL_SHARE = 0.3, 0.6, 0.2, 0.5, 0.5
#: Share of the time left for each heuristic on chains of blocks, and for drops at the least peak.
CHAIN_SHARE = 0.15
#: Share of the time left for the search over orders, also where nothing else may be changed, and for that over
#: everything; seconds where there is no deadline.
ORDERING_SHARE, ONLY_ORDERING_SHARE, EXHAUSTIVE_SHARE, EXHAUSTIVE_SECONDS = 0.2, 0.6, 0.3, 60.0
#: Seconds below which what is compiled is not worth loading.
LOADING_LEAST = 1.0
#: Ops up to which a solver is asked, and orders are searched with and without compiled code.
MODEL_OPS, ORDERING_OPS, SLOW_ORDERING_OPS = 250, 20_000, 200
#: States times ops up to which the search without compiled code is quicker than loading the other: some tenths of a
#: second.
FIRST_WORK = 200_000
#: Ops up to which rules are asked before compiled code, which asks them again.
FIRST_RULES_OPS = 2_000
#: Stages of a quick search, by heuristics alone.
QUICK_STAGES = 8


class MinPeakSearch(Policy):
    """The search on one session, whose problem asks for the least peak; see :func:`remat.solving.min_peak.minimize`.

    Parameters
    ----------
    session : Session
        Its backend solves the model; None: no solver.
    quick : bool
        Heuristics alone.
    """

    endless = EXHAUSTIVE_SECONDS

    def __init__(self, session: Session, *, quick: bool = False) -> None:
        super().__init__(session)
        self.call, self.backend, self.quick = session.call, session.solver, quick
        #: The same rules without a limit of memory, for whatever wants a limit of its own.
        self.problem = replace(session.problem, budget=None, objective=Objective.LEAST_COST)
        self.incumbents = session.incumbents
        self.ordered = False

    @property
    def best(self) -> Certified:
        """The schedule with the least peak so far, whatever the budget."""
        assert self.incumbents.least_peak is not None
        return self.incumbents.least_peak

    @property
    def peak(self) -> int:
        """Its peak, in bytes."""
        return self.best.certificate.peak

    @property
    def bound(self) -> int:
        """No schedule has a lower peak, in bytes."""
        return self.session.bound

    @property
    def over(self) -> bool:
        """Whether no schedule has a lower peak, or as low as is asked for is reached; time may be left for the cost."""
        return self.bound >= self.peak or self.session.reached is not None

    # -- the way -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Search until the deadline, or until there is nothing more to try."""
        self.follow(STAGES[:QUICK_STAGES] if self.quick else STAGES)
        if not self.quick:
            self._cheapen()
        # time is left where there was nothing to cheapen
        if self.clock.remaining > LOADING_LEAST if self.quick else math.isfinite(self.clock.seconds):
            self.descend("annealing", self.clock)
        self.session.conclude()

    def run_heuristic(self, heuristic: Heuristic) -> None:
        """The bounds, and the descent by one heuristic, which knows nothing but budgets."""
        self.bounds(self.share(BOUND_SHARE))
        self.descend(heuristic.name, self.clock, heuristic)
        self.session.conclude()

    def bounds(self, deadline: Deadline) -> bool:
        with self.session.timed("bounds"):
            found = held_bound(self.problem, deadline=deadline)
            self.session.raise_peak_bound(found.value or 0, found.kind, found.cause)
        return True

    def orders_count(self) -> bool:
        """Whether another order of the ops may be taken, and there are not too many for that."""
        return self.problem.order is OrderRule.FREE and self.num_ops <= ORDERING_OPS

    def orders_left(self) -> bool:
        """Whether the search for an order has not run yet."""
        return self.orders_count() and not self.ordered

    def only_orders(self) -> bool:
        """Whether there is nothing else that may be changed."""
        return self.orders_count() and self.once

    def order_at_once(self, deadline: Deadline) -> None:
        """What no compiled code is loaded for: enough for small networks, and for others whose largest op decides."""
        found = structural_bound(self.problem)
        self.session.raise_peak_bound(found.value or 0, found.kind, found.cause)
        with self.session.timed("ordering"):
            if self.num_ops <= FIRST_RULES_OPS or not Portfolio.compiled():
                for rule in Portfolio.rules:
                    if self.over:
                        return
                    self.session.ask_order(rule(), deadline)
            self._order_slowly(self.share(ORDERING_SHARE), FIRST_WORK // self.num_ops)

    def order_meanwhile(self, deadline: Deadline) -> None:
        """Have the search for an order compiled, which takes ten seconds and more; search slowly until it is."""
        begin(*Portfolio.kernels)
        if self.only_orders() and not Portfolio.compiled():
            with self.session.timed("ordering"):
                self._order_slowly(deadline.until(Portfolio.compiled))

    def order(self, _: Deadline) -> None:
        """The least peak of all orders without recomputation: often low already, and it may be all that is allowed."""
        deadline = self.share(ONLY_ORDERING_SHARE if self.only_orders() else ORDERING_SHARE)
        self.ordered, search = True, Portfolio()
        with self.session.timed("ordering"):
            if not search.prepared(deadline):
                self.session.not_compiled(search.name)
                self._order_slowly(deadline)
                return
            found = self.session.ask_order(search, deadline, self.peak, lambda: self.over)
            if self.only_orders():
                self.session.raise_peak_bound(found.bound, search.name)
                if not self.session.orders.exact:  # the other search decides who reads last
                    self._order_slowly(self.share(ORDERING_SHARE))

    def _order_slowly(self, deadline: Deadline, most_states: int = MOST_STATES) -> None:
        """The same for small graphs, by a search that needs no compiled code."""
        if self.over or self.num_ops > SLOW_ORDERING_OPS:
            return
        once, floor = replace(self.problem, max_computes=1), self.bound if self.only_orders() else 0
        found = explore(once, Aim.PEAK, limit=self.peak, floor=floor, deadline=deadline, most_states=most_states)
        if found is None:
            return
        self.session.states = (self.session.states or 0) + found.states
        if found.schedule is not None:
            self.session.see(found.schedule, "best-first search over orders")
        if self.only_orders():
            self.session.raise_peak_bound(found.bound, "best-first search over orders")

    def exhaust(self, deadline: Deadline) -> None:
        """Search everything for the least peak."""
        with self.session.timed("exhaustive"):
            found = explore(self.problem, Aim.PEAK, limit=self.peak, floor=self.bound, deadline=deadline)
            if found is not None and found.schedule is not None:
                self.session.see(found.schedule, "exhaustive search")
            if found is not None:
                self.session.raise_peak_bound(found.bound, "exhaustive search")

    # -- heuristics --------------------------------------------------------------------------------------------------

    def descend_quickly(self, _: Deadline) -> None:
        """Ask heuristics before annealing: where there are no blocks drops, last while they are compiled."""
        names = ["eviction", "greedy"]
        late = self.clock.remaining <= (LOADING_LEAST if self.quick else 0)
        if self.num_ops > EXHAUSTIVE_OPS and not late and not chain_starts(self.problem):
            drops = self.made("drops")
            begin(*drops.kernels)
            names.insert(0 if drops.compiled() else len(names), "drops")
        for name in names:
            self.descend(name, self.share(GREEDY_SHARE))

    def descend(self, name: str, deadline: Deadline, given: Heuristic | None = None) -> None:
        """Ask for less and less: in longer steps after a success, in shorter ones after a failure."""
        # Loading what comes too late takes tenths of a second, each time.
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

    def ask_chains(self, *, cheaper: bool = False) -> None:
        """Ask heuristics on chains of blocks for the least peak, or for a lower cost at the one that is known."""
        if self.clock.expired:
            return
        names = chain_starts(self.problem) if self.num_ops > EXHAUSTIVE_OPS else []
        # Lower sets hold too much where little may be held, and few stages find what is cheap.
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
        """Load the compiled code of a heuristic; return False with a remark if that takes too long."""
        ready = heuristic.prepared(self.share(PREPARE_SHARE))
        if not ready:
            self.session.not_compiled(heuristic.name)
        return ready

    def _attempt(self, heuristic: Heuristic, budget: int, deadline: Deadline, seed: int) -> bool:
        """Let a heuristic look for a schedule within `budget`; whether it found one."""

        def on_schedule(schedule: Schedule) -> bool:
            seen = self.session.see(schedule, heuristic.name)
            return seen.certificate.peak <= budget or self.session.reached is not None

        options = replace(self.call, deadline=deadline, seed=seed, threads=1)
        problem = replace(self.problem, budget=budget)
        if (
            problem.plain is not problem and problem.plain.hopeless
        ):  # not so for what writes outputs in place of inputs, which heuristics do not
            return False
        run = HeuristicRun(options, problem.for_plain(self.best.schedule), on_schedule, self.backend)
        schedule = None
        with contextlib.suppress(OverdueError):
            schedule = heuristic.run(problem.plain, run)
        self.session.note(went_on(heuristic, deadline))
        return schedule is not None and self.session.see(schedule, heuristic.name).certificate.peak <= budget

    def _cheapen(self) -> None:
        """Among schedules of the least peak known, look for cheaper ones."""
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
                        self.session.see(found.schedule, "exhaustive search")
                    if self.best.certificate.cost <= self.session.cost_bound:
                        return
            self.ask_chains(cheaper=True)
            if self.num_ops > EXHAUSTIVE_OPS:
                self._cheapen_by("drops", CHAIN_SHARE, EXHAUSTIVE_SECONDS)
            self._cheapen_by("annealing", 1.0, 8 * max(ATTEMPT_LEAST, ATTEMPT_PER_OP * self.num_ops))

    def _cheapen_by(self, name: str, share: float, endless: float) -> None:
        """Ask a heuristic for a cheaper schedule of the least peak known, in a share of the time left or so long."""
        heuristic = self.made(name)
        if self._ready(heuristic):
            self._attempt(heuristic, self.peak, self.clock.share(share, endless), self.call.seed)

    # -- a solver ----------------------------------------------------------------------------------------------------

    def ask_solver(self, deadline: Deadline) -> None:
        """Minimise the peak by the model of retention intervals."""
        if self.backend is None or self.clock.expired:
            return
        session, known = self.session, self.bound
        self.model(RetentionIntervals, self.backend, replace(self.call, deadline=deadline, relative_gap=0.0))
        if self.bound > known:
            session.bound_kind, session.bound_cause = f"{RetentionIntervals.name} by {self.backend.full_name}", ""


#: The search as a table: what runs, its share of the time left, and when.
STAGES = (
    Stage(MinPeakSearch.order_at_once, ORDERING_SHARE, when=MinPeakSearch.only_orders),
    Stage(MinPeakSearch.order_meanwhile, ONLY_ORDERING_SHARE, when=MinPeakSearch.orders_count),
    Stage(MinPeakSearch.order, when=lambda search: search.only_orders() and Portfolio.compiled()),
    Stage(MinPeakSearch.bounds, BOUND_SHARE, when=lambda search: not (search.only_orders() and search.clock.expired)),
    # what needs no recomputation is found soonest
    Stage(MinPeakSearch.order, when=lambda search: search.orders_left() and Portfolio.compiled()),
    Stage(lambda search, _: search.ask_chains()),
    Stage(MinPeakSearch.descend_quickly),
    Stage(MinPeakSearch.order, when=MinPeakSearch.orders_left),
    Stage(MinPeakSearch.exhaust, EXHAUSTIVE_SHARE, when=lambda search: search.num_ops <= EXHAUSTIVE_OPS),
    Stage(lambda search, deadline: search.descend("annealing", deadline), ANNEALING_SHARE),
    Stage(MinPeakSearch.ask_solver, MODEL_SHARE, when=lambda search: search.num_ops <= MODEL_OPS),
)
