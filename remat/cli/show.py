"""``remat show``: figures of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from remat.cli.common import load_graph, print_json, print_table
from remat.cli.options import Costs, Device, Graph, Json
from remat.cli.screen import digest_text, memory

if TYPE_CHECKING:
    from remat.graphs import ComputeGraph


def command(
    graph: Graph,
    top: int = typer.Option(5, min=0, metavar="N", help="Number of largest tensors to list."),
    costs: Costs = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Show size, memory, cost and largest tensors of GRAPH.

    Examples
    --------
    remat show resnet50
    """
    facts = graph_facts(load_graph(graph, costs, device), top)
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)


def print_facts(facts: dict[str, Any]) -> None:
    """Print the figures of a graph as a table."""
    largest = facts.pop("largest_tensors")
    bound = facts.pop("structural_bound")
    rows = [
        (name.replace("_", " "), _shown(name, value) if isinstance(value, int) else value)
        for name, value in facts.items()
    ]
    share = f" ({100 * bound['peak'] / facts['reference_peak']:.4g} %)" if facts["reference_peak"] else ""
    cause = "the graph outputs together" if bound["op"] is None else f"op {bound['op']}"
    rows.append(("structural bound", f"{bound['peak']:,} bytes{share}, {cause}"))
    room = max(len(name) for name, _ in rows) + 1
    rows += [("largest tensors" if not i else "", f"{size:,} bytes  {name}") for i, (name, size) in enumerate(largest)]
    print_table([(name, digest_text(text, room) if name == "digest" else text) for name, text in rows])


def _shown(name: str, value: int) -> str:
    return memory(value) if name in ("total_size", "constant_memory", "reference_peak") else f"{value:,}"


def graph_facts(graph: ComputeGraph, top: int) -> dict[str, Any]:
    """Return the figures as JSON values; bytes, and the graph's cost unit."""
    arrays, bound = graph.arrays, graph.structural_bound
    largest = sorted(graph.tensors, key=lambda tensor: (-tensor.size, tensor.name))[:top]
    return {
        "name": graph.name,
        "source": graph.source,
        "digest": graph.digest,
        "ops": len(graph.ops),
        "tensors": len(graph.tensors),
        "edges": graph.num_edges,
        "graph_inputs": len(graph.inputs),
        "graph_outputs": len(graph.outputs),
        "accumulation_buffers": int((arrays.producers.counts > 1).sum()),
        "not_recomputable": int((~arrays.recomputable).sum()),
        "total_size": sum(tensor.size for tensor in graph.tensors),
        "constant_memory": graph.constant_memory,
        "reference_peak": graph.reference_peak,
        "base_cost": graph.base_cost,
        "cost_unit": graph.cost_unit,
        "structural_bound": {"peak": bound.peak, "op": bound.op},
        "largest_tensors": [[tensor.name, tensor.size] for tensor in largest],
    }
