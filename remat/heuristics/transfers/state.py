"""Choices of one problem with a machine, their program, and the changes that searches make."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.heuristics.drops.heuristic import recomputations
from remat.heuristics.transfers.tables import no_choices, prices_room, program_room, schedule_of, transfer_graph
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline, Slices
from remat.schedule import Schedule
from remat.schedule.schedule import StepKind
from remat.schedule.simulate import graph_positions

if TYPE_CHECKING:
    from remat.heuristics.transfers.program_kernel import Choices

#: Most ops of one plan to recompute a tensor.
CHAIN = 128
#: Rounds of repairs.
REPAIRS = 20
#: Evaluations between the first checks of the clock, and seconds between checks.
BATCH, CHECK_INTERVAL = 50, 0.1


class Value(NamedTuple):
    """Bytes above budget and host, summed over steps, and time; smaller is better."""

    excess: int
    time: int


def copied(choices: Choices) -> Choices:
    """Return a copy of choices."""
    runs, num_runs, fetched, num_fetches = choices
    return type(choices)(runs.copy(), num_runs.copy(), fetched.copy(), num_fetches.copy())


def copy_choices(given: Choices, to: Choices) -> None:
    """Copy choices into the arrays of others."""
    to.runs[:], to.num_runs[:] = given.runs, given.num_runs
    to.fetched[:], to.num_fetches[:] = given.fetched, given.num_fetches


class State:
    """Choices, their program, and room for changes."""

    def __init__(self, problem: Problem, order: Int | None = None) -> None:
        self.problem = problem
        self.net = transfer_graph(problem, order)
        self.choices = no_choices(self.net)
        self.program = program_room(self.net)
        self.prices = prices_room(self.net, CHAIN)
        self.slices = Slices(BATCH, 100_000, CHECK_INTERVAL)

    def evaluate(self) -> Value:
        """Make the program of the choices and return its value."""
        from remat.heuristics.transfers import program_kernel as kernel

        kernel.evaluate(self.net, self.choices, self.program)
        number = self.program.number
        return Value(int(number[kernel.EXCESS] + number[kernel.HOST_EXCESS]), int(number[kernel.TIME]))

    def schedule(self, source: str) -> Schedule:
        """Return the schedule of the choices."""
        self.evaluate()
        return schedule_of(self.problem, self.program, source)

    def copy(self) -> Choices:
        """Return a copy of the choices."""
        return copied(self.choices)

    def restore(self, choices: Choices) -> None:
        """Set the choices."""
        copy_choices(choices, self.choices)

    def clear(self) -> None:
        """Recompute and fetch nothing."""
        self.choices.num_runs[:] = self.choices.num_fetches[:] = 0

    def take(self, ops: Int, op_stages: Int, tensors: Int, tensor_stages: Int) -> None:
        """Set the choices: recomputations of ops and fetches of tensors, with their stages, as far as there is room."""
        self.clear()
        for op, stage in zip(ops.tolist(), op_stages.tolist(), strict=True):
            self._recompute(op, stage)
        for tensor, stage in zip(tensors.tolist(), tensor_stages.tolist(), strict=True):
            self._fetch(tensor, stage)

    def take_schedule(self, schedule: Schedule) -> bool:
        """Set the choices to those of a schedule; return False if it is not staged in the order."""
        given = recomputations(self.problem, self.net.order, schedule)
        if given is None:
            return False
        tensors, stages = self._fetches(schedule)
        self.take(*given, tensors, stages)
        return True

    def _fetches(self, schedule: Schedule) -> tuple[Int, Int]:
        """Return the fetched tensors of a schedule and the stages that read them."""
        graph, end = self.problem.graph, len(self.net.order)
        found: list[tuple[int, int]] = []
        coming: set[int] = set()
        reads, stage = graph.arrays.op_inputs.shared_lists(), 0
        for kind, target in zip(schedule.kinds.tolist(), graph_positions(graph, schedule).tolist(), strict=True):
            if kind == StepKind.FETCH:
                coming.add(target)
            elif kind == StepKind.COMPUTE:
                used = coming.intersection(reads[target])
                found += [(tensor, stage) for tensor in sorted(used)]
                coming -= used
                stage += bool(stage < end and self.net.order[stage] == target)
        found += [(tensor, end) for tensor in sorted(coming)]
        tensors, stages = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return tensors, stages

    def descend(self, price: float, leaning: float, deadline: Deadline, *, share: float = 0.1) -> Value:
        """Move and recompute the cheapest tensors until nothing exceeds the budget, nothing helps or time is up.

        Parameters
        ----------
        price : float
            Of time on a link, relative to time of the device.
        leaning : float
            Price of holding an input for longer, relative to the price of the excess that a recomputation removes.
        share : float
            Share of the excess that one round removes.
        """
        from remat.heuristics.transfers import search_kernel as kernel
        from remat.heuristics.transfers.program_kernel import KEPT

        value = self.evaluate()
        fraction = share
        banned: set[tuple[int, int]] = set()
        while value.excess > 0 and not deadline.expired:
            kernel.price_changes(self.net, self.choices, self.program, self.prices, price, leaning)
            kept = int(self.program.number[KEPT])
            cheapest = np.minimum(self.prices.move[:kept], self.prices.again[:kept])
            order = np.argsort(cheapest, kind="stable")
            order = order[cheapest[order] < kernel.NEVER]
            if banned:
                pairs = zip(
                    self.program.kept_tensor[order].tolist(),
                    self.prices.stage_of[self.program.kept_to[order]].tolist(),
                    strict=True,
                )
                order = order[[pair not in banned for pair in pairs]]
            if not len(order):
                break
            size = self.net.size[self.program.kept_tensor[order]]
            begin, end = self.program.kept_from[order] + 1, self.program.kept_to[order]
            gain = np.minimum(
                size * (self.prices.above[end] - self.prices.above[begin]),
                self.prices.excess[end] - self.prices.excess[begin],
            )
            count = 1 + int(np.searchsorted(np.cumsum(gain), fraction * value.excess))
            some = order[:count]
            pair = (int(self.program.kept_tensor[some[0]]), int(self.prices.stage_of[self.program.kept_to[some[0]]]))
            kernel.take_changes(self.net, self.choices, self.program, self.prices, some, price, leaning)
            new = self.evaluate()
            if new.excess < value.excess:
                value, fraction = new, min(share, fraction * 1.5)
                continue
            kernel.undo_changes(self.net, self.choices, self.prices)
            value = self.evaluate()
            if count == 1:
                banned.add(pair)
            fraction = fraction / 4 if count > 1 else fraction
        return value

    def repair(self, deadline: Deadline) -> Value:
        """Fetch all that is held over the budget until nothing exceeds it, and then recompute less where it does.

        Descents stop over the budget where the inputs of a recomputation do not fit next to each other.
        """
        from remat.heuristics.transfers.program_kernel import KEPT, STEPS

        program, net = self.program, self.net
        value = self.evaluate()
        for _ in range(REPAIRS):
            if value.excess == 0 or deadline.expired:
                break
            steps, kept = int(program.number[STEPS]), int(program.number[KEPT])
            over = program.room[: steps + 1] < 0
            above = np.append(0, np.cumsum(over))
            tensor, begin, end = program.kept_tensor[:kept], program.kept_from[:kept], program.kept_to[:kept]
            stage_of = np.searchsorted(program.begins[: len(net.order) + 1], np.arange(steps + 1), side="right") - 1
            stage = stage_of[end]
            held = (above[end] > above[begin + 1]) & (begin < program.begins[stage])
            found = list(zip(tensor[held].tolist(), stage[held].tolist(), strict=True))
            if not sum(self._fetch(*pair) for pair in found):
                crowded = np.isin(stage_of[:steps], np.unique(stage_of[over]))
                last = np.append(stage_of[1:steps] > stage_of[: steps - 1], stage_of[steps - 1] < len(net.order))
                again = np.flatnonzero(crowded & ~last)
                found = list(zip(program.sequence[again].tolist(), stage_of[again].tolist(), strict=True))
                made = np.isin(begin, again)
                uses = list(zip(tensor[made].tolist(), stage[made].tolist(), strict=True))
                for pair in found:
                    self._forgo(*pair)
                for pair in uses:
                    self._fetch(*pair)
                if not found:
                    break
            value = self.evaluate()
        return value

    def _recompute(self, op: int, stage: int) -> bool:
        """Recompute an op in a stage if that is allowed and new; return True if so."""
        return _add(self.choices.runs[op], self.choices.num_runs, self.net.most_runs, op, stage)

    def _fetch(self, tensor: int, stage: int) -> bool:
        """Fetch a tensor in a stage if that is allowed and new; return True if so."""
        return _add(self.choices.fetched[tensor], self.choices.num_fetches, self.net.most_fetches, tensor, stage)

    def _forgo(self, op: int, stage: int) -> None:
        """Take the recomputation of an op in a stage back."""
        runs, count = self.choices.runs[op], self.choices.num_runs[op]
        runs[: count - 1] = runs[:count][runs[:count] != stage]
        self.choices.num_runs[op] -= 1

    def take_back(self, deadline: Deadline) -> Value:
        """Take back recomputations and fetches that time and memory do not need, the costliest first."""
        from remat.heuristics.transfers import search_kernel as kernel

        items, stages = self.entries()
        cost = np.concatenate([self.net.cost, self.net.read])[items]
        order = np.argsort(-cost, kind="stable")
        part = 0
        while part < len(order) and not deadline.expired:
            some = order[part : part + self.slices.amount]
            part += len(some)
            with self.slices:
                kernel.take_back(self.net, self.choices, self.program, self.prices, items[some], stages[some])
        return self.evaluate()

    def entries(self) -> tuple[Int, Int]:
        """Return recomputations (ops) and fetches (number of ops + tensors), and their stages."""
        choices = self.choices
        runs = np.argwhere(np.arange(choices.runs.shape[1]) < choices.num_runs[:, None])
        fetches = np.argwhere(np.arange(choices.fetched.shape[1]) < choices.num_fetches[:, None])
        items = np.concatenate([runs[:, 0], fetches[:, 0] + len(self.net.cost)])
        stages = np.concatenate([choices.runs[tuple(runs.T)], choices.fetched[tuple(fetches.T)]])
        return items, stages.astype(np.int64)


def _add(stages: NDArray[np.int32], counts: Int, most: Int, item: int, stage: int) -> bool:
    """Add a stage to those of an item if there is room and it is new; return True if so."""
    count = counts[item]
    if count >= most[item] or stage in stages[:count]:
        return False
    stages[count] = stage
    counts[item] += 1
    return True
