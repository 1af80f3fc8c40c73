"""Where the forward pass falls into blocks: positions after which a block ends."""

from __future__ import annotations

from collections.abc import Iterator

from remat.errors import ProblemError
from remat.heuristics.checkpointing.choices import articulation_points
from remat.heuristics.checkpointing.step import TrainingStep
from remat.runtime.arrays import Int

#: By how much, as a share, the bytes that cross must rise and fall again between two valleys of the traffic.
RISES = (0.1, 1.0)
#: Ops up to which articulation points are looked for: networkx takes some ten microseconds for each link.
ARTICULATION_OPS = 20_000
#: Forward ops up to which each of them is tried as a block.
FEW = 130


def valleys(traffic: Int, rise: float) -> list[int]:
    """Positions of least traffic between rises by the share `rise`; the first of equals.

    Examples
    --------
    >>> import numpy as np
    >>> valleys(np.array([1, 3, 1, 2, 1, 4, 1]), 1.5)
    [0, 2]
    """
    found: list[int] = []
    low, at, high, climbing = None, 0, 0, False
    for place, bytes_ in enumerate(traffic.tolist()):
        if climbing:
            high = max(high, bytes_)
            if bytes_ * (1 + rise) <= high:
                low, at, climbing = bytes_, place, False
        elif low is None or bytes_ < low:
            low, at = bytes_, place
        elif bytes_ >= low * (1 + rise) and bytes_ > low:
            found.append(at)
            high, climbing = bytes_, True
    return found


def module_cuts(step: TrainingStep) -> Iterator[list[int]]:
    """For each depth of the module paths in the graph's ``meta["modules"]``, the ends of the runs of one module.

    Raises
    ------
    ProblemError
        If the graph has none.
    """
    graph = step.problem.graph
    modules = graph.meta.get("modules")
    if not isinstance(modules, dict) or not modules:
        raise ProblemError(f"graph {graph.name!r} has no module paths (meta 'modules') to take blocks from", "no-paths")
    yield from _ends_of_runs([str(modules.get(name, "")).split(".") for name in _names(step)])


def name_cuts(step: TrainingStep) -> Iterator[list[int]]:
    """As :func:`module_cuts`, by the names of the ops: for each depth, the ends of the runs of one prefix.

    Names are cut at dots, slashes and colons, as frameworks write them (``layers.3.attn.qkv``).
    """
    yield from _ends_of_runs([name.replace("/", ".").replace(":", ".").split(".")[:-1] for name in _names(step)])


def _names(step: TrainingStep) -> list[str]:
    """Names of the ops of forward and loss, in order."""
    graph = step.problem.graph
    return [graph.op_names[op] for op in graph.arrays.order[: step.first_backward].tolist()]


def _ends_of_runs(paths: list[list[str]]) -> Iterator[list[int]]:
    """For each depth, the last positions of the runs whose paths agree up to it."""
    for depth in range(1, 1 + max(map(len, paths))):
        heads = [path[:depth] for path in paths]
        yield [k for k in range(len(heads) - 1) if heads[k] != heads[k + 1]]


def valley_cuts(step: TrainingStep) -> Iterator[list[int]]:
    """Where few bytes cross, for each of :data:`RISES`; works on any training graph."""
    traffic = step.crossing(step.problem.graph.arrays.size)
    for rise in RISES:
        yield valleys(traffic, rise)


def articulation_cuts(step: TrainingStep) -> Iterator[list[int]]:
    """Past the articulation points of the forward graph; nothing else crosses there."""
    if step.num_forward <= ARTICULATION_OPS:
        yield articulation_points(step)


def op_cuts(step: TrainingStep) -> Iterator[list[int]]:
    """Each op a block."""
    yield list(range(step.num_forward - 1))


#: Where blocks may come from.
SOURCES = {
    "modules": module_cuts, "names": name_cuts, "valleys": valley_cuts, "articulation": articulation_cuts,
    "ops": op_cuts,
}  # fmt: skip


def all_cuts(step: TrainingStep, source: str) -> list[list[int]]:
    """The different ways to cut that a source has, or all sources together (``auto``), the coarsest first.

    Each is a list of positions after which a block ends, without the last op of the forward pass. With ``auto``, each
    op is a block where ops are few or nothing else is found.

    Raises
    ------
    ProblemError
        If the source has none for this graph.
    """
    if source == "auto":
        some = ["valleys", "names"]
        some += ["modules"] * bool(step.problem.graph.meta.get("modules"))
        some += ["articulation"] * (step.num_forward <= 2_000)  # of larger graphs valleys find them in a moment
        found = {cuts for name in some for cuts in _inside(step, name)}
        if not found or step.num_forward <= FEW:
            found |= set(_inside(step, "ops")) or {()}
    else:
        found = set(_inside(step, source))
    if not found:
        raise ProblemError(f"graph {step.problem.graph.name!r} does not fall into blocks by {source}")
    return [list(cuts) for cuts in sorted(found, key=lambda cuts: (len(cuts), cuts))]


def _inside(step: TrainingStep, source: str) -> Iterator[tuple[int, ...]]:
    """Without ends of blocks that are none, and without ways to cut that have no others."""
    for cuts in SOURCES[source](step):
        inside = tuple(cut for cut in cuts if 0 <= cut < step.num_forward - 1)
        if inside:
            yield inside
