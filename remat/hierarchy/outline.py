"""Indented table of nested groups, and figures of a hierarchy."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from remat.hierarchy.classes import COST_TOLERANCE, Classes
from remat.hierarchy.groups import Group, interface
from remat.problem import Problem
from remat.runtime.text import aligned

#: Largest number of lines of an outline; further lines are only counted.
MAX_LINES = 60


def figures(problem: Problem, root: Group, tolerance: float = COST_TOLERANCE) -> dict[str, int]:
    """Return the figures of HiRemate's Table 3(b) for a hierarchy's root.

    `depth` counts the levels, the whole graph included; `groups` and `unique_groups` leave it out. `largest_group` has
    the most nodes in its forward part: ops, and groups of the level below.

    `tolerance`: share by which costs of identical groups may differ, as in :func:`remat.hierarchy.identical_groups`.

    Examples
    --------
    >>> from remat.graphs.zoo.transformers import gpt
    >>> from remat.hierarchy.partition.modules import Modules
    >>> problem = Problem(gpt(layers=12))
    >>> figures(problem, Modules().partition(problem).root)
    {'depth': 4, 'groups': 39, 'unique_groups': 6, 'largest_group': 12}
    """
    nodes = [
        len(group.children) + len(np.setdiff1d(group.alone, group.backward))
        for group in root.walk() if group is not root
    ]  # fmt: skip
    return {
        "depth": root.height,
        "groups": len(nodes),
        "unique_groups": len(set(_representatives(problem, root, tolerance).values())) - 1,
        "largest_group": max(nodes, default=0),
    }


def outline(problem: Problem, root: Group, tolerance: float = COST_TOLERANCE) -> str:
    """Return the tree with ops (forward and backward), and bytes that forward ops of a group read and export.

    Identical neighbours (:mod:`remat.hierarchy.identical`) share a line. Values that only the group's own backward ops
    read are not exported.

    `tolerance`: share by which costs of identical groups may differ, as in :func:`remat.hierarchy.identical_groups`.

    Examples
    --------
    >>> import numpy as np
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem import Problem
    >>> problem = Problem(unit_chain(4))
    >>> parts = [Group("a", np.array([0, 1]), np.array([7, 8])), Group("b", np.array([2, 3]), np.array([5, 6]))]
    >>> root = Group("unit-chain-4", np.arange(5), np.arange(5, 9), tuple(parts))
    >>> print(outline(problem, root))
    group           ops  bytes in  bytes out
    unit-chain-4    5+4         0          0
      a             2+2         0          1
      b             2+2         1          1
      1 forward op
    """
    figures = {id(part): _bytes(problem, part) for part in root.walk()}
    kind = _representatives(problem, root, tolerance)
    lines: list[tuple[str, str, str, str]] = []
    stack: list[tuple[Group | str, int, int]] = [(root, 1, 0)]
    while stack:
        group, count, level = stack.pop()
        indent = "  " * level
        if isinstance(group, str):
            lines.append((indent + group, "", "", ""))
            continue
        name = f"{group.name} × {count}" if count > 1 else group.name
        ops = f"{len(group.forward)}+{len(group.backward)}" if len(group.backward) else f"{len(group.forward)}"
        bytes_in, bytes_out = figures[id(group)]
        lines.append((indent + name, ops, f"{bytes_in:,}", f"{bytes_out:,}"))
        below: list[tuple[Group | str, int, int]] = []
        for _, run in groupby(group.children, key=lambda child: kind[id(child)]):
            members = list(run)
            below.append((members[0], len(members), level + 1))
        if group.children and len(group.alone):
            below.append((_alone(group), 1, level + 1))
        stack.extend(reversed(below))
    text = aligned([("group", "ops", "bytes in", "bytes out"), *lines[:MAX_LINES]], right=range(1, 4))
    if len(lines) > MAX_LINES:
        text.append(f"... and {len(lines) - MAX_LINES} more lines")
    return "\n".join(text)


def _representatives(problem: Problem, root: Group, tolerance: float) -> dict[int, int]:
    """Return the identity of the representative of each group's class, by the identity of the group."""
    classes = Classes(problem, tolerance)
    return {id(group): id(classes.of(group)[1]) for group in root.walk()}


def _bytes(problem: Problem, group: Group) -> tuple[int, int]:
    size = problem.graph.arrays.size
    forward = interface(problem, group.forward)
    whole = interface(problem, group.ops) if len(group.backward) else forward
    return int(size[forward.inputs].sum()), int(size[np.intersect1d(forward.outputs, whole.outputs)].sum())


def _alone(group: Group) -> str:
    backward = len(group.backward) - sum(len(child.backward) for child in group.children)
    forward = len(group.alone) - backward
    counts = [f"{n} {what}" for n, what in ((forward, "forward"), (backward, "backward")) if n]
    if not len(group.backward):
        counts = [str(forward)]
    return f"{' and '.join(counts)} op{'s' * (forward + backward > 1)}"
