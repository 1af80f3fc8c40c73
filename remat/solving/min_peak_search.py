"""Search for the smallest budget: heuristics with ever smaller budgets, exhaustive search, and a solver."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from itertools import islice

from remat.backends.choice import as_backend
from remat.bounds.live_set_bound import LiveSetSearch
from remat.bounds.peak_bounds import held_bound, structural_bound
from remat.errors import ProblemError
from remat.heuristics.base import Heuristic, HeuristicRun, overrun_remark
from remat.ordering.best_first import MOST_STATES, Aim, explore
from remat.ordering.live_search import ENDLESS as NO_SCHEDULE
from remat.ordering.live_search import KERNELS as LIVE_SEARCH
from remat.ordering.live_search import LiveSearch
from remat.ordering.live_sets import MOST as LIVE_SEARCH_OPS
from remat.ordering.valley import Portfolio
from remat.problem import Objective
from remat.problem.scope import covers
from remat.registry import formulations, load
from remat.runtime.compiled import begin
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import MOST
from remat.schedule import OrderRule, Schedule
from remat.solving.chain_starts import BLOCKS, FEW, LIMITS, OPTIONS, ROTOR
from remat.solving.incumbents import Certified
from remat.solving.model_solve import ModelSolve
from remat.solving.portfolio import BRIEF_SEARCH, EXHAUSTIVE_OPS, LOADING, Policy, Stage
from remat.solving.session import Session

#: Seconds of the first attempt at one budget: per op, and minimum. They double when a descent restarts.
ATTEMPT_PER_OP, ATTEMPT_LEAST = 0.002, 0.1
#: Number of descents: one for constructive heuristics, several for others while time remains.
ROUNDS = {"eviction": 1, "greedy": 1, "annealing": 4}
#: Share of the gap that the first attempt of a round closes, and the smallest share tried.
FIRST_STEP, LAST_STEP = {"drops": 1 / 8, "eviction": 0.5, "greedy": 0.5, "annealing": 1 / 16}, 1 / 64
#: Shares of the time left for bounds, and for loading a heuristic.
BOUND_SHARE, PREPARE_SHARE = 0.3, 0.6
#: Share of the stage of live sets for the first pass of the search, and shares of what is left for others; after each,
#: schedules are built.
FIRST_SHARE, DECIDING_SHARES = 0.85, (0.6, 0.85)
#: Peak relative to the least one so far from which schedules are built during the search.
MUCH_LOWER = 0.99
#: Shares of the time left for the search for the cheapest schedule with that peak: exhaustive, and by each heuristic.
EXHAUSTIVE_SHARE, CHEAPER_SHARE = 0.3, 0.15
#: Seconds of a share without a deadline.
ENDLESS = 60.0
#: Seconds below which a quick search loads no kernels of drops or annealing.
LOADING_LEAST = 1.0
#: Ops up to which orders are searched with and without kernels.
ORDERING_OPS, SLOW_ORDERING_OPS = 20_000, 200
#: Maximum seconds of the first runs of eviction, greedy and Rotor.
FIRST_SECONDS = 2.0
#: Ops up to which training graphs search live sets early: the first pass takes 4 s of processor time on 2,600 ops, and
#: its schedules often have too many computes.
FIRST_LIVE_OPS = 3_000
#: States times ops up to which the interpreted search is faster than loading the compiled one, some tenths of a second.
FIRST_WORK = 200_000
#: Ops up to which rules run before compiled code, which runs them again.
FIRST_RULES_OPS = 2_000

#: Schedules without recomputation are found fastest, and may be all that is allowed.
_ORDERS = (
    Stage("interpreted-order", 0.6, max_ops=ORDERING_OPS, when=("free-order",)),
    Stage("order", 0.6, max_ops=ORDERING_OPS, when=("free-order", "once")),
    Stage("bounds", BOUND_SHARE),
    Stage("order", 0.2, max_ops=ORDERING_OPS, when=("free-order",)),
)
_BRIEF = (
    Stage(BLOCKS, 0.15, when=("training",), wait=True),
    Stage("drops", 0.2, when=("no-training", "not-tiny")),
)
_LONGER = (
    Stage("eviction", 0.2),
    Stage("greedy", 0.2),
    Stage("drops", 0.2, when=("compiling",), wait=True),
    Stage("order", 0.6, max_ops=ORDERING_OPS, when=("free-order", "once"), wait=True),
    Stage("order", 0.2, max_ops=ORDERING_OPS, when=("free-order",), wait=True),
)
#: The table of a quick search, by heuristics alone.
QUICK_STAGES = (*_ORDERS, *_BRIEF, *_LONGER)
#: The whole search as a table. Eviction and greedy mostly end in their first attempts, or where live sets lead lower.
STAGES = (
    *_ORDERS,
    Stage("eviction", 0.05, seconds=FIRST_SECONDS, when=("training",)),
    *_BRIEF,
    Stage("eviction", 0.05, seconds=FIRST_SECONDS, when=("no-training",)),
    Stage("greedy", 0.05, seconds=FIRST_SECONDS),
    Stage(ROTOR, 0.15, seconds=FIRST_SECONDS, max_ops=LIMITS[ROTOR], when=("training",)),
    Stage("live-sets", 0.75, max_ops=FIRST_LIVE_OPS, when=("training",)),
    Stage(ROTOR, 0.3, max_ops=LIMITS[ROTOR], when=("training",), wait=True),
    Stage("live-sets", 0.6, when=("narrow",)),
    *_LONGER,
    Stage("exhaustive", 0.3, max_ops=EXHAUSTIVE_OPS),
    Stage("live-sets", 0.8, when=("narrow",)),
    Stage("live-sets", 0.7),
    Stage("live-search", 0.5, max_ops=LIVE_SEARCH_OPS, when=("free-order", "no-training", "not-tiny")),
    Stage("annealing", 0.5, wait=True),
    Stage("retention-intervals", 0.5, max_ops=250),
)


class MinPeakSearch(Policy):
    """Search for the least peak on one session; see :func:`remat.solving.min_peak.minimize`.

    `session`: its backend solves the model; None: no solver. `quick`: heuristics only.
    """

    endless = ENDLESS

    def __init__(self, session: Session, *, quick: bool = False) -> None:
        super().__init__(session)
        self.call, self.backend, self.quick = session.call, session.solver, quick
        #: The same rules without a budget, for searches with budgets of their own.
        self.problem = replace(session.problem, budget=None, objective=Objective.LEAST_COST)
        self.incumbents = session.incumbents
        self.ordered = False
        self.live_sets: LiveSetSearch | None = None

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
        """Return True if the least peak is proved or the stopping criterion reached; time may remain for the cost."""
        return self.bound >= self.peak or self.session.reached is not None

    @property
    def is_cheapest(self) -> bool:
        """Return True if no schedule of the least known peak costs less than the best one."""
        return self.best.certificate.cost <= self.session.cost_bound

    # -- stages ------------------------------------------------------------------------------------------------------

    def run(self, stages: tuple[Stage, ...] | None = None) -> None:
        """Run the stages, by default :data:`STAGES`, then search for lower costs until the deadline."""
        self.follow(QUICK_STAGES if self.quick else STAGES if stages is None else stages)
        if not self.quick:
            self._cheapen()
        # Time remains if there was no cost to lower.
        if self.timed and not (self.quick and self.clock.remaining <= LOADING_LEAST):
            self.descend("annealing", self.clock)
        self.note_waiting()
        self.session.conclude()

    def run_heuristic(self, heuristic: Heuristic) -> None:
        """Compute the bounds, then descend by one heuristic, which supports budgets only."""
        self.bounds(self.share(BOUND_SHARE))
        self.descend(heuristic.name, self.clock, heuristic)
        self.session.conclude()

    def bounds(self, deadline: Deadline) -> bool:
        if self.only_orders() and self.clock.expired:  # the searches for an order have given a bound
            return False
        with self.session.timed("bounds"):
            found = held_bound(self.problem, deadline=deadline)
            self.session.raise_peak_bound(found.value or 0, found.kind, found.cause)
        return True

    def live_set_search(self, deadline: Deadline) -> bool:
        """Continue the search of the live set bound, and add its schedules.

        One of a much lower peak is added at once, the others at the end. Return False if its first pass is not over, so
        that the next stage has its whole share.
        """
        if self.once or self.over:
            return False
        with self.session.timed("live-sets"):
            search = self.live_sets = self.live_sets or LiveSetSearch(self.problem)
            search.ask_gates(deadline)
            first, much_lower = deadline.share(FIRST_SHARE), MUCH_LOWER * self.peak
            # On small graphs, live search makes more of the time.
            for share in DECIDING_SHARES if self.num_ops > LIVE_SEARCH_OPS else DECIDING_SHARES[:1]:
                later = deadline.share(share)
                while search.advance(first if search.high is None else later):
                    self._raise_bound(search)
                    if search.high is not None and search.high < much_lower:
                        self._add_schedules(search, deadline, most=None if search.nearly_closed else 1)
                        much_lower = MUCH_LOWER * search.high
                self._raise_bound(search)
                if search.high is not None and search.high < self.peak:
                    self._add_schedules(search, deadline)
        return search.high is not None

    def live_search(self, deadline: Deadline) -> bool:
        """Halve the distance of bound and peak: find any schedule within a budget between them, or that none exists."""
        first = replace(self.problem, budget=self.peak)
        if not LiveSearch.applies(first) or not LIVE_SEARCH.ready(deadline.earlier(LOADING)):
            return False
        with self.session.timed("live-search"):
            while not self.over and not deadline.expired:
                budget = (self.bound + self.peak) // 2
                found = LiveSearch(replace(self.problem, budget=budget)).any_schedule(deadline=deadline)
                if found.schedule is not None:
                    self.session.add(found.schedule, "live-search")
                elif found.bound >= NO_SCHEDULE:
                    self.session.raise_peak_bound(budget + 1, "live-search")
        return True

    def _raise_bound(self, search: LiveSetSearch) -> None:
        found = search.bound()
        self.session.raise_peak_bound(found.value or 0, found.kind, found.cause)

    def _add_schedules(self, search: LiveSetSearch, deadline: Deadline, most: int | None = None) -> None:
        """Add the schedules of the search, the first `most` of them if that is given."""
        for schedule in islice(search.schedules(self.peak, deadline), most):
            self.session.add(schedule, "live set search")

    def only_orders(self) -> bool:
        """Return True if only the order may change, and the graph is small enough to search orders."""
        return self.problem.order is OrderRule.FREE and self.once and self.num_ops <= ORDERING_OPS

    def interpreted_order(self, deadline: Deadline) -> None:
        """Start compiling the order search, which takes over ten seconds; if only the order may change, search now.

        Searching now suffices for small networks, and for those whose largest op decides the peak.
        """
        if not self.only_orders():
            begin(*Portfolio.kernels)
            return
        found = structural_bound(self.problem)
        self.session.raise_peak_bound(found.value or 0, found.kind, found.cause)
        with self.session.timed("ordering"):
            if self.num_ops <= FIRST_RULES_OPS or not Portfolio.compiled():
                for rule in Portfolio.rules:
                    if self.over:
                        return
                    self.session.search_order(rule(), deadline)
            self._order_slowly(deadline, FIRST_WORK // self.num_ops)
            if not self.over:
                begin(*Portfolio.kernels)
                if not Portfolio.compiled():
                    self._order_slowly(deadline.until(Portfolio.compiled))

    def order(self, deadline: Deadline) -> bool:
        """Search for the order of least peak without recomputation; often its peak is low, or nothing else is allowed.

        Run once, at the first stage at which the code is ready or that waits for it; return whether it ran.
        """
        search = Portfolio()
        if self.ordered or not (search.compiled() or self.stage.wait):
            return False
        self.ordered = True
        with self.session.timed("ordering"):
            if not search.prepared(deadline):
                self.session.not_compiled(search.name)
                self._order_slowly(deadline)
                return True
            found = self.session.search_order(search, deadline, self.peak, lambda: self.over)
            if self.only_orders():
                self.session.raise_peak_bound(found.bound, search.name)
                if not self.session.orders.exact:  # the interpreted search decides which op reads last
                    self._order_slowly(self.deadline(self.stage))
        return True

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

    def heuristic(self, name: str, deadline: Deadline, *, wait: float) -> bool:
        """Descend by a heuristic; those for chains of blocks make one attempt, with the bound as the budget."""
        if self.quick and name in ("drops", "annealing") and self.clock.remaining <= LOADING_LEAST:
            return False
        heuristic = self.made(name)
        if wait <= 0 and not heuristic.compiled():
            begin(*heuristic.kernels)
            self.waiting.setdefault(name, self.stage)
            return False
        self.waiting.pop(name, None)
        if name in OPTIONS:
            self.attempt_once(name, self.bound, deadline)
        else:
            self.descend(name, deadline)
        return True

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

    def attempt_once(self, name: str, budget: int, deadline: Deadline) -> None:
        """Run a heuristic once with a budget, if it applies and its code is ready in time."""
        if self.clock.expired or self.session.reached is not None:
            return
        with self.session.timed(name):
            heuristic, began = self.made(name), self.clock.elapsed
            if self._ready(heuristic):
                with contextlib.suppress(ProblemError):
                    self._attempt(heuristic, budget, self.after_loading(deadline, began), self.call.seed)

    def _ready(self, heuristic: Heuristic) -> bool:
        """Load the kernels of a heuristic; return False with a remark if that takes too long."""
        ready = heuristic.prepared(self.share(PREPARE_SHARE))
        if not ready:
            self.session.not_compiled(heuristic.name)
        return ready

    def _attempt(self, heuristic: Heuristic, budget: int, deadline: Deadline, seed: int) -> bool:
        """Run a heuristic with `budget`; return whether it found a schedule within it.

        Below the least known peak its first schedule suffices. At this peak it lowers the cost, and may bound it.
        """
        lowers_peak = budget < self.peak

        def on_schedule(schedule: Schedule) -> bool:
            fits = self.session.add(schedule, heuristic.name).certificate.peak <= budget
            return self.session.reached is not None or (fits and (lowers_peak or self.is_cheapest))

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
        scope = None if lowers_peak or problem.plain is not problem else heuristic.scope
        if scope is not None and covers(scope, problem):
            self.session.cost_bound = max(self.session.cost_bound, heuristic.bound or 0)
        return schedule is not None and self.session.add(schedule, heuristic.name).certificate.peak <= budget

    def _cheapen(self) -> None:
        """Search for cheaper schedules of the least known peak."""
        if self.is_cheapest or self.session.reached is not None or self.clock.expired:
            return
        with self.session.timed("cost"):
            sets = LiveSearch.applies(replace(self.problem, budget=self.peak))
            if self.num_ops <= EXHAUSTIVE_OPS:
                self._cheapen_exhaustively(self.share(EXHAUSTIVE_SHARE, BRIEF_SEARCH if sets else math.inf))
            names = ["live-search"] if sets else []
            names += [BLOCKS, FEW, ROTOR] if self.training else []
            names += ["drops"] if self.num_ops > EXHAUSTIVE_OPS else []
            for name in names:
                if self.num_ops <= LIMITS.get(name, self.num_ops) and not self.is_cheapest:
                    self.attempt_once(name, self.peak, self.share(CHEAPER_SHARE))
            if not self.is_cheapest:
                endless = 8 * max(ATTEMPT_LEAST, ATTEMPT_PER_OP * self.num_ops)
                self.attempt_once("annealing", self.peak, self.clock.share(1.0, endless))

    def _cheapen_exhaustively(self, deadline: Deadline) -> None:
        found = explore(self.problem, Aim.COST, limit=self.best.certificate.cost, peak=self.peak, deadline=deadline)
        if found is not None:
            self.session.cost_bound = found.bound
            if found.schedule is not None:
                self.session.add(found.schedule, "exhaustive search")

    # -- a solver ----------------------------------------------------------------------------------------------------

    def method(self, stage: Stage) -> None:
        """Minimise the peak in the model of a formulation, if there is a solver."""
        session, known, name = self.session, self.bound, stage.method.partition("/")[0]
        if self.backend is None or self.clock.expired:
            return
        kind = load("formulations", name) if name in formulations() else None
        if kind is None or Objective.LEAST_PEAK not in kind.objectives:
            session.note(f"{name} was left out: it cannot state the least peak")
            return
        backend = as_backend(stage.method.partition("/")[2] or self.backend)
        options = kind.options_type(**stage.options) if stage.options else None
        call = replace(self.call, deadline=self.deadline(stage), relative_gap=0.0)
        session.part(name, lambda part: ModelSolve(part, kind, backend, options).run(), call, backend)
        if self.bound > known:
            session.bound_kind, session.bound_cause = f"{name} by {backend.full_name}", ""

    steps = {
        "interpreted-order": interpreted_order, "order": order, "bounds": bounds, "exhaustive": exhaust,
        "live-search": live_search, "live-sets": live_set_search,
    }  # fmt: skip
