"""Greedy rematerialization: drop what frees most memory for its price until the schedule fits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.deadline import Deadline
from remat.heuristics.base import Heuristic, HeuristicRun
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.schedule import Schedule


class Greedy(Heuristic):
    """Starts from the reference order and adds recomputations one drop at a time.

    A *drop* lets an instance go after its last use before the worst step, and recomputes it in the stage of its next
    use, together with those of its inputs that would otherwise have to be held over a step that exceeds the budget.
    Each round takes the drop with the least cost for the bytes of excess it removes (summed over the steps above the
    budget), until nothing exceeds it or no drop helps. Recomputations that turn out not to be needed are then taken
    back, the most expensive first.

    The result is staged: first computes in the reference order, every op at most once in each stage. It is first
    looked for with two computes per op, then, if that fails, without this limit. Serves as a start for exact methods;
    on training graphs of convolutional networks it is within some tenths of a percent of the optimum, on random
    layered graphs it often fails below 80 %.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(8), 7)
    >>> schedule = Greedy().run(problem, HeuristicRun())
    >>> problem.simulate(schedule).peak
    7
    """

    name = "greedy"

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        deadline = run.deadline
        best = _State(problem, 2, frozenset()).descended(deadline)
        if best.excess and not deadline.expired:
            best = min(best, _State(problem, None, frozenset()).descended(deadline), key=lambda state: state.excess)
        return best.schedule(deadline)


def mended(problem: Problem, recomputations: frozenset[tuple[int, int]], deadline: Deadline) -> Schedule:
    """A staged schedule, brought within the budget by drops if it is over, and then without what it can do without.

    Parameters
    ----------
    recomputations : set of (stage, position in the reference order)
        What is computed besides the first computes.

    Returns
    -------
    Schedule
        It may miss the budget, and may be no schedule at all if the recomputations need what is not there.

    Examples
    --------
    Chen's way with one checkpoint recomputes two ops; one is enough.

    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(4), 5)
    >>> schedule = mended(problem, frozenset({(6, 0), (6, 1), (6, 2), (7, 0), (8, 0)}), Deadline())
    >>> problem.simulate(schedule).cost, problem.simulate(schedule).peak
    (10, 5)
    """
    return _State(problem, None, recomputations).descended(deadline).schedule(deadline)


@dataclass(frozen=True)
class _Drop:
    """Recomputations (position, stage) that let one instance go, their cost, and the excess that remains."""

    extra: frozenset[tuple[int, int]]
    cost: int
    excess: int


class _State:
    """A staged schedule, as the set of its recomputations (stage, position in the reference order)."""

    def __init__(self, problem: Problem, limit: int | None, extra: frozenset[tuple[int, int]]) -> None:
        self.problem, self.limit, self.extra = problem, limit, extra
        arrays = problem.graph.arrays
        keys = sorted([*extra, *((k, k) for k in range(len(arrays.order)))])
        self.stage, self.slot = np.array(keys, dtype=np.int64).T
        self.sequence = arrays.order[self.slot]
        self.run = problem.simulate(Schedule.of_computes(problem.graph, self.sequence))
        self.budget = problem.budget_bytes
        self.inputs, self.outputs = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
        self.writers = arrays.producers.shared_lists()
        self.excess = self.excess_of(self.run.memory)

    def descended(self, deadline: Deadline) -> _State:
        """Drop until the schedule fits, nothing helps, or time is up."""
        state = self
        while state.excess > 0 and not deadline.expired:
            following = state.after_best_drop(deadline)
            if following is None:
                break
            state = following
        return state

    def excess_of(self, memory: Int) -> int:
        """Bytes above the budget, summed over all steps."""
        return 0 if self.budget is None else int(np.maximum(memory - self.budget, 0).sum())

    def after_best_drop(self, deadline: Deadline) -> _State | None:
        """The state after the best drop that really lowers the excess; tried at the worst steps first."""
        assert self.budget is not None
        over = np.flatnonzero(self.run.memory > self.budget)
        for step in over[np.argsort(-self.run.memory[over], kind="stable")][:8].tolist():
            drops = []
            for tensor in self.idle_at(step):
                drop = self.drop(tensor, step, deadline)
                if drop is not None and drop.excess < self.excess:
                    drops.append(drop)
                if deadline.expired:
                    return None
            # Price per byte removed; for nothing is best of all, and then the most bytes.
            drops.sort(key=lambda d: (d.cost / (self.excess - d.excess), d.excess, sorted(d.extra)))
            for drop in drops[:4]:
                state = _State(self.problem, self.limit, self.extra | drop.extra)
                if state.excess < self.excess:
                    return state
        return None

    # -- what is where -----------------------------------------------------------------------------------------------

    @cached_property
    def reads(self) -> dict[int, list[int]]:
        """Steps that read each tensor, ascending."""
        found: dict[int, list[int]] = {}
        for step, op in enumerate(self.sequence.tolist()):
            for tensor in self.inputs[op]:
                found.setdefault(tensor, []).append(step)
        return found

    @cached_property
    def spans(self) -> dict[int, list[tuple[int, int]]]:
        """First step and end of each instance of each tensor, ascending."""
        found: dict[int, list[tuple[int, int]]] = {}
        intervals = self.run.intervals
        columns = (intervals.tensor.tolist(), intervals.start.tolist(), intervals.end.tolist())
        for tensor, start, end in zip(*columns, strict=True):
            found.setdefault(tensor, []).append((start, end))
        return found

    @cached_property
    def counts(self) -> Int:
        return np.bincount(self.sequence, minlength=len(self.problem.graph.ops))

    def idle_at(self, step: int) -> list[int]:
        """Tensors held at `step` that its op neither reads nor writes, and that an op could make again."""
        op = int(self.sequence[step])
        touched = {*self.inputs[op], *self.outputs[op]}
        live = self.run.intervals.live_at(step).tolist()
        return [t for t in live if t not in touched and len(self.writers[t]) == 1]

    def may_run(self, op: int, stage: int) -> bool:
        """Whether `op` may be recomputed once more, in `stage`."""
        allowed = self.problem.compute_limits[op]
        limit = min(x for x in (allowed, self.limit, len(self.sequence) + 1) if x is not None)
        position = int(self.problem.graph.arrays.position[op])
        return self.counts[op] < limit and position < stage and (stage, position) not in self.extra

    # -- one drop ----------------------------------------------------------------------------------------------------

    def drop(self, tensor: int, step: int, deadline: Deadline) -> _Drop | None:
        """Let `tensor` go before `step` and make it again in the stage of its next use; None: impossible, or late."""
        arrays, budget = self.problem.graph.arrays, self.budget
        following = next((s for s in self.reads.get(tensor, ()) if s > step), None)
        if following is None:
            if not self.problem.kept[tensor]:
                return None
            following = len(self.sequence) - 1
        stage = int(self.stage[following])
        memory = self.run.memory.copy()
        extra: set[tuple[int, int]] = set()
        cost, todo = 0, [tensor]
        while todo:
            if deadline.expired:
                return None
            wanted = todo.pop()
            op = self.writers[wanted][0]
            position = int(arrays.position[op])
            if (stage, position) in extra:
                continue
            if len(self.writers[wanted]) != 1 or not self.may_run(op, stage):
                return None
            extra.add((stage, position))
            cost += int(arrays.cost[op])
            here = int(np.searchsorted(self._key, stage * len(arrays.order) + position))  # where it would run
            if here <= step and wanted == tensor:
                return None
            last = self._last_touch(wanted, step if wanted == tensor else here)
            if wanted == tensor:
                memory[last + 1 : here] -= arrays.size[wanted]
            else:
                memory[here : following + 1] += arrays.size[wanted]
            for needed in self.inputs[op]:
                if not self._held(needed, here):
                    gone = self._last_touch(needed, here)
                    if (
                        len(self.writers[needed]) != 1
                        or (memory[gone + 1 : here] + arrays.size[needed] <= budget).all()
                    ):
                        memory[gone + 1 : here + 1] += arrays.size[needed]
                    else:
                        todo.append(needed)
        return _Drop(frozenset(extra), cost, self.excess_of(memory))

    @cached_property
    def _key(self) -> Int:
        return self.stage * len(self.problem.graph.ops) + self.slot

    def _held(self, tensor: int, step: int) -> bool:
        return any(start < step < end for start, end in self.spans.get(tensor, ()))

    def _last_touch(self, tensor: int, step: int) -> int:
        """Last step before `step` that makes or reads `tensor`."""
        made = [start for start, _ in self.spans.get(tensor, ()) if start < step]
        read = [s for s in self.reads.get(tensor, ()) if s < step]
        return max([*made, *read, -1])

    # -- afterwards --------------------------------------------------------------------------------------------------

    def schedule(self, deadline: Deadline) -> Schedule:
        """Its schedule; where it fits, without recomputations that are not needed, the most expensive first."""
        arrays, state = self.problem.graph.arrays, self
        for key in sorted(self.extra, key=lambda k: (-int(arrays.cost[arrays.order[k[1]]]), k)):
            if self.excess or deadline.expired:
                break
            shorter = _State(self.problem, self.limit, state.extra - {key})
            if shorter.excess == 0:
                state = shorter
        return Schedule.of_computes(self.problem.graph, state.sequence, source=Greedy.name)
