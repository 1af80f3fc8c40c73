"""Memory snapshot of a schedule in PyTorch's format, for ``pytorch.org/memory_viz`` and ``torch.cuda._memory_viz``.

A snapshot is a pickled dict of segments, each cut into blocks without gaps, and of the allocator's events. The viewer
sorts by an event's ``category`` and shows its ``frames``. Its source implies some undocumented rules: protocols up
to 4, a free as two consecutive events, and, if events have categories, at least one of category ``unknown``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pickle import dumps
from typing import Any, Unpack

from remat.errors import ScheduleError
from remat.graphs import ComputeGraph
from remat.io.files import write_atomic
from remat.schedule.addresses import Addresses, check_addresses
from remat.schedule.schedule import Schedule
from remat.schedule.simulate import Counting
from remat.schedule.traces.first_fit import first_fit
from remat.schedule.traces.timeline import Timeline, module_paths, source_lines


def memory_snapshot(
    graph: ComputeGraph,
    schedule: Schedule,
    *,
    addresses: Addresses | None = None,
    keep: Iterable[str] = (),
    count_constant_memory: bool = False,
) -> dict[str, Any]:
    """Return the snapshot: allocations and frees of all buffers of `schedule`, and the buffers held at its end.

    The largest running sum of the events is the peak, and is reached at the same step. Each buffer has a category:
    ``activation``, ``loss`` or ``gradient`` by the phase of the op that writes it (``activation`` without a phase).
    Others are ``recomputed`` from the second instance on, ``fetched`` from the host, ``input``, ``constant`` and
    ``workspace``. The frames give the instance, tensor, op, step and module, and the lines of the user's program
    (``meta["modules"]``, ``meta["source_lines"]``).

    Parameters
    ----------
    schedule : Schedule
        A valid schedule.
    addresses : Addresses, optional
        Addresses of the buffers of `schedule`, as from :func:`remat.allocation.allocate`; each memory is a segment.
        Default: one segment, each buffer in the lowest gap when it starts.
    keep, count_constant_memory
        As for :func:`remat.schedule.simulate.simulate`.

    Raises
    ------
    ScheduleError
        Naming the first violation, if the schedule does not run on `graph` or `addresses` do not match its buffers.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("chain")
    >>> names = [b.op("a", size=4), b.op("b", inputs=["a"], size=2)]
    >>> found = memory_snapshot(b.build(), Schedule.reference(b.build()))
    >>> [(event["action"], event["addr"], event["size"]) for event in found["device_traces"][0][1:3]]
    [('alloc', 0, 4), ('alloc', 4, 2)]
    """
    timeline = Timeline.of(graph, schedule, keep, count_constant_memory)
    placed = first_fit(timeline.buffers) if addresses is None else _matched(timeline, addresses)
    bases, end = [], 0
    for arena in placed.arenas:
        bases.append(end)
        end += arena
    address = [bases[m] + o for m, o in zip(placed.memory.tolist(), placed.offset.tolist(), strict=True)]
    frames = _frames(timeline)
    size = timeline.buffers.size.tolist()
    # the viewer fails without an event of this category; a size of 0 keeps it invisible
    events = [_event("snapshot", 0, 0, [], "unknown")]
    for k, begins in timeline.events():
        for action in ("alloc",) if begins else ("free_requested", "free_completed"):
            events.append(_event(action, address[k], size[k], frames[k], timeline.kinds[k]))
    last = timeline.stays.nonzero()[0].tolist()
    taken = placed.buffers.rounded(placed.alignment).tolist()
    segments = [
        _segment(base, arena, sorted((address[k], taken[k], size[k], k) for k in last if placed.memory[k] == m), frames)
        for m, (base, arena) in enumerate(zip(bases, placed.arenas, strict=True))
        if arena
    ]
    return {"segments": segments, "device_traces": [events]}


def snapshot_bytes(
    graph: ComputeGraph, schedule: Schedule, *, addresses: Addresses | None = None, **counting: Unpack[Counting]
) -> bytes:
    """Return :func:`memory_snapshot` as a protocol-4 pickle of plain values only; same schedule, same bytes."""
    return dumps(memory_snapshot(graph, schedule, addresses=addresses, **counting), protocol=4)


def save_memory_snapshot(
    graph: ComputeGraph,
    schedule: Schedule,
    path: str | os.PathLike[str],
    *,
    addresses: Addresses | None = None,
    **counting: Unpack[Counting],
) -> None:
    """Write :func:`snapshot_bytes` to a file atomically.

    Raises
    ------
    ScheduleError
        As :func:`memory_snapshot`.
    FormatError
        Naming the file, if it cannot be written.
    """
    write_atomic(path, snapshot_bytes(graph, schedule, addresses=addresses, **counting))


def _matched(timeline: Timeline, addresses: Addresses) -> Addresses:
    """Return the addresses in the order of the timeline's buffers."""
    found = check_addresses(addresses, timeline.buffers)
    if not found.accepted:
        raise ScheduleError(f"these addresses are not those of the schedule: {found.first}", "other-addresses")
    place = {name: k for k, name in enumerate(addresses.buffers.names)}
    order = [place[name] for name in timeline.buffers.names]
    return replace(addresses, buffers=timeline.buffers, offset=addresses.offset[order], memory=addresses.memory[order])


def _event(action: str, address: int, size: int, frames: list[dict[str, Any]], category: str) -> dict[str, Any]:
    return {
        "action": action, "addr": address, "size": size, "stream": 0, "frames": frames, "category": category,
    }  # fmt: skip


def _segment(
    base: int, length: int, blocks: list[tuple[int, int, int, int]], frames: list[list[dict[str, Any]]]
) -> dict[str, Any]:
    """Return a memory as a segment: its final `blocks` (address, bytes taken, bytes held, buffer) and the gaps."""
    cut: list[dict[str, Any]] = []
    at = base
    for address, taken, size, k in [*blocks, (base + length, 0, 0, -1)]:
        if address > at:
            cut.append(_block(at, address - at, 0, "inactive", []))
        if k >= 0:
            cut.append(_block(address, taken, size, "active_allocated", frames[k]))
        at = address + taken
    held = sum(taken for _, taken, _, _ in blocks)
    return {
        "device": 0, "address": base, "total_size": length, "allocated_size": held, "active_size": held,
        "requested_size": sum(size for _, _, size, _ in blocks), "stream": 0, "segment_type": "large",
        "frames": [], "blocks": cut,
    }  # fmt: skip


def _block(address: int, taken: int, size: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": taken, "requested_size": size, "state": state, "frames": frames}


def _frames(timeline: Timeline) -> list[list[dict[str, Any]]]:
    """Return the call stack that the viewer shows for each buffer, innermost first: ``filename:line:name``.

    Names from a program are stored as file names, since the viewer omits frames whose function has certain endings.
    """
    graph, paths = timeline.graph, module_paths(timeline.graph)
    from_op: dict[str, list[dict[str, Any]]] = {}
    result = []
    buffers = timeline.buffers
    rows = zip(buffers.names, timeline.kinds, timeline.op.tolist(), buffers.lower.tolist(), strict=True)
    for name, kind, op, step in rows:
        if op < 0:
            result.append([_frame(name, 0, kind)])
            continue
        called = graph.op_names[op]
        if called not in from_op:
            where = [_frame(paths[called], 0, "module")] if called in paths else []
            where += [_frame(line.file, line.line, line.function or "?") for line in source_lines(graph, called)]
            from_op[called] = where
        what = [_frame(name, step, kind)]
        what.append(_frame(f"op {called}", step, graph.ops[op].type or "compute"))
        result.append(what + from_op[called])
    return result


def _frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}
