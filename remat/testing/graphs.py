"""Random tiny graphs with all features of graphs, and budgets that make a search worthwhile."""

from __future__ import annotations

import random
from dataclasses import replace

from remat.graphs import ComputeGraph, GraphBuilder, Tensor


def random_graph(
    seed: int, most_ops: int = 6, *, plain: bool = False, buffers: bool = False, in_place: bool = False
) -> ComputeGraph:
    """Return a random graph of at least three ops; the same arguments give the same graph.

    Parameters
    ----------
    seed : int
    most_ops : int
        Largest number of ops; buffers may need a few more.
    plain : bool
        One output per op, no workspace, no graph inputs, nothing kept, everything recomputable.
    buffers : bool
        With one or two accumulation buffers.
    in_place : bool
        Most ops may write outputs in place of inputs, which have the same size then.

    Examples
    --------
    >>> random_graph(3, plain=True)
    ComputeGraph('tiny-3', 4 ops, 4 tensors, 3 edges)
    """
    rng = random.Random(seed)
    n = rng.randint(3, most_ops)
    builder = GraphBuilder(f"tiny-{seed}")
    tensors: list[str] = []
    if not plain and rng.random() < 0.2:
        tensors.append(builder.input("given", rng.randint(0, 4)))
    shared: list[str] = []
    if buffers:
        shared = [builder.tensor(f"sum{k}", rng.randint(1, 6)) for k in range(rng.randint(1, 2))]
    adders = {t: rng.randint(2, 3) for t in shared}
    n = max(n, 4) if buffers else n
    for j in range(n):
        complete = [t for t in shared if adders[t] == 0]
        pool = tensors + complete
        reads = rng.sample(pool, min(len(pool), rng.choice([1, 1, 2, 2, 3]))) if j else []
        outputs = {f"t{j}": rng.randint(1, 9)}
        if not plain and rng.random() < 0.3:
            outputs[f"u{j}"] = rng.randint(1, 9)
        names = list(outputs)
        open_sums = [t for t in shared if adders[t]]
        for t in open_sums:
            if rng.random() < 0.7 or n - j <= adders[t] + 1:
                adders[t] -= 1
                names.append(t)
        if buffers and any(t in shared for t in names) and rng.random() < 0.4:
            names = [t for t in names if t in shared]
        for name in names:
            if name in outputs:
                builder.tensor(name, outputs[name])
        builder.op(
            f"op{j}",
            inputs=reads,
            outputs=names,
            cost=rng.choice([0, 1, 1, 2, 3, 5, 8]),
            workspace=0 if plain or rng.random() < 0.7 else rng.randint(1, 5),
            recomputable=plain or rng.random() < 0.9,
        )
        tensors += [t for t in names if t in outputs]
    for t in shared:
        for k in range(adders[t]):
            builder.op(f"fill_{t}_{k}", outputs=[t], cost=1)
    if not plain and tensors and rng.random() < 0.5:
        builder.output(*rng.sample(tensors, 1))
    return _with_places(builder.build(), rng) if in_place else builder.build()


def _with_places(graph: ComputeGraph, rng: random.Random) -> ComputeGraph:
    """Return the graph with outputs that may be written in place of inputs, whose sizes they take."""
    size = {t.name: t.size for t in graph.tensors}
    several = {
        t for t, count in zip(graph.tensor_names, graph.arrays.producers.counts.tolist(), strict=True) if count > 1
    }
    ops = []
    for name in graph.order or ():
        op = graph.ops[graph.op_index[name]]
        sources = [t for t in op.inputs if t not in several]
        outputs = [t for t in op.outputs if t not in several]
        pairs = []
        if sources and outputs and rng.random() < 0.8:
            like = rng.choice(sources)
            for output in outputs:
                if output == outputs[0] or rng.random() < 0.5:
                    size[output] = size[like]
            pairs = [(o, s) for o in outputs for s in sources if size[o] == size[s]]
            rng.shuffle(pairs)
        ops.append(replace(op, in_place=tuple(pairs)))
    return replace(graph, ops=ops, tensors=[Tensor(t.name, size[t.name]) for t in graph.tensors])


def random_budget(graph: ComputeGraph, seed: int) -> int:
    """Return a budget in bytes between the structural bound and the reference peak, both included."""
    least = graph.structural_bound.peak
    return random.Random(seed + 7).randint(least, max(least, graph.reference_peak))
