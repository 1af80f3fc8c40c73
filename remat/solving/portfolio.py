"""Portfolio engine: stages on one session, each with a share of the remaining time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from remat.backends.base import Backend
from remat.errors import BackendError, ModelError, ProblemError
from remat.formulations.base import Formulation
from remat.heuristics.base import Heuristic
from remat.heuristics.turns import Turns
from remat.registry import load
from remat.runtime.compiled import COMPILING
from remat.runtime.deadline import Deadline
from remat.runtime.solve_options import SolveOptions
from remat.solving.bounding import raise_bounds
from remat.solving.chain_starts import OPTIONS, chain_start
from remat.solving.model_solve import ModelSolve
from remat.solving.session import Session

#: Ops up to which the search is exhaustive.
EXHAUSTIVE_OPS = 24
#: Ops up to which neighbourhoods are searched by models.
LNS_OPS = 5000
#: Share of the time left and maximum seconds to wait for compilation while other work remains, and maximum seconds if
#: kernels only need loading, which takes less than one on an idle CPU.
WAIT_SHARE, WAIT, LOADING = 0.2, 2.0, 10.0
#: Seconds of a turn: share of the time left, minimum, maximum, and growth while turns bring no improvement. Annealing
#: resumes where its last turn stopped; the others restart.
TURN_SHARE, TURN_LEAST, TURN, GROWTH = 0.1, 1.0, 10.0, 1.5


@dataclass(frozen=True)
class Stage:
    """One stage of a policy."""

    run: Callable[[Any, Deadline], object]
    """Receives the policy and the deadline of the stage."""
    share: float = 1.0
    """Share of the time left."""
    most: Callable[[Any], float] = lambda _: math.inf
    """Returns the maximum seconds, given a policy."""
    when: Callable[[Any], bool] = lambda _: True
    """Returns whether the stage applies, given a policy; called when its turn comes."""


class Policy:
    """Several search methods on one session; a subclass defines their order and time.

    Parameters
    ----------
    session : Session
    """

    #: Seconds of a share if there is no deadline.
    endless = math.inf

    def __init__(self, session: Session) -> None:
        self.session, self.problem, self.clock = session, session.problem, session.call.deadline
        self.warm_start = session.warm_start
        self.num_ops = len(self.problem.graph.ops)
        self.once = all(limit == 1 for limit in self.problem.compute_limits)
        self.seeds = 0
        self.kept: dict[str, Heuristic] = {}
        """Heuristics created so far."""
        self.waiting: list[str] = []
        """Names of heuristics that are still being compiled."""
        self.spent: dict[str, float] = {}
        """Seconds used by each heuristic and by bounds."""
        self.last_bounds = 0.0
        """Seconds of the last computation of bounds."""

    @property
    def over(self) -> bool:
        """Return whether the search should end: decided, stopped or out of time."""
        return self.session.enough or self.clock.expired

    def follow(self, stages: Iterable[Stage]) -> None:
        """Run the stages that apply, until the search should end."""
        for stage in stages:
            if self.over:
                return
            if stage.when(self):
                stage.run(self, self.share(stage.share, stage.most(self)))

    def share(self, share: float, most: float = math.inf) -> Deadline:
        """Return the deadline after a share of the time left, at most `most` seconds."""
        return self.clock.share(share, self.endless).earlier(most)

    # -- search methods ----------------------------------------------------------------------------------------------

    def made(self, name: str) -> Heuristic:
        """Return the heuristic with a name, the same object each time."""
        if name not in self.kept:
            self.kept[name] = chain_start(name) if name in OPTIONS else load("heuristics", name)()
        return self.kept[name]

    def heuristic(self, given: str | Heuristic, deadline: Deadline, *, wait: float | None = None) -> bool:
        """Improve the best schedule by a heuristic, unless loading takes over `wait` seconds; return whether it ran.

        Without a deadline it waits for loading, as nothing follows.
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
            # Loading time does not count as part of the turn.
            deadline = self.clock.earlier(deadline.remaining + self.clock.elapsed - began)
            began = self.clock.elapsed
            try:
                session.improve(heuristic, deadline, best, self.seeds, self.clock)
                self.seeds += 1  # the next turn has another seed
            except (ProblemError, ModelError, BackendError) as error:
                session.note(f"{name} was left out: {error}")
                return False
            self._spend(name, began)
        return True

    def _spend(self, name: str, began: float) -> None:
        self.spent[name] = self.spent.get(name, 0.0) + self.clock.elapsed - began

    def loaded(self, name: str) -> bool:
        """Return whether a heuristic can run at once."""
        return name not in self.waiting or self.kept[name].prepared(Deadline(0.0))

    def try_again(self) -> None:
        """Run heuristics that were not loaded at their turn."""

    def bounds(self, deadline: Deadline) -> bool:
        """Raise the bound on all schedules; return whether there was anything to do."""
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
        """Solve a model of the whole problem; return its session, or None if it cannot be solved."""
        return self.session.part(
            kind.name, lambda part: ModelSolve(part, kind, backend, options).run(), call, backend,
            step="" if self.session.asks_peak else f"{kind.name} by {backend.full_name}",
        )  # fmt: skip

    # -- turns -------------------------------------------------------------------------------------------------------

    def turns(self, shares: Mapping[str, float]) -> None:
        """Give turns to the methods with the largest improvements, until time is up.

        Without a deadline it ends after the first turn without improvement.

        Parameters
        ----------
        shares : mapping of str to float
            Initial shares of the time of heuristics and ``bounds``; they follow the improvements.
        """
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
            cost, bound, began = session.cost, session.bound, self.clock.elapsed
            deadline = self.share(1.0, seconds)
            if name == "bounds":
                went = self.bounds(deadline)
            else:
                went = self.heuristic(name, deadline, wait=WAIT if ready else math.inf)
            spent = self.clock.elapsed - began
            # Bounds that end early cannot improve further.
            early = name == "bounds" and spent < 0.5 * (deadline.seconds - began)
            if (not went and name not in self.waiting) or early:
                del turns.arms[name]
                continue
            before = 2 * self.problem.graph.base_cost if cost is None else cost
            saved = 0 if session.cost is None else max(0, before - session.cost)
            turns.add(name, max(spent, 0.01), saved + session.bound - bound)
            if math.isinf(self.clock.seconds) and turns.arms[name].idle:
                return
