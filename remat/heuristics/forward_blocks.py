"""Cuts of the forward pass into blocks, as the positions at which blocks begin; the first is 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from remat.errors import ProblemError
from remat.heuristics.checkpointing.checkpoints import articulation_points
from remat.problem import Problem
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Int

#: Largest number of ops for which articulation points are searched: networkx takes some 10 µs per link.
ARTICULATION_OPS = 20_000
#: Largest number of forward ops for which single ops are tried as blocks.
FEW = 130


def levels(traffic: Int) -> Iterator[Int]:
    """Yield cuts from fine to coarse, from single ops to two blocks.

    A cut lies where fewer bytes cross than anywhere within some distance; the distance doubles from one level to the
    next. Cuts are farther apart than that distance, so plateaus are cut evenly. Tensors that cross for long, such as
    the skips of a U-Net or the output of an encoder, add the same at all nearby positions and so have no effect.

    Parameters
    ----------
    traffic : int64 array, shape (forward ops - 1,)
        Bytes that cross after each op but the last (:meth:`.TrainingStep.crossing`).

    Examples
    --------
    >>> [cuts.tolist() for cuts in levels(np.ones(5, dtype=np.int64))]
    [[0, 1, 2, 3, 4, 5], [0, 2, 4], [0, 3], [0, 5]]
    """
    distance = 0
    while distance < len(traffic):
        padded = np.pad(traffic, distance, mode="edge")
        least = np.lib.stride_tricks.sliding_window_view(padded, 2 * distance + 1).min(axis=1)
        cuts = [0]
        for position in (np.flatnonzero(traffic == least) + 1).tolist():
            if position - cuts[-1] > distance:
                cuts.append(position)
        if len(cuts) < 2:
            return
        yield np.array(cuts, dtype=np.int64)
        distance = 2 * distance if distance else 1


def module_paths(problem: Problem, ops: Int) -> list[tuple[str, ...]]:
    """Return the parts of the path of each op in the graph's ``meta["modules"]`` (op name to dotted path).

    Raises
    ------
    ProblemError
        If the graph has no such paths.
    """
    graph, modules = problem.graph, problem.graph.meta.get("modules")
    if not isinstance(modules, Mapping) or not modules:
        raise ProblemError(f"graph {graph.name!r} has no paths of modules: its meta has no 'modules'", "no-paths")
    paths = [modules.get(graph.op_names[op]) for op in ops.tolist()]
    return [tuple(part for part in path.split(".") if part) if isinstance(path, str) else () for path in paths]


def by_paths(paths: Sequence[Sequence[str]]) -> Iterator[list[int]]:
    """Yield, for each depth, the first positions of the runs whose paths agree to that depth.

    Examples
    --------
    >>> list(by_paths([["a"], ["b", "0"], ["b", "1"]]))
    [[0, 1], [0, 1, 2]]
    """
    for depth in range(1, 1 + max(map(len, paths))):
        heads = [path[:depth] for path in paths]
        yield [0, *(k for k in range(1, len(heads)) if heads[k - 1] != heads[k])]


def _of_source(step: TrainingStep, source: str) -> Iterator[Sequence[int]]:
    """Yield the cuts of a source, including cuts into one block.

    Raises
    ------
    ProblemError
        If the graph has no module paths, for the source ``modules``.
    """
    graph, count = step.problem.graph, step.num_forward
    ops = graph.arrays.order[:count]
    if source == "modules":
        yield from by_paths(module_paths(step.problem, ops))
    elif source == "names":  # as frameworks write them: layers.3.attn.qkv
        names = [graph.op_names[op] for op in ops.tolist()]
        yield from by_paths([name.replace("/", ".").replace(":", ".").split(".")[:-1] for name in names])
    elif source == "valleys":
        for number, cuts in enumerate(levels(step.crossing(graph.arrays.size)[: count - 1])):
            if number:  # the first ones are the ops
                yield cuts.tolist()
    elif source == "ops":
        yield range(count)
    elif count <= ARTICULATION_OPS:
        yield [0, *(point + 1 for point in articulation_points(step) if point + 1 < count)]


def all_cuts(step: TrainingStep, source: str) -> list[tuple[int, ...]]:
    """Return the different cuts of a source, the coarsest first.

    Parameters
    ----------
    step : TrainingStep
    source : {"modules", "names", "valleys", "articulation", "ops", "auto"}
        ``"modules"`` and ``"names"``: runs of ops with the same path, for each depth of the module paths in the graph's
        ``meta["modules"]``, or of the names of ops, split at dots, slashes and colons. ``"valleys"``: where few bytes
        cross (:func:`levels`). ``"articulation"``: after the articulation points of the forward graph; nothing else
        crosses there. ``"ops"``: each op is a block. ``"auto"``: all of them, but ``"ops"`` only where ops are few or
        the others find nothing.

    Raises
    ------
    ProblemError
        If the source has no cuts for this graph.
    """
    sources = [source]
    if source == "auto":
        sources = ["valleys", "names"]
        sources += ["modules"] * bool(step.problem.graph.meta.get("modules"))
        sources += ["articulation"] * (step.num_forward <= 2_000)  # in larger graphs valleys find them faster
        sources += ["ops"] * (step.num_forward <= FEW)
    found = {tuple(cuts) for each in sources for cuts in _of_source(step, each) if len(cuts) > 1}
    if not found and source == "auto":
        found = {tuple(range(step.num_forward))}
    if not found:
        raise ProblemError(f"graph {step.problem.graph.name!r} does not fall into blocks by {source}")
    return sorted(found, key=lambda cuts: (len(cuts), cuts))
