"""Blocks of the forward pass: by modules, by names, at articulation points, or where few bytes cross.

Cuts are the positions at which blocks begin; the first is 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from remat.errors import ProblemError
from remat.graphs.arrays import staircase
from remat.problem import Problem
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Int

#: Largest number of forward ops for which single ops are tried as blocks.
FEW = 130
#: Share of the ops above which a numbered module is split, if it consists of numbered modules.
LARGE = 0.25
#: Least share of the forward ops, and number of readers, for which a value is a candidate for a side tensor.
LONG, MANY = 0.2, 3


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


def name_paths(problem: Problem, ops: Int) -> list[tuple[str, ...]]:
    """Return the parts of the name of each op but the last, which names the op itself.

    Parts end at punctuation, and before a number at the end of a word.

    Examples
    --------
    >>> from remat import GraphBuilder
    >>> b = GraphBuilder("g")
    >>> _ = b.op("block3_conv1", size=1), b.op("layers.3.mlp.up", size=1)
    >>> name_paths(Problem(b.build()), np.arange(2))
    [('block', '3'), ('layers', '3', 'mlp')]
    """
    return [_name_path(problem.graph.op_names[op]) for op in ops.tolist()]


def _name_path(name: str) -> tuple[str, ...]:
    inner = re.sub(r"^\w+\[(.*)\]$", r"\1", name)
    # block3 is block 3, but the 2 of pool2d is not a number of a block
    parts = [p for part in re.split(r"[^A-Za-z0-9]+", inner) for p in re.split(r"(?<=[A-Za-z])(?=[0-9]+$)", part) if p]
    return tuple(parts[:-1]) if parts and not parts[-1].isdigit() else tuple(parts[:-2])


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


def numbered_blocks(paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the block of each op: its path up to the first number, or a later one where these blocks are large.

    Ops without a number have the block ``()``. The list is empty unless there are two blocks, with two ops each on
    average, that cover half of the ops.

    Examples
    --------
    >>> numbered_blocks([("in",), ("h", "0", "a"), ("h", "0"), ("h", "1"), ("h", "1", "b")])
    [(), ('h', '0'), ('h', '0'), ('h', '1'), ('h', '1')]
    """
    number = 1
    keys = [_key(path, number) for path in paths]
    while True:
        counts = Counter(key for key in keys if key)
        deeper = [_key(path, number + 1) for path in paths]
        large = max(counts.values(), default=0) > LARGE * len(paths)
        if not large or 2 * sum(map(bool, deeper)) < sum(counts.values()):
            break
        keys, number = [d or k for d, k in zip(deeper, keys, strict=True)], number + 1
    covered = sum(counts.values())
    found = len(counts) >= 2 and covered >= 2 * len(counts) and 2 * covered >= len(paths)
    return keys if found else []


def _key(path: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Return the path up to its number-th number; empty if there is none."""
    seen = 0
    for length, part in enumerate(path, 1):
        seen += part.isdigit()
        if seen == number:
            return path[:length]
    return ()


def articulation_cuts(problem: Problem, ops: Int, max_side: int = 0) -> list[int]:
    """Return the cuts after articulation points: all dependencies of later ops on earlier ones pass through them.

    Values with a long life (:data:`LONG`) and many readers are ignored, the smallest first, up to `max_side` percent
    of all bytes.

    Parameters
    ----------
    ops : int64 array
        In a topological order, which the cuts divide.
    max_side : int

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> articulation_cuts(Problem(unit_chain(3)), np.arange(4))
    [0, 1, 2, 3]
    """
    arrays = problem.graph.arrays
    first, last, long = long_lived(problem, ops)
    long = long[np.argsort(arrays.size[long], kind="stable")]
    total = int(arrays.size[first < len(ops)].sum())
    last[long[np.cumsum(arrays.size[long]) * 100 <= max_side * total]] = -1
    until = arrays.op_outputs.highest(last, -1)[ops]  # the last op that reads what each op writes
    read = np.flatnonzero(until > np.arange(len(ops)))
    crossing = staircase(read, until[read] - 1, np.ones_like(read), len(ops))
    cuts, latest, begun = [0], -1, -1
    ends = until.tolist()
    for k, count in enumerate(crossing.tolist()):
        if ends[k] > k:
            latest = k  # of those that cross, the one that began last
        if count == 1 and latest > begun and ends[latest] > k:
            cuts.append(k + 1)
            begun = k
    return cuts


def long_lived(problem: Problem, ops: Int) -> tuple[Int, Int, Int]:
    """Return the first writer and last reader of each tensor, and the tensors with a long life and many readers.

    Writers and readers are places in `ops`, shape (tensors,): at least the number of ops, and -1, where there is none.
    A life of at least the share :data:`LONG` of the ops is long; :data:`MANY` readers are many.
    """
    arrays = problem.graph.arrays
    place = np.full(len(arrays.cost), -1, dtype=np.int64)
    place[ops] = np.arange(len(ops))
    first, last = arrays.lifetimes(place)[0], arrays.consumers.highest(place, -1)
    many = arrays.consumers.sums(np.where(place < 0, 0, 1)) >= MANY
    return first, last, np.flatnonzero((first < len(ops)) & (last - first >= LONG * len(ops)) & many)


def _of_source(step: TrainingStep, source: str) -> Iterator[Sequence[int]]:
    """Yield the cuts of a source, including cuts into one block.

    Raise ProblemError if the graph has no module paths, for the source ``modules``.
    """
    graph, count = step.problem.graph, step.num_forward
    ops = graph.arrays.order[:count]
    if source == "modules":
        yield from by_paths(module_paths(step.problem, ops))
    elif source == "names":
        yield from by_paths([re.split("[./:]", graph.op_names[op])[:-1] for op in ops.tolist()])
        yield from by_paths(name_paths(step.problem, ops))
    elif source == "valleys":
        for number, cuts in enumerate(levels(step.crossing(graph.arrays.size)[: count - 1])):
            if number:  # the first ones are the ops
                yield cuts.tolist()
    elif source == "ops":
        yield range(count)
    else:
        yield articulation_cuts(step.problem, ops)


def all_cuts(step: TrainingStep, source: str) -> list[tuple[int, ...]]:
    """Return the different cuts of a source, the coarsest first.

    Parameters
    ----------
    step : TrainingStep
    source : {"modules", "names", "valleys", "articulation", "ops", "auto"}
        ``"modules"`` and ``"names"``: runs of ops with the same path, for each depth of the module paths in the graph's
        ``meta["modules"]``, or of the names of ops (split at dots, slashes and colons, and by :func:`name_paths`).
        ``"valleys"``: where few bytes cross (:func:`levels`). ``"articulation"``: after articulation points
        (:func:`articulation_cuts`); nothing else crosses there. ``"ops"``: each op is a block. ``"auto"``: all of them,
        but ``"ops"`` only where ops are few or the others find nothing.

    Raises
    ------
    ProblemError
        If the source has no cuts for this graph.
    """
    sources = [source]
    if source == "auto":
        sources = ["valleys", "names"]
        sources += ["modules"] * bool(step.problem.graph.meta.get("modules"))
        sources += ["articulation"] * (step.num_forward <= 2_000)  # in larger graphs a plan takes longer
        sources += ["ops"] * (step.num_forward <= FEW)
    found = {tuple(cuts) for each in sources for cuts in _of_source(step, each) if len(cuts) > 1}
    if not found and source == "auto":
        found = {tuple(range(step.num_forward))}
    if not found:
        raise ProblemError(f"graph {step.problem.graph.name!r} does not fall into blocks by {source}")
    return sorted(found, key=lambda cuts: (len(cuts), cuts))
