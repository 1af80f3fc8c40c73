"""The default method: heuristics, bounds, search and a solver in turns, until a schedule meets a bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from remat.backends.base import Backend
from remat.compiled import COMPILING, begin
from remat.deadline import Deadline
from remat.errors import BackendError, ProblemError
from remat.heuristics.base import Heuristic
from remat.heuristics.greedy import Greedy
from remat.heuristics.turns import Turns
from remat.ordering.best_first import Aim, explore
from remat.registry import backends, formulations, heuristics, load, make_backend
from remat.runtime.resources import available_cpus
from remat.schedule import OrderRule, Schedule
from remat.schedule.certificate import overhead_text
from remat.scope import covers, own_scope
from remat.solving.bounding import raise_bounds
from remat.solving.chain_starts import BLOCKS, FEW, LOWER, OPTIONS, ROTOR, chain_start, chain_starts
from remat.solving.model_method import ModelMethod
from remat.solving.order_start import OrderStart
from remat.solving.session import Session

#: The name of the method.
AUTO = "auto"
#: Shares of the time left for drops, each other quick heuristic, the bounds, annealing and each whole model, at first.
DROPS_SHARE, QUICK_SHARE, BOUND_SHARE, ANNEALING_SHARE, MODEL_SHARE = 0.15, 0.1, 0.2, 0.2, 0.2
#: Shares of the time left for the heuristics on training graphs. Block checkpointing and Rotor end by themselves, after
#: tenths of a second on some hundred ops; cut short on thousands, they leave behind what search does not make up for.
CHAIN_SHARE = {BLOCKS: 0.3, LOWER: 0.05, FEW: 0.2, ROTOR: 0.4}
#: Share of the time left for orders without recomputation.
ORDER_SHARE = 0.1
#: Share of the time left for each whole model while something is still being compiled: little else can be done. It ends
#: as soon as some of that is ready, and is solved anew after that.
PATIENT_SHARE = 0.7
#: Seconds between two looks at whether it is.
LOOK = 0.1
#: Share of the time left in which there is to be some schedule before anything else is done.
FIRST_SHARE = 0.4
#: Seconds for each op that quick heuristics and bounds are given at most, and at least.
PER_OP, LEAST = 0.02, 3.0
#: Share of the time left, and most seconds, that compiled code is waited for while there is something else to do, and
#: most seconds where it is only to be loaded: less than one on an idle processor.
WAIT_SHARE, WAIT, LOADING = 0.2, 2.0, 10.0
#: Ops up to which quick heuristics that are not compiled run beside drops, their most seconds then, and where there is
#: no schedule yet, ops and seconds.
BESIDE_DROPS = {"eviction": (1_500, 0.5), "greedy": (300, 1.0)}
WITHOUT_DROPS = {"eviction": (20_000, 10.0), "greedy": (300, 2.0)}
#: Ops up to which greedy rematerialization runs until drops are compiled.
GREEDY_OPS = 2_000
#: Ops up to which neighbourhoods are searched by models.
LNS_OPS = 5000
#: Ops up to which a whole model is worth building, where the order is fixed and where it is free.
MODEL_OPS = {OrderRule.FIXED: 600, OrderRule.FREE: 60}
#: Shares of the time that steps begin with once they take turns; what they bring moves them.
SHARES = {"annealing": 0.6, "lns": 0.2, "bounds": 0.2}
#: Seconds of a turn: share of the time left, at most, and by how much it grows while turns bring nothing. Annealing
#: goes on where its last turn ended, the others begin anew.
TURN_SHARE, TURN, GROWTH = 0.1, 10.0, 1.5
#: Ops up to which everything is searched, and more than any schedule costs.
EXHAUSTIVE_OPS, MOST_COST = 24, 2**62
#: Whole models by backend family, in order: formulation, its options, and the backend where it is another one.
STAGES = ("stages", {"ahead": False}, "highs")
INTERVALS: tuple[str, dict[str, Any], str] = ("retention-intervals", {}, "")
MODELS = {"cp-sat": (STAGES, INTERVALS), "minizinc": (INTERVALS,)}
OTHER_MODELS = (("stages", {"ahead": False}, ""),)


class Auto:
    """The method ``auto`` on one session.

    0. Where the order is free, one without recomputation that fits, by rules and a search for the order of least peak:
       nothing costs less. If none fits, the others begin from the order of least peak that was found.
    1. Quick heuristics: on training graphs block checkpointing, then drops, on training graphs lower sets, few stages
       and Rotor, and for some hundred ops eviction and greedy rematerialization (fixed order only). What has to be
       compiled first is tried again later; until drops are, Python itself runs them up to a first schedule.
    2. Exhaustive search, where there are few ops.
    3. Annealing for a moment, where there is no schedule within the budget yet; then the best bound that holds for
       every schedule the problem allows. Bounds come again later, with more time, if they are open.
    4. Annealing, from what is there.
    5. Whole models, where they are small enough, from the best schedule. With CP-SAT these are the stage formulation by
       HiGHS, which is at its best on training graphs, and retention intervals. What is proved of a narrower scope is a
       remark; the bound of the result stays one for all schedules.
    6. While there is time: bounds, large neighbourhood search and annealing in turns (:mod:`remat.heuristics.turns`):
       more for those that bring more. Annealing goes on where it was.

    It ends when the cost of the best schedule is the bound, and at the deadline; without a deadline, after step 5.
    """

    def __init__(self, session: Session, backend: Backend, warm_start: Schedule | None) -> None:
        self.session, self.backend, self.warm_start = session, backend, warm_start
        self.problem, self.clock = session.problem, session.call.deadline
        self.fixed = self.problem.order is OrderRule.FIXED
        self.num_ops = len(self.problem.graph.ops)
        self.chains = chain_starts(self.problem) if self.num_ops > EXHAUSTIVE_OPS else []
        self.small = self.num_ops <= MODEL_OPS[OrderRule(self.problem.order)]
        self.seeds = 0
        self.kept: dict[str, Heuristic] = {}
        """Heuristics that ran before, or are still being compiled."""
        self.waiting: list[str] = []
        self.spent = dict.fromkeys(SHARES, 0.0)
        """Seconds that those who take turns have had."""
        self.last_bounds = 0.0
        """Of these, what bounds had when they were last asked."""
        self.order = OrderStart(session)

    def run(self) -> None:
        """Go through the steps until the session is decided or time is up."""
        self._compile()
        try:
            self._order()
            self._quick()
            self._exhaust(self._share(BOUND_SHARE))
            if self.session.best is None:  # something soon, before what proves how good it is
                self._heuristic("annealing", self._share(QUICK_SHARE, PER_OP * self.num_ops))
            self._bounds(self._share(BOUND_SHARE, max(LEAST, PER_OP * self.num_ops)))
            endless = math.isinf(self.clock.seconds)
            self._try_again()
            if self.small or endless:
                self._heuristic("annealing", self._share(ANNEALING_SHARE), wait=self._patience("annealing"))
                self._bounds(self._share(BOUND_SHARE))
            if self.small:
                self._models()
            if not endless:
                self._in_turns()
        finally:
            for name in self.waiting:
                self.session.not_compiled(name)

    def _order(self) -> None:
        """Look for an order that fits without recomputation, or one to begin with."""
        if not self._over():
            endless = math.isinf(self.clock.seconds)
            ready = self.order.compiled or (endless and self.num_ops > EXHAUSTIVE_OPS)
            wait = self.clock if endless else self.clock.earlier(min(WAIT, WAIT_SHARE * self.clock.remaining))
            deadline = self._share(ORDER_SHARE, max(LEAST, PER_OP * self.num_ops))
            self.order.run(deadline, wait if ready else None)
            if self.warm_start is None:
                self.warm_start = self.order.order

    def _quick(self) -> None:
        """Find a first schedule: by drops, and by what needs no compiled code."""
        tiny = self.num_ops <= EXHAUSTIVE_OPS  # what is compiled would be waited for longer than the search takes
        self._chain(BLOCKS)
        others_can = self.num_ops <= max(ops for ops, _ in WITHOUT_DROPS.values())
        if not self._on_disk("drops"):
            self._greedy()
        wait = 0.0 if tiny else self._patience("drops") if others_can else None
        self._heuristic("drops", self._share(DROPS_SHARE, max(LEAST, PER_OP * self.num_ops)), wait=wait)
        if "drops" in self.waiting and self.session.best is None:  # loading them takes long as well
            self._greedy()
        self._chain(LOWER)
        self._chain(FEW)
        self._chain(ROTOR)
        nothing = "drops" in self.waiting and self.session.best is None
        others, share = (WITHOUT_DROPS, FIRST_SHARE) if nothing else (BESIDE_DROPS, QUICK_SHARE)
        for name, (ops, seconds) in others.items():
            if self.num_ops <= ops and (self.fixed or name != "greedy"):
                self._heuristic(name, self._share(share, seconds))
        if self.session.best is None:
            self._chain(BLOCKS, FIRST_SHARE)
        if self.session.best is None and self.num_ops > EXHAUSTIVE_OPS:
            wait = FIRST_SHARE * self.clock.remaining
            self._heuristic("drops", self._share(FIRST_SHARE, PER_OP * self.num_ops), wait=wait)

    def _greedy(self) -> None:
        """Find a schedule by greedy rematerialization, in less time than compiling drops takes; once."""
        if not EXHAUSTIVE_OPS < self.num_ops <= GREEDY_OPS:  # fewer are searched sooner than numba is imported
            return
        if self._over() or Greedy.name in self.kept or Greedy.name not in heuristics():
            return
        self.kept[Greedy.name] = Greedy()
        ready = _Ready(lambda: self._loaded("drops") if "drops" in self.waiting else self._on_disk("drops"))
        with self.session.step(Greedy.name):
            share = self._share(QUICK_SHARE if self.chains else FIRST_SHARE)
            self.session.improve(self.kept[Greedy.name], share.until(ready), self.warm_start)

    def _chain(self, name: str, share: float | None = None) -> None:
        """Find a schedule by a heuristic on training graphs; it is waited for where nothing else finds one sooner."""
        if name in self.chains:
            wait = self._patience(name)  # imports it, which is not to be taken from its time
            deadline = self._share(CHAIN_SHARE[name] if share is None else share, max(LEAST, PER_OP * self.num_ops))
            alone = share is not None or (name == BLOCKS and self.num_ops > WITHOUT_DROPS["eviction"][0])
            self._heuristic(name, deadline, wait=FIRST_SHARE * self.clock.remaining if alone and wait == 0 else wait)

    def _in_turns(self) -> None:
        """Give turns to those that bring the most, until time is up."""
        turns, session = Turns(SHARES, self.spent), self.session
        while not self._over() and turns.arms:
            self._try_again()
            ready = [name for name in turns.arms if self._loaded(name)]
            again = GROWTH * self.last_bounds  # in less time than before, bounds would say the same once more
            if again > self.clock.remaining and ready != ["bounds"]:
                ready = [name for name in ready if name != "bounds"]
            name = turns.next(ready or None)
            seconds = max(1.0, min(TURN, TURN_SHARE * self.clock.remaining)) * GROWTH ** turns.arms[name].idle
            if name == "bounds":
                seconds = max(seconds, again)
            cost, bound, began = session.cost, session.bound, self.clock.elapsed
            deadline = self._share(1.0, seconds)
            if name == "bounds":
                went = self._bounds(deadline)
            else:
                went = self._heuristic(name, deadline, wait=WAIT if ready else math.inf)
            spent = self.clock.elapsed - began
            # Bounds that end before their time have no more to say.
            if (not went and name not in self.waiting) or (
                name == "bounds" and spent < 0.5 * (deadline.seconds - began)
            ):
                del turns.arms[name]
                continue
            before = 2 * self.problem.graph.base_cost if cost is None else cost
            saved = 0 if session.cost is None else max(0, before - session.cost)
            turns.add(name, max(spent, 0.01), saved + session.bound - bound)

    def _share(self, share: float, most: float = math.inf) -> Deadline:
        """A deadline after a share of the time left, and after `most` seconds."""
        return self.clock.share(share).earlier(most)

    def _over(self) -> bool:
        """Whether nothing is left to do, or no time."""
        return self.session.enough or self.clock.expired

    def _compile(self) -> None:
        """Where that has never been done, have compiled beside the first steps what the later ones need.

        What is waited for most comes first, and a processor is left to this process. On training graphs, block
        checkpointing finds a first schedule and is compiled within a second, and what drops and Rotor find is often
        close to the best. Of other problems, annealing closes the gap where they are small, and drops find a first
        schedule where they are large.
        """
        if self.chains:
            names = [BLOCKS, "drops", *(name for name in self.chains if name == ROTOR), "annealing"]
        else:
            names = ["annealing", "drops"] if self.small else ["drops", "annealing"]
        kernels = [kernels for name in names if name in heuristics() for kernels in load("heuristics", name).kernels]
        begin(*kernels, processes=max(1, available_cpus() - 1))

    # -- steps -------------------------------------------------------------------------------------------------------

    def _heuristic(self, name: str, deadline: Deadline, *, wait: float | None = None) -> bool:
        """Let a heuristic improve the best schedule, unless loading it takes over `wait` seconds; whether it ran.

        Without a deadline nothing comes later, so it is waited for.
        """
        if self._over() or name not in heuristics() or (name == "lns" and self.num_ops > LNS_OPS):
            return False
        session, kind = self.session, load("heuristics", name)
        if name not in self.kept:
            lns = self._options_of_lns(kind) if name == "lns" else None
            self.kept[name] = chain_start(name) if name in OPTIONS else kind(lns)
        heuristic = self.kept[name]
        if wait is None:
            remaining = self.clock.remaining
            most = LOADING if self._on_disk(name) else WAIT
            wait = min(most, WAIT_SHARE * remaining) if math.isfinite(remaining) else math.inf
        if wait <= 0 and not heuristic.prepared(self.clock.earlier(0.0)):
            self.waiting += [name] if name not in self.waiting else []
            return False
        best = session.best.schedule if session.best is not None else self.warm_start
        with session.step(name):
            began = self.clock.elapsed
            if not heuristic.prepared(self.clock.earlier(wait), lambda: session.enter(f"{name}: {COMPILING}")):
                self.waiting += [name] if name not in self.waiting else []
                return False
            self.waiting = [other for other in self.waiting if other != name]
            session.enter(name)
            # What loading took is not taken from the turn.
            deadline = self.clock.earlier(deadline.remaining + self.clock.elapsed - began)
            began = self.clock.elapsed
            try:
                session.improve(heuristic, deadline, best, self.seeds, self.clock)
                self.seeds += 1  # another turn is another seed
            except (ProblemError, BackendError) as error:
                session.note(f"{name} was left out: {error}")
                return False
            if name in self.spent:
                self.spent[name] += self.clock.elapsed - began
        return True

    def _try_again(self) -> None:
        """Run what had not been loaded when its time came."""
        if self.order.pending and not self.waiting and self.order.ready(Deadline(0.0)):
            self._order()
        for name in self.waiting:
            if self._loaded(name):
                share = CHAIN_SHARE.get(name, ANNEALING_SHARE if name == "annealing" else DROPS_SHARE)
                self._heuristic(name, self._share(share))

    def _patience(self, name: str) -> float | None:
        """How long to wait for a heuristic: not at all if it is still being compiled; None: until it is loaded."""
        return None if self._on_disk(name) or math.isinf(self.clock.seconds) else 0.0

    @staticmethod
    def _on_disk(name: str) -> bool:
        """Whether what a heuristic needs is compiled."""
        return name in heuristics() and load("heuristics", name).compiled()

    def _loaded(self, name: str) -> bool:
        """Whether a heuristic could run at once."""
        return name not in self.waiting or self.kept[name].prepared(Deadline(0.0))

    def _options_of_lns(self, kind: Any) -> Any:
        name, given, _ = MODELS.get(self.backend.name, OTHER_MODELS)[-1] if self.fixed else INTERVALS
        return kind.options_type(formulation=name, formulation_options=given)

    def _bounds(self, deadline: Deadline) -> bool:
        """Raise the bound on all schedules; whether there was anything to do."""
        if self._over() or self.problem.budget_bytes is None:
            return False
        began = self.clock.elapsed
        raise_bounds(self.session, deadline)
        self.last_bounds = self.clock.elapsed - began
        self.spent["bounds"] += self.last_bounds
        return True

    def _exhaust(self, deadline: Deadline) -> None:
        """Search everything."""
        session, budget = self.session, self.problem.budget_bytes
        if self._over() or self.num_ops > EXHAUSTIVE_OPS or budget is None:
            return
        limit = 1 + MOST_COST if session.cost is None else session.cost
        with session.step("exhaustive search"):
            found = explore(self.problem, Aim.COST, limit=limit, peak=budget, deadline=deadline)
            if found is None:
                return
            if found.schedule is not None:
                session.incumbents.see(found.schedule, "exhaustive search")
            if found.bound > MOST_COST:
                session.infeasible, session.scope = True, own_scope(self.problem)
                session.proof = " (by exhaustive search)"
            else:
                session.raise_bound(found.bound, own_scope(self.problem))

    def _models(self) -> None:
        """Solve whole models, in order; while something is compiled they are a pastime, and begin anew after it."""
        left = list(MODELS.get(self.backend.name, OTHER_MODELS) if self.fixed else (INTERVALS,))
        while left and not self._over():
            self._try_again()
            name, options, backend = left[0]
            if self.waiting and math.isfinite(self.clock.seconds):
                ready = _Ready(lambda: any(self._loaded(other) for other in self.waiting))
                self._model(name, options, backend, self._share(PATIENT_SHARE).until(ready))
                if ready():
                    continue
            else:
                self._model(name, options, backend, self._share(MODEL_SHARE))
            del left[0]

    def _model(self, name: str, given: dict[str, Any], other: str, deadline: Deadline) -> None:
        """Solve a whole model, from the best schedule."""
        session = self.session
        if self._over() or name not in formulations():
            return
        backend = make_backend(other) if other and other in backends() else self.backend
        kind = load("formulations", name)
        options = kind.options_type(**given) if given else None
        call = replace(session.call, deadline=deadline, solver=session.call.solver if backend is self.backend else {})
        if self.waiting:  # or the solver would take the time of the process that compiles
            call = replace(call, threads=max(1, (call.threads or available_cpus()) - 1))

        def solve(part: Session) -> None:
            ModelMethod(part, kind, backend, options).run()

        source = f"{name} by {backend.full_name}"
        part = session.part(name, solve, call, backend, step=source)
        if part is None or covers(part.scope, self.problem):
            return
        if part.infeasible:
            session.note(f"{source} proved that no schedule exists within {part.scope}")
        elif part.bound > session.bound:
            base = self.problem.graph.base_cost
            share = f" (overhead {overhead_text(part.bound, base)})" if base else ""
            session.note(f"no schedule costs less than {part.bound:,}{share} within {part.scope}")


class _Ready:
    """Whether something is so, asked by many and looked at now and then; once it is, it stays so."""

    def __init__(self, look: Callable[[], bool]) -> None:
        self.look, self.next, self.so = look, 0.0, False

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self.so and now >= self.next:
            self.next = now + LOOK
            self.so = self.look()
        return self.so
