"""Assignment of backward ops to groups of forward ops.

Graphs do not contain this relation. A backward op reads gradients, and values that forward ops read or write. From
the highest level down, it therefore joins the group whose forward ops read or write most bytes of its inputs. Names of
ops and types break ties; remaining ties go to the group that reads the values rather than the one that writes them:
gradients flow from later groups to earlier ones. Backward ops stay alone at the level above if their group could
not run as a whole with them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise

import numpy as np

from remat.hierarchy.groups import NONE, Group
from remat.hierarchy.tree import Hierarchy, components
from remat.problem import Problem
from remat.problem.training_step import TrainingStep, training_step
from remat.runtime.arrays import Bool, Int
from remat.runtime.deadline import Deadline
from remat.schedule.rules import OrderRule

#: Values that more groups than this read or write, such as masks, do not indicate a group.
MAX_TOUCHING = 8

#: Parts of op names and types that mark forward or backward.
_DECORATION = re.compile(r"(?<![A-Za-z])(?:FWD|BWD|fwd|bwd|grad|gradient|forward|backward)(?![A-Za-z])")
#: Backward types whose name differs from that of the forward type.
_ALIASES = {"threshold": "relu", "embedding_dense": "embedding"}
#: Least share of paired backward ops that touch a value of their namesake, for names to count.
_TRUSTED = 0.8


def attach_backward(problem: Problem, groups: list[Group], deadline: Deadline | None = None) -> Hierarchy:
    """Return the hierarchy of forward groups with the backward ops of each.

    `groups`: the highest level, disjoint. Their own backward ops are ignored. Graphs without a backward pass keep these
    groups.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> hierarchy = attach_backward(Problem(unit_chain(4)), [Group("a", np.array([1, 2]))])
    >>> [part.tolist() for part in (hierarchy.root.children[0].backward, hierarchy.root.alone)]
    [[6, 7], [0, 3, 4, 5, 8]]
    """
    deadline = deadline or Deadline()
    graph, order = problem.graph, problem.graph.arrays.order
    step = training_step(problem)
    if step is None:
        return Hierarchy(problem, Group(graph.name, order, NONE, tuple(groups)))
    assignment = _BackwardAssignment(problem, step, deadline)
    home = np.full(len(order), -1, dtype=np.int64)
    home[order] = 0  # the root
    level, parent = groups, np.zeros(len(groups), dtype=np.int64)
    backward: dict[int, Int] = {}
    while level:
        home = assignment.assign(level, parent, home)
        for group, ops in zip(level, assignment.split(home, len(level)), strict=True):
            backward[id(group)] = ops
        parent = np.repeat(np.arange(len(level)), [len(group.children) for group in level])
        level = [child for group in level for child in group.children]

    def completed(group: Group) -> Group:
        return Group(group.name, group.forward, backward[id(group)], tuple(map(completed, group.children)))

    root = Group(graph.name, order[: step.first_backward], order[step.first_backward :], tuple(map(completed, groups)))
    return Hierarchy(problem, root)


def namesakes(problem: Problem, step: TrainingStep) -> dict[int, int]:
    """Return the forward op of each backward op with the same name apart from ``grad``, ``BWD`` and the like.

    Empty if the backward pass mirrors the forward pass, each op reading its image: names are not needed.

    Also empty if names are no evidence: tools number ops of one type in order of creation, and then ``relu_backward_3``
    is unrelated to ``relu_3`` and touches none of its values.
    """
    graph, arrays = problem.graph, problem.graph.arrays
    order = arrays.order
    forward, backward = order[: step.num_forward].tolist(), order[step.first_backward :][::-1].tolist()
    predecessors = arrays.op_predecessors
    if len(forward) == len(backward) and all(f in predecessors[b] for f, b in zip(forward, backward, strict=True)):
        return dict(zip(backward, forward, strict=True))
    by_name: dict[str, list[int]] = defaultdict(list)
    for op in forward:
        by_name[_plain(graph.ops[op].name)].append(op)
    found = {}
    for op in backward:
        same = by_name.get(_plain(graph.ops[op].name), ())
        if len(same) == 1:
            found[op] = same[0]
    reads, writes = arrays.op_inputs, arrays.op_outputs
    known = {tensor for op in forward for tensor in (*reads[op], *writes[op])}
    touches = [
        bool({*reads[b]} & {*reads[f], *writes[f]}) for b, f in found.items() if not known.isdisjoint(reads[b].tolist())
    ]
    return found if touches and sum(touches) >= _TRUSTED * len(touches) else {}


def _plain(name: str) -> str:
    """Return a name without markers of forward or backward, and without punctuation around it."""
    spaced = _DECORATION.sub(" ", name.replace("_", " "))
    return " ".join(re.sub(r"[^\w.]+", " ", spaced).split()).strip(". ")


def type_roots(problem: Problem) -> list[str]:
    """Return the type of each op without markers: the common part of a forward type and its backward type."""
    roots: dict[str, str] = {}
    for op in problem.graph.ops:
        if op.type not in roots:
            parts = op.type.split(".")
            text = parts[1] if len(parts) > 2 and parts[0] == "aten" else parts[0] if parts[0] != "aten" else parts[-1]
            text = "_".join(_DECORATION.sub(" ", text.replace("_", " ")).split())
            roots[op.type] = _ALIASES.get(text, text)
    return [roots[op.type] for op in problem.graph.ops]


class _BackwardAssignment:
    """Assignment of backward ops to groups, level by level."""

    def __init__(self, problem: Problem, step: TrainingStep, deadline: Deadline) -> None:
        arrays = problem.graph.arrays
        self.arrays, self.deadline = arrays, deadline
        self.forward = np.array(arrays.order[: step.num_forward])
        self.backward = np.array(arrays.order[step.first_backward :])
        self.is_forward = np.zeros(len(arrays.order), dtype=np.bool_)
        self.is_forward[self.forward] = True
        self.namesake = namesakes(problem, step)
        self.roots = type_roots(problem)
        self.inputs, self.outputs = arrays.op_inputs.lists(), arrays.op_outputs.lists()
        self.producers, self.consumers = arrays.producers.lists(), arrays.consumers.lists()
        self.predecessors = arrays.op_predecessors.lists()
        self.fixed = problem.order is OrderRule.FIXED
        self.weight, self.position = (arrays.size + 1).tolist(), arrays.position.tolist()

    def split(self, home: Int, count: int) -> list[Int]:
        """Return the backward ops of each group, in the reference order."""
        homes = home[self.backward]
        ranks = np.argsort(homes, kind="stable")
        ends = np.searchsorted(homes[ranks], np.arange(count + 1))
        return [self.backward[ranks[a:b]] for a, b in pairwise(ends)]

    def assign(self, level: list[Group], parent: Int, home: Int) -> Int:
        """Return each op's group, or -1, from the `parent` of each group and the `home` of each op one level up."""
        count = len(home)
        label = np.full(count, -1, dtype=np.int64)
        for number, group in enumerate(level):
            label[group.forward] = number
        # Forward ops in no group are places too, numbered after the groups; their backward ops stay alone.
        shared = np.zeros(int(home.max(initial=0)) + 2, dtype=np.bool_)
        shared[parent] = True
        open_ops = shared[home] & (home >= 0)
        alone = self.is_forward & open_ops & (label < 0)
        label[alone] = len(level) + np.flatnonzero(alone)
        place, homes, is_open = label.tolist(), home.tolist(), open_ops.tolist()
        self.last, self.above = dict[int, int](), dict[int, int]()
        for op in self.forward.tolist():
            if place[op] >= 0:
                self.last[place[op]], self.above[place[op]] = self.position[op], homes[op]
        touching = self._touching(place)
        for op in self.deadline.each(self.backward.tolist()):
            if is_open[op]:
                place[op] = self._place(op, place, homes, touching)
        label = np.array(place, dtype=np.int64)
        label[label >= len(level)] = -1
        return self._repaired(label)

    def _touching(self, label: list[int]) -> list[list[int]]:
        """Return the places whose forward ops read or write each tensor; none if they are too many."""
        touching: list[set[int]] = [set() for _ in self.weight]
        for op in self.forward.tolist():
            if label[op] >= 0:
                for tensor in (*self.inputs[op], *self.outputs[op]):
                    touching[tensor].add(label[op])
        return [sorted(places) if len(places) <= MAX_TOUCHING else [] for places in touching]

    def _place(self, op: int, place: list[int], home: list[int], touching: list[list[int]]) -> int:
        """Return the group of a backward op whose predecessors have been placed.

        `last` and `above` have the position of the last forward op of each place, and the group that it lies in.
        """
        last, above = self.last, self.above
        covered: dict[int, int] = {}
        for tensor in self.inputs[op]:
            for where in touching[tensor]:
                if above[where] == home[op]:
                    covered[where] = covered.get(where, 0) + self.weight[tensor]
        before = [
            place[p]
            for p in self.predecessors[op]
            if not self.is_forward[p] and place[p] in last and home[p] == home[op]
        ]
        earliest = min((last[where] for where in before), default=None)
        allowed = [where for where in covered if earliest is None or last[where] <= earliest]
        if not allowed:
            named = place[self.namesake[op]] if op in self.namesake else -1
            if above.get(named) == home[op] and (earliest is None or last[named] <= earliest):
                return named
            return min(before, key=lambda where: last[where], default=-1)
        most = max(covered[where] for where in allowed)
        best = [where for where in allowed if covered[where] == most]
        if len(best) > 1:
            best = self._by_name(op, best, place) or best
        return max(best, key=lambda where: last[where])

    def _by_name(self, op: int, places: list[int], place: list[int]) -> list[int]:
        """Return the places that names of ops or types indicate."""
        if op in self.namesake:
            return [where for where in places if where == place[self.namesake[op]]]
        root = self.roots[op]
        if len(root) < 3:
            return []
        near = {f for t in self.inputs[op] for f in (*self.producers[t], *self.consumers[t]) if self.is_forward[f]}
        return [where for where in places if any(place[f] == where and root in self.roots[f] for f in near)]

    def _repaired(self, label: Int) -> Int:
        """Return the labels with -1 for backward ops that must stand alone; in a fixed order, each label is a run."""
        label = label.copy()
        if self.fixed:
            label[self.backward] = contiguous(label[self.backward])
            return label
        count = len(label)
        nodes = np.where(label < 0, np.arange(count), count + 2 * label + ~self.is_forward)
        keep = largest_acyclic(nodes, self.arrays.order, self.arrays.edge_producer, self.arrays.edge_consumer)
        label[~keep & ~self.is_forward] = -1
        return label


def contiguous(labels: Int) -> Int:
    """Change the labels of a sequence so that each is contiguous; -1 is no label.

    Keep the longest run of each label. The gap between two such runs is cut where most of its labels agree with the run
    on their side. A label there extends as far as its last agreeing place; the rest gets no label.

    Examples
    --------
    >>> contiguous(np.array([5, 5, 5, 7, 5, 7, 7, 7, 3, 7, 3, 3])).tolist()
    [5, 5, 5, 7, 7, 7, 7, 7, 3, 3, 3, 3]
    >>> contiguous(np.array([5, 5, 7, 7, 5, 3, 3])).tolist()
    [5, 5, 7, 7, -1, 3, 3]
    """
    if not len(labels):
        return labels.copy()
    starts = np.flatnonzero(np.diff(labels, prepend=-2))
    ends = np.append(starts[1:], len(labels))
    longest: dict[int, tuple[int, int]] = {}
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        label = int(labels[start])
        if label >= 0 and end - start > longest.get(label, (0, 0))[0]:
            longest[label] = (end - start, start)
    found = np.full(len(labels), -1, dtype=np.int64)
    last, last_end = -1, 0
    for length, start in [*sorted(longest.values(), key=lambda run: run[1]), (0, len(labels))]:
        label = int(labels[start]) if length else -1
        between = labels[last_end:start]
        mine, next_ones = (between == last) & (last >= 0), (between == label) & (label >= 0)
        agree = np.append(0, np.cumsum(mine)) + np.append(np.cumsum(next_ones[::-1])[::-1], 0)
        cut = int(agree.argmax())
        before, after = np.flatnonzero(mine[:cut]), np.flatnonzero(next_ones[cut:])
        if len(before):
            found[last_end : last_end + int(before[-1]) + 1] = last
        if len(after):
            found[last_end + cut + int(after[0]) : start] = label
        found[start : start + length] = label
        last, last_end = label, start + length
    return found


def largest_acyclic(labels: Int, order: Int, tails: Int, heads: Int) -> Bool:
    """Return the ops that may stay in their part so that parts and removed ops form an acyclic graph.

    Within each strongly connected component of parts, count the changes of part along the longest path to each op. Ops
    of one part and one count can be one node, since every edge between two such sets leads to a higher count. The
    largest set of each part stays. Linear in ops and dependencies.

    Parameters
    ----------
    labels : int64 array, shape (ops,)
        Part of each op.
    order : int64 array
        Topological order of ops; other ops in `labels` are ignored.
    tails, heads : int64 arrays
        Dependencies as pairs of ops; pairs may repeat.

    Returns
    -------
    bool array, shape (ops,)

    Examples
    --------
    Ops 0 and 2 in one part, with op 1 on a path between them:

    >>> largest_acyclic(np.array([7, 1, 7, 7]), np.arange(4), np.arange(3), np.arange(1, 4)).tolist()
    [False, True, True, True]
    """
    keep = np.ones(len(labels), dtype=np.bool_)
    component = components(labels, tails, heads)
    lowest = np.full(int(component.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(lowest, component, labels)
    mixed = np.zeros(len(lowest), dtype=np.bool_)
    mixed[component[lowest[component] != labels]] = True
    cyclic = mixed[component]
    if not cyclic.any():
        return keep
    part, inside = labels.tolist(), cyclic.tolist()
    before: dict[int, list[int]] = defaultdict(list)
    within = cyclic[heads] & (component[tails] == component[heads])
    for tail, head in zip(tails[within].tolist(), heads[within].tolist(), strict=True):
        before[head].append(tail)
    changes = [0] * len(part)
    sets: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op in order.tolist():
        if inside[op]:
            changes[op] = max((changes[b] + (part[b] != part[op]) for b in before[op]), default=0)
            sets[part[op], changes[op]].append(op)
    largest: dict[int, tuple[int, int]] = {}
    for key, ops in sets.items():
        if key[0] not in largest or len(ops) > len(sets[largest[key[0]]]):
            largest[key[0]] = key
    for key, ops in sets.items():
        if largest[key[0]] != key:
            keep[ops] = False
    return keep
