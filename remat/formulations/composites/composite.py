"""Groups of ops as single nodes with options, the input of hierarchical formulations.

A *composite* is a group of ops that is scheduled as a whole, in one of several ways, its *options*. A composite of a
training graph has two nodes, its forward and its backward part, which form a *layer*. An option gives the sequence of
ops of each part. This determines the memory saved in between (the *phantom*), the tensors that cross the group's border
(its *interfaces*) and that each part needs, and the memory at each sub-step.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from remat.errors import ProblemError
from remat.formulations.composites.runs import Border, Run, make_run
from remat.formulations.staging import ComputeLimits
from remat.graphs.arrays import Csr, GraphArrays
from remat.modeling.rows import expand
from remat.problem import Problem
from remat.runtime.arrays import Bool, Int
from remat.schedule import OrderRule

if TYPE_CHECKING:
    from pydantic_core import CoreSchema


def numbers() -> CoreSchema:
    """Return the schema of a list of op numbers."""
    from pydantic_core import core_schema

    return core_schema.list_schema(core_schema.int_schema(ge=0))


def table_schema(kind: type, make: Callable[..., Any], required: dict[str, Any], other: dict[str, Any]) -> CoreSchema:
    """Return the schema of a class whose objects are tables with these keys; `make` builds one from a table."""
    from pydantic_core import core_schema

    fields = {key: core_schema.typed_dict_field(schema) for key, schema in required.items()}
    fields |= {key: core_schema.typed_dict_field(schema, required=False) for key, schema in other.items()}
    table = core_schema.typed_dict_schema(fields, extra_behavior="forbid")
    return core_schema.json_or_python_schema(
        core_schema.no_info_after_validator_function(lambda given: make(**given), table),
        core_schema.is_instance_schema(kind),
    )


NOTHING: Int = np.zeros(0, dtype=np.int64)


def _ops(given: ArrayLike) -> Int:
    ops = np.array(given, dtype=np.int64).ravel()
    ops.flags.writeable = False
    return ops


@dataclass(frozen=True, eq=False)
class Option:
    """One way to run a group.

    Attributes
    ----------
    forward : int64 array, shape (computes,)
        Ops of the flat graph, by number, in the sequence in which the forward part computes them; an op may occur
        several times. Frees are implied.
    backward : int64 array, or None
        The same for the backward part, which may recompute forward ops. None: the group has no backward part, or the
        backward part cannot run after this forward part, which saves nothing (*fast-forward*).
    name : str
        Name in messages.

    Examples
    --------
    >>> Option([0, 1], [1, 3, 2])
    Option(2 computes forward, 3 backward)
    """

    forward: Int
    backward: Int | None = None
    name: str = ""

    def __init__(self, forward: ArrayLike, backward: ArrayLike | None = None, name: str = "") -> None:
        object.__setattr__(self, "forward", _ops(forward))
        object.__setattr__(self, "backward", None if backward is None else _ops(backward))
        object.__setattr__(self, "name", name)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> object:
        backward = {"type": "nullable", "schema": numbers()}
        return table_schema(cls, cls, {"forward": numbers()}, {"backward": backward, "name": {"type": "str"}})

    def __repr__(self) -> str:
        back = "fast-forward" if self.backward is None else f"{len(self.backward)} backward"
        return f"Option({len(self.forward)} computes forward, {back})"


@dataclass(frozen=True, eq=False)
class Composite:
    """Group of ops that runs as a whole."""

    name: str
    forward: Int
    backward: Int
    """Empty if the graph or the group has no backward part; ops by number, as in `forward`."""
    options: tuple[Option, ...]
    """At least one; if the group has a backward part, at least one with a backward part."""

    def __init__(self, name: str, forward: ArrayLike, backward: ArrayLike = (), options: Iterable[Option] = ()) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "forward", _ops(forward))
        object.__setattr__(self, "backward", _ops(backward))
        object.__setattr__(self, "options", tuple(options))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> object:
        options = {"type": "list", "items_schema": Option.__get_pydantic_core_schema__(Option, handler)}
        required = {"name": {"type": "str"}, "forward": numbers(), "options": options}
        return table_schema(cls, cls, required, {"backward": numbers()})

    def __repr__(self) -> str:
        return f"Composite({self.name!r}, {len(self.forward)} + {len(self.backward)} ops, {len(self.options)} options)"


@dataclass(frozen=True, eq=False)
class Node:
    """Unit of computation: a single op, or one part of a composite."""

    name: str
    composite: int
    """-1: a single op."""
    is_backward: bool
    ops: Int
    """Ops whose outputs it makes for other nodes."""


@dataclass(frozen=True, eq=False)
class CompositeProblem:
    """Problem with composites; every other op is a node with a single option.

    Raise ProblemError if an op does not exist or is in two composites, or if groups depend on each other both ways.
    Raise it too if the problem fixes the reference order and a group is not contiguous in it. An option is refused if
    it lacks an op of its group, has an op of another, or reads an input that is not available.

    Attributes
    ----------
    nodes : tuple of Node
        In a topological order, that of the reference order if the groups allow it.
    layers : tuple of (int, int)
        Forward and backward node of each composite that has both.
    data : int64 array
        Tensors of the flat graph that cross between nodes or are kept. All others are inside a node, inside a layer
        (phantoms), or graph inputs, which are always live.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> graph = unit_chain(4)  # f0 f1 f2 f3 loss g3 g2 g1 g0
    >>> save, forget = Option([1, 2], [6, 7]), Option([1, 2], [1, 2, 6, 7])
    >>> middle = Composite("middle", [1, 2], [6, 7], [save, forget, Option([1, 2])])
    >>> whole = CompositeProblem(Problem(graph, 5), [middle])
    >>> [node.name for node in whole.nodes]
    ['f0', 'middle', 'f3', 'loss', 'g3', 'middle backward', 'g0']
    >>> [[run.saved for run in whole.runs(1)], [run.cost for run in whole.runs(5)]]
    [[1, 0, 0], [2, 4]]
    """

    problem: Problem
    composites: Sequence[Composite] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "composites", tuple(self.composites))
        self._check_members()
        self.nodes  # noqa: B018  (detects cycles)
        for number in range(len(self.composites)):
            self._composite_runs[number]
        self._check_order()

    @property
    def arrays(self) -> GraphArrays:
        """Arrays of the flat graph."""
        return self.problem.graph.arrays

    def _check_members(self) -> None:
        n = len(self.arrays.cost)
        seen = np.full(n, -1, dtype=np.int64)
        for number, each in enumerate(self.composites):
            members = np.concatenate([each.forward, each.backward])
            parts = [members, *(part for o in each.options for part in (o.forward, o.backward) if part is not None)]
            named = np.concatenate(parts)
            if len(named) and not (named.min() >= 0 and named.max() < n):
                raise ProblemError(
                    f"composite {each.name!r} has an op outside 0..{n - 1}, the ops of the graph", "composite"
                )
            if not len(each.forward):
                raise ProblemError(f"composite {each.name!r} has no forward ops", "composite")
            for op in members.tolist():
                if seen[op] >= 0:
                    other = self.composites[int(seen[op])].name
                    raise ProblemError(
                        f"op {self._name(op)!r} is in composite {other!r} and in {each.name!r}", "composite"
                    )
                seen[op] = number
            if not each.options:
                raise ProblemError(f"composite {each.name!r} has no options", "composite")

    def _name(self, op: int) -> str:
        return self.problem.graph.op_names[op]

    @cached_property
    def _parts(self) -> tuple[list[Node], Int]:
        """Nodes before ordering, composites' parts, then single ops; and the node of each op."""
        n = len(self.arrays.cost)
        nodes: list[Node] = []
        node_of = np.full(n, -1, dtype=np.int64)
        for number, each in enumerate(self.composites):
            for ops, back in ((each.forward, False), (each.backward, True)):
                if len(ops):
                    node_of[ops] = len(nodes)
                    nodes.append(Node(each.name + " backward" * back, number, back, ops))
        for op in np.flatnonzero(node_of < 0).tolist():
            node_of[op] = len(nodes)
            nodes.append(Node(self._name(op), -1, False, np.array([op], dtype=np.int64)))
        return nodes, node_of

    @cached_property
    def _order(self) -> Int:
        """Topological order of the parts: among those that are ready, the first in the reference order is next."""
        nodes, node_of = self._parts
        arrays = self.arrays
        tied = [(int(node_of[c.forward[0]]), int(node_of[c.backward[0]])) for c in self.composites if len(c.backward)]
        ties = np.array(tied, dtype=np.int64).reshape(-1, 2)
        before = np.concatenate([node_of[arrays.edge_producer], ties[:, 0]])
        after = np.concatenate([node_of[arrays.edge_consumer], ties[:, 1]])
        keys = np.unique((before * len(nodes) + after)[before != after])
        before, after = keys // len(nodes), keys % len(nodes)
        follow = Csr.from_pairs(before, after, len(nodes)).lists()
        waits = np.bincount(after, minlength=len(nodes)).tolist()
        begin = np.full(len(nodes), len(arrays.cost), dtype=np.int64)
        np.minimum.at(begin, node_of, arrays.position)
        ready = [(int(begin[k]), k) for k in range(len(nodes)) if not waits[k]]
        heapq.heapify(ready)
        order = []
        while ready:
            _, k = heapq.heappop(ready)
            order.append(k)
            for later in follow[k]:
                waits[later] -= 1
                if not waits[later]:
                    heapq.heappush(ready, (int(begin[later]), later))
        if len(order) < len(nodes):
            stuck = [nodes[k].name for k in range(len(nodes)) if waits[k] and nodes[k].composite >= 0]
            raise ProblemError(
                f"composites depend on each other both ways, or on an op between: {', '.join(stuck)}", "composite"
            )
        return np.array(order, dtype=np.int64)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        parts, _ = self._parts
        return tuple(parts[k] for k in self._order.tolist())

    @cached_property
    def node_of(self) -> Int:
        """Node of each op; shape (ops,)."""
        place = np.empty(len(self._order), dtype=np.int64)
        place[self._order] = np.arange(len(self._order))
        return place[self._parts[1]]

    @cached_property
    def layers(self) -> tuple[tuple[int, int], ...]:
        return tuple(
            (int(self.node_of[each.forward[0]]), int(self.node_of[each.backward[0]]))
            for each in self.composites if len(each.backward)
        )  # fmt: skip

    def _check_order(self) -> None:
        """Require, with a fixed order, that the first computes of the nodes in order are the reference order."""
        if self.problem.order is not OrderRule.FIXED or not self.composites:
            return
        for number, each in enumerate(self.composites):
            for ops, back in ((each.forward, False), (each.backward, True)):
                position = np.sort(self.arrays.position[ops])
                if len(ops) and position[-1] - position[0] >= len(ops):
                    raise ProblemError(
                        f"composite {each.name!r} is not together in the reference order; ask for order 'free'",
                        "order-rule",
                    )
                for option, run in enumerate(self._composite_runs[number][back]):
                    first = run.ops[np.sort(np.unique(run.ops, return_index=True)[1])]
                    mine = self.arrays.position[first[np.isin(first, ops)]]
                    if len(mine) < len(ops) or (np.diff(mine) < 0).any():
                        raise ProblemError(
                            f"option {option} of composite {each.name!r} leaves the reference order; "
                            "ask for order 'free'",
                            "order-rule",
                        )

    @cached_property
    def border(self) -> Border:
        """Tensors inside composites, and tensors that are live only while they are written."""
        arrays = self.arrays
        n = len(arrays.cost)
        group = n + np.arange(n, dtype=np.int64)
        for number, each in enumerate(self.composites):
            group[each.forward] = group[each.backward] = number
        low, high = np.full(len(arrays.size), 3 * n, dtype=np.int64), np.full(len(arrays.size), -1, dtype=np.int64)
        for table in (arrays.producers, arrays.consumers):
            np.minimum.at(low, table.rows, group[table.indices])
            np.maximum.at(high, table.rows, group[table.indices])
        kept = self.problem.kept
        passing = (arrays.consumers.counts == 0) & ~kept & ~arrays.is_input
        return Border(self.problem.graph, (low == high) & ~kept & ~arrays.is_input & ~passing, passing)

    @cached_property
    def data(self) -> Int:
        border = self.border
        return np.flatnonzero(~border.internal & ~border.passing & ~self.arrays.is_input)

    def runs(self, node: int) -> tuple[Run, ...]:
        """Return the runs of a node, one for each of its options."""
        this = self.nodes[node]
        if this.composite >= 0:
            return self._composite_runs[this.composite][this.is_backward]
        op = int(this.ops[0])
        if op not in self._runs_alone:
            self._runs_alone[op] = (self._alone(op),)
        return self._runs_alone[op]

    @cached_property
    def _runs_alone(self) -> dict[int, tuple[Run, ...]]:
        """Cache of the runs of single ops, which are built on demand, in 0.1 ms each."""
        return {}

    @cached_property
    def most_runs(self) -> Int:
        """Largest number of runs of each node within the limits of computes, shape (nodes,); -1: no limit."""
        limits = self.problem.compute_limits
        found = []
        for node in range(len(self.nodes)):
            ops = self.nodes[node].ops
            least = np.minimum.reduce([(ops[:, None] == run.ops).sum(axis=1) for run in self.runs(node)])
            own = ((limits[op], times) for op, times in zip(ops.tolist(), least.tolist(), strict=True))
            most = (max(1, limit // times) for limit, times in own if limit is not None and times)
            found.append(min(most, default=-1))
        return np.array(found, dtype=np.int64)

    @cached_property
    def compute_limits(self) -> ComputeLimits:
        """Limits of computes of ops; ops that every run computes equally often share the lowest of their limits."""
        limits = self.problem.compute_limits
        computes: dict[int, list[tuple[int, int]]] = {}
        for number, run in enumerate(run for node in range(len(self.nodes)) for run in self.runs(node)):
            ops, counts = np.unique(run.ops, return_counts=True)
            for op, times in zip(ops.tolist(), counts.tolist(), strict=True):
                computes.setdefault(op, []).append((number, times))
        least: dict[tuple[tuple[int, int], ...], int] = {}
        for op, found in computes.items():
            if (limit := limits[op]) is not None:
                least[tuple(found)] = min(limit, least.get(tuple(found), limit))
        row, _ = expand([len(found) for found in least])
        pairs = np.array([pair for found in least for pair in found], dtype=np.int64).reshape(-1, 2)
        return ComputeLimits(row, pairs[:, 0], pairs[:, 1], np.array(list(least.values()), dtype=np.int64))

    def _alone(self, op: int) -> Run:
        arrays, border = self.arrays, self.border
        reads, writes = arrays.op_inputs[op], arrays.op_outputs[op]
        reads, passes = reads[~arrays.is_input[reads]], border.passing[writes]
        held = int(arrays.workspace[op] + arrays.size[writes[passes]].sum())
        tensor = np.union1d(reads, writes[~passes])
        return Run(
            option=0, ops=np.array([op], dtype=np.int64), cost=int(arrays.cost[op]),
            memory=np.array([held], dtype=np.int64), phantom=NOTHING, saved=0, tensor=tensor,
            needs=np.isin(tensor, reads), makes=np.isin(tensor, writes), last=np.zeros(len(tensor), dtype=np.int64),
            absent_tensor=NOTHING, absent_from=NOTHING, absent_until=NOTHING,
        )  # fmt: skip

    @cached_property
    def _composite_runs(self) -> list[tuple[tuple[Run, ...], tuple[Run, ...]]]:
        """Forward and backward runs of each composite."""
        return [self._runs_of(number) for number in range(len(self.composites))]

    def _runs_of(self, number: int) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        each, border = self.composites[number], self.border
        ahead, back = self._mask(each.forward), self._mask(each.backward)
        forward, backward = [], []
        for place, option in enumerate(each.options):
            who = f"option {option.name or place!r} of composite {each.name!r}"
            self._check_option(option, ahead, back, who)
            saved = NOTHING
            if option.backward is not None:
                run, saved = make_run(
                    border, option.backward, back, option=place, saved=NOTHING, taken=None, who=f"{who}, backward,"
                )
                backward.append(run)
                made = np.unique(np.concatenate([self.arrays.op_outputs[op] for op in option.forward.tolist()]))
                lost = np.setdiff1d(saved, made)
                if len(lost):
                    name = self.problem.graph.tensors[int(lost[0])].name
                    raise ProblemError(
                        f"{who} reads tensor {name!r} backward, which its forward part does not make", "composite"
                    )
            forward.append(
                make_run(border, option.forward, ahead, option=place, saved=saved, taken=NOTHING, who=who)[0]
            )
        if len(each.backward) and not backward:
            raise ProblemError(f"no option of composite {each.name!r} has a backward part", "composite")
        return tuple(forward), tuple(backward)

    def _mask(self, ops: Int) -> Bool:
        """Return a mask of ops of the graph."""
        mask = np.zeros(len(self.arrays.cost), dtype=np.bool_)
        mask[ops] = True
        return mask

    def _check_option(self, option: Option, ahead: Bool, back: Bool, who: str) -> None:
        """Require that each part computes only ops of the group, and all that it must."""
        arrays, border = self.arrays, self.border
        foreign = option.forward[~ahead[option.forward]]
        if option.backward is not None:
            if not back.any():
                raise ProblemError(f"{who} has a backward part, the composite has none", "composite")
            foreign = np.concatenate([foreign, option.backward[~(ahead | back)[option.backward]]])
        if len(foreign):
            raise ProblemError(
                f"{who} computes op {self._name(int(foreign[0]))!r}, which is none of its own", "composite"
            )
        given = self._mask(option.forward)
        crosses = ~border.internal & ~border.passing
        handed = self._mask(arrays.op_outputs.rows[crosses[arrays.op_outputs.indices]])
        needed = ahead & ~given & (handed | ~back.any())
        if option.backward is not None:
            later = self._mask(option.backward)
            needed |= (ahead & ~given | back) & ~later
        if needed.any():
            raise ProblemError(f"{who} does not compute op {self._name(int(needed.argmax()))!r}", "composite")
