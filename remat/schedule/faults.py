"""Putting what the simulation found wrong into words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.graphs import ComputeGraph
from remat.runtime.arrays import Bool, Int
from remat.schedule import kernel
from remat.schedule.certificate import Rule, Violation
from remat.schedule.schedule import Schedule, StepKind


@dataclass(frozen=True, eq=False)
class Faults:
    """What :func:`remat.schedule.kernel.run` leaves: the first faults, and the final state.

    Attributes
    ----------
    first : int64 array, shape (5, faults noted)
        Step, code, op, tensor and since; see :func:`remat.schedule.kernel.run`.
    count : int
        Number of faults in all.
    missing, begun, freed : int64 arrays, shape (tensors,)
    counts : int64 array, shape (ops,)
    """

    first: Int
    count: int
    missing: Int
    begun: Int
    freed: Int
    counts: Int


def explain(
    graph: ComputeGraph, schedule: Schedule, ops: Int, kept: Bool, faults: Faults, *, limit: int
) -> tuple[tuple[Violation, ...], int]:
    """At most `limit` violations, by step and then those at the end, and the number of the others.

    `ops` is the computed op of each step (-1: none), `kept` marks the tensors that must be live at the end.
    """
    found = [_at_step(graph, schedule, ops, *column) for column in faults.first.T.tolist()]
    never = np.flatnonzero(faults.counts == 0)
    lost = np.flatnonzero(kept & ((faults.begun < 0) | (faults.missing > 0)))
    found += [_not_computed(graph, o) for o in never[: max(limit - len(found), 0)].tolist()]
    found += [_output(graph, ops, faults, t) for t in lost[: max(limit - len(found), 0)].tolist()]
    return tuple(found), faults.count + len(never) + len(lost) - len(found)


def _at_step(  # noqa: PLR0917
    graph: ComputeGraph, schedule: Schedule, ops: Int, step: int, code: int, op: int, tensor: int, since: int
) -> Violation:
    if code == kernel.UNKNOWN_NAME:
        target = int(schedule.targets[step])
        if schedule.kinds[step] == StepKind.COMPUTE:
            name = schedule.op_names[target]
            message = f"step {step} computes op {name!r}, which graph {graph.name!r} does not have"
            return Violation(step, name, None, Rule.UNKNOWN_OP, message)
        name = schedule.tensor_names[target]
        message = f"step {step} frees tensor {name!r}, which graph {graph.name!r} does not have"
        return Violation(step, None, name, Rule.UNKNOWN_TENSOR, message)
    name = graph.tensor_names[tensor]
    if code == kernel.FREE_PINNED:
        return Violation(step, None, name, Rule.FREE_GRAPH_INPUT, f"step {step} frees graph input {name!r}")
    if code == kernel.FREE_NOT_LIVE:
        message = f"step {step} frees tensor {name!r}, which {_absence(since)}"
        return Violation(step, None, name, Rule.FREE_NOT_LIVE, message)
    reader = graph.op_names[op]
    reads = f"step {step}: op {reader!r} reads tensor {name!r}, which"
    if code == kernel.INPUT_NOT_LIVE:
        return Violation(step, reader, name, Rule.INPUT_NOT_LIVE, f"{reads} {_absence(since)}")
    lacking = _lacking(graph, ops[since:step], tensor)
    return Violation(step, reader, name, Rule.INPUT_INCOMPLETE, f"{reads} lacks contributions of {lacking}")


def _not_computed(graph: ComputeGraph, op: int) -> Violation:
    name = graph.op_names[op]
    return Violation(None, name, None, Rule.OP_NOT_COMPUTED, f"op {name!r} is never computed")


def _output(graph: ComputeGraph, ops: Int, faults: Faults, tensor: int) -> Violation:
    name = graph.tensor_names[tensor]
    what = "graph output" if graph.arrays.is_output[tensor] else "kept tensor"
    if faults.begun[tensor] < 0:
        message = f"at the end {what} {name!r} is not live: it {_absence(int(faults.freed[tensor]))}"
        return Violation(None, None, name, Rule.OUTPUT_NOT_LIVE, message)
    lacking = _lacking(graph, ops[int(faults.begun[tensor]) :], tensor)
    message = f"at the end {what} {name!r} lacks contributions of {lacking}"
    return Violation(None, None, name, Rule.OUTPUT_INCOMPLETE, message)


def _absence(freed: int) -> str:
    return "was never produced" if freed < 0 else f"was freed at step {freed}"


def _lacking(graph: ComputeGraph, ops: Int, tensor: int, shown: int = 5) -> str:
    """The producers of `tensor` that are not among the computes since its instance began."""
    producers = graph.arrays.producers[tensor]
    absent = producers[~np.isin(producers, ops)]
    names = ", ".join(repr(graph.op_names[o]) for o in absent[:shown].tolist())
    more = f" and {len(absent) - shown} more" if len(absent) > shown else ""
    return f"{names}{more} ({len(absent)} of {len(producers)} producers)"
