"""Validator: an independent check of schedules. It imports no code that produces them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from remat.errors import ProblemError, ScheduleError
from remat.graphs import ComputeGraph
from remat.runtime.text import counted, expect
from remat.schedule.certificate import Certificate, Rule, Transfers, Verdict, Violation, overhead_percent
from remat.schedule.io import as_schedule, graph_of
from remat.schedule.machine import Machine
from remat.schedule.rules import OrderRule, Rules
from remat.schedule.schedule import Schedule, StepKind
from remat.schedule.simulate import Simulation, simulate
from remat.schedule.timing import first_without_link, time_schedule

if TYPE_CHECKING:
    from remat.graphs.io import GraphLike
    from remat.schedule.io import ScheduleLike

#: Exceeds the computes of any schedule.
_NO_LIMIT = 2**62


def validate(
    graph: GraphLike, schedule: ScheduleLike, rules: Rules | None = None, *, max_violations: int = 20
) -> Certificate:
    """Check `schedule` against the semantics of `graph` and `rules`, without repairing anything.

    Parameters
    ----------
    graph : ComputeGraph, path, str or networkx.DiGraph
        Graph, or a file, the name of a zoo graph, or a networkx graph.
    schedule : Schedule or path
        Schedule, or a file in any format.
    rules : Rules, optional
        Default: no budget, any order, any number of computes.
    max_violations : int
        Largest number of violations listed; others are counted.

    Raises
    ------
    ProblemError
        If `rules` name an op or tensor that the graph does not have, or have a machine and the costs are no times.
    ScheduleError
        If an argument has the wrong type.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("chain")
    >>> names = [b.op("a", size=4, cost=1), b.op("b", inputs=["a"], size=2, cost=2)]
    >>> g = b.build()
    >>> c = validate(g, Schedule.reference(g), Rules(budget=6))
    >>> str(c.verdict), c.peak, c.peak_op, c.cost
    ('valid', 6, 'b', 3)
    >>> print(validate(g, Schedule.from_steps([("compute", "b"), ("compute", "a")])).first)
    step 0: op 'b' reads tensor 'a', which was never produced
    """
    rules = Rules() if rules is None else rules
    expect(rules, Rules, "rules", ScheduleError)
    graph = graph_of(graph)
    schedule = as_schedule(schedule, graph)
    options = {"keep": rules.keep, "count_constant_memory": rules.count_constant_memory}
    done = simulate(graph, schedule, **options, max_violations=max_violations)  # type: ignore[arg-type]
    found = list(done.violations)
    whole = _digest(graph, schedule) or _name(graph, schedule, found)
    count = len(whole) + len(found) + done.more_violations
    for violations, number in (_order(done, rules, max_violations), _limits(done, rules, max_violations)):
        found += violations
        count += number
    links = _links(done, rules)
    found += links
    count += len(links)
    invalid = count > 0
    moved = _transfers(done, rules, valid=not invalid)
    over = _budget(done, rules) + _host_capacity(done, rules) + _time_limit(done, rules, moved)
    found += over
    count += len(over)
    found = (whole + sorted(found, key=lambda v: len(schedule) if v.step is None else v.step))[: max(max_violations, 0)]

    verdict = Verdict.INVALID if invalid else Verdict.OVER_BUDGET if over else Verdict.VALID
    pruned_peak = None
    if not invalid:
        pruned = simulate(graph, schedule.without_frees(), **options) if schedule.has_frees else done  # type: ignore[arg-type]
        pruned_peak = pruned.peak
    cost, base_cost = done.cost, graph.base_cost
    step = done.peak_step
    op = -1 if step is None else int(done.ops[step])
    return Certificate(
        verdict=verdict,
        peak=done.peak,
        peak_step=step,
        peak_op=done.peak_op,
        live_at_peak=done.live_at_peak,
        workspace_at_peak=0 if op < 0 else graph.ops[op].workspace,
        pruned_peak=pruned_peak,
        cost=cost,
        base_cost=base_cost,
        overhead=None if invalid else overhead_percent(cost, base_cost),
        steps=len(schedule),
        computes=schedule.num_computes,
        recomputations=done.recomputations,
        redundant=done.redundant,
        masked=done.masked,
        violations=tuple(found),
        more_violations=count - len(found),
        graph=graph.name,
        graph_digest=graph.digest,
        schedule_digest=schedule.digest,
        rules=rules,
        in_place=done.in_place.shape[1],
        in_place_at_peak=done.in_place_at_peak,
        transfers=moved,
    )


def _digest(graph: ComputeGraph, schedule: Schedule) -> list[Violation]:
    if schedule.graph_digest in ("", graph.digest):
        return []
    other = f"graph {schedule.graph!r}" if schedule.graph not in ("", graph.name) else "a graph"
    message = (
        f"the schedule is for {other} with digest {schedule.graph_digest[:12]}, "
        f"but graph {graph.name!r} has {graph.digest[:12]}"
    )
    return [Violation(None, None, None, Rule.GRAPH_DIGEST, message)]


def _name(graph: ComputeGraph, schedule: Schedule, found: Iterable[Violation]) -> list[Violation]:
    """Return the other graph that a schedule without digest names, if it has ops or tensors that `graph` lacks."""
    if schedule.graph in ("", graph.name) or not any(
        each.rule in (Rule.UNKNOWN_OP, Rule.UNKNOWN_TENSOR) for each in found
    ):
        return []
    message = f"the schedule is for graph {schedule.graph!r}, but this is graph {graph.name!r}"
    return [Violation(None, None, None, Rule.GRAPH_DIGEST, message)]


def _order(done: Simulation, rules: Rules, limit: int) -> tuple[list[Violation], int]:
    """Return violations of the fixed order: ops first computed before an op that precedes them in the reference."""
    if rules.order is not OrderRule.FIXED:
        return [], 0
    graph = done.graph
    at = np.flatnonzero(done.ops >= 0)
    first = np.full(len(graph.ops), -1, dtype=np.int64)
    first[done.ops[at[::-1]]] = at[::-1]  # in reverse, so that the first compute is written last
    first = first[graph.arrays.order]
    latest = np.maximum.accumulate(first)
    early = np.flatnonzero((first >= 0) & (first < latest))
    found = []
    for place in sorted(early.tolist(), key=lambda p: int(first[p]))[: max(limit, 0)]:
        step = int(first[place])
        passed = int(np.flatnonzero(first[:place] > step)[0])
        op, other = (graph.op_names[graph.arrays.order[p]] for p in (place, passed))
        message = f"step {step}: op {op!r} is computed before op {other!r}, which precedes it in the order"
        found.append(Violation(step, op, None, Rule.ORDER, message))
    return found, len(early)


def _limits(done: Simulation, rules: Rules, limit: int) -> tuple[list[Violation], int]:
    """Return violations of limits: computes beyond those that `rules` or the op itself allow."""
    graph = done.graph
    allowed = np.full(len(graph.ops), _NO_LIMIT, dtype=np.int64)
    if isinstance(rules.max_computes, Mapping):
        for name, most in rules.max_computes.items():
            if name not in graph.op_index:
                raise ProblemError(f"op {name!r} with a limit of computes is not in graph {graph.name!r}", "limited-op")
            allowed[graph.op_index[name]] = most
    elif rules.max_computes is not None:
        allowed[:] = rules.max_computes
    once = ~graph.arrays.recomputable
    allowed[once] = 1
    excess = done.counts - allowed
    if not (excess > 0).any():
        return [], 0
    at = np.flatnonzero(done.ops >= 0)
    by_op = at[np.argsort(done.ops[at], kind="stable")]
    ends = np.cumsum(done.counts)
    beyond = [by_op[end - more : end] for end, more in zip(ends.tolist(), excess.tolist(), strict=True) if more > 0]
    steps = np.sort(np.concatenate(beyond))
    found = []
    for step in steps[: max(limit, 0)].tolist():
        op = int(done.ops[step])
        name = graph.op_names[op]
        again = f"step {step} computes op {name!r} again, though it"
        if once[op]:
            found.append(Violation(step, name, None, Rule.NOT_RECOMPUTABLE, f"{again} is not recomputable"))
        else:
            message = f"{again} may be computed at most {int(allowed[op])} times"
            found.append(Violation(step, name, None, Rule.COMPUTES_PER_OP, message))
    return found, len(steps)


def _budget(done: Simulation, rules: Rules) -> list[Violation]:
    """Return the violation at the first compute or fetch over the budget, if any."""
    if rules.budget is None:
        return []
    over = np.flatnonzero(done.allocates & (done.memory > rules.budget))
    if not len(over):
        return []
    step = int(over[0])
    need, op = int(done.memory[step]), int(done.ops[step])
    name = done.graph.op_names[op] if op >= 0 else None
    tensor = None if done.is_compute[step] else done.graph.tensor_names[int(done.moved[step])]
    what = f"op {name!r}" if tensor is None else f"the fetch of tensor {tensor!r}"
    message = (
        f"step {step}: {what} needs {need:,} bytes, {need - rules.budget:,} more than the budget; "
        f"{counted(len(over), 'step')} {'is' if len(over) == 1 else 'are'} over it"
    )
    return [Violation(step, name, tensor, Rule.BUDGET, message)]


def _host_capacity(done: Simulation, rules: Rules) -> list[Violation]:
    """Return the violation at the first offload for which the host's memory is too small, if any."""
    if done.host is None or rules.machine is None or rules.machine.host is None:
        return []
    over = np.flatnonzero((done.kinds == StepKind.OFFLOAD) & (done.host.memory > rules.machine.host))
    if not len(over):
        return []
    step = int(over[0])
    need, name = int(done.host.memory[step]), done.graph.tensor_names[int(done.moved[step])]
    message = (
        f"step {step}: the copy of tensor {name!r} brings the host to {need:,} bytes, "
        f"{need - rules.machine.host:,} more than it has"
    )
    return [Violation(step, None, name, Rule.HOST_CAPACITY, message)]


def _time_limit(done: Simulation, rules: Rules, moved: Transfers | None) -> list[Violation]:
    """Return the violation if the schedule takes longer than the machine's limit."""
    limit = None if rules.machine is None else rules.machine.longest_time(done.graph)
    if limit is None or moved is None or moved.time is None or moved.time <= limit:
        return []
    message = f"the schedule takes {moved.time:,}, {moved.time - limit:,} more than the time limit of the machine"
    return [Violation(None, None, None, Rule.TIME_LIMIT, message)]


def _links(done: Simulation, rules: Rules) -> list[Violation]:
    """Return the violation at the first transfer for which the machine has no link, if any."""
    missing = None if rules.machine is None else first_without_link(done, rules.machine)
    if missing is None:
        return []
    step, message = missing
    return [Violation(step, None, done.graph.tensor_names[int(done.moved[step])], Rule.NO_LINK, message)]


def _transfers(done: Simulation, rules: Rules, *, valid: bool) -> Transfers | None:
    """Return the figures of the host and the time; None if nothing is moved and there is no machine."""
    host = done.host
    if host is None and rules.machine is None:
        return None
    found = Transfers()
    if host is not None:
        step = host.peak_step if host.offloads else None
        found = Transfers(host.offloads, host.fetches, host.bytes_written, host.bytes_read, host.peak, step)
    if valid and rules.machine is not None:
        timing = time_schedule(done, rules.machine)
        found = replace(found, time=timing.time, stall=timing.stall)
        if rules.machine.link_power is not None:
            found = replace(found, energy=done.cost + _transfer_energy(done, rules.machine))
    return found


def _transfer_energy(done: Simulation, machine: Machine) -> int:
    """Return the energy of all transfers, in units of that of a cost unit of computing."""
    kinds = (StepKind.OFFLOAD, StepKind.FETCH)
    moves = zip(kinds, machine.transfer_energies(done.graph), strict=True)
    return sum(energies[tensor] for kind, energies in moves for tensor in done.moved[done.kinds == kind].tolist())
