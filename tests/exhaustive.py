"""Optima by exhaustive search (Dijkstra over what is live), for tiny graphs; shares no code with the package.

Everything is stated in the rules themselves: what is live, what may be computed, what may be freed. Freeing is a move
of cost 0, so that every choice of what to hold is tried.
"""

import heapq
import itertools
import random
from dataclasses import dataclass

from remat.graphs import GraphBuilder


@dataclass(frozen=True)
class Tiny:
    """A problem in plain Python: ops are 0..n-1 in the reference order, tensors by name."""

    reads: list
    writes: list
    size: dict
    cost: list
    workspace: list
    kept: frozenset
    held: frozenset  # graph inputs
    limit: list
    budget: int

    @classmethod
    def of(cls, problem, copies=None):
        graph = problem.graph
        ops = [graph.ops[o] for o in graph.arrays.order]
        held = frozenset(graph.inputs)
        limits = [1 if not op.recomputable else copies for op in ops]
        return cls(
            [frozenset(op.inputs) - held for op in ops],
            [op.outputs for op in ops],
            {t.name: t.size for t in graph.tensors},
            [op.cost for op in ops],
            [op.workspace for op in ops],
            frozenset(graph.outputs) - held,
            held,
            limits,
            problem.budget_bytes,
        )

    @property
    def buffers(self):
        writers = [t for outputs in self.writes for t in outputs]
        return {t for t in writers if writers.count(t) > 1}


def optimum(tiny, order, staged=False):
    """Least cost, or None where no schedule exists.

    `order` is "fixed" or "free". With `staged`, each stage runs an op at most once and in order. Accumulation buffers
    are filled once, by first computes, and never freed before they are complete; those that nobody reads or keeps are
    held during the contributions alone.
    """
    n = len(tiny.cost)
    buffers = {t for t in tiny.buffers if t in tiny.kept or any(t in reads for reads in tiny.reads)}
    fleeting = tiny.buffers - buffers
    base = sum(tiny.size[t] for t in tiny.held)
    parts = {t: frozenset(j for j in range(n) if t in tiny.writes[j]) for t in buffers}
    counted = [j for j in range(n) if tiny.limit[j] is not None]
    # A state: times each op ran (only what matters), last slot of the stage, live tensors, buffers that are gone.
    start = (tuple([0] * n), -1, frozenset(), frozenset())
    best = {start: 0}
    heap = [(0, 0, start)]
    tick = itertools.count(1)
    while heap:
        cost, _, state = heapq.heappop(heap)
        if cost > best[state]:
            continue
        runs, slot, live, gone = state
        if all(runs) and tiny.kept <= live and not (tiny.kept & gone):
            return cost
        moves = []
        for tensor in live:
            if tensor in buffers and not all(runs[j] for j in parts[tensor]):
                continue  # not complete yet
            lost = gone | {tensor} if tensor in buffers else gone
            moves.append((0, (runs, slot, live - {tensor}, lost)))
        done = next((j for j in range(n) if not runs[j]), n)
        for j in range(n):
            if order == "fixed" and j > done:
                continue
            if staged and (j <= slot or done == n):
                continue
            if tiny.limit[j] is not None and runs[j] >= tiny.limit[j]:
                continue
            if not tiny.reads[j] <= live:
                continue
            if any(t in buffers and not all(runs[k] for k in parts[t]) for t in tiny.reads[j]):
                continue
            during = live | set(tiny.writes[j])
            if base + sum(tiny.size[t] for t in during) + tiny.workspace[j] > tiny.budget:
                continue
            after = frozenset(during - fleeting - {t for t in tiny.writes[j] if t in gone})
            count = runs[j] + 1 if j in counted else 1
            following = -1 if staged and j == done else (j if staged else -1)
            moves.append((tiny.cost[j], ((*runs[:j], count, *runs[j + 1 :]), following, after, gone)))
        for price, target in moves:
            total = cost + price
            if total < best.get(target, float("inf")):
                best[target] = total
                heapq.heappush(heap, (total, next(tick), target))
    return None


def random_graph(seed, most_ops=6, *, plain=False, buffers=False):
    """A random tiny graph; `plain`: one output per op, no workspace, nothing kept."""
    rng = random.Random(seed)
    n = rng.randint(3, most_ops)
    builder = GraphBuilder(f"tiny-{seed}")
    tensors = []
    if not plain and rng.random() < 0.2:
        tensors.append(builder.input("given", rng.randint(0, 4)))
    shared = []
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
    return builder.build()


def random_budget(graph, seed):
    """A budget between the structural bound and the reference peak, both included."""
    rng = random.Random(seed + 7)
    return rng.randint(graph.structural_bound.peak, max(graph.structural_bound.peak, graph.reference_peak))
