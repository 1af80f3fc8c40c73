"""The engine of portfolios: stages on one session, each with a share of the time that is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from remat.backends.base import Backend, SolveOptions
from remat.compiled import COMPILING
from remat.deadline import Deadline
from remat.errors import BackendError, ModelError, ProblemError
from remat.formulations.base import Formulation
from remat.heuristics.base import Heuristic
from remat.heuristics.turns import Turns
from remat.registry import load
from remat.solving.bounding import raise_bounds
from remat.solving.chain_starts import OPTIONS, chain_start
from remat.solving.model_method import ModelMethod
from remat.solving.session import Session

#: Ops up to which everything is searched.
EXHAUSTIVE_OPS = 24
#: Ops up to which neighbourhoods are searched by models.
LNS_OPS = 5000
#: Share of the time left, and most seconds, that compiled code is waited for while there is something else to do, and
#: most seconds where it is only to be loaded: less than one on an idle processor.
WAIT_SHARE, WAIT, LOADING = 0.2, 2.0, 10.0
#: Seconds of a turn: share of the time left, at least, at most, and by how much it grows while turns bring nothing.
#: Annealing goes on where its last turn ended, the others begin anew.
TURN_SHARE, TURN_LEAST, TURN, GROWTH = 0.1, 1.0, 10.0, 1.5


@dataclass(frozen=True)
class Stage:
    """One stage of a policy.

    Attributes
    ----------
    run : callable
        Receives the policy and the deadline of the stage.
    share : float
        Of the time left.
    most : callable
        Seconds at most, for a policy.
    when : callable
        Whether a policy has this stage, asked when its turn comes.
    """

    run: Callable[[Any, Deadline], object]
    share: float = 1.0
    most: Callable[[Any], float] = lambda _: math.inf
    when: Callable[[Any], bool] = lambda _: True


class Policy:
    """Several ways of searching on one session; a subclass says in which order, and for how long.

    Parameters
    ----------
    session : Session
    """

    #: Seconds of a share where there is no deadline.
    endless = math.inf

    def __init__(self, session: Session) -> None:
        self.session, self.problem, self.clock = session, session.problem, session.call.deadline
        self.warm_start = session.warm_start
        self.num_ops = len(self.problem.graph.ops)
        self.once = all(limit == 1 for limit in self.problem.compute_limits)
        self.seeds = 0
        self.kept: dict[str, Heuristic] = {}
        """Heuristics that ran before, or are still being compiled."""
        self.waiting: list[str] = []
        """Those that are still being compiled."""
        self.spent: dict[str, float] = {}
        """Seconds that heuristics and bounds have had."""
        self.last_bounds = 0.0
        """Of these, what bounds had when they were last asked."""

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, or no time."""
        return self.session.enough or self.clock.expired

    def follow(self, stages: Iterable[Stage]) -> None:
        """Run the stages that apply, until nothing is left to do."""
        for stage in stages:
            if self.over:
                return
            if stage.when(self):
                stage.run(self, self.share(stage.share, stage.most(self)))

    def share(self, share: float, most: float = math.inf) -> Deadline:
        """A deadline after a share of the time left, and after `most` seconds."""
        return self.clock.share(share, self.endless).earlier(most)

    # -- ways of searching -------------------------------------------------------------------------------------------

    def made(self, name: str) -> Heuristic:
        """The heuristic of that name, the same one each time."""
        if name not in self.kept:
            self.kept[name] = chain_start(name) if name in OPTIONS else load("heuristics", name)()
        return self.kept[name]

    def heuristic(self, given: str | Heuristic, deadline: Deadline, *, wait: float | None = None) -> bool:
        """Let a heuristic improve the best schedule, unless loading it takes over `wait` seconds; whether it ran.

        Without a deadline nothing comes later, so it is waited for.
        """
        name = given.name if isinstance(given, Heuristic) else given
        if self.over or (name == "lns" and self.num_ops > LNS_OPS):
            return False
        if isinstance(given, Heuristic):
            self.kept[name] = given
        session, heuristic = self.session, self.made(name)
        if wait is None:
            remaining = self.clock.remaining
            most = LOADING if heuristic.compiled() else WAIT
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
            except (ProblemError, ModelError, BackendError) as error:
                session.note(f"{name} was left out: {error}")
                return False
            self._spend(name, began)
        return True

    def _spend(self, name: str, began: float) -> None:
        self.spent[name] = self.spent.get(name, 0.0) + self.clock.elapsed - began

    def loaded(self, name: str) -> bool:
        """Whether a heuristic could run at once."""
        return name not in self.waiting or self.kept[name].prepared(Deadline(0.0))

    def try_again(self) -> None:
        """Run what had not been loaded when its time came."""

    def bounds(self, deadline: Deadline) -> bool:
        """Raise the bound on all schedules; whether there was anything to do."""
        if self.over or self.problem.budget_bytes is None:
            return False
        began = self.clock.elapsed
        raise_bounds(self.session, deadline)
        self.last_bounds = self.clock.elapsed - began
        self._spend("bounds", began)
        return True

    def model(
        self, kind: type[Formulation], backend: Backend, call: SolveOptions, options: Any = None
    ) -> Session | None:
        """Solve a model of the whole problem; its session, None where it cannot be solved."""
        return self.session.part(
            kind.name, lambda part: ModelMethod(part, kind, backend, options).run(), call, backend,
            step="" if self.session.asks_peak else f"{kind.name} by {backend.full_name}",
        )  # fmt: skip

    # -- turns -------------------------------------------------------------------------------------------------------

    def turns(self, shares: Mapping[str, float]) -> None:
        """Give turns to those that bring the most, until time is up.

        Without a deadline it ends with the first turn that brings nothing.

        Parameters
        ----------
        shares : mapping of str to float
            Of the time that heuristics and ``bounds`` begin with; what they bring moves them.
        """
        turns, session = Turns(shares, self.spent), self.session
        while not self.over and turns.arms:
            self.try_again()
            ready = [name for name in turns.arms if self.loaded(name)]
            again = GROWTH * self.last_bounds  # in less time than before, bounds would say the same once more
            if again > self.clock.remaining and ready != ["bounds"]:
                ready = [name for name in ready if name != "bounds"]
            name = turns.next(ready or None)
            seconds = max(TURN_LEAST, min(TURN, TURN_SHARE * self.clock.remaining)) * GROWTH ** turns.arms[name].idle
            if name == "bounds":
                seconds = max(seconds, again)
            cost, bound, began = session.cost, session.bound, self.clock.elapsed
            deadline = self.share(1.0, seconds)
            if name == "bounds":
                went = self.bounds(deadline)
            else:
                went = self.heuristic(name, deadline, wait=WAIT if ready else math.inf)
            spent = self.clock.elapsed - began
            # Bounds that end before their time have no more to say.
            early = name == "bounds" and spent < 0.5 * (deadline.seconds - began)
            if (not went and name not in self.waiting) or early:
                del turns.arms[name]
                continue
            before = 2 * self.problem.graph.base_cost if cost is None else cost
            saved = 0 if session.cost is None else max(0, before - session.cost)
            turns.add(name, max(spent, 0.01), saved + session.bound - bound)
            if math.isinf(self.clock.seconds) and turns.arms[name].idle:
                return
