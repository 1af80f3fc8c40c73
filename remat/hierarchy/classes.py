"""Canonical forms of groups, and classes of groups with equal forms and similar costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import numpy as np

from remat.hierarchy.groups import Group
from remat.problem import Problem
from remat.runtime.arrays import Int

#: Canonical form of a group without costs: equal for identical groups.
Form = tuple[int, ...]
#: Largest sum of cost differences over all ops, as a share of the group's cost: measured costs are never equal.
COST_TOLERANCE = 0.05


class Classes:
    """Classes of identical groups, built one group at a time.

    A group joins the class of the first representative of its kind (form, and kinds of its children) whose costs are
    near. The differences, op by op, then sum to at most a share of the representative's cost. Thus the costs of a
    schedule that computes no op more than k times differ by at most k times that sum. A group without such a
    representative becomes one. The same sequence of groups gives the same classes.

    `tolerance`: share of the representative's cost; 0: costs are equal.

    Examples
    --------
    >>> from remat import GraphBuilder
    >>> builder = GraphBuilder("four ops")
    >>> for k, cost in enumerate((100, 104, 107, 104)):
    ...     _ = builder.op(str(k), cost=cost, size=1)
    >>> groups = [Group(str(k), np.array([k])) for k in range(4)]
    >>> problem = Problem(builder.build())
    >>> for tolerance in (0, 0.05):
    ...     classes = Classes(problem, tolerance)
    ...     print([classes.of(group)[1].name for group in groups])
    ['0', '1', '2', '1']
    ['0', '0', '2', '0']
    """

    def __init__(self, problem: Problem, tolerance: float = COST_TOLERANCE) -> None:
        self.forms, self.cost, self.tolerance = Forms(problem), problem.graph.arrays.cost, tolerance
        self._found: dict[Hashable, tuple[int, list[Group], Int]] = {}
        """Number of each kind, its representatives, and their costs (one row each)."""

    def of(self, group: Group, inside: Hashable = None) -> tuple[int, Group]:
        """Return the number of a group's kind and the representative of its class, which may be the group itself.

        `inside`: part of the kind that identifies the children.
        """
        kind, cost = (self.forms.of(group), inside), self.cost[group.ops]
        number, known, costs = self._found.get(kind, (len(self._found), [], cost[:0].reshape(0, len(cost))))
        near = np.flatnonzero(np.abs(costs - cost).sum(axis=1) <= self.tolerance * costs.sum(axis=1))
        if len(near):
            return number, known[near[0]]
        self._found[kind] = number, [*known, group], np.vstack([costs, cost])
        return number, group


class Forms:
    """Canonical forms of the groups of one problem, without costs.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> forms = Forms(Problem(unit_chain(6)))
    >>> pairs = [Group(str(k), np.array([k, k + 1]), np.array([11 - k, 12 - k])) for k in (0, 2, 4)]
    >>> [forms.of(pairs[1]) == forms.of(pair) for pair in pairs]
    [False, True, True]
    """

    def __init__(self, problem: Problem) -> None:
        graph, arrays = problem.graph, problem.graph.arrays
        codes: dict[Hashable, int] = {}
        self.op_code = [
            codes.setdefault((op.type, op.phase, op.workspace, op.recomputable, limit), len(codes))
            for op, limit in zip(graph.ops, problem.compute_limits, strict=True)
        ]
        flags = zip(arrays.size.tolist(), arrays.is_input.tolist(), problem.kept.tolist(), strict=True)
        self.tensor_code = [codes.setdefault(("tensor", *each), len(codes)) for each in flags]
        names = graph.tensor_index
        self.inputs = [[names[tensor] for tensor in op.inputs] for op in graph.ops]
        self.outputs = [[names[tensor] for tensor in op.outputs] for op in graph.ops]
        self.readers, self.writers = arrays.consumers.counts.tolist(), arrays.producers.counts.tolist()

    def of(self, group: Group) -> Form:
        """Return the form of a group: numbers of ops, the ops in order, the tensors, and the children."""
        ops = group.ops.tolist()
        read = Counter(tensor for op in ops for tensor in self.inputs[op])
        written = Counter(tensor for op in ops for tensor in self.outputs[op])
        kind = {
            tensor: (
                self.tensor_code[tensor],
                written[tensor] < self.writers[tensor],
                read[tensor] < self.readers[tensor],
                read[tensor],
                written[tensor],
            )
            for tensor in (*read, *written)
        }
        number: dict[int, int] = {}
        form = [len(group.forward), len(group.backward)]

        def listed(tensors: list[int]) -> None:
            """Number tensors in order of first use; new ones are sorted by their kind."""
            for tensor in sorted((t for t in tensors if t not in number), key=kind.__getitem__):
                number[tensor] = len(number)
            form.append(len(tensors))
            form.extend(sorted(map(number.__getitem__, tensors)))

        for op in ops:
            form.append(self.op_code[op])
            listed(self.inputs[op])
            listed(self.outputs[op])
        for tensor in number:
            form.extend(map(int, kind[tensor]))
        if group.children:
            place = {op: k for k, op in enumerate(ops)}
            for child in group.children:
                form.append(-1)
                form.extend(map(place.__getitem__, child.ops.tolist()))
        return tuple(form)
