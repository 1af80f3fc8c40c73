"""Peaks of order searches from different input orders of the same graphs, after equal processor time.

    python benchmarks/bench_order_permutations.py [--seconds S] [--orders N] [--folder DIR] [--graphs G,H]

Graphs are training steps of :mod:`jax_steps`, which XLA compiles first (5 to 20 s of processor time each; ``--folder``
keeps them), and graphs of :func:`common.graph`. The first input order is the graph's own, the others are random
topological orders; ops and tensors are renumbered by them. ``spread`` is the difference of the largest and the smallest
peak in % of the smallest. Kernels are compiled before timing.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import common
import networkx as nx

from remat import ComputeGraph, Problem, layered, read_graph
from remat.graphs.io import write_graph
from remat.ordering.instance import OrderInstance
from remat.ordering.valley import Portfolio
from remat.runtime.deadline import Deadline, deadlines_by

#: Graphs of the data folder that are measured in addition to training steps.
OTHERS = "rl_g1,rl_g2,rl_g3"


def step(name: str, folder: Path) -> ComputeGraph:
    """Return a graph by name; training steps are compiled unless the folder has them."""
    path = folder / f"{name}.json"
    if path.exists():
        return read_graph(path)
    found = common.graph(name) if "-" not in name else None
    if found is None:
        from jax_steps import training_step

        found = training_step(name)
        write_graph(found, path)
    return found


def permuted(graph: ComputeGraph, seed: int) -> ComputeGraph:
    """Return the graph with ops in a random topological order, and with tensors in random order."""
    draw = random.Random(seed)
    wires: nx.DiGraph[str] = nx.DiGraph()
    wires.add_nodes_from(each.name for each in graph.ops)
    writer = {tensor: each.name for each in graph.ops for tensor in each.outputs}
    wires.add_edges_from((writer[t], each.name) for each in graph.ops for t in each.inputs if t in writer)
    rank = {name: draw.random() for name in wires}
    names = list(nx.lexicographical_topological_sort(wires, key=rank.__getitem__))
    op = {each.name: each for each in graph.ops}
    return ComputeGraph(
        graph.name, draw.sample(graph.tensors, len(graph.tensors)), [op[name] for name in names], graph.inputs,
        graph.outputs, constant_memory=graph.constant_memory, cost_unit=graph.cost_unit, order=names,
    )  # fmt: skip


def searched(graph: ComputeGraph, seconds: float) -> tuple[int, int]:
    """Return the peak found and the bound after some processor time."""
    instance = OrderInstance.of(Problem(graph, order="free", max_computes=1))
    with deadlines_by("processor"):
        found = Portfolio().search(instance, deadline=Deadline.after(seconds))
    assert found.peak is not None
    return found.peak, found.bound


def main() -> None:
    given = common.parse(str(__doc__), seconds=10.0, orders=4, folder="", graphs="")
    folder = Path(given.folder or tempfile.mkdtemp())
    names = given.graphs
    if not names:
        from jax_steps import STEPS

        names = ",".join((*STEPS, OTHERS))
    Portfolio().prepared()
    searched(layered(200, 0.1, seed=1), 2.0)  # the first search of a process also loads code
    print(f"{given.seconds:g} s of processor time, {given.orders} input orders")
    table = common.Table("graph:-16", "ops:6", "least:15", "largest:15", "bound:15", "spread %:9", "gap %:7")
    for name in names.split(","):
        graph = step(name, folder)
        orders = [graph, *(permuted(graph, seed) for seed in range(1, given.orders))]
        peaks, bounds = zip(*(searched(each, given.seconds) for each in orders), strict=True)
        low, high, bound = min(peaks), max(peaks), max(bounds)
        table.row(name, len(graph.ops), f"{low:,}", f"{high:,}", f"{bound:,}", f"{100 * (high / low - 1):.3f}",
                  f"{100 * (low / bound - 1):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
