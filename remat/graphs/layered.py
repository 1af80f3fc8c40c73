"""Random layered graphs, the benchmark family of Gagrani et al. and Moccasin.

Source: Gagrani et al., *Neural Topological Ordering for Computation Graphs* (NeurIPS 2022), appendix A. What it leaves
open follows the public instances of that family. All rounding is that of Python's ``round`` (half to even).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import pairwise

from remat.errors import GraphError
from remat.graphs.builder import single_output_graph
from remat.graphs.graph import ComputeGraph

#: Memory in thousands: a mixture of Gaussians, as (weight, mean, standard deviation).
MIXTURE = ((0.3, 0.5, 0.5), (0.3, 1.0, 1.0), (0.3, 3.0, 1.0), (0.1, 5.0, 1.0))

#: Largest excess of the position of a skip edge's head over that of its tail, each as a share of its layer.
SKIP_DRIFT = 0.2


def layered(
    n: int,
    width: float | None = None,
    seed: int = 0,
    *,
    variability: float = 0.75,
    density: float = 0.2,
    skip_density: float = 0.14,
) -> ComputeGraph:
    """Return a random layered graph of `n` ops with one output each; equal arguments give equal graphs.

    Op ``"0"`` is the source and ``"1"`` the sink; the others are numbered layer by layer. The reference order is a
    random topological order. ``meta["layers"]`` holds the layer sizes.

    Parameters
    ----------
    n : int
        Number of ops, at least 2.
    width : float, optional
        Width factor in (0, 1); default: drawn from U(0.25, 0.5).
    seed : int
        Seed of Python's Mersenne Twister, the only source of randomness.
    variability : float
        Layer sizes vary by this share around their mean.
    density : float
        Share of the possible edges between consecutive layers beyond the minimum that connects them.
    skip_density : float
        Share of all edges that skip a layer, in [0, 1).

    Raises
    ------
    GraphError
        If a parameter is out of range, or no whole layer size lies within the variability.

    Examples
    --------
    >>> g = layered(100, 0.27, seed=446)
    >>> g.num_edges, g.reference_peak, g.base_cost
    (236, 46330, 48577)
    """
    if n < 2:
        raise GraphError(f"a layered graph has a source and a sink: n must be at least 2, not {n}", "layered")
    for fits, rule in (
        (variability >= 0, f"variability must not be negative, but is {variability}"),
        (0 <= density <= 1, f"density must be from 0 to 1, not {density}"),
        (0 <= skip_density < 1, f"skip_density must be from 0 and below 1, not {skip_density}"),
    ):
        if not fits:
            raise GraphError(f"a layered graph: {rule}", "layered")
    draw = random.Random(seed)
    if width is None:
        width = draw.uniform(0.25, 0.5)
    if not 0 < width < 1:
        raise GraphError(f"the width factor must lie strictly between 0 and 1, not {width!r}", "layered")

    layers = _layers(n, width, variability, draw)
    edges = {edge for a, b in pairwise(layers) for edge in _between(a, b, density, draw)}
    edges |= _skips(layers, len(edges), skip_density, draw)
    nodes: dict[str, tuple[int, int]] = {}
    for node in range(n):
        size = _memory(draw)
        nodes[str(node)] = (size, draw.randrange(1000) if node > 1 else 0)
    ordered_edges = sorted(edges)
    order = _random_order(n, ordered_edges, draw)
    return single_output_graph(
        f"layered-n{n}-w{width:.4g}-s{seed}",
        nodes,
        ((str(u), str(v)) for u, v in ordered_edges),
        order=map(str, order),
        source="random layered graph (Gagrani et al. 2022, appendix A)",
        meta={
            "n": n,
            "width": width,
            "seed": seed,
            "variability": variability,
            "density": density,
            "skip_density": skip_density,
            "layers": [len(layer) for layer in layers],
        },
    )


def _layers(n: int, width: float, variability: float, draw: random.Random) -> list[range]:
    """Return the nodes of each layer: [0], the middle layers, [1]."""
    mean = n / math.ceil(math.sqrt(n * (1 / width - 1)))
    low, high = max(1, math.ceil(mean * (1 - variability))), math.floor(mean * (1 + variability))
    if low > high:
        raise GraphError(f"no whole layer size lies within {variability:.0%} of the mean {mean:.3g}", "layered")
    layers, first = [range(1)], 2
    while first < n:
        size = min(draw.randint(low, high), n - first)
        layers.append(range(first, first + size))
        first += size
    return [*layers, range(1, 2)]


def _between(earlier: range, later: range, density: float, draw: random.Random) -> Iterator[tuple[int, int]]:
    """Yield edges between consecutive layers; each node of the larger layer gets adjacent neighbours."""
    a, b = len(earlier), len(later)
    count = round(density * a * b + (1 - density) * max(a, b))
    dealer, taker = (earlier, later) if a > b else (later, earlier)
    most = len(taker)
    extra = set(draw.sample(range(len(dealer)), count % len(dealer)))
    for i, node in enumerate(dealer):
        ends = min(count // len(dealer) + (i in extra), most)
        centre = round(i * (most - 1) / (len(dealer) - 1)) if len(dealer) > 1 else 0
        start = min(max(centre - (ends - 1) // 2, 0), most - ends)
        for other in taker[start : start + ends]:
            yield (node, other) if dealer is earlier else (other, node)


def _skips(layers: list[range], num_edges: int, skip_density: float, draw: random.Random) -> set[tuple[int, int]]:
    """Return edges that skip at least one layer; none leaves the source or enters the sink."""
    last = len(layers) - 2  # of the middle layers
    edges: set[tuple[int, int]] = set()
    if last < 3:
        return edges
    for _ in range(math.ceil(num_edges * skip_density / (1 - skip_density))):
        tail = draw.randint(1, last - 2)
        head = draw.randint(tail + 2, last)
        x = draw.random()
        y = min(x + SKIP_DRIFT * draw.random(), 0.999)
        edges.add((layers[tail][math.floor(x * len(layers[tail]))], layers[head][math.floor(y * len(layers[head]))]))
    return edges


def _memory(draw: random.Random) -> int:
    """Draw a component of the mixture, then values from it until one is positive, as the definition requires."""
    [(_, mean, deviation)] = draw.choices(MIXTURE, weights=[weight for weight, _, _ in MIXTURE])
    while (value := round(draw.gauss(mean, deviation), 2)) <= 0:
        pass
    return int(1000 * value)


def _random_order(n: int, edges: list[tuple[int, int]], draw: random.Random) -> list[int]:
    """Return a random topological order, a uniform choice among the ready nodes at each step."""
    successors: list[list[int]] = [[] for _ in range(n)]
    waiting = [0] * n
    for u, v in edges:
        successors[u].append(v)
        waiting[v] += 1
    ready = [node for node in range(n) if waiting[node] == 0]
    order: list[int] = []
    while ready:
        i = draw.randrange(len(ready))
        ready[i], ready[-1] = ready[-1], ready[i]
        order.append(node := ready.pop())
        for successor in successors[node]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    return order
