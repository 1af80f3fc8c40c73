"""Schedules of Rockmate: a list of computes and deletes with its switches.

Source: X. Zhao et al., "Rockmate: an Efficient, Fast, Automatic and Generic Tool for Re-materialization in PyTorch",
ICML 2023. An operation is ``["compute", op, {"fast_forward": bool, "disabled": bool}]`` or
``["delete", tensor, {"disabled": bool}]``. Disabled operations are skipped, but the loss, at ``loss_index``, always
runs. A fast-forward compute saves no phantoms (what a forward op keeps for its backward op beside inputs and outputs):
those that it newly makes are freed at once. A delete of what is not live does nothing.
"""

from __future__ import annotations

from typing import Any

from remat.errors import FormatError
from remat.graphs import ComputeGraph
from remat.io.formats import Source
from remat.io.text import short
from remat.schedule.formats.base import ScheduleFormat, needed_graph
from remat.schedule.schedule import Schedule

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
    if type(ops) is not list:
        raise FormatError(f"ops must be a list, not {short(ops)}")
    live = set(graph.inputs)
    steps: list[tuple[str, str]] = []

    def free(tensor: str) -> None:
        live.discard(tensor)
        steps.append(("free", tensor))

    for number, operation in enumerate(ops):
        match operation:
            case ["compute", str(name), {"fast_forward": bool(fast), "disabled": bool(disabled)}]:
                if name not in graph.op_index:
                    raise FormatError(f"ops[{number}] computes op {short(name)}, which graph {graph.name!r} lacks")
                if disabled and number != loss_index:
                    continue
                steps.append(("compute", name))
                new = [t for t in graph.ops[graph.op_index[name]].outputs if t not in live]
                live.update(new)
                for tensor in new if fast else ():
                    if tensor.endswith(PHANTOMS):
                        free(tensor)
            case ["delete", str(name), {"disabled": bool(disabled)}]:
                if not disabled and name in live:
                    free(name)
            case _:
                raise FormatError(f"ops[{number}] is not a compute or delete operation of Rockmate")
    return Schedule.from_steps(steps, graph=graph.name, graph_digest=graph.digest)


def _recognizes(source: Source) -> bool:
    if not (source.looks_like_json and isinstance(source.json, dict)):
        return False
    return "loss_index" in source.json and "ops" in source.json


def _read(source: Source, graph: ComputeGraph | None) -> Schedule:
    loss_index = source.json["loss_index"]
    if loss_index is not None and type(loss_index) is not int:
        raise FormatError(f"loss_index must be a whole number or null, not {short(loss_index)}")
    return schedule_from_operations(needed_graph(graph, "a Rockmate schedule"), source.json["ops"], loss_index)


FORMAT = ScheduleFormat(
    name="rockmate",
    description="Rockmate's computes and deletes (JSON)",
    recognizes=_recognizes,
    read=_read,
)
