"""Groups of ops within groups, and the tensors that cross the border of a set of ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from remat.graphs.arrays import Csr
from remat.problem import Problem
from remat.runtime.arrays import Bool, Int

NONE: Int = np.zeros(0, dtype=np.int64)
NONE.flags.writeable = False


@dataclass(frozen=True, eq=False)
class Group:
    """Convex set of forward ops, and convex set of backward ops that belong to them.

    Ops are positions in ``graph.ops``, listed in the reference order. An op in no child stands alone in this group.

    Parameters
    ----------
    name : str
        For display; need not be unique.
    forward : int64 array, shape (forward ops,)
        All forward ops of the group, including those of its children; all ops in a graph without a backward pass.
    backward : int64 array, shape (backward ops,)
        Empty in graphs without a backward pass, and for groups without backward ops.
    children : tuple of Group
        Disjoint parts of this group; a group without children is a leaf of the tree.

    Examples
    --------
    >>> inner = Group("b", np.array([1, 2]))
    >>> outer = Group("a", np.array([0, 1, 2, 3]), children=(inner,))
    >>> outer.alone.tolist(), outer.height, [group.name for group in outer.walk()]
    ([0, 3], 2, ['b', 'a'])
    """

    name: str
    forward: Int
    backward: Int = field(default_factory=lambda: NONE)
    children: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        for part in ("forward", "backward"):
            ops = np.array(getattr(self, part), dtype=np.int64).reshape(-1)
            ops.flags.writeable = False
            object.__setattr__(self, part, ops)
        object.__setattr__(self, "children", tuple(self.children))

    @cached_property
    def ops(self) -> Int:
        """All ops, forward before backward."""
        return np.concatenate([self.forward, self.backward])

    @property
    def num_ops(self) -> int:
        """Number of ops, including those of the children."""
        return len(self.forward) + len(self.backward)

    @cached_property
    def alone(self) -> Int:
        """Ops in no child, forward before backward."""
        if not self.children:
            return self.ops
        return self.ops[~np.isin(self.ops, np.concatenate([child.ops for child in self.children]))]

    @cached_property
    def height(self) -> int:
        """Number of levels from this group to the lowest one below it: 1 for a leaf."""
        heights: dict[int, int] = {}
        for group in self.walk():
            heights[id(group)] = 1 + max((heights[id(child)] for child in group.children), default=0)
        return heights[id(self)]

    def walk(self) -> Iterator[Group]:
        """Yield the group and all groups below it, children before their parent."""
        stack = [(self, False)]
        while stack:
            group, ready = stack.pop()
            if ready or not group.children:
                yield group
            else:
                stack.append((group, True))
                stack.extend((child, False) for child in reversed(group.children))

    def __repr__(self) -> str:
        counts = f"{len(self.forward)}+{len(self.backward)} ops" if len(self.backward) else f"{len(self.forward)} ops"
        return f"Group({self.name!r}, {counts}" + (f", {len(self.children)} children)" if self.children else ")")


@dataclass(frozen=True, eq=False)
class Interface:
    """Tensors that cross the border of a set of ops, as positions in ``graph.tensors``, ascending."""

    inputs: Int
    """Read inside, and graph inputs or written at least in part outside."""
    outputs: Int
    """Written inside, and graph outputs or read or also written outside."""


def interface(problem: Problem, ops: Int) -> Interface:
    """Return the tensors that cross the border of `ops`; linear in their inputs, outputs and neighbours.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(3))
    >>> border = interface(problem, np.array([1, 2]))
    >>> [problem.graph.tensors[tensor].name for tensor in [*border.inputs, *border.outputs]]
    ['f0', 'f1', 'f2']
    """
    arrays = problem.graph.arrays
    inside = np.zeros(len(arrays.cost), dtype=np.bool_)
    inside[ops] = True
    read, written = (np.unique(table.indices[table.entries(ops)[1]]) for table in (arrays.op_inputs, arrays.op_outputs))

    def outside(table: Csr, tensors: Int) -> Bool:
        """Return a flag per tensor: an op of the table is outside."""
        owner, entry = table.entries(tensors)
        return np.bincount(owner, weights=~inside[table.indices[entry]], minlength=len(tensors)) > 0

    foreign = arrays.is_input[read] | outside(arrays.producers, read)
    leaves = problem.kept[written] | outside(arrays.consumers, written) | outside(arrays.producers, written)
    return Interface(read[foreign], written[leaves])
