"""Saved sets and tags of policies as schedules."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch.utils.checkpoint import CheckpointPolicy

from remat.errors import ScheduleError
from remat.runtime.text import short
from remat.schedule import Schedule
from remat.schedule.saved_sets import first_backward_place, schedule_of_saved
from remat.torch.captured import Captured

_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
_KEPT = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def schedule_of_saved_set(
    captured: Captured, saved: Iterable[str | torch.fx.Node], *, source: str = "saved set"
) -> Schedule:
    """Return the schedule whose forward pass keeps `saved` and whose backward pass recomputes the rest, once.

    See :func:`remat.schedule.saved_sets.schedule_of_saved`.

    Parameters
    ----------
    saved : iterable of str or torch.fx.Node
        Tensors of the graph, or fx nodes (also by name): for a view, its base tensor; for a node with several values,
        all of them; for a parameter, none.

    Raises
    ------
    ScheduleError
        With the name of an item that is neither a tensor of the graph nor an fx node of the captured step.
    """
    nodes = {node.name: node for node in captured.module.graph.nodes}
    tensors: list[str] = []
    for each in saved:
        name = each.name if isinstance(each, torch.fx.Node) else each
        if not isinstance(name, str):
            raise ScheduleError(f"a saved set has names of tensors or fx nodes, not {short(name)}")
        if name in captured.graph.tensor_index:
            tensors.append(name)
        elif name in nodes:
            tensors += [home for home in captured.homes.get(nodes[name], ()) if home is not None]
        else:
            raise ScheduleError(
                f"the saved set has {short(name)}, which is neither a tensor nor an fx node of {captured.graph.name!r}",
                "saved-set",
            )
    return schedule_of_saved(captured.graph, tensors, source=source)


def tagged_saved_set(captured: Captured) -> list[str]:
    """Return the tensors of the forward pass that tags of a policy (``meta["recompute"]``) retain.

    A tensor is recomputed if its node, or the item of a node that it is, has a tag to recompute. It is kept if it or a
    view of it is tagged to be saved, if a later checkpointed region begins with it, or if it has no tag.

    Raise ScheduleError if no node has a tag to recompute.
    """
    again: set[str] = set()
    kept: set[str] = set()
    for node in captured.module.graph.nodes:
        homes = {home for home in captured.homes.get(node, ()) if home is not None}
        tag = node.meta.get("recompute")
        if tag in _KEPT or (tag in _AGAIN and _at_boundary(node)):
            kept |= homes
        elif tag in _AGAIN and (captured.op_of(node) is not None or node.target is operator.getitem):
            again |= homes
    if not again:
        raise ScheduleError(f"no node of {captured.graph.name!r} is tagged to be computed again", "no-tags")
    graph = captured.graph
    order = graph.arrays.order.tolist()[: first_backward_place(graph)]
    forward = [tensor for op in order for tensor in graph.ops[op].outputs]
    return [tensor for tensor in forward if tensor in kept or tensor not in again]


def _at_boundary(node: torch.fx.Node) -> bool:
    """Return True if a later checkpointed region begins with a value; torch saves it (``cleanup_recompute_tags``)."""
    region = node.meta.get("ac_graph_id")
    return region is not None and any(
        user.meta.get("recompute") in _AGAIN and user.meta.get("ac_graph_id", region) > region for user in node.users
    )


def tagged_schedule(captured: Captured) -> Schedule:
    """Return the schedule of :func:`tagged_saved_set`.

    Raises
    ------
    ScheduleError
        As :func:`tagged_saved_set`.
    """
    return schedule_of_saved(captured.graph, tagged_saved_set(captured), source="selective checkpointing")
