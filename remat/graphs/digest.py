"""A digest of what a schedule depends on."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remat.graphs.graph import ComputeGraph


def graph_digest(graph: ComputeGraph) -> str:
    """SHA-256 (64 hex digits) of sizes, costs, dependencies, graph inputs and outputs, and the reference order.

    Names of graphs, sources, types, phases, units and `meta` do not count, nor does the order of listing.
    """
    content = {
        "tensors": sorted((t.name, t.size) for t in graph.tensors),
        "ops": sorted(
            (o.name, o.cost, o.workspace, o.recomputable, sorted(o.inputs), sorted(o.outputs)) for o in graph.ops
        ),
        "inputs": sorted(graph.inputs),
        "outputs": sorted(graph.outputs),
        "order": list(graph.order or ()),
        "constant_memory": graph.constant_memory,
    }
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
