"""Schedules of saved sets: the forward pass keeps or moves some tensors; the backward pass recomputes others once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from remat.errors import ScheduleError
from remat.graphs import ComputeGraph
from remat.runtime.text import short
from remat.schedule.schedule import Schedule


def first_backward_place(graph: ComputeGraph) -> int:
    """Return the position in the reference order of the first op of the backward pass.

    Raise ScheduleError if no op of the graph has phase ``"backward"``.
    """
    for place, op in enumerate(graph.arrays.order.tolist()):
        if graph.ops[op].phase == "backward":
            return place
    raise ScheduleError(f"graph {graph.name!r} has no op of the backward pass: nothing is saved for it", "no-backward")


def schedule_of_saved(
    graph: ComputeGraph, saved: Iterable[str], *, source: str = "saved set", first_backward: int | None = None
) -> Schedule:
    """Return the forward pass in the reference order, then the backward pass, which starts with only `saved` tensors.

    Before each op of the backward pass, missing values that it needs are recomputed in the reference order. Each op is
    recomputed at most once, and its results stay live for later readers. Selective checkpointing and torch's
    partitioner do the same (its ``reordering_to_mimic_autograd_engine``). Besides `saved`, the backward pass starts
    with the graph's inputs and outputs, and with results of ops that have phase ``"loss"`` or may run only once. Frees
    are implied. Raise ScheduleError for a saved tensor that the graph does not have (naming it) and for a graph without
    a backward pass.

    Parameters
    ----------
    graph : ComputeGraph
        Its ops have phases, unless `first_backward` is given.
    saved : iterable of str
        Tensors of the forward pass; other tensors of the graph have no effect.
    source : str
        Method or file that chose them.
    first_backward : int, optional
        Position in the reference order of the first op of the backward pass; default: by the phases.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("step")
    >>> _ = b.op("f", size=4, phase="forward"), b.op("g", inputs=["f"], size=4, phase="forward")
    >>> _ = b.op("h", inputs=["f", "g"], size=4, phase="backward")
    >>> schedule_of_saved(b.build(), ["g"]).computes(), schedule_of_saved(b.build(), []).computes()
    (['f', 'g', 'f', 'h'], ['f', 'g', 'f', 'g', 'h'])
    """
    arrays, index = graph.arrays, graph.tensor_index
    kept = [*graph.inputs, *graph.outputs]
    for name in saved:
        if name not in index:
            raise ScheduleError(f"saved tensor {short(name)} is not in graph {graph.name!r}", "unknown-tensor")
        kept.append(name)
    there = np.zeros(len(graph.tensors), dtype=np.bool_)
    there[[index[name] for name in kept]] = True
    order = arrays.order.tolist()
    place = first_backward_place(graph) if first_backward is None else first_backward
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    writers: list[list[int]] = [[] for _ in graph.tensors]
    for op in order:
        for tensor in arrays.op_outputs[op]:
            writers[tensor].append(op)
        if rank[op] < place and (graph.ops[op].phase == "loss" or not graph.ops[op].recomputable):
            there[arrays.op_outputs[op]] = True
    for op in order[place:]:  # a buffer whose first contribution is in the forward pass stays live
        for tensor in arrays.op_outputs[op]:
            there[tensor] = there[tensor] or bool(rank[writers[tensor][0]] < place)

    done: set[int] = set()  # ops of the backward pass, and recomputed ops of the forward pass
    computes = order[:place]
    for op in order[place:]:
        wanted, waiting = set(), [op]
        while waiting:
            each = waiting.pop()
            if each in wanted or each in done:
                continue
            wanted.add(each)
            for tensor in arrays.op_inputs[each]:
                if not there[tensor]:
                    waiting.extend(writers[tensor])
        run = sorted(wanted, key=lambda one: int(rank[one]))
        done.update(run)
        computes.extend(run)
    return Schedule.of_computes(graph, computes, source=source)


def with_moves(
    graph: ComputeGraph, computes: Sequence[str], moves: Mapping[str, tuple[int, int]], *, source: str
) -> Schedule:
    """Return computes, with moves of tensors to the host and back between them.

    `moves`: for each tensor, the positions in `computes` after which it is written, and before which it is read back.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("step")
    >>> _ = b.op("f", size=4), b.op("g", inputs=["f"], size=4), b.op("h", inputs=["f", "g"], size=4)
    >>> schedule = with_moves(b.build(), ["f", "g", "h"], {"f": (1, 2)}, source="example")
    >>> [" ".join(step) for step in schedule.steps()]
    ['compute f', 'compute g', 'offload f', 'fetch f', 'compute h']
    """
    out: dict[int, list[str]] = {}
    back: dict[int, list[str]] = {}
    for tensor, (written, read) in sorted(moves.items()):
        out.setdefault(written, []).append(tensor)
        back.setdefault(read, []).append(tensor)
    steps: list[tuple[str, str]] = []
    for place, name in enumerate(computes):
        steps += [("fetch", tensor) for tensor in back.get(place, ())]
        steps.append(("compute", name))
        steps += [("offload", tensor) for tensor in out.get(place, ())]
    return Schedule.from_steps(steps, graph=graph.name, graph_digest=graph.digest, source=source)
