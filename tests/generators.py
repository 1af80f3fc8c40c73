"""Random graphs and schedules, reproducible by seed.

:func:`remat.testing.random_graph` makes tiny graphs of every kind, ``graphs/graph_strategies.py`` arbitrary graphs for
file formats, and ``schedule/schedule_oracle.py`` graphs for the simulator.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from remat.graphs import ComputeGraph, GraphBuilder, Tensor
from remat.graphs.graph import Op
from remat.schedule import Schedule
from remat.testing import random_graph


def training_graph(seed: int, count: int = 5, *, full: bool = False) -> ComputeGraph:
    """Return a random forward graph of `count` ops, a loss, and a backward op for each forward op.

    Backward ops read the inputs and outputs of their forward ops. With `full` the graph also has workspaces, several
    outputs, kept statistics, ops that run once, a shared mask, and a buffer with several forward writers; every third
    seed is a chain without mask and buffer.
    """
    rng = random.Random(seed)
    b = GraphBuilder(f"training-{seed}")
    chain = full and seed % 3 == 0
    reads = [sorted({k - 1, *(() if chain else rng.sample(range(k), min(k, rng.choice([0, 0, 1, 2]))))} if k else ())
             for k in range(count)]  # fmt: skip
    if count > 3 and not chain:
        reads[2] = [0]  # two branches
    if full and not chain:
        b.op("mask", size=3, cost=1, phase="forward", recomputable=rng.random() < 0.5)
        b.tensor("sum", 5)
    for k, before in enumerate(reads):
        outputs = [b.tensor(f"f{k}", rng.randint(1, 9))]
        more: dict[str, Any] = {}
        inputs = [f"f{u}" for u in before]
        if full:
            if rng.random() < 0.3:
                outputs.append(b.tensor(f"mean{k}", 1))
                b.output(f"mean{k}")
            if not chain:
                outputs += ["sum"] * (rng.random() < 0.2)
                inputs += ["mask"] * (rng.random() < 0.4)
            more = {"workspace": rng.randint(0, 3), "recomputable": rng.random() < 0.9}
        b.op(f"forward{k}", inputs=inputs, outputs=outputs, cost=rng.randint(1, 9), phase="forward", **more)
    b.op("loss", inputs=[f"f{count - 1}"], size=1, cost=1, phase="loss")
    for k in reversed(range(count)):
        later = [f"g{v}" for v in range(k + 1, count) if k in reads[v]] or ["loss"]
        inputs = [*later, f"f{k}", *(f"f{u}" for u in reads[k])]
        b.op(f"g{k}", inputs=inputs, size=rng.randint(1, 9), cost=rng.randint(1, 9), phase="backward")
    if full and not chain:
        b.op("fill", outputs=["sum"], cost=1, phase="forward")
        b.op("end", inputs=["sum", "g0", "mask"], size=1, phase="backward")
    if full:
        b.output("g0")
    return b.build()


def saving_blocks(
    count: int, saved: Callable[[int], tuple[int, int, int, int]], *, loss: int, gradient: int
) -> ComputeGraph:
    """Return blocks that save two tensors each, and a loss that takes most of the memory.

    `saved` returns the size and cost of both tensors of a block, the expensive one first; `loss` and `gradient` are
    sizes.
    """
    b, above = GraphBuilder("blocks"), list[str]()
    for k in range(count):
        size, cost, small_size, small_cost = saved(k)
        b.op(f"large{k}", inputs=above, size=size, cost=cost, phase="forward")
        b.op(f"small{k}", inputs=[f"large{k}"], size=small_size, cost=small_cost, phase="forward")
        above = [f"small{k}"]
    b.op("loss", inputs=above, size=loss, cost=50, phase="loss")
    back = "loss"
    for k in reversed(range(count)):
        b.op(f"back{k}", inputs=[back, f"large{k}", f"small{k}"], size=gradient, cost=200, phase="backward")
        back = f"back{k}"
    return b.build()


def graph_with_chains(seed: int, rng: random.Random, training_ops: int, other_ops: int) -> ComputeGraph:
    """Return a training graph for odd seeds and a random one for even seeds, :func:`with_chains`."""
    return with_chains(training_graph(seed, training_ops) if seed % 2 else random_graph(seed, other_ops), rng)


def with_chains(graph: ComputeGraph, rng: random.Random) -> ComputeGraph:
    """Return a graph where some ops with one output write it in two steps, the first of at least as many bytes."""
    size = {tensor.name: tensor.size for tensor in graph.tensors}
    tensors, ops = list(graph.tensors), []
    for name in graph.order or graph.op_names:
        op = graph.ops[graph.op_index[name]]
        if len(op.outputs) == 1 and rng.random() < 0.5:
            longer = Tensor(f"{name} before", size[op.outputs[0]] + rng.randrange(3))
            tensors.append(longer)
            ops.append(replace(op, name=f"{name} first", outputs=(longer.name,)))
            op = replace(op, inputs=(longer.name,), cost=rng.randrange(4))
        ops.append(op)
    return replace(graph, tensors=tensors, ops=ops, order=None)


def jittered(graph: ComputeGraph, share: float = 0.01, seed: int = 0) -> ComputeGraph:
    """Scale each cost by a random factor of 1 ± `share`, as in repeated measurements."""
    rng = random.Random(seed)
    ops = [replace(op, cost=round(op.cost * rng.uniform(1 - share, 1 + share))) for op in graph.ops]
    return replace(graph, ops=ops)


def random_order(graph: ComputeGraph, rng: random.Random) -> list[int]:
    """Return the ops in a random topological order."""
    before = [set(ops) for ops in graph.arrays.op_predecessors.lists()]
    order: list[int] = []
    while len(order) < len(before):
        order.append(rng.choice([op for op, some in enumerate(before) if op not in order and some.issubset(order)]))
    return order


def staged(graph: ComputeGraph, rng: random.Random, share: float = 0.25, order: list[int] | None = None) -> Schedule:
    """Return the reference order, or `order`, with earlier ops repeated before each op with probability `share`."""
    order = graph.arrays.order.tolist() if order is None else order
    ops = []
    for k, op in enumerate(order):
        ops += [earlier for earlier in order[:k] if graph.ops[earlier].recomputable and rng.random() < share]
        ops.append(op)
    return Schedule.of_computes(graph, ops)


def dropping(graph: ComputeGraph, seed: int, share: float = 0.08, keep: Collection[str] = ()) -> Schedule:
    """Return a schedule in the reference order that drops live values at random and recomputes them when read.

    Values of an op that was computed five times are not dropped again.

    Parameters
    ----------
    share
        Probability that a live value is dropped after an op of the reference order.
    keep
        Tensors that are never dropped.
    """
    rng = random.Random(seed)
    writer = {tensor: op for op in graph.ops for tensor in op.outputs}
    computed: list[str] = []
    live, counts = set(graph.inputs), Counter[str]()

    def compute(op: Op) -> None:
        stack = [op]
        while stack:
            missing = [writer[tensor] for tensor in stack[-1].inputs if tensor not in live]
            if missing:
                stack.append(missing[0])
                continue
            done = stack.pop()
            if not counts[done.name] or not live.issuperset(done.outputs):
                computed.append(done.name)
                counts[done.name] += 1
                live.update(done.outputs)

    for position in graph.arrays.order.tolist():
        compute(graph.ops[position])
        for tensor in sorted(live.difference(keep)):
            op = writer.get(tensor)
            if op is not None and op.recomputable and counts[op.name] < 5 and rng.random() < share:
                live.discard(tensor)
    for tensor in graph.outputs:
        if tensor not in live:
            compute(writer[tensor])
    steps = [("compute", name) for name in computed]
    return Schedule.from_steps(steps, graph=graph.name, graph_digest=graph.digest, source=f"random, seed {seed}")


def moving(
    graph: ComputeGraph, seed: int, share: float = 0.08, keep: Collection[str] = (), *, recompute: bool = True
) -> Schedule:
    """Return a schedule in the reference order that moves and drops live values at random, and brings them back.

    Copies are read at their first need or earlier, several times or never, and some are discarded before the end. Other
    dropped values are computed again, if `recompute`.

    Parameters
    ----------
    share
        Probability of each kind of event for a live value, after an op of the reference order.
    keep
        Tensors that are neither moved nor dropped.
    """
    rng = random.Random(seed)
    writer = {tensor: op for op in graph.ops for tensor in op.outputs}
    steps: list[tuple[str, str]] = []
    live, copied, counts = set(graph.inputs), set[str](), Counter[str]()

    def provide(tensor: str) -> None:
        if tensor in copied:
            steps.append(("fetch", tensor))
            live.add(tensor)
        else:
            compute(writer[tensor])

    def compute(op: Op) -> None:
        for tensor in op.inputs:
            if tensor not in live:
                provide(tensor)
        steps.append(("compute", op.name))
        counts[op.name] += 1
        live.update(op.outputs)

    order = graph.arrays.order.tolist()
    last = {tensor: position for position in order for tensor in graph.ops[position].inputs}
    last |= dict.fromkeys(graph.outputs, -1)
    for position in order:
        compute(graph.ops[position])
        for tensor in sorted(live.difference(keep, graph.inputs)):
            op = writer[tensor]
            if rng.random() < share and tensor not in copied:
                steps.append(("offload", tensor))
                copied.add(tensor)
            again = tensor in copied or (recompute and op.recomputable and counts[op.name] < 5)
            if again and (last.get(tensor) in {None, position} or rng.random() < 2 * share):
                steps.append(("free", tensor))
                live.discard(tensor)
        for tensor in [each for each in sorted(copied) if rng.random() < share]:
            if tensor not in live:
                provide(tensor)
            else:
                steps.append(("discard", tensor))
                copied.remove(tensor)
    for tensor in graph.outputs:
        if tensor not in live:
            provide(tensor)
    return Schedule.from_steps(steps, graph=graph.name, graph_digest=graph.digest, source=f"random, seed {seed}")
