"""Schedules of Rockmate: a list of computes and deletes with switches.

Source: X. Zhao et al., "Rockmate: an Efficient, Fast, Automatic and Generic Tool for Re-materialization in PyTorch",
ICML 2023. An operation is ``["compute", op, {"fast_forward": bool, "disabled": bool}]`` or
``["delete", tensor, {"disabled": bool}]``. Disabled operations are skipped, but the loss, at ``loss_index``, always
runs. Phantoms are values that a forward op keeps for its backward op in addition to inputs and outputs. A fast-forward
compute saves no phantoms: those that it newly makes are freed at once. A delete of a dead tensor does nothing.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.documents import ForeignDocument, Lines, Shape, canonical, decoded
from remat.io.formats import Source
from remat.runtime.text import short
from remat.schedule.early_frees import running
from remat.schedule.formats.base import ScheduleFormat, needed_graph, refuse_offload
from remat.schedule.schedule import Schedule

#: Operations of OffMate, listed to refuse them by name: those that move values, and those that accompany moves.
MOVES, AROUND = ("offload", "prefetch"), ("allocate", "mapping", "optimize", "prepare", "synchronize")
HostWord = Literal["offload", "prefetch", "allocate", "mapping", "optimize", "prepare", "synchronize"]


class DeleteSwitches(ForeignDocument):
    """Switches of a delete."""

    disabled: bool


class ComputeSwitches(DeleteSwitches):
    """Switches of a compute."""

    fast_forward: bool


Operation = Annotated[
    Annotated[tuple[Literal["compute"], str, ComputeSwitches], Field(strict=False)]
    | Annotated[tuple[Literal["delete"], str, DeleteSwitches], Field(strict=False)]
    | Annotated[tuple[HostWord, str, DeleteSwitches], Field(strict=False)],
    Shape("{at} is not a compute or delete operation of Rockmate", kind=""),
]


class RockmateDocument(ForeignDocument):
    """Operations, and the position of the loss among them."""

    ops: list[Operation]
    loss_index: int | None


#: Suffix of the names of phantoms.
PHANTOMS = " phantoms"


def schedule_from_operations(graph: ComputeGraph, ops: Any, loss_index: int | None = None) -> Schedule:
    """Return the schedule of a list of Rockmate's operations.

    Raise FormatError, naming the operation that is malformed, names an op that the graph does not have, or offloads.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("g")
    >>> _ = b.op("f", outputs={"f data": 4, "f phantoms": 8})
    >>> s = schedule_from_operations(b.build(), [["compute", "f", {"fast_forward": True, "disabled": False}]])
    >>> [" ".join(step) for step in s.steps()]
    ['compute f', 'free f phantoms']
    """
    live = set(graph.inputs)
    steps: list[tuple[str, str]] = []

    def free(tensor: str) -> None:
        live.discard(tensor)
        steps.append(("free", tensor))

    operations = decoded(list[Operation], ops, "ops")
    _check_host(operations)
    for number, operation in enumerate(operations):
        match operation:
            case ("compute", name, ComputeSwitches(fast_forward=fast, disabled=disabled)):
                if name not in graph.op_index:
                    raise FormatError(f"ops[{number}] computes {short(name)}, which {graph.name!r} lacks", "unknown-op")
                if disabled and number != loss_index:
                    continue
                steps.append(("compute", name))
                new = [t for t in graph.ops[graph.op_index[name]].outputs if t not in live]
                live.update(new)
                for tensor in new if fast else ():
                    if tensor.endswith(PHANTOMS):
                        free(tensor)
            case ("delete", name, DeleteSwitches(disabled=disabled)):
                if not disabled and name in live:
                    free(name)
    return Schedule.from_steps(steps, graph=graph.name, graph_digest=graph.digest)


def _check_host(operations: list[Any]) -> None:
    """Refuse the first operation that moves a value; if there is none, the first that accompanies moves."""
    for words in (MOVES, AROUND):
        for number, (word, name, switches) in enumerate(operations):
            if word in words and not switches.disabled:
                refuse_offload(f"ops[{number}]", f"is {word!r} of {short(name)}, an operation of OffMate")


def _read(source: Source, graph: ComputeGraph | None) -> Schedule:
    graph = needed_graph(graph, "a Rockmate schedule")
    return schedule_from_operations(graph, source.json["ops"], decoded(RockmateDocument, source.json).loss_index)


def operations_of_schedule(graph: ComputeGraph, schedule: Schedule) -> list[list[Any]]:
    """Return the operations of a schedule; reading them back gives the schedule with implied frees written out.

    A compute is fast-forward if the frees right after it are those of the phantoms that it newly makes. Raise
    ScheduleError, naming the first violation, if the schedule does not run on `graph`.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("g")
    >>> _ = b.op("f", outputs={"f data": 4, "f phantoms": 8})
    >>> steps = Schedule.from_steps([("compute", "f"), ("free", "f phantoms"), ("free", "f data")])
    >>> operations_of_schedule(b.build(), steps)
    [['compute', 'f', {'fast_forward': True, 'disabled': False}], ['delete', 'f data', {'disabled': False}]]
    """
    steps = list(running(graph, schedule.in_one_memory("a list of rockmate")).steps())
    live = set(graph.inputs)
    operations: list[list[Any]] = []
    place = 0
    while place < len(steps):
        word, name = steps[place]
        place += 1
        if word == "free":
            live.discard(name)
            operations.append(["delete", name, {"disabled": False}])
            continue
        new = [t for t in graph.ops[graph.op_index[name]].outputs if t not in live]
        live.update(new)
        phantoms = [tensor for tensor in new if tensor.endswith(PHANTOMS)]
        fast = bool(phantoms) and steps[place : place + len(phantoms)] == [("free", tensor) for tensor in phantoms]
        if fast:
            live.difference_update(phantoms)
            place += len(phantoms)
        operations.append(["compute", name, {"fast_forward": fast, "disabled": False}])
    return operations


def _write(schedule: Schedule, graph: ComputeGraph | None) -> str:
    graph = needed_graph(graph, "a Rockmate schedule")
    operations = operations_of_schedule(graph, schedule)
    losses = {op.name for op in graph.ops if op.phase == "loss"}
    loss = next((number for number, (_, name, _) in enumerate(operations) if name in losses), None)
    lines = Lines(json.dumps(operation) for operation in operations)
    return canonical({"graph": graph.name, "loss_index": loss, "ops": lines})


FORMAT = ScheduleFormat(
    name="rockmate",
    description="Rockmate's computes and deletes (JSON)",
    recognizes=lambda source: source.looks_like_json and "loss_index" in source.json and "ops" in source.json,
    read=_read,
    write=_write,
)
