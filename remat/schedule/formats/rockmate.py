"""Schedules of Rockmate: a list of computes and deletes with its switches.

Source: X. Zhao et al., "Rockmate: an Efficient, Fast, Automatic and Generic Tool for Re-materialization in PyTorch",
ICML 2023. An operation is ``["compute", op, {"fast_forward": bool, "disabled": bool}]`` or
``["delete", tensor, {"disabled": bool}]``. Disabled operations are skipped, but the loss, at ``loss_index``, always
runs. A fast-forward compute saves no phantoms (what a forward op keeps for its backward op beside inputs and outputs):
those that it newly makes are freed at once. A delete of what is not live does nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.documents import ForeignDocument, Shape, decoded
from remat.io.formats import Source
from remat.io.text import short
from remat.schedule.formats.base import ScheduleFormat, needed_graph
from remat.schedule.schedule import Schedule


class DeleteSwitches(ForeignDocument):
    """The switches of a delete."""

    disabled: bool


class ComputeSwitches(DeleteSwitches):
    """The switches of a compute."""

    fast_forward: bool


Operation = Annotated[
    Annotated[tuple[Literal["compute"], str, ComputeSwitches], Field(strict=False)]
    | Annotated[tuple[Literal["delete"], str, DeleteSwitches], Field(strict=False)],
    Shape("{at} is not a compute or delete operation of Rockmate", kind=""),
]


class RockmateDocument(ForeignDocument):
    """Operations, and the place of the loss among them."""

    ops: list[Operation]
    loss_index: int | None


#: How names of phantoms end.
PHANTOMS = " phantoms"


def schedule_from_operations(graph: ComputeGraph, ops: Any, loss_index: int | None = None) -> Schedule:
    """The steps of a list of Rockmate's operations.

    Raises
    ------
    FormatError
        Naming the operation that is malformed or names an op that the graph does not have.

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

    for number, operation in enumerate(decoded(list[Operation], ops, "ops")):
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


def _recognizes(source: Source) -> bool:
    return source.looks_like_json and "loss_index" in source.json and "ops" in source.json


def _read(source: Source, graph: ComputeGraph | None) -> Schedule:
    graph = needed_graph(graph, "a Rockmate schedule")
    return schedule_from_operations(graph, source.json["ops"], decoded(RockmateDocument, source.json).loss_index)


FORMAT = ScheduleFormat(
    name="rockmate",
    description="Rockmate's computes and deletes (JSON)",
    recognizes=_recognizes,
    read=_read,
)
