"""Schedule, certificate and report of a captured step, and the first schedule of its search."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypedDict

from remat.backends.choice import BackendLike
from remat.errors import CaptureRemark, ProblemError, RematError, ScheduleError
from remat.problem import Problem, parse_budget
from remat.runtime.callers import outer_level
from remat.schedule import Machine, OrderRule, Schedule, validate
from remat.schedule.saved_sets import schedule_of_saved
from remat.solving.method import MethodLike
from remat.solving.progress import OnProgress
from remat.solving.result import Result
from remat.solving.solve import solve
from remat.solving.training_steps import CertifiedStep, certified, costs_text, host_machine
from remat.torch.agreement import Agreement
from remat.torch.captured import Captured
from remat.torch.execute.split import Split, split
from remat.torch.fit.optimizers import OptimizerLike, optimizer_name
from remat.torch.links import machine_here
from remat.torch.peers.partitioner import partitioner_schedule
from remat.torch.peers.saved import tagged_schedule
from remat.torch.rematerialized import stored
from remat.torch.rematerialized.report import Report
from remat.torch.transfers.optimizer_state import StateBytes

_log = logging.getLogger("remat.torch")

#: Share of the time limit for torch.
SHARE = 0.1
#: Time of torch for one budget, as a share of the time of the capture; it cannot be stopped.
OF_CAPTURE = 1 / 3
#: Torch's budgets in turn: first mostly the one of least peak; then cheaper ones, or others if it did not fit.
FIRST, CHEAPER, OTHERS = 0.4, (0.6, 0.8), (0.3, 0.2)


def torch_start(captured: Captured, problem: Problem, capture_seconds: float, limit: float | None) -> Schedule | None:
    """Return the cheapest schedule within the budget of a few by torch's partitioner, in the reference order.

    None if none fits, the step is not of route ``"joint"``, the budget needs no recomputation, torch fails, or time is
    too short.

    Parameters
    ----------
    problem : Problem
        Problem on its graph.
    capture_seconds : float
        Time of the capture: torch's partitioner takes about a quarter of it, more for large graphs.
    limit : float or None
        Seconds for the whole search; torch may use a tenth.
    """
    budget = problem.budget_bytes
    if captured.route != "joint" or captured.mode != "training" or budget is None or budget >= problem.reference_peak:
        return None
    begun, longest = time.monotonic(), capture_seconds * OF_CAPTURE
    best: Schedule | None = None
    least = 0
    waiting = [FIRST]
    while waiting:
        spent = time.monotonic() - begun
        if limit is not None and spent + longest > SHARE * limit:
            break
        knob = waiting.pop(0)
        before = time.monotonic()
        try:
            schedule = in_reference_order(problem, partitioner_schedule(captured, knob))
        except RematError as error:
            _log.info("no start from torch's partitioner: %s", error)
            break
        longest = max(longest, time.monotonic() - before)
        certificate = problem.validate(schedule)
        if certificate.accepted and (best is None or problem.value(certificate) < least):
            best, least = schedule, problem.value(certificate)
        if knob == FIRST:
            waiting = list(OTHERS if best is None else CHEAPER)
    return best


def checkpointed_start(captured: Captured, problem: Problem) -> Schedule | None:
    """Warn of checkpoints in the module itself; return their schedule if it keeps the budget.

    Only the joint graph loses them: the other route records their recomputations.
    """
    try:
        schedule = in_reference_order(problem, tagged_schedule(captured))
    except ScheduleError:
        return None
    certificate = validate(captured.graph, schedule, problem.rules)
    warnings.warn(
        CaptureRemark(
            f"module {captured.graph.name!r} checkpoints itself (torch.utils.checkpoint), and a schedule replaces that"
            f"; it needs {certificate.peak:,} bytes so: give a budget of at most that, or turn its checkpoints off"
        ),
        stacklevel=outer_level(),
    )
    return schedule if certificate.accepted else None


def in_reference_order(problem: Problem, schedule: Schedule) -> Schedule:
    """Return the same recomputations, each at its first need, with first computes in the reference order.

    Torch orders the backward pass in its own way, but random ops must draw their numbers in turn. Torch also
    recomputes ops with outputs of the module if they have a second output; ops that may run only once are kept.
    """
    counts = Counter(schedule.computes())
    limits = problem.compute_limits
    kept = [
        tensor
        for place, op in enumerate(problem.graph.ops)
        if op.phase != "backward" and (counts[op.name] < 2 or limits[place] == 1)
        for tensor in op.outputs
    ]
    return schedule_of_saved(problem.graph, kept, source=schedule.source)


#: Known values of some settings.
KNOWN = {"engine": ("eager", "inductor"), "constants": ("excluded", "included")}


class SearchOptions(TypedDict, total=False):
    """Options of :func:`remat.torch.backend` and :func:`remat.torch.rematerialize`, which documents them."""

    method: MethodLike
    time_limit: float | None
    costs: Any
    constants: str
    method_options: Any
    on_progress: OnProgress | None


class StepOptions(SearchOptions, total=False):
    """Further options of :func:`remat.torch.rematerialize`."""

    backend: BackendLike | None
    engine: str
    workspaces: str | None
    offload: str | int | None
    machine: Machine | str | None
    optimizer: OptimizerLike


@dataclass(frozen=True)
class Settings:
    """Settings for capturing, solving and running steps; the same for each kind of call.

    Raise ProblemError if a setting is unknown.
    """

    budget: str | int | float | None
    method: MethodLike = "auto"
    backend: BackendLike | None = "cp-sat"
    time_limit: float | None = 60.0
    costs: Any = "roofline"
    constants: str = "excluded"
    method_options: Any = None
    on_progress: OnProgress | None = None
    engine: str = "eager"
    workspaces: str | None = None
    offload: str | int | None = None
    machine: Machine | str | None = None
    optimizer: OptimizerLike = None
    state: StateBytes | None = None
    """Bytes of the optimizer's state, once they are known; `host` has no room for those there."""

    def __post_init__(self) -> None:
        if self.budget is not None:
            parse_budget(self.budget, 0)  # refuse it before a capture that takes long
        for word, known in KNOWN.items():
            check_setting(word, getattr(self, word), known)
        if self.machine is not None:  # measured once
            object.__setattr__(self, "machine", machine_here(self.machine))
        if self.host is not None and self.engine != "eager":
            raise ProblemError(
                f"engine {self.engine!r} moves no tensors to the host; use engine='eager', or torch.compile(model, "
                "options=remat.torch.inductor(..., offload=...))",
                "step-offload",
            )

    @cached_property
    def host(self) -> Machine | None:
        """The machine, with the host's memory that the optimizer's state leaves; None if no tensors move."""
        made = host_machine(self.offload, self.machine)
        if made is None or made.host is None or self.state is None:
            return made
        if self.state.host > made.host:
            raise ProblemError(
                f"the state of {optimizer_name(self.optimizer)} takes {self.state.host:,} bytes on the host, more than "
                f"the {made.host:,} there: offload more",
                "step-offload",
            )
        return replace(made, host=made.host - self.state.host)

    @property
    def constants_counted(self) -> bool:
        """True if budget and peak count parameters, buffers and inputs."""
        return self.constants == "included"


def check_setting(word: str, value: str, known: Sequence[str]) -> None:
    """Require a known value.

    Raise ProblemError with the unknown value.
    """
    if value not in known:
        raise ProblemError(f"{word} {value!r} is not one of {', '.join(known)}", "step-setting")


def planned(
    captured: Captured,
    settings: Settings,
    schedule: Schedule | str | os.PathLike[str] | None,
    known: Schedule | None = None,
    *,
    capture_seconds: float,
) -> tuple[Split, Report]:
    """Solve, or use the given schedule; certify, split and report the predictions.

    Raise ProblemError if no schedule within the budget exists or was found, and ScheduleError if the schedule does not
    belong to this step, or exceeds the budget.
    """
    seconds = {"capture": capture_seconds}
    problem = step_problem(captured, settings)

    def search() -> Result:
        return _solved(captured, problem, settings, known, seconds)

    def found() -> CertifiedStep:
        path = None
        if needs_search(problem):
            how = (settings.method, settings.backend, settings.method_options, settings.time_limit)
            path = stored.stored_path(problem, how)
        before = stored.find(path, problem)
        made = certified(problem, before, search)
        if before is None:
            stored.add(path, made.schedule)
        return made

    processes = Agreement.of([captured])
    if schedule is None and processes.groups:
        schedule = processes.once(lambda: found().schedule)
    step = found() if schedule is None else certified(problem, schedule, search)
    parts, graph, certificate = split(captured, step.schedule), captured.graph, step.certificate
    report = Report(
        name=graph.name, engine=settings.engine, ops=len(graph.ops), recomputations=certificate.recomputations,
        reference_peak=problem.reference_peak, budget=problem.budget_bytes, predicted_peak=certificate.peak,
        overhead=certificate.overhead, constant_memory=graph.constant_memory,
        constants_counted=settings.constants_counted,
        workspace=None if settings.workspaces is None else max(op.workspace for op in graph.ops),
        state=settings.state,
        random_state_bytes=sum(each.size for each in parts.saved if each.kind == "state"),
        saved_bytes=sum(each.size for each in parts.saved if each.kind not in {"state", "host"}),
        certificate=certificate, result=step.result, seconds=seconds,
        costs=costs_text(graph),
    )  # fmt: skip
    return parts, report


def needs_search(problem: Problem) -> bool:
    """Return False if the budget fits without recomputation, or is below the structural bound."""
    budget = problem.budget_bytes
    return budget is not None and budget < problem.reference_peak and not problem.hopeless


def _solved(
    captured: Captured, problem: Problem, settings: Settings, known: Schedule | None, seconds: dict[str, float]
) -> Result:
    """Search for a schedule, from the best of some known ones; add the times to `seconds`.

    The search has at least half of the time limit, also if torch's partitioner took more than the other half.
    """
    begun = time.monotonic()
    limit, start = settings.time_limit, None
    own = checkpointed_start(captured, problem)
    if settings.method == "auto":
        peer = torch_start(captured, problem, seconds["capture"], limit)
        starts = [each for each in (own, peer) if each is not None]
        start = min(starts, key=lambda each: problem.value(problem.validate(each)), default=None)
        seconds["start"] = time.monotonic() - begun
    if start is None and known is not None and set(known.computes()) == set(captured.graph.op_names):
        known = known.signed_for(captured.graph)
        start = known if validate(captured.graph, known, problem.rules).accepted else None
    result = solve(
        problem, settings.method, settings.backend, method_options=settings.method_options, warm_start=start,
        on_progress=settings.on_progress,
        stop=None if limit is None else max(limit - seconds.get("start", 0.0), limit / 2),
    )  # fmt: skip
    seconds["solve"] = time.monotonic() - begun
    return result


def step_problem(captured: Captured, settings: Settings) -> Problem:
    """Return the problem: fixed order, since random ops draw in turn; ops with the module's outputs run once."""
    homes = captured.homes_of("output")
    once = {op.name: 1 for op in captured.graph.ops if homes.intersection(op.outputs)}
    return Problem(
        captured.graph, settings.budget, OrderRule.FIXED, once or None,
        count_constant_memory=settings.constants_counted, machine=settings.host,
    )  # fmt: skip
