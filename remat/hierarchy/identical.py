"""Classes of identical groups, and translation of schedules between their members."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from remat.errors import ProblemError
from remat.hierarchy.classes import COST_TOLERANCE, Classes
from remat.hierarchy.groups import Group
from remat.hierarchy.tree import Hierarchy
from remat.runtime.arrays import Int


@dataclass(frozen=True, eq=False)
class GroupClass:
    """Identical groups."""

    representative: Group
    """First group; the costs of the others are within the tolerance."""
    members: tuple[Group, ...]
    """All groups, the representative included."""

    def __len__(self) -> int:
        return len(self.members)


def identical_groups(hierarchy: Hierarchy, tolerance: float = COST_TOLERANCE) -> list[GroupClass]:
    """Return the classes of identical groups of a hierarchy, the root included, children first.

    Two groups are identical if their canonical forms are equal. The form lists, op by op in the reference order, the
    type, phase, workspace, limit of computes and recomputability, and the tensors that the op reads and writes. Of each
    tensor it has the size and four flags: graph input, graph output, written outside, read outside. It also has the
    positions of the children. Equal forms are therefore an isomorphism. A hash table of the forms takes time
    proportional to the ops and dependencies of each level.

    Costs agree up to a tolerance (:class:`~remat.hierarchy.classes.Classes`).

    `tolerance`: share of the representative's cost; 0: costs are equal.

    Examples
    --------
    >>> from remat.graphs.zoo.transformers import gpt
    >>> from remat.hierarchy.partition.modules import Modules
    >>> from remat.problem import Problem
    >>> hierarchy = Modules().partition(Problem(gpt(layers=12)))
    >>> [(each.representative.name, len(each)) for each in identical_groups(hierarchy)][:4]
    [('embedding', 1), ('layers.0.attn', 12), ('layers.0.mlp', 12), ('layers.0', 12)]
    """
    classes = Classes(hierarchy.problem, tolerance)
    found: dict[int, list[Group]] = {}
    for group in hierarchy.groups():
        found.setdefault(id(classes.of(group)[1]), []).append(group)
    return [GroupClass(members[0], tuple(members)) for members in found.values()]


def translate(ops: Iterable[int], source: Group, target: Group) -> Int:
    """Translate ops of one group to the ops at the same positions in another group of its class.

    Raise ProblemError if the groups differ in their numbers of ops, or an op is not in `source`.

    Examples
    --------
    >>> translate([3, 2, 9], Group("a", np.array([2, 3]), np.array([9])), Group("b", np.array([4, 5]), np.array([7])))
    array([5, 4, 7])
    """
    if (len(source.forward), len(source.backward)) != (len(target.forward), len(target.backward)):
        raise ProblemError(f"group {target.name!r} has other numbers of ops than group {source.name!r}", "other-group")
    wanted = np.array(list(ops), dtype=np.int64)
    order = np.argsort(source.ops)
    place = np.searchsorted(source.ops, wanted, sorter=order)
    known = place < len(order)
    known[known] = source.ops[order[place[known]]] == wanted[known]
    if not known.all():
        raise ProblemError(f"op number {int(wanted[~known][0])} is not in group {source.name!r}", "not-in-group")
    return target.ops[order[place]]
