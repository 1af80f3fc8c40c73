"""Steps of a module for given arguments: captured, solved, certified and split."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from remat.errors import CaptureError, ProblemError
from remat.schedule import Schedule
from remat.torch.agreement import Agreement
from remat.torch.capture import capture
from remat.torch.captured import Captured
from remat.torch.lock import in_turn
from remat.torch.rematerialized.arguments import Sample
from remat.torch.rematerialized.autograd_function import Program
from remat.torch.rematerialized.buckets import Buckets, cheapest, sizes_of
from remat.torch.rematerialized.plan import Plan
from remat.torch.rematerialized.planning import Settings, check_setting, needs_search, planned, step_problem
from remat.torch.rematerialized.python_state import check_python_state
from remat.torch.rematerialized.report import Report
from remat.torch.transfers.optimizer_state import state_bytes

_log = logging.getLogger("remat.torch")

OTHER_SHAPES = ("error", "capture")
#: Sizes by which steps of other shapes are planned: powers of two, or given ones; None: each by its own.
Shapes = str | Sequence[int] | None


class Planner:
    """Makes steps of a module within one budget: captures, solves, certifies and splits each kind of call.

    The peak of the first one turns a budget in % into bytes.

    `other_shapes` and `shapes` as in :func:`~remat.torch.rematerialize`.
    """

    def __init__(self, settings: Settings, other_shapes: str, shapes: Shapes = None) -> None:
        check_setting("other_shapes", other_shapes, OTHER_SHAPES)
        self._buckets = None if shapes is None else Buckets.of(shapes)
        self.settings = settings
        self.other_calls = other_shapes == "capture" or shapes is not None
        """True if a call unlike all earlier ones is captured; False if it is refused."""
        self.reports: list[Report] = []
        """Reports of all steps made."""
        self._known: Schedule | None = None
        self._schedules: list[Schedule] = []
        self._first: tuple[Any, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Planner:
        return self

    @in_turn
    def __call__(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        schedule: Schedule | str | os.PathLike[str] | None = None,
    ) -> Plan:
        """Return the step for these arguments, by a given schedule or a search.

        The search starts from the first schedule if the ops are the same. Raise as :func:`~remat.torch.rematerialize`.
        """
        begun, settings = time.monotonic(), self.settings
        attributes = check_python_state(module, args, kwargs)
        if settings.optimizer is not None and settings.state is None:
            settings = dataclasses.replace(settings, state=state_bytes(settings.optimizer, module))
            self.settings = settings
        captured, fallback = self._captured(module, args, kwargs)
        reused: Schedule | None = None
        if self._buckets is not None and schedule is None and self._known is not None:
            schedule = reused = self._of_bucket(captured, module, args, kwargs)
        parts, report = planned(captured, settings, schedule, self._known, capture_seconds=time.monotonic() - begun)
        report = dataclasses.replace(report, fallback=fallback, unset=attributes.unset)
        passes: tuple[Any, ...] = ()
        duplex = settings.host is None or settings.host.full_duplex
        if settings.engine == "inductor":
            from remat.torch.rematerialized.inductor import compiled

            passes = compiled(parts)
        if self._known is None:
            self._known = parts.schedule
            self._first = sizes_of(args, kwargs)
            self.settings = dataclasses.replace(settings, budget=report.budget)  # a share is relative to the first peak
        if reused is None:
            self._schedules.append(parts.schedule)
        self.reports.append(report)
        _log.info("rematerialized %s", report)
        program = Program(parts, *passes, full_duplex=duplex)
        return Plan(module, Sample(module.forward, args, kwargs), program, report, read=attributes.read)

    def _captured(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Captured, str]:
        """Capture as :func:`captured_step`; the optimizer's state on the device is constant memory."""
        settings = self.settings
        captured, fallback = captured_step(module, args, kwargs, costs=settings.costs, workspaces=settings.workspaces)
        captured = dataclasses.replace(captured, graph=Agreement.of([captured]).graph(captured.graph))
        if settings.state is not None and settings.state.device:
            constant = captured.graph.constant_memory + settings.state.device
            captured = dataclasses.replace(
                captured, graph=dataclasses.replace(captured.graph, constant_memory=constant)
            )
        return captured, fallback

    def _of_bucket(
        self, captured: Captured, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Schedule | None:
        """Return a schedule for a call of other sizes: the cheapest known one that fits, or one for its bucket's sizes.

        None if neither fits; the step is then solved at its own sizes.
        """
        problem = step_problem(captured, self.settings)
        known = cheapest(problem, self._schedules)
        if known is not None or not needs_search(problem):
            return known
        assert self._buckets is not None
        larger = self._buckets.sample(self._first, args, kwargs)
        if larger is None:
            return None
        try:
            above, _ = self._captured(module, *larger)
            parts, _ = planned(above, self.settings, None, None, capture_seconds=0.0)
        except (CaptureError, ProblemError) as error:
            _log.info("the sizes of the bucket are not planned: %s", error)
            return None
        self._schedules.append(parts.schedule)
        return cheapest(problem, [parts.schedule])


def captured_step(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], **how: Any
) -> tuple[Captured, str]:
    """Capture as torch.compile does; if Dynamo fails or loses an output's gradient, record a run and return why."""
    captured = capture(module, args, kwargs, **how)
    shared = _untied_outputs(captured)
    if shared is None or captured.route != "joint":
        return captured, str(captured.graph.meta.get("fallback", ""))
    again = capture(module, args, kwargs, **how, route="make_fx")
    return again, f"outputs {shared[0]} and {shared[1]} share their memory"


def _untied_outputs(captured: Captured) -> tuple[int, int] | None:
    """Find two outputs with common memory, of which one has no tangent: its gradient would be lost silently."""
    tied = {each.output for each in captured.inputs_of("tangent")}
    place: dict[str, int] = {}
    for number, each in enumerate(captured.results_of("output")):
        for home in () if each.node is None else captured.homes[each.node]:
            if home is None:
                continue
            other = place.setdefault(home, number)
            if other != number and tied & {other, number} and not tied >= {other, number}:
                return other, number
    return None
