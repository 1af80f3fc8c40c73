"""Schedule, certificate and report of a captured step."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remat.backends.choice import BackendLike
from remat.errors import ProblemError, ScheduleError
from remat.problem import Problem
from remat.schedule import OrderRule, Rules, Schedule, Verdict, validate
from remat.schedule.io import read_schedule
from remat.solving.method import MethodLike
from remat.solving.progress import OnProgress
from remat.solving.result import Result
from remat.solving.solve import solve
from remat.torch.captured import Captured
from remat.torch.partition import Split, split
from remat.torch.rematerialized.report import Report
from remat.torch.rematerialized.start import checkpointed_start, torch_start

#: Known values of some settings.
KNOWN = {"engine": ("eager", "inductor"), "constants": ("excluded", "included")}


@dataclass(frozen=True)
class Settings:
    """Settings for capturing, solving and running steps; the same for each kind of call.

    Raises
    ------
    ProblemError
        If a setting is unknown.
    """

    budget: str | int | float | None
    method: MethodLike
    backend: BackendLike | None
    time_limit: float | None
    costs: Any
    constants: str
    method_options: Any
    on_progress: OnProgress | None
    engine: str = "eager"
    workspaces: str | None = None

    def __post_init__(self) -> None:
        for word, known in KNOWN.items():
            check_setting(word, getattr(self, word), known)

    @property
    def constants_counted(self) -> bool:
        """True if budget and peak count parameters, buffers and inputs."""
        return self.constants == "included"


def check_setting(word: str, value: str, known: Sequence[str]) -> None:
    """Require a known value.

    Raises
    ------
    ProblemError
        With the unknown value.
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

    Raises
    ------
    ProblemError
        If no schedule within the budget exists or was found.
    ScheduleError
        If the schedule does not belong to this step, or exceeds the budget.
    """
    seconds = {"capture": capture_seconds}
    problem = _problem(captured, settings)
    result: Result | None = None
    if schedule is None:
        begun = time.monotonic()
        limit, start = settings.time_limit, None
        own = checkpointed_start(captured, problem)
        if settings.method == "auto":
            peer = torch_start(captured, problem, seconds["capture"], limit)
            starts = [each for each in (own, peer) if each is not None]
            start = min(starts, key=lambda each: validate(captured.graph, each, problem.rules).cost, default=None)
            seconds["start"] = time.monotonic() - begun
        if start is None and known is not None and set(known.computes()) == set(captured.graph.op_names):
            known = dataclasses.replace(known, graph=captured.graph.name, graph_digest=captured.graph.digest)
            start = known if validate(captured.graph, known, problem.rules).accepted else None
        result = solve(
            problem, settings.method, settings.backend, method_options=settings.method_options, warm_start=start,
            on_progress=settings.on_progress,
            stop=None if limit is None else max(limit - seconds.get("start", 0.0), 0.0),
        )  # fmt: skip
        seconds["solve"] = time.monotonic() - begun
        if result.schedule is None:
            message = result.message.replace("the tensors alive at the end need", "outputs and gradients together need")
            raise ProblemError(f"no schedule of {captured.graph.name!r}: {message}")
        found = result.schedule
    else:
        found = schedule if isinstance(schedule, Schedule) else read_schedule(schedule)
        # other costs (another machine, other threads) change the digest of the same step; the validator decides
        found = dataclasses.replace(found, graph=captured.graph.name, graph_digest=captured.graph.digest)
    rules = Rules(budget=problem.budget_bytes, count_constant_memory=settings.constants_counted)
    certificate = validate(captured.graph, found, rules)
    if certificate.verdict is Verdict.OVER_BUDGET:
        raise ScheduleError(
            f"the schedule holds {certificate.peak:,} bytes, over the budget of {rules.budget:,} bytes",
            "step-over-budget",
        )
    if not certificate.accepted:
        raise ScheduleError(f"the schedule is none of graph {captured.graph.name!r}: {certificate.first}")
    parts, graph = split(captured, found), captured.graph
    report = Report(
        name=graph.name, engine=settings.engine, ops=len(graph.ops), recomputations=certificate.recomputations,
        reference_peak=problem.reference_peak, budget=problem.budget_bytes, predicted_peak=certificate.peak,
        overhead=certificate.overhead, constant_memory=graph.constant_memory,
        constants_counted=settings.constants_counted,
        workspace=None if settings.workspaces is None else max(op.workspace for op in graph.ops),
        random_state_bytes=sum(each.size for each in parts.saved if each.kind == "state"),
        saved_bytes=sum(each.size for each in parts.saved if each.kind != "state"),
        certificate=certificate, result=result, seconds=seconds,
        costs=": ".join(filter(None, (graph.meta.get(key) for key in ("cost_model", "cost_figures")))),
    )  # fmt: skip
    return parts, report


def _problem(captured: Captured, settings: Settings) -> Problem:
    """Return the problem: fixed order, since random ops draw in turn; ops with the module's outputs run once."""
    homes = {
        home
        for each in captured.results
        if each.kind == "output" and each.node is not None
        for home in captured.homes[each.node]
    }
    once = {op.name: 1 for op in captured.graph.ops if homes.intersection(op.outputs)}
    return Problem(
        captured.graph, settings.budget, OrderRule.FIXED, once or None,
        count_constant_memory=settings.constants_counted,
    )  # fmt: skip
