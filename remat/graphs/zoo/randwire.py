"""Randomly wired networks on Watts-Strogatz graphs."""

from __future__ import annotations

import random
from dataclasses import dataclass

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.inference import InferenceNetwork
from remat.graphs.zoo.network import Shape

SOURCE = "RandWire-WS (Xie et al. 2019), wiring drawn by remat.graphs.zoo"
#: Attempts to draw a connected wiring.
TRIES = 1000


@dataclass(frozen=True)
class Regime:
    """Family of networks."""

    image: Shape
    classes: int
    channels: int
    """Channels of the first stage."""
    stem: tuple[tuple[int, int], ...]
    """Convolutions before the first stage: the divisor of the first stage's channels, and the stride."""
    stages: tuple[tuple[int, int], ...]
    """Divisor of the number of nodes, and channels relative to those of the first stage."""


REGIMES = {
    "small": Regime((224, 224, 3), 1000, 78, ((2, 2), (1, 2)), ((1, 1), (1, 2), (1, 4))),
    "regular": Regime((224, 224, 3), 1000, 109, ((2, 2),), ((2, 1), (1, 2), (1, 4), (1, 8))),
    "cifar10": Regime((32, 32, 3), 10, 78, ((1, 1),), ((1, 1), (1, 2))),
    "cifar100": Regime((32, 32, 3), 100, 78, ((1, 1),), ((1, 1), (1, 2), (1, 4))),
}


def watts_strogatz(
    nodes: int, neighbours: int, rewiring: float, random_numbers: random.Random
) -> list[tuple[int, int]]:
    """Return the edges (lower, higher) of a connected random graph of Watts and Strogatz.

    Every node of a ring is joined to the `neighbours` nearest ones, half on each side. Then, starting with the nearest
    clockwise neighbours, each edge ``(v, v + i)`` is rewired with probability `rewiring`: its other end is drawn from
    all nodes but `v` and its neighbours. A disconnected graph is drawn again.

    Raise GraphError if `neighbours` is odd or not below `nodes`, `rewiring` is not a probability, or no drawn graph is
    connected.

    Examples
    --------
    >>> watts_strogatz(6, 2, 0.0, random.Random(1))
    [(0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5)]
    >>> watts_strogatz(6, 2, 1.0, random.Random(1))
    [(0, 2), (0, 3), (0, 4), (1, 2), (1, 4), (1, 5)]
    """
    if type(nodes) is not int or type(neighbours) is not int or not 0 < neighbours < nodes or neighbours % 2:
        raise GraphError(
            f"a ring of {nodes!r} nodes needs an even number of neighbours below that, not {neighbours!r}", "zoo"
        )
    if not 0 <= rewiring <= 1:
        raise GraphError(f"the probability of rewiring must be from 0 to 1, not {rewiring!r}", "zoo")
    for _ in range(TRIES):
        joined: list[set[int]] = [set() for _ in range(nodes)]
        for distance in range(1, neighbours // 2 + 1):
            for node in range(nodes):
                other = (node + distance) % nodes
                joined[node].add(other)
                joined[other].add(node)
        for distance in range(1, neighbours // 2 + 1):
            for node in range(nodes):
                other = (node + distance) % nodes
                free = [end for end in range(nodes) if end != node and end not in joined[node]]
                if random_numbers.random() < rewiring and free:
                    end = random_numbers.choice(free)
                    joined[node].remove(other)
                    joined[other].remove(node)
                    joined[node].add(end)
                    joined[end].add(node)
        if _connected(joined):
            return sorted((node, other) for node in range(nodes) for other in joined[node] if node < other)
    raise GraphError(f"no connected graph of {nodes} nodes with {neighbours} neighbours among {TRIES} drawn")


def randwire(
    batch: int = 1, image: Shape | None = None, classes: int | None = None, *, regime: str = "small", seed: int = 0,
    channels: int | None = None, nodes: int = 32, neighbours: int = 4, rewiring: float = 0.75, coarse: bool = False,
) -> ComputeGraph:  # fmt: skip
    """Return a randomly wired network; equal arguments give equal graphs.

    Edges of the random graph lead from lower to higher numbers. A node adds up its inputs, weighted, and passes the sum
    through Relu, DepthwiseConv, Conv and BatchNorm (3 x 3, separable). Nodes without predecessors read the output of
    the last stage, with stride 2; the output of a stage is the mean of the nodes without successors.

    Parameters
    ----------
    image, classes, channels
        Default: those of the regime.
    regime : str
        ``"small"`` (published with 78 channels: 583 million multiply-accumulates) and ``"regular"`` (109 channels:
        4.0 billion; the first stage has half of the nodes) for ImageNet; ``"cifar10"`` and ``"cifar100"`` with two and
        three stages, on which Serenity reports its numbers.
    seed : int
        Seed of the wiring of all stages.
    nodes : int
        Nodes of a stage.
    neighbours, rewiring
        See :func:`watts_strogatz`.
    coarse : bool
        Make each node one op.

    Examples
    --------
    >>> graph = randwire()
    >>> graph, graph.base_cost, graph.meta["params"]
    (ComputeGraph('randwire-small-s0-b1', 454 ops, 454 tensors, 573 edges), 583829240, 5640454)
    """
    if regime not in REGIMES:
        raise GraphError(f"there is no regime {regime!r}; there are {', '.join(REGIMES)}", "zoo")
    chosen = REGIMES[regime]
    width = chosen.channels if channels is None else channels
    if type(width) is not int or width < 2 or type(nodes) is not int or type(seed) is not int:
        raise GraphError(
            "a randomly wired network needs whole numbers of channels (from 2) and nodes, and a seed", "zoo"
        )
    random_numbers = random.Random(seed)
    net = InferenceNetwork(f"randwire-{regime}{'-coarse' if coarse else ''}-s{seed}", batch, SOURCE)
    x = net.input("input", image or chosen.image)
    for number, (divisor, stride) in enumerate(chosen.stem, 1):
        x = net.relu(f"conv{number}/relu", x) if number > 1 else x
        x = net.conv(f"conv{number}/conv", x, width // divisor, kernel=3, stride=stride)
        x = net.batch_norm(f"conv{number}/bn", x)
    for number, (share, factor) in enumerate(chosen.stages, len(chosen.stem) + 1):
        edges = watts_strogatz(nodes // share, neighbours, rewiring, random_numbers)
        x = _stage(net, f"conv{number}", x, nodes // share, edges, channels=factor * width, coarse=coarse)
    x = net.relu_conv_bn("head", x, 1280)
    net.dense("head/classifier", net.global_pool("head/pool", x), classes or chosen.classes)
    return net.graph()


def _stage(
    net: InferenceNetwork, name: str, x: str, nodes: int, edges: list[tuple[int, int]], *, channels: int, coarse: bool
) -> str:
    """Add the nodes of a stage that reads `x` and return its output."""
    reads: list[list[int]] = [[] for _ in range(nodes)]
    for lower, higher in edges:
        reads[higher].append(lower)
    outputs: list[str] = []
    for node, sources in enumerate(reads):
        here = f"{name}/node{node}"
        inputs = [outputs[source] for source in sources] or [x]
        stride = 1 if sources else 2
        if coarse:
            outputs.append(net.separable(here, *inputs, kind="SepConv", kernel=3, channels=channels, stride=stride))
            continue
        y = net.weighted_add(f"{here}/sum", *inputs) if len(inputs) > 1 else inputs[0]
        outputs.append(net.relu_separable_bn(here, y, channels, kernel=3, stride=stride))
    read = {source for sources in reads for source in sources}
    last = [output for node, output in enumerate(outputs) if node not in read]
    return net.mean(f"{name}/mean", *last) if len(last) > 1 else last[0]


def _connected(joined: list[set[int]]) -> bool:
    seen = {0}
    waiting = [0]
    while waiting:
        new = joined[waiting.pop()] - seen
        seen |= new
        waiting.extend(new)
    return len(seen) == len(joined)
