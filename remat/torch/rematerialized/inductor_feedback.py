"""Schedules whose programs keep the budget after fusion by TorchInductor: :func:`fitted`."""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from remat.errors import CaptureRemark, ProblemError
from remat.runtime.callers import outer_level
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
#: Most budgets tried for one graph, the first included.
ATTEMPTS = 4
#: A peak of at least this share of the budget leaves no room worth another schedule.
CLOSE = 0.95


@dataclass(frozen=True, eq=False)
class _Program:
    """Split with the peak of its program; `channels_last` as in :data:`CHANNELS_LAST`."""

    parts: Split
    report: Report
    peak: int
    channels_last: bool

    def rank(self, room: int) -> tuple[bool, int]:
        """Key that is lower for better programs: those that fit by cost, before others by peak."""
        missed = self.peak > room
        return missed, self.peak if missed else self.report.certificate.cost


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
    constant = captured.graph.constant_memory if settings.constants_counted else 0
    try:
        best, attempts = _search(captured, settings, _program(*first, budget - constant), constant, budget)
    except Exception as error:  # Inductor raises many types
        if none_before is not None:
            raise none_before from None
        _log.info("the peak after fusion is unknown: %s: %s", type(error).__name__, first_line(error))
        return first
    missed = best.peak + constant > budget
    if missed and none_before is not None:
        raise none_before
    if missed:
        warnings.warn(
            CaptureRemark(
                f"{best.report.name!r} needs {best.peak + constant:,} bytes after fusion by TorchInductor, above the "
                f"budget of {budget:,}, with the best of {len(attempts)} schedules"
            ),
            stacklevel=outer_level(),
        )
    for module in (best.parts.forward, best.parts.backward):
        module.graph.output_node().meta[CHANNELS_LAST] = best.channels_last
    seconds = best.report.seconds | {"all": time.monotonic() - begun}
    return best.parts, replace(
        best.report, budget=budget, compiled_peak=best.peak + constant, attempts=tuple(attempts), seconds=seconds
    )


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


def _search(
    captured: Captured, settings: Settings, first: _Program, constant: int, budget: int
) -> tuple[_Program, list[tuple[int, int]]]:
    """Return the best program of a few budgets; also those budgets and the peaks of their programs.

    `constant`: bytes of parameters and inputs that budgets count.
    """
    assert first.report.budget is not None
    best, made, room = first, first, budget - constant
    aim, low, high = first.report.budget - constant, 0, first.report.reference_peak - constant
    tried = [(aim + constant, first.peak + constant)]
    share = None if settings.time_limit is None else settings.time_limit / (ATTEMPTS - 1)
    for _ in range(ATTEMPTS - 1):
        if made.peak > room:
            high = min(high, aim)
        else:
            low = max(low, aim)
        if best.peak <= room and (best.peak >= CLOSE * room or not best.report.recomputations):
            break
        aim = aim * room // made.peak
        if not low < aim < high:
            aim = (low + high) // 2
        try:
            solved = planned(
                captured, replace(settings, budget=aim + constant, time_limit=share), None, capture_seconds=0.0
            )
        except ProblemError:
            low = max(low, aim)
            continue
        made = _program(*solved, room)
        tried.append((aim + constant, made.peak + constant))
        best = min(best, made, key=lambda each: each.rank(room))
    return best, tried


def _program(parts: Split, report: Report, room: int) -> _Program:
    """Lower both graphs; convolutions keep the layout of their inputs if the program otherwise exceeds `room`."""
    own = bool(inductor_config.layout_optimization)
    convolutions = parts.forward.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    found = []
    for channels_last in (True, False) if own and convolutions else (own,):
        with inductor_config.patch(layout_optimization=channels_last):
            peak = compiled_peak(parts.forward, parts.backward, len(parts.forward_results))
        found.append(_Program(parts, report, peak, channels_last))
        if peak <= room:
            break
    return min(found, key=lambda each: each.peak)
