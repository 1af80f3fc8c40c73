"""A group of ops as a separate problem for any method, and its schedules as options of the group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from remat.errors import ProblemError
from remat.formulations.composites import Option
from remat.graphs import ComputeGraph, Op, Tensor
from remat.hierarchy.groups import NONE, Group
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.schedule import OrderRule, Schedule

#: Names of the op that represents all other ops, and of the tensor that orders the backward ops after it.
OUTSIDE, AFTER = "outside", "outside done"


@dataclass(frozen=True, eq=False)
class SubProblem:
    """A group as a separate problem.

    Its graph has the ops of the group and, if the group has a backward part, the op `outside` between forward and
    backward part, which represents all other ops. `outside` reads the exports of the forward part, writes the
    gradients and other values that only the backward part reads, costs nothing and runs once. Values that the forward
    part reads from elsewhere are graph inputs and live throughout. So the memory of a schedule of the sub-problem is
    the memory of the group in the whole graph, step by step, while its interfaces are alive. A schedule cut at
    `outside` is an option.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> whole = Problem(unit_chain(4))  # f0 f1 f2 f3 loss g3 g2 g1 g0
    >>> part = SubProblem.of(whole, Group("middle", np.array([1, 2]), np.array([6, 7])))
    >>> part.problem.graph.op_names
    ('f1', 'f2', 'outside', 'g2', 'g1')
    >>> part.problem.graph.inputs, part.problem.graph.outputs, part.problem.reference_peak
    (('f0',), ('g1',), 5)
    >>> option = part.cut(Schedule.reference(part.problem.graph))
    >>> option.forward.tolist(), option.backward.tolist(), translated(option, part.ops).backward.tolist()
    ([0, 1], [3, 4], [6, 7])
    """

    problem: Problem
    """Problem of the sub-graph, without budget, in its fixed order."""
    ops: Int
    """Op of the whole graph; -1 for `outside`. Shape (ops of the sub-graph,)."""

    @classmethod
    def of(cls, whole: Problem, group: Group) -> SubProblem:
        """Return the sub-problem of a group.

        Raise ProblemError if ops outside the group contribute to a buffer that its forward part reads: it cannot run
        alone.
        """
        return cls(_cut_out(whole, group), numbers(group))

    @cached_property
    def outside(self) -> int | None:
        """Number of the op `outside` in the sub-graph; None if the group has no backward part."""
        there = np.flatnonzero(self.ops < 0)
        return int(there[0]) if len(there) else None

    @cached_property
    def place(self) -> Int:
        """Op of the sub-graph by op of the whole graph; -1 for ops that it lacks."""
        found = np.full(int(self.ops.max(initial=-1)) + 1, -1, dtype=np.int64)
        inside = np.flatnonzero(self.ops >= 0)
        found[self.ops[inside]] = inside
        return found

    @cached_property
    def held_least(self) -> int:
        """Least bytes at `outside` in any schedule: the interfaces; 0 if the group has no backward part."""
        return 0 if self.outside is None else int(self.problem.graph.arrays.op_bytes[self.outside])

    @cached_property
    def held_reference(self) -> int:
        """Bytes at `outside` in the reference order without recomputation."""
        if self.outside is None:
            return 0
        arrays = self.problem.graph.arrays
        return int(arrays.reference_memory[arrays.position[self.outside]])

    def asking(self, budget: int, held: int | None = None) -> Problem:
        """Return the sub-problem with a budget, and a limit on the bytes held between forward and backward part.

        `budget`: bytes, including interfaces. `held`: most bytes at `outside`, including interfaces; enforced by the
        workspace of `outside`.
        """
        graph = self.problem.graph
        if held is not None and held < budget and self.outside is not None:
            ops = list(graph.ops)
            ops[self.outside] = replace(ops[self.outside], workspace=budget - held)
            graph = replace(graph, ops=ops)
        return replace(self.problem, graph=graph, budget=budget)

    def cut(self, schedule: Schedule) -> Option:
        """Cut a schedule of the sub-problem at `outside`, in its op numbers."""
        here = self.problem.graph.op_index
        computes = [here[op] for op in schedule.computes()]
        if self.outside is None:
            return Option(computes)
        place = computes.index(self.outside)
        return Option(computes[:place], computes[place + 1 :])

    def schedule(self, option: Option) -> Schedule:
        """Return the schedule of an option in op numbers of the sub-problem."""
        between = NONE if self.outside is None else [self.outside]
        backward = NONE if option.backward is None else option.backward
        return Schedule.of_computes(self.problem.graph, np.concatenate([option.forward, between, backward]))


def translated(option: Option, ops: Int) -> Option:
    """Renumber the ops of an option: `ops` has the new number of each op."""
    return Option(ops[option.forward], None if option.backward is None else ops[option.backward], option.name)


def numbers(group: Group) -> Int:
    """Return the op of the whole graph for each op of the group's sub-problem; -1 for `outside`.

    Examples
    --------
    >>> numbers(Group("middle", np.array([1, 2]), np.array([6, 7]))).tolist()
    [1, 2, -1, 6, 7]
    """
    tied = len(group.forward) and len(group.backward)
    return np.concatenate([group.forward, [-1] if tied else NONE, group.backward]).astype(np.int64)


def _cut_out(whole: Problem, group: Group) -> Problem:
    """Return the sub-graph of a group as a problem."""
    graph, arrays = whole.graph, whole.graph.arrays
    forward, backward = group.forward.tolist(), group.backward.tolist()
    part = dict.fromkeys(forward, "forward") | dict.fromkeys(backward, "backward")
    tied = bool(forward) and bool(backward)
    touched = sorted({
        tensor for op in part for table in (arrays.op_inputs, arrays.op_outputs) for tensor in table[op].tolist()
    })  # fmt: skip
    given: list[int] = []
    read_outside: list[int] = []
    written_outside: list[int] = []
    kept: list[int] = []
    for tensor in touched:
        writers, readers = arrays.producers[tensor].tolist(), arrays.consumers[tensor].tolist()
        inner_writers = [op for op in writers if op in part]
        inner_readers = {part[op] for op in readers if op in part}
        foreign = len(inner_writers) < len(writers)
        if not inner_writers:
            (written_outside if tied and "forward" not in inner_readers and writers else given).append(tensor)
            continue
        if foreign and inner_readers:
            if not tied or "forward" in inner_readers:
                name = graph.tensor_names[tensor]
                raise ProblemError(
                    f"group {group.name!r} cannot be run alone: others write into {name!r}, which it reads", "not-alone"
                )
            written_outside.append(tensor)
        leaves = any(op not in part for op in readers) or (foreign and not inner_readers)
        early = {part[op] for op in inner_writers} == {"forward"}
        if whole.kept[tensor] or (leaves and (foreign or not (tied and early))):
            kept.append(tensor)
        elif leaves:
            read_outside.append(tensor)
    names, taken = graph.tensor_names, {graph.ops[op].name for op in part}
    ops = [replace(graph.ops[op], phase="forward" if tied else "") for op in forward]
    tensors = [Tensor(names[tensor], int(arrays.size[tensor])) for tensor in touched]
    if tied:
        after = _unused(AFTER, {names[tensor] for tensor in touched})
        tensors.append(Tensor(after, 0))
        reads = tuple(names[tensor] for tensor in read_outside)
        writes = tuple(names[tensor] for tensor in written_outside)
        ops.append(Op(_unused(OUTSIDE, taken), reads, (*writes, after), type=OUTSIDE, phase="loss", recomputable=False))
        here, late = set(backward), set(written_outside)
        for op in backward:
            waits = any(t in late or here.intersection(arrays.producers[t].tolist()) for t in arrays.op_inputs[op])
            inputs = graph.ops[op].inputs
            ops.append(replace(graph.ops[op], phase="backward", inputs=inputs if waits else (*inputs, after)))
    else:
        ops += [replace(graph.ops[op], phase="") for op in backward]
    sub_graph = ComputeGraph(
        f"{graph.name}: {group.name}", tensors, ops, [names[t] for t in given], [names[t] for t in kept],
        cost_unit=graph.cost_unit,
    )  # fmt: skip
    limits = {
        graph.ops[op].name: limit for op in part
        if (limit := whole.compute_limits[op]) is not None and graph.ops[op].recomputable
    }  # fmt: skip
    return Problem(sub_graph, order=OrderRule.FIXED, max_computes=limits or None)


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    return name
