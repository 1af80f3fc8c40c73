"""The search for the smallest budget: descent on the budget by heuristics, exhaustive search, and a solver."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from remat.backends.base import MOST, Status, StopReason, Values
from remat.bounds.non_recomputable import held_bound
from remat.bounds.structural import structural_bound
from remat.compiled import begin
from remat.deadline import Deadline, OverdueError
from remat.errors import ProblemError
from remat.formulations.retention_intervals import RetentionIntervals
from remat.heuristics.base import Heuristic, HeuristicRun, went_on
from remat.ordering.best_first import MOST_STATES, Aim, Explored, explore
from remat.ordering.valley import Portfolio
from remat.problem import Objective, Problem
from remat.registry import heuristics, load
from remat.schedule import OrderRule, Schedule
from remat.scope import covers
from remat.solving.backend_call import SolverFailedError, call_backend
from remat.solving.chain_starts import BLOCKS, FEW, LOWER, chain_start, chain_starts
from remat.solving.incumbents import Certified, Reader, lower_bound
from remat.solving.warm_start import best_hint

if TYPE_CHECKING:
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
#: Ops up to which everything is searched, a solver is asked, and orders are searched with and without compiled code.
EXHAUSTIVE_OPS, MODEL_OPS, ORDERING_OPS, SLOW_ORDERING_OPS = 24, 250, 20_000, 200
#: States times ops up to which the search without compiled code is quicker than loading the other: some tenths of a
#: second.
FIRST_WORK = 200_000
#: Ops up to which rules are asked before compiled code, which asks them again.
FIRST_RULES_OPS = 2_000


class MinPeakSearch:
    """The search on one session, whose problem asks for the least peak; see :func:`remat.solving.min_peak.minimize`.

    Parameters
    ----------
    session : Session
        Its backend solves the preliminary model; None: no solver.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.call, self.backend = session, session.call, session.solver
        #: The same rules without a limit of memory, for whatever wants a limit of its own.
        self.problem = replace(session.problem, budget=None, objective=Objective.LEAST_COST)
        self.incumbents, self.reference = session.incumbents, session.reference
        self.num_ops = len(self.problem.graph.ops)

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
    def proved(self) -> bool:
        """Whether no schedule has a lower peak, or as low as is asked for is reached."""
        return self.bound >= self.peak or self.session.reached is not None

    # -- the way -----------------------------------------------------------------------------------------------------

    def run(self, *, quick: bool = False) -> None:
        """Search until the deadline, or until there is nothing more to try; `quick`: heuristics alone."""
        deadline = self.call.deadline
        if self._only_orders:
            self._order_at_once()
        if self._orders_count and not self.proved:
            begin(*Portfolio.kernels)
            if self._only_orders and not Portfolio.compiled():  # which takes ten seconds and more
                with self.session.timed("ordering"):
                    self._order_slowly(self._share(ONLY_ORDERING_SHARE).until(Portfolio.compiled))
        compiled = Portfolio.compiled()
        if compiled and self._only_orders:
            self._order()
        if not self.proved and not (self._only_orders and deadline.expired):
            with self.session.timed("bounds"):
                self._bounds(self._share(BOUND_SHARE))
        if compiled and not self._only_orders:  # what needs no recomputation is found soonest
            self._order()
        self.ask_chains(quick=quick)
        for name in self._quick_ones(quick=quick):
            self.descend(name, self._share(GREEDY_SHARE))
        if not compiled:
            self._order()
        if not quick:
            self._exhaust()
        if not quick or deadline.remaining > LOADING_LEAST:
            self.descend("annealing", deadline if quick else self._share(ANNEALING_SHARE))
        if not quick:
            self._ask_solver()
            self._cheapen()
            if math.isfinite(deadline.seconds):  # time is left where there was nothing to cheapen
                self.descend("annealing", deadline)
        self.session.conclude()

    def run_heuristic(self, heuristic: Heuristic) -> None:
        """The bounds, and the descent by one heuristic, which knows nothing but budgets."""
        with self.session.timed("bounds"):
            self._bounds(self._share(BOUND_SHARE))
        self.descend(heuristic.name, self.call.deadline, heuristic)
        self.session.conclude()

    def _bounds(self, deadline: Deadline) -> None:
        found = held_bound(self.problem, deadline=deadline)
        self.session.raise_peak_bound(found.value or 0, found.kind, found.cause)

    @property
    def _orders_count(self) -> bool:
        """Whether another order of the ops may be taken, and there are not too many for that."""
        return self.problem.order is OrderRule.FREE and self.num_ops <= ORDERING_OPS

    @property
    def _only_orders(self) -> bool:
        """Whether there is nothing else that may be changed."""
        return self._orders_count and all(limit == 1 for limit in self.problem.compute_limits)

    def _order_at_once(self) -> None:
        """What no compiled code is loaded for: enough for small networks, and for others whose largest op decides."""
        found = structural_bound(self.problem)
        self.session.raise_peak_bound(found.value or 0, found.kind, found.cause)
        with self.session.timed("ordering"):
            if self.num_ops <= FIRST_RULES_OPS or not Portfolio.compiled():
                deadline = self._share(ORDERING_SHARE)
                for rule in Portfolio.rules:
                    if self.proved:
                        return
                    self.session.ask_order(rule(), deadline)
            self._order_slowly(self._share(ORDERING_SHARE), FIRST_WORK // self.num_ops)

    def _order(self) -> None:
        """The least peak of all orders without recomputation: often low already, and it may be all that is allowed."""
        if self.proved or not self._orders_count:
            return
        deadline = self._share(ONLY_ORDERING_SHARE if self._only_orders else ORDERING_SHARE)
        search = Portfolio()
        with self.session.timed("ordering"):
            if not search.prepared(deadline):
                self.session.not_compiled(search.name)
                self._order_slowly(deadline)
                return
            found = self.session.ask_order(search, deadline, self.peak, lambda: self.proved)
            if self._only_orders:
                self.session.raise_peak_bound(found.bound, search.name)

    def _order_slowly(self, deadline: Deadline, most_states: int = MOST_STATES) -> None:
        """The same for small graphs, by a search that needs no compiled code."""
        if self.proved or self.num_ops > SLOW_ORDERING_OPS:
            return
        once, floor = replace(self.problem, max_computes=1), self.bound if self._only_orders else 0
        found = explore(once, Aim.PEAK, limit=self.peak, floor=floor, deadline=deadline, most_states=most_states)
        if found is None:
            return
        self.session.states = (self.session.states or 0) + found.states
        if found.schedule is not None:
            self.session.see(found.schedule, "best-first search over orders")
        if self._only_orders:
            self.session.raise_peak_bound(found.bound, "best-first search over orders")

    def _exhaust(self) -> None:
        if self.proved or self.num_ops > EXHAUSTIVE_OPS:
            return
        with self.session.timed("exhaustive"):
            found = self._explored(self.problem, self.bound, EXHAUSTIVE_SHARE)
            if found is not None:
                self.session.raise_peak_bound(found.bound, "exhaustive search")

    def _explored(self, problem: Problem, floor: int, share: float) -> Explored | None:
        found = explore(problem, Aim.PEAK, limit=self.peak, floor=floor, deadline=self._share(share))
        if found is not None and found.schedule is not None:
            self.session.see(found.schedule, "exhaustive search")
        return found

    # -- heuristics --------------------------------------------------------------------------------------------------

    def _quick_ones(self, *, quick: bool) -> list[str]:
        """Heuristics that are asked before annealing: where there are no blocks drops, last while they are compiled."""
        names = ["eviction", "greedy"]
        late = self.proved or self.call.deadline.remaining <= (LOADING_LEAST if quick else 0)
        large = self.num_ops > EXHAUSTIVE_OPS and "drops" in heuristics()
        if large and not late and not chain_starts(self.problem):
            drops = load("heuristics", "drops")
            begin(*drops.kernels)
            names.insert(0 if drops.compiled() else len(names), "drops")
        return names

    def descend(self, name: str, deadline: Deadline, given: Heuristic | None = None) -> None:
        """Ask for less and less: in longer steps after a success, in shorter ones after a failure."""
        # Loading what comes too late takes tenths of a second, each time.
        if self.proved or self.call.deadline.expired or (given is None and name not in heuristics()):
            return
        first, most_rounds = FIRST_STEP.get(name, 0.5), ROUNDS.get(name, 1)
        with self.session.timed(name):
            heuristic: Heuristic = given or load("heuristics", name)()
            if given is None and not self._ready(heuristic):
                return
            seconds = max(ATTEMPT_LEAST, ATTEMPT_PER_OP * self.num_ops)
            seconds = min(seconds, deadline.remaining / 4)
            step, rounds, seed = first, 0, self.call.seed
            while not self.proved and not deadline.expired and rounds < most_rounds:
                open_bytes = self.peak - self.bound
                target = self.peak - max(1, int(step * open_bytes))
                if self._attempt(heuristic, target, deadline.earlier(seconds), seed):
                    step = min(0.5, 2 * step)
                elif step * open_bytes > 1 and step > LAST_STEP:
                    step /= 2
                else:
                    step, rounds, seconds = first, rounds + 1, 2 * seconds
                seed = (seed + 1) % (MOST + 1)

    def ask_chains(self, *, quick: bool = False, cheaper: bool = False) -> None:
        """Ask heuristics on chains of blocks for the least peak, or for a lower cost at the one that is known."""
        if self.call.deadline.expired:
            return
        names = chain_starts(self.problem) if self.num_ops > EXHAUSTIVE_OPS else []
        # Lower sets hold too much where little may be held, and few stages find what is cheap.
        for name in (name for name in names if name != LOWER and (cheaper or name != FEW)):
            done = self.session.reached is not None or (self.proved and not cheaper) or (quick and name != BLOCKS)
            if done or self.call.deadline.expired:
                return
            with self.session.timed(name):
                heuristic = chain_start(name)
                if not self._ready(heuristic):
                    continue
                with contextlib.suppress(ProblemError):
                    budget = self.peak if cheaper else self.bound
                    self._attempt(heuristic, budget, self._share(CHAIN_SHARE), self.call.seed)

    def _ready(self, heuristic: Heuristic) -> bool:
        """Load the compiled code of a heuristic; return False with a remark if that takes too long."""
        ready = heuristic.prepared(self._share(PREPARE_SHARE))
        if not ready:
            self.session.not_compiled(heuristic.name)
        return ready

    def _attempt(self, heuristic: Heuristic, budget: int, deadline: Deadline, seed: int) -> bool:
        """Let a heuristic look for a schedule within `budget`; whether it found one."""

        def on_schedule(schedule: Schedule) -> bool:
            seen = self.session.see(schedule, heuristic.name)
            return seen.certificate.peak <= budget or self.session.reached is not None

        options = replace(self.call, deadline=deadline, seed=seed, threads=1)
        run = HeuristicRun(options, self.best.schedule, on_schedule, self.backend)
        schedule = None
        with contextlib.suppress(OverdueError):
            schedule = heuristic.run(replace(self.problem, budget=budget), run)
        self.session.note(went_on(heuristic, deadline))
        return schedule is not None and self.session.see(schedule, heuristic.name).certificate.peak <= budget

    def _cheapen(self) -> None:
        """Among schedules of the least peak known, look for cheaper ones."""
        done = self.best.certificate.cost <= self.session.cost_bound or self.session.reached is not None
        if done or self.call.deadline.expired:
            return
        with self.session.timed("cost"):
            if self.num_ops <= EXHAUSTIVE_OPS:
                limit, share = self.best.certificate.cost, self._share(EXHAUSTIVE_SHARE)
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
        heuristic = load("heuristics", name)() if name in heuristics() else None
        if heuristic is not None and self._ready(heuristic):
            self._attempt(heuristic, self.peak, self.call.deadline.share(share, endless), self.call.seed)

    # -- a solver ----------------------------------------------------------------------------------------------------

    def _ask_solver(self) -> None:
        """Minimise the peak by the preliminary model of retention intervals."""
        backend = self.backend
        if self.proved or backend is None or self.num_ops > MODEL_OPS or self.call.deadline.expired:
            return
        if not backend.ready().ready:
            self.session.note(f"backend {backend.full_name!r} cannot be used: {backend.ready().reason}")
            return
        with self.session.timed("preliminary"):
            deadline = self._share(MODEL_SHARE)
            try:
                formulation = RetentionIntervals(replace(self.problem, budget=self.bound))
                formulation.deadline = deadline
                model = formulation.build()
                preliminary = formulation.preliminary()
                assert preliminary is not None
                hint = best_hint(formulation, self.incumbents, self.reference)
                start = None if hint is None else preliminary.extend(hint)
            except OverdueError:
                self.session.note("the time was over before the preliminary model was built")
                return
            except ProblemError as error:
                self.session.note(f"no preliminary model: {error}")
                return
            source = f"{formulation.name} by {backend.full_name}"
            reader = Reader(self.incumbents, formulation, model, source)
            proves = covers(formulation.scope(), self.problem)

            def on_values(values: Values, _objective: float) -> bool:
                self.session.check(reader.preliminary(values))
                return self.proved

            def on_bound(value: float | None) -> None:
                better = lower_bound(value)
                if proves and better is not None and better > formulation.capacity:
                    self.session.raise_peak_bound(formulation.held + formulation.unit * better, source)

            call = replace(self.call, deadline=deadline, relative_gap=0.0)
            try:
                raw = call_backend(backend, preliminary.model, call, start, on_values=on_values, on_bound=on_bound)
            except SolverFailedError as crash:
                self.session.note(f"{crash}; the schedule found before is kept")
                return
            self.session.versions.update(raw.versions)
            on_bound(raw.objective if raw.bound is None and raw.status is Status.OPTIMAL else raw.bound)
            if raw.stop is StopReason.INTERRUPTED:
                raise KeyboardInterrupt

    def _share(self, share: float) -> Deadline:
        """A share of the time left; a minute where there is no deadline."""
        return self.call.deadline.share(share, EXHAUSTIVE_SECONDS)
