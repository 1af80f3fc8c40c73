"""Search for schedules that only recompute, as part of a solve that may also move tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from remat.bounds.stage_bound import stage_bounds
from remat.bounds.stage_programmes import StageProgrammes
from remat.heuristics.base import Heuristic
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule
from remat.schedule.certificate import overhead_text
from remat.solving.chain_starts import FEW
from remat.solving.portfolio import Policy, Stage
from remat.solving.progress import Progress
from remat.solving.session import Session
from remat.solving.stop import StoppingCriterion

#: Share of the time for the bound that may make the search superfluous, and its most seconds: a longer one solves
#: programmes with few events to the end, while ResNet-50 at 20 % needs 15 events.
BOUND_SHARE, BOUND_SECONDS = 0.2, 3.0


@dataclass(frozen=True)
class _Superfluous(StoppingCriterion):
    """The whole solve ends, or its best schedule is as fast as any that only recomputes."""

    whole: Session

    def reached(self, moment: Progress) -> bool:
        value = self.whole.value
        return self.whole.enough or (value is not None and moment.bound is not None and moment.bound >= value)

    def __str__(self) -> str:
        return "when no schedule that only recomputes is faster"


class OneMemory:
    """Table of stages on the problem without its machine, run in parts, each from where the last one stopped.

    The best schedule of a problem with a host may be one that moves nothing. Once the bound for those reaches the time
    of the best schedule, none of them is faster, and the search is over.

    Parameters
    ----------
    whole : Session
        Receives the schedules; proofs for one memory do not count there.
    policy : callable
        Makes the policy that runs the stages.
    stages : sequence of Stage
    """

    def __init__(self, whole: Session, policy: Callable[[Session], Policy], stages: Sequence[Stage]) -> None:
        self.whole, self.stages = whole, list(stages)
        start = whole.start_without_moves(whole.best.schedule if whole.best is not None else whole.warm_start)
        self.part = Session(
            whole.problem.one_memory, whole.call, whole.method, whole.backend, solver=whole.solver, warm_start=start,
            criterion=_Superfluous(whole), any_method=True,
        )  # fmt: skip
        self.part.on_progress = self._take
        self.policy = policy(self.part)
        self.policy.compile(self.stages)

    @property
    def over(self) -> bool:
        """True when nothing remains to be found."""
        return self.part.enough or not self.stages

    def pass_on(self, transfers: Heuristic) -> None:
        """Give transfers what few stages has found: schedules, perhaps above the budget, and events for programmes."""
        few = self.policy.kept.get(FEW)
        if few is None:
            return
        transfers.near, few.near = few.near, ()
        known = few.programmes_of(self.part.problem.plain)
        programmes = transfers.programmes_of(self.whole.problem.plain)
        if isinstance(known, StageProgrammes) and programmes is not None:
            programmes.likely |= known.decisive

    def run(self, deadline: Deadline) -> None:
        """Run stages until a deadline."""
        part, policy = self.part, self.policy
        done = len(part.steps)
        part.call = replace(part.call, deadline=deadline)
        policy.clock = deadline
        try:
            if not done:
                self._bound(deadline.share(BOUND_SHARE).earlier(BOUND_SECONDS))
            while not (policy.over or self.over):
                stage = self.stages.pop(0)
                policy.follow([stage])
                if deadline.expired:
                    self.stages.insert(0, stage)  # for the next part
        finally:
            self._take()
            self.whole.steps += [replace(step, bound=self.whole.bound) for step in part.steps[done:]]
        value = self.whole.value
        if value is not None and part.bound >= value:
            base = self.whole.least_bound
            share = f" (overhead {overhead_text(part.bound, base)})" if base else ""
            self.whole.note(f"no schedule that only recomputes takes less than {part.bound:,}{share}")

    def _bound(self, deadline: Deadline) -> None:
        """Raise the bound for schedules that only recompute, at most to the time of the best schedule."""
        part = self.part
        if part.problem.order is OrderRule.FREE or part.call.isolate:
            return
        if self.policy.training:
            self.policy.made(FEW)  # continues these programmes
        with part.step("bounds in one memory"):
            for bound in stage_bounds(
                part.problem, enough=self.whole.value, deadline=deadline, threads=part.call.threads,
                memory_limit=part.call.memory_bytes, programmes=self.policy.programmes,
            ):  # fmt: skip
                part.infeasible |= bound.infeasible
                part.raise_cost_bound(bound.value, bound.scope)
                if part.enough:
                    return

    def _take(self, _: Progress | None = None) -> None:
        self.whole.adopt(self.part)
