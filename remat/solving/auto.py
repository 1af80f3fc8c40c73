"""Default method: heuristics, bounds, search and a solver in turns, until a schedule meets a bound.

:data:`STAGES` decides what runs next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from typing import Any

from remat.backends.choice import as_backend
from remat.bounds.live_set_bound import MOST_OPS, LiveSetSearch
from remat.errors import ProblemError, RematError
from remat.heuristics.base import Heuristic
from remat.ordering.best_first import Aim, explore
from remat.ordering.live_sets import MOST
from remat.ordering.rules import RULES
from remat.ordering.valley import Portfolio
from remat.problem import Objective
from remat.problem.scope import covers, own_scope
from remat.registry import heuristics, load, make_backend
from remat.runtime.checked_options import Options
from remat.runtime.deadline import Deadline
from remat.runtime.resources import available_cpus
from remat.schedule import OrderRule
from remat.schedule.certificate import overhead_text
from remat.solving.chain_starts import BLOCKS, FEW, LIMITS, LOWER, ROTOR
from remat.solving.method import FormulationMethod, Method, make_method, method_class
from remat.solving.min_peak_search import MinPeakSearch
from remat.solving.one_memory import OneMemory
from remat.solving.portfolio import (
    BRIEF_SEARCH,
    CONDITIONS,
    EXHAUSTIVE_OPS,
    LOADING,
    SOME_OPS,
    WAIT_SHARE,
    Policy,
    Stage,
)
from remat.solving.session import NOT_COUNTED, NOT_MOVED, Session
from remat.solving.stop import TargetCost

#: Name of the method.
AUTO = "auto"
#: Share of the order search's time for an order within the budget; the rest is for the order of least peak.
FITTING_SHARE = 0.6
#: Share of the time left for a whole model while kernels are being compiled and little else can run. The model is
#: stopped when some of them are ready, and solved again after that.
PATIENT_SHARE = 0.7
#: Most seconds of a first stage that may run before kernels compile; often it is the only one.
BRIEF = 3.0
#: Above the cost of any schedule.
MOST_COST = 2**62

#: Turns in a free order, except on training graphs: large neighbourhoods gained nothing on G3 and G4 in 30 s.
MOSTLY_ANNEALING = {"annealing": 0.8, "lns": 0.1, "bounds": 0.1}

#: The method as a table. On training graphs of some hundred ops, few stages often find the optimum and prove it within
#: tenths of a second, before a kernel is loaded. They continue if the gap is small, and small programmes have more time
#: once a schedule is known: interrupted, they left ResNets with GroupNorm open at 35 % in 10 s. Otherwise schedules
#: come first, then proofs of their quality, then longer searches. Block checkpointing and Rotor take tenths of a second
#: on some hundred ops; if they are cut short on thousands, search does not recover the loss. Until they are compiled,
#: eviction comes first: it takes milliseconds on a hundred ops. If none of them fits, smaller and smaller peaks lead
#: there. Annealing then gains more than models and longer proofs. With CP-SAT the stage formulation is best solved by
#: HiGHS. In a free order, except on training graphs, bounds gain little after some seconds, and annealing has most of
#: the time. On large graphs of other kinds it precedes them: one cut of 100,000 ops takes seconds. On huge ones it also
#: precedes drops, which take half of a minute there, unless a low budget makes schedules hard to find.
STAGES = (
    Stage("order", 0.1, seconds_per_op=0.02, when=("free-order",)),
    Stage("exhaustive", 0.2, seconds=BRIEF_SEARCH, max_ops=EXHAUSTIVE_OPS, when=("as-sets",)),
    Stage("live-search", 0.3, seconds=1, max_ops=MOST, when=("no-training", "as-sets")),
    Stage("exhaustive", 0.2, max_ops=EXHAUSTIVE_OPS),
    Stage(FEW, 0.3, seconds=BRIEF, max_ops=SOME_OPS, when=("training", "fixed-order")),
    Stage(FEW, 0.2, seconds=2, max_ops=LIMITS[FEW], when=("training", "fixed-order", "many-ops")),
    Stage(FEW, 0.5, seconds_per_op=0.02, max_ops=LIMITS[FEW], when=("training", "fixed-order", "close")),
    Stage(FEW, 0.5, seconds_per_op=0.02, when=("training", "large")),
    Stage(BLOCKS, 0.3, seconds_per_op=0.02, when=("training",)),
    Stage("annealing", 0.9, when=("no-training", "free-order", "huge", "mild", "time-limit"), wait=True),
    Stage("drops", 0.15, seconds_per_op=0.02, when=("not-tiny",)),
    Stage("greedy", 0.4, max_ops=2_000, when=("not-tiny", "no-schedule", "until-compiled")),
    Stage("eviction", 0.1, seconds=2, max_ops=5_000, when=("not-tiny", "no-schedule", "until-compiled")),
    Stage("annealing", 0.8, when=("no-training", "time-limit", "schedule", "compiling-alone", "patient"), wait=True),
    Stage(BLOCKS, 0.5, seconds_per_op=0.02, when=("training", "not-close", "compiling-alone"), wait=True),
    Stage(LOWER, 0.05, seconds_per_op=0.02, max_ops=LIMITS[LOWER], when=("training", "no-schedule")),
    Stage("live-sets", 0.2, seconds_per_op=0.005, max_ops=MOST_OPS, when=("training", "no-schedule")),
    Stage(FEW, 0.5, seconds_per_op=0.02, max_ops=LIMITS[FEW], when=("training",)),
    Stage(FEW, 0.6, seconds_per_op=0.02, max_ops=300, when=("training", "fixed-order", "small-programmes")),
    Stage(LOWER, 0.05, seconds_per_op=0.02, max_ops=LIMITS[LOWER], when=("training",)),
    Stage("live-search", 0.1, max_ops=MOST, when=("training", "as-sets")),
    Stage(ROTOR, 0.4, seconds_per_op=0.02, max_ops=LIMITS[ROTOR], when=("training",)),
    Stage("eviction", 0.1, seconds=0.5, max_ops=1_500),
    Stage("greedy", 0.1, seconds=1, max_ops=300, when=("fixed-order",)),
    Stage("live-search", 0.3, max_ops=MOST, when=("no-training", "as-sets")),
    Stage("eviction", 0.4, seconds=10, max_ops=20_000, when=("no-schedule", "until-compiled")),
    Stage(BLOCKS, 0.4, seconds_per_op=0.02, when=("training", "no-schedule"), wait=True),
    Stage("drops", 0.4, seconds_per_op=0.02, when=("not-tiny", "no-schedule"), wait=True),
    Stage("annealing", 0.1, seconds_per_op=0.02, when=("no-schedule",), wait=True),
    Stage("annealing", 0.9, when=("no-training", "large", "time-limit"), wait=True),
    Stage("annealing", 0.7, seconds_per_op=0.005, max_ops=LIMITS[FEW], when=("training", "fixed-order", "schedule")),
    Stage("bounds", 0.2, seconds_per_op=0.02, when=("training",)),
    Stage("bounds", 0.2, seconds_per_op=0.02, when=("no-training", "fixed-order")),
    Stage("bounds", 0.2, seconds_per_op=0.02, max_ops=300, when=("no-training", "free-order")),
    Stage("bounds", 0.1, seconds_per_op=0.02, when=("no-training", "free-order")),
    Stage("descent", 0.6, when=("no-schedule",)),
    Stage("live-sets", 0.2, seconds_per_op=0.005, max_ops=MOST_OPS, when=("training", "no-schedule")),
    Stage(FEW, 0.5, max_ops=LIMITS[FEW], when=("training", "fixed-order")),
    Stage("annealing", 0.6, seconds_per_op=0.02, when=("no-training", "free-order", "time-limit")),
    Stage("annealing", 0.2),
    Stage("bounds", 0.2),
    Stage("descent", 0.6, when=("no-schedule",)),
    Stage("stages/highs", 0.2, max_ops=600, when=("fixed-order", "cp-sat"), options={"ahead": False}),
    Stage("stages", 0.2, max_ops=600, when=("fixed-order", "mip"), options={"ahead": False}),
    Stage("retention-intervals", 0.2, max_ops=600, when=("fixed-order", "cp")),
    Stage("retention-intervals", 0.2, max_ops=60, when=("free-order",)),
    Stage("turns", when=("time-limit", "no-training", "free-order"), options=MOSTLY_ANNEALING),
    Stage("turns", when=("time-limit",), options={"annealing": 0.6, "lns": 0.2, "bounds": 0.2}),
)

#: The same where tensors can be moved to a host. A short search and the first bounds end the solve where they meet.
#: Schedules that only recompute are searched until their bound shows that none of them is faster than the best one.
#: Over a slow link their search comes first. Over a rather slow one a brief search gives the bounds a time to undercut.
MOVING_STAGES = (
    Stage("transfers", 0.05, when=("slow-link",)),
    Stage("one-memory", 0.5, when=("slow-link",)),
    Stage("transfers", 0.2, seconds_per_op=0.02),
    Stage("drops", 0.1, seconds_per_op=0.01, when=("no-schedule",)),
    Stage("greedy", 0.1, seconds=2, max_ops=2_000, when=("no-schedule",)),
    Stage("one-memory", 0.05, when=("rather-slow-link",)),
    Stage("bounds", 0.3, seconds_per_op=0.15, meanwhile="transfers"),
    Stage("one-memory", 0.2, meanwhile="transfers"),
    Stage("transfers", 0.6),
    Stage("bounds", 0.5, meanwhile="transfers"),
    Stage("timed-intervals", 0.3, max_ops=60, when=("fixed-order", "cp")),
    Stage("bounds", 0.3, meanwhile="transfers"),
    Stage("one-memory", 0.3, meanwhile="transfers"),
    Stage("transfers", when=("time-limit",), wait=True),
    Stage("turns", when=("time-limit",), options={"transfers": 0.7, "bounds": 0.3}),
)

#: First stage of a search for schedules that only recompute, where the link to a host is slow. The programmes are not
#: interrupted by other searches: ResNet-50 at 20 % needs 9 to 24 s for those from whose schedules transfers descend.
SLOW_FIRST = Stage(FEW, 0.8, max_ops=LIMITS[FEW], when=("training", "fixed-order"))


@dataclass(frozen=True)
class AutoOptions(Options):
    """Options of :class:`Auto`.

    Examples
    --------
    >>> from remat import Problem, solve
    >>> from remat.graphs.families import unit_chain
    >>> stages = Stage("eviction", 0.1), Stage("bounds", 0.5, when=("fixed-order",))
    >>> result = solve(Problem(unit_chain(8), 5), Auto(AutoOptions(stages)), stop=20)
    >>> [step.name for step in result.steps]
    ['eviction', 'bounds']
    >>> AutoOptions((Stage("turns", options={"stages": 0.5}),))
    Traceback (most recent call last):
    remat.errors.ProblemError: turns go to heuristics and 'bounds', not to 'stages'
    """

    stages: tuple[Stage, ...] | None = None
    """Table of stages instead of the default one. Its steps are order, descent, exhaustive, live-sets, one-memory,
    bounds and turns for the least cost or time; for the least peak they are interpreted-order, order, exhaustive and
    bounds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for stage in self.stages or ():
            if stage.meanwhile and stage.meanwhile not in heuristics():
                text = f"stage {stage.method!r}: only a heuristic runs meanwhile, not {stage.meanwhile!r}"
                raise ProblemError(text, "bad-stage", stage.meanwhile)
            if stage.method == "turns":
                _check_turns(stage.options)
            elif stage.method not in LeastCostSearch.steps | MinPeakSearch.steps:
                _check_method(stage)


def _check_turns(shares: Mapping[str, Any]) -> None:
    """Refuse turns other than heuristics and bounds, and shares that are not positive numbers."""
    for name, share in shares.items():
        if name != "bounds" and name not in heuristics():
            raise ProblemError(f"turns go to heuristics and 'bounds', not to {name!r}", "bad-turns", name)
        if not isinstance(share, int | float) or isinstance(share, bool) or not share > 0:
            raise ProblemError(f"the share of {name!r} in turns must be above 0, not {share!r}", "bad-turn-share", name)


def _check_method(stage: Stage) -> None:
    """Refuse an unknown method or backend, and options that the method refuses."""
    name, _, backend = stage.method.partition("/")
    try:
        _made(name, stage.options)
        if backend:
            make_backend(backend)
    except RematError as error:
        raise ProblemError(f"stage {stage.method!r}: {error}", "bad-stage", stage.method) from None


def _made(name: str, options: Mapping[str, Any]) -> Method:
    """Return a method by its name with options by name."""
    kind = method_class(name).options_type
    known = [] if kind is None else [field.name for field in fields(kind)]
    for key in options:
        if key not in known:
            raise ProblemError(f"{name} has no option {key!r}; known are {', '.join(known) or 'none'}")
    return make_method(name, kind(**options) if kind is not None and options else None)


class Auto(Method):
    """Heuristics, bounds, search and a solver in turns, until a schedule meets a bound.

    It follows the user's table of stages if there is one; otherwise :data:`STAGES` for the least cost,
    :data:`MOVING_STAGES` for the least time with a host, and for the least peak the table of
    :class:`~remat.solving.min_peak_search.MinPeakSearch`. It ends when the value of the best
    schedule equals the bound, at the deadline, or, without a deadline, after the models.

    A proof within a narrower scope is only a remark; the bound of the result holds for all schedules of the problem.
    """

    name = AUTO
    objectives = frozenset(Objective)
    options_type = AutoOptions
    uses_backend = True
    counts_in_place = True
    moves = True

    def run(self, session: Session) -> None:
        if session.asks_peak:
            MinPeakSearch(session).run(self.options.stages)
            return
        session.any_method = True
        LeastCostSearch(session).run(self.options.stages)
        session.conclude()


class LeastCostSearch(Policy):
    """Search for the least cost within a budget on one session."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        assert session.solver is not None
        self.backend = session.solver
        self.orders = Portfolio()
        self.skipped_order: Stage | None = None
        """Stage of the search for an order, while its code is being compiled."""
        self.live: LiveSetSearch | None = None
        """Search of live sets, once it has run."""
        self.alone: OneMemory | None = None
        """Search for schedules that only recompute, where others are possible."""

    def run(self, stages: tuple[Stage, ...] | None = None) -> None:
        """Run the stages, by default those of the objective, until the session is decided or time is up."""
        if stages is None:
            stages = MOVING_STAGES if self.problem.can_move else STAGES
        brief = list(takewhile(self.is_brief, filter(self.applies, stages)))
        try:
            self.follow(brief)
            self.idle.clear()  # a longer run may bring more
            rest = [stage for stage in stages if stage not in brief]
            if available_cpus() == 1:
                rest = self.follow_interpreted(rest)
            if not self.over:
                self.compile(stages)
                self.follow(rest)
        finally:
            self.note_waiting()

    def follow_interpreted(self, stages: list[Stage]) -> list[Stage]:
        """Run the first stages, up to those that run until code is compiled, without compiling; return the others."""
        fillers = ["until-compiled" in stage.when for stage in stages]
        first = fillers.index(True) if True in fillers else 0
        last = first + len(list(takewhile(bool, fillers[first:])))
        self.compiles = False
        self.follow(stages[:last])
        self.compiles = True
        return stages[last:]

    @staticmethod
    def is_brief(stage: Stage) -> bool:
        """Return True if a stage is short and a heuristic without kernels."""
        name, most = stage.method, stage.seconds
        return most is not None and most <= BRIEF and name in heuristics() and not load("heuristics", name).kernels

    def try_again(self) -> None:
        if not self.compiles:
            return
        super().try_again()
        skipped = self.skipped_order
        if skipped is not None and not self.waiting and not self.over and self.orders.prepared(Deadline(0.0)):
            self.run_stage(skipped)

    # -- stages ------------------------------------------------------------------------------------------------------

    def order(self, deadline: Deadline) -> None:
        """Search for an order that fits without recomputation, or one of low peak to start from.

        No schedule costs less than an order that fits. Only rules are tried while the search is being compiled.
        """
        session, budget = self.session, self.problem.budget_bytes
        if budget is None or self.problem.order is OrderRule.FIXED or self.problem.can_move:
            return
        wait = self.clock.earlier(min(LOADING, WAIT_SHARE * self.clock.remaining)) if self.timed else self.clock
        self.skipped_order = self.stage
        with session.step("order"):
            if (self.orders.compiled() or not self.timed) and self.orders.prepared(wait):
                self.skipped_order = None
                found = session.search_order(self.orders, deadline.share(FITTING_SHARE), budget + 1)
                if not session.enough and found.bound > budget and self.once:
                    session.end_infeasible(own_scope(self.problem), self.orders.name)
                elif not session.enough:
                    session.search_order(self.orders, deadline)
            else:
                for rule in RULES if self.warm_start is None else ():
                    session.search_order(rule(), deadline)
                    if session.enough or deadline.expired:
                        break
        least = session.incumbents.least_peak
        if self.warm_start is None and least is not None and least is not session.reference:
            self.warm_start = least.schedule

    def descend(self, deadline: Deadline) -> bool:
        """Search for ever smaller peaks, from the least known one, until a schedule is within the budget."""
        session, budget, least = self.session, self.problem.budget_bytes, self.session.incumbents.least_peak
        if budget is None or least is None or self.problem.can_move:
            return False
        part = Session(
            replace(self.problem, budget=None, objective=Objective.LEAST_PEAK),
            replace(session.call, deadline=deadline, relative_gap=0.0),
            session.method,
            on_progress=lambda _: session.report_progress(),
            criterion=TargetCost(budget),
        )
        with session.step("descent"):
            try:
                part.add(least.schedule, least.source)
                MinPeakSearch(part).descend("annealing", deadline)
            finally:
                found = part.incumbents.least_peak
                if found is not None and found.certificate.peak < least.certificate.peak:
                    session.incumbents.add(found.schedule, found.source)
        return True

    def live_sets(self, deadline: Deadline) -> bool:
        """Search for a proof that no schedule is within the budget; the second time, add a schedule that is.

        It is so costly that other methods find better ones without it: GPT-2 of 77 ops at 28 % 42 instead of 80 %.
        """
        session, budget = self.session, self.problem.budget_bytes
        if budget is None or self.problem.can_move or self.once:
            return False
        with session.step("live-sets"):
            if self.live is None:
                self.live = LiveSetSearch(self.problem)
                self.live.decide(budget, deadline)
                found = self.live.bound()
                if found.infeasible:
                    session.end_infeasible(found.scope, found.kind)
                return True
            for schedule in self.live.schedules(budget + 1, deadline):
                session.incumbents.add(schedule, "live set search")
        return True

    def exhaust(self, deadline: Deadline) -> None:
        """Search exhaustively; not with a host, where its proofs do not hold."""
        session, budget = self.session, self.problem.budget_bytes
        if budget is None or self.problem.can_move:
            return
        limit = 1 + MOST_COST if session.cost is None else session.cost
        with session.step("exhaustive search"):
            found = explore(self.problem, Aim.COST, limit=limit, peak=budget, deadline=deadline)
            if found is None:
                return
            if found.schedule is not None:
                session.incumbents.add(found.schedule, "exhaustive search")
            if found.bound > MOST_COST:
                session.end_infeasible(own_scope(self.problem), "exhaustive search")
            else:
                session.raise_cost_bound(found.bound, own_scope(self.problem))

    def one_memory(self, deadline: Deadline) -> bool:
        """Search for schedules that only recompute; return False if none of them can be faster than the best one."""
        if not self.problem.can_move or self.problem.budget_bytes is None:
            return False
        if self.alone is None:
            self.alone = OneMemory(self.session, LeastCostSearch, (SLOW_FIRST, *STAGES) if self.slow_link else STAGES)
        if self.over or self.alone.over:
            return False
        self.alone.run(deadline)
        self.alone.pass_on(self.made("transfers"))
        return True

    def method(self, stage: Stage) -> None:
        """Run a formulation or another method; while code is being compiled, run it until that is ready, then again."""
        name, _, backend = stage.method.partition("/")
        solver = as_backend(backend) if backend else self.backend
        method = _made(name, stage.options)
        if self.problem.objective not in method.objectives:
            self.session.note(f"{name} was left out: it does not support the objective")
            return
        if self.problem.graph.in_place and not method.counts_in_place:
            self.session.note(f"{name} was left out: it {NOT_COUNTED}")
            return
        if self.problem.can_move and not method.moves:
            self.session.note(f"{name} was left out: it {NOT_MOVED}")
            return
        while not self.over:
            self.try_again()
            if not (self.waiting and self.timed):
                self.answer(method, solver, self.deadline(stage))
                return
            ready = self.code_is_ready()
            self.answer(method, solver, self.share(PATIENT_SHARE).until(ready))
            if not ready():
                return

    def answer(self, method: Method, backend: Any, deadline: Deadline) -> None:
        """Run a method from the best schedule; proofs within a narrower scope become remarks."""
        session, name = self.session, method.name
        if self.over:
            return
        call = replace(
            session.call, deadline=deadline, start="none", solver=session.call.solver if backend is self.backend else {}
        )
        if self.waiting:  # otherwise the solver would slow down the compiling process
            call = replace(call, threads=max(1, self.threads - 1))
        best = session.best.schedule if session.best is not None else self.warm_start
        start = None if isinstance(method, FormulationMethod) else best  # models start from all schedules known
        solver = backend if method.needs_backend else None
        source = f"{name} by {backend.full_name}" if solver is not None else name
        part = session.part(name, method.run, call, solver, start=start, step=source)
        if part is None or covers(part.scope, self.problem):
            return
        if part.infeasible:
            session.note(f"{source} proved that no schedule exists within {part.scope}")
        elif part.bound > session.bound:
            objective, base = self.problem.objective, session.least_bound
            share = f" (overhead {overhead_text(part.bound, base)})" if base else ""
            session.note(f"no schedule {objective.verb} less than {part.bound:,}{share} within {part.scope}")

    def made(self, name: str, options: Mapping[str, Any] | None = None) -> Heuristic:
        by_stages = self.problem.order is OrderRule.FIXED and CONDITIONS["mip"](self)
        if name == "lns" and name not in self.kept and not options and by_stages:
            options = {"formulation": "stages", "formulation_options": {"ahead": False}}
        return super().made(name, options)

    steps = {
        "order": order, "descent": descend, "exhaustive": exhaust, "live-sets": live_sets, "one-memory": one_memory,
        "bounds": Policy.longer_bounds, "turns": Policy.turns,
    }  # fmt: skip
