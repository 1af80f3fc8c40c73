"""Schedule, certificate and report of a captured step; schedules whose compiled steps keep the budget."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from remat.errors import CaptureRemark
from remat.graphs import ComputeGraph
from remat.jax.capture import positions
from remat.jax.memory import compiled_memory
from remat.jax.plan import Plan
from remat.jax.program import Program
from remat.jax.report import Report
from remat.jax.step import Arguments, Step, value_and_gradients
from remat.problem import Problem, parse_budget
from remat.runtime.callers import outer_level
from remat.schedule import OrderRule, Schedule, simulate
from remat.solving.compiled_peaks import Attempt, closest, time_of_each
from remat.solving.method import MethodLike
from remat.solving.progress import OnProgress
from remat.solving.solve import solve
from remat.solving.training_steps import certified


@dataclass(frozen=True)
class Settings:
    """Options of the steps of a loss; see :func:`remat.jax.rematerialize`."""

    budget: str | int | float | None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrt: int | Sequence[int] = 0
    has_aux: bool = False
    unroll: bool = False
    name: str | None = None
    constants_counted: bool = False
    compiled: bool = False
    compiler_options: Mapping[str, Any] | None = None
    method: MethodLike = "auto"
    method_options: Any = None
    time_limit: float | None = 60.0
    on_progress: OnProgress | None = None

    def __post_init__(self) -> None:
        if self.budget is not None:
            parse_budget(self.budget, 0)  # refuse it before a capture that takes long


def step_problem(step: Step, settings: Settings) -> Problem:
    """Return the problem: fixed order, so that loss and auxiliary output come first; their ops run once."""
    graph = step.captured.graph
    early = step.early_tensors
    once = {op.name: 1 for op in graph.ops if early.intersection(op.outputs)}
    return Problem(
        graph, settings.budget, OrderRule.FIXED, once or None, count_constant_memory=settings.constants_counted
    )


def planned(
    loss: Callable[..., Any],
    step: Step,
    problem: Problem,
    settings: Settings,
    schedule: Schedule | str | os.PathLike[str] | None = None,
) -> Plan:
    """Return the plan of a step: solved or with the given schedule, and certified."""
    begun = time.monotonic()
    found = certified(
        problem, schedule,
        lambda: solve(
            problem, settings.method, method_options=settings.method_options, stop=settings.time_limit,
            on_progress=settings.on_progress,
        ),
    )  # fmt: skip
    seconds = {"solve": time.monotonic() - begun}
    program, graph = Program(step, found.schedule), step.captured.graph
    report = Report(
        name=graph.name, ops=len(graph.ops), recomputations=found.certificate.recomputations,
        reference_peak=problem.reference_peak, budget=problem.budget_bytes, predicted_peak=found.certificate.peak,
        overhead=found.certificate.overhead, constant_memory=graph.constant_memory,
        constants_counted=settings.constants_counted,
        saved_bytes=sum(graph.tensors[graph.tensor_index[name]].size for name in program.saved),
        certificate=found.certificate, result=found.result, seconds=seconds, costs="floating-point operations",
        remarks=step.captured.remarks, compiled_peak=_compiled_peak(graph, found.schedule),
    )  # fmt: skip
    return Plan(loss, program, found.schedule, report)


def fitted(first: Plan, given: Arguments, loss: Callable[..., Any], problem: Problem, settings: Settings) -> Plan:
    """Return the cheapest plan found whose compiled step keeps the budget, else that of the smallest peak.

    `first` keeps the budget before XLA compiles it. Without a search in its report, only its memory is measured.
    """
    begun, budget = time.monotonic(), problem.budget_bytes
    later = dataclasses.replace(settings, time_limit=time_of_each(settings.time_limit))

    def attempt(aim: int) -> Attempt[Plan]:
        within = dataclasses.replace(problem, budget=aim)
        return _measured(planned(loss, first.program.step, within, later), given, settings)

    best = _measured(first, given, settings)
    attempts: tuple[tuple[int, int], ...] = ()
    if budget is not None and first.report.result is not None:
        best, attempts = closest(best, budget, problem.reference_peak, attempt)
    plan, seconds = best.made, first.report.seconds | {"compile and solve again": time.monotonic() - begun}
    plan.report = dataclasses.replace(plan.report, budget=budget, attempts=attempts, seconds=seconds)
    return plan


def warn_over_budget(report: Report, remedy: str = "") -> None:
    """Warn if XLA assigns more memory than the budget; `remedy`: end of the message."""
    if report.budget is None or report.xla_peak is None or report.xla_peak <= report.budget:
        return
    tried = f", with the best of {len(report.attempts)} schedules" if len(report.attempts) > 1 else ""
    warnings.warn(
        CaptureRemark(
            f"XLA assigns {report.xla_peak:,} bytes to {report.name!r}, above the budget of {report.budget:,}; "
            f"predicted were {report.compiled_peak:,}{tried}{remedy}"
        ),
        stacklevel=outer_level(),
    )


def _measured(plan: Plan, given: Arguments, settings: Settings) -> Attempt[Plan]:
    """Compile the step of a plan, and put XLA's memory into its report."""
    step = value_and_gradients(plan.call, positions(settings.wrt), settings.has_aux)
    args, kwargs = jax.tree_util.tree_map(_shape_of_traced, tuple(given))
    memory = compiled_memory(step, *args, compiler_options=settings.compiler_options, **kwargs)
    plan.report = report = dataclasses.replace(plan.report, xla_memory=memory)
    assert report.xla_peak is not None
    return Attempt.of(report, report.xla_peak, plan)


def _shape_of_traced(value: Any) -> Any:
    """Return the shape of a value that is being traced, as in a call within ``jax.jit``; others as they are."""
    return jax.ShapeDtypeStruct(value.shape, value.dtype) if isinstance(value, jax.core.Tracer) else value


def _compiled_peak(graph: ComputeGraph, schedule: Schedule) -> int:
    """Return the peak of a schedule if the graph's outputs have their memory from the start."""
    results = set(graph.outputs)
    tensors = [dataclasses.replace(each, size=0) if each.name in results else each for each in graph.tensors]
    reserved = sum(each.size for each in graph.tensors if each.name in results)
    return reserved + simulate(dataclasses.replace(graph, tensors=tensors), schedule).peak
