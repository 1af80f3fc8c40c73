"""Portfolio engine: a table of stages on one session, each with a share of the remaining time."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from remat.bounds.stage_bound import Programmes
from remat.bounds.stage_programmes import CUT_OPS, StageProgrammes
from remat.errors import BackendError, ModelError, ProblemError
from remat.graphs.arrays import staircase
from remat.heuristics.base import Heuristic
from remat.heuristics.turns import Turns
from remat.ordering.live_search import LiveSearch
from remat.problem.training_step import training_step
from remat.registry import heuristics, load
from remat.runtime.checked_options import Options, Positive, Range
from remat.runtime.compiled import COMPILING, begin
from remat.runtime.deadline import Deadline
from remat.runtime.resources import available_cpus
from remat.schedule import OrderRule, Schedule
from remat.solving.bounding import raise_bounds
from remat.solving.chain_starts import FEW, OPTIONS, chain_start
from remat.solving.result import Step
from remat.solving.session import Session

#: Ops up to which the search is exhaustive.
EXHAUSTIVE_OPS = 24
#: Most seconds of an exhaustive search before the live search, whose code takes a second to load.
BRIEF_SEARCH = 0.3
#: Most tensors live at a step of a narrow graph: searched networks have 7 to 21, random layers of 300 ops 66.
FEW_LIVE = 40
#: Ops of a huge graph, and least share of the reference order's peak in a mild budget. Only 100,000 ops at 80 % were
#: measured.
HUGE_OPS, MILD = 50_000, 0.75
#: Ops up to which the first stage of few stages is longer. On larger graphs its programmes are rarely decided, and the
#: time is better spent on block checkpointing: on transformer-36 (2,631 ops) at 25 % that did not end in 10 s.
SOME_OPS = 600
#: Ops up to which neighbourhoods are searched by models.
LNS_OPS = 5000
#: Part of the bytes above the budget that a slow link carries at most while each op is computed once: recomputation
#: decides there. ResNet-50 at 20 % over 3 GB/s has 1.6 %. If this included T5 at 20 % (2.8 %), it would cost
#: 22.95 instead of 22.67 %.
SLOW = 0.025
#: The same for links whose bounds need a good time to undercut: they follow from what the link carries in that time.
RATHER_SLOW = 0.06
#: Gap up to which few stages continue before other searches begin. On ResNets of 135 to 407 ops at 50 and 35 % it is
#: 0.02 to 1.6 % after their first stage, and they prove the optimum 0.5 to 2 s later.
CLOSE = 0.02
#: Smallest total of a cap per op, in seconds.
LEAST_CAP = 3.0
#: Factor on a stage's share for each consecutive run of its method without improvement, once there is a schedule.
IDLE_FACTOR = 0.25
#: Share of the time left and maximum seconds to wait for kernels that only need loading, which takes less than one
#: second on an idle CPU.
WAIT_SHARE, LOADING = 0.2, 10.0
#: Share of all the time to which waiting for kernels moves the end of a stage; the rest is for bounds.
LATEST = 0.9
#: Maximum seconds to wait in a turn for kernels that are being compiled.
WAIT = 2.0
#: Seconds within which a single CPU that does nothing else compiles annealing.
COMPILATION = 12.0
#: Seconds between two checks whether kernels are compiled.
CHECK_INTERVAL = 0.1
#: Seconds of a turn: share of the time left, minimum, maximum, and growth while turns bring no improvement. Annealing
#: resumes where its last turn stopped; the others restart.
TURN_SHARE, TURN_LEAST, TURN, GROWTH = 0.1, 1.0, 10.0, 1.5


@dataclass(frozen=True)
class Stage(Options):
    """One line of a table of stages.

    Raises
    ------
    ProblemError
        For a value out of range or an unknown condition.
    """

    method: str
    """A step of the policy (bounds, turns, ...), a heuristic, or a formulation or another method; with a backend, if it
    is not that of the call, after a slash: stages/highs."""
    share: Annotated[float, Range(above=0, most=1)] = 1.0
    """Share of the time left."""
    seconds: Annotated[float, Range(above=0)] | None = None
    """Maximum seconds."""
    seconds_per_op: Annotated[float, Range(above=0)] | None = None
    """Maximum seconds per op; at least 3 seconds in total."""
    max_ops: Positive | None = None
    """Ops of the largest graph for which the stage runs."""
    when: tuple[str, ...] = ()
    """Conditions that must all hold when its turn comes (:data:`CONDITIONS`)."""
    wait: bool = False
    """Wait for the method's code if it is being compiled. Otherwise the stage runs when the code is ready, after the
    current stage."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the method, also for later stages and turns. Those of turns are its methods and their initial shares
    of the time."""
    meanwhile: str = ""
    """A heuristic that continues in a thread of its own during a step, if it has run before and the call has two
    threads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in self.when:
            if word not in CONDITIONS:
                raise ProblemError(
                    f"stage {self.method!r} has the unknown condition {word!r}; known are {', '.join(CONDITIONS)}",
                    "unknown-condition", word,
                )  # fmt: skip

    def most(self, num_ops: int) -> float:
        """Return the maximum seconds for a graph of `num_ops` ops."""
        per_op = math.inf if self.seconds_per_op is None else max(LEAST_CAP, self.seconds_per_op * num_ops)
        return min(per_op, math.inf if self.seconds is None else self.seconds)


class Policy:
    """Runs a table of stages on one session."""

    #: Stages that are methods of the policy, by name; they receive a deadline, and return False if they did not run.
    steps: ClassVar[Mapping[str, Callable[[Any, Deadline], object]]] = {}
    #: Seconds of a share if there is no deadline.
    endless = math.inf

    def __init__(self, session: Session) -> None:
        self.session, self.problem, self.clock = session, session.problem, session.call.deadline
        self.warm_start = session.warm_start
        self.num_ops = len(self.problem.graph.ops)
        self.once = bool(self.problem.once.all())
        self.timed = math.isfinite(self.clock.seconds)
        self.family = "" if session.solver is None else session.solver.name
        """Name of the backend without its variant."""
        self.stage = Stage("none")
        """The current stage."""
        self.seeds = 0
        self.kept: dict[str, Heuristic] = {}
        """Heuristics created so far."""
        self.waiting: dict[str, Stage] = {}
        """Heuristics whose code is being compiled, each with the stage of the largest share skipped for that reason."""
        self.idle: dict[str, int] = {}
        """Number of consecutive runs of a method without improvement."""
        self.spent: dict[str, float] = {}
        """Seconds used by each heuristic and by bounds."""
        self.compiles = True
        """False while a single CPU runs what needs no compiled code."""
        self.last_bounds = 0.0
        """Seconds of the last computation of bounds."""
        self.bounds_final = False
        """True if that ended early, so that more time gives the same bound."""

    @property
    def over(self) -> bool:
        """Return True if the search should end: decided, stopped or out of time."""
        return self.session.enough or self.clock.expired

    @cached_property
    def training(self) -> bool:
        """True for training graphs that are not tiny."""
        return self.num_ops > EXHAUSTIVE_OPS and training_step(self.problem) is not None

    @cached_property
    def narrow(self) -> bool:
        """True if no training graph, and if few tensors are live in the reference order: :data:`FEW_LIVE`."""
        arrays = self.problem.graph.arrays
        first, last = arrays.lifetimes(arrays.position)
        live = staircase(first, last, np.ones_like(first), self.num_ops)
        return not self.training and int(live.max(initial=0)) <= FEW_LIVE

    @property
    def close(self) -> bool:
        """True if the best schedule costs little more than the bound: :data:`CLOSE`."""
        value = self.session.value
        return value is not None and value - self.session.bound <= CLOSE * value

    @property
    def small_programmes(self) -> bool:
        """True if few stages have run, and their last integer programme was small."""
        programmes = self.programmes
        return isinstance(programmes, StageProgrammes) and programmes.small

    @property
    def slow_link(self) -> bool:
        """True if the slower way of the link to a host carries little of the bytes above the budget: :data:`SLOW`."""
        return self.carried <= SLOW

    @cached_property
    def carried(self) -> float:
        """Part of the bytes above the budget that the slower way of the link carries while each op is computed once."""
        problem, machine = self.problem, self.problem.machine
        if machine is None or not problem.can_move or problem.budget_bytes is None:
            return math.inf
        rates = [rate for rate in (machine.write_rate, machine.read_rate) if rate is not None]
        above = (problem.reference_peak - problem.budget_bytes) * machine.per_second(problem.graph)
        return min(rates) * problem.graph.base_cost / above if rates and above > 0 else math.inf

    def follow(self, stages: Iterable[Stage]) -> None:
        """Run the stages that apply, until the search should end."""
        for stage in stages:
            self.try_again()
            if self.over:
                return
            if self.applies(stage):
                self.run_stage(stage)

    def applies(self, stage: Stage) -> bool:
        """Return True if the graph is small enough for a stage and its conditions hold."""
        small = stage.max_ops is None or self.num_ops <= stage.max_ops
        return small and all(CONDITIONS[word](self) for word in stage.when)

    def run_stage(self, stage: Stage) -> None:
        """Run a stage and record whether it improved the schedule or the bound."""
        self.stage, before = stage, (self.session.value, self.session.bound)
        ran: object = True
        if stage.method in self.steps:
            with self.continued(stage.meanwhile):
                ran = self.steps[stage.method](self, self.deadline(stage))
        elif stage.method in heuristics():
            ran = not self.clock.expired and self._run_heuristic(stage)
        else:
            self.method(stage)
        if ran is not False:
            brought = (self.session.value, self.session.bound) != before and not self._by_other(stage, before[1])
            self.idle[stage.method] = 0 if brought else self.idle.get(stage.method, 0) + 1

    def _by_other(self, stage: Stage, bound: int) -> bool:
        """Return True if only the heuristic that ran in the background has brought something."""
        best = self.session.best
        return best is not None and best.source == stage.meanwhile and self.session.bound == bound

    def _run_heuristic(self, stage: Stage) -> bool:
        """Run the heuristic of a stage; return whether it ran."""
        heuristic, wait = self.made(stage.method, stage.options), 0.0
        if not self.timed:
            wait = math.inf
        elif heuristic.compiled():
            wait = min(LOADING, WAIT_SHARE * self.clock.remaining)
        elif stage.wait:
            wait = self.deadline(stage).remaining
        return self.heuristic(stage.method, self.deadline(stage), wait=wait)

    def deadline(self, stage: Stage) -> Deadline:
        """Return the deadline of a stage that starts now."""
        idle = 0 if self.session.best is None else self.idle.get(stage.method, 0)
        deadline = self.share(stage.share * IDLE_FACTOR**idle, stage.most(self.num_ops))
        return deadline.until(self.code_is_ready()) if "until-compiled" in stage.when else deadline

    def share(self, share: float, most: float = math.inf) -> Deadline:
        """Return the deadline after a share of the time left, at most `most` seconds."""
        return self.clock.share(share, self.endless).earlier(most)

    # -- compiled code -----------------------------------------------------------------------------------------------

    def compile(self, stages: Iterable[Stage]) -> None:
        """Start compiling the heuristics of a table in the background, unless they are compiled.

        They follow the order of the table; except on training graphs, annealing comes first, since it gains the most.
        One CPU is left to this process.
        """
        used = [name for stage in stages if self.applies(stage) for name in (stage.method, *stage.options)]
        names = [name for name in dict.fromkeys(used) if name in heuristics()]
        if not self.training:
            names.sort(key=lambda name: name != "annealing")
        kernels = [kernels for name in names for kernels in load("heuristics", name).kernels]
        begin(*kernels, processes=max(1, available_cpus() - 1))

    def loaded(self, name: str) -> bool:
        """Return True if a heuristic can run at once."""
        return name not in self.waiting or (self.compiles and self.kept[name].prepared(Deadline(0.0)))

    def code_is_ready(self) -> CachedFlag:
        """Return a flag that becomes true when a heuristic that waits for its code can run."""
        return CachedFlag(lambda: any(self.loaded(name) for name in self.waiting))

    def try_again(self) -> None:
        """Run the stages of heuristics whose code has become ready."""
        for name, stage in list(self.waiting.items()):
            if not self.over and self.loaded(name):
                self.run_stage(stage)

    def note_waiting(self) -> None:
        """Note the heuristics that were skipped because their code was not ready in time."""
        for name in self.waiting:
            self.session.not_compiled(name)

    # -- search methods ----------------------------------------------------------------------------------------------

    def made(self, name: str, options: Mapping[str, Any] | None = None) -> Heuristic:
        """Return the heuristic with a name, the same object each time unless options are given."""
        if options:
            kind = load("heuristics", name)
            self.kept[name] = kind(kind.options_type(**options))
        elif name not in self.kept:
            self.kept[name] = chain_start(name) if name in OPTIONS else load("heuristics", name)()
        return self.kept[name]

    def heuristic(self, name: str, deadline: Deadline, *, wait: float) -> bool:
        """Improve the best schedule by a heuristic; return whether it ran.

        If its code is not ready after `wait` seconds, it is tried again after the next stage. Loading moves the
        deadline, at most to :data:`LATEST`.
        """
        if self.over or (name == "lns" and self.num_ops > LNS_OPS):
            return False
        session, heuristic = self.session, self.made(name)
        later = self.stage if self.stage.method == name else Stage(name, TURN_SHARE)
        if wait <= 0 and not (self.compiles and heuristic.prepared(self.clock.earlier(0.0))):
            self._postpone(name, later)
            return False
        with session.step(name):
            began = self.clock.elapsed
            if not heuristic.prepared(self.clock.earlier(wait), lambda: session.enter(f"{name}: {COMPILING}")):
                self._postpone(name, later)
                return False
            self.waiting.pop(name, None)
            session.enter(name)
            deadline = self.after_loading(deadline, began)
            began = self.clock.elapsed
            ran = False
            with self._failure_noted(name):
                session.improve(heuristic, deadline, self.start, self.seeds, self.clock)
                self.seeds += 1  # the next turn has another seed
                self._spend(name, began)
                ran = True
        return ran

    def after_loading(self, deadline: Deadline, began: float) -> Deadline:
        """Return a deadline moved by the time since loading began, at most to :data:`LATEST`."""
        latest = max(deadline.seconds, LATEST * self.clock.seconds)
        return replace(deadline, seconds=min(latest, deadline.seconds + self.clock.elapsed - began))

    @contextlib.contextmanager
    def _failure_noted(self, name: str) -> Iterator[None]:
        """End the block with a remark if a heuristic fails in it."""
        try:
            yield
        except (ProblemError, ModelError, BackendError) as error:
            self.session.note(f"{name} was left out: {error}")

    @contextlib.contextmanager
    def continued(self, name: str) -> Iterator[None]:
        """Let a heuristic that has had a turn continue in another thread, if the call has two, until the block ends.

        If its code is still being compiled, the thread waits for it. The heuristic then no longer waits for a turn.
        """
        session, heuristic = self.session, self.kept.get(name)
        had_a_turn = name in self.spent or name in self.waiting
        if heuristic is None or not had_a_turn or self.threads < 2 or self.over:
            yield
            return
        heuristic.programmes_of(self.problem.plain)  # made once, before two threads use them
        ended = threading.Event()
        deadline = self.clock.until(ended.is_set)

        def search(turn: int) -> bool:
            if not heuristic.prepared(deadline) or deadline.expired:
                return False
            began = self.clock.elapsed
            with self._failure_noted(name):
                session.improve(heuristic, deadline, self.start, turn, self.clock, background=True)
            seconds = self.clock.elapsed - began
            session.steps.append(Step(f"{name} meanwhile", seconds, session.value, session.bound))
            self._spend(name, began)
            return True

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(search, self.seeds)
            self.seeds += 1
            try:
                yield
            finally:
                ended.set()
            if running.result():
                self.waiting.pop(name, None)

    @property
    def start(self) -> Schedule | None:
        """Schedule from which heuristics start: the best one, else that of the call."""
        return self.warm_start if self.session.best is None else self.session.best.schedule

    @property
    def threads(self) -> int:
        """Number of threads of the call."""
        return self.session.call.threads or available_cpus()

    def _postpone(self, name: str, stage: Stage) -> None:
        """Record that a heuristic waits for its code; of its skipped stages, the one with the largest share runs."""
        self.waiting[name] = max(self.waiting.get(name, stage), stage, key=lambda each: each.share)

    def method(self, stage: Stage) -> None:
        """Run a method that is neither a step nor a heuristic."""
        raise NotImplementedError(stage.method)

    def _spend(self, name: str, began: float) -> None:
        self.spent[name] = self.spent.get(name, 0.0) + self.clock.elapsed - began

    def bounds(self, deadline: Deadline) -> bool:
        """Raise the bound on all schedules; return whether there was anything to do."""
        if self.over or self.problem.budget_bytes is None:
            return False
        began = self.clock.elapsed
        raise_bounds(self.session, deadline, self.programmes)
        self.last_bounds = self.clock.elapsed - began
        self.bounds_final = self.last_bounds < 0.5 * (deadline.seconds - began)
        self._spend("bounds", began)
        return True

    @property
    def programmes(self) -> Programmes | None:
        """Programmes of the problem that a heuristic has begun, or will continue."""
        known = self.kept.get("transfers" if self.problem.can_move else FEW)
        return None if known is None else known.programmes_of(self.problem.plain)

    def longer_bounds(self, deadline: Deadline) -> bool:
        """Raise the bound, unless it is final, or the last attempt had about as much time and did not improve it.

        In a free order no bound depends on the best schedule, so about as much time gives the same bound.
        """
        same = self.idle.get("bounds") or self.problem.order is OrderRule.FREE
        if self.bounds_final or (same and deadline.remaining < GROWTH * self.last_bounds):
            return False
        return self.bounds(deadline)

    # -- turns -------------------------------------------------------------------------------------------------------

    def turns(self, _: Deadline) -> None:
        """Give turns to the heuristics, and ``bounds``, with the largest improvements, until time is up.

        The options of the stage are their initial shares of the time; later shares follow the improvements. Without a
        deadline it ends after the first turn without improvement.
        """
        shares = {
            name: share for name, share in self.stage.options.items() if name != "bounds" or not self.bounds_final
        }
        turns, session = Turns(shares, self.spent), self.session
        while not self.over and turns.arms:
            self.try_again()
            ready = [name for name in turns.arms if self.loaded(name)]
            again = GROWTH * self.last_bounds  # in less time bounds would not improve
            if again > self.clock.remaining and ready != ["bounds"]:
                ready = [name for name in ready if name != "bounds"]
            name = turns.next(ready or None)
            seconds = max(TURN_LEAST, min(TURN, TURN_SHARE * self.clock.remaining)) * GROWTH ** turns.arms[name].idle
            if name == "bounds":
                seconds = max(seconds, again)
            value, bound, began = session.value, session.bound, self.clock.elapsed
            deadline = self.share(1.0, seconds)
            if name == "bounds":
                went = self.bounds(deadline)
            else:
                went = self.heuristic(name, deadline, wait=WAIT if ready else math.inf)
            spent = self.clock.elapsed - began
            if (not went and name not in self.waiting) or (name == "bounds" and self.bounds_final):
                del turns.arms[name]
                continue
            before = 2 * session.least_bound if value is None else value
            saved = 0 if session.value is None else max(0, before - session.value)
            turns.add(name, max(spent, 0.01), saved + session.bound - bound)
            if math.isinf(self.clock.seconds) and turns.arms[name].idle:
                return


#: Conditions of stages by name, evaluated when the turn of the stage comes; ``until-compiled`` also ends the stage.
CONDITIONS: Mapping[str, Callable[[Policy], bool]] = {
    "fixed-order": lambda policy: policy.problem.order is OrderRule.FIXED,
    "free-order": lambda policy: policy.problem.order is OrderRule.FREE,
    "once": lambda policy: policy.once,
    "training": lambda policy: policy.training,
    "no-training": lambda policy: not policy.training,
    "as-sets": lambda policy: LiveSearch.applies(policy.problem),
    "narrow": lambda policy: policy.narrow,
    "not-tiny": lambda policy: policy.num_ops > EXHAUSTIVE_OPS,
    "small-programmes": lambda policy: policy.session.best is not None and policy.small_programmes,
    "many-ops": lambda policy: policy.num_ops > SOME_OPS,
    "large": lambda policy: policy.num_ops > CUT_OPS,
    "huge": lambda policy: policy.num_ops > HUGE_OPS,
    "mild": lambda policy: (policy.problem.budget_bytes or 0) >= MILD * policy.problem.reference_peak,
    "close": lambda policy: policy.close,
    "not-close": lambda policy: not policy.close,
    "schedule": lambda policy: policy.session.best is not None,
    "no-schedule": lambda policy: policy.session.best is None,
    "slow-link": lambda policy: policy.slow_link,
    "rather-slow-link": lambda policy: policy.carried <= RATHER_SLOW,
    "compiling": lambda policy: bool(policy.waiting),
    "compiling-alone": lambda policy: bool(policy.waiting) and available_cpus() == 1,
    "patient": lambda policy: policy.clock.remaining >= COMPILATION,
    "until-compiled": lambda policy: bool(policy.waiting),
    "time-limit": lambda policy: policy.timed,
    "cp-sat": lambda policy: policy.family == "cp-sat",
    "cp": lambda policy: policy.family in ("cp-sat", "minizinc"),
    "mip": lambda policy: policy.family not in ("cp-sat", "minizinc"),
}


class CachedFlag:
    """Flag with rate-limited evaluation; once true, it stays true."""

    def __init__(self, evaluate: Callable[[], bool]) -> None:
        self.evaluate, self.next, self.value = evaluate, 0.0, False

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self.value and now >= self.next:
            self.next = now + CHECK_INTERVAL
            self.value = self.evaluate()
        return self.value
