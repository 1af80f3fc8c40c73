"""First schedule of a search: from the module's own checkpoints, or from torch's partitioner."""

from __future__ import annotations

import logging
import time
import warnings
from collections import Counter

from remat.errors import CaptureRemark, RematError, ScheduleError
from remat.problem import Problem
from remat.schedule import Schedule, validate
from remat.schedule.saved_sets import schedule_of_saved
from remat.torch.captured import Captured
from remat.torch.peers.partitioner import partitioner_schedule
from remat.torch.peers.saved import tagged_schedule

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
    captured : Captured
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
        certificate = validate(captured.graph, schedule, problem.rules)
        if certificate.accepted and (best is None or certificate.cost < least):
            best, least = schedule, certificate.cost
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
        stacklevel=7,
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
