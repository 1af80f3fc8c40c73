"""Schedules whose programs keep the budget after fusion by TorchInductor: :func:`fitted`."""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import fx

from remat.errors import CaptureRemark, ProblemError
from remat.runtime.callers import outer_level
from remat.solving.compiled_peaks import Attempt, closest, time_of_each
from remat.torch.capture.explaining import first_line
from remat.torch.captured import Captured
from remat.torch.execute.split import Split
from remat.torch.private import CustomGraphPass, inductor_config
from remat.torch.rematerialized.inductor_trial import compiled_peak
from remat.torch.rematerialized.planning import Settings, planned, step_problem
from remat.torch.rematerialized.report import Report

_log = logging.getLogger("remat.torch")

#: Entry of an output node: Inductor may change the layout of the graph's convolutions.
CHANNELS_LAST = "remat_channels_last"


class _Program(NamedTuple):
    """Split of a schedule; `channels_last` as in :data:`CHANNELS_LAST`."""

    parts: Split
    report: Report
    channels_last: bool


def fitted(captured: Captured, settings: Settings, capture_seconds: float) -> tuple[Split, Report]:
    """Return the cheapest split found whose compiled program keeps the budget.

    The first schedule keeps the budget before fusion; if none was found, it recomputes nothing. Then a missed budget is
    lowered in proportion, and one that leaves room is raised. The report has the peak of the program. Warn if it misses
    the budget. If Inductor cannot lower the graphs in advance, return the first split.

    Raise ProblemError if no schedule within the budget was found, neither before fusion nor after it.
    """
    begun, problem, none_before = time.monotonic(), step_problem(captured, settings), None
    try:
        first = planned(captured, settings, None, capture_seconds=capture_seconds)
    except ProblemError as error:
        none_before, whole = error, replace(settings, budget=problem.reference_peak)
        first = planned(captured, whole, None, capture_seconds=capture_seconds)
    budget = problem.budget_bytes
    if budget is None:
        return first
    share = time_of_each(settings.time_limit)

    def attempt(aim: int) -> Attempt[_Program]:
        within = replace(settings, budget=aim, time_limit=share)
        return _attempt(*planned(captured, within, None, capture_seconds=0.0), budget)

    try:
        best, attempts = closest(_attempt(*first, budget), budget, problem.reference_peak, attempt)
    except Exception as error:  # Inductor raises many types
        if none_before is not None:
            raise none_before from None
        _log.info("the peak after fusion is unknown: %s: %s", type(error).__name__, first_line(error))
        return first
    parts, report, channels_last = best.made
    missed = best.peak > budget
    if missed and none_before is not None:
        raise none_before
    if missed:
        warnings.warn(
            CaptureRemark(
                f"{report.name!r} needs {best.peak:,} bytes after fusion by TorchInductor, above the "
                f"budget of {budget:,}, with the best of {len(attempts)} schedules"
            ),
            stacklevel=outer_level(),
        )
    for module in (parts.forward, parts.backward):
        module.graph.output_node().meta[CHANNELS_LAST] = channels_last
    seconds = report.seconds | {"all": time.monotonic() - begun}
    return parts, replace(report, budget=budget, compiled_peak=best.peak, attempts=attempts, seconds=seconds)


class Layouts(CustomGraphPass):
    """Last pass before Inductor lowers a graph: sets the layout of its convolutions, after the user's own passes.

    Inductor restores the setting after each graph, since it is among the options.
    """

    def __init__(self) -> None:
        own = inductor_config.post_grad_custom_post_pass
        self._passes = [] if own is None else own if isinstance(own, list | tuple) else [own]

    def uuid(self) -> Any:
        """Return a key for Inductor's cache."""
        return CHANNELS_LAST, *(each.uuid() for each in self._passes)

    def __call__(self, graph: fx.Graph) -> None:
        for each in self._passes:
            each(graph)
        inductor_config.layout_optimization &= graph.output_node().meta.get(CHANNELS_LAST, True)


def _attempt(parts: Split, report: Report, budget: int) -> Attempt[_Program]:
    """Lower both graphs; convolutions keep the layout of their inputs if the program otherwise exceeds the budget."""
    own, constant = bool(inductor_config.layout_optimization), report.constant_memory * report.constants_counted
    convolutions = parts.forward.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    peaks = {}
    for channels_last in (True, False) if own and convolutions else (own,):
        with inductor_config.patch(layout_optimization=channels_last):
            peaks[channels_last] = constant + compiled_peak(parts.forward, parts.backward, len(parts.forward_results))
        if peaks[channels_last] <= budget:
            break
    layout = min(peaks, key=lambda each: peaks[each])
    return Attempt.of(report, peaks[layout], _Program(parts, report, layout))
