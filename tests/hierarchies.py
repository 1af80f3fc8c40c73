"""Random tiny graphs with groups of ops and options to run them, as plain tuples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from remat.graphs import ComputeGraph, GraphBuilder
from remat.testing import random_graph


@dataclass(frozen=True)
class RandomOption:
    """Op sequences of an option; `backward` is empty in a fast-forward."""

    forward: tuple[int, ...]
    backward: tuple[int, ...] = ()


@dataclass(frozen=True)
class RandomGroup:
    """Group with its ops in the reference order and its options; `backward` is empty in plain graphs."""

    name: str
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    options: tuple[RandomOption, ...]


@dataclass(frozen=True, eq=False)
class RandomHierarchy:
    """Graph and disjoint groups of ops, each contiguous in the reference order; other ops stand alone."""

    graph: ComputeGraph
    groups: tuple[RandomGroup, ...]


def random_hierarchy(
    seed: int, most_ops: int = 6, *, training: bool | None = None, leaves: bool = False
) -> RandomHierarchy:
    """Return a random hierarchy of one level with at most `most_ops` (forward) ops; with `leaves` without groups.

    >>> h = random_hierarchy(4, training=True)
    >>> h.graph, [(len(g.forward), len(g.backward), len(g.options)) for g in h.groups]
    (ComputeGraph('step-4', 13 ops, 18 tensors, 15 edges), [(2, 2, 1), (2, 0, 1)])
    """
    rng = random.Random(seed)
    if training is None:
        training = rng.random() < 0.7
    if training:
        graph, mirror = random_step(rng, f"step-{seed}", most_ops)
    else:
        graph, mirror = random_graph(seed, most_ops, buffers=rng.random() < 0.25), {}
    order = graph.arrays.order.tolist()
    groups: list[RandomGroup] = []
    forward = [op for op in order if graph.ops[op].phase in ("", "forward")]
    at = 0
    while at < len(forward) and not leaves:
        length = rng.choice([1, 2, 2, 3, 3, 4])
        members = tuple(forward[at : at + length])
        at += length
        if len(members) < 2 or rng.random() < 0.15:
            continue
        behind = set()
        if training and rng.random() < 0.85:
            behind = {mirror[op] for op in members if op in mirror}
        backward = tuple(op for op in order if op in behind)
        options = random_options(rng, graph, members, backward)
        if options:
            groups.append(RandomGroup(f"group{len(groups)}", members, backward, options))
    return RandomHierarchy(graph, tuple(groups))


# -- graphs ------------------------------------------------------------------------------------------------------------


def random_step(rng: random.Random, name: str, most_ops: int) -> tuple[ComputeGraph, dict[int, int]]:
    """Return a training step (forward ops, loss, backward ops), and the backward op of each forward op.

    Gradients of tensors with several readers have several contributors. Backward ops read some inputs and outputs of
    their forward op. Some write the gradient of a weight, which is kept.
    """
    builder = GraphBuilder(name)
    tensors = [builder.input("given", rng.randint(0, 3))] if rng.random() < 0.6 else []
    count = rng.randint(min(3, most_ops), most_ops)
    reads: list[list[str]] = []
    writes: list[list[str]] = []
    sizes: list[int] = []
    for j in range(count):
        recent = tensors[-3:]
        chosen = rng.sample(recent, min(len(recent), rng.choice([1, 1, 1, 2]))) if recent else []
        if j and tensors[-1] not in chosen and rng.random() < 0.7:
            chosen.append(tensors[-1])
        sizes.append(_size(rng))
        outputs = [builder.tensor(f"t{j}", sizes[j])]
        if rng.random() < 0.25:  # statistics, a mask
            outputs.append(builder.tensor(f"u{j}", _size(rng)))
            if rng.random() < 0.2:
                builder.output(f"u{j}")
        builder.op(f"f{j}", inputs=chosen, outputs=outputs, cost=rng.choice([0, 1, 2, 3, 5]),
                   workspace=_workspace(rng), phase="forward", recomputable=rng.random() < 0.9)  # fmt: skip
        tensors.append(outputs[0])
        reads.append(chosen)
        writes.append(outputs)
    ends = [f"t{j}" for j in range(count) if not any(f"t{j}" in chosen for chosen in reads)]
    for j in range(count):
        builder.tensor(f"g{j}", sizes[j])
    builder.op("loss", inputs=ends, outputs=[f"g{end[1:]}" for end in ends], cost=1, phase="loss",
               recomputable=False)  # fmt: skip
    for j in reversed(range(count)):
        saved = [t for t in [*reads[j], *writes[j]] if rng.random() < 0.5]
        into = [f"g{t[1:]}" for t in reads[j] if t != "given"]
        if rng.random() < 0.4 or not into:
            into.append(builder.tensor(f"w{j}", _size(rng)))
            builder.output(f"w{j}")
        builder.op(f"b{j}", inputs=[f"g{j}", *saved], outputs=into, cost=rng.choice([0, 1, 2, 4, 6]),
                   workspace=_workspace(rng), phase="backward", recomputable=rng.random() < 0.95)  # fmt: skip
    graph = builder.build()
    return graph, {graph.op_index[f"f{j}"]: graph.op_index[f"b{j}"] for j in range(count)}


def _size(rng: random.Random) -> int:
    return 0 if rng.random() < 0.12 else rng.randint(1, 9)


def _workspace(rng: random.Random) -> int:
    return 0 if rng.random() < 0.7 else rng.randint(1, 6)


# -- options -----------------------------------------------------------------------------------------------------------


def random_options(
    rng: random.Random, graph: ComputeGraph, forward: tuple[int, ...], backward: tuple[int, ...]
) -> tuple[RandomOption, ...]:
    """Return up to six distinct valid options: everything kept, random ones, and perhaps a fast-forward."""
    found = [RandomOption(forward, backward)]
    if not backward:
        found += [RandomOption(_forward(rng, graph, forward)) for _ in range(rng.randint(0, 2))]
        return tuple(dict.fromkeys(found))
    for _ in range(rng.randint(0, 2)):
        option = RandomOption(_forward(rng, graph, forward), _backward(rng, graph, forward, backward))
        found.append(option)
    if rng.random() < 0.5:
        found.append(RandomOption(_forward(rng, graph, forward)))
    rng.shuffle(found)
    return tuple(dict.fromkeys(found))


def _makers(graph: ComputeGraph, ops: Iterable[int]) -> dict[str, int]:
    """Map the tensors with a single writer to it, for the given ops."""
    single = graph.arrays.producers.counts == 1
    return {t: op for op in ops for t in graph.ops[op].outputs if single[graph.tensor_index[t]]}


def _walk(
    graph: ComputeGraph, part: tuple[int, ...], makers: dict[str, int], there: set[str],
    drops: Callable[[str], bool],
) -> tuple[int, ...]:  # fmt: skip
    """Run `part` in order: `makers` recompute missing tensors, `drops` selects the tensors to drop.

    `there` holds the tensors of the makers that are available at the start.
    """
    steps: list[int] = []

    def compute(op: int) -> None:
        for tensor in graph.ops[op].inputs:
            if tensor in makers and tensor not in there:
                compute(makers[tensor])
        steps.append(op)
        there.update(graph.ops[op].outputs)

    for op in part:
        for tensor in sorted(there & set(makers)):
            if _recomputable(graph, makers, tensor) and drops(tensor):
                there.discard(tensor)
        compute(op)
    return tuple(steps)


def _recomputable(graph: ComputeGraph, makers: dict[str, int], tensor: str) -> bool:
    """True when all ops that `tensor` may need are recomputable."""
    ops: set[int] = set()
    stack = [makers[tensor]]
    while stack:
        op = stack.pop()
        if op not in ops:
            ops.add(op)
            stack += [makers[t] for t in graph.ops[op].inputs if t in makers]
    return all(graph.ops[op].recomputable for op in ops)


def _forward(rng: random.Random, graph: ComputeGraph, forward: tuple[int, ...]) -> tuple[int, ...]:
    """Return the forward ops in order, with some repeated."""
    share = rng.choice([0.0, 0.0, 0.3])
    return _walk(graph, forward, _makers(graph, forward), set(), lambda _: rng.random() < share)


def _backward(
    rng: random.Random, graph: ComputeGraph, forward: tuple[int, ...], backward: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the backward ops in order, with forward ops repeated for tensors that were not kept."""
    makers = _makers(graph, forward)
    share = rng.random()
    again = {t for t in makers if _recomputable(graph, makers, t)}
    there = {t for t in makers if t not in again or rng.random() < share}
    later = rng.choice([0.0, 0.0, 0.25])
    return _walk(graph, backward, makers, there, lambda _: rng.random() < later)
