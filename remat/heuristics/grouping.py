"""Grouping: a smaller problem whose ops run several of the original ones, for a search that is quicker on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from remat.deadline import Deadline, OverdueError
from remat.errors import ProblemError
from remat.formulations.sequence import op_sequence, useful_schedule
from remat.graphs import ComputeGraph, Op
from remat.heuristics.base import Heuristic, HeuristicRun, rank
from remat.problem import Problem
from remat.schedule import OrderRule, Schedule, simulate

Int = NDArray[np.int64]

#: Most ops in one group: bounds the work of each fusing, so that the whole takes linear time in practice.
MOST_MEMBERS = 64
#: What an op fused into several readers may cost more, in mean costs of an op, where groups are to give a start.
EXTRA = 0.3
#: Share of the ops that must fuse for a search on groups to be worth its time.
WORTH = 0.05


@dataclass(frozen=True, eq=False)
class Grouped:
    """A problem on groups of ops, and the way there and back.

    Attributes
    ----------
    problem : Problem
        Same budget in bytes and same rules. Each op stands for a group and has the name of its last op, the *head*.
    members : tuple of int64 arrays
        For each op of `problem`, the original ops that it runs, in sequence.
    head : int64 array, shape (original ops,)
        The grouped op whose head it is; -1: fused away.
    """

    problem: Problem
    members: tuple[Int, ...]
    head: Int

    def expand(self, sequence: Iterable[int] | Int) -> Int:
        """The original ops that a sequence of grouped ops runs.

        It is valid where the grouped one is, costs the same, and has at most its peak.
        """
        parts = [self.members[op] for op in sequence]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def contract(self, sequence: Iterable[int] | Int) -> Int:
        """The groups whose heads a sequence of original ops runs: valid where that is; cost and peak may differ."""
        given = np.fromiter(sequence, dtype=np.int64)
        heads: Int = self.head[given]
        return heads[heads >= 0]


def group(problem: Problem, *, extra: float = 0.0, deadline: Deadline | None = None) -> Grouped:
    """Fuse ops into their readers, as long as that holds no more memory between them.

    After the first stage of FastSA (Imanishi et al., NeurIPS 2023): op `i` is fused into each of its readers if each
    reads all outputs of `i` and the inputs of `i` are together no larger than its outputs, graph inputs aside; again
    until nothing fuses. A group costs what it runs, and its workspace covers the peak inside it, so that what the
    grouped problem says of a schedule is true of the expanded one. Left alone are ops that write a tensor to be kept
    or an accumulation buffer; those with a limit of computes, unless their only reader has one as low; and, with the
    fixed order, those that do not come right before the first reader, since the order would have to change. Nothing is
    fused into a group that alone needs more than the budget, or that would run more than `MOST_MEMBERS` ops.

    An op with several readers becomes part of several groups and is recomputed in each. Without a limit on that, a
    chain of equal sizes with a backward pass would end as one that recomputes everything for each gradient.

    Parameters
    ----------
    problem : Problem
    extra : float
        Most that one op fused into several readers may cost more, in mean costs of an op. 0: only what costs nothing.
    deadline : Deadline, optional

    Raises
    ------
    OverdueError
        At the deadline.

    Examples
    --------
    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("chain")
    >>> _ = b.op("a", size=4, cost=1), b.op("b", inputs=["a"], size=6, cost=2), b.op("c", inputs=["b"], size=1, cost=3)
    >>> grouped = group(Problem(b.build(), 11))
    >>> [(op.name, op.cost, op.workspace) for op in grouped.problem.graph.ops], grouped.expand([0]).tolist()
    ([('c', 6, 9)], [0, 1, 2])
    """
    return _Fusing(problem, extra).go(deadline or Deadline())


def begin(heuristic: Heuristic, problem: Problem, run: HeuristicRun, share: float) -> HeuristicRun:
    """Let a heuristic search on groups first: the same run, from what it finds there, if that is the better start.

    Parameters
    ----------
    heuristic : Heuristic
    problem : Problem
    run : HeuristicRun
        Its time is that of both parts.
    share : float
        Of the time left, for the groups.
    """
    try:
        grouped = group(problem, extra=EXTRA, deadline=run.deadline)
    except OverdueError:
        return run
    if len(grouped.members) > (1 - WORTH) * len(problem.graph.ops):
        return run

    def expanded(schedule: Schedule) -> Schedule:
        return useful_schedule(problem, grouped.expand(op_sequence(grouped.problem, schedule)), schedule.source)

    start, clock = None, run.deadline
    if run.start is not None:
        try:
            sequence = grouped.contract(op_sequence(problem, run.start))
            start = Schedule.of_computes(grouped.problem.graph, sequence, source=run.start.source)
        except ProblemError:  # an accumulation buffer is filled twice
            start = None
    part = clock.share(share)
    enough: list[bool] = []

    def tell(schedule: Schedule) -> bool:
        enough.append(run.tell(expanded(schedule)))
        return enough[-1]

    told = None if run.on_schedule is None else tell
    found = heuristic.run(grouped.problem, replace(run.until(part), start=start, on_schedule=told))
    if found is None:
        return run
    if any(enough):  # nothing is left for the second part
        run = run.until(clock.earlier(0))
    starts = [schedule for schedule in (run.start, expanded(found)) if schedule is not None]
    return replace(run, start=min(starts, key=lambda schedule: _ranked(problem, schedule)))


def _ranked(problem: Problem, schedule: Schedule) -> tuple[bool, int, int]:
    """How good it is, measured."""
    constant = problem.count_constant_memory
    measured = simulate(problem.graph, schedule, keep=problem.keep, count_constant_memory=constant)
    budget = problem.budget_bytes
    return rank(budget is None or measured.peak <= budget, measured.cost, measured.peak)


class _Fusing:
    """Groups by their heads, while ops are fused."""

    def __init__(self, problem: Problem, extra: float) -> None:
        arrays = problem.graph.arrays
        self.problem = problem
        self.reads, self.writes = arrays.op_inputs.lists(), arrays.op_outputs.lists()
        self.size, self.workspace = arrays.size.tolist(), arrays.workspace.tolist()
        self.cost, self.position = arrays.cost.tolist(), arrays.position.tolist()
        self.limits, self.kept = problem.compute_limits, problem.kept.tolist()
        self.shared, self.given = (arrays.producers.counts > 1).tolist(), arrays.is_input.tolist()
        self.producers = arrays.producers.lists()
        self.fixed = problem.order is OrderRule.FIXED
        budget = problem.budget_bytes
        self.budget = None if budget is None else budget - arrays.input_bytes - problem.constant_bytes
        self.extra = extra * problem.graph.base_cost / len(self.cost)
        self.members: list[list[int]] = [[op] for op in range(len(self.cost))]
        self.inputs = [set(row) for row in self.reads]
        self.readers = [set(row) for row in arrays.consumers.lists()]
        self.order: list[int] = arrays.order.tolist()
        self.following = dict(zip(self.order, self.order[1:], strict=False))
        self.before = {second: first for first, second in self.following.items()}

    def go(self, deadline: Deadline) -> Grouped:
        waiting = deque(self.order)
        queued = [True] * len(self.cost)
        while waiting:
            deadline.check()
            op = waiting.popleft()
            queued[op] = False
            if not self.members[op]:
                continue
            # Those before it have other readers now, and other neighbours.
            again = {writer for t in self.inputs[op] for writer in self.producers[t]} | {self.before.get(op, op)}
            if not self._fuse(op):
                continue
            for other in sorted(again, key=self.position.__getitem__):
                if self.members[other] and not queued[other]:
                    queued[other] = True
                    waiting.append(other)
        return self._grouped()

    def _fuse(self, op: int) -> bool:
        """Fuse a group into its readers; whether that may be."""
        readers = self._wanted_by(op)
        if not readers:
            return False
        new = {}
        for reader in readers:
            members = sorted({*self.members[op], *self.members[reader]}, key=self.position.__getitem__)
            if len(members) > MOST_MEMBERS:
                return False
            inputs = (self.inputs[op] | self.inputs[reader]) - set(self.writes[op])
            if self.budget is not None:
                held = sum(self.size[t] for t in inputs if not self.given[t])
                if held + self._inside(members) > self.budget:
                    return False
            new[reader] = members, inputs
        for reader, (members, inputs) in new.items():
            self.members[reader], self.inputs[reader] = members, inputs
            for t in inputs:
                self.readers[t].add(reader)
        for t in self.inputs[op]:
            self.readers[t].discard(op)
        self.members[op] = []
        earlier, later = self.before.pop(op, None), self.following.pop(op, None)
        if earlier is not None:
            self.following.pop(earlier)
        if later is not None:
            self.before.pop(later)
        if earlier is not None and later is not None:
            self.following[earlier], self.before[later] = later, earlier
        return True

    def _wanted_by(self, op: int) -> list[int]:
        """The groups that this one is to be fused into; empty: it stays."""
        outputs = self.writes[op]
        if not outputs or any(self.kept[t] or self.shared[t] for t in outputs):
            return []
        readers = self.readers[outputs[0]]
        if not readers or any(self.readers[t] != readers for t in outputs[1:]):
            return []
        if self.fixed and self.following.get(op) != min(readers, key=self.position.__getitem__):
            return []
        if sum(self.size[t] for t in self.inputs[op] if not self.given[t]) > sum(self.size[t] for t in outputs):
            return []
        if len(readers) > 1 and (len(readers) - 1) * sum(self.cost[m] for m in self.members[op]) > self.extra:
            return []
        limit = self.limits[op]
        if limit is not None:
            others = [self.limits[reader] for reader in readers]
            if len(others) > 1 or others[0] is None or others[0] > limit:
                return []
        return sorted(readers, key=self.position.__getitem__)

    def _inside(self, members: list[int]) -> int:
        """Most bytes of what a group writes, workspaces included, at any of its steps.

        A buffer that the head contributes to may be there from the beginning.
        """
        head, earlier = members[-1], members[:-1]
        private = {t for op in earlier for t in self.writes[op]}
        last = {t: op for op in members for t in self.reads[op] if t in private}
        standing = sum(self.size[t] for t in self.writes[head] if self.shared[t])
        live, most = standing, 0
        for op in earlier:
            live += sum(self.size[t] for t in self.writes[op])
            most = max(most, live + self.workspace[op])
            live -= sum(self.size[t] for t in self.reads[op] if last.get(t) == op)
        return max(most, live + sum(self.size[t] for t in self.writes[head]) - standing + self.workspace[head])

    def _grouped(self) -> Grouped:
        graph = self.problem.graph
        heads = [op for op in range(len(self.cost)) if self.members[op]]
        gone = {t for op in range(len(self.cost)) if not self.members[op] for t in self.writes[op]}
        ops = [self._op(op) for op in heads]
        order = [graph.ops[op].name for op in self.order if self.members[op]]
        tensors = [tensor for t, tensor in enumerate(graph.tensors) if t not in gone]
        smaller = ComputeGraph(
            f"{graph.name} grouped", tensors, ops, graph.inputs, graph.outputs, order, graph.constant_memory,
            graph.cost_unit, graph.source,
        )  # fmt: skip
        limits = {graph.ops[op].name: limit for op in heads if (limit := self.limits[op]) is not None}
        rules = self.problem
        problem = Problem(smaller, rules.budget_bytes, rules.order, limits, rules.keep, rules.count_constant_memory)
        head = np.full(len(self.cost), -1, dtype=np.int64)
        head[heads] = np.arange(len(heads))
        return Grouped(problem, tuple(np.array(self.members[op], dtype=np.int64) for op in heads), head)

    def _op(self, head: int) -> Op:
        old, members = self.problem.graph.ops[head], self.members[head]
        if len(members) == 1:
            return old
        names = self.problem.graph.tensor_names
        written = sum(self.size[t] for t in self.writes[head])
        return Op(
            old.name,
            tuple(names[t] for t in sorted(self.inputs[head])),
            old.outputs,
            sum(self.cost[m] for m in members),
            self._inside(members) - written,
            old.type,
            old.phase,
            old.recomputable,
        )
