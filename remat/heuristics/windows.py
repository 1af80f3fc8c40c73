"""Windows: ops of neighbouring groups of a hierarchy, forward and backward ones together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from remat.deadline import Deadline, OverdueError
from remat.errors import ProblemError
from remat.problem import Problem
from remat.registry import make

Int = NDArray[np.int64]

NONE: Int = np.zeros(0, dtype=np.int64)
#: Share of the time left for partitions, and seconds where there is no deadline.
SHARE, ENDLESS = 0.05, 60.0
#: How many times as long partitions that were not done in time are given before they are tried again.
MORE = 1.5


class Grouped(Protocol):
    """What is asked of a group: its ops in the reference order, and the groups in it."""

    @property
    def forward(self) -> Int:
        """Forward ops; in a graph without a backward pass, all ops."""

    @property
    def backward(self) -> Int:
        """Backward ops that belong to them."""

    @property
    def children(self) -> Sequence[Grouped]:
        """Disjoint parts of it."""


class Windows:
    """The ops of a hierarchy in the order of its tree, so that any stretch of it is a set of neighbouring groups.

    The tree is laid out as *units*: groups without groups in them, and ops that stand alone. A window begins with the
    unit of an op and takes in the units beside it, those of the same group before those of the next one, until it has
    the ops that are wanted. Of a unit that is too large it takes a part: a run of the forward ops, and the run of the
    backward ops that mirrors it.

    Parameters
    ----------
    root : group
        All ops of the graph.
    position : int64 array, shape (ops,)
        Of each op in the reference order.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.registry import make
    >>> problem = Problem(unit_chain(6))
    >>> windows = Windows(make("partitioners", "blocks").partition(problem).root, problem.graph.arrays.position)
    >>> windows.around(2, 2, np.random.default_rng(0)).tolist()
    [2, 10]
    """

    def __init__(self, root: Grouped, position: Int) -> None:
        self.units: list[tuple[Int, Int]] = []
        """Forward and backward ops of each unit."""
        self.parted: list[int] = []
        """How deep the group is in which each unit and the next one part."""
        stack: list[tuple[Grouped | tuple[Int, Int], int, int]] = [(root, 0, 0)]
        while stack:
            item, depth, above = stack.pop()
            if isinstance(item, tuple) or not item.children:
                if self.units:
                    self.parted.append(above)
                self.units.append(item if isinstance(item, tuple) else (item.forward, item.backward))
                continue
            inside = _in_order(item, position)
            # The first of them parts from what is before it where the group does.
            stack += [(each, depth + 1, depth if k else above) for k, each in enumerate(inside)][::-1]
        self.unit_of = np.full(len(position), -1, dtype=np.int64)
        for number, ops in enumerate(self.units):
            for part in ops:
                self.unit_of[part] = number

    def around(self, op: int, size: int, rng: np.random.Generator) -> Int:
        """At most `size` ops (as many as that, if the graph has them) around `op`, a position in ``graph.ops``."""
        first = last = int(self.unit_of[op])
        parts = [_piece(self.units[first], size, _place(self.units[first], op))]
        left = size - len(parts[0])
        while left > 0 and (first > 0 or last < len(self.units) - 1):
            before = self.parted[first - 1] if first > 0 else -1
            after = self.parted[last] if last < len(self.units) - 1 else -1
            if after > before or (after == before and rng.random() < 0.5):
                last += 1
                parts.append(_piece(self.units[last], left, 0.0))
            else:
                first -= 1
                parts.append(_piece(self.units[first], left, 1.0))
            left -= len(parts[-1])
        return np.sort(np.concatenate(parts))


@dataclass
class Partitions:
    """The windows of a problem, partitioned when they are first asked for.

    Attributes
    ----------
    names : sequence of str
        Registered partitioners; those that apply to the problem and are done in time make windows. Each has an equal
        share of the time.
    problem : Problem

    Raises
    ------
    RematError
        When called, for a name that is not registered.
    """

    names: Sequence[str]
    problem: Problem
    _found: list[Windows] | None = field(default=None, init=False)
    _tried: float = field(default=0.0, init=False)
    """Seconds that were too few."""

    def __call__(self, deadline: Deadline) -> list[Windows]:
        """The windows; none if no partitioner applies, or none is done in a small share of the time left.

        Where time was too short, it is tried again only with a good deal more of it.
        """
        clock = deadline.share(SHARE, ENDLESS)
        given = clock.remaining
        if self._found is None and given > MORE * self._tried:
            found, late = [], False
            for number, name in enumerate(self.names):
                partitioner = make("partitioners", name)
                try:
                    hierarchy = partitioner.partition(self.problem, clock.share(1 / (len(self.names) - number)))
                except ProblemError:
                    continue
                except OverdueError:
                    late = True
                    continue
                if hierarchy.root.children:
                    found.append(Windows(hierarchy.root, self.problem.graph.arrays.position))
            if found or not late:
                self._found = found
            else:
                self._tried = given
        return self._found or []


def _in_order(group: Grouped, position: Int) -> list[Grouped | tuple[Int, Int]]:
    """The groups in a group by their forward ops, and between them the ops that stand alone, where they are run.

    The backward pass meets the groups in the opposite order.
    """
    children = sorted(group.children, key=lambda c: int(position[(c.forward if len(c.forward) else c.backward)[0]]))
    ranked: list[tuple[float, int, Grouped | tuple[Int, Int]]] = [(float(k), 0, c) for k, c in enumerate(children)]
    for forward in (True, False):
        inside = [child.forward if forward else child.backward for child in children]
        own = np.setdiff1d(group.forward if forward else group.backward, np.concatenate(inside))
        with_ops = np.array([k for k, ops in enumerate(inside) if len(ops)], dtype=np.int64)
        met = position[[int(inside[k][0]) for k in with_ops]]
        gaps = defaultdict(list)
        for op in own[np.argsort(position[own])].tolist():
            at = position[op]
            gaps[1 + int(with_ops[met < at if forward else met > at].max(initial=-1))].append(op)
        for gap, ops in gaps.items():  # between child gap - 1 and child gap, from 0 to 1
            for k, op in enumerate(ops):
                alone, share = np.array([op], dtype=np.int64), (k + 0.5) / len(ops)
                ranked.append((gap - share, 1, (NONE, alone)) if not forward else (gap - 1 + share, 0, (alone, NONE)))
    return [item for _, _, item in sorted(ranked, key=lambda each: each[:2])]


def _place(unit: tuple[Int, Int], op: int) -> float:
    """Where in a unit an op is, from 0 (the first forward op, and the last backward op) to 1."""
    for ops, mirrored in zip(unit, (False, True), strict=True):
        at = np.flatnonzero(ops == op)
        if len(at):
            place = (int(at[0]) + 0.5) / len(ops)
            return 1 - place if mirrored else place
    raise ValueError(f"op {op} is not in the unit")


def _piece(unit: tuple[Int, Int], count: int, place: float) -> Int:
    """At most `count` ops of a unit around a place in it."""
    forward, backward = unit
    size = len(forward) + len(backward)
    if size <= count:
        return np.concatenate(unit)
    ahead = min(len(forward), max(round(count * len(forward) / size), count - len(backward)))
    return np.concatenate([_run(forward, ahead, place), _run(backward, count - ahead, 1 - place)])


def _run(ops: Int, count: int, place: float) -> Int:
    """`count` neighbours of a list, around a place from 0 to 1."""
    first = min(len(ops) - count, max(0, round(place * len(ops) - count / 2)))
    return ops[first : first + count]
