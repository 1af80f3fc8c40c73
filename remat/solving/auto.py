"""Default method: heuristics, bounds, search and a solver in turns, until a schedule meets a bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from remat.heuristics.base import Heuristic
from remat.ordering.best_first import Aim, explore
from remat.ordering.rules import RULES
from remat.ordering.valley import Portfolio
from remat.problem.scope import covers, own_scope
from remat.registry import load, make_backend
from remat.runtime.compiled import begin
from remat.runtime.deadline import Deadline
from remat.runtime.resources import available_cpus
from remat.schedule import OrderRule
from remat.schedule.certificate import overhead_text
from remat.solving.chain_starts import BLOCKS, FEW, LOWER, ROTOR, chain_starts
from remat.solving.portfolio import EXHAUSTIVE_OPS, WAIT, WAIT_SHARE, Policy, Stage
from remat.solving.session import Session

#: Name of the method.
AUTO = "auto"
#: Initial shares of the time left: drops, each other quick heuristic, bounds, annealing, each whole model.
DROPS_SHARE, QUICK_SHARE, BOUND_SHARE, ANNEALING_SHARE, MODEL_SHARE = 0.15, 0.1, 0.2, 0.2, 0.2
#: Shares of the time left for heuristics on training graphs. Block checkpointing and Rotor finish after tenths of a
#: second on some hundred ops; if they are cut short on thousands, search does not recover the loss.
CHAIN_SHARE = {BLOCKS: 0.3, LOWER: 0.05, FEW: 0.2, ROTOR: 0.4}
#: Share of the time left for orders without recomputation, and its part for the search for one that fits; the rest is
#: for the order of least peak.
ORDER_SHARE, FITTING_SHARE = 0.1, 0.6
#: Share of the time left for each whole model while kernels are being compiled and little else can run. The model is
#: stopped when some of them are ready, and solved again after that.
PATIENT_SHARE = 0.7
#: Seconds between two checks of that.
CHECK_INTERVAL = 0.1
#: Share of the time left for finding a first schedule before anything else runs.
FIRST_SHARE = 0.4
#: Maximum seconds per op for quick heuristics and bounds, and the smallest such limit.
PER_OP, LEAST = 0.02, 3.0
#: Ops up to which interpreted quick heuristics run in addition to drops, and their maximum seconds; the same without
#: a schedule.
BESIDE_DROPS = {"eviction": (1_500, 0.5), "greedy": (300, 1.0)}
WITHOUT_DROPS = {"eviction": (20_000, 10.0), "greedy": (300, 2.0)}
#: Ops up to which greedy rematerialization runs while drops are being compiled.
GREEDY_OPS = 2_000
#: Ops up to which a whole model is built, for fixed and free orders.
MODEL_OPS = {OrderRule.FIXED: 600, OrderRule.FREE: 60}
#: Initial shares of the time in turns; they follow the improvements.
SHARES = {"annealing": 0.6, "lns": 0.2, "bounds": 0.2}
#: Above the cost of any schedule.
MOST_COST = 2**62
#: Whole models by backend family, in order: formulation, its options, and the backend if it is another one.
STAGED = ("stages", {"ahead": False}, "highs")
INTERVALS: tuple[str, dict[str, Any], str] = ("retention-intervals", {}, "")
MODELS = {"cp-sat": (STAGED, INTERVALS), "minizinc": (INTERVALS,)}
OTHER_MODELS = (("stages", {"ahead": False}, ""),)


class Auto(Policy):
    """Method ``auto`` on one session.

    0. For a free order, one without recomputation that fits, by rules and a search for the order of least peak: nothing
       costs less. If none fits, the others start from the order of least peak found.
    1. Quick heuristics: on training graphs block checkpointing, then drops, on training graphs lower sets, few stages
       and Rotor, and for some hundred ops eviction and greedy rematerialization (fixed order only). Heuristics that are
       still being compiled are tried again later; until drops are compiled, they run interpreted up to a first
       schedule.
    2. Exhaustive search for few ops.
    3. A short annealing if no schedule fits the budget yet; then the best bound on all schedules that the problem
       allows. Bounds that are not tight run again later with more time.
    4. Annealing from the best schedule.
    5. Whole models, if small enough, from the best schedule. With CP-SAT these are the stage formulation by HiGHS, the
       best on training graphs, and retention intervals. A proof within a narrower scope is a remark; the bound of
       the result holds for all schedules.
    6. While time remains: bounds, large neighbourhood search and annealing in turns (:mod:`remat.solving.portfolio`),
       with more time for those that improve more. Annealing resumes where it stopped.

    It ends when the cost of the best schedule equals the bound, and at the deadline; without a deadline after step 5.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        assert session.solver is not None
        self.backend = session.solver
        self.fixed = self.problem.order is OrderRule.FIXED
        self.tiny = self.num_ops <= EXHAUSTIVE_OPS
        self.small = self.num_ops <= MODEL_OPS[self.problem.order]
        self.timed = math.isfinite(self.clock.seconds)
        self.chains = [] if self.tiny else chain_starts(self.problem)
        self.spent = dict.fromkeys(SHARES, 0.0)
        self.search = Portfolio()
        self.pending = not self.fixed and self.problem.budget_bytes is not None
        """True until the search for an order has run."""

    def run(self) -> None:
        """Run the stages until the session is decided or time is up."""
        self._compile()
        try:
            self.follow(STAGES)
        finally:
            for name in self.waiting:
                self.session.not_compiled(name)

    def _compile(self) -> None:
        """Start compiling the kernels of later steps in the background, unless that has been done before.

        The most urgent kernels come first, and one CPU is left to this process. On training graphs, block checkpointing
        finds a first schedule and is compiled within a second, and drops and Rotor are often close to the optimum. On
        other problems, annealing closes the gap of small ones, and drops find a first schedule of large ones.
        """
        if self.chains:
            names = [BLOCKS, "drops", *(name for name in self.chains if name == ROTOR), "annealing"]
        else:
            names = ["annealing", "drops"] if self.small else ["drops", "annealing"]
        kernels = [kernels for name in names for kernels in load("heuristics", name).kernels]
        begin(*kernels, processes=max(1, available_cpus() - 1))

    # -- when stages apply -------------------------------------------------------------------------------------------

    def nothing(self) -> bool:
        """Return whether there is no schedule yet."""
        return self.session.best is None

    def closely(self) -> bool:
        """Return whether a longer search before models is worthwhile: the graph is small, or no deadline follows."""
        return self.small or not self.timed

    def has_chain(self, name: str) -> bool:
        """Return whether a heuristic on training graphs applies; imports it outside its own time."""
        return name in self.chains and self.made(name) is not None

    def most(self) -> float:
        """Return the maximum seconds of quick heuristics and bounds."""
        return max(LEAST, PER_OP * self.num_ops)

    def most_first(self) -> float:
        """Return the maximum seconds of searches for a first schedule."""
        return PER_OP * self.num_ops

    def _wait(self, name: str) -> float | None:
        """Return the seconds to wait for a heuristic: 0 while it is being compiled, None until it is loaded."""
        return None if self.made(name).compiled() or not self.timed else 0.0

    # -- stages ------------------------------------------------------------------------------------------------------

    def find_order(self, deadline: Deadline) -> None:
        """Search for an order that fits without recomputation, or one of low peak to start from.

        Only rules are tried while the search is being compiled.
        """
        session, budget = self.session, self.problem.budget_bytes
        assert budget is not None
        soon = self.search.compiled() or not (self.timed or self.tiny)
        wait = self.clock.earlier(min(WAIT, WAIT_SHARE * self.clock.remaining)) if self.timed else self.clock
        with session.step("order"):
            if soon and self.search.prepared(wait):
                self.pending = False
                found = session.search_order(self.search, deadline.share(FITTING_SHARE), budget + 1)
                if not session.enough and found.bound > budget and self.once:
                    session.infeasible, session.scope = True, own_scope(self.problem)
                    session.proof = f" (by {self.search.name})"
                elif not session.enough:
                    session.search_order(self.search, deadline)
            else:
                for rule in RULES if self.warm_start is None else ():
                    session.search_order(rule(), deadline)
                    if session.enough or deadline.expired:
                        break
        least = session.incumbents.least_peak
        if self.warm_start is None and least is not None and least is not session.reference:
            self.warm_start = least.schedule

    def chain(self, name: str, deadline: Deadline, *, alone: bool = False) -> None:
        """Run a heuristic on training graphs; wait for it only if nothing else is faster."""
        wait = self._wait(name)
        alone = alone or (name == BLOCKS and self.num_ops > WITHOUT_DROPS["eviction"][0])
        self.heuristic(name, deadline, wait=FIRST_SHARE * self.clock.remaining if alone and wait == 0 else wait)

    def drops(self, deadline: Deadline) -> None:
        """Run drops; tiny problems do not wait for its compilation, which takes longer than their search."""
        others_can = self.num_ops <= max(ops for ops, _ in WITHOUT_DROPS.values())
        self.heuristic("drops", deadline, wait=0.0 if self.tiny else self._wait("drops") if others_can else None)

    def drops_again(self, deadline: Deadline) -> None:
        """Wait for drops if no schedule has been found otherwise."""
        self.heuristic("drops", deadline, wait=FIRST_SHARE * self.clock.remaining)

    def anneal(self, deadline: Deadline) -> None:
        """Anneal from the best schedule."""
        self.heuristic("annealing", deadline, wait=self._wait("annealing"))

    def greedy(self, _: Deadline) -> None:
        """Run greedy rematerialization once, in less time than compiling drops takes."""
        if "greedy" in self.kept or not EXHAUSTIVE_OPS < self.num_ops <= GREEDY_OPS:  # fewer are searched faster
            return
        ready = _CachedFlag(lambda: self.loaded("drops") if "drops" in self.waiting else self.made("drops").compiled())
        with self.session.step("greedy"):
            share = self.share(QUICK_SHARE if self.chains else FIRST_SHARE)
            self.session.improve(self.made("greedy"), share.until(ready), self.warm_start)

    def quick(self, _: Deadline) -> None:
        """Run the heuristics that need no compilation."""
        others, share = BESIDE_DROPS, QUICK_SHARE
        if "drops" in self.waiting and self.nothing():
            others, share = WITHOUT_DROPS, FIRST_SHARE
        for name, (ops, seconds) in others.items():
            if self.num_ops <= ops and (self.fixed or name != "greedy"):
                self.heuristic(name, self.share(share, seconds))

    def exhaust(self, deadline: Deadline) -> None:
        """Search exhaustively."""
        session, budget = self.session, self.problem.budget_bytes
        limit = 1 + MOST_COST if session.cost is None else session.cost
        with session.step("exhaustive search"):
            found = explore(self.problem, Aim.COST, limit=limit, peak=budget, deadline=deadline)
            if found is None:
                return
            if found.schedule is not None:
                session.incumbents.add(found.schedule, "exhaustive search")
            if found.bound > MOST_COST:
                session.infeasible, session.scope = True, own_scope(self.problem)
                session.proof = " (by exhaustive search)"
            else:
                session.raise_bound(found.bound, own_scope(self.problem))

    def try_again(self) -> None:
        if self.pending and not self.waiting and not self.over and self.search.prepared(Deadline(0.0)):
            self.find_order(self.share(ORDER_SHARE, self.most()))
        for name in self.waiting:
            if self.loaded(name):
                share = CHAIN_SHARE.get(name, ANNEALING_SHARE if name == "annealing" else DROPS_SHARE)
                self.heuristic(name, self.share(share))

    def models(self, _: Deadline) -> None:
        """Solve whole models, in order; those interrupted by finished compilation start again."""
        left = list(MODELS.get(self.backend.name, OTHER_MODELS) if self.fixed else (INTERVALS,))
        while left and not self.over:
            self.try_again()
            name, given, backend = left[0]
            if self.waiting and self.timed:
                ready = _CachedFlag(lambda: any(self.loaded(other) for other in self.waiting))
                self.whole_model(name, given, backend, self.share(PATIENT_SHARE).until(ready))
                if ready():
                    continue
            else:
                self.whole_model(name, given, backend, self.share(MODEL_SHARE))
            del left[0]

    def whole_model(self, name: str, given: dict[str, Any], other: str, deadline: Deadline) -> None:
        """Solve a whole model, starting from the best schedule."""
        session = self.session
        if self.over:
            return
        backend = make_backend(other) if other else self.backend
        kind = load("formulations", name)
        call = replace(session.call, deadline=deadline, solver=session.call.solver if backend is self.backend else {})
        if self.waiting:  # otherwise the solver would slow down the compiling process
            call = replace(call, threads=max(1, (call.threads or available_cpus()) - 1))
        part = self.model(kind, backend, call, kind.options_type(**given) if given else None)
        if part is None or covers(part.scope, self.problem):
            return
        source = f"{name} by {backend.full_name}"
        if part.infeasible:
            session.note(f"{source} proved that no schedule exists within {part.scope}")
        elif part.bound > session.bound:
            base = self.problem.graph.base_cost
            share = f" (overhead {overhead_text(part.bound, base)})" if base else ""
            session.note(f"no schedule costs less than {part.bound:,}{share} within {part.scope}")

    def made(self, name: str) -> Heuristic:
        if name == "lns" and name not in self.kept:
            kind = load("heuristics", name)
            model, given, _ = MODELS.get(self.backend.name, OTHER_MODELS)[-1] if self.fixed else INTERVALS
            self.kept[name] = kind(kind.options_type(formulation=model, formulation_options=given))
        return super().made(name)


def _chain(name: str, share: float, *, alone: bool = False) -> Stage:
    return Stage(
        lambda auto, deadline: auto.chain(name, deadline, alone=alone), share, Auto.most,
        lambda auto: auto.has_chain(name) and (auto.nothing() or not alone),
    )  # fmt: skip


#: The method as a table: stage, share of the time left, maximum seconds, condition.
STAGES = (
    Stage(Auto.find_order, ORDER_SHARE, Auto.most, lambda auto: auto.pending),
    _chain(BLOCKS, CHAIN_SHARE[BLOCKS]),
    Stage(Auto.greedy, when=lambda auto: not auto.made("drops").compiled()),
    Stage(Auto.drops, DROPS_SHARE, Auto.most),
    Stage(Auto.greedy, when=lambda auto: "drops" in auto.waiting and auto.nothing()),
    _chain(LOWER, CHAIN_SHARE[LOWER]),
    _chain(FEW, CHAIN_SHARE[FEW]),
    _chain(ROTOR, CHAIN_SHARE[ROTOR]),
    Stage(Auto.quick),
    _chain(BLOCKS, FIRST_SHARE, alone=True),
    Stage(Auto.drops_again, FIRST_SHARE, Auto.most_first, lambda auto: auto.nothing() and not auto.tiny),
    Stage(Auto.exhaust, BOUND_SHARE, when=lambda auto: auto.tiny and auto.problem.budget_bytes is not None),
    # a schedule first, before proofs of its quality
    Stage(lambda auto, deadline: auto.heuristic("annealing", deadline), QUICK_SHARE, Auto.most_first, Auto.nothing),
    Stage(Auto.bounds, BOUND_SHARE, Auto.most),
    Stage(lambda auto, _: auto.try_again()),
    Stage(Auto.anneal, ANNEALING_SHARE, when=Auto.closely),
    Stage(Auto.bounds, BOUND_SHARE, when=Auto.closely),
    Stage(Auto.models, when=lambda auto: auto.small),
    Stage(lambda auto, _: auto.turns(SHARES), when=lambda auto: auto.timed),
)


class _CachedFlag:
    """Flag with rate-limited evaluation; it stays true once it is."""

    def __init__(self, evaluate: Callable[[], bool]) -> None:
        self.evaluate, self.next, self.value = evaluate, 0.0, False

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self.value and now >= self.next:
            self.next = now + CHECK_INTERVAL
            self.value = self.evaluate()
        return self.value
