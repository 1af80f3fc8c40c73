"""Memory of real kernels where fake kernels report another size."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from remat.torch.captured import Traced

aten = torch.ops.aten
#: Losses whose kernel computes all terms, then shrinks that tensor to one number in place.
_SHRUNK = {
    aten.mse_loss.default: 2,
    aten.smooth_l1_loss.default: 2,
    aten.soft_margin_loss.default: 2,
    aten.binary_cross_entropy.default: 3,
}
"""Position of the argument *reduction*."""
_SCATTERS = {
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
    aten.as_strided_scatter.default,
}


def with_real_memory(traced: Traced) -> Traced:
    """Correct the sizes of fake values, and release early memory that real kernels retain needlessly.

    A loss reduced to one number is copied out of the memory of its terms. A value copied into a part of a tensor is
    read directly: ``aten.copy`` would first clone the memory of the whole tensor.
    """
    graph, moved = traced.module.graph, {}
    for node in list(graph.nodes):
        if node.target in _SHRUNK:
            position = _SHRUNK[node.target]
            if (node.args[position] if len(node.args) > position else node.kwargs.get("reduction", 1)) != 0:
                moved[node] = _copied_out(graph, node)
        elif node.target is aten.copy.default and _is_scattered(node):
            with graph.inserting_before(node):
                source = node.args[1]
                shape = list(node.meta["val"].shape)
                if list(source.meta["val"].shape) != shape:
                    meta = {**node.meta, "val": source.meta["val"].expand(shape)}
                    source = graph.call_function(aten.expand.default, (source, shape))
                    source.meta = meta
            node.replace_all_uses_with(source)
            graph.erase_node(node)
        elif node.target is aten.copy.default or node.target in _SCATTERS:
            base = node.args[0].meta["val"]
            if not any(stride == 0 and length > 1 for stride, length in zip(base.stride(), base.shape, strict=True)):
                node.meta["val"].untyped_storage().resize_(base.untyped_storage().nbytes())
    traced.module.recompile()
    return replace(
        traced, results=tuple(replace(each, node=moved.get(each.node, each.node)) for each in traced.results)
    )


def _copied_out(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """Insert a copy of a reduced loss; the loss itself has the size of its terms."""
    with graph.inserting_after(node):
        copy = graph.call_function(aten.clone.default)
    node.replace_all_uses_with(copy)
    copy.args, copy.meta = (node,), dict(node.meta)
    terms = math.prod(torch.broadcast_shapes(*(_value(each).shape for each in node.args[:2])))
    node.meta["val"] = _value(node).new_empty(terms).as_strided((), ())
    return copy


def _is_scattered(node: torch.fx.Node) -> bool:
    """Return whether a copy is read only as the source of a scatter, which copies it again."""
    source, kept = _value(node.args[1]), _value(node)
    alike = (source.dtype, source.device) == (kept.dtype, kept.device)
    return alike and all(user.target in _SCATTERS and user.args.index(node) == 1 for user in node.users)


def _value(node: Any) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value
